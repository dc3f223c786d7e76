"""The streaming reduction of a regression: every estimate and every replicate as by the formulas on whole arrays."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import repeats
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import bnuq
from bnuq import metrics
from bnuq.catalogue import text_of
from bnuq.config import ScoreSettings, ScoringSection
from bnuq.errors import SamplingError
from bnuq.evaluation.estimates import detection_estimates, headline_errors, replicate_weights
from bnuq.evaluation.target_scale import TargetScale
from bnuq.evaluation.tasks import regression
from bnuq.metrics import DrawWeights

T, N, VALIDATION, Q = 12, 40, 50, 2


def samples_of(points: int = N, *, seed: int = 0, draws: int = T, outputs: int = Q) -> tuple[np.ndarray, np.ndarray]:
    """Outputs (T, n, Q) that waver more at some points than at others, and the truth (n, Q)."""
    random = np.random.default_rng(seed)
    centre, spread = random.normal(size=(points, outputs)), random.gamma(2.0, 0.2, size=(1, points, 1))
    f = centre + spread * random.normal(size=(draws, points, outputs))
    return f, centre + 0.4 * random.normal(size=(points, outputs))


def reduced(
    f: np.ndarray,
    y: np.ndarray | None,
    draws: DrawWeights,
    *,
    by: ScoringSection | None = None,
    fitted: regression.NoiseFit | None = None,
    scale: TargetScale | None = None,
    chunk: int = 17,
) -> regression.RegressionScores:
    reduction = regression.RegressionReduction(
        draws, points=f.shape[1], scoring_by=by or ScoringSection(), targets=y, scale=scale, fitted=fitted
    )
    for start in range(0, f.shape[1], chunk):
        reduction.add(f[:, start : start + chunk])
    return reduction.scores()


def evaluated(by: ScoringSection | None = None, **sizes: int) -> tuple[regression.RegressionScores, DrawWeights]:
    """Scores of the test points, with what was fitted to validation points."""
    draws = replicate_weights(sizes.get("draws", T))
    validation = reduced(*samples_of(VALIDATION, seed=1, **sizes), draws, by=by)
    return reduced(*samples_of(**sizes), draws, by=by, fitted=regression.fitted(validation, draws)), draws


@pytest.fixture(scope="module")
def whole() -> tuple[regression.RegressionScores, DrawWeights]:
    return evaluated()


def without(f: np.ndarray, draw: int) -> np.ndarray:
    return np.delete(f, draw, axis=0)


def fitted_to(f: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    """τ and the constant σ by the formulas, on whole arrays."""
    mean, variance = metrics.predictive_moments(f)
    return metrics.optimal_tau(y - mean, variance).tau, metrics.constant_sigma(y - mean)


def test_tau_and_sigma_are_those_of_the_validation_points(whole) -> None:
    scores, draws = whole
    f, y = samples_of(VALIDATION, seed=1)
    tau, sigma = fitted_to(f, y)
    assert scores.fitted.tau[draws.full.start] == pytest.approx(tau, rel=1e-9)
    assert scores.fitted.sigma[draws.full.start] == pytest.approx(sigma, rel=1e-9)
    for draw in range(T):
        tau, sigma = fitted_to(without(f, draw), y)
        assert scores.fitted.tau[draws.jackknife][draw] == pytest.approx(tau, rel=1e-6)
        assert scores.fitted.sigma[draws.jackknife][draw] == pytest.approx(sigma, rel=1e-9)
    for count, row in zip(draws.prefix_sizes, range(draws.prefix.start, draws.prefix.stop), strict=True):
        tau, sigma = fitted_to(f[:count], y)
        assert scores.fitted.tau[row] == pytest.approx(tau, rel=1e-6)


def test_every_estimate_is_that_of_the_formulas(whole) -> None:
    scores, draws = whole
    (f, y), found = samples_of(), regression.set_estimates(scores, draws)
    tau, sigma = scores.fitted.tau[0], scores.fitted.sigma[0]
    mean, variance = metrics.predictive_moments(f)
    sd = np.sqrt(variance + 1 / tau)
    expected = {
        "rmse": metrics.rmse(mean, y),
        "mae": metrics.mae(mean, y),
        "pll": metrics.pll_regression(f, y, tau=tau).mean(),
        "crps": metrics.crps_gaussian(mean, sd, y).mean(),
        "coverage50": metrics.coverage(mean, sd, y, level=0.5),
        "coverage95": metrics.coverage(mean, sd, y, level=0.95),
        "variance": variance.mean(),
        "tau": tau,
    }
    for name, value in expected.items():
        assert found[name].value == pytest.approx(value, rel=1e-9), name
    one_sd, one_error = np.sqrt((sd**2).mean(-1)), np.sqrt(((y - mean) ** 2).mean(-1))
    assert found["spearman"].value == pytest.approx(metrics.spearman(one_sd, one_error), abs=1e-6)
    np.testing.assert_allclose(scores.log_likelihood, metrics.gaussian_log_likelihood(f, y, tau=tau), rtol=1e-12)
    bounds, ratios = regression.bounds(scores, draws), regression.normalized(scores, draws)
    low = {"crps": metrics.crps_gaussian(mean, sigma, y).mean(), "pll": metrics.pll_gaussian(mean, sigma, y).mean()}
    high = {"crps": metrics.crps_optimum(mean, y).mean(), "pll": metrics.pll_optimum(mean, y).mean()}
    for name in ("crps", "pll"):
        assert bounds["constant"][name].value == pytest.approx(low[name], rel=1e-9)
        assert bounds["optimum"][name].value == pytest.approx(high[name], rel=1e-9)
        share = 100 * (expected[name] - low[name]) / (high[name] - low[name])
        assert ratios[name].value == pytest.approx(share, rel=1e-6)
    assert bounds["constant"]["sigma"].value == sigma
    assert high["crps"] == pytest.approx(0.5949040335669752 * found["mae"].value, rel=1e-12)


@pytest.mark.parametrize(
    ("pll", "crps"), [("mixture", "gaussian"), ("moment", "mixture"), ("moment_full", "ensemble"), ("mixture", "fair")]
)
def test_a_replicate_without_a_draw_is_the_run_without_it(pll, crps) -> None:
    scores, draws = evaluated(ScoringSection(pll=pll, crps=crps))
    (f, y), (f_validation, y_validation) = samples_of(), samples_of(VALIDATION, seed=1)
    full_tau = scores.fitted.tau[0]
    for draw in (0, 5):
        row = draws.jackknife.start + draw
        fewer, tau = without(f, draw), fitted_to(without(f_validation, draw), y_validation)[0]
        if crps == "mixture":
            tau *= full_tau / fitted_to(f_validation, y_validation)[0]
        mean, variance = metrics.predictive_moments(fewer)
        scored = {
            "gaussian": lambda m=mean, v=variance, t=tau: metrics.crps_gaussian(m, np.sqrt(v + 1 / t), y),
            "mixture": lambda g=fewer: metrics.crps_mixture(g, y, tau=full_tau),
            "ensemble": lambda g=fewer: metrics.crps_ensemble(g, y),
            "fair": lambda g=fewer: metrics.crps_ensemble(g, y, fair=True),
        }[crps]()
        assert scores.replicates["crps"][row] == pytest.approx(scored.mean(), rel=1e-6)
        likelihood = metrics.pll_regression(fewer, y, tau=tau, kind=pll).mean()
        assert scores.replicates["pll"][row] == pytest.approx(likelihood, rel=2e-3 if pll == "mixture" else 1e-6)
        assert scores.replicates["squared_error"][row] == pytest.approx(((y - mean) ** 2).sum(-1).mean(), rel=1e-9)
    assert scores.replicates["crps"][0] == pytest.approx(scores.points["crps"].mean())


def test_the_step_in_tau_to_first_order_is_close_to_the_mixture_with_that_tau(whole) -> None:
    scores, draws = whole
    f, y = samples_of()
    for row in [draws.bootstrap.start + k for k in range(5)]:
        exact = metrics.pll_from_log_likelihood(
            metrics.gaussian_log_likelihood(f, y, tau=scores.fitted.tau[row]), weights=draws.weights[row]
        ).mean()
        moved = abs(scores.fitted.tau[row] / scores.fitted.tau[0] - 1)
        assert scores.replicates["pll"][row] == pytest.approx(exact, abs=moved**2 + 1e-9)


def test_estimates_do_not_depend_on_how_points_come(whole) -> None:
    scores, draws = whole
    again = regression.set_estimates(reduced(*samples_of(), draws, fitted=scores.fitted, chunk=9), draws)
    for name, estimate in regression.set_estimates(scores, draws).items():
        other = again[name]
        assert other.value == pytest.approx(estimate.value, rel=1e-12, nan_ok=True)
        assert other.mc_se == pytest.approx(estimate.mc_se, rel=1e-9)


def test_estimates_are_in_the_unit_of_the_targets() -> None:
    draws, (f, y) = replicate_weights(T), samples_of()
    (f_validation, y_validation), a = samples_of(VALIDATION, seed=1), 7.0
    scale = TargetScale(np.full(Q, 3.0), np.full(Q, a))
    plain = regression.fitted(reduced(f_validation, y_validation, draws), draws)
    scaled = regression.fitted(reduced(f_validation, a * y_validation + 3, draws, scale=scale), draws)
    np.testing.assert_allclose(scaled.tau, plain.tau / a**2, rtol=1e-6)
    np.testing.assert_allclose(scaled.sigma, a * plain.sigma, rtol=1e-9)
    one = reduced(f, y, draws, fitted=plain)
    two = reduced(f, a * y + 3, draws, fitted=scaled, scale=scale)
    first, second = regression.set_estimates(one, draws), regression.set_estimates(two, draws)
    for name, factor in {"rmse": a, "mae": a, "crps": a, "variance": a**2, "coverage95": 1, "spearman": 1}.items():
        assert second[name].value == pytest.approx(factor * first[name].value, rel=1e-6)
        assert second[name].mc_se == pytest.approx(factor * first[name].mc_se, rel=1e-4)
    assert second["pll"].value == pytest.approx(first["pll"].value - Q * math.log(a), abs=1e-6)
    for name, estimate in regression.normalized(one, draws).items():
        assert regression.normalized(two, draws)[name].value == pytest.approx(estimate.value, rel=1e-5)
    assert two.mean == pytest.approx(a * one.mean + 3)


def test_without_validation_points_and_tau_there_is_no_likelihood() -> None:
    draws = replicate_weights(T)
    scores = reduced(*samples_of(), draws)
    assert set(regression.set_estimates(scores, draws)) == {"rmse", "mae", "spearman", "variance"}
    assert regression.bounds(scores, draws) == regression.normalized(scores, draws) == {}
    assert regression.calibration_curve(scores) == {}


def test_a_tau_that_was_given_is_not_fitted_and_needs_no_validation_points() -> None:
    by, draws = ScoringSection(tau=4.0), replicate_weights(T)
    scorer = regression.RegressionScorer(ScoreSettings(scoring=by), None, 1)
    scores = reduced(*samples_of(), draws, by=by, fitted=scorer.fitted_to(None, draws).fit)
    found = regression.set_estimates(scores, draws)
    assert found["tau"].value == 4 and found["tau"].mc_se == 0
    assert found["pll"].value == pytest.approx(metrics.pll_regression(*samples_of(), tau=4.0).mean())
    assert set(regression.bounds(scores, draws)) == {"optimum"}
    assert regression.normalized(scores, draws) == {}
    both = scorer.fitted_to(reduced(*samples_of(VALIDATION, seed=1), draws, by=by), draws).fit
    assert both is not None
    assert (both.tau == 4).all() and (both.sigma > 0).all()


def test_tau_by_the_likelihood_of_moments_is_the_best_by_that() -> None:
    by, draws = ScoringSection(fit="pll", pll="moment"), replicate_weights(T)
    f, y = samples_of(VALIDATION, seed=1)
    fitted = regression.fitted(reduced(f, y, draws, by=by), draws)

    def pll(tau: float, rows: slice | np.ndarray = slice(None)) -> float:
        return float(metrics.pll_regression(f[rows], y, tau=tau, kind="moment").mean())

    for factor in (0.97, 1.03):
        assert pll(fitted.tau[0]) > pll(factor * fitted.tau[0])
    kept = np.arange(T) != 4
    left_out = float(fitted.tau[draws.jackknife][4])
    for factor in (0.97, 1.03):
        assert pll(left_out, kept) > pll(factor * left_out, kept)


def test_replicates_whose_tau_is_infinite_have_no_mixture_and_far_ones_are_exact() -> None:
    draws = replicate_weights(T)
    f, y = samples_of()
    tau = np.full(len(draws.weights), 5.0)
    tau[draws.prefix.start + 1] = math.inf
    tau[draws.jackknife.start + 2] = 50.0
    scores = reduced(f, y, draws, fitted=regression.NoiseFit(tau, None))
    curve = regression.convergence(scores, draws)["pll"]
    assert math.isnan(curve[1]) and np.isfinite(np.delete(curve, 1)).all()
    exact = metrics.pll_regression(without(f, 2), y, tau=50.0).mean()
    assert scores.replicates["pll"][draws.jackknife.start + 2] == pytest.approx(exact, rel=1e-9)


def test_moments_with_covariances_have_a_likelihood_without_noise() -> None:
    draws, by = replicate_weights(T), ScoringSection(pll="moment_full")
    f, y = samples_of()
    scores = reduced(f, y, draws, by=by, fitted=regression.NoiseFit(np.full(len(draws.weights), math.inf), None))
    found = regression.set_estimates(scores, draws)["pll"].value
    assert found == pytest.approx(metrics.pll_regression(f, y, tau=math.inf, kind="moment_full").mean(), rel=1e-9)


def test_tau_by_likelihood_is_the_best_by_likelihood() -> None:
    by = ScoringSection(fit="pll")
    draws = replicate_weights(T)
    f, y = samples_of(VALIDATION, seed=1)
    fitted = regression.fitted(reduced(f, y, draws, by=by), draws)
    assert fitted.tau[0] == pytest.approx(metrics.optimal_tau_pll(f, y).tau, rel=1e-6)
    for draw in range(T):
        exact = metrics.optimal_tau_pll(without(f, draw), y).tau
        step = abs(exact / fitted.tau[0] - 1)
        assert fitted.tau[draws.jackknife][draw] == pytest.approx(exact, rel=0.5 * step + 0.005)
    assert fitted.sigma[0] == pytest.approx(math.sqrt(((y - f.mean(0)) ** 2).mean()), rel=1e-9)


_SIZES = np.array([1e-3, 1e3])


@pytest.mark.parametrize(
    "by",
    [
        ScoringSection(),
        ScoringSection(crps="mixture"),
        ScoringSection(fit="pll"),
        ScoringSection(fit="pll", pll="moment"),
        ScoringSection(pll="moment_full"),
    ],
    ids=str,
)
def test_outputs_with_errors_of_other_sizes_have_each_their_own_noise(by: ScoringSection) -> None:
    draws, random = replicate_weights(T), np.random.default_rng(0)
    y, f = random.normal(size=(120, 2)), 0.1 * random.normal(size=(T, 120, 2))
    fitted = regression.fitted(reduced(f * _SIZES, y * _SIZES, draws, by=by), draws)
    rmse = np.sqrt(((y - f.mean(0)) ** 2).mean(0))
    np.testing.assert_allclose(fitted.unit, rmse * _SIZES, rtol=1e-9)
    scores = reduced(f * _SIZES, y * _SIZES, draws, by=by, fitted=fitted)
    # The same in units of the errors, where one τ is that of both.
    fitted_alike = regression.fitted(reduced(f / rmse, y / rmse, draws, by=by), draws)
    assert fitted_alike.units is None
    np.testing.assert_allclose(fitted.tau, fitted_alike.tau, rtol=1e-6)
    np.testing.assert_allclose(fitted.sigma, fitted_alike.sigma, rtol=1e-6)
    expected = reduced(f / rmse, y / rmse, draws, by=by, fitted=fitted_alike)
    np.testing.assert_allclose(scores.sigma, expected.sigma * rmse * _SIZES, rtol=1e-6)
    volume = np.log(rmse * _SIZES).sum()
    for name in ("pll", "pll_constant"):
        np.testing.assert_allclose(scores.points[name], expected.points[name] - volume, rtol=1e-6, atol=1e-6)
        np.testing.assert_allclose(scores.replicates[name], expected.replicates[name] - volume, rtol=1e-6, atol=1e-6)
    if scores.log_likelihood is not None:
        np.testing.assert_allclose(scores.log_likelihood, expected.log_likelihood - volume, rtol=1e-6, atol=1e-6)
    large = reduced(f[..., 1:] / rmse[1], y[:, 1:] / rmse[1], draws, by=by, fitted=fitted_alike)
    for name in ("crps", "crps_constant"):  # means over outputs in target units
        np.testing.assert_allclose(scores.points[name], large.points[name] * rmse[1] * 500, rtol=1e-4)
    [finding] = fitted.findings("mcbn", by)
    assert (finding.code, finding.severity) == ("outputs-of-other-sizes", "note")
    assert finding.values["covered"] == pytest.approx([0.95, 0.95], abs=0.05)
    assert "output 0 has an RMSE of 0.00" in text_of(finding)
    assert not [*fitted_alike.findings("mcbn", by)]


def test_an_output_whose_intervals_are_too_narrow_is_a_warning() -> None:
    draws, random = replicate_weights(T), np.random.default_rng(0)
    y, f = random.normal(size=(120, 3)) * [1, 1, 8], 0.1 * random.normal(size=(T, 120, 3))
    fitted = regression.fitted(reduced(f, y, draws), draws)
    [finding] = fitted.findings("mcbn", ScoringSection())
    assert (finding.code, finding.values["output"]) == ("output-poorly-covered", 2)
    inside = abs(y - f.mean(0)) <= 1.959963984540054 * np.sqrt(f.var(0) + 1 / fitted.tau[0])
    assert finding.values["covered"] == pytest.approx(inside[:, 2].mean()) and finding.values["covered"] < 0.9


def test_each_half_of_a_cross_fit_has_the_sizes_of_its_own_errors() -> None:
    draws, random = replicate_weights(T), np.random.default_rng(0)
    y, f = random.normal(size=(120, 2)), 0.1 * random.normal(size=(T, 120, 2))
    second = np.arange(120) % 2 == 1
    found = regression.fitted(reduced(f * _SIZES, y * _SIZES, draws), draws, second)
    [first_half, _] = found.halves
    np.testing.assert_allclose(first_half.unit, np.sqrt((((y - f.mean(0)) * _SIZES)[~second] ** 2).mean(0)), rtol=1e-9)
    np.testing.assert_allclose(found.noise(np.array([1]))[0, 0], first_half.unit**2 / first_half.tau[0], rtol=1e-9)
    assert found.mean_tau[0] == pytest.approx(found.tau[0], rel=0.1)
    assert found.mean_sigma[0] == pytest.approx(found.sigma[0], rel=0.1)


def test_draws_that_spread_more_than_the_errors_make_tau_infinite_and_say_so() -> None:
    random, draws = np.random.default_rng(0), replicate_weights(T)
    y = random.normal(size=(VALIDATION, 1))
    f = y + 3 * random.normal(size=(T, VALIDATION, 1))
    fitted = regression.fitted(reduced(f, y + 0.01 * random.normal(size=y.shape), draws), draws)
    assert math.isinf(fitted.tau[0])
    assert [finding.code for finding in fitted.findings("mcbn", ScoringSection())] == ["tau-infinite"]
    found = regression.set_estimates(reduced(f, y, draws, fitted=fitted), draws)
    assert "pll" not in found and found["crps"].value > 0  # a mixture of points has no density
    moments = reduced(f, y, draws, by=ScoringSection(pll="moment"), fitted=fitted)
    assert math.isfinite(regression.set_estimates(moments, draws)["pll"].value)
    held = regression.fitted(reduced(f, y, draws, by=ScoringSection(tau_range=(0.1, 5.0))), draws)
    assert held.tau[0] == pytest.approx(5.0)
    (finding,) = held.findings("mcbn", ScoringSection())
    assert finding.code == "tau-at-range-end" and "high" in finding.values["end"]


def test_points_that_are_met_exactly_make_the_optimum_infinite_and_the_others_still_count(whole) -> None:
    scores, draws = whole
    f, y = samples_of()
    f[:, :3] = y[:3]
    exact = reduced(f, y, draws, fitted=scores.fitted)
    ratios = regression.normalized(exact, draws)
    assert math.isnan(ratios["pll"].value) and math.isfinite(ratios["crps"].value)
    assert regression.bounds(exact, draws)["optimum"]["pll"].value == math.inf
    others = reduced(f[:, 3:], y[3:], draws, fitted=scores.fitted)
    assert ratios["pll_without_exact"].value == pytest.approx(regression.normalized(others, draws)["pll"].value)


def test_validation_points_that_are_all_met_exactly_leave_no_constant() -> None:
    draws = replicate_weights(T)
    f, y = samples_of(VALIDATION, seed=1, outputs=1)
    f[:] = y
    fitted = regression.fitted(reduced(f, y, draws), draws)
    assert fitted.sigma[0] == 0 and math.isinf(fitted.tau[0])
    assert "constant-is-zero" in [finding.code for finding in fitted.findings("mcbn", ScoringSection())]


def test_a_single_draw_has_the_constant_as_its_own_uncertainty() -> None:
    draws = replicate_weights(1)
    f, y = samples_of(VALIDATION, seed=1, draws=1, outputs=1)
    fitted = regression.fitted(reduced(f, y, draws), draws)
    assert fitted.tau[0] == pytest.approx(fitted.sigma[0] ** -2, rel=1e-6)
    f, y = samples_of(draws=1, outputs=1)
    scores = reduced(f, y, draws, fitted=fitted)
    found, bounds = regression.set_estimates(scores, draws), regression.bounds(scores, draws)
    assert found["crps"].value == pytest.approx(bounds["constant"]["crps"].value, rel=1e-9)
    assert found["pll"].value == pytest.approx(bounds["constant"]["pll"].value, rel=1e-9)
    assert not {"variance", "spearman"} & set(found)
    assert regression.convergence(scores, draws) == {}


def test_a_bank_of_as_many_draws_as_samples_is_no_bank(whole) -> None:
    scores, draws = whole
    f, y = samples_of()
    bank = replicate_weights(T, T)
    reduction = regression.RegressionReduction(
        bank, points=N, scoring_by=ScoringSection(), targets=y, fitted=scores.fitted
    )
    for start in range(0, N, 10):
        reduction.add(f[:, start : start + 10], np.arange(T))
    found = regression.set_estimates(reduction.scores(), bank)
    for name, estimate in regression.set_estimates(scores, draws).items():
        assert found[name].value == pytest.approx(estimate.value, rel=1e-9)
        assert found[name].mc_se == pytest.approx(estimate.mc_se, rel=1e-6)


def test_with_a_bank_the_first_draws_have_their_own_noise_too() -> None:
    f, y = samples_of()
    by, curves = ScoringSection(crps="mixture"), []
    for weights, used in ((replicate_weights(T), None), (replicate_weights(T, T), np.arange(T))):
        fitted = regression.fitted(reduced(f, y, replicate_weights(T)), replicate_weights(T))
        tau = np.full(len(weights.weights), fitted.tau[0])
        tau[weights.prefix] *= np.geomspace(4, 1, weights.prefix.stop - weights.prefix.start)
        by_row = replace(fitted, tau=tau)
        reduction = regression.RegressionReduction(weights, points=N, scoring_by=by, targets=y, fitted=by_row)
        reduction.add(f, used)
        curves.append(regression.convergence(reduction.scores(), weights)["crps"])
    np.testing.assert_allclose(*curves)


def test_an_output_that_is_not_finite_is_named() -> None:
    f, y = samples_of()
    f[3, 21, 0] = np.nan
    with pytest.raises(SamplingError, match=r"output for example 21 \(counted from 0\) is not finite"):
        reduced(f, y, replicate_weights(T))


def test_ood_is_told_apart_by_the_variance(whole) -> None:
    scores, draws = whole
    f, _ = samples_of(30, seed=5)
    wild = reduced(f + 2 * np.random.default_rng(6).normal(size=f.shape), None, draws, fitted=scores.fitted)
    assert set(regression.set_estimates(wild, draws)) == {"variance"}
    found = detection_estimates(scores, wild, draws)
    assert set(found) == {"variance"} and found["variance"]["auroc"].value > 0.9
    errors = headline_errors("variance", {"test": scores, "wild": wild}, draws, 0.02)
    of = "variance of samples"
    assert set(errors) == {f"{of} on test", f"{of} on wild", "PLL on test", f"AUROC of wild by {of}"}


def test_the_curves_say_what_the_points_do(whole) -> None:
    scores, draws = whole
    curve = regression.uncertainty_error_curve(scores)
    assert (np.diff(curve["sigma"]) >= 0).all() and len(curve["rank"]) == N
    assert curve["error"].mean() == pytest.approx(np.sqrt(((scores.targets - scores.mean) ** 2).mean(-1)).mean())
    convergence = regression.convergence(scores, draws)
    assert convergence["samples"].tolist() == [1, 2, 4, 8, 12]
    assert convergence["crps"][-1] == pytest.approx(regression.set_estimates(scores, draws)["crps"].value)
    assert convergence["rmse"][-1] < convergence["rmse"][0]
    assert (np.diff(regression.calibration_curve(scores)["coverage"]) >= 0).all()


# ── the Monte Carlo error of every estimate is the spread over repeats ────────────────────────────────────────────────

REPEATS, DRAWS, POINTS, BATCH = 120, 32, 600, 32


@pytest.fixture(scope="module")
def trained() -> tuple[nn.Module, Tensor]:
    x, y = waves(2000, torch.Generator().manual_seed(1))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(2)
        net = nn.Sequential(
            nn.Linear(3, 32, bias=False), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.1),
            nn.Linear(32, 32, bias=False), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.1), nn.Linear(32, 1),
        )  # fmt: skip
        optimizer = torch.optim.Adam(net.parameters(), lr=2e-3)
        for _ in range(15):
            for rows in torch.randperm(len(x)).split(BATCH):
                loss = F.mse_loss(net(x[rows]), y[rows])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
    return net.eval(), x


def waves(n: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Targets noisy enough for a τ far from infinity, where its error would say nothing."""
    x = torch.randn(n, 3, generator=generator)
    return x, (torch.sin(2 * x[:, :1]) + x[:, 1:2] + 0.8 * torch.randn(n, 1, generator=generator))


