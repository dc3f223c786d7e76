"""Scores of regression, point by point, from T outputs per point or from their mean and sd.

`f` holds outputs of shape (T, n, Q) in target units, `y` the truth (n, Q); or (T, n) and (n,), which is one output.
`mean` and `sigma` may have replicates in front, (R, n, Q) or (R, n). τ is the observation precision, 1/(target unit)².
"""

import math
import sys
from collections.abc import Callable
from typing import Literal

import numpy as np
from array_api_compat import device, is_torch_array

from bnuq.metrics.arrays import Array, array_namespace, as_float64, like
from bnuq.metrics.classification import pll_from_log_likelihood
from bnuq.shapes import Float


def gaussian_log_likelihood(
    f: Float[Array, "sample point *output"], y: Float[Array, "point *output"], *, tau: float
) -> Float[Array, "sample point"]:
    """Log-density ln N(y; f_t, I/τ) of every sample, in nats (of a density in target units); higher is better.

    (Q/2) ln(τ/2π) − (τ/2) ‖y − f_t‖². A τ that is not positive and finite is a ValueError.

    Source: Gal & Ghahramani 2016, Dropout as a Bayesian Approximation, eq. 8, for Q outputs (their code has ½ for Q/2,
    which is the same for one).
    """
    if not 0 < tau < math.inf:
        raise ValueError(
            f"tau is {tau}; expected a positive finite precision, because without observation noise a sample has no "
            'density at the truth. The Gaussian of the samples\' moments has one: kind="moment".'
        )
    error = error_of(f, y)
    distance = over_outputs(error**2, y, "sum")
    return math.prod(y.shape[1:]) / 2 * math.log(tau / (2 * math.pi)) - tau / 2 * distance


def error_of(mean: Float[Array, "..."], y: Float[Array, "..."]) -> Float[Array, "..."]:
    """y − mean, in the array type and precision of `mean`."""
    return like(y, mean) - mean


def over_outputs(
    values: Float[Array, "..."], y: Float[Array, "..."], how: Literal["sum", "mean"]
) -> Float[Array, "..."]:
    """One value per point, reduced over the outputs if there are several."""
    # y decides: with leading replicates, values of a single output also have two axes.
    return values if y.ndim == 1 else getattr(array_namespace(values), how)(values, axis=-1)


def pll_regression(
    f: Float[Array, "sample point *output"],
    y: Float[Array, "point *output"],
    *,
    tau: float,
    kind: Literal["mixture", "moment", "moment_full"] = "mixture",
) -> Float[Array, "point"]:
    """Predictive log-likelihood in nats (of a density in target units), in [−∞, ∞]; higher is better.

    "mixture" is ln of the mean over samples of N(y; f_t, I/τ); τ = ∞ is a ValueError, because there is no density.
    "moment" is ln N(y; f̄, diag(v + 1/τ)) with v the variance over samples (divisor T), "moment_full" the same with the
    full covariance; τ = ∞ is allowed: without variance they are −∞, or +∞ where the error is 0, too. All three agree
    for T = 1.

    Source: Teye, Azizpour & Smith 2018, §4 (PLL), with Q/2 for their ½; moments as their §3.4.
    """
    if kind == "mixture":
        return pll_from_log_likelihood(gaussian_log_likelihood(f, y, tau=tau))
    if kind == "moment_full" and y.ndim > 1:
        return like(_pll_full(as_float64(f), as_float64(y), tau), f)
    mean, variance = predictive_moments(f, tau=tau)
    return pll_gaussian(mean, variance**0.5, y)


def _pll_full(
    f: Float[np.ndarray, "sample point output"], y: Float[np.ndarray, "point output"], tau: float
) -> Float[np.ndarray, "point"]:
    mean, _ = predictive_moments(f)
    deviations = np.moveaxis(f - mean, 1, 0)
    return pll_of_covariance(y - mean, np.matmul(np.swapaxes(deviations, 1, 2), deviations) / len(f), tau=tau)


