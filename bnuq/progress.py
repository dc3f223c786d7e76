"""Where long work says how far it is, and, before it starts, that it will be long."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from bnuq import stopping

Advance = Callable[[int], object]


@runtime_checkable
class Progress(Protocol):
    """Opens one piece of work of `total` steps; the block is handed the function that counts them."""

    def __call__(self, title: str, total: int) -> AbstractContextManager[Advance]: ...


def silent(title: str, total: int) -> AbstractContextManager[Advance]:  # noqa: ARG001 - a Progress
    """The progress that nobody sees; a step of it is where a signal is noticed that was lost."""
    return nullcontext(lambda _: stopping.check())


@dataclass(frozen=True)
class Forecast:
    """How many seconds some work will take, estimated from a first piece of it, and which options make it less."""

    work: str
    seconds: float
    lower: str


@dataclass(frozen=True)
class ForecastListener:
    """Who is told of work that will take longer than `limit` seconds, before it starts."""

    notify: Callable[[Forecast], object]
    limit: float = 86_400.0
