"""The batch-size experiment from data to record: train a network per size, sweep them, keep what is finished."""

from __future__ import annotations

import hashlib
import shutil
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch

from bnuq.catalogue import distinct
from bnuq.config import Options, resolve
from bnuq.errors import RequestError, ResultError
from bnuq.estimates import Estimate
from bnuq.files.journal import work_folder
from bnuq.files.writing import replaced, write_bytes
from bnuq.findings import Finding, about, warnings
from bnuq.progress import Announce, Progress, silence, silent
from bnuq.shapes import Int64, UInt8
from bnuq.store import codec
from bnuq.studies.sweep.compute import Settings, sweep
from bnuq.studies.sweep.record import Sweep, SweepPoint
from experiments.batch_size.published import PUBLISHED_OF
from experiments.batch_size.record import CURVES, BatchSizes, Network, Point
from experiments.batch_size.training import MOMENTUM, PIXELS, WEIGHT_DECAY, Job, Recipe, Trained, arguments, train
from experiments.work import SETS, machine, pictures_of, run_all, size_of, training_device

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
    of: str = "fashion-mnist"
    seeds: int = 1


QUICK = Protocol(("small_resnet",), (32, 128, 512, 2048), 20_000, 60, Recipe("cosine"), equal_steps=True)
FULL = Protocol(
    ("resnet50", "vgg16"), (32, 64, 128, 256, 512, 1024, 2048), 60_000, 100, Recipe("steps"), equal_steps=False
)
CIFAR = {"of": "cifar10", "images": 4660}  # what there is without loss, where asked for this set
FULL_CIFAR = replace(
    FULL, architectures=("resnet50",), batch_sizes=(32, 64, 128, 256, 512), images=50_000, epochs=350, of="cifar10",
    recipe=Recipe("steps", drops=(150 / 350, 250 / 350)),
)  # fmt: skip


