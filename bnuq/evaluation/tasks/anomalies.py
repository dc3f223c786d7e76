"""How well the segments of anomalies in the images of an OOD set are found, beside its pixels."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np

from bnuq import metrics
from bnuq.data import Masks
from bnuq.estimates import Estimate
from bnuq.evaluation import estimates
from bnuq.evaluation.tasks.pixel_counts import SIGNED
from bnuq.evaluation.tasks.pixels import ANOMALY, PixelScores
from bnuq.metrics import COMPONENT_THRESHOLDS, ComponentOverlap
from bnuq.records.evaluation import PIXEL_SCORES, Maps, MethodResult
from bnuq.shapes import Float, Int64


def with_segments(result: MethodResult, name: str, scores: PixelScores, maps: Maps, masks: Masks) -> MethodResult:
    """The result with estimates of the segments of anomalies of an OOD set, whose maps these are, by every score; with
    errors over images. A pixel is called an anomaly from the threshold on that gives the pixels the largest F1.

    Source: Chan et al. 2021, SegmentMeIfYouCan.
    """
    thresholds = {
        score: metrics.best_f1_bin(*counts)
        for score in PIXEL_SCORES
        if len(counts := scores.of_pixels.get(f"histogram.{score}", ())) == 2 and counts[1].any()
    }
    overlaps: dict[str, list[ComponentOverlap]] = {score: [] for score in thresholds}
    if thresholds:
        for row, of_image in enumerate(maps):
            truth = masks[np.array([row])][0]
            for score, threshold in thresholds.items():
                bins = metrics.score_bins(_map_of(of_image, score), signed=score in SIGNED)
                called, scored = bins >= threshold, (truth == ANOMALY) | (truth == 0)
                overlaps[score].append(metrics.component_overlap(truth == ANOMALY, called, scored))
    ood, set_result = dict(result.pixel_ood[name]), result.sets[name]
    contributions = dict(set_result.contributions)
    for score, of_score in overlaps.items():
        for metric, values in _contributions(of_score):
            error = estimates.error_over_points(metrics.standard_error(values, group=scores.group), scores)
            ood[score] = {**ood[score], metric: Estimate(float(np.mean(values)), se=error)}
            contributions[f"{metric}.{score}"] = values
    sets = {**result.sets, name: replace(set_result, contributions=contributions)}
    return replace(result, sets=sets, pixel_ood={**result.pixel_ood, name: ood})


def _map_of(maps: Mapping[str, np.ndarray], score: str) -> Float[np.ndarray, "height width"]:
    """A score of each pixel, from the maps that are kept."""
    if score == "least_confidence":
        return 1 - maps["max_probability"]
    return maps[score] if score in maps else maps["predictive_entropy"]  # of a single draw both entropies are the same


def _contributions(overlaps: list[ComponentOverlap]) -> Iterator[tuple[str, Float[np.ndarray, " image"]]]:
    """What the images contribute to the mean F1 over thresholds, to the mean sIoU of true segments, and to the mean PPV
    of predicted ones, where there are such segments."""
    counts: Int64[np.ndarray, "image 3 threshold"] = np.stack([each.counts() for each in overlaps])
    assert counts.shape[2] == len(COMPONENT_THRESHOLDS)
    if counts.any():
        yield "pixel_segment_f1", metrics.component_f1_contributions(counts).mean(1)
    for metric, values in (
        ("pixel_segment_siou", [each.siou for each in overlaps]),
        ("pixel_segment_ppv", [each.ppv for each in overlaps]),
    ):
        number = np.array([len(each) for each in values])
        if number.any():
            yield metric, metrics.ratio_contributions(np.array([each.sum() for each in values]), number)
