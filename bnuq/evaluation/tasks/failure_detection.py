"""Estimates of a classification that rank its points: errors by each score, errors and OOD points together, and the two
kinds of uncertainty by each other.

Their errors over points follow from what the points contribute. Their Monte Carlo errors are measured on at most 1,000
points, chosen at random: from fewer points than the estimate they are rather too large than too small.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from bnuq import metrics
from bnuq.estimates import Estimate
from bnuq.evaluation import estimates
from bnuq.evaluation.tasks.class_reduction import ClassScores
from bnuq.metrics import DrawWeights
from bnuq.metrics.estimands import Formula, errors_by
from bnuq.metrics.registry import metric_of
from bnuq.shapes import Float, Int64

RANKED = 1_000  # points on which Monte Carlo errors are measured, of one set or of two together
OF_SETS = "uncertainty_correlation", "auroc_errors"
SPLIT = "calibration_loss", "refinement_loss"
BY_ENTROPY = "predictive_entropy"  # the score of AURC and of `auroc_errors` where none is named
_FEWEST = 2  # errors, and right predictions, from which an AUROC has an error
_Points = Int64[np.ndarray, " _"]


def of_set(scores: ClassScores, draws: DrawWeights) -> dict[str, Estimate]:
    """The estimates of a set that the values of its points allow."""
    found = {name: _estimate(name, metric_of(name).computed, scores, draws) for name in OF_SETS}
    return {name: estimate for name, estimate in found.items() if estimate is not None}


def errors_by_score(scores: ClassScores, draws: DrawWeights) -> dict[str, dict[str, Estimate]]:
    """The AUROC of errors by each other score than predictive entropy; none of a set without labels."""
    found = {
        name: _estimate("auroc_errors", errors_by(name), scores, draws)
        for name in estimates.reported_scores(scores.points, draws)
        if name != BY_ENTROPY
    }
    return {name: {"auroc_errors": estimate} for name, estimate in found.items() if estimate is not None}


def errors_of_part(scores: ClassScores, rows: _Points, kind: str, draws: DrawWeights) -> dict[str, Estimate]:
    """The AUROC of the errors among the points of a class or group; none where too few are wrong or right."""
    estimate = _estimate("auroc_errors", errors_by(BY_ENTROPY), scores, draws, rows=rows, kind=kind)
    return {} if estimate is None else {"auroc_errors": estimate}


def coverage_of_part(scores: ClassScores, rows: _Points, kind: str, draws: DrawWeights) -> dict[str, Estimate]:
    """The share of the points of a class or group whose prediction sets have the true class, by kind of sets."""
    among, found = np.zeros(scores.n, bool), {}
    among[rows] = True
    inside = among[scores.covered_rows]
    for name, covered in scores.covered.items():
        replicates = np.full(len(draws.weights), float(np.mean(scores.points[name][rows])))
        if inside.any():
            shares = covered[:, inside].mean(1)
            replicates[: len(shares)] += shares - shares[draws.full.start]
        found[name] = _of_influence(name, replicates, scores.points[name][rows], scores, draws, rows=rows, kind=kind)
    return found


def with_ood_points(
    separation: Mapping[str, Mapping[str, Estimate]], test: ClassScores, ood: ClassScores, draws: DrawWeights
) -> dict[str, dict[str, Estimate]]:
    """The separation of an OOD set by each score, and the area over its points and the errors of the test set."""
    if "accuracy" not in test.points or "accuracy" in ood.points:  # no labels, or those of a perturbed test set
        return {score: dict(values) for score, values in separation.items()}
    return {score: {**values, "scod": _scod(score, test, ood, draws)} for score, values in separation.items()}


def _scod(score: str, test: ClassScores, ood: ClassScores, draws: DrawWeights) -> Estimate:
    inside, loss, outside = test.points[score], 1 - test.points["accuracy"], ood.points[score]
    replicates = np.full(len(draws.weights), metrics.scod(inside, loss, outside))
    if score in test.ranked and test.ranked_wrong is not None:
        share = min(1.0, RANKED / (test.n + ood.n))  # of each set: the area depends on their sizes
        tests, oods = (
            estimates.ranked_rows(len(each.ranked_rows), most=max(1, round(share * each.n))) for each in (test, ood)
        )
        before = [inside[test.ranked_rows[tests]], outside[ood.ranked_rows[oods]]]
        moved = metrics.scod_of_replicates(
            test.ranked[score][:, tests], test.ranked_wrong[:, tests], ood.ranked[score][:, oods]
        ) - metrics.scod(before[0].astype(np.float32), loss[test.ranked_rows[tests]], before[1].astype(np.float32))
        replicates[draws.jackknife.start : draws.bootstrap.stop] += moved
    parts = zip(metrics.scod_influence(inside, loss, outside), (test, ood), strict=True)
    se = math.hypot(*(metrics.standard_error(part, group=each.group) for part, each in parts))
    over_points = estimates.error_over_points(se, test, ood)
    return estimates.of_replicates("scod", np.clip(replicates, 0, 1), draws, se=over_points)


def _estimate(
    name: str, formula: Formula, scores: ClassScores, draws: DrawWeights, *, rows: _Points | None = None, kind: str = ""
) -> Estimate | None:
    """The estimate by this formula of all points, or those of a part; None where it is undefined, or needs values that
    the points have not."""
    if not formula.needs <= scores.points.keys():
        return None
    chosen = slice(None) if rows is None else rows
    points = {key: scores.points[key][chosen] for key in formula.needs}
    if "accuracy" in points and min(points["accuracy"].sum(), (1 - points["accuracy"]).sum()) < _FEWEST:
        return None
    value = formula.value(points)
    if not math.isfinite(value):
        return None
    replicates = np.full(len(draws.weights), value)
    if formula.needs <= {*scores.ranked, *(() if scores.ranked_wrong is None else ("accuracy",))}:
        replicates[draws.jackknife.start : draws.bootstrap.stop] += _moved(formula, scores, rows)
    influence, limits = formula.influence(points, scores.group), metric_of(name).limits
    return _of_influence(name, np.clip(replicates, *limits), influence, scores, draws, rows=rows, kind=kind)


def _moved(formula: Formula, scores: ClassScores, rows: _Points | None) -> Float[np.ndarray, " error_replicate"]:
    """How far the value of each replicate is from that of all draws, for the points that are kept draw by draw; NaN
    where it is undefined there."""
    kept = np.arange(len(scores.ranked_rows))
    if rows is not None:
        kept = np.flatnonzero(np.isin(scores.ranked_rows, rows))
    kept = kept[estimates.ranked_rows(len(kept), most=RANKED)]
    before = {key: scores.points[key][scores.ranked_rows[kept]].astype(np.float32) for key in formula.needs}
    after = {key: scores.ranked[key][:, kept] for key in formula.needs if key != "accuracy"}
    if "accuracy" in formula.needs:
        assert scores.ranked_wrong is not None
        after["accuracy"] = 1.0 - scores.ranked_wrong[:, kept]
    return formula.values(after) - formula.value(before)


def _of_influence(
    name: str,
    replicates: Float[np.ndarray, " replicate"],
    influence: Float[np.ndarray, " point"],
    scores: ClassScores,
    draws: DrawWeights,
    *,
    rows: _Points | None,
    kind: str,
) -> Estimate:
    """An estimate whose error over points, all or those of a part, follows from their influence; points count by their
    groups, but as independent within a group. Where none has an influence, as at an AUROC of 1, the error is unknown.
    """
    group = None if kind == "group" or scores.group is None else scores.group[slice(None) if rows is None else rows]
    error = metrics.standard_error(influence, group=group)
    se = estimates.error_over_points(error, scores) if error > 0 or name.startswith("set_coverage") else None
    return estimates.of_replicates(name, replicates, draws, se=se)


def split_by_temperature(scores: ClassScores, recalibrated: ClassScores, draws: DrawWeights) -> dict[str, Estimate]:
    """The two parts of the negative PLL of a set: what the fitted temperature removes, and what it leaves. Errors take
    the temperature as given: the sum of both does not depend on it, and what is left is stationary in it."""
    if "pll" not in scores.replicates:
        return {}
    before, after = scores.replicates["pll"], recalibrated.replicates["pll"]
    points = {"pll": scores.points["pll"], "pll_recalibrated": recalibrated.points["pll"]}
    result = {}
    for name in SPLIT:
        influence = metric_of(name).computed.influence(points, scores.group)
        with np.errstate(invalid="ignore"):
            replicates = after - before if name == "calibration_loss" else -after
            se = estimates.error_over_points(metrics.standard_error(influence, group=scores.group), scores)
        result[name] = estimates.of_replicates(name, replicates, draws, se=se)
    return result
