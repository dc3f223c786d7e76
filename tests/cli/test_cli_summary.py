"""`--json`, `bnuq report`, and that the same request gives the same estimates whatever runs beside it."""

from __future__ import annotations

import contextlib
import io
import json
import math
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest
import small_run
import torch
from table import streamed_scores

from bnuq import metrics
from bnuq.cli.main import main
from bnuq.estimates import Estimate
from bnuq.files.content import sha256_of_file
from bnuq.metrics import FEATURE_SCORES
from bnuq.records.summary import estimate_summary
from bnuq.records.summary import summary as summary_of

METHODS = ("deterministic", "mcbn", "mcdo", "mcbn+mcdo")
METRICS = {"predictive_entropy", "expected_entropy", "max_probability"}
OF_SEVERAL_PASSES = {"mutual_information", "uncertainty_correlation"}
LABELLED = {
    "accuracy", "pll", "brier", "ece", "ece_adaptive", "ece_classwise", "ece_debiased", "mce", *metrics.SELECTIVE,
    "auroc_errors",
}  # fmt: skip
PARTS = {"by_class", "by_score", "ece_floor"}
SCORES, POST_HOC = streamed_scores(), {*FEATURE_SCORES}
FEW = ("--method", "mcbn", "--no-post-hoc")
DETECTION = {*metrics.SEPARATIONS, "scod"}


@pytest.fixture
def summary(cli, small):
    """Calls `bnuq evaluate run.toml --json` with more options, and gives the summary."""

    def call(*options: str | Path) -> dict:
        done = cli("evaluate", "run.toml", "--json", *options)
        assert (done.code, done.err) == (0, ""), done
        return json.loads(done.out, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))

    small_run.write(small)  # of all methods, with an OOD set
    return call


@pytest.fixture(scope="module")
def once(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict]:
    """The folder of the tiny network, evaluated once, and the summary."""
    folder = tmp_path_factory.mktemp("once")
    small_run.write(folder)
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(io.StringIO()) as out:
        patch.chdir(folder)
        with pytest.raises(SystemExit):
            main(["evaluate", "run.toml", "--json"])
    return folder, json.loads(out.getvalue(), parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))


@pytest.fixture
def whole(once, monkeypatch) -> dict:
    """That summary; its folder is the working folder."""
    folder, content = once
    monkeypatch.chdir(folder)
    return content


def test_the_summary_has_the_documented_keys_and_types(whole):
    content, small = whole, Path.cwd()
    assert {
        "bnuq", "schema", "command", "model", "sampling", "sets", "methods", "seconds", "warnings", "result",
        "reference_check",
    } <= set(content)  # fmt: skip
    check = content["reference_check"]
    assert check is None or (type(check["passed"]), [*check["layers"][0]]) == (bool, ["name", "mean", "log_variance"])
    assert (content["bnuq"], content["schema"], content["command"]) == ("0.2.0", 2, "evaluate")
    assert content["model"] | {"classes": 0} == {
        "path": str(small / "model.pt"), "sha256": sha256_of_file(small / "model.pt"), "task": "classification",
        "batchnorm_layers": 1, "dropout_layers": 1, "learned_layers": 0, "parameters": 591, "classes": 0,
    }  # fmt: skip
    assert content["sampling"] == {
        "samples": 8, "bank": None, "batch_size": 16, "layers": ["1"], "seed": 0,
        "device": content["sampling"]["device"],
        "mutual_information": "plug-in", "precision": "float32", "reference_points": 96, "test_points": 60,
    }  # fmt: skip
    assert {name: of_set["n"] for name, of_set in content["sets"].items()} == {"test": 60, "other": 50}
    assert all(len(of_set["sha256"]) == 64 for of_set in content["sets"].values())
    assert set(content["seconds"]) == {"load", "draw", "evaluate", "total"}
    assert all(isinstance(value, float) for value in content["seconds"].values())
    assert content["result"] == str(small / "model.bnuq.h5")
    assert all(set(warning) == {"code", "text"} for warning in content["warnings"])


