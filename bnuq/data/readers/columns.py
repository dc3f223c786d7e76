"""Reads the arrays or the columns of a file by their names, whatever they are of: predictions, labels, groups, ids."""

from __future__ import annotations

import contextlib
import itertools
import json
from array import array
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bnuq.data.readers.common import GROUP, listed, readable
from bnuq.data.readers.delimited import EXACT, text_columns
from bnuq.data.readers.npy import npz_arrays, read_npy
from bnuq.data.readers.tables import header_of
from bnuq.errors import DataError
from bnuq.files.apart import ask
from bnuq.files.content import kind_of, what_is_wrong_with
from bnuq.files.limits import check_memory, check_size
from bnuq.frozen import frozen

IDS = ("id", "ids", "uid", "sample_id", "example_id", GROUP, "groups")  # columns whose values are names
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


def read_columns(path: Path, *, ids: Collection[str] = IDS) -> Columns:
    """What a `.npz`, `.npy`, CSV, parquet or JSON lines file holds; DataError for any other. Nothing is unpickled.
    Columns of whole numbers beyond 2⁵³ hold texts; those called as one of `ids`, too, if they say more than their
    numbers, see `text_columns`."""
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
    return _of_json_lines(path) if is_json else Columns(f"{path}", text_columns(path, ids=ids))


def _of_parquet(path: Path) -> dict[str, NDArray[Any]]:
    header = header_of(path)
    with readable(path, "parquet"):
        location, size, words = str(path.absolute()), header["bytes"], header["not numbers"]
        check_size(path, size, stored=path.stat().st_size, error=DataError)
        numeric = [name for name in header["names"] if name not in words]
        columns = ask("parquet numbers", location, numeric, size) if numeric else np.empty((0, 0))
        values = {name: columns[:, at] for at, name in enumerate(numeric)}
        large = [name for name in numeric if (np.abs(values[name]) >= EXACT).any()]
        for name in (*words, *large):
            texts, codes = ask("parquet values", location, name, size)
            if name in words or all(isinstance(texts[code], int) for code in codes):
                values[name] = np.array([str(text) for text in texts])[codes]
        return {name: values[name] for name in header["names"]}


def _of_json_lines(path: Path) -> Columns:
    """An object of each point: numbers, texts, lists of numbers or of such lists, or objects of numbers by class."""
    with readable(path, "JSON lines"), path.open(encoding="utf-8-sig") as file:
        rows = ((number, json.loads(line)) for number, line in enumerate(file, 1) if line.strip())
        number, first = next(rows)
        if not isinstance(first, dict):
            raise DataError(f"{path}: line {number} is no object of names and values.")
        keys = {name: tuple(value) for name, value in first.items() if isinstance(value, dict)}
        collected: dict[str, Any] = {name: [] if _is_scalar(of) else array("d") for name, of in first.items()}
        shapes: dict[str, tuple[int, ...]] = {}
        for number, row in itertools.chain([(number, first)], rows):  # noqa: B020 - the first row again
            if not isinstance(row, dict) or row.keys() != first.keys():
                odd = listed(sorted(row.keys() ^ first.keys())) if isinstance(row, dict) else "that it is no object"
                raise DataError(f"{path}: line {number} and the first differ in {odd}; expected the same names.")
            for name, values in collected.items():
                where = f"{path}: {name} in line {number}"
                if isinstance(values, list):
                    values.append(_scalar(row[name], first[name], where))
                else:
                    numbers = _numbers(row[name], keys.get(name), where)
                    if numbers.shape != shapes.setdefault(name, numbers.shape):
                        raise DataError(f"{where} has shape {numbers.shape}; expected {shapes[name]}, as in the first.")
                    values.frombytes(numbers.tobytes())
    return Columns(f"{path}", {name: _joined(of, shapes.get(name, ())) for name, of in collected.items()}, keys)


def _is_scalar(value: Any) -> bool:
    return isinstance(value, str | int | float)


def _scalar(value: Any, first: Any, where: str) -> Any:
    """A text or a number of a point; DataError where it is not one as the first is, but for a number among texts."""
    if not _is_scalar(value) or (isinstance(value, str) and not isinstance(first, str)):
        expected = "a text" if isinstance(first, str) else "a number"
        raise DataError(f"{where} is {json.dumps(value)[:80]}; expected {expected}, as in the first line.")
    return str(value) if isinstance(first, str) else value


def _numbers(value: Any, keys: tuple[str, ...] | None, where: str) -> NDArray[np.float64]:
    """The numbers of a point as an array; DataError for anything else, and for lists of several lengths."""
    if keys is not None:
        if not isinstance(value, dict) or value.keys() != {*keys}:
            raise DataError(f"{where} is not a number for each of {listed(keys)}, as in the first line.")
        value = [value[key] for key in keys]
    with contextlib.suppress(ValueError):  # of lists that fit into no array
        numbers = np.asarray(value)
        if numbers.ndim and numbers.dtype.kind in "biuf":
            return numbers.astype(np.float64)
    raise DataError(f"{where} is {json.dumps(value)[:80]}; expected numbers, as in the first line.")


def _joined(values: Any, shape: tuple[int, ...]) -> NDArray[Any]:
    if isinstance(values, list):
        are_texts = any(isinstance(value, str) or (isinstance(value, int) and abs(value) > EXACT) for value in values)
        return np.array([*map(str, values)]) if are_texts else np.array(values, dtype=np.float64)
    joined = np.frombuffer(values).reshape(-1, *shape)
    return np.moveaxis(joined, 1, 0) if len(shape) == 2 else joined  # (n, T, K) as (T, n, K)
