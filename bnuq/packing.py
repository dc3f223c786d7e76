"""Packs several inputs of a point into one row of words, exactly for numbers of every type, so that sets, mini-batches
and plans hold a single array."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import zip_longest
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bnuq.errors import DataError
from bnuq.frozen import frozen

_WORD = 8  # bytes
_STORED = {"float16": "float32", "uint16": "int32", "uint32": "int64", "uint64": "int64"}


@frozen
class Input:
    """One input of a point; `name` is empty if it is passed by its place."""

    name: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def entries(self) -> int:
        return math.prod(self.shape)

    @property
    def words(self) -> int:
        return -(-self.entries * np.dtype(self.dtype).itemsize // _WORD)

    def __str__(self) -> str:
        return f"{self.name} {self.shape} {self.dtype}".lstrip()


@frozen
class Layout:
    """The inputs of a point, in the order of their words."""

    inputs: tuple[Input, ...]

    @property
    def by_name(self) -> bool:
        return bool(self.inputs[0].name)

    def __str__(self) -> str:
        return ", ".join(map(str, self.inputs))


def difference(layout: Layout | None, expected: Layout | None) -> str:
    """The first input in which two layouts differ, for a message; empty if they are the same."""
    pair = (() if side is None else side.inputs for side in (layout, expected))
    first = next(((a, b) for a, b in zip_longest(*pair) if a != b), None)
    return "" if first is None else f"{first[0] or 'no further input'}, where the others have {first[1] or 'none'}"


def pack(inputs: Mapping[str, NDArray[Any]] | Sequence[NDArray[Any]], where: str) -> tuple[NDArray[np.int64], Layout]:
    """The points (n, words) that have these inputs, arrays (n, …) by name or by place, and their layout.

    Floats keep float32 or float64, and integers and truth values their type. Raises DataError, which begins with
    `where` and names the input, if one is not an array of finite numbers, or their lengths differ.
    """
    named = inputs.items() if isinstance(inputs, Mapping) else [("", values) for values in inputs]
    arrays = [
        (str(name), _numbers(values, f"{where}: input {name or number}"))
        for number, (name, values) in enumerate(named, start=1)
    ]
    lengths = [len(array) for _, array in arrays]
    if len(set(lengths)) > 1:
        shown = ", ".join(f"{name or number} {len(array)}" for number, (name, array) in enumerate(arrays, start=1))
        raise DataError(f"{where}: its inputs have different numbers of examples ({shown}); expected one for all.")
    layout = Layout(tuple(Input(name, array.shape[1:], array.dtype.name) for name, array in arrays))
    packed = np.zeros((lengths[0], sum(part.words for part in layout.inputs)), np.int64)
    start = 0
    for part, (_, array) in zip(layout.inputs, arrays, strict=True):
        content = array.reshape(len(array), -1).view(np.uint8)
        packed.view(np.uint8)[:, start : start + content.shape[1]] = content
        start += _WORD * part.words
    return packed, layout


def _numbers(values: NDArray[Any], where: str) -> NDArray[Any]:
    """`values` as an array that torch can hold."""
    array = np.asarray(values)
    if array.dtype.kind == "O":
        raise DataError(f"{where} is not an array of numbers of one shape; pad sequences to one length.")
    if array.dtype.kind not in "fiub":
        raise DataError(f"{where} holds {array.dtype} values; expected numbers. Leave out all other inputs.")
    if array.ndim == 0 or array.size == 0:
        raise DataError(f"{where} has shape {array.shape}; expected numbers for each example.")
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        row = int(np.argmin(np.isfinite(array).reshape(len(array), -1).all(axis=1)))
        raise DataError(
            f"{where} holds NaN or infinity, first in row {row} (counted from 0). Remove or fill such rows."
        )
    if array.dtype.name == "uint64" and array.max() > np.iinfo(np.int64).max:
        raise DataError(f"{where} holds {array.max()}; expected integers below 2⁶³.")
    stored = _STORED.get(array.dtype.name, array.dtype.name if array.dtype.itemsize <= _WORD else "float64")
    return np.ascontiguousarray(array, dtype=stored)
