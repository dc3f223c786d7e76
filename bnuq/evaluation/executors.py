"""Who computes which units: this process alone, or each of several processes that share a journal.

The program is the same in each process, and a unit the same whoever computes it, so nothing is locked: processes
differ only in the units that they start, and in whether they build a result.
"""

from __future__ import annotations

import os
import platform
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bnuq import stopping
from bnuq.errors import BnuqError, ResultError, is_device_failure
from bnuq.evaluation.units import UnitGroup, WorkUnit
from bnuq.files.journal import MOST_ATTEMPTS, SECONDS, Arrays, Journal
from bnuq.files.writing import is_alive
from bnuq.frozen import frozen

Compute = Callable[[UnitGroup], Iterable[Arrays]]
_ROUNDED = 0.01  # relative difference between machines at most, and share of values in which they may differ more
_POLL, _LONGEST_POLL = 0.05, 5.0  # seconds between two looks at units that others have begun


class UnitsLostError(Exception):
    """Units that something depends on, and that are not there: what follows from them is left out."""


@dataclass
class UnitExecutor:
    """Computes in this process what is missing, in order; the result is made of it. One unit per method that an earlier
    run left in a folder that the user named is computed again."""

    journal: Journal
    _checked: set[str] = field(default_factory=set, init=False)
    makes_result = True

    def run(
        self, groups: Iterable[UnitGroup], compute: Compute, *, needed: bool = False
    ) -> Iterator[tuple[Arrays, ...]]:
        """The arrays of the units, in order: from the journal, or of `compute`, which gets the missing ones of each
        group. ResultError where they cannot be saved, and are `needed` again."""
        for group in groups:
            arrays = {unit: self.journal.load(unit.name, unit.sha256) for unit in group}
            self._check(arrays, compute)
            if missing := tuple(unit for unit in group if arrays[unit] is None):
                arrays |= self._computed(missing, compute, needed=needed)
            yield tuple(unit_arrays for unit_arrays in arrays.values() if unit_arrays is not None)

    def _check(self, arrays: Mapping[WorkUnit, Arrays | None], compute: Compute) -> None:
        """Raise ResultError where a unit of an earlier run is not what it is when computed again."""
        for unit, earlier in arrays.items():
            if earlier is None or unit.method in self._checked or not self.journal.is_unproved(unit.name):
                continue
            self._checked.add(unit.method)
            with stopping.deferred():
                [again] = compute((unit,))
            if not _agree(earlier, again):
                raise ResultError(
                    f"{self.journal.path(unit.name)} differs from what this request computes for examples "
                    f"{unit.points.start} to {unit.points.stop - 1} of {unit.set} under {unit.method}. Remove "
                    f"{self.journal.key}* there, or name another folder with --work."
                )

    def finish(self, groups: Iterable[UnitGroup], compute: Compute) -> None:
        """See to units whose arrays this process does not need."""
        for _ in self.run(groups, compute, needed=True):
            pass

    def _computed(self, units: UnitGroup, compute: Compute, *, needed: bool) -> dict[WorkUnit, Arrays]:
        arrays_by_unit = {}
        with stopping.deferred():  # a signal ends the run after the units in hand
            for unit, arrays in zip(units, compute(units), strict=True):
                self.journal.save(unit.name, arrays, unit.sha256, needed=needed)
                arrays_by_unit[unit] = arrays
        return arrays_by_unit


def _agree(earlier: Arrays, again: Arrays) -> bool:
    """Whether two computations of a unit agree up to the rounding of another machine, which may decide ties."""
    if earlier.keys() | {SECONDS} != again.keys() | {SECONDS}:
        return False
    for name in again.keys() - {SECONDS}:
        old, new = earlier[name], again[name]
        if old.shape != new.shape or old.dtype != new.dtype:
            return False
        if new.dtype.kind not in "fiub":
            same = old == new
        else:
            size = np.max(np.abs(new), initial=0, where=np.isfinite(new))
            same = np.isclose(old, new, rtol=_ROUNDED, atol=_ROUNDED * size, equal_nan=True)
        if np.count_nonzero(same) < (1 - _ROUNDED) * new.size:  # of an empty array, too
            return False
    return True


