"""Fits to a validation set: the constant σ of the baseline, and the observation precision τ of the samples.

Errors are e = y − f̄ of shape (n,) or (n, Q); outputs are pooled. Computed in float64 by numpy for all array types.
Weights of points need not sum to 1; weights 1/(K n_fold) give the mean over K folds of the folds' means.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import numpy as np

from bnuq.frozen import frozen
from bnuq.metrics.arrays import Array, as_float64
from bnuq.metrics.regression import crps_of_error
from bnuq.shapes import Float, Integer

_BLOCK_ENTRIES = 2**16  # numbers in one block, so that intermediate results stay in the processor's cache
_FIRST_STEP = 0.05  # first step in ln σ of the search for a root around a guess
_TOLERANCE = 1e-13  # tolerance of ln σ
_LARGEST_LOG_S = 340.0  # beyond it, in units of the errors, s² has no float, and the slope is that of its end


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
    error, weight = _pooled(errors, weights)
    fitted, step = _rms if metric == "pll" else _crps_sigmas, max(1, _BLOCK_ENTRIES // error.shape[1])
    sigmas = [fitted(error[row : row + step], weight) for row in range(0, len(error), step)]
    return np.concatenate(sigmas) if sigmas else np.empty(0)


def _pooled(
    errors: Float[Array, "replicate point *output"], weights: Float[Array, "point"] | None
) -> tuple[Float[np.ndarray, "replicate entry"], Float[np.ndarray, "entry"]]:
    """The flattened errors of all outputs, and their weights, which sum to 1; points of weight 0 are left out."""
    error = as_float64(errors)
    if math.prod(error.shape[1:]) == 0:
        raise ValueError("errors holds no examples; expected at least one.")
    weight = _pooled_weights(weights, error.shape[1:])
    used = weight > 0
    return error.reshape(len(error), weight.size)[:, used], weight[used]


def _pooled_weights(weights: Float[Array, "point"] | None, shape: tuple[int, ...]) -> Float[np.ndarray, "entry"]:
    point_weights = np.ones(shape[0]) if weights is None else as_float64(weights)
    if point_weights.shape != shape[:1] or not (point_weights >= 0).all() or not 0 < point_weights.sum() < math.inf:
        raise ValueError(f"weights do not fit {shape[0]} examples; expected one number ≥ 0 for each, and some above 0.")
    entries = np.repeat(point_weights, math.prod(shape[1:]))
    return entries / entries.sum()


def _rms(error: Float[np.ndarray, "replicate entry"], weight: Float[np.ndarray, "entry"]) -> np.ndarray:
    """The root mean square of each row; NaN where it is not finite."""
    top = np.abs(error).max(1)
    top[~np.isfinite(top)] = math.nan
    return top * np.sqrt((error / np.where(top == 0, 1.0, top)[:, None]) ** 2 @ weight)


def _crps_sigmas(error: Float[np.ndarray, "replicate entry"], weight: Float[np.ndarray, "entry"]) -> np.ndarray:
    """The root of Σ w exp(−e²/2σ²) = 1/√2 of each row."""
    sigma = _rms(error, weight)
    rows = np.flatnonzero(sigma > 0)
    size = np.abs(error[rows]) / sigma[rows, None]
    exact = (size == 0) @ weight
    target = (math.sqrt(0.5) - exact) / (1 - exact)  # the mean contribution of the other errors at the root
    sigma[rows[target <= 0]] = 0.0
    rows, size, target = rows[target > 0], size[target > 0], target[target > 0]
    if not len(rows):
        return sigma
    low = np.log(np.where(size > 0, size, math.inf).min(1)) - np.log(-2 * np.log(target)) / 2
    high = np.log(size.max(1)) - math.log(-2 * math.log(math.sqrt(0.5))) / 2

    def slope(log_sigma: Float[np.ndarray, "row"], of: Integer[np.ndarray, "row"]) -> Float[np.ndarray, "row"]:
        with np.errstate(over="ignore"):
            return np.exp(-((size[of] * np.exp(-log_sigma)[:, None]) ** 2) / 2) @ weight - math.sqrt(0.5)

    sigma[rows] *= np.exp(_roots(slope, start=np.zeros(len(rows)), low=low, high=high))
    return sigma


def _root(slope: Callable[[float], float], *, start: float, low: float, high: float) -> float:
    """As `_roots`, of one slope."""
    values = (np.array([value]) for value in (start, low, high))
    return float(_roots(lambda x, _: np.array([slope(float(x[0]))]), *values)[0])


def _roots(
    slope: Callable[[np.ndarray, np.ndarray], np.ndarray],
    start: Float[np.ndarray, "row"],
    low: Float[np.ndarray, "row"],
    high: Float[np.ndarray, "row"],
) -> Float[np.ndarray, "row"]:
    """The first root of each slope, from negative to positive, downhill from `start`; the end of the range if none.

    `slope` takes places and the numbers of their rows. All rows take a step at a time: most of a step's time would be
    spent on calls of numpy if each row went its own way.
    """
    root = np.clip(start, low, high)
    value = slope(root, np.arange(len(root)))
    below = value > 0  # where the root is
    end = np.where(below, low, high)
    beyond, value_beyond, step = root.copy(), value.copy(), _FIRST_STEP
    moving = np.flatnonzero((value != 0) & (root != end))
    bracketed = np.zeros(len(root), bool)
    while len(moving):
        direction = np.where(below[moving], -step, step)
        at = np.clip(root[moving] + direction, low[moving], high[moving])
        found = slope(at, moving)
        crossed = ((found > 0) != below[moving]) & (found != 0)
        bracketed[moving[crossed]] = True
        beyond[moving], value_beyond[moving] = at, found
        moving, at, found = moving[~crossed], at[~crossed], found[~crossed]
        root[moving], value[moving], step = at, found, 2 * step
        moving = moving[(at != end[moving]) & (found != 0)]
    if len(rows := np.flatnonzero(bracketed)):
        ends = [np.where(below, *pair)[rows] for pair in ((beyond, root), (value_beyond, value))]
        others = [np.where(below, *pair)[rows] for pair in ((root, beyond), (value, value_beyond))]
        root[rows] = _bracketed(slope, rows, *ends, *others)
    return root


def _bracketed(
    slope: Callable[[np.ndarray, np.ndarray], np.ndarray],
    rows: Integer[np.ndarray, "row"],
    a: Float[np.ndarray, "row"],
    value_a: Float[np.ndarray, "row"],
    b: Float[np.ndarray, "row"],
    value_b: Float[np.ndarray, "row"],
) -> Float[np.ndarray, "row"]:
    """The roots between a, where the slope is negative, and b, where it is not: false position (Illinois), with
    bisection if that is slow."""
    last_side, left = np.zeros(len(rows), np.int8), np.arange(len(rows))
    for turn in range(200):
        left = left[(b - a)[left] > _TOLERANCE]
        if not len(left):
            break
        low, high, value_low, value_high = a[left], b[left], value_a[left], value_b[left]
        middle = (low * value_high - high * value_low) / (value_high - value_low)
        halved = (low + high) / 2
        middle = halved if turn % 4 == 3 else np.where((low < middle) & (middle < high), middle, halved)
        # Kept away from both ends, so that the bracket shrinks from both sides.
        middle = np.minimum(np.maximum(middle, low + _TOLERANCE / 4), high - _TOLERANCE / 4)
        value = slope(middle, rows[left])
        side = np.sign(value).astype(np.int8)
        for sign, (place, value_there, value_across) in {-1: (a, value_a, value_b), 1: (b, value_b, value_a)}.items():
            here = side == sign
            value_across[left[here & (last_side[left] == sign)]] /= 2
            place[left[here]], value_there[left[here]] = middle[here], value[here]
        exact = side == 0
        a[left[exact]] = b[left[exact]] = middle[exact]
        last_side[left] = side
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
    one_row, its_variance = as_float64(errors)[None], as_float64(variance)[None]
    (error,), (spread,), weight, scales = _in_units_of_error(one_row, its_variance, weights)
    scale = float(scales[0])

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
    slope = partial(_slope, error, spread, weight, metric)
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
    errors: Float[Array, "replicate point *output"],
    variance: Float[Array, "replicate point *output"],
    weights: Float[Array, "point"] | None,
) -> tuple[
    Float[np.ndarray, "replicate entry"],
    Float[np.ndarray, "replicate entry"],
    Float[np.ndarray, "entry"],
    Float[np.ndarray, "replicate"],
]:
    """Flattened errors, variances and weights in units of each row's root mean square error, and that unit; 1 where all
    errors are 0."""
    error, weight = _pooled(errors, weights)
    spread, _ = _pooled(variance, weights)
    scale = np.maximum(_rms(error, weight), 1e-100 * np.sqrt(spread.max(1)))  # errors far below that count as 0
    scale[scale == 0] = 1.0
    return error / scale[:, None], spread / scale[:, None] / scale[:, None], weight, scale


def _slope(
    error: Float[np.ndarray, "*row entry"],
    spread: Float[np.ndarray, "*row entry"],
    weight: Float[np.ndarray, "entry"],
    metric: Literal["crps", "pll"],
    log_s: Any,
) -> Any:
    """The slope of the mean CRPS or −PLL over ln s, a number or a column, up to a positive factor."""
    s = np.exp(np.clip(log_s, -_LARGEST_LOG_S, _LARGEST_LOG_S))
    variance = spread + s * s
    if metric == "pll":
        return ((1 - error**2 / variance) * (s * s / variance)) @ weight
    with np.errstate(over="ignore"):
        density = np.exp(-(error**2) / (2 * variance))
    return ((math.sqrt(2) * density - 1) * (s / np.sqrt(variance))) @ weight


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
    tau = float(_tau(fit.log_s + math.log(scale)))
    if tau_range is not None:
        low, high = tau_range
        tau = {"low": low, "high": high, "": min(max(tau, low), high)}[fit.at_end]
    return TauFit(tau, score, "infinite" if tau == math.inf else fit.at_end)


def _tau(log_s: Any) -> Any:
    with np.errstate(over="ignore"):  # errors below 1e-154 have a τ beyond the range of floats
        return np.exp(-2 * log_s)


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
        raise ValueError("y holds no examples; expected at least one.")
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


def tau_of_mixture(
    errors: Float[Array, "sample point *output"], start: float, *, tau_range: tuple[float, float] | None = None
) -> TauFit:
    """The τ nearest to `start` for which the mixture of N(f_t, 1/τ) has the smallest mean CRPS, in 1/(target unit)²; no
    direction. From the errors y − f_t, of which each pair is looked at for every τ that is tried.

    Source: Grimit et al. 2006 (the CRPS of a mixture), by ∂E|N(e, σ²)|/∂σ = 2φ(e/σ) set to 0.
    """
    _check(tau_range)
    error = as_float64(errors).reshape(len(errors), -1)
    scale = math.sqrt(float(np.mean(error**2)))
    if scale == 0 or not math.isfinite(scale):
        return TauFit(math.inf, math.nan, "infinite") if scale == 0 else TauFit(math.nan, math.nan, "")

    def slope(log_s: float) -> float:
        z = error * math.exp(-log_s)
        pairs = [np.exp(-((z - of_one) ** 2) / 4).mean() for of_one in z]
        return float(np.exp(-(z**2) / 2).mean() - np.mean(pairs) / math.sqrt(2))

    low, high = tau_range or (1e-4 / scale**2, 1e8 / scale**2)
    begin = start if 0 < start < math.inf else scale**-2
    log_s, *ends = (-math.log(tau) / 2 for tau in (begin, high, low))
    log_s = _root(slope, start=log_s, low=ends[0], high=ends[1])
    at_end: Any = {ends[0]: "high", ends[1]: "low"}.get(log_s, "")
    if at_end == "high" and tau_range is None:
        return TauFit(math.inf, math.nan, "infinite")
    return TauFit({"low": low, "high": high, "": float(_tau(log_s))}[at_end], math.nan, at_end)


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
    step = max(1, _BLOCK_ENTRIES // max(1, math.prod(np.shape(errors)[1:])))
    for row in range(0, len(errors), step):
        block = slice(row, row + step)
        taus.append(_refined(*_in_units_of_error(errors[block], variance[block], weights), metric, start, ends))
    return np.concatenate(taus) if taus else np.empty(0)


def _refined(
    error: Float[np.ndarray, "replicate entry"],
    spread: Float[np.ndarray, "replicate entry"],
    weight: Float[np.ndarray, "entry"],
    scale: Float[np.ndarray, "replicate"],
    metric: Literal["crps", "pll"],
    start: float,
    ends: tuple[float, float],
) -> Float[np.ndarray, "replicate"]:
    """τ of each replicate, from `start` and between the `ends` of ln s."""
    taus = np.full(len(scale), math.nan)
    known = np.flatnonzero(np.isfinite(scale))
    error, spread, unit = error[known], spread[known], np.log(scale[known])

    def slope(log_s: Float[np.ndarray, "row"], rows: Integer[np.ndarray, "row"]) -> Float[np.ndarray, "row"]:
        return _slope(error[rows], spread[rows], weight, metric, log_s[:, None])

    taus[known] = _tau(_roots(slope, start - unit, ends[0] - unit, ends[1] - unit) + unit)
    return taus
