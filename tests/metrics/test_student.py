"""Student's distribution, computed without scipy, is scipy's."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.special
from hypothesis import given
from hypothesis import strategies as st

from bnuq import metrics

DEGREES = (0.3, 1, 1.7, 2, 5, 19.5, 99, 101, 999, 9_999, 10_001, 1e5, 1e6, math.inf)


@pytest.mark.parametrize("df", DEGREES)
def test_its_probabilities_are_those_of_scipy_to_12_digits(df: float) -> None:
    points = (*np.linspace(-12, 12, 97), -1e-3, 0.0, 1e3, -1e3 if df < 100 else 0.0, math.inf, -math.inf)
    ours = [metrics.student_cdf(float(t), df) for t in points]
    np.testing.assert_allclose(ours, scipy.special.stdtr(df, points), rtol=2e-12, atol=0)


@given(st.floats(-1e300, 1e300), st.floats(0.5, 1e12))
def test_the_two_sides_add_up_and_it_always_ends(t: float, df: float) -> None:
    below = metrics.student_cdf(t, df)
    assert 0 <= below <= 1
    assert below + metrics.student_cdf(-t, df) == pytest.approx(1, abs=1e-14)


@pytest.mark.parametrize("df", DEGREES)
def test_its_quantiles_are_those_of_scipy(df: float) -> None:
    levels = (1e-5, 0.05, 0.3, 0.5, 0.8, 0.95, 1 - 0.05 / 400)
    found = [metrics.student_quantile(level, df) for level in levels]
    np.testing.assert_allclose(found, scipy.special.stdtrit(min(df, 1e15), levels), rtol=2e-6, atol=1e-6)


def test_of_no_number_it_is_none() -> None:
    assert math.isnan(metrics.student_cdf(math.nan, 3)) and math.isnan(metrics.student_cdf(1.0, math.nan))
