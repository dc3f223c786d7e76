"""Result files of every kind: recognised, and read whole or refused with one message."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np

from bnuq.errors import ResultError
from bnuq.files.hdf5 import open_hdf5

Kind = Literal[
    "evaluate",
    "several",
    "sweep",
    "inspection",
    "reproduce uci",
    "reproduce toy",
    "reproduce batch-size",
    "reproduce pll-over-samples",
]

_COMMANDS: dict[Kind, str] = {
    "evaluate": "bnuq evaluate",
    "several": "bnuq evaluate for a [runs] list",
    "sweep": "bnuq sweep-batch-size",
    "inspection": "bnuq inspect",
    "reproduce uci": "bnuq reproduce uci",
    "reproduce toy": "bnuq reproduce toy",
    "reproduce batch-size": "bnuq reproduce batch-size",
    "reproduce pll-over-samples": "bnuq reproduce pll-over-samples",
}
_DAMAGE = (
    KeyError,
    ValueError,
    TypeError,
    OSError,
    IndexError,
    AttributeError,
    RuntimeError,
    ArithmeticError,
    RecursionError,
)


def kind_of_result(path: Path) -> Kind:
    """What the result file at `path` is of; ResultError where it is no result, or cannot be read at all."""
    with open_hdf5(path) as file:
        if (found := _kind(file)) is None:
            raise ResultError(f"{path} is not a result file of bnuq; expected one written by bnuq evaluate.")
        return found


def _kind(file: Any) -> Kind | None:
    attributes = file.attrs
    if "format" not in attributes or "bnuq" not in attributes:
        return None
    said = attributes.get("kind", attributes.get("command", "evaluate" if "run" in attributes else None))
    return next((kind for kind in _COMMANDS if isinstance(said, str) and said == kind), None)


@contextlib.contextmanager
def open_result(path: Path, kind: Kind, *, newest: int) -> Iterator[Any]:
    """The result file at `path`, open to be read inside the block.

    Raises ResultError where it is not of this kind or of a format above `newest`, and for whatever the block finds
    missing or wrong in it.
    """
    with open_hdf5(path) as file:
        try:
            if (found := _kind(file)) != kind:
                other = "" if found is None else f", but of {_COMMANDS[found]}"
                raise ResultError(f"{path} is not a result file of {_COMMANDS[kind]}{other}.")
            version = np.asarray(file.attrs["format"])[()]
            if not isinstance(version, int | np.integer) or version < 1:
                raise ValueError("its format has no number")
            if version > newest:
                raise ResultError(
                    f"{path} was written by bnuq {file.attrs.get('bnuq', '?')} in format {version}; this version "
                    f"reads up to format {newest}. Please update bnuq."
                )
            yield file
        except _DAMAGE as error:
            said = " ".join(str(error).split())[:300].strip("'\"")
            raise ResultError(f"{path}: the result file is incomplete or damaged ({said}).") from error


def numbers(
    room: Any, key: str, kinds: str, *, shape: tuple[int, ...] | None = None, dimensions: int = 1
) -> np.ndarray:
    """A data set of numbers of these kinds and this shape; ValueError for anything else."""
    values = room[key][()]
    if not isinstance(values, np.ndarray) or values.dtype.kind not in kinds:
        raise ValueError(f"{room.name}/{key} does not hold the numbers that belong there")
    if values.shape != shape if shape is not None else values.ndim != dimensions:
        raise ValueError(f"{room.name}/{key} has shape {values.shape} where another belongs")
    return values
