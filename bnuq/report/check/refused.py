"""A check that could not be carried out, told where its verdict would have been, so that no earlier one stays."""

from __future__ import annotations

from xml.etree import ElementTree

from bnuq.report.check.annotations import line
from bnuq.report.markdown import markdown
from bnuq.report.parts import Items, title
from bnuq.report.sanitize import printable

_SAID = "bnuq check: nothing was checked"


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


def refused_markdown(message: str) -> str:
    """As Markdown, for a pull request or the summary of a step."""
    return markdown([title(f"❌ {_SAID}"), Items(tuple(_lines(message)))])


def refused_annotation(message: str) -> str:
    """As a line for the log of GitHub Actions."""
    return line("error", (_SAID, " ".join(_lines(message))))


def _lines(message: str) -> list[str]:
    lines = (printable(text, lines=False).strip().removeprefix("- ") for text in message.splitlines())
    return [text for text in lines if text] or ["no reason was given"]
