"""The method laplace in whole evaluations: its figures, what they do not depend on, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import h5py
import numpy as np
import pytest
import small_regression
import small_run
import torch
from findings_of import noted, values_of
from report_text import rendered
from scipy.special import softmax

from bnuq.cli.main import main
from bnuq.errors import RequestError, ResultError, SamplingError
from bnuq.evaluation import memory
from bnuq.evaluation.resources import check_memory_of_last_layer
from bnuq.gate import GateSettings, check
from bnuq.records.evaluation import Result
from bnuq.records.evaluation_file import read
from bnuq.report.comparison import compared
from bnuq.report.evaluation import report

LAPLACE = ("laplace",)
PLL = "pll"


def run(place: Path, **options) -> Result:
    return small_run.evaluated(place.parent, run_file=place.name, **{"methods": LAPLACE, "post_hoc": False} | options)


def pll(result: Result, method: str = "laplace") -> np.ndarray:
    return np.asarray(result.methods[method].sets["test"].points[PLL])


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_run.write(tmp_path_factory.mktemp("laplace") / "run")


@pytest.fixture(scope="module")
def result(place: Path) -> Result:
    return run(place, out="laplace.h5")


def features_of(place: Path, name: str) -> np.ndarray:
    model = small_run.stored(place.parent)
    with torch.no_grad():
        features = model[:-1](torch.from_numpy(np.load(place.parent / f"{name}.npz")["x"])).double().numpy()
    return np.concatenate([features, np.ones((len(features), 1))], axis=1)


@pytest.mark.nightly
def test_raw_samples_have_the_moments_of_the_posterior(place: Path) -> None:
    samples = 1500
    result = run(place, samples=samples, save_samples=True, train_size=500, out="samples.h5")
    with h5py.File(place.parent / "samples.h5") as file:
        logits = file["posterior_predictive/laplace_other"][0].astype(np.float64)
    state = torch.load(place.parent / "model.pt", weights_only=True)
    theta = torch.cat([state["7.weight"], state["7.bias"][:, None]], 1).double().numpy()
    train, other = features_of(place, "train"), features_of(place, "other")
    p = softmax(train @ theta.T, axis=1)
    of_outputs = np.diag(p.mean(axis=0)) - p.T @ p / len(p)
    precision = values_of(result, "laplace-fitted")["prior_precision"]
    hessian = 500 * np.kron(of_outputs, train.T @ train / len(train))
    inverse = np.linalg.inv(hessian + precision * np.eye(theta.size)).reshape(*theta.shape, *theta.shape)
    expected = np.einsum("nd,kdke,ne->nk", other, inverse, other)
    assert (np.abs(logits.mean(0) - other @ theta.T) / np.sqrt(expected / samples)).max() < 5
    assert (np.abs(logits.var(0) / expected - 1) / np.sqrt(2 / samples)).max() < 5


def test_it_is_a_method_like_any_other(place: Path, result: Result) -> None:
    crossed = run(place, calibrate="cross", ood=(), out="crossed.h5")
    assert {"laplace", "laplace+temperature"} <= set(crossed.methods)
    again = read(place.parent / "laplace.h5")
    assert again.methods["laplace"].ood["other"]["mutual_information"]["auroc"].mc_se is not None
    np.testing.assert_allclose(pll(again), pll(result), rtol=1e-6)
    assert "Kronecker-factored curvature" in " ".join(rendered(report, crossed, full=True).split())
    assert check(again, result, GateSettings()).passed


def test_it_runs_only_on_request(place: Path) -> None:
    by_default = run(place, methods=None, limit=8, ood=(), out="default.h5")
    assert "laplace" not in by_default.methods and not {"laplace-fitted", "method-left-out"} & set(noted(by_default))
    ignored = run(place, methods=("mcdo",), laplace="diag", limit=8, ood=(), out="ignored.h5")
    assert values_of(ignored, "setting-ignored") == {"key": "laplace"}


def test_a_diagonal_is_another_posterior_which_a_comparison_tells(place: Path, result: Result) -> None:
    diagonal = run(place, laplace="diag", out="diagonal.h5")
    assert diagonal.run["sampling"]["laplace"] == "diag"
    assert not np.allclose(pll(diagonal), pll(result), rtol=1e-3)
    with pytest.raises(ResultError, match="laplace is diag now, kron in the baseline"):
        check(diagonal, result, GateSettings())
    (row,) = [row for row in compared({"a": diagonal, "b": result}) if row.what == "sampling.laplace"]
    assert row.differs and row.values["a"] == "diag"


def test_a_part_of_the_training_set_counts_as_all_of_it(place: Path, result: Result) -> None:
    larger = values_of(run(place, train_size=960, ood=(), out="larger.h5"), "laplace-fitted")
    fit = values_of(result, "laplace-fitted")
    assert (fit["points"], fit["train_size"], fit["parameters"]) == (small_run.TRAIN, small_run.TRAIN, 27)
    assert (larger["points"], larger["train_size"]) == (small_run.TRAIN, 960)
    assert larger["effective"] > fit["effective"]


def test_neither_labels_of_the_reference_nor_batchnorm_are_needed(tmp_path: Path) -> None:
    place = small_run.write(tmp_path / "run", norm=False)
    np.savez(place.parent / "train.npz", x=np.load(place.parent / "train.npz")["x"][:6])
    result = run(place, arch_args={"norm": False}, ood=())
    assert values_of(result, "laplace-fitted")["points"] == 6  # of 8 features
    assert np.isfinite(pll(result)).all()


def test_one_logit_is_sampled_as_two_classes(place: Path) -> None:
    folder = place.parent
    state = torch.load(folder / "model.pt", weights_only=True)
    binary = {key: value[:1] if key.startswith("7.") else value for key, value in state.items()}
    torch.save(binary, folder / "binary.pt")
    (folder / "binary.toml").write_text(small_run.RUN.replace("model.pt", "binary.pt"))
    test = np.load(folder / "test.npz")
    np.savez(folder / "two.npz", x=test["x"], y=test["y"] > 0)
    made = {}
    for outputs, end in (("binary", ""), ("probabilities", " nn.Sigmoid(),")):
        (folder / f"{outputs}.py").write_text(small_run.NET.replace("(8, classes),", f"(8, classes),{end}"))
        options = {"arch": f"{folder / outputs}.py:net", "arch_args": {"classes": 1}, "test": "two.npz"}
        made[outputs] = run(folder / "binary.toml", outputs=outputs, out=f"{outputs}.h5", ood=(), **options)
    assert made["binary"].model["classes"] == 2
    assert values_of(made["binary"], "laplace-fitted")["parameters"] == 9
    np.testing.assert_allclose(pll(made["binary"]), pll(made["probabilities"]), rtol=1e-5, atol=1e-6)


def outcome(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of `bnuq evaluate --method laplace` with these arguments."""
    with pytest.raises(SystemExit) as ended:
        main(["evaluate", *map(str, arguments), "--method", "laplace"])
    printed = capsys.readouterr()
    return int(ended.value.code or 0), printed.out, " ".join(printed.err.split())


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> str:
    code, _, message = outcome(capsys, *arguments)
    assert code == 2 and message.count("bnuq: ") == 1
    return message


