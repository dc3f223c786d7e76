"""The certificate of an evaluation in reports: what is promised, and what the test set shows of it."""

from __future__ import annotations

import math
from collections.abc import Iterator

from bnuq.records.evaluation import Result
from bnuq.records.promises import Promise, outcomes
from bnuq.records.words import SET, percent
from bnuq.report.document import Cell, Part, Row, Table, explanation
from bnuq.report.method_names import method_label
from bnuq.report.numbers import named, three_digits, with_error

_DIGITS = 3  # of measured percents in the table


def parts(result: Result, *, roomy: bool) -> Iterator[Part]:
    """A table with the promises of all methods; nothing without a certificate."""
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
    yield Table(header, tuple(rows), stacks=True)
    yield explanation(_legend(result))


def _cells(result: Result, outcome: Promise) -> tuple[Cell, ...]:
    certification = result.certification
    assert certification is not None
    if not outcome.is_kept:
        why = f"needs {outcome.needed:,} examples, has {outcome.points:,}"
        if outcome.points >= outcome.needed:
            why = "none" if outcome.smallest_risk is None else f"none; keeps {percent(outcome.smallest_risk, SET)}"
        empty = (Cell("–"), Cell("–")) if certification.chosen.is_expected else (Cell("–"), Cell("–"), Cell("–"))
        return Cell(why), *empty
    threshold = Cell("all" if math.isinf(outcome.threshold) else three_digits(outcome.threshold))
    if certification.chosen.is_of_width and outcome.width is not None:
        threshold = with_error(outcome.width, None)
    coverage = Cell("–") if outcome.coverage is None else Cell(percent(outcome.coverage.value, _DIGITS))
    if certification.chosen.is_expected:
        return threshold, coverage, Cell("–" if outcome.loss is None else percent(outcome.loss, _DIGITS))
    if outcome.errors is None or not outcome.accepted:
        return threshold, coverage, Cell("–"), Cell("–")
    rate = Cell(percent(outcome.errors / outcome.accepted, _DIGITS))
    ends = "–" if outcome.interval is None else "–".join(f"{100 * end:.3g}" for end in outcome.interval)
    return threshold, coverage, rate, Cell(ends if ends == "–" else f"{ends} %")


def _legend(result: Result) -> str:
    certification = result.certification
    assert certification is not None
    risk, points = percent(certification.risk, SET), f"{len(certification.chosen.scores):,} validation examples"
    if certification.chosen.is_expected:
        return (
            f"Over {points} and a future image, at most {risk} of its pixels are wrong and accepted, in "
            "expectation; shown are the test images."
        )
    what = "the intervals miss" if certification.chosen.is_of_width else "the error rate of accepted future examples is"
    text = (
        f"For each method alone: with {percent(certification.confidence, SET)} confidence over the {points}, {what} at "
        f"most {risk}. Shown is the test set, with the exact interval of its error rate."
    )
    if certification.each:
        text += f" They hold together with those for each {certification.each}: all share the level."
    every = (outcome for method in certification.methods for outcome in outcomes(result, method))
    if any(not each.is_kept and each.points >= each.needed and each.smallest_risk is not None for each in every):
        text += " none; keeps R: no threshold can promise this risk, and the smallest that one can is R."
    if certification.chosen.group is not None:
        text += " Examples in groups depend on each other: groups are the units, and each counts alike."
    return text
