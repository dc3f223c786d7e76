"""One temperature by which the logits of a classifier are divided, fitted by the likelihood of the mean probability."""

import math

import numpy as np
from array_api_compat import array_namespace
from jaxtyping import Float, Integer

from bnuq.metrics.arrays import Array
from bnuq.metrics.classification import log_likelihood, pll_from_log_likelihood

TEMPERATURES = np.geomspace(0.1, 10, 47)  # steps of 0.1 in ln τ, 1 among them


def pll_by_temperature(
    logits: Float[Array, "sample point class"], y: Integer[Array, "point"]
) -> Float[Array, "temperature point"]:
    """Predictive log-likelihood in nats, ln of the mean over samples of softmax(logits/τ)[y], for each of TEMPERATURES;
    more is better.

    Source: Guo et al. 2017, §4.2, with the mean probability of T samples in place of that of one.
    """
    by_temperature = [pll_from_log_likelihood(log_likelihood(logits / float(tau), y)) for tau in TEMPERATURES]
    return array_namespace(logits).stack(by_temperature)


def fitted_temperature(pll: Float[np.ndarray, "temperature point"]) -> float:
    """The temperature of the largest mean of a `pll_by_temperature` over the points, refined by a parabola in ln τ.

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
