"""The estimates of one network at one mini-batch size: means over draw sets, with errors over draw sets and over
points."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from scipy.special import stdtrit

from bnuq import metrics
from bnuq.config import Task
from bnuq.data import Points
from bnuq.estimates import Estimate
from bnuq.evaluation.estimates import interval
from bnuq.records.sweep import Compared, Repeated
from bnuq.sweeping.sizes import AtSize

_MEANS: dict[str, tuple[str, ...]] = {
    "classification": (
        "accuracy",
        "pll",
        "brier",
        "mutual_information",
        "predictive_entropy",
        "expected_entropy",
    ),
    "regression": ("mae", "pll", "crps", "coverage50", "coverage95", "variance"),
}
_NORMAL = 1.959964
_DIFFERENCE = "difference"
_SHARES = ("accuracy", "ece", "auroc", "coverage50", "coverage95")


def estimates_of(at_size: AtSize, name: str, points: Points, task: Task) -> dict[str, Repeated]:
    """The estimates of one set: the means of its per-point scores, and estimates derived from the scores."""
    values = at_size.points[name]
    result = {}
    for metric in _MEANS[task]:
        if metric in values:
            result[metric] = _mean(metric, values[metric], points)
    if "squared_error" in values:
        result["rmse"] = _root(values["squared_error"], points)
        if at_size.fitted[0] is not None:
            result["tau"] = _repeated("tau", np.array([fit.tau[0] for fit in at_size.fitted]), None)
    if "accuracy" in values:
        result["ece"] = _calibration(values, points)
    return result


def _mean(metric: str, values: np.ndarray, points: Points) -> Repeated:
    se = metrics.standard_error(values.mean(0), group=points.group)
    return _repeated(metric, values.mean(1), se, points)


def compared(at_size: AtSize, network: AtSize, test: Points, task: Task) -> dict[str, Compared]:
    """A deterministic network on the test points, and the difference of MCBN from it, for the metrics with a
    direction."""
    sampled, deterministic = at_size.points["test"], network.points["test"]
    result = {}
    for metric in _MEANS[task]:
        if metrics.METRICS[metric].direction != "none" and metric in sampled and metric in deterministic:
            difference = _mean(_DIFFERENCE, sampled[metric] - deterministic[metric], test)
            result[metric] = Compared(_mean(metric, deterministic[metric], test).estimate, difference.estimate)
    return result


def _root(squares: np.ndarray, points: Points) -> Repeated:
    of_sets = np.sqrt(squares.mean(1))
    se = metrics.standard_error(squares.mean(0), group=points.group)
    return _repeated("rmse", of_sets, se / (2 * float(of_sets.mean())) if of_sets.all() else 0.0, points)


def _calibration(values: Mapping[str, np.ndarray], points: Points) -> Repeated:
    bins = metrics.calibration_bins(values["max_probability"], values["accuracy"])
    resampled = metrics.ece_bootstrap(values["max_probability"][0], values["accuracy"][0], group=points.group)
    return _repeated("ece", np.asarray(metrics.ece_of_bins(bins)), float(np.std(resampled, ddof=1)), points)


def separation(at_size: AtSize, score: str, test: Points, ood: Points, name: str) -> Repeated:
    """The AUROC of the OOD set `name` by a score."""
    inside, outside = at_size.points["test"][score], at_size.points[name][score]
    of_sets = np.array([metrics.auroc(a, b) for a, b in zip(inside, outside, strict=True)])
    variance = metrics.delong_variance(inside.mean(0), outside.mean(0), test_group=test.group, ood_group=ood.group)
    return _repeated("auroc", of_sets, math.sqrt(variance), test, ood)


def _repeated(metric: str, of_sets: np.ndarray, se: float | None, *points: Points) -> Repeated:
    """The mean over draw sets, with both errors; a single draw set has no Monte Carlo error."""
    value, mc_se = float(of_sets.mean()), metrics.standard_error(of_sets)
    over_points = None
    if se is not None and all(
        len(set_points if set_points.group is None else np.unique(set_points.group)) > 1 for set_points in points
    ):
        over_points = se if math.isfinite(se) else None
    error = mc_se if math.isfinite(mc_se) else None
    limits = (-math.inf if metric in ("pll", _DIFFERENCE) else 0.0, 1.0 if metric in _SHARES else math.inf)
    # `interval` assumes normal errors; the Monte Carlo error is scaled to Student's t, because draw sets are few.
    errors = (over_points, None if error is None else error * float(stdtrit(len(of_sets) - 1, 0.975)) / _NORMAL)
    low, high = interval(metric, value, *errors, limits=limits)
    return Repeated(Estimate(value, se=over_points, mc_se=error, low=low, high=high), of_sets)
