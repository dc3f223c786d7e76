"""The verdicts of a check: its outcome, the reasons for it, and the change of each estimate."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from bnuq.findings import Finding
from bnuq.findings import verdict as _verdict
from bnuq.gate.comparing import LEVEL
from bnuq.gate.records import BOUNDS, NORMALIZED, CheckVerdict, EstimateComparison

_MOST = 3  # regressions that each have a sentence; the table holds the rest


def headline(verdict: CheckVerdict) -> Finding:
    """The outcome of the whole check."""
    regressions = verdict.worse
    directed = {comparison.direction != "none" for comparison in regressions}
    if verdict.accepted is not None and not verdict.comparisons:
        code = "accepted-uncompared"
    elif regressions:
        code = "regression"
    elif verdict.broken:
        code = "requirement-not-met"
    elif verdict.failing:
        code = "inconclusive"
    elif verdict.gated:
        code = "no-regression"
    else:
        code = "only-required" if verdict.floors else "nothing-checked"
    return _verdict(
        code,
        regressions=len(regressions),
        gated=verdict.gated,
        inconclusive=len(verdict.inconclusive),
        movement="moved" if directed == {False} else "got worse" if directed == {True} else "got worse or moved",
        broken=len(verdict.broken),
        required=len(verdict.floors),
        compared=verdict.baseline is not None,
        accepted=verdict.accepted is not None and bool(verdict.comparisons),
    )


def findings(verdict: CheckVerdict) -> Iterator[Finding]:
    """What the outcome rests on, most severe first: what got worse once for all methods, classes and groups."""
    alike: dict[tuple[object, ...], list[EstimateComparison]] = {}
    for each in verdict.failing or verdict.worse:
        alike.setdefault((each.set, each.score, each.metric, each.label, each.family, each.slope), []).append(each)
    for lead, *others in [*alike.values()][:_MOST]:
        said = change(lead, verdict, brief=True)
        yield _verdict("alike", lead=said, others=others) if others else said
    if unshown := sum(map(len, [*alike.values()][_MOST:])):
        yield _verdict("more-regressions", estimates=unshown)
    yield from (_verdict("requirement", floor=floor) for floor in verdict.broken)
    if (gated := verdict.of_gated) and is_unchanged(gated):
        yield _verdict("unchanged", estimates=len(gated))
    if better := tuple(comparison for comparison in gated if comparison.outcome == "better"):
        yield _verdict("improvements", comparisons=better)


def change(comparison: EstimateComparison, verdict: CheckVerdict, *, brief: bool = False) -> Finding:
    """What became of one estimate; where it is `brief`, how far it went, not how sure that is."""
    code = "change"
    if comparison.direction != "none" and comparison.outcome in ("worse", "better"):
        code = comparison.outcome
    elif judgement(comparison) == "moved":
        code = "moved"
    regression = any(comparison.metric in ("rmse", "mae", "crps", "tau") for comparison in verdict.comparisons)
    truth = "targets" if regression else "labels"
    return _verdict(code, comparison=comparison, gated=0 if brief else verdict.families[comparison.family], truth=truth)


def judgement(comparison: EstimateComparison) -> str:
    """The outcome in words; an estimate without a direction moves, and does not get worse."""
    worse = "moved" if comparison.direction == "none" else "worse"
    if comparison.outcome != "same":
        return worse if comparison.outcome == "worse" else comparison.outcome
    if comparison.degradation > 0 and comparison.p_adjusted is not None and comparison.p_adjusted < LEVEL:
        return f"{worse}, within tolerance"
    return "same"


def is_unchanged(comparisons: Iterable[EstimateComparison]) -> bool:
    """Whether every estimate is to the last bit what it was."""
    return all(comparison.change == 0 for comparison in comparisons)


def method_and_set(comparison: EstimateComparison) -> tuple[str, str]:
    """The method, and the set whose points the estimate is of; of the test set are normalised scores and bounds."""
    is_derived = comparison.set == NORMALIZED or comparison.set.startswith(BOUNDS)
    return comparison.method, "test" if is_derived else comparison.set
