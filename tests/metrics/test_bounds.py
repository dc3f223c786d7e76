"""Between constant uncertainty and the optimum: closed forms against searches, and what a normalised score says."""

import math

import numpy as np
import pytest
import scipy.optimize
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from bnuq import metrics

laws = settings(max_examples=30, deadline=None)
errors = hnp.arrays(np.float64, st.tuples(st.integers(1, 6), st.integers(1, 3)), elements=st.floats(-10, 10))


@laws
@given(errors, st.floats(0, 20))
def test_no_gaussian_around_the_mean_beats_the_optimum(e, sigma):
    mean = np.zeros_like(e)
    assert (metrics.crps_optimum(mean, e) <= metrics.crps_gaussian(mean, sigma, e) + 1e-12).all()
    assert (metrics.pll_optimum(mean, e) >= metrics.pll_gaussian(mean, sigma, e) - 1e-9).all()


@laws
@given(errors)
def test_the_optimum_of_crps_is_a_fixed_share_of_the_absolute_error(e):
    best = metrics.crps_optimum(np.zeros_like(e), e)
    assert best.mean() == pytest.approx(0.5949040335669752 * metrics.mae(np.zeros_like(e), e), rel=1e-12)


@pytest.mark.parametrize("error", [1e-3, 0.7, 40.0])
def test_the_optimum_is_what_a_search_over_sigma_finds(error):
    y, mean = np.array([error]), np.zeros(1)
    found = scipy.optimize.minimize_scalar(
        lambda s: metrics.crps_gaussian(mean, s, y)[0], bounds=(0, 5 * error), method="bounded", options={"xatol": 1e-9}
    )
    assert metrics.crps_optimum(mean, y)[0] == pytest.approx(found.fun, rel=1e-10)
    assert found.x == pytest.approx(error / math.sqrt(math.log(2)), rel=1e-4)
    several, centre = np.array([[error, -2 * error, 0.0]]), np.zeros((1, 3))
    found = scipy.optimize.minimize_scalar(
        lambda log_s: -metrics.pll_gaussian(centre, error * math.exp(log_s), several)[0], bounds=(-3, 3)
    )
    assert metrics.pll_optimum(centre, several)[0] == pytest.approx(-found.fun, abs=1e-8)


@pytest.mark.parametrize("array", [np.asarray, torch.asarray])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_an_exact_hit_has_an_infinite_optimum_and_a_tiny_error_has_not(array, dtype):
    y = array(np.array([[0.0, 0.0], [0.0, 1e-30]], dtype=dtype))
    best = metrics.pll_optimum(array(np.zeros((2, 2), dtype=dtype)), y)
    assert best[0] == math.inf
    assert float(best[1]) == pytest.approx(-2 * math.log(1e-30) - math.log(math.pi) - 1, rel=1e-6)
    assert metrics.pll_optimum(array(np.zeros(2, dtype=dtype)), y[:, 0]).tolist() == [math.inf, math.inf]
    assert metrics.crps_optimum(array(np.zeros(2, dtype=dtype)), y[:, 0]).tolist() == [0, 0]


@laws
@given(st.floats(-5, 5), st.floats(-5, 5), st.floats(-5, 5), st.floats(0.1, 10), st.floats(-5, 5))
def test_normalized_is_0_at_the_constant_100_at_the_optimum_and_free_of_units(s, low, high, scale, shift):
    if abs(high - low) < 1e-6:
        assert low != high or math.isnan(metrics.normalized(s, low, high))
        return
    assert metrics.normalized(low, low, high) == 0
    assert metrics.normalized(high, low, high) == pytest.approx(100)
    there = metrics.normalized(*(scale * x + shift for x in (s, low, high)))
    assert there == pytest.approx(metrics.normalized(s, low, high), rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("array", [np.asarray, torch.asarray])
def test_normalized_is_nan_where_the_bounds_meet_or_are_infinite(array):
    low = array(np.array([0.0, 1.0, -math.inf, 0.0, math.nan, 0.0]))
    high = array(np.array([1.0, 1.0, 1.0, math.inf, 1.0, -1.0]))
    found = metrics.normalized(array(np.full(6, 0.25)), low, high)
    assert type(found) is type(low)
    assert found.tolist() == pytest.approx([25, *[math.nan] * 4, -25], nan_ok=True)
    for s, low, high in ((1.0, 2.0, 2.0), (0.5, 0.1 + 0.2, 0.3), (1.0, 0.0, math.inf), (1.0, math.nan, 0.0)):
        assert math.isnan(metrics.normalized(s, low, high))
    assert metrics.normalized(-math.inf, 0.0, 1.0) == -math.inf
    of_numpy = metrics.normalized(np.float64(3.0), 1.0, 2.0)
    assert isinstance(of_numpy, float) and of_numpy == 200


@laws
@given(st.integers(2, 12), st.integers(1, 50), st.data())
def test_no_constant_confidence_explains_the_labels_better_than_theirs(classes, n, data):
    accuracy = data.draw(st.integers(0, n)) / n
    best = metrics.constant_confidence(accuracy, n=n, classes=classes)
    assert 1 / classes <= best <= 1 - 1 / (2 * n)
    other = data.draw(st.floats(1 / classes, 1 - 1 / (2 * n)))
    explained = metrics.constant_pll(accuracy, best, classes)
    assert explained >= metrics.constant_pll(accuracy, other, classes) - 1e-12
    assert metrics.optimum_pll(accuracy, classes) >= explained - 1e-12


def test_constant_and_optimum_of_a_classifier_are_what_its_probabilities_score():
    classes, y = 4, np.array([0, 1, 2, 3, 0])
    predicted = np.array([0, 1, 2, 0, 1])
    stated = np.full((5, classes), 0.1)
    stated[np.arange(5), predicted] = 0.7
    constant = metrics.pll_classification(stated[None], y).mean()
    assert metrics.constant_pll(0.6, 0.7, classes) == pytest.approx(constant)
    best = np.where((predicted == y)[:, None], np.eye(classes)[y], 1 / classes)
    assert metrics.optimum_pll(0.6, classes) == pytest.approx(metrics.pll_classification(best[None], y).mean())
    assert metrics.constant_pll(1.0, 1.0, classes) == 0
    assert metrics.constant_pll(0.9, 1.0, classes) == -math.inf
