"""The images of a segmentation that say most, pixel by pixel: the worst, the most uncertain, the best."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Float, Int64

from bnuq.data import Points
from bnuq.data.resizing import resized
from bnuq.evaluation.gallery import small_copies
from bnuq.records.evaluation import LARGEST_MAP, NOT_SCORED, ImageMaps
from bnuq.records.points import chosen_score, largest_first

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
    method: str, points: Points, rows: Int64[np.ndarray, " picture"], maps: Sequence[Maps], ignore: int
) -> ImageMaps:
    """The maps of these images by a method, reduced to what a page shows: of classes every n-th pixel, of scores and
    pictures means."""
    shape = maps[0]["predicted"].shape
    scale = min(1.0, LARGEST_MAP / max(shape))
    size = max(1, round(scale * shape[0])), max(1, round(scale * shape[1]))

    def classes(name: str) -> np.ndarray:
        return resized(np.stack([each[name] for each in maps]).astype(np.int64), size, "nearest").astype(np.int16)

    truth = None
    if "truth" in maps[0]:
        ignored = resized(np.stack([each["truth"] == ignore for each in maps]).astype(np.int64), size, "nearest")
        truth = np.where(ignored == 1, np.int16(NOT_SCORED), classes("truth"))
    scores = {
        name: resized(np.stack([each[name] for each in maps]).astype(np.float32), size, "bilinear").astype(np.float16)
        for name in _SHOWN
        if name in maps[0]
    }
    pixels = small_copies(points, rows, LARGEST_MAP)
    return ImageMaps(method, rows, classes("predicted"), scores, truth, pixels if len(pixels) else None)
