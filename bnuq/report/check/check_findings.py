"""The verdicts of a check: its outcome, the reasons for it, and the change of each estimate; and its numbers, with as
many digits as they need."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from bnuq.findings import Finding
from bnuq.findings import verdict as _verdict
from bnuq.gate.comparing import LEVEL
from bnuq.gate.records import BOUNDS, NORMALIZED, CheckVerdict, Decisive, EstimateComparison, Floor
from bnuq.report.numbers import decimals, number, signed

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


SMALLEST_P = 0.0001  # that is written as such


def change_and_error(comparison: EstimateComparison) -> tuple[str, str]:
    """The change, and its error if it is known; a change of nothing is "0", not so many decimals of it."""
    digits = _digits(comparison)
    change, error = comparison.change, comparison.se
    text = "0" if change == 0 else signed(change, digits)
    if error is None or math.isnan(error) or error == change == 0:
        return text, ""
    return text, "0" if error == 0 else number(error, digits)


def before_and_now(comparison: EstimateComparison, *, distinct: bool = True) -> tuple[str, str]:
    """The estimate of the baseline and the current one, with as many decimals as distinguish them if they are to be
    `distinct`."""
    digits, values = _digits(comparison), (comparison.baseline, comparison.current)

    def written() -> tuple[str, str]:
        return number(values[0], digits), number(values[1], digits)

    while distinct and digits < 9 and values[0] != values[1] and len(set(written())) == 1:
        digits += 1
    return written()


def amount(value: float) -> str:
    """Three digits of a number that is not below 0, without zeros at its end."""
    return f"{value:.3g}"


def visible(comparison: EstimateComparison) -> str:
    """The smallest worsening that would have been found; a dash where nothing is known of it."""
    return "–" if comparison.detectable is None else amount(comparison.detectable)


def signed_loss(comparison: EstimateComparison) -> str:
    """The smallest worsening that would have been found, in the direction in which it is one."""
    sign = {"higher": "−", "lower": "+", "none": "±"}[comparison.direction]
    return f"{sign}{visible(comparison)}"


def decided_by(decisive: Decisive) -> str:
    """ "34,000 points", or of an OOD estimate "34,000 + 68,000 points"; "128 samples"; or both."""
    points = " + ".join(f"{n:,}" for _, n in decisive.points)
    samples = "" if decisive.samples is None else f"{decisive.samples:,} samples"
    return " and ".join(filter(None, (points and f"{points} points", samples)))


def chance(p: float) -> str:
    """A p-value with two digits, three where two would not show on which side of the level it is."""
    if p < SMALLEST_P:
        return f"< {SMALLEST_P:.4f}"
    return f"{p:.3g}" if 0.9 * LEVEL < p < 1.1 * LEVEL else f"{p:.2g}"


def _digits(comparison: EstimateComparison) -> int:
    if comparison.unit == "percent":
        return 2
    if "target unit" in comparison.unit:
        return max(0, decimals((comparison.baseline, comparison.current)) - 1)
    return 4


def required_value(floor: Floor) -> str:
    if math.isnan(floor.value):
        return "not a number"
    digits = 4 if abs(floor.value) < 10 else max(0, decimals([floor.value]))
    while digits < 9 and floor.value != floor.bound and round(floor.value, digits) == round(floor.bound, digits):
        digits += 1  # a value that is rounded to its bound looks as if it were met
    error = "" if floor.se is None or not math.isfinite(floor.value) else f" ± {number(floor.se, digits)}"
    return f"{number(floor.value, digits)}{error}"
