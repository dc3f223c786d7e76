"""An inspection of a network: its records, its file and its summary."""

from pathlib import Path

from bnuq.records.inspection.records import (
    Candidate,
    Crossing,
    Domain,
    Domains,
    Flag,
    Gap,
    Inspection,
    LayerGap,
    LayerNoise,
    Noise,
    Pipelines,
    SiteRow,
)
from bnuq.records.inspection.summary import summary
from bnuq.store import codec
from bnuq.store.codec import write

__all__ = [
    "Candidate",
    "Crossing",
    "Domain",
    "Domains",
    "Flag",
    "Gap",
    "Inspection",
    "LayerGap",
    "LayerNoise",
    "Noise",
    "Pipelines",
    "SiteRow",
    "read",
    "summary",
    "write",
]


def read(path: Path) -> Inspection:
    """The inspection in the file at `path`; ResultError where that is not one, is newer, or is damaged.

    All fields that a report or a summary uses are validated, so their readers need no further checks.
    """
    return codec.read(Inspection, path, summary=summary)
