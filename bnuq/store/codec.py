"""Writes a record to an HDF5 file and reads it back, by the type annotations of its fields.

    /            attributes: format, bnuq, kind, command
    /record      the record as JSON; {"array": PATH} and {"estimate": ROW} stand for what lies elsewhere in the file,
                 {"values": […]} for an array of a few numbers
    /estimates   one row an estimate: path, its coordinates by name (method, set, metric, …), unit, value, se, mc_se,
                 low, high; jackknife (estimate, draw) and bootstrap (estimate, resample), padded with NaN, and how many
                 there are: draws, resamples (−1: none)
    /PATH        an array; its axes are named by its annotation: Float[np.ndarray, "draw channel"]

Field names are the paths. Reading converts and checks every value as its annotation says: keys, types, bounds, and of
arrays their dtype and their axes. Rules that types cannot state belong in a record's `__post_init__`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeVar

import msgspec
import numpy as np

from bnuq.errors import ResultError
from bnuq.estimates import Axis, Coordinate, Estimate, InRecord, Unit
from bnuq.files.content import kind_of
from bnuq.files.hdf5 import image_of, open_hdf5
from bnuq.files.writing import check_writable, write_bytes
from bnuq.metrics.registry import metric_of
from bnuq.store.annotations import arguments, axes_of, fields_of, metadata

FORMAT = 1
KINDS = ("evaluate", "several", "sweep", "inspection")  # what `bnuq report` shows
PACKED: dict[str, Any] = {"compression": "gzip", "compression_opts": 1, "shuffle": True}
_NUMBERS = ("value", "se", "mc_se", "low", "high")
_REPLICATES = {"jackknife": "draw", "bootstrap": "resample"}
_DAMAGE = (
    KeyError, ValueError, TypeError, OSError, IndexError, AttributeError, RuntimeError, ArithmeticError, RecursionError
)  # fmt: skip


class Record(Protocol):
    """What a file can be of: a frozen dataclass."""

    KIND: ClassVar[str]
    COMMAND: ClassVar[str]  # as the user types it

    @property
    def provenance(self) -> Mapping[str, Any]: ...

    @property
    def path(self) -> Path | None: ...


R = TypeVar("R", bound=Record)


def write(record: Record, path: Path) -> None:
    """Write `record` to `path`, whole or not at all; ResultError where that cannot be done."""
    check_replaceable(path)
    write_bytes(path, image_of(lambda file: lay_out(file, record)))


def check_replaceable(path: Path) -> None:
    """Raise ResultError where a result cannot be put at `path`, or would replace a file that is not one."""
    kind = kind_of(path)
    if kind in ("folder", "special"):
        raise ResultError(f"{path}: is not a file, so it cannot be replaced by one. Name a file to write.")
    if kind == "unreadable":
        raise ResultError(f"{path}: cannot be opened; its name is too long, or it may not be read. Name another file.")
    if kind != "missing" and (kind != "hdf5" or not _is_result(path)):
        raise ResultError(f"{path} is not a result of bnuq; name another file to write.")
    check_writable(path)


def _is_result(path: Path) -> bool:
    try:
        with open_hdf5(path) as file:
            return {"format", "bnuq"} <= set(file.attrs)
    except ResultError:
        return False


# ── writing ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def lay_out(file: Any, record: Record) -> None:
    """Fill an open, empty HDF5 file."""
    file.attrs["format"], file.attrs["bnuq"] = FORMAT, str(record.provenance["bnuq"])
    file.attrs["kind"], file.attrs["command"] = record.KIND, record.COMMAND
    writer = Writer(file)
    tree = writer.encode(replace(record, path=None), None, _Place())  # type: ignore[type-var]
    file["record"] = json.dumps(tree, default=lambda scalar: scalar.item())
    writer.add_estimates()


@dataclass(frozen=True)
class _Place:
    """Where a value stands in a record; the coordinates and dimension scales that hold there."""

    path: str = ""
    coordinates: Mapping[str, str] = field(default_factory=dict)
    scales: dict[str, Any] = field(default_factory=dict)

    def at(self, key: Any, **coordinates: str) -> _Place:
        return _Place(f"{self.path}/{_name(str(key))}", {**self.coordinates, **coordinates}, self.scales)


class Writer:
    """Fills an open HDF5 file, value by value; `add` is also for what is laid out by hand."""

    def __init__(self, file: Any) -> None:
        self.file = file
        self.estimates: list[tuple[_Place, str, Estimate]] = []

    def encode(self, value: Any, hint: Any, place: _Place) -> Any:
        """The value as JSON; arrays and estimates go into the file."""
        if isinstance(value, Estimate):
            name = place.coordinates.get("metric") or place.path.rpartition("/")[2]
            unit = metadata(hint, Unit) or unit_of(name)
            self.estimates.append((place, unit, value))
            return {"estimate": len(self.estimates) - 1}
        if isinstance(value, np.ndarray):
            if metadata(hint, InRecord) is not None:
                return {"values": value.tolist()}
            group, _, name = place.path.rpartition("/")
            unit = metadata(hint, Unit) or unit_of(name)
            self.add(group, name, value, axes_of(hint) or (), place.scales, unit=unit)
            return {"array": place.path}
        if is_dataclass(value):
            return self.encode_record(value, place)
        if isinstance(value, Mapping):
            key_hint, item_hint = arguments(hint, Mapping, 2)
            axis = metadata(key_hint, Coordinate)
            inside = replace(place, scales=dict(place.scales))
            named = {key: inside.at(key, **({axis: str(key)} if axis else {})) for key in value}
            axis_first = sorted(value, key=lambda key: axes_of(item_hint) != (key,))
            return {str(key): self.encode(value[key], item_hint, named[key]) for key in axis_first}
        if isinstance(value, list | tuple):
            (item_hint,) = arguments(hint, Sequence, 1)
            return [self.encode(item, item_hint, place.at(number)) for number, item in enumerate(value)]
        return str(value) if isinstance(value, Path) else value

    def encode_record(self, record: Any, place: _Place) -> dict[str, Any]:
        hints, scales, coordinates = fields_of(type(record)), dict(place.scales), dict(place.coordinates)
        for key, hint in hints.items():
            if name := metadata(hint, Coordinate):
                coordinates[name] = str(getattr(record, key))
            if axis := metadata(hint, Axis):
                scales[axis] = self.add_scale(place.path, axis, getattr(record, key))
        inside = replace(place, coordinates=coordinates, scales=scales)
        arrays_first = sorted(hints, key=lambda key: not isinstance(getattr(record, key), np.ndarray))  # for their axes
        return {key: self.encode(getattr(record, key), hints[key], inside.at(key)) for key in arrays_first}

    def add(
        self, group: str, name: str, values: Any, axes: Sequence[str], scales: dict[str, Any], *, unit: str = "1"
    ) -> None:
        """A data set with a dimension scale for each axis."""
        if tuple(axes) == (name,):  # it is the scale of its neighbours
            scales[name] = self.add_scale(group, name, values)
            return
        data = self.file.require_group(group or "/").create_dataset(
            name, data=_storable(values), **(PACKED if np.size(values) > 1024 else {})
        )
        if data.dtype.kind != "O":
            data.attrs["units"] = unit
        for number, length in enumerate(data.shape):
            axis = axes[number] if number < len(axes) else f"{name}_axis{number}"
            scale = scales.get(axis)
            if scale is None or scale.shape != (length,):
                scale = scales[axis] = self.add_scale(group, axis, np.arange(length))
            data.dims[number].attach_scale(scale)

    def add_scale(self, group: str, name: str, values: Any) -> Any:
        home = self.file.require_group(group or "/")
        if name in home:  # of another length
            name = f"{name}_{sum(key.startswith(name) for key in home)}"
        scale = home.create_dataset(name, data=_storable(np.asarray(values)))
        scale.make_scale(name)
        if scale.dtype.kind != "O":
            scale.attrs["units"] = "1"
        return scale

    def add_estimates(self) -> None:
        if not self.estimates:
            return
        rows, scales = self.estimates, dict[str, Any]()
        names = dict.fromkeys(name for place, _, _ in rows for name in place.coordinates)
        columns: dict[str, Any] = {"path": [place.path for place, _, _ in rows]}
        columns |= {name: [place.coordinates.get(name, "") for place, _, _ in rows] for name in names}
        columns["unit"] = [unit for _, unit, _ in rows]
        numbers = {key: [getattr(estimate, key) for _, _, estimate in rows] for key in _NUMBERS}
        columns |= {key: [np.nan if value is None else value for value in given] for key, given in numbers.items()}
        for name, column in columns.items():
            values = np.asarray(column, np.float64 if name in _NUMBERS else object)
            self.add("/estimates", name, values, ("estimate",), scales, unit="that of the row, in unit")
        for name, axis in _REPLICATES.items():
            given = [getattr(estimate, name) for _, _, estimate in rows]
            if all(values is None for values in given):
                continue
            counts = np.array([-1 if values is None else len(values) for values in given], np.int64)
            self.add("/estimates", f"{axis}s", counts, ("estimate",), scales)
            table = np.full((len(rows), counts.max()), np.nan)
            for row, values in zip(table, given, strict=True):
                if values is not None:
                    row[: len(values)] = values
            self.add("/estimates", name, table, ("estimate", axis), scales, unit="that of the row, in unit")


def unit_of(name: str) -> str:
    """The unit of a metric, a score, or a variable that is neither: a count, a number of order, a share."""
    unit = metric_of(name).unit
    return "1" if unit == "fraction" else unit


def _storable(values: np.ndarray) -> np.ndarray:
    """Texts as HDF5 can hold them: without zeros, and without surrogates (bytes that are not UTF-8)."""
    if values.dtype.kind not in "UO":
        return values
    texts = [_utf8(str(text)).replace("\0", "\\x00") for text in values.flat]
    return np.array(texts, object).reshape(values.shape)


def _name(key: str) -> str:
    """A key as the name of an HDF5 object."""
    return _utf8(key).replace("/", "∕").replace("\0", "\\x00") or "∅"


def _utf8(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()


# ── reading ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def kind_of_result(path: Path, known: Collection[str] = KINDS) -> str:
    """The kind of the result file at `path`; ResultError where it is no result of a known kind, or cannot be read."""
    with open_hdf5(path) as file:
        kind, command = file.attrs.get("kind"), file.attrs.get("command")
        if not isinstance(kind, str) or "bnuq" not in file.attrs:
            raise ResultError(f"{path} is not a result file of bnuq; expected one written by bnuq evaluate.")
        if kind not in known:
            raise ResultError(f"{path} is a result of bnuq {command}; expected one written by bnuq evaluate.")
        return kind


def read(
    record: type[R],
    path: Path,
    *,
    summary: Callable[[R], Any] | None = None,
    by_hand: Callable[[Any, R], R] | None = None,
) -> R:
    """The record in the file at `path`; ResultError where it is of another kind, is newer, or is damaged.

    `summary` is tried on what was read: whoever reads a record need not look again. `by_hand` completes the record
    from the open file.
    """
    with open_hdf5(path) as file:
        try:
            _check_kind(file, record, path)
            result = _decode(file, record)
            result = replace(by_hand(file, result) if by_hand else result, path=path.absolute())  # type: ignore[type-var]
            if summary is not None:
                json.dumps(summary(result), allow_nan=False)
        except _DAMAGE as error:
            reason = " ".join(str(error).split())[:300].strip("'\"")
            raise ResultError(f"{path}: the result file is incomplete or damaged ({reason}).") from error
    return result


def _check_kind(file: Any, record: type[Record], path: Path) -> None:
    kind, command = (file.attrs.get(key) for key in ("kind", "command"))
    if kind != record.KIND or "bnuq" not in file.attrs:
        of = f", but of bnuq {command}" if isinstance(kind, str) and isinstance(command, str) else ""
        raise ResultError(f"{path} is not a result file of bnuq {record.COMMAND}{of}.")
    version = np.asarray(file.attrs["format"])[()]
    if not isinstance(version, int | np.integer) or version < 1:
        raise ValueError("its format has no number")
    if version > FORMAT:
        raise ResultError(
            f"{path} was written by bnuq {file.attrs['bnuq']} in format {version}; this version reads up to format "
            f"{FORMAT}. Please update bnuq."
        )


def _decode(file: Any, record: type[R]) -> R:
    estimates = _read_estimates(file["estimates"]) if "estimates" in file else []
    arrays = cache(lambda path: _array(file[path.lstrip("/")]))

    def decode(wanted: type, encoded: Any) -> Any:
        if issubclass(wanted, Path):
            return Path(encoded)
        if isinstance(encoded, dict):
            return np.array(encoded["values"], np.float64) if "values" in encoded else arrays(encoded["array"])
        return encoded

    tree = _with_estimates(json.loads(file["record"].asstr()[()]), estimates)
    result = msgspec.convert(tree, record, dec_hook=decode, str_keys=True)
    for part in _records(result):
        _check_axes(part)
    return result


def _array(data: Any) -> np.ndarray:
    return np.array(data.asstr()) if data.is_text else data[()]


def _read_estimates(group: Any) -> list[dict[str, Any]]:
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


def _with_estimates(tree: Any, estimates: list[dict[str, Any]]) -> Any:
    if isinstance(tree, dict):
        if tree.keys() == {"estimate"}:
            return estimates[tree["estimate"]]
        return {key: _with_estimates(value, estimates) for key, value in tree.items()}
    return [_with_estimates(value, estimates) for value in tree] if isinstance(tree, list) else tree


def _records(value: Any) -> Iterator[Any]:
    """The record and every record in it."""
    if is_dataclass(value):
        yield value
        value = [getattr(value, each.name) for each in fields(value)]
    for item in value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ():
        yield from _records(item)


def _check_axes(record: Any) -> None:
    """Raise ValueError where two arrays of a record share an axis and differ in its length."""
    lengths: dict[str, int] = {}
    for key, hint in fields_of(type(record)).items():
        value, axis = getattr(record, key), metadata(hint, Axis)
        named = [(axis, len(value))] if axis else []
        for values in value.values() if isinstance(value, Mapping) else (value,):
            if isinstance(values, np.ndarray) and (axes := axes_of(hint)):
                named += zip(axes, values.shape, strict=False)
        for axis, length in named:
            if lengths.setdefault(axis, length) != length:
                raise ValueError(f"{key} has {length} along {axis}, another {lengths[axis]}")
