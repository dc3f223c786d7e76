"""The summary of `bnuq check --json`: a verdict as plain JSON values."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from bnuq import catalogue
from bnuq.gate.records import Comparison, Floor, Pairing, Side, Verdict
from bnuq.records.summary import SCHEMA, json_number

_NUMBERS = ("baseline", "current", "change", "se", "se_points", "se_draws", "p_value", "p_adjusted", "tolerance")


def summary(verdict: Verdict) -> dict[str, Any]:
    """The verdict as JSON values; infinities and NaN are the strings "inf", "-inf" and "nan", and unknown values of a
    side, a comparison or a requirement are absent."""
    return {
        "bnuq": verdict.bnuq,
        "schema": SCHEMA,
        "command": "check",
        "passed": verdict.passed,
        "current": _side(verdict.current),
        "baseline": None if verdict.baseline is None else _side(verdict.baseline),
        "paired": None if verdict.pairing is None else _pairing(verdict.pairing),
        "gated": verdict.gated,
        "comparisons": [_comparison(item) for item in verdict.comparisons],
        "floors": [_floor(item) for item in verdict.floors],
        **catalogue.summary(verdict.findings),
        "seconds": round(verdict.seconds, 3),
        "accepted": _path(verdict.accepted),
        "kept": _path(verdict.kept),
    }


def _side(side: Side) -> dict[str, Any]:
    values = {
        "path": _path(side.path),
        "checkpoint": side.checkpoint,
        "sha256": side.checkpoint_sha256 or None,
        "samples": side.samples,
        "batch_size": side.batch_size,
        "seed": side.seed,
        "time": side.time or None,
    }
    return {key: value for key, value in values.items() if value is not None}


def _path(path: Path | None) -> str | None:
    return None if path is None else str(path)


def _pairing(pairing: Pairing) -> dict[str, Any]:
    return {"points": list(pairing.points), "draws": list(pairing.draws), "why_not": dict(pairing.why_not)}


def _comparison(comparison: Comparison) -> dict[str, Any]:
    values = {
        "method": comparison.method,
        "set": comparison.set,
        "score": comparison.score,
        "metric": comparison.metric,
        "address": comparison.address,
    }
    return {
        **{key: value for key, value in values.items() if value},
        "unit": comparison.unit,
        **_known_values({key: getattr(comparison, key) for key in _NUMBERS}, always=("baseline", "current", "change")),
        "outcome": comparison.outcome,
    }


def _floor(floor: Floor) -> dict[str, Any]:
    numbers = {"bound": floor.bound, "value": floor.value, "se": floor.se}
    values = {"address": floor.address, "relation": floor.relation, **_known_values(numbers, always=("bound", "value"))}
    return {**values, "passed": floor.passed}


def _known_values(numbers: dict[str, float | None], *, always: tuple[str, ...]) -> dict[str, float | str]:
    """The values that are known: an error of NaN is not."""
    return {
        key: json_number(value)
        for key, value in numbers.items()
        if value is not None and (key in always or not math.isnan(value))
    }
