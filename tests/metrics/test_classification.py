"""Point scores of classifiers: laws first, then values from outside."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from bnuq import metrics

laws = settings(max_examples=25, deadline=None)
SAMPLES = st.integers(1, 6)
PER_POINT = [metrics.predictive_entropy, metrics.expected_entropy, metrics.mutual_information, metrics.max_probability]


@st.composite
def probabilities(draw, *, samples=SAMPLES):
    """(T, n, K) with exact zeros, exact ties and one-hot rows among them."""
    shape = (draw(samples), draw(st.integers(1, 4)), draw(st.integers(2, 5)))
    counts = draw(hnp.arrays(np.int64, shape, elements=st.integers(0, 4)))
    counts[..., 0] += counts.sum(-1) == 0
    return counts / counts.sum(-1, keepdims=True)


@st.composite
def labelled(draw, **shape):
    p = draw(probabilities(**shape))
    return p, draw(hnp.arrays(np.int64, p.shape[1], elements=st.integers(0, p.shape[2] - 1)))


def average_over_subsets(estimate, p, size):
    return np.mean([estimate(p[list(chosen)]) for chosen in itertools.combinations(range(p.shape[0]), size)], axis=0)


# Laws


@laws
@given(probabilities())
def test_mutual_information_is_the_mean_divergence_from_the_mean_prediction(p):
    mean = p.mean(0)
    divergence = np.sum(p * np.log(np.where(p > 0, p / np.where(mean > 0, mean, 1), 1)), axis=-1).mean(0)
    assert metrics.mutual_information(p) == pytest.approx(divergence, abs=1e-12)
    assert (metrics.mutual_information(p) > -1e-12).all()


@laws
@given(probabilities())
def test_mutual_information_is_at_most_the_log_of_classes_and_of_samples(p):
    assert (metrics.mutual_information(p) <= math.log(min(p.shape[0], p.shape[2])) + 1e-12).all()


@laws
@given(probabilities(samples=st.just(1)), st.integers(1, 7))
def test_mutual_information_is_zero_when_all_passes_agree(p, samples):
    for kind in (np.float32, np.float64):
        assert (metrics.mutual_information(np.repeat(p, samples, axis=0).astype(kind)) == 0).all()


@laws
@given(labelled(samples=st.integers(2, 5)))
def test_pll_and_mutual_information_averaged_over_all_subsets_do_not_fall_with_samples(labelled):
    p, y = labelled
    p = 0.9 * p + 0.1 / p.shape[2]
    for estimate in (lambda p: metrics.pll_classification(p, y), metrics.mutual_information):
        by_size = [average_over_subsets(estimate, p, size) for size in range(1, p.shape[0] + 1)]
        assert (np.diff(by_size, axis=0) > -1e-12).all()


@laws
@given(labelled(), st.randoms(use_true_random=False))
def test_the_order_of_samples_and_points_does_not_matter(labelled, random):
    p, y = labelled
    samples, points = ([*range(size)] for size in p.shape[:2])
    random.shuffle(samples)
    random.shuffle(points)
    shuffled = p[samples][:, points]
    for estimate in PER_POINT:
        assert estimate(shuffled) == pytest.approx(estimate(p)[points], abs=1e-12)
    assert metrics.pll_classification(shuffled, y[points]) == pytest.approx(metrics.pll_classification(p, y)[points])


@laws
@given(labelled())
def test_torch_gives_what_numpy_gives_in_its_own_kind(labelled):
    p, y = labelled
    p_torch, y_torch = torch.from_numpy(p), torch.from_numpy(y)
    for estimate in (*PER_POINT, metrics.entropy, metrics.predicted):
        theirs = estimate(p_torch)
        assert isinstance(theirs, torch.Tensor)
        assert theirs.numpy() == pytest.approx(estimate(p), abs=1e-12)
    for estimate in (metrics.pll_classification, metrics.brier, metrics.correct):
        assert estimate(p_torch, y_torch).numpy() == pytest.approx(estimate(p, y), abs=1e-12)
    assert metrics.accuracy(p_torch[0], y_torch) == metrics.accuracy(p[0], y)
    logits = 3 * p
    of_torch, of_numpy = metrics.log_likelihood(torch.from_numpy(logits), y_torch), metrics.log_likelihood(logits, y)
    assert of_torch.numpy() == pytest.approx(of_numpy)
    weights = metrics.draw_weights(p.shape[0], resamples=5, seed=0).weights
    pll = metrics.pll_from_log_likelihood(of_torch, weights)
    assert pll.numpy() == pytest.approx(metrics.pll_from_log_likelihood(of_numpy, weights))


@laws
@given(
    hnp.arrays(np.float64, (5, 3, 4), elements=st.floats(-30, 30)), hnp.arrays(np.int64, 3, elements=st.integers(0, 3))
)
def test_pll_from_log_likelihoods_is_the_pll_from_probabilities(logits, y):
    p = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    log_likelihood = metrics.log_likelihood(logits, y)
    assert log_likelihood.shape == (5, 3)
    assert metrics.pll_from_log_likelihood(log_likelihood) == pytest.approx(metrics.pll_classification(p, y))


@laws
@given(hnp.arrays(np.float64, (4, 3), elements=st.floats(-3000, 0)), st.integers(0, 99))
def test_every_replicate_of_the_pll_is_a_weighted_logsumexp(log_likelihood, seed):
    weights = metrics.draw_weights(4, resamples=6, seed=seed).weights
    for row, pll in zip(weights, metrics.pll_from_log_likelihood(log_likelihood, weights), strict=True):
        kept = log_likelihood[row > 0] + np.log(row[row > 0])[:, None]
        assert pll == pytest.approx(np.logaddexp.reduce(kept, axis=0), rel=1e-12, abs=1e-12)
        assert metrics.pll_from_log_likelihood(log_likelihood, row) == pytest.approx(pll, rel=1e-12, abs=1e-12)


@laws
@given(labelled())
def test_brier_is_between_0_and_2_and_zero_for_a_sure_hit(labelled):
    p, y = labelled
    scores = metrics.brier(p.mean(0), y)
    assert ((scores >= 0) & (scores <= 2)).all()
    assert (metrics.brier(np.eye(p.shape[2])[y], y) == 0).all()


@laws
@given(labelled())
def test_samples_are_scored_by_their_mean_and_not_one_by_one(labelled):
    p, y = labelled
    mean = metrics.predictive(p)
    for estimate in (metrics.brier, metrics.correct, metrics.accuracy, metrics.ece):
        assert np.array_equal(estimate(p, y), estimate(mean, y))
    assert np.array_equal(metrics.least_confidence(p), metrics.least_confidence(mean))


def test_accuracy_of_samples_that_disagree_is_that_of_their_mean():
    p = np.array([[[0.9, 0.1]], [[0.4, 0.6]], [[0.4, 0.6]]])  # the votes are wrong twice, the mean is right
    assert metrics.accuracy(p, np.array([0])) == 1.0
    assert metrics.brier(p, np.array([0])) == pytest.approx([2 * (1 - 1.7 / 3) ** 2])
    assert metrics.ece(p, np.array([0])) == pytest.approx(1 - 1.7 / 3)


# Values and edges


def test_entropy_is_finite_where_a_probability_is_zero():
    assert metrics.entropy(np.array([[0.5, 0.25, 0.25, 0.0]])) == pytest.approx([1.5 * math.log(2)])


@pytest.mark.parametrize("kind", [np.asarray, torch.tensor])
def test_entropy_of_a_sure_prediction_is_zero_and_not_minus_zero(kind):
    entropy = float(metrics.entropy(kind([[0.0, 1.0, 0.0]]))[0])
    assert entropy == 0
    assert math.copysign(1, entropy) == 1


def test_mutual_information_reaches_the_log_of_samples_when_sure_passes_all_differ():
    assert metrics.mutual_information(np.eye(3)[:, None, :]) == pytest.approx([math.log(3)])


def test_mutual_information_in_float32_is_within_a_millionth():
    p = np.random.default_rng(0).dirichlet(np.full(10, 0.3), size=(64, 500))
    in_float32 = metrics.mutual_information(p.astype(np.float32))
    assert in_float32.dtype == np.float32
    assert in_float32 == pytest.approx(metrics.mutual_information(p), abs=1e-6)


def test_pll_is_the_log_of_the_mean_and_not_the_mean_of_the_logs():
    p = np.array([[[0.9, 0.1]], [[0.1, 0.9]]])
    assert metrics.pll_classification(p, np.array([0])) == pytest.approx([math.log(0.5)])


def test_pll_is_minus_infinity_where_every_pass_excludes_the_truth():
    p = np.array([[[1.0, 0.0], [0.5, 0.5]]])
    assert list(metrics.pll_classification(p, np.array([1, 1]))) == [-math.inf, math.log(0.5)]
    impossible = np.full((3, 1), -math.inf)
    weights = metrics.draw_weights(3, resamples=2, seed=0).weights
    assert (metrics.pll_from_log_likelihood(impossible, weights) == -math.inf).all()


def test_log_likelihood_is_finite_where_the_probability_underflows():
    logits = np.array([[[1000.0, 0.0]], [[0.0, 0.0]]])
    assert metrics.log_likelihood(logits, np.array([1]))[:, 0] == pytest.approx([-1000, -math.log(2)])


@pytest.mark.parametrize("gap", [10, 700, 720, 740, 800, 5000])
def test_leaving_out_the_only_good_draw_keeps_the_accuracy_of_the_pll(gap):
    without_it = metrics.pll_from_log_likelihood(np.array([[0.0], [-gap], [-gap - 2.0]]), np.array([[0, 0.5, 0.5]]))
    assert without_it[0, 0] == pytest.approx(-gap + math.log((1 + math.exp(-2)) / 2), rel=1e-14)


def test_leaving_out_the_only_good_draw_keeps_the_accuracy_of_the_pll_in_float32():
    without_it = metrics.pll_from_log_likelihood(torch.tensor([[0.0], [-90.0], [-92.0]]), np.array([[0, 0.5, 0.5]]))
    assert without_it.dtype == torch.float32
    assert float(without_it[0, 0]) == pytest.approx(-90 + math.log((1 + math.exp(-2)) / 2), rel=1e-6)


def test_the_lowest_of_tied_classes_is_predicted():
    tied = np.array([[0.2, 0.4, 0.4], [0.5, 0.0, 0.5]])
    assert list(metrics.predicted(tied)) == [1, 0]
    assert metrics.predicted(torch.from_numpy(tied)).tolist() == [1, 0]
    assert list(metrics.correct(tied, np.array([2, 0]))) == [0, 1]


def test_accuracy_is_a_float_share():
    value = metrics.accuracy(np.array([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]]), np.array([0, 1, 1]))
    assert isinstance(value, float)
    assert value == pytest.approx(2 / 3)


def test_brier_by_hand():
    assert metrics.brier(np.array([[0.7, 0.2, 0.1]]), np.array([1])) == pytest.approx([0.49 + 0.64 + 0.01])


@pytest.mark.parametrize("kind", [np.asarray, torch.tensor])
def test_labels_of_bytes_are_indices_and_not_a_mask(kind):
    p = kind([[[0.9, 0.1], [0.3, 0.7]]])
    y = kind([1, 0]).astype(np.uint8) if kind is np.asarray else kind([1, 0], dtype=torch.uint8)
    assert np.asarray(metrics.pll_classification(p, y)) == pytest.approx(np.log([0.1, 0.3]))
    assert np.asarray(metrics.correct(p[0], y)).tolist() == [0, 0]


# Estimators of mutual information


@pytest.mark.parametrize("samples", [1, 2, 5])
def test_estimators_of_mutual_information_by_their_definitions(samples):
    p = np.random.default_rng(0).dirichlet(np.ones(4), size=(samples, 6))
    plug_in = metrics.mutual_information(p)
    found = {name: metrics.mutual_information(p, estimator=name) for name in ("plug-in", "corrected", "jackknife")}
    assert (found["plug-in"] == plug_in).all()
    if samples == 1:
        assert all(values == pytest.approx(np.zeros(6), abs=1e-15) for values in found.values())
        return
    without = np.mean([metrics.mutual_information(np.delete(p, t, axis=0)) for t in range(samples)], axis=0)
    assert found["corrected"] == pytest.approx(plug_in * samples / (samples - 1))
    assert found["jackknife"] == pytest.approx(samples * plug_in - (samples - 1) * without)


def test_estimators_of_mutual_information_are_the_same_in_torch_and_close_in_float32():
    p = np.random.default_rng(1).dirichlet(np.ones(4), size=(16, 6))
    for name in ("plug-in", "corrected", "jackknife"):
        expected = metrics.mutual_information(p, estimator=name)
        in_torch = metrics.mutual_information(torch.from_numpy(p), estimator=name)
        assert isinstance(in_torch, torch.Tensor)
        assert in_torch.numpy() == pytest.approx(expected, abs=1e-13)
        in_float32 = metrics.mutual_information(p.astype(np.float32), estimator=name)
        assert in_float32.dtype == np.float32
        assert in_float32 == pytest.approx(expected, abs=2e-5)


def test_a_jackknifed_mutual_information_of_samples_that_agree_is_zero():
    p = np.tile(np.random.default_rng(2).dirichlet(np.ones(4), size=6), (9, 1, 1))
    assert metrics.mutual_information(p, estimator="jackknife") == pytest.approx(np.zeros(6), abs=1e-13)
