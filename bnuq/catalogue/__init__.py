"""The sentence of every warning and note, and what to do about it, by its code."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from bnuq.catalogue.commands import COMMANDS
from bnuq.catalogue.evaluation import EVALUATION
from bnuq.catalogue.inputs import INPUTS
from bnuq.findings import Catalogue, Finding, notes, sentence, warnings

CATALOGUE: Catalogue = {**INPUTS, **EVALUATION, **COMMANDS}
_MISFITS = (KeyError, IndexError, TypeError, ValueError, AttributeError, ArithmeticError)


def text_of(finding: Finding) -> str:
    """The sentence of a finding; its code and values if it is not one of this version's, as in a newer file."""
    try:
        return sentence(finding, CATALOGUE)
    except _MISFITS:
        values = "; ".join(f"{name}: {value}" for name, value in finding.values.items())
        unknown = f"{finding.code}, which another version of bnuq found and this one does not know"
        return ": ".join(filter(None, (finding.subject, unknown * (finding.code not in CATALOGUE), values)))


def texts(findings: Iterable[Finding]) -> tuple[str, ...]:
    return tuple(map(text_of, findings))


def remedy(finding: Finding) -> str:
    """What to do about a finding; empty if its sentence says so, or nothing is to be done."""
    entry = CATALOGUE.get(finding.code)
    return "Update bnuq: a newer version explains this finding." if entry is None else entry.remedy


def advised(findings: Iterable[Finding]) -> tuple[tuple[str, str, str], ...]:
    """Text, code and remedy of each warning among the findings, in their order; the remedy is empty where the text says
    it."""
    return tuple((text_of(finding), finding.code, remedy(finding)) for finding in warnings(findings))


def noted(findings: Iterable[Finding]) -> tuple[str, ...]:
    """The sentences of the notes among the findings, in their order, without those that only other versions make."""
    return texts(each for each in notes(findings) if each.code in CATALOGUE)


def distinct(findings: Iterable[Finding]) -> dict[tuple[str, str], Finding]:
    """The first finding of each code and sentence, by both: values may differ beyond the digits that are shown."""
    by_text: dict[tuple[str, str], Finding] = {}
    for finding in findings:
        by_text.setdefault((finding.code, text_of(finding)), finding)
    return by_text


def summary(findings: Iterable[Finding]) -> dict[str, Any]:
    """The warnings and notes of a record as JSON values."""
    findings = tuple(findings)
    return {
        "warnings": [
            {"code": finding.code, "text": text_of(finding)} | ({} if finding.runs is None else {"runs": finding.runs})
            for finding in warnings(findings)
        ],
        "notes": list(noted(findings)),
    }
