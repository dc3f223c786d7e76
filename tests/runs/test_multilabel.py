"""Several labels per point: estimates against formulas written out here, files, checks, and what is refused."""

from __future__ import annotations

import json
import math
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import small_multilabel
import small_run
import torch
from sklearn.metrics import roc_auc_score
from small_multilabel import LABELS, RUN, SAMPLES
from written import folder_of

import bnuq
from bnuq import metrics
from bnuq.errors import BnuqError, DataError, RequestError, ResultError
from bnuq.gate import check
from bnuq.gate.checking import recomputed
from bnuq.gate.settings import Required
from bnuq.records.addresses import address_of, coordinates_of, estimates_of
from bnuq.records.evaluation import Result
from bnuq.records.evaluation_file import read
from bnuq.records.points import points_table
from bnuq.report.evaluation import report

Evaluated = Callable[..., Result]


folder = folder_of(small_multilabel)


@pytest.fixture(scope="module")
def evaluated(folder: Path) -> Evaluated:
    def once(name: str, **options: Any) -> Result:
        path = folder / f"{name}.h5"
        if not path.exists():
            small_run.evaluated(folder, out=path, **options)
        return read(path)

    return once


@pytest.fixture(scope="module")
def result(evaluated: Evaluated) -> Result:
    return evaluated("result", save_samples=True)


def arrays(folder: Path, name: str) -> tuple[np.ndarray, ...]:
    with np.load(folder / f"{name}.npz") as file:
        return file["x"], file["y"], file["group"]


def entropy(p: np.ndarray) -> np.ndarray:
    return -(p * np.log(p) + (1 - p) * np.log1p(-p))


def ece(p: np.ndarray, y: np.ndarray) -> float:
    confidence, right = np.maximum(p, 1 - p), (p > 0.5) == y
    inside = [(confidence > k / 15) & (confidence <= (k + 1) / 15) for k in range(15)]
    return sum(abs(right[rows].mean() - confidence[rows].mean()) * rows.mean() for rows in inside if rows.any())


def values(estimates: Any) -> dict[str, float]:
    return {name: estimate.value for name, estimate in estimates.items()}


@pytest.mark.parametrize("method", ["mcbn", "mcdo"])
def test_estimates_are_those_of_the_raw_samples(result: Result, folder: Path, method: str) -> None:
    y, group = arrays(folder, "test")[1:]
    with h5py.File(folder / "result.h5") as file:
        z, far = (file[f"posterior_predictive/{method}_{name}"][0].astype(np.float64) for name in ("test", "other"))
    p = 1 / (1 + np.exp(-z))
    mean, n = p.mean(0), len(y)
    of_points = {
        "pll": np.log(np.where(y == 1, p, 1 - p).mean(0)),
        "accuracy": ((mean > 0.5) == y).astype(float),
        "brier": 2 * (mean - y) ** 2,
        "mutual_information": entropy(mean) - entropy(p).mean(0),
        "predictive_entropy": entropy(mean),
    }
    found = result.methods[method].sets["test"]
    by_label = {
        "ece": [ece(mean[:, k], y[:, k]) for k in range(LABELS)],
        "label_auroc": [roc_auc_score(y[:, k], mean[:, k]) for k in range(LABELS)],
    }
    expected = {name: values.mean() for name, values in of_points.items()}
    expected |= {name: np.mean(of) for name, of in by_label.items()}
    assert expected["label_auroc"] == pytest.approx(roc_auc_score(y, mean, average="macro"))
    certain = np.argsort(entropy(mean).mean(1), kind="stable")
    errors = (1 - of_points["accuracy"]).mean(1)[certain]
    risk = np.cumsum(errors) / np.arange(1, n + 1)
    expected["aurc"], expected["augrc"] = np.mean(risk), (np.cumsum(errors) - errors / 2).sum() / n**2
    expected["risk_at_80"] = risk[math.ceil(0.8 * n - 1e-9) - 1]
    expected["coverage_at_5"] = max((k + 1 for k in range(n) if risk[k] <= 0.05), default=0) / n
    assert {name: found.estimates[name].value for name in expected} == pytest.approx(expected, abs=1e-9)
    for k, (label, estimates) in enumerate(found.by_label.items()):
        assert label == str(k)
        one = {name: of_points[name][:, k].mean() for name in ("pll", "accuracy", "brier", "mutual_information")}
        assert values(estimates) == pytest.approx(one | {name: of[k] for name, of in by_label.items()}, abs=1e-9)
    # points count as a whole, and by group
    sums = np.bincount(group, weights=of_points["pll"].mean(1) - of_points["pll"].mean())
    error = np.sqrt(len(sums) / (len(sums) - 1) * (sums**2).sum()) / n
    assert found.estimates["pll"].se == pytest.approx(error)
    scores = [(entropy(q.mean(0)) - entropy(q).mean(0)).mean(1) for q in (p, 1 / (1 + np.exp(-far)))]
    separated = roc_auc_score(np.repeat([0, 1], [n, len(far[0])]), np.concatenate(scores))
    assert result.methods[method].ood["other"]["mutual_information"]["auroc"].value == pytest.approx(separated)


