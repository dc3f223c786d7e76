"""Raw samples on their way to the result file: spooled to disk chunk by chunk, so that they never fill memory."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
from jaxtyping import Float

from bnuq.errors import ResultError


class Spool:
    """Blocks (T, chunk, K) of one type in a nameless temporary file, gone when the block of `with` ends."""

    def __init__(self, folder: Path, *, advice: str = "run without --save-samples") -> None:
        self._folder, self._advice = folder, advice
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
                f"Free some space, or {self._advice}."
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


@dataclass(frozen=True)
class Scaled:
    """Raw samples in another unit: each times `std`, plus `mean`, output by output."""

    samples: Rounds
    mean: Float[np.ndarray, " output"]
    std: Float[np.ndarray, " output"]

    @property
    def dtype(self) -> np.dtype:
        return self.samples.dtype

    @property
    def shape(self) -> tuple[int, int, int]:
        """(T, n, Q)."""
        return self.samples.shape

    def blocks(self) -> Iterator[tuple[int, Float[np.ndarray, "sample chunk output"]]]:
        """(number of the first point, its block of all draws), in order."""
        for start, block in self.samples.blocks():
            yield start, (block * self.std + self.mean).astype(self.dtype)


class Rounds:
    """Spools of one set whose draws follow one another: the raw samples of a run that was extended."""

    def __init__(self) -> None:
        self._spools: list[Spool] = []

    def begin(self, spool: Spool) -> None:
        """What is appended from now on are further draws of the same points, kept in `spool`."""
        self._spools.append(spool)

    def append(self, block: Float[np.ndarray, "sample chunk class"]) -> None:
        """Keep the samples of the next points of this round."""
        self._spools[-1].append(block)

    @property
    def dtype(self) -> np.dtype:
        return self._spools[0].dtype

    @property
    def shape(self) -> tuple[int, int, int]:
        """(T, n, K)."""
        shapes = [spool.shape for spool in self._spools]
        return sum(samples for samples, _, _ in shapes), shapes[0][1], shapes[0][2]

    def blocks(self) -> Iterator[tuple[int, Float[np.ndarray, "sample chunk class"]]]:
        """(number of the first point, its block of all draws), in order; rounds may have been cut differently."""
        rounds = [spool.blocks() for spool in self._spools]
        waiting = [np.empty((0, 0, 0))] * len(rounds)
        start = 0
        while True:
            for k, blocks in enumerate(rounds):
                if not waiting[k].shape[1]:
                    _, waiting[k] = next(blocks, (0, np.empty((0, 0, 0))))
            count = min(block.shape[1] for block in waiting)
            if not count:
                return
            yield start, np.concatenate([block[:, :count] for block in waiting])
            waiting = [block[:, count:] for block in waiting]
            start += count