@pytest.mark.nightly
@pytest.mark.parametrize("method", ["mcbn", "mcdo", "mcbn+mcdo"])
@pytest.mark.parametrize("by", [ScoringSection(), ScoringSection(fit="pll", pll="moment", crps="fair")])
def test_the_monte_carlo_error_of_every_estimate_is_the_spread_over_repeats(trained, method, by, monkeypatch) -> None:
    monkeypatch.setattr(regression, "_BOOTSTRAPPED", 2)  # errors over points are not looked at here
    monkeypatch.setattr(metrics, "detection_bootstrap", partial(repeats.few, metrics.detection_bootstrap))
    net, train = trained
    generator = torch.Generator().manual_seed(3)
    (x, y), (x_validation, y_validation) = waves(POINTS, generator), waves(300, generator)
    outside = 2 * waves(POINTS, generator)[0]
    draws = replicate_weights(DRAWS)
    omega = bnuq.draw(net, train, samples=DRAWS * REPEATS, batch_size=BATCH, seed=11) if "mcbn" in method else None
    values: dict[str, list[float]] = {}
    errors: dict[str, list[float]] = {}
    for repeat in range(REPEATS):

        def scores(points: Tensor, truth: Tensor | None, fitted=None, repeat=repeat) -> regression.RegressionScores:
            f = bnuq.predict(
                net,
                points,
                omega[DRAWS * repeat : DRAWS * (repeat + 1)] if omega is not None else None,
                dropout=bnuq.Dropout(DRAWS, seed=repeat) if "mcdo" in method else None,
            )
            target = None if truth is None else truth.numpy().astype(np.float64)
            return reduced(f.numpy(), target, draws, by=by, fitted=fitted, chunk=POINTS)

        fitted = regression.fitted(scores(x_validation, y_validation), draws)
        test, ood = scores(x, y, fitted), scores(outside, None, fitted)
        found = {f"test {name}": estimate for name, estimate in regression.set_estimates(test, draws).items()}
        found |= {f"ood {name}": estimate for name, estimate in regression.set_estimates(ood, draws).items()}
        found |= {f"normalized {name}": estimate for name, estimate in regression.normalized(test, draws).items()}
        for bound, estimates in regression.bounds(test, draws).items():
            found |= {f"{bound} {name}": estimate for name, estimate in estimates.items()}
        for score, estimates in detection_estimates(test, ood, draws).items():
            found |= {f"{score} {name}": estimate for name, estimate in estimates.items()}
        for name, estimate in found.items():
            values.setdefault(name, []).append(estimate.value)
            errors.setdefault(name, []).append(estimate.mc_se)
    repeats.check(values, errors)


@pytest.mark.parametrize("size", [20, 800])
def test_the_error_of_a_rank_correlation_goes_by_groups_however_many_points_they_have(size: int) -> None:
    """Against the spread over data sets of 50 groups, whose points share most of their sd and error."""
    group, values, errors = np.repeat(np.arange(50), size), [], []
    for seed in range(40 if size < 100 else 10):
        generator = np.random.default_rng(seed)
        u, v = generator.normal(size=(2, 50))[:, group]
        noise = 0.3 * generator.normal(size=(2, group.size))
        sigma, error = np.exp(u + noise[0]), np.exp(0.3 * u + v + noise[1])
        values.append(metrics.spearman(sigma, error))
        errors.append(regression._resampled_correlation(sigma, error, group))
    assert np.mean(errors) == pytest.approx(0.125, rel=0.15)
    assert np.std(values, ddof=1) == pytest.approx(np.mean(errors), rel=0.35)
