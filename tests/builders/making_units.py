"""Units of work without a network, which end their process or raise errors as they are told."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from bnuq.errors import SamplingError
from bnuq.evaluation.units import UnitGroup, WorkUnit
from bnuq.files.journal import Arrays, Journal

FACTS = {"units": "without a network"}


def unit(number: int) -> WorkUnit:
    return WorkUnit("mcbn", "test", "0123456789", range(10 * number, 10 * number + 10), range(8))


def arrays_of(of: WorkUnit) -> Arrays:
    return {"point/score": np.arange(of.points.start, of.points.stop) / 7, "seconds": np.array(os.getpid())}


def computed(kinds: tuple[str, ...], place: Any, make: Callable[[Journal], Any]) -> list[Any]:
    """Units of these kinds: what a process does with each of them, by an executor of their journal."""

    def compute(group: UnitGroup) -> Iterator[Arrays]:
        for of in group:
            kind = kinds[of.points.start // 10]
            once = Path(place.path) / f"{of.name}.once"
            if kind == "kill" or (kind == "killed once" and not once.exists()):
                once.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            if kind == "raise":
                raise ValueError("no such luck")
            if kind == "refuse":
                raise SamplingError("these samples cannot be")
            if kind == "last":
                shutil.rmtree(place.path)
            if kind == "long":
                time.sleep(600)
            yield arrays_of(of)

    executor = make(Journal(place, FACTS))
    executor.finish([(unit(number),) for number in range(len(kinds))], compute)
    return [executor]
