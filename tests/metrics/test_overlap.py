"""Overlap of masks: pooled counts are those of the sets of pixels, draws are compared in pairs."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bnuq import metrics

laws = settings(max_examples=25, deadline=None)
CLASSES = 4


def masks(seed, count=5):
    """Truth, prediction and valid pixels of images of different sizes; class 3 never occurs."""
    generator = np.random.default_rng(seed)
    for _ in range(count):
        shape = tuple(generator.integers(1, 7, 2))
        truth = generator.integers(0, 3, shape)
        yield truth, np.where(generator.random(shape) < 0.7, truth, 1), generator.random(shape) < 0.8


def counts_of(truth, predicted, valid):
    true, called = truth[valid], predicted[valid]
    return np.stack([np.bincount(of, minlength=CLASSES) for of in (true, called, true[true == called])])


def scores_of(truth, predicted, k):
    true, called = (set(np.flatnonzero(of == k)) for of in (truth, predicted))
    both, either = len(true & called), len(true | called)
    return (both / either, 2 * both / (len(true) + len(called))) if either else (math.nan, math.nan)


@laws
@given(st.integers(0, 1000))
def test_iou_and_dice_are_those_of_the_pixels_pooled_and_of_each_image(seed):
    images = list(masks(seed))
    counts = np.stack([counts_of(*image) for image in images], axis=1)
    pooled = [np.concatenate([part[image[2]] for part, image in zip(parts, images, strict=True)])
              for parts in list(zip(*images, strict=True))[:2]]  # fmt: skip
    for number, (truth, predicted) in enumerate([pooled, *((t[v], p[v]) for t, p, v in images)]):
        expected = np.array([scores_of(truth, predicted, k) for k in range(CLASSES)]).T
        here = counts.sum(1) if number == 0 else counts[:, number - 1]
        for estimate, values in zip((metrics.iou_of_counts, metrics.dice_of_counts), expected, strict=True):
            assert estimate(*here) == pytest.approx(values, nan_ok=True)
            present = values[~np.isnan(values)]
            mean = present.mean() if present.size else math.nan
            assert metrics.mean_of_present(estimate(*here)) == pytest.approx(mean, nan_ok=True)


@pytest.mark.parametrize(("estimate", "contributions"), [
    (metrics.iou_of_counts, metrics.iou_contributions),
    (metrics.dice_of_counts, metrics.dice_contributions),
])  # fmt: skip
def test_contributions_have_the_pooled_value_as_their_mean_and_the_error_of_the_bootstrap(estimate, contributions):
    generator = np.random.default_rng(0)
    sizes, quality = generator.integers(20, 100, (200, CLASSES)), generator.beta(4, 2, (200, CLASSES))
    counts = sizes, generator.poisson(sizes), np.round(sizes * quality).astype(int)
    counts = counts[0], np.maximum(counts[1], counts[2]), counts[2]
    counts = tuple(np.pad(of, ((0, 0), (0, 1))) for of in counts)  # a class that does not occur
    found = contributions(*counts)
    pooled = estimate(*(of.sum(0) for of in counts))
    assert found.mean(0) == pytest.approx(pooled, nan_ok=True)
    assert metrics.mean_of_present(found).mean() == pytest.approx(float(np.mean(pooled[:CLASSES])))
    drawn = generator.multinomial(200, np.full(200, 1 / 200), 1000)
    replicates = estimate(*(drawn @ of for of in counts))
    assert metrics.standard_error(found[:, 0]) == pytest.approx(np.std(replicates[:, 0]), rel=0.1)
    error = metrics.standard_error(metrics.mean_of_present(found))
    assert error == pytest.approx(np.std(metrics.mean_of_present(replicates)), rel=0.1)


@laws
@given(st.integers(0, 1000))
def test_draws_are_compared_pair_by_pair(seed):
    generator = np.random.default_rng(seed)
    labels = generator.integers(0, 3, (4, 3, 5)).astype(np.uint8)
    valid = generator.random((3, 5)) < 0.8
    common = metrics.overlap_of_draws(labels, valid, classes=CLASSES)
    expected = []
    for first, second in itertools.combinations(labels, 2):
        dice = [scores_of(first[valid], second[valid], k)[1] for k in range(CLASSES)]
        if not np.isnan(dice).all():
            expected.append(np.nanmean(dice))
    assert metrics.pairwise_dice(common) == pytest.approx(np.mean(expected) if expected else math.nan, nan_ok=True)
    assert (
        [[np.sum(of[valid] == k) for k in range(4)] for of in labels] == np.diagonal(common, axis1=1, axis2=2).T
    ).all()


def test_draws_that_agree_have_a_dice_of_1_and_a_single_one_has_none():
    labels = np.zeros((3, 300, 300), int)
    assert metrics.pairwise_dice(metrics.overlap_of_draws(labels, np.ones((300, 300), bool), classes=2)) == 1
    assert math.isnan(metrics.pairwise_dice(metrics.overlap_of_draws(labels[:1], labels[0] == 0, classes=2)))


@laws
@given(st.integers(0, 1000), st.floats(0, 0.99))
def test_aggregations_are_those_of_the_pixels(seed, quantile):
    generator = np.random.default_rng(seed)
    shape = tuple(generator.integers(1, 9, 2))
    score, valid = generator.random(shape), generator.random(shape) < 0.8
    values = sorted(score[valid], reverse=True)
    if not values:
        return
    assert metrics.map_mean(score, valid) == pytest.approx(np.mean(values))
    tail = values[: max(1, math.ceil((1 - quantile) * len(values) - 1e-9))]
    assert metrics.map_upper_tail(score, valid, quantile=quantile) == pytest.approx(np.mean(tail))


def test_an_image_whose_pixels_are_all_ignored_has_no_uncertainty():
    score, valid = np.ones((4, 5)), np.zeros((4, 5), bool)
    assert math.isnan(metrics.map_mean(score, valid))
    assert math.isnan(metrics.map_upper_tail(score, valid))
