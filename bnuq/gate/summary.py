"""The summary of `bnuq check --json`: a verdict as plain JSON values."""

from __future__ import annotations

import math
from typing import Any

from bnuq import catalogue
from bnuq.gate.records import Comparison, Floor, Side, Verdict
from bnuq.records.summary import SCHEMA, json_fields, json_number, json_value

_NUMBERS = ("baseline", "current", "change", "se", "se_points", "se_draws", "p_value", "p_adjusted", "tolerance")


def summary(verdict: Verdict) -> dict[str, Any]:
    """The verdict as JSON values; infinities and NaN are the strings "inf", "-inf" and "nan", and unknown values of a
    side, a comparison or a requirement are absent."""
    shared = verdict.pairing
    return {
        "bnuq": verdict.bnuq,
        "schema": SCHEMA,
        "command": "check",
        "passed": verdict.passed,
        "current": _side(verdict.current),
        "baseline": None if verdict.baseline is None else _side(verdict.baseline),
        "paired": None if shared is None else json_value(shared) | {"why_not": dict(shared.why_not)},
        "gated": verdict.gated,
        "comparisons": [_comparison(item) for item in verdict.comparisons],
        "floors": [_floor(item) for item in verdict.floors],
        **catalogue.summary(verdict.findings),
        "seconds": round(verdict.seconds, 3),
        **json_fields(verdict, "accepted", "kept"),
    }


def _side(side: Side) -> dict[str, Any]:
    values = {key.removeprefix("checkpoint_"): value for key, value in json_value(side).items()}
    return {key: value for key, value in values.items() if value not in (None, "")}


def _comparison(comparison: Comparison) -> dict[str, Any]:
    coordinates = json_fields(comparison, "method", "set", "score", "metric", "address")
    return {
        **{key: value for key, value in coordinates.items() if value},
        "unit": comparison.unit,
        **_known_numbers(comparison, _NUMBERS, always=("baseline", "current", "change")),
        "outcome": comparison.outcome,
    }


def _floor(floor: Floor) -> dict[str, Any]:
    numbers = _known_numbers(floor, ("bound", "value", "se"), always=("bound", "value"))
    return {"address": floor.address, "relation": floor.relation, **numbers, "passed": floor.passed}


def _known_numbers(record: Any, keys: tuple[str, ...], *, always: tuple[str, ...]) -> dict[str, float | str]:
    """The numbers that are known: an error of NaN is not."""
    numbers = {key: getattr(record, key) for key in keys}
    return {
        key: json_number(value)
        for key, value in numbers.items()
        if value is not None and (key in always or not math.isnan(value))
    }
