"""Fits to a validation set: the constant σ of the baseline, and the observation precision τ of the samples.

Errors are e = y − f̄ of shape (n,) or (n, Q); outputs are pooled. Computed in float64 by numpy for all array types.
Weights of points need not sum to 1; weights 1/(K n_fold) give the mean over K folds of the folds' means.
"""

import math
from collections.abc import Callable
from typing import Literal

import numpy as np
from jaxtyping import Float

from bnuq.frozen import frozen
from bnuq.metrics.arrays import Array, as_float64
from bnuq.metrics.regression import crps_of_error

_BLOCK_ENTRIES = 2**16  # numbers in one block, so that intermediate results stay in the processor's cache
_FIRST_STEP = 0.05  # first step in ln σ of the search for a root around a guess
_TOLERANCE = 1e-13  # tolerance of ln σ


def constant_sigma(
    errors: Float[Array, "point *output"],
    *,
    weights: Float[Array, "point"] | None = None,
    metric: Literal["crps", "pll"] = "crps",
) -> float:
    """The constant σ of N(f̄, σ²) that scores best on these errors, in target units, ≥ 0; no direction.

    By CRPS, whose mean is convex in σ, it is the root of Σ w exp(−e²/2σ²) = 1/√2, and 0 if the weight of exact zeros
    is at least that; by PLL it is the root mean square. NaN if an error is not finite; ValueError without points.

    Source: CUBN and CUDO of Teye, Azizpour & Smith 2018, §4; the root is ∂CRPS/∂σ = 2φ(e/σ) − 1/√π set to 0 here.
    """
    return float(constant_sigmas(as_float64(errors)[None], weights=weights, metric=metric)[0])


def constant_sigmas(
    errors: Float[Array, "replicate point *output"],
    *,
    weights: Float[Array, "point"] | None = None,
    metric: Literal["crps", "pll"] = "crps",
) -> Float[np.ndarray, "replicate"]:
    """`constant_sigma` of each replicate, in target units, ≥ 0; no direction.

    Source: as `constant_sigma`.
    """
    sigmas = []
    for row in errors:
        error, weight = _pooled(row, weights)
        sigmas.append(_rms(error, weight) if metric == "pll" else _crps_sigma(np.abs(error), weight))
    return np.array(sigmas, dtype=np.float64)


def _pooled(
    errors: Float[Array, "point *output"], weights: Float[Array, "point"] | None
) -> tuple[Float[np.ndarray, "entry"], Float[np.ndarray, "entry"]]:
    """The flattened errors of all outputs, and their weights, which sum to 1; points of weight 0 are left out."""
    error = as_float64(errors)
    if error.size == 0:
        raise ValueError("errors holds no points; expected at least one.")
    weight = _pooled_weights(weights, error.shape)
    used = weight > 0
    return error.ravel()[used], weight[used]


def _pooled_weights(weights: Float[Array, "point"] | None, shape: tuple[int, ...]) -> Float[np.ndarray, "entry"]:
    point_weights = np.ones(shape[0]) if weights is None else as_float64(weights)
    if point_weights.shape != shape[:1] or not (point_weights >= 0).all() or not 0 < point_weights.sum() < math.inf:
        raise ValueError(f"weights do not fit {shape[0]} points; expected one number ≥ 0 for each, and some above 0.")
    entries = np.repeat(point_weights, math.prod(shape[1:]))
    return entries / entries.sum()


def _rms(error: Float[np.ndarray, "entry"], weight: Float[np.ndarray, "entry"]) -> float:
    top = float(np.abs(error).max())
    if top == 0 or not math.isfinite(top):
        return 0.0 if top == 0 else math.nan
    return top * math.sqrt(float(weight @ (error / top) ** 2))


def _crps_sigma(size: Float[np.ndarray, "entry"], weight: Float[np.ndarray, "entry"]) -> float:
    scale = _rms(size, weight)
    if scale == 0 or math.isnan(scale):
        return scale
    size = size / scale
    nonzero = size > 0
    exact = float(weight[~nonzero].sum())
    target = (math.sqrt(0.5) - exact) / (1 - exact)  # the mean contribution of the other errors at the root
    if target <= 0:
        return 0.0
    ends = np.array([size[nonzero].min(), size.max()])
    low, high = np.log(ends) - np.log(-2 * np.log([target, math.sqrt(0.5)])) / 2

    def slope(log_sigma: float) -> float:
        with np.errstate(over="ignore"):
            return float(weight @ np.exp(-((size * math.exp(-log_sigma)) ** 2) / 2)) - math.sqrt(0.5)

    return scale * math.exp(_root(slope, start=0.0, low=float(low), high=float(high)))


