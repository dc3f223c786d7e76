"""Scores of dense outputs, from counts of pixels: exact to the bin of the score, and additive over images.

Images are the independent units, as pixels of one image are not. The contributions of images to an estimate are one
value for each: their mean is the estimate, and their standard error (`standard_error`) that of the estimate, to first
order. All sums are ratios, since images differ in their number of pixels.
"""

import math
from collections.abc import Callable
from dataclasses import fields
from typing import TypeVar

import numpy as np
from array_api_compat import device, is_torch_array

from bnuq.metrics.arrays import Array, array_namespace
from bnuq.metrics.detection import DetectionScores, detection_of_ladders
from bnuq.metrics.influence import NORMAL, TPR, Curve
from bnuq.metrics.replicates import standard_error
from bnuq.metrics.resampling import blocks
from bnuq.metrics.selective import SelectiveScores, selective_of_ties
from bnuq.shapes import Float, Integer, Shaped

SCORE_BINS, COARSE_BINS = 2**16, 2**10
_DROPPED = 12  # bits of the 23 of a float32's mantissa
_BIAS = 127  # of its exponent

Scores = TypeVar("Scores", DetectionScores[np.ndarray], SelectiveScores[np.ndarray])


def score_bins(scores: Float[Array, "*any"], *, signed: bool = False) -> Integer[Array, "*any"]:
    """The bin 0 … 2¹⁶ − 1 of each score, in the order of the scores; no direction.

    2048 bins for each power of two, so that a bin is at most 0.05 % wide. Scores that are not negative (entropies,
    mutual information, 1 − confidence): from 2⁻²⁴ to 2⁸, with bin 0 for all below. `signed` (energy, −max logit): 2¹⁵
    bins for each sign, from 2⁻⁸ to 2⁸; −0 is 0. The end bins have all that is beyond. The first is that of a NaN with a
    minus, the last that of any other: exclude them before. uint16, or int32 on its device for a tensor.

    Source: definition; the leading bits of IEEE 754 binary32, which order as the numbers do.
    """
    xp = array_namespace(scores)
    with np.errstate(over="ignore"):  # beyond the last bin anyway
        values = xp.astype(scores, xp.float32, copy=False)
    half = SCORE_BINS // 2
    bins = (xp.abs(values) if signed else values).view(xp.int32) >> _DROPPED
    bins -= _origin(signed)  # in place, as what follows: scores of images are large
    last = (half if signed else SCORE_BINS) - 1
    bins = bins.clip_(0, last) if is_torch_array(bins) else bins.clip(0, last)
    if signed:
        bins ^= (values + 0).view(xp.int32) >> 31  # −1 − bins where they are negative, and −0 is not
        bins += half
    return bins if is_torch_array(bins) else bins.astype(np.uint16)


def _origin(signed: bool) -> int:
    """The shortened bits of the smallest magnitude with its own bin, less 1."""
    return (_BIAS - (8 if signed else 24) << 23 - _DROPPED) - 1


