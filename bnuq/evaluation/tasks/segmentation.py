"""The estimates of a segmentation, from sums over its pixels, with errors over images.

An estimate over pixels is that of the pixels of all images. Its error over images follows from what each image
contributes to it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from bnuq import metrics
from bnuq.config import ScoreSettings
from bnuq.data import Points, check_masks
from bnuq.errors import DataError
from bnuq.estimates import Estimate
from bnuq.evaluation import estimates
from bnuq.evaluation.estimates import SetScores
from bnuq.evaluation.tasks import failing_images
from bnuq.evaluation.tasks.pixel_counts import CLASSWISE, FEW_CLASSWISE
from bnuq.evaluation.tasks.pixels import PixelReduction, PixelScores, parts_of_draws, uncertainty_of
from bnuq.evaluation.tasks.scorer import ScoredNetwork, ScoredSet, TaskScorer
from bnuq.files.keys import Key, of_kind
from bnuq.frozen import frozen
from bnuq.metrics import CalibrationBins, DrawWeights, SelectiveScores
from bnuq.metrics.registry import limits_of
from bnuq.perturbations import change_in
from bnuq.records.evaluation import PIXEL_MEANS, PIXEL_SCORES, MethodResult, SetResult
from bnuq.shapes import Float, Int64
from bnuq.tasks import SEGMENTATION

_OF_EACH_IMAGE = ("auroc", "aupr_out", "fpr95")
_SUMS_OF_BINS = "count", "confidence", "correct"


@frozen
class _Estimated:
    """An estimate under every replicate, and what each image contributes to it: the mean of these is the estimate."""

    replicates: Float[np.ndarray, " replicate"]
    contributions: Float[np.ndarray, " image"]


def set_result(scores: PixelScores, draws: DrawWeights, names: Sequence[str]) -> SetResult:
    """The estimates over the pixels of one set, and those by class, whose `names` these are."""
    points, pixels = scores.points, scores.points["pixels"]
    found = {
        name: _Estimated(replicates, metrics.ratio_contributions(scores.points[name] * pixels, pixels))
        for name, replicates in scores.replicates.items()
    }
    by_class: dict[str, dict[str, Estimate]] = {}
    of_classes: dict[str, np.ndarray] = {}
    of_images: dict[str, np.ndarray] = {}  # contributions to estimates without a Monte Carlo error
    if Key("class", "true") in scores.of_pixels:
        found |= {"ece": _ece(scores), "ece_classwise": _classwise(scores, draws)}
        found |= _selective(scores, draws)
        found["mean_iou"], by_class, of_classes = _overlap(scores, draws, names)
        points = points | _overlap_of_images(scores)
        of_maps = _of_maps(scores, names)
        of_images = {f"image_aurc_{n}": each for n, each in failing_images.aurc_of_images(of_maps, points["dice"])}
        points |= {f"map_{name}": values for name, values in of_maps.items() if name != "mean"}
    ordered = {name: found[name] for name in metrics.METRICS if name in found}
    result = {name: _estimate(name, each, scores, draws) for name, each in ordered.items()}
    result |= {name: _without_draws(contributions, scores) for name, contributions in of_images.items()}
    if "temperature" in scores.points:
        result["temperature"] = Estimate(float(np.mean(scores.points["temperature"])))
    return SetResult(
        estimates=result,
        points=points,
        predicted=scores.of_images[Key("class", "predicted")].astype(np.int64),
        contributions={n: each.contributions for n, each in ordered.items() if n not in PIXEL_MEANS}
        | of_classes
        | of_images,
        by_class=by_class,
    )


def _estimate(name: str, each: _Estimated, scores: PixelScores, draws: DrawWeights) -> Estimate:
    se = estimates.error_over_points(metrics.standard_error(each.contributions, group=scores.group), scores)
    return estimates.of_replicates(name, each.replicates, draws, se=se, limits=limits_of(name, "segmentation"))


def _without_draws(contributions: Float[np.ndarray, " image"], scores: PixelScores) -> Estimate:
    """The mean of the contributions of images, without a Monte Carlo error."""
    error = metrics.standard_error(contributions, group=scores.group)
    return Estimate(float(np.mean(contributions)), se=estimates.error_over_points(error, scores))


def _ece(scores: PixelScores) -> _Estimated:
    image_bins = np.stack([scores.of_images[Key("bins", name)] for name in _SUMS_OF_BINS], axis=1)
    return _Estimated(np.asarray(metrics.ece_of_bins(_bins(scores))), metrics.ece_contributions(image_bins))


def _bins(scores: PixelScores) -> CalibrationBins:
    return CalibrationBins(*(scores.of_pixels[Key("bins", name)] for name in _SUMS_OF_BINS))


def _classwise(scores: PixelScores, draws: DrawWeights) -> _Estimated:
    value = float(metrics.classwise_ece(scores.of_pixels[CLASSWISE][0]))
    replicates = np.full(len(draws.weights), value)
    if (few := scores.of_pixels.get(FEW_CLASSWISE)) is not None:
        of_few = metrics.classwise_ece(few)
        replicates[draws.jackknife] = np.clip(value + of_few[1:] - of_few[0], 0, 1)
    return _Estimated(replicates, metrics.classwise_ece_contributions(scores.of_images[CLASSWISE]))


def _selective(scores: PixelScores, draws: DrawWeights) -> dict[str, _Estimated]:
    """AURC, AUGRC, risk and coverage of the pixels, by predictive entropy."""
    score = "predictive_entropy"
    shares = vars(metrics.selective_of_histograms(*scores.of_pixels[Key("histogram", score)]))
    value = SelectiveScores(**{name: float(each) for name, each in shares.items()})
    coarse = scores.of_images[Key("coarse", score)].astype(np.int64)
    contributions = vars(metrics.selective_contributions(coarse[:, 0], coarse[:, 1], values=value))
    moved = dict.fromkeys(vars(value), np.zeros(0))
    if (counts := scores.of_pixels.get(Key("replicates", score))) is not None:
        of_counts = vars(metrics.selective_of_histograms(counts[:, 0], counts[:, 1]))
        moved = {name: values[1:] - values[0] for name, values in of_counts.items()}
    result = {}
    for name, full_value in vars(value).items():
        replicates = np.full(len(draws.weights), float(full_value))
        replicates[draws.jackknife] = np.clip(replicates[draws.jackknife] + moved[name], 0, 1)
        result[name] = _Estimated(replicates, contributions[name])
    return result


def _overlap(
    scores: PixelScores, draws: DrawWeights, names: Sequence[str]
) -> tuple[_Estimated, dict[str, dict[str, Estimate]], dict[str, np.ndarray]]:
    """The mean IoU over the classes of the masks; by each of them its pixels (count), IoU, Dice, and the share of
    its pixels that are found (accuracy); and what the images contribute to these."""
    kinds, full = ("true", "predicted", "common"), draws.full.start
    counts, of_images = ([of[Key("class", kind)] for kind in kinds] for of in (scores.of_pixels, scores.of_images))
    true, _, common = counts
    with np.errstate(invalid="ignore"):  # of classes that do not occur
        found = {
            "iou": (metrics.iou_of_counts(*counts), metrics.iou_contributions(*of_images)),
            "dice": (metrics.dice_of_counts(*counts), metrics.dice_contributions(*of_images)),
            "accuracy": (common / true, metrics.ratio_contributions(of_images[2], of_images[0])),
        }
    present = _present(scores)
    mean = _Estimated(*(metrics.mean_of_present(of_each[:, present]) for of_each in found["iou"]))
    by_class, of_classes = {}, {}
    for k in map(int, present):
        label = names[k] if k < len(names) else str(k)
        of_class = {"count": Estimate(float(true[full, k]))}
        of_classes[Key("count", label)] = len(of_images[0]) * of_images[0][:, k].astype(np.float64)
        for name, (replicates, contributions) in found.items():
            each = _Estimated(replicates[:, k], contributions[:, k])
            of_class[name] = _estimate(name, each, scores, draws)
            of_classes[Key(name, label)] = each.contributions
        by_class[label] = of_class
    return mean, by_class, of_classes


def _present(scores: PixelScores) -> Int64[np.ndarray, " class"]:
    """The classes that scored pixels of the masks have."""
    return np.flatnonzero(scores.of_images[Key("class", "true")].any(axis=0))


def _overlap_of_images(scores: PixelScores) -> dict[str, Float[np.ndarray, " image"]]:
    """IoU and Dice of each image: their means over the classes of the masks that occur in it, or in its prediction; NaN
    without scored pixels."""
    counts = [scores.of_images[Key("class", kind)][:, _present(scores)] for kind in ("true", "predicted", "common")]
    of_counts = {"iou": metrics.iou_of_counts, "dice": metrics.dice_of_counts}
    return {name: metrics.mean_of_present(of(*counts)) for name, of in of_counts.items()}


def _of_maps(scores: PixelScores, names: Sequence[str]) -> dict[str, Float[np.ndarray, " image"]]:
    """The aggregations of the uncertainty of each image: those of its map, of its mean, and of its histogram."""
    score = uncertainty_of(scores.points)
    counts = scores.of_images[Key("coarse", score)].sum(1, dtype=np.int64)
    values = of_kind(scores.of_images, "map")
    if not failing_images.has_background(scores.of_images[Key("class", "true")].shape[1], tuple(names)):
        values.pop("foreground")
    return {"mean": scores.points[score], "share_above": failing_images.share_above(counts), **values}


_Contributions = dict[str, Float[np.ndarray, " _"]]  # of the images of a set


def pixel_detection(
    test: PixelScores, ood: PixelScores, draws: DrawWeights
) -> tuple[dict[str, dict[str, Estimate]], _Contributions, _Contributions]:
    """How well each score of a pixel separates the pixels of an OOD set from those of the test set, or, where its masks
    say what is an anomaly, from its own other pixels; with errors over images.

    Then what the images of the test set contribute, 0 in the mean, and those of the OOD set, whose mean is the
    estimate: by metric and score.
    """
    detection: dict[str, dict[str, Estimate]] = {}
    through_test: _Contributions = {}
    through_ood: _Contributions = {}
    for name in (name for name in PIXEL_SCORES if Key("histogram", name) in ood.of_pixels):
        detection[name], of_test, of_ood = _pixel_detection(name, test, ood, draws)
        through_test |= {Key(metric, name): values for metric, values in of_test.items()}
        through_ood |= {Key(metric, name): values for metric, values in of_ood.items()}
    return detection, through_test, through_ood


def _pixel_detection(
    score: str, test: PixelScores, ood: PixelScores, draws: DrawWeights
) -> tuple[dict[str, Estimate], _Contributions, _Contributions]:
    has_anomalies = len(ood.of_pixels[Key("histogram", score)]) == 2

    def sides(of: str, kind: str) -> tuple[np.ndarray, np.ndarray]:
        outside = getattr(ood, of)[Key(kind, score)].astype(np.int64)
        if has_anomalies:
            return outside[..., 0, :], outside[..., 1, :]
        return getattr(test, of)[Key(kind, score)].astype(np.int64).sum(-2), outside[..., 0, :]

    value = vars(metrics.detection_of_histograms(*sides("of_pixels", "histogram")))
    inside, outside = sides("of_images", "coarse")
    errors = dict.fromkeys(value, math.nan)
    through_test: _Contributions = {}
    through_ood: _Contributions = {}
    if inside.any() and outside.any():
        for name, (of_inside, of_outside) in vars(metrics.detection_influence_of_images(inside, outside)).items():
            parts = [(of_inside + of_outside, ood)] if has_anomalies else [(of_inside, test), (of_outside, ood)]
            errors[name] = math.hypot(*(metrics.standard_error(each, group=of.group) for each, of in parts))
            through_ood[f"pixel_{name}"] = float(value[name]) + parts[-1][0]
            if not has_anomalies:
                through_test[f"pixel_{name}"] = of_inside
    moved = dict.fromkeys(value, np.zeros(0))
    if Key("replicates", score) in ood.of_pixels:
        of_counts = vars(metrics.detection_of_histograms(*sides("of_pixels", "replicates")))
        moved = {name: values[1:] - values[0] for name, values in of_counts.items()}
    found = {
        f"pixel_{name}": estimates.estimate(
            f"pixel_{name}",
            float(of_all),
            se=estimates.error_over_points(errors[name], *([ood] if has_anomalies else [test, ood])),
            jackknife=np.clip(float(of_all) + moved[name], 0, 1),
            bootstrap=np.empty(0),
            samples=draws.samples,
        )
        for name, of_all in value.items()
    }
    if has_anomalies:
        of_each = dict(_per_image(inside, outside))
        found |= {name: _without_draws(values, ood) for name, values in of_each.items()}
        through_ood |= of_each
    return found, through_test, through_ood


def _per_image(
    inside: Int64[np.ndarray, "image bin"], outside: Int64[np.ndarray, "image bin"]
) -> Iterator[tuple[str, Float[np.ndarray, " image"]]]:
    """What images contribute to the mean over images of how well the anomalous pixels of each are separated from its
    own other pixels, in coarse bins; those without pixels of both kinds are left out."""
    for name, values in vars(metrics.detection_of_histograms(inside, outside)).items():
        known = np.isfinite(values)
        if name in _OF_EACH_IMAGE and known.any():
            mean = float(values[known].mean())
            yield f"pixel_{name}_per_image", mean + np.where(known, values - mean, 0) * len(known) / known.sum()


@frozen
class SegmentationScorer(TaskScorer):
    """Scores the samples of a segmentation of images of this size, (height, width), into so many classes. Its weights
    are those of parts of the draws."""

    task = SEGMENTATION
    settings: ScoreSettings
    classes: int
    image: tuple[int, int]
    names: tuple[str, ...]

    @classmethod
    def of(cls, network: ScoredNetwork) -> SegmentationScorer:
        assert network.image is not None
        return cls(network.settings, network.outputs, network.image, tuple(network.test.classes or ()))

    def checked(self, points: Points, *, is_ood: bool = False) -> Points:
        """The points with masks of the classes, or of anomalies, checked as `check_masks` does; DataError also for
        masks of another size than the outputs."""
        if points.masks is None and (is_ood or points.targets is None):
            return points
        points = check_masks(points, 2 if is_ood else self.classes, self.settings.ignore)
        if points.masks is not None and points.masks.shape[1:] != self.image:
            size_words, expected = (" × ".join(map(str, size[::-1])) for size in (points.masks.shape[1:], self.image))
            raise DataError(
                f"{points.reference}: the masks are {size_words} pixels; expected {expected}, as the images."
            )
        return points

    def _parts(self, samples: int) -> Sequence[range]:
        return parts_of_draws(samples, self.classes * math.prod(self.image))

    def weights(self, samples: int, bank: int | None) -> DrawWeights:
        """The replicates: all draws, each part of them left out, and the first 1, 2, 4, … parts."""
        assert bank is None  # as the request is checked
        return metrics.part_weights([len(part) for part in self._parts(samples)])

    def reduction(self, scored: ScoredSet) -> PixelReduction:
        weights, points, maps = scored.weights, scored.points, scored.maps
        lean = not weights.prefix_sizes  # without replicates all draws are one part
        drawn = weights.samples if lean else weights.prefix_sizes[-1]
        return PixelReduction(
            metrics.plain_weights(1) if lean else weights,
            [range(drawn)] if lean else self._parts(drawn),
            classes=self.classes,
            ignore=self.settings.ignore,
            masks=points.masks,
            labelled=scored.labelled,
            first=scored.first,
            where=points.reference,
            temperature=None if maps is None else maps.temperature,
            fits_temperature=scored.calibrates and maps is None,
            converges=scored.by_class,
            lean=lean,
            saves_maps=scored.saves_maps,
            ranks=scored.ranks,
        )

    def by_temperature(self, scores: SetScores) -> Float[np.ndarray, "likelihood image"] | None:
        return PixelScores.among(scores).by_temperature

    def set_result(self, scores: SetScores, draws: DrawWeights) -> SetResult:
        return set_result(PixelScores.among(scores), draws, self.names)

    def result(
        self, scores: Mapping[str, SetScores], draws: DrawWeights, ranked: SetScores | None = None
    ) -> MethodResult:
        result, test = super().result(scores, draws, ranked), PixelScores.among(scores["test"])
        sets, pixel_ood = dict(result.sets), {}
        for name in result.ood:
            inside = test if ranked is None or change_in(name) is not None else PixelScores.among(ranked)
            detection = pixel_detection(inside, PixelScores.among(scores[name]), draws)
            pixel_ood[name], through_test, through_ood = detection
            of_set: _Contributions = {Key(key, name): values for key, values in through_test.items()}
            for of, more in (("test", of_set), (name, through_ood)):
                sets[of] = replace(sets[of], contributions={**sets[of].contributions, **more})
        return replace(
            result,
            sets=sets,
            pixel_ood=pixel_ood,
            convergence=estimates.convergence_of(test, ("pll", "accuracy", "mutual_information"), draws),
            calibration=estimates.reliability(_bins(test), draws) if Key("bins", "count") in test.of_pixels else {},
            risk=_risk_curve(test),
            class_calibration=_class_calibration(test),
        )


def _class_calibration(scores: PixelScores) -> dict[str, np.ndarray]:
    """For each class, in bins of its probability: the pixels, their mean probability, and how many are of the class;
    empty where there are no masks."""
    if CLASSWISE not in scores.of_pixels:
        return {}
    count, confidence, correct = np.moveaxis(scores.of_pixels[CLASSWISE][0], 1, 0)
    with np.errstate(invalid="ignore"):
        return {"count": count.astype(np.int64), "confidence": confidence / count, "accuracy": correct / count}


def _risk_curve(scores: PixelScores) -> dict[str, np.ndarray]:
    """Error rate of the most certain pixels (by predictive entropy) by coverage; empty where there are no masks."""
    if Key("class", "true") not in scores.of_pixels:
        return {}
    histogram = scores.of_pixels[Key("histogram", "predictive_entropy")]
    coverage, risk = metrics.risk_coverage_of_histograms(*histogram)
    return {"coverage": coverage, "risk": risk}
