"""What the units of a set keep in the journal for later: raw samples, and maps of images."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from bnuq.errors import ResultError
from bnuq.evaluation.units import WorkUnit
from bnuq.files.journal import Arrays, Journal
from bnuq.frozen import frozen

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
