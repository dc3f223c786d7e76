"""Vector scaling of whole evaluations, against computations in float64 from the network's own outputs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import small_regression
import small_run
from findings_of import values_of
from scipy.optimize import minimize
from scipy.special import log_softmax, logsumexp, softmax
from small_run import labels_of, logits_of

from bnuq import metrics
from bnuq.catalogue import text_of
from bnuq.errors import RequestError
from bnuq.metrics import VECTOR_RIDGE
from bnuq.records.evaluation import Result
from bnuq.records.verdict import judged, passes_of

K = small_run.CLASSES
HELD_OUT, TEST = 64, 120
BOTH = ("temperature", "vector")


def vector_of(samples: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Scales, then shifts, by SciPy without a gradient, from the temperature that is fitted to the same points."""
    weight = metrics.pseudo_weight(metrics.errors_of_points(samples, y))
    [tau] = metrics.refined_temperatures([1.0], lambda at: metrics.pll_slopes(samples, y, at[0], weight)[:, None])

    def loss(parameters: np.ndarray) -> float:
        scale, shift = parameters[:K], parameters[K:]
        ridge = ((scale * tau - 1) ** 2).sum() + (shift**2).sum()
        log_p = log_softmax(samples * scale + shift, axis=-1)
        pll = (logsumexp(log_p[:, np.arange(len(y)), y], axis=0) - np.log(len(samples))).sum()
        pll += weight * (softmax(samples, axis=-1) * log_p).sum() / len(samples)  # by labels that the samples draw
        return -pll + VECTOR_RIDGE / 2 * ridge

    found: Any = minimize(loss, np.repeat([1 / tau, 0], K), method="BFGS")
    return found.x


