"""Which batch sizes are as good as the recommended one, and what an adaptive sweep evaluates next."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from bnuq.estimates import Estimate
from bnuq.metrics.replicates import error_of_change
from bnuq.studies.sweep.recommendation import Grid, within_one_error
from bnuq.studies.sweep.record import Decay


@pytest.mark.parametrize(("difference", "within"), [(-4.99, True), (-5.0, True), (-5.01, False), (0.0, True)])
def test_a_size_is_as_good_where_it_lies_behind_by_no_more_than_both_errors_together(difference, within):
    behind = {16: Estimate(0.0, se=0.0, mc_se=0.0), 32: Estimate(difference, se=3.0, mc_se=4.0)}
    assert within_one_error(behind) == ((16, 32) if within else (16,))


def test_a_difference_without_an_error_must_be_0():
    assert within_one_error({16: Estimate(0.0), 32: Estimate(-1e-9)}) == (16,)


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
