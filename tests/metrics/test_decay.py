"""The decay over the batch size: slopes that are known, what drawing without replacement takes, and coverage."""

import itertools
import math

import numpy as np
import pytest
import scipy.stats
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bnuq import metrics

laws = settings(max_examples=30, deadline=None)
SIZES = np.array([32, 64, 128, 256, 512])


@laws
@given(
    c=st.floats(1e-6, 1e3),
    slope=st.floats(-3, 3),
    population=st.sampled_from([513, 600, 2000, 50000, math.inf]),
    sets=st.integers(2, 6),
)
def test_a_power_of_the_batch_size_is_recovered_exactly(c, slope, population, sets):
    curve = c * SIZES**slope * metrics.finite_population_factor(SIZES, population=population)
    found = metrics.log_log_slope(SIZES, np.tile(curve, (sets, 1)), population=population)
    assert found.value == pytest.approx(slope, abs=1e-10)
    assert (found.low, found.high) == (pytest.approx(slope, abs=1e-9), pytest.approx(slope, abs=1e-9))
    assert found.of_sets == pytest.approx(np.full(sets, slope), abs=1e-10)
    assert found.residual == pytest.approx(0, abs=1e-10)


@laws
@given(st.integers(0, 2**32), st.floats(1e-3, 1e3), st.permutations(range(5)), st.integers(2, 5))
def test_neither_the_unit_nor_the_order_of_sizes_and_sets_matters(seed, scale, order, sets):
    values = np.exp(np.random.default_rng(seed).normal(size=(sets, 5)))
    found = metrics.log_log_slope(SIZES, values, population=1000)
    other = metrics.log_log_slope(SIZES[order], scale * values[::-1][:, order], population=1000)
    assert (other.value, other.low, other.high, other.residual) == pytest.approx(
        (found.value, found.low, found.high, found.residual), abs=1e-9
    )
    assert other.of_sets[::-1] == pytest.approx(found.of_sets, abs=1e-9)
    assert found.low <= found.value <= found.high
    as_torch = metrics.log_log_slope(torch.from_numpy(SIZES), torch.from_numpy(values), population=1000)
    assert as_torch.value == pytest.approx(found.value, abs=1e-12)


def test_slopes_residual_and_interval_are_those_of_numpy_and_scipy():
    values = np.exp(np.random.default_rng(3).normal(size=(4, 5)))
    found = metrics.log_log_slope(SIZES, values, population=math.inf)
    slopes, _ = np.polyfit(np.log(SIZES), np.log(values).T, 1)
    assert found.of_sets == pytest.approx(slopes)
    slope, intercept = np.polyfit(np.log(SIZES), np.log(values.mean(0)), 1)
    assert found.value == pytest.approx(slope)
    assert found.residual == pytest.approx(np.abs(np.log(values.mean(0)) - intercept - slope * np.log(SIZES)).max())
    reach = scipy.stats.t.ppf(0.975, 3) * scipy.stats.sem(found.of_sets)
    assert (found.low, found.high) == pytest.approx((found.value - reach, found.value + reach))


def test_the_slope_of_the_mean_is_less_biased_than_the_mean_of_slopes():
    """Sets whose relative noise grows with the batch size: the logarithm is too low, and most so at the large end."""
    rng = np.random.default_rng(0)
    shape = 1.5 * SIZES[0] / SIZES + 0.5  # of Gamma noise with mean 1
    of_mean, of_sets = [], []
    for _ in range(800):
        found = metrics.log_log_slope(SIZES, rng.gamma(shape, 1 / shape, size=(8, 5)) / SIZES, population=math.inf)
        of_mean.append(found.value)
        of_sets.append(found.of_sets.mean())
    assert abs(np.mean(of_mean) + 1) < 0.05 < 0.2 < abs(np.mean(of_sets) + 1)


def test_the_interval_covers_the_truth_as_often_as_it_says():
    rng = np.random.default_rng(1)
    trials, covered = 1200, 0
    for _ in range(trials):
        # Sizes share their draws: a level of the whole set, and some noise of each size.
        noise = np.exp(0.1 * rng.normal(size=(5, 1)) + 0.05 * rng.normal(size=(5, 5)))
        found = metrics.log_log_slope(SIZES, noise / SIZES, population=math.inf)
        covered += found.low <= -1 <= found.high
    assert 0.93 < covered / trials < 0.97  # 3 standard errors of 0.006


def test_a_curve_that_is_no_line_shows_its_residual():
    bent = np.exp(-0.2 * np.log(SIZES / 128) ** 2)[None, :] / SIZES
    assert metrics.log_log_slope(SIZES, bent, population=math.inf).residual == pytest.approx(0.2 * 2 * math.log(2) ** 2)


def test_sizes_without_a_value_are_left_out():
    curve = np.stack([1 / SIZES, 2 / SIZES])
    for missing in (0.0, -1e-9, math.nan, math.inf):
        values = curve.copy()
        values[1, 2] = missing
        found = metrics.log_log_slope(SIZES, values, population=math.inf)
        assert found.value == pytest.approx(-1) and found.of_sets == pytest.approx([-1, -1])
    # All of the population in one mini-batch leaves no noise; rounding may leave some.
    values = np.array([[1.0, 0.5, 1e-17]])
    found = metrics.log_log_slope(np.array([1, 2, 64]), values, population=64)
    assert found.value == pytest.approx(-1 + math.log2(63 / 62))


def test_what_cannot_be_told_is_nan():
    one = metrics.log_log_slope(SIZES, 1 / SIZES[None, :], population=math.inf)
    assert one.value == pytest.approx(-1) and math.isnan(one.low) and math.isnan(one.high)
    for sizes, values in (
        (SIZES[:1], 1 / SIZES[None, :1]),
        (SIZES[:2], np.array([[1.0, 0.0], [1.0, 1.0]])),
        (np.array([64, 64]), np.array([[1.0, 2.0]])),
        (SIZES, np.empty((0, 5))),
    ):
        found = metrics.log_log_slope(sizes, values, population=math.inf)
        assert np.isnan([found.value, found.low, found.high, found.residual]).all()
        assert np.isnan(found.of_sets).all() and found.of_sets.shape == (len(values),)


def test_finite_population_factor_is_what_enumeration_finds():
    population = np.array([0.3, -1.0, 2.5, 0.0, 0.7, 4.0, -2.0])
    for b in range(1, 8):
        means = [np.mean(chosen) for chosen in itertools.combinations(population, b)]
        factor = float(metrics.finite_population_factor(b, population=7))
        assert np.var(means) == pytest.approx(population.var() / b * factor, abs=1e-14)
    assert metrics.finite_population_factor(np.array([1, 7, 9]), population=7).tolist() == [1, 0, 0]
    assert float(metrics.finite_population_factor(1, population=1)) == 0
    assert metrics.finite_population_factor(SIZES, population=math.inf).tolist() == [1] * 5
