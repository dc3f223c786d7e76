"""A verdict of `bnuq check` as JUnit XML, which CI services show beside the tests: a test case an estimate."""

from __future__ import annotations

import math
from xml.etree import ElementTree

from bnuq.gate.records import Comparison, Floor, Side, Verdict
from bnuq.report.check.findings import judgement
from bnuq.report.check.sentences import change_in_words, headline, in_short, requirement, subject
from bnuq.report.remedies import advised, noted
from bnuq.report.sanitize import printable


def junit(verdict: Verdict) -> bytes:
    """The verdict as a JUnit XML document in UTF-8 with one test suite.

    Its test cases are the comparisons, those that are not gated or whose regression was accepted as skipped, and the
    requirements. What XML 1.0 has no place for (control characters, lone surrogates) is written out.
    """
    cases = [*(_comparison(comparison, verdict) for comparison in verdict.comparisons), *map(_floor, verdict.floors)]
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


def _comparison(comparison: Comparison, verdict: Verdict) -> ElementTree.Element:
    group, _, name = comparison.address.rpartition(".")
    case = _case(group, name)
    text = change_in_words(comparison, verdict)
    if comparison.outcome == "worse" and not verdict.failed:
        ElementTree.SubElement(case, "skipped", {"message": _fit(f"Accepted: {text}")})
    elif comparison.outcome == "worse":
        failure = ElementTree.SubElement(case, "failure", {"message": _fit(text), "type": "regression"})
        failure.text = _fit(f"{subject(comparison)}\n{comparison.address}", lines=True)
    elif comparison.outcome == "not gated":
        ElementTree.SubElement(case, "skipped", {"message": _fit(f"Shown, not gated: {text}")})
    else:
        ElementTree.SubElement(case, "system-out").text = _fit(f"{judgement(comparison)}: {text}")
    return case


def _floor(floor: Floor) -> ElementTree.Element:
    group, _, metric = floor.address.rpartition(".")
    case = _case(group, f"{metric} {floor.relation} {floor.bound:g}")
    text = _fit(requirement(floor))
    if not floor.passed:
        failure = ElementTree.SubElement(case, "failure", {"message": text, "type": "requirement"})
        failure.text = text
    else:
        ElementTree.SubElement(case, "system-out").text = text
    return case


def _case(group: str, name: str) -> ElementTree.Element:
    # A time of its own is what some readers insist on; the comparisons are made all at once.
    return ElementTree.Element("testcase", {"classname": _fit(f"bnuq.{group}"), "name": _fit(name), "time": "0"})


def _properties(verdict: Verdict) -> dict[str, str]:
    sides: dict[str, Side | None] = {"current": verdict.current, "baseline": verdict.baseline}
    properties = {"bnuq": verdict.bnuq, "verdict": headline(verdict)}
    for name, side in sides.items():
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


def _seconds(value: float) -> str:
    return f"{value:.3f}" if math.isfinite(value) else "0"


def _fit(text: str, *, lines: bool = False) -> str:
    """Every printable character is one that XML 1.0 has a place for."""
    return printable(text, lines=lines)
