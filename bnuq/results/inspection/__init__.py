"""An inspection of a network: its records, its file and its summary."""

from bnuq.results.inspection.file import FORMAT, read, write
from bnuq.results.inspection.records import (
    COMMAND,
    KIND,
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
from bnuq.results.inspection.summary import summary

__all__ = [
    "COMMAND",
    "FORMAT",
    "KIND",
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
