"""How far can I trust this network's predictions? Light to import: torch comes with the first name that needs it."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bnuq import metrics
    from bnuq.errors import BnuqError
    from bnuq.evaluate import evaluate
    from bnuq.models.loading import load
    from bnuq.results.result import Result
    from bnuq.sampling.bank import BatchStatistics
    from bnuq.sampling.dropout import Dropout
    from bnuq.sampling.engine import predict
    from bnuq.sampling.statistics import draw, statistics_of
    from bnuq.stages.material import held_out_rows

__version__ = "0.1.0"

_HOMES = {
    "load": "bnuq.models.loading",
    "draw": "bnuq.sampling.statistics",
    "statistics_of": "bnuq.sampling.statistics",
    "BatchStatistics": "bnuq.sampling.bank",
    "predict": "bnuq.sampling.engine",
    "Dropout": "bnuq.sampling.dropout",
    "evaluate": "bnuq.evaluate",
    "held_out_rows": "bnuq.stages.material",
    "Result": "bnuq.results.result",
    "BnuqError": "bnuq.errors",
}

__all__ = [
    "BatchStatistics",
    "BnuqError",
    "Dropout",
    "Result",
    "__version__",
    "draw",
    "evaluate",
    "held_out_rows",
    "load",
    "metrics",
    "predict",
    "statistics_of",
]


def __getattr__(name: str) -> Any:
    if name == "metrics":
        return import_module("bnuq.metrics")
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'bnuq' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
