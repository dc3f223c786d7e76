"""How far can I trust this network's predictions? Light to import: torch comes with the first name that needs it."""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType

TYPE_CHECKING = False  # not that of typing, so that the command line answers signals some milliseconds earlier
if TYPE_CHECKING:
    from typing import Any

    from bnuq import metrics
    from bnuq.errors import BnuqError
    from bnuq.evaluate import evaluate
    from bnuq.inspect import inspect
    from bnuq.models.loading import load
    from bnuq.precise_bn import precise_bn
    from bnuq.results.result import Result
    from bnuq.sampling.bank import BatchStatistics
    from bnuq.sampling.dropout import Dropout
    from bnuq.sampling.engine import Predictor, predict
    from bnuq.sampling.statistics import draw, statistics_of
    from bnuq.stages.material import held_out_rows
    from bnuq.stages.population import population_statistics

__version__ = "0.1.0"

_HOMES = {
    "load": "bnuq.models.loading",
    "draw": "bnuq.sampling.statistics",
    "statistics_of": "bnuq.sampling.statistics",
    "BatchStatistics": "bnuq.sampling.bank",
    "predict": "bnuq.sampling.engine",
    "Predictor": "bnuq.sampling.engine",
    "Dropout": "bnuq.sampling.dropout",
    "evaluate": "bnuq.evaluate",
    "inspect": "bnuq.inspect",
    "precise_bn": "bnuq.precise_bn",
    "population_statistics": "bnuq.stages.population",
    "held_out_rows": "bnuq.stages.material",
    "Result": "bnuq.results.result",
    "BnuqError": "bnuq.errors",
}

__all__ = [
    "BatchStatistics",
    "BnuqError",
    "Dropout",
    "Predictor",
    "Result",
    "__version__",
    "draw",
    "evaluate",
    "held_out_rows",
    "inspect",
    "load",
    "metrics",
    "population_statistics",
    "precise_bn",
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


class _Front(ModuleType):
    """Keeps a function where importing the file of the same name would put the file in its place."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in _HOMES or not isinstance(value, ModuleType):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Front
