"""How what mini-batches cause dies away as they grow: as 1/b, but for the share of the population that they are."""

import math
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Shaped

from bnuq.metrics.arrays import Array, as_float64


@dataclass(frozen=True)
class Slope:
    """A slope of ln value on ln batch size, without a unit; the variance of a mean has −1.

    `value` is that of the mean over draw sets, `low` and `high` the ends of its 95 % interval, `of_sets` the slope of
    each draw set, (R,). `residual` is the largest |residual| of the mean from its line, in ln units: 0.05 is 5 % off
    somewhere. NaN is what cannot be told.
    """

    value: float
    low: float
    high: float
    of_sets: Float[np.ndarray, " set"]
    residual: float


def log_log_slope(
    batch_size: Shaped[Array, " size"], values: Float[Array, "set size"], *, population: int | float
) -> Slope:
    """Slope of ln values on ln batch size by least squares, without a unit; −1 is decay as 1/b, neither way is better.

    `values` is (R, B): the mean over one point set, of mutual information for one, in each of R draw sets and at each
    size b. What drawing without replacement from `population` points takes, `finite_population_factor`, is divided out
    first; `population` = ∞ leaves it. The slope is that of the mean over draw sets, not the mean of their slopes: the
    logarithm of a noisy value is too low, and the mean over R sets is less noisy. The interval is Student's over the
    sets' slopes, R − 1 degrees, about it; NaN for one set.

    A size where some set has no positive finite value, or where the mini-batch is the population, is left out; fewer
    than two sizes leave everything NaN. Sizes weigh the same.

    Source: least squares; that the decay is 1/b: Shekhovtsov & Flach 2018, Stochastic Normalizations as Bayesian
    Learning, §3.1; the interval: Student 1908, The Probable Error of a Mean.
    """
    size, y = as_float64(batch_size), as_float64(values)
    factor = finite_population_factor(size, population=population)
    kept = (factor > 0) & np.isfinite(y).all(0) & (y > 0).all(0)
    sets = len(y)
    if np.unique(size[kept]).size < 2 or not sets:
        return Slope(math.nan, math.nan, math.nan, np.full(sets, math.nan), math.nan)
    x, y = np.log(size[kept]), y[:, kept] / factor[kept]
    coefficients = least_squares_coefficients(x)
    mean = np.log(y.mean(0))
    value, of_sets = float(coefficients @ mean), np.log(y) @ coefficients
    line = mean.mean() + value * (x - x.mean())
    reach = _reach(of_sets)
    return Slope(value, value - reach, value + reach, of_sets, float(np.abs(mean - line).max()))


def _reach(values: Float[np.ndarray, " set"]) -> float:
    """From the mean to the ends of its 95 % interval."""
    sets = values.size
    if sets < 2:
        return math.nan
    import scipy.special  # late: `bnuq.metrics` is light

    return float(scipy.special.stdtrit(sets - 1, 0.975) * np.std(values, ddof=1)) / math.sqrt(sets)


def least_squares_coefficients(
    x: Float[np.ndarray, " size"], weights: Float[np.ndarray, " size"] | None = None
) -> Float[np.ndarray, " size"]:
    """The a of the (weighted) least-squares slope a·y of y on x, in 1/unit of x; x must not be all the same."""
    w = np.ones_like(x) if weights is None else weights / weights.max()
    apart = w * (x - np.average(x, weights=w))
    return apart / (apart @ (x - x[0]))


def finite_population_factor(
    batch_size: Shaped[Array, "*any"] | int | float, *, population: int | float
) -> Float[Array, "*any"]:
    """(N − b)/(N − 1), in [0, 1]: what drawing b of N without replacement makes of the variance of a mean.

    0 at b = N, also for a single one; 1 for `population` = ∞, or drawing with replacement. Beyond N it is 0.

    Source: Cochran 1977, Sampling Techniques, theorem 2.2.
    """
    b = numbers(batch_size)
    if population == math.inf:
        return np.ones_like(b)
    return np.maximum(population - b, 0) / max(population - 1, 1)


def numbers(values: Shaped[Array, "*any"] | int | float) -> Float[Array, "*any"]:
    """An array, or a single number, in float64."""
    return np.float64(values) if isinstance(values, (int, float)) else as_float64(values)
