"""The ELBO's formulas: KL by quadrature and by torch, counts by simulation and enumeration, a toy known exactly."""

import itertools
import math

import numpy as np
import pytest
import scipy.integrate
import scipy.special
import scipy.stats
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from bnuq import metrics

laws = settings(max_examples=40, deadline=None)
means, variances, shapes = st.floats(-5, 5), st.floats(0.01, 20), st.floats(0.5, 200)
counts = hnp.arrays(np.float64, 6, elements=st.floats(1.5, 1e6))
PRIORS = {
    "unit": metrics.Prior(),
    "gaussian": metrics.Prior("gaussian", mean=(0.5, 2.0), deviation=(1.0, 0.5)),
    "weight_decay": metrics.Prior("weight_decay", precision=3.0),
    "flat": metrics.Prior("flat"),
    "gamma": metrics.Prior("gamma"),
}


def kl(prior, counts, *, mean=None, sd=None, count_sd=None, **options):
    """KL over as many units as counts, of ordinary statistics unless told."""
    units = np.arange(counts.size)
    return metrics.kl_of_statistics(
        prior, mean=np.sin(units) if mean is None else mean, sd=0.5 + units / 3 if sd is None else sd,
        count_mean=counts, count_sd=counts if count_sd is None else count_sd, **options,
    )  # fmt: skip


def double(value):
    return torch.tensor(value, dtype=torch.float64)


# Divergences


@laws
@given(means, variances, means, variances)
def test_kl_normal_is_that_of_torch_and_never_negative(mean_q, var_q, mean_p, var_p):
    ours = float(metrics.kl_normal(mean_q, var_q, mean_p, var_p))
    q, p = (torch.distributions.Normal(double(m), double(v**0.5)) for m, v in ((mean_q, var_q), (mean_p, var_p)))
    assert ours == pytest.approx(float(torch.distributions.kl_divergence(q, p)), rel=1e-9, abs=1e-12)
    assert ours >= -1e-15
    assert float(metrics.kl_normal(mean_q, var_q, mean_q, var_q)) == 0


@laws
@given(shapes, variances, shapes, variances)
def test_kl_gamma_is_that_of_torch_and_never_negative(shape_q, scale_q, shape_p, scale_p):
    ours = float(metrics.kl_gamma(shape_q, scale_q, shape_p, scale_p))
    q, p = (torch.distributions.Gamma(double(k), double(1 / s)) for k, s in ((shape_q, scale_q), (shape_p, scale_p)))
    assert ours == pytest.approx(float(torch.distributions.kl_divergence(q, p)), rel=1e-9, abs=1e-10)
    assert ours >= -1e-12
    assert float(metrics.kl_gamma(shape_q, scale_q, shape_q, scale_q)) == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize(
    ("ours", "q", "p"),
    [
        (metrics.kl_normal(0.3, 0.5, -1.0, 2.0), scipy.stats.norm(0.3, 0.5**0.5), scipy.stats.norm(-1, 2**0.5)),
        (metrics.kl_normal(2.0, 4.0, 2.0, 0.7), scipy.stats.norm(2, 2), scipy.stats.norm(2, 0.7**0.5)),
        (metrics.kl_gamma(3.5, 0.4, 1.5, 2.0), scipy.stats.gamma(3.5, scale=0.4), scipy.stats.gamma(1.5, scale=2)),
        (metrics.kl_gamma(9.0, 0.2, 0.5, 1.0), scipy.stats.gamma(9, scale=0.2), scipy.stats.gamma(0.5)),
    ],
)
def test_divergences_are_their_integrals(ours, q, p):
    low, high = q.ppf([1e-13, 1 - 1e-13])
    integral, _ = scipy.integrate.quad(
        lambda x: q.pdf(x) * (q.logpdf(x) - p.logpdf(x)), low, high, points=[q.mean()], limit=200, epsabs=1e-12
    )
    assert float(ours) == pytest.approx(integral, rel=1e-8)