def bin_values(*, signed: bool = False) -> Float[np.ndarray, "bin"]:
    """The middle of each bin of `score_bins`, whose bin it is, in the unit of the score; 0 for bin 0 of unsigned ones.

    Source: definition.
    """
    bins = np.arange(SCORE_BINS // 2 if signed else SCORE_BINS, dtype=np.int32)
    bits = (bins + _origin(signed) << _DROPPED) + (1 << _DROPPED - 1)
    values = bits.astype(np.int32).view(np.float32).astype(np.float64)
    values[0] = 2.0**-9 if signed else 0
    return np.concatenate([-values[::-1], values]) if signed else values


def histogram(
    bins: Integer[Array, "*row pixel"], weight: Shaped[Array, "*#row #pixel"] | None = None, *, size: int = SCORE_BINS
) -> Integer[Array, "*row bin"]:
    """The number of pixels in each bin, int64 of shape (*row, size); no direction.

    `weight` is an integer for each pixel, or whether it counts. For coarse bins: `histogram(bins >> 6, size=1024)`.

    Source: definition.
    """
    xp, rows = array_namespace(bins), math.prod(bins.shape[:-1])
    offset = size * xp.reshape(xp.arange(rows, dtype=xp.int64, device=device(bins)), (*bins.shape[:-1], 1))
    cells = xp.reshape(xp.astype(bins, xp.int64) + offset, (-1,))
    if weight is not None:  # counted as floats, which is exact up to 2⁵³
        weight = xp.reshape(xp.broadcast_to(xp.astype(weight, xp.float64), bins.shape), (-1,))
    counts = xp.bincount(cells, weights=weight, minlength=rows * size)
    return xp.reshape(xp.astype(counts, xp.int64), (*bins.shape[:-1], size))


def detection_of_histograms(
    inside: Integer[np.ndarray, "*replicate bin"], outside: Integer[np.ndarray, "*replicate bin"]
) -> DetectionScores[np.ndarray]:
    """The results of `detection` on the bins of pixels, each of shape (*replicate,).

    `inside` counts in-distribution (or right) pixels, `outside` OOD (or wrong) ones, by `histogram`. NaN if a row of
    either is empty.

    Source: as `detection`.
    """

    def scores(inside: np.ndarray, outside: np.ndarray) -> DetectionScores[np.ndarray]:
        missing = (inside.sum(-1) == 0) | (outside.sum(-1) == 0)
        values = vars(detection_of_ladders(inside[:, ::-1], outside[:, ::-1]))
        return DetectionScores(**{name: np.where(missing, math.nan, value) for name, value in values.items()})

    return _by_rows(scores, inside, outside)


def _by_rows(
    scores: Callable[[np.ndarray, np.ndarray], Scores],
    first: Integer[np.ndarray, "*replicate bin"],
    second: Integer[np.ndarray, "*replicate bin"],
) -> Scores:
    """The scores of each row of two histograms, a block of rows at a time, without bins that are empty in all rows."""
    shape, bins = first.shape[:-1], first.shape[-1]
    first, second = first.reshape(-1, bins), second.reshape(-1, bins)
    used = np.flatnonzero(np.any(first, axis=0) | np.any(second, axis=0))
    used = used if used.size else np.arange(1)
    parts, start = [], 0
    with np.errstate(divide="ignore", invalid="ignore"):  # rows without pixels
        for rows in blocks(len(first), width=used.size):
            here = slice(start, start := start + rows)
            parts.append(scores(first[here][:, used], second[here][:, used]))
    names = [field.name for field in fields(parts[0])]
    return type(parts[0])(**{n: np.concatenate([getattr(part, n) for part in parts]).reshape(shape) for n in names})


def ratio_contributions(
    total: Shaped[np.ndarray, "image *rest"], count: Shaped[np.ndarray, "image *rest"]
) -> Float[np.ndarray, "image *rest"]:
    """The contributions of images to Σ total/Σ count, in its unit; no direction. NaN if Σ count is 0.

    Source: Cochran 1977, Sampling Techniques, §2.11, the error of a ratio.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.sum(total, axis=0) / np.sum(count, axis=0)
        return ratio + (total - ratio * count) / np.mean(count, axis=0)


def detection_influence_of_images(
    inside: Integer[np.ndarray, "image bin"], outside: Integer[np.ndarray, "other bin"]
) -> DetectionScores[tuple[np.ndarray, np.ndarray]]:
    """The influences of images on `detection_of_histograms` of all their pixels, each a pair; no direction.

    Through the inside pixels of the images (n,), and through the outside pixels of these or other images (m,), each 0
    in the mean. Of the same images the sum of both is the influence; of two sets the error is √(se² + se²). AUROC:
    placements. AUPR: also by the share of positive pixels, which varies with the images. FPR: linear within a bin; the
    slope of the ROC curve is that across a standard error of the true-positive rate. Its error agrees with the
    bootstrap over images within 10 % (120 images, AUROC 0.58 to 0.96); for scores of so few values that the rate goes
    in steps, it is down to 0.73 of that. Coarse bins suffice.

    Source: Obuchowski 1997, Nonparametric Analysis of Clustered ROC Curve Data (AUROC); otherwise as
    `detection_influence`, with images for points.
    """
    used = np.flatnonzero(np.any(inside, axis=0) | np.any(outside, axis=0))
    low, high = inside[:, used].astype(np.float64), outside[:, used].astype(np.float64)
    rising = Curve.of(low.sum(0), high.sum(0))  # inside pixels are the positives: the smallest score comes first
    falling = rising.reversed()

    def of_precision(curve: Curve, positive: np.ndarray, negative: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        positive_influence, negative_influence = curve.average_precision()
        called = curve.true_positives + curve.false_positives
        share_influence = np.sum(curve.positive * curve.true_positives * curve.false_positives / called**2)
        share_influence /= curve.true_positives[-1]
        shares = (
            _mean_of_pixels(positive, positive_influence + share_influence),
            _mean_of_pixels(negative, negative_influence - share_influence),
        )
        return shares[0] - share_influence, shares[1] + share_influence

    low_area, high_area = rising.area()
    low_precision, high_precision = of_precision(rising, low, high)
    out_high, out_low = of_precision(falling, high[:, ::-1], low[:, ::-1])
    fpr_high, fpr_low = _fpr95_influence(high[:, ::-1], low[:, ::-1])
    return DetectionScores(
        auroc=(_mean_of_pixels(low, low_area), _mean_of_pixels(high, high_area)),
        aupr_out=(out_low, out_high),
        aupr_in=(low_precision, high_precision),
        fpr95=(fpr_low, fpr_high),
        fpr95_id_positive=_fpr95_influence(low, high),
    )


def _mean_of_pixels(counts: Float[np.ndarray, "image bin"], values: Float[np.ndarray, "bin"]) -> np.ndarray:
    """What each image adds to the mean over all pixels of a value by bin, times the number of images."""
    return counts @ values * (len(counts) / np.sum(counts))


def _fpr95_influence(
    positive: Float[np.ndarray, "image bin"], negative: Float[np.ndarray, "other bin"]
) -> tuple[np.ndarray, np.ndarray]:
    """Influences on the false-positive rate at 95 % true positives, of images through their positive pixels, and
    through their negative ones; bins by decreasing score of being positive."""
    rates = [np.concatenate([[0.0], np.cumsum(counts.sum(0)) / counts.sum()]) for counts in (positive, negative)]
    tpr, first = np.unique(rates[0], return_index=True)  # of thresholds with the same TPR, that of the smallest FPR
    fpr = rates[1][first]
    threshold = np.interp(TPR, tpr, first)

    def above(counts: Float[np.ndarray, "any bin"]) -> np.ndarray:
        whole = min(int(threshold), counts.shape[1] - 1)
        called = counts[:, :whole].sum(1) + (threshold - whole) * counts[:, whole]
        return (called - np.sum(called) / np.sum(counts) * counts.sum(1)) / np.mean(counts.sum(1))

    positive_influence = above(positive)
    error = standard_error(positive_influence)
    slope = float(np.std(np.interp(np.clip(TPR + error * NORMAL, 0, 1), tpr, fpr))) / error if error > 0 else 0.0
    return -slope * positive_influence, above(negative)


def selective_of_histograms(
    right: Integer[np.ndarray, "*replicate bin"], wrong: Integer[np.ndarray, "*replicate bin"]
) -> SelectiveScores[np.ndarray]:
    """The results of `selective` for the 0/1 errors of pixels by the bins of their uncertainty, each (*replicate,).

    `right` and `wrong` count pixels by `histogram`. NaN if a row of both is empty.

    Source: as `selective`.
    """

    def scores(right: np.ndarray, wrong: np.ndarray) -> SelectiveScores[np.ndarray]:
        values = vars(selective_of_ties(right + wrong, wrong.astype(np.float64)))
        missing = (right + wrong).sum(-1) == 0
        return SelectiveScores(**{name: np.where(missing, math.nan, value) for name, value in values.items()})

    return _by_rows(scores, right, wrong)


def selective_contributions(
    right: Integer[np.ndarray, "image bin"], wrong: Integer[np.ndarray, "image bin"], *, values: SelectiveScores[float]
) -> SelectiveScores[np.ndarray]:
    """The contributions of images to `values`, the `selective_of_histograms` of all their pixels, each (image,).

    The pseudo-values of the jackknife over images, shifted to the mean `values`, from (coarse) histograms of each
    image. The coverage at 5 % risk jumps where the risk is at 5 % more than once: its error is rough there. NaN for a
    single image. No direction.

    Source: Efron & Tibshirani 1993, An Introduction to the Bootstrap, ch. 11.
    """
    without = vars(selective_of_histograms(right.sum(0) - right, wrong.sum(0) - wrong))
    return SelectiveScores(
        **{n: value - (len(right) - 1) * (without[n] - np.mean(without[n])) for n, value in vars(values).items()}
    )


def risk_coverage_of_histograms(
    right: Integer[np.ndarray, "bin"], wrong: Integer[np.ndarray, "bin"], *, places: int = 200
) -> tuple[Float[np.ndarray, "place"], Float[np.ndarray, "place"]]:
    """`risk_coverage` of pixels by the bins of their uncertainty, at up to `places` coverages k/n; less risk is better.

    Source: as `risk_coverage`.
    """
    covered, lost = (np.concatenate([[0], np.cumsum(counts)]) for counts in (right + wrong, wrong))
    pixels = int(covered[-1])
    retained = np.unique(-(-np.arange(1, places + 1) * pixels // places))
    retained = retained[retained > 0]
    return retained / max(pixels, 1), np.interp(retained, covered, lost) / retained


def ece_contributions(sums: Shaped[np.ndarray, "image 3 bin"]) -> Float[np.ndarray, "image"]:
    """The contributions of images to the ECE of all their pixels, `ece_of_bins` of the sums over images; no direction.

    `sums` are the number of pixels, their confidence and their hits in each bin, as in `CalibrationBins`. Gaps count
    with their sign, less if they are within their noise, as in `ece_influence`.

    Source: as `ece_influence`, with images for groups.
    """
    count, over = sums[:, 0].astype(np.float64), sums[:, 2] - sums[:, 1]
    gap, images = np.sum(over, axis=0), np.count_nonzero(count, axis=0)
    spread = over - gap / np.maximum(np.sum(count, axis=0), 1) * count
    noise = np.sqrt(images / np.maximum(images - 1, 1) * np.sum(spread**2, axis=0))
    noise[images < 2] = 0
    slope = np.sign(gap)
    slope[noise > 0] = [math.erf(steps) for steps in gap[noise > 0] / noise[noise > 0]]
    pixels = np.sum(count, axis=1)
    with np.errstate(invalid="ignore"):
        influence = ratio_contributions(over @ slope, pixels)
        return influence - np.mean(influence) + np.sum(np.abs(gap)) / np.sum(pixels)


def classwise_ece(sums: Shaped[np.ndarray, "*replicate class 3 bin"]) -> Float[Array, "*replicate"]:
    """The mean over classes of Σ_k |hits − probability|/n, in [0, 1]; lower is better.

    `sums` over the pixels are, for each class, of its probability as the confidence and of whether it is the true class
    as the hits. Stored for each image they take 3 K bins numbers; for many classes, only the sums are worth it.

    Source: Kull et al. 2019, Beyond Temperature Scaling (classwise ECE); Nixon et al. 2019, Measuring Calibration
    in Deep Learning (static calibration error).
    """
    gap = np.sum(np.abs(sums[..., 2, :] - sums[..., 1, :]), axis=-1)
    with np.errstate(invalid="ignore"):
        return np.mean(gap / np.sum(sums[..., 0, :], axis=-1), axis=-1)


def classwise_ece_contributions(sums: Shaped[np.ndarray, "image class 3 bin"]) -> Float[np.ndarray, "image"]:
    """The contributions of images to `classwise_ece` of the sums over images; no direction.

    Source: as `ece_contributions`.
    """
    return np.mean([ece_contributions(sums[:, k]) for k in range(sums.shape[1])], axis=0)
