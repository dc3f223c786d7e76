"""The batch-size experiment from data to record: train a network per size, sweep them, keep what is finished."""

from __future__ import annotations

import hashlib
import shutil
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bnuq.catalogue import distinct
from bnuq.config import Options, resolve
from bnuq.data.known import read_known
from bnuq.errors import DataError, RequestError, ResultError
from bnuq.estimates import Estimate
from bnuq.files.journal import work_folder
from bnuq.files.writing import replaced, write_bytes
from bnuq.findings import Finding, about, warnings
from bnuq.progress import Announce, Progress, silence, silent
from bnuq.records.sweep import Sweep, SweepPoint
from bnuq.shapes import Int64, UInt8
from bnuq.store import codec
from bnuq.workflows.sweep import Settings, sweep
from experiments.batch_size.published import PUBLISHED
from experiments.batch_size.record import BatchSizes, Network, Point
from experiments.batch_size.training import MEAN, MOMENTUM, STD, WEIGHT_DECAY, Job, Recipe, Trained, train
from experiments.work import machine, run_all, size_of, training_device

TRAIN, TEST, OOD = "fashion-mnist:train", "fashion-mnist:test", "mnist:test"
EPOCHS, STEPS = "equal epochs", "equal steps"
DRAW_SETS = 5  # independent ones that every estimate is the mean of
METRICS = (  # that are kept
    "mutual_information",
    "predictive_entropy",
    "expected_entropy",
    "accuracy",
    "pll",
    "ece",
)
_SWEPT = 128  # the network that is swept over b alone: the one trained with so many, or with the size nearest to it
_OF_THE_CHOICE = {"chosen-on-test", "chosen-on-ood", "elbo-of-several-networks"}  # warnings about what is not used here
_NETWORKS = Path(__file__).with_name("networks.py")


@dataclass(frozen=True)
class Protocol:
    """Which networks are trained, on how many images (the first of the training set), for how many epochs."""

    architectures: tuple[str, ...]
    batch_sizes: tuple[int, ...]
    images: int
    epochs: int
    recipe: Recipe
    equal_steps: bool


QUICK = Protocol(("small_resnet",), (32, 128, 512, 2048), 20_000, 60, Recipe("cosine"), equal_steps=True)
FULL = Protocol(
    ("resnet50", "vgg16"), (32, 64, 128, 256, 512, 1024, 2048), 60_000, 100, Recipe("steps"), equal_steps=False
)


@dataclass(frozen=True)
class Request:
    """What to run, and where. `work` holds finished networks until the result is written; beside `out` where None.

    `keep` is a folder that the networks stay in, with a run file each; None: they go with the work folder.
    """

    protocol: Protocol
    out: Path
    samples: int = 20
    limit: int | None = 2000
    seed: int = 0
    device: str = "auto"
    workers: int | None = None
    data_root: Path | None = None
    work: Path | None = None
    keep: Path | None = None
    findings: tuple[Finding, ...] = ()
    announce: Announce = silence


def reproduce(request: Request, *, progress: Progress = silent) -> BatchSizes:
    """Train what is not finished yet, evaluate every network, write the record to `request.out`, and give it.

    Raises RequestError for sizes or a device that cannot be, DataError for a set that is missing, ResultError
    where files cannot be written. Finished networks are kept when it is stopped, and an unfinished one goes on after
    its last whole epoch.
    """
    _check(request)
    device = training_device(request.device)
    codec.check_replaceable(request.out)
    images, labels = _training_images(request)
    for reference in (TEST, OOD):  # before hours of training: whether they are there
        read_known(reference, split_default="test", data_root=request.data_root)
    sha256 = hashlib.sha256(images.tobytes() + labels.tobytes()).hexdigest()
    workers = 1 if device.type == "cuda" else request.workers or torch.get_num_threads()
    with (
        work_folder(request.out, request.work) as work,
        tempfile.TemporaryDirectory(prefix="files-", dir=work.path) as files,
    ):
        data = Path(files).absolute() / "train.npz"
        with replaced(data) as file:
            np.savez(file, x=images, y=labels)
        plans = _plans(request, data=data, sha256=sha256, device=device, folder=work.path)
        jobs = list(dict.fromkeys(plan.job for plan in plans))  # two schedules may share a network
        seen = sum(job.steps * job.batch_size for job in jobs)
        request.announce(size_of(jobs, f"networks, trained on {seen / 1e6:,.1f} million images in all", work.path))
        with progress("training", sum(job.share for job in jobs)) as advance:
            run_all(sorted(jobs, key=lambda job: -job.share), train, workers=workers, advance=advance)
        started = time.perf_counter()
        runs = _run_files(plans, data, request.keep or data.parent / "networks")
        networks, findings = _evaluated(request, plans, runs, work.path, progress)
        record = BatchSizes(
            experiment=_described(request, device, images),
            published=PUBLISHED,
            networks=tuple(networks),
            findings=(*request.findings, *findings),
            seconds={
                "training": sum(_trained(job).seconds for job in jobs),
                "evaluation": time.perf_counter() - started,
            },
            provenance=machine(request.out, device),
            path=request.out.absolute(),
        )
        codec.write(record, request.out)
        work.opened.extend(job.journal for job in jobs)  # their networks are not needed any more
    return record


