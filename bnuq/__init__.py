"""How far can I trust this network's predictions? Light to import: torch comes with the first name that needs it."""

from __future__ import annotations

from importlib import import_module

TYPE_CHECKING = False  # not that of typing, so that the command line answers signals some milliseconds earlier
if TYPE_CHECKING:
    from typing import Any

    from bnuq import metrics
    from bnuq.api import (
        Monitor,
        Result,
        check,
        evaluate,
        inspect,
        open,  # noqa: A004
        score,
        shift,
        sweep_batch_size,
    )
    from bnuq.errors import BnuqError
    from bnuq.evaluation.population import population_statistics
    from bnuq.models.loading import load
    from bnuq.sampling.batch_statistics import BatchStatistics
    from bnuq.sampling.counter_rng import held_out_rows
    from bnuq.sampling.dropout import Dropout
    from bnuq.sampling.engine import Predictor, predict
    from bnuq.sampling.noise import Learned
    from bnuq.sampling.statistics import draw, statistics_of
    from bnuq.studies.precise_bn.compute import precise_bn

__version__ = "0.2.0"

_HOMES = {
    "load": "bnuq.models.loading",
    "draw": "bnuq.sampling.statistics",
    "statistics_of": "bnuq.sampling.statistics",
    "BatchStatistics": "bnuq.sampling.batch_statistics",
    "predict": "bnuq.sampling.engine",
    "Predictor": "bnuq.sampling.engine",
    "Dropout": "bnuq.sampling.dropout",
    "Learned": "bnuq.sampling.noise",
    "evaluate": "bnuq.api",
    "score": "bnuq.api",
    "shift": "bnuq.api",
    "sweep_batch_size": "bnuq.api",
    "inspect": "bnuq.api",
    "check": "bnuq.api",
    "open": "bnuq.api",
    "precise_bn": "bnuq.studies.precise_bn.compute",
    "population_statistics": "bnuq.evaluation.population",
    "held_out_rows": "bnuq.sampling.counter_rng",
    "Monitor": "bnuq.api",
    "Result": "bnuq.api",
    "BnuqError": "bnuq.errors",
}

__all__ = [
    "BatchStatistics",
    "BnuqError",
    "Dropout",
    "Learned",
    "Monitor",
    "Predictor",
    "Result",
    "__version__",
    "check",
    "draw",
    "evaluate",
    "held_out_rows",
    "inspect",
    "load",
    "metrics",
    "open",
    "population_statistics",
    "precise_bn",
    "predict",
    "score",
    "shift",
    "statistics_of",
    "sweep_batch_size",
]


def __getattr__(name: str) -> Any:
    if name == "metrics":
        return import_module("bnuq.metrics")
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'bnuq' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
