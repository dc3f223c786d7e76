"""Regions of maps: boundaries, and one number for an image, against loops over the pixels."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bnuq import metrics

laws = settings(max_examples=25, deadline=None)
seeds = st.integers(0, 1000)


def maps(seed, low=1):
    """A mask of a few classes, an uncertainty and the valid pixels."""
    generator = np.random.default_rng(seed)
    shape = tuple(generator.integers(low, 9, 2))
    mask = np.repeat(np.repeat(generator.integers(0, 3, (5, 5)), 2, 0), 2, 1)[: shape[0], : shape[1]]
    return mask, generator.random(shape), generator.random(shape) < 0.8


FOUR = [(0, 1), (1, 0), (0, -1), (-1, 0)]


# ── boundaries ───────────────────────────────────────────────────────────────────────────────────────────────────────


@laws
@given(seeds)
def test_pixels_near_a_boundary_are_those_near_a_pixel_beside_another_class(seed):
    mask, _, valid = maps(seed)
    boundary = [
        (y, x)
        for y, x in zip(*np.nonzero(valid), strict=True)
        if any(
            0 <= y + a < mask.shape[0] and 0 <= x + b < mask.shape[1] and valid[y + a, x + b]
            and mask[y + a, x + b] != mask[y, x]
            for a, b in FOUR
        )
    ]  # fmt: skip
    for reach in (1, 2, 3):
        near = metrics.near_boundary(mask, valid, reach=reach)
        for y, x in np.ndindex(mask.shape):
            assert near[y, x] == any(math.hypot(y - a, x - b) <= reach for a, b in boundary)


# ── one number for an image ──────────────────────────────────────────────────────────────────────────────────────────


@laws
@given(seeds, st.integers(1, 4), st.floats(0, 0.99))
def test_aggregations_are_those_of_the_pixels(seed, patch, quantile):
    _, score, valid = maps(seed)
    values = sorted(score[valid], reverse=True)
    if not values:
        return
    assert metrics.map_mean(score, valid) == pytest.approx(np.mean(values))
    tail = values[: max(1, math.ceil((1 - quantile) * len(values) - 1e-9))]
    assert metrics.map_upper_tail(score, valid, quantile=quantile) == pytest.approx(np.mean(tail))
    height, width = (min(patch, side) for side in valid.shape)
    windows = [
        score[y : y + height, x : x + width][valid[y : y + height, x : x + width]]
        for y in range(valid.shape[0] - height + 1)
        for x in range(valid.shape[1] - width + 1)
    ]
    fullest = max(map(len, windows))
    expected = max(np.mean(window) for window in windows if len(window) and len(window) >= fullest / 2)
    assert metrics.map_patch_maximum(score, valid, patch=patch) == pytest.approx(expected)


def test_an_image_whose_pixels_are_all_ignored_has_no_uncertainty():
    score, valid = np.ones((4, 5)), np.zeros((4, 5), bool)
    assert math.isnan(metrics.map_mean(score, valid))
    assert math.isnan(metrics.map_upper_tail(score, valid))
    assert math.isnan(metrics.map_patch_maximum(score, valid))
    assert not metrics.near_boundary(score.astype(int), valid, reach=2).any()
