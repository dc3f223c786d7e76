"""Reads the arrays or the columns of a file by their names, whatever they are of: predictions, labels, groups, ids."""

from __future__ import annotations

import csv
import itertools
import json
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bnuq.data.readers.common import listed, readable
from bnuq.data.readers.npy import npz_arrays, read_npy
from bnuq.data.readers.tables import Words, are_names, fields_of, header_of, is_word, numbers_of
from bnuq.errors import DataError
from bnuq.files.apart import ask
from bnuq.files.content import kind_of, what_is_wrong_with
from bnuq.files.limits import check_memory, check_size
from bnuq.frozen import frozen

_BYTES_OF_TEXT = 4  # of memory that a byte of a table takes


@frozen
class Columns:
    """Numbers or texts by name, a row for each point (of an array of samples, the second axis); the one array of a .npy
    file has no name. `keys` are the names along the last axis of what JSON objects hold."""

    source: str
    values: Mapping[str, NDArray[Any]]
    keys: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def named(self, names: Sequence[str]) -> str | None:
        """The first of these names, in any case, that there is."""
        lower = {name.lower(): name for name in self.values}
        return next((lower[name] for name in names if name in lower), None)

    def __getitem__(self, name: str) -> NDArray[Any]:
        if name not in self.values:
            raise DataError(f"{self.source}: has no array or column {name!r}; it has {listed(list(self.values))}.")
        return self.values[name]


class _Archive(Mapping[str, NDArray[Any]]):
    """The arrays of a `.npz` file. Each is read when it is first asked for: others may be large, or hold objects."""

    def __init__(self, path: Path) -> None:
        self._path, self._arrays = path, dict[str, NDArray[Any]]()
        with npz_arrays(path) as (self._sizes, _):
            check_size(path, sum(self._sizes.values()), stored=path.stat().st_size, error=DataError, memory=False)

    def __getitem__(self, name: str) -> NDArray[Any]:
        size = self._sizes[name]
        if name not in self._arrays:
            check_memory(self._path, size, error=DataError)
            with npz_arrays(self._path) as (_, read):
                self._arrays[name] = read(name)
        return self._arrays[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._sizes)

    def __len__(self) -> int:
        return len(self._sizes)


def read_columns(path: Path) -> Columns:
    """What a `.npz`, `.npy`, CSV, parquet or JSON lines file holds; DataError for any other. Nothing is unpickled."""
    kind = kind_of(path)
    if wrong := what_is_wrong_with(kind):
        raise DataError(f"{path}: {wrong}")
    if kind == "npy":
        return Columns(f"{path}", {"": np.asarray(read_npy(path).inputs)})
    if kind == "zip":
        return Columns(f"{path}", _Archive(path))
    if kind == "parquet":
        return Columns(f"{path}", _of_parquet(path))
    if kind != "text":
        raise DataError(f"{path}: is not a file of predictions or labels; expected .npz, .npy, CSV, parquet or JSONL.")
    with readable(path, "a text"), path.open(encoding="utf-8-sig") as file:
        is_json = file.read(4096).lstrip()[:1] == "{"
    check_memory(path, _BYTES_OF_TEXT * path.stat().st_size, error=DataError)
    return _of_json_lines(path) if is_json else Columns(f"{path}", _of_table(path))


def _of_parquet(path: Path) -> dict[str, NDArray[Any]]:
    header = header_of(path)
    with readable(path, "parquet"):
        location, size, words = str(path.absolute()), header["bytes"], header["not numbers"]
        check_size(path, size, stored=path.stat().st_size, error=DataError)
        numeric = [name for name in header["names"] if name not in words]
        columns = ask("parquet numbers", location, numeric, size) if numeric else np.empty((0, 0))
        values = {name: columns[:, at] for at, name in enumerate(numeric)}
        for name in words:
            texts, codes = ask("parquet values", location, name, size)
            values[name] = np.array([str(text) for text in texts])[codes]
        return {name: values[name] for name in header["names"]}


