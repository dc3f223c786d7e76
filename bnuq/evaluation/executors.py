"""Who computes which units: this process alone, or each of several processes that share a journal.

The program is the same in each process, and a unit the same whoever computes it, so nothing is locked: processes
differ only in the units that they start, and in whether they build a result.
"""

from __future__ import annotations

import os
import platform
import time
import traceback
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bnuq import stopping
from bnuq.errors import BnuqError, ResultError, is_device_failure
from bnuq.evaluation.units import UnitGroup, WorkUnit, plain_method_of
from bnuq.files.journal import MOST_ATTEMPTS, SECONDS, Arrays, Journal
from bnuq.files.writing import is_alive
from bnuq.frozen import frozen

Compute = Callable[[UnitGroup], Iterable[Arrays]]
_ROUNDED = 0.01  # relative difference between machines at most, and share of values in which they may differ more
_POLL, _LONGEST_POLL = 0.05, 5.0  # seconds between two looks at units that others have begun


class UnitsLostError(Exception):
    """Units that something depends on, and that are not there: what follows from them is left out."""


class UnitExecutor:
    """Computes in this process what is missing, in order; the result is made of it. One unit per method that an earlier
    run left in a folder that the user named is computed again, if this executor `checks` them."""

    makes_result = True
    _checks = False

    def __init__(self, journal: Journal, *, checks: bool = False) -> None:
        self.journal = journal
        self._checks = checks
        self._checked: set[str] = set()

    def wants(self, method: str) -> bool:  # noqa: ARG002 - for others
        """Whether the units of a method are of interest."""
        return True

    def run(
        self, groups: Iterable[UnitGroup], compute: Compute, *, needed: bool = False
    ) -> Iterator[tuple[Arrays, ...]]:
        """The arrays of the units, in order: from the journal, or of `compute`, which gets the missing ones of each
        group. ResultError where they cannot be saved, and are `needed` again."""
        for group in groups:
            arrays = {unit: self.journal.load(unit.name, unit.sha256) for unit in group}
            if self._checks:
                self._check(arrays, compute)
            missing = tuple(unit for unit in group if arrays[unit] is None)
            if missing:
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
                    f"{self.journal.path(unit.name)} is not what this request computes: points {unit.points.start} to "
                    f"{unit.points.stop - 1} of {unit.set} under {unit.method} differ. Remove {self.journal.key}* "
                    "there, or name another folder with --work."
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
        if np.mean(same) < 1 - _ROUNDED:
            return False
    return True


class Chosen(UnitExecutor):
    """Computes chosen units and their dependencies; builds no result."""

    makes_result = False

    def __init__(self, journal: Journal, names: Collection[str]) -> None:
        super().__init__(journal)
        self._names, self._methods = names, {plain_method_of(name) for name in names}

    def wants(self, method: str) -> bool:
        return method in self._methods

    def finish(self, groups: Iterable[UnitGroup], compute: Compute) -> None:
        super().finish((group for group in groups if any(unit.name in self._names for unit in group)), compute)


class Missing(UnitExecutor):
    """Computes nothing, and notes what is missing."""

    makes_result = False

    def __init__(self, journal: Journal) -> None:
        super().__init__(journal)
        self.missing: list[str] = []

    def run(
        self, groups: Iterable[UnitGroup], compute: Compute, *, needed: bool = False
    ) -> Iterator[tuple[Arrays, ...]]:
        groups, before = list(groups), len(self.missing)
        self.finish(groups, compute)
        if len(self.missing) > before:
            raise UnitsLostError
        yield from super().run(groups, compute, needed=needed)

    def finish(self, groups: Iterable[UnitGroup], compute: Compute) -> None:  # noqa: ARG002 - nothing is computed
        self.missing += [unit.name for group in groups for unit in group if not self.journal.has(unit.name)]


def has_ended(attempt: Mapping[str, Any]) -> bool:
    """Whether an attempt is known to have failed: by an error, or by the end of its process on this machine."""
    gone = attempt.get("machine") == platform.node() and not is_alive(int(attempt.get("process", 0)))
    return "why" in attempt or gone


