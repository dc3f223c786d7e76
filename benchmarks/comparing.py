"""One row of the benchmark: all contestants do the same job, round after round, compared with T plain forwards."""

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
WIDE = 128  # the larger mini-batch of the loop that redoes its statistics
MANY = 10_000  # points of the job that totals are told for
LONG = 0.5  # seconds: what takes longer at first is not called once more before the rounds
MANY_DRAWS = 32  # mini-batches that are drawn together, where the machine is fast enough
UNIT = 1.5  # seconds that T plain forwards may take in one round


@dataclass(frozen=True)
class Row:
    """What is timed together: a network and a size of the job, T and n being wishes unless `exact`."""

    title: str
    network: str
    method: str  # "mcbn" or "mcdo"
    points: int = 256
    samples: int = 8
    batch_size: int = 32
    exact: bool = False
    batch: int | None = None  # of a plain forward, where it is not the usual one
    chunk: int | None = None  # of bnuq, where it is not bnuq's own choice
    share: float = 1.0  # of the time there is
    only: tuple[str, ...] = ()  # contestants; all where empty


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
        only=("bnuq", "bnuq_tf32", "bnuq_bfloat16", "swap_loop", "torch_uncertainty"),
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
    """One contestant in one row, per round, in units of plain forwards of the same round, by CPU and by clock time.

    `passes` are per sample and point. `draws` are per training image, None where nothing is drawn beforehand. `first`
    is by how many seconds its first call took longer than the later ones, planning for the most part.
    """

    label: str
    passes: dict[str, list[float]]
    draws: dict[str, list[float]] | None
    first: float
    note: str = ""
    difference: float | None = None  # largest difference of probabilities (outputs, of one) from the plain loop's

    def total(self, clock: str, batch_size: int, points: int) -> list[float]:
        """T passes over that many points and the T mini-batches before them, T plain forwards of the points being 1."""
        draws = self.draws[clock] if self.draws else [0.0] * len(self.passes[clock])
        return [p + d * batch_size / points for p, d in zip(self.passes[clock], draws, strict=True)]


@dataclass(frozen=True)
class Compared:
    """What a row found. `plain` are seconds per point of a plain forward; `speed` is told of a GPU alone."""

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
    row: Row, *, device: str, seconds: float, least: int, most: int, unit: float = UNIT, gpu: Accelerator | None = None
) -> Compared:
    """Time `row` for about that many seconds, setting up included, but for `least` rounds at the least.

    Raises AbsentError where its network cannot be built here.
    """
    begun = time.perf_counter()
    job, drawing, weights, batch_size = _job(row, device, unit)
    contestants = batchnorm_contestants(device) if row.method == "mcbn" else dropout_contestants()
    if row.only:
        contestants = {name: one for name, one in contestants.items() if name in row.only}
    plain = Plain(job)
    plain.passes()
    running: dict[str, Running] = {PLAIN: plain}
    absent: dict[str, str] = {}
    first: dict[str, Seconds] = {}
    once: dict[str, Seconds] = {}
    outputs: dict[str, Tensor] = {}
    for name, contestant in contestants.items():
        try:
            one = contestant.set_up(job)
            once[f"{name}/draw"] = timed(one.draw, device)
        except AbsentError as error:
            absent[name] = str(error)
            continue

        def keep(name: str = name, one: Running = one) -> None:
            outputs[name] = one.passes()

        first[name] = timed(keep, device)
        if job.samples > 1 and not (outputs[name] != outputs[name][:1]).any():
            raise RuntimeError(f"{row.title}: the passes of {contestant.label} do not differ.")
        running[name] = one
    actions = {name: one.passes for name, one in running.items()}
    draws = {
        f"{name}/draw": contestants[name].set_up(drawing).draw
        for name in running
        if name in contestants and _draws(name, contestants, row.method)
    }
    actions |= draws
    for name, action in actions.items():
        known = None if name in draws else first.get(name)
        once[name] = known if known is not None and known.wall > LONG else timed(action, device)
    left = seconds - (time.perf_counter() - begun)
    found = rounds(actions, once, reference=PLAIN, seconds=left, least=least, most=most, device=device)
    entries = {}
    per_image = len(job.points) / max(1, batch_size) * job.samples / drawing.samples
    for name in (name for name in running if name != PLAIN):
        source = f"{contestants[name].draws_of or name}/draw"
        entries[name] = Entry(
            contestants[name].label,
            passes=_ratios(found, name, 1.0),
            draws=_ratios(found, source, per_image) if source in actions else None,
            first=max(0.0, first[name].wall - spread([one[name].wall for one in found]).median),
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
        rounds=len(found),
        plain={
            clock: spread([getattr(one[PLAIN], clock) / (job.samples * len(job.points)) for one in found])
            for clock in ("cpu", "wall")
        },
        entries=entries,
        absent=absent,
        speed=_speed(found, entries, job, gpu) if device == "cuda" else {},
    )


