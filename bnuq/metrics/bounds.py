"""Bounds of informative scores: a constant uncertainty as lower bound, the best one for each point as upper bound."""

import math

import numpy as np

from bnuq.metrics.arrays import Array, array_namespace, like, log
from bnuq.metrics.regression import error_of, over_outputs
from bnuq.shapes import Float

# The σ that minimises the CRPS at error e is |e|/√ln 2, the root of 2φ(e/σ) = 1/√π; the CRPS is then this share of |e|.
_CRPS_OPTIMUM = math.erf(math.sqrt(math.log(2) / 2))


def crps_optimum(mean: Float[Array, "..."], y: Float[Array, "point *output"]) -> Float[Array, "*replicate point"]:
    """Least CRPS of any Gaussian around `mean`, erf(√(ln 2/2)) |y − mean|, in target units, ≥ 0; lower is better.

    That of σ = |y − mean|/√ln 2, averaged over outputs; 0.5949 times the absolute error.

    Source: the upper bound of Teye, Azizpour & Smith 2018, §4; they find it numerically, this is its closed form.
    """
    xp = array_namespace(mean)
    return over_outputs(_CRPS_OPTIMUM * xp.abs(error_of(mean, y)), y, "mean")


def pll_optimum(mean: Float[Array, "..."], y: Float[Array, "point *output"]) -> Float[Array, "*replicate point"]:
    """Largest log-density of any isotropic Gaussian around `mean`, in nats (of target units); higher is better.

    −(Q/2) ln(2π‖e‖²/Q) − Q/2, that of σ² = ‖e‖²/Q; +∞ where e = y − mean is 0. A mixture may exceed it.

    Source: the upper bound of Teye, Azizpour & Smith 2018, §4, for Q outputs.
    """
    xp, error = array_namespace(mean), error_of(mean, y)
    outputs = math.prod(y.shape[1:])
    size = xp.abs(error)
    if y.ndim == 1:
        log_norm = log(size)
    else:
        # Squared relative to the largest, so that small errors do not underflow.
        top = xp.max(size, axis=-1, keepdims=True)
        part = size / xp.where(top == 0, xp.ones_like(top), top)
        log_norm = log(top[..., 0]) + log(xp.sum(part**2, axis=-1)) / 2
    return -outputs * (log_norm + math.log(2 * math.pi / outputs) / 2 + 0.5)


def normalized(
    score: Float[Array, "*any"] | float, constant: Float[Array, "*any"] | float, optimum: Float[Array, "*any"] | float
) -> Float[Array, "*any"] | float:
    """A run's score on the scale from constant uncertainty (0) to the optimum (100), in percent; higher is better.

    100 (S − S_CU)/(S_opt − S_CU), for CRPS and PLL; not clipped: a negative value is worse than constant uncertainty.
    For means over the points of a run, not for single points, whose bounds may coincide. NaN if the bounds coincide
    up to rounding or one of them is not finite.

    Source: Teye, Azizpour & Smith 2018, §4, as their code has it: means over the test set first, then the ratio.
    """
    arrays = [value for value in (score, constant, optimum) if not isinstance(value, (float, int, np.generic))]
    if not arrays:
        return float(normalized(np.asarray(score, dtype=np.float64), constant, optimum))
    xp = array_namespace(*arrays)
    s, low, high = (like(value, arrays[0]) for value in (score, constant, optimum))
    rounding = 1e-9 * xp.maximum(xp.abs(low), xp.abs(high))
    defined = xp.isfinite(low) & xp.isfinite(high) & (xp.abs(high - low) > rounding)
    low, span = xp.where(defined, low, xp.zeros_like(low)), xp.where(defined, high - low, xp.ones_like(high))
    share = 100 * (s - low) / span
    return xp.where(defined, share, xp.full_like(share, math.nan))


def constant_confidence(accuracy: float, *, n: int, classes: int) -> float:
    """The constant probability of the predicted class that explains n validation labels best; no direction.

    It is the accuracy, clipped to [1/K, 1 − 1/(2n)], so that no label has probability 0. The other classes share the
    remaining probability equally.

    Source: the constant-uncertainty baseline of Teye, Azizpour & Smith 2018, §4, carried over to classes here.
    """
    return min(max(accuracy, 1 / classes), 1 - 1 / (2 * n))


def constant_pll(accuracy: float, confidence: float, classes: int) -> float:
    """Mean log-likelihood of a classifier that always states the same confidence, in nats, ≤ 0; higher is better.

    a ln c + (1 − a) ln((1 − c)/(K − 1)); −∞ for confidence 1 with errors.

    Source: as `constant_confidence`.
    """
    total = 0.0
    for share, probability in ((accuracy, confidence), (1 - accuracy, (1 - confidence) / (classes - 1))):
        if share > 0:
            total += share * (math.log(probability) if probability > 0 else -math.inf)
    return total


def optimum_pll(accuracy: float, classes: int) -> float:
    """Largest mean log-likelihood that keeps every predicted class, −(1 − a) ln K in nats, ≤ 0; higher is better.

    Probability 1 for correct predictions; the uniform distribution for wrong ones.

    Source: the upper bound of Teye, Azizpour & Smith 2018, §4, carried over to classes here.
    """
    return -(1 - accuracy) * math.log(classes)


def pll_bounds(
    right: Float[np.ndarray, "point"], confidence: float, classes: int
) -> tuple[Float[np.ndarray, "point"], Float[np.ndarray, "point"]]:
    """The log-likelihoods of each point under a constant confidence and under the optimum, in nats, ≤ 0; more is
    better.

    `right` is 1 where the predicted class is the true one and 0 elsewhere, and of several labels per point the share
    that is predicted; the means over points are `constant_pll` and `optimum_pll`.

    Source: as those.
    """
    shares, position = np.unique(right, return_inverse=True)
    constant = np.array([constant_pll(share, confidence, classes) for share in shares.tolist()])
    return constant[position], ((shares - 1) * math.log(classes))[position]
