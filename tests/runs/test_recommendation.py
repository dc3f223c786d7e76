"""Which batch sizes are as good as the recommended one, and what an adaptive sweep evaluates next."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import small_sweep
import torch

from bnuq.data import Points
from bnuq.estimates import Estimate
from bnuq.metrics.replicates import error_of_change
from bnuq.studies.sweep.estimates import set_estimates
from bnuq.studies.sweep.recommendation import Grid
from bnuq.studies.sweep.record import Decay
from bnuq.studies.sweep.sizes import AtSize
from bnuq.tasks import CLASSIFICATION


@pytest.mark.parametrize(
    ("difference", "within"),
    [
        (Estimate(-9.79, se=3.0, mc_se=4.0), True),  # 1.96 times both errors together
        (Estimate(-9.81, se=3.0, mc_se=4.0), False),
        (Estimate(-9.79, se=3.0, mc_se=4.0, low=-19.0, high=-0.1), False),
        (Estimate(-1e-9), False),
    ],
)
def test_a_size_may_be_as_good_where_the_interval_of_its_difference_holds_0(difference, within):
    made = replace(small_sweep.single().recommended, behind={16: Estimate(0.0), 32: difference}, within=(99,))
    assert made.within == ((16, 32) if within else (16,))


def test_the_scores_of_ood_sets_are_those_of_the_points_whatever_the_task_is_called():
    scores = {"mutual_information": np.array([[0.1, 0.2], [0.1, 0.3]]), "energy": np.ones((2, 2))}
    at_size = AtSize(8, False, {"test": scores, "far": scores}, (), None, None)
    sets = {name: Points(name, name, torch.zeros(2, 1), None) for name in ("test", "far")}
    _, auroc = set_estimates(at_size, sets, {"far": sets["far"]}, replace(CLASSIFICATION, name="ordinal"))
    assert auroc["mutual_information"]["far"].estimate.value == 0.5 and auroc.keys() == {"mutual_information"}


def chosen(best: int, predicted: float, **behind: tuple[float, float]) -> Any:
    differences = {int(size[1:]): Estimate(value, mc_se=mc_se) for size, (value, mc_se) in behind.items()}
    differences[best] = Estimate(0.0, mc_se=0.0)
    values = {"batch_size": best, "predicted_batch_size": Estimate(predicted), "behind": differences}
    return SimpleNamespace(criterion="elbo", **values)


GRID = Grid((16, 32, 64, 128, 256), 5, 20, by_peak=True)


@pytest.mark.parametrize(
    ("sets", "best", "decay", "expected"),
    [
        ({16: 2, 256: 2}, chosen(16, 60.0, b256=(-9, 1)), None, ({64: 2}, "decided")),  # the predicted size first
        ({16: 2, 256: 2}, chosen(16, 14.0, b256=(-9, 1)), None, ({32: 2}, "decided")),  # then those next to the best
        ({16: 2, 32: 2, 256: 2}, chosen(16, 14.0, b32=(-9, 1), b256=(-9, 1)), None, ({}, "decided")),
        # 2 · 10 · √(1 − 2/5) = 15.5: the draw sets that are left could still make it the best
        ({16: 2, 32: 2, 256: 2}, chosen(16, 14.0, b32=(-15, 10), b256=(-99, 1)), None, ({16: 1, 32: 1}, "draw-sets")),
        ({16: 2, 32: 2, 256: 2}, chosen(16, 14.0, b32=(-16, 10), b256=(-99, 1)), None, ({}, "decided")),
        ({16: 5, 32: 5, 256: 2}, chosen(16, 14.0, b32=(-1, 10), b256=(-99, 1)), None, ({}, "decided")),
        ({16: 3, 32: 2}, chosen(16, 14.0, b32=(-99, 1)), (-1.4, -0.7), ({32: 1}, "draw-sets")),
        ({16: 5, 32: 5}, chosen(16, 14.0, b32=(-99, 1)), (-1.4, -0.7), ({}, "draw-sets")),
        ({16: 2, 32: 2}, chosen(16, 14.0, b32=(-99, 1)), (-1.2, -0.9), ({}, "decided")),
    ],
)
def test_sizes_are_added_around_the_best_and_draw_sets_where_they_could_change_the_answer(sets, best, decay, expected):
    slope = None if decay is None else Decay(Estimate(-1.0, low=decay[0], high=decay[1]), 0.0, tuple(sets))
    assert GRID.next(sets, best, slope) == expected


def test_the_error_of_a_change_is_that_of_pairs_and_counts_further_draws_once():
    rng = np.random.default_rng(0)
    shared = rng.standard_normal((4000, 8))
    first, second = shared + rng.standard_normal((4000, 8)), np.hstack([shared, rng.standard_normal((4000, 4))])
    d = first[0] - second[0, :8]
    assert error_of_change(first[0], second[0, :8]) == pytest.approx(d.std(ddof=1) / 8**0.5)
    errors = [error_of_change(a, b) for a, b in zip(first, second, strict=True)]
    true = (first.mean(1) - second.mean(1)).std()
    assert np.sqrt(np.mean(np.square(errors))) == pytest.approx(true, rel=0.05)
