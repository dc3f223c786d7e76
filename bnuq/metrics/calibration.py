"""Calibration of classifiers: the gap between stated confidence and accuracy."""

import math

import numpy as np
from array_api_compat import device

from bnuq.frozen import frozen
from bnuq.metrics.arrays import Array, array_namespace, as_float64, as_numpy, like, ties_of_rows
from bnuq.metrics.classification import correct, predictive
from bnuq.metrics.resampling import counts_in_blocks, draws_cells, moments_of_cells, resampled_counts, resampled_sums
from bnuq.shapes import Float, Integer, Shaped


@frozen
class CalibrationBins:
    """Sums over the points of each bin of confidence; the sums of two sets of points are added with `+`."""

    count: Integer[Array, "*replicate bin"]
    confidence: Float[Array, "*replicate bin"]
    correct: Float[Array, "*replicate bin"]

    def __add__(self, other: "CalibrationBins") -> "CalibrationBins":
        return CalibrationBins(
            count=self.count + other.count,
            confidence=self.confidence + other.confidence,
            correct=self.correct + other.correct,
        )


def calibration_bins(
    confidence: Float[Array, "*replicate point"], correct: Float[Array, "*replicate point"], *, bins: int = 15
) -> CalibrationBins:
    """Sums of points, confidence and hits in equal-width bins of confidence over [0, 1]; no direction.

    Bins are (low, high], so that confidence 1 is in the last one; confidence 0 goes to the first.
    Leading axes are replicates: (R, n) in, sums of shape (R, bins) out.

    Source: Guo et al. 2017, On Calibration of Modern Neural Networks, §2.
    """
    xp, stated, hits = array_namespace(confidence), as_float64(confidence), as_float64(correct)
    replicates, rows = stated.shape[:-1], math.prod(stated.shape[:-1])
    # Summed by numpy: the order of summation on an accelerator is not deterministic.
    cell = (_bin(stated, edges_of(confidence, bins)) + bins * np.arange(rows).reshape(*replicates, 1)).ravel()

    def sums(values: np.ndarray) -> np.ndarray:
        totals = np.bincount(cell, weights=values.ravel(), minlength=rows * bins)
        return totals.astype(np.float64).reshape(*replicates, bins)

    count = np.bincount(cell, minlength=rows * bins).reshape(*replicates, bins)
    return CalibrationBins(
        count=xp.asarray(count, dtype=xp.int64, device=device(confidence)),
        confidence=like(sums(stated), confidence),
        correct=like(sums(hits), correct),
    )


def _bin(stated: Float[np.ndarray, "*any"], edges: Float[np.ndarray, "edge"]) -> Integer[np.ndarray, "*any"]:
    """The bin (low, high] of each confidence: guessed from the bin width, then corrected by the edges."""
    last = edges.size - 2
    guess = np.clip((stated * (last + 1)).astype(np.int64), 0, last)
    guess -= stated <= edges[guess]
    np.maximum(guess, 0, out=guess)
    guess += stated > edges[guess + 1]
    return np.minimum(guess, last, out=guess)


def edges_of(confidence: Float[Array, "*replicate point"], bins: int) -> Float[np.ndarray, "edge"]:
    # In the precision of the confidence: a float32 of 0.2 would lie above a float64 edge at 0.2.
    return as_float64(array_namespace(confidence).asarray([k / bins for k in range(bins + 1)], dtype=confidence.dtype))


def ece_of_bins(bins: CalibrationBins) -> Float[Array, "*replicate"]:
    """Expected calibration error Σ_k (n_k/n) |accuracy_k − confidence_k|, in [0, 1]; lower is better.

    Empty bins add nothing.

    Source: Naeini, Cooper & Hauskrecht 2015, Obtaining Well Calibrated Probabilities Using Bayesian Binning; Guo et al.
    2017, eq. 3.
    """
    xp = array_namespace(bins.confidence)
    points = xp.astype(xp.sum(bins.count, axis=-1), bins.confidence.dtype)
    return xp.sum(xp.abs(bins.correct - bins.confidence), axis=-1) / points


