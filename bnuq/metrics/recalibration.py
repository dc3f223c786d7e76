"""Recalibrated logits of a classifier, fitted by the likelihood of the mean probability: one temperature that divides
them all, or a scale and a shift for each class."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from array_api_compat import array_namespace, device
from jaxtyping import Float, Int64, Integer

from bnuq.metrics.arrays import Array, as_float64
from bnuq.metrics.classification import log_likelihood, pll_from_log_likelihood

TEMPERATURES = np.geomspace(0.1, 10, 47)  # steps of 0.1 in ln θ, 1 among them
VECTOR_RIDGE = 1.0  # of a standard normal prior, of every shift and of every scale relative to the temperature's
_BLOCK = 2**18  # logits at once: a few times this fits in a cache; fixed, so that sums do not depend on chunks


@dataclass(frozen=True)
class LogitMaps:
    """Maps of logits, z_k → scale_k · z_k + shift_k, and the number of the one that each point has.

    Rows of a single number serve all classes: a temperature θ is the scale 1/θ with the shift 0.
    """

    scale: Float[np.ndarray, "map class"]
    shift: Float[np.ndarray, "map class"]
    of_point: Int64[np.ndarray, " point"]

    @property
    def temperature(self) -> Float[np.ndarray, " point"] | None:
        """The temperature of each point; None if each class has a scale of its own."""
        return 1 / self.scale[self.of_point, 0] if self.scale.shape[1] == 1 else None


def pll_by_temperature(
    logits: Float[Array, "sample point class"], y: Integer[Array, "point"]
) -> Float[Array, "temperature point"]:
    """Predictive log-likelihood in nats, ln of the mean over samples of softmax(logits/θ)[y], for each of TEMPERATURES;
    higher is better.

    Source: Guo et al. 2017, §4.2, with the mean probability of T samples in place of that of one.
    """
    by_temperature = [pll_from_log_likelihood(log_likelihood(logits / float(tau), y)) for tau in TEMPERATURES]
    return array_namespace(logits).stack(by_temperature)


def fitted_temperature(pll: Float[np.ndarray, "temperature point"]) -> float:
    """The temperature of the largest mean of a `pll_by_temperature` over the points, refined by a parabola in ln θ.

    Where the largest is at an end of TEMPERATURES, it is that end.

    Source: Guo et al. 2017, §4.2 (the temperature with the least negative log-likelihood).
    """
    loss = -np.asarray(pll, dtype=np.float64).mean(axis=1)
    at = int(np.argmin(loss))
    if at in (0, len(loss) - 1):
        return float(TEMPERATURES[at])
    before, least, after = loss[at - 1 : at + 2]
    curvature = before - 2 * least + after
    moved = (before - after) / (2 * curvature) if curvature > 0 else 0.0
    return float(TEMPERATURES[at] * math.exp(moved * math.log(TEMPERATURES[1] / TEMPERATURES[0])))


def fitted_vector(
    logits: Float[Array, "sample point class"], y: Integer[Array, "point"], temperature: float
) -> tuple[Float[np.ndarray, " class"], Float[np.ndarray, " class"]]:
    """The scale a_k and the shift b_k of each class that maximise the predictive log-likelihood of the points, of the
    mean over samples of softmax(a·logits + b)[y].

    L-BFGS in float64, from a = 1/θ of the `temperature` and b = 0. A ridge of VECTOR_RIDGE/2 · Σ ((θ a_k − 1)² + b_k²)
    nats for all points together keeps what they do not determine finite: the shift of a class that never occurs, and
    what is added to all shifts.

    Source: Guo et al. 2017, §4.2 (vector scaling), with the mean probability of T samples in place of that of one.
    """
    import scipy.optimize  # late: `bnuq.metrics` is light

    samples, points, classes = logits.shape
    step = max(1, _BLOCK // (samples * classes))
    blocks = [(logits[:, at : at + step], y[at : at + step]) for at in range(0, points, step)]

    def loss(parameters: Float[np.ndarray, " parameter"]) -> tuple[float, Float[np.ndarray, " parameter"]]:
        scale, shift = parameters.reshape(2, classes)
        by_block = [_pll_and_gradient(*block, scale / temperature, shift) for block in blocks]
        pll, gradient = (sum(each) for each in zip(*by_block, strict=True))
        moved = parameters - start
        penalty = VECTOR_RIDGE / 2 * float(moved @ moved)
        gradient = gradient / np.repeat([temperature, 1.0], classes)
        return (penalty - pll) / points, (VECTOR_RIDGE * moved - gradient) / points

    start = np.repeat([1.0, 0.0], classes)
    options = {"maxiter": 1000, "maxfun": 2000, "maxcor": 30, "ftol": 1e-14, "gtol": 1e-8}
    optimum = scipy.optimize.minimize(loss, start, jac=True, method="L-BFGS-B", options=options)
    scale, shift = optimum.x.reshape(2, classes)
    return scale / temperature, shift


def _pll_and_gradient(
    logits: Float[Array, "sample point class"],
    y: Integer[Array, "point"],
    scale: Float[np.ndarray, " class"],
    shift: Float[np.ndarray, " class"],
) -> tuple[float, Float[np.ndarray, " parameter"]]:
    """The sum of the points' predictive log-likelihoods, and its gradient by scales, then shifts."""
    xp = array_namespace(logits)
    as_given: dict[str, Any] = {"dtype": xp.float64, "device": device(logits)}
    logits = xp.asarray(logits, **as_given)
    mapped = logits * xp.asarray(scale, **as_given) + xp.asarray(shift, **as_given)
    below = mapped - xp.max(mapped, axis=-1, keepdims=True)
    exp = xp.exp(below)
    total = xp.sum(exp, axis=-1)
    rows, y = xp.arange(len(y), device=device(logits)), xp.asarray(y, dtype=xp.int64, device=device(logits))
    of_samples = below[:, rows, y] - xp.log(total)
    share = xp.exp(of_samples - xp.max(of_samples, axis=0, keepdims=True))
    share = share / xp.sum(share, axis=0, keepdims=True)  # of each sample in the likelihood
    p = exp * (share / total)[..., None]
    is_true = xp.asarray(y[:, None] == xp.arange(logits.shape[-1], device=device(logits)), **as_given)
    of_true = xp.sum(share * logits[:, rows, y], axis=0)
    by_scale = of_true @ is_true - xp.sum(p * logits, axis=(0, 1))
    by_shift = xp.sum(is_true, axis=0) - xp.sum(p, axis=(0, 1))
    return float(xp.sum(pll_from_log_likelihood(of_samples))), as_float64(xp.stack([by_scale, by_shift])).ravel()
