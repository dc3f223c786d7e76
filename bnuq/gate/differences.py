"""The error of a change: over points, which the two results share or do not, and over the draws that all points share.

Over points a figure is a mean to first order, of what each point contributes (`metrics.influence`): on the same points
the change has the error of the mean of the differences. Over draws the replicates of the two files are subtracted one
by one where draw t is the same draw in both; else the two Monte Carlo errors add up as independent ones do. The two
parts are added, too, √(se² + mc_se²), an upper bound: what is of a point and of a draw at once is counted twice.
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
        if score:
            parts = self._detected(method, set_name, score).get(metric)
            return None if parts is None else dict(zip((_TEST, set_name), parts, strict=True))
        if set_name == NORMALIZED or set_name.startswith(BOUNDS):
            values = self._bounded(method, set_name, metric.removeprefix(f"{NORMALIZED}_"))
            return None if values is None else {_TEST: values}
        found = self._result.methods[method].sets
        values = _contributions(metric, found[set_name], self._result.sets[set_name]) if set_name in found else None
        return None if values is None else {set_name: values}

    def _bounded(self, method: str, set_name: str, score: str) -> np.ndarray | None:
        """Those to a score's bounds, and to where it lies between them. Of a classification the file holds no points of
        the bounds: they follow from where it is right."""
        found = self._result.methods[method]
        points = dict(found.sets[_TEST].points)
        fitted = found.bounds.get("constant", {}).get("confidence")
        if fitted is not None and "accuracy" in points:
            bounds = metrics.pll_bounds(points["accuracy"], fitted.value, int(self._result.model["classes"]))
            points |= zip(("pll_constant", "pll_optimum"), bounds, strict=True)
        if set_name != NORMALIZED:
            name = f"{score}_{set_name.removeprefix(BOUNDS)}"
            return _from_mean(points[name]) if name in points else None
        names = score, f"{score}_constant", f"{score}_optimum"
        return metrics.normalized_influence(*(points[n] for n in names)) if {*names} <= points.keys() else None

    def _detected(self, method: str, set_name: str, score: str) -> dict[str, Any]:
        key = (method, set_name, score)
        if key not in self._detection:
            sets = self._result.methods[method].sets
            pair = (sets[name].points[score] for name in (_TEST, set_name))
            self._detection[key] = vars(metrics.detection_influence(*pair))
        return self._detection[key]


def _contributions(metric: str, one: SetResult, of: EvaluatedSet) -> np.ndarray | None:
    """What each point of a set contributes to one of its own figures."""
    if metric in one.points and metric in one.figures:
        return _from_mean(one.points[metric])
    if metric not in _FROM or not _FROM[metric][0] <= _held(one, of):
        return None
    return _FROM[metric][1](one, of)


def _from_mean(points: np.ndarray) -> np.ndarray:
    values = np.asarray(points, dtype=np.float64)
    with np.errstate(invalid="ignore"):  # a PLL of −∞ makes its error NaN
        return values - values.mean()


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


# What a figure that is no mean is made of, and how.
_FROM: dict[str, tuple[set[str], Callable[[SetResult, EvaluatedSet], np.ndarray]]] = {
    "ece": ({"max_probability", "accuracy"}, _ece),
    "aurc": ({"predictive_entropy", "accuracy"}, _aurc),
    "rmse": ({"squared_error"}, _rmse),
    "spearman": ({"sigma", "targets"}, _spearman),
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
        if not all(math.isfinite(math.nan if f.mc_se is None else f.mc_se) for f in figures):  # too few draws
            return UNKNOWN
        samples = [int(result.sampling["samples"]) for result in self._results]
        replicates = [(figure.jackknife, figure.bootstrap) for figure in figures]
        if method in self._paired.draws:
            replicates = [tuple(_moved(*each) for each in zip(*replicates, strict=True))]
        told = zip(replicates, samples, strict=False)  # of the change itself, where draws are shared
        return Error.together(*(_of_replicates(kind, *each, samples=count) for each, count in told))


def _sets_of(address: Address) -> tuple[str, ...]:
    """The sets whose points a figure is of: its own, or the test set, or for OOD both."""
    _, set_name, score, _ = address
    if score:
        return _TEST, set_name
    return (_TEST if set_name == NORMALIZED or set_name.startswith(BOUNDS) else set_name,)


def _known(se: float | None, df: float) -> Error:
    return UNKNOWN if se is None or df < 1 else Error(se, df)


def _moved(ours: np.ndarray | None, theirs: np.ndarray | None) -> np.ndarray | None:
    """By how much each replicate moved; None where the two have not the same ones."""
    if ours is None or theirs is None or len(ours) != len(theirs):
        return None
    with np.errstate(invalid="ignore"):
        return ours - theirs


def _of_replicates(kind: str, jackknife: np.ndarray | None, bootstrap: np.ndarray | None, *, samples: int) -> Error:
    """The Monte Carlo error that these replicates tell; the draws are as many as were left out, T or a bank's."""
    if jackknife is None or (kind == "bootstrap" and bootstrap is None):
        return UNKNOWN
    df = _degrees(jackknife)
    if kind == "jackknife" or bootstrap is None:
        return Error(float(metrics.jackknife_error(jackknife)), df)
    error = metrics.bootstrap_error(bootstrap, samples=samples, bank=len(jackknife))
    return Error(float(error), 1 / (1 / df + 1 / max(1, len(bootstrap) - 1)))


def _degrees(left_out: np.ndarray) -> float:
    """Of the variance over the draws: one less than there are, and fewer where a few of them carry most of it.

    2T/(κ − 1) with the kurtosis κ of what each draw does, which makes a χ² vary as that variance does. A Monte Carlo
    error that rests on three unlucky mini-batches out of 32 is known to far less than one in eight, and mostly too
    small.

    Source: the variance of a sample variance, Cramér 1946, Mathematical Methods of Statistics, §27.4; matched as in
    Satterthwaite 1946.
    """
    draws = len(left_out)
    away = left_out - left_out.mean()
    spread = float(np.mean(away**2))
    if not 0 < spread < math.inf:
        return max(1, draws - 1)
    excess = float(np.mean((away**2 / spread) ** 2)) - 1
    return max(1.0, min(draws - 1, 2 * draws / excess if excess > 0 else math.inf))
