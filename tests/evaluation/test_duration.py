"""What takes long is said before it starts: the estimate, what it counts, and what it leaves alone."""

from __future__ import annotations

import itertools
import shutil
import time
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest
import small_run

from bnuq.cli import progress
from bnuq.config import Options, resolve, resolve_all, resolve_sweep
from bnuq.evaluation import duration
from bnuq.progress import Forecast, ForecastListener
from bnuq.workflows import multirun
from bnuq.workflows.evaluate import evaluate
from bnuq.workflows.sweep import sweep

pytestmark = [pytest.mark.held(False), pytest.mark.less]


class ForeseenError(Exception):
    """Ends a run where its forecast was heard."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    small_run.write(tmp_path)
    return tmp_path


def forecast(folder: Path, run_file: str = "run.toml", **options: Any) -> Forecast:
    """What is said of this run before anything is drawn."""
    heard: list[Forecast] = []

    def say(foreseen: Forecast) -> None:
        heard.append(foreseen)
        raise ForeseenError

    with pytest.raises(ForeseenError):
        evaluate(
            resolve(run_file, Options(**options), folder=folder),
            progress=nothing,
            forecast_listener=ForecastListener(say, 0.0),
        )
    return heard[0]


@contextmanager
def nothing(title: str, total: int):  # noqa: ARG001 - a Progress
    pytest.fail(f"{title} was begun")
    yield


def count_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every piece that is timed takes a second, whatever else the machine does."""
    seconds = itertools.count()
    monkeypatch.setattr(duration, "time", SimpleNamespace(perf_counter=lambda: float(next(seconds))))


def test_the_forecast_is_near_what_the_run_takes(folder):
    asked = {"samples": 300, "methods": ("mcbn",)}
    seconds = forecast(folder, **asked).seconds
    before = time.perf_counter()
    small_run.evaluated(folder, **asked)
    taken = time.perf_counter() - before
    assert taken / 10 < seconds < 10 * taken  # the machine may be busy with something else in one of the two


def test_samples_of_the_last_layer_alone_take_one_pass(folder, monkeypatch):
    count_pieces(monkeypatch)
    of_layer, of_network = (forecast(folder, samples=600, methods=(name,)).seconds for name in ("laplace", "mcdo"))
    assert 0 < of_layer < of_network / 2


@pytest.mark.parametrize(
    ("less", "more"),
    [
        ({"samples": 200}, {"samples": 6000}),
        ({"samples": "auto", "max_samples": 200}, {"samples": "auto", "max_samples": 6000}),
        ({"samples": 8, "bank": 200}, {"samples": 8, "bank": 8000}),
        ({"law_draws": 100}, {"law_draws": 100_000}),
        ({"per_query": True, "samples": 20}, {"per_query": True, "samples": 600}),
    ],
)
def test_every_option_that_makes_a_run_longer_is_counted(folder, monkeypatch, less, more):
    count_pieces(monkeypatch)
    method = ("mcbn-empirical",) if "law_draws" in less else ("mcbn",)
    short, long = (forecast(folder, methods=method, **options) for options in (less, more))
    assert long.seconds > 5 * short.seconds
    for option in ("bank", "max_samples"):
        assert (f"--{option.replace('_', '-')}" in long.lower) == (option in more)


def test_every_ood_set_is_counted(folder, monkeypatch):
    count_pieces(monkeypatch)
    names = [f"other{number}.npz" for number in range(20)]
    for name in names:
        shutil.copy(folder / "other.npz", folder / name)
    (folder / "many.toml").write_text(small_run.RUN.replace('["other.npz"]', str(names).replace("'", '"')))
    few, many = (forecast(folder, name, methods=("mcbn",)) for name in ("run.toml", "many.toml"))
    assert "in 21 sets" in many.work
    assert many.seconds > 4 * few.seconds


def test_a_short_run_takes_no_more_than_a_forward_to_be_foreseen(folder, monkeypatch):
    monkeypatch.setattr(duration, "_extrapolated", lambda *_: pytest.fail("draws were made to estimate the time"))
    run = resolve("run.toml", Options(methods=("mcbn",), ood=()), folder=folder)
    evaluate(run, forecast_listener=ForecastListener(lambda _: pytest.fail("said to be long")))


def test_a_forecast_changes_no_estimate(folder):
    asked = {"methods": ("mcbn",), "ood": ()}
    plain = small_run.evaluated(folder, **asked)
    heard: list[Forecast] = []
    run = resolve("run.toml", Options(out=folder / "foreseen.h5", **asked), folder=folder)
    foreseen = evaluate(run, forecast_listener=ForecastListener(heard.append, 0.0))
    assert len(heard) == 1
    for method, result in plain.methods.items():
        for name, of_set in result.sets.items():
            for metric, estimate in of_set.estimates.items():
                assert foreseen.methods[method].sets[name].estimates[metric].value == estimate.value
                np.testing.assert_array_equal(
                    foreseen.methods[method].sets[name].estimates[metric].jackknife, estimate.jackknife
                )


def test_a_sweep_is_foreseen_before_it_draws(folder, monkeypatch):
    count_pieces(monkeypatch)
    runs, settings = resolve_sweep(
        ("run.toml",), Options(samples=200), {"batch_sizes": (8, 16), "draw_sets": 50}, folder=folder
    )
    heard: list[Forecast] = []

    def say(foreseen: Forecast) -> None:
        heard.append(foreseen)
        raise ForeseenError

    for draw_sets in (2, 50):
        with pytest.raises(ForeseenError):
            sweep(
                runs,
                msgspec.structs.replace(settings, draw_sets=draw_sets),
                progress=nothing,
                forecast_listener=ForecastListener(say, 0.0),
            )
    assert heard[1].seconds > 5 * heard[0].seconds
    assert "--draw-sets" in heard[1].lower
    assert not list(folder.glob("*.work"))


def test_several_runs_are_foreseen_together(folder, monkeypatch):
    (folder / "run.toml").write_text(small_run.RUN + "[runs]\nseed = [0, 1, 2]\n")
    runs = resolve_all(("run.toml",), Options(), folder=folder)
    assert runs is not None

    def of_one(_run, *, forecast_listener, **_):
        assert forecast_listener.limit == 10
        forecast_listener.notify(Forecast("8 samples", 20.0, "lower --samples"))
        raise ForeseenError

    monkeypatch.setattr(multirun, "evaluate", of_one)
    heard: list[Forecast] = []
    with pytest.raises(ForeseenError):
        multirun.evaluate_several(runs, forecast_listener=ForecastListener(heard.append, 30.0))
    assert heard == [Forecast("3 runs, each of 8 samples,", 60.0, "lower --samples")]


def test_the_line_is_written_before_the_work_and_the_work_says_it_no_more(folder, monkeypatch, capsys):
    monkeypatch.setattr(progress, "_DAY", 1e-3)
    monkeypatch.setattr(progress, "_MIN_ELAPSED", 0.0)
    bars, written = progress.Bars(), []

    @contextmanager
    def watched(title: str, total: int):
        written.append(capsys.readouterr().err)
        with bars(title, total) as advance:
            yield advance

    evaluate(
        resolve("run.toml", Options(methods=("mcbn",)), folder=folder),
        progress=watched,
        forecast_listener=bars.forecast_listener,
    )
    first, *others = (*written, capsys.readouterr().err)
    assert first.startswith("bnuq: 8 samples of 110 points in 2 sets by mcbn (draws ")
    assert "--samples or --limit" in first and first.count("\n") == 1
    assert not any(others)
