"""A sweep over mini-batch sizes: its records, its file and its summary."""

from bnuq.results.sweep.file import FORMAT, read, write
from bnuq.results.sweep.records import (
    COMMAND,
    KIND,
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
from bnuq.results.sweep.summary import summary

__all__ = [
    "COMMAND",
    "FORMAT",
    "KIND",
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
