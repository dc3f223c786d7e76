"""What the JSON summaries of all experiments have in common."""

from __future__ import annotations

from typing import Any

from bnuq.records.summary import SCHEMA
from bnuq.store.codec import Record


def summary_of(record: Record, **content: Any) -> dict[str, Any]:
    """`content` between the version and the path of the result; all of it JSON values."""
    head = {"bnuq": record.provenance["bnuq"], "schema": SCHEMA, "command": record.COMMAND}
    return {**head, **content, "result": None if record.path is None else str(record.path)}
