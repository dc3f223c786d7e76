"""The noise of a channel's batch statistics: size, effective number of values, distribution, and dependence on b.

A mini-batch of n values has mean M and biased variance S²; the population has μ and σ². The normalised value is
(x − M)/S = ((x − μ)/σ + V)·U with V = (μ − M)/σ and U = σ/S. For independent Gaussian values V ∼ N(0, 1/n),
n·S²/σ² ∼ χ² with n − 1 degrees of freedom, and Var(V·U) = 1/(n − 3).

Source: Shekhovtsov & Flach 2018, Stochastic Normalizations as Bayesian Learning, §3.1 (whose Figure 4 writes
(n − 1)·S²/σ² for an S² that divides by n).
"""

import math

import numpy as np

from bnuq.estimates import Estimate
from bnuq.frozen import frozen
from bnuq.metrics.arrays import Array, as_float64
from bnuq.metrics.decay import least_squares_coefficients
from bnuq.shapes import Float, Shaped


@frozen
class StatisticsNoise:
    """U = σ/S and V = (μ − M)/σ of R draws, and S²/σ², each (draw, channel); without a unit."""

    u: Float[np.ndarray, "draw channel"]
    v: Float[np.ndarray, "draw channel"]
    spread: Float[np.ndarray, "draw channel"]

    @property
    def sigma_u(self) -> float:
        """sd of U over draws (ddof 1), mean over channels; ≥ 0, 1/√(2n) for many independent Gaussian values."""
        return float(np.std(self.u, axis=0, ddof=1).mean())

    @property
    def sigma_v(self) -> float:
        """sd of V over draws (ddof 1), mean over channels; ≥ 0, 1/√n for independent values."""
        return float(np.std(self.v, axis=0, ddof=1).mean())

    @property
    def output_variance(self) -> float:
        """Var over draws (ddof 1) of the normalised value at x = μ, V·U, mean over channels: 1/(n − 3) in the model."""
        return float(np.var(self.v * self.u, axis=0, ddof=1).mean())


def statistics_noise(
    mean: Float[Array, "draw channel"],
    var: Float[Array, "draw channel"],
    *,
    population_mean: Float[Array, " channel"],
    population_var: Float[Array, " channel"],
) -> StatisticsNoise:
    """The noise of R draws of mean and biased variance about the population's, which must be estimated independently.

    Expects variances above 0. Source: Shekhovtsov & Flach 2018, §3.1.
    """
    m, s2 = as_float64(mean), as_float64(var)
    mu, sigma2 = as_float64(population_mean), as_float64(population_var)
    spread = s2 / sigma2
    return StatisticsNoise(u=1 / np.sqrt(spread), v=(mu - m) / np.sqrt(sigma2), spread=spread)


def chi2_p_values(
    statistic: Float[Array, "draw channel"], *, freedom: float | int | Float[Array, " channel"]
) -> Float[np.ndarray, " channel"]:
    """P-value of each channel's draws against χ² with `freedom` degrees, in [0, 1]: two-sided, by Kolmogorov–Smirnov.

    Where `freedom` or the unit was fitted to the same draws, the p-values are too large, so rejections remain valid.
    Source: Kolmogorov 1933; Simard & L'Ecuyer 2011 for the distribution (by scipy).
    """
    import scipy.special  # late: `bnuq.metrics` is light
    import scipy.stats

    x = np.sort(as_float64(statistic), axis=0)
    draws = len(x)
    expected = scipy.special.chdtr(np.broadcast_to(as_float64(np.asarray(freedom)), x.shape), x)
    steps = np.arange(1, draws + 1)[:, None] / draws
    distance = np.maximum(steps - expected, expected - steps + 1 / draws).max(axis=0)
    return np.clip(scipy.stats.kstwo.sf(distance, draws), 0, 1)


def scaled_to_freedom(
    spread: Float[Array, "draw channel"], *, freedom: float | int | Float[Array, " channel"]
) -> Float[np.ndarray, "draw channel"]:
    """S² scaled so that its mean over the draws is `freedom`, the mean of χ²: only the shape of the distribution
    remains.

    In units of σ² all draws would share the error of σ². Estimated from P points, its relative error is about √(2/P),
    which is not negligible compared with the standard error of R draws of n values, √(2/(nR)), unless n·R is small
    compared with P. Source: maximum likelihood of the scale of a gamma distribution of known shape.
    """
    x = as_float64(spread)
    return as_float64(np.asarray(freedom)) * x / x.mean(axis=0)