def _check(request: Request) -> None:
    protocol = request.protocol
    sizes = protocol.batch_sizes
    if len(sizes) < 2 or min(sizes) < 2 or max(sizes) > protocol.images // 2:
        listed = ", ".join(map(str, sizes))
        raise RequestError(
            f"--batch-sizes is {listed}; expected two sizes or more, each from 2 to {protocol.images // 2}, half the "
            f"{protocol.images} training images."
        )


def _training_images(request: Request) -> tuple[UInt8[np.ndarray, "n 1 h w"], Int64[np.ndarray, " n"]]:
    """The first images of the training set, always the same ones, and their labels."""
    contents, _, path = read_known(TRAIN, split_default="train", data_root=request.data_root)
    images, labels = np.asarray(contents.inputs), contents.targets
    if images.ndim != 3 or images.dtype != np.uint8 or labels is None or len(images) < request.protocol.images:
        raise DataError(
            f"{path}: expected at least {request.protocol.images} labelled images of bytes, and there are "
            f"{len(images)} of shape {images.shape[1:]} and type {images.dtype}."
        )
    count = request.protocol.images
    return np.ascontiguousarray(images[:count, None]), np.asarray(labels)[:count].astype(np.int64)


# ── which networks ────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class _Plan:
    """A network of one schedule. Two schedules may ask for the same job."""

    schedule: str
    job: Job
    several: bool  # architectures

    @property
    def stem(self) -> str:
        """Where its files go, without their suffix, below the folder of the networks."""
        folder = self.schedule.replace(" ", "-")
        return f"{f'{self.job.architecture}-' if self.several else ''}{folder}/m{self.job.batch_size}"


