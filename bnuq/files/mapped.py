"""Arrays that are read from files: small ones in memory; large ones in a file that is mapped, of which only what is in
use takes memory."""

from __future__ import annotations

import math
import os
import shutil
import tempfile
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

_LARGE = 2**28  # bytes of an array that is not mapped, at most
_PIECE = 2**20
_SPARE = 2**30  # bytes of the disk that are left to others


def is_large(size: int) -> bool:
    """Whether an array of so many bytes is mapped where it can be."""
    return size > _LARGE


def bytes_in_memory(size: int) -> int:
    """What an array of so many bytes takes of memory while it is not in use: nothing, where it is large and the folder
    of temporary files has room for it."""
    if not is_large(size) or os.name != "posix":  # elsewhere a file that is open cannot be removed
        return size
    try:
        free = shutil.disk_usage(tempfile.gettempdir()).free
    except OSError:
        return size
    return 0 if free > size + _SPARE else size


class Space:
    """Room for so many bytes, filled in order: in memory or, of a large array, in a temporary file without a name."""

    def __init__(self, size: int) -> None:
        self._size, self._filled = size, 0
        self._file = tempfile.TemporaryFile() if size and not bytes_in_memory(size) else None  # noqa: SIM115
        self._array = np.empty(min(size, _PIECE) if self._file else size, np.uint8)

    def __enter__(self) -> Space:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file:
            self._file.close()  # what is mapped stays

    @property
    def next(self) -> memoryview:
        """The next bytes to be filled, empty at the end."""
        start, count = 0 if self._file else self._filled, min(_PIECE, self._size - self._filled)
        return self._array[start : start + count].data

    def filled(self, count: int) -> None:
        """So many of the `next` bytes were filled."""
        if self._file:
            self._file.write(self._array[:count].data)  # not through the mapping, which a full disk would end
        self._filled += count

    def bytes(self) -> NDArray[np.uint8]:
        """What was filled."""
        if self._file is None or not self._filled:
            return self._array[: self._filled]
        self._file.flush()
        return np.memmap(self._file, np.uint8, mode="r", shape=(self._filled,))


def joined(parts: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """The rows of all parts, of one type, in order; large ones are mapped."""
    size = sum(part.nbytes for part in parts)
    if len(parts) == 1 or bytes_in_memory(size):
        return parts[0] if len(parts) == 1 else np.concatenate(parts)
    with Space(size) as space:
        for part in parts:
            step = max(1, _PIECE // max(1, math.prod(part.shape[1:]) * part.itemsize))
            for start in range(0, len(part), step):
                piece = np.ascontiguousarray(part[start : start + step]).reshape(-1).view(np.uint8)
                while len(piece):
                    count = min(len(piece), len(space.next))
                    space.next[:count] = piece[:count].data
                    space.filled(count)
                    piece = piece[count:]
        return space.bytes().view(parts[0].dtype).reshape(-1, *parts[0].shape[1:])
