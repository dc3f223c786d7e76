"""Conformal prediction sets: against loops over classes, and what they promise of points that are exchangeable."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from bnuq import metrics


def probabilities(points: int, classes: int = 5, *, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    p = random.dirichlet(np.full(classes, 0.5), points)
    return p, np.array([random.choice(classes, p=row) for row in p])


def lac_by_hand(p: np.ndarray, k: int) -> float:
    return 1 - p[k]


def aps_by_hand(p: np.ndarray, k: int) -> float:
    return sum(p[j] for j in range(len(p)) if p[j] > p[k])


KINDS = {
    "lac": (lac_by_hand, metrics.lac_score, metrics.lac_size, -1.0),  # −p orders as 1 − p does
    "aps": (aps_by_hand, metrics.aps_score, metrics.aps_size, 0.0),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("classes", [2, 5])
def test_scores_and_sizes_are_those_of_loops(kind: str, classes: int) -> None:
    by_hand, score, size, offset = KINDS[kind]
    p, y = probabilities(60, classes)
    expected = np.array([[by_hand(row, k) for k in range(classes)] for row in p])
    np.testing.assert_allclose(score(p, y), expected[np.arange(60), y] + offset, atol=1e-7)
    threshold = np.random.default_rng(1).uniform(0.05, 1, 60)
    np.testing.assert_array_equal(size(p, threshold + offset), (expected <= threshold[:, None]).sum(1))
    np.testing.assert_array_equal(size(torch.from_numpy(p), threshold + offset), size(p, threshold + offset))
    replicates = np.stack([p, p[:, ::-1]])
    np.testing.assert_array_equal(size(replicates, threshold + offset)[0], size(p, threshold + offset))
    np.testing.assert_array_equal(score(replicates, y)[0], score(p, y))


def test_classes_of_equal_probability_are_in_a_set_together() -> None:
    p = np.array([[0.4, 0.2, 0.4], [0.25, 0.5, 0.25]])
    for y in ([0, 0], [2, 2]):
        np.testing.assert_allclose(metrics.aps_score(p, np.array(y)), [0.0, 0.5])
    assert metrics.aps_size(p, np.zeros(2)).tolist() == [2, 1]
    assert metrics.aps_size(p, np.full(2, 0.5)).tolist() == [2, 3]
    assert metrics.lac_size(p, np.full(2, -0.25)).tolist() == [2, 3]


@pytest.mark.parametrize(
    ("points", "coverage", "rank"),
    [(9, 0.9, 9), (99, 0.55, 55), (20, 0.9, 19), (8, 0.9, None), (1, 0.5, 1), (0, 0.5, None)],
)
def test_the_threshold_is_a_rank_of_the_calibration_scores_or_infinite(points, coverage, rank):
    scores = np.random.default_rng(2).permutation(points) + 1.0
    assert metrics.conformal_threshold(scores, coverage) == (math.inf if rank is None else rank)


def test_too_few_calibration_points_leave_every_class_in_the_sets() -> None:
    p, y = probabilities(8)
    for _, score, size, _ in KINDS.values():
        assert (size(p, np.full(8, metrics.conformal_threshold(score(p, y), 0.9))) == 5).all()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("coverage", [0.5, 0.9])
def test_sets_cover_exchangeable_points_as_often_as_promised(kind: str, coverage: float) -> None:
    """Over 400 calibration sets of 49 points: scores without ties cover exactly as often, also by wrong ones."""
    _, score, _, _ = KINDS[kind]
    p, y = probabilities(400 * 50, seed=3)
    p = p**2 / (p**2).sum(1, keepdims=True)  # overconfident
    scores = score(p, y).reshape(400, 50)
    covered = [values[49] <= metrics.conformal_threshold(values[:49], coverage) for values in scores]
    sd = math.sqrt(coverage * (1 - coverage) / 400)
    assert np.mean(covered) >= coverage - 3 * sd
    assert kind == "aps" or np.mean(covered) <= coverage + 3 * sd  # a point predicted right has an APS score of 0
