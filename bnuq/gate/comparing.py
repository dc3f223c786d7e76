"""The comparisons of a check: every estimate that results share, its change with its error, all tested together."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import fmean

import numpy as np

from bnuq import metrics
from bnuq.errors import ResultError
from bnuq.estimates import Direction, Estimate
from bnuq.frozen import frozen
from bnuq.gate.change_errors import CHANGE, NONE, UNKNOWN, Error, Errors, deviation_by_arithmetic
from bnuq.gate.power import Chance, Sight
from bnuq.gate.records import BOUNDS, EstimateComparison, Outcome
from bnuq.gate.settings import GateSettings
from bnuq.gate.swapping import Swaps, swaps, swaps_of_mean
from bnuq.methods import POPULATION, method_named
from bnuq.metrics.registry import metric_of
from bnuq.records.addresses import NORMALIZED, estimates_of
from bnuq.records.calibrated import ece_floor
from bnuq.records.certificate import ACCEPTED, WIDTH
from bnuq.records.contributions import LEAPING, sets_of
from bnuq.records.decisions import decided
from bnuq.records.evaluation import Result
from bnuq.records.gated import rates
from bnuq.records.promises import outcomes
from bnuq.store.table import Row, unit_of

LEVEL = 0.05  # of all gated comparisons together
_FIRST = 8.0  # times the share of the level that other estimates have
_THOUSAND = 1000.0


@frozen
class Measured:
    """A comparison without its outcome, the degrees of freedom of its error, the deviation that another arithmetic
    explains, what tells its power (the part of an accuracy that a point is, else 0, and the points of its sets), and
    the changes by swaps."""

    comparison: EstimateComparison
    df: float
    deviation: float
    step: float
    sizes: Mapping[str, int]
    swaps: Swaps | None
    weight: float = 1.0  # its share of the level, relative to those of the others of its family
    chance: Chance | None = None

    @property
    def family(self) -> str:
        return self.comparison.family


@frozen
class Line:
    """From what to what an estimate went, from a baseline or along the line through a history; and its errors over
    points, over draws, and any other."""

    baseline: float
    current: float
    errors: tuple[Error, ...]
    slope: bool = False

    @property
    def change(self) -> float:
        return 0.0 if _differ_by_rounding(self.current, self.baseline) else self.current - self.baseline

    @property
    def error(self) -> Error:
        return Error.together(*self.errors)


def measured(
    current: Result, baselines: Sequence[Result], errors: Errors, settings: GateSettings, decided_by: Collection[str]
) -> Iterator[Measured]:
    """Every estimate that all results have: its change since the mean of the baselines, and of a history, oldest first,
    also the fall of the line through all results."""
    new, tables = estimates_of(current), [estimates_of(baseline) for baseline in baselines]
    for address, row in new.items():
        if row["metric"] == "count" or not all(address in table for table in tables):
            continue
        rows = [row, *(table[address] for table in tables)]
        sides = zip(baselines, rows[1:], strict=True)
        deviation = max(deviation_by_arithmetic([(current, row), side]) for side in sides)
        count = len(baselines)
        weights = CHANGE if count == 1 else (1.0, *[-1 / count] * count)
        known = errors.over_points(row, weights), errors.over_draws(rows, weights)
        before = fmean(each.estimate.value for each in rows[1:])
        step, sizes = _step(current, row, errors), {name: current.sets[name].n for name in sets_of(row)}
        is_first = "gate-first" in metric_of(row["metric"]).shown and address in decided_by
        weight = _FIRST if is_first and not settings.names_estimates else 1.0
        for change in (Line(before, row.estimate.value, known), *([line_through(rows, errors)] if count > 1 else ())):
            comparison, df = _compared(address, row, change, deviation, settings, decided_by)
            swapped = None if not comparison.is_gated else swaps(row, errors.points, errors.pairing.points)
            chance = _chance(rows, baselines) if comparison.is_gated else None
            yield Measured(comparison, df, deviation, step, sizes, swapped, weight, chance)


def _chance(rows: Sequence[Row], baselines: Sequence[Result]) -> Chance | None:
    """What chance does to the expected calibration error of the test set; None of other estimates."""
    if rows[0]["metric"] != "ece" or rows[0]["class"] or rows[0]["group"]:
        return None
    floors = [floor for baseline in baselines if (floor := ece_floor(baseline, rows[0]["method"])) is not None]
    known = [row.estimate.se for row in rows if row.estimate.se is not None]
    if len(floors) < len(baselines) or len(known) < len(rows):
        return None
    before = fmean(row.estimate.value for row in rows[1:])
    floor, high = (fmean(getattr(each, name) for each in floors) for name in ("mean", "high"))
    return Chance(floor, high, before, math.hypot(known[0], math.hypot(*known[1:]) / len(baselines)))


def at_thresholds(
    current: Result, baselines: Sequence[Result], errors: Errors, settings: GateSettings, decided_by: Collection[str]
) -> Iterator[Measured]:
    """What the last baseline decided on, applied to all results: what production would see of the current one.

    Their errors are those over points, as a rate has no replicates over draws: those of samples are gated only where
    the results share their draws.
    """
    decisions, count = decided(baselines[-1]), len(baselines)
    tables = [{rate.address: rate for rate in rates(result, decisions)} for result in (current, *baselines)]
    for address, rate in tables[0].items():
        sides = [table[address] for table in tables if address in table]
        if len(sides) < len(tables):
            continue
        weights = CHANGE if count == 1 else (1.0, *[-1 / count] * count)
        over_points = errors.of_points(rate.set, [side.contributions for side in sides], weights)
        row = Row("", rate.coordinates, unit_of(rate.coordinates["metric"]), Estimate(rate.value))
        line = Line(fmean(side.value for side in sides[1:]), rate.value, (over_points, NONE))
        comparison, df = _compared(address, row, line, 0.0, settings, decided_by)
        fixed = current.is_single(rate.method) or "networks" in method_named(rate.method).differs_by
        if not (fixed or rate.method in errors.pairing.draws):
            comparison = replace(comparison, tolerance=None, outcome="not gated")
        evaluated, swapped = current.sets[rate.set], None
        if count == 1 and rate.set in errors.pairing.points and evaluated.group is None:
            swapped = swaps_of_mean(sides[0].contributions - sides[1].contributions)
        yield Measured(comparison, df, 0.0, rate.step, {rate.set: evaluated.n}, swapped)


def line_through(rows: Sequence[Row], errors: Errors) -> Line:
    """The ends of the least-squares line through a history, oldest first, and the current result, whose row comes
    first; results are equally far apart.

    Beside the errors over points and draws, the fall of the line has that of networks which vary from result to result:
    by how much the scatter about the line is more than those two explain.

    Source: the excess as DerSimonian & Laird 1986, Meta-analysis in Clinical Trials, by moments.
    """
    values = np.array([row.estimate.value for row in (*rows[1:], rows[0])])
    places = np.arange(len(values)) - (len(values) - 1) / 2
    with np.errstate(invalid="ignore"):
        per_result = places / np.sum(places**2)
        slope, middle = float(per_result @ values), float(values.mean())
        length = len(values) - 1
        weights = length * per_result
        ordered = (weights[-1], *weights[:-1])  # as the rows are
        points, draws = errors.over_points(rows[0], ordered), errors.over_draws(rows, ordered)
        residuals = values - middle - slope * places
        scatter = float(np.sum(residuals**2)) / (length - 1) * float(np.sum(weights**2))
    excess = scatter - points.value**2 - draws.value**2
    varying = UNKNOWN if math.isnan(excess) else Error(math.sqrt(max(0.0, excess)), length - 1)
    half = slope * length / 2
    return Line(middle - half, middle + half, (points, draws, varying), slope=True)


def _step(current: Result, row: Row, errors: Errors) -> float:
    """What a point that is classified wrong adds to the accuracy of its set, class or group, on shared points; 0 of
    other estimates."""
    counts_points = row["metric"] == "accuracy" and current.task.unit == "examples"
    if not counts_points or row["set"] not in errors.pairing.points:
        return 0.0
    part = errors.points[0].rows(row)
    return 1 / (current.sets[row["set"]].n if part is None else len(part))


def _compared(
    address: str, now: Row, moved: Line, deviation: float, settings: GateSettings, decided_by: Collection[str]
) -> tuple[EstimateComparison, float]:
    metric = now["metric"]
    direction: Direction = metric_of(metric).direction
    # a yardstick, not an estimate of the network
    if now["bound"] or method_named(now["method"]).plain.name == POPULATION:
        direction = "none"
    current, baseline = moved.current, moved.baseline
    change, total = moved.change, moved.error
    degradation = {"higher": -change, "lower": change, "none": abs(change)}[direction] + 0.0
    se, se_points, se_draws = (None if math.isnan(error.value) else error.value for error in (total, *moved.errors[:2]))
    directed = direction != "none" and metric not in LEAPING  # which no pattern is about
    tolerance = settings.tolerance(address, metric, directed=directed, decided_by=decided_by)
    gated = tolerance is not None and not math.isnan(baseline)  # nothing is worse than an unknown value
    gated = gated and not ((now["class"] or now["group"]) and se is None)  # of too few draws: the whole set is gated
    limit = None if tolerance is None else tolerance.in_unit(baseline=baseline, se=se)
    without_limit = gated and limit is not None and limit >= _largest_change(metric, baseline)
    comparison = EstimateComparison(
        method=now["method"],
        set=f"{BOUNDS}{now['bound']}" if now["bound"] else now["set"] or NORMALIZED,
        score=now["score"],
        metric=metric,
        unit=unit_of(metric),
        direction=direction,
        baseline=baseline,
        current=current,
        change=change,
        degradation=degradation,
        se=se,
        se_points=se_points,
        se_draws=se_draws,
        p_value=None,
        p_adjusted=None,
        tolerance=limit + deviation if gated and limit is not None else None,
        outcome="same" if gated and not without_limit else "not gated",
        label=now["label"],
        of_class=now["class"],
        group=now["group"],
        slope=moved.slope,
    )
    return comparison, total.df


def _largest_change(metric: str, baseline: float) -> float:
    """What no change of an estimate exceeds: 1 of a fraction; of others a thousand times the baseline, and 1000 in
    their unit, unless that is the unit of the targets."""
    unit = unit_of(metric)
    if metric_of(metric).unit == "fraction":
        return 1.0
    return _THOUSAND * (abs(baseline) or math.inf) if "target" in unit else _THOUSAND * max(1.0, abs(baseline))


def _differ_by_rounding(a: float, b: float) -> bool:
    """Whether sums of float64 in another order explain the difference."""
    return a == b or math.isclose(a, b, rel_tol=1e-12, abs_tol=1e-15)


def judged(rows: Sequence[Measured], current: Result, baseline: object) -> Iterator[EstimateComparison]:
    """The comparisons with p-values and outcomes, and what could be seen; gated comparisons are tested together."""
    gated = [row for row in rows if row.comparison.is_gated]
    worse = np.array([_p_value(row, gain=False) for row in gated])
    better = np.array([_p_value(row, gain=True) for row in gated])
    if unknown := [row.comparison.address for row, p in zip(gated, worse, strict=True) if math.isnan(p)]:
        raise ResultError(
            f"{current.path} cannot be compared with {baseline}: whether {', '.join(unknown[:5])} got worse "
            "by more than tolerated cannot be determined. It is not a number now, or its change has no error: "
            "too few samples (fewer than 8), too few examples, an infinite value, or a network without running "
            "statistics under another seed. Evaluate with more, or switch these off by --tolerance ADDRESS=off."
        )
    families, weights = (np.array([getattr(row, name) for row in gated]) for name in ("family", "weight"))
    holm_worse, holm_better = np.ones(len(gated)), np.ones(len(gated))
    for family in set(families):
        own = families == family
        holm_worse[own] = metrics.holm(worse[own], weights[own])
        holm_better[own] = metrics.holm(better[own], weights[own])
    shares = shares_of(rows)
    adjusted = zip(worse, holm_worse, holm_better, strict=True)
    for row in rows:
        comparison = row.comparison
        if not comparison.is_gated:
            yield comparison
            continue
        p, holm, gain = next(adjusted)
        outcome = _outcome(comparison, holm, gain)
        sight, limit = sight_of(row, shares[comparison.family]), comparison.tolerance
        assert limit is not None
        decisive = None
        if sight is not None and outcome == "inconclusive":
            decisive = sight.decisive(comparison.degradation, row.sizes, current.samples_of(comparison.method))
        yield replace(
            comparison,
            p_value=float(p),
            p_adjusted=float(holm),
            outcome=outcome,
            detectable=None if sight is None or sight.is_blank else sight.detectable(limit),
            decisive=decisive,
        )


def shares_of(rows: Iterable[Measured]) -> Mapping[str, float]:
    """By family, the sum of the weights of what is gated."""
    shares: dict[str, float] = {}
    for row in rows:
        if row.comparison.is_gated:
            shares[row.family] = shares.get(row.family, 0.0) + row.weight
    return shares


def sight_of(row: Measured, shares: float) -> Sight | None:
    """What the comparison can see by its share of the level, of so many; None where its error is not known."""
    comparison = row.comparison
    if comparison.se is None or not math.isfinite(comparison.degradation):
        return None
    assert comparison.se_points is not None and comparison.se_draws is not None
    return Sight(
        # of a slope also by how much networks vary, which more points do not reduce
        se_points=comparison.se_points,
        se_draws=math.sqrt(max(0.0, comparison.se**2 - comparison.se_points**2)),
        df=row.df,
        level=LEVEL * row.weight / shares / (2 if comparison.direction == "none" else 1),
        deviation=row.deviation,
        step=row.step,
        change=abs(comparison.change),
        chance=row.chance,
    )


def _exceeds(change: float, tolerance: float) -> bool:
    """Whether a change is above its tolerance, by more than rounding: 0.716 − 0.711 is not above 0.005."""
    return change > tolerance and not _differ_by_rounding(change, tolerance)


def _p_value(row: Measured, *, gain: bool) -> float:
    """The p-value of "there is no degradation", or of "there is no gain", beyond the deviation that another arithmetic
    explains; NaN if a change above its tolerance has no error.

    Within its tolerance a change without an error has p = 1: the estimate cannot be worse, but still counts among those
    that are tested together.
    """
    comparison = row.comparison
    degradation = -comparison.degradation if gain else comparison.degradation
    if comparison.direction == "none" and gain:
        return 1.0
    if math.isinf(degradation):
        return 0.0 if degradation > 0 else 1.0
    if comparison.se is None or math.isnan(degradation):
        assert comparison.tolerance is not None
        return 1.0 if degradation <= comparison.tolerance else (1.0 if gain else math.nan)
    if row.swaps is not None:
        sign = math.copysign(1.0, degradation * comparison.change)
        tail = row.swaps.p_value(sign, row.deviation, comparison.se_draws or 0.0, row.df)
    elif comparison.se == 0:
        return 0.0 if degradation > row.deviation else 1.0
    else:
        tail = metrics.student_cdf((row.deviation - degradation) / comparison.se, row.df)
    return min(1.0, 2 * tail) if comparison.direction == "none" else tail


def _outcome(comparison: EstimateComparison, holm: float, gain: float) -> Outcome:
    assert comparison.tolerance is not None
    if is_lost_promise(comparison):  # a fact, not an estimate
        return "worse"
    if _exceeds(comparison.degradation, comparison.tolerance):
        return "worse" if holm < LEVEL else "inconclusive"
    return "better" if _exceeds(-comparison.degradation, comparison.tolerance) and gain < LEVEL else "same"


def is_lost_promise(comparison: EstimateComparison) -> bool:
    """Whether the baseline keeps a promise, by accepting points or by intervals, and the current result none."""
    nothing = {ACCEPTED: 0.0, WIDTH: math.inf}.get(comparison.metric)
    return nothing is not None and not comparison.slope and comparison.current == nothing != comparison.baseline


def promises_lost_of_parts(
    current: Result, baseline: Result, comparisons: Iterable[EstimateComparison]
) -> Iterator[EstimateComparison]:
    """Of methods whose promise about all points is gated: the promises about a class or group that the baseline keeps
    and the current result, where it was asked for them too, does not, as comparisons that are worse, of the share
    accepted or the threshold of widths."""
    if current.certification is None or baseline.certification is None:
        return
    if (each := baseline.certification.each) != current.certification.each:
        return
    for whole in comparisons:
        if whole.metric not in (ACCEPTED, WIDTH) or not whole.is_gated or whole.slope:
            continue
        parts = {outcome.name for outcome in outcomes(current, whole.method) if outcome.is_kept}
        nothing = 0.0 if whole.metric == ACCEPTED else math.inf
        for before in outcomes(baseline, whole.method):
            if not before.name or not before.is_kept or before.name in parts:
                continue
            share = 0.0 if before.coverage is None else before.coverage.value
            value = share if whole.metric == ACCEPTED else before.threshold
            if value == nothing:  # no test point of it was accepted
                continue
            is_class = each == "class"
            yield replace(
                whole,
                of_class=before.name if is_class else "",
                group="" if is_class else before.name,
                baseline=value,
                current=nothing,
                change=nothing - value,
                degradation=abs(nothing - value),
                outcome="worse",
                se=None,  # a fact, not an estimate
                se_points=None,
                se_draws=None,
                p_value=None,
                p_adjusted=None,
                detectable=None,
                decisive=None,
            )


_RANKS: Mapping[Outcome, int] = {"worse": 0, "inconclusive": 1, "same": 2, "better": 3, "not gated": 4}


def ranked(comparisons: Iterable[EstimateComparison]) -> list[EstimateComparison]:
    """Worst first: by outcome, significance, and multiples of the tolerance; comparisons that are not gated keep their
    order."""

    def rank(comparison: EstimateComparison) -> tuple[float, ...]:
        if comparison.p_adjusted is None or comparison.p_value is None:
            return (_RANKS[comparison.outcome],)
        size = comparison.degradation
        if size:
            size = size / comparison.tolerance if comparison.tolerance else math.copysign(math.inf, size)
        return (_RANKS[comparison.outcome], comparison.p_value, -size)

    return sorted(comparisons, key=rank)
