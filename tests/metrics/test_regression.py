"""The scores of regression: laws, an independent CRPS, brute force and quadrature, and what happens at σ = 0."""

import itertools
import math

import numpy as np
import pytest
import scipy.integrate
import scipy.special
import scipy.stats
import scoringrules
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from bnuq import metrics
from bnuq.metrics import regression

laws = settings(max_examples=30, deadline=None)
numbers = st.floats(-10, 10).filter(lambda x: x == 0 or abs(x) > 1e-6)
taus = st.floats(0.01, 100)


one_to_six = st.integers(1, 6)


@st.composite
def sampled(draw, samples=one_to_six):
    """Outputs (T, n, Q) and truths (n, Q), or (T, n) and (n,)."""
    points, outputs = draw(st.integers(1, 4)), draw(st.sampled_from([(), (1,), (3,)]))
    shape = (points, *outputs)
    f = draw(hnp.arrays(np.float64, (draw(samples), *shape), elements=numbers))
    return f, draw(hnp.arrays(np.float64, shape, elements=numbers))


def outputs_of(y):
    return math.prod(y.shape[1:])


def normal_data(seed, samples=7, points=40, outputs=2):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(samples, points, outputs)), rng.normal(size=(points, outputs))


PLLS = ("mixture", "moment", "moment_full")


# Laws


@laws
@given(sampled(samples=st.just(1)), taus)
def test_with_a_single_sample_every_score_is_that_of_its_gaussian(sampled, tau):
    f, y = sampled
    of_gaussian = metrics.pll_gaussian(f[0], tau**-0.5, y)
    for kind in PLLS:
        assert metrics.pll_regression(f, y, tau=tau, kind=kind) == pytest.approx(of_gaussian, rel=1e-9, abs=1e-9)
    crps = metrics.crps_gaussian(f[0], tau**-0.5, y)
    assert metrics.crps_mixture(f, y, tau=tau) == pytest.approx(crps, rel=1e-10, abs=1e-12)


@laws
@given(sampled(), taus, st.randoms(use_true_random=False))
def test_the_order_of_samples_changes_nothing_and_that_of_points_permutes(sampled, tau, random):
    f, y = sampled
    samples, points = ([*range(size)] for size in f.shape[:2])
    random.shuffle(samples)
    random.shuffle(points)
    shuffled, truth = f[samples][:, points], y[points]

    def scores(f, y):
        for kind in PLLS:
            yield metrics.pll_regression(f, y, tau=tau, kind=kind)
        yield from (metrics.crps_mixture(f, y, tau=tau), metrics.crps_ensemble(f, y))

    for there, here in zip(scores(shuffled, truth), scores(f, y), strict=True):
        assert there == pytest.approx(here[points], rel=1e-8, abs=1e-10)


@laws
@given(sampled(), taus, st.floats(0.01, 100))
def test_in_other_units_crps_scales_and_pll_shifts(sampled, tau, scale):
    f, y = sampled
    other = tau / scale**2
    shift = -outputs_of(y) * math.log(scale)
    for kind in PLLS:
        pll = metrics.pll_regression(f, y, tau=tau, kind=kind)
        there = metrics.pll_regression(scale * f, scale * y, tau=other, kind=kind)
        assert there == pytest.approx(pll + shift, rel=1e-8, abs=1e-8)
    crps = scale * metrics.crps_mixture(f, y, tau=tau)
    assert metrics.crps_mixture(scale * f, scale * y, tau=other) == pytest.approx(crps, rel=1e-9, abs=1e-12 * scale)
    mean, variance = metrics.predictive_moments(f, tau=tau)
    there, variance_there = metrics.predictive_moments(scale * f, tau=other)
    assert there == pytest.approx(scale * mean, abs=1e-9)
    assert variance_there == pytest.approx(scale**2 * variance, rel=1e-9)
    assert metrics.rmse(scale * mean, scale * y) == pytest.approx(scale * metrics.rmse(mean, y), abs=1e-9)


@laws
@given(sampled())
def test_a_mixture_without_noise_is_the_ensemble_and_one_with_little_is_near_it(sampled):
    f, y = sampled
    ensemble = metrics.crps_ensemble(f, y)
    assert (metrics.crps_mixture(f, y, tau=math.inf) == ensemble).all()
    assert metrics.crps_mixture(f, y, tau=1e16) == pytest.approx(ensemble, abs=1e-7)
    assert (ensemble >= -1e-12).all()


