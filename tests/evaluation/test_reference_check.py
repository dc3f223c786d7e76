"""The reference check passes on what the network was trained on, and fails on anything else."""

from __future__ import annotations

import copy
import functools
from dataclasses import replace
from pathlib import Path

import at_night
import numpy as np
import pytest
import torch
from torch import Tensor, nn

import bnuq
from bnuq.catalogue import text_of
from bnuq.config import Augment, Run
from bnuq.data import points_of
from bnuq.data.points import Contents
from bnuq.evaluation import draws
from bnuq.evaluation.reference_check import BATCHES, findings, reference_check
from bnuq.records.evaluation import ReferenceCheck, within_limits
from bnuq.records.reference import averages_lag
from bnuq.sampling.batch_statistics import BatchStatistics, LayerStatistics
from bnuq.sampling.site_search import find_sites
from bnuq.sampling.sites import BatchNormSite

M = 128
RUN = Run(checkpoint=Path("model.pt"), out=Path("model.h5"))
PICTURES = points_of(Contents(np.zeros((2, 3, 4, 4))), name="train", reference="train.npz")
TABLE = points_of(Contents(np.zeros((2, 6))), name="train", reference="train.npz")


def data(n: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    mix = torch.randn(8, 8, generator=torch.Generator().manual_seed(99))
    return torch.randn(n, 8, generator=generator) @ mix + 0.3


@functools.cache
def averaged(momentum: float | None = 0.1, seed: int = 0) -> tuple[nn.Module, Tensor]:
    """A network whose running statistics are averages over many batches of 128 under fixed weights, and their data."""
    train = data(6000, seed)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        options = {"momentum": momentum}
        net = nn.Sequential(
            nn.Linear(8, 30), nn.BatchNorm1d(30, **options), nn.ReLU(),
            nn.Linear(30, 30), nn.BatchNorm1d(30, **options), nn.ReLU(), nn.Linear(30, 3),
        )  # fmt: skip
        for _ in range(4):
            for rows in torch.randperm(len(train)).split(M)[:-1]:
                net(train[rows])
    return net.eval(), train


def check_of(net: nn.Module, reference: Tensor, *, batch_size: int = M, seed: int = 0, **known: int):
    omega = bnuq.draw(net, reference, samples=BATCHES, batch_size=batch_size, seed=seed)
    return reference_check(omega, find_sites(net, reference[:3]).live_batchnorms, population=len(reference), **known)


def test_the_right_reference_passes_and_lies_where_batch_noise_puts_it():
    ratios = []
    for seed in range(8):
        net, train = averaged(seed=seed)
        check = check_of(net, train, seed=seed, train_batch_size=M, train_size=len(train))
        assert check.passed and check.layers == ("1", "4")
        ratios += [check.mean / check.expected, check.log_variance / check.expected]
    assert np.median(ratios) == pytest.approx(1, abs=0.2)
    assert findings(check, RUN, PICTURES, []) == []


def test_mini_batches_of_half_the_reference_vary_less_and_the_expected_gap_says_so():
    ratios = []
    for seed in range(8):
        net, train = averaged(seed=seed)
        part = train[torch.randperm(len(train), generator=torch.Generator().manual_seed(seed))[:64]]
        check = check_of(net, part, batch_size=32, seed=seed, train_batch_size=M, train_size=len(train))
        ratios += [*check.mean / check.expected, *check.log_variance / check.expected]
    assert np.sqrt(np.mean(np.square(ratios))) == pytest.approx(1, abs=0.15)


@pytest.mark.parametrize("share", at_night.but({0.02}, [0.02, 0.1]))
def test_a_small_part_of_the_training_set_passes_though_nothing_says_how_small_it_is(share):
    for seed in range(3):
        net, train = averaged(seed=seed)
        part = train[
            torch.randperm(len(train), generator=torch.Generator().manual_seed(seed))[: int(share * len(train))]
        ]
        size = min(M, len(part) // 2)
        assert check_of(net, part, batch_size=size, seed=seed, train_batch_size=M).passed
        assert check_of(net, part, batch_size=size, seed=seed, train_batch_size=M, train_size=len(train)).passed
        assert not check_of(net, 2 * part, batch_size=size, seed=seed, train_batch_size=M).passed


class Items:
    def __init__(self, x: Tensor) -> None:
        self.x = x

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, at: int) -> tuple[Tensor, int]:
        return self.x[at], 0


@pytest.mark.parametrize("scale", [1, 2])
@pytest.mark.nightly
def test_a_reference_that_is_read_as_needed_is_checked_by_the_points_that_are_drawn(scale):
    net, train = averaged()
    test = train[:40].numpy(), net(train[:40]).argmax(1).numpy()
    result = bnuq.evaluate(net, train=Items(scale * train), test=test, samples=8, batch_size=32, train_batch_size=M)
    assert result.provenance["reference_digest"] == "listing"
    assert result.reference_check.passed == (scale == 1)


@pytest.mark.parametrize("batch_size", at_night.but({128}, [32, 128, 512]))
def test_what_is_normal_follows_the_size_of_the_batches(batch_size):
    ratios = []
    for seed in range(6):
        net, train = averaged(seed=seed)
        check = check_of(net, train, batch_size=batch_size, seed=seed, train_batch_size=M)
        ratios += [check.mean / check.expected, check.log_variance / check.expected]
    assert np.median(ratios) == pytest.approx(1, abs=0.35)


@pytest.mark.parametrize(
    "pipeline", [lambda x: x + 1, lambda x: 2 * x, lambda x: (x - 0.5) / 0.25, lambda x: x.flip(1)], ids=range(4)
)
def test_another_pipeline_fails_and_is_told_with_layer_and_ratio(pipeline):
    net, train = averaged()
    check = check_of(net, pipeline(train))
    assert not check.passed
    (mismatch,) = findings(check, RUN, PICTURES, [])
    assert mismatch.code == "reference-mismatch"
    worst = max(check.mean.max(), check.log_variance.max()) / check.expected[0]
    assert mismatch.values["worst"] == pytest.approx(worst)
    assert mismatch.values["run_file"] is None and mismatch.values["missing"] == ["normalize", "augment"]
    assert "No `normalize` and no `augment` was given." in text_of(mismatch)
    written = replace(RUN, run_file=Path("model.toml"), augment=Augment(flip=True))
    (mismatch,) = findings(check, written, PICTURES, [])
    assert mismatch.values["run_file"] == "model.toml" and mismatch.values["missing"] == ["normalize"]
    assert "model.toml has no `normalize`." in text_of(mismatch)
    (mismatch,) = findings(check, replace(written, normalize="train"), PICTURES, [])
    assert mismatch.values["missing"] == []
    (mismatch,) = findings(check, RUN, points_of(Contents(np.zeros((2, 8))), name="train", reference="t.csv"), [])
    assert mismatch.values["missing"] == ["normalize"]  # a table is not augmented
    assert mismatch.values["settings"] == ["train", "normalize"]


def constructed(net_momentum: float, *, batch_size: int, samples: int = 24) -> tuple[BatchStatistics, BatchNormSite]:
    generator = np.random.default_rng(0)
    layer = LayerStatistics(
        "bn", 1e-5, generator.normal(size=(samples, 5)), 1 + generator.random((samples, 5)),
        np.full(samples, batch_size),
    )  # fmt: skip
    site = BatchNormSite("bn", 0, momentum=net_momentum, running_mean=torch.zeros(5), running_var=torch.full((5,), 1.5))
    return BatchStatistics((layer,), "f", batch_size), site


@pytest.mark.parametrize(("batch_size", "expected"), [(32, 0.31), (128, 0.40), (512, 0.69)])
def test_what_batch_noise_explains_is_the_published_value(batch_size, expected):
    # a resnet20 and 16 batches of a reference of 4660 out of 50 000
    bank, site = constructed(0.1, batch_size=batch_size, samples=16)
    check = reference_check(bank, [site], population=4660, train_size=50_000, train_batch_size=128)
    assert check.expected[0] == pytest.approx(expected, abs=0.006)


def test_the_expected_value_is_its_formula():
    bank, site = constructed(0.3, batch_size=64, samples=10)
    check = reference_check(bank, [site], population=1000, train_size=4000, train_batch_size=256)
    by_hand = (((64 / 256 * 0.3 / 1.7 + 64 / 1000 * (1 - 1000 / 4000)) / (1 - 64 / 1000) + 1 / 10) * 9 / 7) ** 0.5
    assert check.expected[0] == pytest.approx(by_hand, rel=1e-12)


def test_gaps_are_their_definition():
    bank, site = constructed(0.1, batch_size=64)
    check = reference_check(bank, [site], population=1000)
    mean, log_variance = bank.layers[0].mean, np.log(bank.layers[0].var * 64 / 63)
    for found, running, batches in ((check.mean, 0.0, mean), (check.log_variance, np.log(1.5), log_variance)):
        z = (running - batches.mean(0)) / batches.std(0, ddof=1)
        assert found[0] == pytest.approx(np.sqrt((z**2).mean()), rel=1e-6)


@pytest.mark.parametrize(
    ("made", "why"),
    [
        (lambda: averaged(momentum=None)[0], "they are plain averages, momentum None"),
        (lambda: nn.Sequential(nn.Linear(8, 3), nn.BatchNorm1d(3)), "they still have mean 0 and variance 1"),
        (lambda: nn.Sequential(nn.Linear(8, 3), nn.BatchNorm1d(3, track_running_stats=False)), "are kept"),
    ],
)
def test_what_cannot_be_checked_is_not_checked_and_said(made, why):
    net, train = made().eval(), data(500, 0)
    assert check_of(net, train) is None
    (unchecked,) = findings(None, RUN, PICTURES, find_sites(net, train[:3]).live_batchnorms)
    assert unchecked.code == "reference-unchecked" and why in unchecked.values["why"]


def test_three_batches_are_not_checked():
    bank, site = constructed(0.1, batch_size=64, samples=3)
    assert reference_check(bank, [site], population=1000) is None
    (unchecked,) = findings(None, RUN, PICTURES, [site])
    assert unchecked.code == "reference-unchecked" and "fewer than 4 examples" in text_of(unchecked)


def test_a_reference_of_equal_points_is_not_checked_and_said():
    net, train = averaged()
    check = check_of(net, train[:1].expand(2000, -1) + 400)
    assert check is None
    for points, names in ((PICTURES, ["train", "normalize", "augment"]), (TABLE, ["train", "normalize"])):
        (unchecked,) = findings(check, RUN, points, [])
        assert unchecked.code == "reference-unchecked" and unchecked.values["settings"] == names


def test_a_layer_in_which_nothing_varies_is_left_out():
    bank, site = constructed(0.1, batch_size=64)
    both = replace(bank, layers=(*bank.layers, replace(bank.layers[0], name="still", var=np.zeros((24, 5)))))
    other = replace(site, name="still", address=1)
    check = reference_check(both, [site, other], population=1000)
    assert check.layers == ("bn",) and len(check.mean) == len(check.expected) == 1
    assert reference_check(both, [other], population=1000) is None


def test_a_mean_that_another_batchnorm_has_centred_leaves_the_variance_to_be_checked():
    bank, site = constructed(0.1, batch_size=64)
    bank.layers[0].mean[:] = 0
    check = reference_check(bank, [site], population=1000)
    assert check.mean[0] == 0 and check.log_variance[0] > 0


def test_dead_channels_are_left_out():
    bank, site = constructed(0.1, batch_size=64)
    bank.layers[0].var[:, 2] = 0
    bank.layers[0].mean[:, 2] = 7
    check = reference_check(bank, [site], population=1000)
    assert np.isfinite(check.mean).all() and np.isfinite(check.log_variance).all()
    assert check.mean[0] < 1


def test_running_variances_of_zero_fail_the_check_and_are_named():
    net, train = averaged()
    assert check_of(net, train, train_batch_size=M).passed
    net = copy.deepcopy(net)
    net[4].running_var[::7] = 0
    check = check_of(net, train, train_batch_size=M)
    assert not check.fits and not check.passed and check.unfit == ("4",)
    (mismatch,) = findings(check, RUN, PICTURES, [])
    assert mismatch.values["unfit"] == ["4"] and not mismatch.values["lags"]
    assert "BatchNorm 4 normalises by running statistics that are not those of the training set" in text_of(mismatch)


def test_a_layer_that_was_never_trained_fails_the_check_though_all_others_fit():
    net, train = averaged()
    net = copy.deepcopy(net)
    net[4].reset_running_stats()
    check = check_of(net, train, train_batch_size=M)
    assert check.layers == ("1",) and check.fits and not check.passed
    assert findings(check, RUN, PICTURES, []) == []  # the warning never-trained is about it


@pytest.mark.parametrize(("running_mean", "unfit"), [(7.0, ()), (0.0, ("bn",))])
def test_a_constant_channel_fails_the_check_where_the_running_mean_is_another(running_mean, unfit):
    bank, site = constructed(0.1, batch_size=64)
    bank.layers[0].var[:, 2] = 0
    bank.layers[0].mean[:, 2] = 7
    site.running_mean[2] = running_mean
    check = reference_check(bank, [site], population=1000)
    assert check.unfit == unfit and (not unfit or not check.passed)


NOISE = np.ones(4)


@pytest.mark.parametrize(
    ("means", "log_variances", "lag"),
    [
        ([0.7, 11.9, 8.9, 2.8], [4.0, 7.7, 4.6, 1.3], True),  # a CNN, trained by Adam without a schedule
        ([6.4, 4.9, 4.2, 1.5], [2.2, 1.6, 1.2, 1.4], True),  # a dense network
        ([14.9, 18.1, 22.4, 3.7], [19.4, 16.8, 18.7, 1.9], False),  # a ResNet-20, without its augmentation
        ([17.8, 4.1, 3.8, 1.0], [90.2, 2.6, 2.6, 0.9], False),  # the same, by another normalisation
    ],
)
def test_the_pattern_of_layers_says_whether_running_averages_lag(means, log_variances, lag):
    check = ReferenceCheck(tuple("abcd"), np.array(means), np.array(log_variances), NOISE, passed=False)
    assert averages_lag(check, {}) == lag
    (mismatch,) = findings(check, RUN, PICTURES, [])
    text = text_of(mismatch)
    assert mismatch.values["lags"] == lag
    assert text.startswith("The checkpoint's running averages probably lag" if lag else "The training set (`train`)")
    assert not averages_lag(replace(check, unfit=("a",)), {})


@pytest.mark.parametrize(("samples", "batches"), at_night.but({(2, 12)}, [(2, 12), (700, 24)]))
def test_the_check_takes_no_more_than_an_eighth_of_the_passes_of_the_samples(samples, batches, monkeypatch):
    net, train = averaged()
    monkeypatch.setattr(draws, "reference_check", lambda bank, *_, **__: banks.append(bank))
    banks: list[BatchStatistics] = []
    test = train[:40].numpy(), net(train[:40]).argmax(1).numpy()
    bnuq.evaluate(net, train=train, test=test, samples=samples, batch_size=32, methods=["mcbn"])
    assert [bank.samples for bank in banks] == [batches]


@pytest.mark.parametrize(
    ("passes", "shape", "expected"),
    [
        (None, (3, 360, 480), (24, 128)),
        (320, (3, 360, 480), (12, 4)),
        (320, (3, 192, 256), (12, 4)),
        (20_000, (3, 360, 480), (19, 128)),
        (320, (3, 32, 32), (12, 128)),
        (12_800, (3, 32, 32), (12, 128)),
        (100_000, (3, 32, 32), (24, 128)),
    ],
)
def test_the_size_of_the_check_follows_the_samples_but_for_points_that_pass_quickly(passes, shape, expected):
    train = points_of(Contents(np.broadcast_to(np.float32(0), (400, *shape))), name="train", reference="train.npz")
    assert draws.size_of_check(train, passes) == expected


class Twice(nn.Module):
    """One BatchNorm called on two activations: its running statistics mix both."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.second = nn.Linear(8, 30), nn.BatchNorm1d(30), nn.Linear(30, 30)
        self.own = nn.BatchNorm1d(30)

    def forward(self, x: Tensor) -> Tensor:
        return self.own(torch.relu(self.norm(self.second(torch.relu(self.norm(self.first(x)))))))


def test_a_layer_called_twice_is_left_out_because_its_running_statistics_mix_both_calls():
    net, train = Twice(), data(6000, 0)
    with torch.no_grad():
        for _ in range(4):
            for rows in torch.randperm(len(train), generator=torch.Generator().manual_seed(1)).split(M)[:-1]:
                net(train[rows])
    check = check_of(net.eval(), train, train_batch_size=M)
    assert check.layers == ("own",)
    assert check.passed


@pytest.mark.parametrize(
    ("ratios", "passed"),
    [
        ([[1.0, 1.0], [1.0, 6.0], [1.0, 1.0]], True),
        ([[1.0, 1.0], [1.0, 6.01], [1.0, 1.0]], False),  # the worst layer
        ([[3.0, 1.0], [3.0, 1.0], [0.1, 1.0]], True),
        ([[3.01, 1.0], [3.01, 1.0], [0.1, 1.0]], False),  # the median layer
    ],
)
def test_the_median_layer_and_the_worst_one_each_have_their_limit(ratios, passed):
    assert within_limits(np.array(ratios)) is passed
