"""Regions of maps: boundaries, components and one number for an image, against loops over the pixels."""

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


def flooded(mask, steps):
    """The connected components of a mask, each as the set of its pixels, by flooding."""
    left, found = set(zip(*map(list, np.nonzero(mask)), strict=True)), []
    while left:
        component, front = set(), {left.pop()}
        while front:
            component |= front
            front = {(y + a, x + b) for y, x in front for a, b in steps} & left
            left -= front
        found.append(component)
    return found


FOUR = [(0, 1), (1, 0), (0, -1), (-1, 0)]
EIGHT = [*FOUR, (1, 1), (1, -1), (-1, 1), (-1, -1)]


# ── boundaries ───────────────────────────────────────────────────────────────────────────────────────────────────────


@laws
@given(seeds)
def test_the_distance_is_that_to_the_nearest_pixel_beside_another_class(seed):
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
    distance = metrics.boundary_distance(mask, valid)
    for reach in (1, 2, 3):
        np.testing.assert_array_equal(metrics.near_boundary(mask, valid, reach=reach), distance <= reach)
        near = metrics.boundary_distance(mask, valid, reach=reach)
        np.testing.assert_array_equal(near, np.minimum(distance, reach))
    for y, x in np.ndindex(mask.shape):
        assert distance[y, x] == pytest.approx(min((math.hypot(y - a, x - b) for a, b in boundary), default=math.inf))


@laws
@given(seeds)
def test_the_profile_sums_the_score_at_each_whole_distance(seed):
    mask, score, valid = maps(seed)
    distance = metrics.boundary_distance(mask, valid)
    total, count = metrics.distance_profile(score, distance, valid, reach=3)
    for place in range(4):
        here = valid & ((distance >= 3) if place == 3 else (np.floor(distance) == place))
        assert count[place] == here.sum()
        assert total[place] == pytest.approx(score[here].sum())


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
    assert metrics.map_share_above(score, valid, threshold=0.6) == pytest.approx(np.mean([v > 0.6 for v in values]))
    height, width = (min(patch, side) for side in valid.shape)
    windows = [
        score[y : y + height, x : x + width][valid[y : y + height, x : x + width]]
        for y in range(valid.shape[0] - height + 1)
        for x in range(valid.shape[1] - width + 1)
    ]
    fullest = max(map(len, windows))
    expected = max(np.mean(window) for window in windows if len(window) and len(window) >= fullest / 2)
    assert metrics.map_patch_maximum(score, valid, patch=patch) == pytest.approx(expected)
    tiles = [
        score[y : y + patch, x : x + patch][valid[y : y + patch, x : x + patch]]
        for y in range(0, valid.shape[0], patch)
        for x in range(0, valid.shape[1], patch)
    ]
    assert metrics.patch_means(score, valid, patch=patch) == pytest.approx([t.mean() for t in tiles if len(t)])


def test_an_image_whose_pixels_are_all_ignored_has_no_uncertainty():
    score, valid = np.ones((4, 5)), np.zeros((4, 5), bool)
    assert math.isnan(metrics.map_mean(score, valid))
    assert math.isnan(metrics.map_upper_tail(score, valid))
    assert math.isnan(metrics.map_patch_maximum(score, valid))
    assert math.isnan(metrics.map_share_above(score, valid, threshold=0.0))
    assert metrics.patch_means(score, valid, patch=2).size == 0
    assert np.isinf(metrics.boundary_distance(score.astype(int), valid)).all()


# ── components ───────────────────────────────────────────────────────────────────────────────────────────────────────


@laws
@given(seeds, st.sampled_from([4, 8]))
def test_components_are_those_of_flooding_with_their_size_and_mean(seed, connectivity):
    mask, score, _ = maps(seed)
    label = metrics.components(mask == 1, connectivity=connectivity)
    size, mean = metrics.component_means(label, score)
    pixels = [set(zip(*map(list, np.nonzero(label == k + 1)), strict=True)) for k in range(label.max())]
    expected = flooded(mask == 1, FOUR if connectivity == 4 else EIGHT)
    assert [sorted(component) for component in pixels] == sorted(map(sorted, expected))  # in the order of their pixels
    assert size.tolist() == [len(component) for component in pixels]
    assert mean == pytest.approx([np.mean([score[p] for p in component]) for component in pixels])


@laws
@given(seeds)
def test_components_vary_between_draws_by_what_touches_them(seed):
    mask, _, _ = maps(seed, low=3)
    generator = np.random.default_rng(seed)
    draws = np.stack([(mask == 1) & (generator.random(mask.shape) < keep) for keep in (1, 0.8, 0.5, 0.1)])
    draws[3] |= generator.random(mask.shape) < 0.1
    label = metrics.components(mask == 1)
    variation, agreement = metrics.component_variation(label, draws)
    for k in range(label.max()):
        component = set(zip(*map(list, np.nonzero(label == k + 1)), strict=True))
        found = [set().union(*(part for part in flooded(draw, EIGHT) if part & component)) for draw in draws]
        sizes = [len(of) for of in found]
        pairs = [(a, b) for i, a in enumerate(found) for b in found[i + 1 :] if a | b]
        assert variation[k] == pytest.approx(np.std(sizes) / np.mean(sizes))
        assert agreement[k] == pytest.approx(np.mean([len(a & b) / len(a | b) for a, b in pairs]))


def test_a_component_that_no_draw_has_varies_by_no_number():
    label = metrics.components(np.ones((2, 2), bool))
    variation, agreement = metrics.component_variation(label, np.zeros((3, 2, 2), bool))
    assert np.isnan([variation[0], agreement[0]]).all()
    variation, agreement = metrics.component_variation(label, np.ones((1, 2, 2), bool))
    assert variation[0] == 0
    assert np.isnan(agreement[0])