@dataclass(frozen=True)
class Request:
    """What to run, and where. `work` holds finished networks until the result is written; beside `out` where None.

    `keep` is a folder that the networks stay in, with a run file each; None: they go with the work folder.
    """

    protocol: Protocol
    out: Path
    samples: int = 20
    draw_sets: int = DRAW_SETS
    train_points: int = 1000
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
    images, labels = training_images(request)
    others = [pictures_of(of, request.data_root) for of in SETS[request.protocol.of][1:]]  # before hours of training
    watched = [of[: request.limit] for of in others[0]]
    sha256 = hashlib.sha256(b"".join(of.tobytes() for of in (images, labels, *watched))).hexdigest()
    with (
        work_folder(request.out, request.work) as work,
        tempfile.TemporaryDirectory(prefix="files-", dir=work.path) as files,
    ):
        data = Path(files).absolute() / "train.npz"
        written = {"train": (images, labels), "watched/test": watched}
        (data.parent / "watched").mkdir()
        if request.protocol.of == "cifar10":  # which bnuq does not know by name
            written |= dict(zip(("test", "digits"), others, strict=True))
        for name, (x, y) in written.items():
            with replaced(data.parent / f"{name}.npz") as file:
                np.savez(file, x=x, y=y)
        plans = _plans(request, data=data, sha256=sha256, device=device, folder=work.path)
        jobs = list(dict.fromkeys(plan.job for plan in plans))  # two schedules may share a network
        train_all(jobs, request, work.path, progress)
        started = time.perf_counter()
        runs = run_files(plans, data, request.keep or data.parent / "networks")
        networks, findings = _evaluated(request, plans, runs, work.path, progress)
        record = BatchSizes(
            experiment=_described(request, device, images),
            published=PUBLISHED_OF[request.protocol.of],
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


def train_all(jobs: Sequence[Job], request: Request, work: Path, progress: Progress) -> None:
    """Say how much work it is, and train every network that is not finished."""
    seen = sum(job.steps * job.batch_size for job in jobs)
    request.announce(size_of(jobs, f"networks, trained on {seen / 1e6:,.1f} million images in all", work))
    workers = 1 if jobs[0].device.startswith("cuda") else request.workers or torch.get_num_threads()
    with progress("training", sum(job.share for job in jobs)) as advance:
        run_all(sorted(jobs, key=lambda job: -job.share), train, workers=workers, advance=advance)


def _check(request: Request) -> None:
    protocol = request.protocol
    sizes = protocol.batch_sizes
    if len(sizes) < 2 or min(sizes) < 2 or max(sizes) > protocol.images // 2:
        listed = ", ".join(map(str, sizes))
        raise RequestError(
            f"--batch-sizes is {listed}; expected two sizes or more, each from 2 to {protocol.images // 2}, half the "
            f"{protocol.images} training images."
        )


def training_images(request: Request) -> tuple[UInt8[np.ndarray, "n c h w"], Int64[np.ndarray, " n"]]:
    """The first images of the training set, always the same ones, and their labels."""
    asked = request.protocol.images
    images, labels = pictures_of(SETS[request.protocol.of][0], request.data_root, least=asked)
    return images[:asked], labels[:asked]


# ── which networks ────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Plan:
    """A network of one schedule. Two schedules may ask for the same job."""

    schedule: str
    job: Job
    several: bool  # architectures
    first_seed: int

    @property
    def stem(self) -> str:
        """Where its files go, without their suffix, below the folder of the networks."""
        folder = self.schedule.replace(" ", "-")
        seed = f"-seed{self.job.seed}" if self.job.seed != self.first_seed else ""
        return f"{f'{self.job.architecture}-' if self.several else ''}{folder}/m{self.job.batch_size}{seed}"


def _plans(request: Request, *, data: Path, sha256: str, device: torch.device, folder: Path) -> list[Plan]:
    """Every network: by schedule, architecture, size."""
    protocol = request.protocol
    sizes = sorted(protocol.batch_sizes)
    middle = sizes[len(sizes) // 2]
    of_schedule = {EPOCHS: {size: protocol.images // size * protocol.epochs for size in sizes}}
    if protocol.equal_steps:
        of_schedule[STEPS] = dict.fromkeys(sizes, of_schedule[EPOCHS][middle])
    return [
        Plan(
            schedule,
            Job(
                architecture=architecture,
                batch_size=size,
                steps=count,
                images=protocol.images,
                recipe=protocol.recipe,
                seed=seed,
                device=str(device),
                data=data,
                sha256=sha256,
                folder=folder,
                of=protocol.of,
                test=data.parent / "watched" / "test.npz",
            ),
            several=len(protocol.architectures) > 1,
            first_seed=request.seed,
        )
        for schedule, steps in of_schedule.items()
        for architecture in protocol.architectures
        for size, count in steps.items()
        for seed in range(request.seed, request.seed + protocol.seeds)
    ]


def _trained(job: Job) -> Trained:
    trained = job.finished()
    if trained is None:
        path = job.journal.path("network")
        raise ResultError(f"{path}: was there when its training ended, and cannot be read any more.")
    return trained


# ── their run files ───────────────────────────────────────────────────────────────────────────────────────────────────


def run_files(plans: Sequence[Plan], data: Path, place: Path) -> dict[Plan, Path]:
    """The networks with a run file each below `place`, their code, and the images that they were trained on."""
    try:
        place.mkdir(parents=True, exist_ok=True)
        for plan in plans:
            (place / plan.stem).parent.mkdir(exist_ok=True)
    except OSError as error:
        raise ResultError(f"{place}: networks cannot be put there: {error.strerror}. Name another folder.") from error
    for file in data.parent.glob("*.npz"):
        _copy(file, place / file.name)
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


def _run_file(plan: Plan) -> str:
    job, pixels = plan.job, [list(values) for values in PIXELS[plan.job.of]]
    _, test, ood = SETS[job.of]
    test, ood = ("../test.npz", "../digits.npz") if test.endswith(".npz") else (test, ood)
    given = "".join(f"arch_args = {{ {name} = {value} }}\n" for name, value in arguments(job).items())
    return f"""\
# {job.architecture} on the first {job.images} images of {job.of}, M = {job.batch_size}, {job.steps} steps; made by
# python -m experiments batch-size ({plan.schedule}). Known sets lie below --data-root or $BNUQ_DATA.

[model]
checkpoint = "{Path(plan.stem).name}.pt"
arch = "../networks.py:{job.architecture}"
{given}train_batch_size = {job.batch_size}

[data]
train = "../train.npz"      # exactly the images it was trained on
test = "{test}"
ood = ["{ood}"]
normalize = {{ mean = {pixels[0]}, std = {pixels[1]} }}     # and no augmentation, as in training

[sampling]
methods = ["mcbn"]
batch_size = {job.batch_size}
"""


# ── evaluation ────────────────────────────────────────────────────────────────────────────────────────────────────────


def _evaluated(
    request: Request, plans: Sequence[Plan], files: dict[Plan, Path], work: Path, progress: Progress
) -> tuple[list[Network], tuple[Finding, ...]]:
    """Each network at b = M; of each schedule and architecture, one at other b too."""
    options = Options(
        samples=request.samples,
        seed=request.seed,
        device=request.device,
        limit=request.limit,
        data_root=None if request.data_root is None else request.data_root.absolute(),
    )

    def swept(selection: Sequence[Plan], name: str) -> Sweep:
        runs = [resolve(str(files[plan].absolute()), options, folder=work.absolute()) for plan in selection]
        out = work / f"{name}.sweep.h5"
        settings = Settings(draw_sets=request.draw_sets, full_grid=True, train_points=request.train_points)
        result = sweep(runs, settings, out=out, work=work, progress=progress)
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
        by_size: dict[int, list[Network]] = {}
        for seed in dict.fromkeys(plan.job.seed for plan in members):
            of_seed = [plan for plan in members if plan.job.seed == seed]
            at = {point.batch_size: point for point in swept(of_seed, f"{name}-{seed}").matched}
            for plan in of_seed:
                by_size.setdefault(plan.job.batch_size, []).append(_network(plan, at[plan.job.batch_size]))
        alone = min(members, key=lambda plan: abs(plan.job.batch_size - _SWEPT))  # of the first seed
        for size, of_seeds in by_size.items():
            network = _over_seeds(of_seeds)
            if size == alone.job.batch_size:
                single = swept([alone], f"{name}-alone")
                slopes = {of: _bare(decay.slope) for of, decay in single.models[0].decay.items()}
                network = replace(network, single=tuple(map(_point, single.line(0))), slopes=slopes)
            networks.append(network)
    return networks, tuple(distinct(findings).values())


def _over_seeds(networks: Sequence[Network]) -> Network:
    """The mean of networks of several seeds, whose errors are over points and seeds; of one seed the network itself."""
    if len(networks) == 1:
        return networks[0]
    points = [network.matched for network in networks]
    means: dict[str, Any] = {
        name: {
            of: {on: _mean([getattr(point, name)[of][on] for point in points]) for on in sets}
            for of, sets in getattr(points[0], name).items()
        }
        for name in ("estimates", "auroc")
    }
    return replace(
        networks[0],
        loss=fmean(network.loss for network in networks),
        accuracy=fmean(network.accuracy for network in networks),
        seconds=sum(network.seconds for network in networks),
        curves={name: tuple(map(fmean, zip(*(of.curves[name] for of in networks), strict=True))) for name in CURVES},
        matched=replace(points[0], **means),
    )


def _mean(of_seeds: Sequence[Estimate]) -> Estimate:
    values = np.array([estimate.value for estimate in of_seeds])
    over_points = max(estimate.se or 0.0 for estimate in of_seeds)  # the points are the same ones
    return Estimate(float(values.mean()), se=float(np.hypot(values.std(ddof=1) / len(values) ** 0.5, over_points)))


def _network(plan: Plan, matched: SweepPoint) -> Network:
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
        curves=dict(zip(CURVES, (tuple(map(float, of)) for of in trained.curves.T), strict=True)),
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
    train, test, ood = SETS[protocol.of]
    return {
        "architectures": list(protocol.architectures),
        "images": protocol.images,
        "image_size": list(images.shape[2:]),
        "epochs": protocol.epochs,
        "recipe": asdict(protocol.recipe) | {"momentum": MOMENTUM, "weight_decay": WEIGHT_DECAY},
        "augment": False,
        "train": train,
        "test": test,
        "ood": ood.partition(":")[0] if ":" in ood else "digits",
        "seeds": protocol.seeds,
        "points": request.limit,
        "samples": request.samples,
        "draw_sets": request.draw_sets,
        "seed": request.seed,
        "device": str(device),
    }
