"""The noise of batch statistics follows its law where values are independent Gaussians, and tells where not."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from bnuq.metrics.noise import (
    chi2_p_values,
    effective_samples_of_average,
    explained_log_variance,
    fitted_freedom,
    log_slope,
    rejected_share,
    scaled_to_freedom,
    share_left_by_averaging,
    statistics_noise,
    straight_line,
    unbiased_scale,
)

DRAWS, CHANNELS = 400, 40


def moments(n: int, *, seed: int = 0, draws: int = DRAWS):
    """Mean and biased variance of n Gaussian values, by draw and channel."""
    values = np.random.default_rng(seed).normal(3.0, 2.0, (draws, CHANNELS, n))
    return values.mean(-1), values.var(-1)


def noise_of(n: int, **options):
    return statistics_noise(
        *moments(n, **options), population_mean=np.full(CHANNELS, 3.0), population_var=np.full(CHANNELS, 4.0)
    )


@pytest.mark.parametrize("n", [16, 64])
def test_independent_gaussian_values_have_the_deviations_of_the_law(n):
    noise = noise_of(n)
    mean = math.sqrt(n / 2) * math.exp(math.lgamma((n - 2) / 2) - math.lgamma((n - 1) / 2))
    assert noise.sigma_v == pytest.approx(1 / math.sqrt(n), rel=0.03)
    assert noise.sigma_u == pytest.approx(math.sqrt(n / (n - 3) - mean**2), rel=0.05)
    assert noise.output_variance == pytest.approx(1 / (n - 3), rel=0.05)


def test_u_and_v_do_not_see_the_unit_of_a_channel():
    mean, var = moments(16)
    base = statistics_noise(mean, var, population_mean=np.full(CHANNELS, 3.0), population_var=np.full(CHANNELS, 4.0))
    moved = statistics_noise(
        10 * mean - 7, 100 * var, population_mean=np.full(CHANNELS, 23.0), population_var=np.full(CHANNELS, 400.0)
    )
    np.testing.assert_allclose(moved.u, base.u)
    np.testing.assert_allclose(moved.v, base.v, atol=1e-12)


def test_n_times_the_biased_variance_is_chi_square_and_n_minus_1_times_it_is_not():
    n = 8
    spread = noise_of(n).spread
    assert rejected_share(chi2_p_values(n * spread, freedom=n - 1)) == 0
    assert rejected_share(chi2_p_values((n - 1) * spread, freedom=n - 1)) > 0.9  # as the paper's estimate writes it


def test_dependent_values_are_rejected_and_not_under_the_degrees_that_fit():
    independent, copies = 20, 10
    spread = noise_of(independent).spread
    nominal = independent * copies
    assert rejected_share(chi2_p_values(nominal * spread, freedom=nominal - 1)) == 1
    freedom = fitted_freedom(spread)
    assert np.median(freedom) == pytest.approx(independent - 1, rel=0.1)
    assert rejected_share(chi2_p_values(freedom * spread / spread.mean(0), freedom=freedom)) == 0


def test_an_error_of_the_population_that_all_draws_share_does_not_pass_for_another_law():
    n = 512
    spread = noise_of(n).spread * np.random.default_rng(1).normal(1, np.sqrt(2 / 10_000), CHANNELS)
    assert rejected_share(chi2_p_values(n * spread, freedom=n - 1)) > 0.2
    assert rejected_share(chi2_p_values(scaled_to_freedom(spread, freedom=n - 1), freedom=n - 1)) == 0
    other = scaled_to_freedom(noise_of(n // 4).spread, freedom=n - 1)  # a quarter of the values there seem to be
    assert rejected_share(chi2_p_values(other, freedom=n - 1)) == 1


def test_p_values_are_those_of_an_exact_kolmogorov_smirnov_test():
    statistic = np.random.default_rng(1).chisquare(7, (50, 5)) * [1, 1, 1.2, 0.5, 3]
    expected = [stats.ks_1samp(one, stats.chi2(7).cdf, method="exact").pvalue for one in statistic.T]
    np.testing.assert_allclose(chi2_p_values(statistic, freedom=7), expected, rtol=1e-9)


def test_false_discoveries_are_held_as_benjamini_and_hochberg_do():
    p = np.array([0.001, 0.008, 0.039, 0.041, 0.042, 0.06, 0.074, 0.205, 0.212, 0.216])  # limits: .005 i
    assert rejected_share(p) == 0.2
    assert rejected_share(np.array([0.04])) == 1 and rejected_share(np.array([0.06])) == 0
    assert math.isnan(rejected_share(np.array([])))


def test_a_variance_as_one_over_b_has_slope_minus_one_without_error():
    size = np.array([8, 16, 32, 64])
    slope = log_slope(size, 3.0 / size)
    assert slope is not None
    assert slope.value == pytest.approx(-1) and slope.mc_se == pytest.approx(0, abs=1e-9)


def test_the_interval_of_a_slope_is_students_with_two_degrees_less_than_points():
    x, y = np.array([0.0, 1, 2, 3, 4]), np.array([0.1, 0.9, 2.2, 2.8, 4.1])
    line, expected = straight_line(x, y), stats.linregress(x, y)
    assert line is not None
    assert (line.value, line.mc_se) == pytest.approx((expected.slope, expected.stderr))
    assert line.high == pytest.approx(expected.slope + stats.t(3).ppf(0.975) * expected.stderr)
    assert line.low == pytest.approx(expected.slope - stats.t(3).ppf(0.975) * expected.stderr)


@pytest.mark.parametrize("values", [[1.0, 0.5], [1.0, 0.5, 0.0], [1.0, 0.5, math.nan]])
def test_no_slope_is_told_of_too_little(values):
    assert log_slope(np.arange(1, len(values) + 1), np.array(values)) is None


def test_no_slope_is_told_of_one_size():
    assert straight_line(np.ones(4), np.arange(4.0)) is None


def test_an_average_is_worth_what_a_simulated_one_is():
    momentum, batch = 0.25, 4
    noise = np.random.default_rng(0).normal(size=(200, 4000)) / math.sqrt(batch)
    running = np.zeros(4000)
    for one in noise:
        running = (1 - momentum) * running + momentum * one
    assert 1 / running.var() == pytest.approx(effective_samples_of_average(momentum, batch_size=batch), rel=0.08)
    assert effective_samples_of_average(0.1, batch_size=128) == pytest.approx(2432)


def test_what_averaging_leaves_falls_to_the_average_alone_where_the_population_is_everything():
    known = {"momentum": 0.1, "train_batch_size": 128}
    whole = share_left_by_averaging(**known, points=5000, population=5000, train_size=5000)
    assert whole == pytest.approx(1 / effective_samples_of_average(0.1, batch_size=128))
    part = share_left_by_averaging(**known, points=1000, population=5000, train_size=5000)
    assert part - whole == pytest.approx((1 - 0.2) / 1000)
    sample = share_left_by_averaging(**known, points=5000, population=5000, train_size=50_000)
    assert sample - whole == pytest.approx(0.9 / 5000)
    assert math.isnan(
        share_left_by_averaging(momentum=0.0, train_batch_size=128, points=10, population=10, train_size=10)
    )


def test_the_log_variance_of_independent_values_is_explained_by_their_count():
    _, var = moments(12, draws=4000)
    assert np.log(var).var(0, ddof=1).mean() == pytest.approx(explained_log_variance(12), rel=0.03)
    assert explained_log_variance(math.inf) == 0 and math.isnan(explained_log_variance(1.0))


def test_biased_and_unbiased_differ_by_one_percent_at_fifty_values():
    assert unbiased_scale(50) == pytest.approx(1.01, abs=2e-4)
    assert unbiased_scale(2) == pytest.approx(math.sqrt(2))
