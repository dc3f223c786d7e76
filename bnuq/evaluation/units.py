"""Units of work: samples of one method for a tile of points of one set, scored; how they merge, and what they keep.

A unit is a pure function of the request and its address, independent of its neighbours, and small when finished. Any
of the `executors` that gives the same units in the same order gives the same result.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from bnuq.data import Points
from bnuq.errors import ResultError
from bnuq.files.journal import Arrays, Journal
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
    parts = [range(start, min(len(points), start + size)) for start in starts]
    return [WorkUnit(method, name, points.sha256, part, draws) for part in parts]


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


MAP = "map/"  # before the names of maps of pixels
OUTPUTS = "outputs"  # the raw samples of a unit


@frozen
class StoredSamples:
    """The raw samples of one set in a journal: `units` of the first round of draws, and the draws of all rounds."""

    journal: Journal
    units: tuple[WorkUnit, ...]
    rounds: tuple[range, ...]
    shape: tuple[int, int, int]  # (T, n, K)
    dtype: np.dtype

    @staticmethod
    def of(journal: Journal, units: Sequence[WorkUnit], rounds: Sequence[range]) -> StoredSamples:
        """The samples of these units under the draws of these rounds."""
        first = raw_samples(journal, units[0])
        shape = rounds[-1].stop, units[-1].points.stop, first.shape[2]
        return StoredSamples(journal, tuple(units), tuple(rounds), shape, first.dtype)

    def blocks(self) -> Iterator[tuple[int, np.ndarray]]:
        """(number of the first point, its block of all draws), in order."""
        for unit in self.units:
            rounds = [raw_samples(self.journal, replace(unit, draws=draws)) for draws in self.rounds]
            yield unit.points.start, np.concatenate(rounds)


@frozen
class StoredMaps:
    """The maps of one set in a journal, in the arrays of its `units` whose names begin with `start`."""

    journal: Journal
    units: Sequence[WorkUnit]
    start: str = ""

    def __iter__(self) -> Iterator[dict[str, np.ndarray]]:
        """The maps of each image by their names, (H, W) each, in order."""
        start = self.start + MAP
        for unit in self.units:
            arrays = _kept(self.journal, unit, "maps")
            maps = {key.removeprefix(start): values for key, values in arrays.items() if key.startswith(start)}
            yield from ({name: values[row] for name, values in maps.items()} for row in range(len(unit.points)))

    def __len__(self) -> int:
        return self.units[-1].points.stop


def raw_samples(journal: Journal, unit: WorkUnit) -> np.ndarray:
    """The raw samples (T, n, K) of a unit; ResultError where they can no longer be read."""
    return _kept(journal, unit, "samples")[OUTPUTS]


def _kept(journal: Journal, unit: WorkUnit, what: str) -> Arrays:
    arrays = journal.load(unit.name, unit.sha256)
    if arrays is None:
        raise ResultError(
            f"{journal.path(unit.name)}: these {what} were kept there, and can no longer be read. Run it again."
        )
    return arrays