def test_divergences_broadcast_and_a_point_is_infinitely_far():
    found = metrics.kl_normal(np.zeros((2, 1)), torch.tensor([1.0, 0.0, 2.0]), 0.0, 1.0)
    assert found.shape == (2, 3) and found.dtype == np.float64
    assert np.isinf(found).tolist() == [[False, True, False]] * 2
    assert metrics.kl_gamma(np.array([2.0, math.inf]), 1.0, 2.0, 1.0).tolist() == [0, math.inf]


# Of all statistics


@laws
@given(counts)
def test_unit_information_costs_the_logarithm_of_the_count(n):
    assert kl(PRIORS["unit"], n) == pytest.approx(np.sum(1 / n - 1 + np.log(n)), rel=1e-10)
    assert kl(PRIORS["unit"], np.ones(4)) == 0


@laws
@given(counts, counts, st.floats(1.5, 9))
def test_unit_information_is_the_divergence_from_one_value_whatever_scale_and_kurtosis(n, n_sd, kurtosis):
    sd = np.array([1e-6, 0.1, 1.0, 2.0, 30.0, 1e5])
    spread = (kurtosis - 1) * sd**2 / 4
    apart = metrics.kl_normal(sd, sd**2 / n, sd, sd**2).sum() + metrics.kl_normal(sd, spread / n_sd, sd, spread).sum()
    assert kl(PRIORS["unit"], n, sd=sd, count_sd=n_sd, kurtosis=kurtosis) == pytest.approx(apart, rel=1e-9, abs=1e-12)


@laws
@given(st.sampled_from(list(PRIORS)), counts, st.permutations(range(6)))
def test_units_add_up_and_dead_ones_count_for_nothing(kind, n, order):
    prior, mean, sd = PRIORS[kind], np.sin(np.arange(6.0)), np.linspace(0.3, 3, 6)
    whole = kl(prior, n, mean=mean, sd=sd)
    assert kl(prior, n[order], mean=mean[order], sd=sd[order]) == pytest.approx(whole, rel=1e-12, abs=1e-9)
    parts = [kl(prior, n[half], mean=mean[half], sd=sd[half]) for half in (slice(0, 2), slice(2, 6))]
    assert whole == pytest.approx(sum(parts), rel=1e-12, abs=1e-9)
    dead = kl(prior, np.r_[n, 1.0, math.inf], mean=np.r_[mean, 7.0, 0.0], sd=np.r_[sd, 0.0, 0.0])
    assert dead == pytest.approx(whole, rel=1e-12)
    assert kl(prior, n[:0], mean=mean[:0], sd=sd[:0]) == 0


@laws
@given(counts, counts, st.floats(1.5, 9))
def test_gaussian_prior_is_the_sum_of_torchs_divergences(n, n_sd, kurtosis):
    mean, sd = np.sin(np.arange(6.0)), np.linspace(0.3, 3, 6)
    normal = torch.distributions.Normal
    q_mean = normal(torch.tensor(mean), torch.tensor(sd / np.sqrt(n)))
    q_sd = normal(torch.tensor(sd), torch.tensor(sd * np.sqrt((kurtosis - 1) / (4 * n_sd))))
    expected = sum(
        float(torch.distributions.kl_divergence(q, normal(double(m), double(v**0.5))).sum())
        for q, (m, v) in ((q_mean, (0.5, 2.0)), (q_sd, (1.0, 0.5)))
    )
    found = kl(PRIORS["gaussian"], n, mean=mean, sd=sd, count_sd=n_sd, kurtosis=kurtosis)
    assert found == pytest.approx(expected, rel=1e-9)