@laws
@given(sampled(), taus)
def test_crps_is_not_negative_and_at_most_the_mean_distance(sampled, tau):
    f, y = sampled
    for crps in (metrics.crps_mixture(f, y, tau=tau), metrics.crps_gaussian(f[0], tau**-0.5, y)):
        assert (crps >= -1e-12).all()
    assert (metrics.crps_ensemble(f, y) <= np.abs(y - f).mean(0).reshape(len(y), -1).mean(-1) + 1e-12).all()


@laws
@given(sampled(), taus)
def test_torch_gives_what_numpy_gives_in_its_own_kind(sampled, tau):
    f, y = sampled
    of_torch = every_score(torch.from_numpy(f), torch.from_numpy(y), tau)
    for theirs, ours in zip(of_torch, every_score(f, y, tau), strict=True):
        assert isinstance(theirs, torch.Tensor) and theirs.dtype == torch.float64
        assert theirs.numpy() == pytest.approx(ours, rel=1e-9, abs=1e-10)


def every_score(f, y, tau):
    for kind in PLLS:
        yield metrics.pll_regression(f, y, tau=tau, kind=kind)
    mean, variance = metrics.predictive_moments(f, tau=tau)
    yield from (mean, variance, metrics.gaussian_log_likelihood(f, y, tau=tau))
    yield from (metrics.crps_mixture(f, y, tau=tau), metrics.crps_ensemble(f, y))
    yield from (metrics.crps_gaussian(mean, variance**0.5, y), metrics.pll_gaussian(mean, variance**0.5, y))
    yield from (metrics.crps_optimum(mean, y), metrics.pll_optimum(mean, y))


@pytest.mark.parametrize("kind", [np.asarray, torch.asarray])
def test_float32_stays_so_and_is_accurate_beside_a_large_mean(kind):
    f, y = (values.astype(np.float32) + np.float32(1000) for values in normal_data(0))
    in_float64 = list(every_score(f.astype(np.float64), y.astype(np.float64), 4.0))
    for ours, exact in zip(every_score(kind(f), kind(y), 4.0), in_float64, strict=True):
        assert ours.dtype == kind(f).dtype
        assert np.asarray(ours) == pytest.approx(exact, rel=2e-4, abs=2e-4)
    shallow, _ = metrics.predictive_moments(kind(f))
    assert np.asarray(shallow) == pytest.approx(f.astype(np.float64).mean(0), abs=1e-4)


@laws
@given(sampled(), taus)
def test_replicates_are_scored_one_by_one(sampled, tau):
    f, y = sampled  # samples stand for replicates of the mean
    sigma = 1 + np.abs(f) / tau
    for score in (
        lambda mean, sigma: metrics.crps_gaussian(mean, sigma, y),
        lambda mean, sigma: metrics.pll_gaussian(mean, sigma, y),
        lambda mean, _: metrics.crps_optimum(mean, y),
        lambda mean, _: metrics.pll_optimum(mean, y),
    ):
        together = score(f, sigma)
        assert together.shape == f.shape[:2]
        assert (together == np.stack([score(*row) for row in zip(f, sigma, strict=True)])).all()


# An independent CRPS, brute force, quadrature


def test_crps_of_a_gaussian_is_that_of_scoringrules():
    rng = np.random.default_rng(1)
    mean, y, sigma = rng.normal(size=500), rng.normal(size=500) * 5, rng.gamma(1, size=500)
    theirs = scoringrules.crps_normal(y, mean, sigma)
    assert metrics.crps_gaussian(mean, sigma, y) == pytest.approx(theirs, rel=1e-12, abs=1e-14)


def test_crps_of_an_ensemble_is_that_of_scoringrules():
    f, y = normal_data(2, samples=13)
    for fair, estimator in ((False, "nrg"), (True, "fair")):
        theirs = scoringrules.crps_ensemble(y, f, m_axis=0, estimator=estimator).mean(-1)
        assert metrics.crps_ensemble(f, y, fair=fair) == pytest.approx(theirs, rel=1e-12, abs=1e-14)


def test_crps_of_a_mixture_is_that_of_scoringrules():
    f, y = normal_data(3, samples=13)
    theirs = scoringrules.crps_mixnorm(y, f, np.full_like(f, 0.5), m_axis=0).mean(-1)
    assert metrics.crps_mixture(f, y, tau=4.0) == pytest.approx(theirs, rel=1e-12, abs=1e-14)


@laws
@given(sampled(), taus)
def test_crps_of_a_mixture_is_its_double_sum(sampled, tau):
    f, y = sampled
    expected = np.zeros(y.shape)
    for at in np.ndindex(y.shape):
        own, truth = f[(slice(None), *at)], y[at]
        between = distance(own[:, None] - own[None, :], 2 / tau)
        expected[at] = distance(truth - own, 1 / tau).mean() - between.mean() / 2
    expected = expected.reshape(len(y), -1).mean(-1)
    assert metrics.crps_mixture(f, y, tau=tau) == pytest.approx(expected, rel=1e-10, abs=1e-12)


