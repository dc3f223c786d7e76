"""What a monitor keeps of the reference: directions in which it varies, its law, and shifts in units of the noise."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from nets import trained_cnn, trained_small
from torch import nn

from bnuq.sampling.statistics import statistics_of
from bnuq.studies.monitor.baseline import block_test, codes, mean_scores, split, watched_blocks, whitening
from bnuq.studies.monitor.features import MOST_CHANNELS, Block, Watch
from bnuq.studies.monitor.record import STEPS
from bnuq.tasks import CLASSIFICATION, MULTILABEL, REGRESSION, SEGMENTATION


def correlated(random: np.random.Generator, rows: int, columns: int = 8) -> np.ndarray:
    """Normal rows whose variances along the principal directions range over four powers of ten."""
    turn = np.linalg.qr(np.random.default_rng(7).normal(size=(columns, columns)))[0]
    return random.normal(size=(rows, columns)) * np.logspace(0, -2, columns) @ turn + 3.0


def blocks_of(fitted: np.ndarray, kept: np.ndarray) -> tuple:
    return watched_blocks(fitted, kept, [Block("bn", "layer", slice(0, fitted.shape[1]))], 0)


# ── features ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_means_of_features_are_the_statistics_of_the_batch():
    network = trained_cnn()
    inputs = torch.rand(32, 3, 8, 8) * 3
    watch = Watch(network, CLASSIFICATION, inputs[:3])
    features = watch.passes(inputs)[0].numpy()
    assert [(block.name, block.kind) for block in watch.blocks] == [
        ("bn", "layer"), ("outputs", "outputs"), ("predictive_entropy", "score"), ("least_confidence", "score"),
        ("energy", "score"),
    ]  # fmt: skip
    [layer] = statistics_of(network, [inputs]).layers
    first, second = features[:, :4].mean(0), features[:, 4:8].mean(0)
    assert first + network.bn.running_mean.numpy() == pytest.approx(layer.mean[0], rel=1e-5)
    assert second - first**2 == pytest.approx(layer.var[0], rel=1e-5)


def test_features_of_a_point_do_not_depend_on_its_batch_and_nothing_in_the_network_changes():
    network = trained_small().train()
    before = {name: value.clone() for name, value in network.state_dict().items()}
    inputs = torch.randn(20, 6)
    watch = Watch(network, CLASSIFICATION, inputs[:3])
    assert torch.allclose(watch.passes(inputs)[0][:5], watch.passes(inputs[:5])[0])
    assert network.training
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())


def test_probabilities_and_scores_are_those_of_the_network():
    network, inputs = trained_small(), torch.randn(20, 6)
    watch = Watch(network, CLASSIFICATION, inputs[:3])
    features = {block.name: watch.passes(inputs)[0][:, block.columns] for block in watch.blocks}
    with torch.no_grad():
        p = network(inputs).double().softmax(1)
    assert torch.allclose(features["outputs"], p, atol=1e-6)
    assert torch.allclose(features["predictive_entropy"][:, 0], -(p * p.log()).sum(1), atol=1e-5)
    assert torch.allclose(features["least_confidence"][:, 0], 1 - p.amax(1), atol=1e-6)


@pytest.mark.parametrize(
    ("task", "names"),
    [(REGRESSION, ["outputs"]), (MULTILABEL, ["outputs", "predictive_entropy", "least_confidence", "energy"])],
)
def test_a_regression_has_no_scores_and_labels_have_those_of_two_classes(task, names):
    network, inputs = trained_small(), torch.randn(20, 6)
    watch = Watch(network, task, inputs[:3])
    assert [block.name for block in watch.blocks if block.kind != "layer"] == names
    with torch.no_grad():
        outputs = network(inputs).double()
    expected = outputs if task is REGRESSION else outputs.sigmoid()
    columns = next(block.columns for block in watch.blocks if block.name == "outputs")
    assert torch.allclose(watch.passes(inputs)[0][:, columns], expected, atol=1e-6)


@pytest.mark.parametrize("value", [-math.inf, -1e9])
def test_a_masked_class_has_finite_features(value: float):
    network, inputs = Masked(value).eval(), torch.randn(20, 6)
    watch, bare = (Watch(of, CLASSIFICATION, inputs[:3]) for of in (network, Masked(-1e9).eval()))
    bare._model.load_state_dict(network.state_dict())
    features = watch.passes(inputs)[0]
    assert torch.isfinite(features).all()
    assert torch.allclose(features, bare.passes(inputs)[0])
    entropies = next(block.columns for block in watch.blocks if block.name == "predictive_entropy")
    assert (features[:, entropies] > 0).all()


class Masked(nn.Module):
    """A network whose second class is masked by this value after its last layer."""

    def __init__(self, value: float):
        super().__init__()
        self.layer, self.value = nn.Linear(6, 4), value

    def forward(self, x):
        return self.layer(x).masked_fill(torch.arange(4) == 1, self.value)


def test_scores_of_pictures_are_means_over_their_pixels():
    network, inputs = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4)).eval(), torch.rand(6, 3, 5, 5)
    watch = Watch(network, SEGMENTATION, inputs[:3])
    columns = next(block.columns for block in watch.blocks if block.name == "predictive_entropy")
    with torch.no_grad():
        p = network(inputs).double().softmax(1)
    assert torch.allclose(watch.passes(inputs)[0][:, columns][:, 0], -(p * p.log()).sum(1).mean((1, 2)), atol=1e-6)


def test_a_network_without_batchnorm_is_watched_at_its_last_layer():
    network = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3)).eval()
    inputs = torch.randn(10, 6)
    watch = Watch(network, CLASSIFICATION, inputs[:3])
    features = network[:2](inputs).double()
    assert watch.batchnorms == 0 and watch.blocks[0].columns == slice(0, 10)
    assert torch.allclose(watch.passes(inputs)[0][:, :10], torch.cat([features, features**2], 1), atol=1e-6)


def test_of_a_wide_layer_some_channels_are_watched_always_the_same():
    network = nn.Sequential(nn.Linear(6, 200), nn.BatchNorm1d(200), nn.ReLU(), nn.Linear(200, 3)).eval()
    inputs = torch.randn(10, 6)
    first, again = (Watch(network, CLASSIFICATION, inputs[:3]) for _ in range(2))
    assert first.blocks[0].columns == slice(0, 2 * MOST_CHANNELS)
    assert torch.equal(first.passes(inputs), again.passes(inputs))


# ── directions and their law ─────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("most", [8, 6])
def test_other_points_are_nearly_white_along_the_directions(most):
    random = np.random.default_rng(0)
    fitted, others = correlated(random, 4000) - 3.0, correlated(random, 4000) - 3.0
    white = others @ whitening(fitted, most, random)
    assert white.shape[1] == most
    assert np.cov(white.T) == pytest.approx(np.eye(most), abs=0.15)


def test_there_are_directions_with_fewer_points_than_columns():
    random = np.random.default_rng(1)
    fitted, others = correlated(random, 20, 60) - 3.0, correlated(random, 500, 60) - 3.0
    directions = whitening(fitted, 5, random)
    assert np.isfinite(directions).all()
    assert (others @ directions).var(axis=0).min() > 0.2


def test_a_direction_along_which_nothing_varies_is_zero():
    random = np.random.default_rng(2)
    values = random.normal(size=(200, 3))
    values = np.column_stack([values, -values.sum(axis=1)])  # as probabilities, whose sum is 1
    assert (np.abs(values @ whitening(values, 4, random)).max(axis=0) > 1e-3).sum() == 3


def test_the_law_holds_for_normal_points_and_not_for_those_of_rare_extremes():
    random = np.random.default_rng(3)
    [normal], _ = blocks_of(correlated(random, 1500), correlated(random, 1500))
    assert 0.01 <= normal.law <= 0.11
    extremes = [np.where(random.uniform(size=(1500, 1)) < 0.002, 60.0, 1.0) * correlated(random, 1500) for _ in "ab"]
    [extreme], _ = blocks_of(*extremes)
    assert abs(extreme.law - 0.05) > abs(normal.law - 0.05)


def test_codes_are_coordinates_in_steps_and_far_ones_end_at_eight_deviations():
    random = np.random.default_rng(4)
    [block], bag = blocks_of(correlated(random, 600), kept := correlated(random, 300))
    assert np.array_equal(bag, codes(kept, block))
    assert np.abs(bag / STEPS - (kept - block.centre) / block.scale @ block.directions).max() <= 0.5 / STEPS + 1e-4
    far = codes(kept + 1e6, block)
    assert set(np.abs(far.astype(int)).ravel()) <= {*range(128)} and np.abs(far.astype(int)).max() == 127


@pytest.mark.parametrize(("records", "factor"), [(1, 5e3), (1, 1e4), (3, 1e8)])
def test_a_few_records_that_are_far_off_are_not_the_unit_of_all_others(records, factor):
    random = np.random.default_rng(6)
    fitted = correlated(random, 1000)
    fitted[:records] *= factor
    [_], bag = blocks_of(fitted, correlated(random, 2000))
    assert (bag / STEPS).std(axis=0) == pytest.approx(1.0, abs=0.25)


def test_constant_columns_are_left_out_and_a_block_of_them_alone_too():
    random = np.random.default_rng(5)
    fitted, kept = (np.column_stack([correlated(random, 200, 4), np.full((200, 2), 0.25)]) for _ in "ab")
    blocks = [Block("bn", "layer", slice(0, 4)), Block("dead", "score", slice(4, 5)), Block("x", "score", slice(3, 4))]
    watched, bag = watched_blocks(fitted, kept, blocks, 0)
    assert [block.name for block in watched] == ["bn", "x"]
    assert bag.shape[1] == sum(block.directions.shape[1] for block in watched)
    assert watched_blocks(fitted[:, 4:], kept[:, 4:], [Block("dead", "layer", slice(0, 2))], 0)[0] == ()


def test_the_reference_is_split_into_a_third_and_the_rest():
    fitted, kept = split(900, 0)
    assert (len(fitted), len(kept)) == (300, 600) and not {*fitted} & {*kept}
    fitted, kept = split(100_000, 0)
    assert (len(fitted), len(kept)) == (1333, 2000)


# ── shifts ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_shifts_are_in_units_of_what_mini_batches_of_training_vary():
    """Batches whose means are moved by two of their own standard deviations, and whose variances by three."""
    random, unit = np.random.default_rng(6), 16

    def features(count: int, mean: float = 0.0, scale: float = 1.0) -> np.ndarray:
        values = mean + scale * random.normal(size=(count, 2, 9))  # of two channels at nine positions
        return np.concatenate([values.mean(2), (values**2).mean(2)], axis=1)

    fitted, kept = features(3000), features(40_000)
    [block], _ = blocks_of(fitted, kept)
    batches = [features(unit) for _ in range(4000)]
    means = np.array([batch[:, :2].mean(0) for batch in batches])
    variances = np.array([batch[:, 2:].mean(0) for batch in batches]) - means**2
    by, factor = 2 * means.std(axis=0).mean(), 1 + 3 * variances.std(axis=0).mean()
    moved = block_test(block, features(40_000, by, math.sqrt(factor)), 1.0, unit=unit, kept=40_000)
    assert (moved.mean_shift, moved.variance_shift) == pytest.approx((2.0, 3.0), rel=0.06)


def test_without_a_shift_what_chance_explains_is_taken_away():
    random = np.random.default_rng(8)
    [block], _ = blocks_of(correlated(random, 900), kept := correlated(random, 900))
    found = [block_test(block, correlated(random, 25), 1.0, unit=64, kept=len(kept)) for _ in range(80)]
    squares = [test.mean_shift**2 for test in found]
    assert np.mean(squares) < 0.5 * 64 / 25  # the mean of what is above chance, where its square would be 64/25
    assert min(squares) == 0.0


def test_of_a_score_both_means_are_kept():
    block = Block("energy", "score", slice(0, 1))
    values = np.random.default_rng(9).normal(size=(300, 1))
    [watched], _ = watched_blocks(values[:100], values[100:], [block], 0)
    found = block_test(watched, values[:50] + 2, 0.03, unit=64, kept=200)
    assert found.p_value == 0.03 and found.mean_shift is None
    means = mean_scores([watched], [values[:50] + 2], 200)
    of_reference, of_batch = means["reference"]["energy"], means["batch"]["energy"]
    assert (of_reference.value, of_batch.value) == pytest.approx(
        (values[100:].mean(), values[:50].mean() + 2), abs=1e-6
    )
    assert (of_reference.se, of_batch.se) == pytest.approx((1 / 200**0.5, 1 / 50**0.5), rel=0.15)
    assert mean_scores([replace(watched, kind="outputs")], [values], 200) == {"reference": {}, "batch": {}}
