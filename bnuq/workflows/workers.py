"""Who else computes the units of runs, as `--on` says: nobody, several processes of this machine, or Ray."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from bnuq.evaluation.setup import threads
from bnuq.progress import Progress
from bnuq.workflows.on_ray import Actors
from bnuq.workflows.processes import Job, Processes, Turn, Workers, forgive


@dataclass
class Nobody:
    """No other process: this one computes all units."""

    before = None

    def wait(self, progress: Progress, total: int) -> None: ...


@contextlib.contextmanager
def workers(on: str, jobs: Sequence[Job]) -> Iterator[Workers]:
    """The processes that `on` names, other than "local", at work inside the block. All of them, this one too, compute
    with the same number of threads, as sums are rounded by it."""
    others = Actors(jobs) if on == "ray" else Processes(jobs, int(on.removeprefix("local:")))
    for place in others.places:
        forgive(place)
    with threads(others.threads), others:
        yield others


@contextlib.contextmanager
def helpers(on: str, job: Job) -> Iterator[Nobody | Turn]:
    """The processes that `on` names, at work at one job inside the block: `wait` until they have finished."""
    if on == "local":
        yield Nobody()
        return
    with workers(on, [job]) as others, others.turn(0) as turn:
        yield turn
