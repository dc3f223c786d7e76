"""The passes of a run: draws doubled until they suffice, memory minded, and what it took told."""

from __future__ import annotations

import threading
from contextlib import ExitStack, nullcontext
from pathlib import Path

import numpy as np
import pytest
import small_run
import torch
from findings_of import values_of, warned
from written import folder_of

from bnuq.evaluation import memory
from bnuq.evaluation.passes import Prefetch
from bnuq.findings import note
from bnuq.records.evaluation import Result
from bnuq.sampling.engine import Stochastic

pytestmark = [pytest.mark.held(False), pytest.mark.less]
SAME = {"rel": 1e-5, "abs": 1e-7}
METHODS = ("mcbn", "mcdo")
MC_ERROR = 0.5
ALONE = {"methods": ("mcbn",), "ood": ()}


folder = folder_of(small_run)


@pytest.fixture(scope="module")
def automatic(folder: Path) -> Result:
    """Drawn until every error is reached, with its samples kept."""
    given = {"samples": "auto", "mc_error": MC_ERROR, "methods": METHODS, "save_samples": True}
    return small_run.evaluated(folder, **given, out=folder / "auto.h5")


@pytest.fixture(scope="module")
def plain(folder: Path) -> Result:
    """Of one method on the test set, with all the memory that there is."""
    return small_run.evaluated(folder, **ALONE, out=folder / "plain.h5")


def values(result: Result) -> dict[tuple[str, ...], float]:
    flat = {}
    for method, found in result.methods.items():
        for name, one in found.sets.items():
            flat |= {(method, name, metric): estimate.value for metric, estimate in one.estimates.items()}
        for name, scores in found.ood.items():
            for score, estimates in scores.items():
                flat |= {(method, name, score, metric): estimate.value for metric, estimate in estimates.items()}
    return flat


SMOOTH = ("pll", "brier", "mutual_information", "predictive_entropy", "expected_entropy", "max_probability")


def assert_same_estimates(found: Result, expected: Result) -> None:
    """Equal up to the rounding of another order of operations, which can move one of ranks or counts by a step."""
    a, b = values(found), values(expected)
    assert a.keys() == b.keys()
    for key, value in b.items():
        smooth = len(key) == 3 and key[-1] in SMOOTH
        assert a[key] == pytest.approx(value, **(SAME if smooth else {"abs": 0.03})), key


def errors(result: Result, method: str) -> dict[str, float]:
    found = result.methods[method]
    mi = {name: one.estimates["mutual_information"] for name, one in found.sets.items()}
    return {f"MI on {name}": estimate.mc_se / estimate.value for name, estimate in mi.items()} | {
        "PLL": 10 * found.sets["test"].estimates["pll"].mc_se,
        "AUROC": 10 * found.ood["other"]["mutual_information"]["auroc"].mc_se,
    }


