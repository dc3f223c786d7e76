"""From a request to the measured networks: data, jobs on several processes, what is finished kept."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from bnuq.errors import RequestError
from bnuq.files.journal import Arrays, work_folder
from bnuq.progress import Announce, Progress, silence, silent
from bnuq.report.numbers import count
from bnuq.store import codec
from experiments.learned.training import Job, train, write_data
from experiments.work import SETS, Work, run_all, size_of, training_device


@dataclass(frozen=True)
class Request:
    """What to run, and where. `width` is that of the networks; the others are as in the commands."""

    out: Path
    sets: tuple[str, ...]
    images: int
    epochs: int
    width: int
    samples: int
    limit: int = 2000
    seeds: int = 1
    seed: int = 0
    noise: str = "mean-field"  # of bn-in-vi
    workers: int | None = None
    data_root: Path | None = None
    work: Path | None = None
    progress: Progress = silent
    announce: Announce = silence


@contextmanager
def trained(
    request: Request, jobs_of: Callable[[str], Sequence[Any]], work_on: Work = train
) -> Iterator[dict[Any, Arrays]]:
    """The measurements of every job of every set, by `work_on`. What is finished is kept until the block has ended.

    Raises RequestError for a set that there is none of, DataError for one that is missing, ResultError where files
    cannot be written.
    """
    if unknown := [name for name in request.sets if name not in SETS]:
        raise RequestError(f"--sets {unknown[0]}: expected {' or '.join(SETS)}, or both with a comma.")
    codec.check_replaceable(request.out)
    training_device("cpu")
    with (
        work_folder(request.out, request.work) as work,
        tempfile.TemporaryDirectory(prefix="files-", dir=work.path) as files,
    ):
        jobs: list[Any] = []
        for name in request.sets:
            path = Path(files).absolute() / f"{name}.npz"
            options = {"images": request.images, "limit": request.limit, "data_root": request.data_root}
            sha256 = write_data(name, path, **options)
            jobs += [replace(job, data=path, sha256=sha256, folder=work.path) for job in jobs_of(name)]
        workers = request.workers or torch.get_num_threads()
        each = f"networks, each trained for {count(request.epochs, 'epoch')} on {request.images:,} images and sampled"
        request.announce(size_of(jobs, each, work.path))
        with request.progress("training", sum(job.epochs for job in jobs)) as advance:
            run_all(jobs, work_on, workers=workers, advance=advance)
        found: dict[Any, Arrays] = {}
        for job in jobs:
            arrays = job.finished()
            assert arrays is not None  # run_all has finished it
            found[job] = arrays
        yield found
        work.opened.extend(job.journal for job in jobs)


def by_kind(found: dict[Job, Arrays]) -> dict[tuple[str, str], list[Arrays]]:
    """The measurements of each set and name, a list over seeds."""
    kinds: dict[tuple[str, str], list[Arrays]] = {}
    for each, measured in found.items():
        kinds.setdefault((each.of, each.name), []).append(measured)
    return kinds


def job(request: Request, of: str, name: str, **values: Any) -> Job:
    """A job of the request, without the place of its data."""
    common = {"epochs": request.epochs, "samples": request.samples, "data": Path(), "sha256": "", "folder": Path()}
    settings: dict[str, Any] = {"seed": request.seed, **common, **values}
    return Job(of=of, name=name, **settings)


def described(request: Request) -> dict[str, Any]:
    keys = ("images", "epochs", "width", "samples", "limit", "seeds", "seed")
    return {"sets": list(request.sets), **{key: getattr(request, key) for key in keys}}
