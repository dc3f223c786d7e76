"""Records as the JSON that `--json` prints: their fields, and the properties that they mark as `shown`."""

from __future__ import annotations

import math
import typing
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from bnuq import catalogue
from bnuq.estimates import Estimate, FileOnly
from bnuq.store.annotations import metadata

SCHEMA = 2
APART = ("run", "provenance", "findings", "path")  # what a result has beside what was found


class shown(property):  # noqa: N801 - a decorator
    """A property that is printed as the fields are."""


def json_of(record: Any) -> dict[str, Any]:
    """The record of a result as JSON values; infinities and NaN are the strings "inf", "-inf" and "nan"."""
    head = {"bnuq": record.provenance["bnuq"], "schema": SCHEMA, "command": record.COMMAND, "kind": record.KIND}
    content = json_fields(record, *(name for name in names_of(type(record)) if name not in APART))
    return head | content | catalogue.summary(record.findings) | {"result": json_value(record.path)}


@cache
def names_of(record: type) -> tuple[str, ...]:
    """The fields of a record that are printed, and its properties that are."""
    hints = typing.get_type_hints(record, include_extras=True)
    printed = (each.name for each in fields(record) if metadata(hints[each.name], FileOnly) is None)
    return (*printed, *(name for name, value in vars(record).items() if isinstance(value, shown)))


def json_value(value: Any) -> Any:
    """A value of a record as JSON: numbers, arrays, paths, mappings, estimates, and other records by their fields."""
    if isinstance(value, Estimate):
        return estimate_summary(value)
    if is_dataclass(value):
        return json_fields(value, *names_of(type(value)))
    if isinstance(value, Mapping):
        return {str(key): json_value(item) for key, item in value.items()}
    if isinstance(value, list | tuple | np.ndarray):
        return [json_value(item) for item in value]
    if isinstance(value, Path):
        return str(value)
    return json_number(value) if isinstance(value, float | np.floating) else value


def json_fields(record: Any, *names: str) -> dict[str, Any]:
    """These fields of a record as JSON values."""
    return {name: json_value(getattr(record, name)) for name in names}


def estimate_summary(estimate: Estimate) -> dict[str, Any]:
    """An estimate as JSON values, without the errors that it has not."""
    errors = {key: getattr(estimate, key) for key in ("se", "mc_se", "low", "high")}
    known = {key: value for key, value in errors.items() if value is not None and not math.isnan(value)}
    return {key: json_number(value) for key, value in {"value": estimate.value, **known}.items()}


def json_number(value: float | np.floating[Any]) -> float | str:
    """A number as JSON has it; infinities and NaN are the strings "inf", "-inf" and "nan"."""
    value = float(value)
    if math.isnan(value):
        return "nan"
    return value if math.isfinite(value) else "inf" if value > 0 else "-inf"
