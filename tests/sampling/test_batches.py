"""Which points a mini-batch holds, and with which divisor its variance is taken."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import h5py
import numpy as np
import pytest
import torch
import zoo
from findings_of import values_of
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import bnuq
from bnuq import BatchStatistics
from bnuq.config import SamplerSettings
from bnuq.data import points_of
from bnuq.data.points import Contents
from bnuq.errors import ResultError, SamplingError
from bnuq.evaluation.batch_composition import check_classes, check_mini_batches, members_of, mini_batches
from bnuq.sampling import counter_rng
from bnuq.sampling.site_search import find_sites
from bnuq.sampling.statistics import MeasurementMode, fed
from bnuq.tasks import task_named

SIZES = st.lists(st.integers(1, 12), min_size=1, max_size=6)


def split(sizes: list[int], seed: int = 0) -> tuple[np.ndarray, ...]:
    """Rows in strata of these sizes, mixed up."""
    return tuple(np.split(np.random.default_rng(seed).permutation(sum(sizes)), np.cumsum(sizes)[:-1]))


def starting_at(start: int, monkeypatch: pytest.MonkeyPatch, place: int) -> None:
    """Every key's words are zeros, but for one."""

    def words(_seed: int, _draw: int, _purpose: int, count: int, **_: object) -> np.ndarray:
        found = np.zeros(count, dtype=np.uint64)
        found[place] = start
        return found

    monkeypatch.setattr(counter_rng, "words", words)


@given(sizes=SIZES, share=st.floats(0.01, 1), seed=st.integers(0, 10**6), draw=st.integers(0, 10**6))
def test_a_stratified_batch_holds_each_class_in_proportion_and_no_point_twice(sizes, share, seed, draw):
    size = max(1, round(share * sum(sizes)))
    strata = split(sizes)
    rows = counter_rng.stratified_indices(seed, draw, strata=strata, batch_size=size)
    assert len(rows) == len(set(rows.tolist())) == size
    for one in strata:
        assert abs(np.isin(rows, one).sum() - size * len(one) / sum(sizes)) < 1


@pytest.mark.parametrize(("sizes", "size"), [([3, 7, 20], 6), ([1, 1, 1, 9], 5), ([5, 5], 10), ([13], 4)])
def test_over_all_starts_a_class_has_exactly_its_share_of_stratified_batches(sizes, size, monkeypatch):
    strata, counted = split(sizes), np.zeros(len(sizes), dtype=int)
    for start in range(sum(sizes)):
        with monkeypatch.context() as patch:
            starting_at(start, patch, len(sizes))
            rows = counter_rng.stratified_indices(0, 0, strata=strata, batch_size=size)
        counted += [np.isin(rows, one).sum() for one in strata]
    assert counted.tolist() == [size * one for one in sizes]  # N starts times b / N times the class's points


def test_over_all_choices_a_group_is_drawn_exactly_in_proportion_to_its_size(monkeypatch):
    groups = split([3, 7, 20])
    counted: Counter[int] = Counter()
    for word in range(30):
        with monkeypatch.context() as patch:
            starting_at(word, patch, 0)
            rows = counter_rng.indices_of_one_group(0, 0, groups=groups, batch_size=3)
        (number,) = [k for k, one in enumerate(groups) if np.isin(rows, one).all()]
        counted[number] += 1
    assert [counted[k] for k in range(3)] == [3, 7, 20]


@given(sizes=SIZES, seed=st.integers(0, 10**6), draw=st.integers(0, 10**6))
def test_a_batch_of_one_group_is_of_one_and_holds_no_point_twice(sizes, seed, draw):
    groups = split(sizes)
    rows = counter_rng.indices_of_one_group(seed, draw, groups=groups, batch_size=min(sizes))
    assert len(set(rows.tolist())) == min(sizes)
    assert sum(np.isin(rows, one).all() for one in groups) == 1


def drawn_how(batches: str, *, replacement: bool, size: int = 6, draws: int = 3000) -> np.ndarray:
    """How often each of 30 points came, in so many draws."""
    labels = np.repeat([0, 1, 2], [6, 10, 14])
    train = points_of(Contents(np.zeros((30, 2)), labels, group=labels), name="train", reference="t")
    rows = mini_batches(SamplerSettings(batches=batches, replacement=replacement), train, size, seed=5)
    return np.bincount(np.concatenate([rows(t, counter_rng.BATCH) for t in range(draws)]), minlength=30) / draws


@pytest.mark.parametrize("replacement", [False, True])
@pytest.mark.parametrize("batches", ["random", "stratified", "group"])
def test_every_point_comes_equally_often(batches, replacement):
    often = drawn_how(batches, replacement=replacement)
    spread = np.sqrt(0.2 * 0.8 / 3000) if batches != "group" else np.sqrt(0.2 / 3000)  # above the binomial one
    assert often.sum() == pytest.approx(6)
    assert np.abs(often - 0.2).max() < 4.5 * spread