@laws
@given(counts, st.floats(0.05, 0.9), st.floats(1e-3, 1e3))
def test_improper_priors_differ_over_counts_as_a_very_wide_gaussian_does(n, less, precision):
    wide = (0.0, 1e12)
    pairs = [
        (PRIORS["flat"], metrics.Prior("gaussian", mean=wide, deviation=wide)),
        (
            metrics.Prior("weight_decay", precision=precision),
            metrics.Prior("gaussian", mean=wide, deviation=(0.0, 1 / (2 * precision))),
        ),
    ]
    for improper, proper in pairs:
        difference = kl(improper, n) - kl(improper, less * n)
        assert difference == pytest.approx(kl(proper, n) - kl(proper, less * n), rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("kind", PRIORS)
def test_every_prior_asks_half_a_logarithm_a_parameter(kind):
    """P/2 ln b + const for large b: what the prior is shows in the terms of 1/b alone."""
    steps = [kl(PRIORS[kind], np.full(6, 2.0**k)) for k in (16, 17, 18)]
    assert np.diff(steps) == pytest.approx([6 * math.log(2)] * 2, abs=1e-3)
    assert kl(PRIORS[kind], np.full(6, math.inf)) == math.inf


def test_gamma_prior_is_the_divergence_of_the_distribution_of_the_variance():
    n, sd = np.array([3.0, 17.5, 400.0]), np.array([0.3, 1.0, 5.0])
    of_variance = metrics.kl_gamma((n - 1) / 2, 2 * sd**2 / n, 0.5, sd**2).sum()
    of_mean = metrics.kl_normal(0.0, sd**2 / n, 0.0, sd**2 / 2).sum()
    assert kl(PRIORS["gamma"], n, sd=sd, mean=sd) == pytest.approx(of_variance + of_mean)
    assert kl(PRIORS["gamma"], np.full(3, 2.0)) == pytest.approx(0, abs=1e-12)
    with pytest.raises(ValueError, match="count_sd is 1 for a unit; expected more than 1"):
        kl(PRIORS["gamma"], np.array([8.0, 1.0]))
    assert kl(PRIORS["gamma"], np.array([8.0, 1.0]), sd=np.array([1.0, 0.0])) > 0  # a dead one needs none


def test_a_prior_knows_what_it_takes():
    for kind, parameters, message in [
        ("gaussian", {}, 'mean of a "gaussian" prior is None; expected a value'),
        ("gaussian", {"mean": (0.0, 1.0)}, 'deviation of a "gaussian" prior is None'),
        ("gaussian", {"mean": (0.0, 0.0), "deviation": (0.0, 1.0)}, 'variance of mean of a "gaussian" prior is 0.0'),
        ("weight_decay", {}, 'precision of a "weight_decay" prior is None'),
        ("weight_decay", {"precision": -1.0}, 'precision of a "weight_decay" prior is -1.0; expected a positive'),
        ("weight_decay", {"precision": math.inf}, "expected a positive finite number"),
        ("unit", {"precision": 1.0}, 'precision of a "unit" prior is 1.0; it takes none'),
    ]:
        with pytest.raises(ValueError, match=message):
            metrics.Prior(kind, **parameters)


# Effective counts


def counted(values, *, batch_size, population=math.inf):
    """Effective counts from values (draw, value, channel)."""
    return metrics.effective_counts(values.mean(1), values.var(1), batch_size=batch_size, population=population)


@pytest.mark.parametrize("b", [2, 3, 8, 64])
def test_independent_gaussian_values_count_once_however_few(b):
    found = counted(np.random.default_rng(b).normal(3, 0.2, size=(200, b, 200)), batch_size=b)
    assert (found.mean, found.sd) == (pytest.approx(1, abs=0.03), pytest.approx(1, abs=0.03))


def test_few_draws_overstate_the_counts_by_as_much_as_is_told():
    rng = np.random.default_rng(0)
    found = []
    for _ in range(1000):
        counts = counted(rng.normal(size=(16, 8, 4)), batch_size=8)
        found.append((counts.mean, counts.sd))
    assert np.mean(found, axis=0) == pytest.approx([1 + 2 / 60] * 2, abs=0.015)


@pytest.mark.parametrize("b", [8, 32])
def test_correlated_positions_count_for_less_and_for_different_numbers(b):
    """Positions of an item correlate by r: Var of the item's mean is r + (1−r)/z, half that of its squares' r² + …"""
    rng, r, z = np.random.default_rng(1), 0.5, 16
    common, own = rng.normal(size=(150, b, 1, 60)), rng.normal(size=(150, b, z, 60))
    found = counted((math.sqrt(r) * common + math.sqrt(1 - r) * own).reshape(150, b * z, 60), batch_size=b)
    assert found.mean == pytest.approx(1 / (r + (1 - r) / z), rel=0.05)
    assert found.sd == pytest.approx(1 / (r**2 + (1 - r**2) / z), rel=0.05 + 1.2 / b)


def test_positions_that_repeat_their_item_count_as_one():
    found = counted(np.repeat(np.random.default_rng(2).normal(size=(200, 5, 200)), 9, axis=1), batch_size=5)
    assert (found.mean, found.sd) == (pytest.approx(1, abs=0.03), pytest.approx(1, abs=0.03))


@pytest.mark.parametrize("positions", [1, 3])
def test_the_mean_of_every_mini_batch_without_replacement_counts_the_same_whatever_its_size(positions):
    """All C(9, b) mini-batches: σ² over the variance of items' means, for every b, but for the divisor T − 1."""
    population = np.random.default_rng(3).normal(size=(9, positions, 5)) + np.linspace(-1, 1, positions)[:, None]
    share = population.mean(1).var(0) / population.reshape(-1, 5).var(0)
    for b in range(1, 9):
        chosen = np.array(list(itertools.combinations(range(9), b)))
        values = population[chosen].reshape(len(chosen), b * positions, 5)
        enlarged = len(chosen) / (len(chosen) - 1)  # σ² has it in one of its two terms, and Var M in its whole
        found = counted(values, batch_size=b, population=9)
        assert found.mean == pytest.approx(1 / share.mean(), rel=enlarged - 1 + 1e-9)


def test_the_deviation_counts_the_same_with_and_without_replacement():
    rng = np.random.default_rng(4)
    population = rng.normal(size=(200, 100))
    expected = 2 / (((population - population.mean(0)) ** 4).mean(0) / population.var(0) ** 2 - 1).mean()
    for b in (20, 100, 190):
        chosen = np.stack([rng.permutation(200)[:b] for _ in range(300)])
        assert counted(population[chosen], batch_size=b, population=200).sd == pytest.approx(expected, rel=0.04)
    replaced = population[rng.integers(0, 200, size=(300, 100))]
    assert counted(replaced, batch_size=100).sd == pytest.approx(expected, rel=0.04)


def test_heavy_tails_count_for_less_in_the_deviation_alone():
    """An exponential's kurtosis is 9: 2/(κ − 1) = 1/4 in the limit; t with 2.5 degrees has none, and a count still."""
    rng = np.random.default_rng(5)
    exponential = counted(rng.exponential(size=(300, 256, 50)), batch_size=256)
    assert (exponential.mean, exponential.sd) == (pytest.approx(1, abs=0.03), pytest.approx(1 / 4, abs=0.02))
    wild = counted(rng.standard_t(2.5, size=(300, 64, 50)), batch_size=64)
    assert wild.mean == pytest.approx(1, abs=0.1) and 0.05 < wild.sd < 0.3


@laws
@given(st.integers(0, 2**32), st.floats(1e-3, 1e3), st.floats(-100, 100))
def test_counts_know_neither_unit_nor_origin_of_a_channel(seed, scale, shift):
    values = np.random.default_rng(seed).normal(size=(8, 6, 3))
    found, other = counted(values, batch_size=6, population=50), counted(scale * values, batch_size=6, population=50)
    assert (other.mean, other.sd) == pytest.approx((found.mean, found.sd), rel=1e-6)
    moved = metrics.effective_counts(
        torch.from_numpy(values.mean(1) + shift), torch.from_numpy(values.var(1)), batch_size=6, population=50
    )
    assert (moved.mean, moved.sd) == pytest.approx((found.mean, found.sd), rel=1e-6)


def test_counts_leave_out_dead_channels_and_say_where_they_know_nothing():
    values = np.random.default_rng(6).normal(size=(8, 6, 3))
    found = counted(values, batch_size=6, population=50)
    assert counted(np.concatenate([values, np.full((8, 6, 2), 7.0)], axis=2), batch_size=6, population=50) == found
    values[0, :, 2] = 7.0  # constant in one draw: its mean still counts, its logarithm has none
    assert counted(values, batch_size=6, population=50).sd == counted(values[..., :2], batch_size=6, population=50).sd
    for nothing in (
        counted(values[:1], batch_size=6, population=50),
        counted(values, batch_size=50, population=50),
        counted(np.full((8, 6, 3), 2.0), batch_size=6, population=50),
    ):
        assert math.isnan(nothing.mean) and math.isnan(nothing.sd)
    same = counted(np.repeat(values[1:2], 8, axis=0), batch_size=6, population=50)
    assert (same.mean, same.sd) == (math.inf, math.inf)


@laws
@given(st.floats(0.1, 1e9))
def test_the_count_of_the_deviation_is_the_root_of_trigamma(nu):
    """Two draws of S² = exp(±√(v/2)), whose logarithms have variance v = ψ′(ν/2)."""
    apart = math.sqrt(float(scipy.special.polygamma(1, nu / 2)) / 2)
    var = np.exp(np.array([[apart], [-apart]]))
    found = metrics.effective_counts(np.zeros((2, 1)), var, batch_size=1, population=math.inf)
    assert found.sd - 1 == pytest.approx(nu, rel=1e-6, abs=1e-9)


# The likelihood over the batch size

SIZES = np.array([32, 64, 128, 256, 512])


@laws
@given(
    c=st.floats(-10, 10),
    intercept=st.floats(-5, 0),
    errors=hnp.arrays(np.float64, 5, elements=st.floats(1e-3, 1)),
    population=st.sampled_from([600, 50000, math.inf]),
)
def test_a_line_in_the_noise_of_mini_batches_is_recovered_whatever_the_errors(c, intercept, errors, population):
    line = intercept - c * metrics.finite_population_factor(SIZES, population=population) / SIZES
    for error in (errors, np.where(SIZES == 64, 0.0, errors), np.full(5, math.nan)):
        found = metrics.likelihood_slope(SIZES, line, error, population=population)
        assert (found.c, found.intercept) == (pytest.approx(c, abs=1e-6), pytest.approx(intercept, abs=1e-6))


def test_the_line_and_its_error_are_those_of_weighted_least_squares():
    rng = np.random.default_rng(0)
    y, error = rng.normal(size=5), rng.uniform(0.1, 1, size=5)
    found = metrics.likelihood_slope(SIZES, y, error, population=1000)
    x = (1000 - SIZES) / 999 / SIZES
    (slope, intercept), covariance = np.polyfit(x, y, 1, w=1 / error, cov="unscaled")
    assert (found.c, found.intercept) == pytest.approx((-slope, intercept))
    assert found.se == pytest.approx(math.sqrt(covariance[0, 0]))
    sets = y + rng.normal(size=(3, 5))
    slopes = np.polyfit(x, sets.T, 1, w=1 / error)[0]
    shared = metrics.likelihood_slope(SIZES, y, error, population=1000, replicates=sets)
    assert shared.se == pytest.approx(scipy.stats.sem(slopes))
    same = metrics.likelihood_slope(
        torch.from_numpy(SIZES), torch.from_numpy(y), torch.from_numpy(error), population=1000
    )
    assert same == found


def test_sizes_that_share_their_draws_need_the_draw_sets_for_an_error():
    """A level that all sizes share makes their errors large and moves no slope; the draw sets know."""
    rng = np.random.default_rng(1)
    of_errors, of_sets, slopes = [], [], []
    for _ in range(400):
        sets = -2 / SIZES + 0.1 * rng.normal(size=(8, 1)) + 0.002 * rng.normal(size=(8, 5))
        error = sets.std(0, ddof=1) / math.sqrt(8)
        mean = sets.mean(0)
        alone = metrics.likelihood_slope(SIZES, mean, error, population=math.inf)
        shared = metrics.likelihood_slope(SIZES, mean, error, population=math.inf, replicates=sets)
        assert shared.c == alone.c
        of_errors.append(alone.se)
        of_sets.append(shared.se)
        slopes.append(shared.c)
    spread = float(np.std(slopes))
    assert np.mean(slopes) == pytest.approx(2, abs=4 * spread / 20)
    assert np.sqrt(np.mean(np.square(of_sets))) == pytest.approx(spread, rel=0.15)
    assert np.mean(of_errors) > 10 * spread


def test_fewer_than_two_sizes_have_no_slope_and_one_draw_set_no_error():
    y, error = np.array([-1.0, -0.5]), np.array([0.1, 0.1])
    for sizes in (np.array([64, 64]), np.array([64])):
        n = sizes.size
        found = metrics.likelihood_slope(sizes, y[:n], error[:n], population=100)
        assert np.isnan([found.c, found.se, found.intercept]).all()
    one = metrics.likelihood_slope(SIZES[:2], y, error, population=100, replicates=y[None, :])
    assert math.isnan(one.se) and one.c > 0
    assert math.isnan(metrics.likelihood_slope(SIZES[:2], y, error * math.nan, population=100).se)
    infinite = metrics.likelihood_slope(SIZES[:2], np.array([-math.inf, -1.0]), error, population=100)
    assert not math.isfinite(infinite.c)


# Where the ELBO is largest


def test_on_a_quadratic_likelihood_the_prediction_is_the_maximum():
    """ln p = −½ Σ (h (μ−m)² + g (σ−s)²): E_q ln p is a line in 1/b, and b* what a fine grid of b finds."""
    sd, density = np.array([0.5, 1.0, 2.0]), np.array([1.0, 4.0, 2.5])
    h, g = np.array([0.3, 0.1, 0.05]), np.array([0.2, 0.05, 0.1])
    for train_size in (300, 3000, 30000):

        def expected(b):
            return -np.sum((h * sd**2 + g * sd**2 / 2) / (2 * density * b))

        def elbo(b, train_size=train_size, expected=expected):
            return train_size * expected(b) - kl(PRIORS["unit"], density * b, sd=sd)

        line = metrics.likelihood_slope(SIZES, np.array([expected(b) for b in SIZES]), np.zeros(5), population=math.inf)
        predicted = metrics.predicted_batch_size(
            line.c, train_size=train_size, parameters=6, inverse_density=float(np.mean(1 / density))
        )
        grid = predicted * np.geomspace(0.1, 8, 401)
        assert predicted == pytest.approx(grid[np.argmax([elbo(b) for b in grid])], rel=0.011)  # a step of the grid


def normalised_toy(b):
    """E ln p an example, exactly: one unit, y = ξ + N(0, 1/τ) and f = (ξ + V)U over b Gaussian values, τ = 4.

    V ∼ N(0, 1/b), U ∼ √b χ⁻¹ with b − 1 degrees, E ξ² = 1, so that E (y − f)² = 1/τ + 1 − 2 E U + (1 + 1/b) E U².
    """
    of_u = math.sqrt(b / 2) * math.exp(scipy.special.gammaln((b - 2) / 2) - scipy.special.gammaln((b - 1) / 2))
    return -0.5 * math.log(2 * math.pi / 4) - 2 * (1 / 4 + 1 - 2 * of_u + (1 + 1 / b) * b / (b - 3))


def test_on_a_normalised_unit_the_prediction_is_near_the_maximum_and_grows_linearly_with_the_training_set():
    found = {}
    for train_size in (30, 100, 300, 1000):
        near = np.array([0.5, 0.7, 1.0, 1.5, 2.0, 3.0]) * 3 * train_size  # c is 3/4 τ
        likelihood = np.array([normalised_toy(b) for b in near])
        line = metrics.likelihood_slope(near, likelihood, np.zeros(6), population=math.inf)
        predicted = metrics.predicted_batch_size(line.c, train_size=train_size, parameters=2, inverse_density=1.0)
        grid = np.arange(4, 8 * train_size)
        best = int(grid[np.argmax([train_size * normalised_toy(b) - (1 / b - 1 + math.log(b)) for b in grid])])
        assert line.c == pytest.approx(3, rel=8 / near[0])
        assert abs(predicted - best) < 4  # of order 1, while b* grows to 3,000
        found[train_size] = predicted
    assert np.diff(list(found.values())) / np.diff(list(found)) == pytest.approx([3, 3, 3], abs=0.05)


def test_where_noise_costs_nothing_there_is_no_prediction():
    for c, parameters in ((0.0, 6), (-1.0, 6), (math.nan, 6), (1.0, 0)):
        predicted = metrics.predicted_batch_size(c, train_size=100, parameters=parameters, inverse_density=1.0)
        assert math.isnan(predicted)
