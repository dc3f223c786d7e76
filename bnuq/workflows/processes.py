"""Processes of this machine that compute the units of runs, watched by this one.

Each is a spawned Python that runs the ordinary program with a worker as its executor. It is restarted if it
dies, and so are the units it had begun: results are those of one undisturbed process.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import pickle
import queue
import re
import secrets
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Any

import torch

from bnuq import devices, errors, stopping
from bnuq.errors import BnuqError, ResultError, is_device_failure
from bnuq.evaluation.executors import Share, Worker, has_ended
from bnuq.evaluation.setup import threads
from bnuq.evaluation.units import WorkUnit
from bnuq.files import apart
from bnuq.files.journal import MOST_ATTEMPTS
from bnuq.files.places import Place, place_of
from bnuq.frozen import frozen
from bnuq.progress import Progress

_RUN = "import sys, json; sys.path[:] = json.loads(sys.argv[1]); from bnuq.workflows.processes import main; main()"
MOST_STARTS = 10  # of a process that is killed before it begins any unit
_GRACE = 60.0  # seconds in which an interrupted process may finish its unit


@frozen
class Job:
    """What every process does: call `function` with these arguments, the place of the units, and what makes its
    executor of a journal; it gives the executors that it made."""

    function: Callable[..., Sequence[Worker]]
    arguments: tuple[Any, ...]
    work: str
    device: str

    def done(self, number: int, share: Share, on_passes: Callable[[int], object]) -> dict[str, Any]:
        """Compute the units of this share here, and return a message: which are lost, and why, or the error
        of bnuq that ended it."""

        def on_unit(unit: WorkUnit) -> None:
            on_passes(len(unit.points) * len(unit.draws))

        try:
            made = self.function(*self.arguments, place_of(self.work), lambda journal: Worker(journal, share, on_unit))
        except BnuqError as error:
            return {"job": number, "error": [type(error).__name__, str(error)]}
        return {"job": number, "lost": {unit: why for worker in made for unit, why in worker.lost.items()}}


class Workers:
    """`count` workers, each of which does all `jobs`, one after the other, while this process attends to them in turn.

    A worker goes on to the next job by itself; its messages are kept until the turn of their job.
    """

    threads: int  # of a worker, and so of this process
    title: str

    def __init__(self, jobs: Sequence[Job], count: int) -> None:
        self.jobs, self.places = tuple(jobs), tuple(place_of(job.work) for job in jobs)
        self._before = [frozenset(place.names()) for place in self.places]
        self.finished = [0] * count
        """The number of jobs that each worker has finished."""
        self._passes, self._lost = [0] * len(jobs), [dict[str, str]() for _ in jobs]
        self._errors: dict[int, Exception] = {}
        self._driver = secrets.token_hex(3)

    @contextlib.contextmanager
    def turn(self, job: int) -> Iterator[Turn]:
        """The turn of a job, to `wait` for inside the block. Where that raises an error, workers leave the job."""
        try:
            yield Turn(self, job, self._before[job])
        except Exception:
            for worker, finished in enumerate(self.finished):
                if finished <= job:
                    self.finished[worker] = job + 1
                    self._started_again(worker)
            raise

    def wait(self, job: int, progress: Progress, total: int) -> None:
        """Wait until all units of a job are finished, of `total` passes. ResultError for units that are lost, and the
        error of a worker, where it has one."""
        with progress(self.title, total) as advance:
            counted = 0
            while min(self.finished) <= job and job not in self._errors:
                stopping.check()
                self._attend()
                advance(self._passes[job] - counted)
                counted = self._passes[job]
        if job in self._errors:
            raise self._errors[job]
        if lost := self._lost[job]:
            named = "\n".join(f"  - {why}" for why in lost.values())
            units = "1 unit" if len(lost) == 1 else f"{len(lost)} units"
            raise ResultError(f"{units} of work could not be computed, after {MOST_ATTEMPTS} attempts each:\n{named}\n")

    def share(self, worker: int) -> Share:
        """The share of a worker."""
        count = len(self.finished)
        return Share(worker, count, f"{self._kind} {worker} of {count} ({self._driver})")

    def _heed(self, worker: int, message: Mapping[str, Any]) -> None:
        """Note what a worker says of a job."""
        job = message["job"]
        if "passes" in message:
            self._passes[job] += message["passes"]
            return
        if "error" in message:
            kind, text = message["error"]
            self._errors.setdefault(job, getattr(errors, kind, BnuqError)(text))
        elif "fault" in message:
            self._errors.setdefault(job, RuntimeError(f"{self.share(worker).name} ended with\n{message['fault']}"))
        else:
            self._lost[job] |= message["lost"]
        self.finished[worker] = job + 1

    def _note_why(self, worker: int, why: str) -> bool:
        """Note why a worker ended beside the units that it had begun; whether there are any."""
        job = min(self.finished[worker], len(self.jobs) - 1)
        return note_why(self.places[job], self.share(worker).name, why)

    _kind: str

    def _attend(self) -> None:
        """Handle messages of workers for a moment, and restart those that died."""
        raise NotImplementedError

    def _started_again(self, worker: int) -> None:
        """End a worker, if it has not, and start it with the jobs that it has not finished, if any."""
        raise NotImplementedError


@frozen
class Turn:
    """The turn of one job, and the files at its place `before` the workers began."""

    workers: Workers
    job: int
    before: frozenset[str]

    def wait(self, progress: Progress, total: int) -> None:
        """Wait until its units are finished, see `Workers.wait`."""
        self.workers.wait(self.job, progress, total)


@dataclass
class _Worker:
    """One process, and how often it was started without having begun a unit."""

    process: subprocess.Popen[bytes]
    errors: IO[bytes]
    starts: int = 1
    listener: threading.Thread | None = None


class Processes(Workers):
    """`count` processes of this machine that compute the units of jobs."""

    _kind = "process"

    def __init__(self, jobs: Sequence[Job], count: int) -> None:
        super().__init__(jobs, count)
        self.threads = max(1, torch.get_num_threads() // count)
        self.title = f"{count} processes, {self.threads} threads each"
        self._messages: queue.SimpleQueue[tuple[subprocess.Popen[bytes], dict[str, Any] | None]] = queue.SimpleQueue()
        self._children: list[_Worker] = []

    def __enter__(self) -> Processes:
        for worker in range(len(self.finished)):
            self._children.append(self._started(worker))
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        running = [child for child in self._children if child.process.poll() is None]
        try:
            if running and kind is not None and issubclass(kind, (KeyboardInterrupt, stopping.Terminated)):
                text = f"ending {len(running)} processes after their current units; repeat the signal to end now."
                with contextlib.suppress(OSError):
                    os.write(2, f"\nbnuq: {text}\n".encode())
                for child in running:
                    child.process.terminate()
                deadline = time.monotonic() + _GRACE
                while time.monotonic() < deadline and any(child.process.poll() is None for child in running):
                    time.sleep(0.05)
        finally:
            for child in self._children:
                self._close(child)

    def _attend(self) -> None:
        with contextlib.suppress(queue.Empty):
            process, message = self._messages.get(timeout=0.2)
            for worker, child in enumerate(self._children):
                if child.process is not process:
                    continue  # one that was left behind
                if message is None:
                    self._ended(worker, child)
                else:
                    child.starts = 0
                    self._heed(worker, message)

    def _ended(self, worker: int, child: _Worker) -> None:
        """A process is gone: where it has not finished, note why beside what it had begun, and start it again."""
        code = child.process.wait()
        if self.finished[worker] == len(self.jobs):
            return
        child.errors.seek(max(0, child.errors.seek(0, os.SEEK_END) - 2000))
        last = child.errors.read().decode(errors="replace").strip()
        why = f"its process ended by {_words(code)}" + (f", and said last:\n{last}" if last else "")
        if self._note_why(worker, why):
            child.starts = 0
        if child.starts >= MOST_STARTS:
            raise ResultError(f"{self.share(worker).name} was started {child.starts} times and began no unit: {why}.")
        self._started_again(worker)

    def _started_again(self, worker: int) -> None:
        before = self._children[worker]
        self._close(before)
        if self.finished[worker] < len(self.jobs):
            self._children[worker] = self._started(worker, before.starts + 1)

    def _close(self, child: _Worker) -> None:
        """Leave nothing of a process."""
        child.process.kill()
        child.process.wait()
        with contextlib.suppress(OSError):
            child.process.stdin.close()  # type: ignore[union-attr]
        if child.listener is not None:
            child.listener.join()
        child.errors.close()

    def _started(self, worker: int, starts: int = 1) -> _Worker:
        said = tempfile.TemporaryFile()  # noqa: SIM115 - it lives as long as the process
        counts = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), str(self.threads))
        process = subprocess.Popen(
            [sys.executable, "-P", "-c", _RUN, json.dumps(sys.path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=said,
            env={**os.environ, **counts, **devices.shown_to_process(self.jobs[0].device, worker)},
            start_new_session=True,  # signals of the terminal reach this process alone
        )
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            pickle.dump((self.jobs, self.finished[worker], self.share(worker), self.threads), process.stdin)
            process.stdin.flush()  # it stays open: its end tells the process that this one is gone
        return _Worker(process, said, starts, self._listener(process))

    def _listener(self, process: subprocess.Popen[bytes]) -> threading.Thread:
        stream = process.stdout
        assert stream is not None

        def listen() -> None:
            with stream:
                for line in stream:
                    with contextlib.suppress(ValueError):  # half a line of a killed process
                        self._messages.put((process, json.loads(line)))
            self._messages.put((process, None))

        listener = threading.Thread(target=listen, daemon=True)
        listener.start()
        return listener


def note_why(place: Place, name: str, why: str) -> bool:
    """Note why the process of this name ended beside the units that it had begun; whether there are any."""
    begun = [(file, attempt) for file, attempt in _attempts(place) if attempt.get("by") == name]
    unexplained = [(file, attempt) for file, attempt in begun if "why" not in attempt]
    for file, attempt in unexplained:
        place.write(file, json.dumps(attempt | {"why": why}).encode())
    return bool(unexplained)


def forgive(place: Place) -> None:
    """Remove the notes of attempts that have failed: a command that goes on has new ones."""
    place.remove([file for file, attempt in _attempts(place) if has_ended(attempt)])


def _attempts(place: Place) -> Iterator[tuple[str, dict[str, Any]]]:
    for file in place.names():
        if re.search(r"\.try\d$", file) and (content := place.read(file)) is not None:
            yield file, json.loads(content)


def _words(code: int) -> str:
    return signal.Signals(-code).name if -code in set(map(int, signal.Signals)) else f"exit code {code}"


# ── in the process ────────────────────────────────────────────────────────────────────────────────────────────────────


def main() -> None:
    """Do the jobs read from standard input, and report on standard output what is finished."""
    faulthandler.enable()
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # keeps user prints out of answers
    jobs, first, share, count = pickle.load(sys.stdin.buffer)
    threading.Thread(target=_end_with_parent, daemon=True).start()

    def say(**message: Any) -> None:
        print(json.dumps(message), file=answers, flush=True)

    code, number = 0, first
    try:
        with stopping.on_signals(), threads(count):
            for number in range(first, len(jobs)):
                say(**jobs[number].done(number, share, lambda passes, number=number: say(job=number, passes=passes)))
    except (KeyboardInterrupt, stopping.Terminated):
        code = 143
    except BaseException as error:
        if not is_device_failure(error):
            say(job=number, fault=traceback.format_exc())
        traceback.print_exc()
        code = 1
    apart.stop()
    sys.stderr.flush()
    os._exit(code)


def _end_with_parent() -> None:
    with contextlib.suppress(OSError):
        sys.stdin.buffer.read()
    os._exit(1)
