"""Units of work: samples of one method for a tile of points of one set, scored; and how they merge.

A unit is a pure function of the request and its address, independent of its neighbours, and small when finished. Any
of the `executors` that gives the same units in the same order gives the same result.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from bnuq.data import Points
from bnuq.files.journal import Arrays
from bnuq.files.mapped import Pool
from bnuq.frozen import frozen

_AXES = {"point": 0, "draw": 1}  # the axis of the points, by kind of array


@frozen
class WorkUnit:
    """The address of a unit: these draws of `method`, for these points of the set of that name and digest;
    `batch_size` where several sizes are swept."""

    method: str
    set: str
    sha256: str
    points: range
    draws: range
    batch_size: int | None = None

    @property
    def name(self) -> str:
        """The address as the name of a file."""
        size = "" if self.batch_size is None else f"-b{self.batch_size}"
        ranges = (f"{part.start}_{part.stop}" for part in (self.draws, self.points))
        return "-".join((f"{self.method}{size}", self.set, self.sha256[:8], *ranges))


def tiles(name: str, points: Points, size: int, *, method: str, draws: range) -> list[WorkUnit]:
    """The units of a set, of `size` points each."""
    starts = range(0, len(points), size)
    return [
        WorkUnit(method, name, points.sha256, range(start, min(len(points), start + size)), draws) for start in starts
    ]


UnitGroup = tuple[WorkUnit, ...]  # units of the same points, which pass together


class Blocks:
    """Scores of consecutive points, block by block.

    Arrays of the kind "point" hold a value of each point along their first axis, those of the kind "draw" along their
    second one; "sum" holds sums over a block, and "most" the largest of a block. Those of any other kind, with a value
    of each block, are only kept.
    """

    def __init__(self) -> None:
        self._values: dict[str, list[np.ndarray]] = {}

    def add(self, kind: str, values: Mapping[str, np.ndarray]) -> None:
        """Add values of the next block."""
        for name, value in values.items():
            self._values.setdefault(f"{kind}/{name}", []).append(value)

    def arrays(self) -> Arrays:
        """What a unit keeps, which is given away: sums stay those of its blocks, so that they can be added in one order
        whatever the units."""
        added, self._values = self._values, {}
        return {
            name: np.stack(values) if kind not in _AXES else np.concatenate(values, axis=_AXES[kind])
            for name, values in added.items()
            for kind in [name.partition("/")[0]]
        }


class Gathered:
    """The arrays of a set by kind and name, from those of its units, which are added in the order of the points. Arrays
    of no kind, or of another one, are left out. Values of many points are mapped: the number of points takes disk, and
    hardly any memory. The `pool` makes further arrays of the set."""

    def __init__(self, units: Iterable[Arrays] = ()) -> None:
        self._values: dict[str, dict[str, list[np.ndarray]]] = {kind: {} for kind in _AXES}
        self._sums: Arrays = {}
        self._most: Arrays = {}
        self.pool = Pool()
        for arrays in units:
            self.add(arrays)

    def add(self, arrays: Arrays) -> None:
        """Add the arrays of the next unit."""
        for key, value in arrays.items():
            kind, _, name = key.partition("/")
            if kind in _AXES:
                pooled = self.pool.empty(value.shape, value.dtype)
                pooled[...] = value
                self._values[kind].setdefault(name, []).append(pooled)
            elif kind == "most":
                self._most[name] = np.asarray(np.maximum(self._most.get(name, -np.inf), value.max(axis=0)))
            elif kind == "sum":
                for block in value:
                    self._sums[name] = self._sums[name] + block if name in self._sums else block

    def by_kind(self) -> dict[str, Arrays]:
        """The arrays of all units, which are given away."""
        joined = {
            kind: {name: self.pool.joined(of_kind.pop(name), _AXES[kind]) for name in [*of_kind]}
            for kind, of_kind in self._values.items()
        }
        return joined | {"sum": self._sums, "most": self._most}
