"""Progress of long work."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Protocol, runtime_checkable

from bnuq import stopping

_FIRST = 2.0  # seconds of work from which a duration is predicted
READING, CHECKING = "Reading the network and the data", "Checking that sampling is exact"
Advance = Callable[[int], object]
Announce = Callable[[str], object]


@runtime_checkable
class Progress(Protocol):
    """A context manager for work of `total` steps, which yields the function that counts completed steps."""

    def __call__(self, title: str, total: int) -> AbstractContextManager[Advance]: ...


def silent(title: str, total: int) -> AbstractContextManager[Advance]:  # noqa: ARG001 - a Progress
    """A progress without output. Each step still raises a pending signal, see `stopping.check`."""
    return nullcontext(lambda _: stopping.check())


def silence(text: str) -> None:
    """Announces nothing."""


@contextmanager
def stage(progress: Progress, title: str) -> Iterator[None]:
    """Work whose steps are not counted."""
    with progress(title, 1) as advance:
        yield
        advance(1)


def forecast(progress: Progress, announce: Callable[[float], object]) -> Progress:
    """`progress` that also announces, once and after seconds of passes, how many a pass takes."""
    is_said = False

    @contextmanager
    def with_forecast(title: str, total: int) -> Iterator[Advance]:
        begin, done = time.monotonic(), 0

        def count(steps: int) -> None:
            nonlocal done, is_said
            advance(steps)
            done += steps
            if not is_said and "examples" in title and (elapsed := time.monotonic() - begin) >= _FIRST:
                is_said = True
                announce(elapsed / max(1, done))

        with progress(title, total) as advance:
            yield count

    return with_forecast


def in_words(seconds: float) -> str:
    """A duration to two digits or so."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 2 * 86_400 else f"{seconds / 86_400:,.0f} days"
