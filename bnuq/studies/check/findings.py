"""The verdicts and sentences of a check: its outcome, the reasons for it, and the change of each estimate."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence

from bnuq.findings import all_of
from bnuq.gate.comparing import LEVEL
from bnuq.gate.records import BOUNDS, NORMALIZED, CheckVerdict, EstimateComparison, Floor
from bnuq.methods import method_named
from bnuq.metrics.registry import metric_of
from bnuq.records.addresses import AT_THRESHOLD
from bnuq.records.words import plain
from bnuq.report.method_names import network_in_words
from bnuq.report.numbers import UNITS, count, named
from bnuq.report.sanitize import printable
from bnuq.studies.check.numbers import (
    SMALLEST_P,
    amount,
    before_and_now,
    chance,
    change_and_error,
    decided_by,
    required_value,
)

_MOST = 3  # regressions that each have a sentence; the table holds the rest
NOTHING_CHECKED = "nothing was checked"  # as of a check that could not be carried out
_MOST_NAMED = 4  # estimates that a sentence names beside the one that it is about


def headline(verdict: CheckVerdict) -> str:
    """The outcome of the whole check, a line without a full stop, whose first word says it."""
    compared = "nothing was compared" if verdict.baseline is None else "no estimate was gated"
    if verdict.accepted is not None and not verdict.comparisons:
        label, clauses = "Accepted as the new baseline", (compared, _required(verdict))
    elif verdict.worse:
        label, clauses = "Worse", (_gated(verdict), _required(verdict))
    elif verdict.broken:
        label, clauses = "Not met", (_broken(verdict), _gated(verdict))
    elif verdict.failing:
        label, clauses = "Inconclusive", (_unclear(verdict), _required(verdict))
    elif verdict.gated:
        label, clauses = "No regression", (_gated(verdict), _required(verdict))
    else:
        label, clauses = "Passed" if verdict.floors else "Nothing was checked", (_required(verdict), compared)
    accepted = "accepted as the new baseline" if verdict.accepted is not None and verdict.comparisons else ""
    return f"{label}: {'; '.join(filter(None, (*clauses, accepted)))}"


def findings(verdict: CheckVerdict) -> Iterator[str]:
    """What the outcome rests on, most severe first: what got worse once for all methods, classes and groups."""
    alike: dict[tuple[object, ...], list[EstimateComparison]] = {}
    for each in verdict.failing or verdict.worse:
        alike.setdefault((each.set, each.score, each.metric, each.label, each.family, each.slope), []).append(each)
    for lead, *others in [*alike.values()][:_MOST]:
        yield f"{change(lead, verdict, brief=True)}{_alike(lead, others) if others else ''}"
    if unshown := sum(map(len, [*alike.values()][_MOST:])):
        yield f"{count(unshown, 'more estimate')} got worse; see the table below."
    yield from map(requirement, verdict.broken)
    if (gated := verdict.of_gated) and is_unchanged(gated):
        estimates = f"All {len(gated)} gated estimates are" if len(gated) > 1 else "The only gated estimate is"
        yield f"{estimates} exactly as before: {'every' if len(gated) > 1 else 'its'} change is 0."
    if better := tuple(comparison for comparison in gated if comparison.outcome == "better"):
        yield f"{count(len(better), 'estimate')} got better: {_listed_changes(better, _estimate_of_network)}."


def change(comparison: EstimateComparison, verdict: CheckVerdict, *, brief: bool = False) -> str:
    """What became of one estimate, after what that means where words are known; where it is `brief`, how far it went,
    not how sure that is."""
    gated, metric = 0 if brief else verdict.families[comparison.family], metric_of(comparison.metric)
    meaning = {"worse": metric.worse, "better": metric.better}.get(comparison.outcome, "")
    if comparison.direction != "none" and meaning:
        regression = any(each.metric in ("rmse", "mae", "crps", "tau") for each in verdict.comparisons)
        where, truth = _set_in_words(comparison), "targets" if regression else "labels"
        text = meaning.format(who=_network_in_words(comparison), where=where, truth=truth)
        return _capital(f"{text}: {estimate_name(comparison)} {_from_to(comparison, gated)}.", comparison)
    how = "moved beyond its tolerance: it " if judgement(comparison) == "moved" else ""
    return _capital(f"{_estimate_of_network(comparison)} {how}{_from_to(comparison, gated)}.", comparison)


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


def reasons(message: str) -> list[str]:
    """The lines of an error, for which nothing was checked; at least one."""
    lines = (printable(text, lines=False).strip().removeprefix("- ") for text in message.splitlines())
    return [text for text in lines if text] or ["no reason was given"]


def requirement(floor: Floor) -> str:
    """mcbn.sets.test.pll is −0.3420 ± 0.0090, required to be at least −0.3: not met."""
    relation = "at least" if floor.relation == ">=" else "at most"
    bound = f"{floor.bound:.6g}".replace("-", "−")
    met = "met" if floor.passed else "not met"
    return f"{floor.address} is {required_value(floor)}, required to be {relation} {bound}: {met}."


def subject(comparison: EstimateComparison) -> str:
    """The estimate and what became of it, in a few words."""
    return f"{_estimate_of_network(comparison)}: {judgement(comparison)}"


def paired(verdict: CheckVerdict) -> str:
    """What the two results share."""
    assert verdict.pairing is not None
    shared = [("examples", verdict.pairing.points), ("draws", verdict.pairing.draws)]
    return "; ".join(f"the {noun} of {all_of(names)}" for noun, names in shared if names) or "nothing"


def not_paired(verdict: CheckVerdict) -> str:
    """What they do not share, and why; "" where they share all."""
    assert verdict.pairing is not None
    compared = dict.fromkeys(method_and_set(comparison)[1] for comparison in verdict.comparisons)
    sets = [name for name in compared if name not in verdict.pairing.points]
    methods: dict[str, list[str]] = {}
    for method, reason in verdict.pairing.why_not:
        methods.setdefault(reason, []).append(method)
    parts = [f"the examples of {all_of(sets)}: they are different examples"] if sets else []
    return "; ".join([*parts, *(f"the draws of {all_of(names)}: {reason}" for reason, names in methods.items())])


def estimate_name(comparison: EstimateComparison) -> str:
    """An estimate, without abbreviation, and what it is of or by."""
    name = _name(comparison)
    return f"{name} (line through the history)" if comparison.slope else name


def _name(comparison: EstimateComparison) -> str:
    name = plain(comparison.metric)
    if comparison.score == AT_THRESHOLD:
        return name  # says it
    if comparison.score:
        return f"{name} by {named(comparison.score)}"
    if comparison.of_class or comparison.group:
        kind = "class" if comparison.of_class else "group"
        return f"{name} of {kind} {comparison.of_class or comparison.group}"
    if comparison.label:
        return f"{name} of label {comparison.label}"
    return f"{name} of the {set_title(comparison.set)}" if comparison.set.startswith(BOUNDS) else name


def set_title(set_name: str) -> str:
    """Where estimates are from: test set; svhn; constant uncertainty."""
    if set_name.startswith(BOUNDS):
        bound = set_name.removeprefix(BOUNDS)
        return {"constant": "constant uncertainty", "optimum": "best possible uncertainty"}.get(bound, f"bound {bound}")
    return {"test": "test set", "validation": "validation set", NORMALIZED: "test set"}.get(set_name, set_name)


def _gated(verdict: CheckVerdict) -> str:
    regressions, gated = verdict.worse, verdict.gated
    directed = {comparison.direction != "none" for comparison in regressions}
    movement = "moved" if directed == {False} else "got worse" if directed == {True} else "got worse or moved"
    unclear = f"; {len(verdict.inconclusive)} inconclusive" if verdict.inconclusive else ""
    if regressions:
        share = f"{len(regressions)} of {count(gated, 'gated estimate')}" if gated > 1 else "the only gated estimate"
        return f"{share} {movement} beyond chance and by more than tolerated{unclear}"
    share = f"none of {gated} gated estimates got" if gated > 1 else "the only gated estimate has not got"
    return f"{share} worse beyond chance and by more than tolerated{unclear}" if gated else ""


def _unclear(verdict: CheckVerdict) -> str:
    many = f"{len(verdict.inconclusive)} of {count(verdict.gated, 'gated estimate')}"
    which = many if verdict.gated > 1 else "the only gated estimate"
    return f"{which} worse by more than tolerated, which may be chance, and --inconclusive is fail"


def _required(verdict: CheckVerdict) -> str:
    if verdict.broken:
        return f"{_broken(verdict)} {'is' if len(verdict.broken) == 1 else 'are'} not met"
    required = len(verdict.floors)
    met = f"all {required} requirements are met" if required > 1 else "the only requirement is met"
    return met if required else ""


def _broken(verdict: CheckVerdict) -> str:
    required = len(verdict.floors)
    return f"{len(verdict.broken)} of {required} requirements" if required > 1 else "the only requirement"


# ── estimates ────────────────────────────────────────────────────────────────────────────────────────────────────────


def _alike(first: EstimateComparison, others: Sequence[EstimateComparison]) -> str:
    """Whose else got worse, beside the first of several estimates."""
    names = [_part(each) or _network_in_words(each) for each in others]
    if _part(first):
        names = [
            name if each.method == first.method else f"{name} ({each.method})"
            for name, each in zip(names, others, strict=True)
        ]
    shown = names if len(names) <= _MOST_NAMED else [*names[:_MOST_NAMED], f"{len(names) - _MOST_NAMED} more"]
    return f" So did that of {all_of(shown)}."


def _part(comparison: EstimateComparison) -> str:
    kind = "class" if comparison.of_class else "group"
    part = comparison.of_class or comparison.group
    return f"{kind} {part}" if part else ""


def _listed_changes(comparisons: Sequence[EstimateComparison], name: Callable[[EstimateComparison], str]) -> str:
    unnamed = len(comparisons) - _MOST_NAMED
    shown = ", ".join(
        f"{name(comparison)} {' → '.join(before_and_now(comparison))}{_unit(comparison)}"
        for comparison in (comparisons[:_MOST_NAMED] if unnamed > 0 else comparisons)
    )
    return f"{shown}, and {unnamed} more" if unnamed > 0 else shown


def _from_to(comparison: EstimateComparison, gated: int) -> str:
    """From what to what an estimate went; its change with its error, the tolerance, and the p-value."""
    details = "; ".join(_details(comparison, gated))
    values, unit = (comparison.baseline, comparison.current), _unit(comparison)
    before, now = before_and_now(comparison)
    if any(map(math.isnan, values)):
        before, now = (
            "not a number" if math.isnan(value) else f"{text}{unit}"
            for value, text in zip(values, (before, now), strict=True)
        )
        return f"is {now}, and was {before} ({details})"
    if comparison.current == comparison.baseline:
        return f"is still {now}{unit} ({details})"
    return f"{'rose' if comparison.current > comparison.baseline else 'fell'} from {before} to {now}{unit} ({details})"


def _details(comparison: EstimateComparison, gated: int) -> list[str]:
    parts = []
    if math.isfinite(comparison.change):
        change, error = change_and_error(comparison)
        unknown = ", error unknown" if comparison.se is None else ""
        parts.append(f"{change} ± {error}" if error else f"{change}{unknown}")
    if not gated:  # a table has the rest
        return parts
    if comparison.tolerance is not None:
        parts.append(f"tolerance {amount(comparison.tolerance)}{_unit(comparison)}")
    p, adjusted = comparison.p_value, comparison.p_adjusted
    if p is not None and (comparison.se is not None or comparison.degradation > 0):
        among = "" if adjusted is None else f", {chance(adjusted)} among {gated}"
        parts.append(f"p {'' if p < SMALLEST_P else '= '}{chance(p)}{among}")
    if comparison.decisive is not None:
        parts.append(f"{decided_by(comparison.decisive)} would decide")
    return parts


def _estimate_of_network(comparison: EstimateComparison) -> str:
    set_words = "" if comparison.set == NORMALIZED else f" on {_set_in_words(comparison)}"
    return f"{estimate_name(comparison)} of {_network_in_words(comparison)}{set_words}"


def _network_in_words(comparison: EstimateComparison) -> str:
    return network_in_words(comparison.method) if method_named(comparison.method).is_single else comparison.method


def _set_in_words(comparison: EstimateComparison) -> str:
    _, name = method_and_set(comparison)
    return f"the {name} set" if name in ("test", "validation") else name


def _unit(comparison: EstimateComparison) -> str:
    return UNITS.get(comparison.unit, "")


def _capital(text: str, comparison: EstimateComparison) -> str:
    """With a capital letter, unless it begins with the name of the method."""
    return text if text.startswith(comparison.method) else text[0].upper() + text[1:]
