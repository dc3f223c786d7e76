"""How the mini-batch size that is best grows with the size N of the training set: Mukhoti et al. 2020 claim that N → ∞
needs b → ∞, where the ELBO chooses b.

One small ResNet for each N and seed, trained for equally many steps, is swept over b with the same test images. Its
optimum is that of the ELBO of the grid, that of the formula b* = 2Nc/P, and the size with the highest PLL.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from bnuq.config import Options, resolve
from bnuq.errors import RequestError
from bnuq.estimates import Estimate
from bnuq.files.journal import work_folder
from bnuq.progress import Progress, silent
from bnuq.report.document import Report, ReportSection, Table, explanations
from bnuq.report.numbers import number, with_error
from bnuq.store import codec
from bnuq.studies.sweep.compute import Settings, sweep
from bnuq.studies.sweep.record import Sweep
from experiments.batch_size.experiment import QUICK, Plan, Request, run_files, train_all, training_images
from experiments.batch_size.training import Job
from experiments.learned.record import Comparison, Network, OptimumOverN, mean_of, reader, with_interval, written
from experiments.learned.record import summary as summary
from experiments.summary import report_of
from experiments.work import training_device

BATCH_SIZE = 64  # of training
PUBLISHED: dict[str, Any] = {
    "source": "Mukhoti et al. 2020, On batch normalisation for approximate Bayesian inference, §3, without values",
    "of_networks": {},
}
_COLUMNS = {
    "elbo": "b* by the ELBO",
    "formula": "b* by 2Nc/P",
    "pll": "b* by test PLL",
    "spread": "PLL, best − worst b",
    "accuracy": "accuracy",
}
read = reader(OptimumOverN)


@dataclass(frozen=True)
class Sizes:
    """The numbers N of training images, the steps of each network, the seeds, and the sizes b of the grid."""

    numbers: tuple[int, ...] = (1000, 4000, 16_000, 60_000)
    steps: int = 1000
    seeds: int = 3
    grid: tuple[int, ...] = (16, 32, 64, 128, 256, 512, 1024, 2048)


def reproduce(request: Request, sizes: Sizes, *, progress: Progress = silent) -> OptimumOverN:
    """Train a network for every N and seed, sweep it over b, write the record to `request.out`, and give it.

    Raises what `batch_size.experiment.reproduce` raises. Finished networks and sweeps are kept when it is stopped.
    """
    if len(sizes.numbers) < 2 or min(sizes.numbers) < 2 * BATCH_SIZE:
        raise RequestError(f"--numbers: expected two numbers of images or more, each of at least {2 * BATCH_SIZE}.")
    device = training_device(request.device)
    codec.check_replaceable(request.out)
    numbers = sorted(set(sizes.numbers))
    images, labels = training_images(replace(request, protocol=replace(QUICK, images=numbers[-1])))
    with (
        work_folder(request.out, request.work) as work,
        tempfile.TemporaryDirectory(prefix="files-", dir=work.path) as files,
    ):
        plans = []
        for n in numbers:
            data = Path(files).absolute() / str(n) / "train.npz"
            data.parent.mkdir()
            np.savez(data, x=images[:n], y=labels[:n])
            digest = hashlib.sha256(images[:n].tobytes() + labels[:n].tobytes()).hexdigest()
            for seed in range(request.seed, request.seed + sizes.seeds):
                job = Job(
                    architecture="small_resnet", batch_size=BATCH_SIZE, steps=sizes.steps, images=n,
                    recipe=QUICK.recipe, seed=seed, device=str(device), data=data, sha256=digest, folder=work.path,
                )  # fmt: skip
                plans.append(Plan("equal steps", job, several=False, first_seed=request.seed))
        jobs = [plan.job for plan in plans]
        train_all(jobs, request, work.path, progress)
        swept = {plan: _swept(request, plan, sizes, work.path, progress) for plan in plans}
        record = written(
            OptimumOverN,
            request.out,
            experiment={
                "sets": ["fashion-mnist"],
                "points": request.limit,
                "numbers": numbers,
                **{key: getattr(request, key) for key in ("samples", "draw_sets", "train_points", "seed")},
                **{key: getattr(sizes, key) for key in ("seeds", "steps")},
            },
            published=PUBLISHED,
            networks=(_network(n, {p: s for p, s in swept.items() if p.job.images == n}) for n in numbers),
            differences={"fashion-mnist: ln b* over ln N": _slopes(swept, sizes, request.seed)},
            seconds={"training": sum(trained.seconds for job in jobs if (trained := job.finished()) is not None)},
            device=str(device),
        )
        work.opened.extend(job.journal for job in jobs)
    return record


def _swept(request: Request, plan: Plan, sizes: Sizes, work: Path, progress: Progress) -> Sweep:
    place = plan.job.data.parent / f"seed{plan.job.seed}"
    root = None if request.data_root is None else request.data_root.absolute()
    options = Options(
        samples=request.samples, seed=request.seed, device=request.device, limit=request.limit, data_root=root
    )
    run = resolve(str(run_files([plan], plan.job.data, place)[plan].absolute()), options, folder=work.absolute())
    grid = tuple(size for size in sizes.grid if size <= plan.job.images // 2)
    settings = Settings(
        batch_sizes=grid, draw_sets=request.draw_sets, full_grid=True, train_points=request.train_points
    )
    return sweep([replace(run, ood=())], settings, out=place / "sweep.h5", work=work, progress=progress)


def _found(swept: Sweep) -> dict[str, float]:
    """The optima of one network, and how much there is to gain: by the ELBO on the grid, by the formula, by PLL."""
    points = [point for point in swept.line(0) if not point.degenerate]
    plls = {point.batch_size: point.estimates["pll"]["test"].estimate.value for point in points}
    elbos = {point.batch_size: point.elbo.elbo.value for point in points if point.elbo is not None}
    terms = swept.models[0].elbo
    found = {
        "elbo": max(elbos, key=elbos.__getitem__),
        "pll": max(plls, key=plls.__getitem__),
        "spread": max(plls.values()) - min(plls.values()),
        "accuracy": points[-1].estimates["accuracy"]["test"].estimate.value,
    }
    predicted = None if terms is None else terms.predicted
    return found if predicted is None or predicted.value <= 0 else {**found, "formula": predicted.value}


def _network(n: int, swept: dict[Plan, Sweep]) -> Network:
    found = [_found(each) for each in swept.values()]
    keys = [key for key in _COLUMNS if all(key in each for each in found)]
    estimates = {key: mean_of(np.array([each[key] for each in found], float)) for key in keys}
    seconds = sum(trained.seconds for plan in swept if (trained := plan.job.finished()) is not None)
    return Network("fashion-mnist", f"N = {n:,}", estimates, (), len(found), seconds)


def _slopes(swept: dict[Plan, Sweep], sizes: Sizes, first: int) -> dict[str, Estimate]:
    """The slope of ln b* on ln N of each seed, its mean over seeds, by each way to find b*."""
    slopes: dict[str, list[float]] = {}
    for seed in range(first, first + sizes.seeds):
        found = {plan.job.images: _found(each) for plan, each in swept.items() if plan.job.seed == seed}
        for key in ("elbo", "formula", "pll"):
            known = {n: of[key] for n, of in found.items() if key in of}
            if len(known) > 1:
                slope = np.polyfit(np.log([*known]), np.log([*known.values()]), 1)[0]
                slopes.setdefault(key, []).append(round(float(slope), 9))  # a grid's is exactly 0 where nothing moves
    return {key: with_interval(mean_of(np.array(of)), len(of)) for key, of in slopes.items()}


def report(record: Comparison, *, columns: int = 100) -> Report:  # noqa: ARG001 - every report has it
    """The report: b* by N, and the slope of its logarithm."""
    setup = record.experiment
    legend = (
        "± standard error over seeds. b* by the ELBO and by PLL: the best size of the grid, so that it ends where the "
        "grid ends, or at half of N. c is minus the slope of the log-likelihood of training points on 1/b, P twice the "
        "number of normalised channels. PLL, best − worst b: what the choice of b is worth, nats."
    )
    rows = tuple(
        (
            each.name,
            tuple(with_error(each.estimates.get(key), 4 if key in ("spread", "accuracy") else 0) for key in _COLUMNS),
        )
        for each in record.networks
    )
    table = ReportSection("b* over N", (Table(tuple(_COLUMNS.values()), rows, stacks=True),))
    return report_of(
        record,
        facts=(
            ("source", f"{record.published['source']}."),
            ("network", f"small ResNet, {setup['steps']:,} steps of SGD with mini-batches of {BATCH_SIZE} for every N"),
            ("samples", f"{setup['draw_sets']} draw sets of {setup['samples']}, {setup['points']} test points"),
            ("seeds", f"{setup['seeds']}, from {setup['seed']}"),
            ("time", f"{record.seconds['training'] / 60:.0f} min of CPU time to train"),
        ),
        summary=sentences(record),
        sections=(table, ReportSection("", tuple(explanations([legend])))),
    )


def sentences(record: Comparison) -> Iterator[str]:
    """By each way to find b*, whether it grows with N."""
    names = {"elbo": "the ELBO of the grid", "formula": "the formula 2Nc/P", "pll": "the test PLL"}
    for of, slopes in record.differences.items():
        for key, slope in slopes.items():
            yield (
                f"{of}, by {names[key]}: slope {number(slope.value, 2)}"
                f"{'' if slope.se is None else f' ± {number(slope.se, 2)}'}: "
                f"{grows(slope)}."
            )
    yield "The networks are small ones of equally many steps, and the grid ends: that can explain where b* stays."


def grows(slope: Estimate) -> str:
    """Whether an optimum grows with N, by its slope: holds, fails or open."""
    if slope.low is None or slope.high is None:
        return "open (one seed)"
    return "holds, b* grows with N" if slope.low > 0 else "fails here, b* falls with N" if slope.high < 0 else "open"
