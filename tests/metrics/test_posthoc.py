"""Post-hoc OOD scores against scikit-learn, SciPy and the definitions written out in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import logsumexp, softmax
from sklearn.covariance import OAS, EmpiricalCovariance
from sklearn.neighbors import NearestNeighbors

from bnuq.metrics import posthoc

RNG = np.random.default_rng(3)
CLASSES, WIDTH, N = 4, 12, 300
LABELS = RNG.integers(0, CLASSES, N)
CENTRES = RNG.normal(size=(CLASSES, WIDTH)) * 2
FEATURES = np.maximum(CENTRES[LABELS] + RNG.normal(size=(N, WIDTH)) @ RNG.normal(size=(WIDTH, WIDTH)) * 0.4, 0)
WEIGHT, BIAS = RNG.normal(size=(CLASSES, WIDTH)), RNG.normal(size=CLASSES)
POINTS = RNG.normal(size=(25, WIDTH)) * 2
LOGITS = POINTS @ WEIGHT.T + BIAS


@pytest.fixture(params=["numpy", "torch"])
def arrays(request: pytest.FixtureRequest):
    return np.asarray if request.param == "numpy" else torch.from_numpy


def test_scores_of_logits_are_their_definitions(arrays) -> None:
    logits, p = arrays(LOGITS), arrays(softmax(LOGITS, axis=1))
    np.testing.assert_allclose(posthoc.max_logit(logits), -LOGITS.max(1))
    np.testing.assert_allclose(posthoc.energy(logits), -logsumexp(LOGITS, axis=1), rtol=1e-12)
    largest = np.sort(softmax(LOGITS, axis=1), axis=1)[:, -2:]
    expected = (largest**0.1 * (1 - largest) ** 0.1).sum(1)
    np.testing.assert_allclose(posthoc.generalized_entropy(p, classes=2), expected, rtol=1e-12)


def test_the_neighbour_is_that_of_scikit_learn(arrays) -> None:
    def units(x):
        return x / np.linalg.norm(x, axis=1, keepdims=True)

    bank = FEATURES[np.linalg.norm(FEATURES, axis=1) > 0]
    expected = NearestNeighbors(n_neighbors=7).fit(units(bank)).kneighbors(units(POINTS))[0][:, -1]
    fitted = posthoc.fitted_neighbours(arrays(bank), k=7)
    np.testing.assert_allclose(posthoc.neighbour_distance(arrays(POINTS), fitted), expected, rtol=1e-9)


def test_a_small_bank_has_its_last_neighbour() -> None:
    fitted = posthoc.fitted_neighbours(FEATURES[:3])
    assert fitted.k == 3
    assert posthoc.neighbour_distance(POINTS, fitted).shape == (25,)


def test_mahalanobis_distances_are_those_of_scikit_learn(arrays) -> None:
    means = np.stack([FEATURES[c == LABELS].mean(0) for c in range(CLASSES)])
    within = EmpiricalCovariance(assume_centered=True).fit(FEATURES - means[LABELS])
    total = EmpiricalCovariance().fit(FEATURES)
    nearest = np.min([within.mahalanobis(POINTS - mean) for mean in means], axis=0)
    fitted = posthoc.fitted_gaussians(arrays(FEATURES), LABELS)
    assert fitted.shrinkage == 0
    np.testing.assert_allclose(posthoc.mahalanobis(arrays(POINTS), fitted), nearest, rtol=1e-8)
    relative = nearest - total.mahalanobis(POINTS)
    np.testing.assert_allclose(posthoc.relative_mahalanobis(arrays(POINTS), fitted), relative, rtol=1e-8)


def test_fewer_points_than_features_shrink_the_covariance() -> None:
    few, labels = FEATURES[:10], np.arange(10) % 2
    means = np.stack([few[labels == c].mean(0) for c in range(2)])
    expected = OAS(assume_centered=True).fit(few - means[labels])
    fitted = posthoc.fitted_gaussians(few, labels)
    assert fitted.shrinkage > 0
    distances = np.min([expected.mahalanobis(POINTS - mean) for mean in means], axis=0)
    # scikit-learn's formula leaves out the terms of order 1/width, as its documentation says
    assert 0.5 < float(np.median(posthoc.mahalanobis(POINTS, fitted) / distances)) < 2


def test_directions_without_variance_are_left_out() -> None:
    constant = np.concatenate([FEATURES, np.full((N, 2), 3.0)], axis=1)
    shifted = np.concatenate([POINTS, np.full((25, 2), 9.0)], axis=1)
    with_constant = posthoc.mahalanobis(shifted, posthoc.fitted_gaussians(constant, LABELS))
    np.testing.assert_allclose(with_constant, posthoc.mahalanobis(POINTS, posthoc.fitted_gaussians(FEATURES, LABELS)))


def test_the_virtual_logit_is_its_definition(arrays) -> None:
    origin = -np.linalg.pinv(WEIGHT) @ BIAS
    centred = FEATURES - origin
    values, vectors = np.linalg.eig(EmpiricalCovariance(assume_centered=True).fit(centred).covariance_)
    residual = vectors[:, np.argsort(-values)[5:]]
    scale = (FEATURES @ WEIGHT.T + BIAS).max(1).mean() / np.linalg.norm(centred @ residual, axis=1).mean()
    expected = scale * np.linalg.norm((POINTS - origin) @ residual, axis=1) - logsumexp(LOGITS, axis=1)
    fitted = posthoc.fitted_virtual_logit(arrays(FEATURES), arrays(WEIGHT), arrays(BIAS), principal=5)
    assert fitted is not None
    np.testing.assert_allclose(posthoc.virtual_logit(arrays(POINTS), arrays(LOGITS), fitted), expected, rtol=1e-8)


@pytest.mark.parametrize(("width", "principal"), [(64, 32), (767, 383), (768, 512), (2047, 512), (2048, 1000)])
def test_the_number_of_principal_directions_is_that_of_the_paper(width: int, principal: int) -> None:
    assert posthoc.principal_directions(width) == principal


def test_the_other_directions_are_residual() -> None:
    features = RNG.normal(size=(3, 64)).astype(np.float32)
    fitted = posthoc.fitted_virtual_logit(features, features[:2], np.zeros(2, dtype=np.float32))
    assert fitted is not None
    assert fitted.residual.shape == (64, 32)


def test_constant_features_have_no_virtual_logit() -> None:
    weight, bias = np.eye(2, 4), np.zeros(2)
    assert posthoc.fitted_virtual_logit(np.zeros((6, 4)), weight, bias) is None


def test_clipped_activations_have_the_energy_of_their_logits(arrays) -> None:
    threshold = posthoc.react_threshold(arrays(FEATURES))
    assert threshold == pytest.approx(np.percentile(FEATURES, 90))
    expected = -logsumexp(np.minimum(POINTS, threshold) @ WEIGHT.T + BIAS, axis=1)
    scores = posthoc.react_energy(arrays(POINTS), arrays(WEIGHT), arrays(BIAS), threshold=threshold)
    np.testing.assert_allclose(scores, expected, rtol=1e-12)


@settings(max_examples=25)
@given(st.floats(-50, 50), st.integers(1, 6))
def test_a_constant_added_to_logits_lowers_energy_and_max_logit_by_it(shift: float, rows: int) -> None:
    logits = LOGITS[:rows]
    for score in (posthoc.energy, posthoc.max_logit):
        np.testing.assert_allclose(score(logits + shift), score(logits) - shift, atol=1e-9)
    np.testing.assert_array_less(posthoc.energy(logits), posthoc.max_logit(logits))
