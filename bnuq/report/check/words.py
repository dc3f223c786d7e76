"""A verdict of `bnuq check` in words: of the whole, of each estimate, of each bound; for every kind of report alike."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence

from bnuq.config import SINGLE_SAMPLE_METHODS
from bnuq.gate.checking import LEVEL
from bnuq.gate.compatibility import listed
from bnuq.gate.records import BOUNDS, NORMALIZED, Comparison, Floor, Pairing, Verdict
from bnuq.metrics.registry import metric_of
from bnuq.report.networks import of_whom
from bnuq.report.numbers import UNITS, count, decimals, named, number, signed

_SENTENCES = 12  # about what got worse; the table tells the rest
_NAMED = 4  # estimates that a sentence names beside the one that it is about
_APART = 2  # estimates of one method and set that each get a sentence of their own


# ── the whole ────────────────────────────────────────────────────────────────────────────────────────────────────────


def headline(verdict: Verdict) -> str:
    """The verdict in one line, its first word telling it."""
    if verdict.accepted is None:
        return _headline(verdict)
    if verdict.comparisons:
        return f"{_headline(verdict)}; accepted as the new baseline"
    required = f"; {_met(verdict)}" if verdict.floors and not verdict.broken else ""
    return f"Accepted as the new baseline: nothing was compared{required}"


def _headline(verdict: Verdict) -> str:
    if verdict.worse:
        text = f"Worse: {_of_gated(len(verdict.worse), verdict.gated)} {_which_way(verdict.worse)}"
        are = "is" if len(verdict.broken) == 1 else "are"
        return f"{text}, and {_broken(verdict)} {are} not met" if verdict.broken else text
    who = (
        "the only gated estimate has not got" if verdict.gated == 1 else f"none of {verdict.gated} gated estimates got"
    )
    compared = f"{who} worse by more than its tolerance and chance"
    if verdict.broken:
        return f"Not met: {_broken(verdict)}" + (f"; {compared}" if verdict.gated else "")
    if verdict.gated:
        return f"No regression: {compared}" + (f", and {_met(verdict)}" if verdict.floors else "")
    none = "nothing was compared" if verdict.baseline is None else "no estimate was gated"
    return f"Passed: {_met(verdict)}; {none}" if verdict.floors else f"Nothing was checked: {none}"


def _met(verdict: Verdict) -> str:
    return (
        "the only requirement is met" if len(verdict.floors) == 1 else f"all {len(verdict.floors)} requirements are met"
    )


def _of_gated(some: int, gated: int) -> str:
    return "the only gated estimate" if some == gated == 1 else f"{some} of {count(gated, 'gated estimate')}"


def _which_way(worse: Sequence[Comparison]) -> str:
    ways = {one.direction != "none" for one in worse}
    way = "got worse" if ways == {True} else "moved" if ways == {False} else "got worse or moved"
    return f"{way} by more than {'its' if len(worse) == 1 else 'their'} tolerance and chance"


def _broken(verdict: Verdict) -> str:
    asked = len(verdict.floors)
    return "the only requirement" if asked == 1 else f"{len(verdict.broken)} of {asked} requirements"


def in_short(verdict: Verdict) -> Iterator[str]:
    """What the verdict rests on, a sentence each, most severe first."""
    groups = list(_groups(verdict.worse))
    for group in groups[:_SENTENCES]:
        yield from _group_in_words(group, verdict)
    if rest := sum(map(len, groups[_SENTENCES:])):
        yield f"{count(rest, 'more estimate')} got worse; see the table below."
    yield from (floor_in_words(floor) for floor in verdict.broken)
    better = [one for one in verdict.comparisons if one.outcome == "better"]
    if verdict.comparisons and all(one.change == 0 for one in verdict.comparisons):
        yield unchanged(len(verdict.comparisons))
    elif verdict.gated and not verdict.worse:
        yield _clearest(verdict)
    if better:
        yield f"{count(len(better), 'estimate')} got better: {_some(better, _and_of_whom)}."


def unchanged(estimates: int) -> str:
    """That so many estimates are to the last bit what they were."""
    if estimates == 1:
        return "The only estimate is exactly as before: its change is 0."
    return f"All {estimates} estimates are exactly as before: every change is 0."


def _clearest(verdict: Verdict) -> str:
    """The step for the worse that chance explains least, of those that do not fail the check."""
    for one in verdict.comparisons:
        if one.outcome == "same" and one.harm > 0:
            text = f"{_estimate_of_whom(one)} {_moved(one)} ({_details(one, verdict.gated)})"
            return f"The clearest worsening, {_why_not(one)}: {text}."
    return "No gated estimate changed for the worse."


def _why_not(one: Comparison) -> str:
    """Why a step for the worse does not fail the check."""
    return judged(one).partition(", ")[2] or "within tolerance and error"


def _groups(worse: Iterable[Comparison]) -> Iterator[list[Comparison]]:
    """Those of one method and one set together, in the order of the worst of each."""
    found: dict[tuple[str, str], list[Comparison]] = {}
    for one in worse:
        found.setdefault(_home(one), []).append(one)
    yield from found.values()


def _home(one: Comparison) -> tuple[str, str]:
    of_test = one.set == NORMALIZED or one.set.startswith(BOUNDS)
    return one.method, "test" if of_test else one.set


def _group_in_words(group: list[Comparison], verdict: Verdict) -> Iterator[str]:
    if len(group) <= _APART:
        yield from (f"{told(one, verdict)}." for one in group)
        return
    lead = next((one for one in group if one.metric == "auroc"), group[0])
    others = [one for one in group if one is not lead]
    if lead.score:
        gated = sum(_home(one) == _home(lead) and one.outcome != "not gated" for one in verdict.comparisons)
        way = "got worse" if all(one.direction != "none" for one in others) else "got worse or moved"
        yield f"{told(lead, verdict)}; {len(others)} more of its {gated} gated estimates on that set {way}."
    else:
        also = "Also worse" if all(one.direction != "none" for one in others) else "Also"
        yield f"{told(lead, verdict)}. {also}: {_some(others, _from_to)}."


def _some(estimates: Sequence[Comparison], words: Callable[[Comparison], str]) -> str:
    rest = len(estimates) - _NAMED
    shown = ", ".join(map(words, estimates[:_NAMED] if rest > 0 else estimates))
    return f"{shown}, and {rest} more" if rest > 0 else shown


def _from_to(one: Comparison) -> str:
    before, now = before_and_now(one)
    return f"{estimate_name(one)} {before} → {now}{UNITS.get(one.unit, '')}"


def _and_of_whom(one: Comparison) -> str:
    before, now = before_and_now(one)
    return f"{_estimate_of_whom(one)} {before} → {now}{UNITS.get(one.unit, '')}"


# ── one estimate ──────────────────────────────────────────────────────────────────────────────────────────────────────


def told(one: Comparison, verdict: Verdict) -> str:
    """What became of an estimate: what that means, then the numbers with their error; without a full stop."""
    details = _details(one, verdict.gated)
    known = metric_of(one.metric)
    meaning = {"worse": known.worse, "better": known.better}.get(one.outcome)
    if not meaning or one.direction == "none":
        moved = f"moved by more than its tolerance: it {_moved(one)}" if judged(one) == "moved" else _moved(one)
        text = f"{_estimate_of_whom(one)} {moved} ({details})"
    else:
        text = meaning.format(who=_who(one), where=_where(one), truth=_truth(verdict))
        text = f"{text}: {estimate_name(one)} {_moved(one)} ({details})"
    return text if text.startswith(one.method) else text[0].upper() + text[1:]


def subject(one: Comparison) -> str:
    """The estimate and what became of it, in a few words."""
    return f"{_estimate_of_whom(one)}: {judged(one)}"


def judged(one: Comparison) -> str:
    """What is held of a change, in words; an estimate without a direction moves, and does not get worse."""
    worse = "moved" if one.direction == "none" else "worse"
    if one.outcome != "same":
        return worse if one.outcome == "worse" else one.outcome
    if one.tolerance is not None and one.harm > one.tolerance:
        return f"{worse}, within chance" if one.se is not None else f"{worse}, its error not known"
    if one.harm > 0 and one.p_adjusted is not None and one.p_adjusted < LEVEL:
        return f"{worse}, within tolerance"
    return "same"


def estimate_name(one: Comparison, *, roomy: bool = True) -> str:
    """PLL; AUROC by mutual information; PLL of the best confidence."""
    name = named(one.metric, roomy=roomy)
    if one.score:
        return f"{name} by {named(one.score)}"
    return f"{name} of the {_bound(one.set)}" if one.set.startswith(BOUNDS) else name


def place(set_name: str) -> str:
    """Where estimates are from: test set; svhn; constant uncertainty."""
    if set_name.startswith(BOUNDS):
        return _bound(set_name)
    return {"test": "test set", "validation": "validation set", NORMALIZED: "test set"}.get(set_name, set_name)


def _bound(set_name: str) -> str:
    bound = set_name.removeprefix(BOUNDS)
    return {"constant": "constant uncertainty", "optimum": "best possible uncertainty"}.get(bound, f"bound {bound}")


def _who(one: Comparison) -> str:
    return of_whom(one.method) if one.method in SINGLE_SAMPLE_METHODS else one.method


def _where(one: Comparison) -> str:
    _, home = _home(one)
    return f"the {home} set" if home in ("test", "validation") else home


def _estimate_of_whom(one: Comparison) -> str:
    where = "" if one.set == NORMALIZED else f" on {_where(one)}"
    return f"{estimate_name(one)} of {_who(one)}{where}"


def _truth(verdict: Verdict) -> str:
    regression = any(one.metric in ("rmse", "mae", "crps", "tau") for one in verdict.comparisons)
    return "targets" if regression else "labels"


def _moved(one: Comparison) -> str:
    before, now = before_and_now(one)
    unit = UNITS.get(one.unit, "")
    if math.isnan(one.current) or math.isnan(one.baseline):
        pairs = zip((before, now), _values(one), strict=True)
        said = ["not a number" if math.isnan(value) else f"{text}{unit}" for text, value in pairs]
        return f"is {said[1]}, and was {said[0]}"
    if one.current == one.baseline:
        return f"is still {now}{unit}"
    return f"{'rose' if one.current > one.baseline else 'fell'} from {before} to {now}{unit}"


def _values(one: Comparison) -> tuple[float, float]:
    return one.baseline, one.current


def _details(one: Comparison, gated: int) -> str:
    """The change with its error, what is tolerated, and how likely chance is to do as much."""
    said = []
    if math.isfinite(one.change):
        change, error = changed(one)
        said.append(f"{change} ± {error}" if error else f"{change}, its error not known" if one.se is None else change)
    if one.tolerance is not None:
        said.append(f"tolerance {amount(one.tolerance)}{UNITS.get(one.unit, '')}")
    if one.p_value is not None and (one.se is not None or one.harm > 0):
        among = "" if one.p_adjusted is None else f", {chance(one.p_adjusted)} among {gated}"
        said.append(f"p {'' if one.p_value < _SMALLEST else '= '}{chance(one.p_value)}{among}")
    return "; ".join(said)


# ── numbers ──────────────────────────────────────────────────────────────────────────────────────────────────────────

_SMALLEST = 0.0001  # chance that is told as such


def changed(one: Comparison) -> tuple[str, str]:
    """The change, and its error where it has one to tell; a change of nothing is "0", not so many decimals of it."""
    digits = _digits(one)
    change = "0" if one.change == 0 else signed(one.change, digits)
    if one.se is None or math.isnan(one.se) or (one.se == 0 and one.change == 0):
        return change, ""
    return change, "0" if one.se == 0 else number(one.se, digits)


def before_and_now(one: Comparison) -> tuple[str, str]:
    """The estimate of the baseline and the current one, with as many decimals as it takes to tell them apart."""
    digits = _digits(one)
    while digits < 9 and one.baseline != one.current and _same(one, digits):
        digits += 1
    return number(one.baseline, digits), number(one.current, digits)


def _same(one: Comparison, digits: int) -> bool:
    return number(one.baseline, digits) == number(one.current, digits)


def _digits(one: Comparison) -> int:
    if one.unit == "percent":
        return 2
    return max(0, decimals(_values(one)) - 1) if "target unit" in one.unit else 4


def amount(value: float) -> str:
    """Three digits of something that is not below 0, without noughts at its end."""
    return f"{value:.3g}"


def chance(p: float) -> str:
    """A p-value with two digits, three where two would not tell on which side of the level it is."""
    if p < _SMALLEST:
        return f"< {_SMALLEST:.4f}"
    return f"{p:.3g}" if 0.9 * LEVEL < p < 1.1 * LEVEL else f"{p:.2g}"


# ── one requirement, and what is paired ──────────────────────────────────────────────────────────────────────────────


def floor_in_words(floor: Floor) -> str:
    """mcbn.sets.test.pll is −0.3420 ± 0.0090, and is required to be at least −0.3: not met."""
    least = "at least" if floor.relation == ">=" else "at most"
    bound = f"{floor.bound:.6g}".replace("-", "−")
    return f"{floor.address} is {_held(floor)}, required to be {least} {bound}: {'' if floor.passed else 'not '}met."


def _held(floor: Floor) -> str:
    if math.isnan(floor.value):
        return "not a number"
    digits = 4 if abs(floor.value) < 10 else max(0, decimals([floor.value]))
    while digits < 9 and floor.value != floor.bound and round(floor.value, digits) == round(floor.bound, digits):
        digits += 1  # a value that is rounded to its bound looks as if it were met
    error = "" if floor.se is None or not math.isfinite(floor.value) else f" ± {number(floor.se, digits)}"
    return f"{number(floor.value, digits)}{error}"


def paired(pairing: Pairing) -> str:
    """What the two results share."""
    said = [
        f"the points of {listed(pairing.points)}" if pairing.points else "",
        f"the draws of {listed(pairing.draws)}" if pairing.draws else "",
    ]
    return "; ".join(filter(None, said)) or "nothing"


def not_paired(pairing: Pairing, comparisons: Iterable[Comparison]) -> str:
    """What they do not share, and why; "" where they share all."""
    sets = dict.fromkeys(_home(one)[1] for one in comparisons)
    other = [name for name in sets if name not in pairing.points]
    whys: dict[str, list[str]] = {}
    for method, why in pairing.why_not:
        whys.setdefault(why, []).append(method)
    said = [f"the points of {listed(other)}: they are different points"] if other else []
    return "; ".join([*said, *(f"the draws of {listed(methods)}: {why}" for why, methods in whys.items())])
