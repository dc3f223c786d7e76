"""Findings: what a record shows, as a code and values; the sentence is in a catalogue."""

from __future__ import annotations

import string
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field, replace
from typing import Any, Literal, get_args

from bnuq.frozen import frozen

Severity = Literal["verdict", "warning", "note"]
SEVERITIES: tuple[str, ...] = get_args(Severity)


@frozen
class Finding:
    """A statement about a result. `code` is stable, `values` are those of its sentence: plain JSON values.

    A verdict is a conclusion, a warning says why conclusions may not hold, a note says how the request was handled.
    `subject` is the set, file or network that it is about, if there are several; `runs` counts the runs that it
    holds for, where several runs are reported together.
    """

    code: str
    severity: Severity
    values: Mapping[str, Any] = field(default_factory=dict)
    subject: str = ""
    runs: int | None = None


@frozen
class Conclusion:
    """What a report concludes from a record: a sentence, the `code` that says of which kind it is, and the set that it
    is `about`, of several sentences of which one text is made."""

    code: str
    text: str
    about: str = ""


def warning(code: str, **values: Any) -> Finding:
    return Finding(code, "warning", values)


def note(code: str, **values: Any) -> Finding:
    return Finding(code, "note", values)


def warnings(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    return tuple(finding for finding in findings if finding.severity == "warning")


def notes(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    return tuple(finding for finding in findings if finding.severity == "note")


def about(subject: str, findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """The findings as of `subject`, which comes before any subject that they have."""
    return tuple(replace(finding, subject=": ".join(filter(None, (subject, finding.subject)))) for finding in findings)


@frozen
class Entry:
    """In a catalogue: a finding's sentence, a template of its values or a function of them, and what to do about it."""

    sentence: str | Callable[..., str]
    remedy: str = ""


Catalogue = Mapping[str, Entry]
Formats = Mapping[str, Callable[[Any], object]]  # by name, what writes a value in a template: `{ratio:times}`


def sentence(finding: Finding, catalogue: Catalogue, formats: Formats | None = None) -> str:
    """The sentence of the finding; KeyError if the catalogue does not have its code."""
    template = catalogue[finding.code].sentence
    if isinstance(template, str):
        text = _Formatter(formats or {}).vformat(template, (), finding.values)
    else:
        text = template(**finding.values)
    return f"{finding.subject}: {text}" if finding.subject else text


class _Formatter(string.Formatter):
    """`str.format` that also writes lists (`{layers:listed}`, `{names:joined}`, `{layers:number}`) and chooses words:
    of `{layers:is|are}` the first where the value is 1, true or has one item. Further formats have their own names.
    """

    def __init__(self, formats: Formats) -> None:
        self.formats = _OF_LISTS | dict(formats)

    def format_field(self, value: Any, format_spec: str) -> str:
        if "|" in format_spec:
            first, other = format_spec.split("|")
            return first if (len(value) if isinstance(value, list | tuple) else value) == 1 else other
        write = self.formats.get(format_spec)
        return super().format_field(value, format_spec) if write is None else str(write(value))


def listed(names: Sequence[object], *, most: int = 5) -> str:
    """The first names, and how many more there are."""
    return joined(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def joined(names: Sequence[object]) -> str:
    return ", ".join(map(str, names))


def all_of(names: Iterable[object], link: str = "and") -> str:
    """a; a and b; a, b and c."""
    *first, last = map(str, names)
    return f"{', '.join(first)} {link} {last}" if first else last


_OF_LISTS: dict[str, Callable[[Any], object]] = {"listed": listed, "joined": joined, "number": len}
