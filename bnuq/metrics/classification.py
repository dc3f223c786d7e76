"""Scores and uncertainties of classifiers, point by point, from T probability vectors per point.

`p` holds probabilities of shape (T, n, K), `y` the true classes 0 … K−1. Scores of the prediction accept `p`, or its
mean over the T samples (n, K). Both give the score of the mean prediction, never the mean of the samples' scores.
"""

import numpy as np
from array_api_compat import device

from bnuq.estimates import Estimator
from bnuq.metrics.arrays import Array, array_namespace, log
from bnuq.shapes import Bool, Float, Integer


def log_likelihood(
    logits: Float[Array, "*sample point class"], y: Integer[Array, "point"]
) -> Float[Array, "*sample point"]:
    """Log-likelihood of the true class in nats, ln softmax(logits)[y], in (−∞, 0]; higher is better.

    Computed by logsumexp: finite even where the probability underflows to 0.

    Source: Teye, Azizpour & Smith 2018, §4 (the summand of the predictive log-likelihood).
    """
    xp = array_namespace(logits)
    shifted = logits - xp.max(logits, axis=-1, keepdims=True)
    return true_class_values(shifted, y) - xp.log(xp.sum(xp.exp(shifted), axis=-1))


def true_class_values(values: Float[Array, "*sample point class"], y: Integer[Array, "point"]) -> Float[Array, "..."]:
    xp, location = array_namespace(values), device(values)
    # int64, because torch interprets a uint8 index as a mask
    return values[..., xp.arange(values.shape[-2], device=location), xp.asarray(y, dtype=xp.int64, device=location)]


def pll_classification(p: Float[Array, "sample point class"], y: Integer[Array, "point"]) -> Float[Array, "point"]:
    """Predictive log-likelihood in nats, ln of the mean over samples of p[y], in [−∞, 0]; higher is better.

    A mean of 0 gives −∞, without clipping. `pll_from_log_likelihood` stays finite where probabilities underflow.

    Source: Teye, Azizpour & Smith 2018, §4 (PLL).
    """
    xp = array_namespace(p)
    return log(xp.mean(true_class_values(p, y), axis=0))


def pll_from_log_likelihood(
    log_likelihood: Float[Array, "sample point"], weights: Float[Array, "*replicate sample"] | None = None
) -> Float[Array, "*replicate point"]:
    """Predictive log-likelihood in nats, ln Σ_t w_t exp(log-likelihood_t), in [−∞, 0]; higher is better.

    Without `weights` every sample has weight 1/T. Weights of shape (R, T), each row summing to 1, give R replicates
    (R, n). Accurate even where a replicate leaves out the only sample with a likely true class.

    Source: Teye, Azizpour & Smith 2018, §4 (PLL).
    """
    xp, location, dtype = array_namespace(log_likelihood), device(log_likelihood), log_likelihood.dtype
    samples = log_likelihood.shape[0]
    if weights is None:
        return _log_sum(log_likelihood, xp.full((samples,), 1 / samples, dtype=dtype, device=location))
    rows = xp.asarray(weights, dtype=dtype, device=location)
    if rows.ndim == 1:
        return pll_from_log_likelihood(log_likelihood, rows[None, :])[0]
    # One product serves all replicates; only sums so small that terms may have underflowed are computed again.
    pll, underflowed = pll_of_product(log_likelihood, rows)
    if bool(xp.any(underflowed)):
        for row in range(rows.shape[0]):
            if bool(xp.any(underflowed[row])):
                used = rows[row] > 0
                pll[row, underflowed[row]] = _log_sum(log_likelihood[:, underflowed[row]][used], rows[row][used])
    return pll


def pll_of_product(
    log_likelihood: Float[Array, "sample point"], rows: Float[Array, "replicate sample"]
) -> tuple[Float[Array, "replicate point"], Bool[Array, "replicate point"]]:
    """`pll_from_log_likelihood` of R replicates by one product, and where its sums are so small that terms may have
    underflowed.

    Source: Teye, Azizpour & Smith 2018, §4 (PLL).
    """
    limits = array_namespace(rows).finfo(rows.dtype)
    top = _finite_max(log_likelihood)
    total = rows @ array_namespace(rows).exp(log_likelihood - top)
    return log(total) + top, total < limits.smallest_normal / limits.eps