def distance(m, variance):
    """E|N(m, s²)| of Grimit et al. 2006, written down again."""
    s = math.sqrt(variance)
    return 2 * s * np.exp(-((m / s) ** 2) / 2) / math.sqrt(2 * math.pi) + m * scipy.special.erf(m / s / math.sqrt(2))


@pytest.mark.parametrize("tau", [0.3, 4.0, 50.0])
def test_crps_is_the_integral_of_the_squared_distance_of_distribution_functions(tau):
    f, y = np.array([-1.0, 0.2, 0.3, 2.5]), 0.7

    def integral(cdf):
        below, _ = scipy.integrate.quad(lambda x: cdf(x) ** 2, -60, y, points=[-3, -1, 0.25], limit=500)
        above, _ = scipy.integrate.quad(lambda x: (1 - cdf(x)) ** 2, y, 60, points=[1, 2.5, 6], limit=500)
        return below + above

    mixture = integral(lambda x: np.mean(scipy.special.ndtr((x - f) * math.sqrt(tau))))
    assert metrics.crps_mixture(f[:, None], np.array([y]), tau=tau) == pytest.approx([mixture], abs=1e-8)
    gaussian = integral(lambda x: scipy.special.ndtr((x - f.mean()) * math.sqrt(tau)))
    ours = metrics.crps_gaussian(np.array([f.mean()]), tau**-0.5, np.array([y]))
    assert ours == pytest.approx([gaussian], abs=1e-8)


def test_likelihoods_are_those_of_scipy():
    f, y = normal_data(4, samples=9, points=6, outputs=3)
    tau = 3.0
    noise = np.eye(3) / tau
    of_samples = [[scipy.stats.multivariate_normal.logpdf(y[i], g[i], noise) for i in range(6)] for g in f]
    assert metrics.gaussian_log_likelihood(f, y, tau=tau) == pytest.approx(np.array(of_samples), rel=1e-12)
    mixture = scipy.special.logsumexp(of_samples, axis=0) - math.log(9)
    assert metrics.pll_regression(f, y, tau=tau) == pytest.approx(mixture, rel=1e-12)
    for kind, covariance in (
        ("moment_full", lambda own: np.cov(own.T, ddof=0)),
        ("moment", lambda own: np.diag(own.var(0))),
    ):
        expected = [
            scipy.stats.multivariate_normal.logpdf(y[i], f[:, i].mean(0), covariance(f[:, i]) + noise) for i in range(6)
        ]
        assert metrics.pll_regression(f, y, tau=tau, kind=kind) == pytest.approx(expected, rel=1e-10)


def test_two_outputs_have_a_constant_of_their_own_number():
    """The published code has ½ ln τ/2π whatever the number of outputs."""
    f = y = np.zeros((1, 2))
    one = metrics.pll_regression(f, y[0], tau=5.0)
    assert metrics.pll_regression(f[:, None, :], y, tau=5.0) == pytest.approx([2 * one[0]])


def test_the_fair_score_of_few_samples_is_in_the_mean_that_of_their_source():
    """All samples of 2 and 3 from a distribution of four values, with replacement."""
    values, y = np.array([-1.0, 0.5, 0.6, 3.0]), np.array([0.9])
    source = metrics.crps_ensemble(values[:, None], y)[0]
    for samples in (2, 3):
        drawn = np.array(list(itertools.product(values, repeat=samples))).T
        truth = np.full(drawn.shape[1], y[0])
        assert metrics.crps_ensemble(drawn, truth, fair=True).mean() == pytest.approx(source, rel=1e-12)
        assert metrics.crps_ensemble(drawn, truth).mean() > source + 0.05


def test_no_result_depends_on_how_points_are_cut_into_blocks(monkeypatch):
    f, y = normal_data(5, samples=11, points=30)
    whole = metrics.crps_mixture(f, y, tau=2.0), metrics.crps_ensemble(f, y)
    monkeypatch.setattr(regression, "_BLOCK_ENTRIES", 40)
    for one, other in zip(whole, (metrics.crps_mixture(f, y, tau=2.0), metrics.crps_ensemble(f, y)), strict=True):
        assert one == pytest.approx(other, rel=1e-14)


# Edges


