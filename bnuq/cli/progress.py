"""Progress on standard error: a bar with rate and time left, silent where that is no terminal; and what takes days."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text

from bnuq import stopping
from bnuq.progress import Forecast, ForecastListener, silent

_FIRST, _LAST = 2.0, 600.0  # seconds of the work, between which its rate tells how long it takes
_DAY = 86_400.0


class _Rate(ProgressColumn):
    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        return Text("" if speed is None else f"{speed:,.0f}/s" if speed >= 10 else f"{speed:.1f}/s")


class _LongWork:
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
        if (seconds := taken * self._total / self._done) > _DAY:
            self._ended = True
            _write(f"{self._title}: about {_in_days(seconds)} at this rate. Ctrl-C ends it.")


class Bars:
    """A bar that is gone when its work is done, and a line that stays where the work takes longer than a day: a
    Progress of `bnuq.evaluate`. Work that was foreseen to be so long is not said to be again."""

    def __init__(self) -> None:
        self._foreseen = False

    @property
    def forecast_listener(self) -> ForecastListener:
        """Writes the line before the work starts."""
        return ForecastListener(self._say, limit=_DAY)

    def _say(self, forecast: Forecast) -> None:
        self._foreseen = True
        days = _in_days(forecast.seconds)
        _write(f"{forecast.work} will take about {days}. To have it sooner, {forecast.lower}. Ctrl-C ends it.")

    @contextmanager
    def __call__(self, title: str, total: int) -> Iterator[Callable[[int], object]]:
        look = (lambda _: None) if self._foreseen else _LongWork(title, total)
        if not sys.stderr.isatty():
            with silent(title, total) as advance:

                def count(steps: int) -> None:
                    advance(steps)
                    look(steps)

                yield count
            return
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), _Rate(), TimeRemainingColumn())
        with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
            task = progress.add_task(title, total=total)

            def advance_bar(steps: int) -> None:
                stopping.check()
                progress.advance(task, steps)
                look(steps)

            yield advance_bar


def bars(title: str, total: int) -> AbstractContextManager[Callable[[int], object]]:
    """The bar of one piece of work: a Progress that foresees nothing."""
    return Bars()(title, total)


def _in_days(seconds: float) -> str:
    days = seconds / _DAY
    return f"{days:,.0f} days" if days >= 9.5 else f"{days:.1f} days"


def _write(sentence: str) -> None:
    sys.stderr.write(f"bnuq: {sentence}\n")
    sys.stderr.flush()
