"""Progress of long work, and forecasts of its duration before it starts."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from bnuq import stopping

Advance = Callable[[int], object]


@runtime_checkable
class Progress(Protocol):
    """A context manager for work of `total` steps, which yields the function that counts completed steps."""

    def __call__(self, title: str, total: int) -> AbstractContextManager[Advance]: ...


def silent(title: str, total: int) -> AbstractContextManager[Advance]:  # noqa: ARG001 - a Progress
    """A progress without output. Each step still raises a pending signal, see `stopping.check`."""
    return nullcontext(lambda _: stopping.check())


@dataclass(frozen=True)
class Forecast:
    """The estimated seconds of some work, and the options that reduce them (`lower`)."""

    work: str
    seconds: float
    lower: str


@dataclass(frozen=True)
class ForecastListener:
    """Receives the forecast of work that will take longer than `limit` seconds, before the work starts."""

    notify: Callable[[Forecast], object]
    limit: float = 86_400.0
