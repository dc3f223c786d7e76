"""What a record shows, as a code and values; its sentence stands in a catalogue."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

Severity = Literal["verdict", "warning", "note"]


@dataclass(frozen=True)
class Finding:
    """A statement about a result. `code` is stable, `values` are those of its sentence: plain JSON values.

    A verdict answers what was asked, a warning says why an answer may not hold, a note how the request was handled.
    `subject` is the set, file or network that it is about, where there are several; `runs` counts the runs that it
    holds for, where several runs are reported together.
    """

    code: str
    severity: Severity
    values: Mapping[str, Any] = field(default_factory=dict)
    subject: str = ""
    runs: int | None = None


def warning(code: str, **values: Any) -> Finding:
    """A warning with these values."""
    return Finding(code, "warning", values)


def note(code: str, **values: Any) -> Finding:
    """A note with these values."""
    return Finding(code, "note", values)


def warnings(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """The warnings among the findings."""
    return tuple(finding for finding in findings if finding.severity == "warning")


def notes(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """The notes among the findings."""
    return tuple(finding for finding in findings if finding.severity == "note")


def about(subject: str, findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """The findings as of `subject`, which comes before any subject that they have."""
    return tuple(replace(finding, subject=": ".join(filter(None, (subject, finding.subject)))) for finding in findings)


@dataclass(frozen=True)
class Entry:
    """In a catalogue: a finding's sentence, a template of its values or a function of them, and what to do about it."""

    sentence: str | Callable[..., str]
    remedy: str = ""


Catalogue = Mapping[str, Entry]


def sentence(finding: Finding, catalogue: Catalogue) -> str:
    """The sentence of the finding; KeyError where the catalogue does not have its code."""
    template = catalogue[finding.code].sentence
    text = template.format(**finding.values) if isinstance(template, str) else template(**finding.values)
    return f"{finding.subject}: {text}" if finding.subject else text