def test_monte_carlo_errors_are_those_without_a_draw(result: Result, folder: Path) -> None:
    y = arrays(folder, "test")[1]
    with h5py.File(folder / "result.h5") as file:
        p = 1 / (1 + np.exp(-file["posterior_predictive/mcbn_test"][0].astype(np.float64)))
    left_out = [np.delete(p, t, 0).mean(0) for t in range(SAMPLES)]
    found = result.methods["mcbn"].sets["test"]
    macro = [roc_auc_score(y, mean) for mean in left_out]
    assert found.estimates["label_auroc"].jackknife == pytest.approx(np.array(macro), abs=1e-6)
    assert found.by_label["1"]["ece"].jackknife == pytest.approx([ece(mean[:, 1], y[:, 1]) for mean in left_out])
    assert found.estimates["label_auroc"].mc_se == pytest.approx(
        float(metrics.jackknife_error(np.array(macro))), rel=1e-4
    )


def test_the_constant_confidence_is_one_for_all_labels(result: Result) -> None:
    method = result.methods["deterministic"]
    accuracy, confidence = (
        method.sets["test"].estimates["accuracy"].value,
        method.bounds["constant"]["confidence"].value,
    )
    expected = accuracy * np.log(confidence) + (1 - accuracy) * np.log(1 - confidence)
    assert method.bounds["constant"]["pll"].value == pytest.approx(expected)
    assert method.bounds["optimum"]["pll"].value == pytest.approx(-(1 - accuracy) * np.log(2))
    assert set(method.normalized) == {"pll"} and method.bounds["constant"]["pll"].se


@pytest.mark.held
def test_a_tuple_of_rows_and_their_matrix_is_inputs_and_labels() -> None:
    random = np.random.default_rng(0)
    x, y = random.normal(size=(60, 5)).astype(np.float32), random.integers(0, 2, (60, 3))
    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Linear(5, 3), torch.nn.Dropout(0.5))
    done = bnuq.evaluate(network, test=(x, y), outputs="multilabel", samples=8).summary()
    assert done["model"]["labels"] == 3 and done["sets"]["test"]["n"] == 60


def test_the_file_holds_every_label(result: Result, folder: Path) -> None:
    n = small_run.TEST
    assert result.model["labels"] == LABELS and result.sets["test"].labels.shape == (n, LABELS)
    test = result.methods["mcbn"].sets["test"]
    assert test.predicted.shape == (n, LABELS) and test.log_likelihood.shape == (SAMPLES, n, LABELS)
    for name, by_label in test.label_points.items():
        assert np.allclose(by_label.mean(1), test.points[name], atol=1e-12), name
    with h5py.File(folder / "result.h5") as file:
        for path in ("log_likelihood/mcbn_test", "posterior_predictive/mcbn_test"):
            names = [next(iter(dim.values())).name.rpartition("/")[2] for dim in file[path].dims]
            assert names == ["chain", "draw", "test_point", "label"]
        assert file["observed_data/test"].shape == (n, LABELS)


