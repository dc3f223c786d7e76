"""The check: every estimate that two results share is compared with its tolerance and its error, all together."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

import bnuq
from bnuq import metrics
from bnuq.catalogue import text_of
from bnuq.errors import ResultError
from bnuq.estimates import Direction
from bnuq.findings import Finding, about, note, warning, warnings
from bnuq.gate.baseline import made_at
from bnuq.gate.change_errors import Error, Errors, deviation_by_arithmetic
from bnuq.gate.compatibility import check_comparable, similar_addresses
from bnuq.gate.pairing import pairing
from bnuq.gate.recomputing import recomputed
from bnuq.gate.records import BOUNDS, CheckVerdict, EstimateComparison, Floor, Outcome, Side
from bnuq.gate.settings import GateSettings, Required, unused
from bnuq.methods import POPULATION, method_named
from bnuq.metrics.registry import metric_of
from bnuq.records.addresses import NORMALIZED, estimates_of
from bnuq.records.certificate import ACCEPTED, WIDTH
from bnuq.records.contributions import LEAPING
from bnuq.records.evaluation import Result
from bnuq.store.table import Row, unit_of

LEVEL = 0.05  # of all gated comparisons together
_SURE = 3.0  # standard errors that no chance over points explains
_THOUSAND = 1000.0
_GROWN = 3  # factor by which a Monte Carlo error may grow without a warning
_NO_SETTINGS = GateSettings()


def check(current: Result, baseline: Result | None = None, settings: GateSettings = _NO_SETTINGS) -> CheckVerdict:
    """Whether `current` is worse than `baseline`, or breaks a minimum required by `settings`.

    An estimate is worse where its degradation exceeds its tolerance and "there is no degradation" is rejected at the 5
    % level for all gated estimates together (one-sided, Student's t with Satterthwaite's degrees of freedom, adjusted
    by Holm's method). Raises ResultError if the two cannot be compared (another task, T, b, scoring or data, or an
    estimate that only the baseline has, unless `settings` allow it by name), where a change above its tolerance has no
    error, and where nothing was compared.

    Source: Holm 1979, A Simple Sequentially Rejective Multiple Test Procedure.
    """
    start = time.perf_counter()
    if baseline is None:
        if not settings.floors:
            raise ResultError(
                f"{current.path}: nothing to check it against. Name a baseline, or a minimum by --require."
            )
        return uncompared(current, settings)
    # A damaged file comes before what it is compared with, and an address that --require misspells before that, too.
    new = recomputed(current)
    floors = tuple(_floor(current, required) for required in settings.floors)
    check_comparable(current, baseline, settings)
    errors = Errors(current, baseline, shared := pairing(current, baseline), (new, recomputed(baseline)))
    comparisons = tuple(_ranked(_judged(_measured(current, baseline, errors, settings), current, baseline)))
    if not any(comparison.outcome != "not gated" for comparison in comparisons):
        raise ResultError(
            f"{current.path} and {baseline.path} have no gated estimate in common: each is in one alone, or has a "
            "tolerance that is off or above any possible change. See --tolerance, --allow."
        )
    return CheckVerdict(
        current=_side(current),
        baseline=_side(baseline),
        pairing=shared,
        comparisons=comparisons,
        floors=floors,
        findings=(
            *_findings(current, baseline, comparisons, settings),
            *_new(current, baseline),
            *_left_out(current),
            *_left_out(baseline),
        ),
        bnuq=bnuq.__version__,
        seconds=time.perf_counter() - start,
    )


def uncompared(current: Result, settings: GateSettings, *, why: str = "") -> CheckVerdict:
    """The verdict on required minimums alone; with a warning if there was a baseline, and `why` it was not compared.

    Raises ResultError for a damaged result.
    """
    recomputed(current)
    floors = tuple(_floor(current, item) for item in settings.floors)
    findings = (warning("not-compared", reason=" ".join(why.split())),) if why else ()
    return CheckVerdict(_side(current), None, None, (), floors, (*findings, *_left_out(current)), bnuq.__version__, 0.0)


def _side(result: Result) -> Side:
    return Side(
        path=result.path,
        checkpoint=str(result.model["path"]),
        checkpoint_sha256=str(result.model.get("sha256", "")),
        samples=int(result.sampling["samples"]),
        batch_size=result.sampling["batch_size"],
        seed=int(result.sampling["seed"]),
        time=str(result.provenance.get("time", "")),
    )


def _floor(current: Result, required: Required) -> Floor:
    """The named estimate compared with its bound; ResultError if there is no such estimate."""
    known = estimates_of(current)
    if required.address not in known:
        near = similar_addresses(required.address, known)
        separates = required.address.rpartition(".")[2].startswith(("auroc", "aupr", "fpr95"))
        if separates and not any(".ood." in address for address in known):
            near = " It was evaluated without an OOD set: --ood REF."
        raise ResultError(f"{current.path} has no estimate {required.address}, which --require names.{near}")
    estimate = known[required.address].estimate
    se = None if estimate.se is None else math.hypot(estimate.se, estimate.mc_se or 0.0)
    return Floor(required.address, required.relation, required.bound, estimate.value, se)


_Measured = tuple[EstimateComparison, float, float]
"""A comparison without its outcome, the degrees of freedom of its error, and the deviation that another arithmetic
explains."""


def _measured(current: Result, baseline: Result, errors: Errors, settings: GateSettings) -> Iterator[_Measured]:
    """Every estimate that both results have, its change, and the errors of the change."""
    new, old = estimates_of(current), estimates_of(baseline)
    for address, row in new.items():
        if address in old and row["metric"] != "count":
            change_errors = errors.over_points(row), errors.over_draws(row, old[address])
            deviation = deviation_by_arithmetic([(current, row), (baseline, old[address])])
            yield _compared(address, row, old[address], change_errors, deviation, settings)


def _compared(
    address: str, now: Row, before: Row, errors: tuple[Error, Error], deviation: float, settings: GateSettings
) -> _Measured:
    metric = now["metric"]
    direction: Direction = metric_of(metric).direction
    # a yardstick, not an estimate of the network
    if now["bound"] or method_named(now["method"]).plain.name == POPULATION:
        direction = "none"
    current, baseline = now.estimate.value, before.estimate.value
    change = 0.0 if _differ_by_rounding(current, baseline) else current - baseline
    degradation = {"higher": -change, "lower": change, "none": abs(change)}[direction] + 0.0
    total = Error.together(*errors)
    se, se_points, se_draws = (None if math.isnan(error.value) else error.value for error in (total, *errors))
    directed = direction != "none" and metric not in LEAPING  # which no pattern is about
    tolerance = settings.tolerance(address, metric, directed=directed)
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
    )
    return comparison, total.df, deviation


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


def _judged(measured: Iterator[_Measured], current: Result, baseline: Result) -> Iterator[EstimateComparison]:
    """The comparisons with p-values and outcomes; gated comparisons are tested together."""
    rows = tuple(measured)
    gated = [row for row in rows if row[0].outcome != "not gated"]
    worse = np.array([_p_value(*row, gain=False) for row in gated])
    better = np.array([_p_value(*row, gain=True) for row in gated])
    unknown = [comparison.address for (comparison, *_), p in zip(gated, worse, strict=True) if math.isnan(p)]
    if unknown:
        raise ResultError(
            f"{current.path} cannot be compared with {baseline.path}: whether {', '.join(unknown[:5])} got worse "
            "by more than tolerated cannot be determined. It is not a number now, or its change has no error: "
            "too few samples (fewer than 8), too few points, an infinite value, or a network without running "
            "statistics under another seed. Evaluate with more, or switch these off by --tolerance ADDRESS=off."
        )
    adjusted = zip(worse, metrics.holm(np.array(worse)), metrics.holm(np.array(better)), strict=True)
    for comparison, *_ in rows:
        if comparison.outcome == "not gated":
            yield comparison
            continue
        p, holm, gain = next(adjusted)
        yield replace(comparison, p_value=float(p), p_adjusted=float(holm), outcome=_outcome(comparison, holm, gain))


def _p_value(comparison: EstimateComparison, df: float, deviation: float, *, gain: bool) -> float:
    """The p-value of "there is no degradation", or of "there is no gain", beyond the deviation that another arithmetic
    explains; NaN if a change above its tolerance has no error.

    Within its tolerance a change without an error has p = 1: the estimate cannot be worse, but still counts among those
    that are tested together.
    """
    degradation = -comparison.degradation if gain else comparison.degradation
    if comparison.direction == "none" and gain:
        return 1.0
    if math.isinf(degradation):
        return 0.0 if degradation > 0 else 1.0
    if comparison.se is None or math.isnan(degradation):
        assert comparison.tolerance is not None
        return 1.0 if degradation <= comparison.tolerance else (1.0 if gain else math.nan)
    degradation -= deviation
    if comparison.se == 0:
        return 0.0 if degradation > 0 else 1.0
    tail = metrics.student_cdf(-degradation / comparison.se, df)
    return min(1.0, 2 * tail) if comparison.direction == "none" else tail


def _outcome(comparison: EstimateComparison, holm: float, gain: float) -> Outcome:
    assert comparison.tolerance is not None
    if _is_lost_promise(comparison):  # a fact, not an estimate
        return "worse"
    if comparison.degradation > comparison.tolerance and holm < LEVEL:
        return "worse"
    return "better" if -comparison.degradation > comparison.tolerance and gain < LEVEL else "same"


def _is_lost_promise(comparison: EstimateComparison) -> bool:
    """Whether the baseline keeps a promise, by accepting points or by intervals, and the current result none."""
    nothing = {ACCEPTED: 0.0, WIDTH: math.inf}.get(comparison.metric)
    return nothing is not None and comparison.current == nothing != comparison.baseline


_RANKS: Mapping[Outcome, int] = {"worse": 0, "same": 1, "better": 2, "not gated": 3}


def _ranked(comparisons: Iterator[EstimateComparison]) -> list[EstimateComparison]:
    """Worst first: by outcome, significance, and multiples of the tolerance; comparisons that are not gated keep their
    order."""

    def rank(comparison: EstimateComparison) -> tuple[float, ...]:
        if comparison.p_adjusted is None or comparison.p_value is None:
            return (_RANKS[comparison.outcome],)
        size = (
            comparison.degradation / comparison.tolerance
            if comparison.tolerance
            else math.copysign(math.inf, comparison.degradation)
            if comparison.degradation
            else 0.0
        )
        return (_RANKS[comparison.outcome], comparison.p_value, -size)

    return sorted(comparisons, key=rank)


def _new(current: Result, baseline: Result) -> Iterator[Finding]:
    """Methods and estimates that only the current result has."""
    for kind, new, old in (("method", current.methods, baseline.methods), ("set", current.sets, baseline.sets)):
        added = [name for name in new if name not in old]
        if added:
            yield note("new-since-baseline", what=kind, names=added)


def _left_out(result: Result) -> Iterator[Finding]:
    """What the file of a result has, and this version does not know."""
    yield from about(str(result.path), (item for item in result.findings if item.code == "made-by-another-version"))


def _findings(
    current: Result, baseline: Result, comparisons: Sequence[EstimateComparison], settings: GateSettings
) -> Iterator[Finding]:
    yield from _of_requests(current, baseline)
    estimates = estimates_of(current), estimates_of(baseline)
    if hidden := [item.address for item in comparisons if _is_hidden(item, *estimates)]:
        yield warning("hidden-by-draws", estimates=hidden, growth=_GROWN)
    codes = {finding.code for finding in warnings(baseline.findings)}
    fresh = [finding for finding in warnings(current.findings) if finding.code not in codes]
    if fresh:
        yield warning("new-warnings", warnings=[[finding.code, text_of(finding)] for finding in fresh])
    yield from _of_what_is_not_gated(comparisons, settings)


def _of_requests(current: Result, baseline: Result) -> Iterator[Finding]:
    """Files that are swapped or the same, and samples that differ in what does not forbid a comparison."""
    made, made_before = made_at(current), made_at(baseline)
    if made is not None and made_before is not None and made < made_before:
        yield warning("older-than-baseline", current=str(current.path), baseline=str(baseline.path))
    if current.path is not None and baseline.path is not None and current.path.resolve() == baseline.path.resolve():
        yield warning("same-file")
    new, old = (str(item.run.get("sampling", {}).get("layers", "all")) for item in (current, baseline))
    if new != old:
        yield warning("other-layers", current=new, baseline=old)
    new, old = (str(item.sampling.get("bank") or "none") for item in (current, baseline))
    if new != old:
        yield warning("other-bank", current=new, baseline=old)
    new, old = (str(item.sampling["precision"]) for item in (current, baseline))
    if new != old:
        yield note("other-arithmetic", current=new, baseline=old)


def _of_what_is_not_gated(comparisons: Sequence[EstimateComparison], settings: GateSettings) -> Iterator[Finding]:
    """Tolerances without effect, and estimates whose change cannot be seen."""
    if unmatched := unused(settings, ((item.address, item.metric, _is_directed(item)) for item in comparisons)):
        yield warning("unused-tolerance", tolerances=list(unmatched))
    if lost := [item.method for item in comparisons if _is_lost_promise(item)]:
        yield warning("promise-lost", methods=lost)
    if unlimited := [
        item.address for item in comparisons if item.outcome == "not gated" and item.tolerance is not None
    ]:
        yield warning("tolerance-of-any-change", estimates=unlimited)
    undefined = [item.address for item in comparisons if math.isnan(item.baseline) and _is_directed(item)]
    if undefined:
        yield warning("not-a-number", estimates=undefined)
    infinite = [item.address for item in comparisons if math.isinf(item.current) and item.current == item.baseline]
    if infinite:
        yield warning("infinite", estimates=infinite)


def _is_hidden(comparison: EstimateComparison, current: Mapping[str, Row], baseline: Mapping[str, Row]) -> bool:
    """Whether a change is not worse only because of a Monte Carlo error that the baseline did not have."""
    if (
        comparison.outcome != "same"
        or comparison.tolerance is None
        or comparison.of_class != ""
        or comparison.degradation <= comparison.tolerance
        or comparison.se_points is None
    ):
        return False
    now, before = (side[comparison.address].estimate.mc_se or 0.0 for side in (current, baseline))
    return comparison.degradation > _SURE * comparison.se_points and now > _GROWN * before


def _is_directed(comparison: EstimateComparison) -> bool:
    return comparison.direction != "none"