def _plans(request: Request, *, data: Path, sha256: str, device: torch.device, folder: Path) -> list[_Plan]:
    """Every network: by schedule, architecture, size."""
    protocol = request.protocol
    sizes = sorted(protocol.batch_sizes)
    middle = sizes[len(sizes) // 2]
    of_schedule = {EPOCHS: {size: protocol.images // size * protocol.epochs for size in sizes}}
    if protocol.equal_steps:
        of_schedule[STEPS] = dict.fromkeys(sizes, of_schedule[EPOCHS][middle])
    return [
        _Plan(
            schedule,
            Job(
                architecture=architecture,
                batch_size=size,
                steps=count,
                images=protocol.images,
                recipe=protocol.recipe,
                seed=request.seed,
                device=str(device),
                data=data,
                sha256=sha256,
                folder=folder,
            ),
            several=len(protocol.architectures) > 1,
        )
        for schedule, steps in of_schedule.items()
        for architecture in protocol.architectures
        for size, count in steps.items()
    ]


def _trained(job: Job) -> Trained:
    trained = job.finished()
    if trained is None:
        path = job.journal.path("network")
        raise ResultError(f"{path}: was there when its training ended, and cannot be read any more.")
    return trained


# ── their run files ───────────────────────────────────────────────────────────────────────────────────────────────────


def _run_files(plans: Sequence[_Plan], data: Path, place: Path) -> dict[_Plan, Path]:
    """The networks with a run file each below `place`, their code, and the images that they were trained on."""
    try:
        place.mkdir(parents=True, exist_ok=True)
        for plan in plans:
            (place / plan.stem).parent.mkdir(exist_ok=True)
    except OSError as error:
        raise ResultError(f"{place}: networks cannot be put there: {error.strerror}. Name another folder.") from error
    _copy(data, place / "train.npz")
    _copy(_NETWORKS, place / "networks.py")
    files = {}
    for plan in plans:
        with replaced(place / f"{plan.stem}.pt") as file:
            torch.save(_trained(plan.job).state, file)
        files[plan] = place / f"{plan.stem}.toml"
        write_bytes(files[plan], _run_file(plan).encode())
    return files


def _copy(source: Path, target: Path) -> None:
    with replaced(target) as file, source.open("rb") as content:
        shutil.copyfileobj(content, file)


def _run_file(plan: _Plan) -> str:
    job = plan.job
    return f"""\
# {job.architecture} on the first {job.images} images of Fashion-MNIST, M = {job.batch_size}, {job.steps} steps; made by
# python -m experiments batch-size ({plan.schedule}). Known sets lie below --data-root or $BNUQ_DATA.

[model]
checkpoint = "{Path(plan.stem).name}.pt"
arch = "../networks.py:{job.architecture}"
train_batch_size = {job.batch_size}

[data]
train = "../train.npz"      # exactly the images it was trained on
test = "{TEST}"
ood = ["{OOD}"]
normalize = {{ mean = [{MEAN}], std = [{STD}] }}     # and no augmentation, as in training

[sampling]
methods = ["mcbn"]
batch_size = {job.batch_size}
"""


# ── evaluation ────────────────────────────────────────────────────────────────────────────────────────────────────────


def _evaluated(
    request: Request, plans: Sequence[_Plan], files: dict[_Plan, Path], work: Path, progress: Progress
) -> tuple[list[Network], tuple[Finding, ...]]:
    """Each network at b = M; of each schedule and architecture, one at other b too."""
    options = Options(
        samples=request.samples,
        seed=request.seed,
        device=request.device,
        limit=request.limit,
        data_root=None if request.data_root is None else request.data_root.absolute(),
    )

    def swept(selection: Sequence[_Plan], name: str) -> Sweep:
        runs = [resolve(str(files[plan].absolute()), options, folder=work.absolute()) for plan in selection]
        out = work / f"{name}.sweep.h5"
        result = sweep(runs, Settings(draw_sets=DRAW_SETS, full_grid=True), out=out, work=work, progress=progress)
        out.unlink()
        first = {finding.code: finding for finding in reversed(warnings(result.findings))}  # networks repeat each other
        warned = [finding for code, finding in reversed(first.items()) if code not in _OF_THE_CHOICE]
        findings.extend(about(name, warned))
        return result

    networks: list[Network] = []
    findings: list[Finding] = []
    for schedule, architecture in dict.fromkeys((plan.schedule, plan.job.architecture) for plan in plans):
        members = [plan for plan in plans if (plan.schedule, plan.job.architecture) == (schedule, architecture)]
        name = f"{architecture}-{schedule.replace(' ', '-')}"
        at = {point.batch_size: point for point in swept(members, name).matched}
        alone = min(members, key=lambda plan: abs(plan.job.batch_size - _SWEPT))
        for plan in members:
            network = _network(plan, at[plan.job.batch_size])
            if plan is alone:
                single = swept([plan], f"{name}-alone")
                slopes = {of: _bare(decay.slope) for of, decay in single.models[0].decay.items()}
                network = replace(network, single=tuple(map(_point, single.line(0))), slopes=slopes)
            networks.append(network)
    return networks, tuple(distinct(findings).values())


def _network(plan: _Plan, matched: SweepPoint) -> Network:
    job, trained = plan.job, _trained(plan.job)
    return Network(
        schedule=plan.schedule,
        architecture=job.architecture,
        batch_size=job.batch_size,
        steps=job.steps,
        epochs=job.steps / job.per_epoch,
        loss=trained.loss,
        accuracy=trained.accuracy,
        seconds=trained.seconds,
        matched=_point(matched),
    )


def _point(point: SweepPoint) -> Point:
    estimates = {
        metric: {name: _bare(entry.estimate) for name, entry in sets.items()}
        for metric, sets in point.estimates.items()
        if metric in METRICS
    }
    auroc = {
        score: {name: _bare(entry.estimate) for name, entry in sets.items()}
        for score, sets in point.auroc.items()
        if score in METRICS
    }
    return Point(point.batch_size, estimates, auroc)


def _bare(estimate: Estimate) -> Estimate:
    """An estimate with its two errors, without its interval and replicates."""
    return Estimate(estimate.value, se=estimate.se, mc_se=estimate.mc_se)


def _described(request: Request, device: torch.device, images: np.ndarray) -> dict[str, Any]:
    protocol = request.protocol
    return {
        "architectures": list(protocol.architectures),
        "images": protocol.images,
        "image_size": list(images.shape[2:]),
        "epochs": protocol.epochs,
        "recipe": asdict(protocol.recipe) | {"momentum": MOMENTUM, "weight_decay": WEIGHT_DECAY},
        "augment": False,
        "train": TRAIN,
        "test": TEST,
        "ood": OOD.partition(":")[0],
        "points": request.limit,
        "samples": request.samples,
        "draw_sets": DRAW_SETS,
        "seed": request.seed,
        "device": str(device),
    }