def test_addresses_lead_to_a_label_whatever_it_is_called() -> None:
    at = {"method": "mcbn", "set": "test", "label": "a.b dog", "metric": "pll"}
    assert address_of(at) == "mcbn.sets.test.by_label.a.b dog.pll"
    assert coordinates_of(address_of(at)) == at
    assert Required.of(f"{address_of(at)} >= -0.5") == Required(address_of(at), ">=", -0.5)


def test_points_and_report_name_labels(result: Result) -> None:
    table = points_table(result, method="mcbn")
    has = result.sets["test"].labels
    assert table["label"][3] == ", ".join(map(str, np.flatnonzero(has[3])))
    assert table["accuracy"] == pytest.approx((result.methods["mcbn"].sets["test"].predicted == has).mean(1))
    shown = report(result)
    section = next(each for each in shown.sections if each.title == "By label")
    assert [row[0] for row in section.parts[1].rows] == [*"0123"]
    assert "4 labels" in dict(shown.facts)["model"]
    assert shown.meaning == "means over the 4 labels"


# ── the check ────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.nightly
def test_the_same_network_passes_and_a_label_that_collapsed_is_found(result: Result, evaluated: Evaluated) -> None:
    again = check(evaluated("again", seed=1), result)
    assert again.passed and {one.address for one in again.comparisons} == set(estimates_of(result))
    assert all(one.se is not None for one in again.comparisons if one.metric not in ("confidence", "coverage_at_5"))
    collapsed = check(evaluated("collapsed", run_file="collapsed.toml"), result)
    assert not collapsed.passed
    assert {one.label for one in collapsed.worse} == {"", "2"}
    worst = {one.address for one in collapsed.worse}
    assert {"deterministic.sets.test.by_label.2.label_auroc", "mcbn.sets.test.by_label.2.pll"} <= worst
    unchanged = [one for one in collapsed.comparisons if one.label in ("0", "1", "3")]
    assert unchanged and all(one.change == 0 for one in unchanged if one.method == "deterministic")


def changed(result: Result, **changes: Any) -> Result:
    method = result.methods["mcbn"]
    sets = {**method.sets, "test": replace(method.sets["test"], **changes)}
    return replace(result, methods={**result.methods, "mcbn": replace(method, sets=sets)})


@pytest.mark.parametrize(
    ("part", "metric", "message"),
    [
        ("estimates", "label_auroc", r"mcbn\.sets\.test\.label_auroc is .*; recomputed"),
        ("estimates", "ece", r"mcbn\.sets\.test\.ece is .*; recomputed"),
        ("by_label", "pll", r"mcbn\.sets\.test\.by_label\.1\.pll is .*; recomputed"),
        ("by_label", "label_auroc", r"mcbn\.sets\.test\.by_label\.1\.label_auroc is .*; recomputed"),
        ("label_points", "pll", r"mcbn\.sets\.test\.by_label\.1\.pll is .*; recomputed"),
    ],
)
def test_a_file_that_contradicts_itself_is_refused(result: Result, part: str, metric: str, message: str) -> None:
    test = result.methods["mcbn"].sets["test"]
    if part == "label_points":
        values = test.label_points[metric].copy()
        values[5, 1] += 0.01
        damaged = changed(result, label_points={**test.label_points, metric: values})
    elif part == "by_label":
        estimate = replace(test.by_label["1"][metric], value=test.by_label["1"][metric].value + 0.01)
        damaged = changed(result, by_label={**test.by_label, "1": {**test.by_label["1"], metric: estimate}})
    else:
        estimate = test.estimates[metric]
        estimate = replace(estimate, value=estimate.value + 0.01)
        damaged = changed(result, estimates={**test.estimates, metric: estimate})
    with pytest.raises(ResultError, match=message):
        recomputed(damaged)


