"""The performance targets of bnuq, and whether they were reached: each is a ratio of two costs of the same rounds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from comparing import TOTAL_POINTS, WIDE_BATCH, Compared, Entry, ratio
from measuring import Spread, spread

Figures = Mapping[str, Compared]


@dataclass(frozen=True)
class Extra:
    """Measurements outside the rows: ratios of peak memory, and the overhead of a whole run; empty if not measured."""

    memory: tuple[float, ...] = ()
    overhead: tuple[float, ...] = ()


@dataclass(frozen=True)
class Target:
    """A ratio and its required bound: "≤" for costs, "≥" for speed-ups. `floor` is a theoretical limit."""

    text: str
    sense: str
    reach: float | Callable[[Figures], float | None]
    measured: Callable[[Figures, Extra], list[float] | None]
    aim: float | None = None
    floor: float | str | None = None
    device: str = "cpu"
    always: bool = False  # the bound applies to the worst of the values, not to their median


@dataclass(frozen=True)
class Verdict:
    """A target with its measurement; `measured` and `reached` are None where it was not measured."""

    text: str
    sense: str
    reach: float | None
    aim: float | None
    floor: float | str | None
    measured: Spread | None
    reached: bool | None


def verdicts(figures: Figures, extra: Extra, device: str) -> list[Verdict]:
    """The verdict on every target of this device, by the median over the rounds (CPU time on a CPU, clock on a GPU)."""
    return [_verdict(target, figures, extra) for target in TARGETS if target.device == device]


def _verdict(target: Target, figures: Figures, extra: Extra) -> Verdict:
    values = target.measured(figures, extra)
    reach = target.reach(figures) if callable(target.reach) else target.reach
    measured = spread(values) if values else None
    reached = None
    if measured is not None and reach is not None:
        worst = measured.max if target.sense == "≤" else measured.min
        judged = worst if target.always else measured.median
        reached = judged <= reach if target.sense == "≤" else judged >= reach
    return Verdict(target.text, target.sense, reach, target.aim, target.floor, measured, reached)


Measured = Callable[[Figures, Extra], list[float] | None]


def _entry(figures: Figures, row: str, name: str) -> Entry | None:
    return figures[row].entries.get(name) if row in figures else None


def _cost(row: str, name: str = "bnuq", *, clock: str = "cpu") -> Measured:
    """The cost of drawing and of passes over 10 000 points, relative to T plain forwards."""

    def measured(figures: Figures, _: Extra) -> list[float] | None:
        entry = _entry(figures, row, name)
        return entry.total(clock, figures[row].batch_size, TOTAL_POINTS) if entry else None

    return measured


def _faster(row: str, name: str, than: str, *, batch_size: int | None = None, clock: str = "cpu") -> Measured:
    """The speed-up over another contestant for 10 000 points, including draws (with the row's b, or another)."""

    def measured(figures: Figures, _: Extra) -> list[float] | None:
        bnuq_entry, other = _entry(figures, row, name), _entry(figures, row, than)
        if bnuq_entry is None or other is None:
            return None
        size = batch_size or figures[row].batch_size
        return ratio(lambda entry: entry.total(clock, size, TOTAL_POINTS), other, bnuq_entry)

    return measured


def _faster_passes(row: str, name: str, than: str) -> Measured:
    """The speed-up over another contestant without the draws."""

    def measured(figures: Figures, _: Extra) -> list[float] | None:
        bnuq_entry, other = _entry(figures, row, name), _entry(figures, row, than)
        return ratio(lambda entry: entry.passes["cpu"], other, bnuq_entry) if bnuq_entry and other else None

    return measured


def _draws(row: str) -> Measured:
    def measured(figures: Figures, _: Extra) -> list[float] | None:
        entry = _entry(figures, row, "bnuq")
        return entry.draws["cpu"] if entry and entry.draws else None

    return measured


def _prefix(figures: Figures) -> float | None:
    """1.2 / T: the layers before the dropout cost one pass in total, plus a fifth as tolerance."""
    row = figures.get("resnet20-dropout")
    return 1.2 / row.samples if row else None


def _share_of_bound(row: str) -> Measured:
    def measured(figures: Figures, _: Extra) -> list[float] | None:
        speed = figures[row].speed if row in figures else {}
        shares = [
            speeds["of_bound"] for name, speeds in speed.items() if name.startswith("bnuq") and "of_bound" in speeds
        ]
        return [max(shares)] if shares else None

    return measured


def _best_on_gpu(row: str) -> Measured:
    """The speed-up of bnuq's fastest precision over TorchUncertainty's loop."""

    def measured(figures: Figures, extra: Extra) -> list[float] | None:
        names = [name for name in ("bnuq", "bnuq_tf32", "bnuq_float16", "bnuq_bfloat16") if _entry(figures, row, name)]
        speedups = [_faster(row, name, "torch_uncertainty", clock="wall")(figures, extra) for name in names]
        return max((values for values in speedups if values), key=lambda values: spread(values).median, default=None)

    return measured


TARGETS: Iterable[Target] = (
    Target("ResNet-32, n = 10 000, b = 32, draws included", "≤", 0.75, _cost("resnet32"), aim=0.68, floor=0.58),
    Target("ResNet-50 at 224", "≤", 0.75, _cost("resnet50"), aim=0.55, floor=0.37),
    Target("ResNet-18 at 64", "≤", 0.90, _cost("resnet18")),
    Target("MobileNetV2 at 128", "≤", 0.45, _cost("mobilenetv2")),
    Target("DenseNet-121 at 96", "≤", 0.65, _cost("densenet121")),
    Target("ResNet-32 in bfloat16", "≤", 0.40, _cost("resnet32", "bnuq_bfloat16"), floor=0.3),
    Target(
        "ResNet-32, faster than TorchUncertainty", "≥", 1.4, _faster("resnet32", "bnuq", "torch_uncertainty"), floor=1.9
    ),
    Target(
        "ResNet-32 in bfloat16, faster than TorchUncertainty",
        "≥",
        2.8,
        _faster("resnet32", "bnuq_bfloat16", "torch_uncertainty"),
        floor=3.7,
    ),
    Target(
        "ResNet-32, faster than statistics redone per test batch, b = 32",
        "≥",
        1.8,
        _faster("resnet32", "bnuq", "redone"),
    ),
    Target("the same, b = 128", "≥", 3.3, _faster("resnet32", "bnuq", "redone_128", batch_size=WIDE_BATCH)),
    Target(
        "Dense 2×50, n = 32, passes faster than the plain loop",
        "≥",
        12,
        _faster_passes("mlp50-n32", "bnuq", "swap_loop"),
    ),
    Target(
        "Dense 2×50, n = 1000, passes faster than the plain loop",
        "≥",
        1.6,
        _faster_passes("mlp50-n1000", "bnuq", "swap_loop"),
    ),
    Target("Dropout at the end of ResNet-20: 1.2 / T", "≤", _prefix, _cost("resnet20-dropout"), floor="1/T"),
    Target(
        "Dropout in a dense network, faster than TorchUncertainty's loop",
        "≥",
        1.5,
        _faster("mlp50-dropout", "bnuq", "torch_uncertainty"),
    ),
    Target("ResNet-32, drawing ω, per training image", "≤", 1.0, _draws("resnet32")),
    Target(
        "Peak memory over that of a plain forward of max(128, b), whatever n and T",
        "≤",
        1.0,
        lambda _, extra: list(extra.memory),
        always=True,
    ),
    Target(
        "bnuq evaluate, ResNet-20, T = 16, 2846 images: overhead over passes, torch's import aside",
        "≤",
        0.20,
        lambda _, extra: list(extra.overhead),
    ),
    Target("ResNet-50, times TorchUncertainty's loop", "≥", 5, _best_on_gpu("resnet50"), device="cuda"),
    Target("ResNet-50, share of the matrix-unit or memory bound", "≥", 0.5, _share_of_bound("resnet50"), device="cuda"),
)
