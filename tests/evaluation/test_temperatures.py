"""Temperatures of whole evaluations, against computations in float64 from the network's own outputs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import small_run
import torch
from findings_of import noted, values_of
from report_text import rendered
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax, softmax
from small_run import labels_of, logits_of

from bnuq import metrics
from bnuq.errors import RequestError
from bnuq.evaluation import recalibration
from bnuq.evaluation.estimates import replicate_weights
from bnuq.evaluation.tasks import classification
from bnuq.findings import warnings
from bnuq.gate import GateSettings, check
from bnuq.records import evaluation_file
from bnuq.records.evaluation import Result
from bnuq.records.summary import summary
from bnuq.records.verdict import judged
from bnuq.report.evaluation import report

HELD_OUT = 48


def temperature_of(logits: np.ndarray, y: np.ndarray) -> float:
    """By SciPy: the labels, and as many more points as have three errors, labelled by the predictions themselves; to
    the three digits that are printed."""
    p = softmax(logits, axis=-1)
    errors = max((p.argmax(1) != y).sum(), (1 - p.max(1)).sum())

    def loss(log_tau: float) -> float:
        logs = log_softmax(logits / np.exp(log_tau), axis=-1)
        return -logs[np.arange(len(y)), y].sum() - 3 / errors * (p * logs).sum()

    found: Any = minimize_scalar(loss, bracket=(-0.5, 0.5), tol=1e-12)
    return float(f"{np.exp(found.x):.3g}")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = small_run.write(tmp_path_factory.mktemp("temperature") / "run").parent
    x = np.random.default_rng(4).normal(0.5, 0.3, (HELD_OUT, 1, 6, 6)).astype(np.float32)
    np.savez(folder / "held_out.npz", x=x)
    y = logits_of(folder, "held_out").argmax(1)
    y[::6] = (y[::6] + 1) % small_run.CLASSES
    np.savez(folder / "held_out.npz", x=x, y=y)
    return folder


@pytest.fixture(scope="module")
def fitted(folder: Path) -> Result:
    return small_run.evaluated(folder, validation="held_out.npz", methods=("mcbn",), out="fitted.h5")


@pytest.fixture(scope="module")
def crossed(folder: Path) -> Result:
    return small_run.evaluated(folder, calibrate="cross", methods=("mcbn",), save_samples=True, out="crossed.h5")


def check_deterministic(result: Result, folder: Path, temperature: np.ndarray | float) -> None:
    """Every estimate of the test set that ten lines can compute."""
    y = labels_of(folder, "test")
    p = softmax(logits_of(folder, "test") / np.reshape(temperature, (-1, 1)), axis=-1)
    right = p.argmax(1) == y
    expected = {
        "pll": np.log(p[np.arange(len(y)), y]).mean(),
        "accuracy": right.mean(),
        "brier": ((p - np.eye(small_run.CLASSES)[y]) ** 2).sum(1).mean(),
        "max_probability": p.max(1).mean(),
        "predictive_entropy": -(p * np.log(p)).sum(1).mean(),
        "ece": metrics.ece_of_bins(metrics.calibration_bins(p.max(1), right.astype(float))),
        "temperature": np.mean(temperature),
    }
    estimates = result.methods["deterministic+temperature"].sets["test"].estimates
    assert {name: estimates[name].value for name in expected} == pytest.approx(expected, rel=1e-4)


def test_every_method_has_the_temperature_of_the_validation_points(folder: Path, fitted: Result) -> None:
    methods = ["deterministic", "mcbn"]
    assert list(fitted.methods) == [name for method in methods for name in (method, f"{method}+temperature")]
    tau = temperature_of(logits_of(folder, "held_out"), labels_of(folder, "held_out"))
    values = values_of(fitted, "temperature-fitted")
    assert values["points"] == HELD_OUT
    by_method = dict(values["temperatures"])
    assert by_method["deterministic+temperature"] == pytest.approx(tau, rel=1e-6)
    check_deterministic(fitted, folder, by_method["deterministic+temperature"])
    for method, temperature in by_method.items():
        for name in ("test", "other"):
            assert fitted.methods[method].sets[name].estimates["temperature"].value == pytest.approx(temperature)
    assert list(fitted.work.methods) == methods  # no pass of its own


def test_one_temperature_leaves_the_predicted_classes_as_they_are(fitted: Result) -> None:
    for name in ("test", "other"):
        before, after = (fitted.methods[m].sets[name] for m in ("deterministic", "deterministic+temperature"))
        np.testing.assert_array_equal(before.predicted, after.predicted)
    test = [fitted.methods[m].sets["test"].estimates["accuracy"].value for m in list(fitted.methods)[:2]]
    assert test[0] == test[1]


def test_a_sampled_method_has_all_estimates_with_a_monte_carlo_error(fitted: Result) -> None:
    plain, tempered = fitted.methods["mcbn"], fitted.methods["mcbn+temperature"]
    split = {"calibration_loss", "refinement_loss"}  # of the PLL of what is not recalibrated
    assert set(tempered.sets["test"].estimates) == {*plain.sets["test"].estimates, "temperature"} - split
    assert split < set(plain.sets["test"].estimates)
    assert tempered.sets["test"].estimates["pll"].mc_se is not None
    assert tempered.ood["other"]["mutual_information"]["auroc"].mc_se is not None
    assert set(tempered.convergence) == set(plain.convergence)
    assert set(tempered.bounds) == {"constant", "optimum"}


def test_each_half_of_the_test_set_has_the_temperature_of_the_other(folder: Path, crossed: Result) -> None:
    logits, y = logits_of(folder, "test"), labels_of(folder, "test")
    temperature = crossed.methods["deterministic+temperature"].sets["test"].points["temperature"]
    halves = {method: pair for method, *pair in values_of(crossed, "temperature-cross-fitted")["temperatures"]}
    first, second = (temperature == one for one in reversed(halves["deterministic+temperature"]))
    assert first.sum() == second.sum() == small_run.TEST / 2
    for fitted_to, used_on in ((first, second), (second, first)):
        assert temperature[used_on] == pytest.approx(temperature_of(logits[fitted_to], y[fitted_to]), rel=1e-6)
    check_deterministic(crossed, folder, temperature)
    other = crossed.methods["deterministic+temperature"].sets["other"].points["temperature"]
    assert other == pytest.approx(temperature_of(logits, y), rel=1e-6)


def test_the_cross_fitted_scores_of_samples_are_those_of_their_logits(folder: Path, crossed: Result) -> None:
    import h5py

    with h5py.File(folder / "crossed.h5") as file:
        logits = file["posterior_predictive/mcbn_test"][0].astype(np.float64)
    set_result = crossed.methods["mcbn+temperature"].sets["test"]
    p = softmax(logits / set_result.points["temperature"][:, None], axis=-1).mean(0)
    y = labels_of(folder, "test")
    np.testing.assert_allclose(set_result.points["pll"], np.log(p[np.arange(len(y)), y]), rtol=1e-5)


def test_ood_points_are_ranked_against_test_points_at_the_same_temperature(folder: Path, crossed: Result) -> None:
    import h5py

    with h5py.File(folder / "crossed.h5") as file:
        samples = {name: file[f"posterior_predictive/mcbn_{name}"][0].astype(np.float64) for name in ("test", "other")}
    method = crossed.methods["mcbn+temperature"]
    [tau] = np.unique(method.sets["other"].points["temperature"])
    p = {name: softmax(logits / tau, axis=-1).mean(0) for name, logits in samples.items()}
    entropy = {name: -(mean * np.log(mean)).sum(1) for name, mean in p.items()}
    found = method.ood["other"]["predictive_entropy"]["auroc"]
    assert found.value == pytest.approx(metrics.auroc(entropy["test"], entropy["other"]), abs=1e-3)
    np.testing.assert_allclose(method.sets["test"].ranked["predictive_entropy"], entropy["test"], rtol=1e-5)
    assert found.jackknife is not None and np.ptp(found.jackknife) > 0


def test_groups_stay_together_in_the_halves(folder: Path) -> None:
    data = np.load(folder / "test.npz")
    np.savez(folder / "grouped.npz", x=data["x"], y=data["y"], group=np.arange(small_run.TEST) // 2)
    result = small_run.evaluated(
        folder, test="grouped.npz", calibrate="cross", methods=("deterministic",), ood=(), out="grouped.h5"
    )
    temperature = result.methods["deterministic+temperature"].sets["test"].points["temperature"]
    assert len(set(temperature)) == 2
    np.testing.assert_array_equal(temperature[::2], temperature[1::2])


def test_a_run_without_samples_is_none_with_samples(folder: Path, crossed: Result) -> None:
    result = small_run.evaluated(folder, calibrate="cross", methods=("deterministic",), ood=(), out="single.h5")
    assert list(result.methods) == ["deterministic", "deterministic+temperature"]
    assert result.sampled == ()
    assert crossed.sampled == ("mcbn", "mcbn+temperature")


@pytest.mark.held(False)
def test_the_file_holds_it_and_the_gate_recomputes_it(folder: Path, fitted: Result, crossed: Result) -> None:
    for result, path in ((fitted, folder / "fitted.h5"), (crossed, folder / "crossed.h5")):
        read = evaluation_file.read(path)
        assert summary(read)["methods"] == summary(result)["methods"]
        verdict = check(read, read, GateSettings(estimates=("*",)))
        assert verdict.passed
        gated = {one.address for one in verdict.comparisons if one.outcome != "not gated"}
        assert "mcbn+temperature.sets.test.pll" in gated
        assert "mcbn+temperature.sets.test.temperature" not in gated


def test_a_temperature_of_1_leaves_every_score_as_it_is() -> None:
    random = np.random.default_rng(2)
    logits, y = random.normal(size=(8, 30, 4)), random.integers(0, 4, 30)
    scores = []
    for maps in (None, metrics.LogitMaps(np.ones((1, 1)), np.zeros((1, 1)), np.zeros(30, int))):
        reduction = classification.ClassReduction(replicate_weights(8), points=30, labels=y, maps=maps)
        reduction.add(logits)
        scores.append(reduction.scores())
    assert set(scores[0].points) - set(scores[1].points) == {*metrics.LOGIT_SCORES}
    for name, values in scores[1].points.items():
        np.testing.assert_array_equal(values, scores[0].points[name], err_msg=name)


def test_outputs_that_are_probabilities_have_the_same_temperature(folder: Path, crossed: Result) -> None:
    source = folder / "softmax.py"
    source.write_text(small_run.NET.replace("nn.Linear(8, classes),", "nn.Linear(8, classes), nn.Softmax(1),"))
    result = small_run.evaluated(
        folder, arch=f"{source}:net", outputs="probabilities", methods=("deterministic",), calibrate="cross", out="p.h5"
    )
    of_logits, of_probabilities = (
        each.methods["deterministic+temperature"].sets["test"].points["pll"] for each in (crossed, result)
    )
    np.testing.assert_allclose(of_probabilities, of_logits, rtol=1e-4, atol=1e-6)


@pytest.mark.held(False)
@pytest.mark.less(False)
def test_without_validation_points_it_is_cross_fitted_and_marked_so(folder: Path, crossed: Result) -> None:
    options = {"methods": ("mcbn",), "post_hoc": False}
    default = small_run.evaluated(folder, out="default.h5", **options)
    assert [*default.methods] == [*crossed.methods]
    assert default.run["sampling"]["calibrate"] == "cross"
    for name, method in crossed.methods.items():
        pll = method.sets["test"].estimates["pll"].value
        assert default.methods[name].sets["test"].estimates["pll"].value == pll
    assert "deterministic+temperature" in {each.method for each in judged(default).comparisons}
    for full in (True, False):
        assert "fitted to each half of the test examples" in " ".join(rendered(report, default, full=full).split())
    off = small_run.evaluated(folder, out="off.h5", calibrate="off", **options)
    assert [*off.methods] == ["deterministic", "mcbn"]


@pytest.mark.held(False)
@pytest.mark.less(False)
@pytest.mark.parametrize("points", [{"limit": 19}, {"test": "unlabelled.npz"}])
def test_too_few_or_unlabelled_test_points_are_not_cross_fitted_by_default(folder: Path, points: dict) -> None:
    np.savez(folder / "unlabelled.npz", x=np.load(folder / "test.npz")["x"])
    result = small_run.evaluated(folder, out="few.h5", methods=("mcbn",), ood=(), **points)
    assert [*result.methods] == ["deterministic", "mcbn"]


@pytest.mark.held(False)
def test_it_can_be_left_out(folder: Path) -> None:
    options = {"validation": "held_out.npz", "methods": ("deterministic",), "ood": ()}
    result = small_run.evaluated(folder, calibrate="off", out="off.h5", **options)
    assert list(result.methods) == ["deterministic"]
    same = small_run.evaluated(folder, **options | {"validation": "test.npz"}, out="same.h5")
    assert list(same.methods) == ["deterministic"]  # nothing is fitted to the labels that judge it
    assert not any(code.startswith("temperature") for code in (*noted(result), *noted(same)))


def test_a_limit_of_the_search_is_a_note(folder: Path) -> None:
    np.savez(folder / "wrong.npz", x=np.load(folder / "held_out.npz")["x"], y=logits_of(folder, "held_out").argmin(1))
    result = small_run.evaluated(folder, validation="wrong.npz", methods=("deterministic",), out="end.h5")
    [[method, temperature]] = values_of(result, "temperature-at-end")["temperatures"]
    assert (method, temperature) == ("deterministic+temperature", pytest.approx(1000))
    assert "temperature-at-end" not in {finding.code for finding in warnings(result.findings)}


@pytest.mark.parametrize("scale", [0.01, 20.0])
def test_the_temperature_of_logits_of_any_scale_is_found(scale: float) -> None:
    """Cosine heads have logits within -1 and 1: the temperature of their calibrated softmax is below 0.1."""
    random = np.random.default_rng(5)
    blocks = random.normal(size=(4, 90, 5)).astype(np.float32)
    y = (blocks[0] + random.gumbel(size=(90, 5))).argmax(1)
    second = np.arange(90) % 2 == 1
    fits = [
        recalibration.fitted(
            ("temperature",), lambda z=factor * blocks: map(torch.from_numpy, (z[:, :50], z[:, 50:])), y, second
        )
        for factor in (1, np.float32(scale))
    ]
    plain, scaled = (1 / fit["temperature"].scale[:, 0] for fit in fits)
    assert scaled == pytest.approx(scale * plain, rel=0.6)  # held near 1 by three errors
    assert len(set(plain)) == 3


def test_the_search_begins_with_a_part_of_many_points_and_ends_with_all(monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(6)
    logits = torch.from_numpy(random.normal(size=(3, 400, 4)) * 3)
    y = (logits[0].numpy() / 2 + random.gumbel(size=(400, 4))).argmax(1)
    fits, second = [], np.arange(400) % 2 == 1  # of which a part of every second point has none
    for part in (2**20, 2400, 500):
        monkeypatch.setattr(recalibration, "_PART", part)
        fits.append(recalibration.fitted(("temperature",), lambda: iter(logits.split(37, 1)), y, second)["temperature"])
    assert fits[0].scale == pytest.approx(fits[1].scale, rel=1e-7)
    assert fits[0].scale == pytest.approx(fits[2].scale, rel=1e-7)


def test_methods_with_a_temperature_are_compared_with_the_best_of_a_single_pass(fitted: Result) -> None:
    pll = {name: method.sets["test"].estimates["pll"].value for name, method in fitted.methods.items()}
    compared = [each for each in judged(fitted).comparisons if each.metric == "pll"]
    best = max(list(fitted.methods)[:2], key=pll.__getitem__)
    assert {each.against for each in compared} == {best}
    assert {each.method: each.difference for each in compared} == {
        name: pytest.approx(value - pll[best]) for name, value in pll.items() if name != best
    }
    assert "mcbn+temperature" in {each.method for each in compared}
    assert not judged(fitted).undecided


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"calibrate": "validation"}, r"no validation examples.*--validation REF.*--calibrate cross"),
        ({"calibrate": "validation", "validation": "test.npz"}, r"are the test set.*--validation REF.*cross"),
        ({"calibrate": "cross", "test": "unlabelled.npz"}, r"unlabelled\.npz has none.*--validation REF"),
        ({"calibrate": "cross", "limit": 19}, r"has 19 examples with --limit 19; expected at least 20"),
    ],
)
def test_what_cannot_be_fitted_is_refused(folder: Path, options: dict, message: str) -> None:
    np.savez(folder / "unlabelled.npz", x=np.load(folder / "test.npz")["x"])
    with pytest.raises(RequestError, match=message):
        small_run.evaluated(folder, methods=("deterministic",), out="refused.h5", **options)
    assert not (folder / "refused.h5").exists()
