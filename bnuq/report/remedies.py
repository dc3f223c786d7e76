"""The warnings of a record, each with its remedy, and its notes, as a report shows them."""

from __future__ import annotations

from collections.abc import Iterable

from bnuq.catalogue import remedy, text_of, texts
from bnuq.findings import Finding, notes, warnings


def advised(findings: Iterable[Finding]) -> tuple[tuple[str, str, str], ...]:
    """Text, code and remedy of each warning, in their order; the remedy is empty if the text says it."""
    return tuple((text_of(finding), finding.code, remedy(finding)) for finding in warnings(findings))


def noted(findings: Iterable[Finding]) -> tuple[str, ...]:
    """The sentences of the notes, in their order."""
    return texts(notes(findings))
