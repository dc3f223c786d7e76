"""Several evaluations as one queue of work: processes go on to the next without waiting for its result."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from pathlib import Path

from bnuq.config import Run
from bnuq.errors import BnuqError
from bnuq.evaluation.datasets import fetch_missing
from bnuq.evaluation.request_checks import check_request
from bnuq.files.journal import beside, keeping
from bnuq.files.places import place_of
from bnuq.progress import Advance, Progress, silent
from bnuq.records.evaluation import Result
from bnuq.workflows.evaluate import evaluate, job_of
from bnuq.workflows.helpers import workers
from bnuq.workflows.processes import Turn
from bnuq.workflows.requests import check_shareable


def evaluate_all(
    runs: Sequence[Run],
    *,
    on_result: Callable[[Run, Result], object],
    on_error: Callable[[Run, Exception], object],
    work: Path | str | None = None,
    progress: Progress = silent,
) -> None:
    """Evaluate each of `runs` as `evaluate` does, each into its own file, by the processes that the first one names:
    they compute the units of all of them, one run after the other. An error of a run, which `on_error` receives, ends
    that run alone."""
    able: list[Run] = []
    for run in runs:
        try:
            check_request(run)
            fetch_missing(run, progress)
            able.append(run)
        except BnuqError as error:
            on_error(run, error)
    with queued(able, work) as turns:
        for number, run in enumerate(able, 1):
            named = partial(_named, progress, f"{number} of {len(able)}, {(run.run_file or run.checkpoint).name}")
            try:
                turn = next(turns)
                result = evaluate(run, work=work, progress=named, turn=turn)
                on_result(run, result)
            except Exception as error:
                on_error(run, error)


@contextmanager
def queued(runs: Sequence[Run], work: Path | str | None) -> Iterator[Iterator[AbstractContextManager[Turn] | None]]:
    """The turn of each run, with the processes at work inside the block that the first one names; None where there are
    no others."""
    on = runs[0].on if runs else "local"
    if on == "local":
        yield itertools.repeat(None)
        return
    check_shareable(runs, work, f"--on {on}")
    with ExitStack() as stack:
        for run in runs:
            stack.enter_context(keeping(place_of(work or beside(run.out)), removes_empty=work is None))
        others = stack.enter_context(workers(on, [job_of(run, work) for run in runs]))
        yield map(others.turn, range(len(runs)))


def _named(progress: Progress, name: str, title: str, total: int) -> AbstractContextManager[Advance]:
    return progress(f"{name}: {title}", total)