def test_a_mixture_without_noise_has_no_density_and_says_so():
    f, y = normal_data(6)
    for tau in (math.inf, 0.0, -1.0, math.nan):
        with pytest.raises(ValueError, match=f'tau is {tau}; expected a positive finite precision.*kind="moment"'):
            metrics.pll_regression(f, y, tau=tau)
    for tau in (0.0, -1.0, math.nan):
        with pytest.raises(ValueError, match=f"tau is {tau}; expected a positive precision"):
            metrics.crps_mixture(f, y, tau=tau)
    with pytest.raises(ValueError, match="f holds a single sample; the fair score needs at least two"):
        metrics.crps_ensemble(f[:1], y, fair=True)


@pytest.mark.parametrize("array", [np.asarray, torch.asarray])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_without_any_spread_the_density_is_infinite_on_the_truth_and_none_beside_it(array, dtype):
    f = array(np.full((3, 2), 0.1, dtype=dtype))  # three passes that agree, whose sum rounds
    y = array(np.array([0.1, 0.2], dtype=dtype))
    for kind in ("moment", "moment_full"):
        assert metrics.pll_regression(f, y, tau=math.inf, kind=kind).tolist() == [math.inf, -math.inf]
    assert metrics.predictive_moments(f)[1].tolist() == [0, 0]
    assert metrics.pll_gaussian(f[0], 0.0, y).tolist() == [math.inf, -math.inf]
    assert metrics.crps_gaussian(f[0], 0.0, y).tolist() == pytest.approx([0, 0.1])
    assert metrics.crps_ensemble(f, y).tolist() == pytest.approx([0, 0.1])


@pytest.mark.parametrize("array", [np.asarray, torch.asarray])
def test_one_output_that_is_surely_missed_outweighs_one_that_is_surely_hit(array):
    y = array(np.array([[0.0, 1.0], [0.0, 0.0], [0.0, 1.0]]))
    sigma = array(np.array([[0.0, 0.0], [0.0, 2.0], [0.0, 2.0]]))
    assert metrics.pll_gaussian(array(np.zeros((3, 2))), sigma, y).tolist() == [-math.inf, math.inf, math.inf]


def test_a_full_covariance_of_fewer_samples_than_outputs_is_a_density_on_their_plane():
    f = np.array([[[0.0, 0.0, 0.0]], [[2.0, 2.0, 0.0]]])
    for beside, expected in ((0.0, math.inf), (1e-3, -math.inf)):
        y = np.array([[1.5, 1.5, beside]])
        assert metrics.pll_regression(f, y, tau=math.inf, kind="moment_full") == [expected]
    assert math.isfinite(metrics.pll_regression(f, y, tau=1e12, kind="moment_full")[0])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_errors_far_beyond_the_spread_neither_warn_nor_lose_the_score(dtype):
    mean, y = np.zeros(2, dtype=dtype), np.array([1e30, -1e30], dtype=dtype)
    sigma = np.full(2, 1e-30, dtype=dtype)
    assert metrics.crps_gaussian(mean, sigma, y) == pytest.approx(np.full(2, 1e30), rel=1e-6)
    assert (metrics.pll_gaussian(mean, sigma, y) < -1e37).all()
    for array in (np.asarray, torch.asarray):
        f = array(np.array([[0.0, 3.0], [1.0, 1.0]], dtype=dtype))
        assert (metrics.pll_regression(f, array(np.array([1e4, 1e4], dtype=dtype)), tau=1.0) < -1e7).all()


def test_rmse_sums_over_outputs_and_mae_averages_over_them():
    mean, y = np.zeros((2, 2)), np.array([[3.0, 4.0], [0.0, 0.0]])
    assert metrics.rmse(mean, y) == pytest.approx(5 / math.sqrt(2))
    assert metrics.mae(mean, y) == pytest.approx(7 / 4)
    assert metrics.rmse(torch.zeros(1), torch.ones(1)) == 1


@pytest.mark.parametrize("estimate", [metrics.rmse, metrics.mae])
def test_samples_of_a_regression_are_scored_by_their_mean(estimate):
    f = np.array([[[0.0], [4.0]], [[2.0], [4.0]]])  # (T, n, Q)
    y = np.array([[1.0], [3.0]])
    assert estimate(f, y) == estimate(f.mean(0), y) == estimate(f[..., 0], y[:, 0])
    assert estimate(torch.from_numpy(f), y) == estimate(f, y)
    with pytest.raises(ValueError, match=r"mean has shape \(2,\) and y \(2, 1\)"):
        estimate(f.mean(0)[:, 0], y)  # would be broadcast to every pair of points


def test_the_pairs_of_a_mixture_are_never_all_held():
    import tracemalloc

    f, y = normal_data(7, samples=200, points=200, outputs=1)
    metrics.crps_mixture(f[:2], y, tau=4.0)
    tracemalloc.start()
    metrics.crps_mixture(f, y, tau=4.0)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 10 * f.nbytes  # all pairs at once would be 200 of it