@pytest.mark.parametrize("replacement", [False, True])
def test_a_smaller_random_batch_is_the_beginning_of_a_larger_one(replacement):
    small, large = (
        counter_rng.batch_indices(1, 2, population=20, batch_size=size, replacement=replacement) for size in (5, 20)
    )
    assert small.tolist() == large[:5].tolist()
    assert (len(set(large.tolist())) == 20) is not replacement


@pytest.mark.parametrize("batches", ["random", "stratified", "group"])
def test_batches_differ_by_draw_and_by_purpose(batches):
    labels = np.repeat([0, 1], 200)
    train = points_of(Contents(np.zeros((400, 2)), labels, group=labels), name="train", reference="t")
    rows = mini_batches(SamplerSettings(batches=batches), train, 10, seed=0)
    keys = [(draw, purpose) for draw in range(3) for purpose in (counter_rng.BATCH, counter_rng.NOISE_MODEL)]
    assert len({tuple(rows(*key).tolist()) for key in keys}) == len(keys)
    assert rows(*keys[1]).tolist() == rows(*keys[1]).tolist()


def test_stratified_batches_take_one_hot_rows_and_whole_numbers_for_classes():
    labels = np.arange(12) % 3
    expected = None
    for targets in (labels, np.eye(3)[labels], labels[:, None].astype(float)):
        train = points_of(Contents(np.zeros((12, 2)), targets), name="train", reference="t")
        rows = mini_batches(SamplerSettings(batches="stratified"), train, 6, seed=0)(0, counter_rng.BATCH)
        assert np.bincount(labels[rows]).tolist() == [2, 2, 2]
        expected = rows.tolist() if expected is None else expected
        assert rows.tolist() == expected


def test_whole_numbers_of_a_regression_are_no_classes():
    """As grades of wine are: 3 to 8, in a table whose labels would look the same."""
    grades = np.random.default_rng(0).integers(3, 9, (40, 1)).astype(float)
    train = points_of(Contents(np.zeros((40, 2)), grades), name="train", reference="wine.csv")
    with pytest.raises(SamplingError, match=r'batches is "stratified".*this is a regression: .*wine\.csv'):
        check_classes(SamplerSettings(batches="stratified"), task_named("regression"), train)
    check_classes(SamplerSettings(batches="stratified"), task_named("classification"), train)
    check_classes(SamplerSettings(), task_named("regression"), train)


def test_members_are_the_rows_of_each_code_that_there_is():
    assert [one.tolist() for one in members_of(np.array([4, 0, 4, 2, 0]))] == [[1, 4], [3], [0, 2]]


@pytest.mark.parametrize(
    ("sampler", "size", "message"),
    [
        (SamplerSettings(batches="stratified"), 4, "the training set (lab.npz) has targets that are not class labels"),
        (
            SamplerSettings(batches="group"),
            4,
            "group Göttingen of the training set (lab.npz) has 3 examples, fewer than the 4",
        ),
        (
            SamplerSettings(batches="group"),
            4,
            "(1 of 2 groups are too small). Use --batch-size 3 or less, --replacement",
        ),
        (SamplerSettings(), 11, "--batch-size is 11; expected 1 to 10"),
    ],
)
def test_what_cannot_be_drawn_is_told_with_size_group_and_reference(sampler, size, message):
    group = np.array(["Uppsala"] * 7 + ["Göttingen"] * 3)
    contents = Contents(np.zeros((10, 2)), np.linspace(0, 1, 10), group=group)
    train = points_of(contents, name="train", reference="lab.npz")
    with pytest.raises(SamplingError) as refused:
        check_mini_batches(sampler, train, size)
    assert message in str(refused.value)
    check_mini_batches(SamplerSettings(batches="group", replacement=True), train, size)
    check_mini_batches(SamplerSettings(batches="group"), train, 3)


@pytest.mark.parametrize(("batches", "what"), [("stratified", "has no labels"), ("group", "names no groups")])
def test_a_reference_without_labels_or_groups_is_refused(batches, what):
    train = points_of(Contents(np.zeros((10, 2))), name="train", reference="lab.npy")
    with pytest.raises(SamplingError, match=what):
        mini_batches(SamplerSettings(batches=batches), train, 4, seed=0)


