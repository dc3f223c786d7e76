"""Progress of long work."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
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
