"""Progress bars on standard error, silent where that is not a terminal, and warnings of work that takes days."""

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

_MIN_ELAPSED, _MAX_ELAPSED = 2.0, 600.0  # seconds of work between which its rate predicts the duration
_DAY = 86_400.0


class _Rate(ProgressColumn):
    def render(self, task: Task) -> Text:
        speed = task.finished_speed or task.speed
        return Text("" if speed is None else f"{speed:,.0f}/s" if speed >= 10 else f"{speed:.1f}/s")


class _DurationWarning:
    """Announces once that the work will take longer than a day, estimated from its first steps."""

    def __init__(self, title: str, total: int) -> None:
        self._title, self._total, self._done, self._begin = title, total, 0, time.monotonic()
        self._ended = False

    def __call__(self, steps: int) -> None:
        self._done += steps
        elapsed = time.monotonic() - self._begin
        if self._ended or elapsed < _MIN_ELAPSED or not self._done:
            return
        self._ended = elapsed > _MAX_ELAPSED
        if (seconds := elapsed * self._total / self._done) > _DAY:
            self._ended = True
            _write(f"{self._title}: about {_in_days(seconds)} at this rate. Ctrl-C stops it.")


class Bars:
    """A Progress that shows a bar while work runs, and a permanent line where it takes longer than a day. A duration
    that was announced before the work starts is not announced again."""

    def __init__(self) -> None:
        self._announced = False

    @property
    def forecast_listener(self) -> ForecastListener:
        """The listener that announces long work before it starts."""
        return ForecastListener(self._announce, limit=_DAY)

    def _announce(self, forecast: Forecast) -> None:
        self._announced = True
        days = _in_days(forecast.seconds)
        _write(f"{forecast.work} will take about {days}. To reduce that, {forecast.lower}. Ctrl-C stops it.")

    @contextmanager
    def __call__(self, title: str, total: int) -> Iterator[Callable[[int], object]]:
        watch = (lambda _: None) if self._announced else _DurationWarning(title, total)
        if not sys.stderr.isatty():
            with silent(title, total) as advance:

                def count(steps: int) -> None:
                    advance(steps)
                    watch(steps)

                yield count
            return
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), _Rate(), TimeRemainingColumn())
        with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
            task = progress.add_task(title, total=total)

            def advance_bar(steps: int) -> None:
                stopping.check()
                progress.advance(task, steps)
                watch(steps)

            yield advance_bar


def bars(title: str, total: int) -> AbstractContextManager[Callable[[int], object]]:
    """The bar of one piece of work: a Progress without forecasts."""
    return Bars()(title, total)


def _in_days(seconds: float) -> str:
    days = seconds / _DAY
    return f"{days:,.0f} days" if days >= 9.5 else f"{days:.1f} days"


def _write(sentence: str) -> None:
    sys.stderr.write(f"bnuq: {sentence}\n")
    sys.stderr.flush()
