"""The error of a change: over points, which the two results share or do not, and over the draws that all points share.

Over points a figure is a mean to first order, of what each point contributes (`metrics.influence`): on the same points
the change has the error of the mean of the differences. Over draws the replicates of the two files are subtracted one
by one where draw t is the same draw in both; else the two Monte Carlo errors add up as independent ones do. The two
parts are added, too, which is an upper bound: what is of a point and of a draw at once is counted twice (spec: se² +
mc_se²).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from bnuq import metrics
from bnuq.gate.records import Pairing
from bnuq.records import Figure
from bnuq.results.file import BOUNDS, NORMALIZED
from bnuq.results.result import EvaluatedSet, Result, SetResult
from bnuq.run import DETERMINISTIC

Address = tuple[str, str, str, str]  # method, set, score, metric
_TEST = "test"


@dataclass(frozen=True)
class Error:
    """A standard error, and the degrees of freedom that it was estimated from; NaN where it is not known."""

    value: float
    df: float

    @staticmethod
    def together(*parts: Error) -> Error:
        """Of a sum of independent parts, not known where one of them is not; the degrees by Welch and Satterthwaite.

        Source: Satterthwaite 1946, An Approximate Distribution of Estimates of Variance Components.
        """
        whole = math.hypot(*(part.value for part in parts))
        if not math.isfinite(whole):
            return UNKNOWN
        if whole == 0:
            return NONE
        spent = sum((part.value / whole) ** 4 / part.df for part in parts)
        return Error(whole, 1 / spent if spent else math.inf)


NONE = Error(0.0, math.inf)
UNKNOWN = Error(math.nan, math.inf)


class Points:
    """What each point contributes to the figures of one result, computed when it is first asked for."""

    def __init__(self, result: Result) -> None:
        self._result = result
        self._detection: dict[tuple[str, str, str], Any] = {}

    def contributions(self, address: Address) -> dict[str, np.ndarray] | None:
        """To first order, by set; None where the file does not hold what it takes."""
        method, set_name, score, metric = address
        found = self._result.methods[method]
        if score:
            parts = self._detected(method, set_name, score).get(metric)
            return None if parts is None else dict(zip((_TEST, set_name), parts, strict=True))
        if set_name == NORMALIZED and self._result.model["task"] == "classification":
            values = self._normalized(method)
            return None if values is None else {_TEST: values}
        name = _TEST if set_name == NORMALIZED else set_name
        values = _contributions(metric, found.sets[name], self._result.sets[name]) if name in found.sets else None
        return None if values is None else {name: values}

    def _normalized(self, method: str) -> np.ndarray | None:
        """Those to the PLL between its bounds, which a classification's file holds no points of: they follow from where
        it is right."""
        found = self._result.methods[method]
        fitted, points = found.bounds.get("constant", {}).get("confidence"), found.sets[_TEST].points
        if fitted is None or not {"pll", "accuracy"} <= points.keys():
            return None
        bounds = metrics.pll_bounds(points["accuracy"], fitted.value, int(self._result.model["classes"]))
        return metrics.normalized_influence(points["pll"], *bounds)

    def _detected(self, method: str, set_name: str, score: str) -> dict[str, Any]:
        key = (method, set_name, score)
        if key not in self._detection:
            sets = self._result.methods[method].sets
            pair = (sets[name].points[score] for name in (_TEST, set_name))
            self._detection[key] = vars(metrics.detection_influence(*pair))
        return self._detection[key]


def _contributions(metric: str, one: SetResult, of: EvaluatedSet) -> np.ndarray | None:
    """What each point of a set contributes to one of its own figures."""
    with np.errstate(invalid="ignore"):  # a PLL of −∞ makes its error NaN
        if metric in one.points and metric in one.figures:
            values = np.asarray(one.points[metric], dtype=np.float64)
            return values - values.mean()
    if metric not in _FROM or not _FROM[metric][0] <= _held(one, of):
        return None
    return _FROM[metric][1](one, of)


def _held(one: SetResult, of: EvaluatedSet) -> set[str]:
    """The names of what is known of each point."""
    beside = {"sigma": one.sigma, "targets": of.targets}
    return {*one.points, *(name for name, values in beside.items() if values is not None)}


def _ece(one: SetResult, of: EvaluatedSet) -> np.ndarray:
    return metrics.ece_influence(one.points["max_probability"], one.points["accuracy"], group=of.group)


def _aurc(one: SetResult, of: EvaluatedSet) -> np.ndarray:  # noqa: ARG001 - as its neighbours
    return metrics.aurc_influence(one.points["predictive_entropy"], 1 - one.points["accuracy"])


def _rmse(one: SetResult, of: EvaluatedSet) -> np.ndarray:  # noqa: ARG001
    return metrics.rmse_influence(one.points["squared_error"])


def _spearman(one: SetResult, of: EvaluatedSet) -> np.ndarray:
    assert one.sigma is not None and of.targets is not None
    sigma = np.sqrt((one.sigma**2).mean(-1)).astype(np.float32).astype(np.float64)
    return metrics.spearman_influence(sigma, np.sqrt(((of.targets - one.predicted) ** 2).mean(-1)))


def _normalized(score: str) -> Callable[[SetResult, EvaluatedSet], np.ndarray]:
    def contributions(one: SetResult, of: EvaluatedSet) -> np.ndarray:  # noqa: ARG001
        return metrics.normalized_influence(*(one.points[name] for name in _bounded(score)))

    return contributions


def _bounded(score: str) -> tuple[str, str, str]:
    return score, f"{score}_constant", f"{score}_optimum"


# What a figure that is no mean is made of, and how.
_FROM: dict[str, tuple[set[str], Callable[[SetResult, EvaluatedSet], np.ndarray]]] = {
    "ece": ({"max_probability", "accuracy"}, _ece),
    "aurc": ({"predictive_entropy", "accuracy"}, _aurc),
    "rmse": ({"squared_error"}, _rmse),
    "spearman": ({"sigma", "targets"}, _spearman),
    "normalized_pll": (set(_bounded("pll")), _normalized("pll")),
    "normalized_crps": (set(_bounded("crps")), _normalized("crps")),
}


class Errors:
    """The errors of the changes between two results, given what they share."""

    def __init__(self, current: Result, baseline: Result, shared: Pairing) -> None:
        self._results = current, baseline
        self._points = Points(current), Points(baseline)
        self._paired = shared
        self._group = {name: current.sets[name].group for name in shared.points}
        self._independent = [
            {name: one.n if one.group is None else len(np.unique(one.group)) for name, one in result.sets.items()}
            for result in self._results
        ]

    def over_points(self, address: Address, figures: tuple[Figure, Figure]) -> Error:
        """On shared points, that of the mean of the differences.

        Where the points are others, or a file does not hold what each of them contributes, that of independent figures,
        which on shared points is mostly too large.
        """
        names = _sets_of(address)
        if all(name in self._group for name in names) and self._same_scores(address):
            return NONE
        ours, theirs = (points.contributions(address) for points in self._points)
        if ours is None or theirs is None or not ours.keys() <= self._group.keys():
            independent = (min(sizes.get(name, 0) for name in names) for sizes in self._independent)
            alone = (_known(figure.se, size - 1) for figure, size in zip(figures, independent, strict=True))
            return Error.together(*alone)
        parts = []
        for name, values in ours.items():
            with np.errstate(invalid="ignore", over="ignore"):  # an infinite value, whose error is then not known
                se = metrics.standard_error(values - theirs[name], group=self._group[name])
            parts.append(_known(se, self._independent[0][name] - 1))
        return Error.together(*parts)

    def _same_scores(self, address: Address) -> bool:
        """Whether each point has the same score in both, so that the ranks that figures of OOD rest on are the same."""
        method, _, score, _ = address
        if not score:
            return False
        sides = [result.methods[method].sets for result in self._results]
        pairs = ([side[name].points.get(score) for side in sides] for name in _sets_of(address))
        return all(a is not None and b is not None and np.array_equal(a, b) for a, b in pairs)

    def over_draws(self, address: Address, figures: tuple[Figure, Figure]) -> Error:
        """Of the differences of the replicates where the draws are shared; of independent figures where they are not;
        none for the network as it is."""
        method, _, _, metric = address
        if method == DETERMINISTIC and method not in dict(self._paired.why_not):
            return NONE
        kind = metrics.METRICS[metric].mc_error if metric in metrics.METRICS else "jackknife"
        if any(figure.mc_se is None for figure in figures):  # too few draws, or an infinite value
            return UNKNOWN
        if method not in self._paired.draws:
            return Error.together(*(_alone(kind, figure) for figure in figures))
        ours, theirs = (getattr(figure, kind) for figure in figures)
        if ours is None or theirs is None or len(ours) != len(theirs):
            return UNKNOWN
        with np.errstate(invalid="ignore"):
            moved = ours - theirs
        if kind == "jackknife":
            return Error(float(metrics.jackknife_error(moved)), len(moved) - 1)
        bank = len(moved) if figures[0].jackknife is None else len(figures[0].jackknife)
        samples = int(self._results[0].sampling["samples"])
        return Error(float(metrics.bootstrap_error(moved, samples=samples, bank=bank)), _degrees(bank, len(moved)))


def _sets_of(address: Address) -> tuple[str, ...]:
    """The sets whose points a figure is of: its own, or the test set, or for OOD both."""
    _, set_name, score, _ = address
    if score:
        return _TEST, set_name
    return (_TEST if set_name == NORMALIZED or set_name.startswith(BOUNDS) else set_name,)


def _known(se: float | None, df: float) -> Error:
    return UNKNOWN if se is None or df < 1 else Error(se, df)


def _alone(kind: str, figure: Figure) -> Error:
    """The Monte Carlo error of one figure; its draws are as many as its jackknife has, be they T or a bank's."""
    if figure.mc_se is None or figure.jackknife is None:
        return UNKNOWN
    rows = 0 if figure.bootstrap is None else len(figure.bootstrap)
    draws = len(figure.jackknife)
    return Error(figure.mc_se, draws - 1 if kind == "jackknife" else _degrees(draws, rows))


def _degrees(draws: int, rows: int) -> float:
    """Of a variance over so many draws that was itself found from so many resamples."""
    return 1 / (1 / max(1, draws - 1) + 1 / max(1, rows - 1))
