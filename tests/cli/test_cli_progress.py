"""Progress of long work where there is no terminal: a line now and then on standard error."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from bnuq.cli import progress
from bnuq.cli.output import Printing
from bnuq.cli.progress import Bars


class FakeClock:
    """Seconds that pass only when they are told to."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


def worked(bars: Bars, clock: FakeClock, *, steps: int, seconds: float, title: str = "Drawing") -> None:
    """A piece of work of so many steps, each of which takes so long."""
    with bars(title, steps) as advance:
        for _ in range(steps):
            clock.now += seconds
            advance(1)


def test_a_line_every_30_seconds_says_what_is_done_and_the_time_left(clock, capsys):
    worked(Bars(clock), clock, steps=20, seconds=12.0)
    lines = capsys.readouterr().err.splitlines()
    assert lines[:2] == ["bnuq: Drawing: 15 % done, about 3 min left.", "bnuq: Drawing: 30 % done, about 3 min left."]
    assert len(lines) == 6 and lines[-1] == "bnuq: Drawing: 90 % done, about 24 s left."
    worked(Bars(clock), clock, steps=1000, seconds=36.0, title="Evaluating")
    assert capsys.readouterr().err.startswith("bnuq: Evaluating: 0 % done, about 10.0 h left.\n")


def test_many_short_pieces_of_work_have_a_line_every_30_seconds_between_them(clock, capsys):
    bars = Bars(clock)
    for number in range(10):
        worked(bars, clock, steps=2, seconds=5.0, title=f"Set {number}")
    assert capsys.readouterr().err.splitlines() == [f"bnuq: Set {number}: 100 % done." for number in (2, 5, 8)]


def test_no_line_is_written_in_less_than_30_seconds_or_on_a_terminal(clock, capsys, monkeypatch):
    worked(Bars(clock), clock, steps=29, seconds=1.0)
    monkeypatch.setattr(progress.sys.stderr, "isatty", lambda: True)
    worked(Bars(clock), clock, steps=5, seconds=40.0)
    assert "% done" not in capsys.readouterr().err


@pytest.mark.parametrize("quiet", [False, True])
@pytest.mark.usefixtures("small")
def test_a_command_writes_lines_unless_it_is_quiet(cli, monkeypatch, quiet):
    monkeypatch.setattr(progress, "_BETWEEN_LINES", 0.0)
    outcome = cli("evaluate", "run.toml", "--method", "mcbn", "--limit", "8", "--json", *(["--quiet"] if quiet else []))
    titles = ("Reading the network and the data", "Checking that sampling is exact", "Drawing 8 mini-batches of 16")
    assert outcome.code == 0 and [f"{title}: 100 % done." in outcome.err for title in titles] == [not quiet] * 3


@pytest.mark.parametrize(("is_quiet", "is_terminal", "shown"), [(False, True, 1), (True, True, 1), (False, False, 0)])
def test_a_terminal_is_told_that_torch_is_imported(monkeypatch, is_quiet, is_terminal, shown):
    titles, imported = [], []
    stderr = SimpleNamespace(isatty=lambda: is_terminal)
    monkeypatch.setattr(progress, "sys", SimpleNamespace(modules={}, stderr=stderr))
    monkeypatch.setattr(progress, "import_module", imported.append)
    monkeypatch.setattr(Bars, "__call__", lambda _, title, __: nullcontext(titles.append(title) or print))
    progress.progress_of(Printing(quiet=is_quiet), needs_torch=True)
    assert (len(imported), titles) == (shown, ["Importing torch"] * (shown and not is_quiet))
