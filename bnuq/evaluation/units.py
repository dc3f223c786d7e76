"""Units of work: samples of one method for a tile of points of one set, scored; and how they merge.

A unit is a pure function of the request and its address, independent of its neighbours, and small when finished. Any
of the `executors` that gives the same units in the same order gives the same result.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from bnuq.data import Points
from bnuq.files.journal import Arrays

_AXES = {"point": 0, "draw": 1}  # the axis of the points, by kind of array


@dataclass(frozen=True)
class Unit:
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


def tiles(name: str, points: Points, size: int, *, method: str, draws: range) -> list[Unit]:
    """The units of a set, of `size` points each."""
    starts = range(0, len(points), size)
    return [Unit(method, name, points.sha256, range(start, min(len(points), start + size)), draws) for start in starts]


UnitGroup = tuple[Unit, ...]  # units of the same points, which pass together


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
        """What a unit keeps: sums stay those of its blocks, so that they can be added in one order whatever the
        units."""
        return {
            name: np.stack(values) if kind not in _AXES else np.concatenate(values, axis=_AXES[kind])
            for name, values in self._values.items()
            for kind in [name.partition("/")[0]]
        }


def append(units: list[Arrays], arrays: Arrays) -> None:
    """Append the arrays of the next unit, the last of which has the sums of all so far in place of those of its blocks:
    these would take more memory than the points."""
    before = units[-1] if units else {}
    for name in [key for key in arrays if key.startswith("sum/")]:
        total = before.pop(name, None)
        for block in arrays[name]:
            total = block[None].copy() if total is None else total + block
        arrays[name] = np.empty((0, *arrays[name].shape[1:])) if total is None else total
    units.append(arrays)


def merged(units: Iterable[Arrays]) -> dict[str, Arrays]:
    """The arrays of a set by kind and name, from those of its units in the order of the points. Arrays of no kind, or
    of another one, are left out."""
    values: dict[str, dict[str, list[np.ndarray]]] = {kind: {} for kind in _AXES}
    sums: Arrays = {}
    most: Arrays = {}
    for arrays in units:
        for key, value in arrays.items():
            kind, _, name = key.partition("/")
            if kind in _AXES:
                values[kind].setdefault(name, []).append(value)
            elif kind == "most":
                most[name] = np.asarray(np.maximum(most.get(name, -np.inf), value.max(axis=0)))
            elif kind == "sum":
                for block in value:
                    sums[name] = sums[name] + block if name in sums else block
    joined = {
        kind: {name: _concatenated(of_kind.pop(name), _AXES[kind]) for name in [*of_kind]}
        for kind, of_kind in values.items()
    }
    return joined | {"sum": sums, "most": most}


def _concatenated(parts: list[np.ndarray], axis: int) -> np.ndarray:
    return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=axis)
