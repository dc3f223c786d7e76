"""Overlap of predicted and true masks: IoU and Dice by class, and between draws; and one uncertainty for an image.

Counts are of the pixels that are not ignored: of each class in the truth, in the prediction, and in both. A map has one
number per pixel of an image, and `valid` are the pixels that are not ignored.
"""

import math

import numpy as np

from bnuq.metrics.arrays import Array
from bnuq.metrics.dense import ratio_contributions
from bnuq.shapes import Bool, Float, Int64, Integer

_BLOCK_PIXELS = 2**14  # of which the classes of all draws are compared at a time, in a cache


def iou_of_counts(
    truth: Integer[np.ndarray, "*any class"],
    predicted: Integer[np.ndarray, "*any class"],
    common: Integer[np.ndarray, "*any class"],
) -> Float[np.ndarray, "*any class"]:
    """Intersection over union of each class, in [0, 1]; higher is better. NaN if a class occurs in neither mask.

    Of counts summed over images it is the pooled IoU; leading axes are images or replicates. The mean IoU is its
    `mean_of_present`.

    Source: Everingham et al. 2015, The PASCAL Visual Object Classes Challenge: A Retrospective (pooled).
    """
    with np.errstate(invalid="ignore"):
        return common / (truth + predicted - common)


def dice_of_counts(
    truth: Integer[np.ndarray, "*any class"],
    predicted: Integer[np.ndarray, "*any class"],
    common: Integer[np.ndarray, "*any class"],
) -> Float[np.ndarray, "*any class"]:
    """Dice coefficient 2 |both|/(|true| + |predicted|) of each class, in [0, 1]; higher is better. NaN and axes as
    `iou_of_counts`.

    Source: Dice 1945, Measures of the Amount of Ecologic Association Between Species.
    """
    with np.errstate(invalid="ignore"):
        return 2 * common / (truth + predicted)


def mean_of_present(values: Float[np.ndarray, "*any class"]) -> Float[Array, "*any"]:
    """The mean over the classes that are not NaN, in the unit and direction of the values; NaN if all are.

    Of `iou_of_counts` over all images it is the mean IoU; of counts of single images, the mean IoU of each over the
    classes present there. Of `iou_contributions` it gives the contributions to the mean IoU.

    Source: definition; Everingham et al. 2015 for classes that all occur.
    """
    with np.errstate(invalid="ignore"):
        return np.nansum(values, axis=-1) / np.sum(~np.isnan(values), axis=-1)


def iou_contributions(
    truth: Integer[np.ndarray, "image class"],
    predicted: Integer[np.ndarray, "image class"],
    common: Integer[np.ndarray, "image class"],
) -> Float[np.ndarray, "image class"]:
    """The contributions of images to the pooled `iou_of_counts` of each class; no direction.

    Source: as `ratio_contributions`.
    """
    return ratio_contributions(common, truth + predicted - common)


def dice_contributions(
    truth: Integer[np.ndarray, "image class"],
    predicted: Integer[np.ndarray, "image class"],
    common: Integer[np.ndarray, "image class"],
) -> Float[np.ndarray, "image class"]:
    """The contributions of images to the pooled `dice_of_counts` of each class; no direction.

    Source: as `ratio_contributions`.
    """
    return ratio_contributions(2 * common, truth + predicted)


def overlap_of_draws(
    labels: Integer[np.ndarray, "draw *pixel"], valid: Bool[np.ndarray, "*pixel"], *, classes: int
) -> Int64[np.ndarray, "class draw draw"]:
    """The number of valid pixels that two draws both give to a class, for each pair of draws; the diagonal has the size
    of the class in each draw. Additive over tiles of pixels; no direction.

    Source: definition.
    """
    flat, seen = labels.reshape(len(labels), -1), np.flatnonzero(valid)
    common = np.zeros((classes, len(labels), len(labels)), np.int64)
    for start in range(0, seen.size, _BLOCK_PIXELS):
        here = flat[:, seen[start : start + _BLOCK_PIXELS]]
        for k in range(classes):
            member = (here == k).astype(np.float32)  # counts up to 2²⁴ are exact
            common[k] += (member @ member.T).astype(np.int64)
    return common


def pairwise_dice(common: Int64[np.ndarray, "class draw draw"]) -> float:
    """The mean over pairs of draws of their mean Dice coefficient, over the classes present in either, in [0, 1].

    From `overlap_of_draws`; give only the rows of some classes to leave out the others. 1 − this is an uncertainty of
    the image. NaN for a single draw, or without pixels. No direction.

    Source: Roy et al. 2019, Bayesian QuickNAT (agreement of samples); Zenk et al. 2025, Comparative Benchmarking
    of Failure Detection Methods in Medical Image Segmentation (mean pairwise Dice).
    """
    size = np.diagonal(common, axis1=1, axis2=2)
    first, second = np.triu_indices(common.shape[1], 1)
    dice = dice_of_counts(size[:, first].T, size[:, second].T, common[:, first, second].T)
    pairs = mean_of_present(dice)
    return float(mean_of_present(pairs))


def map_mean(uncertainty: Float[np.ndarray, "height width"], region: Bool[np.ndarray, "height width"]) -> float:
    """The mean over the pixels of a region, in the unit of the map; no direction. NaN if it has none.

    A region is all valid pixels, or the predicted foreground among them.

    Source: Jungo, Balsiger & Reyes 2020, Analyzing the Quality and Challenges of Uncertainty Estimations for Brain
    Tumor Segmentation; Kahl et al. 2024, ValUES.
    """
    values = uncertainty[region]
    return float(np.mean(values, dtype=np.float64)) if values.size else math.nan


def map_upper_tail(
    uncertainty: Float[np.ndarray, "height width"], valid: Bool[np.ndarray, "height width"], *, quantile: float = 0.95
) -> float:
    """The mean of the ⌈(1 − quantile) n⌉ largest values of n valid pixels, in the unit of the map; no direction.

    NaN without valid pixels.

    Source: Kahl et al. 2024, ValUES: A Framework for Systematic Validation of Uncertainty Estimation in Semantic
    Segmentation (threshold-level aggregation, by a quantile).
    """
    values = uncertainty[valid]
    if not values.size:
        return math.nan
    tail = max(1, math.ceil((1 - quantile) * values.size - 1e-9))
    return float(np.mean(np.partition(values, values.size - tail)[values.size - tail :], dtype=np.float64))
