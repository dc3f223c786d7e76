"""Points by the million: memory that does not grow with them, and a bootstrap that draws cells in place of points."""

import tracemalloc

import numpy as np
import pytest

from bnuq import metrics
from bnuq.metrics import posthoc, resampling


@pytest.fixture
def few_are_many(monkeypatch):
    """Draw cells from 1,000 points on, 500 of them."""
    monkeypatch.setattr(resampling, "_CELLS", 500)
    monkeypatch.setattr(resampling, "EXACT", 1000)


def _bootstraps(confidence, right, loss, ood):
    drawn = {"ece": metrics.ece_of_bins(metrics.calibration_bootstrap(confidence, right, resamples=400))}
    for name, of in (("errors", 1 - right), ("losses", loss)):
        drawn |= {
            f"{key} {name}": v for key, v in vars(metrics.selective_bootstrap(-confidence, of, resamples=400)).items()
        }
    return drawn | vars(metrics.detection_bootstrap(-confidence, -ood, resamples=400))


def test_cells_vary_among_resamples_as_points_do(request):
    rng = np.random.default_rng(3)
    confidence = np.concatenate([rng.beta(5, 1, 3000), np.ones(500)])  # a tie that is larger than a cell
    right = (rng.random(3500) < confidence).astype(float)
    loss, ood = 0.1 * np.abs(rng.normal(size=3500)) * (1.1 - confidence), rng.beta(3, 1, 2000)
    points = _bootstraps(confidence, right, loss, ood)
    request.getfixturevalue("few_are_many")
    cells = _bootstraps(confidence, right, loss, ood)
    for name, of_points in points.items():
        assert np.std(cells[name]) == pytest.approx(np.std(of_points), rel=0.2), name  # 400 resamples: 5 % each
        assert abs(np.median(cells[name]) - np.median(of_points)) <= 0.4 * np.std(of_points), name


@pytest.mark.usefixtures("few_are_many")
def test_cells_hold_equally_many_neighbouring_points_and_never_part_of_a_tie():
    counts = np.array([1] * 2000 + [700] + [1] * 300)
    cells = resampling.cells_of(counts)
    assert cells[0] == 0 and set(np.diff(cells)) == {0, 1}
    sizes = np.bincount(cells, weights=counts)
    assert sizes.sum() == 3000 and (sizes[sizes < 700] <= 6).all() and (sizes >= 700).sum() == 1
    np.testing.assert_array_equal(resampling.cells_of(np.array([2, 3, 1])), [0, 1, 2])  # of few points, each rung


def test_the_nearest_neighbours_of_many_points_are_exact_in_bounded_memory(monkeypatch):
    rng = np.random.default_rng(0)
    bank, features = rng.normal(size=(5003, 8)), rng.normal(size=(4000, 8))
    neighbours = posthoc.fitted_neighbours(bank, k=50)
    monkeypatch.setattr(posthoc, "_COSINES", 2**18)
    tracemalloc.start()
    found = posthoc.neighbour_distance(features, neighbours)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    units = features / np.linalg.norm(features, axis=1, keepdims=True)
    distances = np.sqrt(np.maximum(0, 2 - 2 * units[:500] @ neighbours.bank.T))
    np.testing.assert_allclose(found[:500], np.sort(distances, axis=1)[:, 49], rtol=1e-7)
    assert peak < 4 * 8 * 2**18 < features.shape[0] * bank.shape[0] * 8 / 10
