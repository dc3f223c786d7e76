"""The request: everything an evaluation needs to know, from options and a run file, checked key by key and resolved.

An option wins over the run file, the run file over what the checkpoint records, that over the default.
"""

from bnuq.run.request import Named, OneOf, Options, Run, Runs
from bnuq.run.resolving import resolve, resolve_again, resolve_all, resolve_all_again, resolve_sweep
from bnuq.run.runfile import (
    DETERMINISTIC,
    Augment,
    CheckSection,
    Counts,
    Criterion,
    Crps,
    Likelihood,
    Method,
    Normalize,
    Precision,
    PriorKind,
    Samples,
    ScoringSection,
    SizeCriterion,
    Split,
    SweepSection,
    Task,
    read_run_file,
)

__all__ = [
    "DETERMINISTIC",
    "Augment",
    "CheckSection",
    "Counts",
    "Criterion",
    "Crps",
    "Likelihood",
    "Method",
    "Named",
    "Normalize",
    "OneOf",
    "Options",
    "Precision",
    "PriorKind",
    "Run",
    "Runs",
    "Samples",
    "ScoringSection",
    "SizeCriterion",
    "Split",
    "SweepSection",
    "Task",
    "read_run_file",
    "resolve",
    "resolve_again",
    "resolve_all",
    "resolve_all_again",
    "resolve_sweep",
]