def has_ended(attempt: Mapping[str, Any]) -> bool:
    """Whether an attempt is known to have failed: by an error, or by the end of its process on this machine."""
    process = attempt.get("process")
    here = attempt.get("machine") == platform.node() and isinstance(process, int)
    return "why" in attempt or (here and not is_alive(process))


@frozen
class Share:
    """Which units process `number` of `count` computes: any that nobody has begun, from its own place in the list on.
    `name` says who it is, also after it was started again; `patience` are the seconds without news after which it takes
    what others have begun."""

    number: int
    count: int
    name: str
    patience: float = 600.0

    def order(self, groups: Sequence[UnitGroup]) -> list[UnitGroup]:
        """All groups, in the order in which this process looks at them."""
        start = len(groups) * self.number // self.count
        return [*groups[start:], *groups[:start]]


@dataclass
class Worker(UnitExecutor):
    """Computes its share of the units while others compute the rest; builds no result.

    A unit that is begun is noted in the journal until it is finished. One whose process died, or raised an unexpected
    error, is begun again, three times in all; then it is `lost`: its name, and why.
    """

    share: Share
    on_unit: Callable[[WorkUnit], object] = lambda _: None
    lost: dict[str, str] = field(default_factory=dict)
    makes_result = False

    def run(
        self,
        groups: Iterable[UnitGroup],
        compute: Compute,
        *,
        needed: bool = False,  # noqa: ARG002 - others always need them
    ) -> Iterator[tuple[Arrays, ...]]:
        groups = list(groups)
        self._walk(groups, compute, until_all=True)
        yield from super().run(groups, compute, needed=True)

    def finish(self, groups: Iterable[UnitGroup], compute: Compute) -> None:
        self._walk(list(groups), compute, until_all=False)

    def _walk(self, groups: Sequence[UnitGroup], compute: Compute, *, until_all: bool) -> None:
        """Compute what is missing and, `until_all` is there, what others have left for too long."""
        pending = self.share.order(groups)
        news, pause, impatient, lost = time.monotonic(), _POLL, False, False
        while pending:
            left, acted = [], False
            for group in pending:
                stopping.check()
                missing = tuple(unit for unit in group if not self.journal.has(unit.name))
                if not missing:
                    acted = True
                    continue
                attempts = self.journal.attempts(missing[0].name)
                if attempts and not (impatient or self._ended(attempts[-1])):
                    left.append(group)
                    continue
                acted = True
                if len(attempts) >= MOST_ATTEMPTS:
                    self.lost[missing[0].name] = self._why(missing[0], attempts)
                    lost = True
                elif not self._attempt(missing, compute, len(attempts)):
                    left.append(group)
            if acted:
                news, pause, impatient = time.monotonic(), _POLL, False
            elif not until_all:
                break
            elif not (impatient := time.monotonic() - news > self.share.patience):
                time.sleep(pause)
                pause = min(1.5 * pause, _LONGEST_POLL)
            pending = left
        if lost and until_all:
            raise UnitsLostError

    def _attempt(self, units: UnitGroup, compute: Compute, number: int) -> bool:
        """Whether the units were computed: not, where that raised an error of the unit alone, which is noted."""
        first = units[0].name
        who = {"by": self.share.name, "machine": platform.node(), "process": os.getpid()}
        with stopping.deferred():
            self.journal.begin(first, number, who)
            try:
                self._computed(units, compute, needed=True)
            except (BnuqError, KeyboardInterrupt, stopping.Terminated):
                self.journal.end(first, number + 1)
                raise
            except Exception as error:
                self.journal.begin(first, number, who | {"why": traceback.format_exc()})
                if is_device_failure(error):
                    raise  # nothing works in this process any more
                return False
            self.journal.end(first, number + 1)
            for unit in units:
                self.on_unit(unit)
        return True

    def _ended(self, attempt: Mapping[str, Any]) -> bool:
        return attempt.get("by") == self.share.name or has_ended(attempt)

    def _why(self, unit: WorkUnit, attempts: Sequence[dict[str, Any]]) -> str:
        why = attempts[-1].get("why", "its process ended silently")
        where = f"{unit.method} on examples {unit.points.start} to {unit.points.stop - 1} of {unit.set}"
        return f"{where}: tried {len(attempts)} times, last by {attempts[-1].get('by')}: {str(why).strip()}"