def _job(row: Row, device: str, unit: float) -> tuple[Job, Job, str, int]:
    """The job, as large as the machine is fast: T plain forwards take about `unit` seconds, n as wished if it can; and
    the job that drawing is timed on, of more mini-batches where that is quick: bnuq plans anew for every drawing."""
    network = NETWORKS[row.network]
    batch = row.batch or PLAIN_BATCH[device]
    points, samples, per_point = row.points, row.samples, 0.0
    if device == "cuda" and not row.exact:
        points = max(points, 4 * batch)
    if not row.exact:
        once = load(network, points=32, reference=32)
        model, some = once.model.to(device), once.points.to(device)
        with torch.inference_mode():
            timed(lambda: model(some), device)
            per_point = min(timed(lambda: model(some), device).wall for _ in range(2)) / len(some)
        while samples > 2 and samples * points * per_point > unit:
            if row.method == "mcdo" and points > 64:
                points //= 2  # what T passes share is told by T
            else:
                samples //= 2
        while points > 32 and samples * points * per_point > 2 * unit:
            points //= 2
    loops = row.method == "mcbn" and points % 128 == 0 and network.point_shape[-1] <= 32
    drawn = MANY_DRAWS if MANY_DRAWS * row.batch_size * per_point < 2 * unit else samples
    widest = samples * (WIDE if loops else row.batch_size)
    loaded = load(network, points=points, reference=max(widest, drawn * row.batch_size))
    images = loaded.reference[:widest].unflatten(0, (samples, -1)).to(device)
    more = loaded.reference[: drawn * row.batch_size].unflatten(0, (drawn, -1)).to(device)
    job = Job(
        loaded.model.to(device),
        loaded.points.to(device),
        samples=samples,
        batch=min(batch, points),
        chunk=row.chunk or default_chunk(network.point_shape),
        batches=images[:, : row.batch_size].contiguous() if row.method == "mcbn" else None,
        wide=images if loops else None,
    )
    drawing = replace(job, samples=drawn, batches=more if row.method == "mcbn" else None, wide=None)
    return job, drawing, loaded.weights, row.batch_size


def _draws(name: str, contestants: Mapping[str, Contestant], method: str) -> bool:
    return method == "mcbn" and not contestants[name].draws_of and not name.startswith("redone")


def _ratios(found: Sequence[Mapping[str, Seconds]], name: str, scale: float) -> dict[str, list[float]]:
    """Seconds over the plain forwards' of the same round, where clocks tell any."""
    return {
        clock: [scale * getattr(one[name], clock) / max(getattr(one[PLAIN], clock), 1e-9) for one in found]
        for clock in ("cpu", "wall")
    }


def _difference(outputs: Mapping[str, Tensor], name: str) -> float | None:
    if "swap_loop" not in outputs or name.startswith("redone"):
        return None
    one, other = (outputs[key].double() for key in (name, "swap_loop"))
    if one.shape[-1] > 1:
        one, other = one.softmax(-1), other.softmax(-1)
    return float((one - other).abs().max())


def _speed(
    found: Sequence[Mapping[str, Seconds]], entries: Mapping[str, Entry], job: Job, gpu: Accelerator | None
) -> dict[str, dict[str, float]]:
    """Samples × points a second of each, the share of the matrix unit's peak, and of what peak or memory allow."""
    speeds = {}
    for name in (PLAIN, *entries):
        seconds = spread([one[name].wall for one in found]).median
        one = {"samples_points_per_second": job.samples * len(job.points) / seconds}
        if gpu is not None:
            precision = "bfloat16" if name.endswith("bfloat16") else "float32" if name == "bnuq" else "tf32"
            needed = work(job.model, job.points[:8], 2 if precision == "bfloat16" else 4)
            peak = getattr(gpu, precision)
            least = max(needed.flops / peak, needed.bytes / gpu.bandwidth)
            one["of_matrix_peak"] = one["samples_points_per_second"] * needed.flops / peak
            one["of_bound"] = one["samples_points_per_second"] * least
        speeds[name] = one
    return speeds


def ratio(over: Callable[[Entry], list[float]], above: Entry, below: Entry) -> list[float]:
    """How often the one figure goes into the other, round by round."""
    return [a / b for a, b in zip(over(above), over(below), strict=True)]
