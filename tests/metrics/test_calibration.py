"""Calibration: every point is in exactly one bin, and the last bin is visited."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from bnuq import metrics
from bnuq.metrics import resampling

laws = settings(max_examples=25, deadline=None)
# Edges of the bins, the ends and the middle, as well as anything
confidences = st.one_of(st.integers(0, 15).map(lambda k: k / 15), st.floats(0, 1))


@st.composite
def predictions(draw):
    shape = (draw(st.integers(1, 3)), draw(st.integers(1, 12)))
    confidence = draw(hnp.arrays(np.float64, shape, elements=confidences))
    return confidence, draw(hnp.arrays(np.int64, shape, elements=st.integers(0, 1))).astype(float)


@laws
@given(predictions())
def test_bins_hold_what_a_loop_over_points_puts_there(predictions):
    confidence, correct = predictions
    bins = metrics.calibration_bins(confidence, correct)
    for replicate in range(confidence.shape[0]):
        for k in range(15):
            low, high = k / 15, (k + 1) / 15
            inside = (confidence[replicate] > low) & (confidence[replicate] <= high)
            if k == 0:
                inside |= confidence[replicate] == 0
            assert bins.count[replicate, k] == inside.sum()
            assert bins.confidence[replicate, k] == pytest.approx(confidence[replicate][inside].sum())
            assert bins.correct[replicate, k] == correct[replicate][inside].sum()


@laws
@given(predictions())
def test_every_point_is_in_exactly_one_bin(predictions):
    confidence, correct = predictions
    assert (metrics.calibration_bins(confidence, correct, bins=7).count.sum(-1) == confidence.shape[1]).all()


@laws
@given(predictions(), st.integers(0, 12))
def test_bins_of_two_chunks_add_up_to_the_bins_of_all(predictions, cut):
    confidence, correct = predictions
    whole = metrics.calibration_bins(confidence, correct)
    parts = metrics.calibration_bins(confidence[:, :cut], correct[:, :cut]) + metrics.calibration_bins(
        confidence[:, cut:], correct[:, cut:]
    )
    assert (parts.count == whole.count).all()
    assert metrics.ece_of_bins(parts) == pytest.approx(metrics.ece_of_bins(whole), abs=1e-12)


@laws
@given(predictions())
def test_calibration_error_is_between_0_and_1_and_the_same_in_torch(predictions):
    confidence, correct = predictions
    error = metrics.ece_of_bins(metrics.calibration_bins(confidence, correct))
    assert error.shape == confidence.shape[:1]
    assert ((error >= 0) & (error <= 1)).all()
    in_torch = metrics.ece_of_bins(metrics.calibration_bins(torch.from_numpy(confidence), torch.from_numpy(correct)))
    assert isinstance(in_torch, torch.Tensor)
    assert in_torch.numpy() == pytest.approx(error, abs=1e-12)


@laws
@given(predictions(), st.integers(0, 100), st.booleans(), st.sampled_from([np.float32, np.float64]))
def test_bootstrap_replicates_are_the_errors_of_copied_points(predictions, seed, grouped, dtype):
    confidence, correct = (part[0].astype(dtype) for part in predictions)
    group = np.arange(confidence.size) // 3 if grouped else None
    drawn = metrics.ece_of_bins(metrics.calibration_bootstrap(confidence, correct, resamples=4, seed=seed, group=group))
    times = resampling.resampled_counts(
        np.random.default_rng(seed), 4, bin_of_point=np.arange(confidence.size), bins=confidence.size, group=group
    )
    for row, error in zip(times, drawn, strict=True):
        copies = metrics.calibration_bins(np.repeat(confidence, row), np.repeat(correct, row))
        assert error == pytest.approx(float(metrics.ece_of_bins(copies)), abs=1e-5 if dtype == np.float32 else 1e-12)


def test_the_last_bin_is_visited_by_a_confidence_of_exactly_1():
    assert list(metrics.calibration_bins(np.array([1.0]), np.array([0.0])).count) == [0] * 14 + [1]
    assert metrics.ece(np.array([[1.0, 0.0], [1.0, 0.0]]), np.array([1, 1])) == 1


def test_the_first_bin_takes_a_confidence_of_exactly_0():
    assert list(metrics.calibration_bins(np.array([0.0]), np.array([0.0])).count) == [1] + [0] * 14


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_an_edge_belongs_to_the_bin_below_in_either_precision(dtype):
    edges = np.array([k / 15 for k in range(1, 16)], dtype=dtype)
    assert list(metrics.calibration_bins(edges, np.ones_like(edges)).count) == [1] * 15


def test_calibration_error_by_hand():
    # Two points at .6, one right: |.5 − .6| · 2/3; one at .9, right: |1 − .9| · 1/3.
    value = metrics.ece(np.array([[0.6, 0.4], [0.4, 0.6], [0.9, 0.1]]), np.array([0, 0, 0]))
    assert isinstance(value, float)
    assert value == pytest.approx(0.1)


def test_gaps_of_opposite_sign_cancel_within_a_bin_and_add_across_bins():
    assert metrics.ece(np.array([[0.75, 0.25]] * 4), np.array([0, 0, 0, 1])) == pytest.approx(0)
    apart = metrics.calibration_bins(np.array([0.7, 0.8]), np.array([1.0, 0.0]))
    assert metrics.ece_of_bins(apart) == pytest.approx((0.3 + 0.8) / 2)


# ── adaptive, debiased and maximum calibration error, by loops in float64 ────────────────────────────────────────────


def adaptive_by_loops(confidence, correct):
    """Ties count with their mean, so that each place of the order has the mean gap of its tie."""
    order = sorted(range(len(confidence)), key=lambda i: confidence[i])
    n, total = len(order), 0.0
    gaps = []
    for i in order:
        tied = [j for j in order if confidence[j] == confidence[i]]
        gaps.append(sum(correct[j] - confidence[j] for j in tied) / len(tied))
    for k in range(15):
        total += abs(sum(gaps[k * n // 15 : (k + 1) * n // 15]))
    return total / n


def of_bins_by_loops(confidence, correct):
    """The debiased root mean square and the maximum of the gaps."""
    square, largest = 0.0, 0.0
    for k in range(15):
        inside = [i for i, c in enumerate(confidence) if k / 15 < c <= (k + 1) / 15 or (k == 0 and c == 0)]
        if not inside:
            continue
        accuracy = sum(correct[i] for i in inside) / len(inside)
        gap = accuracy - sum(confidence[i] for i in inside) / len(inside)
        if len(inside) > 1:
            square += len(inside) / len(confidence) * (gap**2 - accuracy * (1 - accuracy) / (len(inside) - 1))
        largest = max(largest, abs(gap))
    return math.sqrt(max(0.0, square)), largest


def check_against_loops(confidence, correct):
    bins = metrics.calibration_bins(confidence, correct)
    debiased, largest = of_bins_by_loops(confidence, correct)
    assert metrics.ece_adaptive(confidence, correct) == pytest.approx(adaptive_by_loops(confidence, correct), abs=1e-12)
    assert float(metrics.mce_of_bins(bins)) == pytest.approx(largest, abs=1e-12)
    assert float(metrics.ece_debiased_of_bins(bins)) == pytest.approx(debiased, abs=1e-7)


@laws
@given(predictions())
def test_adaptive_debiased_and_maximum_errors_are_those_of_loops(predictions):
    for confidence, correct in zip(*predictions, strict=True):
        check_against_loops(confidence, correct)


def test_adaptive_debiased_and_maximum_errors_of_many_points_are_those_of_loops():
    generator = np.random.default_rng(0)
    confidence = np.round(generator.uniform(0.1, 1, 200), 2)  # some ties
    check_against_loops(confidence, (generator.uniform(size=200) < confidence**2).astype(float))


@pytest.mark.parametrize("right", [0.0, 1.0])
@pytest.mark.parametrize("points", [1, 40])
@pytest.mark.parametrize("tied", [False, True])
def test_where_all_are_right_or_all_wrong_every_error_is_that_of_the_confidence(right, points, tied):
    confidence = np.full(points, 0.7) if tied else np.linspace(0.7, 0.72, points)
    check_against_loops(confidence, np.full(points, right))
    gap = abs(right - confidence.mean())
    bins = metrics.calibration_bins(confidence, np.full(points, right))
    values = metrics.ece_adaptive(confidence, np.full(points, right)), metrics.mce_of_bins(bins)
    debiased = gap if points > 1 else 0.0  # of one point no noise is known
    assert [*values, metrics.ece_debiased_of_bins(bins)] == pytest.approx([gap, gap, debiased])


def test_the_floor_of_the_error_is_that_of_labels_drawn_from_the_confidences():
    random = np.random.default_rng(3)
    for confidence in (random.uniform(0.3, 1, 300), random.beta(9, 1, 2000), 1 - random.exponential(1e-3, 2000)):
        drawn = (random.random((1000, len(confidence))) < confidence).astype(float)
        by_points = metrics.ece_of_bins(metrics.calibration_bins(np.broadcast_to(confidence, drawn.shape), drawn))
        bins = metrics.calibration_bins(confidence, drawn[0])
        floor = metrics.ece_floor(bins.count, bins.confidence / np.maximum(bins.count, 1))
        assert floor == pytest.approx((by_points.mean(), np.quantile(by_points, 0.95)), rel=0.08)
    assert metrics.ece_floor(np.array([0, 5]), np.array([np.nan, 1.0])) == (0, 0)


def test_the_order_of_points_of_equal_confidence_does_not_matter():
    correct = np.array([1.0, 0.0] * 20)
    assert metrics.ece_adaptive(np.full(40, 0.5), correct) == pytest.approx(0, abs=1e-12)
    assert metrics.ece_adaptive(np.full(40, 0.5), np.sort(correct)) == pytest.approx(0, abs=1e-12)


def test_without_miscalibration_the_debiased_error_is_nearer_0_than_the_plain_one():
    generator = np.random.default_rng(1)
    plain, debiased = [], []
    for _ in range(200):
        confidence = generator.uniform(0.2, 1, 200)
        bins = metrics.calibration_bins(confidence, (generator.uniform(size=200) < confidence).astype(float))
        plain.append(float(metrics.ece_of_bins(bins)))
        debiased.append(float(metrics.ece_debiased_of_bins(bins)))
    assert np.mean(plain) > 0.06 and np.mean(debiased) < np.mean(plain) / 1.8
    assert np.median(debiased) < 0.03


def test_a_batch_of_replicates_has_the_errors_of_each_and_torch_those_of_numpy():
    generator = np.random.default_rng(2)
    confidence = generator.uniform(0.1, 1, (3, 30))
    correct = generator.integers(0, 2, (3, 30)).astype(float)
    bins = metrics.calibration_bins(confidence, correct)
    in_torch = metrics.calibration_bins(torch.from_numpy(confidence), torch.from_numpy(correct))
    for of_bins in (metrics.mce_of_bins, metrics.ece_debiased_of_bins):
        each = [of_bins(metrics.calibration_bins(*row)) for row in zip(confidence, correct, strict=True)]
        assert of_bins(bins) == pytest.approx(each)
        assert of_bins(in_torch).numpy() == pytest.approx(each)


@pytest.mark.parametrize(("points", "classes"), [(200, 4), (30, 2), (3, 7)])
def test_the_classwise_error_is_that_of_loops_over_classes_and_bins(points, classes):
    random = np.random.default_rng(points)
    p, y = random.dirichlet(np.ones(classes), points), random.integers(classes, size=points)
    total = 0.0
    for k in range(classes):
        for b in range(15):
            inside = [i for i in range(points) if b / 15 < p[i, k] <= (b + 1) / 15]
            total += abs(sum((y[i] == k) - p[i, k] for i in inside))
    assert metrics.ece_classwise(p, y).mean() == pytest.approx(total / (points * classes), rel=1e-12)
    assert metrics.ece_classwise(torch.from_numpy(p), y).mean() == pytest.approx(total / (points * classes))
    draws = random.dirichlet(np.ones(classes), (6, points))
    signs = metrics.classwise_signs(p, y)
    each = [metrics.ece_classwise(draw, y, signs=signs) for draw in draws]
    np.testing.assert_allclose(metrics.ece_classwise(draws, y, signs=signs), each, rtol=1e-12)


def test_a_classwise_error_sees_what_cancels_in_the_most_probable_class():
    p = np.array([[0.6, 0.4], [0.4, 0.6]]).repeat(50, axis=0)
    y = np.concatenate([np.zeros(50), np.repeat([0, 1], [40, 10])]).astype(int)  # class 0 in 90, predicted in 50
    assert metrics.ece(p, y) == pytest.approx(0.0, abs=1e-12)
    assert metrics.ece_classwise(p, y).mean() == pytest.approx(0.4)
