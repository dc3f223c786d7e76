"""The Laplace approximation of a last layer, against matrices of all its parameters, computed in float64."""

from __future__ import annotations

from dataclasses import replace

import at_night
import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar
from scipy.special import softmax
from torch import nn

from bnuq.errors import SamplingError
from bnuq.methods import Curvature
from bnuq.sampling.head import Head
from bnuq.sampling.laplace import LastLayerPasses, Posterior, fitted, terms

POINTS, FEATURES, CLASSES, TRAIN_SIZE = 50, 4, 3, 400
STRUCTURES: tuple[Curvature, ...] = ("kron", "diag")
RANDOM = np.random.default_rng(0)
PHI = RANDOM.normal(0.5, 1, (POINTS, FEATURES)).astype(np.float32)
WEIGHT, BIAS = (RANDOM.normal(0, 0.7, shape).astype(np.float32) for shape in ((CLASSES, FEATURES), (CLASSES,)))


def head(phi: np.ndarray = PHI, weight: np.ndarray = WEIGHT, bias: np.ndarray = BIAS) -> Head:
    features, w, b = map(torch.from_numpy, (phi, weight, bias))
    return Head(features, features @ w.T + b, w, b)


def extended(phi: np.ndarray) -> np.ndarray:
    return np.concatenate([phi.astype(np.float64), np.ones((len(phi), 1))], axis=1)


def curvature(structure: Curvature) -> np.ndarray:
    """H over the parameters in the order (class, feature), the bias as the last feature."""
    phi = extended(PHI)
    p = softmax(PHI.astype(np.float64) @ WEIGHT.T + BIAS, axis=1)
    of_outputs = [np.diag(row) - np.outer(row, row) for row in p]
    if structure == "kron":
        return TRAIN_SIZE * np.kron(np.mean(of_outputs, axis=0), phi.T @ phi / POINTS)
    full = sum(np.kron(inner, np.outer(row, row)) for inner, row in zip(of_outputs, phi, strict=True))
    return TRAIN_SIZE / POINTS * np.diag(np.diag(full))


def theta() -> np.ndarray:
    return np.concatenate([WEIGHT, BIAS[:, None]], axis=1).astype(np.float64).ravel()


def fitted_to(*heads: Head, structure: Curvature = "kron", train_size: int = POINTS) -> Posterior:
    return fitted([terms([each], structure) for each in heads], heads[0], structure, train_size=train_size)


def posterior(structure: Curvature) -> Posterior:
    return fitted_to(head(PHI[:20]), head(PHI[20:]), structure=structure, train_size=TRAIN_SIZE)


def covariance(structure: Curvature) -> np.ndarray:
    """Of the parameters, with the prior precision that was fitted."""
    return np.linalg.inv(curvature(structure) + posterior(structure).prior_precision * np.eye(theta().size))


def root(of: Posterior) -> np.ndarray:
    """The matrix that a draw multiplies normal numbers with."""
    size = of.curvature.size
    return of.scaled(np.eye(size).reshape(size, *of.curvature.shape)).reshape(size, size)


