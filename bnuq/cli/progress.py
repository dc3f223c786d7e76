"""Progress on standard error: a bar with rate and time left, silent where that is no terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text

from bnuq import stopping
from bnuq.progress import silent


class _Rate(ProgressColumn):
    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        return Text("" if speed is None else f"{speed:,.0f}/s" if speed >= 10 else f"{speed:.1f}/s")


class _Foresight:
    """Says, once, that the work will take longer than a day, by what its first steps took."""

    def __init__(self, title: str, total: int) -> None:
        self._title, self._total, self._done, self._begin = title, total, 0, time.monotonic()
        self._ended = False

    def __call__(self, steps: int) -> None:
        self._done += steps
        taken = time.monotonic() - self._begin
        if self._ended or taken < _FIRST or not self._done:
            return
        self._ended = taken > _LAST
        if (days := taken * self._total / self._done / 86_400) > 1:
            self._ended = True
            sys.stderr.write(f"bnuq: {self._title}: about {days:,.0f} days at this rate. Ctrl-C ends it.\n")
            sys.stderr.flush()


_FIRST, _LAST = 2.0, 600.0  # seconds of the work, between which its rate tells how long it takes


@contextmanager
def bars(title: str, total: int) -> Iterator[Callable[[int], object]]:
    """A bar that is gone when the work is done, and a line that stays where the work takes longer than a day; a
    Progress of `bnuq.evaluate`."""
    foresee = _Foresight(title, total)
    if not sys.stderr.isatty():
        with silent(title, total) as advance:

            def count(steps: int) -> None:
                advance(steps)
                foresee(steps)

            yield count
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), _Rate(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(title, total=total)

        def advance_bar(steps: int) -> None:
            stopping.check()
            progress.advance(task, steps)
            foresee(steps)

        yield advance_bar
