"""Points from the user's own code: a torch Dataset, or an iterable of batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
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
    """All points that the factory's Dataset holds, or its batches joined, or the arrays that it gives; tensors become
    arrays.

    DataError where they take more than `room` bytes while they are joined, or never end.
    """
    made = factory()
    with running(spec, "reading its points"):
        if (arrays := _whole_arrays(made)) is not None:
            return Contents(
                arrays[0], arrays[1] if len(arrays) > 1 else None, findings=(note("read-from-factory", factory=spec),)
            )
        single = _gives_single_points(made)
        if single and hasattr(made, "__getitem__") and hasattr(made, "__len__"):
            pieces = _taken(spec, (made[index] for index in range(len(made))), single, room)
        elif isinstance(made, Iterable):
            pieces = _taken(spec, made, single, room)
        else:
            raise DataError(
                f"{spec}: gave a {type(made).__name__}; expected a torch Dataset or an iterable of batches, "
                "(x, y) or x alone."
            )
    if not pieces:
        raise DataError(f"{spec}: gave no points; expected at least one.")
    if len({len(piece) for piece in pieces}) > 1:
        raise DataError(f"{spec}: gives targets with some points and not with others.")
    joined = [_joined(spec, part, single) for part in zip(*pieces, strict=True)]
    return Contents(
        joined[0], joined[1] if len(joined) > 1 else None, findings=(note("read-from-factory", factory=spec),)
    )


def _taken(spec: str, made: Iterable[Any], single: bool, room: int | None) -> list[tuple[NDArray[Any], ...]]:
    pieces: list[tuple[NDArray[Any], ...]] = []
    points = size = 0
    for piece in made:
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


def _whole_arrays(made: Any) -> tuple[NDArray[Any], ...] | None:
    """(x,) or (x, y) where the factory gives whole arrays: under these names, or as a tuple of two of one length."""
    if isinstance(made, Mapping) and "x" in made:
        return tuple(_array(made[name]) for name in ("x", "y") if name in made)
    if isinstance(made, tuple) and len(made) == 2 and all(hasattr(part, "ndim") for part in made):
        x, y = map(_array, made)
        return (x, y) if x.ndim > y.ndim >= 1 and len(x) == len(y) else None
    return None


def _gives_single_points(made: Any) -> bool:
    """Told without importing torch: whoever made a Dataset has imported it."""
    if isinstance(made, Sequence) and made and isinstance(made[0], tuple | list) and len(made[0]) == 2:
        return _array(made[0][1]).ndim == 0  # a list of (input, label) pairs
    if any(kind.__name__ == "IterableDataset" for kind in type(made).__mro__):
        return True
    return hasattr(made, "__getitem__") and hasattr(made, "__len__") and not isinstance(made, Sequence)


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
