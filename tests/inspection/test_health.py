"""The sites as rows with their flags, and running averages held against what batch noise explains."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bnuq.config import PointSettings
from bnuq.data import Points
from bnuq.evaluation.draws import check_reference
from bnuq.evaluation.pipeline import Pipeline
from bnuq.evaluation.population import reference_batches
from bnuq.progress import silent
from bnuq.sampling.site_search import find_sites
from bnuq.studies.inspect.health import (
    batch_statistics,
    findings_on_gap,
    findings_on_noise,
    findings_on_sites,
    gap,
    not_finite,
    site_rows,
)
from bnuq.studies.inspect.noise import noise
from bnuq.studies.inspect.record import Gap, LayerNoise, NoiseBySize

M = 128


class Ill(nn.Module):
    """One layer of every ailment, dropouts between them."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.ModuleDict({name: nn.BatchNorm1d(4) for name in ("well", "frozen", "nan", "flat", "twice")})
        self.norm["untracked"] = nn.BatchNorm1d(4, track_running_stats=False)
        self.norm["new"] = nn.BatchNorm1d(4)
        for name in ("well", "frozen", "nan", "flat", "twice"):
            nn.init.constant_(self.norm[name].running_mean, 0.5)
        self.norm["nan"].running_var[1] = math.nan
        self.norm["flat"].running_var[2:] = 1e-6
        self.drop = nn.Dropout(0.3)
        self.idle = nn.Dropout(0.0)

    def train(self, mode: bool = True) -> Ill:
        super().train(mode)
        self.norm["frozen"].eval()
        return self

    def forward(self, x: Tensor) -> Tensor:
        x = self.drop(self.norm["well"](x))
        x = F.dropout(self.norm["frozen"](x), 0.2, self.training)
        x = self.idle(self.norm["flat"](x))
        for _ in range(2):
            x = self.norm["twice"](x)
        return self.norm["nan"](self.norm["new"](self.norm["untracked"](x)))


@pytest.fixture(scope="module")
def rows():
    model = Ill().eval()
    return site_rows(find_sites(model, torch.randn(3, 4)), not_finite(model)), not_finite(model)


def test_sites_come_in_execution_order_whatever_their_kind(rows):
    assert [(row.order, row.kind, row.name) for row in rows[0]] == [
        (0, "batchnorm", "norm.well"), (1, "dropout", "drop"), (2, "batchnorm", "norm.frozen"),
        (3, "dropout", "dropout"), (4, "batchnorm", "norm.flat"), (5, "dropout", "idle"),
        (6, "batchnorm", "norm.twice"), (7, "batchnorm", "norm.twice#2"),
        (8, "batchnorm", "norm.untracked"), (9, "batchnorm", "norm.new"),
        (10, "batchnorm", "norm.nan"),
    ]  # fmt: skip


def test_every_ailment_has_its_flag(rows):
    assert {row.name: row.flags for row in rows[0] if row.kind == "batchnorm"} == {
        "norm.well": (), "norm.frozen": ("frozen",), "norm.flat": ("vanishing",), "norm.twice": ("called-again",),
        "norm.twice#2": ("called-again",), "norm.untracked": ("untracked",), "norm.new": ("never-trained",),
        "norm.nan": ("not-finite",),
    }  # fmt: skip
    told = {row.name: row for row in rows[0]}
    assert told["norm.flat"].vanishing == 2 and told["norm.untracked"].vanishing is None
    assert (told["drop"].p, told["drop"].stochastic, told["idle"].stochastic) == (0.3, True, False)
    assert not told["norm.frozen"].stochastic and told["norm.well"].stochastic


def test_every_ailment_is_warned_of(rows):
    found = {finding.code: finding.values for finding in findings_on_sites(*rows)}
    assert list(found) == ["not-finite", "never-trained", "frozen", "vanishing"]
    assert found["not-finite"]["tensors"] == ["norm.nan.running_var"]
    assert found["never-trained"] == {"layers": ["norm.new"], "evaluated": False}
    assert found["frozen"]["layers"] == ["norm.frozen"]
    assert found["vanishing"] == {"layers": ["norm.flat"], "channels": 2}


def averaged(seed: int) -> tuple[nn.Module, np.ndarray]:
    """A network whose running statistics are averages over many independent batches, and their data."""
    generator = torch.Generator().manual_seed(seed)
    mix = torch.randn(8, 8, generator=torch.Generator().manual_seed(99))
    data = torch.randn(4000, 8, generator=generator) @ mix + 0.3
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        net = nn.Sequential(nn.Linear(8, 30), nn.BatchNorm1d(30), nn.ReLU(), nn.Linear(30, 30), nn.BatchNorm1d(30))
        for _ in range(120):
            net(data[torch.randint(len(data), (M,))])
    return net.eval(), data.numpy()