# ── what is refused, and what is left out ────────────────────────────────────────────────────────────────────────────


def with_labels(folder: Path, y: Any, *, name: str = "odd") -> str:
    np.savez(folder / f"{name}.npz", x=arrays(folder, "test")[0], **({} if y is None else {"y": y}))
    return str(folder / f"{name}.npz")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda y: 2 * y, r"are values from 0.* to 2.*, not only 0 and 1; expected a matrix \(60, 4\) of 0 and 1"),
        (lambda y: y[:, :3], r"have shape \(60, 3\); expected a matrix \(60, 4\)"),
        (
            lambda y: y[:, :1],
            r"have shape \(60,\); expected a matrix .* one class per example, leave --outputs multilabel",
        ),
        (lambda y: 0 * y, r"are all 0: no example has any of them"),
        (lambda y: np.where(y == 1, np.nan, 0.0), r"y holds NaN or infinity"),
    ],
)
def test_targets_that_are_no_labels_are_refused(folder: Path, change: Callable[..., Any], message: str) -> None:
    y = arrays(folder, "test")[1]
    with pytest.raises(DataError, match=message):
        small_run.evaluated(folder, out=folder / "no.h5", test=with_labels(folder, change(y)))
    assert not (folder / "no.h5").exists()


def test_matrices_of_several_labels_are_never_scored_otherwise_and_the_error_names_the_key(folder: Path) -> None:
    (folder / "plain.toml").write_text(RUN.replace('outputs = "multilabel"\n', ""))
    key = r'--outputs multilabel, or outputs = "multilabel" under \[model\]'
    for options in ({}, {"task": "classification"}, {"outputs": "probabilities"}):
        with pytest.raises(DataError, match=key):
            small_run.evaluated(folder, run_file="plain.toml", out=folder / "no.h5", **options)
    with pytest.raises(RequestError, match=r'outputs is "multilabel", .* and task is "regression"'):
        small_run.evaluated(folder, out=folder / "no.h5", task="regression")


def test_a_sigmoid_at_the_end_and_a_single_output_are_errors_that_say_what_to_do() -> None:
    random = np.random.default_rng(0)
    x, y = random.normal(size=(30, 5)).astype(np.float32), random.integers(0, 2, (30, 3))
    for network, message in (
        (
            torch.nn.Sequential(torch.nn.Linear(5, 3), torch.nn.Sigmoid()),
            "ends in a sigmoid: .* Remove the last sigmoid",
        ),
        (torch.nn.Linear(5, 1), r"gives \(3, 1\); expected the logits of several labels .* --outputs binary"),
    ):
        with pytest.raises(BnuqError, match=message):
            bnuq.evaluate(network, test={"x": x, "y": y}, outputs="multilabel")


def test_labels_of_one_value_have_no_auroc_and_a_note_says_so(folder: Path) -> None:
    y = arrays(folder, "test")[1].copy()
    y[:, 1], y[1:, 3] = 1, 0
    done = small_run.evaluated(
        folder, out=folder / "rare.h5", test=with_labels(folder, y, name="rare"), samples=8, methods=("mcbn",), ood=()
    )
    test = read(folder / "rare.h5").methods["mcbn"].sets["test"]
    ranked = [label for label, estimates in test.by_label.items() if "label_auroc" in estimates]
    assert ranked == ["0", "2"]
    found = test.estimates["label_auroc"].value
    assert found == pytest.approx(np.mean([test.by_label[label]["label_auroc"].value for label in ranked]))
    (noted,) = [finding for finding in done.findings if finding.code == "labels-without-auroc"]
    assert noted.values["labels"] == ["1", "3"]
    assert recomputed(done)