def ece_floor(
    count: Integer[np.ndarray, "bin"],
    confidence: Float[np.ndarray, "bin"],
    *,
    levels: tuple[float, ...] = (0.95,),
    draws: int = 1000,
    seed: int = 0,
) -> tuple[float, ...]:
    """The ECE of a calibrated classifier on so many points, in [0, 1]: its mean over simulated labels, and what these
    shares of them do not exceed. `confidence` is the mean of each bin, of any value where it is empty; less is better.

    The hits of a bin are drawn as Binomial(n_k, mean confidence), in place of one draw for each point: their variance
    n_k c̄(1 − c̄) exceeds Σ c_i(1 − c_i) by that of the confidences in a bin, at most n_k/900, so the floor is at most
    slightly too high, and 10⁶ points cost as little as 100.

    Source: Vaicenavicius et al. 2019, Evaluating Model Calibration in Classification, §5.2 (consistency resampling).
    """
    points, stated = np.asarray(count, dtype=np.int64), np.where(count > 0, confidence, 0.0).clip(0, 1)
    hits = np.random.default_rng(seed).binomial(points, stated, size=(draws, len(points)))
    gaps = np.abs(hits - points * stated).sum(-1) / points.sum()
    return float(gaps.mean()), *map(float, np.quantile(gaps, levels))


def ece(p: Float[Array, "*sample point class"], y: Integer[Array, "point"], *, bins: int = 15) -> float:
    """Expected calibration error of the most probable class, in [0, 1]; lower is better.

    Equal-width bins (low, high] of the largest probability of the mean prediction, that of samples (T, n, K) or (n, K).

    Source: Guo et al. 2017, eq. 3.
    """
    mean = predictive(p)
    confidence = array_namespace(mean).max(mean, axis=-1)
    return float(ece_of_bins(calibration_bins(confidence, correct(mean, y), bins=bins)))


def mce_of_bins(bins: CalibrationBins) -> Float[Array, "*replicate"]:
    """Maximum calibration error max_k |accuracy_k − confidence_k| over bins that are not empty, in [0, 1]; less is
    better. A bin of few points may decide it.

    Source: Naeini, Cooper & Hauskrecht 2015; Guo et al. 2017, eq. 5.
    """
    xp = array_namespace(bins.confidence)
    count = xp.astype(bins.count, bins.confidence.dtype)
    return xp.max(xp.abs(bins.correct - bins.confidence) / xp.maximum(count, xp.ones_like(count)), axis=-1)


def ece_debiased_of_bins(bins: CalibrationBins) -> Float[Array, "*replicate"]:
    """Root mean square calibration error without the bias of finitely many points, in [0, 1]; lower is better.

    √max(0, Σ_k (n_k/n) [(accuracy_k − confidence_k)² − accuracy_k (1 − accuracy_k)/(n_k − 1)]). The square of a gap
    contains the variance of its accuracy, which is subtracted: 0 means that no miscalibration shows above the noise.
    The noise of a bin of one point is not known: it counts as 0.

    Source: Kumar, Liang & Ma 2019, Verified Uncertainty Calibration, the debiased estimator; here of bins of equal
    width.
    """
    xp = array_namespace(bins.confidence)
    count = xp.astype(bins.count, bins.confidence.dtype)
    ones = xp.ones_like(count)
    size = xp.maximum(count, ones)
    accuracy = bins.correct / size
    gap = accuracy - bins.confidence / size
    noise = accuracy * (1 - accuracy) / xp.maximum(count - 1, ones)
    squares = xp.where(count > 1, count * (gap**2 - noise), xp.zeros_like(count))
    square = xp.sum(squares, axis=-1) / xp.sum(count, axis=-1)
    return xp.sqrt(xp.maximum(square, xp.zeros_like(square)))


def ece_adaptive(confidence: Float[Array, "point"], correct: Float[Array, "point"], *, bins: int = 15) -> float:
    """Adaptive calibration error Σ_k (n_k/n) |accuracy_k − confidence_k| over bins of equally many points, in [0, 1];
    lower is better.

    Of the most probable class, in the order of its confidence. Bin k has the points from place ⌊kn/15⌋ on. Points of
    equal confidence count with the mean of their tie, so that their order does not matter.

    Source: Nguyen & O'Connor 2015, Posterior Calibration and Exploratory Analysis, §3 (adaptive bins); Nixon et al.
    2019, Measuring Calibration in Deep Learning, §4.
    """
    return float(ece_adaptive_of_replicates(as_float64(confidence)[None], as_float64(correct)[None], bins=bins)[0])


def ece_adaptive_of_replicates(
    confidence: Float[Array, "replicate point"], correct: Float[Array, "replicate point"], *, bins: int = 15
) -> Float[np.ndarray, "replicate"]:
    """`ece_adaptive` of each row, as if computed one by one.

    Source: as `ece_adaptive`.
    """
    stated, hits = as_float64(confidence), as_float64(correct)
    ties = ties_of_rows(stated)
    tied = np.repeat(ties.sums(hits - stated) / ties.count, ties.count).reshape(stated.shape)
    total = np.concatenate([np.zeros((len(tied), 1)), np.cumsum(tied, axis=1)], axis=1)
    gaps = np.diff(total.take(equal_mass(stated.shape[1], bins), axis=1), axis=1)  # row by row
    return np.sum(np.abs(gaps), axis=1) / stated.shape[1]


