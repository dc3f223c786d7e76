"""Predictions from other software: scored as numpy scores them, by the rows of evaluated points; what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import small_regression
import small_run
import torch
from findings_of import noted
from report_text import rendered
from scipy.special import softmax
from torch import nn

import bnuq
from bnuq.cli.main import main
from bnuq.config import Options, resolve
from bnuq.errors import BnuqError
from bnuq.gate import check
from bnuq.gate.compatibility import check_request_comparable
from bnuq.gate.pairing import pairing
from bnuq.gate.settings import GateSettings
from bnuq.records.evaluation import Result
from bnuq.report.evaluation import report
from bnuq.sampling import counter_rng

T = 12
Arrays = dict[str, np.ndarray]


def written(folder: Path, name: str = "samples.npz", **arrays: np.ndarray) -> Path:
    np.savez(folder / name, **arrays)  # type: ignore
    return folder / name


def samples_of(seed: int, **sizes: int) -> Arrays:
    random = np.random.default_rng(seed)
    return {name: softmax(2 * random.normal(size=(T, n, small_run.CLASSES)), -1) for name, n in sizes.items()}


def both(seed: int = 0) -> Arrays:
    return samples_of(seed, test=small_run.TEST, other=small_run.OTHER)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = small_run.write(tmp_path_factory.mktemp("predictions") / "run").parent
    text = (folder / "run.toml").read_text().replace("samples = 8\n", "")
    (folder / "run.toml").write_text(text)
    written(folder, **both())
    return folder


def evaluated(folder: Path, name: str = "out", **options: Any) -> Result:
    given = {"predictions": "samples.npz", "methods": ("predictions",), "out": f"{name}.h5", "post_hoc": False}
    return small_run.evaluated(folder, **given | options)


@pytest.fixture(scope="module")
def whole(folder: Path) -> Result:
    return evaluated(folder, "whole", precision="float64")


def assert_scored(test: Any, p: np.ndarray, y: np.ndarray, tolerance: float = 1e-9) -> None:
    mean = p.mean(0)
    entropy = -(mean * np.log(mean)).sum(-1)
    information = entropy + (p * np.log(p)).sum(-1).mean(0)
    expected = {
        "accuracy": (mean.argmax(-1) == y).mean(),
        "pll": np.log(mean[np.arange(len(y)), y]).mean(),
        "brier": ((mean - np.eye(p.shape[-1])[y]) ** 2).sum(-1).mean(),
        "mutual_information": information.mean(),
        "predictive_entropy": entropy.mean(),
    }
    assert {key: test.estimates[key].value for key in expected} == pytest.approx(expected, rel=tolerance)
    np.testing.assert_allclose(test.points["mutual_information"], information, atol=tolerance)


def test_arrays_of_no_set_are_not_read(folder: Path, whole: Result) -> None:
    written(folder, "more.npz", **both(), notes=np.array([{"by": "hand"}], dtype=object))
    more = evaluated(folder, "more", precision="float64", predictions="more.npz")
    pll, expected = (each.methods["predictions"].sets["test"].estimates["pll"].value for each in (more, whole))
    assert pll == expected


def test_they_are_scored_as_numpy_scores_them(folder: Path, whole: Result) -> None:
    p, y = both(), np.load(folder / "test.npz")["y"]
    assert list(whole.methods) == ["deterministic", "predictions"]
    assert whole.sampling["samples"] == T  # that of the file, where none is named
    found = whole.methods["predictions"]
    assert_scored(found.sets["test"], p["test"], y)
    pll = found.sets["test"].estimates["pll"]
    log_p = np.log(p["test"].mean(0)[np.arange(len(y)), y])
    assert pll.se == pytest.approx(log_p.std(ddof=1) / np.sqrt(len(y)), rel=1e-6)
    left_out = [np.log(np.delete(p["test"], t, 0).mean(0)[np.arange(len(y)), y]).mean() for t in range(T)]
    assert pll.mc_se == pytest.approx(np.sqrt((T - 1) * np.var(left_out)), rel=1e-6)
    scores = [-(p[name].mean(0) * np.log(p[name].mean(0))).sum(-1) for name in ("test", "other")]
    auroc = (scores[1][:, None] > scores[0]).mean()
    assert found.ood["other"]["predictive_entropy"]["auroc"].value == pytest.approx(auroc)
    assert "energy" not in found.ood["other"] and "energy" in whole.methods["deterministic"].sets["test"].points
    assert "predictions" not in whole.work.methods  # their cost is not known
    assert "predictions samples.npz, from other software" in " ".join(rendered(report, whole).split())


@pytest.mark.nightly  # cli/test_cli_summary.py holds it of others
def test_no_estimate_depends_on_chunks(folder: Path, whole: Result) -> None:
    apart = evaluated(folder, chunk_size=7, precision="float64")
    for score, values in apart.methods["predictions"].sets["test"].points.items():
        np.testing.assert_allclose(values, whole.methods["predictions"].sets["test"].points[score], atol=1e-12)


def test_a_limit_takes_the_rows_of_the_points_that_it_chose(folder: Path) -> None:
    limited = evaluated(folder, limit=25, precision="float64")
    rows = np.sort(counter_rng.batch_indices(0, 0, population=60, batch_size=25, purpose=counter_rng.SUBSET))
    y = np.load(folder / "test.npz")["y"][rows]
    assert_scored(limited.methods["predictions"].sets["test"], both()["test"][:, rows], y)


def test_fewer_samples_are_the_first_and_other_methods_stand_beside(folder: Path) -> None:
    result = evaluated(folder, samples=8, methods=("mcbn",), calibrate="cross", precision="float64")
    with_temperature = [name + end for name in ("deterministic", "mcbn", "predictions") for end in ("", "+temperature")]
    assert list(result.methods) == with_temperature
    assert_scored(result.methods["predictions"].sets["test"], both()["test"][:8], np.load(folder / "test.npz")["y"])


def test_those_of_a_validation_split_are_rows_of_the_test_set(folder: Path) -> None:
    split = {"split_of": "test", "fraction": 0.5, "held_out": True}
    result = evaluated(folder, validation=split, precision="float64")
    rows = bnuq.held_out_rows(small_run.TEST, fraction=0.5)
    rest = np.setdiff1d(np.arange(small_run.TEST), rows)
    found = result.methods["predictions"]
    assert_scored(found.sets["test"], both()["test"][:, rest], np.load(folder / "test.npz")["y"][rest])
    assert "constant" in found.bounds  # fitted to the other half


def test_without_predictions_of_the_validation_points_nothing_is_fitted_to_them(folder: Path) -> None:
    np.savez(folder / "validation.npz", x=np.load(folder / "train.npz")["x"][:40] + 0.01, y=np.arange(40) % 3)
    result = evaluated(folder, validation="validation.npz")
    assert "predictions-without-validation" in noted(result)
    assert not result.methods["predictions"].bounds and result.methods["deterministic"].bounds
    assert "predictions+temperature" not in result.methods
    written(folder, "with.npz", **both(), **samples_of(3, validation=40))
    fitted = evaluated(folder, validation="validation.npz", predictions="with.npz")
    assert fitted.methods["predictions"].bounds and "predictions+temperature" in fitted.methods


@pytest.mark.nightly  # as of every method
def test_the_gate_sees_another_file_and_pairs_the_draws_of_the_same(folder: Path, whole: Result) -> None:
    again = evaluated(folder, "again", precision="float64")
    assert check(again, whole).passed and "predictions" in pairing(again, whole).draws
    written(folder, "changed.npz", **both(1))
    changed = evaluated(folder, "changed", precision="float64", predictions="changed.npz")
    assert dict(pairing(changed, whole).why_not)["predictions"] == "the file of predictions differs"
    assert again.provenance["predictions_sha256"] == whole.provenance["predictions_sha256"]
    request = resolve("run.toml", Options(predictions="samples.npz", methods=("predictions",)), folder=folder)
    check_request_comparable(request, whole, GateSettings())  # T is that of the file, which is not read yet
    assert again.run["sampling"]["predictions"] == str(folder / "samples.npz")


def test_means_of_a_regression_are_in_the_unit_of_its_targets(tmp_path: Path) -> None:
    folder = small_regression.write(tmp_path / "run").parent
    random, y = np.random.default_rng(2), np.load(tmp_path / "run" / "test.npz")["y"]
    sizes = {"test": 60, "validation": 40, "far": 40}
    f = {name: 50 + 10 * random.normal(size=(T, n, 1)) for name, n in sizes.items()}
    written(folder, **f)
    options = {"predictions": "samples.npz", "methods": ("predictions",), "samples": T, "precision": "float64"}
    result = small_run.evaluated(folder, **options)
    test = result.methods["predictions"].sets["test"]
    assert test.estimates["rmse"].value == pytest.approx(np.sqrt(((f["test"].mean(0) - y) ** 2).mean()), rel=1e-9)
    np.testing.assert_allclose(test.points["variance"], f["test"].var(0)[:, 0], rtol=1e-9)
    assert "tau" in test.estimates


@pytest.mark.less(False)
def test_a_regression_without_predictions_of_the_validation_points_has_no_precision_for_them(tmp_path: Path) -> None:
    folder = small_regression.write(tmp_path / "run").parent
    random = np.random.default_rng(2)
    written(folder, **{name: 50 + 10 * random.normal(size=(T, n, 1)) for name, n in (("test", 60), ("far", 40))})
    options = {"predictions": "samples.npz", "methods": ("predictions",), "samples": T, "precision": "float64"}
    result = small_run.evaluated(folder, **options)
    assert "predictions-without-validation" in noted(result)
    estimates = {name: method.sets["test"].estimates for name, method in result.methods.items()}
    assert "tau" in estimates["deterministic"] and "tau" not in estimates["predictions"]


def test_probabilities_of_several_labels_need_not_sum_to_1(tmp_path: Path) -> None:
    random = np.random.default_rng(5)
    x, y = random.random((30, 4)).astype(np.float32), random.integers(0, 2, (30, 3))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Linear(4, 3).eval()
    p = random.uniform(0.01, 0.99, (T, 30, 3))
    file = written(tmp_path, test=p)
    result = bnuq.evaluate(model, test=(x, y), predictions=str(file), outputs="multilabel", precision="float64")
    mean = p.mean(0)
    expected = np.log(np.where(y == 1, mean, 1 - mean)).mean()
    assert result.methods["predictions"].sets["test"].estimates["pll"].value == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("stored", [np.float16, np.float32])
def test_sums_within_the_tolerance_are_normalised(folder: Path, stored: type) -> None:
    p = {name: (values * (1 + 4e-4)).astype(stored) for name, values in both().items()}
    written(folder, "scaled.npz", **p)
    exact = p["test"].astype(np.float64)
    result = evaluated(folder, predictions="scaled.npz", precision="float64")
    y = np.load(folder / "test.npz")["y"]
    assert_scored(result.methods["predictions"].sets["test"], exact / exact.sum(-1, keepdims=True), y)


def edited(name: str, change: Callable[[np.ndarray], Any]) -> Callable[[Arrays], Arrays]:
    return lambda arrays: arrays | {name: change(arrays[name])}


def put(value: float) -> Callable[[np.ndarray], np.ndarray]:
    def change(array: np.ndarray) -> np.ndarray:
        array[3, 17, 1] = value
        return array

    return change


BAD: dict[str, tuple[Callable[[Arrays], Arrays], dict[str, Any], str]] = {
    "fewer points": (edited("test", lambda p: p[:, :55]), {}, "test holds 55 points; expected the 60 points of"),
    "cut as the limit": (edited("test", lambda p: p[:, :25]), {"limit": 25}, "holds 25 points; .* 60 .*all of them"),
    "fewer classes": (edited("other", lambda p: p[..., :2]), {}, r"other has 2 classes \(shape \(12, 50, 2\)\)"),
    "NaN": (
        edited("test", put(np.nan)),
        {},
        r"row 17 of sample 3 \(both counted from 0\) holds nan for output \d; .* finite",
    ),
    "negative": (edited("test", put(-0.1)), {}, "row 17 of sample 3 .* expected probabilities, from 0 to 1"),
    "above 1": (edited("test", put(1.25)), {}, r"row 17 of sample 3 .* holds 1\.25 for output \d; .* from 0 to 1"),
    "logits": (edited("test", lambda p: np.log(p)), {}, "row 0 of sample 0 .* expected probabilities, from 0 to 1"),
    "other sums": (
        edited("other", lambda p: p * 0.99),
        {},
        r"row 0 of sample 0 .* sums to 0\.99; expected a sum of 1",
    ),
    "a missing set": (lambda p: {"test": p["test"]}, {}, "holds no array other; it has test"),
    "one sample": (edited("test", lambda p: p[0]), {}, r"test has shape \(60, 3\) of float64; expected \(T, n, K\)"),
    "other T": (edited("test", lambda p: p[:5]), {}, r"different numbers of samples \(test 5, other 12\)"),
    "classes": (edited("test", lambda p: p.argmax(-1)), {}, "test has shape .* of int64"),
    "objects": (edited("test", lambda p: p.astype(object)), {}, "holds Python objects, which bnuq does not unpickle"),
    "too few": (lambda p: p, {"samples": 20}, "samples is 20, and .* holds 12 of each point; .* --samples 12"),
    "auto": (lambda p: p, {"samples": "auto"}, "samples is auto"),
    "the same": (lambda p: {k: np.tile(v[:1], (T, 1, 1)) for k, v in p.items()}, {}, "of predictions are identical"),
    "no file": (lambda p: p, {"predictions": "nowhere.npz"}, "nowhere.npz"),
    "no archive": (lambda p: p, {"predictions": "run.toml"}, "is not .npz"),
    "not named": (lambda p: p, {"predictions": None}, "there is no file of samples; add --predictions FILE.npz"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_cannot_be_scored_is_refused(folder: Path, case: str) -> None:
    change, options, message = BAD[case]
    written(folder, "bad.npz", **change(both()))
    with pytest.raises(BnuqError, match=message):
        evaluated(folder, "bad", **{"predictions": "bad.npz"} | options)


def test_the_command_line_takes_them(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    options = ["--predictions", "samples.npz", "--method", "deterministic", "-o", "cli.h5", "--json", "--quiet"]
    with pytest.raises(SystemExit) as done:
        main(["evaluate", "run.toml", *options])
    assert done.value.code in (0, None)
    found = json.loads(capsys.readouterr().out)
    assert list(found["methods"]) == ["deterministic", "predictions"]
    assert found["sampling"]["samples"] == T
