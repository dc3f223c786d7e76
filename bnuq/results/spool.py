"""Raw samples on their way to the result file: spooled to disk chunk by chunk, so that they never fill memory."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import numpy as np
from jaxtyping import Float

from bnuq.errors import ResultError


class Spool:
    """Blocks (T, chunk, K) of one type in a nameless temporary file, gone when the block of `with` ends."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lengths: list[int] = []
        self._rest = (0, 0)
        self.dtype = np.dtype(np.float32)

    def __enter__(self) -> Self:
        try:
            self._file = tempfile.TemporaryFile(dir=self._folder)
        except OSError as error:
            raise ResultError(f"{self._folder}: samples cannot be kept here: {error.strerror}.") from error
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):  # a full disk was told of already; closing only tries once more
            self._file.close()

    def append(self, block: Float[np.ndarray, "sample chunk class"]) -> None:
        """Keep the samples of the next points; ResultError where the disk is full."""
        samples, points, classes = block.shape
        self._rest, self.dtype = (samples, classes), block.dtype
        self._lengths.append(points)
        try:
            self._file.write(np.ascontiguousarray(block).tobytes())
            self._file.flush()
        except OSError as error:
            raise ResultError(
                f"{self._folder}: the raw samples could not be kept: {error.strerror}. "
                "Free some space, or run without --save-samples."
            ) from error

    @property
    def shape(self) -> tuple[int, int, int]:
        """(T, n, K)."""
        return self._rest[0], sum(self._lengths), self._rest[1]

    def blocks(self) -> Iterator[tuple[int, Float[np.ndarray, "sample chunk class"]]]:
        """(number of the first point, its block), in order."""
        self._file.seek(0)
        start = 0
        for points in self._lengths:
            size = self._rest[0] * points * self._rest[1]
            block = np.frombuffer(self._file.read(self.dtype.itemsize * size), dtype=self.dtype)
            yield start, block.reshape(self._rest[0], points, self._rest[1])
            start += points
