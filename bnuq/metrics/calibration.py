"""Calibration of classifiers: the gap between stated confidence and accuracy."""

import math
from dataclasses import dataclass

import numpy as np
from array_api_compat import array_namespace, device
from jaxtyping import Float, Integer, Shaped

from bnuq.metrics.arrays import Array, as_float64, like
from bnuq.metrics.classification import correct, predictive
from bnuq.metrics.replicates import group_index
from bnuq.metrics.resampling import blocks, resampled_counts


@dataclass(frozen=True)
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
    cell = (_bin(stated, _edges(confidence, bins)) + bins * np.arange(rows).reshape(*replicates, 1)).ravel()

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


def _edges(confidence: Float[Array, "*replicate point"], bins: int) -> Float[np.ndarray, "edge"]:
    # In the precision of the confidence: a float32 of 0.2 would lie above a float64 edge at 0.2.
    return as_float64(array_namespace(confidence).asarray([k / bins for k in range(bins + 1)], dtype=confidence.dtype))


def ece_of_bins(bins: CalibrationBins) -> Float[Array, "*replicate"]:
    """Expected calibration error Σ_k (n_k/n) |accuracy_k − confidence_k|, in [0, 1]; less is better.

    Empty bins add nothing.

    Source: Naeini, Cooper & Hauskrecht 2015, Obtaining Well Calibrated Probabilities Using Bayesian Binning; Guo et al.
    2017, eq. 3.
    """
    xp = array_namespace(bins.confidence)
    points = xp.astype(xp.sum(bins.count, axis=-1), bins.confidence.dtype)
    return xp.sum(xp.abs(bins.correct - bins.confidence), axis=-1) / points


def ece(p: Float[Array, "*sample point class"], y: Integer[Array, "point"], *, bins: int = 15) -> float:
    """Expected calibration error of the most probable class, in [0, 1]; less is better.

    Equal-width bins (low, high] of the largest probability of the mean prediction, that of samples (T, n, K) or (n, K).

    Source: Guo et al. 2017, eq. 3.
    """
    mean = predictive(p)
    confidence = array_namespace(mean).max(mean, axis=-1)
    return float(ece_of_bins(calibration_bins(confidence, correct(mean, y), bins=bins)))


def ece_bootstrap(
    confidence: Float[Array, "point"],
    correct: Float[Array, "point"],
    *,
    bins: int = 15,
    resamples: int = 1000,
    seed: int = 0,
    group: Shaped[Array, "point"] | None = None,
) -> Float[np.ndarray, "resample"]:
    """Bootstrap replicates over points of the ECE, shape (resamples,), in [0, 1]; less is better.

    Whole groups are drawn where `group` is given. Which points are drawn depends on (seed, n or groups) alone.

    Source: Efron & Tibshirani 1993, An Introduction to the Bootstrap, ch. 6 and 13.
    """
    stated, hits = as_float64(confidence), as_float64(correct)
    points = stated.size
    bin_of_point = _bin(stated, _edges(confidence, bins))
    gaps = np.zeros((points, bins))
    gaps[np.arange(points), bin_of_point] = hits - stated
    groups = None if group is None else group_index(group)
    generator = np.random.default_rng(seed)
    replicates = []
    for rows in blocks(resamples, width=points):
        count = resampled_counts(generator, rows, bin_of_point=np.arange(points), bins=points, group=groups)
        replicates.append(np.abs(count @ gaps).sum(axis=-1) / count.sum(axis=-1))
    return np.concatenate(replicates)
