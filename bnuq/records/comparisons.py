"""Every method of a result compared with the best single-pass method, with paired errors."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import NormalDist
from typing import Any

import numpy as np

from bnuq import metrics
from bnuq.estimates import Estimate
from bnuq.findings import Finding
from bnuq.frozen import frozen
from bnuq.methods import POPULATION, method_named
from bnuq.metrics.registry import metric_of
from bnuq.metrics.replicates import independent_units
from bnuq.records.best_scores import can_be_judged
from bnuq.records.contributions import PointContributions, sets_of
from bnuq.records.evaluation import Result, Scored
from bnuq.records.reference import averages_lag, draws_mini_batches, is_doubtful
from bnuq.store.table import Row

LEVEL = 0.05  # of all comparisons together
REACH = NormalDist().inv_cdf(0.975)  # of a 95 % interval, in standard deviations
# Of the test set, the one that decides first before the others; after them the AUROC of each OOD set
_OF_LABELS = "pll", "crps", "ece", "aurc", "accuracy", "rmse", "mae", "mean_iou"


@frozen
class MethodComparison:
    """An estimate of one method and the same estimate of `against`, the best method of a single pass, on the same
    points.

    `difference` is `value` − `value_of_against`, in the metric's unit. `se` is its standard error, over points and
    draws, and `p`, two-sided by Student's distribution for so many points, is adjusted for all comparisons of a result
    by Holm's method; None if the error is not known. `score` is that of a separation, and `score_of_against` the best
    one of `against`. `passes` are those of `method` through the network, for each point.

    Source: Holm 1979; over points the delta method, Hampel 1974.
    """

    method: str
    against: str
    set: str
    score: str
    metric: str
    difference: float
    se: float | None
    p: float | None
    passes: int
    value: float
    value_of_against: float
    score_of_against: str

    @property
    def gain(self) -> float:
        """The difference, positive where the method is better."""
        return _better(self.metric) * self.difference

    @property
    def is_likely(self) -> bool:
        """Whether the method would be better beyond chance if it were the only one compared."""
        return bool(self.se) and self.gain > REACH * self.se

    @property
    def is_likely_worse(self) -> bool:
        """Whether it would be worse beyond chance if it were the only one compared."""
        return bool(self.se) and self.gain < -REACH * self.se

    @property
    def is_better(self) -> bool:
        return self._is_significant and self.gain > 0

    @property
    def is_worse(self) -> bool:
        return self._is_significant and self.gain < 0

    @property
    def _is_significant(self) -> bool:
        return self.p is not None and self.p < LEVEL


def passes_of(method: str, result: Result) -> int:
    """How often a point passes through the network: once where only its last layer is sampled, and once, as far as is
    known, for predictions from a file."""
    if isinstance(result, Scored) or "weights" in method_named(method).differs_by:
        return 1
    return result.samples_of(method)


def is_mismatched(result: Result) -> bool:
    """Whether mini-batches are drawn of a reference that may not be the network's, or its statistics were never
    trained or are 0. The pipeline of the evaluated points may then be wrong, too, and what is better may be so by other
    statistics: nothing is called a gain, whichever method has it."""
    return _is_untrained(result) or _is_doubtful(result)


def is_of_another_pipeline(result: Result) -> bool:
    """Whether mini-batches are drawn of a reference that may not be the network's, and running averages that lag do not
    explain it: the pipeline is then to be checked before anything else."""
    check = result.reference_check
    lags = check is not None and averages_lag(check, result.methods)
    return _is_doubtful(result) and not lags and not _is_untrained(result)


def _is_untrained(result: Result) -> bool:
    return any(finding.code in ("never-trained", "variance-zero") for finding in result.findings)


def _is_doubtful(result: Result) -> bool:
    return is_doubtful(result.reference_check, result.methods) and any(map(draws_mini_batches, result.methods))


OTHER_SCALE = "inputs-of-another-scale"


def on_another_scale(findings: Iterable[Finding]) -> dict[str, Mapping[str, Any]]:
    """The sets whose inputs are on another scale than the reference's, of which nothing can be concluded, by a result's
    findings."""
    return {finding.values["set"]: finding.values for finding in findings if finding.code == OTHER_SCALE}


def compared(result: Result) -> tuple[tuple[MethodComparison, ...], dict[str, str]]:
    """All comparisons of a result, and by metric the method with the best estimate, an AUROC by "auroc.SET"."""
    groups = _groups(result)
    best = {metric: max(rows, key=_rank)["method"] for metric, rows in groups.items()}
    return _adjusted(list(_compared(result, groups))), best


def simplest(result: Result, method: str) -> str:
    """The method without a recalibration that is not a gain on the test set, or with a temperature where more is not.

    A gain is a log-likelihood that is better by twice its paired error, or a better one beside a better ECE: what is
    fitted elsewhere costs nothing; but none where fewer are right, as may be of the mean of several samples. The
    simpler one where nothing can be shown."""
    rows = {  # of no label or bound
        (row["method"], row["metric"]): row for row in result.rows if row["set"] == "test" and len(row.coordinates) == 3
    }
    plain = method_named(method).plain.name
    forms = [form for form in (plain, f"{plain}+temperature") if {(form, "pll"), (method, "pll")} <= rows.keys()]
    points = PointContributions(result)
    for simpler in forms[: forms.index(method) if method in forms else None]:
        known = [of for of in ("pll", "ece", "accuracy") if {(method, of), (simpler, of)} <= rows.keys()]
        gains = {of: _comparison(result, points, rows[method, of], rows[simpler, of]) for of in known}
        is_better = all(of in gains and gains[of].gain > 0 for of in ("pll", "ece"))
        if not (gains["pll"].is_likely or is_better) or ("accuracy" in gains and gains["accuracy"].gain < 0):
            return simpler
    return method


def _better(metric: str) -> int:
    return -1 if metric_of(metric).direction == "lower" else 1


def _rank(row: Row) -> float:
    return _better(row["metric"]) * row.estimate.value


def _groups(result: Result) -> dict[str, list[Row]]:
    """The finite estimates that are compared with each other, by metric, where a single pass has one: no AUROC of a set
    with too few points to judge it."""
    groups: dict[str, list[Row]] = {}
    few = {name for name, each in result.sets.items() if each.kind == "ood" and not can_be_judged(result, name)}
    wrong = {*on_another_scale(result.findings), *few}
    for row in result.rows:
        metric = row["metric"]
        if wrong & {"test", row["set"], "" if row["score"] else "validation"}:
            continue
        if row["set"] and result.sets[row["set"]].kind == "perturbed":
            continue
        if row["score"] and metric == "auroc":
            metric = f"auroc.{row['set']}"
        elif row["set"] != "test" or metric not in _OF_LABELS or len(row.coordinates) > 3:  # of a label, or a bound
            continue
        if math.isfinite(row.estimate.value):
            groups.setdefault(metric, []).append(row)
    ordered = dict.fromkeys((*(metric for metric in _OF_LABELS if metric in groups), *groups))
    return {metric: groups[metric] for metric in ordered if any(_is_single(row, result) for row in groups[metric])}


def _is_single(row: Row, result: Result) -> bool:
    """Whether it is of a single pass that others are compared with: one whose predictions do not need each other."""
    return passes_of(row["method"], result) == 1 and not method_named(row["method"]).normalizes_jointly


def _compared(result: Result, groups: Mapping[str, Sequence[Row]]) -> Iterator[MethodComparison]:
    """Every estimate of a method of several passes, and the best of every other one of a single pass, against the best
    of all of a single pass."""
    points = PointContributions(result)
    for rows in groups.values():
        ranked = sorted(rows, key=_rank, reverse=True)
        against = next(row for row in ranked if _is_single(row, result))
        seen = {against["method"]}
        for row in ranked:
            if not (passes_of(row["method"], result) == 1 and row["method"] in seen):
                comparison = _comparison(result, points, row, against)
                plain, other = (method_named(each["method"]).plain for each in (row, against))
                if comparison.se != 0 or plain != other:  # which a recalibration leaves as it is
                    yield comparison
            seen.add(row["method"])


def _comparison(result: Result, points: PointContributions, row: Row, against: Row) -> MethodComparison:
    error = math.hypot(_over_points(result, points, row, against), _over_draws(result, row, against))
    difference = row.estimate.value - against.estimate.value
    known = math.isfinite(error) and (error > 0 or difference == 0)
    df = min(independent_units(each.n, each.group) for each in map(result.sets.__getitem__, sets_of(row))) - 1
    return MethodComparison(
        method=row["method"],
        against=against["method"],
        set=row["set"],
        score=row["score"],
        metric=row["metric"],
        difference=difference,
        se=error if known else None,
        p=2 * metrics.student_cdf(-abs(difference) / error, df) if known and error and df else 1.0 if known else None,
        passes=passes_of(row["method"], result),
        value=row.estimate.value,
        value_of_against=against.estimate.value,
        score_of_against=against["score"],
    )


def _over_points(result: Result, points: PointContributions, row: Row, against: Row) -> float:
    """The error of the difference over the points of each set, which both share."""
    with np.errstate(all="ignore"):  # of an infinite value, whose error is not known
        contributions, others = points.contributions(row), points.contributions(against)
        if contributions is None or others is None:
            return math.nan
        differences = {name: contributions[name] - others[name] for name in sets_of(row)}
        errors = (
            metrics.standard_error(difference, group=result.sets[name].group)
            for name, difference in differences.items()
        )
        return math.hypot(*errors)


def _over_draws(result: Result, row: Row, against: Row) -> float:
    """The Monte Carlo error of the difference: of its replicates where both have them, otherwise as of independent
    draws."""
    given = ["networks" in method_named(compared_row["method"]).differs_by for compared_row in (row, against)]
    left, right = row.estimate.jackknife, against.estimate.jackknife
    uses_jackknife = metric_of(row["metric"]).mc_error == "jackknife"
    if uses_jackknife and not any(given) and left is not None and right is not None and len(left) == len(right):
        return float(metrics.jackknife_error(left - right))
    return math.hypot(
        *(_mc_error(result, compared_row["method"], compared_row.estimate) for compared_row in (row, against))
    )


def _mc_error(result: Result, method: str, estimate: Estimate) -> float:
    """0 for a single pass and for an ensemble, whose networks are fixed; NaN where there were too few draws for one."""
    if "networks" in method_named(method).differs_by:
        return 0.0
    if estimate.mc_se is not None:
        return estimate.mc_se
    return 0.0 if result.is_single(method) else math.nan


def uncorrected(comparisons: Sequence[MethodComparison], method: str, metric: str) -> MethodComparison | None:
    """The best single pass without corrected BatchNorm statistics by this metric, where `method` is one with them and
    is not likely to be better by any metric of the labels; otherwise None. As for the warning on the statistics, how
    many others are compared does not matter."""
    if method_named(method).plain.name != POPULATION:
        return None
    of_metric = (each for each in comparisons if (each.against, each.metric, each.passes) == (method, metric, 1))
    others = [each for each in of_metric if not method_named(each.method).normalizes_jointly]
    as_it_is = [each for each in others if method_named(each.method).plain.name != POPULATION]
    found = max(as_it_is, key=lambda each: each.gain, default=None)
    if found is None:
        return None
    lost = (each for each in comparisons if each.method == found.method and each.metric != "auroc")
    is_corrected = any(each.is_likely_worse and method_named(each.against).plain.name == POPULATION for each in lost)
    return None if is_corrected else found


def _adjusted(comparisons: list[MethodComparison]) -> tuple[MethodComparison, ...]:
    known = [number for number, comparison in enumerate(comparisons) if comparison.p is not None]
    adjusted = metrics.holm(np.array([comparisons[number].p for number in known], dtype=float))
    for number, p in zip(known, adjusted, strict=True):
        comparisons[number] = replace(comparisons[number], p=float(p))
    return tuple(comparisons)
