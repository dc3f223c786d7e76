"""A check that could not be carried out, reported where its verdict would have been, so that no earlier one stays."""

from __future__ import annotations

from xml.etree import ElementTree

from bnuq.report.check.annotations import line
from bnuq.report.document import Report
from bnuq.report.sanitize import printable

_OUTCOME = "nothing was checked"


def refused(message: str) -> Report:
    """The report: why nothing was checked."""
    return Report(command="bnuq check", subject=_OUTCOME, verdict="failed", summary=tuple(_lines(message)))


def refused_junit(message: str) -> bytes:
    """A JUnit XML document in UTF-8 whose only test case is an error."""
    counts = {"name": "bnuq check", "tests": "1", "failures": "0", "errors": "1", "skipped": "0", "time": "0"}
    suites = ElementTree.Element("testsuites", counts)
    suite = ElementTree.SubElement(suites, "testsuite", counts)
    case = ElementTree.SubElement(suite, "testcase", {"classname": "bnuq", "name": "check", "time": "0"})
    first, *_ = lines = _lines(message)
    error = ElementTree.SubElement(case, "error", {"message": first, "type": "refused"})
    error.text = "\n".join(lines)
    ElementTree.indent(suites)
    return ElementTree.tostring(suites, encoding="utf-8", xml_declaration=True) + b"\n"


def refused_annotation(message: str) -> str:
    """As a line for the log of GitHub Actions."""
    return line("error", f"bnuq check: {_OUTCOME}", " ".join(_lines(message)))


def _lines(message: str) -> list[str]:
    lines = (printable(text, lines=False).strip().removeprefix("- ") for text in message.splitlines())
    return [text for text in lines if text] or ["no reason was given"]