@frozen
class Share:
    """Which units process `number` of `count` computes: its own, that is every `count`-th (`fixed`, the first phase of
    a cluster's array), or any that nobody has begun, from its own place in the list on. `name` says who it is, also
    after it was started again; `patience` are the seconds without news after which it takes what others have begun, and
    `arrival` those without any sign of life of another."""

    number: int
    count: int
    name: str
    fixed: bool = False
    patience: float = 600.0
    arrival: float = 15.0

    def order(self, groups: Sequence[UnitGroup]) -> list[tuple[int, UnitGroup]]:
        """All groups with their numbers, in the order in which this process looks at them."""
        numbered = list(enumerate(groups))
        if self.fixed:
            return sorted(numbered, key=lambda each: not self.owns(each[0]))
        start = len(numbered) * self.number // self.count
        return numbered[start:] + numbered[:start]

    def owns(self, number: int) -> bool:
        """Whether the group of this number is its own."""
        return not self.fixed or number % self.count == self.number


@dataclass
class Worker(UnitExecutor):
    """Computes its share of the units while others compute the rest; builds no result.

    A unit that is begun is noted in the journal until it is finished. One whose process died, or raised an unexpected
    error, is begun again, three times in all; then it is `lost`: its name, and why.
    """

    journal: Journal
    share: Share
    on_unit: Callable[[WorkUnit], object] = lambda _: None
    on_wait: Callable[[str], object] = lambda _: None
    lost: dict[str, str] = field(default_factory=dict)
    has_company: bool = False  # whether another process has given a sign of life
    is_alone: bool = False  # whether one was waited for in vain
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
        """Compute what is missing of the share and, `until_all` is there, what others have left for too long."""
        pending = self.share.order(groups)
        news, pause, impatient, lost = time.monotonic(), _POLL, False, False
        awaited: set[int] = set()
        while pending:
            left, acted = [], False
            for number, group in pending:
                stopping.check()
                missing = tuple(unit for unit in group if not self.journal.has(unit.name))
                if not missing:
                    acted = True
                    self.has_company |= number in awaited  # another has finished it meanwhile
                    continue
                if not (self.share.owns(number) or impatient):
                    left.append((number, group))
                    continue
                attempts = self.journal.attempts(missing[0].name)
                self.has_company |= bool(attempts) and not self._ended(attempts[-1])
                if attempts and not (impatient or self._ended(attempts[-1])):
                    left.append((number, group))
                    continue
                acted = True
                if len(attempts) >= MOST_ATTEMPTS:
                    self.lost[missing[0].name] = self._why(missing[0], attempts)
                    lost = True
                elif not self._attempt(missing, compute, len(attempts)):
                    left.append((number, group))
            if acted:
                news, pause, impatient = time.monotonic(), _POLL, False
            elif not until_all:
                break
            elif impatient := time.monotonic() - news > self._patience():
                self.is_alone = not self.has_company
                self.on_wait("taking over the units that others left.")
            else:
                self.on_wait(f"waiting for {len(left)} units that others compute.")
                time.sleep(pause)
                pause = min(1.5 * pause, _LONGEST_POLL)
            pending, awaited = left, {number for number, _ in left}
        if lost and until_all:
            raise UnitsLostError

    def _patience(self) -> float:
        """Seconds to wait for news."""
        if self.has_company:
            return self.share.patience
        return 0.0 if self.is_alone else min(self.share.patience, self.share.arrival)

    def _attempt(self, units: UnitGroup, compute: Compute, number: int) -> bool:
        """Whether the units were computed: not, where that raised an error of the unit alone, which is noted."""
        first = units[0].name
        who = {"by": self.share.name, "machine": platform.node(), "process": os.getpid()}
        with stopping.deferred():
            self.journal.begin(first, number, who)
            try:
                self._computed(units, compute, needed=True)
            except BnuqError:
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
        where = f"{unit.method} on points {unit.points.start} to {unit.points.stop - 1} of {unit.set}"
        return f"{where}: tried {len(attempts)} times, last by {attempts[-1].get('by')}: {why.strip()}"
