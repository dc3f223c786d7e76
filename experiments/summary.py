"""What the JSON summaries and the reports of all experiments have in common."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from bnuq.records.summary import SCHEMA
from bnuq.report.document import PathLine, Report, ReportSection
from bnuq.store.codec import Record


def summary_of(record: Record, **content: Any) -> dict[str, Any]:
    """`content` between the version and the path of the result; all of it JSON values."""
    head = {"bnuq": record.provenance["bnuq"], "schema": SCHEMA, "command": record.COMMAND}
    return {**head, **content, "result": None if record.path is None else str(record.path)}


def report_of(
    record: Any,
    *,
    facts: Iterable[tuple[str, str]],
    summary: Iterable[str],
    sections: Iterable[ReportSection],
    notes: Iterable[str] = (),
    subject: str = "",
) -> Report:
    """The report of an experiment's record, with the head that all of them have."""
    return Report(
        command=f"bnuq {record.COMMAND}",
        version=record.provenance["bnuq"],
        subject=subject,
        facts=tuple(facts),
        summary=tuple(summary),
        sections=tuple(sections),
        notes=tuple(notes),
        path=None if record.path is None else PathLine(record.path),
    )
