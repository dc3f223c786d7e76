"""Estimators of mutual information: their bias and their Monte Carlo error on a posterior whose MI is known, and that
the one asked for is the one that is told, everywhere."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from functools import partial

import at_night
import numpy as np
import pytest
import small_run
import torch
from scipy import special

from bnuq import metrics
from bnuq.config import Options, resolve, resolve_again
from bnuq.errors import RequestError
from bnuq.evaluation.estimates import detection_estimates, replicate_weights
from bnuq.evaluation.tasks import classification
from bnuq.records import evaluation_file as result_file
from bnuq.records.summary import summary
from bnuq.report.evaluation import report
from bnuq.report.render import print_record

ESTIMATORS = ("plug-in", "corrected", "jackknife")
N, K = 24, 3
softmax = partial(special.softmax, axis=-1)


class Posterior:
    """Logits m + A u of each point, with the same u ~ N(0, I₂) for all points of a draw; MI by Gauss–Hermite."""

    def __init__(self, *, seed: int = 0, spread: float = 1.0) -> None:
        generator = np.random.default_rng(seed)
        self.centre = 1.5 * generator.normal(size=(N, K))
        self.slope = spread * generator.normal(size=(N, K, 2))

    def logits(self, u: np.ndarray) -> np.ndarray:
        return self.centre + np.einsum("nkd,td->tnk", self.slope, u)

    @property
    def mutual_information(self) -> np.ndarray:
        nodes, weights = np.polynomial.hermite_e.hermegauss(60)
        u = np.stack(np.meshgrid(nodes, nodes), axis=-1).reshape(-1, 2)
        w = np.outer(weights, weights).ravel() / weights.sum() ** 2
        p = softmax(self.logits(u))
        return metrics.entropy(np.einsum("t,tnk->nk", w, p)) - np.einsum("t,tn->n", w, metrics.entropy(p))


def reduced(logits: np.ndarray, estimator: str, *, chunk: int = 1000, labels=None) -> classification.ClassScores:
    draws = replicate_weights(len(logits))
    reduction = classification.ClassReduction(draws, points=logits.shape[1], labels=labels, estimator=estimator)
    for start in range(0, logits.shape[1], chunk):
        reduction.add(logits[:, start : start + chunk])
    return reduction.scores()


@pytest.mark.parametrize("samples", [16, pytest.param(32, marks=pytest.mark.nightly)])
def test_the_plug_in_is_low_by_one_in_t_and_the_others_are_not(samples):
    posterior, repeats = Posterior(), 2000
    p = softmax(posterior.logits(np.random.default_rng(1).normal(size=(samples * repeats, 2))))
    p = p.reshape(repeats, samples, N, K).swapaxes(0, 1).reshape(samples, repeats * N, K)
    truth = posterior.mutual_information.mean()
    bias = {}
    for estimator in ESTIMATORS:
        found = metrics.mutual_information(p, estimator=estimator).reshape(repeats, N).mean(1)
        assert found.std() / np.sqrt(repeats) < 0.1 / samples * truth  # so that the simulation can tell
        bias[estimator] = (found.mean() / truth - 1) * samples
    assert bias["plug-in"] == pytest.approx(-1, abs=0.35)
    assert abs(bias["corrected"]) < 0.4
    assert abs(bias["jackknife"]) < 0.25


@pytest.mark.nightly
@pytest.mark.held(False)
@pytest.mark.parametrize("samples", at_night.but({16}, [16, 32]))
@pytest.mark.parametrize("estimator", at_night.but({"jackknife"}, ESTIMATORS))
def test_the_monte_carlo_error_of_the_mean_is_its_spread_over_repeats(estimator, samples):
    posterior, draws = Posterior(), replicate_weights(samples)
    generator = np.random.default_rng(2)
    values, errors = [], []
    for _ in range(150):
        estimate = classification.set_estimates(
            reduced(posterior.logits(generator.normal(size=(samples, 2))), estimator), draws
        )
        values.append(estimate["mutual_information"].value)
        errors.append(estimate["mutual_information"].mc_se)
    assert 0.7 <= np.mean(errors) / np.std(values, ddof=1) <= 1.3


@pytest.mark.held(False)
@pytest.mark.nightly
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_the_monte_carlo_error_of_the_ranking_is_its_spread_over_repeats(estimator, monkeypatch):
    whole = metrics.detection_bootstrap
    monkeypatch.setattr(metrics, "detection_bootstrap", lambda *a, **k: whole(*a, **k | {"resamples": 2}))
    samples, test, ood = 32, Posterior(seed=3, spread=0.5), Posterior(seed=4, spread=0.7)
    draws, generator = replicate_weights(samples), np.random.default_rng(5)
    values: dict[str, list[float]] = {}
    errors: dict[str, list[float]] = {}
    for _ in range(200):
        u = generator.normal(size=(samples, 2))
        found = detection_estimates(reduced(test.logits(u), estimator), reduced(ood.logits(u), estimator), draws)[
            "mutual_information"
        ]
        for name in ("auroc", "aupr_out"):
            values.setdefault(name, []).append(found[name].value)
            errors.setdefault(name, []).append(found[name].mc_se)
    for name in values:
        assert 0.7 <= np.mean(errors[name]) / np.std(values[name], ddof=1) <= 1.4, name


@pytest.mark.parametrize("chunk", [5, 24])
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_points_means_replicates_and_ranks_are_by_the_estimator(estimator, chunk):
    samples = 9
    logits = np.random.default_rng(6).normal(size=(samples, N, K)) + Posterior().centre
    p, draws, scores = softmax(logits), replicate_weights(samples), reduced(logits, estimator, chunk=chunk)
    direct = metrics.mutual_information(p, estimator=estimator)
    np.testing.assert_allclose(scores.points["mutual_information"], direct, rtol=1e-10, atol=1e-13)
    estimate = classification.set_estimates(scores, draws)["mutual_information"]
    assert estimate.value == pytest.approx(direct.mean(), rel=1e-12)
    factor = 1 if estimator == "plug-in" else (samples - 1) / (samples - 2)
    left_out = np.array([factor * metrics.mutual_information(np.delete(p, t, axis=0)).mean() for t in range(samples)])
    shift = 0.0
    if estimator == "jackknife":  # its replicates move as the corrected ones do
        shift = direct.mean() - metrics.mutual_information(p, estimator="corrected").mean()
    np.testing.assert_allclose(estimate.jackknife, left_out + shift, rtol=1e-10)
    other = reduced(np.random.default_rng(7).normal(size=(samples, N, K)), estimator, chunk=chunk)
    found = detection_estimates(scores, other, draws)["mutual_information"]["auroc"]
    assert found.value == pytest.approx(metrics.auroc(direct, other.points["mutual_information"]))
    assert found.low <= found.value <= found.high


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_convergence_ends_at_the_estimate_and_begins_at_zero(estimator):
    logits = np.random.default_rng(8).normal(size=(9, N, K))
    draws, scores = replicate_weights(9), reduced(logits, estimator, labels=np.zeros(N, dtype=np.int64))
    curve = classification.convergence(scores, draws)
    assert curve["mutual_information"][0] == pytest.approx(0, abs=1e-15)
    value = classification.set_estimates(scores, draws)["mutual_information"].value
    assert curve["mutual_information"][-1] == pytest.approx(value, rel=1e-12)  # two orders of summation, in float64
    first = metrics.mutual_information(
        softmax(logits[:4]), estimator="plug-in" if estimator == "plug-in" else "corrected"
    )
    assert curve["mutual_information"][2] == pytest.approx(first.mean(), rel=1e-12)


@pytest.mark.parametrize("samples", [1, 2, 3])
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_few_draws_give_numbers_and_no_warning(estimator, samples):
    logits = np.random.default_rng(9).normal(size=(samples, N, K))
    scores, draws = reduced(logits, estimator), replicate_weights(samples)
    assert ("mutual_information" in scores.points) is (samples > 1)
    assert all(np.isfinite(values).all() for values in (*scores.points.values(), *scores.replicates.values()))
    assert all(np.isfinite(estimate.value) for estimate in classification.set_estimates(scores, draws).values())


def test_only_the_interval_of_a_jackknifed_mean_may_reach_below_zero():
    logits = np.random.default_rng(10).normal(size=(16, N, K)) * 1e-3
    for estimator in ESTIMATORS:
        scores = reduced(logits, estimator)
        noisy = replace(scores, points=scores.points | {"mutual_information": np.linspace(-1, 1, N)})
        low = classification.set_estimates(noisy, replicate_weights(16))["mutual_information"].low
        assert (low < 0) is (estimator == "jackknife")


def test_a_tensor_on_any_path_gives_what_the_array_gives():
    logits = (3 * np.random.default_rng(11).normal(size=(8, N, K))).astype(np.float32)
    labels = np.arange(N) % K
    expected = reduced(logits, "plug-in", labels=labels)
    with torch.inference_mode():
        under_inference = torch.from_numpy(logits).clone()
    strided = torch.from_numpy(np.ascontiguousarray(logits.transpose(1, 2, 0))).permute(2, 0, 1)
    wants_gradient = torch.from_numpy(logits).clone().requires_grad_()
    for block in (under_inference, strided, wants_gradient, torch.from_numpy(logits).double()):
        before = block.detach().clone()
        found = reduced(block, "plug-in", chunk=7, labels=labels)
        assert torch.equal(block.detach(), before)  # never written over
        for name, values in expected.points.items():
            np.testing.assert_allclose(found.points[name], values, rtol=1e-12, atol=1e-15, err_msg=name)
        for name, values in expected.replicates.items():
            np.testing.assert_allclose(found.replicates[name], values, rtol=1e-12, atol=1e-15, err_msg=name)
        np.testing.assert_array_equal(found.predicted, expected.predicted)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_widened_before_anything_is_computed(dtype):
    half = torch.randn(8, N, K, generator=torch.Generator().manual_seed(0)).to(dtype)
    scores = reduced(half, "plug-in")
    expected = metrics.mutual_information(softmax(half.double().numpy()))
    np.testing.assert_allclose(scores.points["mutual_information"], expected, rtol=1e-9, atol=1e-12)
    reduction = classification.ClassReduction(replicate_weights(8), points=N)
    reduction.add(half)
    assert reduction.scores().samples_differ
    same = classification.ClassReduction(replicate_weights(8), points=N)
    same.add(half[:1].expand(8, -1, -1))
    assert not same.scores().samples_differ


# ── the option ───────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.held(False)
def test_the_estimator_asked_for_is_recorded_told_and_kept(tmp_path):
    run_file = small_run.write(tmp_path, text=small_run.RUN + 'mutual_information = "jackknife"\n')
    told = {}
    for estimator, options in (("jackknife", {}), ("corrected", {"mutual_information": "corrected"})):
        result = small_run.evaluated(tmp_path, methods=("mcbn",), ood=(), **options)
        assert result.run["sampling"]["mutual_information"] == estimator
        assert json.loads(json.dumps(summary(result)))["sampling"]["mutual_information"] == estimator
        assert result_file.read(result.path).sampling["mutual_information"] == estimator
        assert resolve_again(dict(result.run), result.path, Options(), folder=tmp_path).mutual_information == estimator
        stream = io.StringIO()
        print_record(report, result, stream, full=True)
        told[estimator] = " ".join(stream.getvalue().split())
        points = result.methods["mcbn"].sets["test"].points["mutual_information"]
        assert result.methods["mcbn"].sets["test"].estimates["mutual_information"].value == pytest.approx(points.mean())
    assert "MI is corrected for the finite number of samples, by the jackknife" in told["jackknife"]
    assert "MI is corrected for the finite number of samples, by the factor T/(T−1)" in told["corrected"]
    run_file.write_text(small_run.RUN)
    plain = small_run.evaluated(tmp_path, methods=("mcbn",), ood=())
    stream = io.StringIO()
    print_record(report, plain, stream, full=True)
    assert "MI is corrected" not in " ".join(stream.getvalue().split())
    assert plain.sampling["mutual_information"] == "plug-in"
    ratio = result.methods["mcbn"].sets["test"].points["mutual_information"]
    np.testing.assert_allclose(
        ratio, plain.methods["mcbn"].sets["test"].points["mutual_information"] * 8 / 7, rtol=1e-9
    )


def test_an_unknown_estimator_is_named_with_those_that_there_are(tmp_path):
    (tmp_path / "run.toml").write_text('[model]\ncheckpoint = "m.pt"\n[sampling]\nmutual_information = "miller"\n')
    with pytest.raises(RequestError, match="expected one of plug-in, corrected, jackknife"):
        resolve("run.toml", Options(), folder=tmp_path)
