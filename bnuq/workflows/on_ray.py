"""The units of runs on Ray: an actor for each accelerator or core, which runs what a process of `--on local:N` runs.
The journal does the work; Ray starts the actors."""

from __future__ import annotations

import importlib
import os
import sys
import time
from collections.abc import Sequence
from typing import Any

from bnuq import errors
from bnuq.errors import RequestError, ResultError
from bnuq.evaluation.executors import Share
from bnuq.evaluation.setup import threads
from bnuq.workflows.processes import MOST_STARTS, Job, Workers

_SILENCE = 1800.0  # seconds without a sign of life of any actor: one unit takes seconds, or minutes
_LOOK = 5.0  # seconds between two looks at the work folders


class Actors(Workers):
    """Actors of the Ray cluster that RAY_ADDRESS names, or of one that is started here, that compute the units of
    jobs."""

    _kind, threads = "actor", 1

    def __init__(self, jobs: Sequence[Job]) -> None:
        try:
            self._ray = ray = importlib.import_module("ray")
        except ImportError as error:
            raise RequestError("--on ray needs the package ray: pip install 'bnuq[ray]'.") from error
        if own := not ray.is_initialized():
            paths = {"env_vars": {"PYTHONPATH": os.pathsep.join(sys.path)}}
            try:
                ray.init(
                    runtime_env=None if "RAY_ADDRESS" in os.environ else paths,
                    include_dashboard=False if "RAY_ADDRESS" not in os.environ else None,
                    log_to_driver=False,
                    logging_level="error",
                )
            except Exception as error:
                raise RequestError(f"--on ray: no cluster ({errors.first_line(error)}). See RAY_ADDRESS.") from error
        there = ray.cluster_resources()
        gpus = int(there.get("GPU", 0)) if jobs[0].device in ("auto", "cuda") else 0
        super().__init__(jobs, gpus or max(1, int(there.get("CPU", 1))))
        self.title = f"{len(self.finished)} actors of Ray, each with a {'GPU' if gpus else 'core'}"
        self._own, self._kind_of_actor = own, ray.remote(_Actor).options(num_cpus=1, num_gpus=1 if gpus else 0)
        self._actors: list[Any] = [None] * len(self.finished)
        self._starts = [0] * len(self.finished)
        self._tasks: dict[Any, tuple[int, int]] = {}  # worker and job
        self._files: set[str] = set()  # in the work folders
        self._heard = self._looked = time.monotonic()

    def __enter__(self) -> Actors:
        for worker in range(len(self.finished)):
            self._started_again(worker)
        return self

    def __exit__(self, *_: object) -> None:
        for worker, actor in enumerate(self._actors):
            if actor is not None:
                self._ray.kill(actor)
            self._note_why(worker, "its driver ended")
        if self._own:
            self._ray.shutdown()

    def _attend(self) -> None:
        finished = self._ray.wait([*self._tasks], timeout=0.5)[0]
        self._check_silence(heard=bool(finished))
        for task in finished:
            if task not in self._tasks:
                continue  # of an actor that has just died
            worker, job = self._tasks.pop(task)
            try:
                answer = self._ray.get(task)
            except self._ray.exceptions.RayActorError as error:
                self._died(worker, errors.first_line(error))
                continue
            self._starts[worker] = 0
            self._passes[job] += answer.pop("passes")
            self._heed(worker, answer)

    def _check_silence(self, *, heard: bool) -> None:
        """Raise ResultError where actors have neither ended nor begun or finished a unit for too long: where Ray itself
        is gone, nothing else says so."""
        now = time.monotonic()
        if heard or now - self._looked > _LOOK:
            files = {name for place in self.places for name in place.names()}
            if heard or files != self._files:
                self._heard = now
            self._files, self._looked = files, now
        if now - self._heard > _SILENCE:
            raise ResultError(
                f"--on ray: no actor has begun or finished a unit for {_SILENCE / 60:.0f} minutes; Ray, or a node of "
                "it, seems to have died. No finished unit is lost: restart Ray, and repeat the command."
            )

    def _died(self, worker: int, why: str) -> None:
        """Note why beside what an actor had begun, and start another in its place."""
        if self._note_why(worker, f"its actor ended: {why}"):
            self._starts[worker] = 0
        if self._starts[worker] >= MOST_STARTS:
            raise ResultError(f"{self.share(worker).name} ended {MOST_STARTS} times and began no unit: {why}.")
        self._started_again(worker)

    def _started_again(self, worker: int) -> None:
        self._tasks = {task: of_task for task, of_task in self._tasks.items() if of_task[0] != worker}
        if self._actors[worker] is not None:
            self._ray.kill(self._actors[worker])
        self._starts[worker] += 1
        if self.finished[worker] < len(self.jobs):
            self._actors[worker] = self._kind_of_actor.remote()
            for job in range(self.finished[worker], len(self.jobs)):
                task = self._actors[worker].work.remote(self.jobs[job], job, self.share(worker))
                self._tasks[task] = worker, job


class _Actor:
    """One process of Ray."""

    def work(self, job: Job, number: int, share: Share) -> dict[str, Any]:
        """Do a job, and return a message about it."""
        passes: list[int] = []
        with threads(1):
            return job.done(number, share, passes.append) | {"passes": sum(passes)}
