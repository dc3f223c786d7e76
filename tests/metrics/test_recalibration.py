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
@pytest.mark.parametrize(("samples", "factor"), [(1, 2.5), (1, 0.4), (7, 2.5), (7, 0.4)])
def test_it_is_the_one_that_scipy_finds(samples: int, factor: float, make) -> None:
    logits, y = overconfident(samples, factor)
    pll = np.asarray(metrics.pll_by_temperature(make(logits), make(y)))
    for row in (0, 20, 46):
        np.testing.assert_allclose(
            pll[row], pll_at(np.log(metrics.TEMPERATURES[row]), logits, y), rtol=1e-9, atol=1e-13
        )
    ends = np.log(0.1), np.log(10)
    found: Any = minimize_scalar(lambda x: -pll_at(x, logits, y).mean(), bounds=ends, method="bounded")
    fitted = metrics.fitted_temperature(pll)
    assert fitted == pytest.approx(np.exp(found.x), rel=1e-2)
    assert pll_at(np.log(fitted), logits, y).mean() == pytest.approx(-found.fun, abs=1e-5)


def test_at_an_end_of_the_range_it_is_that_end() -> None:
    logits, _ = overconfident(1, 1.0)
    for labels, end in ((logits[0].argmax(1), 0.1), (logits[0].argmin(1), 10.0)):
        assert metrics.fitted_temperature(metrics.pll_by_temperature(logits, labels)) == pytest.approx(end)


def test_a_temperature_of_1_is_among_them_and_changes_nothing() -> None:
    logits, y = overconfident(3, 1.0)
    (row,) = np.flatnonzero(metrics.TEMPERATURES == 1)
    np.testing.assert_allclose(
        metrics.pll_by_temperature(logits, y)[row], pll_at(0.0, logits, y), rtol=1e-9, atol=1e-13
    )
