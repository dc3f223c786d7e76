"""Long work: where it runs, and independent tasks in processes of one thread each, since small
batched products do not scale within a process."""

from __future__ import annotations

import contextlib
import hashlib
import multiprocessing
import signal
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np
import torch

import bnuq
from bnuq.config import Run
from bnuq.data.known import data_roots, read_known
from bnuq.errors import BnuqError, DataError, RequestError
from bnuq.evaluation.pipeline import device_and_notes
from bnuq.evaluation.provenance import provenance
from bnuq.files.content import sha256_of_file
from bnuq.progress import Advance
from bnuq.shapes import Int64, UInt8

Work = Callable[[Any, Advance], None]  # a function that a new process can import: of a module, not within another


def training_device(name: str) -> torch.device:
    """The device of that name. RequestError for one that is not there, or that the experiments are not written for."""
    device = device_and_notes(name)[0]
    if device.type not in ("cpu", "cuda"):
        raise RequestError(f"--device {name}: this experiment runs on cpu, cuda or cuda:N.")
    return device


@cache
def code_of(*folders: str) -> str:
    """A digest of the code that a unit of work runs: of bnuq, and of these folders of experiments."""
    here = Path(__file__).parent
    places = (Path(bnuq.__file__).parent, *(here / folder for folder in folders))
    files = sorted(file for place in places for file in place.rglob("*.py"))
    return hashlib.sha256("".join(map(sha256_of_file, [*files, Path(__file__)])).encode()).hexdigest()


def size_of(jobs: Sequence[Any], work: str, folder: Path) -> str:
    """What is said before it starts: how much work this is, and where finished parts of it are kept."""
    begun = sum(bool([*folder.glob(f"{job.journal.key}-*.part")]) for job in jobs)
    return (
        f"{len(jobs)} {work}; {begun} of them begun before. Finished parts are kept in {folder}: after an interruption "
        "the same command resumes."
    )


SETS = {  # by name: training, test and OOD images, known sets or below the data root
    "fashion-mnist": ("fashion-mnist:train", "fashion-mnist:test", "mnist:test"),
    "cifar10": ("cifar10/lossless_train.npz", "cifar10/lossless_test.npz", "ood/pcbdigits32.npz"),
}


def pictures_of(
    reference: str, data_root: Path | None, *, least: int = 0
) -> tuple[UInt8[np.ndarray, "n c h w"], Int64[np.ndarray, " n"]]:
    """Images and labels of a known set, or of an npz file below the data root. DataError where it is not there, or has
    fewer than `least` images."""
    if reference.endswith(".npz"):
        file = next((file for root in data_roots(data_root) if (file := root / reference).is_file()), None)
        if file is None:
            raise DataError(f"{reference} is in no folder of data sets. Name one: --data-root DIR, or $BNUQ_DATA.")
        with np.load(file) as contents:
            x, y = contents["x"], contents["y"]
    else:
        known, _, _ = read_known(reference, split_default="test", data_root=data_root)
        x, y = np.asarray(known.inputs), known.targets
    if x.ndim not in (3, 4) or x.dtype != np.uint8 or y is None:
        raise DataError(f"{reference}: expected labelled images of bytes, and they are {x.shape[1:]} of {x.dtype}.")
    if len(x) < least:
        raise DataError(f"{reference} has {len(x):,} images, fewer than --images {least:,}. Ask for as many at most.")
    x = x[:, None] if x.ndim == 3 else x.transpose(0, 3, 1, 2)
    return np.ascontiguousarray(x), np.asarray(y).astype(np.int64)


def machine(out: Path, device: torch.device) -> dict[str, str]:
    """Versions, machine, command and time."""
    values = provenance(Run(checkpoint=out, out=out), device=device, train=None)
    return {name: value for name, value in values.items() if name not in ("code", "git")}


def run_all(tasks: Sequence[Any], work: Work, *, workers: int, advance: Advance) -> None:
    """`work` on every task, in order, on so many processes; within this one for a single worker.

    What a task raises is raised here, and the other processes are ended. BnuqError where a process was killed.
    """
    if workers <= 1 or len(tasks) <= 1:
        with one_thread():
            for task in tasks:
                work(task, advance)
        return
    crew = [_Worker.started(work) for _ in range(min(workers, len(tasks)))]
    try:
        _hand_out(list(tasks), crew, advance)
    finally:
        for worker in crew:
            worker.end()


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """A block in which torch uses one thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _hand_out(waiting: list[Any], crew: list[_Worker], advance: Advance) -> None:
    busy = {}
    for worker in crew:
        worker.connection.send(waiting.pop(0))
        busy[worker.connection] = worker
    while busy:
        for connection in wait(list(busy)):
            assert isinstance(connection, Connection)
            try:
                kind, message = connection.recv()
            except (EOFError, ConnectionError):
                raise busy[connection].loss() from None
            if kind == "advance":
                advance(message)
            elif kind == "refused":
                raise message
            elif kind == "failed":
                raise RuntimeError(f"in a process that trains networks: {message}")
            elif waiting:
                connection.send(waiting.pop(0))
            else:
                del busy[connection]


@dataclass(frozen=True)
class _Worker:
    process: BaseProcess
    connection: Connection

    @staticmethod
    def started(work: Work) -> _Worker:
        spawning = multiprocessing.get_context("spawn")  # a fork would inherit torch's threads without running them
        parent_end, child_end = spawning.Pipe()
        process = spawning.Process(target=_serve, args=(work, child_end), daemon=True)
        process.start()
        child_end.close()
        return _Worker(process, parent_end)

    def end(self) -> None:
        self.process.terminate()
        self.process.join()
        self.connection.close()

    def loss(self) -> BnuqError:
        self.process.join(5)
        return BnuqError(
            f"a process that trained networks was ended from outside (exit code {self.process.exitcode}), perhaps for "
            "want of memory. What is finished is kept: the same command with --workers 1 goes on."
        )


def _serve(work: Work, connection: Connection) -> None:
    """Tasks from the pipe until it closes; a parent that is gone shows as a broken pipe, and then nothing is left."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches every process of a terminal: the parent answers it
    torch.set_num_threads(1)
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionError):
        while True:
            task = connection.recv()
            try:
                work(task, lambda steps: connection.send(("advance", steps)))
            except (BrokenPipeError, ConnectionError):
                raise
            except BnuqError as error:
                connection.send(("refused", error))
            except Exception:
                connection.send(("failed", traceback.format_exc()))
            else:
                connection.send(("done", None))