def pll_of_covariance(
    error: Float[np.ndarray, "point output"], covariance: Float[np.ndarray, "point output output"], *, tau: float
) -> Float[np.ndarray, "point"]:
    """Log-density ln N(error; 0, covariance + I/τ) in nats (of a density in target units); higher is better.

    In a direction without variance it is −∞, or +∞ where the error in that direction is 0, too.

    Source: Teye, Azizpour & Smith 2018, §3.4 (the moments) and §4.1 (PLL).
    """
    outputs = error.shape[1]
    values, directions = np.linalg.eigh(covariance)
    # Variance within the rounding error counts as 0: with fewer samples than outputs there are such directions.
    negligible = outputs * np.finfo(np.float64).eps
    values = np.where(values > negligible * values[:, -1:], values, 0)
    longest = np.abs(error).max(axis=-1, keepdims=True)
    turned = np.matmul(error[:, None, :], directions)[:, 0]
    turned = np.where(np.abs(turned) > negligible * longest, turned, 0)
    return pll_gaussian(np.zeros_like(turned), np.sqrt(values + 1 / tau), turned)


def pll_gaussian(
    mean: Float[Array, "..."], sigma: Float[Array, "..."] | float, y: Float[Array, "point *output"]
) -> Float[Array, "*replicate point"]:
    """Log-density ln N(y; mean, diag(σ²)) in nats (of a density in target units), in [−∞, ∞]; higher is better.

    Summed over outputs. σ = 0 gives +∞ where the error is 0, and −∞ where the error of any such output is not.

    Source: Teye, Azizpour & Smith 2018, §4 (the constant-uncertainty baseline).
    """
    xp, error = array_namespace(mean), error_of(mean, y)
    sigma = like(sigma, mean)
    spread = sigma > 0
    positive_sigma = xp.where(spread, sigma, xp.ones_like(sigma))
    with np.errstate(over="ignore", invalid="ignore"):  # a density beyond the precision's range is 0, and ln 0 is −∞
        z = error / positive_sigma
        terms = -(z**2) / 2 - xp.log(positive_sigma) - math.log(2 * math.pi) / 2
        certain = xp.where(error == 0, xp.full_like(error, math.inf), xp.full_like(error, -math.inf))
        terms = xp.where(spread, terms, certain)
        if y.ndim == 1:
            return terms
        total = xp.sum(terms, axis=-1)
    return xp.where(xp.any(terms == -math.inf, axis=-1), xp.full_like(total, -math.inf), total)


def predictive_moments(
    f: Float[Array, "sample point *output"], *, tau: float = math.inf
) -> tuple[Float[Array, "point *output"], Float[Array, "point *output"]]:
    """Mean over samples in target units, and variance v + 1/τ in (target unit)², ≥ 0; no direction.

    v has divisor T and is 0 exactly where all samples agree.

    Source: Teye, Azizpour & Smith 2018, §3.4, Algorithm 1 (the diagonal of its covariance).
    """
    xp = array_namespace(f)
    # Relative to the first sample, so that neither sum loses digits where the mean is large compared with the spread.
    deviations = f - f[:1]
    shift = xp.mean(deviations, axis=0)
    return f[0] + shift, xp.mean((deviations - shift) ** 2, axis=0) + 1 / tau


def crps_gaussian(
    mean: Float[Array, "..."], sigma: Float[Array, "..."] | float, y: Float[Array, "point *output"]
) -> Float[Array, "*replicate point"]:
    """Continuous ranked probability score of N(mean, σ²) in target units, ≥ 0; lower is better.

    Averaged over outputs. σ = 0 gives |y − mean|.

    Source: Gneiting & Raftery 2007, Strictly Proper Scoring Rules, Prediction, and Estimation, §4.2.
    """
    return over_outputs(crps_of_error(error_of(mean, y), like(sigma, mean)), y, "mean")


def crps_of_error(error: Float[Array, "..."], sigma: Float[Array, "..."]) -> Float[Array, "..."]:
    """CRPS of N(0, σ²) at `error`, entry by entry, in their unit, ≥ 0; lower is better.

    σ = 0 gives |error|.

    Source: Gneiting & Raftery 2007, §4.2.
    """
    return _mean_distance(error, sigma) - sigma / math.sqrt(math.pi)


def _mean_distance(error: Float[Array, "..."], sigma: Float[Array, "..."]) -> Float[Array, "..."]:
    """E|X − error| for X ∼ N(0, σ²): |error| where σ = 0."""
    xp = array_namespace(error)
    spread = sigma > 0
    with np.errstate(over="ignore"):
        z = error / xp.where(spread, sigma, xp.ones_like(sigma))
    z = xp.clip(z, -40, 40)  # effectively infinite in any precision, but with a finite square
    distance = error * _erf(z / math.sqrt(2)) + sigma * (math.sqrt(2 / math.pi) * xp.exp(-(z**2) / 2))
    return xp.where(spread, distance, xp.abs(error))


