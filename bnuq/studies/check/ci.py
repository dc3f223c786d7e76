"""A check as CI services show it: JUnit XML with a test case an estimate, and lines for the log of GitHub Actions.

Both take a verdict, or the message of a check that could not be carried out, so that no earlier outcome stays.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Literal

from bnuq.catalogue import advised, noted
from bnuq.gate.records import CheckVerdict, EstimateComparison, Floor
from bnuq.report.numbers import count
from bnuq.report.sanitize import printable
from bnuq.studies.check.findings import (
    NOTHING_CHECKED,
    change,
    findings,
    headline,
    judgement,
    reasons,
    requirement,
    subject,
)

if TYPE_CHECKING:
    from xml.etree import ElementTree

_MOST_SHOWN = 10  # of one kind that GitHub shows for a step
_Kind = Literal["error", "warning", "notice"]

# Source: https://docs.github.com/actions/reference/workflow-commands-for-github-actions, and the escapes of
# @actions/core, which the runner takes back.
_IN_MESSAGE = {"%": "%25", "\r": "%0D", "\n": "%0A"}
_MESSAGE = str.maketrans(_IN_MESSAGE)
_PROPERTY = str.maketrans(_IN_MESSAGE | {":": "%3A", ",": "%2C"})


# ── JUnit XML ────────────────────────────────────────────────────────────────────────────────────────────────────────


def junit(outcome: CheckVerdict | str) -> bytes:
    """A JUnit XML document in UTF-8 with one test suite.

    Its test cases are the gated comparisons, those whose regression was accepted as skipped, and the requirements; of
    a check that was not carried out its error alone. What XML 1.0 has no place for (control characters, lone
    surrogates) is written out.
    """
    if isinstance(outcome, str):
        why = reasons(outcome)
        error = _element("error", *why, message=why[0], type="refused")
        return _document([_case("bnuq", "check", error)], time="0")
    properties = _element("properties")
    properties.extend(_element("property", name=name, value=value) for name, value in _properties(outcome).items())
    cases = [*(_comparison(comparison, outcome) for comparison in outcome.of_gated), *map(_floor, outcome.floors)]
    time = f"{outcome.seconds:.3f}" if math.isfinite(outcome.seconds) else "0"
    return _document([properties, *cases, _element("system-out", *_texts(outcome))], time=time)


def _document(parts: Sequence[ElementTree.Element], *, time: str) -> bytes:
    from xml.etree import ElementTree  # late, as below: only --junit needs it

    cases = [part for part in parts if part.tag == "testcase"]
    kinds = Counter(outcome.tag for case in cases for outcome in case)
    counts = {"tests": len(cases), "failures": kinds["failure"], "errors": kinds["error"], "skipped": kinds["skipped"]}
    attributes = {"name": "bnuq check", **{key: str(number) for key, number in counts.items()}, "time": time}
    suites, suite = _element("testsuites", **attributes), _element("testsuite", **attributes)
    suites.append(suite)
    suite.extend(parts)
    ElementTree.indent(suites)
    return ElementTree.tostring(suites, encoding="utf-8", xml_declaration=True) + b"\n"


def _element(tag: str, *lines: str, **attributes: str) -> ElementTree.Element:
    """Every character is one that XML 1.0 has a place for."""
    from xml.etree import ElementTree

    element = ElementTree.Element(tag, {name: printable(value, lines=False) for name, value in attributes.items()})
    element.text = "\n".join(printable(line, lines=False) for line in lines)
    return element


def _case(group: str, name: str, outcome: ElementTree.Element) -> ElementTree.Element:
    # A time of its own is what some readers insist on; the comparisons are made all at once.
    case = _element("testcase", classname=group, name=name, time="0")
    case.append(outcome)
    return case


def _comparison(comparison: EstimateComparison, verdict: CheckVerdict) -> ElementTree.Element:
    group, _, name = comparison.address.rpartition(".")
    text = change(comparison, verdict)
    name += " (slope)" if comparison.slope else ""
    fails = comparison.outcome == "worse" or (comparison.outcome == "inconclusive" and verdict.inconclusive_fails)
    if fails and not verdict.failed:
        outcome = _element("skipped", message=f"Accepted: {text}")
    elif fails:
        kind = "regression" if comparison.outcome == "worse" else "inconclusive"
        outcome = _element("failure", subject(comparison), comparison.address, message=text, type=kind)
    else:
        outcome = _element("system-out", f"{judgement(comparison)}: {text}")
    return _case(f"bnuq.{group}", name, outcome)


def _floor(floor: Floor) -> ElementTree.Element:
    group, _, metric = floor.address.rpartition(".")
    text = requirement(floor)
    failure = _element("failure", text, message=text, type="requirement")
    outcome = _element("system-out", text) if floor.passed else failure
    return _case(f"bnuq.{group}", f"{metric} {floor.relation} {floor.bound:g}", outcome)


def _texts(verdict: CheckVerdict) -> Iterator[str]:
    yield headline(verdict)
    yield from findings(verdict)
    yield from (f"Warning: {text} [{code}]" for text, code, _ in advised(verdict.findings))
    yield from (f"Note: {note}" for note in noted(verdict.findings))


def _properties(verdict: CheckVerdict) -> dict[str, str]:
    properties = {"bnuq": verdict.bnuq, "verdict": headline(verdict)}
    for name, side in (("current", verdict.current), ("baseline", verdict.baseline)):
        if side is None:
            continue
        values = {
            "": "" if side.path is None else str(side.path),
            ".checkpoint": side.checkpoint,
            ".sha256": side.checkpoint_sha256,
            ".time": side.time,
            ".samples": str(side.samples),
            ".batch_size": "" if side.batch_size is None else str(side.batch_size),
            ".seed": str(side.seed),
        }
        properties |= {f"{name}{key}": value for key, value in values.items() if value}
    return properties


# ── the log of GitHub Actions ────────────────────────────────────────────────────────────────────────────────────────


def annotations(outcome: CheckVerdict | str) -> Iterator[str]:
    """Workflow commands, one a line: an error for each broken requirement and each regression, worst first, a warning
    for each warning, and a notice where the check passed. A regression that was accepted is a warning.

    They are ten at most, as many as GitHub shows of a kind: where there are more, the last one counts the rest. No
    text ends its line or starts its own command.
    """
    if isinstance(outcome, str):
        yield _line("error", f"bnuq check: {NOTHING_CHECKED}", " ".join(reasons(outcome)))
        return
    broken = [(floor.address, requirement(floor)) for floor in outcome.broken]
    worse = [(subject(comparison), change(comparison, outcome)) for comparison in outcome.failing]
    warned = [(code, text) for text, code, _ in advised(outcome.findings)]
    errors = [*_lines("error", [*broken, *worse] if outcome.failed else [], noun="failure", most=_MOST_SHOWN - 1)]
    yield from errors
    left = _MOST_SHOWN - max(1, len(errors))
    yield from _lines("warning", warned if outcome.failed else [*worse, *warned], noun="warning", most=left)
    if not outcome.failed:
        yield _line("notice", "bnuq check", f"{headline(outcome)}.")


def _lines(kind: _Kind, messages: Sequence[tuple[str, str]], *, noun: str, most: int) -> Iterator[str]:
    shown = messages if len(messages) <= most else messages[: most - 1]
    yield from (_line(kind, f"bnuq check: {title}", message) for title, message in shown)
    if hidden := len(messages) - len(shown):
        more = f"And {count(hidden, f'more {noun}')}; see the report in the log for all of them."
        yield _line(kind, "bnuq check", more)


def _line(kind: _Kind, title: str, message: str) -> str:
    """One workflow command."""
    title, message = (printable(text, lines=False) for text in (title, message))
    return f"::{kind} title={title.translate(_PROPERTY)}::{message.translate(_MESSAGE)}"
