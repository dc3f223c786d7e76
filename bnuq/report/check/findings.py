"""The findings of a check: its outcome in a line, the reasons for it, and the outcome of each estimate."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from bnuq.findings import Finding
from bnuq.gate.checking import LEVEL
from bnuq.gate.records import BOUNDS, NORMALIZED, Comparison, Verdict

_GROUPS = 12  # of regressions that each have a sentence; the tables hold the rest
_SINGLE = 2  # regressions of one method and set that each have a sentence of their own

# What a change may be judged to be, worst first.
JUDGEMENTS = (
    "worse", "moved", "worse, error unknown", "moved, error unknown", "worse, within chance", "moved, within chance",
    "worse, within tolerance", "moved, within tolerance", "better", "same", "not gated",
)  # fmt: skip


def headline(verdict: Verdict) -> Finding:
    """The outcome of the whole check."""
    regressions = verdict.worse
    directed = {comparison.direction != "none" for comparison in regressions}
    if regressions:
        code = "regression"
    elif verdict.broken:
        code = "requirement-not-met"
    elif verdict.gated:
        code = "no-regression"
    else:
        code = "only-required" if verdict.floors else "nothing-checked"
    if verdict.accepted is not None and not verdict.comparisons:
        code = "accepted-uncompared"
    values = {
        "regressions": len(regressions),
        "gated": verdict.gated,
        "movement": "moved" if directed == {False} else "got worse" if directed == {True} else "got worse or moved",
        "broken": len(verdict.broken),
        "required": len(verdict.floors),
        "compared": verdict.baseline is not None,
        "accepted": verdict.accepted is not None and bool(verdict.comparisons),
    }
    return Finding(code, "verdict", values)


def findings(verdict: Verdict) -> Iterator[Finding]:
    """What the outcome rests on, most severe first."""
    groups = list(_by_method_and_set(verdict.worse))
    for group in groups[:_GROUPS]:
        yield from _of_group(group, verdict)
    if unshown := sum(map(len, groups[_GROUPS:])):
        yield Finding("more-regressions", "verdict", {"estimates": unshown})
    yield from (Finding("requirement", "verdict", {"floor": floor}) for floor in verdict.broken)
    if verdict.comparisons and is_unchanged(verdict.comparisons):
        yield unchanged(verdict.comparisons)
    elif verdict.gated and not verdict.worse:
        yield _clearest_worsening(verdict)
    if better := tuple(comparison for comparison in verdict.comparisons if comparison.outcome == "better"):
        yield Finding("improvements", "verdict", {"comparisons": better})


def change(comparison: Comparison, verdict: Verdict) -> Finding:
    """What became of one estimate."""
    code = "change"
    if comparison.direction != "none" and comparison.outcome in ("worse", "better"):
        code = comparison.outcome
    elif judgement(comparison) == "moved":
        code = "moved"
    return Finding(code, "verdict", {"comparison": comparison, "gated": verdict.gated, "truth": _truth(verdict)})


def judgement(comparison: Comparison) -> str:
    """Which of `JUDGEMENTS` the change is; an estimate without a direction moves, and does not get worse."""
    worse = "moved" if comparison.direction == "none" else "worse"
    if comparison.outcome != "same":
        return worse if comparison.outcome == "worse" else comparison.outcome
    if comparison.tolerance is not None and comparison.harm > comparison.tolerance:
        return f"{worse}, within chance" if comparison.se is not None else f"{worse}, error unknown"
    if comparison.harm > 0 and comparison.p_adjusted is not None and comparison.p_adjusted < LEVEL:
        return f"{worse}, within tolerance"
    return "same"


def is_unchanged(comparisons: Iterable[Comparison]) -> bool:
    """Whether every estimate is to the last bit what it was."""
    return all(comparison.change == 0 for comparison in comparisons)


def unchanged(comparisons: tuple[Comparison, ...]) -> Finding:
    """That these estimates are to the last bit what they were."""
    return Finding("unchanged", "verdict", {"estimates": len(comparisons)})


def method_and_set(comparison: Comparison) -> tuple[str, str]:
    """The method, and the set whose points the estimate is of; of the test set are normalised scores and bounds."""
    of_test = comparison.set == NORMALIZED or comparison.set.startswith(BOUNDS)
    return comparison.method, "test" if of_test else comparison.set


def unpaired_sets(verdict: Verdict) -> tuple[str, ...]:
    """The sets whose points are not the same in both results."""
    points = () if verdict.pairing is None else verdict.pairing.points
    sets = dict.fromkeys(method_and_set(comparison)[1] for comparison in verdict.comparisons)
    return tuple(name for name in sets if name not in points)


def _by_method_and_set(regressions: Iterable[Comparison]) -> Iterator[tuple[Comparison, ...]]:
    """Those of one method and one set together, in the order of the worst of each."""
    groups: dict[tuple[str, str], list[Comparison]] = {}
    for comparison in regressions:
        groups.setdefault(method_and_set(comparison), []).append(comparison)
    yield from map(tuple, groups.values())


def _of_group(group: tuple[Comparison, ...], verdict: Verdict) -> Iterator[Finding]:
    if len(group) <= _SINGLE:
        yield from (change(comparison, verdict) for comparison in group)
        return
    lead = next((comparison for comparison in group if comparison.metric == "auroc"), group[0])
    others = tuple(comparison for comparison in group if comparison is not lead)
    same_set = (comparison for comparison in verdict.comparisons if method_and_set(comparison) == method_and_set(lead))
    values = {
        "lead": change(lead, verdict),
        "others": others,
        "gated_on_set": sum(comparison.outcome != "not gated" for comparison in same_set),
        "directed": all(comparison.direction != "none" for comparison in others),
    }
    yield Finding("separation-regressions" if lead.score else "set-regressions", "verdict", values)


def _clearest_worsening(verdict: Verdict) -> Finding:
    """The step for the worse that chance explains least, of those that do not fail the check."""
    for comparison in verdict.comparisons:
        if comparison.outcome == "same" and comparison.harm > 0:
            values = {"comparison": comparison, "gated": verdict.gated, "judgement": judgement(comparison)}
            return Finding("clearest-worsening", "verdict", values)
    return Finding("no-worsening", "verdict")


def _truth(verdict: Verdict) -> str:
    regression = any(comparison.metric in ("rmse", "mae", "crps", "tau") for comparison in verdict.comparisons)
    return "targets" if regression else "labels"
