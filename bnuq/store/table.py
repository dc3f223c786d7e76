"""The one table of estimates: a row for every estimate of a record, whatever its kind, and that table in a file.

    /estimates   one row an estimate: path, its coordinates by name (method, set, metric, …), unit, value, se, mc_se,
                 low, high; jackknife (estimate, draw) and bootstrap (estimate, resample), padded with NaN, and how many
                 there are: draws, resamples (−1: none)

What estimates are found by, the annotations of the records say.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from typing import Any

import numpy as np

from bnuq.estimates import Coordinate, Estimate, Prefix, Unit
from bnuq.frozen import frozen
from bnuq.metrics.registry import metric_of
from bnuq.store.annotations import arguments, fields_of, metadata
from bnuq.store.datasets import Writer, name_of

_NUMBERS = ("value", "se", "mc_se", "low", "high")
_REPLICATES = {"jackknife": "draw", "bootstrap": "resample"}
_SAME_UNIT = "that of the row, in unit"
_LEAVES = (str, int, float, np.ndarray, type(None))


@frozen
class Row:
    """An estimate of a record: its path in the record, and its coordinates (metric, set, …)."""

    path: str
    coordinates: Mapping[str, str]
    unit: str
    estimate: Estimate

    def __getitem__(self, coordinate: str) -> str:
        """A coordinate; empty if the estimate has none of this name."""
        return self.coordinates.get(coordinate, "")


def rows_of(record: Any) -> Iterator[Row]:
    """Every estimate of a record, in the order of its fields."""
    yield from _rows(record, None, "", {})


def _rows(value: Any, hint: Any, path: str, coordinates: Mapping[str, str]) -> Iterator[Row]:
    if isinstance(value, _LEAVES):  # nearly all values: the other questions take longer
        return
    if isinstance(value, Estimate):
        metric = coordinates.get("metric") or path.rpartition("/")[2]
        yield Row(path, {**coordinates, "metric": metric}, metadata(hint, Unit) or unit_of(metric), value)
    elif is_dataclass(value):
        hints = fields_of(type(value))
        fixed = {name: str(getattr(value, key)) for key in hints if (name := metadata(hints[key], Coordinate))}
        for key, inner in hints.items():
            yield from _rows(getattr(value, key), inner, f"{path}/{key}", {**coordinates, **fixed})
    elif isinstance(value, Mapping):
        key_hint, inner = arguments(hint, Mapping, 2)
        name, prefix = metadata(key_hint, Coordinate), metadata(key_hint, Prefix) or ""
        for key, item in value.items():
            yield from _rows(
                item,
                inner,
                f"{path}/{name_of(str(key))}",
                {**coordinates, name: f"{prefix}{key}"} if name else coordinates,
            )
    elif isinstance(value, list | tuple):
        (inner,) = arguments(hint, Sequence, 1)
        for number, item in enumerate(value):
            yield from _rows(item, inner, f"{path}/{number}", coordinates)


def unit_of(name: str) -> str:
    """The unit of a metric, a score, or a variable that is neither: a count, a number of order, a share."""
    unit = metric_of(name).unit
    return "1" if unit == "fraction" else unit


# ── in a file ────────────────────────────────────────────────────────────────────────────────────────────────────────


def write_table(writer: Writer, rows: Sequence[Row]) -> None:
    """Write the rows as the group /estimates; nothing if there are none."""
    if not rows:
        return
    scales = dict[str, Any]()
    names = dict.fromkeys(name for row in rows for name in row.coordinates)
    columns: dict[str, Any] = {"path": [row.path for row in rows]}
    columns |= {name: [row[name] for row in rows] for name in names}
    columns["unit"] = [row.unit for row in rows]
    numbers = {key: [getattr(row.estimate, key) for row in rows] for key in _NUMBERS}
    for key, values_of_rows in numbers.items():
        columns[key] = [np.nan if value is None else value for value in values_of_rows]
    for name, column in columns.items():
        values = np.asarray(column, np.float64 if name in _NUMBERS else object)
        writer.add("/estimates", name, values, ("estimate",), scales, unit=_SAME_UNIT)
    for name, axis in _REPLICATES.items():
        values_of_rows = [getattr(row.estimate, name) for row in rows]
        if all(values is None for values in values_of_rows):
            continue
        counts = np.array([-1 if values is None else len(values) for values in values_of_rows], np.int64)
        writer.add("/estimates", f"{axis}s", counts, ("estimate",), scales)
        table = np.full((len(rows), counts.max()), np.nan)
        for row, values in zip(table, values_of_rows, strict=True):
            if values is not None:
                row[: len(values)] = values
        writer.add("/estimates", name, table, ("estimate", axis), scales, unit=_SAME_UNIT)


def read_table(group: Any) -> list[dict[str, Any]]:
    """The fields of every estimate in the group; ValueError if the group does not hold them."""
    replicates = {key: axis for key, axis in _REPLICATES.items() if key in group}
    columns = {key: group[key][()] for key in (*_NUMBERS, *replicates, *(f"{axis}s" for axis in replicates.values()))}
    count = len(columns["value"])
    for key, values in columns.items():
        counts, dimensions = key not in (*_NUMBERS, *_REPLICATES), 2 if key in _REPLICATES else 1
        if values.dtype.kind != ("i" if counts else "f") or values.ndim != dimensions or len(values) != count:
            raise ValueError(f"{group.name}/{key} does not hold the numbers that belong there")
    if any((columns[key] < 0).any() for key in ("se", "mc_se")):
        raise ValueError("a standard error is below 0")
    rows = []
    for row in range(count):
        estimate = {key: float(columns[key][row]) for key in _NUMBERS}
        estimate = {key: value for key, value in estimate.items() if key == "value" or value == value}
        for key, axis in replicates.items():
            length = int(columns[f"{axis}s"][row])
            if not -1 <= length <= columns[key].shape[1]:
                raise ValueError(f"{group.name}/{axis}s counts {length}")
            if length >= 0:
                estimate[key] = columns[key][row, :length]
        rows.append(estimate)
    return rows