def _root(slope: Callable[[float], float], *, start: float, low: float, high: float) -> float:
    """The first root of `slope`, from negative to positive, downhill from `start`; the end of the range if none."""
    at = min(max(start, low), high)
    value, step = slope(at), _FIRST_STEP
    if value == 0:
        return at
    rising = value > 0  # the root is below
    while True:
        end = low if rising else high
        if at == end:
            return end
        beyond = max(at - step, low) if rising else min(at + step, high)
        value_beyond = slope(beyond)
        if value_beyond == 0:
            return beyond
        if (value_beyond > 0) != rising:
            break
        at, value, step = beyond, value_beyond, 2 * step
    return (
        _bracketed(slope, (beyond, value_beyond), (at, value))
        if rising
        else _bracketed(slope, (at, value), (beyond, value_beyond))
    )


def _bracketed(slope: Callable[[float], float], low: tuple[float, float], high: tuple[float, float]) -> float:
    """The root between a negative and a positive value: false position (Illinois), with bisection if that is
    slow."""
    (a, value_a), (b, value_b) = low, high
    last_side = 0
    for turn in range(200):
        width = b - a
        if width <= _TOLERANCE:
            break
        middle = (a * value_b - b * value_a) / (value_b - value_a)
        if turn % 4 == 3 or not a < middle < b:
            middle = (a + b) / 2
        # Kept away from both ends, so that the bracket shrinks from both sides.
        middle = min(max(middle, a + _TOLERANCE / 4), b - _TOLERANCE / 4)
        value = slope(middle)
        if value == 0:
            return middle
        if value < 0:
            a, value_a = middle, value
            value_b, last_side = (value_b / 2, -1) if last_side == -1 else (value_b, -1)
        else:
            b, value_b = middle, value
            value_a, last_side = (value_a / 2, 1) if last_side == 1 else (value_a, 1)
    return (a + b) / 2


@frozen
class TauFit:
    """The best observation precision τ, in 1/(target unit)², with its score on the points that it was fitted to.

    `at_end` is "" inside the searched range, "low" or "high" where the best τ was the lower or the upper end of the
    range, and "infinite" where zero noise was best.
    """

    tau: float
    score: float
    at_end: Literal["", "low", "high", "infinite"]


