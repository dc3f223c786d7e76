"""What a record shows, as a code and values; its sentence stands in a catalogue."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Severity = Literal["verdict", "warning", "note"]


@dataclass(frozen=True)
class Finding:
    """A statement about a result. `code` is stable, `values` are those of its sentence.

    A verdict answers what was asked, a warning says why an answer may not hold, a note how the request was handled.
    """

    code: str
    severity: Severity
    values: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Entry:
    """In a catalogue: a finding's sentence, a template of its values or a function of them, and what to do about it."""

    sentence: str | Callable[..., str]
    remedy: str = ""


Catalogue = Mapping[str, Entry]


def sentence(finding: Finding, catalogue: Catalogue) -> str:
    """The sentence of the finding; KeyError where the catalogue does not have its code."""
    template = catalogue[finding.code].sentence
    return template.format(**finding.values) if isinstance(template, str) else template(**finding.values)
