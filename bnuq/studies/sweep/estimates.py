"""The estimates of a network at one mini-batch size, each with its errors over draw sets and over points."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from scipy.special import stdtrit

from bnuq import metrics
from bnuq.data import Points
from bnuq.estimates import Estimate
from bnuq.evaluation.estimates import interval
from bnuq.metrics.decay import least_squares_coefficients
from bnuq.metrics.registry import POST_HOC_SCORES, estimates_of_task, limits_of, metric_of, scores_among
from bnuq.metrics.replicates import independent_units
from bnuq.sampling.batch_statistics import BatchStatistics
from bnuq.sampling.sites import BatchNormSite
from bnuq.studies.sweep.elbo import NORMAL
from bnuq.studies.sweep.record import Decay, Repeated, SweepComparison
from bnuq.studies.sweep.sizes import AtSize
from bnuq.tasks import Task


def set_estimates(
    at_size: AtSize, sets: Mapping[str, Points], ood: Mapping[str, Points], task: Task
) -> tuple[dict[str, dict[str, Repeated]], dict[str, dict[str, Repeated]]]:
    """The estimates of one size by metric and set, and the AUROC of each OOD set by score."""
    estimates: dict[str, dict[str, Repeated]] = {}
    for name, points in sets.items():
        for metric, estimate in _estimates_of(at_size, name, points, task).items():
            estimates.setdefault(metric, {})[name] = estimate
    auroc = {
        score: {name: _separation(at_size, score, sets["test"], points, name) for name, points in ood.items()}
        for score in scores_among(at_size.points["test"])
        if ood and score not in POST_HOC_SCORES
    }
    return estimates, auroc


def decays(
    at_sizes: Sequence[AtSize], sets: Mapping[str, Points], *, spread: str, reference_points: int, augmented: bool
) -> dict[str, Decay]:
    """The slopes of the `spread` over sizes, for each set, with errors over draw sets and, to first order, over
    points."""
    # With augmentation, noise does not vanish at b = N, as the finite-population factor would imply.
    random = [
        at_size
        for at_size in at_sizes
        if not at_size.degenerate and (not augmented or 2 * at_size.batch_size <= reference_points)
    ]
    slopes = {}
    for name, points in sets.items():
        positive = [at_size for at_size in random if (at_size.points[name][spread].mean(1) > 0).all()]
        if len(positive) < 2:
            continue
        sizes = np.array([at_size.batch_size for at_size in positive])
        shared = min(len(at_size.points[name][spread]) for at_size in positive)  # draw sets that every size has
        values = np.stack([at_size.points[name][spread][:shared].mean(1) for at_size in positive], axis=1)
        slope = metrics.log_log_slope(sizes, values, population=reference_points)
        mc_se = metrics.standard_error(slope.of_sets)
        means = np.stack([at_size.points[name][spread][:shared].mean(0) for at_size in positive], axis=1)
        point_ratios = means / values.mean(0)
        se = metrics.standard_error(point_ratios @ least_squares_coefficients(np.log(sizes)), group=points.group)
        half = math.hypot(slope.value - slope.low, NORMAL * se)
        estimate = Estimate(slope.value, se=se, mc_se=mc_se, low=slope.value - half, high=slope.value + half)
        residual = slope.residual if len(sizes) > 2 else math.nan
        slopes[name] = Decay(estimate, residual, tuple(sizes.tolist()))
    return slopes


def _estimates_of(at_size: AtSize, name: str, points: Points, task: Task) -> dict[str, Repeated]:
    """The estimates of one set: the means of its points' scores, and estimates derived from them."""
    values = at_size.points[name]
    result = {}
    for metric in estimates_of_task(task.name, shown="sweep"):
        if metric in values:
            result[metric] = _mean(metric, values[metric], points, limits_of(metric, task.name))
    if "squared_error" in values:
        result["rmse"] = _root(values["squared_error"], points)
        if at_size.fitted:
            result["tau"] = _repeated("tau", np.array([fit.tau[0] for fit in at_size.fitted]), None)
    if task.classifies_points and "accuracy" in values:
        confidence, right = values["max_probability"], values["accuracy"]
        resampled = metrics.calibration_bootstrap(confidence[0], right[0], group=points.group)
        se = float(np.std(metrics.ece_of_bins(resampled), ddof=1))
        of_sets = np.asarray(metrics.ece_of_bins(metrics.calibration_bins(confidence, right)))
        result["ece"] = _repeated("ece", of_sets, se, points)
    return result


