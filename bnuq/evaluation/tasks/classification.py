"""The estimates of a classification, and the errors of each."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import field, replace
from typing import Self

import numpy as np

from bnuq import metrics
from bnuq.config import ScoreSettings
from bnuq.data import Points, check_labels
from bnuq.estimates import Estimate
from bnuq.evaluation import estimates
from bnuq.evaluation.estimates import SetScores
from bnuq.evaluation.tasks import class_probabilities, failure_detection
from bnuq.evaluation.tasks.class_probabilities import PredictionSets
from bnuq.evaluation.tasks.class_reduction import PART_SCORES, ClassReduction, ClassScores
from bnuq.evaluation.tasks.scorer import SampleReduction, ScoredNetwork, ScoredSet, TaskScorer
from bnuq.files.keys import Key
from bnuq.frozen import frozen
from bnuq.metrics import DrawWeights
from bnuq.metrics.registry import estimates_of_task, limits_of
from bnuq.records.evaluation import MethodResult, SetResult, parts_of
from bnuq.shapes import Float
from bnuq.tasks import CLASSIFICATION

_RESAMPLED, _LEAST_RESAMPLED = 20_000, 200  # points, and how often more of them are resampled for selective prediction


def set_estimates(scores: ClassScores, draws: DrawWeights) -> dict[str, Estimate]:
    """The estimates of one set: the means, and where it is labelled those of calibration and of selective prediction,
    each with both errors; and the mean of its points' temperature.

    Errors take the temperature as given: PLL is stationary in it, so that its own error is of second order there.
    """
    result = {
        name: estimates.mean_estimate(name, scores, draws, limits=limits_of(name, "classification", scores.estimator))
        for name in scores.replicates
    }
    result |= failure_detection.of_set(scores, draws)
    if scores.bins is not None:
        result |= _calibration_estimates(scores, draws) | selective_estimates(scores, draws)
        result |= _formula_estimates(scores, draws, without=result.keys())
    if "temperature" in scores.points:
        result["temperature"] = Estimate(float(np.mean(scores.points["temperature"])))
    return {name: result[name] for name in metrics.METRICS if name in result}


def convergence(scores: ClassScores, draws: DrawWeights) -> dict[str, np.ndarray]:
    """PLL, accuracy and MI of the first 1, 2, 4, … and T draws, where the labels allow; empty for a single draw.

    Where MI is jackknifed, the values before all T draws are those of the corrected estimator.
    """
    return estimates.convergence_of(scores, [*estimates_of_task("classification", shown="convergence")], draws)


def calibration_curve(scores: ClassScores, draws: DrawWeights) -> dict[str, np.ndarray]:
    """The reliability diagram: points, mean confidence and accuracy of each bin of confidence (NaN where empty);
    empty where there are no labels."""
    return {} if scores.bins is None else estimates.reliability(scores.bins, draws)


def risk_curve(scores: ClassScores) -> dict[str, np.ndarray]:
    """Error rate of the most certain points (by predictive entropy) by coverage, at up to 200 coverages;
    empty where there are no labels."""
    if "accuracy" not in scores.points:
        return {}
    return estimates.risk_by_coverage(scores.points["predictive_entropy"], 1 - scores.points["accuracy"])


def part_estimates(scores: ClassScores, kind: str, draws: DrawWeights) -> dict[str, dict[str, Estimate]]:
    """Accuracy, PLL and number of the points of each class or group, the AUROC of their errors, and the coverage of
    their prediction sets, with both errors.

    The points of a group count as independent within it, those of a class by their groups.
    """
    result: dict[str, dict[str, Estimate]] = {}
    group = scores.group if kind == "class" else None
    for number, (part, rows) in enumerate(scores.parts.get(kind, {}).items()):
        result[part] = {"count": Estimate(float(len(rows)))}
        for name in PART_SCORES:
            within = None if group is None else group[rows]
            se = estimates.error_over_points(metrics.standard_error(scores.points[name][rows], group=within), scores)
            replicates = scores.part_sums[Key(kind, name)][:, number] / len(rows)
            limits = limits_of(name, "classification", scores.estimator)
            found = estimates.of_replicates(name, replicates, draws, se=se, limits=limits)
            result[part][name] = estimates.with_exact_interval(name, found, len(rows), within)
        result[part] |= failure_detection.errors_of_part(scores, rows, kind, draws)
        result[part] |= failure_detection.coverage_of_part(scores, rows, kind, draws)
    return result


def _calibration_estimates(scores: ClassScores, draws: DrawWeights) -> dict[str, Estimate]:
    assert scores.bins is not None
    confidence, right = scores.points["max_probability"], scores.points["accuracy"]
    drawn = metrics.calibration_bootstrap(confidence, right, group=scores.group)
    result = {}
    for name, of_bins in (("ece", metrics.ece_of_bins), ("mce", metrics.mce_of_bins)):
        result[name] = _resampled_estimate(name, of_bins(scores.bins), of_bins(drawn), scores, draws)
    debiased, influence = metrics.ece_debiased_of_bins(scores.bins), metrics.ece_debiased_influence(confidence, right)
    result["ece_debiased"] = _mean_estimate("ece_debiased", influence, debiased, scores, draws)
    return result


def _formula_estimates(scores: ClassScores, draws: DrawWeights, *, without: Collection[str]) -> dict[str, Estimate]:
    """The estimates that follow by the formula of their rows from values of points that are known of replicates.

    Where these are stored for only some points, their change there is added to the estimate of all points.
    """
    rows = scores.ranked_rows
    before = {name: scores.points[name][rows].astype(np.float32) for name in scores.ranked}
    after = dict(scores.ranked)
    if scores.ranked_wrong is not None:
        before |= {"accuracy": scores.points["accuracy"][rows], "max_probability": 1 - before["least_confidence"]}
        after |= {"accuracy": 1.0 - scores.ranked_wrong, "max_probability": 1 - after["least_confidence"]}
    result = {}
    for name, estimand in estimates_of_task("classification").items():
        formula = estimand.formula
        if name in without or formula is None or not formula.needs <= scores.points.keys():
            continue
        replicates = np.full(len(draws.weights), formula.value(scores.points))
        if formula.needs <= after.keys():
            moved = formula.values(after) - formula.value(before)
            replicates[draws.jackknife.start : draws.bootstrap.stop] += moved
        influence = formula.influence(scores.points, scores.group)
        result[name] = _mean_estimate(name, influence, np.clip(replicates, *estimand.limits), scores, draws)
    return result


def selective_estimates(scores: ClassScores, draws: DrawWeights) -> dict[str, Estimate]:
    """AURC, AUGRC, risk and coverage of a labelled set, by predictive entropy."""
    uncertainty, loss = scores.points["predictive_entropy"], 1 - scores.points["accuracy"]
    resamples = estimates.resamples_of(len(loss), fully=_RESAMPLED, least=_LEAST_RESAMPLED)
    drawn = vars(metrics.selective_bootstrap(uncertainty, loss, resamples=resamples, group=scores.group))
    values_of_all = vars(metrics.selective(uncertainty, loss))
    replicates = {name: np.full(len(draws.weights), value) for name, value in values_of_all.items()}
    if scores.ranked_wrong is not None:
        rows = scores.ranked_rows
        before = vars(metrics.selective(uncertainty[rows].astype(np.float32), loss[rows]))
        after = vars(metrics.selective_of_replicates(scores.ranked["predictive_entropy"], scores.ranked_wrong))
        for name, values in replicates.items():
            values[draws.jackknife.start : draws.bootstrap.stop] += after[name] - before[name]
    clipped = {name: np.clip(values, 0, 1) for name, values in replicates.items()}
    return {name: _resampled_estimate(name, clipped[name], drawn[name], scores, draws) for name in drawn}


def _resampled_estimate(
    name: str,
    replicates: Float[np.ndarray, " replicate"],
    resampled: Float[np.ndarray, " resample"],
    scores: ClassScores,
    draws: DrawWeights,
) -> Estimate:
    """An estimate whose error over points is by the bootstrap."""
    return estimates.estimate(
        name,
        float(replicates[draws.full.start]),
        se=estimates.error_over_points(float(np.std(resampled, ddof=1)), scores),
        jackknife=replicates[draws.jackknife],
        bootstrap=replicates[draws.bootstrap],
        samples=draws.samples,
        resampled=resampled,
    )


# ── bounds, and all of a method ──────────────────────────────────────────────────────────────────────────────────────


@frozen
class ClassFit:
    """The constant confidence with the highest likelihood on the validation points, under every replicate, and the
    thresholds of prediction sets, by kind."""

    confidence: Float[np.ndarray, " replicate"]
    thresholds: dict[str, float] = field(default_factory=dict)


def bounds(scores: ClassScores, fitted: ClassFit, draws: DrawWeights, classes: int) -> dict[str, dict[str, Estimate]]:
    """PLL of a constant confidence (and that confidence) and of the best confidence for each point, for the same
    predictions.

    Source: the bounds of Teye, Azizpour & Smith 2018, §4.1, adapted to classes here.
    """
    of_points, replicates = _bound_scores(scores, fitted, draws, classes)
    result: dict[str, dict[str, Estimate]] = {}
    for name, values in of_points.items():
        result[name] = {"pll": _mean_estimate("pll", values, replicates[name], scores, draws)}
    result["constant"]["confidence"] = _mean_estimate("max_probability", None, fitted.confidence, scores, draws)
    return result


def normalized(scores: ClassScores, fitted: ClassFit, draws: DrawWeights, classes: int) -> dict[str, Estimate]:
    """PLL between the constant confidence (0) and the best confidence for each point (100), in percent."""
    of_points, replicates = _bound_scores(scores, fitted, draws, classes)
    return {"pll": estimates.normalized_estimate("pll", scores, of_points, replicates, draws)}


def _bound_scores(
    scores: ClassScores, fitted: ClassFit, draws: DrawWeights, classes: int
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """The log-likelihoods of both bounds: of every point under all draws, and their mean under every replicate."""
    full, right = draws.full.start, scores.points["accuracy"]
    confidence, accuracy = fitted.confidence, scores.replicates["accuracy"]
    constant = [metrics.constant_pll(float(a), float(c), classes) for a, c in zip(accuracy, confidence, strict=True)]
    of_points = metrics.pll_bounds(right, float(confidence[full]), classes)
    best = [metrics.optimum_pll(float(a), classes) for a in accuracy]
    names = "constant", "optimum"
    return dict(zip(names, of_points, strict=True)), dict(zip(names, map(np.array, (constant, best)), strict=True))


def _mean_estimate(
    name: str,
    points: Float[np.ndarray, " point"] | None,
    replicates: Float[np.ndarray, " replicate"],
    scores: ClassScores,
    draws: DrawWeights,
) -> Estimate:
    se = None
    if points is not None:
        se = estimates.error_over_points(metrics.standard_error(points, group=scores.group), scores)
    return estimates.of_replicates(name, replicates, draws, se=se)


@frozen
class ClassificationScorer(TaskScorer):
    """Scores the samples of a classification into so many classes, which may have names."""

    task = CLASSIFICATION
    settings: ScoreSettings
    classes: int
    names: tuple[str, ...] = ()
    fit: ClassFit | None = None

    @classmethod
    def of(cls, network: ScoredNetwork) -> ClassificationScorer:
        return cls(network.settings, network.outputs, tuple(network.test.classes or ()))

    def checked(self, points: Points, *, is_ood: bool = False) -> Points:
        return points if is_ood else check_labels(points, self.classes)

    def bytes_of_probabilities(self, samples: int, points: int, classes: int) -> int | None:
        return class_probabilities.bytes_of(samples, points, classes)

    def reduction(self, scored: ScoredSet) -> SampleReduction:
        points, second = scored.points, scored.second
        thresholds = {} if self.fit is None else self.fit.thresholds
        calibrates = scored.calibrates and second is None
        sets = PredictionSets(self.settings.scoring.set_coverage, thresholds, second, calibrates)
        return ClassReduction(
            scored.weights,
            points=len(points),
            labels=points.targets if scored.labelled else None,
            estimator=self.settings.mutual_information,
            first=scored.first,
            where=points.reference,
            are_log_probabilities=self.settings.outputs in ("probabilities", "log_probabilities"),
            maps=scored.maps,
            parts=parts_of(points.targets, self.names, points.group, points.group_names) if scored.labelled else None,
            sets=sets if scored.by_class else None,
        )

    def fitted_to(self, validation: SetScores | None, draws: DrawWeights) -> Self:
        if validation is None:
            return self
        scores = ClassScores.among(validation)
        confidences = [
            metrics.constant_confidence(float(accuracy), n=self._labels_of(scores.n), classes=self.classes)
            for accuracy in scores.replicates["accuracy"]
        ]
        assert len(confidences) == len(draws.weights)
        thresholds = class_probabilities.fitted_thresholds(scores.conformity, self.settings.scoring.set_coverage)
        return replace(self, fit=ClassFit(np.array(confidences), thresholds))

    def _labels_of(self, points: int) -> int:
        """The labels of so many points together."""
        return points

    def set_result(self, scores: SetScores, draws: DrawWeights) -> SetResult:
        scores = ClassScores.among(scores)
        return SetResult(
            estimates=set_estimates(scores, draws),
            points=scores.points,
            predicted=scores.predicted,
            log_likelihood=scores.log_likelihood,
            by_class=part_estimates(scores, "class", draws),
            by_group=part_estimates(scores, "group", draws),
            by_score=failure_detection.errors_by_score(scores, draws),
        )

    def separation(self, test: SetScores, ood: SetScores, draws: DrawWeights) -> dict[str, dict[str, Estimate]]:
        """How well each score separates an OOD set from the test set, and from its right predictions alone."""
        separation = super().separation(test, ood, draws)
        return failure_detection.with_ood_points(separation, ClassScores.among(test), ClassScores.among(ood), draws)

    def compared(
        self,
        result: MethodResult,
        scores: Mapping[str, SetScores],
        recalibrated: Mapping[str, SetScores],
        draws: DrawWeights,
    ) -> MethodResult:
        sets = dict(result.sets)
        for name, each in sets.items():
            plain, tempered = (ClassScores.among(of[name]) for of in (scores, recalibrated))
            split = failure_detection.split_by_temperature(plain, tempered, draws)
            sets[name] = replace(each, estimates={**each.estimates, **split})
        return replace(result, sets=sets)

    def result(
        self, scores: Mapping[str, SetScores], draws: DrawWeights, ranked: SetScores | None = None
    ) -> MethodResult:
        test = ClassScores.among(scores["test"])
        bounded = self.fit if "accuracy" in test.points else None  # bounds are of the same predictions, right or wrong
        return replace(
            super().result(scores, draws, ranked),
            convergence=convergence(test, draws),
            calibration=calibration_curve(test, draws),
            risk=risk_curve(test),
            bounds={} if bounded is None else bounds(test, bounded, draws, self.classes),
            normalized={} if bounded is None else normalized(test, bounded, draws, self.classes),
        )