def test_what_has_no_last_layer_to_sample_is_refused_with_its_reason(tmp_path, capsys, monkeypatch):
    place = small_run.write(tmp_path / "run")
    monkeypatch.chdir(place.parent)
    ends = small_run.NET.replace("nn.Linear(8, classes),", "nn.Linear(8, classes), nn.Hardtanh(-99, 99),")
    (place.parent / "ends.py").write_text(ends)
    message = refusal(capsys, place, "--arch", "ends.py:net")
    assert "it needs a network that ends in one linear layer" in message and "hardtanh" in message
    place.write_text(small_run.RUN.replace('train = "train.npz"\n', ""))
    assert "there is no training set to fit its posterior to; add --train REF" in refusal(capsys, place)
    regression = small_regression.write(tmp_path / "regression")
    assert "it is for classifiers of one class per example, and this is a regression" in refusal(capsys, regression)
    with np.load(place.parent / "test.npz") as test:
        np.savez(place.parent / "labels.npz", x=test["x"], y=np.eye(3, dtype=np.int64)[test["y"]])
    message = refusal(capsys, place, "--train", "labels.npz", "--test", "labels.npz", "--outputs", "multilabel")
    assert "several labels per example" in message


def test_a_network_that_is_certain_everywhere_is_refused(tmp_path: Path) -> None:
    place = small_run.write(tmp_path / "run")
    state = torch.load(place.parent / "model.pt", weights_only=True)
    state["7.bias"] += torch.tensor([5000.0, 0, 0])
    torch.save(state, place.parent / "model.pt")
    with pytest.raises(SamplingError, match="certain of every example of the training set"):
        run(place)


def test_the_option_and_json(place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place.parent)
    code, out, _ = outcome(capsys, place, "--laplace", "diag", "--out", "json.h5", "--json")
    printed = json.loads(out)
    assert code == 0 and printed["methods"]["laplace"]["sets"]["test"]["pll"]["mc_se"] > 0
    assert any("the diagonal of the curvature" in text for text in printed["notes"])
    assert "kron" in refusal(capsys, place, "--laplace", "full")


def test_a_layer_too_large_for_the_memory_is_refused_with_what_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "available", lambda _device: 2**27)

    def asked(laplace: str, samples: int) -> Any:
        return SimpleNamespace(draws=SimpleNamespace(sampler=SimpleNamespace(laplace=laplace), samples=samples))

    check_memory_of_last_layer(asked("diag", 8), features=4095, outputs=500)
    with pytest.raises(RequestError, match=r"factors of a last layer of 4,095 features .* Use --laplace diag"):
        check_memory_of_last_layer(asked("kron", 8), features=4095, outputs=500)
    with pytest.raises(RequestError, match=r"--samples is 64: draws of the last layer's weights .* At most 8 fit"):
        check_memory_of_last_layer(asked("diag", 64), features=4095, outputs=500)
