"""Fitted scales and shifts of classes against an optimum that SciPy finds in float64 without a gradient."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from scipy.special import log_softmax, logsumexp, softmax

from bnuq import metrics

RNG = np.random.default_rng(5)
N, K = 250, 3
SCALE, SHIFT = np.array([0.5, 0.3, 0.8]), np.array([0.6, -0.4, 0.0])
TEMPERATURE = 1.7


def made(samples: int) -> tuple[np.ndarray, np.ndarray]:
    """Logits, and labels of their softmax after other scales and shifts."""
    logits = RNG.normal(size=(N, K)) * 4
    y = (logits * SCALE + SHIFT + RNG.gumbel(size=logits.shape)).argmax(1)
    return logits + 0.7 * RNG.normal(size=(samples, N, K)), y


WEIGHT = 0.3


def loss(parameters: np.ndarray, logits: np.ndarray, y: np.ndarray) -> float:
    """Minus the log-likelihood of the mean probability, and of predictions by themselves, and the ridge towards the
    temperature."""
    scale, shift = parameters[:K], parameters[K:]
    of_samples = log_softmax(logits * scale + shift, axis=-1)[:, np.arange(len(y)), y]
    ridge = ((scale * TEMPERATURE - 1) ** 2).sum() + (shift**2).sum()
    own = (softmax(logits, axis=-1) * log_softmax(logits * scale + shift, axis=-1)).sum() / len(logits)
    ridge -= 2 * WEIGHT * own / metrics.VECTOR_RIDGE
    return float(-(logsumexp(of_samples, axis=0) - np.log(len(logits))).sum() + metrics.VECTOR_RIDGE / 2 * ridge)


@pytest.mark.parametrize("samples", [1, 6])
def test_it_is_the_optimum_that_scipy_finds(samples: int) -> None:
    logits, y = made(samples)
    options = {"maxiter": 20_000, "maxfev": 20_000, "xatol": 1e-9, "fatol": 1e-12, "adaptive": True}
    start = np.concatenate([SCALE, SHIFT])
    found: Any = minimize(loss, start, args=(logits, y), method="Nelder-Mead", options=options)
    for make in (np.asarray, torch.from_numpy):
        scale, shift = metrics.fitted_vector(make(logits), make(y), TEMPERATURE, WEIGHT)
        np.testing.assert_allclose(np.concatenate([scale, shift]), found.x, atol=2e-5)


def test_it_finds_the_scales_and_shifts_that_the_labels_were_drawn_with() -> None:
    logits = RNG.normal(size=(20_000, K)) * 4
    y = (logits * SCALE + SHIFT + RNG.gumbel(size=logits.shape)).argmax(1)
    scale, shift = metrics.fitted_vector(logits[None], y, 1.0)
    np.testing.assert_allclose(scale, SCALE, atol=0.03)
    np.testing.assert_allclose(shift - shift[2], SHIFT, atol=0.1)  # what is added to all changes nothing


@pytest.mark.parametrize("samples", [1, 5])
def test_the_likelihood_is_not_below_that_of_the_temperature(samples: int) -> None:
    logits, y = made(samples)
    tau = metrics.fitted_temperature(metrics.pll_by_temperature(logits, y))
    scale, shift = metrics.fitted_vector(logits, y, tau)
    plls = [
        metrics.pll_from_log_likelihood(metrics.log_likelihood(z, y)).mean()
        for z in (logits * scale + shift, logits / tau)
    ]
    assert plls[0] > plls[1]


def test_a_class_that_never_occurs_stays_finite_and_becomes_unlikely() -> None:
    logits, y = made(1)
    y = np.where(y == 2, 0, y)
    scale, shift = metrics.fitted_vector(logits, y, 1.0)
    assert np.isfinite([scale, shift]).all()
    assert np.abs([scale, shift]).max() < 50
    assert np.exp(log_softmax(logits[0] * scale + shift, axis=-1))[:, 2].mean() < 0.05


def test_equal_logits_and_extreme_ones_stay_finite() -> None:
    _, y = made(1)
    for logits in (np.zeros((2, N, K)), 1e4 * RNG.normal(size=(2, N, K))):
        assert np.isfinite(metrics.fitted_vector(logits.astype(np.float32), y, 10.0)).all()


def test_it_depends_neither_on_the_order_of_memory_nor_on_the_precision_that_holds_the_logits() -> None:
    logits, y = made(4)
    logits = logits.astype(np.float32)
    first = metrics.fitted_vector(logits, y, TEMPERATURE)
    for other in (np.asfortranarray(logits), logits.astype(np.float64)):
        np.testing.assert_allclose(metrics.fitted_vector(other, y, TEMPERATURE), first, rtol=1e-7)


@pytest.mark.parametrize("make", [np.asarray, torch.from_numpy])
def test_a_masked_class_is_fitted_like_one_of_a_very_low_logit(make: Any) -> None:
    logits, y = made(2)
    masked = (RNG.uniform(size=(N, K)) < 0.3) & (np.arange(K) != y[:, None])
    logits[:, masked] = -np.inf
    low = np.where(np.isinf(logits), -1e9, logits)
    found = metrics.fitted_vector(make(logits), y, TEMPERATURE)
    np.testing.assert_allclose(found, metrics.fitted_vector(low, y, TEMPERATURE), rtol=1e-6, atol=1e-9)
    assert np.abs(found[0] - 1 / TEMPERATURE).max() > 0.1
    shifted = metrics.fitted_vector(make(logits - 900), y, TEMPERATURE, WEIGHT)  # exp(−900) is 0
    np.testing.assert_allclose(
        shifted[0].std(), metrics.fitted_vector(low - 900, y, TEMPERATURE, WEIGHT)[0].std(), rtol=1e-3
    )
    logits[:, 0, y[0]] = -np.inf  # a point whose class is impossible says nothing
    without = metrics.fitted_vector(logits[:, 1:], y[1:], TEMPERATURE)
    np.testing.assert_allclose(metrics.fitted_vector(make(logits), y, TEMPERATURE), without, rtol=1e-9)
