"""The verdicts of a check: its outcome, the reasons for it, and the change of each estimate."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from bnuq.findings import Finding
from bnuq.findings import verdict as _verdict
from bnuq.gate.comparing import LEVEL
from bnuq.gate.records import BOUNDS, NORMALIZED, CheckVerdict, EstimateComparison

_GROUPS = 12  # of regressions that each have a sentence; the tables hold the rest
_SINGLE = 2  # regressions of one method and set that each have a sentence of their own

# What a change may be judged to be, worst first.
JUDGEMENTS = (
    "worse", "moved", "inconclusive", "worse, within tolerance", "moved, within tolerance", "better", "same",
    "not gated",
)  # fmt: skip


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
    """What the outcome rests on, most severe first."""
    groups: dict[tuple[str, str], list[EstimateComparison]] = {}
    for comparison in verdict.worse:
        groups.setdefault(method_and_set(comparison), []).append(comparison)
    for group in [*groups.values()][:_GROUPS]:
        yield from _of_group(group, verdict)
    if unshown := sum(map(len, [*groups.values()][_GROUPS:])):
        yield _verdict("more-regressions", estimates=unshown)
    yield from (_verdict("requirement", floor=floor) for floor in verdict.broken)
    if verdict.comparisons and is_unchanged(verdict.comparisons):
        yield unchanged(verdict.comparisons)
    elif verdict.gated and not verdict.worse:
        # of those that do not fail the check, what chance explains least: comparisons come worst first
        unclear = (item for item in verdict.comparisons if item.outcome in ("inconclusive", "same"))
        clearest = next((comparison for comparison in unclear if comparison.degradation > 0), None)
        if clearest is None:
            yield _verdict("no-worsening")
        else:
            values = {"comparison": clearest, "gated": verdict.gated, "judgement": judgement(clearest)}
            yield _verdict("clearest-worsening", **values)
    if better := tuple(comparison for comparison in verdict.comparisons if comparison.outcome == "better"):
        yield _verdict("improvements", comparisons=better)


def change(comparison: EstimateComparison, verdict: CheckVerdict) -> Finding:
    """What became of one estimate."""
    code = "change"
    if comparison.direction != "none" and comparison.outcome in ("worse", "better"):
        code = comparison.outcome
    elif judgement(comparison) == "moved":
        code = "moved"
    regression = any(comparison.metric in ("rmse", "mae", "crps", "tau") for comparison in verdict.comparisons)
    truth = "targets" if regression else "labels"
    return _verdict(code, comparison=comparison, gated=verdict.gated, truth=truth)


def judgement(comparison: EstimateComparison) -> str:
    """Which of `JUDGEMENTS` the change is; an estimate without a direction moves, and does not get worse."""
    worse = "moved" if comparison.direction == "none" else "worse"
    if comparison.outcome != "same":
        return worse if comparison.outcome == "worse" else comparison.outcome
    if comparison.degradation > 0 and comparison.p_adjusted is not None and comparison.p_adjusted < LEVEL:
        return f"{worse}, within tolerance"
    return "same"


def is_unchanged(comparisons: Iterable[EstimateComparison]) -> bool:
    """Whether every estimate is to the last bit what it was."""
    return all(comparison.change == 0 for comparison in comparisons)


def unchanged(comparisons: tuple[EstimateComparison, ...]) -> Finding:
    """That these estimates are to the last bit what they were."""
    return _verdict("unchanged", estimates=len(comparisons))


def method_and_set(comparison: EstimateComparison) -> tuple[str, str]:
    """The method, and the set whose points the estimate is of; of the test set are normalised scores and bounds."""
    is_derived = comparison.set == NORMALIZED or comparison.set.startswith(BOUNDS)
    return comparison.method, "test" if is_derived else comparison.set


def _of_group(group: Sequence[EstimateComparison], verdict: CheckVerdict) -> Iterator[Finding]:
    if len(group) <= _SINGLE:
        yield from (change(comparison, verdict) for comparison in group)
        return
    lead = next((comparison for comparison in group if comparison.metric == "auroc"), group[0])
    others = tuple(comparison for comparison in group if comparison is not lead)
    same_set = (comparison for comparison in verdict.comparisons if method_and_set(comparison) == method_and_set(lead))
    yield _verdict(
        "separation-regressions" if lead.score else "set-regressions",
        lead=change(lead, verdict),
        others=others,
        gated_on_set=sum(comparison.outcome != "not gated" for comparison in same_set),
        directed=all(comparison.direction != "none" for comparison in others),
    )
