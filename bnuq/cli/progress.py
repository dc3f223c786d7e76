"""Progress on standard error: bars on a terminal, lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from bnuq import stopping
from bnuq.cli.output import Printing
from bnuq.progress import Progress, in_words, silent, stage

_BETWEEN_LINES = 30.0  # seconds
Clock = Callable[[], float]


def progress_of(printing: Printing, *, needs_torch: bool = False) -> Progress:
    """How a command shows its progress; on a terminal also that it imports torch where it `needs` it, for seconds."""
    progress = silent if printing.quiet else Bars()
    if needs_torch and "torch" not in sys.modules and sys.stderr.isatty():
        with stage(progress, "Importing torch"):
            import_module("torch")
    return progress


class Bars:
    """A Progress that shows a bar while work runs.

    Where standard error is no terminal, there is a line every 30 s in place of bars, over all pieces of work: how much
    of the current one is done, and the time left for it.
    """

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self._clock, self._last_line = clock, clock()

    @contextmanager
    def __call__(self, title: str, total: int) -> Iterator[Callable[[int], object]]:
        if not sys.stderr.isatty():
            begin, done = self._clock(), 0

            def count(steps: int) -> None:
                nonlocal done
                stopping.check()
                done += steps
                self._write_line(title, done, total, begin)

            yield count
            return
        with _bar() as progress:
            task = progress.add_task(title, total=total)

            def advance_bar(steps: int) -> None:
                stopping.check()
                progress.advance(task, steps)

            yield advance_bar

    def _write_line(self, title: str, done: int, total: int, begin: float) -> None:
        now = self._clock()
        if now - self._last_line < _BETWEEN_LINES or not 0 < done <= total:
            return
        self._last_line = now
        left = (now - begin) * (total - done) / done
        time_left = f", about {in_words(left)} left" if done < total else ""
        _write(f"{title}: {100 * done // total} % done{time_left}.")


def _bar() -> Any:
    """A bar on a terminal, by rich, which nothing else here needs."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, TextColumn, TimeRemainingColumn
    from rich.text import Text

    class Rate(ProgressColumn):
        def render(self, task: Any) -> Text:
            speed = task.finished_speed or task.speed
            return Text("" if speed is None else f"{speed:,.0f}/s" if speed >= 10 else f"{speed:.1f}/s")

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), Rate(), TimeRemainingColumn())
    return Progress(*columns, console=Console(stderr=True), transient=True)


def _write(sentence: str) -> None:
    sys.stderr.write(f"bnuq: {sentence}\n")
    sys.stderr.flush()
