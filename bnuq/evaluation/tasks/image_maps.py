"""The most informative images of a segmentation, pixel by pixel: worst, most uncertain, best."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from bnuq.data import Points
from bnuq.data.resizing import resized
from bnuq.evaluation.gallery import small_copies
from bnuq.records.evaluation import LARGEST_MAP, NOT_SCORED, ImageMaps
from bnuq.records.points import chosen_score, largest_first
from bnuq.shapes import Float, Int64

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
