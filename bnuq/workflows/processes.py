"""Several processes of this machine that compute the units of one journal, watched by this one.

Each is a spawned Python that runs the ordinary program with a worker as its executor. It is started again where it
dies, and what it had begun is begun again: the figures are those of one undisturbed process.
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
from pathlib import Path
from typing import IO, Any

import torch

from bnuq import devices, errors, stopping
from bnuq.config import Run
from bnuq.errors import BnuqError, RequestError, ResultError, is_device_failure
from bnuq.evaluation.executors import Share, Worker, has_ended
from bnuq.evaluation.setup import threads
from bnuq.files import apart
from bnuq.files.journal import MOST_ATTEMPTS, Journal
from bnuq.files.places import Place, place_of
from bnuq.progress import Advance, Progress

_RUN = "import sys, json; sys.path[:] = json.loads(sys.argv[1]); from bnuq.workflows.processes import main; main()"
MOST_STARTS = 10  # of a process that is killed before it begins any unit
_GRACE = 60.0  # seconds in which an interrupted process may finish its unit

Make = Callable[[Journal], Worker]


@dataclass(frozen=True)
class Job:
    """What every process does: call `function` with these arguments, the place of the units, and what makes its
    executor of a journal; it gives the executors that it made."""

    function: Callable[..., Sequence[Worker]]
    arguments: tuple[Any, ...]
    work: str
    device: str

    def done_by(self, share: Share, on_unit: Callable[[Any], object]) -> dict[str, str]:
        """Compute the units of this share here; those that are lost, and why."""
        made = self.function(*self.arguments, place_of(self.work), lambda journal: Worker(journal, share, on_unit))
        return {unit: why for worker in made for unit, why in worker.lost.items()}


def check_shareable(runs: Sequence[Run], work: Path | str | None, option: str) -> None:
    """Raise RequestError for runs whose units other processes cannot compute."""
    for run in runs:
        named = (run.train, run.test, run.validation, *run.ood)
        if run.network is not None or any(getattr(each, "data", None) is not None for each in named):
            raise RequestError(f"{option} is for networks and data in files, which other processes can read.")
    if str(work).startswith("memory:"):
        raise RequestError(f"--work {work} is the memory of this process, and {option} has others. Name a folder.")


def raise_lost(lost: Mapping[str, str]) -> None:
    """Raise ResultError where units are lost."""
    if lost:
        named = "\n".join(f"  - {why}" for why in lost.values())
        units = "1 unit" if len(lost) == 1 else f"{len(lost)} units"
        raise ResultError(f"{units} of work could not be computed, after {MOST_ATTEMPTS} attempts each:\n{named}\n")


@dataclass
class _Child:
    """One process: its share, and how often it was started without having begun a unit."""

    share: Share
    process: subprocess.Popen[bytes]
    errors: IO[bytes]
    starts: int = 1
    ended: bool = False
    listener: threading.Thread | None = None


class Processes:
    """`count` processes that compute the units of a job."""

    def __init__(self, job: Job, count: int) -> None:
        self._job, self._count, self._place = job, count, place_of(job.work)
        self.threads = max(1, torch.get_num_threads() // count)
        self._messages: queue.SimpleQueue[tuple[_Child, dict[str, Any] | None]] = queue.SimpleQueue()
        self._children: list[_Child] = []
        self._lost: dict[str, str] = {}

    def __enter__(self) -> Processes:
        driver = secrets.token_hex(3)
        for number in range(self._count):
            share = Share(number, self._count, f"process {number} of {self._count} ({driver})")
            self._children.append(_Child(share, *self._started(share)))
            self._listen(self._children[-1])
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        running = [child for child in self._children if child.process.poll() is None]
        try:
            if running and kind is not None and issubclass(kind, (KeyboardInterrupt, stopping.Terminated)):
                _say(f"ending after the units in hand of {len(running)} processes; the same signal again ends them.")
                for child in running:
                    child.process.terminate()
                deadline = time.monotonic() + _GRACE
                while time.monotonic() < deadline and any(child.process.poll() is None for child in running):
                    time.sleep(0.05)
        finally:
            for child in self._children:
                child.process.kill()
                self._close(child)

    def wait(self, progress: Progress, total: int) -> None:
        """Wait until all units are finished, of `total` passes. ResultError for units that are lost, and the error of
        a process, where it has one."""
        with progress(f"{self._count} processes, {self.threads} threads each", total) as advance:
            while not all(child.ended for child in self._children):
                stopping.check()
                with contextlib.suppress(queue.Empty):
                    self._heed(*self._messages.get(timeout=0.2), advance)
        raise_lost(self._lost)

    def _heed(self, child: _Child, message: dict[str, Any] | None, advance: Advance) -> None:
        if message is None:
            self._ended(child)
        elif "error" in message:
            kind, text = message["error"]
            raise getattr(errors, kind, BnuqError)(text)
        elif "fault" in message:
            raise RuntimeError(f"{child.share.name} ended with\n{message['fault']}")
        elif "passes" in message:
            child.starts = 0
            advance(message["passes"])
        else:
            self._lost |= message["lost"]
            child.ended = True

    def _ended(self, child: _Child) -> None:
        """A process is gone: where it has not finished, note why beside what it had begun, and start it again."""
        code = child.process.wait()
        if child.ended:
            return
        child.errors.seek(max(0, child.errors.seek(0, os.SEEK_END) - 2000))
        last = child.errors.read().decode(errors="replace").strip()
        why = f"its process ended by {_words(code)}" + (f", and said last:\n{last}" if last else "")
        if note_why(self._place, child.share.name, why):
            child.starts = 0
        if child.starts >= MOST_STARTS:
            raise ResultError(f"{child.share.name} was started {child.starts} times and began no unit: {why}.")
        self._close(child)
        child.starts += 1
        child.process, child.errors = self._started(child.share)
        self._listen(child)

    def _close(self, child: _Child) -> None:
        """Leave nothing of a process that has ended, or was killed."""
        child.process.wait()
        with contextlib.suppress(OSError):
            child.process.stdin.close()  # type: ignore[union-attr]
        if child.listener is not None:
            child.listener.join()
        child.errors.close()

    def _started(self, share: Share) -> tuple[subprocess.Popen[bytes], IO[bytes]]:
        said = tempfile.TemporaryFile()  # noqa: SIM115 - it lives as long as the process
        counts = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), str(self.threads))
        process = subprocess.Popen(
            [sys.executable, "-P", "-c", _RUN, json.dumps(sys.path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=said,
            env={**os.environ, **counts, **devices.shown_to_process(self._job.device, share.number)},
            start_new_session=True,  # signals of the terminal reach this process alone
        )
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            pickle.dump((self._job, share, self.threads), process.stdin)
            process.stdin.flush()  # it stays open: its end tells the process that this one is gone
        return process, said

    def _listen(self, child: _Child) -> None:
        stream = child.process.stdout
        assert stream is not None

        def listen() -> None:
            with stream:
                for line in stream:
                    with contextlib.suppress(ValueError):  # half a line of a killed process
                        self._messages.put((child, json.loads(line)))
            self._messages.put((child, None))

        child.listener = threading.Thread(target=listen, daemon=True)
        child.listener.start()


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


def _say(text: str) -> None:
    with contextlib.suppress(OSError):
        os.write(2, f"\nbnuq: {text}\n".encode())


# ── in the process ────────────────────────────────────────────────────────────────────────────────────────────────────


def main() -> None:
    """Do the job that stands on standard input, and say on standard output what is finished."""
    faulthandler.enable()
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what user code prints is no answer
    job, share, count = pickle.load(sys.stdin.buffer)
    threading.Thread(target=_end_with_parent, daemon=True).start()

    def say(**message: Any) -> None:
        print(json.dumps(message), file=answers, flush=True)

    code = 0
    try:
        with stopping.on_signals(), threads(count):
            say(lost=job.done_by(share, lambda unit: say(passes=len(unit.points) * len(unit.draws))))
    except BnuqError as error:
        say(error=[type(error).__name__, str(error)])
    except (KeyboardInterrupt, stopping.Terminated):
        code = 143
    except BaseException as error:
        if not is_device_failure(error):
            say(fault=traceback.format_exc())
        traceback.print_exc()
        code = 1
    apart.stop()
    sys.stderr.flush()
    os._exit(code)


def _end_with_parent() -> None:
    with contextlib.suppress(OSError):
        sys.stdin.buffer.read()
    os._exit(1)
