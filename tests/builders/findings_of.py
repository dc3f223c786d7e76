"""What a record's findings say, for tests: codes, and the values of one."""

from __future__ import annotations

from typing import Any

from bnuq.findings import notes, warnings


def warned(record: Any) -> list[str]:
    """The codes of the warnings, in their order."""
    return [finding.code for finding in warnings(record.findings)]


def noted(record: Any) -> list[str]:
    """The codes of the notes, in their order."""
    return [finding.code for finding in notes(record.findings)]


def values_of(record: Any, code: str) -> dict[str, Any]:
    """The values of the only finding with this code."""
    (finding,) = (finding for finding in record.findings if finding.code == code)
    return dict(finding.values)