def test_every_estimate_of_the_summary_is_complete(whole):
    content = whole["methods"]
    assert tuple(content) == METHODS
    for name, method in content.items():
        known = METRICS | (OF_SEVERAL_PASSES if name != "deterministic" else set())
        assert known | LABELLED <= {*method["sets"]["test"]} - PARTS <= {*metrics.METRICS}
        assert known <= {*method["sets"]["other"]} <= {*metrics.METRICS} - LABELLED
        assert set(method["ood"]) == {"other"}
        scores = set(method["ood"]["other"])
        assert scores <= SCORES if name != "deterministic" else POST_HOC <= scores <= SCORES | POST_HOC
        assert {*method["sets"]["test"]["by_score"]} <= scores - {"predictive_entropy"}
        of_test = {key: estimate for key, estimate in method["sets"]["test"].items() if key not in PARTS}
        estimates = [*of_test.items(), *method["sets"]["other"].items()]
        for score in method["ood"]["other"].values():
            assert set(score) == DETECTION
            estimates += score.items()
        keys = {"value", "se", "low", "high"} | ({"mc_se"} if name != "deterministic" else set())
        for _, estimate in estimates:
            assert set(estimate) == keys
            assert all(isinstance(value, int | float) for value in estimate.values())
            assert estimate["low"] <= estimate["value"] <= estimate["high"]
        if name == "deterministic":
            assert "convergence" not in method
        else:
            curve = method["convergence"]
            assert curve["samples"] == [1, 2, 4, 8]
            assert all(len(values) == 4 for values in curve.values())
            assert curve["pll"][-1] == pytest.approx(method["sets"]["test"]["pll"]["value"], rel=1e-12)


def test_infinities_and_nan_are_texts(small):
    result = small_run.evaluated(small, methods=("deterministic",), ood=())
    plain = result.methods["deterministic"]
    values = {"pll": -math.inf, "brier": math.inf, "ece": math.nan}
    estimates = dict(plain.sets["test"].estimates) | {
        name: Estimate(value, se=math.inf) for name, value in values.items()
    }
    sets = dict(plain.sets) | {"test": replace(plain.sets["test"], estimates=estimates)}
    shown = summary_of(replace(result, methods={"deterministic": replace(plain, sets=sets)}))
    content = shown["methods"]["deterministic"]["sets"]["test"]
    assert [content[name] for name in values] == [{"value": text, "se": "inf"} for text in ("-inf", "inf", "nan")]
    json.dumps(shown, allow_nan=False)


def test_an_error_that_is_not_a_number_is_absent():
    assert estimate_summary(Estimate(math.nan, se=math.nan, low=-math.inf)) == {"value": "nan", "low": "-inf"}


def test_report_gives_what_evaluate_gave(cli, whole):
    assert json.loads(cli("report", "model.bnuq.h5", "--json").out) == whole
    evaluated = cli("evaluate", "run.toml", *FEW, "-o", "few.h5")
    assert cli("report", "few.h5").out == evaluated.out
    assert cli("report", Path("few.h5").resolve()).out == evaluated.out


def test_report_gives_what_evaluate_gave_also_where_errors_are_undefined(cli, small):
    """One group, one pass: no error over points or draws can be told, and its key is absent in both."""
    with np.load(small / "test.npz") as arrays:
        np.savez(small / "one.npz", **arrays, group=np.zeros(len(arrays["y"])))
    for options in (FEW, (*FEW, "-T", "1"), ("--method", "deterministic")):
        evaluated = cli("evaluate", "run.toml", "--test", "one.npz", "--json", *options)
        assert evaluated.code == 0, evaluated
        shown = json.loads(evaluated.out)
        assert json.loads(cli("report", "model.bnuq.h5", "--json").out) == shown
        assert "se" not in shown["methods"]["deterministic"]["sets"]["test"]["pll"]
        assert cli("report", "model.bnuq.h5").code == 0


# ── the same estimates ────────────────────────────────────────────────────────────────────────────────────────────────


