"""How far outputs deviate from what was expected, and how far rounding alone, or the Monte Carlo error, explains."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from bnuq import metrics
from bnuq.frozen import frozen
from bnuq.shapes import Float, Float64
from bnuq.tasks import CLASSIFICATION, Task

_ULPS = 16  # units in the last place by which rounding may move an output of this size
_FINEST = 1e-10  # the unit of float64: less is far below what the float32 of the results resolves
_TOLERANCES = {torch.float64: 1e-9, torch.float32: 2e-3}  # of the spread of an output: what rounding alone explains
_COARSE = 0.05  # the same for networks that compute in half precision
_AT_ONCE = 2**20  # values that are compared at a time
_MOST_ENTRIES = 2**24  # outputs of all draws on which another arithmetic is compared
_RANKED = 2048  # values of an output from which the spread over points is taken, evenly spaced among all


@frozen
class Discrepancy:
    """How far outputs lie from the expected ones, for each output (class, target) over all points, draws and positions.

    `largest` is the largest difference, infinite where shapes, or what is not finite, differ; `spread` by how much the
    output itself varies, `size` its largest value, and `rounding` what the last rounding may move such a value by.
    What is checked is what varies: an offset, a masked class or another output of a larger scale hides nothing.

    What it can miss: an error below the tolerance in units of the spread, and one at points where an output varies a
    thousand times less than at most others.
    """

    largest: Float[Tensor, " output"]
    spread: Float[Tensor, " output"]
    size: Float[Tensor, " output"]
    eps: float

    @property
    def rounding(self) -> Float[Tensor, " output"]:
        return _ULPS * self.eps * self.size

    @property
    def relative(self) -> float:
        """The largest difference in units of the spread of its output, or of its size where it does not vary."""
        scale = torch.where(self.spread > 0, self.spread, self.size)
        return float(torch.where(self.largest > 0, self.largest / scale, 0.0).amax()) if len(scale) else 0.0

    def is_within(self, tolerance: float) -> bool:
        """Whether rounding, or less than `tolerance` of the spread, explains the differences."""
        return bool((self.largest <= tolerance * self.spread + self.rounding).all())

    def is_resolved(self, tolerance: float) -> bool:
        """Whether rounding is below `tolerance` of the spread wherever outputs differ, so that it hides nothing."""
        return bool(((self.largest == 0) | (self.rounding <= tolerance * self.spread)).all())

    def proves(self, tolerance: float) -> bool:
        """Whether differences are within `tolerance`, and rounding hides no larger ones."""
        return self.is_within(tolerance) and self.is_resolved(tolerance)


def difference(
    outputs: Tensor, expected: Tensor, *, draws: bool = False, made_in: torch.dtype | None = None
) -> Discrepancy:
    """How far outputs (n, K, …) lie from the expected ones, or with `draws` (T, n, K, …), which were `made_in` a type
    that is by default their own.

    The spread of an output is its standard deviation over the draws, about the mean of each point. Of a single draw, or
    where the draws do not move it, it is that over the points: the width of the closest quarter of their values, twice,
    because masked points lie far from the others.
    """
    if outputs.shape != expected.shape:
        one = torch.ones(1, dtype=torch.float64)
        return Discrepancy(torch.inf * one, one, one, 0.0)
    if not draws:
        outputs, expected = outputs[None], expected[None]
    outputs, expected = (t.reshape(*t.shape[:2], t.shape[2] if t.ndim > 2 else 1, -1) for t in (outputs, expected))
    made_in = expected.dtype if made_in is None else made_in
    eps = max(torch.finfo(made_in).eps, _FINEST) if made_in.is_floating_point else 0.0
    if expected.dtype not in (torch.float32, torch.float64):
        outputs, expected = outputs.float(), expected.float()
    if not expected.numel():
        nothing = torch.zeros(expected.shape[2], dtype=torch.float64)
        return Discrepancy(nothing, nothing, nothing, eps)
    rows = max(1, _AT_ONCE // expected[:, :1].numel())
    blocks = [*zip(*(tensor.split(rows, 1) for tensor in (outputs, expected)), strict=True)]
    found = _measured([_part(*block) for block in blocks])
    if not bool(found.isfinite().all()):
        found = _measured([_finite_part(*block) for block in blocks])
    largest, size, squares, counts = found
    freedom = max(1, len(expected) - 1) / len(expected)  # of the draws of a point, about their mean
    spread = (squares / (counts * freedom).clamp_min(1)).sqrt()
    if not bool(spread.all()):
        spread = torch.where(spread > 0, spread, _over_points(expected))
    return Discrepancy(largest, spread, size, eps)


def _measured(parts: list[Tensor]) -> Float64[Tensor, "measure output"]:
    """The measures of all parts together, which an accelerator is waited for once."""
    measures = torch.stack(parts).cpu().double()
    return torch.cat([measures[:, :2].amax(0), measures[:, 2:].sum(0)])


def _part(outputs: Tensor, expected: Tensor) -> Float[Tensor, "measure output"]:
    """Of each output at some points: the largest difference, the largest value, the sum of squares about the mean of
    each point, and the number of values. Not finite where a value is not."""
    largest = (outputs - expected).abs_().amax(3).amax((0, 1))
    size = expected.abs().amax(3).amax((0, 1))
    moved = expected - expected[:1]  # exact where draws lie close beside a large offset
    squares = moved.sub_(moved.mean(0, keepdim=True)).square_().sum(3).sum((0, 1))
    return torch.stack([largest, size, squares, torch.full_like(size, expected[:, :, 0].numel())])


def _finite_part(outputs: Tensor, expected: Tensor) -> Float64[Tensor, "measure output"]:
    """The same of the finite values; an infinite difference where what is not finite differs."""
    outputs, expected = (values.double() for values in (outputs, expected))
    finite = expected.isfinite()
    alike = (outputs == expected) | (finite & outputs.isfinite()) | (outputs.isnan() & expected.isnan())
    apart = torch.where(finite, outputs - expected, 0.0).abs().masked_fill(~alike, torch.inf)
    values = torch.where(finite, expected, 0.0)
    mean = values.sum(0, keepdim=True) / finite.sum(0, keepdim=True).clamp_min(1)
    squares = torch.where(finite, values - mean, 0.0).square()
    axes = (0, 1, 3)
    return torch.stack([apart.amax(axes), values.abs().amax(axes), squares.sum(axes), finite.double().sum(axes)])


def _over_points(expected: Tensor) -> Float64[Tensor, " output"]:
    """Twice the width of the closest quarter of the values of each output in the first draw; 0 where all are equal."""
    values = expected[0, :: -(-expected.shape[1] // _RANKED)]
    values = values[..., :: -(-len(values) * values.shape[2] // _RANKED)]
    values = values.movedim(1, 0).flatten(1).cpu().double()  # (K, points and positions)
    values = torch.where(values.isfinite(), values, torch.inf).sort(1).values
    quarter = max(1, round(values.shape[1] / 4))
    widths = 2 * (values[:, quarter:] - values[:, :-quarter])
    widths = torch.where((widths > 0) & widths.isfinite(), widths, torch.inf)
    closest = widths.amin(1) if widths.shape[1] else torch.full((len(values),), torch.inf)
    return torch.where(closest.isfinite(), closest, 0.0).double()


def tolerance(outputs: Tensor) -> float:
    """What rounding alone explains, in units of the spread, where networks compute in the type of these outputs."""
    return _TOLERANCES.get(outputs.dtype, _COARSE)


@frozen
class Deviation:
    """The deviation of another arithmetic from the exact one, over some points and draws.

    `mean` and `largest` are of probabilities, or of the values of a regression. `uncertainty` is the relative deviation
    of the mean of `measure`, `uncertainty_error` its standard error over points, and `monte_carlo_error` the relative
    one of that mean over the draws; NaN where they are undefined. `of_mean_prediction` is the deviation of the means
    over the draws in units of their Monte Carlo errors (root mean squares over points and outputs).
    """

    measure: Literal["mutual information", "variance"]  # the latter of a regression, each output in its own unit
    mean: float
    largest: float
    points: int
    draws: int
    uncertainty: float
    uncertainty_error: float
    monte_carlo_error: float
    of_mean_prediction: float

    def is_below_monte_carlo_error(self, draws: int) -> bool:
        """Whether neither the uncertainty nor the mean prediction deviates by more than the Monte Carlo error of so
        many draws. False where that is not known."""
        shrinks = math.sqrt(self.draws / draws)
        return abs(self.uncertainty) <= shrinks * self.monte_carlo_error and self.of_mean_prediction <= shrinks


def deviation_of_samples(outputs: Tensor, exact: Tensor, task: Task = CLASSIFICATION) -> Deviation:
    """How far raw outputs (T, n, K, …) of a task are from the exact ones; of many, at evenly spaced positions or
    points."""
    values, expected = (_scored(_some_rows(tensor).cpu().double(), task) for tensor in (outputs, exact))
    difference = (values - expected).abs()
    measure = {"variance": _VARIANCE}.get(task.spread, _INFORMATION)
    if measure is _VARIANCE:  # each output in units of its own
        unit = expected.var(0, correction=0).mean(0).sqrt()
        values, expected = (rows / torch.where(unit > 0, unit, 1.0) for rows in (values, expected))
    spread, exact_spread = measure.of(values), measure.of(expected)
    total, count, draws = exact_spread.sum(), len(exact_spread), len(expected)
    ratio = spread.sum() / total
    error = (spread - ratio * exact_spread).square().sum().mul(count / (count - 1) if count > 1 else math.nan).sqrt()
    monte_carlo_error = of_mean_prediction = math.nan
    if draws > 1:
        monte_carlo_error = float(metrics.jackknife_error(measure.left_out(expected).numpy()) / (total / count))
        of_means = (values.mean(0) - expected.mean(0)).square().mean() / (expected.var(0) / draws).mean()
        of_mean_prediction = float(of_means.sqrt())
    return Deviation(
        measure=measure.name,
        mean=float(difference.mean()),
        largest=float(difference.max()),
        points=exact.shape[1],
        draws=draws,
        uncertainty=float(ratio - 1),
        uncertainty_error=float(error / total),
        monte_carlo_error=monte_carlo_error,
        of_mean_prediction=of_mean_prediction,
    )


def _some_rows(outputs: Tensor) -> Float[Tensor, "draw row output"]:
    """The outputs of every point and, if any, every position, or of some of them."""
    step = -(-outputs.numel() // _MOST_ENTRIES)
    if outputs.ndim == 3:
        return outputs[:, ::step]
    return outputs.flatten(3)[..., ::step].movedim(2, -1).flatten(1, 2)


def class_logits(values: Tensor, task: Task) -> Tensor | None:
    """The logits of the classes, along the last axis: of a label those of both its classes; None of a regression."""
    match task.outputs:
        case "classes":
            return values
        case "labels":
            return torch.stack([torch.zeros_like(values), values], -1)
    return None


def _scored(rows: Tensor, task: Task) -> Tensor:
    """The values of a regression, or probabilities: of a label those of both its classes, a row for each label."""
    logits = class_logits(rows, task)
    return rows if logits is None else logits.flatten(1, -2).softmax(2)


class _Measure(NamedTuple):
    """The uncertainty of every row, and the mean over rows of that without each of the draws."""

    name: Literal["variance", "mutual information"]
    of: Callable[[Float64[Tensor, "draw row output"]], Float64[Tensor, " row"]]
    left_out: Callable[[Float64[Tensor, "draw row output"]], Float64[Tensor, " draw"]]


def _variance_left_out(rows: Float64[Tensor, "draw row output"]) -> Float64[Tensor, " draw"]:
    total, squares, others = rows.sum(0), rows.square().sum(0), len(rows) - 1
    return torch.stack([((squares - x.square()) / others - ((total - x) / others).square()).mean() for x in rows])


def _information_left_out(rows: Float64[Tensor, "draw row output"]) -> Float64[Tensor, " draw"]:
    total, others = rows.sum(0), len(rows) - 1
    entropies = torch.special.entr(rows).sum(2)
    of_all = entropies.sum(0)
    return torch.stack([
        (torch.special.entr((total - p).clamp_min(0) / others).sum(1) - (of_all - entropy) / others).mean()
        for p, entropy in zip(rows, entropies, strict=True)
    ])  # fmt: skip


_VARIANCE = _Measure("variance", lambda rows: rows.var(0, correction=0).mean(1), _variance_left_out)
_INFORMATION = _Measure(
    "mutual information", lambda rows: torch.as_tensor(metrics.mutual_information(rows)), _information_left_out
)