def test_points_without_labels_have_uncertainties_alone(folder: Path) -> None:
    done = small_run.evaluated(
        folder, out=folder / "bare.h5", test=with_labels(folder, None, name="bare"), samples=8, methods=("mcbn",),
        ood=(),
    )  # fmt: skip
    test = read(folder / "bare.h5").methods["mcbn"].sets["test"]
    assert not test.by_label and not test.label_points and test.predicted.shape == (60, LABELS)
    assert {"mutual_information", "predictive_entropy"} <= set(test.estimates) and "accuracy" not in test.estimates
    assert recomputed(done)


def test_other_commands_refuse_it_by_one_error_or_take_it(folder: Path, monkeypatch, capsys) -> None:
    from bnuq.cli.main import main

    monkeypatch.chdir(folder)

    def call(*arguments: str) -> tuple[Any, str]:
        with pytest.raises(SystemExit) as leave:
            main([*arguments])
        said = capsys.readouterr()
        return leave.value.code, said.err if leave.value.code else said.out

    assert call("sweep-batch-size", "run.toml")[0] == 2
    code, text = call("inspect", "run.toml", "--domain", "other=other.npz")
    assert code == 2 and "not scored on domains" in text
    assert call("inspect", "run.toml", "--json", "--draws", "8")[0] == 0
    (folder / "several.toml").write_text((RUN + "\n[runs]\nseed = [0, 1]\n").replace(', "mcdo"]', "]"))
    code, text = call("evaluate", "several.toml", "--json")
    assert code == 0, text
    assert len(json.loads(text)["aggregate"]["mcbn"]["sets"]["test"]["by_label"]["2"]["label_auroc"]["values"]) == 2
    code, text = call("report", "result.h5", "--points", "3")
    assert code == 0 and "label" in text
    assert call("report", "result.h5", "--full", "--html", "page.html")[0] == 0
    assert re.search("By label", Path("page.html").read_text())


def test_init_suggests_it_for_such_a_matrix(folder: Path, monkeypatch, tmp_path: Path, capsys) -> None:
    from bnuq.cli.main import main

    work = shutil.copytree(folder, tmp_path / "init")
    monkeypatch.chdir(work)
    arguments = ["init", "model.pt", "--arch", "net.py:net", "--arch-arg", f"classes={LABELS}", "--test", "test.npz"]
    with pytest.raises(SystemExit) as leave:
        main([*arguments, "--train", "train.npz", "--normalize", "none", "--augment", "none", "--out", "new.toml"])
    capsys.readouterr()
    assert leave.value.code == 0
    assert re.search(
        '^outputs = "multilabel" +# likely, not certain: 4 outputs', (work / "new.toml").read_text(), re.MULTILINE
    )


def test_labels_of_the_whole_set_are_checked_under_a_limit(tmp_path: Path) -> None:
    small_multilabel.write(tmp_path)
    with np.load(tmp_path / "test.npz") as file:
        arrays = dict(file)
    rows, sampled = (
        np.arange(len(arrays["y"])),
        small_run.evaluated(tmp_path, limit=2, methods=("deterministic",)).sets["test"].index,
    )
    assert sampled is not None
    outside = (rows == np.setdiff1d(rows, sampled)[0])[:, None]
    np.savez(tmp_path / "test.npz", **arrays | {"y": np.where(outside, 2, arrays["y"])})
    with pytest.raises(DataError, match=rf"not only 0 and 1; expected a matrix \({len(rows)}, {LABELS}\)"):
        small_run.evaluated(tmp_path, limit=2)
    np.savez(
        tmp_path / "test.npz", **arrays | {"y": np.where(outside, 1, 0 * arrays["y"])}
    )  # none of the sample has any label
    result = small_run.evaluated(tmp_path, limit=2, methods=("mcbn",))
    assert math.isfinite(result.methods["mcbn"].sets["test"].estimates["pll"].value)
