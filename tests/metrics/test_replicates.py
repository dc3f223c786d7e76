"""The errors of estimates: exact identities of means, then weights that everyone can draw again."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from bnuq import metrics

laws = settings(max_examples=25, deadline=None)
values = hnp.arrays(np.float64, st.integers(2, 20), elements=st.floats(-100, 100))


# Over points


@laws
@given(values)
def test_standard_error_of_a_mean_is_sd_over_root_n(x):
    expected = np.std(x, ddof=1) / math.sqrt(x.size)
    assert metrics.standard_error(x) == pytest.approx(expected, abs=1e-9)
    assert metrics.standard_error(torch.from_numpy(x)) == pytest.approx(expected, abs=1e-9)


@laws
@given(values)
def test_groups_of_one_point_change_nothing(x):
    labels = np.array([f"frame {k}" for k in range(x.size)])
    assert metrics.standard_error(x, group=labels) == pytest.approx(metrics.standard_error(x), abs=1e-9)


@laws
@given(values, st.integers(2, 5))
def test_repeating_every_point_within_its_group_does_not_shrink_the_error(x, times):
    repeated = metrics.standard_error(np.repeat(x, times), group=np.repeat(np.arange(x.size), times))
    assert repeated == pytest.approx(metrics.standard_error(x), abs=1e-9)


def test_standard_error_of_uneven_groups_by_hand():
    # Mean 3; sums of deviations by group −3 and 3; √(2/1 · 18)/3.
    error = metrics.standard_error(np.array([1.0, 2.0, 6.0]), group=np.array([7, 7, 4]))
    assert error == pytest.approx(math.sqrt(2 * 18) / 3)


def test_standard_error_is_absent_where_it_cannot_be_told():
    for x, group in ([], None), ([1.0], None), ([1.0, 2.0], [0, 0]), ([1.0, -math.inf], None):
        group = None if group is None else np.array(group)
        assert math.isnan(metrics.standard_error(np.array(x), group=group))


# Over draws


@laws
@given(values)
def test_jackknife_of_a_mean_is_its_standard_error(x):
    error = metrics.jackknife_error((x.sum() - x) / (x.size - 1))
    assert isinstance(error, float)
    assert error == pytest.approx(metrics.standard_error(x), abs=1e-9)


@laws
@given(hnp.arrays(np.float64, (5, 2, 3), elements=st.floats(-100, 100)))
def test_errors_go_along_the_first_axis_and_keep_the_kind(replicates):
    for error in (metrics.jackknife_error, lambda values: metrics.bootstrap_error(values, samples=8)):
        errors = error(replicates)
        assert errors.shape == (2, 3)
        assert errors[1, 2] == pytest.approx(error(replicates[:, 1, 2]), abs=1e-12)
        in_torch = error(torch.from_numpy(replicates))
        assert isinstance(in_torch, torch.Tensor)
        assert in_torch.numpy() == pytest.approx(errors, abs=1e-12)


def test_bootstrap_over_draws_of_a_mean_is_its_standard_error():
    x = np.random.default_rng(0).normal(size=16)
    weights = metrics.draw_weights(16, resamples=4000, seed=1)
    error = metrics.bootstrap_error(weights.weights[weights.bootstrap] @ x, samples=16)
    assert isinstance(error, float)
    assert error == pytest.approx(metrics.standard_error(x), rel=0.05)


def test_bootstrap_error_undoes_that_resampling_shrinks_the_variance():
    replicates = np.array([1.0, 2.0, 4.0])
    assert metrics.bootstrap_error(replicates, samples=4) == pytest.approx(
        np.std(replicates, ddof=1) * math.sqrt(4 / 3)
    )


def test_monte_carlo_errors_are_absent_where_they_cannot_be_told():
    assert math.isnan(metrics.jackknife_error(np.array([1.0])))
    assert math.isnan(metrics.jackknife_error(np.array([])))
    assert math.isnan(metrics.jackknife_error(np.array([1.0, -math.inf])))
    assert np.isnan(metrics.jackknife_error(np.empty((0, 2)))).tolist() == [True, True]
    assert math.isnan(metrics.bootstrap_error(np.array([1.0, 2.0]), samples=1))
    assert math.isnan(metrics.bootstrap_error(np.array([1.0]), samples=5))


# Weights


@laws
@given(st.integers(1, 70), st.integers(0, 20), st.integers(0, 2**63))
def test_every_row_of_weights_is_an_average(samples, resamples, seed):
    drawn = metrics.draw_weights(samples, resamples=resamples, seed=seed)
    assert drawn.weights.dtype == np.float64
    assert (drawn.weights >= 0).all()
    assert drawn.weights.sum(1) == pytest.approx(np.ones(len(drawn.weights)))
    parts = [drawn.full, drawn.jackknife, drawn.bootstrap, drawn.prefix]
    assert [row for part in parts for row in range(part.start, part.stop)] == [*range(len(drawn.weights))]


@laws
@given(st.integers(2, 40))
def test_leave_one_out_rows_leave_out_one_draw_each(samples):
    drawn = metrics.draw_weights(samples, resamples=3, seed=0)
    left_out = drawn.weights[drawn.jackknife]
    assert left_out.shape == (samples, samples)
    assert (np.diag(left_out) == 0).all()
    assert (left_out[~np.eye(samples, dtype=bool)] == 1 / (samples - 1)).all()


@pytest.mark.parametrize(
    ("samples", "sizes"), [(1, (1,)), (2, (1, 2)), (5, (1, 2, 4, 5)), (8, (1, 2, 4, 8)), (9, (1, 2, 4, 8, 9))]
)
def test_prefix_rows_average_the_first_draws_in_doublings_up_to_all(samples, sizes):
    drawn = metrics.draw_weights(samples, resamples=3, seed=0)
    assert drawn.prefix_sizes == sizes
    for size, row in zip(sizes, drawn.weights[drawn.prefix], strict=True):
        assert (row[:size] == 1 / size).all()
        assert (row[size:] == 0).all()
    assert (drawn.weights[drawn.prefix][-1] == drawn.weights[drawn.full][0]).all()


def test_a_single_draw_has_neither_leave_one_out_nor_bootstrap_rows():
    drawn = metrics.draw_weights(1, resamples=10, seed=0)
    assert drawn.weights.tolist() == [[1.0], [1.0]]
    assert drawn.weights[drawn.jackknife].shape == drawn.weights[drawn.bootstrap].shape == (0, 1)


def test_bootstrap_weights_can_be_drawn_again_from_their_seed():
    first, again, other = (metrics.draw_weights(12, resamples=30, seed=seed) for seed in (4, 4, 5))
    assert (first.weights == again.weights).all()
    assert (first.weights[first.bootstrap] != other.weights[other.bootstrap]).any()
    counts = first.weights[first.bootstrap] * 12
    assert counts == pytest.approx(np.round(counts))


def test_bootstrap_weights_are_not_touched_by_the_global_generator():
    first = metrics.draw_weights(12, resamples=30, seed=4).weights
    np.random.seed(0)
    before = np.random.get_state()[1].copy()
    assert (metrics.draw_weights(12, resamples=30, seed=4).weights == first).all()
    assert (np.random.get_state()[1] == before).all()


# A bank of draws


@laws
@given(st.integers(1, 20), st.integers(0, 30), st.integers(0, 2**32), st.data())
def test_among_tells_what_every_row_over_the_bank_comes_to_for_points_that_use_some_of_it(samples, more, seed, data):
    bank = samples + more
    drawn = metrics.draw_weights(samples, resamples=9, seed=seed, bank=bank)
    numbers = np.array(data.draw(st.permutations(range(bank)))[:samples])
    own, rows = drawn.among(numbers)
    assert drawn.samples == own.samples == samples and own.weights.shape[1] == samples
    assert rows.shape == (len(drawn.weights),)
    expected = drawn.weights[:, numbers]
    expected[drawn.prefix] = drawn.weights[drawn.prefix][:, :samples]  # the first of its own, whichever they are
    total = expected.sum(1, keepdims=True)
    expected = np.where(total > 0, expected / np.where(total > 0, total, 1), 1 / samples)
    assert own.weights[rows] == pytest.approx(expected)


@laws
@given(st.integers(1, 20), st.integers(0, 2**32))
def test_a_bank_of_t_draws_is_no_bank(samples, seed):
    plain = metrics.draw_weights(samples, resamples=9, seed=seed)
    drawn = metrics.draw_weights(samples, resamples=9, seed=seed, bank=samples)
    assert np.array_equal(drawn.weights, plain.weights)
    own, rows = drawn.among(np.arange(samples))
    assert own.weights[rows] == pytest.approx(plain.weights)
    if samples >= 2:
        replicates = np.arange(9.0)
        of_plain, of_bank = (metrics.bootstrap_error(replicates, samples=samples, bank=b) for b in (None, samples))
        assert of_plain == of_bank


def test_a_resample_that_misses_all_draws_of_a_point_weighs_them_alike():
    drawn = metrics.draw_weights(2, resamples=200, seed=0, bank=12)
    missed = drawn.weights[drawn.bootstrap][:, :2].sum(1) == 0
    assert missed.any()
    own, _ = drawn.among(np.array([0, 1]))
    assert (own.weights[own.bootstrap][missed] == 0.5).all()


@pytest.mark.parametrize("own", [0.0, 1.0])
def test_errors_over_a_bank_are_those_of_a_mean_over_tiles(own):
    """Each tile averages T of N numbers; with `own`, of numbers that each tile sees in its own way."""
    samples, bank, tiles, repeats = 8, 24, 12, 200
    generator = np.random.default_rng(0)
    drawn = metrics.draw_weights(samples, resamples=100, seed=0, bank=bank)
    means, jackknifed, resampled = [], [], []
    for _ in range(repeats):
        seen = own * generator.normal(size=(tiles, bank)) + (1 - own) * generator.normal(size=bank)
        rows = np.zeros(len(drawn.weights))
        for tile in seen:
            numbers = generator.permutation(bank)[:samples]
            weights, places = drawn.among(numbers)
            rows += (weights.weights @ tile[numbers])[places] / tiles
        means.append(rows[drawn.full][0])
        jackknifed.append(metrics.jackknife_error(rows[drawn.jackknife]))
        resampled.append(metrics.bootstrap_error(rows[drawn.bootstrap], samples=samples, bank=bank))
    spread = np.std(means, ddof=1)  # known to 5 %
    allowed = math.sqrt(23 / 24 * 8 / 7) if own else 1.0  # too large by that where each tile moves for itself
    assert np.sqrt(np.mean(np.square(jackknifed))) / spread == pytest.approx(allowed, rel=0.15)
    assert np.sqrt(np.mean(np.square(resampled))) / spread == pytest.approx(allowed, rel=0.2)
