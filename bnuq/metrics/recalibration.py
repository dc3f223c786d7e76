"""Recalibrated logits of a classifier, fitted by the likelihood of the mean probability: one temperature that divides
them all, or a scale and a shift for each class."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from array_api_compat import device

from bnuq.frozen import frozen
from bnuq.metrics.arrays import Array, array_namespace, as_float64, as_numpy
from bnuq.metrics.classification import pll_from_log_likelihood, predictive, true_class_values
from bnuq.shapes import Float, Int64, Integer

TEMPERATURES = np.geomspace(1e-3, 1e3, 71)  # steps of 0.2 in ln θ, 1 among them
_NEIGHBOURS = 8  # on each side, of the polynomial between temperatures: it is analytic, with no pole nearer than π/4
_TOLERANCE = 1e-8  # of ln θ: the last of Newton's steps, each of which squares the error
_MOST_STEPS = 60
_LOWEST = -80.0  # of a logit below the largest: e^−80 is nothing beside 1
PSEUDO_ERRORS = 3.0  # that hold a temperature near 1: as many as points without an error may hide (rule of three)
VECTOR_RIDGE = 1.0  # of a standard normal prior, of every shift and of every scale relative to the temperature's
_BLOCK = 2**18  # logits at once: a few times this fits in a cache; fixed, so that sums do not depend on chunks


@frozen
class LogitMaps:
    """Maps of logits, z_k → scale_k · z_k + shift_k, and the number of the one that each point has.

    Rows of a single number serve all classes: a temperature θ is the scale 1/θ with the shift 0.
    """

    scale: Float[np.ndarray, "map class"]
    shift: Float[np.ndarray, "map class"]
    of_point: Int64[np.ndarray, " point"]

    @property
    def temperature(self) -> Float[np.ndarray, " point"] | None:
        """The temperature of each point; None if each class has its own scale."""
        return 1 / self.scale[self.of_point, 0] if self.scale.shape[1] == 1 else None


def pll_by_temperature(
    logits: Float[Array, "sample point class"], y: Integer[Array, "point"]
) -> Float[Array, "temperature point"]:
    """Predictive log-likelihood in nats, ln of the mean over samples of softmax(logits/θ)[y], for each of TEMPERATURES;
    higher is better.

    Source: Guo et al. 2017, §4.2, with the mean probability of T samples in place of that of one.
    """
    return likelihoods_by_temperature(logits, y)[0]


def likelihoods_by_temperature(
    logits: Float[Array, "sample point class"], y: Integer[Array, "point"]
) -> Float[Array, "2 temperature point"]:
    """`pll_by_temperature`, and the same by labels that the predictions draw themselves: Σ_k p_k(1) ln p_k(θ), the mean
    over samples.

    Source: as there; `pseudo_weight`.
    """
    xp, (samples, points, classes) = array_namespace(logits), logits.shape
    # Classes before points: sums over the few numbers of each point would take several times as long
    by_class = xp.reshape(xp.reshape(xp.moveaxis(logits, -1, 1), (samples, -1)), (samples, classes, points))
    largest = xp.max(by_class, axis=1)
    below, true = by_class - largest[:, None], true_class_values(logits, y) - largest
    own = xp.exp(below)
    own = xp.sum(own * xp.where(own > 0, below, xp.zeros_like(below)), axis=1) / xp.sum(own, axis=1)
    lowest = xp.asarray(_LOWEST, dtype=below.dtype, device=device(below))  # `clip` takes several passes on tensors
    weight = xp.empty_like(below)  # always the same memory
    result = xp.empty((2, len(TEMPERATURES), points), dtype=below.dtype, device=device(below))
    together = classes  # temperatures, whose likelihoods take as much memory as the logits
    for first in range(0, len(TEMPERATURES), together):
        terms, own_terms = [], []
        for tau in map(float, TEMPERATURES[first : first + together]):
            weight = xp.multiply(below, 1 / tau, out=weight)
            weight = xp.exp(xp.maximum(weight, lowest, out=weight), out=weight)  # 1 or more in all; underflow is slow
            log_sum = xp.log(xp.sum(weight, axis=1))
            terms.append(true / tau - log_sum)
            own_terms.append(xp.mean(own / tau - log_sum, axis=0))
        rows = xp.reshape(xp.stack(terms, axis=1), (samples, -1))
        result[0, first : first + together] = xp.reshape(pll_from_log_likelihood(rows), (len(terms), -1))
        result[1, first : first + together] = xp.stack(own_terms)
    return result


def fitted_temperature(pll: Float[np.ndarray, "temperature point"]) -> float:
    """The temperature of the largest mean of a `pll_by_temperature` over the points, refined by the polynomial in ln θ
    through the values around it: about 1e-6 of ln θ from the optimum.

    Where the largest is at an end of TEMPERATURES, it is that end; where all are equal, or every true class has
    probability 0, it is 1.

    Source: Guo et al. 2017, §4.2 (the temperature with the least negative log-likelihood).
    """
    pll = np.asarray(pll, dtype=np.float64)
    is_possible = np.isfinite(pll).all(axis=0)  # a probability of 0 is 0 at every temperature
    if not is_possible.any():
        return 1.0
    pll = pll[:, is_possible].mean(axis=1)
    last = len(pll) - 1
    best = min(np.flatnonzero(pll == pll.max()).tolist(), key=lambda row: abs(row - last // 2))
    if best in (0, last):
        return float(TEMPERATURES[best])
    rows = slice(max(0, best - _NEIGHBOURS), best + _NEIGHBOURS + 1)
    x = np.arange(len(pll))[rows] - best  # in steps of the grid
    interpolated = np.polynomial.Polynomial.fit(x, pll[rows], len(x) - 1)
    roots = interpolated.deriv().roots()
    inside = np.real(roots[(np.abs(np.imag(roots)) < 1e-6) & (np.abs(np.real(roots)) < 1)])
    candidates = np.array([0.0, *inside])
    step = candidates[np.argmax(interpolated(candidates))]
    return float(TEMPERATURES[best] * math.exp(step * math.log(TEMPERATURES[1] / TEMPERATURES[0])))


def errors_of_points(
    logits: Float[Array, "sample point class"], y: Integer[Array, "point"]
) -> Float[np.ndarray, "2 point"]:
    """Whether the mean prediction of each point is wrong, and 1 − its largest probability; lower is better.

    Source: definition.
    """
    xp = array_namespace(logits)
    weights = xp.exp(logits - xp.max(logits, axis=-1, keepdims=True))
    p = as_float64(predictive(weights / xp.sum(weights, axis=-1, keepdims=True)))
    return np.stack([p.argmax(axis=-1) != as_numpy(y), 1 - p.max(axis=-1)]).astype(np.float64)


def pseudo_weight(errors: Float[np.ndarray, "2 point"]) -> float:
    """The weight λ of each point's own predictions beside its label, for `pll_slopes`: PSEUDO_ERRORS over the
    `errors_of_points`, those made or those stated, whichever are more.

    A temperature then maximises Σ ln p(y; θ) + λ Σ_k p_k(1) ln p_k(θ). The second term is the conjugate prior of 1/θ
    around 1, as of λn further points whose labels the predictions themselves draw: it keeps finite what points without
    an error do not determine, and weighs 1 in 20 beside 57 errors.

    Source: Diaconis & Ylvisaker 1979, Conjugate Priors for Exponential Families; Platt 1999, §2.2 (targets that a few
    more points smooth); 3 by Hanley & Lippman-Hand 1983, If Nothing Goes Wrong, Is Everything All Right?
    """
    return PSEUDO_ERRORS / max(float(errors.sum(axis=1).max()), np.finfo(float).eps)


def pll_slopes(
    logits: Float[Array, "sample point class"], y: Integer[Array, "point"], temperature: float, weight: float = 0.0
) -> Float[np.ndarray, "2"]:
    """The first and the second derivative by ln θ of the sum over points of their predictive log-likelihoods, and of
    `weight` times what these are by their own predictions, Σ_k p_k(1) ln p_k(θ), the mean over samples.

    Points whose true class has probability 0 contribute no likelihood: it is 0 at every temperature.

    Source: Guo et al. 2017, §4.2 (temperature scaling), with the mean probability of T samples in place of that of one;
    `pseudo_weight`.
    """
    xp, location = array_namespace(logits), device(logits)
    logits = xp.asarray(logits, dtype=xp.float64, device=location)
    rows, y = xp.arange(logits.shape[1], device=location), xp.asarray(y, dtype=xp.int64, device=location)
    largest = xp.max(logits, axis=-1, keepdims=True)
    below = logits - largest
    mean, variance, total = _moments(below, temperature)
    true = logits[:, rows, y] - largest[..., 0]
    sample_logs = true / temperature - xp.log(total)
    top = xp.max(sample_logs, axis=0, keepdims=True)
    share = xp.exp(sample_logs - xp.where(top > -math.inf, top, xp.zeros_like(top)))  # of each sample in the likelihood
    share = share / xp.clip(xp.sum(share, axis=0, keepdims=True), min=xp.finfo(xp.float64).tiny)
    slope = xp.where(share > 0, true - mean, xp.zeros_like(mean))  # by β = 1/θ, as the next two
    first = xp.sum(share * slope, axis=0)
    second = xp.sum(share * (slope**2 - variance), axis=0) - first**2
    if weight:
        first = first + weight * xp.mean(_moments(below, 1.0)[0] - mean, axis=0)
        second = second - weight * xp.mean(variance, axis=0)
    log_slopes = xp.stack([-first / temperature, first / temperature + second / temperature**2])
    return as_float64(xp.sum(log_slopes, axis=1))


def _moments(below: Float[Array, "sample point class"], temperature: float) -> tuple[Array, Array, Array]:
    """The mean and the variance of the logits under softmax(logits/θ), and the sum of its weights."""
    xp = array_namespace(below)
    weight = xp.exp(below / temperature)
    total = xp.sum(weight, axis=-1)
    below = xp.where(weight > 0, below, xp.zeros_like(below))  # not 0 · −∞
    mean = xp.sum(weight * below, axis=-1) / total
    return mean, xp.sum(weight * below**2, axis=-1) / total - mean**2, total


def refined_temperatures(
    start: Sequence[float], slopes: Callable[[Float[np.ndarray, " fit"]], Float[np.ndarray, "2 fit"]]
) -> Float[np.ndarray, " fit"]:
    """The temperatures near these at which a likelihood is largest, by its two `slopes` in ln θ: Newton's method, or
    bisection where that leaves what is left of the range of TEMPERATURES.

    Source: Guo et al. 2017, §4.2 (the temperature with the least negative log-likelihood).
    """
    least, most = np.log(TEMPERATURES[[0, -1]])
    low, high, log_temperature = np.full(len(start), least), np.full(len(start), most), np.log(start)
    for _ in range(_MOST_STEPS):
        slope, curvature = slopes(np.exp(log_temperature))
        low, high = np.where(slope > 0, log_temperature, low), np.where(slope < 0, log_temperature, high)
        with np.errstate(divide="ignore", invalid="ignore"):
            newton = log_temperature - slope / curvature
        inside = (curvature < 0) & (low <= newton) & (newton <= high)
        after = np.where(inside, newton, (low + high) / 2)
        after = np.where(
            (slope == 0) | ((log_temperature == least) & (slope < 0)) | ((log_temperature == most) & (slope > 0)),
            log_temperature,
            after,
        )
        log_temperature, step = after, np.abs(after - log_temperature).max()
        if step < _TOLERANCE:
            break
    return np.exp(log_temperature)


def fitted_vector(
    logits: Float[Array, "sample point class"], y: Integer[Array, "point"], temperature: float, weight: float = 0.0
) -> tuple[Float[np.ndarray, " class"], Float[np.ndarray, " class"]]:
    """The scale a_k and the shift b_k of each class that maximise the predictive log-likelihood of the points, of the
    mean over samples of softmax(a·logits + b)[y], and `weight` times that by their own predictions, as in `pll_slopes`.

    L-BFGS in float64, from a = 1/θ of the `temperature` and b = 0. A ridge of VECTOR_RIDGE/2 · Σ ((θ a_k − 1)² + b_k²)
    nats for all points together keeps what they do not determine finite: the shift of a class that never occurs, and
    what is added to all shifts. A logit of −∞ stays that, and points whose true class has probability 0 say nothing.

    Source: Guo et al. 2017, §4.2 (vector scaling), with the mean probability of T samples in place of that of one.
    """
    import scipy.optimize  # late: `bnuq.metrics` is light

    possible = np.flatnonzero(as_numpy(true_class_values(logits, y)).max(axis=0) > -math.inf)
    if not len(possible):
        return np.full(logits.shape[2], 1 / temperature), np.zeros(logits.shape[2])
    if len(possible) < len(y):
        logits, y = logits[:, possible], y[possible]
    samples, points, classes = logits.shape
    step = max(1, _BLOCK // (samples * classes))
    blocks = [(logits[:, first : first + step], y[first : first + step]) for first in range(0, points, step)]

    def loss(parameters: Float[np.ndarray, " parameter"]) -> tuple[float, Float[np.ndarray, " parameter"]]:
        scale, shift = parameters.reshape(2, classes)
        block_values = [_pll_and_gradient(*block, scale / temperature, shift, weight) for block in blocks]
        pll, gradient = (sum(values) for values in zip(*block_values, strict=True))
        change = parameters - start
        penalty = VECTOR_RIDGE / 2 * float(change @ change)
        gradient = gradient / np.repeat([temperature, 1.0], classes)
        return (penalty - pll) / points, (VECTOR_RIDGE * change - gradient) / points

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
    weight: float,
) -> tuple[float, Float[np.ndarray, " parameter"]]:
    """The sum of the points' predictive log-likelihoods, and of `weight` times those by their own predictions, and its
    gradient by scales, then shifts."""
    xp = array_namespace(logits)
    options: dict[str, Any] = {"dtype": xp.float64, "device": device(logits)}
    logits = xp.asarray(logits, **options)
    masked, nothing = logits == -math.inf, xp.zeros_like(logits)
    logits = xp.where(masked, nothing, logits)
    mapped = xp.where(masked, nothing - math.inf, logits * xp.asarray(scale, **options) + xp.asarray(shift, **options))
    below = mapped - xp.max(mapped, axis=-1, keepdims=True)
    exp = xp.exp(below)
    total = xp.sum(exp, axis=-1)
    rows, y = xp.arange(len(y), device=device(logits)), xp.asarray(y, dtype=xp.int64, device=device(logits))
    sample_logs = below[:, rows, y] - xp.log(total)
    share = xp.exp(sample_logs - xp.max(sample_logs, axis=0, keepdims=True))
    share = share / xp.sum(share, axis=0, keepdims=True)  # of each sample in the likelihood
    p = exp * (share / total)[..., None]
    is_true = xp.asarray(y[:, None] == xp.arange(logits.shape[-1], device=device(logits)), **options)
    true_logits = xp.sum(share * logits[:, rows, y], axis=0)
    scale_slope = true_logits @ is_true - xp.sum(p * logits, axis=(0, 1))
    shift_slope = xp.sum(is_true, axis=0) - xp.sum(p, axis=(0, 1))
    total_pll, each = xp.sum(pll_from_log_likelihood(sample_logs)), weight / len(logits)
    if weight:
        plain = xp.where(masked, nothing - math.inf, logits)
        own = xp.exp(plain - xp.max(plain, axis=-1, keepdims=True))
        own = own * (each / xp.sum(own, axis=-1, keepdims=True))
        total_pll = total_pll + xp.sum(own * xp.where(masked, nothing, below - xp.log(total)[..., None]))
        missing = own - exp * (each / total[..., None])
        scale_slope = scale_slope + xp.sum(missing * logits, axis=(0, 1))
        shift_slope = shift_slope + xp.sum(missing, axis=(0, 1))
    return float(total_pll), as_float64(xp.stack([scale_slope, shift_slope])).ravel()
