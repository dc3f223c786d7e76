"""What a validation set decides: the constant σ of the baseline, and the observation precision τ of the samples.

Errors are e = y − f̄ of shape (n,) or (n, Q); outputs are pooled. Fitted in float64 by numpy, wherever they come from.
Weights of points need not sum to 1; 1/(K n_fold) makes the mean over K folds of fold means.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Float

from bnuq.metrics.arrays import Array, as_float64
from bnuq.metrics.regression import crps_of_error

_CELLS = 2**16  # numbers in one block: what is computed from them stays in the processor's cache
_FIRST_STEP = 0.05  # of ln σ, when a root is looked for around a guess
_TOLERANCE = 1e-13  # of ln σ


def constant_sigma(
    errors: Float[Array, "point *output"],
    *,
    weights: Float[Array, "point"] | None = None,
    metric: Literal["crps", "pll"] = "crps",
) -> float:
    """The one σ of N(f̄, σ²) that scores best on these errors, in target units, ≥ 0; neither way is better.

    By CRPS, whose mean is convex in σ, it is the root of Σ w exp(−e²/2σ²) = 1/√2, and 0 where the weight of exact zeros
    is at least that; by PLL it is the root mean square. NaN where an error is not finite; none at all is a ValueError.

    Source: CUBN and CUDO of Teye, Azizpour & Smith 2018, §4; the root is ∂CRPS/∂σ = 2φ(e/σ) − 1/√π set to 0 here.
    """
    return float(constant_sigmas(as_float64(errors)[None], weights=weights, metric=metric)[0])


def constant_sigmas(
    errors: Float[Array, "replicate point *output"],
    *,
    weights: Float[Array, "point"] | None = None,
    metric: Literal["crps", "pll"] = "crps",
) -> Float[np.ndarray, "replicate"]:
    """`constant_sigma` of each replicate, in target units, ≥ 0; neither way is better.

    Source: as `constant_sigma`.
    """
    found = []
    for row in errors:
        error, weight = _pooled(row, weights)
        found.append(_rms(error, weight) if metric == "pll" else _crps_sigma(np.abs(error), weight))
    return np.array(found, dtype=np.float64)


def _pooled(
    errors: Float[Array, "point *output"], weights: Float[Array, "point"] | None
) -> tuple[Float[np.ndarray, "entry"], Float[np.ndarray, "entry"]]:
    """Errors of all outputs in a row, and their weights, which sum to 1; points of weight 0 are left out."""
    error = as_float64(errors)
    if error.size == 0:
        raise ValueError("errors holds no points; expected at least one.")
    weight = _pooled_weights(weights, error.shape)
    kept = weight > 0
    return error.ravel()[kept], weight[kept]


def _pooled_weights(weights: Float[Array, "point"] | None, shape: tuple[int, ...]) -> Float[np.ndarray, "entry"]:
    of_points = np.ones(shape[0]) if weights is None else as_float64(weights)
    if of_points.shape != shape[:1] or not (of_points >= 0).all() or not 0 < of_points.sum() < math.inf:
        raise ValueError(f"weights do not weigh {shape[0]} points; expected one number ≥ 0 for each, and some above 0.")
    entries = np.repeat(of_points, math.prod(shape[1:]))
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
    some = size > 0
    exact = float(weight[~some].sum())
    room = (math.sqrt(0.5) - exact) / (1 - exact)  # what the others may add at the root, each in the mean
    if room <= 0:
        return 0.0
    ends = np.array([size[some].min(), size.max()])
    low, high = np.log(ends) - np.log(-2 * np.log([room, math.sqrt(0.5)])) / 2

    def slope(log_sigma: float) -> float:
        with np.errstate(over="ignore"):
            return float(weight @ np.exp(-((size * math.exp(-log_sigma)) ** 2) / 2)) - math.sqrt(0.5)

    return scale * math.exp(_root(slope, start=0.0, low=float(low), high=float(high)))


def _root(slope: Callable[[float], float], *, start: float, low: float, high: float) -> float:
    """Where `slope` first turns from negative to positive, going from `start` the way it points; or that end."""
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
        there = slope(beyond)
        if there == 0:
            return beyond
        if (there > 0) != rising:
            break
        at, value, step = beyond, there, 2 * step
    return (
        _bracketed(slope, (beyond, there), (at, value)) if rising else _bracketed(slope, (at, value), (beyond, there))
    )


def _bracketed(slope: Callable[[float], float], low: tuple[float, float], high: tuple[float, float]) -> float:
    """The root between a negative and a positive value: false position (Illinois), halved where that is slow."""
    (a, at_a), (b, at_b) = low, high
    kept = 0
    for turn in range(200):
        width = b - a
        if width <= _TOLERANCE:
            break
        middle = (a * at_b - b * at_a) / (at_b - at_a)
        if turn % 4 == 3 or not a < middle < b:
            middle = (a + b) / 2
        # A step off the end that it would repeat, so that the bracket closes from both sides.
        middle = min(max(middle, a + _TOLERANCE / 4), b - _TOLERANCE / 4)
        value = slope(middle)
        if value == 0:
            return middle
        if value < 0:
            a, at_a = middle, value
            at_b, kept = (at_b / 2, -1) if kept == -1 else (at_b, -1)
        else:
            b, at_b = middle, value
            at_a, kept = (at_a / 2, 1) if kept == 1 else (at_a, 1)
    return (a + b) / 2


@dataclass(frozen=True)
class TauFit:
    """The best observation precision τ, in 1/(target unit)², with its score on the points that chose it.

    `at_end` is "" inside the range that was searched, "low" or "high" where the best τ was the lowest or the highest of
    it, and "infinite" where no noise at all was best.
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
    """The τ for which N(f̄, v + 1/τ) has the least mean CRPS, in 1/(target unit)²; neither way is better.

    `variance` is v, over samples, in (target unit)²; its samples are the same for every τ. The mean is not convex in τ:
    a grid of 40 a decade in s = τ^(−1/2) comes first, over [1e-4, 1e2] times the root mean square error, with s = 0
    beside it, or over `tau_range` = (low, high) and nothing else; then the root of its slope around the best. Errors
    that are all 0 have τ = ∞. The score is the CRPS in target units, less is better; with `metric` "pll" the mean PLL
    of that Gaussian in nats, more is better (`optimal_tau_pll` has that of the mixture). A range that is not positive,
    finite and ordered, or no points, is a ValueError.

    Source: Teye, Azizpour & Smith 2018, §4 (the optimal τ); they search numerically with new samples for every τ.
    """
    _check(tau_range)
    error, spread, weight, scale = _in_units_of_error(errors, variance, weights)

    def score(noises: Float[np.ndarray, "noise"]) -> Float[np.ndarray, "noise"]:
        step, found = max(1, _CELLS // error.size), []
        for start in range(0, noises.size, step):
            variances = spread + noises[start : start + step, None] ** 2
            found.append(_losses(error, variances, metric) @ weight)
        return np.concatenate(found)

    def told(loss: float) -> float:
        outputs = math.prod(np.shape(errors)[1:])
        return scale * loss if metric == "crps" else -outputs * (loss + math.log(scale) + math.log(2 * math.pi) / 2)

    without = float(score(np.zeros(1))[0])
    if not math.isfinite(scale):
        return TauFit(math.nan, math.nan, "")
    if not error.any() and tau_range is None:
        return TauFit(math.inf, told(without), "infinite")
    slope = _slope(error, spread, weight, metric)
    fit = _best_noise(score, slope, _log_noises(scale, tau_range, a_decade=40))
    if tau_range is None:
        if fit.at_end == "high":  # on towards s = 0, which is the end that counts
            log_s = _root(slope, start=fit.log_s, low=fit.log_s - 100, high=fit.log_s)
            fit = _Noise(log_s, float(score(np.exp([log_s]))[0]), "")
        if without <= fit.score:
            return TauFit(math.inf, told(without), "infinite")
    return _in_target_units(fit, scale, tau_range, score=told(fit.score))


def _losses(
    error: Float[np.ndarray, "entry"], variances: Float[np.ndarray, "noise entry"], metric: Literal["crps", "pll"]
) -> Float[np.ndarray, "noise entry"]:
    """CRPS of N(0, variance) at each error, or −PLL but for a constant."""
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
    """Errors, variances and weights in a row, in units of the root mean square error, and that; 1 where all are 0."""
    error, weight = _pooled(errors, weights)
    spread, _ = _pooled(variance, weights)
    scale = _rms(error, weight)
    if not math.isnan(scale):  # beside a variance, errors below every digit are as good as none
        scale = max(scale, 1e-100 * math.sqrt(float(spread.max()))) or 1.0
    return error / scale, spread / scale / scale, weight, scale


def _slope(
    error: Float[np.ndarray, "entry"],
    spread: Float[np.ndarray, "entry"],
    weight: Float[np.ndarray, "entry"],
    metric: Literal["crps", "pll"],
) -> Callable[[float], float]:
    """Of the mean CRPS or −PLL over ln s, but for a factor that is positive."""

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


@dataclass(frozen=True)
class _Noise:
    log_s: float
    score: float
    at_end: Literal["", "low", "high"]


def _best_noise(
    score: Callable[[np.ndarray], np.ndarray], slope: Callable[[float], float], grid: Float[np.ndarray, "noise"]
) -> _Noise:
    """The least score over the grid of ln s and, by the root of its slope, between it."""
    scores = score(np.exp(grid))
    best, last = int(np.argmin(scores)), len(grid) - 1
    at, there = float(grid[best]), float(scores[best])
    rising = slope(at) > 0
    if best == (0 if rising else last):
        return _Noise(at, there, "high" if rising else "low")
    low, high = (grid[best - 1], at) if rising else (at, grid[best + 1])
    refined = _root(slope, start=at, low=float(low), high=float(high))
    found = float(score(np.exp([refined]))[0])
    return _Noise(refined, found, "") if found <= there else _Noise(at, there, "")


def _in_target_units(fit: _Noise, scale: float, tau_range: tuple[float, float] | None, *, score: float) -> TauFit:
    tau = _tau(fit.log_s + math.log(scale))
    if tau_range is not None:
        low, high = tau_range
        tau = {"low": low, "high": high, "": min(max(tau, low), high)}[fit.at_end]
    return TauFit(tau, score, "infinite" if tau == math.inf else fit.at_end)


def _tau(log_s: float) -> float:
    with np.errstate(over="ignore"):  # errors below 1e-154 have a τ that no float holds
        return float(np.exp(-2 * log_s))


def optimal_tau_pll(
    f: Float[Array, "sample point *output"],
    y: Float[Array, "point *output"],
    *,
    weights: Float[Array, "point"] | None = None,
    tau_range: tuple[float, float] | None = None,
) -> TauFit:
    """The τ for which the mixture of N(f_t, I/τ) has the largest mean PLL, in 1/(target unit)²; neither way is better.

    The search is that of `optimal_tau`, by 10 a decade over [1e-4, 1e2] times the root mean square of y − f_t, without
    s = 0, where the mixture has no density; samples that all hit every point have τ = ∞ and PLL +∞. T × n numbers are
    held. The score is the PLL in nats, more is better. Errors as there.

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
    """`optimal_tau_pll` of samples whose ‖y − f_t‖² over Q outputs are known, (T, n) in (target unit)²; no direction.

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
    step = max(1, _CELLS // samples)
    blocks = [slice(start, start + step) for start in range(0, points, step)]

    def loss(noises: Float[np.ndarray, "noise"]) -> Float[np.ndarray, "noise"]:  # −PLL, but for what no τ changes
        total = outputs * np.log(noises)
        for block in blocks:
            near = distance[block].min(axis=-1)
            farther = distance[block] - near[:, None]
            for k, tau in enumerate(noises**-2):
                others = np.exp(-tau / 2 * farther).sum(axis=-1)
                total[k] -= weight[block] @ (np.log(others) - tau / 2 * near)
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
    """The τ of each replicate that is best by `metric` near a given one, in 1/(target unit)²; neither way is better.

    The least mean CRPS nearest downhill from `tau`, within a factor of 4 in s = τ^(−1/2) either way and within
    `tau_range`; that end where there is none. An infinite τ stays infinite.

    Source: as `optimal_tau`.
    """
    _check(tau_range)
    if not math.isfinite(tau):
        return np.full(len(errors), tau, dtype=np.float64)
    start, reach, found = -math.log(tau) / 2, math.log(4), []
    ends = (start - reach, start + reach)
    if tau_range is not None:
        low, high = (-math.log(end) / 2 for end in reversed(tau_range))
        ends = (max(ends[0], low), min(ends[1], high))
    for error_row, variance_row in zip(errors, variance, strict=True):
        error, spread, weight, scale = _in_units_of_error(error_row, variance_row, weights)
        if not math.isfinite(scale):
            found.append(math.nan)
            continue
        unit = math.log(scale)
        slope = _slope(error, spread, weight, metric)
        log_s = _root(slope, start=start - unit, low=ends[0] - unit, high=ends[1] - unit)
        found.append(_tau(log_s + unit))
    return np.array(found, dtype=np.float64)
