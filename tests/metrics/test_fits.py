"""The constant σ and τ of a validation set: nothing beats them there, in any unit, however the grid lies."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from bnuq import metrics

laws = settings(max_examples=25, deadline=None)
sizes = st.floats(1e-3, 100).flatmap(lambda size: st.sampled_from([size, -size]))
errors = hnp.arrays(np.float64, st.integers(1, 8), elements=st.just(0.0) | sizes)
scales = st.floats(1e-6, 1e6)


def mean_crps(e, variance, *, weights=None):
    return np.average(metrics.crps_gaussian(np.zeros_like(e), np.sqrt(variance), e), weights=weights)


# The constant σ


@laws
@given(errors, st.floats(0, 300))
def test_no_other_constant_beats_the_constant_sigma_on_its_own_errors(e, other):
    sigma = metrics.constant_sigma(e)
    assert mean_crps(e, np.full_like(e, sigma**2)) <= mean_crps(e, np.full_like(e, other**2)) + 1e-12
    if sigma > 0:
        assert np.exp(-(e**2) / (2 * sigma**2)).mean() == pytest.approx(math.sqrt(0.5), rel=1e-12)
    else:
        assert np.mean(e == 0) >= math.sqrt(0.5)


@laws
@given(errors, scales, st.randoms(use_true_random=False))
def test_the_constant_sigma_has_the_errors_unit_and_ignores_their_order_and_sign(e, scale, random):
    sigma = metrics.constant_sigma(e)
    shuffled = list(-scale * e)
    random.shuffle(shuffled)
    assert metrics.constant_sigma(np.array(shuffled)) == pytest.approx(scale * sigma, rel=1e-11)
    assert metrics.constant_sigma(torch.from_numpy(e).reshape(-1, 1)) == sigma


@laws
@given(errors, st.data())
def test_a_weight_is_a_number_of_copies(e, data):
    copies = data.draw(hnp.arrays(np.int64, e.shape, elements=st.integers(0, 3)).filter(np.any))
    for metric in ("crps", "pll"):
        weighted = metrics.constant_sigma(e, weights=copies / 7, metric=metric)
        assert weighted == pytest.approx(metrics.constant_sigma(np.repeat(e, copies), metric=metric), rel=1e-11)
    variance = np.linspace(0.1, 1, e.size)
    weighted = metrics.optimal_tau(e, variance, weights=copies / 7)
    repeated = metrics.optimal_tau(np.repeat(e, copies), np.repeat(variance, copies))
    assert (weighted.at_end, weighted.score) == (repeated.at_end, pytest.approx(repeated.score, rel=1e-9))


@pytest.mark.parametrize("size", [1e-200, 1e-3, 1.0, 1e200])
def test_the_constant_sigma_of_equal_errors_is_that_of_the_optimum(size):
    sigma = metrics.constant_sigma(np.array([size, -size, size]))
    assert sigma == pytest.approx(1.2011224087864498 * size, rel=1e-12)
    assert metrics.constant_sigma(np.array([size])) == pytest.approx(1.2011224087864498 * size, rel=1e-12)


def test_the_constant_sigma_of_two_sizes_far_apart_is_the_root():
    """Half at 1 and half at 10⁶: ½ exp(−1/2σ²) + ½ exp(−10¹²/2σ²) = 1/√2 needs the second, so σ is near 10⁶."""
    e = np.array([1.0, 1e6])
    expected = 1e6 / math.sqrt(-2 * math.log(math.sqrt(2) - 1))
    assert metrics.constant_sigma(e) == pytest.approx(expected, rel=1e-11)
    # With three quarters at 1 the second is out of reach: 0.75 exp(−1/2σ²) = 1/√2.
    e = np.array([1.0, 1.0, 1.0, 1e6])
    expected = 1 / math.sqrt(-2 * math.log(math.sqrt(0.5) / 0.75))
    assert metrics.constant_sigma(e) == pytest.approx(expected, rel=1e-12)


def test_exact_hits_pull_the_constant_sigma_to_zero_from_a_weight_of_1_over_root_2():
    e = np.array([0.0, 3.0])
    for weight, zero in ((0.70, False), (0.7071, False), (0.7072, True), (1.0, True)):
        sigma = metrics.constant_sigma(e, weights=np.array([weight, 1 - weight]))
        assert (sigma == 0) is zero
        if not zero:
            assert weight + (1 - weight) * math.exp(-9 / (2 * sigma**2)) == pytest.approx(math.sqrt(0.5), rel=1e-12)
    assert metrics.constant_sigma(np.zeros(4)) == 0


def test_the_constant_sigma_by_pll_is_the_root_mean_square():
    e = np.array([[3.0, 4.0], [0.0, 0.0]])
    assert metrics.constant_sigma(e, metric="pll") == pytest.approx(2.5)
    assert metrics.constant_sigma(e, metric="pll", weights=np.array([2.0, 0.0])) == pytest.approx(math.sqrt(12.5))
    best = metrics.pll_gaussian(np.zeros_like(e), 2.5, e).sum()
    assert all(best > metrics.pll_gaussian(np.zeros_like(e), other, e).sum() for other in (2.4, 2.6))


def test_replicates_have_the_constant_sigma_that_each_has_alone():
    stack = np.random.default_rng(0).standard_t(2, size=(9, 40, 2))
    together = metrics.constant_sigmas(torch.from_numpy(stack))
    assert together == pytest.approx([metrics.constant_sigma(row) for row in stack], rel=1e-12)
    assert metrics.constant_sigmas(stack[:0]).shape == (0,)


def test_fits_say_what_they_cannot_use():
    e = np.ones(3)
    with pytest.raises(ValueError, match="errors holds no examples"):
        metrics.constant_sigma(e[:0])
    with pytest.raises(ValueError, match="y holds no examples"):
        metrics.optimal_tau_pll(np.ones((2, 0)), e[:0])
    for weights in (np.array([1.0, -1.0, 1.0]), np.zeros(3), np.array([1.0, math.nan, 1.0])):
        with pytest.raises(ValueError, match="weights do not fit 3 examples; expected one number ≥ 0 for each"):
            metrics.constant_sigma(e, weights=weights)
    for tau_range in ((0.0, 1.0), (2.0, 1.0), (1.0, math.inf)):
        for fit in (
            lambda at: metrics.optimal_tau(e, e, tau_range=at),
            lambda at: metrics.optimal_tau_pll(e[None], e, tau_range=at),
            lambda at: metrics.refined_tau(e[None], e[None], 1.0, tau_range=at),
        ):
            with pytest.raises(ValueError, match=r"tau_range is .*; expected \(low, high\), both positive and finite"):
                fit(tau_range)


def test_an_error_that_is_no_number_makes_no_number():
    for bad in (math.nan, math.inf):
        e = np.array([1.0, bad])
        assert math.isnan(metrics.constant_sigma(e))
        assert math.isnan(metrics.constant_sigma(e, metric="pll"))
        assert math.isnan(metrics.optimal_tau(e, np.ones(2)).tau)
        assert math.isnan(metrics.optimal_tau_pll(e[None], np.zeros(2)).tau)
        assert np.isnan(metrics.refined_tau(e[None], np.ones((1, 2)), 1.0)).all()


# τ by CRPS


@st.composite
def with_variance(draw):
    e = draw(errors)
    return e, draw(hnp.arrays(np.float64, e.shape, elements=st.just(0.0) | st.floats(1e-3, 1e3)))


@laws
@given(with_variance(), st.floats(-4, 2))
def test_no_other_tau_beats_the_optimal_one(with_variance, log_s):
    e, variance = with_variance
    fit = metrics.optimal_tau(e, variance)
    assert fit.score == pytest.approx(mean_crps(e, variance + 1 / fit.tau), rel=1e-10)
    for noise in (0.0, ((math.sqrt(np.mean(e**2)) or 1.0) * 10**log_s) ** 2):
        assert fit.score <= mean_crps(e, variance + noise) * (1 + 1e-6) + 1e-12
    assert (fit.at_end == "infinite") == (fit.tau == math.inf)


@laws
@given(errors.filter(lambda e: np.mean(e == 0) < 0.7))
def test_without_variance_the_noise_is_the_constant_sigma(e):
    fit = metrics.optimal_tau(e, np.zeros_like(e))
    if fit.at_end == "":
        assert fit.tau**-0.5 == pytest.approx(metrics.constant_sigma(e), rel=1e-10)
        assert metrics.refined_tau(e[None], np.zeros((1, e.size)), fit.tau * 1.1) == pytest.approx([fit.tau], rel=1e-10)


@laws
@given(with_variance(), scales)
def test_in_other_units_tau_scales_by_the_inverse_square(with_variance, scale):
    e, variance = with_variance
    here, there = metrics.optimal_tau(e, variance), metrics.optimal_tau(scale * e, scale**2 * variance)
    assert there.score == pytest.approx(scale * here.score, rel=1e-9)
    if math.isinf(here.tau) or math.isinf(there.tau):
        return  # the same minimum, but for rounding
    assert there.at_end == here.at_end
    assert there.tau == pytest.approx(here.tau / scale**2, rel=1e-6)


def example(seed, points=200, outputs=2):
    """Errors from N(0, v + 0.25): the right τ is about 4."""
    rng = np.random.default_rng(seed)
    variance = rng.gamma(1, size=(points, outputs))
    return rng.normal(size=variance.shape) * np.sqrt(variance + 0.25), variance


def test_the_noise_of_data_that_have_some_is_found():
    e, variance = example(0, points=10_000)
    fit = metrics.optimal_tau(e, variance)
    assert fit.tau == pytest.approx(4, rel=0.1) and fit.at_end == ""
    assert metrics.optimal_tau(torch.from_numpy(e), torch.from_numpy(variance)) == fit
    pooled = metrics.optimal_tau(e.ravel(), variance.ravel())
    assert (pooled.tau, pooled.score) == (pytest.approx(fit.tau, rel=1e-9), pytest.approx(fit.score))


def test_of_two_minima_the_deeper_is_found():
    """Small errors that know nothing of their spread, and large ones whose variance is far too small."""
    e = np.concatenate([np.full(8, 0.01), [100.0, -100.0]])
    variance = np.concatenate([np.zeros(8), np.full(2, 400.0)])
    noises = np.logspace(-4, 4, 801)
    found = []
    for weight_of_large in (2.5, 10.0):
        weights = np.repeat([1.0, weight_of_large], [8, 2])
        scores = np.array([mean_crps(e, variance + s**2, weights=weights) for s in noises])
        assert np.count_nonzero(np.diff(np.sign(np.diff(scores))) > 0) == 2  # so that there are two indeed
        fit = metrics.optimal_tau(e, variance, weights=weights)
        assert fit.tau**-0.5 == pytest.approx(noises[scores.argmin()], rel=0.012)  # half a step of the grid
        found.append(fit.tau**-0.5)
    assert found[0] < 0.1 and found[1] > 10


def test_where_variance_is_already_too_large_no_noise_is_best():
    e, variance = example(1)
    assert metrics.optimal_tau(e / 10, variance).tau == math.inf
    assert metrics.optimal_tau(e / 10, variance).at_end == "infinite"
    exact = metrics.optimal_tau(np.zeros(3), np.ones(3))
    assert (exact.tau, exact.at_end) == (math.inf, "infinite")
    assert exact.score == pytest.approx(mean_crps(np.zeros(3), np.ones(3)))
    single = metrics.optimal_tau(np.array([2.0]), np.array([1.0]))
    assert 1 + 1 / single.tau == pytest.approx(4 / math.log(2), rel=1e-10)


def test_noise_far_below_the_root_mean_square_is_found_all_the_same():
    e = np.array([0.0, 0.0, 0.0, 1e-3, 1e3])
    fit = metrics.optimal_tau(e, np.zeros(5))
    assert fit.at_end == "" and fit.tau**-0.5 < 1e-4 * math.sqrt(np.mean(e**2))
    assert fit.tau**-0.5 == pytest.approx(metrics.constant_sigma(e), rel=1e-10)


def test_errors_beyond_the_range_of_their_squares_are_fitted_without_a_warning():
    e = np.array([1.0, -2.0, 0.5])
    for scale in (1e-200, 1e200):
        sigma = metrics.optimal_tau(scale * e, np.zeros(3)).score / scale
        assert sigma == pytest.approx(metrics.optimal_tau(e, np.zeros(3)).score)
    assert metrics.optimal_tau(1e-200 * e, np.zeros(3)).tau == math.inf
    assert metrics.optimal_tau(1e-200 * e, np.array([1.0, 0.0, 2.0])).at_end == "infinite"
    assert metrics.refined_tau(1e-200 * e[None], np.ones((1, 3)), 1.0) == pytest.approx([16])
    for metric in ("crps", "pll"):
        assert metrics.refined_tau(1e-200 * e[None], np.zeros((1, 3)), 1.0, metric=metric) == pytest.approx([16])


def test_a_range_is_kept_and_its_ends_are_told():
    e, variance = example(2)
    best = metrics.optimal_tau(e, variance).tau
    inside = metrics.optimal_tau(e, variance, tau_range=(0.01, 100.0))
    assert (inside.tau, inside.at_end) == (pytest.approx(best, rel=1e-9), "")
    for tau_range, tau, at_end in (((10.0, 100.0), 10.0, "low"), ((0.1, 1.0), 1.0, "high"), ((7.0, 7.0), 7.0, "low")):
        fit = metrics.optimal_tau(e, variance, tau_range=tau_range)
        assert (fit.tau, fit.at_end) == (tau, at_end)
        assert fit.score == pytest.approx(mean_crps(e, variance + 1 / tau), rel=1e-10)
        refined = metrics.refined_tau(e[None], variance[None], tau, tau_range=tau_range)
        assert refined == pytest.approx([tau], rel=1e-12)
    assert metrics.optimal_tau(np.zeros(3), np.ones(3), tau_range=(0.1, 10.0)).at_end == "high"


def test_each_replicate_is_refined_to_its_own_optimum():
    replicates = [example(seed) for seed in range(10, 16)]
    e, variance = (np.stack(parts) for parts in zip(*replicates, strict=True))
    alone = [metrics.optimal_tau(*one).tau for one in replicates]
    assert metrics.refined_tau(e, variance, alone[0]) == pytest.approx(alone, rel=1e-9)
    assert (metrics.refined_tau(e, variance, math.inf) == math.inf).all()
    far = metrics.refined_tau(e, variance, 1e4 * alone[0])
    assert far == pytest.approx(np.full(6, 1e4 * alone[0] / 16), rel=1e-9)


# τ by PLL


@laws
@given(
    hnp.arrays(np.float64, (3, 4, 2), elements=st.integers(-30, 30).map(lambda k: k / 10)),
    hnp.arrays(np.float64, (4, 2), elements=st.integers(-30, 30).map(lambda k: k / 10)),
    st.floats(-3, 3),
)
def test_no_other_tau_has_a_larger_mean_pll(f, y, log_s):
    fit = metrics.optimal_tau_pll(f, y)
    if fit.tau == math.inf:
        assert (f == y).all()
        return
    assert fit.score == pytest.approx(metrics.pll_regression(f, y, tau=fit.tau).mean(), rel=1e-9, abs=1e-9)
    other = math.sqrt(np.mean((y - f) ** 2)) * 10**log_s
    assert fit.score >= metrics.pll_regression(f, y, tau=other**-2).mean() - 1e-6


def test_tau_of_the_mixture_has_its_smallest_crps() -> None:
    rng = np.random.default_rng(5)
    y, f = rng.normal(size=(200, 2)), 0.8 * rng.choice([-1, 1], size=(12, 200, 2)) + rng.normal(size=(12, 1, 2)) / 5
    y = y / 3 + rng.choice([-1, 1], size=y.shape)
    gaussian = metrics.optimal_tau(y - f.mean(0), f.var(0)).tau
    tau = metrics.tau_of_mixture(y - f, gaussian).tau

    def crps(of: float) -> float:
        return float(metrics.crps_mixture(f, y, tau=of).mean())

    assert crps(tau) < min(crps(tau * 1.02), crps(tau / 1.02), crps(gaussian) - 5e-4)
    assert metrics.tau_of_mixture(y - f, gaussian, tau_range=(0.1, 0.2)).tau == 0.2
    exact = np.where(
        np.arange(len(f))[:, None, None] > 0, 0.0, y - f
    )  # all draws but one are the truth: no noise is best
    assert metrics.tau_of_mixture(exact, gaussian).at_end == "infinite"
    single = metrics.optimal_tau(y - f[0], np.zeros_like(y)).tau
    assert metrics.tau_of_mixture((y - f)[:1], 1.0).tau == pytest.approx(single, rel=1e-6)


def test_the_tau_of_a_single_sample_by_pll_is_the_inverse_mean_square():
    rng = np.random.default_rng(3)
    y = rng.normal(size=(50, 3))
    weights = rng.random(50)
    fit = metrics.optimal_tau_pll(np.zeros((1, 50, 3)), y, weights=weights)
    assert fit.tau == pytest.approx(1 / np.average((y**2).mean(-1), weights=weights), rel=1e-10)
    assert fit.at_end == ""


def test_tau_by_pll_scales_keeps_its_range_and_takes_torch():
    rng = np.random.default_rng(4)
    f, y = rng.normal(size=(20, 300)), rng.normal(size=300)
    fit = metrics.optimal_tau_pll(f, y)
    there = metrics.optimal_tau_pll(100 * f, 100 * y)
    assert there.tau == pytest.approx(fit.tau / 1e4, rel=1e-9)
    assert there.score == pytest.approx(fit.score - math.log(100), rel=1e-9)
    assert metrics.optimal_tau_pll(torch.from_numpy(f), torch.from_numpy(y)) == fit
    assert metrics.tau_of_distances((y - f) ** 2, outputs=1) == fit
    for tau_range, at_end in (((fit.tau * 2, fit.tau * 9), "low"), ((fit.tau / 9, fit.tau / 2), "high")):
        bounded = metrics.optimal_tau_pll(f, y, tau_range=tau_range)
        assert (bounded.tau, bounded.at_end) == (tau_range[at_end == "high"], at_end)
        assert bounded.score == pytest.approx(metrics.pll_regression(f, y, tau=bounded.tau).mean())
    inside = metrics.optimal_tau_pll(f, y, tau_range=(0.01, 1000.0))
    assert (inside.tau, inside.at_end) == (pytest.approx(fit.tau, rel=1e-9), "")


def test_samples_that_hit_every_point_have_no_best_tau_by_pll():
    y = np.array([1.0, 2.0])
    assert metrics.optimal_tau_pll(np.stack([y, y]), y) == metrics.TauFit(math.inf, math.inf, "infinite")
    one_hits = metrics.optimal_tau_pll(np.stack([y, y + 1]), y)
    assert one_hits.at_end == "high" and math.isfinite(one_hits.tau)
    within = metrics.optimal_tau_pll(np.stack([y, y]), y, tau_range=(1.0, 5.0))
    assert (within.tau, within.at_end) == (5.0, "high")
    assert within.score == pytest.approx(math.log(5 / (2 * math.pi)) / 2)


@pytest.mark.parametrize("outputs", [1, 3])
def test_tau_by_the_gaussians_likelihood_beats_every_other(outputs):
    rng = np.random.default_rng(3)
    errors, variance = rng.normal(size=(60, outputs)), rng.gamma(2.0, 0.1, size=(60, outputs))
    fit = metrics.optimal_tau(errors, variance, metric="pll")

    def pll(tau):
        return metrics.pll_gaussian(np.zeros_like(errors), np.sqrt(variance + 1 / tau), errors).mean()

    assert fit.score == pytest.approx(pll(fit.tau), rel=1e-9)
    for factor in (0.5, 0.99, 1.01, 2.0):
        assert fit.score > pll(factor * fit.tau)
    near = metrics.refined_tau(errors[None], variance[None], 1.5 * fit.tau, metric="pll")
    assert near[0] == pytest.approx(fit.tau, rel=1e-9)


def test_passes_wider_than_the_errors_need_no_noise_by_likelihood_either():
    fit = metrics.optimal_tau(np.full((20, 1), 0.1), np.full((20, 1), 4.0), metric="pll")
    assert fit.tau == np.inf and fit.at_end == "infinite"