def _mean(metric: str, values: np.ndarray, points: Points, limits: tuple[float, float] | None = None) -> Repeated:
    se = metrics.standard_error(values.mean(0), group=points.group)
    return _repeated(metric, values.mean(1), se, points, limits=limits)


def compared(at_size: AtSize, network: AtSize, test: Points, task: Task) -> dict[str, SweepComparison]:
    """A deterministic network on the test points, and the difference of MCBN from it, for the metrics with a
    direction."""
    sampled, deterministic = at_size.points["test"], network.points["test"]
    result = {}
    for metric in estimates_of_task(task.name, shown="sweep"):
        if metrics.METRICS[metric].direction != "none" and metric in sampled and metric in deterministic:
            difference = _mean("difference", sampled[metric] - deterministic[metric], test)
            result[metric] = SweepComparison(_mean(metric, deterministic[metric], test).estimate, difference.estimate)
    return result


def _root(squares: np.ndarray, points: Points) -> Repeated:
    rmse = np.sqrt(squares.mean(1))
    se = metrics.standard_error(squares.mean(0), group=points.group)
    return _repeated("rmse", rmse, se / (2 * float(rmse.mean())) if rmse.all() else 0.0, points)


def _separation(at_size: AtSize, score: str, test: Points, ood: Points, name: str) -> Repeated:
    """The AUROC of the OOD set `name` by a score."""
    inside, outside = at_size.points["test"][score], at_size.points[name][score]
    aurocs = np.array([metrics.auroc(a, b) for a, b in zip(inside, outside, strict=True)])
    variance = metrics.delong_variance(inside.mean(0), outside.mean(0), test_group=test.group, ood_group=ood.group)
    return _repeated("auroc", aurocs, math.sqrt(variance), test, ood)


def _repeated(metric: str, set_values: np.ndarray, se: float | None, *points: Points, limits: Any = None) -> Repeated:
    """The mean over draw sets, with both errors; a single draw set has no Monte Carlo error."""
    value, mc_se = float(set_values.mean()), metrics.standard_error(set_values)
    over_points = None
    if se is not None and all(independent_units(len(of_set), of_set.group) > 1 for of_set in points):
        over_points = se if math.isfinite(se) else None
    error = mc_se if math.isfinite(mc_se) else None
    # `interval` assumes normal errors; the Monte Carlo error is scaled to Student's t, because draw sets are few.
    errors = (over_points, None if error is None else error * float(stdtrit(len(set_values) - 1, 0.975)) / NORMAL)
    low, high = interval(metric, value, *errors, limits=limits or metric_of(metric).limits)
    return Repeated(Estimate(value, se=over_points, mc_se=error, low=low, high=high), set_values)


def with_running_statistics(pooled: BatchStatistics, layers: Sequence[BatchNormSite]) -> BatchStatistics:
    """`pooled` with the running statistics of these layers; layers without running statistics keep the pooled
    statistics."""
    running = []
    for layer, site in zip(pooled.layers, layers, strict=True):
        if site.running_mean is not None and site.running_var is not None:
            mean, var = (statistics.cpu().numpy()[None] for statistics in (site.running_mean, site.running_var))
            layer = replace(layer, mean=mean.astype(layer.mean.dtype), var=var.astype(layer.var.dtype))
        running.append(layer)
    return replace(pooled, layers=tuple(running))
