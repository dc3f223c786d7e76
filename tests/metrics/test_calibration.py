"""Calibration: every point is in exactly one bin, and the last bin is visited."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from bnuq import metrics
from bnuq.metrics import resampling

laws = settings(max_examples=50, deadline=None)
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
    bins = metrics.calibration_bins(confidence, correct, bins=7)
    assert (bins.count.sum(-1) == confidence.shape[1]).all()


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
    drawn = metrics.ece_bootstrap(confidence, correct, resamples=4, seed=seed, group=group)
    times = resampling.resampled_counts(
        np.random.default_rng(seed), 4, bin_of_point=np.arange(confidence.size), bins=confidence.size, group=group
    )
    for row, error in zip(times, drawn, strict=True):
        copies = metrics.calibration_bins(np.repeat(confidence, row), np.repeat(correct, row))
        assert error == pytest.approx(float(metrics.ece_of_bins(copies)), abs=1e-5 if dtype == np.float32 else 1e-12)


def test_the_last_bin_is_visited_by_a_confidence_of_exactly_1():
    bins = metrics.calibration_bins(np.array([1.0]), np.array([0.0]))
    assert list(bins.count) == [0] * 14 + [1]
    sure_and_wrong = np.array([[1.0, 0.0], [1.0, 0.0]])
    assert metrics.ece(sure_and_wrong, np.array([1, 1])) == 1


def test_the_first_bin_takes_a_confidence_of_exactly_0():
    assert list(metrics.calibration_bins(np.array([0.0]), np.array([0.0])).count) == [1] + [0] * 14


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_an_edge_belongs_to_the_bin_below_in_either_precision(dtype):
    edges = np.array([k / 15 for k in range(1, 16)], dtype=dtype)
    assert list(metrics.calibration_bins(edges, np.ones_like(edges)).count) == [1] * 15


def test_calibration_error_by_hand():
    # Two points at .6, one right: |.5 − .6| · 2/3; one at .9, right: |1 − .9| · 1/3.
    p = np.array([[0.6, 0.4], [0.4, 0.6], [0.9, 0.1]])
    value = metrics.ece(p, np.array([0, 0, 0]))
    assert isinstance(value, float)
    assert value == pytest.approx(0.1)


def test_gaps_of_opposite_sign_cancel_within_a_bin_and_add_across_bins():
    assert metrics.ece(np.array([[0.75, 0.25]] * 4), np.array([0, 0, 0, 1])) == pytest.approx(0)
    apart = metrics.calibration_bins(np.array([0.7, 0.8]), np.array([1.0, 0.0]))
    assert metrics.ece_of_bins(apart) == pytest.approx((0.3 + 0.8) / 2)
