"""Points from the user's own code: a torch Dataset, or an iterable of batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bnuq.data.points import Contents
from bnuq.errors import DataError
from bnuq.findings import note
from bnuq.trust import running

_MOST = 20_000_000  # points, or batches, that are taken one by one
_OBJECT = 200  # bytes of an array beside its numbers


def read_factory(spec: str, factory: Callable[[], Any], *, room: int | None = None) -> Contents:
    """The points of what the factory gives, see `read_object`."""
    contents = read_object(spec, factory(), room=room)
    return replace(contents, findings=(note("read-from-factory", factory=spec), *contents.findings))


def read_object(spec: str, data: Any, *, room: int | None = None) -> Contents:
    """All points that a Dataset holds, or the batches of an iterable joined, or arrays; tensors become arrays.

    DataError where they take more than `room` bytes while they are joined, or never end.
    """
    with running(spec, "reading its points"):
        if (arrays := _arrays(data)) is not None:
            return Contents(arrays[0], arrays[1] if len(arrays) > 1 else None)
        single = _gives_single_points(data)
        if single and hasattr(data, "__getitem__") and hasattr(data, "__len__"):
            pieces = _pieces_of(spec, (data[index] for index in range(len(data))), single, room)
        elif isinstance(data, Iterable):
            pieces = _pieces_of(spec, data, single, room)
        else:
            raise DataError(
                f"{spec}: gave a {type(data).__name__}; expected a torch Dataset or an iterable of batches, "
                "(x, y) or x alone."
            )
    if not pieces:
        raise DataError(f"{spec}: gave no points; expected at least one.")
    if len({len(piece) for piece in pieces}) > 1:
        raise DataError(f"{spec}: gives targets with some points and not with others.")
    joined = [_joined(spec, part, single) for part in zip(*pieces, strict=True)]
    return Contents(joined[0], joined[1] if len(joined) > 1 else None)


def _pieces_of(spec: str, data: Iterable[Any], single: bool, room: int | None) -> list[tuple[NDArray[Any], ...]]:
    pieces: list[tuple[NDArray[Any], ...]] = []
    points = size = 0
    for piece in data:
        parts = _parts(piece)
        pieces.append(parts)
        points += 1 if single or parts[0].ndim == 0 else len(parts[0])
        size += sum(part.nbytes + _OBJECT for part in parts)
        if len(pieces) >= _MOST or (room is not None and 2 * size > room):
            why = f"{_MOST:,} pieces" if len(pieces) >= _MOST else "the free memory"
            raise DataError(
                f"{spec}: has given {points:,} points ({size / 1e9:.2g} GB) and gives more, beyond {why}. Does it ever "
                "end? Let it give a part of them."
            )
    return pieces


def _arrays(data: Any) -> tuple[NDArray[Any], ...] | None:
    """(x,) or (x, y) where the factory gives whole arrays: under these names, or as a tuple of two of one length."""
    if isinstance(data, Mapping) and "x" in data:
        return tuple(_array(data[name]) for name in ("x", "y") if name in data)
    if isinstance(data, tuple) and len(data) == 2 and all(hasattr(part, "ndim") for part in data):
        x, y = map(_array, data)
        return (x, y) if x.ndim > y.ndim >= 1 and len(x) == len(y) else None
    return None


def _gives_single_points(data: Any) -> bool:
    """Whether items are single points rather than batches; checked without importing torch."""
    if isinstance(data, Sequence) and data and isinstance(data[0], tuple | list) and len(data[0]) == 2:
        return _array(data[0][1]).ndim == 0  # a list of (input, label) pairs
    if any(kind.__name__ == "IterableDataset" for kind in type(data).__mro__):
        return True
    return hasattr(data, "__getitem__") and hasattr(data, "__len__") and not isinstance(data, Sequence)


def _parts(piece: Any) -> tuple[NDArray[Any], ...]:
    if isinstance(piece, tuple | list) and len(piece) >= 2:
        return _array(piece[0]), _array(piece[1])
    return (_array(piece[0] if isinstance(piece, tuple | list) and len(piece) == 1 else piece),)


def _array(value: Any) -> NDArray[Any]:
    if hasattr(value, "detach"):
        value = value.detach().cpu()
        value = value.float() if str(value.dtype) == "torch.bfloat16" else value
        return value.numpy()
    return np.asarray(value)


def _joined(spec: str, parts: Sequence[NDArray[Any]], single: bool) -> NDArray[Any]:
    shapes = {part.shape if single else part.shape[1:] for part in parts}
    if len(shapes) > 1 or (not single and any(part.ndim == 0 for part in parts)):
        shown = " and ".join(str(shape) for shape in sorted(shapes)[:2])
        raise DataError(f"{spec}: gives points of different shapes, {shown or 'or none'}; expected one shape.")
    return np.stack(parts) if single else np.concatenate(parts)