def pll_of(samples: np.ndarray, vector: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.log(softmax(samples * vector[:K] + vector[K:], axis=-1).mean(0)[np.arange(len(y)), y])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = small_run.write(tmp_path_factory.mktemp("vector") / "run").parent
    random = np.random.default_rng(4)
    for name, points in (("held_out", HELD_OUT), ("many", TEST)):
        x = random.normal(0.5, 0.3, (points, 1, 6, 6)).astype(np.float32)
        np.savez(folder / f"{name}.npz", x=x)
        y = logits_of(folder, name).argmax(1)
        y[::4] = random.integers(0, K - 1, len(y[::4]))  # the last class has fewer labels than the network predicts
        np.savez(folder / f"{name}.npz", x=x, y=y)
    return folder


def evaluated(folder: Path, **options: Any) -> Result:
    return small_run.evaluated(folder, test="many.npz", recalibration=BOTH, **options)


@pytest.fixture(scope="module")
def fitted(folder: Path) -> Result:
    return evaluated(folder, validation="held_out.npz", methods=("mcbn",), save_samples=True, out="fitted.h5")


@pytest.fixture(scope="module")
def crossed(folder: Path) -> Result:
    return evaluated(folder, calibrate="cross", methods=("mcbn",), save_samples=True, out="crossed.h5")


def samples_of(path: Path, name: str) -> np.ndarray:
    with h5py.File(path) as file:
        return file[f"posterior_predictive/mcbn_{name}"][0].astype(np.float64)


def test_every_method_is_scaled_by_the_vector_of_the_validation_points(folder: Path, fitted: Result) -> None:
    methods = ["deterministic", "mcbn"]
    assert list(fitted.methods) == [name + end for name in methods for end in ("", "+temperature", "+vector")]
    values = values_of(fitted, "vector-fitted")
    assert values["points"] == HELD_OUT
    vectors = {method: np.concatenate([scale, shift]) for method, scale, shift in values["maps"]}
    expected = vector_of(logits_of(folder, "held_out")[None], labels_of(folder, "held_out"))
    np.testing.assert_allclose(vectors["deterministic+vector"], expected, rtol=1e-3, atol=1e-3)
    y = labels_of(folder, "many")
    for method, samples in (
        ("deterministic+vector", logits_of(folder, "many")[None]),
        ("mcbn+vector", samples_of(folder / "fitted.h5", "test")),
    ):
        test = fitted.methods[method].sets["test"]
        p = softmax(samples * vectors[method][:K] + vectors[method][K:], axis=-1).mean(0)
        np.testing.assert_allclose(test.points["pll"], np.log(p[np.arange(TEST), y]), rtol=1e-4, atol=1e-6)
        assert test.estimates["accuracy"].value == pytest.approx((p.argmax(1) == y).mean())
        assert test.estimates["predictive_entropy"].value == pytest.approx(-(p * np.log(p)).sum(1).mean(), rel=1e-4)
        assert "temperature" not in test.estimates
    assert list(fitted.work.methods) == methods  # no pass of its own


def test_each_half_of_the_test_set_has_the_vector_of_the_other(folder: Path, crossed: Result) -> None:
    y = labels_of(folder, "many")
    temperature = crossed.methods["mcbn+temperature"].sets["test"].points["temperature"]
    first = temperature == temperature[0]
    assert first.sum() == TEST / 2
    for method, samples in (
        ("deterministic+vector", logits_of(folder, "many")[None]),
        ("mcbn+vector", samples_of(folder / "crossed.h5", "test")),
    ):
        pll = crossed.methods[method].sets["test"].points["pll"]
        for fitted_to, used_on in ((first, ~first), (~first, first)):
            vector = vector_of(samples[:, fitted_to], y[fitted_to])
            np.testing.assert_allclose(pll[used_on], pll_of(samples[:, used_on], vector, y[used_on]), atol=2e-3)
        of_all = vector_of(samples, y)
        maps = {name: np.concatenate(pair) for name, *pair in values_of(crossed, "vector-cross-fitted")["maps"]}
        np.testing.assert_allclose(maps[method], of_all, rtol=1e-3, atol=1e-3)
    other = softmax(logits_of(folder, "other") * maps["deterministic+vector"][:K] + maps["deterministic+vector"][K:], 1)
    of_set = crossed.methods["deterministic+vector"].sets["other"]
    np.testing.assert_allclose(of_set.points["max_probability"], other.max(1), rtol=1e-4)


def test_ood_scores_of_logits_stay_those_of_the_network(crossed: Result) -> None:
    assert "energy" in crossed.methods["deterministic"].ood["other"]
    assert "energy" not in crossed.methods["deterministic+vector"].ood["other"]
    assert crossed.methods["mcbn+vector"].ood["other"]["mutual_information"]["auroc"].mc_se is not None


def test_the_note_says_how_it_was_fitted(fitted: Result, crossed: Result) -> None:
    for result, words in ((fitted, "64 validation examples"), (crossed, "halves of the 120 test examples")):
        (text,) = (text_of(each) for each in result.findings if each.code.startswith("vector"))
        assert words in text and "deterministic+vector" in text


@pytest.mark.held(False)
def test_one_alone_can_be_asked_for(folder: Path, crossed: Result) -> None:
    options = {"calibrate": "cross", "methods": ("deterministic",), "test": "many.npz", "ood": ()}
    alone = small_run.evaluated(folder, recalibration=("vector",), out="alone.h5", **options)
    assert list(alone.methods) == ["deterministic", "deterministic+vector"]
    pll = [each.methods["deterministic+vector"].sets["test"].points["pll"] for each in (alone, crossed)]
    np.testing.assert_array_equal(*pll)
    assert list(small_run.evaluated(folder, out="default.h5", **options).methods) == [
        "deterministic",
        "deterministic+temperature",
    ]


@pytest.mark.nightly  # two settings at once
@pytest.mark.held(False)
def test_neither_chunks_nor_rounds_of_draws_change_it(folder):
    given = {"calibrate": "cross", "methods": ("mcbn",), "ood": ()}
    auto = {"samples": "auto", "max_samples": 32, "mc_error": 1e-6, "chunk_size": 25, "out": "auto.h5"}
    results = [evaluated(folder, **given, **more) for more in (auto, {"samples": 32, "out": "fixed.h5"})]
    assert results[0].sampling["samples"] == 32
    for method in ("deterministic+vector", "mcbn+vector"):
        np.testing.assert_allclose(*(each.methods[method].sets["test"].points["pll"] for each in results), atol=1e-5)


def test_the_verdict_takes_it_for_a_single_pass_or_for_samples(fitted: Result) -> None:
    assert passes_of("deterministic+vector", fitted) == 1
    assert passes_of("mcbn+vector", fitted) == small_run.SAMPLES
    pll = {name: method.sets["test"].estimates["pll"].value for name, method in fitted.methods.items()}
    compared = {each.method: each for each in judged(fitted).comparisons if each.metric == "pll"}
    best = max((name for name in pll if name.startswith("deterministic")), key=pll.__getitem__)
    assert {each.against for each in compared.values()} == {best}
    assert compared["mcbn+vector"].difference == pytest.approx(pll["mcbn+vector"] - pll[best])
    assert compared["mcbn+vector"].se is not None


@pytest.mark.held(False)
def test_a_class_without_validation_points_stays_finite(folder: Path) -> None:
    data = np.load(folder / "held_out.npz")
    np.savez(folder / "two.npz", x=data["x"], y=np.where(data["y"] == 2, 0, data["y"]))
    result = evaluated(folder, validation="two.npz", methods=("mcbn",), ood=(), out="two.h5")
    for _, scale, shift in values_of(result, "vector-fitted")["maps"]:
        assert np.isfinite([scale, shift]).all()
        assert np.abs([scale, shift]).max() < 100
    assert np.isfinite(result.methods["mcbn+vector"].sets["test"].points["pll"]).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, r"no examples to fit them to.*--validation REF.*--calibrate cross"),
        ({"calibrate": "off", "validation": "held_out.npz"}, r"no examples to fit them to"),
        ({"calibrate": "cross", "limit": 119}, r"59 examples in a half of the test set .*at least 60.*temperature"),
        ({"validation": "few.npz"}, r"59 validation examples \(few\.npz\); expected at least 60"),
        ({"outputs": "multilabel", "test": "labels.npz"}, r"there are several labels per example.*Leave vector out"),
    ],
    ids=["nothing", "off", "halves", "validation", "multilabel"],
)
def test_what_cannot_be_fitted_is_refused(folder: Path, options: dict, message: str) -> None:
    data = np.load(folder / "held_out.npz")
    np.savez(folder / "few.npz", x=data["x"][:59], y=data["y"][:59])
    np.savez(folder / "labels.npz", x=data["x"], y=np.eye(K, dtype=np.int64)[data["y"]])
    with pytest.raises(RequestError, match=message):
        asked = {"test": "many.npz", "methods": ("deterministic",), "recalibration": ("vector",), "out": "refused.h5"}
        small_run.evaluated(folder, **asked | options)
    assert not (folder / "refused.h5").exists()


def test_a_regression_is_refused(tmp_path: Path) -> None:
    place = small_regression.write(tmp_path)
    with pytest.raises(RequestError, match=r"this is a regression\. Leave vector out"):
        small_run.evaluated(place.parent, run_file=place.name, recalibration=("vector",))
