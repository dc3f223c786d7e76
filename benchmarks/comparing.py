"""Times one row of the benchmark: all contestants do the same job in every round, compared with T plain forwards."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from contestants import Contestant, Job, Plain, Running, batchnorm_contestants, dropout_contestants
from measuring import Accelerator, Seconds, Spread, rounds, spread, timed, work
from networks import NETWORKS, AbsentError, load
from torch import Tensor

from bnuq.sampling.engine import default_chunk

PLAIN = "plain"
PLAIN_BATCH = {"cpu": 32, "cuda": 256}  # points of a plain forward
WIDE_BATCH = 128  # the larger mini-batch of the loop that redoes its statistics
TOTAL_POINTS = 10_000  # points of the job that totals are reported for
LONG_CALL = 0.5  # seconds; an action whose first call takes longer is not called again before the rounds
MANY_DRAWS = 32  # mini-batches per drawing, where the machine is fast enough
ROUND_SECONDS = 1.5  # seconds that T plain forwards may take in one round


@dataclass(frozen=True)
class Row:
    """A network and a job size to time. T and n may be reduced on slow machines unless `exact`."""

    title: str
    network: str
    method: str  # "mcbn" or "mcdo"
    points: int = 256
    samples: int = 8
    batch_size: int = 32
    exact: bool = False
    batch: int | None = None  # points of a plain forward; None for the default
    chunk: int | None = None  # points per chunk of bnuq; None for bnuq's default
    share: float = 1.0  # relative share of the available time
    only: tuple[str, ...] = ()  # contestants; all if empty


ROWS = {
    "resnet20": Row("ResNet-20, 32×32", "resnet20", "mcbn", share=2),
    "resnet32": Row("ResNet-32, 32×32", "resnet32", "mcbn", share=4),
    "resnet56": Row("ResNet-56, 32×32", "resnet56", "mcbn", share=2.5),
    "resnet18": Row("ResNet-18, 64×64", "resnet18", "mcbn", share=1.5),
    "mobilenetv2": Row("MobileNetV2, 128×128", "mobilenetv2", "mcbn", share=1.5),
    "densenet121": Row("DenseNet-121, 96×96", "densenet121", "mcbn", share=1.5),
    "resnet50": Row(
        "ResNet-50, 224×224",
        "resnet50",
        "mcbn",
        points=32,
        batch_size=16,
        share=4,
        only=("bnuq", "bnuq_tf32", "bnuq_float16", "bnuq_bfloat16", "swap_loop", "torch_uncertainty"),
    ),
    "mlp50-n32": Row("Dense 13-50-50-1, n = 32", "mlp50", "mcbn", 32, 32, exact=True, share=0.2),
    "mlp50-n1000": Row("Dense 13-50-50-1, n = 1000", "mlp50", "mcbn", 1000, 32, exact=True, batch=1000, share=0.3),
    "fmnist_mlp": Row("Dense 784-300-…-303-10", "fmnist_mlp", "mcbn", 1024, 32, share=0.5),
    "resnet20-dropout": Row("ResNet-20, dropout before the last layer", "resnet20_dropout", "mcdo", share=1),
    "mlp50-dropout": Row(
        "Dense 13-50-50-1, dropout in each layer", "mlp50_dropout", "mcdo", 1000, 32, exact=True, batch=1000, share=0.3
    ),
}


@dataclass(frozen=True)
class Entry:
    """One contestant in one row: its cost in every round, in plain forwards of the same round, by CPU and clock time.

    `passes` are per sample and point. `draws` are per training image, None where nothing is drawn in advance. `first`
    is the number of seconds by which its first call took longer than later ones, mostly planning.
    """

    label: str
    passes: dict[str, list[float]]
    draws: dict[str, list[float]] | None
    first: float
    note: str = ""
    difference: float | None = None  # largest difference of probabilities (outputs, of one) from the plain loop's

    def total(self, clock: str, batch_size: int, points: int) -> list[float]:
        """The cost of T mini-batches and T passes over `points` points, relative to T plain forwards of the points."""
        draws = self.draws[clock] if self.draws else [0.0] * len(self.passes[clock])
        return [p + d * batch_size / points for p, d in zip(self.passes[clock], draws, strict=True)]


@dataclass(frozen=True)
class Compared:
    """The results of a row. `plain` are seconds per point of a plain forward; `speed` is measured on a GPU only."""

    title: str
    network: str
    method: str
    weights: str
    points: int
    samples: int
    batch_size: int
    batch: int
    chunk: int
    rounds: int
    plain: dict[str, Spread]
    entries: dict[str, Entry]
    absent: dict[str, str]
    speed: dict[str, dict[str, float]] = field(default_factory=dict)


def compare(
    row: Row,
    *,
    device: str,
    seconds: float,
    min_rounds: int,
    max_rounds: int,
    unit: float = ROUND_SECONDS,
    gpu: Accelerator | None = None,
) -> Compared:
    """Time `row` for about that many seconds, setting up included, but for `min_rounds` rounds at the least.

    Raises AbsentError where its network cannot be built here.
    """
    begun = time.perf_counter()
    job, drawing, weights, batch_size = _job(row, device, unit)
    contestants = batchnorm_contestants(device) if row.method == "mcbn" else dropout_contestants()
    if row.only:
        contestants = {name: contestant for name, contestant in contestants.items() if name in row.only}
    plain = Plain(job)
    plain.passes()
    running: dict[str, Running] = {PLAIN: plain}
    absent: dict[str, str] = {}
    first: dict[str, Seconds] = {}
    once: dict[str, Seconds] = {}
    outputs: dict[str, Tensor] = {}
    for name, contestant in contestants.items():
        try:
            contestant_run = contestant.set_up(job)
            once[f"{name}/draw"] = timed(contestant_run.draw, device)
        except AbsentError as error:
            absent[name] = str(error)
            continue

        def keep(name: str = name, contestant_run: Running = contestant_run) -> None:
            outputs[name] = contestant_run.passes()

        first[name] = timed(keep, device)
        if job.samples > 1 and not (outputs[name] != outputs[name][:1]).any():
            raise RuntimeError(f"{row.title}: the passes of {contestant.label} do not differ.")
        running[name] = contestant_run
    actions = {name: contestant_run.passes for name, contestant_run in running.items()}
    draws = {
        f"{name}/draw": contestants[name].set_up(drawing).draw
        for name in running
        if name in contestants and _draws(name, contestants, row.method)
    }
    actions |= draws
    for name, action in actions.items():
        known = None if name in draws else first.get(name)
        once[name] = known if known is not None and known.wall > LONG_CALL else timed(action, device)
    seconds_left = seconds - (time.perf_counter() - begun)
    timings = rounds(
        actions,
        once,
        reference=PLAIN,
        seconds=seconds_left,
        min_rounds=min_rounds,
        max_rounds=max_rounds,
        device=device,
    )
    entries = {}
    per_image = len(job.points) / max(1, batch_size) * job.samples / drawing.samples
    for name in (name for name in running if name != PLAIN):
        source = f"{contestants[name].draws_of or name}/draw"
        entries[name] = Entry(
            contestants[name].label,
            passes=_ratios(timings, name, 1.0),
            draws=_ratios(timings, source, per_image) if source in actions else None,
            first=max(0.0, first[name].wall - spread([timing[name].wall for timing in timings]).median),
            note=getattr(running[name], "note", ""),
            difference=_difference(outputs, name),
        )
    return Compared(
        row.title,
        row.network,
        row.method,
        weights,
        points=len(job.points),
        samples=job.samples,
        batch_size=batch_size if row.method == "mcbn" else 0,
        batch=job.batch,
        chunk=job.chunk,
        rounds=len(timings),
        plain={
            clock: spread([getattr(timing[PLAIN], clock) / (job.samples * len(job.points)) for timing in timings])
            for clock in ("cpu", "wall")
        },
        entries=entries,
        absent=absent,
        speed=_speed(timings, entries, job, gpu) if device == "cuda" else {},
    )


def _job(row: Row, device: str, unit: float) -> tuple[Job, Job, str, int]:
    """The job, scaled to the machine: T plain forwards take about `unit` seconds, if possible with the requested n. And
    the job for timing the drawing, with more mini-batches where that is fast, because every drawing includes
    planning."""
    network = NETWORKS[row.network]
    batch = row.batch or PLAIN_BATCH[device]
    points, samples, per_point = row.points, row.samples, 0.0
    if device == "cuda" and not row.exact:
        points = max(points, 4 * batch)
    if not row.exact:
        once = load(network, points=32, reference=32)
        model, points_sample = once.model.to(device), once.points.to(device)
        with torch.inference_mode():
            timed(lambda: model(points_sample), device)
            per_point = min(timed(lambda: model(points_sample), device).wall for _ in range(2)) / len(points_sample)
        while samples > 2 and samples * points * per_point > unit:
            if row.method == "mcdo" and points > 64:
                points //= 2  # the shared part of T passes depends on T
            else:
                samples //= 2
        while points > 32 and samples * points * per_point > 2 * unit:
            points //= 2
    loops = row.method == "mcbn" and points % 128 == 0 and network.point_shape[-1] <= 32
    drawn = MANY_DRAWS if MANY_DRAWS * row.batch_size * per_point < 2 * unit else samples
    widest = samples * (WIDE_BATCH if loops else row.batch_size)
    loaded = load(network, points=points, reference=max(widest, drawn * row.batch_size))
    images = loaded.reference[:widest].unflatten(0, (samples, -1)).to(device)
    drawing_batches = loaded.reference[: drawn * row.batch_size].unflatten(0, (drawn, -1)).to(device)
    job = Job(
        loaded.model.to(device),
        loaded.points.to(device),
        samples=samples,
        batch=min(batch, points),
        chunk=row.chunk or default_chunk(network.point_shape, device),
        batches=images[:, : row.batch_size].contiguous() if row.method == "mcbn" else None,
        wide=images if loops else None,
    )
    drawing = replace(job, samples=drawn, batches=drawing_batches if row.method == "mcbn" else None, wide=None)
    return job, drawing, loaded.weights, row.batch_size


def _draws(name: str, contestants: Mapping[str, Contestant], method: str) -> bool:
    return method == "mcbn" and not contestants[name].draws_of and not name.startswith("redone")


def _ratios(timings: Sequence[Mapping[str, Seconds]], name: str, scale: float) -> dict[str, list[float]]:
    """Seconds relative to the plain forwards of the same round, by each clock."""
    return {
        clock: [scale * getattr(timing[name], clock) / max(getattr(timing[PLAIN], clock), 1e-9) for timing in timings]
        for clock in ("cpu", "wall")
    }


def _difference(outputs: Mapping[str, Tensor], name: str) -> float | None:
    if "swap_loop" not in outputs or name.startswith("redone"):
        return None
    outputs_of_name, plain_outputs = (outputs[key].double() for key in (name, "swap_loop"))
    if outputs_of_name.shape[-1] > 1:
        outputs_of_name, plain_outputs = outputs_of_name.softmax(-1), plain_outputs.softmax(-1)
    return float((outputs_of_name - plain_outputs).abs().max())


def _speed(
    timings: Sequence[Mapping[str, Seconds]], entries: Mapping[str, Entry], job: Job, gpu: Accelerator | None
) -> dict[str, dict[str, float]]:
    """Samples × points per second of each contestant, and its share of the matrix unit's peak and of the roofline."""
    speeds = {}
    for name in (PLAIN, *entries):
        seconds = spread([timing[name].wall for timing in timings]).median
        speed = {"samples_points_per_second": job.samples * len(job.points) / seconds}
        if gpu is not None:
            precision = "bfloat16" if name.endswith("float16") else "float32" if name == "bnuq" else "tf32"
            needed = work(job.model, job.points[:8], 2 if precision == "bfloat16" else 4)
            peak = getattr(gpu, precision)
            least = max(needed.flops / peak, needed.bytes / gpu.bandwidth)
            speed["of_matrix_peak"] = speed["samples_points_per_second"] * needed.flops / peak
            speed["of_bound"] = speed["samples_points_per_second"] * least
        speeds[name] = speed
    return speeds


def ratio(over: Callable[[Entry], list[float]], above: Entry, below: Entry) -> list[float]:
    """The ratio of two costs in every round."""
    return [a / b for a, b in zip(over(above), over(below), strict=True)]
