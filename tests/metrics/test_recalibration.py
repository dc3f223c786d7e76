"""The fitted temperature against a search by SciPy in float64."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax, logsumexp

from bnuq import metrics

RNG = np.random.default_rng(8)
N, K = 300, 5


def pll_at(log_tau: float, logits: np.ndarray, y: np.ndarray) -> np.ndarray:
    of_samples = log_softmax(logits / np.exp(log_tau), axis=-1)[:, np.arange(len(y)), y]
    return logsumexp(of_samples, axis=0) - np.log(len(logits))


def overconfident(samples: int, factor: float) -> tuple[np.ndarray, np.ndarray]:
    logits = RNG.normal(size=(N, K)) * 2
    y = (logits + RNG.gumbel(size=logits.shape)).argmax(1)  # labels of their softmax
    return factor * (logits + 0.7 * RNG.normal(size=(samples, N, K))), y


@pytest.mark.parametrize("make", [np.asarray, torch.from_numpy], ids=["numpy", "torch"])
@pytest.mark.parametrize(("samples", "factor"), [(1, 2.5), (1, 0.4), (1, 0.01), (7, 2.5), (7, 0.4), (7, 90.0)])
def test_it_is_the_one_that_scipy_finds(samples: int, factor: float, make) -> None:
    logits, y = overconfident(samples, factor)
    pll = np.asarray(metrics.pll_by_temperature(make(logits), make(y)))
    for row in (0, 20, 70):
        np.testing.assert_allclose(
            pll[row], pll_at(np.log(metrics.TEMPERATURES[row]), logits, y), rtol=1e-9, atol=1e-13
        )
    fitted = metrics.fitted_temperature(pll)
    near = np.log(fitted) - 0.1, np.log(fitted) + 0.1
    optimum: Any = minimize_scalar(lambda x: -pll_at(x, logits, y).mean(), near, tol=1e-12)
    assert np.log(fitted) == pytest.approx(optimum.x, abs=1e-6)
    [refined] = metrics.refined_temperatures(
        [1.1 * fitted], lambda at: metrics.pll_slopes(make(logits), make(y), at[0])[:, None]
    )
    assert np.log(refined) == pytest.approx(optimum.x, abs=2e-8)


def test_the_slopes_are_those_of_the_likelihood_even_where_classes_are_impossible() -> None:
    logits, y = overconfident(7, 1.0)
    logits[:, :, 0] = np.where(y == 0, logits[:, :, 0], -np.inf)
    logits[:, 0, y[0]] = -np.inf  # the likelihood of this point is 0 at every temperature
    h, at, possible = 1e-4, np.log(1.3), slice(1, None)
    below, here, above = (pll_at(at + step, logits, y)[possible].sum() for step in (-h, 0, h))
    slope, curvature = metrics.pll_slopes(logits, y, np.exp(at))
    assert slope == pytest.approx((above - below) / (2 * h), rel=1e-5)
    assert curvature == pytest.approx((above - 2 * here + below) / h**2, rel=1e-3)


@pytest.mark.parametrize("start", [0.001, 0.02, 1.0, 30.0, 1000.0])
def test_the_refinement_finds_the_maximum_from_anywhere(start: float) -> None:
    logits, y = overconfident(1, 5.0)
    [refined] = metrics.refined_temperatures([start], lambda at: metrics.pll_slopes(logits, y, at[0])[:, None])
    assert refined == pytest.approx(metrics.fitted_temperature(metrics.pll_by_temperature(logits, y)), rel=1e-6)


def test_three_errors_hold_a_temperature_near_1_where_points_have_none_and_not_where_they_have_many() -> None:
    logits, y = overconfident(1, 5.0)
    for labels, limits in ((logits[0].argmax(1), (0.1, 1)), (y, (0.9, 1))):
        held, free = (
            metrics.refined_temperatures(
                [1.0], lambda at, w=w, y=labels: metrics.pll_slopes(logits, y, *at, w)[:, None]
            )
            for w in (metrics.pseudo_weight(metrics.errors_of_points(logits, labels)), 0.0)
        )
        assert limits[0] < held[0] / (free[0] if labels is y else 1) < limits[1]
    p, at, h = np.exp(logits[0] - logsumexp(logits[0], axis=1)[:, None]), np.log(1.3), 1e-4

    def own(x: float) -> float:
        scaled = logits[0] / np.exp(x)
        return float((p * (scaled - logsumexp(scaled, axis=1)[:, None])).sum())

    extra = metrics.pll_slopes(logits, y, 1.3, 2.0) - metrics.pll_slopes(logits, y, 1.3)
    expected = (own(at + h) - own(at - h)) / h, 2 * (own(at + h) - 2 * own(at) + own(at - h)) / h**2
    assert extra == pytest.approx(expected, rel=1e-3)
    assert metrics.fitted_temperature(np.zeros((len(metrics.TEMPERATURES), 3))) == 1


def test_at_an_end_of_the_range_it_is_that_end() -> None:
    logits, _ = overconfident(1, 1.0)
    for labels, end in ((logits[0].argmax(1), 1e-3), (logits[0].argmin(1), 1e3)):
        assert metrics.fitted_temperature(metrics.pll_by_temperature(logits, labels)) == end
        for start in (1.0, end):
            [refined] = metrics.refined_temperatures(
                [start], lambda at, y=labels: metrics.pll_slopes(logits, y, at[0])[:, None]
            )
            assert refined == pytest.approx(end, rel=1e-6)


def test_a_temperature_of_1_is_among_them_and_changes_nothing() -> None:
    logits, y = overconfident(3, 1.0)
    (row,) = np.flatnonzero(metrics.TEMPERATURES == 1)
    np.testing.assert_allclose(
        metrics.pll_by_temperature(logits, y)[row], pll_at(0.0, logits, y), rtol=1e-9, atol=1e-13
    )