def fitted_freedom(spread: Float[Array, "draw channel"]) -> Float[np.ndarray, " channel"]:
    """ν of the χ² that S²/σ² is proportional to, by its moments: 2·mean²/variance (ddof 1); > 0, ∞ without variance.

    Source: Satterthwaite 1946, An Approximate Distribution of Estimates of Variance Components.
    """
    x = as_float64(spread)
    with np.errstate(divide="ignore"):
        return 2 * x.mean(axis=0) ** 2 / np.var(x, axis=0, ddof=1)


def rejected_share(p_values: Float[Array, " test"], *, rate: float = 0.05) -> float:
    """Share of the tests, in [0, 1], that are rejected at the false discovery rate `rate`.

    NaN without tests. Source: Benjamini & Hochberg 1995, Controlling the False Discovery Rate.
    """
    p = as_float64(p_values)
    if not p.size:
        return math.nan
    import scipy.stats

    return float(np.mean(scipy.stats.false_discovery_control(p) <= rate))


def straight_line(x: Shaped[Array, " point"], y: Float[Array, " point"]) -> Estimate | None:
    """The slope of y on x by least squares, in the unit of y over that of x, with its error from the residuals.

    `mc_se` is √(Σ r²/(m − 2)/Σ (x − x̄)²), `low` and `high` the 95 % interval by Student's t with m − 2 degrees of
    freedom. None for fewer than three points, for constant x, or where a number is not finite.

    Source: least squares under independent errors of one variance.
    """
    x, y = as_float64(x), as_float64(y)
    if len(x) < 3 or np.unique(x).size < 2 or not (np.isfinite(x).all() and np.isfinite(y).all()):
        return None
    import scipy.special

    slope = float(least_squares_coefficients(x) @ y)
    centred = x - x.mean()
    residuals = y - y.mean() - slope * centred
    freedom = len(x) - 2
    error = math.sqrt(float(residuals @ residuals) / freedom / float(centred @ centred))
    half_width = float(scipy.special.stdtrit(freedom, 0.975)) * error
    return Estimate(slope, mc_se=error, low=slope - half_width, high=slope + half_width)


def log_slope(size: Shaped[Array, " point"], values: Float[Array, " point"]) -> Estimate | None:
    """The slope of ln values on ln size, see `straight_line`; None also where a value is not positive."""
    x, y = as_float64(size), as_float64(values)
    return straight_line(np.log(x), np.log(y)) if (x > 0).all() and (y > 0).all() else None


def effective_samples_of_average(momentum: float, *, batch_size: int) -> float:
    """The effective number of samples of an exponential average of batch statistics: M·(2 − m)/m, with torch's
    momentum m > 0.

    Source: the variance of such an average, (m/(2 − m)) times that of one batch.
    """
    return batch_size * (2 - momentum) / momentum


def share_left_by_averaging(
    *, momentum: float, train_batch_size: int, points: int, population: int, train_size: int
) -> float:
    """The share of a single point's variance that remains in the distance of a running average from the population of a
    reference.

    (1/M)·m/(2 − m) from the average, (1/P)(1 − P/N) from a population estimated on P of the reference's N points, and
    (1/N)(1 − N/N_train) from a reference that is a part of the training set. > 0; NaN if `momentum` is 0, because
    the number of batches of a cumulative average is unknown.

    Source: Wu & Johnson 2021, Rethinking "Batch" in BatchNorm (the average); Cochran 1977, theorem 2.2 (the parts).
    """
    if momentum <= 0:
        return math.nan
    average = momentum / (2 - momentum) / train_batch_size
    sampled, all_points = min(points, population), max(train_size, population)
    return average + (1 - sampled / population) / sampled + (1 - population / all_points) / population


def explained_log_variance(values: float | int) -> float:
    """Var of ln S² for the S² of so many independent Gaussian values: ψ′((values − 1)/2); > 0.

    0 for ∞, NaN for at most one value. Source: Bartlett & Kendall 1946.
    """
    if not values > 1:
        return math.nan
    if values == math.inf:
        return 0.0
    import scipy.special

    return float(scipy.special.polygamma(1, (values - 1) / 2))


def unbiased_scale(count: int) -> float:
    """√(n/(n − 1)): the scale factor between normalising by biased and by unbiased variance; ≥ 1, 1.01 at n = 50.

    Source: Ioffe & Szegedy 2015, Algorithm 2.
    """
    return math.sqrt(count / (count - 1))