def _of_table(path: Path) -> dict[str, NDArray[Any]]:
    with readable(path, "a table"), path.open(encoding="utf-8-sig", newline=None) as file:
        first = file.readline()
        separator, fields = fields_of(path, first) if any(mark in first for mark in ",;\t") else (",", [first.strip()])
        named = are_names(path, fields)
        rows = (line for line in itertools.chain(() if named else (first,), file) if line.strip())
        if (top := next(rows, None)) is None:
            raise DataError(f"{path}: holds no rows; expected at least one point.")
        names = fields if named else [f"column {number}" for number in range(len(fields))]
        if len({*names}) < len(names):
            raise DataError(f"{path}: two columns have one name; expected {listed(names)} to differ.")
        cells = next(csv.reader([top], delimiter=separator))
        words = {at: Words("value") for at in range(len(names)) if is_word(cells, at)}
        converters = {at: column.number for at, column in words.items()}
        table = numbers_of(path, itertools.chain((top,), rows), separator, converters, names)
    if table.shape[1] != len(names):
        raise DataError(f"{path}: the header names {len(names)} columns and the rows have {table.shape[1]}.")
    return {
        name: np.array(list(words[at].codes))[table[:, at].astype(np.intp)] if at in words else table[:, at]
        for at, name in enumerate(names)
    }


def _of_json_lines(path: Path) -> Columns:
    """An object of each point: numbers, texts, lists of numbers or of such lists, or objects of numbers by class."""
    with readable(path, "JSON lines"), path.open(encoding="utf-8-sig") as file:
        rows = ((number, json.loads(line)) for number, line in enumerate(file) if line.strip())
        number, first = next(rows)
        keys = {name: tuple(value) for name, value in first.items() if isinstance(value, dict)}
        collected: dict[str, Any] = {name: [] if isinstance(of, str) else array("d") for name, of in first.items()}
        shapes = {name: np.shape(list(value.values()) if name in keys else value) for name, value in first.items()}
        for number, row in itertools.chain([(number, first)], rows):  # noqa: B020 - the first row again
            if row.keys() != first.keys():
                odd = listed(sorted(row.keys() ^ first.keys()))
                raise DataError(f"{path}: line {number + 1} and the first differ in {odd}; expected the same names.")
            for name, values in collected.items():
                _add(values, row[name], keys.get(name), shapes[name], f"{path}: {name} in line {number + 1}")
    return Columns(f"{path}", {name: _joined(of, shapes[name]) for name, of in collected.items()}, keys)


def _add(collected: Any, value: Any, keys: tuple[str, ...] | None, shape: tuple[int, ...], where: str) -> None:
    if isinstance(collected, list):
        collected.append(str(value))
        return
    if keys is not None:
        if not isinstance(value, dict) or value.keys() != {*keys}:
            raise DataError(f"{where} is not a number for each of {listed(keys)}, as in the first line.")
        value = [value[key] for key in keys]
    before, expected = len(collected), int(np.prod(shape))
    try:
        collected.extend(_flat(value))
    except TypeError as error:
        raise DataError(f"{where} is {json.dumps(value)[:80]}; expected numbers, as in the first line.") from error
    if len(collected) - before != expected:
        raise DataError(f"{where} holds {len(collected) - before} numbers; expected {expected}, as in the first line.")


def _flat(value: Any) -> Iterator[float]:
    if isinstance(value, list):
        for item in value:
            yield from _flat(item)
    else:
        yield value


def _joined(values: Any, shape: tuple[int, ...]) -> NDArray[Any]:
    if isinstance(values, list):
        return np.array(values)
    joined = np.frombuffer(values).reshape(-1, *shape)
    return np.moveaxis(joined, 1, 0) if len(shape) == 2 else joined  # (n, T, K) as (T, n, K)
