"""From the uncertainty of pixels to one of each image, and how well that finds the images with a bad segmentation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from bnuq import metrics
from bnuq.records.evaluation import AGGREGATIONS
from bnuq.shapes import Bool, Float, Int64, Shaped

_ABOVE = 0.9  # share of all pixels below the threshold
_BACKGROUND = ("background", "bg", "_background_")
PerImage = Float[np.ndarray, " image"]


def aggregated(
    uncertainty: Float[np.ndarray, "row column"],
    predicted: Int64[np.ndarray, "row column"],
    valid: Bool[np.ndarray, "row column"],
) -> dict[str, float]:
    """The aggregations of the uncertainty of one image that its map is needed for; 0 where a region has no pixels."""
    values = {
        "upper_tail": metrics.map_upper_tail(uncertainty, valid),
        "foreground": metrics.map_mean(uncertainty, valid & (predicted != 0)),
    }
    return {name: float(np.nan_to_num(value)) for name, value in values.items()}


def share_above(counts: Shaped[np.ndarray, "image bin"]) -> PerImage:
    """The share of the pixels of each image above the bin that 90 % of the pixels of all images lie in or below, from
    the histogram of each (32 bins for each power of two)."""
    below = np.cumsum(counts.sum(0, dtype=np.int64))
    threshold = int(np.searchsorted(below, _ABOVE * below[-1]))
    return counts[:, threshold + 1 :].sum(1) / np.maximum(counts.sum(1), 1)


def has_background(classes: int, names: tuple[str, ...]) -> bool:
    """Whether class 0 is what objects stand out from: by its name, or as one of two classes."""
    return classes == 2 or bool(names and names[0].strip().lower() in _BACKGROUND)


def aurc_of_images(values: Mapping[str, PerImage], dice: PerImage) -> Iterator[tuple[str, PerImage]]:
    """What each image contributes to the AURC of the risk 1 − Dice by each aggregation: the mean of that is the
    estimate. Images without scored pixels have no Dice and are left out; nothing where fewer than two have one."""
    known = np.isfinite(dice)
    if known.sum() < 2:
        return
    for name in (name for name in AGGREGATIONS if name in values):
        uncertainty, risk = values[name][known], 1 - dice[known]
        value, influence = metrics.selective(uncertainty, risk).aurc, np.zeros(len(dice))
        influence[known] = metrics.selective_influence(uncertainty, risk).aurc * len(dice) / known.sum()
        yield name, value + influence
