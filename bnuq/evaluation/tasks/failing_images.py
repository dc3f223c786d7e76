"""From the uncertainty of pixels to one of each image, how well that finds the images with a bad segmentation, and the
most informative images."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import numpy as np

from bnuq import metrics
from bnuq.data import Points
from bnuq.data.resizing import resized
from bnuq.evaluation.gallery import small_copies
from bnuq.records.evaluation import AGGREGATIONS, LARGEST_MAP, NOT_SCORED, ImageMaps
from bnuq.records.points import chosen_score, largest_first
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


_SHOWN = ("mutual_information", "predictive_entropy")

Maps = Mapping[str, np.ndarray]  # of one image, (H, W) each: scores, "predicted", and "truth" where it is known


def chosen_images(points: Mapping[str, Float[np.ndarray, " image"]]) -> Int64[np.ndarray, " picture"]:
    """At most four images by their scores: those of least Dice, of most uncertainty, of largest Dice, and of the next
    least Dice, each where it is not among those before; without masks the two of most uncertainty."""
    uncertain = largest_first(points[chosen_score(points, None)])
    orders = [uncertain, uncertain]
    if "dice" in points:
        worst = largest_first(-points["dice"])
        orders = [worst, uncertain, largest_first(points["dice"]), worst]
    rows: list[int] = []
    for order in orders:
        rows += [int(row) for row in order if row not in rows][:1]
    return np.array(rows)


def image_maps(
    method: str, points: Points, rows: Int64[np.ndarray, " picture"], maps: Iterable[Maps], ignore: int
) -> ImageMaps:
    """The maps of these images by a method, reduced one by one to what a page shows: every n-th pixel of classes,
    means of scores and pictures."""
    small = [_small(image, ignore) for image in maps]
    stacked = {name: np.stack([image[name] for image in small]) for name in small[0]}
    pixels = small_copies(points, rows, LARGEST_MAP)
    scores = {name: stacked[name] for name in _SHOWN if name in stacked}
    return ImageMaps(method, rows, stacked["predicted"], scores, stacked.get("truth"), pixels if len(pixels) else None)


def _small(maps: Maps, ignore: int) -> dict[str, np.ndarray]:
    shape = maps["predicted"].shape
    scale = min(1.0, LARGEST_MAP / max(shape))
    size = max(1, round(scale * shape[0])), max(1, round(scale * shape[1]))

    def classes(values: np.ndarray) -> np.ndarray:
        return resized(values[None].astype(np.int64), size, "nearest")[0].astype(np.int16)

    small = {
        name: resized(maps[name][None].astype(np.float32), size, "bilinear")[0].astype(np.float16)
        for name in _SHOWN
        if name in maps
    }
    if "truth" in maps:
        small["truth"] = np.where(classes(maps["truth"] == ignore) == 1, np.int16(NOT_SCORED), classes(maps["truth"]))
    return small | {"predicted": classes(maps["predicted"])}
