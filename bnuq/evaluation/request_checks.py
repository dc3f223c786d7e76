"""Checks a request before anything is read or computed."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from bnuq.config import Run
from bnuq.errors import ModelError, RequestError
from bnuq.evaluation.completeness import Need, check_complete
from bnuq.evaluation.predictions import check_file
from bnuq.files.content import kind_of, what_is_wrong_with
from bnuq.findings import Finding, note
from bnuq.methods import method_named
from bnuq.records import evaluation_file as result_file


def check_readable(run: Run) -> None:
    """Raise ModelError where a checkpoint of `run` cannot be one."""
    for single in run.single:
        if single.network is None and (problem := what_is_wrong_with(kind_of(single.checkpoint))):
            raise ModelError(f"{single.checkpoint}: {problem}")


def check_request(run: Run, *, needs: Collection[Need] = ("test",)) -> None:
    """Raise BnuqError for every error in `run` that can be found before anything is computed; one message lists all
    that it lacks."""
    check_readable(run)
    check_complete(run, needs=needs)
    if kind_of(run.out.parent) != "folder":
        raise RequestError(f"--out {run.out}: the folder {run.out.parent} does not exist.")
    result_file.check_replaceable(run.out)
    if run.run_file is not None and run.run_file.resolve() == run.out.resolve():
        raise RequestError(f"--out {run.out} is a file that this run reads; name another file to write.")
    if run.predictions is not None:
        check_file(run.predictions)
    _check_bank(run)
    if (ends := run.scoring.tau_range) is not None and not ends[0] < ends[1] < float("inf"):
        raise RequestError(
            f"scoring.tau_range is {list(ends)}; expected two finite numbers, the lower first, in 1/(target unit)²."
        )
    if run.bank is not None and (run.scoring.fit, run.scoring.pll) == ("pll", "mixture") and run.scoring.tau is None:
        raise RequestError(
            '--bank and fit = "pll" cannot be combined: with a bank, points have different draws, so only CRPS can be '
            "fitted. Leave one of them out."
        )


def _check_bank(run: Run) -> None:
    """Raise RequestError for a bank of fewer than T draws, or where T is "auto"; ignored where no method samples
    BatchNorm."""
    if run.bank is None or (
        run.methods is not None and not any(method_named(name).is_sampled_batchnorm for name in run.methods)
    ):
        return
    if run.samples == "auto":
        raise RequestError(
            f'--bank {run.bank} needs a number of samples, and samples is "auto"; name one with --samples, or leave '
            "the bank out."
        )
    if run.bank < run.samples:
        raise RequestError(
            f"--bank is {run.bank}; expected at least as many draws as the {run.samples} samples of a point, which are "
            "chosen from it."
        )


def notes_on_request(runs: Sequence[Run], *, replaces: Path | None) -> Iterator[Finding]:
    """Notes on run files that were found and not named, and on an earlier result that is replaced."""
    for run in runs:
        if run.run_file is not None and run.run_file_is_implicit:
            where = "in this folder" if run.run_file.name == "bnuq.toml" else "beside the checkpoint"
            yield note("run-file-read", file=run.run_file.name, where=where)
    if replaces is not None:
        yield note("result-replaced", file=replaces.name)