def classwise_signs(
    p: Float[Array, "point class"], y: Integer[Array, "point"], *, bins: int = 15
) -> Integer[np.ndarray, "point class"]:
    """The sign of the gap, Σ (1[y = k] − p_k), of the bin of class k that each p_k is in: −1, 0 or 1; no direction.

    Bins are those of `calibration_bins`, of the probability of each class by itself.

    Source: Kull et al. 2019, Beyond Temperature Scaling, §2 (classwise calibration); the derivative of |gap|.
    """
    probabilities, truth = as_numpy(p), as_numpy(y)
    edges, signs = edges_of(p, bins), np.empty(probabilities.shape, dtype=np.int8)
    for k in range(probabilities.shape[1]):  # by class, so that little memory is needed
        stated = probabilities[:, k].astype(np.float64)
        cell = _bin(stated, edges)
        signs[:, k] = np.sign(np.bincount(cell, weights=(truth == k) - stated, minlength=bins))[cell]
    return signs


def ece_classwise(
    p: Float[Array, "*sample point class"],
    y: Integer[Array, "point"],
    *,
    signs: Integer[np.ndarray, "point class"] | None = None,
) -> Float[np.ndarray, "*sample point"]:
    """What each point adds to the classwise calibration error, in [−1, 1]; their mean is the error, lower is better.

    1/K Σ_k s_k (1[y = k] − p_k), with the signs of `classwise_signs`, whose mean over points is
    1/(nK) Σ_k Σ_bins |Σ_{points in the bin} (1[y = k] − p_k)|. Without `signs` they are
    those of p, which is then (n, K).

    Source: Kull et al. 2019, Beyond Temperature Scaling, §2; Nixon et al. 2019, Measuring Calibration in Deep Learning
    (static calibration error).
    """
    probabilities, truth = as_numpy(p), as_numpy(y)
    signs = classwise_signs(p, y) if signs is None else signs
    hit = signs[np.arange(len(truth)), truth].astype(np.float64)
    return (hit - np.einsum("...ik,ik->...i", probabilities, signs, dtype=np.float64)) / probabilities.shape[-1]


def equal_mass(points: int, bins: int) -> Integer[np.ndarray, "edge"]:
    """The places at which bins of equally many points start and end."""
    return np.arange(bins + 1) * points // bins


def calibration_bootstrap(
    confidence: Float[Array, "point"],
    correct: Float[Array, "point"],
    *,
    bins: int = 15,
    resamples: int = 1000,
    seed: int = 0,
    group: Shaped[Array, "point"] | None = None,
) -> CalibrationBins:
    """The `calibration_bins` of bootstrap replicates over points, with sums of shape (resamples, bins); no direction.

    Whole groups are drawn where `group` is given. Which points are drawn depends on (seed, n or groups) alone. Of more
    than 50,000 points without groups, the numbers of hits and misses in each bin are drawn, and what confidence sums to
    there.

    Source: Efron & Tibshirani 1993, An Introduction to the Bootstrap, ch. 6 and 13.
    """
    stated, hits = as_float64(confidence), as_float64(correct)
    points, cell = stated.size, _bin(stated, edges_of(confidence, bins))
    if draws_cells(points, group):
        generator, cell = np.random.default_rng(seed), cell + bins * (hits == 1)
        drawn = resampled_counts(generator, resamples, bin_of_point=cell, bins=2 * bins)
        confidence_sums = resampled_sums(generator, drawn, moments_of_cells(stated, cell, 2 * bins))
        count, confidence_sums = (sums.reshape(resamples, 2, bins) for sums in (drawn, confidence_sums))
        return CalibrationBins(count.sum(1), confidence_sums.sum(1), count[:, 1].astype(np.float64))
    sums = np.zeros((points, 3, bins))
    sums[np.arange(points), :, cell] = np.stack([np.ones(points), stated, hits], -1)
    drawn = counts_in_blocks(np.arange(points), resamples, seed=(seed,), group=group)
    replicates = [(counts.T @ sums.reshape(points, -1)).reshape(-1, 3, bins) for counts in drawn]
    count, confidence_sums, correct_sums = np.concatenate(replicates).swapaxes(0, 1)
    return CalibrationBins(count.astype(np.int64), confidence_sums, correct_sums)