def assert_same(first, second, *, tolerance: float = 0.0) -> None:
    """Nested estimates are equal, and to the last bit where no tolerance is given."""
    assert type(first) is type(second)
    if isinstance(first, dict):
        assert first.keys() == second.keys()
        for key in first:
            assert_same(first[key], second[key], tolerance=tolerance)
    elif isinstance(first, list):
        assert len(first) == len(second)
        for a, b in zip(first, second, strict=True):
            assert_same(a, b, tolerance=tolerance)
    elif tolerance:
        assert math.isclose(first, second, rel_tol=0, abs_tol=tolerance), (first, second)
    else:
        assert first == second


def test_another_seed_gives_other_estimates(summary, whole):
    first = whole["methods"]
    other = summary("--seed", "1", "--no-post-hoc", "--ood", "other.npz")["methods"]
    kept = []
    for sets in (other["deterministic"]["sets"], first["deterministic"]["sets"]):
        assert sets["test"]["by_score"]  # of other scores
        kept.append({**sets, "test": {key: value for key, value in sets["test"].items() if key != "by_score"}})
    assert kept[0] == kept[1]
    for method in METHODS[1:]:
        assert other[method]["sets"]["test"]["pll"] != first[method]["sets"]["test"]["pll"]


def test_estimates_do_not_depend_on_the_chunk_size(summary):
    few = ("--precision", "float64", "--limit", "10", "--no-post-hoc")  # no multiple of 7
    chunked, at_once = (summary(*few, *size)["methods"] for size in (("--chunk-size", "7"), ()))
    assert_same(chunked, at_once, tolerance=1e-9)


def test_estimates_do_not_depend_on_other_ood_sets_the_order_of_methods_or_which_run(summary, small, once):
    np.savez(small / "more.npz", x=np.random.default_rng(5).random((20, 1, 6, 6), dtype=np.float32))
    alone = once[1]["methods"]
    beside = summary("--ood", "more.npz,other.npz", "--method", "mcbn+mcdo,mcdo")["methods"]
    assert tuple(beside) == ("deterministic", "mcbn+mcdo", "mcdo")
    for method, content in beside.items():
        assert_same(content["sets"]["test"], alone[method]["sets"]["test"])
        assert_same(content["ood"]["other"], alone[method]["ood"]["other"])


def test_a_limited_set_keeps_the_estimates_of_each_point(cli, small):
    """Dropout masks go by a point's place in its set, so this holds for what depends on the point alone: MCBN."""
    for name, options in {"all.h5": (), "few.h5": ("--limit", "20")}.items():
        assert cli("evaluate", "run.toml", *FEW, "-o", name, *options).code == 0
    with h5py.File(small / "all.h5") as whole, h5py.File(small / "few.h5") as few:
        every, some = (file["log_likelihood/mcbn_test"][0] for file in (whole, few))
    assert some.shape == (8, 20)
    places = [int(np.abs(every - column[:, None]).max(0).argmin()) for column in some.T]
    assert places == sorted(set(places))
    np.testing.assert_allclose(every[:, places], some, atol=1e-6)


def test_the_first_draws_of_a_longer_run_are_those_of_a_shorter_one(summary, once):
    short, long = once[1]["methods"], summary("-T", "16", "--no-post-hoc")["methods"]
    for method in METHODS[1:]:
        assert long[method]["convergence"]["samples"] == [1, 2, 4, 8, 16]
        for metric, values in short[method]["convergence"].items():
            assert_same(long[method]["convergence"][metric][:4], values, tolerance=1e-12)


def test_evaluate_leaves_the_global_random_state_alone(small):
    torch.manual_seed(3)
    np.random.seed(3)
    before = torch.get_rng_state(), np.random.get_state()[1].copy()  # type: ignore
    small_run.evaluated(small, limit=20)
    assert torch.equal(torch.get_rng_state(), before[0])
    np.testing.assert_array_equal(np.random.get_state()[1], before[1])  # type: ignore
