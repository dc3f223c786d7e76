"""A verdict of `bnuq check` as JUnit XML, which CI services show beside the tests: a test case an estimate."""

from __future__ import annotations

import math
from xml.etree import ElementTree

from bnuq.gate.records import Comparison, Floor, Side, Verdict
from bnuq.report.check.words import floor_in_words, headline, in_short, judged, subject, told
from bnuq.report.remedies import advised, noted
from bnuq.report.sanitize import printable


def junit(verdict: Verdict) -> bytes:
    """The verdict as a JUnit XML document in UTF-8 with one test suite.

    Its test cases are the comparisons, those that are not gated or whose regression was accepted as skipped, and the
    requirements. What XML 1.0 has no place for (control characters, lone surrogates) is written out.
    """
    cases = [*(_comparison(one, verdict) for one in verdict.comparisons), *map(_floor, verdict.floors)]
    counts = {
        "tests": str(len(cases)),
        "failures": str(sum(case.find("failure") is not None for case in cases)),
        "errors": "0",
        "skipped": str(sum(case.find("skipped") is not None for case in cases)),
        "time": _seconds(verdict.seconds),
    }
    suites = ElementTree.Element("testsuites", {"name": "bnuq check", **counts})
    suite = ElementTree.SubElement(suites, "testsuite", {"name": "bnuq check", **counts})
    properties = ElementTree.SubElement(suite, "properties")
    for name, value in _properties(verdict).items():
        ElementTree.SubElement(properties, "property", {"name": name, "value": _fit(value)})
    suite.extend(cases)
    warnings = (f"Warning: {text} [{code}]" for text, code, _ in advised(verdict.findings))
    notes = (f"Note: {note}" for note in noted(verdict.findings))
    lines = (headline(verdict), *in_short(verdict), *warnings, *notes)
    ElementTree.SubElement(suite, "system-out").text = "\n".join(map(_fit, lines))
    ElementTree.indent(suites)
    return ElementTree.tostring(suites, encoding="utf-8", xml_declaration=True) + b"\n"


def _comparison(one: Comparison, verdict: Verdict) -> ElementTree.Element:
    room, _, name = one.address.rpartition(".")
    case = _case(room, name)
    sentence = f"{told(one, verdict)}."
    if one.outcome == "worse" and not verdict.failed:
        ElementTree.SubElement(case, "skipped", {"message": _fit(f"Accepted: {sentence}")})
    elif one.outcome == "worse":
        failure = ElementTree.SubElement(case, "failure", {"message": _fit(sentence), "type": "regression"})
        failure.text = _fit(f"{subject(one)}\n{one.address}", lines=True)
    elif one.outcome == "not gated":
        ElementTree.SubElement(case, "skipped", {"message": _fit(f"Shown, not gated: {sentence}")})
    else:
        ElementTree.SubElement(case, "system-out").text = _fit(f"{judged(one)}: {sentence}")
    return case


def _floor(floor: Floor) -> ElementTree.Element:
    room, _, metric = floor.address.rpartition(".")
    case = _case(room, f"{metric} {floor.relation} {floor.bound:g}")
    sentence = _fit(floor_in_words(floor))
    if not floor.passed:
        failure = ElementTree.SubElement(case, "failure", {"message": sentence, "type": "requirement"})
        failure.text = sentence
    else:
        ElementTree.SubElement(case, "system-out").text = sentence
    return case


def _case(room: str, name: str) -> ElementTree.Element:
    # A time of its own is what some readers insist on; the comparisons are made all at once.
    return ElementTree.Element("testcase", {"classname": _fit(f"bnuq.{room}"), "name": _fit(name), "time": "0"})


def _properties(verdict: Verdict) -> dict[str, str]:
    sides: dict[str, Side | None] = {"current": verdict.current, "baseline": verdict.baseline}
    found = {"bnuq": verdict.bnuq, "verdict": headline(verdict)}
    for name, side in sides.items():
        if side is None:
            continue
        said = {
            "": "" if side.path is None else str(side.path),
            ".checkpoint": side.checkpoint,
            ".sha256": side.checkpoint_sha256,
            ".time": side.time,
            ".samples": str(side.samples),
            ".batch_size": "" if side.batch_size is None else str(side.batch_size),
            ".seed": str(side.seed),
        }
        found |= {f"{name}{key}": value for key, value in said.items() if value}
    return found


def _seconds(value: float) -> str:
    return f"{value:.3f}" if math.isfinite(value) else "0"


def _fit(text: str, *, lines: bool = False) -> str:
    """Every printable character is one that XML 1.0 has a place for."""
    return printable(text, lines=lines)