def optimal_tau(
    errors: Float[Array, "point *output"],
    variance: Float[Array, "point *output"],
    *,
    weights: Float[Array, "point"] | None = None,
    metric: Literal["crps", "pll"] = "crps",
    tau_range: tuple[float, float] | None = None,
) -> TauFit:
    """The τ for which N(f̄, v + 1/τ) has the smallest mean CRPS, in 1/(target unit)²; no direction.

    `variance` is v, over samples, in (target unit)²; the samples are the same for every τ. The mean is not convex in τ.
    It is therefore first computed on a grid of 40 values per decade in s = τ^(−1/2), over [1e-4, 1e2] times the root
    mean square error and at s = 0, or over `tau_range` = (low, high) only; then the root of its slope around the best
    value is found. Errors that are all 0 have τ = ∞. The score is the CRPS in target units, lower is better; with
    `metric` "pll" the mean PLL of that Gaussian in nats, higher is better (`optimal_tau_pll` uses the mixture). Raises
    ValueError for a range that is not positive, finite and ordered, and without points.

    Source: Teye, Azizpour & Smith 2018, §4 (the optimal τ); they search numerically with new samples for every τ.
    """
    _check(tau_range)
    error, spread, weight, scale = _in_units_of_error(errors, variance, weights)

    def score(noises: Float[np.ndarray, "noise"]) -> Float[np.ndarray, "noise"]:
        step, scores = max(1, _BLOCK_ENTRIES // error.size), []
        for start in range(0, noises.size, step):
            variances = spread + noises[start : start + step, None] ** 2
            scores.append(_losses(error, variances, metric) @ weight)
        return np.concatenate(scores)

    def in_target_units(loss: float) -> float:
        outputs = math.prod(np.shape(errors)[1:])
        return scale * loss if metric == "crps" else -outputs * (loss + math.log(scale) + math.log(2 * math.pi) / 2)

    score_without_noise = float(score(np.zeros(1))[0])
    if not math.isfinite(scale):
        return TauFit(math.nan, math.nan, "")
    if not error.any() and tau_range is None:
        return TauFit(math.inf, in_target_units(score_without_noise), "infinite")
    slope = _slope(error, spread, weight, metric)
    fit = _best_noise(score, slope, _log_noises(scale, tau_range, a_decade=40))
    if tau_range is None:
        if fit.at_end == "high":  # continue towards s = 0
            log_s = _root(slope, start=fit.log_s, low=fit.log_s - 100, high=fit.log_s)
            fit = _Noise(log_s, float(score(np.exp([log_s]))[0]), "")
        if score_without_noise <= fit.score:
            return TauFit(math.inf, in_target_units(score_without_noise), "infinite")
    return _in_target_units(fit, scale, tau_range, score=in_target_units(fit.score))


def _losses(
    error: Float[np.ndarray, "entry"], variances: Float[np.ndarray, "noise entry"], metric: Literal["crps", "pll"]
) -> Float[np.ndarray, "noise entry"]:
    """CRPS of N(0, variance) at each error, or −PLL up to a constant."""
    if metric == "crps":
        return crps_of_error(error, np.sqrt(variances))
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        losses = (np.log(variances) + error**2 / variances) / 2
    return np.where(variances > 0, losses, np.where(error == 0, -math.inf, math.inf))


def _check(tau_range: tuple[float, float] | None) -> None:
    if tau_range is not None and not 0 < tau_range[0] <= tau_range[1] < math.inf:
        raise ValueError(f"tau_range is {tau_range}; expected (low, high), both positive and finite, low first.")


def _in_units_of_error(
    errors: Float[Array, "point *output"],
    variance: Float[Array, "point *output"],
    weights: Float[Array, "point"] | None,
) -> tuple[Float[np.ndarray, "entry"], Float[np.ndarray, "entry"], Float[np.ndarray, "entry"], float]:
    """Flattened errors, variances and weights in units of the root mean square error, and that unit; 1 where all errors
    are 0."""
    error, weight = _pooled(errors, weights)
    spread, _ = _pooled(variance, weights)
    scale = _rms(error, weight)
    if not math.isnan(scale):  # errors far below the precision of the variance count as 0
        scale = max(scale, 1e-100 * math.sqrt(float(spread.max()))) or 1.0
    return error / scale, spread / scale / scale, weight, scale


def _slope(
    error: Float[np.ndarray, "entry"],
    spread: Float[np.ndarray, "entry"],
    weight: Float[np.ndarray, "entry"],
    metric: Literal["crps", "pll"],
) -> Callable[[float], float]:
    """The slope of the mean CRPS or −PLL over ln s, up to a positive factor."""

    def slope(log_s: float) -> float:
        s = math.exp(log_s)
        variance = spread + s * s
        if metric == "pll":
            return float(weight @ ((1 - error**2 / variance) * (s * s / variance)))
        with np.errstate(over="ignore"):
            density = np.exp(-(error**2) / (2 * variance))
        return float(weight @ ((math.sqrt(2) * density - 1) * (s / np.sqrt(variance))))

    return slope


def _log_noises(scale: float, tau_range: tuple[float, float] | None, *, a_decade: int) -> Float[np.ndarray, "noise"]:
    """The grid of ln s, ascending, in units of `scale`."""
    if tau_range is None:
        low, high = math.log(1e-4), math.log(1e2)
    else:
        low, high = (-math.log(tau) / 2 - math.log(scale) for tau in reversed(tau_range))
    return np.linspace(low, high, 1 + math.ceil(a_decade * (high - low) / math.log(10)))


@frozen
class _Noise:
    log_s: float
    score: float
    at_end: Literal["", "low", "high"]


def _best_noise(
    score: Callable[[np.ndarray], np.ndarray], slope: Callable[[float], float], grid: Float[np.ndarray, "noise"]
) -> _Noise:
    """The smallest score over the grid of ln s, refined between grid values by the root of its slope."""
    scores = score(np.exp(grid))
    best, last = int(np.argmin(scores)), len(grid) - 1
    at, grid_score = float(grid[best]), float(scores[best])
    rising = slope(at) > 0
    if best == (0 if rising else last):
        return _Noise(at, grid_score, "high" if rising else "low")
    low, high = (grid[best - 1], at) if rising else (at, grid[best + 1])
    refined = _root(slope, start=at, low=float(low), high=float(high))
    refined_score = float(score(np.exp([refined]))[0])
    return _Noise(refined, refined_score, "") if refined_score <= grid_score else _Noise(at, grid_score, "")


def _in_target_units(fit: _Noise, scale: float, tau_range: tuple[float, float] | None, *, score: float) -> TauFit:
    tau = _tau(fit.log_s + math.log(scale))
    if tau_range is not None:
        low, high = tau_range
        tau = {"low": low, "high": high, "": min(max(tau, low), high)}[fit.at_end]
    return TauFit(tau, score, "infinite" if tau == math.inf else fit.at_end)


def _tau(log_s: float) -> float:
    with np.errstate(over="ignore"):  # errors below 1e-154 have a τ beyond the range of floats
        return float(np.exp(-2 * log_s))


def optimal_tau_pll(
    f: Float[Array, "sample point *output"],
    y: Float[Array, "point *output"],
    *,
    weights: Float[Array, "point"] | None = None,
    tau_range: tuple[float, float] | None = None,
) -> TauFit:
    """The τ for which the mixture of N(f_t, I/τ) has the largest mean PLL, in 1/(target unit)²; no direction.

    The search is that of `optimal_tau`, with 10 values per decade over [1e-4, 1e2] times the root mean square of
    y − f_t, without s = 0, where the mixture has no density. Samples without any error have τ = ∞ and PLL +∞. T × n
    numbers are in memory. The score is the PLL in nats, higher is better. Errors as in `optimal_tau`.

    Source: Gal & Ghahramani 2016, Dropout as a Bayesian Approximation (τ by validation log-likelihood).
    """
    truth = as_float64(y)
    samples, points, outputs = f.shape[0], truth.shape[0], math.prod(truth.shape[1:])
    distance = np.empty((samples, points))
    for t in range(samples):
        distance[t] = ((truth - as_float64(f[t])) ** 2).reshape(points, outputs).sum(axis=-1)
    return tau_of_distances(distance, outputs=outputs, weights=weights, tau_range=tau_range)


def tau_of_distances(
    squared: Float[Array, "sample point"],
    *,
    outputs: int,
    weights: Float[Array, "point"] | None = None,
    tau_range: tuple[float, float] | None = None,
) -> TauFit:
    """`optimal_tau_pll` from the distances ‖y − f_t‖² over Q outputs, (T, n) in (target unit)²; no direction.

    Source: as there.
    """
    _check(tau_range)
    distance = as_float64(squared).T.copy()
    points, samples = distance.shape
    if points == 0:
        raise ValueError("y holds no points; expected at least one.")
    weight = _pooled_weights(weights, (points,))
    scale = math.sqrt(float(weight @ distance.mean(axis=-1)) / outputs)
    if not math.isfinite(scale):
        return TauFit(math.nan, math.nan, "")
    if scale == 0:
        if tau_range is None:
            return TauFit(math.inf, math.inf, "infinite")
        scale = 1.0
    distance /= scale * scale
    step = max(1, _BLOCK_ENTRIES // samples)
    blocks = [slice(start, start + step) for start in range(0, points, step)]

    def loss(noises: Float[np.ndarray, "noise"]) -> Float[np.ndarray, "noise"]:  # −PLL, up to a constant
        total = outputs * np.log(noises)
        for block in blocks:
            near = distance[block].min(axis=-1)
            farther = distance[block] - near[:, None]
            for k, tau in enumerate(noises**-2):
                density = np.exp(-tau / 2 * farther).sum(axis=-1)
                total[k] -= weight[block] @ (np.log(density) - tau / 2 * near)
        return total

    def slope(log_s: float) -> float:
        tau, total = math.exp(-2 * log_s), 0.0
        for block in blocks:
            near = distance[block].min(axis=-1)
            share = np.exp(-tau / 2 * (distance[block] - near[:, None]))
            total += float(weight[block] @ ((share * distance[block]).sum(axis=-1) / share.sum(axis=-1)))
        return outputs - tau * total

    fit = _best_noise(loss, slope, _log_noises(scale, tau_range, a_decade=10))
    constant = math.log(samples) + outputs * (math.log(2 * math.pi) / 2 + math.log(scale))
    return _in_target_units(fit, scale, tau_range, score=-fit.score - constant)


def refined_tau(
    errors: Float[Array, "replicate point *output"],
    variance: Float[Array, "replicate point *output"],
    tau: float,
    *,
    weights: Float[Array, "point"] | None = None,
    metric: Literal["crps", "pll"] = "crps",
    tau_range: tuple[float, float] | None = None,
) -> Float[np.ndarray, "replicate"]:
    """The τ of each replicate that is best by `metric` near a given τ, in 1/(target unit)²; no direction.

    The nearest minimum of the mean CRPS downhill from `tau`, within a factor of 4 in s = τ^(−1/2) and within
    `tau_range`; the end of the range if there is none. An infinite τ stays infinite.

    Source: as `optimal_tau`.
    """
    _check(tau_range)
    if not math.isfinite(tau):
        return np.full(len(errors), tau, dtype=np.float64)
    start, reach, taus = -math.log(tau) / 2, math.log(4), []
    ends = (start - reach, start + reach)
    if tau_range is not None:
        low, high = (-math.log(end) / 2 for end in reversed(tau_range))
        ends = (max(ends[0], low), min(ends[1], high))
    for error_row, variance_row in zip(errors, variance, strict=True):
        error, spread, weight, scale = _in_units_of_error(error_row, variance_row, weights)
        if not math.isfinite(scale):
            taus.append(math.nan)
            continue
        unit = math.log(scale)
        slope = _slope(error, spread, weight, metric)
        log_s = _root(slope, start=start - unit, low=ends[0] - unit, high=ends[1] - unit)
        taus.append(_tau(log_s + unit))
    return np.array(taus, dtype=np.float64)
