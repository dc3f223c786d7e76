"""The images of a segmentation under every draw set: the contribution of each to estimates over the pixels of all
images, and how well the pixels of an OOD set are separated."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Float64, Integer
from torch import Tensor

from bnuq import devices, metrics
from bnuq.evaluation.pixels import Scores
from bnuq.files.journal import Arrays
from bnuq.records.evaluation import PIXEL_MEANS, PIXEL_SCORES

SCORES = tuple(name for name in metrics.CLASSIFICATION_SCORES if name in PIXEL_SCORES)  # by which pixels are ranked
_MEANS = tuple(name for name in PIXEL_MEANS if name in SCORES or name not in PIXEL_SCORES)
_OVERLAP, _BINS = ("true", "predicted", "common"), ("count", "confidence", "correct")
_COUNTS = "counts."  # of pixels by the bins of a score, in each draw set


@dataclass(frozen=True)
class Pixels:
    """The pixels of a set, counted by the bins of each score: of every draw set, and of each image in all draw sets
    together. There are two sides where masks say what is an anomaly: the other pixels, and the anomalies."""

    of_draw_sets: Mapping[str, Integer[np.ndarray, "draw_set side bin"]]
    of_images: Mapping[str, Integer[np.ndarray, "image side coarse_bin"]]

    def without(self, score: str) -> Pixels:
        """The same pixels, of which none has any of this score."""
        moved = []
        for of in (self.of_draw_sets, self.of_images):
            any_score = next(iter(of.values()))
            counts = np.zeros_like(any_score)
            counts[..., 0] = any_score.sum(-1)
            moved.append({**of, score: counts})
        return Pixels(*moved)


@dataclass(frozen=True)
class Separation:
    """The AUROC of pixels in every draw set, and its influences: through the images of the test set, and through those
    of the OOD set."""

    of_draw_sets: Float64[np.ndarray, " draw_set"]
    influences: tuple[Float64[np.ndarray, " test_image"], Float64[np.ndarray, " ood_image"]]


def separation(score: str, test: Pixels, ood: Pixels) -> Separation:
    """How well a score separates the pixels of an OOD set from those of the test set; or, where its masks say what is
    an anomaly, the anomalies from the other pixels of that set. NaN if there are no pixels on one side.

    Influences are those on the AUROC of the pixels of all draw sets together. Source: `metrics.detection_of_histograms`
    and `metrics.detection_influence_of_images`.
    """
    within = ood.of_draw_sets[score].shape[1] == 2
    test_images, ood_images = (len(of.of_images[score]) for of in (test, ood))

    def sides(of: str) -> tuple[np.ndarray, np.ndarray]:
        inside, outside = (getattr(pixels, of)[score].astype(np.int64) for pixels in (test, ood))
        return (outside[:, 0], outside[:, 1]) if within else (inside[:, 0], outside[:, 0])

    auroc = metrics.detection_of_histograms(*sides("of_draw_sets")).auroc
    inside, outside = sides("of_images")
    if not (inside.any() and outside.any()):
        return Separation(auroc, (np.full(test_images, math.nan), np.full(ood_images, math.nan)))
    through_inside, through_outside = metrics.detection_influence_of_images(inside, outside).auroc
    if within:
        return Separation(auroc, (np.zeros(test_images), through_inside + through_outside))
    return Separation(auroc, (through_inside, through_outside))


def of_unit(scores: Sequence[Scores], *, separates: bool) -> Arrays:
    """What is kept of some images, from their scores in every draw set: means over the pixels of each, and counts of
    its classes and bins; with `separates` the pixels by the bins of each score, too."""
    first = scores[0]
    values_of = {f"draw/{name}": [of_set.points[name] for of_set in scores] for name in _MEANS if name in first.points}
    if "class.true" in first.of_images:
        for name in (*(f"class.{kind}" for kind in _OVERLAP), *(f"bins.{kind}" for kind in _BINS)):
            values_of[f"draw/{name}"] = [of_set.of_images[name] for of_set in scores]
    arrays = {name: np.stack(values) for name, values in values_of.items()}
    for name in (name for name in SCORES if separates and name in first.points):
        counts = np.stack([of_set.of_pixels[f"histogram.{name}"] for of_set in scores])
        arrays[f"{_COUNTS}{name}"] = counts.astype(np.uint32)  # of a few images
        arrays[f"point/{name}"] = np.stack([of_set.of_images[f"coarse.{name}"] for of_set in scores]).sum(0, np.uint32)
    return arrays | {"point/pixels": first.points["pixels"]}


def add_counts(arrays: Arrays, total: Arrays) -> None:
    """Move the counts of the pixels of a unit to those of all units, since they are large."""
    for name in [name for name in arrays if name.startswith(_COUNTS)]:
        counts = arrays.pop(name).astype(np.int64)
        total[name] = total[name] + counts if name in total else counts


def pixels_of(points: Arrays, total: Arrays) -> Pixels:
    """The pixels of all units."""
    of_draw_sets = {name.removeprefix(_COUNTS): counts for name, counts in total.items()}
    return Pixels(of_draw_sets, {name: points[name] for name in of_draw_sets})


def contributions(draws: Arrays, pixels: Float64[np.ndarray, " image"]) -> dict[str, Float64[np.ndarray, "draw_set _"]]:
    """What each image contributes to the estimates over all scored pixels: the mean over the images is the estimate.

    Means, mean IoU and ECE; `draws` are those that `of_unit` keeps, of all images, which have so many scored `pixels`.
    Source: `metrics.ratio_contributions`, `metrics.iou_contributions`, `metrics.ece_contributions`.
    """
    means = {name: draws[name] for name in _MEANS if name in draws}
    estimates = {
        name: np.stack([metrics.ratio_contributions(of_set * pixels, pixels) for of_set in values])
        for name, values in means.items()
    }
    if "class.true" not in draws:
        return estimates
    overlap, bins = ([draws[f"{kind}.{n}"] for n in of] for kind, of in (("class", _OVERLAP), ("bins", _BINS)))
    of_sets = [
        (
            metrics.mean_of_present(metrics.iou_contributions(*counts)),
            metrics.ece_contributions(np.stack(cells, axis=1)),
        )
        for counts, cells in zip(zip(*overlap, strict=True), zip(*bins, strict=True), strict=True)
    ]
    mean_iou, ece = (np.stack(values) for values in zip(*of_sets, strict=True))
    return estimates | {"mean_iou": mean_iou, "ece": ece}


def log_likelihood(
    outputs: Float[Tensor, "draw image class row column"], masks: Integer[np.ndarray, "image row column"], ignore: int
) -> Float64[Tensor, "draw image"]:
    """The log-likelihood of each mask under each draw, in nats: the sum over its pixels that are not `ignore`, which
    are independent given the draw; 0 for a mask without others. Source: the summand of Mukhoti et al. 2020, eq. 1."""
    y = torch.from_numpy(masks).to(outputs.device if devices.traits(outputs.device).float64 else "cpu")
    scored = y != ignore
    sums = []
    for draw in outputs:  # of which float64 takes twice the memory
        logits = draw.to(y.device).double()
        of_truth = logits.gather(1, torch.where(scored, y, 0)[:, None])[:, 0]
        sums.append(torch.where(scored, of_truth - logits.logsumexp(1), 0.0).sum((1, 2)))
    return torch.stack(sums)
