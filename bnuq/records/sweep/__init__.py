"""A sweep over mini-batch sizes: its records, its file and its summary."""

from pathlib import Path

from bnuq.records.sweep.records import (
    Choice,
    Compared,
    Decay,
    Elbo,
    ElboTerms,
    LayerCounts,
    Protocol,
    Recommended,
    Repeated,
    Sweep,
    SweepPoint,
    SweptModel,
    SweptSet,
)
from bnuq.records.sweep.summary import summary
from bnuq.store import codec
from bnuq.store.codec import write

__all__ = [
    "Choice",
    "Compared",
    "Decay",
    "Elbo",
    "ElboTerms",
    "LayerCounts",
    "Protocol",
    "Recommended",
    "Repeated",
    "Sweep",
    "SweepPoint",
    "SweptModel",
    "SweptSet",
    "read",
    "summary",
    "write",
]


def read(path: Path) -> Sweep:
    """The sweep in the file at `path`; ResultError where that is not one, is newer, or is damaged.

    All fields that a report or a summary uses are validated, so their readers need no further checks.
    """
    return codec.read(Sweep, path, summary=summary)
