"""What each command refuses before anything is read or computed; none of it imports torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from bnuq.config import Run, Runs
from bnuq.errors import BnuqError, RequestError
from bnuq.evaluation.request_checks import check_folder, check_out, check_request, check_scoring
from bnuq.records.evaluation_file import check_replaceable


def check_evaluation(run: Run, work: Path | str | None, *, reading: bool = True) -> None:
    """Raise BnuqError for every error that can be found before anything is computed; without `reading` a checkpoint,
    for which torch is imported, only for those that can be seen without it."""
    check_request(run, partial(check_out, run), partial(check_scoring, run), needs=("test",), reading=reading)
    if run.on != "local":
        check_shareable([run], work, f"--on {run.on}")


def check_several(runs: Runs, *, reading: bool = True) -> None:
    """As `check_evaluation`, of every run and the place of their aggregate."""
    check_folder(runs.out)
    check_replaceable(runs.out)
    for run_of_series in runs.all:
        if run_of_series.run.run_file is not None and run_of_series.run.run_file.resolve() == runs.out.resolve():
            raise RequestError(f"--out {runs.out} is a file that these runs read; name another file to write.")
        try:
            check_evaluation(replace(run_of_series.run, on="local"), None, reading=reading)
        except BnuqError as error:
            raise type(error)(f"{run_of_series.words}: {error}") from error


def check_shareable(runs: Sequence[Run], work: Path | str | None, option: str) -> None:
    """Raise RequestError for runs whose units other processes cannot compute."""
    for run in runs:
        if run.network is not None or any(each.data is not None for each in run.named):
            raise RequestError(f"{option} is for networks and data in files, which other processes can read.")
    if str(work).startswith("memory:"):
        raise RequestError(f"--work {work} is memory of this process, which {option} cannot share. Name a folder.")