def _erf(x: Float[Array, "..."]) -> Float[Array, "..."]:
    if is_torch_array(x):
        return x.erf()
    if (torch := sys.modules.get("torch")) is not None:  # ten times as fast, and to be imported scipy takes 0.4 s
        return torch.from_numpy(np.asarray(x)).erf().numpy()
    import scipy.special  # late: `bnuq.metrics` is light

    return scipy.special.erf(x)


def crps_mixture(
    f: Float[Array, "sample point *output"], y: Float[Array, "point *output"], *, tau: float
) -> Float[Array, "point"]:
    """CRPS of the mixture of N(f_t, 1/τ) over samples, exactly, in target units, ≥ 0; lower is better.

    Averaged over outputs. T² terms per point, in blocks of bounded memory; at τ = ∞ it is `crps_ensemble`. Computed in
    float64. Raises ValueError for a τ that is not positive.

    Source: Grimit et al. 2006, The Continuous Ranked Probability Score for Circular Variables and Its Application to
    Mesoscale Forecast Ensemble Verification (its A(μ, σ²), in closed form).
    """
    if not tau > 0:
        raise ValueError(f"tau is {tau}; expected a positive precision, or infinity for no observation noise.")
    if tau == math.inf:
        return crps_ensemble(f, y)
    noise = tau**-0.5

    def score(x: Float[Array, "sample point"], truth: Float[Array, "point"]) -> Float[Array, "point"]:
        xp, samples = array_namespace(x), x.shape[0]
        truth_distance = xp.mean(_noisy_distance(truth - x, noise), axis=0)
        between = xp.zeros_like(truth)
        for lag in range(1, samples):
            between = between + xp.sum(_noisy_distance(x[lag:] - x[:-lag], noise * math.sqrt(2)), axis=0)
        # Each pair is counted once; the last term is that of each sample with itself.
        return truth_distance - between / samples**2 - noise / math.sqrt(math.pi) / samples

    return _by_blocks(score, f, y)


def _noisy_distance(error: Float[Array, "..."], sigma: float) -> Float[Array, "..."]:
    # `_mean_distance` for a single σ above 0, without checks, for the T² terms per point
    z = error / (sigma * math.sqrt(2))
    with np.errstate(over="ignore"):
        density = array_namespace(error).exp(-(z * z))
    return error * _erf(z) + (sigma * math.sqrt(2 / math.pi)) * density


_BLOCK_ENTRIES = 2**16  # numbers in one block, so that intermediate results stay in the processor's cache
_DEVICE_BLOCK_ENTRIES = 2**24


