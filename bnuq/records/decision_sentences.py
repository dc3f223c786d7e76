"""The sentences of decisions, for readers who know no statistics."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from bnuq.findings import Catalogue, Entry, all_of
from bnuq.methods import DETERMINISTIC, POPULATION, method_named
from bnuq.metrics.registry import metric_of

_NETWORKS = {DETERMINISTIC: "the network as it is", POPULATION: "the network with corrected BatchNorm statistics"}
_CORRECT = (
    "The BatchNorm statistics do not fit the data: correct the network (`bnuq precise-bn`) and evaluate it again."
)
_SHOWN = 2  # OOD sets by name
MEASURED, SET = 2, 6  # digits of percents: of a measured share, and of one that was set, such as a risk
_MOST_DECIMALS = 9
_PROMISES = "Measured, not promised; `--risk 0.05` promises."


def _use(calibrated: str = "", ece: Sequence[float] = (), **values: Any) -> str:
    text = _used(**values)
    if calibrated not in _CALIBRATED:
        return text
    digits = next(digits for digits in range(3, 17) if f"{ece[0]:.{digits}f}" != f"{ece[2]:.{digits}f}" or digits == 16)
    value, high = (f"{ece[end]:.{digits}f}" for end in (0, 2))
    return f"{text} {_CALIBRATED[calibrated]} (off by {value} on average; by chance up to {high})."


def _used(
    method: str,
    passes: int,
    temperatures: Sequence[float],
    most_passes: int,
    points: int,
    gain: Mapping[str, Any] | None,
    only_by: Sequence[tuple[str, str]],
    open_by: Sequence[tuple[str, str]],
    files: int = 0,
    metric: str = "",
    alike: Sequence[str] = (),
    but: Sequence[Mapping[str, Any]] = (),
    also: Sequence[str] = (),
    **_: Any,
) -> str:
    lost = of_others(but)
    text = f"{f'By {plain(metric)} use' if lost and files < 2 and gain is None else 'Use'} "
    text += _prediction(method, passes, temperatures)
    if method_named(method).plain.name == POPULATION:
        text = f"{_CORRECT} Then use it{_with(method, passes, temperatures)}"
    if gain is not None:
        so = f", and so {'is' if len(also) == 1 else 'are'} {all_of([*map(plain, also)])}" if also else ""
        return f"{text}: its {_better(gain)} than that of the best single pass{so}{lost}."
    perhaps = f" By {all_of([*map(plain, also)])} they may be better, but not significantly." if also else ""
    if only_by:
        return f"{text}{lost}. {most_passes} samples an example are better only by {_joined(only_by)}.{perhaps}"
    if files == 1:
        is_plain = not (but or method_named(method).recalibration)
        return text + (f" as it is: no recalibration has a better {plain(metric)}." if is_plain else f"{lost}.")
    if files:
        same = f" {all_of(alike)} may be as good." if alike else ""
        return f"{text}, the best of {files} files by {plain(metric)}{lost}.{same}"
    if most_passes == 1:
        return f"{text}{lost}. No method of several samples was tried."
    undecided = f" By {_joined(open_by)} that is undecided." if open_by else ""
    shown = f"{points:,} examples could show{' with significance' if also else ''}"
    return f"{text}{lost}. Averaging {most_passes} samples gives no gain that {shown}.{perhaps}{undecided}"


def of_others(but: Sequence[Mapping[str, Any]], where: str = "") -> str:
    """What others are better by, by the one that is, and `where`."""
    found: dict[str, list[str]] = {}
    for each in but:
        found.setdefault(each["against"], []).append(f"by {_size(each)} in {plain(each['metric'])}")
    return "".join(f"; but {where}{name} is better {all_of(sizes)}" for name, sizes in found.items())


def _prediction(method: str, passes: int, temperatures: Sequence[float]) -> str:
    plain, with_these = method_named(method).plain.name, _with(method, passes, temperatures)
    comma = "," if plain in _NETWORKS and with_these else ""
    return f"{_NETWORKS.get(plain, plain)}{comma}{with_these}"


def _with(method: str, passes: int, temperatures: Sequence[float]) -> str:
    """What a prediction needs beside the network, with the word before it; empty if nothing."""
    recalibration, ways = method_named(method).recalibration, []
    if passes > 1:
        ways.append(f"{passes} samples")
    if recalibration == "vector":
        ways.append("the logit of each class scaled and shifted")
    elif recalibration:
        mean = sum(temperatures) / len(temperatures) if temperatures else None
        ways.append(f"its logits divided by {'a temperature' if mean is None else _three(mean)}")
    return f" with {all_of(ways)}" if ways else ""


def _better(gain: Mapping[str, Any]) -> str:
    return f"{plain(gain['metric'])} is better by {_size(gain)}"


def plain(metric: str) -> str:
    """A metric without abbreviation."""
    title = metric_of(metric).title.partition(",")[0]
    return title if title[:2].isupper() else title[:1].lower() + title[1:]


def _joined(by: Sequence[tuple[str, str]]) -> str:
    """Metrics, with those of sets as their separation."""
    names = [plain(metric) for metric, _ in by if metric != "auroc"]
    sets = [name for metric, name in by if metric == "auroc"]
    if sets:
        names.append(f"the separation of {sets[0] if len(sets) == 1 else f'{len(sets)} foreign sets'}")
    return all_of(names)


def _size(gain: Mapping[str, Any]) -> str:
    """A difference with its error."""
    digits = metric_of(gain["metric"]).digits
    values = (abs(gain["difference"]), gain["se"])
    return " ± ".join(f"{value:.3g}" if digits is None else f"{value:.{digits}f}" for value in values)


_CALIBRATED = {
    "indistinguishable": "Its confidence agrees with how often it is right",
    "not": "Its confidence does not agree with how often it is right",
}
_REASONS = {
    "reference": "the network's BatchNorm statistics are not those of its data; put that right first (see the warning)",
    "temperature": "no temperature was fitted, which may gain as much; fit one (`--calibrate cross`)",
    "errors": "there are too few examples for the error of a comparison",
}


def _undecided(about: str, **values: Any) -> str:
    return {"use": _undecided_use, "defer": _not_promised, "foreign": _not_recognised}[about](**values)


def _undecided_use(
    method: str,
    passes: int,
    temperatures: Sequence[float],
    most_passes: int,
    reason: str,
    samples: Sequence[int] = (),
    gain: Mapping[str, Any] | None = None,
    comparisons: int = 0,
    points_needed: float = math.nan,
    settings: Sequence[str] = (),
    suggest: str | None = None,
    is_compared: bool = True,
    accuracy: float = math.nan,
    interval: Sequence[float] = (math.nan, math.nan),
    chance: float = math.nan,
    points: int = 0,
    files: int = 0,
    **_: Any,
) -> str:
    if reason == "constant":
        return "First check the outputs: they are the same for all examples."
    if reason == "at-chance":
        of_network = ["`--outputs`"] if files else ["`arch`", "`normalize`", "the weights"]
        checked = all_of(["the labels", "the order of the classes", *of_network])
        return (
            f"First check {checked}: {percent(accuracy)} of {points:,} examples are right, no better than chance "
            f"({percent(chance)} are of the most frequent class). Nor is the log-likelihood, whatever temperature "
            "was tried."
        )
    if reason == "few-points":
        low, high = map(percent, interval)
        return (
            f"Undecided whether the predictions are good: {points:,} examples are too few to tell. {percent(accuracy)} "
            f"of them are right; of all it may be {low} to {high}."
        )
    if reason == "pipeline":
        tries = "" if suggest is None else f"; `{suggest}` tries the usual ones"
        differ = "the network's BatchNorm statistics are not those of these data"
        why = differ if is_compared else "it could not be compared with the network's BatchNorm statistics"
        return (
            f"First check the pipeline ({all_of([f'`{name}`' for name in settings])}{tries}): {why}. If it is right, "
            "correct the network (`bnuq precise-bn`). Then evaluate again."
        )
    text = f"Undecided whether {most_passes} samples an example are worth it:"
    until = f"Until then use {_prediction(method, passes, temperatures)}."
    if gain is None:
        if not samples:
            return f"{text} {_REASONS[reason]}."
        return f"{text} {samples[0]} are too few to tell; take at least {samples[1]}. {until}"
    return (
        f"{text} with {gain['method']} the {_better(gain)}, not significantly among {comparisons} comparisons; about "
        f"{_about(points_needed)} examples in all would decide. {until}"
    )


def _defer(
    what: str,
    method: str,
    used: str,
    score: str,
    threshold: float,
    deferred: float | None,
    error: float | None,
    before: float | None,
    width: float | None,
    risk: float | None,
    confidence: float | None,
    points: int,
    parts: tuple[str, int, int] | None = None,
    of: str = "",
    temperature: float | None = None,
    several: bool = False,
    refuted: bool = False,
    off: str = "",
) -> str:
    if risk is None:
        promise = _PROMISES
    else:
        sure = "on average over images" if confidence is None else f"with {percent(confidence, SET)} confidence"
        refutes = ", which the test set refutes (see the warning)" if refuted else ""
        promise = f"Promised: at most {percent(risk, SET)} {sure}{refutes}{_of_parts(parts)}."
    if what == "intervals":
        expected = f", not 5 %: σ is too {off}" if off else ""
        missed = "" if error is None else f": {percent(error)} of the targets lie outside{expected}"
        reach = _interval(score, threshold, width, is_promised=risk is not None)
        return f"State predictions {_whose(method, used)}with an interval of {reach}{missed}. {promise}"
    nothing_left = deferred == 0 or math.isinf(threshold)
    share = "the" if deferred is None else f"the {percent(deferred)}"
    subject = f"{share} least certain {'examples' if what in ('labels', 'points') else what} to a person"
    rule = f"({_of_score(score, method, used, of, temperature, several)} above {_three(threshold)})"
    units = {"images": "pixels in the rest", "pixels": "rest", "labels": "labels of the rest"}.get(what, "rest")
    wrong = {"images": "pixels", "points": "examples"}.get(what, what)
    before_is_known = before is not None and error is not None
    if before == 0:
        return f"Leave nothing to a person: none of {points:,} examples was wrong. {promise}"
    if before_is_known and (error >= before or percent(error) == percent(before)):
        return f"Leaving {subject} {rule} does not lower the share of wrong {wrong}, {percent(before)}. {promise}"
    every = "examples" if what == "points" else what
    leave = f"Leave nothing to a person: of all {every}" if nothing_left else f"Leave {subject} {rule}: of the {units}"
    if error is None:
        return f"{leave.partition(':')[0]}. {promise}"
    instead = "" if before is None else f", instead of {percent(before)}"
    if error == 0 and deferred is not None:  # the rule of three
        return f"{leave}, none was wrong (up to {percent(3 / (points * (1 - deferred)))} may be){instead}. {promise}"
    return f"{leave}, {percent(error)} are wrong{instead}. {promise}"


def _interval(score: str, threshold: float, width: float | None, *, is_promised: bool) -> str:
    if score == "absolute_error":
        return f"± {_three(width)}{'' if is_promised else ' on average'}"
    return f"± {_three(width)} on average ({_three(threshold)} σ)"


def _whose(method: str, used: str) -> str:
    return "" if method == used else f"of {method} "


def _of_score(score: str, method: str, used: str, of: str, temperature: float | None, several: bool) -> str:
    """A score, and whose it is where that is not clear: of other outputs than those that are used."""
    is_raw = method != used and method == method_named(used).plain.name
    text = f"{metric_of(score).label} {'' if is_raw else _whose(method, used)}".rstrip()
    if of and (is_raw or temperature is not None):
        scaled = of if temperature is None else f"{of} / {_three(temperature)}"
        text = f"entropy of {'the mean of ' * several}softmax({scaled})"
    return f"{text}, before recalibration," if is_raw else text


def _not_promised(
    method: str,
    risk: float,
    points: int,
    points_needed: int,
    smallest_risk: float | None,
    units: str,
    parts: tuple[str, int, int] | None = None,
    **_: Any,
) -> str:
    units = units.replace("points", "examples")
    text = (
        f"Undecided what to defer: a risk of {percent(risk, SET)} cannot be promised {_by(method)}on {points:,} {units}"
    )
    if points < points_needed:
        return f"{text}; it needs at least {points_needed:,}{_of_parts(parts)}."
    smallest = "" if smallest_risk is None else f"; the smallest that can is {percent(smallest_risk, SET)}"
    return f"{text}{smallest}{_of_parts(parts)}."


def _of_parts(parts: tuple[str, int, int] | None) -> str:
    """Of how many classes or groups alone the promise can be made, where it was asked of each."""
    if parts is None:
        return ""
    each, kept, of = parts
    rest = "" if kept == of else "; `--full` says what the others need"
    return f"; promised of {kept} of {of} {'classes' if each == 'class' else 'groups'} alone{rest}"


def _foreign(
    method: str,
    score: str,
    tried: int,
    crossfitted: bool,
    threshold: float,
    false_alarms: float,
    caught: Mapping[str, float],
    **_: Any,
) -> str:
    shares = [f"{percent(share)} of {name}" for name, share in caught.items()]
    if len(caught) > _SHOWN:
        ends = " to ".join(percent(end(caught.values())) for end in (min, max))
        shares = [f"{ends} of the examples of {len(caught)} foreign sets"]
    label = metric_of(score).label
    chosen = (
        "" if crossfitted or tried < 2 else f" Chosen among {tried} scores on the same data: expect less elsewhere."
    )
    return (
        f"{'An' if label[0] in 'aeiou' else 'A'} {label}{_of(method)} above {_three(threshold)} flags "
        f"{all_of(shares)}, and wrongly {percent(false_alarms)} of the test examples.{chosen}"
    )


def _not_recognised(method: str, score: str, tried: int, aurocs: Mapping[str, float], **_: Any) -> str:
    names = all_of(aurocs, "or") if len(aurocs) <= _SHOWN else f"any of the {len(aurocs)} foreign sets"
    best = f", the best of {tried} scores," if tried > 1 else ""
    return (
        f"Undecided how to recognise {names}: the {metric_of(score).label}{_of(method)}{best} ranks a foreign example "
        f"above a test example in {percent(max(aurocs.values()))} of all pairs, which is not clearly more than chance "
        "(50 %)."
    )


def _of(method: str) -> str:
    return "" if method == DETERMINISTIC else f" of {method}"


def _by(method: str) -> str:
    return "" if method == DETERMINISTIC else f"by {method} "


def _three(value: float | None) -> str:
    if value is None or not math.isfinite(value):
        return str(value)
    digits = next((digits for digits in range(3, 10) if float(f"{value:.{digits}g}") == value), 3)
    text = f"{value:.{digits}g}" if abs(value) < 1000 else f"{value:,.0f}"
    return text.replace("-", "−")


def percent(share: float, digits: int = MEASURED) -> str:
    """So many digits, and all before the decimal point; more where 0 % or 100 % would be said that is not exact. A dash
    where the share is not known."""
    if math.isnan(share):
        return "–"
    value, decimals = 100 * share, digits - 2 + (abs(share) < 0.1)
    text = f"{value:.{decimals}f}"
    while float(text) in (0, 100) and float(text) != value and decimals < _MOST_DECIMALS:
        decimals += 1
        text = f"{value:.{decimals}f}"
    return f"{text.rstrip('0').rstrip('.') if '.' in text else text} %"


def _about(points: float) -> str:
    """A number of points to two digits."""
    digits = max(0, math.floor(math.log10(points)) - 1)
    return f"{round(points, -digits):,.0f}"


DECISIONS: Catalogue = {
    "use": Entry(_use),
    "defer": Entry(_defer),
    "foreign": Entry(_foreign),
    "undecided": Entry(_undecided),
}
