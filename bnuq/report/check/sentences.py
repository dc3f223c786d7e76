"""The sentences of a check's findings, and how they write its estimates and numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from bnuq.config import SINGLE_SAMPLE_METHODS
from bnuq.findings import Catalogue, Entry, Finding, sentence
from bnuq.gate.checking import LEVEL
from bnuq.gate.compatibility import listed
from bnuq.gate.records import BOUNDS, NORMALIZED, Comparison, Floor, Verdict
from bnuq.metrics.registry import metric_of
from bnuq.report.check import findings
from bnuq.report.check.findings import judgement, method_and_set, unpaired_sets
from bnuq.report.evaluation_findings import network_in_words
from bnuq.report.numbers import UNITS, count, decimals, named, number, signed

_MOST_NAMED = 4  # estimates that a sentence names beside the one that it is about
_SMALLEST = 0.0001  # p-value that is written as such


def headline(verdict: Verdict) -> str:
    """The outcome in one line, its first word saying it."""
    return sentence(findings.headline(verdict), SENTENCES)


def in_short(verdict: Verdict) -> tuple[str, ...]:
    """What the outcome rests on, a sentence each, most severe first."""
    return tuple(sentence(finding, SENTENCES) for finding in findings.findings(verdict))


def change_in_words(comparison: Comparison, verdict: Verdict) -> str:
    """What became of an estimate."""
    return sentence(findings.change(comparison, verdict), SENTENCES)


def requirement(floor: Floor) -> str:
    """mcbn.sets.test.pll is −0.3420 ± 0.0090, required to be at least −0.3: not met."""
    relation = "at least" if floor.relation == ">=" else "at most"
    bound = f"{floor.bound:.6g}".replace("-", "−")
    met = "met" if floor.passed else "not met"
    return f"{floor.address} is {_required_value(floor)}, required to be {relation} {bound}: {met}."


def subject(comparison: Comparison) -> str:
    """The estimate and what became of it, in a few words."""
    return f"{_estimate_of_network(comparison)}: {judgement(comparison)}"


def paired(verdict: Verdict) -> str:
    """What the two results share."""
    assert verdict.pairing is not None
    shared = [("points", verdict.pairing.points), ("draws", verdict.pairing.draws)]
    return "; ".join(f"the {noun} of {listed(names)}" for noun, names in shared if names) or "nothing"


def not_paired(verdict: Verdict) -> str:
    """What they do not share, and why; "" where they share all."""
    assert verdict.pairing is not None
    sets = unpaired_sets(verdict)
    methods: dict[str, list[str]] = {}
    for method, reason in verdict.pairing.why_not:
        methods.setdefault(reason, []).append(method)
    parts = [f"the points of {listed(sets)}: they are different points"] if sets else []
    return "; ".join([*parts, *(f"the draws of {listed(names)}: {reason}" for reason, names in methods.items())])


def estimate_name(comparison: Comparison) -> str:
    """PLL; AUROC by mutual information; PLL of the best possible uncertainty."""
    name = named(comparison.metric)
    if comparison.score:
        return f"{name} by {named(comparison.score)}"
    return f"{name} of the {place(comparison.set)}" if comparison.set.startswith(BOUNDS) else name


def place(set_name: str) -> str:
    """Where estimates are from: test set; svhn; constant uncertainty."""
    if set_name.startswith(BOUNDS):
        bound = set_name.removeprefix(BOUNDS)
        return {"constant": "constant uncertainty", "optimum": "best possible uncertainty"}.get(bound, f"bound {bound}")
    return {"test": "test set", "validation": "validation set", NORMALIZED: "test set"}.get(set_name, set_name)


# ── numbers ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def change_and_error(comparison: Comparison) -> tuple[str, str]:
    """The change, and its error where it is known; a change of nothing is "0", not so many decimals of it."""
    digits = _digits(comparison)
    change, error = comparison.change, comparison.se
    text = "0" if change == 0 else signed(change, digits)
    if error is None or math.isnan(error) or error == change == 0:
        return text, ""
    return text, "0" if error == 0 else number(error, digits)


def before_and_now(comparison: Comparison) -> tuple[str, str]:
    """The estimate of the baseline and the current one, with as many decimals as distinguish them."""
    digits, values = _digits(comparison), (comparison.baseline, comparison.current)

    def written() -> tuple[str, str]:
        return number(values[0], digits), number(values[1], digits)

    while digits < 9 and values[0] != values[1] and len(set(written())) == 1:
        digits += 1
    return written()


def amount(value: float) -> str:
    """Three digits of a number that is not below 0, without zeros at its end."""
    return f"{value:.3g}"


def chance(p: float) -> str:
    """A p-value with two digits, three where two would not show on which side of the level it is."""
    if p < _SMALLEST:
        return f"< {_SMALLEST:.4f}"
    return f"{p:.3g}" if 0.9 * LEVEL < p < 1.1 * LEVEL else f"{p:.2g}"


def _digits(comparison: Comparison) -> int:
    if comparison.unit == "percent":
        return 2
    if "target unit" in comparison.unit:
        return max(0, decimals((comparison.baseline, comparison.current)) - 1)
    return 4


def _required_value(floor: Floor) -> str:
    if math.isnan(floor.value):
        return "not a number"
    digits = 4 if abs(floor.value) < 10 else max(0, decimals([floor.value]))
    while digits < 9 and floor.value != floor.bound and round(floor.value, digits) == round(floor.bound, digits):
        digits += 1  # a value that is rounded to its bound looks as if it were met
    error = "" if floor.se is None or not math.isfinite(floor.value) else f" ± {number(floor.se, digits)}"
    return f"{number(floor.value, digits)}{error}"


# ── the whole ────────────────────────────────────────────────────────────────────────────────────────────────────────


def _outcome(label: str, *clauses: Callable[..., str]) -> Entry:
    """A sentence on the whole: its label, then those of the clauses that say something."""

    def write(*, accepted: bool, **values: Any) -> str:
        parts = [*(clause(**values) for clause in clauses), "accepted as the new baseline" if accepted else ""]
        return f"{label}: {'; '.join(filter(None, parts))}"

    return Entry(write)


def _gated(*, regressions: int, gated: int, movement: str, **_: Any) -> str:
    if regressions:
        share = f"{regressions} of {count(gated, 'gated estimate')}" if gated > 1 else "the only gated estimate"
        return f"{share} {movement} by more than {'its' if regressions == 1 else 'their'} tolerance and chance"
    share = f"none of {gated} gated estimates got" if gated > 1 else "the only gated estimate has not got"
    return f"{share} worse by more than its tolerance and chance" if gated else ""


def _required(*, broken: int, required: int, **_: Any) -> str:
    if broken:
        return f"{_broken(broken=broken, required=required)} {'is' if broken == 1 else 'are'} not met"
    met = f"all {required} requirements are met" if required > 1 else "the only requirement is met"
    return met if required else ""


def _broken(*, broken: int, required: int, **_: Any) -> str:
    return f"{broken} of {required} requirements" if required > 1 else "the only requirement"


def _nothing_compared(*, compared: bool, **_: Any) -> str:
    return "no estimate was gated" if compared else "nothing was compared"


# ── estimates ────────────────────────────────────────────────────────────────────────────────────────────────────────


def _better_or_worse(*, comparison: Comparison, gated: int, truth: str) -> str:
    """What a regression or an improvement means, then its numbers; the numbers alone where no words are known."""
    metric = metric_of(comparison.metric)
    meaning = metric.worse if comparison.outcome == "worse" else metric.better
    if not meaning:
        return _change(comparison=comparison, gated=gated)
    text = meaning.format(who=_network_in_words(comparison), where=_set_in_words(comparison), truth=truth)
    return _capital(f"{text}: {estimate_name(comparison)} {_from_to(comparison, gated)}.", comparison)


def _change(*, comparison: Comparison, gated: int, how: str = "", **_: Any) -> str:
    return _capital(f"{_estimate_of_network(comparison)} {how}{_from_to(comparison, gated)}.", comparison)


def _separation_regressions(*, lead: Finding, others: Sequence[Comparison], gated_on_set: int, directed: bool) -> str:
    movement = "got worse" if directed else "got worse or moved"
    text = sentence(lead, SENTENCES).removesuffix(".")
    return f"{text}; {len(others)} more of its {gated_on_set} gated estimates on that set {movement}."


def _set_regressions(*, lead: Finding, others: Sequence[Comparison], directed: bool, **_: Any) -> str:
    return (
        f"{sentence(lead, SENTENCES)} {'Also worse' if directed else 'Also'}: {_listed_changes(others, estimate_name)}."
    )


def _clearest_worsening(*, comparison: Comparison, gated: int, judgement: str) -> str:
    reason = judgement.partition(", ")[2] or "within tolerance and error"
    return f"The clearest worsening, {reason}: {_estimate_of_network(comparison)} {_from_to(comparison, gated)}."


def _improvements(*, comparisons: Sequence[Comparison]) -> str:
    return f"{count(len(comparisons), 'estimate')} got better: {_listed_changes(comparisons, _estimate_of_network)}."


def _listed_changes(comparisons: Sequence[Comparison], name: Callable[[Comparison], str]) -> str:
    unnamed = len(comparisons) - _MOST_NAMED
    shown = ", ".join(
        f"{name(comparison)} {' → '.join(before_and_now(comparison))}{_unit(comparison)}"
        for comparison in (comparisons[:_MOST_NAMED] if unnamed > 0 else comparisons)
    )
    return f"{shown}, and {unnamed} more" if unnamed > 0 else shown


def _from_to(comparison: Comparison, gated: int) -> str:
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


def _details(comparison: Comparison, gated: int) -> list[str]:
    parts = []
    if math.isfinite(comparison.change):
        change, error = change_and_error(comparison)
        unknown = ", error unknown" if comparison.se is None else ""
        parts.append(f"{change} ± {error}" if error else f"{change}{unknown}")
    if comparison.tolerance is not None:
        parts.append(f"tolerance {amount(comparison.tolerance)}{_unit(comparison)}")
    p, adjusted = comparison.p_value, comparison.p_adjusted
    if p is not None and (comparison.se is not None or comparison.harm > 0):
        among = "" if adjusted is None else f", {chance(adjusted)} among {gated}"
        parts.append(f"p {'' if p < _SMALLEST else '= '}{chance(p)}{among}")
    return parts


def _estimate_of_network(comparison: Comparison) -> str:
    set_words = "" if comparison.set == NORMALIZED else f" on {_set_in_words(comparison)}"
    return f"{estimate_name(comparison)} of {_network_in_words(comparison)}{set_words}"


def _network_in_words(comparison: Comparison) -> str:
    return network_in_words(comparison.method) if comparison.method in SINGLE_SAMPLE_METHODS else comparison.method


def _set_in_words(comparison: Comparison) -> str:
    _, name = method_and_set(comparison)
    return f"the {name} set" if name in ("test", "validation") else name


def _unit(comparison: Comparison) -> str:
    return UNITS.get(comparison.unit, "")


def _capital(text: str, comparison: Comparison) -> str:
    """With a capital letter, unless it begins with the name of the method."""
    return text if text.startswith(comparison.method) else text[0].upper() + text[1:]


def _unchanged(*, estimates: int) -> str:
    if estimates == 1:
        return "The only estimate is exactly as before: its change is 0."
    return f"All {estimates} estimates are exactly as before: every change is 0."


SENTENCES: Catalogue = {
    "regression": _outcome("Worse", _gated, _required),
    "requirement-not-met": _outcome("Not met", _broken, _gated),
    "no-regression": _outcome("No regression", _gated, _required),
    "only-required": _outcome("Passed", _required, _nothing_compared),
    "nothing-checked": _outcome("Nothing was checked", _nothing_compared),
    "accepted-uncompared": _outcome("Accepted as the new baseline", _nothing_compared, _required),
    "worse": Entry(_better_or_worse),
    "better": Entry(_better_or_worse),
    "moved": Entry(partial(_change, how="moved by more than its tolerance: it ")),
    "change": Entry(_change),
    "separation-regressions": Entry(_separation_regressions),
    "set-regressions": Entry(_set_regressions),
    "more-regressions": Entry(
        lambda *, estimates: f"{count(estimates, 'more estimate')} got worse; see the table below."
    ),
    "requirement": Entry(lambda *, floor: requirement(floor)),
    "unchanged": Entry(_unchanged),
    "clearest-worsening": Entry(_clearest_worsening),
    "no-worsening": Entry("No gated estimate changed for the worse."),
    "improvements": Entry(_improvements),
}
