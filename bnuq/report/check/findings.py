"""The verdicts of a check and their sentences: its outcome, the reasons for it, and the change of each estimate."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

from bnuq.findings import Catalogue, Entry, Finding, all_of, sentence
from bnuq.findings import verdict as _verdict
from bnuq.gate.checking import LEVEL
from bnuq.gate.records import BOUNDS, NORMALIZED, Comparison, Floor, Verdict
from bnuq.methods import method_named
from bnuq.metrics.registry import metric_of
from bnuq.report.evaluation_findings import network_in_words
from bnuq.report.numbers import UNITS, count, decimals, named, number, signed
from bnuq.report.sanitize import printable

NOTHING_CHECKED = "nothing was checked"  # as of a check that could not be carried out
_GROUPS = 12  # of regressions that each have a sentence; the tables hold the rest
_SINGLE = 2  # regressions of one method and set that each have a sentence of their own
_MOST_NAMED = 4  # estimates that a sentence names beside the one that it is about
_SMALLEST = 0.0001  # p-value that is written as such

# What a change may be judged to be, worst first.
JUDGEMENTS = (
    "worse", "moved", "worse, error unknown", "moved, error unknown", "worse, within chance", "moved, within chance",
    "worse, within tolerance", "moved, within tolerance", "better", "same", "not gated",
)  # fmt: skip


def headline(verdict: Verdict) -> Finding:
    """The outcome of the whole check."""
    regressions = verdict.worse
    directed = {comparison.direction != "none" for comparison in regressions}
    if verdict.accepted is not None and not verdict.comparisons:
        code = "accepted-uncompared"
    elif regressions:
        code = "regression"
    elif verdict.broken:
        code = "requirement-not-met"
    elif verdict.gated:
        code = "no-regression"
    else:
        code = "only-required" if verdict.floors else "nothing-checked"
    return _verdict(
        code,
        regressions=len(regressions),
        gated=verdict.gated,
        movement="moved" if directed == {False} else "got worse" if directed == {True} else "got worse or moved",
        broken=len(verdict.broken),
        required=len(verdict.floors),
        compared=verdict.baseline is not None,
        accepted=verdict.accepted is not None and bool(verdict.comparisons),
    )


def findings(verdict: Verdict) -> Iterator[Finding]:
    """What the outcome rests on, most severe first."""
    groups: dict[tuple[str, str], list[Comparison]] = {}
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
        clearest = next((each for each in verdict.comparisons if each.outcome == "same" and each.harm > 0), None)
        if clearest is None:
            yield _verdict("no-worsening")
        else:
            values = {"comparison": clearest, "gated": verdict.gated, "judgement": judgement(clearest)}
            yield _verdict("clearest-worsening", **values)
    if better := tuple(comparison for comparison in verdict.comparisons if comparison.outcome == "better"):
        yield _verdict("improvements", comparisons=better)


def change(comparison: Comparison, verdict: Verdict) -> Finding:
    """What became of one estimate."""
    code = "change"
    if comparison.direction != "none" and comparison.outcome in ("worse", "better"):
        code = comparison.outcome
    elif judgement(comparison) == "moved":
        code = "moved"
    regression = any(each.metric in ("rmse", "mae", "crps", "tau") for each in verdict.comparisons)
    truth = "targets" if regression else "labels"
    return _verdict(code, comparison=comparison, gated=verdict.gated, truth=truth)


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
    return _verdict("unchanged", estimates=len(comparisons))


def method_and_set(comparison: Comparison) -> tuple[str, str]:
    """The method, and the set whose points the estimate is of; of the test set are normalised scores and bounds."""
    of_test = comparison.set == NORMALIZED or comparison.set.startswith(BOUNDS)
    return comparison.method, "test" if of_test else comparison.set


def _of_group(group: Sequence[Comparison], verdict: Verdict) -> Iterator[Finding]:
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


# ── their sentences ──────────────────────────────────────────────────────────────────────────────────────────────────


def in_words(finding: Finding) -> str:
    """The sentence of a finding; of the outcome a line without a full stop, whose first word says it."""
    return sentence(finding, SENTENCES)


def reasons(message: str) -> list[str]:
    """The lines of an error, for which nothing was checked; at least one."""
    lines = (printable(text, lines=False).strip().removeprefix("- ") for text in message.splitlines())
    return [text for text in lines if text] or ["no reason was given"]


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
    return "; ".join(f"the {noun} of {all_of(names)}" for noun, names in shared if names) or "nothing"


def not_paired(verdict: Verdict) -> str:
    """What they do not share, and why; "" where they share all."""
    assert verdict.pairing is not None
    compared = dict.fromkeys(method_and_set(comparison)[1] for comparison in verdict.comparisons)
    sets = [name for name in compared if name not in verdict.pairing.points]
    methods: dict[str, list[str]] = {}
    for method, reason in verdict.pairing.why_not:
        methods.setdefault(reason, []).append(method)
    parts = [f"the points of {all_of(sets)}: they are different points"] if sets else []
    return "; ".join([*parts, *(f"the draws of {all_of(names)}: {reason}" for reason, names in methods.items())])


def estimate_name(comparison: Comparison) -> str:
    """PLL; AUROC by mutual information; PLL of the best possible uncertainty."""
    name = named(comparison.metric)
    if comparison.score:
        return f"{name} by {named(comparison.score)}"
    if comparison.of_class or comparison.group:
        kind = "class" if comparison.of_class else "group"
        return f"{name} of {kind} {comparison.of_class or comparison.group}"
    if comparison.label:
        return f"{name} of label {comparison.label}"
    return f"{name} of the {place(comparison.set)}" if comparison.set.startswith(BOUNDS) else name


def place(set_name: str) -> str:
    """Where estimates are from: test set; svhn; constant uncertainty."""
    if set_name.startswith(BOUNDS):
        bound = set_name.removeprefix(BOUNDS)
        return {"constant": "constant uncertainty", "optimum": "best possible uncertainty"}.get(bound, f"bound {bound}")
    return {"test": "test set", "validation": "validation set", NORMALIZED: "test set"}.get(set_name, set_name)


# ── numbers ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def change_and_error(comparison: Comparison) -> tuple[str, str]:
    """The change, and its error if it is known; a change of nothing is "0", not so many decimals of it."""
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
    text = in_words(lead).removesuffix(".")
    return f"{text}; {len(others)} more of its {gated_on_set} gated estimates on that set {movement}."


def _set_regressions(*, lead: Finding, others: Sequence[Comparison], directed: bool, **_: Any) -> str:
    return f"{in_words(lead)} {'Also worse' if directed else 'Also'}: {_listed_changes(others, estimate_name)}."


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
    return network_in_words(comparison.method) if method_named(comparison.method).is_single else comparison.method


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
