"""How the effects of mini-batches decay with their size b: as 1/b, with the finite-population factor."""

import math

import numpy as np

from bnuq.frozen import frozen
from bnuq.metrics.arrays import Array, as_float64
from bnuq.shapes import Float, Shaped


@frozen
class Slope:
    """A slope of ln value on ln batch size, without a unit; the variance of a mean has −1.

    `value` is that of the mean over draw sets, `low` and `high` the ends of its 95 % interval, `of_sets` the slope of
    each draw set, (R,). `residual` is the largest |residual| of the mean from its line, in ln units: 0.05 is 5 % off
    somewhere. NaN if a value is undefined.
    """

    value: float
    low: float
    high: float
    of_sets: Float[np.ndarray, " set"]
    residual: float


def log_log_slope(
    batch_size: Shaped[Array, " size"], values: Float[Array, "set size"], *, population: int | float
) -> Slope:
    """Slope of ln values on ln batch size by least squares, without a unit; −1 is decay as 1/b; no direction.

    `values` is (R, B): the mean over one point set, for example of mutual information, in each of R draw sets and at
    each size b. The reduction by drawing without replacement from `population` points, `finite_population_factor`, is
    divided out first; not for `population` = ∞. The slope is that of the mean over draw sets, not the mean of their
    slopes: the logarithm of a noisy value is biased downwards, and the mean over R sets is less noisy. The interval is
    Student's, from the slopes of the sets with R − 1 degrees of freedom, around that slope; NaN for a single set.

    A size where some set has no positive finite value, or where the mini-batch is the whole population, is left out.
    With fewer than two sizes, all values are NaN. All sizes have equal weight.

    Source: least squares; that the decay is 1/b: Shekhovtsov & Flach 2018, Stochastic Normalizations as Bayesian
    Learning, §3.1; the interval: Student 1908, The Probable Error of a Mean.
    """
    size, y = as_float64(batch_size), as_float64(values)
    factor = finite_population_factor(size, population=population)
    usable = (factor > 0) & np.isfinite(y).all(0) & (y > 0).all(0)
    sets = len(y)
    if np.unique(size[usable]).size < 2 or not sets:
        return Slope(math.nan, math.nan, math.nan, np.full(sets, math.nan), math.nan)
    x, y = np.log(size[usable]), y[:, usable] / factor[usable]
    coefficients = least_squares_coefficients(x)
    mean = np.log(y.mean(0))
    value, set_slopes = float(coefficients @ mean), np.log(y) @ coefficients
    line = mean.mean() + value * (x - x.mean())
    half_width = _half_width(set_slopes)
    return Slope(value, value - half_width, value + half_width, set_slopes, float(np.abs(mean - line).max()))


def _half_width(values: Float[np.ndarray, " set"]) -> float:
    """Half the width of the 95 % interval of the mean."""
    sets = values.size
    if sets < 2:
        return math.nan
    import scipy.special  # late: `bnuq.metrics` is light

    return float(scipy.special.stdtrit(sets - 1, 0.975) * np.std(values, ddof=1)) / math.sqrt(sets)


def least_squares_coefficients(
    x: Float[np.ndarray, " size"], weights: Float[np.ndarray, " size"] | None = None
) -> Float[np.ndarray, " size"]:
    """The coefficients a of the (weighted) least-squares slope a·y of y on x, in 1/unit of x; x must not be
    constant."""
    w = np.ones_like(x) if weights is None else weights / weights.max()
    centred = w * (x - np.average(x, weights=w))
    return centred / (centred @ (x - x[0]))


def finite_population_factor(
    batch_size: Shaped[Array, "*any"] | int | float, *, population: int | float
) -> Float[Array, "*any"]:
    """(N − b)/(N − 1), in [0, 1]: the factor by which drawing b of N without replacement reduces the variance of a
    mean.

    0 for b ≥ N, also for N = 1; 1 for `population` = ∞, that is, for drawing with replacement.

    Source: Cochran 1977, Sampling Techniques, theorem 2.2.
    """
    b = numbers(batch_size)
    if population == math.inf:
        return np.ones_like(b)
    return np.maximum(population - b, 0) / max(population - 1, 1)


def numbers(values: Shaped[Array, "*any"] | int | float) -> Float[Array, "*any"]:
    """An array, or a single number, in float64."""
    return np.float64(values) if isinstance(values, (int, float)) else as_float64(values)