def test_automatic_samples_double_until_every_headline_error_is_reached(folder, tmp_path, automatic):
    result = automatic
    drawn = result.sampling["samples"]
    assert drawn in (32, 64, 128, 256)
    assert result.run["sampling"]["samples"] == "auto"
    for method in METHODS:
        assert max(errors(result, method).values()) <= MC_ERROR
    before = small_run.evaluated(folder, samples=drawn // 2, methods=METHODS, out=tmp_path / "half.h5")
    assert max(max(errors(before, m).values()) for m in METHODS) > MC_ERROR
    assert "mc-error-not-reached" not in warned(result)


def test_the_estimates_of_an_automatic_run_are_those_of_a_run_with_as_many_samples(folder, tmp_path, automatic):
    grown = automatic
    drawn = grown.sampling["samples"]
    whole = small_run.evaluated(folder, samples=drawn, methods=METHODS, out=tmp_path / "whole.h5")
    assert_same_estimates(grown, whole)
    assert grown.methods["mcbn"].sets["test"].samples.shape == (drawn, small_run.TEST, small_run.CLASSES)
    assert grown.bank.samples == drawn == len(np.unique(grown.bank.indices, axis=0))


def test_an_error_that_cannot_be_reached_is_a_warning_that_names_estimate_and_factor(folder, tmp_path):
    result = small_run.evaluated(
        folder, samples="auto", mc_error=0.001, max_samples=24, methods=("mcbn",), out=tmp_path / "r.h5"
    )
    assert result.sampling["samples"] == 24
    not_reached = values_of(result, "mc-error-not-reached")
    assert (not_reached["method"], not_reached["samples"]) == ("mcbn", 24)
    assert not_reached["ratio"] == pytest.approx(max(errors(result, "mcbn").values()) / 0.001)


def test_little_memory_makes_chunks_smaller_and_says_so(folder, plain, tmp_path, monkeypatch):
    monkeypatch.setattr(memory, "available", lambda _: 30_000)
    tight = small_run.evaluated(folder, **ALONE, out=tmp_path / "tight.h5")
    reduced = values_of(tight, "chunk-reduced")
    assert reduced["free"] == "30 kB" and reduced["points"] <= 256
    assert_same_estimates(tight, plain)


def test_exhausted_memory_halves_the_chunk_and_says_so(folder, plain, tmp_path, monkeypatch):
    passes = Stochastic.passes

    def limited(self: Stochastic, inputs: torch.Tensor, start: int = 0) -> torch.Tensor:
        if len(inputs) > 20:
            raise torch.OutOfMemoryError("out of memory")
        return passes(self, inputs, start)

    monkeypatch.setattr(Stochastic, "passes", limited)
    tight = small_run.evaluated(folder, **ALONE, out=tmp_path / "tight.h5")
    assert note("chunk-halved", reason="memory ran out", points=15) in tight.findings
    assert_same_estimates(tight, plain)


def test_another_arithmetic_is_told_with_its_deviation_and_leaves_the_deterministic_estimates(folder, plain, tmp_path):
    rough = small_run.evaluated(folder, **ALONE, precision="bfloat16", out=tmp_path / "rough.h5")
    told = values_of(rough, "reduced-precision")
    assert (told["method"], told["precision"], told["points"], told["samples"]) == ("mcbn", "bfloat16", 60, 8)
    assert told["measure"] == "mutual information" and 0 < told["mean"] < 0.1 and told["mean"] < told["largest"] < 1
    ratio = rough.methods["mcbn"].sets["test"].estimates["mutual_information"].value
    ratio /= plain.methods["mcbn"].sets["test"].estimates["mutual_information"].value
    assert told["shift"] == pytest.approx(ratio - 1, abs=0.001) and 0 < told["shift_error"] < 0.1
    a, b = values(plain), values(rough)
    assert all(a[key] == b[key] for key in a if key[0] == "deterministic")
    assert a != b and all(abs(a[key] - b[key]) < 0.1 for key in a if key[2:] == ("accuracy",))
    assert rough.sampling["precision"] == "bfloat16"


@pytest.mark.nightly
def test_what_the_passes_took_is_told_for_every_method(folder, tmp_path):
    result = small_run.evaluated(folder, samples=12, out=tmp_path / "r.h5")
    took, points = result.work.methods, small_run.TEST + small_run.OTHER
    assert list(took) == ["deterministic", "mcbn", "mcdo", "mcbn+mcdo"]
    assert [one.passes for one in took.values()] == [points, 12 * points, 12 * points, 12 * points]
    conv, head = 4 * 16 * 9, 64 * 8 + 8 + 8 + 8 * 3  # multiply-adds; an operation that is no layer counts one an entry
    assert took["mcdo"].once >= conv + 64 * 8 and took["mcdo"].each == 8 + 8 * 3
    assert conv <= took["mcbn"].once < conv + 64 and took["mcbn"].each >= head
    assert all(took[method].seconds > 0 and took[method].ratio > 0 for method in list(took)[1:])
    assert result.work.peak_bytes > 1e7


def test_why_there_is_no_plan_is_told(plain, tmp_path):
    forward = "x = x.relu()\n        return x if float(x.sum()) > -1e9 else -x"
    looks = f"class Looks(nn.Module):\n    def forward(self, x):\n        {forward}\n\n\n"
    text = small_run.NET.replace("nn.ReLU(),", "Looks(),", 1).replace("def net(", f"{looks}def net(")
    small_run.write(tmp_path)
    (tmp_path / "net.py").write_text(text)
    looking = small_run.evaluated(tmp_path, **ALONE, out=tmp_path / "looking.h5")
    assert "lets its path or its sizes depend on the data" in looking.work.methods["mcbn"].why_plain
    assert plain.work.methods["mcbn"].why_plain is None
    assert_same_estimates(looking, plain)


def test_points_loaded_ahead_are_those_that_were_asked_for():
    loaded = []

    def load(rows: slice) -> torch.Tensor:
        loaded.append((rows.start, rows.stop, threading.current_thread() is threading.main_thread()))
        return torch.arange(rows.start, rows.stop)

    with ExitStack() as closing:
        feed = Prefetch(load, 10, nullcontext, closing)
        asked = [slice(0, 4), slice(4, 8), slice(4, 6), slice(6, 8), slice(8, 10)]  # the second was halved
        for rows in asked:
            assert feed(rows).tolist() == list(range(rows.start, rows.stop))
    assert [(a, b) for a, b, at_once in loaded if at_once] == [(0, 4), (4, 6)]
    assert [(a, b) for a, b, at_once in loaded if not at_once] == [(4, 8), (8, 10), (6, 8), (8, 10)]


def test_an_error_while_loading_ahead_comes_when_the_points_are_asked_for():
    def load(rows: slice) -> torch.Tensor:
        if rows.start:
            raise ValueError("unreadable")
        return torch.zeros(rows.stop)

    with ExitStack() as closing:
        feed = Prefetch(load, 4, nullcontext, closing)
        feed(slice(0, 2))
        with pytest.raises(ValueError, match="unreadable"):
            feed(slice(2, 4))
