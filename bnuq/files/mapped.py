"""Arrays that are read from files: small ones in memory; large ones in a file that is mapped, of which only what is in
use takes memory."""

from __future__ import annotations

import math
import mmap
import os
import shutil
import tempfile
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

_LARGE = 2**28  # bytes of an array that is not mapped, at most
_PIECE = 2**20
_SPARE = 2**30  # bytes of the disk that are left to others
_IN_MEMORY = 2**25  # bytes of the arrays of a pool that are not mapped, at most
_POOLED = 2**27  # bytes of a file of a pool, at least


def is_large(size: int) -> bool:
    """Whether an array of so many bytes is mapped where it can be."""
    return size > _LARGE


def bytes_in_memory(size: int) -> int:
    """What an array of so many bytes takes of memory while it is not in use: nothing, where it is large and the folder
    of temporary files has room for it."""
    return 0 if is_large(size) and _has_room(size) else size


def _has_room(size: int) -> bool:
    """Whether so many bytes can lie in temporary files."""
    if os.name != "posix":  # elsewhere a file that is open cannot be removed
        return False
    try:
        return shutil.disk_usage(tempfile.gettempdir()).free > size + _SPARE
    except OSError:
        return False


def is_mapped(array: object) -> bool:
    """Whether it is an array that lies in a file."""
    return isinstance(_base(array), mmap.mmap)


def _base(array: object) -> object:
    while isinstance(array, np.ndarray) and array.base is not None:
        array = array.base
    return array


def unload(arrays: Iterable[NDArray[Any]]) -> None:
    """Takes the files in which arrays of pools lie out of memory, until they are used again."""
    for file in {id(base): base for base in map(_base, arrays)}.values():
        if isinstance(file, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
            file.madvise(mmap.MADV_DONTNEED)


class Space:
    """Room for so many bytes, filled in order: of the `pool`, or in memory, or of a large array in its own
    temporary file, without a name."""

    def __init__(self, size: int, pool: Pool | None = None) -> None:
        self._size, self._filled = size, 0
        pool = None if is_large(size) else pool  # in a file of its own, as `bytes_in_memory` says
        self._file = tempfile.TemporaryFile() if size and not (pool or bytes_in_memory(size)) else None  # noqa: SIM115
        length = min(size, _PIECE) if self._file else size
        self._array = np.empty(length, np.uint8) if pool is None else pool.empty((length,), np.dtype(np.uint8))

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


class Pool:
    """Makes arrays: the first ones in memory; those beyond 32 MiB in temporary files without names, which are mapped
    and last as long as their arrays. All of them in memory where the disk has no room."""

    def __init__(self) -> None:
        self._in_memory, self._start = 0, 0
        self._file: mmap.mmap | None = None

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
        """A new array, whose values may be any."""
        size = math.prod(shape) * dtype.itemsize
        if self._in_memory + size > _IN_MEMORY:
            if self._file is None or self._start + size > len(self._file):
                self._file, self._start = _new_file(max(size, _POOLED)), 0
            if self._file is not None:
                array = np.ndarray(shape, dtype, buffer=self._file, offset=self._start)
                self._start += -(-size // _ALIGNED) * _ALIGNED
                return array
        self._in_memory += size
        return np.empty(shape, dtype)

    def joined(self, parts: Sequence[NDArray[Any]], axis: int) -> NDArray[Any]:
        """The parts one after another along an axis."""
        if len(parts) == 1:
            return parts[0]
        shape = list(parts[0].shape)
        shape[axis] = sum(part.shape[axis] for part in parts)
        joined = np.concatenate(parts, axis, out=self.empty(tuple(shape), np.result_type(*parts)))
        unload((*parts, joined))
        return joined


_ALIGNED = 64  # bytes


def _new_file(size: int) -> mmap.mmap | None:
    """So many bytes of the disk, which are taken at once: a disk that fills up later would end the process."""
    if not _has_room(size) or not hasattr(os, "posix_fallocate"):
        return None
    try:
        with tempfile.TemporaryFile() as file:
            os.posix_fallocate(file.fileno(), 0, size)
            return mmap.mmap(file.fileno(), size)
    except OSError:
        return None