def _log_sum(terms: Float[Array, "sample point"], weights: Float[Array, "sample"]) -> Float[Array, "point"]:
    top = _finite_max(terms)
    return log(weights @ array_namespace(terms).exp(terms - top)) + top


def _finite_max(terms: Float[Array, "sample point"]) -> Float[Array, "point"]:
    xp = array_namespace(terms)
    top = xp.max(terms, axis=0)
    return xp.where(top == -float("inf"), xp.zeros_like(top), top)


def entropy(p: Float[Array, "*any class"]) -> Float[Array, "*any"]:
    """Entropy of each distribution in nats, in [0, ln K]; no direction.

    0·ln 0 is 0, so a one-hot distribution has entropy exactly 0. Nearly one-hot distributions keep their relative
    precision, because the largest probability is computed as 1 minus the sum of the others.

    Source: Shannon 1948, A Mathematical Theory of Communication, §6.
    """
    xp = array_namespace(p)
    other_probabilities = _all_but_largest(p)
    total = xp.sum(other_probabilities, axis=-1)
    largest = (1 - total) * xp.log1p(-total)
    # Adding the smallest normal number does not change relevant logarithms, and makes 0·ln 0 equal 0.
    logs = xp.log(other_probabilities + float(xp.finfo(p.dtype).smallest_normal))
    # Subtracted from 0, because a unary minus would turn the 0 of a one-hot distribution into −0.0.
    return 0.0 - largest - xp.sum(other_probabilities * logs, axis=-1)


def _all_but_largest(p: Float[Array, "*any class"]) -> Float[Array, "*any class"]:
    """`p` with 0 in place of the largest probability, the first one in case of ties."""
    xp = array_namespace(p)
    is_largest = predicted(p)[..., None] == xp.arange(p.shape[-1], device=device(p))
    return xp.where(is_largest, xp.zeros_like(p), p)


def least_confidence(p: Float[Array, "*sample point class"]) -> Float[Array, "point"]:
    """1 − the largest probability of the mean prediction, in [0, 1 − 1/K]; no direction.

    Summed over the other classes, so that points whose largest probability rounds to 1 remain distinguishable.

    Source: Hendrycks & Gimpel 2017, A Baseline for Detecting Misclassified and Out-of-Distribution Examples.
    """
    return array_namespace(p).sum(_all_but_largest(predictive(p)), axis=-1)


def predictive_entropy(p: Float[Array, "sample point class"]) -> Float[Array, "point"]:
    """Entropy of the mean prediction in nats, total uncertainty, in [0, ln K]; no direction.

    Source: Gal 2016, Uncertainty in Deep Learning, §3.3.1.
    """
    return entropy(_mean_over_samples(p))


def predictive(p: Float[Array, "*sample point class"]) -> Float[Array, "point class"]:
    """The mean prediction (n, K) of samples (T, n, K); a mean prediction is returned unchanged.

    Source: definition.
    """
    return _mean_over_samples(p) if p.ndim == 3 else p


def _mean_over_samples(values: Float[Array, "sample *rest"]) -> Float[Array, "*rest"]:
    # Deviations from the first sample are averaged, not the samples: exact where all agree, and accurate in float32
    # where they nearly agree, which is where mutual information is a small difference of two entropies.
    return values[0] + array_namespace(values).mean(values - values[0], axis=0)


def expected_entropy(p: Float[Array, "sample point class"]) -> Float[Array, "point"]:
    """Mean entropy of the samples in nats, aleatoric uncertainty, in [0, predictive entropy]; no direction.

    Source: Mukhoti et al. 2020, On Batch Normalisation for Approximate Bayesian Inference; Gal 2016, §3.3.1.
    """
    return _mean_over_samples(entropy(p))


