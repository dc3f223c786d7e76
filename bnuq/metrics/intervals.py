"""Calibration of a stated spread: coverage of intervals, and errors in the order of the spread.

Computed in float64 by numpy for all array types; outputs are pooled.
"""

import math
from collections.abc import Iterable, Sequence
from statistics import NormalDist

import numpy as np

from bnuq.frozen import frozen
from bnuq.metrics.arrays import Array, as_float64, ties_of_rows
from bnuq.shapes import Float, Integer


def coverage(
    mean: Float[Array, "point *output"],
    sigma: Float[Array, "..."] | float,
    y: Float[Array, "point *output"],
    *,
    level: float,
) -> float:
    """Share of truths inside the central interval of N(mean, σ²) at `level`, in [0, 1]; best where it equals `level`.

    Intervals are closed, so that σ = 0 covers an error of 0. A level outside [0, 1] is a ValueError.

    Source: Gneiting, Balabdaoui & Raftery 2007, Probabilistic Forecasts, Calibration and Sharpness.
    """
    return float(interval_calibration(mean, sigma, y, levels=[level])[0])


def interval_calibration(
    mean: Float[Array, "point *output"],
    sigma: Float[Array, "..."] | float,
    y: Float[Array, "point *output"],
    *,
    levels: Sequence[float] | Float[np.ndarray, "level"],
) -> Float[np.ndarray, "level"]:
    """`coverage` at each nominal level, shape (levels,), in [0, 1]; best where it equals the level.

    Source: Kuleshov, Fenner & Ermon 2018, Accurate Uncertainties for Deep Learning Using Calibrated Regression,
    with central intervals.
    """
    nominal = np.asarray(levels, dtype=np.float64)
    if not ((nominal >= 0) & (nominal <= 1)).all():
        raise ValueError(f"level is {nominal[~((nominal >= 0) & (nominal <= 1))][0]}; expected a share within [0, 1].")
    size = np.abs(as_float64(y) - as_float64(mean))
    spread = np.broadcast_to(sigma if isinstance(sigma, (float, int)) else as_float64(sigma), size.shape)
    if size.size == 0:
        raise ValueError("y holds no examples; expected at least one.")
    with np.errstate(divide="ignore", over="ignore"):
        distance = np.where(size == 0, 0.0, size / np.where(size == 0, 1.0, spread))
    return np.searchsorted(np.sort(distance.ravel()), _half_widths(nominal), "right") / size.size


def _half_widths(levels: Iterable[float]) -> list[float]:
    """Those of the central intervals of N(0, 1) that hold these shares of it."""
    normal = NormalDist()  # of the standard library: scipy.special takes 0.4 s to be imported
    return [normal.inv_cdf((1 + level) / 2) if level < 1 else math.inf for level in levels]


def spearman(a: Float[Array, "point"], b: Float[Array, "point"]) -> float:
    """Rank correlation of two scores, in [−1, 1]; for σ and |error|, higher is better.

    Ties have their mean rank. NaN if either score is constant or holds a NaN, and for a single point.

    Source: Spearman 1904, The Proof and Measurement of Association between Two Things.
    """
    return float(spearman_of_replicates(as_float64(a)[None], as_float64(b)[None])[0])


def spearman_of_replicates(
    a: Float[Array, "replicate point"], b: Float[Array, "replicate point"]
) -> Float[np.ndarray, "replicate"]:
    """The results of `spearman` for each row.

    Source: as `spearman`.
    """
    first, second = as_float64(a), as_float64(b)
    if first.shape[1] < 2:
        return np.full(len(first), math.nan)
    x, y = _away_from_middle(first), _away_from_middle(second)
    with np.errstate(invalid="ignore"):
        correlation = (x * y).sum(1) / (np.sqrt((x * x).sum(1)) * np.sqrt((y * y).sum(1)))
    unknown = np.isnan(first).any(1) | np.isnan(second).any(1)
    return np.where(unknown, math.nan, np.clip(correlation, -1.0, 1.0))


def _away_from_middle(values: Float[np.ndarray, "row point"]) -> Float[np.ndarray, "row point"]:
    """Twice each point's rank less the mean rank, with mean ranks for ties: integers, so that constants are exactly
    0."""
    rows, points = values.shape
    ties, ranks = ties_of_rows(values), np.empty(values.shape)
    below = ties.start - points * np.repeat(np.arange(rows), ties.number)
    twice = np.repeat(2 * below + ties.count - points, ties.count).reshape(rows, points)
    np.put_along_axis(ranks, ties.order, twice, axis=1)
    return ranks


@frozen
class UncertaintyErrorCurve:
    """Points in the order of their stated spread, for plotting |error| over it.

    `order` are the points' numbers, ascending by σ, ties in their original order. `sigma` and `error` (absolute) are in
    that order, and `running_error` is the mean of `error` over `window` points around each; all in target units. A
    Gaussian error lies within `factor50`·σ with probability 50 %, and within `factor95`·σ with 95 %.
    """

    order: Integer[np.ndarray, "point"]
    sigma: Float[np.ndarray, "point"]
    error: Float[np.ndarray, "point"]
    running_error: Float[np.ndarray, "point"]
    window: int
    factor50: float
    factor95: float


def uncertainty_error_curve(
    sigma: Float[Array, "point"], errors: Float[Array, "point"], *, window: int | None = None
) -> UncertaintyErrorCurve:
    """Absolute errors in the order of stated spread, with their running mean, in target units; no direction.

    The window is centred, by default a tenth of the points, and shorter at both ends. An even window extends one point
    farther up. Raises ValueError for a window below 1.

    Source: Teye, Azizpour & Smith 2018, Fig. 2, whose window is not published.
    """
    spread, size = as_float64(sigma), np.abs(as_float64(errors))
    points = size.size
    width = max(1, round(points / 10)) if window is None else window
    if width < 1:
        raise ValueError(f"window is {width}; expected at least 1 example.")
    order = np.argsort(spread, kind="stable")
    ranked = size[order]
    number = np.arange(points)
    first, end = np.maximum(number - (width - 1) // 2, 0), np.minimum(number + width // 2 + 1, points)
    total = np.concatenate([[0.0], np.cumsum(ranked)])
    running = (total[end] - total[first]) / (end - first)
    factor50, factor95 = _half_widths([0.5, 0.95])
    return UncertaintyErrorCurve(order, spread[order], ranked, running, width, factor50, factor95)