def _by_blocks(
    score: Callable[[Array, Array], Array], f: Float[Array, "sample point *output"], y: Float[Array, "point *output"]
) -> Float[Array, "point"]:
    """Per-output scores in float64, in blocks of points, then averaged over outputs, in the precision of `f`."""
    xp, location = array_namespace(f), getattr(device(f), "type", "cpu")
    samples = f.shape[0]
    outputs, truth = xp.reshape(f, (samples, -1)), xp.reshape(like(y, f), (-1,))
    step = max(1, (_BLOCK_ENTRIES if location == "cpu" else _DEVICE_BLOCK_ENTRIES) // samples)
    scores = [xp.zeros((0,), dtype=xp.float64, device=device(f))]
    for start in range(0, truth.shape[0], step):
        block = slice(start, start + step)
        scores.append(score(xp.astype(outputs[:, block], xp.float64), xp.astype(truth[block], xp.float64)))
    per_output = xp.reshape(xp.concat(scores), tuple(y.shape))
    return xp.astype(over_outputs(per_output, y, "mean"), f.dtype)


def crps_ensemble(
    f: Float[Array, "sample point *output"], y: Float[Array, "point *output"], *, fair: bool = False
) -> Float[Array, "point"]:
    """CRPS of the empirical distribution of the samples, in target units, ≥ 0 unless `fair`; lower is better.

    E|f − y| − ½ E|f − f'|, averaged over outputs, by sorting. `fair` divides the second term by T(T−1) instead of T²:
    its expectation is then that of infinitely many samples. It needs T ≥ 2, else a ValueError. Computed in float64.

    Source: Gneiting & Raftery 2007, eq. 21; Ferro 2014, Fair Scores for Ensemble Forecasts (`fair`).
    """
    samples = f.shape[0]
    if fair and samples < 2:
        raise ValueError("f holds a single sample; the fair score needs at least two.")
    pairs = samples * (samples - 1) if fair else samples**2

    def score(x: Float[Array, "sample point"], truth: Float[Array, "point"]) -> Float[Array, "point"]:
        xp = array_namespace(x)
        ranked = xp.sort(x, axis=0)
        below = xp.arange(1, samples, dtype=x.dtype, device=device(x))
        # Σ over pairs of |f − f'|, from the gaps between neighbours: k(T−k) pairs straddle the k-th.
        between = (below * (samples - below)) @ (ranked[1:] - ranked[:-1])
        return xp.mean(xp.abs(truth - x), axis=0) - between / pairs

    return _by_blocks(score, f, y)


def crps_terms(
    f: Float[Array, "sample point *output"], y: Float[Array, "point *output"], *, tau: float
) -> tuple[Float[Array, "sample point"], Float[Array, "sample point"]]:
    """The terms of each sample in the CRPS of all samples, in target units, ≥ 0: E|X_t − y|, and Σ_u E|X_t − X_u|.

    With X_t ∼ N(f_t, 1/τ), or f_t itself at τ = ∞, the score is the mean of the first less the mean of the second over
    2T (over 2(T−1) for the fair score). Leaving out a sample removes its terms from both. Averaged over outputs, in
    float64.

    Source: Grimit et al. 2006, eq. 5; Gneiting & Raftery 2007, eq. 20.
    """
    xp, samples = array_namespace(f), f.shape[0]
    noise = 0.0 if tau == math.inf else tau**-0.5
    x, truth = xp.astype(f, xp.float64), xp.astype(like(y, f), xp.float64)
    near = _mean_distance(truth - x, like(noise, x))
    if noise == 0:
        point_rank = xp.argsort(xp.argsort(x, axis=0, stable=True), axis=0)
        ranked = xp.sort(x, axis=0)
        below = xp.cumulative_sum(ranked, axis=0)
        rank = xp.astype(xp.reshape(xp.arange(samples, device=device(x)), (samples,) + (1,) * (x.ndim - 1)), x.dtype)
        distance_sums = ranked * (2 * rank + 2 - samples) + below[-1:] - 2 * below
        distance_sums = xp.take_along_axis(distance_sums, point_rank, axis=0)
    else:
        pair_noise = like(noise * math.sqrt(2), x)
        distance_sums = xp.zeros_like(x)
        for other in range(samples):  # one sample at a time, to bound memory
            distance_sums = distance_sums + _mean_distance(x - x[other : other + 1], pair_noise)
    return over_outputs(near, y, "mean"), over_outputs(distance_sums, y, "mean")


def rmse(mean: Float[Array, "..."], y: Float[Array, "point *output"]) -> float:
    """Root mean square error √(Σ‖y − mean‖²/n) in target units, ≥ 0; lower is better.

    Summed over outputs, averaged over points. Samples (T, n, Q) are scored by their mean.

    Source: Teye, Azizpour & Smith 2018, §4 (their code for several outputs).
    """
    error = _error_of_mean(mean, y)
    return float(np.linalg.norm(error)) / math.sqrt(error.shape[0])


def mae(mean: Float[Array, "..."], y: Float[Array, "point *output"]) -> float:
    """Mean absolute error in target units, ≥ 0; lower is better.

    Averaged over outputs and points. Samples (T, n, Q) are scored by their mean.

    Source: Willmott & Matsuura 2005, Advantages of the Mean Absolute Error.
    """
    return float(np.mean(np.abs(_error_of_mean(mean, y))))


def _error_of_mean(mean: Float[Array, "..."], y: Float[Array, "..."]) -> Float[np.ndarray, "..."]:
    """y − mean in float64, of the mean over samples; ValueError for shapes that would be broadcast."""
    stated, truth = as_float64(mean), as_float64(y)
    if stated.ndim == truth.ndim + 1 and stated.shape[1:] == truth.shape:
        stated = predictive_moments(stated)[0]
    if stated.shape != truth.shape:
        raise ValueError(f"mean has shape {stated.shape} and y {truth.shape}; expected the same, or samples in front.")
    return truth - stated