def mutual_information(
    p: Float[Array, "sample point class"], *, estimator: Estimator = "plug-in"
) -> Float[Array, "point"]:
    """Mutual information of class and sample in nats, epistemic; no direction.

    "plug-in": predictive minus expected entropy, which is the mean of KL(p_t ‖ mean p), in [0, ln min(K, T)]. It is 0
    where all samples agree, and about 1 − 1/T of its limit at any T. Not clipped: rounding may make it slightly
    negative, about −1e-7 in float32.
    "corrected": the plug-in × T/(T − 1), which removes that bias to first order, in [0, T/(T−1) · ln min(K, T)].
    "jackknife": T·MI − (T−1)·mean_t MI₍₋ₜ₎, where MI₍₋ₜ₎ is the plug-in without sample t: as good as "corrected" where
    samples disagree little, better where they disagree more. In (−∞, ∞): the value of a point may be slightly negative.
    The rounding error grows with T, to about 1e-5 in float32. A single sample gives 0 with every estimator.

    Source: Houlsby et al. 2011, Bayesian Active Learning for Classification and Preference Learning, §2; Mukhoti et al.
    2020; the jackknife: Quenouille 1956, Notes on Bias in Estimation; Efron & Tibshirani 1993, ch. 10.
    """
    predictive, samples = predictive_entropy(p), p.shape[0]
    plug_in = predictive - expected_entropy(p)
    if estimator == "plug-in" or samples == 1:
        return plug_in
    if estimator == "corrected":
        return plug_in * (samples / (samples - 1))
    xp = array_namespace(p)
    left_out = xp.asarray(1 - np.eye(samples), dtype=p.dtype, device=device(p)) / (samples - 1)
    without = xp.reshape(left_out @ xp.reshape(p, (samples, -1)), p.shape)
    return jackknifed_mutual_information(plug_in, predictive, entropy(without))


def jackknifed_mutual_information(
    plug_in: Float[Array, "point"], predictive: Float[Array, "point"], left_out: Float[Array, "sample point"]
) -> Float[Array, "point"]:
    """The jackknife of the mutual information in nats, in (−∞, ∞); no direction.

    From the plug-in, the predictive entropy, and the predictive entropy without each sample. Expected entropy is a mean
    over samples, which the jackknife does not change.

    Source: Quenouille 1956, Notes on Bias in Estimation; Efron & Tibshirani 1993, ch. 10.
    """
    xp = array_namespace(left_out)
    return plug_in + (left_out.shape[0] - 1) * xp.mean(predictive - left_out, axis=0)


def max_probability(p: Float[Array, "sample point class"]) -> Float[Array, "point"]:
    """Probability of the predicted class in the mean prediction, in [1/K, 1]; no direction.

    The OOD score `least_confidence` is 1 minus it.

    Source: Hendrycks & Gimpel 2017, A Baseline for Detecting Misclassified and Out-of-Distribution Examples.
    """
    return array_namespace(p).max(_mean_over_samples(p), axis=-1)


def predicted(p: Float[Array, "*any class"]) -> Integer[Array, "*any"]:
    """The most probable class of each distribution, 0 … K−1; the lowest one in case of ties.

    For samples (T, n, K) these are the votes (T, n); `predicted(p.mean(0))` is the prediction.

    Source: definition.
    """
    return array_namespace(p).argmax(p, axis=-1)


def correct(p: Float[Array, "*sample point class"], y: Integer[Array, "point"]) -> Float[Array, "point"]:
    """1 where the most probable class of the mean prediction is the true one, else 0; higher is better.

    Source: definition.
    """
    xp = array_namespace(p)
    return xp.astype(predicted(predictive(p)) == xp.asarray(y, dtype=xp.int64, device=device(p)), p.dtype)


def brier(p: Float[Array, "*sample point class"], y: Integer[Array, "point"]) -> Float[Array, "point"]:
    """Brier score Σ_c (p_c − 1[c = y])² of the mean prediction, in [0, 2]; lower is better.

    Source: Brier 1950, Verification of Forecasts Expressed in Terms of Probability.
    """
    xp, location = array_namespace(p), device(p)
    difference = xp.asarray(predictive(p), copy=True)
    difference[xp.arange(difference.shape[0], device=location), xp.asarray(y, dtype=xp.int64, device=location)] -= 1
    return xp.sum(difference * difference, axis=-1)


def accuracy(p: Float[Array, "*sample point class"], y: Integer[Array, "point"]) -> float:
    """Share of points whose most probable class in the mean prediction is the true one, in [0, 1]; higher is better.

    Source: definition.
    """
    return float(array_namespace(p).mean(correct(p, y)))
