"""What the readers share: names of arrays, limits on declared sizes, and one message for a foreign parser's failure."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from bnuq.data.points import Contents
from bnuq.errors import BnuqError, DataError
from bnuq.files.limits import check_size
from bnuq.findings import note

_NAMES = (("x", "y"), ("X", "y"), ("images", "labels"), ("data", "target"))
_PIECE = 2**22
_TARGETS = ("y", "labels", "target", "targets", "Y")


GROUP = "group"  # what the array or the column of the groups is called, unless it is said


def named_contents(
    path: Path, sizes: Mapping[str, int], read: Callable[[str], NDArray[Any]], *, stored: int, group: str = GROUP
) -> Contents:
    """Inputs, targets and groups by the names that arrays usually have; only these are read.

    `sizes` are the bytes that each array declares; those of the arrays used are added up, and checked against the
    `stored` bytes of the file and the memory, before the first is read.
    """
    names = list(sizes)
    pair = next(((x, y) for x, y in _NAMES if x in names), None)
    if pair is None:
        raise DataError(
            f"{path}: has no array called x (or X, images, data); it has {', '.join(map(repr, names[:20])) or 'none'}. "
            "Write the inputs as x and the targets as y."
        )
    target = next((name for name in (pair[1], *_TARGETS) if name in names), None)
    used = {pair[0], target, group}
    others = [name for name in names if name not in used]
    check_size(path, sum(sizes[name] for name in names if name in used), stored=stored, error=DataError)
    return Contents(
        read(pair[0]),
        None if target is None else read(target),
        read(group) if group in names else None,
        findings=(note("arrays-unused", names=others),) if others else (),
    )


def array_bytes(shape: Iterable[int], dtype: np.dtype[Any]) -> int:
    """Size of such an array, in integers that do not wrap around."""
    return math.prod(shape) * dtype.itemsize


def read_bytes(file: IO[bytes], size: int) -> NDArray[np.uint8]:
    """Up to `size` bytes, held in memory once: a decompressor's own `read` holds them twice."""
    buffer, filled = np.empty(size, np.uint8), 0
    while filled < size and (piece := file.read(min(_PIECE, size - filled))):
        buffer[filled : filled + len(piece)] = np.frombuffer(piece, np.uint8)
        filled += len(piece)
    return buffer[:filled]


@contextlib.contextmanager
def readable(path: Path, kind: str) -> Iterator[None]:
    """Turn any failure of a foreign parser into one DataError: damaged files make parsers raise anything."""
    try:
        yield
    except BnuqError:
        raise
    except MemoryError as error:
        raise DataError(f"{path}: there is not enough memory to read it. Use a part of it.") from error
    except Exception as error:
        if isinstance(error, OSError) and error.errno and error.strerror:  # the system's, not a parser's
            raise DataError(f"{path}: cannot be read: {error.strerror}. Was it changed meanwhile?") from error
        reason = " ".join(str(error).split())[:200].strip("'\"") or type(error).__name__
        raise DataError(f"{path}: cannot be read as {kind}: it is cut short or damaged ({reason}).") from error
