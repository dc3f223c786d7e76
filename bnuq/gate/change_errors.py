"""The error of a change: over points, which the results may share, and over the draws that all points share.

A change is a weighted sum of the values of an estimate in several results: current − baseline of two, current − the
mean of several, or the slope of a history. Over points, an estimate is to first order a mean of the contributions of
the points (`metrics.influence`). On the same points, the change has the error of the mean of their weighted sums. Over
draws, replicates of the files are added up where draw t is the same draw in all; otherwise Monte Carlo errors add as
independent errors. The total is √(se² + mc_se²), an upper bound, because an interaction of points and draws is counted
twice.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from bnuq import metrics
from bnuq.frozen import frozen
from bnuq.gate.pairing import pairing, pairing_of
from bnuq.methods import method_named
from bnuq.metrics.registry import metric_of
from bnuq.metrics.replicates import independent_units
from bnuq.records.certificate import ACCEPTED, WIDTH
from bnuq.records.contributions import PointContributions, sets_of
from bnuq.records.evaluation import ERRORS, WITH_ERRORS, Result
from bnuq.records.promises import resampled_values
from bnuq.store.table import Row


@frozen
class Error:
    """A standard error, and the degrees of freedom that it was estimated from; NaN if it is not known."""

    value: float
    df: float

    @staticmethod
    def together(*parts: Error) -> Error:
        """The error of a sum of independent parts, unknown where a part is unknown; degrees by Welch and Satterthwaite.

        Source: Satterthwaite 1946, An Approximate Distribution of Estimates of Variance Components.
        """
        total = math.hypot(*(part.value for part in parts))
        if not math.isfinite(total):
            return UNKNOWN
        if total == 0:
            return NONE
        spent = sum((part.value / total) ** 4 / part.df for part in parts)
        return Error(total, 1 / spent if spent else math.inf)


CHANGE = (1.0, -1.0)  # the weights of current − baseline
_RESAMPLES = 50  # of validation points
NONE = Error(0.0, math.inf)
UNKNOWN = Error(math.nan, math.inf)


class Errors:
    """The errors of changes between results, the current one first, given what they share."""

    def __init__(self, results: Sequence[Result], points: Sequence[PointContributions]) -> None:
        self._results, self.points = tuple(results), tuple(points)
        self.pairing = pairing_of(results[0], results[1:])
        self._shared = frozenset(self.pairing.points)
        self._groups = functools.cache(self._sharing_draws)

    def over_points(self, row: Row, weights: Sequence[float] = CHANGE) -> Error:
        """The error over the points of the set, and of a certificate's estimates also over its validation points.

        Computed from the points of all results, never from the errors that the files state.
        """
        error = self._over_set(row, weights)
        if row["metric"] not in (ACCEPTED, WIDTH):
            return error
        return Error.together(error, self._over_validation(row, weights))

    def _over_set(self, row: Row, weights: Sequence[float]) -> Error:
        """On shared points, the error of the mean weighted sum; otherwise that of independent estimates."""
        if self._shared.issuperset(sets_of(row)) and self._same_scores(row):
            return NONE
        sides = [points.contributions(row) for points in self.points]
        if None in sides:
            return UNKNOWN
        with np.errstate(invalid="ignore"):
            weighted = [
                {name: weight * values for name, values in side.items()}
                for weight, side in zip(weights, sides, strict=True)
                if side is not None
            ]
            if weighted[0].keys() <= self._shared:
                return self._of_mean({name: _sum(side[name] for side in weighted) for name in weighted[0]}, 0, row)
        return Error.together(*(self._of_mean(side, number, row) for number, side in enumerate(weighted)))

    def of_points(self, name: str, sides: Sequence[np.ndarray], weights: Sequence[float]) -> Error:
        """The error of a weighted sum of means over the points of a set, of which each side gives the values."""
        weighted = [weight * values for weight, values in zip(weights, sides, strict=True)]
        if name in self._shared:
            return self._of_mean({name: _sum(weighted)}, 0)
        return Error.together(*(self._of_mean({name: values}, number) for number, values in enumerate(weighted)))

    def _over_validation(self, row: Row, weights: Sequence[float]) -> Error:
        """Of what a certificate accepts, or how wide its intervals are: the bootstrap over its validation points, the
        same ones of all results where these have as many. None of pixels."""
        promised = [result.certification for result in self._results]
        all_of_them = [None if each is None else each.methods.get(row["method"]) for each in promised]
        if any(each is None or each.is_expected for each in all_of_them):
            return NONE
        values = np.array([[*resampled_values(result, row["method"], _RESAMPLES)] for result in self._results])
        if not np.isfinite(values).all():
            return UNKNOWN
        values *= np.array(weights)[:, None]
        paired = len({len(certificate.scores) for certificate in all_of_them if certificate is not None}) == 1
        spread = [values.sum(0)] if paired else [*values]
        return Error(math.hypot(*(float(np.std(each, ddof=1)) for each in spread)), _RESAMPLES - 1)

    def _of_mean(self, contributions: Mapping[str, np.ndarray], side: int, row: Row | None = None) -> Error:
        """The error of a mean over the points of each set; sets are independent samples. Within a group points count as
        independent."""
        parts, rows = [], None if row is None else self.points[side].rows(row)
        for name, values in contributions.items():
            evaluated = self._results[side].sets[name]
            group = None if row is not None and row["group"] else evaluated.group
            if rows is not None:  # the other points have no influence
                values, group = values[rows] * (len(rows) / len(values)), None if group is None else group[rows]
            with np.errstate(invalid="ignore", over="ignore"):  # an infinite value, whose error is then not known
                se = metrics.standard_error(values, group=group)
            df = independent_units(len(values), group) - 1
            parts.append(Error(se, df) if df > 0 else UNKNOWN)
        return Error.together(*parts)

    def _same_scores(self, row: Row) -> bool:
        """Whether each point has the same score in all results, so that separations by its ranks are the same."""
        if not row["score"] or row["metric"] in (ERRORS, WITH_ERRORS):  # which also depend on what is predicted
            return False
        sides = [result.methods[row["method"]] for result in self._results]
        if any(row["score"] not in side.sets[name].points for side in sides for name in sets_of(row)):
            return False
        first, *others = (side.ranked(row["score"], row["set"]) for side in sides)
        return all(np.array_equal(a, b) for other in others for a, b in zip(first, other, strict=True))

    def over_draws(self, rows: Sequence[Row], weights: Sequence[float] = CHANGE) -> Error:
        """From weighted sums of replicates where draws are shared; otherwise that of independent estimates. 0 for a
        method without draws, or with identical draws."""
        method = rows[0]["method"]
        if "networks" in method_named(method).differs_by:  # its networks are given, like the deterministic one
            return NONE
        if self._results[0].is_single(method) and method not in dict(self.pairing.why_not):
            return NONE
        has_none = any(row.estimate.bootstrap is None for row in rows)  # as of pixels
        kind = "jackknife" if has_none else metric_of(rows[0]["metric"]).mc_error
        estimates = [row.estimate for row in rows]
        if not all(math.isfinite(math.nan if f.mc_se is None else f.mc_se) for f in estimates):  # too few draws
            return UNKNOWN
        parts = []
        for group in self._groups(method):
            own = [weights[number] for number in group]
            jackknife = _weighted([estimates[number].jackknife for number in group], own)
            bootstrap = _weighted([estimates[number].bootstrap for number in group], own)
            parts.append(_of_replicates(kind, jackknife, bootstrap, samples=self._results[group[0]].samples_of(method)))
        return Error.together(*parts)

    def _sharing_draws(self, method: str) -> list[list[int]]:
        """The results whose draws of this method are the same, as numbers."""
        if method in self.pairing.draws:
            return [[*range(len(self._results))]]
        groups: list[list[int]] = []
        for number, result in enumerate(self._results):
            for group in groups:
                if method in pairing(result, self._results[group[0]]).draws:
                    group.append(number)
                    break
            else:
                groups.append([number])
        return groups


def deviation_by_arithmetic(sides: Sequence[tuple[Result, Row]]) -> float:
    """By how much an estimate of two results may differ because their samples were computed in another arithmetic: of
    the uncertainty of a whole set, what each result has measured of its deviation from float32, and twice the error of
    that. 0 where nothing was measured, or the arithmetic is the same."""
    result, row = sides[0]
    of_whole_set = row["metric"] == result.task.spread and not (row["label"] or row["class"] or row["group"])
    if not of_whole_set or len({str(result.sampling["precision"]) for result, _ in sides}) == 1:
        return 0.0
    method = method_named(row["method"]).plain.name
    total = 0.0
    for result, row in sides:
        told = (finding.values for finding in result.findings if finding.code == "reduced-precision")
        values = next((values for values in told if values.get("method") == method), {})
        shift, error = values.get("shift"), values.get("shift_error")
        if isinstance(shift, float) and isinstance(error, float) and math.isfinite(shift + error):
            total += (abs(shift) + 2 * error) * abs(row.estimate.value)
    return total


def _weighted(replicates: Sequence[np.ndarray | None], weights: Sequence[float]) -> np.ndarray | None:
    """The change of each replicate; None if the results do not have the same replicates."""
    known = [values for values in replicates if values is not None]
    if len(known) < len(replicates) or len({len(values) for values in known}) > 1:
        return None
    with np.errstate(invalid="ignore"):
        return _sum(weight * values for weight, values in zip(weights, known, strict=True))


def _sum(arrays: Iterable[np.ndarray]) -> np.ndarray:
    """Added one by one, without the array of all of them."""
    return functools.reduce(operator.add, arrays)


def _of_replicates(kind: str, jackknife: np.ndarray | None, bootstrap: np.ndarray | None, *, samples: int) -> Error:
    """The Monte Carlo error of these replicates; the number of draws is T or the size of a bank."""
    if jackknife is None or (kind == "bootstrap" and bootstrap is None):
        return UNKNOWN
    df = _degrees(jackknife)
    if kind == "jackknife" or bootstrap is None:
        return Error(float(metrics.jackknife_error(jackknife)), df)
    error = metrics.bootstrap_error(bootstrap, samples=samples, bank=len(jackknife))
    return Error(float(error), 1 / (1 / df + 1 / max(1, len(bootstrap) - 1)))


def _degrees(left_out: np.ndarray) -> float:
    """The degrees of freedom of the variance over the draws: the number of draws less 1, and fewer where a few draws
    dominate.

    2T/(κ − 1), with the kurtosis κ of the effects of the draws: a χ² with these degrees varies as that variance does. A
    Monte Carlo error dominated by three extreme mini-batches out of 32 is itself uncertain, and mostly too small.

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
