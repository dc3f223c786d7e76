"""How far the draws of a segmentation agree about an image: their overlap, and the connected components of it."""

from __future__ import annotations

import math

import numpy as np

from bnuq import metrics
from bnuq.records.evaluation import OF_COMPONENTS
from bnuq.shapes import Bool, Float, Int64, Integer

_SMALLEST = 1e-3  # of the scored pixels of an image: smaller components are left out


def components_of_image(
    draws: Integer[np.ndarray, "draw row column"],
    uncertainty: Float[np.ndarray, "row column"],
    predicted: Int64[np.ndarray, "row column"],
    valid: Bool[np.ndarray, "row column"],
    *,
    classes: int,
) -> dict[str, Float[np.ndarray, " class"]]:
    """The number of connected components of each class in the prediction, and sums over these: of the mean uncertainty,
    of the coefficient of variation of the size between draws, and of the mean IoU of pairs of draws.

    Components of less than a thousandth of the scored pixels are left out, and those that no draw has.
    """
    sums = {name: np.zeros(classes) for name in ("count", *OF_COMPONENTS)}
    smallest = math.ceil(_SMALLEST * np.count_nonzero(valid))
    of_class = np.concatenate([predicted[None].astype(draws.dtype), draws])  # in few bytes: compared with each class
    for k in np.unique(of_class[0][valid]):
        planes = (of_class == k) & valid
        box = _box(planes)
        label = metrics.components(planes[0, *box])
        kept = np.bincount(label.ravel()) >= smallest
        kept[0] = False
        if not kept.any():
            continue
        label = (np.cumsum(kept) * kept)[label]
        _, mean = metrics.component_means(label, uncertainty[box])
        variation, iou = metrics.component_variation(label, planes[1:, *box])
        known = np.isfinite(variation)
        sums["count"][k] = np.count_nonzero(known)
        for name, values in zip(OF_COMPONENTS, (mean, variation, iou), strict=True):
            sums[name][k] = values[known].sum()
    return sums


def _box(planes: Bool[np.ndarray, "plane row column"]) -> tuple[slice, slice]:
    """The rows and columns around what is true in any of these planes."""
    rows, columns = (np.flatnonzero(planes.any(axis=axes)) for axes in ((0, 2), (0, 1)))
    return slice(rows[0], rows[-1] + 1), slice(columns[0], columns[-1] + 1)


def disagreement(
    draws: Integer[np.ndarray, "draw row column"], valid: Bool[np.ndarray, "row column"], *, classes: int
) -> float:
    """1 − the mean Dice coefficient of pairs of draws, in [0, 1]."""
    return 1 - metrics.pairwise_dice(metrics.overlap_of_draws(draws, valid, classes=classes))
