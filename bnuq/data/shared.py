"""Points that two sets share: arrays by their values, in float32 unless that merges points, and files by bytes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from bnuq.data.decoded import Decoded
from bnuq.data.points import Points

_READ = 2**28  # bytes of files that one comparison reads
_OPENED = 2**14  # bytes that could be read while a file is opened


class Fingerprints:
    """A set whose points are to be compared with those of others: the hash of each row of an array, and the files of a
    size, of which only those are read that another set has of the same size."""

    def __init__(self, points: Points) -> None:
        self._points, self._inputs = points, points.inputs
        self._contents: dict[int, int] = {}
        self._hashed: dict[type, list[int]] = {}  # of each row, in this type
        self._sets: dict[type, set[int]] = {}

    def shared_with(self, others: Fingerprints) -> tuple[int, int]:
        """How many of these points are among the `others`, and how many were compared: none where one of the two is
        neither an array nor files, and a random part of many files."""
        if isinstance(self._inputs, np.ndarray) and isinstance(others._inputs, np.ndarray):
            are_wide = self._inputs.dtype == others._inputs.dtype == np.float64
            dtype = np.float64 if are_wide and (self._merges or others._merges) else np.float32
            rows, known = self._rows(dtype), others._distinct(dtype)
            return sum(row in known for row in rows), len(rows)
        matches = list(self._matching_files(others))
        return sum(matches), len(matches)

    def _matching_files(self, others: Fingerprints) -> Iterator[bool]:
        budget = _READ
        if self._sizes and others._sizes:
            sizes = [(row, size) for size, rows in self._sizes.items() for row in rows]
            for number in np.random.default_rng(0).permutation(len(sizes)):
                row, size = sizes[number]
                candidates = others._sizes.get(size, [])
                unread = sum(other not in others._contents for other in candidates) + bool(candidates)
                budget -= unread * (size + _OPENED)
                if budget < 0:
                    return
                yield bool(candidates) and self._content(row) in [others._content(other) for other in candidates]

    def _rows(self, dtype: type) -> list[int]:
        if dtype not in self._hashed:
            blocks = (raw.astype(dtype, copy=False) + dtype(0) for raw in self._points.raw_blocks())  # −0 is 0
            if self._points.layout is not None:  # several inputs are packed: they are compared by their bytes
                blocks = iter([np.asarray(self._inputs)])
            self._hashed[dtype] = [hash(row.tobytes()) for block in blocks for row in block]
        return self._hashed[dtype]

    @property
    def _merges(self) -> bool:
        """Whether points that differ have the same values in float32, as times in seconds do."""
        return len(self._distinct(np.float32)) < len(self._distinct(np.float64))

    def _distinct(self, dtype: type) -> set[int]:
        if dtype not in self._sets:
            self._sets[dtype] = {*self._rows(dtype)}
        return self._sets[dtype]

    @cached_property
    def _sizes(self) -> dict[int, list[int]]:
        """The files of each size; empty where the points are not in files."""
        sizes: dict[int, list[int]] = defaultdict(list)
        if isinstance(self._inputs, Decoded) and self._inputs.source.encoded:
            rows: NDArray[np.int64] = self._inputs.rows
            for row, line in zip(rows.tolist(), self._inputs.listing(), strict=True):
                sizes[int(line.rpartition(b"\0")[2])].append(row)
        return sizes

    def _content(self, row: int) -> int:
        if row not in self._contents:
            assert isinstance(self._inputs, Decoded)
            self._contents[row] = hash(self._inputs.source.content(row))
        return self._contents[row]
