"""The certificate of an evaluation in reports: the promise in a sentence, and what the test set shows of it."""

from __future__ import annotations

import math
from collections.abc import Iterator

from bnuq.records.certificate import Certification, Outcome, outcomes
from bnuq.records.evaluation import Result
from bnuq.report import tasks
from bnuq.report.document import Cell, Part, Row, Table, explanation
from bnuq.report.method_names import method_label
from bnuq.report.numbers import named, three_digits, with_error


def sentence(result: Result) -> str:
    """The promise of the chosen method, or why there is none; empty without a certificate."""
    certification = result.certification
    if certification is None:
        return ""
    outcome = next(outcomes(result, certification.method))
    subject = f"Certified at a risk of {_percent(certification.risk)}"
    if not outcome.is_kept:
        return f"Not certified at a risk of {_percent(certification.risk)}: {_why_not(certification, outcome)}"
    if certification.chosen.is_of_width:
        return f"{subject}{_sure(certification)}: {_interval(result, outcome)}."
    threshold, score = outcome.threshold, f"{named(certification.chosen.score)} of {certification.method}"
    rule = f"accept {'all' if math.isinf(threshold) else f'{score} up to {three_digits(threshold)}'}"
    kept = "" if outcome.coverage is None else f", {_percent(outcome.coverage.value)} of the test {_accepted(result)}"
    if certification.chosen.is_expected:
        return f"{subject} in expectation: {rule}{kept}; at most that share of an image is then wrong and accepted."
    errors = ""
    if outcome.errors is not None and outcome.accepted:
        errors = f", with {_percent(outcome.errors / outcome.accepted)} errors"
    return f"{subject}{_sure(certification)}: {rule}{kept}{errors}."


def _sure(certification: Certification) -> str:
    return f", {_percent(certification.confidence)} confidence"


def _accepted(result: Result) -> str:
    return "pixels" if result.task.is_dense else tasks.points_of(result)


def _interval(result: Result, outcome: Outcome) -> str:
    certification = result.certification
    assert certification is not None
    reach, width = three_digits(outcome.threshold), outcome.width
    if certification.chosen.noise is not None:
        mean = "" if width is None else f", on average {three_digits(width.value)}"
        reach = f"{reach} predictive sd{mean}"
    inside = "" if outcome.coverage is None else f"; {_percent(outcome.coverage.value)} of the test points are inside"
    return f"intervals of ± {reach} around the mean of {certification.method}{inside}"


def _why_not(certification: Certification, outcome: Outcome) -> str:
    if outcome.points < outcome.needed:
        units = "groups of validation points" if certification.chosen.group is not None else "validation points"
        return f"that needs at least {outcome.needed:,} {units}, and there are {outcome.points:,}."
    if outcome.smallest_risk is None:
        return f"no score of {certification.method} keeps any promise on {outcome.points:,} validation points."
    return (
        f"no threshold of {certification.method} keeps that on {outcome.points:,} validation points; the smallest risk "
        f"that these points keep is {_percent(outcome.smallest_risk)}."
    )


def _percent(value: float) -> str:
    return f"{100 * value:.3g} %"


# ── the section ──────────────────────────────────────────────────────────────────────────────────────────────────────


def parts(result: Result, *, roomy: bool) -> Iterator[Part]:
    """The promise in a sentence, and a table with those of all methods; nothing without a certificate."""
    certification = result.certification
    if certification is None:
        return
    rows: list[Row] = []
    for method in certification.methods:
        first, *others = outcomes(result, method)
        label = f"{method_label(method, roomy=roomy)} ({named(certification.methods[method].score, roomy=False)})"
        rows.append((label if roomy else method_label(method, roomy=False), _cells(result, first)))
        if method == certification.method:
            rows += [(f"  {certification.each} {each.name}", _cells(result, each)) for each in others]
    is_of_width = certification.chosen.is_of_width
    header = ("half-width" if is_of_width else "threshold", "inside" if is_of_width else "accepted", "errors", "95 %")
    if certification.chosen.is_expected:
        header = ("threshold", "accepted", "wrong and accepted")
    yield explanation(sentence(result))
    yield Table(header, tuple(rows), stacks=True)
    yield explanation(_legend(result))


def _cells(result: Result, outcome: Outcome) -> tuple[Cell, ...]:
    certification = result.certification
    assert certification is not None
    if not outcome.is_kept:
        why = f"needs {outcome.needed:,} points, has {outcome.points:,}"
        if outcome.points >= outcome.needed:
            why = "none" if outcome.smallest_risk is None else f"none; keeps {_percent(outcome.smallest_risk)}"
        empty = (Cell("–"), Cell("–")) if certification.chosen.is_expected else (Cell("–"), Cell("–"), Cell("–"))
        return Cell(why), *empty
    threshold = Cell("all" if math.isinf(outcome.threshold) else three_digits(outcome.threshold))
    if certification.chosen.is_of_width and outcome.width is not None:
        threshold = with_error(outcome.width, None)
    coverage = Cell("–") if outcome.coverage is None else Cell(_percent(outcome.coverage.value))
    if certification.chosen.is_expected:
        return threshold, coverage, Cell("–" if outcome.loss is None else _percent(outcome.loss))
    if outcome.errors is None or not outcome.accepted:
        return threshold, coverage, Cell("–"), Cell("–")
    rate = Cell(_percent(outcome.errors / outcome.accepted))
    ends = "–" if outcome.interval is None else "–".join(f"{100 * end:.3g}" for end in outcome.interval)
    return threshold, coverage, rate, Cell(ends if ends == "–" else f"{ends} %")


def _legend(result: Result) -> str:
    certification = result.certification
    assert certification is not None
    risk, points = _percent(certification.risk), f"{len(certification.chosen.scores):,} validation points"
    if certification.chosen.is_expected:
        return (
            f"Over {points} and a future image, at most {risk} of its pixels are wrong and accepted, in "
            "expectation; shown are the test images."
        )
    what = "the intervals miss" if certification.chosen.is_of_width else "the error rate of accepted future points is"
    text = (
        f"For each method alone: with {_percent(certification.confidence)} confidence over the {points}, {what} at "
        f"most {risk}. Shown is the test set, with the exact interval of its error rate."
    )
    if certification.each:
        text += f" The promises for each {certification.each} hold together with that confidence."
    if certification.chosen.group is not None:
        text += " Points in groups depend on each other: groups are the units, and each counts alike."
    law = next(outcomes(result, certification.method)).law
    if law is not None:
        mean, low, high = map(_percent, law)
        text += (
            f" Over validation sets the exact law of the intervals' coverage has the mean {mean}, and 95 % of it is "
            f"from {low} to {high}."
        )
    return text
