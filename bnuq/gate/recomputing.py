"""What a result file states, computed again from the points that it holds: a figure that its own points contradict is
refused before anything is compared.

Each figure is computed from the scores of the points, and these scores, as far as the file holds what they come from,
from labels, targets, predictions and log-likelihoods. Of replicates over the draws the PLL's are computed from the
log-likelihoods; the outputs of the draws, which the others come from, are not in the file: they only have to be
consistent with their figure.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from bnuq import metrics
from bnuq.errors import ResultError
from bnuq.gate.comparability import figures_by_address
from bnuq.gate.points import Address, Points
from bnuq.records import Figure
from bnuq.results.file import BOUNDS
from bnuq.results.result import Result, SetResult
from bnuq.run import ONE_PASS

_SHOWN = 8  # contradictions that a message names
_ROUNDING = 1e-6  # relative
_FITTED = ("sigma", "confidence")  # to validation points, which are not in the file; the bounds follow from them
_LEAST_DRAWS = 8  # below which replicates tell no error, and are not used


def recomputed(result: Result) -> Points:
    """The points of `result`; ResultError, naming figures, where what the file states is not what they give."""
    points = Points(result)
    problems = [*_scores(result, points), *_figures(result, points)]
    if problems:
        more = f"\n  - and {len(problems) - _SHOWN} more" if len(problems) > _SHOWN else ""
        shown = "\n".join(f"  - damaged: {problem}" for problem in problems[:_SHOWN])
        raise ResultError(
            f"{result.path} contradicts itself: it was damaged, or changed after bnuq wrote it. Evaluate again.\n"
            f"{shown}{more}"
        )
    return points


def _agree(stated: Any, found: Any, scale: Any = 0.0) -> np.ndarray:
    """Whether they are equal up to rounding, relative to themselves or to `scale`; NaN is NaN."""
    a, b = np.asarray(stated, dtype=np.float64), np.asarray(found, dtype=np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        apart = np.abs(a - b)
        if np.max(apart, initial=0.0) <= _ROUNDING * scale:  # the usual case, and no NaN
            return np.ones(apart.shape, dtype=bool)
        near = apart <= _ROUNDING * np.maximum(np.abs(b), scale)
    return near | (a == b) | (np.isnan(a) & np.isnan(b))


# ── figures ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _figures(result: Result, points: Points) -> Iterator[str]:
    for name, (address, figure) in figures_by_address(result).items():
        if said := _figure(name, address, figure, result, points) or _replicates(name, address, figure, result, points):
            yield said


def _figure(name: str, address: Address, figure: Figure, result: Result, points: Points) -> str | None:
    method, set_name, _, metric = address
    if set_name.startswith(BOUNDS) and metric in _FITTED:
        return None
    if metric == "tau":
        value, agrees = _precision(figure, result.methods[method].sets[set_name])
    else:
        value = points.value(address)
        agrees = value is not None and bool(_agree(figure.value, value, _scale(metric)))
    if value is None:
        return f"{name} is {figure.value:.6g}, and the scores of points that it is computed from are missing."
    if not agrees:
        return f"{name} is {figure.value:.6g}; recomputed from its points it is {value:.6g}."
    if metric in metrics.METRICS and metrics.METRICS[metric].unit == "fraction" and abs(value - 0.5) > 0.5 + _ROUNDING:
        return f"{name} is {figure.value:.6g}, and no fraction."
    return None


def _scale(metric: str) -> float:
    """The size whose rounding a figure has, where it may be near 0; 0 for what is rounded relative to itself."""
    unit = metrics.METRICS[metric].unit if metric in metrics.METRICS else "percent"
    return {"fraction": 1.0, "1": 1.0, "nats": 1.0, "percent": 100.0}.get(unit, 0.0)


def _precision(figure: Figure, one: SetResult) -> tuple[float | None, bool]:
    """τ, whose inverse is what predictive variances have more than those of the draws, and whether the figure is it."""
    if one.sigma is None:
        return None, False
    whole = (one.sigma**2).mean(-1)
    noise = float(np.mean(whole - one.points.get("variance", 0.0)))
    stated = 1 / figure.value if figure.value else math.inf
    return 1 / noise if noise else math.inf, bool(_agree(stated, noise, float(np.mean(whole))))


# ── replicates over the draws ────────────────────────────────────────────────────────────────────────────────────────


def _replicates(name: str, address: Address, figure: Figure, result: Result, points: Points) -> str | None:
    left_out = figure.jackknife
    if left_out is None or len(left_out) < _LEAST_DRAWS or not np.isfinite([*left_out, figure.value]).all():
        return None
    known = _of_log_likelihoods(address, result, points)
    if known is not None and not (known.shape == left_out.shape and _agree(left_out, known).all()):
        stated, found = (float(metrics.jackknife_error(values)) for values in (left_out, known))
        return (
            f"{name}: its replicates have a Monte Carlo error of {stated:.6g}; recomputed from the log-likelihoods it "
            f"is {found:.6g}."
        )
    # Without a draw a figure moves by its bias over T too, which exceeds its error where there are many points.
    error, mean = float(metrics.jackknife_error(left_out)), float(np.mean(left_out))
    size = max(_scale(address[3]), abs(figure.value))
    if abs(mean - figure.value) > 2 * (error + size / len(left_out)):
        return f"{name} is {figure.value:.6g}, and its replicates without a draw {mean:.6g} ± {error:.2g}."
    return None


def _of_log_likelihoods(address: Address, result: Result, points: Points) -> np.ndarray | None:
    """The PLL of a set without each of the draws; None for another figure, where points use their own draws of a bank,
    and where each replicate has a τ of its own."""
    method, set_name, _, metric = address
    if metric != "pll" or set_name not in result.methods[method].sets:
        return None
    if result.sampling.get("bank") is not None and method.startswith("mcbn"):
        return None
    if result.model["task"] == "regression" and result.run.get("scoring", {}).get("tau") is None:
        return None
    found = points.of_log_likelihoods(method, set_name)
    return None if found is None else found[1]


# ── scores of points ─────────────────────────────────────────────────────────────────────────────────────────────────


def _scores(result: Result, points: Points) -> Iterator[str]:
    recompute = _of_regression if result.model["task"] == "regression" else _of_classification
    for method, found in result.methods.items():
        for name, one in found.sets.items():
            mixed = points.of_log_likelihoods(method, name)
            again = recompute(result, method, name)
            if mixed is not None:
                again = itertools.chain(again, [("pll", mixed[0], _ALL)])
            for score, values, rows in again:
                stated = one.points.get(score)
                if stated is None:
                    continue
                stated = stated[rows]
                bad = ~_agree(stated, values, float(np.mean(np.nan_to_num(np.abs(stated), posinf=0.0))))
                if bad.any():
                    at = int(np.flatnonzero(bad)[0])
                    yield (
                        f"{score} of a point of {name} under {method} is {stated[at]:.6g}; recomputed it is "
                        f"{values[at]:.6g} ({int(bad.sum())} of {len(bad)} points differ)."
                    )


_Recomputed = Iterator[tuple[str, np.ndarray, Any]]  # a score, its values again, and of which points they are
_ALL = slice(None)


def _of_classification(result: Result, method: str, set_name: str) -> _Recomputed:
    one, labels = result.methods[method].sets[set_name], result.sets[set_name].labels
    points = one.points
    if "max_probability" in points:
        yield "least_confidence", 1 - points["max_probability"], _ALL
    samples = 1 if method in ONE_PASS else int(result.sampling["samples"])
    estimator = result.sampling.get("mutual_information", "plug-in")
    if estimator != "jackknife" and {"predictive_entropy", "expected_entropy"} <= points.keys():
        unbiased = samples / (samples - 1) if estimator == "corrected" and samples > 1 else 1.0
        yield "mutual_information", unbiased * (points["predictive_entropy"] - points["expected_entropy"]), _ALL
    if labels is None or "accuracy" not in points:
        return
    right = one.predicted == labels
    yield "accuracy", right.astype(np.float64), _ALL
    if one.log_likelihood is None and "least_confidence" in points:  # a label that is predicted has the largest share
        with np.errstate(divide="ignore"):
            yield "pll", np.log1p(-points["least_confidence"][right]), right


def _of_regression(result: Result, method: str, set_name: str) -> _Recomputed:
    found, y = result.methods[method], result.sets[set_name].targets
    mean, sigma = found.sets[set_name].predicted, found.sets[set_name].sigma
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
    fitted = found.bounds.get("constant", {}).get("sigma")
    if fitted is not None:
        constant = np.full_like(mean, fitted.value)
        yield "crps_constant", metrics.crps_gaussian(mean, constant, y), _ALL
        yield "pll_constant", metrics.pll_gaussian(mean, constant, y), _ALL
