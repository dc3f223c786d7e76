"""Who else computes the units of a run: nobody, processes of this machine, or actors of Ray."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from bnuq.config import Run
from bnuq.evaluation.setup import threads
from bnuq.files.places import place_of
from bnuq.progress import Progress
from bnuq.workflows.processes import Job, Processes, forgive


@dataclass
class Nobody:
    """No other process: this one computes all units."""

    def wait(self, progress: Progress, total: int) -> None: ...


@contextlib.contextmanager
def helpers(run: Run, job: Job) -> Iterator[Any]:
    """The processes that `run.on` names, at work inside the block: `wait` until they have finished. All of them, this
    one too, compute with the same number of threads, as sums are rounded by it."""
    if run.on == "local":
        yield Nobody()
        return
    if run.on == "ray":
        from bnuq.workflows.on_ray import Actors  # late: Ray is optional

        others: Any = Actors(job)
    else:
        others = Processes(job, int(run.on.removeprefix("local:")))
    forgive(place_of(job.work))
    with threads(others.threads), others:
        yield others