# ── unbiased variance ────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("kind", ["1d on (N, C)", "2d", "called twice"])
def test_unbiased_is_n_over_n_minus_1_times_biased_at_the_first_layer_and_goes_on_from_there(kind):
    net, batch = zoo.made(kind), zoo.points(kind, 9)
    biased, unbiased = (bnuq.statistics_of(net, batch[None], variance=name) for name in ("biased", "unbiased"))
    n = biased.layers[0].count[0]
    np.testing.assert_allclose(unbiased.layers[0].var, biased.layers[0].var * n / (n - 1), rtol=1e-12)
    np.testing.assert_array_equal(unbiased.layers[0].mean, biased.layers[0].mean)
    assert not np.allclose(unbiased.layers[1].mean, biased.layers[1].mean, rtol=1e-6)
    assert (biased.variance, unbiased.variance) == ("biased", "unbiased")


@pytest.mark.parametrize("kind", ["1d on (N, C)", "2d", "in a shortcut"])
def test_unbiased_statistics_are_those_of_a_loop_by_hand(kind):
    net, batch = zoo.made(kind), zoo.points(kind, 7)
    omega = bnuq.statistics_of(net, batch[None], variance="unbiased")
    found = {}

    def decide(call, x):
        mean, var = zoo.moments_by_hand(x)
        n = x.numel() // x.shape[1]
        found[call] = mean, var * n / (n - 1)
        return found[call]

    with torch.no_grad(), zoo.batchnorm_by_hand(decide):
        net(batch)
    for call, layer in enumerate(omega.layers):
        np.testing.assert_allclose(layer.mean[0], found[call][0].numpy(), rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(layer.var[0], found[call][1].numpy(), rtol=1e-9, atol=1e-12)


def test_the_plain_way_and_the_planned_one_agree_on_the_unbiased():
    net, batch = zoo.made("2d"), zoo.points("2d", 9)
    sites = find_sites(net, fed(net, batch)).live_batchnorms
    with torch.inference_mode(), MeasurementMode(sites, "unbiased") as plain:
        net(batch)
    omega = bnuq.statistics_of(net, batch[None], variance="unbiased")
    for layer, (mean, var, count) in zip(omega.layers, plain.measurement().values(), strict=True):
        np.testing.assert_allclose(layer.mean[0], mean.numpy(), rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(layer.var[0], var.numpy(), rtol=1e-9)
        assert layer.count[0] == count


def test_the_population_is_the_same_whichever_divisor_its_batches_had():
    net, x = zoo.made("1d on (N, C)"), zoo.points("1d on (N, C)", 30)
    biased, unbiased = (
        bnuq.draw(net, x, samples=6, batch_size=5, layers="first:1", variance=name).pooled()
        for name in ("biased", "unbiased")
    )
    np.testing.assert_allclose(unbiased.layers[0].var, biased.layers[0].var, rtol=1e-9)
    assert unbiased.variance == "biased"


def test_a_batch_of_one_image_has_the_statistics_of_its_positions():
    images = torch.randn(6, 3, 5, 5, generator=torch.Generator().manual_seed(0))
    net = nn.Sequential(nn.Conv2d(3, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(27, 2)).eval()
    omega = bnuq.draw(net, images, samples=4, batch_size=1)
    values = net[0](images[omega.indices[:, 0]]).detach()
    np.testing.assert_allclose(omega.layers[0].mean, values.mean((2, 3)), atol=1e-6)
    np.testing.assert_allclose(omega.layers[0].var, values.var((2, 3), unbiased=False), atol=1e-6)
    sets = {"train": images, "test": (images, np.arange(6) % 2), "samples": 4, "methods": ["mcbn"], "threads": 1}
    for batch_size in ({"batch_size": 1}, {"train_batch_size": 1}):
        result = bnuq.evaluate(net, **sets, **batch_size)
        assert result.sampling["batch_size"] == values_of(result, "mcbn-verified")["points"] == 1
    dense = nn.Sequential(nn.Flatten(), nn.Linear(75, 3), nn.BatchNorm1d(3)).eval()
    with pytest.raises(SamplingError, match="--batch-size is 1, and layer 2 has one value per channel and example;"):
        bnuq.evaluate(dense, **sets, batch_size=1)
    assert bnuq.evaluate(dense, **sets, train_batch_size=1).sampling["batch_size"] == 2


def test_a_bank_says_which_variance_it_holds_and_one_that_does_not_is_biased(tmp_path):
    net, x = zoo.made("2d"), zoo.points("2d", 30)
    omega = bnuq.draw(net, x, samples=4, batch_size=8, variance="unbiased")
    path = tmp_path / "bank.h5"
    omega.save(path)
    assert BatchStatistics.load(path).variance == "unbiased" == omega[1].variance == omega.joined(omega).variance
    with h5py.File(path, "r+") as file:
        del file.attrs["variance"]
    assert BatchStatistics.load(path).variance == "biased"
    replace(omega, variance="sideways").save(path)
    with pytest.raises(ResultError, match="the variance of the bank is 'sideways'; expected biased or unbiased"):
        BatchStatistics.load(path)
