"""Recomputes the estimates of a result file from its points: one that its own points contradict is refused before
anything is compared.

Each estimate is computed from the scores of the points. The scores are computed from labels, targets, predictions and
log-likelihoods, if the file has these. The error over points is recomputed if it has a formula. Replicates over
the draws are checked in `replicates`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from bnuq import metrics
from bnuq.errors import ResultError
from bnuq.estimates import Estimate
from bnuq.gate.replicates import agree, contradictions, rounded_at
from bnuq.methods import DETERMINISTIC
from bnuq.records.addresses import estimates_of
from bnuq.records.contributions import Points
from bnuq.records.evaluation import PARTS, Result, SetResult, of_part
from bnuq.store.table import Row

_MOST_DRAWS = 2**13  # draws at most: the weights of the replicates must fit in memory
_SHOWN = 8  # contradictions that a message names
_ROUNDING = 1e-6
_RESAMPLED = (  # se by the bootstrap
    *("ece", "mce", "aupr_out", "aupr_in", "fpr95", "fpr95_id_positive", "spearman"),
    *metrics.SELECTIVE,
)
_FITTED = ("sigma", "confidence")  # to validation points, which are not in the file; the bounds follow from them


def recomputed(result: Result) -> Points:
    """The points of `result`; ResultError, naming estimates, where the file contradicts its own points."""
    draws = max(*map(result.samples_of, result.methods), int(result.sampling.get("bank") or 0))
    if draws > _MOST_DRAWS:
        raise ResultError(
            f"{result.path} has {draws} samples; at most {_MOST_DRAWS} can be checked. Evaluate with fewer."
        )
    points = Points(result)
    with np.errstate(all="ignore"):  # a forged number may be of any size
        problems = [*_problems(points)]
        for label in next(iter(result.methods.values())).sets["test"].by_label:
            problems += [f"label {label}: {problem}" for problem in _problems(points.of_label(label))]
        test = result.methods[DETERMINISTIC].sets["test"]
        for kind, place in PARTS.items() if result.model["task"] != "segmentation" else ():
            for name in getattr(test, place):
                problems += [f"{kind} {name}: {problem}" for problem in contradictions(of_part(result, kind, name))]
    if problems:
        more = f"\n  - and {len(problems) - _SHOWN} more" if len(problems) > _SHOWN else ""
        shown = "\n".join(f"  - damaged: {problem}" for problem in problems[:_SHOWN])
        raise ResultError(
            f"{result.path} contradicts itself: it was damaged, or changed after bnuq wrote it. Evaluate again.\n"
            f"{shown}{more}"
        )
    return points


def _problems(points: Points) -> Iterator[str]:
    result = points.result
    yield from _scores(result, points)
    yield from _estimates(result, points)
    yield from contradictions(result)


# ── estimates ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _estimates(result: Result, points: Points) -> Iterator[str]:
    for name, row in estimates_of(result).items():
        if row["label"]:  # checked with its label
            continue
        if problem := _estimate(name, row, result, points) or _errors(name, row, result, points):
            yield problem


def _estimate(name: str, row: Row, result: Result, points: Points) -> str | None:
    estimate, metric = row.estimate, row["metric"]
    if row["bound"] and metric in _FITTED:
        return None
    if metric == "tau":
        value, agrees = _precision(estimate, result.methods[row["method"]].sets[row["set"]])
    else:
        value = points.value(row)
        agrees = value is not None and bool(agree(estimate.value, value, rounded_at(metric)))
    if value is None:
        return f"{name} is {estimate.value:.6g}, and the scores of points that it is computed from are missing."
    if not agrees:
        return f"{name} is {estimate.value:.6g}; recomputed from its points it is {value:.6g}."
    if metric in metrics.METRICS and metrics.METRICS[metric].unit == "fraction" and abs(value - 0.5) > 0.5 + _ROUNDING:
        return f"{name} is {estimate.value:.6g}, and no fraction."
    return None


def _errors(name: str, row: Row, result: Result, points: Points) -> str | None:
    """Errors in the stated error over points and in the interval, which must contain the estimate."""
    estimate, metric = row.estimate, row["metric"]
    low, high = (estimate.value if end is None else end for end in (estimate.low, estimate.high))
    slack = _ROUNDING * max(rounded_at(metric), abs(estimate.value))
    if math.isfinite(estimate.value) and not low - slack <= estimate.value <= high + slack:
        return f"{name} is {estimate.value:.6g}, and its interval goes from {low:.6g} to {high:.6g}."
    if estimate.se is None or metric in _RESAMPLED:
        return None
    parts = points.contributions(row)
    if parts is None:
        return None
    with np.errstate(invalid="ignore", over="ignore"):
        groups = {key: None if row["group"] else result.sets[key].group for key in parts}
        errors = (metrics.standard_error(values, group=groups[key]) for key, values in parts.items())
        error = math.hypot(*errors)
    if not math.isfinite(error) or agree(estimate.se, error, slack).all():
        return None
    if metric == "auroc" and error == 0:  # at a bound, where the error is by the bootstrap
        return None
    return f"{name}: its standard error is {estimate.se:.6g}; recomputed from its points it is {error:.6g}."


def _precision(estimate: Estimate, set_result: SetResult) -> tuple[float | None, bool]:
    """τ, whose inverse is the difference between predictive variances and those of the draws, and whether the estimate
    agrees."""
    if set_result.sigma is None:
        return None, False
    total = (set_result.sigma**2).mean(-1)
    noise = float(np.mean(total - set_result.points.get("variance", 0.0)))
    stated = 1 / estimate.value if estimate.value else math.inf
    return 1 / noise if noise else math.inf, bool(agree(stated, noise, float(np.mean(total))))


# ── scores of points ─────────────────────────────────────────────────────────────────────────────────────────────────


def _scores(result: Result, points: Points) -> Iterator[str]:
    recompute, least = _of_classification, _SMALLEST_SCALE
    if result.model["task"] == "regression":
        recompute, least = _of_regression, 0.0
    for method, method_result in result.methods.items():
        for name, set_result in method_result.sets.items():
            mixed = points.of_log_likelihoods(method, name)
            recomputations = recompute(result, method, name)
            if mixed is not None:
                recomputations = itertools.chain(recomputations, [("pll", mixed, _ALL)])
            for score, values, rows in recomputations:
                stated = set_result.points.get(score)
                if stated is None:
                    continue
                stated = stated[rows]
                if not len(stated):
                    continue
                scale = max(least, float(np.mean(np.nan_to_num(np.abs(stated), posinf=0.0))))
                differing = ~agree(stated, values, scale)
                if differing.any():
                    at = int(np.flatnonzero(differing)[0])
                    yield (
                        f"{score} of a point of {name} under {method} is {stated[at]:.6g}; recomputed it is "
                        f"{values[at]:.6g} ({int(differing.sum())} of {len(differing)} points differ)."
                    )


_SMALLEST_SCALE = 1e-8  # of a classification's scores: 1 − p and differences of entropies round at 1e-16
_Recomputed = Iterator[tuple[str, np.ndarray, Any]]  # a score, its recomputed values, and their points
_ALL = slice(None)


def _of_classification(result: Result, method: str, set_name: str) -> _Recomputed:
    set_result, labels = result.methods[method].sets[set_name], result.sets[set_name].labels
    points = set_result.points
    if "max_probability" in points:
        yield "least_confidence", 1 - points["max_probability"], _ALL
    samples = result.samples_of(method)
    estimator = result.sampling.get("mutual_information", "plug-in")
    if estimator != "jackknife" and {"predictive_entropy", "expected_entropy"} <= points.keys():
        unbiased = samples / (samples - 1) if estimator == "corrected" and samples > 1 else 1.0
        yield "mutual_information", unbiased * (points["predictive_entropy"] - points["expected_entropy"]), _ALL
    for score, by_label in set_result.label_points.items():
        yield score, by_label.mean(-1), _ALL
    if labels is None or "accuracy" not in points or labels.ndim > 1:
        return
    correct = set_result.predicted == labels
    yield "accuracy", correct.astype(np.float64), _ALL
    for kind in ("", "_aps"):
        if (size := points.get(f"set_size{kind}")) is not None:
            known = correct | (size <= 1)  # a set that is not empty has the predicted class
            yield f"set_coverage{kind}", (correct & (size > 0)).astype(np.float64)[known], known
    if set_result.log_likelihood is None and "least_confidence" in points:
        # A predicted label has the largest probability.
        with np.errstate(divide="ignore"):
            yield "pll", np.log1p(-points["least_confidence"][correct]), correct


def _of_regression(result: Result, method: str, set_name: str) -> _Recomputed:
    method_result, y = result.methods[method], result.sets[set_name].targets
    mean, sigma = method_result.sets[set_name].predicted, method_result.sets[set_name].sigma
    if y is None or sigma is None:
        return
    yield "squared_error", ((y - mean) ** 2).sum(-1), _ALL
    yield "mae", np.abs(y - mean).mean(-1), _ALL
    yield "crps_optimum", metrics.crps_optimum(mean, y), _ALL
    yield "pll_optimum", metrics.pll_optimum(mean, y), _ALL
    scoring = result.run.get("scoring", {})
    if scoring.get("crps", "gaussian") == "gaussian":
        yield "crps", metrics.crps_gaussian(mean, sigma, y), _ALL
    if scoring.get("pll") == "moment":
        yield "pll", metrics.pll_gaussian(mean, sigma, y), _ALL
    fitted = method_result.bounds.get("constant", {}).get("sigma")
    if fitted is not None and not result.is_cross_fitted:  # where each half of the points has its own
        constant = np.full_like(mean, fitted.value)
        yield "crps_constant", metrics.crps_gaussian(mean, constant, y), _ALL
        yield "pll_constant", metrics.pll_gaussian(mean, constant, y), _ALL