def gap_of(net: nn.Module, data: np.ndarray, seed: int = 0) -> tuple[Gap, NoiseBySize]:
    points = Points("train", "train", data)
    pipeline = Pipeline(PointSettings(seed=seed), torch.device("cpu"))
    sites = find_sites(net, torch.from_numpy(data[:3])).live_batchnorms
    bank = batch_statistics(net, reference_batches(pipeline, points, points=4000, batch_size=M), sites, silent)
    population = bank.pooled()
    sizes = {"batch_size": M, "draws": 40, "sizes": (M,), "size_draws": 40}
    measured = noise(net, pipeline, points, sites, population, progress=silent, **sizes)
    check = check_reference(net, pipeline, points, sites, silent, trained_with=M)
    found = gap(
        bank, population, sites, measured, check, points=4000, reference=4000, train_size=None, train_batch_size=M
    )
    assert found is not None
    return found, measured


@pytest.fixture(scope="module")
def gaps() -> list[Gap]:
    return [gap_of(*averaged(seed), seed)[0] for seed in range(6)]


@pytest.mark.nightly
def test_a_healthy_average_lags_by_what_batch_noise_explains(gaps):
    shifts = [layer.rms_shift / layer.explained_shift for one in gaps for layer in one.layers]
    log_ratios = [
        math.sqrt(float(np.mean(layer.log_ratio**2))) / layer.explained_log_ratio
        for one in gaps
        for layer in one.layers
    ]
    assert np.median(shifts) == pytest.approx(1, abs=0.25)
    assert np.median(log_ratios) == pytest.approx(1, abs=0.25)


def test_the_gap_tells_what_it_is_of(gaps):
    assert (gaps[0].points, gaps[0].passed, [layer.name for layer in gaps[0].layers]) == (4000, True, ["1", "4"])
    assert gaps[0].worth == pytest.approx(M * 19)
    assert all(0 < layer.ratio_mean < 3 and 0 < layer.ratio_log_variance < 3 for layer in gaps[0].layers)


def test_an_average_that_was_moved_is_told_by_the_layer_that_it_is_in(gaps):
    net, data = averaged(0)
    with torch.no_grad():
        net[4].running_mean += 0.3 * net[4].running_var.sqrt()
        net[4].running_var *= 1.5
    found, _ = gap_of(net, data)
    first, second = found.layers
    assert found.passed is False
    assert second.rms_shift == pytest.approx(0.3, abs=0.03) and second.mean_log_ratio == pytest.approx(0.405, abs=0.05)
    assert first.rms_shift == pytest.approx(gaps[0].layers[0].rms_shift)
    assert second.rms_shift > 10 * second.explained_shift


def test_channels_that_never_vary_are_counted_and_leave_finite_numbers():
    net, data = averaged(0)
    with torch.no_grad():
        net[0].weight[5], net[0].bias[5] = 0.0, 1.0
    found, _ = gap_of(net, data)
    assert [layer.dead for layer in found.layers] == [1, 0]
    assert all(np.isfinite(layer.shift).all() and np.isfinite(layer.log_ratio).all() for layer in found.layers)
    [dead] = findings_on_gap(found)
    assert dead.code == "dead-channels" and dead.values == {"layers": [["1", 1]]}


def layer(nominal: int, values: float, scale: float = 1.0) -> LayerNoise:
    return LayerNoise(
        name=f"n{nominal}", channels=1, positions=1, nominal=nominal, sigma_u=0.1, sigma_v=0.1, values_mean=values,
        values_deviation=2 * values, rejected=0.0, rejected_fitted=0.0, slope=None, variances=np.array([0.1]),
        unbiased_scale=scale, spread=np.ones((8, 1)),
    )  # fmt: skip


def codes(*layers: LayerNoise) -> list[str]:
    return [finding.code for finding in findings_on_noise(NoiseBySize(32, 8, (32,), layers, None))]


def test_the_divisor_is_that_of_the_training_where_its_size_is_known():
    small = NoiseBySize(8, 8, (8,), (replace(layer(32, 32.0), positions=4),), None)
    assert codes(*small.layers) == ["biased-variance"]
    assert list(findings_on_noise(small, train_batch_size=128)) == []
    [biased] = findings_on_noise(replace(small, batch_size=128), train_batch_size=8)
    assert (biased.values["values"], biased.values["batch_size"], biased.values["in_training"]) == (32, 8, True)
    assert biased.values["scale"] == pytest.approx(math.sqrt(32 / 31))


def test_values_too_few_for_the_divisor_not_to_matter_are_warned_of():
    assert codes(layer(50, 50.0), layer(5000, 5000.0)) == []
    assert codes(layer(49, 49.0)) == ["biased-variance"]
    [biased] = findings_on_noise(NoiseBySize(32, 8, (32,), (layer(49, 49.0),), None))
    assert (biased.values["values"], biased.values["batch_size"], biased.values["in_training"]) == (49, 32, False)
    assert codes(layer(10_000, 100.0), layer(100, math.nan), layer(100, math.inf)) == []


def test_a_variance_below_0_is_told_like_one_that_is_not_finite():
    net = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3))
    assert not_finite(net) == ()
    net[1].running_var[2] = -1
    assert not_finite(net) == ("1.running_var",)


@pytest.mark.parametrize("momentum", [None, 0.0, 0.1])
@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")
def test_a_momentum_of_zero_is_told_from_a_cumulative_average(momentum):
    net = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5, momentum=momentum)).eval()
    for form in (net, torch.jit.script(net)):
        (row,) = site_rows(find_sites(form, torch.zeros(3, 4)))
        assert row.momentum == momentum