@pytest.mark.parametrize("structure", STRUCTURES)
def test_the_eigenvalues_are_those_of_the_curvature(structure: Curvature) -> None:
    found = np.sort(posterior(structure).curvature.ravel())
    np.testing.assert_allclose(found, np.linalg.eigvalsh(curvature(structure)), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("structure", STRUCTURES)
def test_the_prior_precision_has_the_largest_marginal_likelihood(structure: Curvature) -> None:
    hessian, weights = curvature(structure), theta()

    def negative_evidence(logarithm: float) -> float:
        precision = np.exp(logarithm)
        of_posterior = np.linalg.slogdet(hessian + precision * np.eye(weights.size))[1]
        return 0.5 * (precision * weights @ weights + of_posterior - weights.size * logarithm)

    best = minimize_scalar(negative_evidence, bracket=(-3, 3), tol=1e-12).x
    found = posterior(structure)
    assert found.prior_precision == pytest.approx(np.exp(best), rel=1e-5)
    shares = hessian @ np.linalg.inv(hessian + found.prior_precision * np.eye(weights.size))
    assert found.effective_parameters == pytest.approx(np.trace(shares), rel=1e-5)


@pytest.mark.parametrize("structure", STRUCTURES)
def test_the_covariance_is_the_inverse_of_curvature_and_prior(structure: Curvature) -> None:
    found = root(posterior(structure))
    np.testing.assert_allclose(found, found.T, atol=1e-12)
    np.testing.assert_allclose(found @ found.T, covariance(structure), rtol=1e-4, atol=1e-7)


def test_a_draw_does_not_depend_on_the_signs_of_eigenvectors() -> None:
    once = posterior("kron")
    assert once.of_outputs is not None and once.of_features is not None
    again = replace(once, of_outputs=-once.of_outputs, of_features=once.of_features * [1, -1, 1, -1, -1])
    np.testing.assert_allclose(again.drawn(3, seed=1), once.drawn(3, seed=1), atol=1e-12)


def test_a_draw_depends_on_its_seed_and_number() -> None:
    draws = [posterior("kron").drawn(draw, seed) for seed, draw in ((0, 0), (0, 1), (1, 0), (0, 0))]
    assert np.array_equal(draws[0], draws[3])
    assert not np.allclose(draws[0], draws[1]) and not np.allclose(draws[0], draws[2])


def network(weight: np.ndarray, bias: np.ndarray) -> nn.Linear:
    layer = nn.Linear(FEATURES, len(weight)).eval()
    with torch.no_grad():
        layer.weight.copy_(torch.from_numpy(weight))
        layer.bias.copy_(torch.from_numpy(bias))
    return layer


def engine(of: Posterior, samples: int, weight: np.ndarray = WEIGHT, bias: np.ndarray = BIAS) -> LastLayerPasses:
    model = network(weight, bias)
    return LastLayerPasses(model, of, draws=range(samples), seed=0, device=torch.device("cpu"), dtype=torch.float32)


@pytest.mark.parametrize("structure", at_night.every_third(STRUCTURES))
def test_samples_have_the_moments_of_the_predictive_distribution(structure: Curvature) -> None:
    samples = 20_000
    points = PHI[:3] * 3
    logits = engine(posterior(structure), samples).passes(torch.from_numpy(points)).double().numpy()
    for point, row in enumerate(extended(points)):
        jacobian = np.kron(np.eye(CLASSES), row)
        expected = jacobian @ covariance(structure) @ jacobian.T
        sd = np.sqrt(np.diag(expected))
        assert np.abs((logits[:, point].mean(axis=0) - jacobian @ theta()) / sd * np.sqrt(samples)).max() < 4
        found = np.cov(logits[:, point].T)
        of_covariance = np.sqrt((expected**2 + np.outer(sd, sd) ** 2) / samples)  # of normal numbers
        assert (np.abs(found - expected) / of_covariance).max() < 4


def test_points_share_their_draws_whatever_passes_together() -> None:
    sampled = engine(posterior("kron"), 5)
    together = sampled.passes(torch.from_numpy(PHI))
    alone = torch.cat([sampled.passes(torch.from_numpy(PHI[i : i + 7]), i) for i in range(0, POINTS, 7)], 1)
    torch.testing.assert_close(alone, together, rtol=1e-5, atol=1e-5)
    later = LastLayerPasses(
        network(WEIGHT, BIAS), posterior("kron"), draws=range(3, 5), seed=0, device=torch.device("cpu"),
        dtype=torch.float32,
    )  # fmt: skip
    torch.testing.assert_close(later.passes(torch.from_numpy(PHI)), together[3:], rtol=1e-5, atol=1e-5)


def test_one_logit_is_that_of_a_logistic_regression() -> None:
    weight, bias = WEIGHT[:1], BIAS[:1]
    of = fitted_to(head(PHI, weight, bias))
    phi = extended(PHI)
    p = 1 / (1 + np.exp(-(PHI.astype(np.float64) @ weight[0] + bias[0])))
    expected = np.linalg.inv(phi.T @ phi * np.mean(p * (1 - p)) + of.prior_precision * np.eye(FEATURES + 1))
    np.testing.assert_allclose(root(of) @ root(of), expected, rtol=1e-4, atol=1e-7)
    logits = engine(of, 4, weight, bias).passes(torch.from_numpy(PHI))
    assert logits.shape == (4, POINTS, 2) and not logits[:, :, 0].any()
    assert (logits[:, :, 1].std(0) > 0).all()


def test_fewer_points_than_features_are_regularised_by_the_prior() -> None:
    of = fitted_to(head(PHI[:2]), train_size=2)
    assert np.isfinite(root(of)).all()
    assert (of.curvature < 1e-6).sum() > of.curvature.size / 2


def test_a_layer_that_says_nothing_about_its_spread_is_refused() -> None:
    with pytest.raises(SamplingError, match="the weights of its last layer are all zero"):
        fitted_to(head(weight=0 * WEIGHT, bias=0 * BIAS))
    certain = 0 * BIAS + np.array([5000, 0, 0], dtype=np.float32)
    for structure in STRUCTURES:
        with pytest.raises(SamplingError, match="certain of every example of the training set"):
            fitted_to(head(bias=certain), structure=structure)
