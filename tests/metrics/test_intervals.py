"""Coverage, rank correlation and the curve over σ: by hand, by scipy, and where points tie."""

import math

import numpy as np
import pytest
import scipy.stats
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from bnuq import metrics

laws = settings(max_examples=30, deadline=None)
numbers = hnp.arrays(np.float64, st.integers(2, 12), elements=st.integers(-4, 4).map(float))
levels = st.floats(0, 1 - 1e-9) | st.just(1.0)  # just below 1 rounding moves a quantile far


@laws
@given(numbers, st.data(), levels)
def test_coverage_counts_the_truths_inside_the_quantiles(y, data, level):
    sigma = data.draw(hnp.arrays(np.float64, y.shape, elements=st.floats(0.1, 5)))
    mean = np.full_like(y, 0.37)
    low, high = scipy.stats.norm.interval(level, mean, sigma) if level > 0 else (mean, mean)
    expected = np.mean((low <= y) & (y <= high))
    assert metrics.coverage(mean, sigma, y, level=level) == expected
    assert metrics.coverage(*(torch.from_numpy(values) for values in (mean, sigma, y)), level=level) == expected


@laws
@given(numbers, st.lists(levels, min_size=1, max_size=5))
def test_calibration_is_the_coverage_at_each_level_and_never_falls(y, some):
    some = sorted(some)
    observed = metrics.interval_calibration(np.zeros_like(y), 1.5, y, levels=some)
    assert observed.tolist() == [metrics.coverage(np.zeros_like(y), 1.5, y, level=level) for level in some]
    assert (np.diff(observed) >= 0).all()


def test_right_intervals_cover_their_level():
    rng = np.random.default_rng(0)
    mean, sigma = rng.normal(size=(50_000, 2)), rng.gamma(2, size=(50_000, 2))
    y = mean + sigma * rng.normal(size=mean.shape)
    nominal = np.linspace(0.05, 0.95, 19)
    assert metrics.interval_calibration(mean, sigma, y, levels=nominal) == pytest.approx(nominal, abs=0.006)


def test_an_interval_without_width_covers_exact_hits_alone():
    mean, y = np.zeros(4), np.array([0.0, 1.0, -1e-300, 0.0])
    for level in (0.0, 0.5, 0.999):
        assert metrics.coverage(mean, 0.0, y, level=level) == 0.5
        assert metrics.coverage(mean, np.full(4, 1.0), y[:1].repeat(4), level=level) == 1
    assert metrics.coverage(mean, 1.0, y, level=1.0) == 1


def test_a_level_that_is_no_share_and_no_points_are_told():
    for level in (-0.1, 95.0, math.nan):
        with pytest.raises(ValueError, match=f"level is {level}; expected a share within"):
            metrics.coverage(np.zeros(2), 1.0, np.zeros(2), level=level)
    with pytest.raises(ValueError, match="y holds no examples"):
        metrics.coverage(np.zeros(0), 1.0, np.zeros(0), level=0.5)


@laws
@given(numbers, st.data())
def test_spearman_is_that_of_scipy_with_ties(a, data):
    b = data.draw(hnp.arrays(np.float64, a.shape, elements=st.integers(-4, 4).map(float)))
    ours = metrics.spearman(a, b)
    if np.ptp(a) == 0 or np.ptp(b) == 0:
        assert math.isnan(ours)
        return
    assert ours == pytest.approx(scipy.stats.spearmanr(a, b).statistic, abs=1e-12)
    assert ours == metrics.spearman(torch.from_numpy(np.exp(a)), torch.from_numpy(b))
    assert metrics.spearman(a, a) == pytest.approx(1, abs=1e-15) and metrics.spearman(a, -a) == pytest.approx(-1)
    assert metrics.spearman(b, a) == ours


def test_spearman_of_a_constant_a_nan_or_a_single_point_is_none():
    for a, b in (([0.1] * 3, [1.0, 2, 3]), ([1.0], [2.0]), ([1.0, math.nan], [1.0, 2.0]), ([], [])):
        assert math.isnan(metrics.spearman(np.array(a), np.array(b)))


@laws
@given(numbers, st.data())
def test_the_curve_is_sorted_by_sigma_and_its_mean_runs_over_a_window(e, data):
    sigma = data.draw(hnp.arrays(np.float64, e.shape, elements=st.sampled_from([0.5, 1.0, 2.0])))
    window = data.draw(st.integers(1, 2 * e.size))
    curve = metrics.uncertainty_error_curve(sigma, e, window=window)
    expected = sorted(range(e.size), key=lambda i: sigma[i])  # stable: ties as they came
    assert curve.order.tolist() == expected
    assert (curve.sigma == sigma[expected]).all() and (curve.error == np.abs(e)[expected]).all()
    for i, mean in enumerate(curve.running_error):
        inside = curve.error[max(0, i - (window - 1) // 2) : i + window // 2 + 1]
        assert mean == pytest.approx(inside.mean(), abs=1e-12)


def test_the_window_is_a_tenth_of_the_points_and_at_least_one():
    for points, window in ((1, 1), (4, 1), (10, 1), (100, 10), (101, 10), (308, 31)):
        curve = metrics.uncertainty_error_curve(np.arange(float(points)), np.ones(points))
        assert curve.window == window
        assert curve.running_error == pytest.approx(np.ones(points))
    assert (round(curve.factor50, 4), round(curve.factor95, 4)) == (0.6745, 1.9600)
    with pytest.raises(ValueError, match="window is 0; expected at least 1 example"):
        metrics.uncertainty_error_curve(np.ones(3), np.ones(3), window=0)


def test_the_curve_takes_torch():
    curve = metrics.uncertainty_error_curve(torch.tensor([2.0, 1.0]), torch.tensor([-3.0, 4.0]))
    assert (curve.order.tolist(), curve.error.tolist()) == ([1, 0], [4, 3])
