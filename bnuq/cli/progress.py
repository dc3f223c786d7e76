"""Progress on standard error: a bar with rate and time left, silent where that is no terminal."""

from __future__ import annotations

import sys
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


@contextmanager
def bars(title: str, total: int) -> Iterator[Callable[[int], object]]:
    """A bar that is gone when the work is done; a Progress of `bnuq.evaluate`."""
    if not sys.stderr.isatty():
        with silent(title, total) as advance:
            yield advance
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), _Rate(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(title, total=total)

        def advance_bar(steps: int) -> None:
            stopping.check()
            progress.advance(task, steps)

        yield advance_bar
