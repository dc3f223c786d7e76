"""The units of one journal on Ray: an actor for each accelerator or core, which runs what a process of `--on local:N`
runs. The journal does the work; Ray starts the actors, and starts them again."""

from __future__ import annotations

import importlib
import os
import secrets
import sys
from typing import Any

from bnuq import errors, stopping
from bnuq.errors import BnuqError, RequestError, ResultError
from bnuq.evaluation.executors import Share
from bnuq.evaluation.setup import threads
from bnuq.files.places import place_of
from bnuq.progress import Progress
from bnuq.workflows.processes import MOST_STARTS, Job, note_why, raise_lost


class Actors:
    """Actors of the Ray cluster that RAY_ADDRESS names, or of one that is started here, that compute the units of a
    job."""

    def __init__(self, job: Job) -> None:
        try:
            ray = importlib.import_module("ray")
        except ImportError as error:
            raise RequestError("--on ray needs the package ray: pip install 'bnuq[ray]'.") from error
        self._ray, self._job, self._place = ray, job, place_of(job.work)
        self._driver, self._own = secrets.token_hex(3), not ray.is_initialized()
        self.threads = 1  # of an actor, and so of this process
        self._starts: dict[int, int] = {}
        self._actors: list[Any] = []

    def __enter__(self) -> Actors:
        ray = self._ray
        if self._own:
            paths = {"env_vars": {"PYTHONPATH": os.pathsep.join(sys.path)}}
            try:
                ray.init(
                    runtime_env=None if "RAY_ADDRESS" in os.environ else paths,
                    log_to_driver=False,
                    logging_level="error",
                )
            except Exception as error:
                raise RequestError(f"--on ray: no cluster ({errors.first_line(error)}). See RAY_ADDRESS.") from error
        there = ray.cluster_resources()
        gpus = int(there.get("GPU", 0)) if self._job.device in ("auto", "cuda") else 0
        self._count = gpus or max(1, int(there.get("CPU", 1)))
        self._title = f"{self._count} actors of Ray, each with a {'GPU' if gpus else 'core'}"
        actor = ray.remote(_Actor).options(num_cpus=1, num_gpus=1 if gpus else 0, max_restarts=-1)
        self._actors = [actor.remote() for _ in range(self._count)]
        self._tasks = {self._begun(number): number for number in range(self._count)}
        return self

    def __exit__(self, *_: object) -> None:
        for number, actor in enumerate(self._actors):
            self._ray.kill(actor)
            note_why(self._place, self._share(number).name, "its driver ended")
        if self._own:
            self._ray.shutdown()

    def wait(self, progress: Progress, total: int) -> None:
        """Wait until all units are finished. ResultError for units that are lost, and the error of an actor, where it
        has one."""
        lost: dict[str, str] = {}
        with progress(self._title, total) as advance:
            while self._tasks:
                stopping.check()
                for task in self._ray.wait([*self._tasks], timeout=0.5)[0]:
                    number = self._tasks.pop(task)
                    try:
                        answer = self._ray.get(task)
                    except self._ray.exceptions.RayActorError as error:
                        self._died(number, errors.first_line(error))
                        continue
                    if "error" in answer:
                        kind, text = answer["error"]
                        raise getattr(errors, kind, BnuqError)(text)
                    lost |= answer["lost"]
                    advance(total // self._count)
        raise_lost(lost)

    def _share(self, number: int) -> Share:
        return Share(number, self._count, f"actor {number} of {self._count} ({self._driver})")

    def _begun(self, number: int) -> Any:
        return self._actors[number].work.remote(self._job, self._share(number))

    def _died(self, number: int, why: str) -> None:
        """Note why beside what an actor had begun; Ray starts it again."""
        begun = note_why(self._place, self._share(number).name, f"its actor ended: {why}")
        self._starts[number] = 0 if begun else self._starts.get(number, 0) + 1
        if self._starts[number] >= MOST_STARTS:
            raise ResultError(f"{self._share(number).name} ended {MOST_STARTS} times and began no unit: {why}.")
        self._tasks[self._begun(number)] = number


class _Actor:
    """One process of Ray."""

    def work(self, job: Job, share: Share) -> dict[str, Any]:
        """The job's units of this share: what is lost, or the error of bnuq that ended it."""
        try:
            with threads(1):
                return {"lost": job.done_by(share, lambda _: None)}
        except BnuqError as error:
            return {"error": [type(error).__name__, str(error)]}
