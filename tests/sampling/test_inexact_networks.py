"""Networks on which a sampler goes wrong without a word: each is sampled exactly, named, or refused with the cause."""

from __future__ import annotations

import copy
import random
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import at_night
import numpy as np
import pytest
import torch
import zoo
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F
from torch.testing import assert_close

import bnuq
from bnuq.errors import SamplingError
from bnuq.sampling import deviation
from bnuq.sampling.deviation import Discrepancy, difference
from bnuq.sampling.engine import Stochastic
from bnuq.sampling.exactness import check_exact, check_independent, check_repeatable
from bnuq.sampling.site_search import find_sites

EXACT = {"rtol": 1e-9, "atol": 1e-10}


class Net(nn.Module):
    """A dense layer, one operation in question, and an output layer."""

    def __init__(self, operation, **parts: nn.Module) -> None:
        super().__init__()
        self.fc, self.last, self._operation = nn.Linear(4, 6), nn.Linear(6, 3), operation
        for name, part in parts.items():
            self.add_module(name, part)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self._operation(self, self.fc(x))))


def made(operation, **parts) -> nn.Module:
    return zoo.settled(lambda: Net(operation, **{name: part() for name, part in parts.items()}), (4,))


def bn() -> nn.Module:
    return nn.BatchNorm1d(6)


def points(n: int, seed: int = 0) -> Tensor:
    return zoo.points((4,), n, seed=seed)


# Slices of the batch

SLICED = {
    "virtual batches": lambda m, h: torch.cat([m.bn(part) for part in h.chunk(-(-len(h) // 64))]),
    "micro-batches": lambda m, h: torch.cat([m.bn(part) for part in h.split(64)]),
}


@pytest.mark.parametrize("kind", SLICED)
def test_mini_batches_beyond_a_slice_are_refused_with_the_largest_size(kind):
    net = made(SLICED[kind], bn=bn)
    with pytest.raises(SamplingError, match=r"more often for 128 examples than for 64: .* \(--batch-size 64\)"):
        bnuq.draw(net, points(300), samples=3, batch_size=128)
    with pytest.raises(SamplingError, match="at most 64 examples"):
        bnuq.population_statistics(net, [points(128), points(128, seed=1)])


@pytest.mark.parametrize(
    ("modes", "said"),
    [
        ((True, False), "slices of its batch, in training mode too, so its training noise is that of"),
        ((False,), "slices of its batch, but the whole batch in training mode. Use mini-batches of at most 64"),
    ],
)
def test_who_slices_is_told_by_the_mode(modes, said):
    net = made(lambda m, h: torch.cat([m.bn(part) for part in h.split(64 if m.training in modes else 999)]), bn=bn)
    with pytest.raises(SamplingError, match=f"in evaluation mode the network calls .* normalises {said}"):
        bnuq.statistics_of(net, [points(128)])
    omega = bnuq.statistics_of(net, [points(64)])  # the remedy
    assert_close(bnuq.predict(net, points(64), omega)[0], zoo.trained_forward(net, points(64)), **EXACT)


@pytest.mark.parametrize("kind", SLICED)
@pytest.mark.parametrize("chunk_size", [None, 256, 48])
def test_sliced_networks_are_sampled_exactly_whatever_the_chunk(kind, chunk_size):
    net, x, batch = made(SLICED[kind], bn=bn), points(300), points(64, seed=1)
    omega = bnuq.statistics_of(net, [batch, points(64, seed=2)])
    expected = bnuq.predict(net, x, omega, chunk_size=16)
    assert_close(bnuq.predict(net, x, omega, chunk_size=chunk_size), expected, **EXACT)
    assert_close(bnuq.predict(net, batch, omega)[0], zoo.trained_forward(net, batch), **EXACT)
    assert bool((expected[0] != expected[1]).all(dim=1).all())  # no point runs on running statistics


@pytest.mark.parametrize("b", [40, 100, 128])
def test_padded_rows_are_part_of_the_batch_as_in_training(b):
    net = made(lambda m, h: m.bn(F.pad(h, (0, 0, 0, -len(h) % 8)))[: len(h)], bn=bn)
    batch = points(b)
    omega = bnuq.statistics_of(net, [batch])
    assert omega.layers[0].count.tolist() == [-(-b // 8) * 8]
    assert_close(bnuq.predict(net, batch, omega)[0], zoo.trained_forward(net, batch), **EXACT)


def test_a_plan_is_given_up_where_many_points_are_treated_otherwise_than_a_few():
    def halves(m: Net, h: Tensor) -> Tensor:
        h = m.bn(h)
        return torch.cat([part * (1 + number) for number, part in enumerate(h.split(96))])

    net, x = made(halves, bn=bn), points(120)
    sites = find_sites(net, x)
    omega = bnuq.statistics_of(net, [points(64, seed=1)], layers=sites.live_batchnorms)
    engine = Stochastic(net, sites, omega=omega)
    engine.prepare(x[:64])
    assert engine.why_plain == ""
    found = engine.passes(x)
    assert engine.why_plain
    assert float((found[0, 96:] - engine.passes(x[96:])[0]).abs().max()) > 0.01


# Paths that depend on the data


def turns(m: Net, h: Tensor) -> Tensor:
    for _ in range(1 + int(float(h.detach().abs().max()) > 8)):
        h = m.bn(h)
    return h


def exits(m: Net, h: Tensor) -> Tensor:
    return m.bn(h) if float(h.detach().abs().max()) < 8 else m.early(h)


@pytest.mark.parametrize(("operation", "parts"), [(turns, {"bn": bn}), (exits, {"bn": bn, "early": bn})])
def test_further_calls_are_refused_and_never_run_on_running_statistics(operation, parts):
    net = made(operation, **parts)
    calm, wild = points(64) * 0.1, points(64) * 0.1 + 30
    sites = find_sites(net, calm)
    with pytest.raises(SamplingError, match="depends on the network's input"):
        bnuq.statistics_of(net, [calm, wild], layers=sites.live_batchnorms)
    omega = bnuq.statistics_of(net, [calm, 0.9 * calm], layers=sites.live_batchnorms)
    with pytest.raises(SamplingError, match="is called more often than in the first forward"):
        bnuq.predict(net, torch.cat([calm, wild]), omega, chunk_size=64)


def test_calls_that_depend_on_the_mini_batch_are_not_mistaken_for_slices():
    net = made(turns, bn=bn)
    sites = find_sites(net, points(3) * 0.1)
    with pytest.raises(SamplingError, match="depends on the network's input"):
        bnuq.statistics_of(net, [torch.cat([points(20) * 0.1, points(20) * 30])], layers=sites.live_batchnorms)


# Batch normalization that no BatchNorm call shows


class ByHand(nn.Module):
    """Batch normalization written out."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(6))
        self.register_buffer("variance", torch.ones(6))

    def forward(self, x: Tensor) -> Tensor:
        mean, variance = self.mean, self.variance
        if self.training:
            mean, variance = x.mean(0), x.var(0, correction=0)
            with torch.no_grad():
                self.mean.lerp_(mean, 0.1)
                self.variance.lerp_(variance, 0.1)
        return (x - mean) / (variance + 1e-5).sqrt()


class InAFunction(ByHand):
    """The same inside an autograd function."""

    class Normalized(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x: Tensor) -> Tensor:  # noqa: ARG004
            return (x - x.mean(0)) / (x.var(0, correction=0) + 1e-5).sqrt()

    def forward(self, x: Tensor) -> Tensor:
        return self.Normalized.apply(x) if self.training else super().forward(x)


class EvoNorm(ByHand):
    """Divides by a variance of the batch alone."""

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.sigmoid(x) / ((x.var(0) if self.training else self.variance) + 1e-5).sqrt()


class Renormalization(ByHand):
    """Batch renormalization: training corrects the batch's statistics towards the running ones, within bounds."""

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return super().forward(x)
        mean, std = x.mean(0), (x.var(0, correction=0) + 1e-5).sqrt()
        r = (std / self.variance.sqrt()).clamp(0.8, 1.2)
        return (x - mean) / std * r + ((mean - self.mean) / self.variance.sqrt()).clamp(-0.3, 0.3)


HIDDEN = {kind.__name__: kind for kind in (ByHand, InAFunction, EvoNorm, Renormalization)}


@pytest.mark.parametrize("kind", HIDDEN)
def test_batch_normalization_by_other_means_is_named_and_all_else_stays_exact(kind):
    net = made(lambda m, h: m.bn(m.hidden(h)), hidden=HIDDEN[kind], bn=bn)
    batch = points(32)
    with pytest.warns(UserWarning, match=f"hidden is not sampled: {kind} computes something else in training mode"):
        omega = bnuq.statistics_of(net, [batch])
    twin = copy.deepcopy(net).train()
    twin.hidden.eval()
    with torch.no_grad():
        assert_close(bnuq.predict(net, batch, omega)[0], twin(batch), **EXACT)


@pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning")  # of torch.export itself
def test_an_exported_block_whose_batchnorm_was_decomposed_is_named():
    block = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
    block(torch.randn(64, 6, generator=torch.Generator().manual_seed(0)))
    rows = {0: torch.export.Dim("rows", min=2)}
    exported = torch.export.export(block.eval(), (torch.randn(5, 6),), dynamic_shapes=(rows,)).run_decompositions()
    inner: Any = exported.module()
    inner.train = inner.eval = lambda *_: inner  # what torch refuses of such a module
    net = nn.Sequential(nn.BatchNorm1d(6), inner).eval()
    with pytest.warns(UserWarning, match=r"1\.1 is not sampled: it uses its running statistics by custom operations"):
        omega = bnuq.draw(net, torch.randn(100, 6), samples=2, batch_size=16)
    assert [layer.name for layer in omega.layers] == ["0"]


def test_a_warning_is_given_once_for_a_network_and_at_the_line_that_asked():
    def named(of: nn.Module) -> list[str]:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            bnuq.draw(of, points(32), samples=2, batch_size=8)
            bnuq.statistics_of(of, [points(32)])
            bnuq.population_statistics(of, [points(32)])
        return [Path(warning.filename).name for warning in caught]

    nets = [made(lambda m, h: m.bn(m.hidden(h)), hidden=ByHand, bn=bn) for _ in range(2)]
    here = [Path(__file__).name]
    assert [named(net) for net in (*nets, *nets)] == [here, here, [], []]
    with pytest.warns(UserWarning, match="hidden") as caught:
        bnuq.statistics_of(copy.deepcopy(nets[0]), [points(32)])
    assert caught[0].filename == __file__


def test_batch_normalization_in_the_forward_itself_is_named():
    def by_hand(m: Net, h: Tensor) -> Tensor:
        return m.bn(h) - (h.mean(0) if m.training else 0)

    with pytest.warns(UserWarning, match="the network is not sampled: Net computes something else in training mode"):
        bnuq.statistics_of(made(by_hand, bn=bn), [points(32)])


def test_a_sampled_batchnorm_that_does_not_do_what_training_does_is_refused():
    class Shrunk(nn.BatchNorm1d):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) * (0.9 if self.training else 1.0)

    with pytest.raises(SamplingError, match=r"would not be exact: .* by .* % of their spread, first in bn\."):
        bnuq.statistics_of(made(lambda m, h: m.bn(h), bn=lambda: Shrunk(6)), [points(32)])


def folded(m: Net, h: Tensor) -> Tensor:
    """Virtual batches of 8 as channels of one call, on no running statistics."""
    if not m.training:
        return m.bn(h)
    wide = h.reshape(-1, 8, 6).transpose(0, 1).reshape(8, -1)
    return F.batch_norm(wide, None, None, training=True).reshape(8, -1, 6).transpose(0, 1).reshape(h.shape)


def test_virtual_batches_by_another_call_in_training_are_refused():
    net = Net(folded, bn=bn()).double().eval()
    with pytest.raises(
        SamplingError, match="in training mode a BatchNorm normalises by another call than in evaluation"
    ):
        bnuq.statistics_of(net, [points(32)])


def test_noise_on_the_input_of_training_is_named():
    class Noisy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6)), nn.Linear(6, 3))

        def forward(self, x: Tensor) -> Tensor:
            return self.net(x + 0.1 * torch.randn_like(x) if self.training else x)

    net = zoo.settled(Noisy, (4,))
    sites = find_sites(net, points(32))
    found = check_exact(net, sites, points(32), sites.live_batchnorms)
    assert found.deviation is not None and found.deviation < 1e-12
    assert not found.fixed  # compared with its mean in place
    assert [reason for _, reason in sites.unreachable] == ["random numbers (randn_like) in training only"]


VIRTUAL_IN_TRAINING = {
    "slices": lambda m, h: torch.cat([m.bn(part) for part in h.split(8)]) if m.training else m.bn(h),
    "half": lambda m, h: torch.cat([m.bn(h[: len(h) // 2 + 1]), h[len(h) // 2 + 1 :]]) if m.training else m.bn(h),
}


@pytest.mark.parametrize("kind", VIRTUAL_IN_TRAINING)
def test_batches_that_training_alone_normalises_in_parts_are_refused(kind):
    net = made(VIRTUAL_IN_TRAINING[kind], bn=bn)
    with pytest.raises(SamplingError, match=r"in training mode a BatchNorm normalises (8|17) values per channel"):
        bnuq.statistics_of(net, [points(32)])


@pytest.mark.parametrize(
    "layer",
    [
        lambda: nn.Dropout(0.5),
        lambda: nn.RReLU(),
        lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(6, 6)),
        lambda: nn.AlphaDropout(0.2),
    ],
)
def test_other_layers_of_training_are_no_reason_to_refuse(layer):
    net = made(lambda m, h: m.bn(m.layer(h)), layer=layer, bn=bn)
    sites = find_sites(net, points(32))
    found = check_exact(net, sites, points(32), sites.live_batchnorms)
    assert found.deviation is not None and found.deviation < 1e-12


def test_auxiliary_outputs_of_training_are_held_back():
    def auxiliary(m: Net, h: Tensor) -> Tensor:
        return m.bn(h)

    class WithHead(Net):
        def forward(self, x: Tensor):
            main = super().forward(x)
            return (main, main) if self.training else main

    net = zoo.settled(lambda: Net(auxiliary, bn=bn()), (4,))
    net.__class__ = WithHead
    sites = find_sites(net, points(32))
    found = check_exact(net, sites, points(32), sites.live_batchnorms)
    assert found.deviation is not None and found.deviation < 1e-12
    assert found.fixed == ()


@pytest.mark.parametrize("kind", at_night.every_third(zoo.KINDS))
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_every_kind_of_batchnorm_is_exact(kind, dtype):
    net, batch = zoo.made(kind, dtype), zoo.points(kind, 9, dtype=dtype)
    sites = find_sites(net, batch)
    found = check_exact(net, sites, batch, sites.live_batchnorms)
    assert found.fixed == ()
    assert found.deviation is not None and found.deviation < (1e-12 if dtype == torch.float64 else 1e-4)


def test_the_layers_that_are_not_sampled_stay_as_in_evaluation_mode():
    net, batch = zoo.made("nested"), zoo.points("nested", 9)
    sites = find_sites(net, batch)
    found = check_exact(net, sites, batch, sites.live_batchnorms[1:3])
    assert found.deviation is not None and found.deviation < 1e-12


def test_a_float32_network_that_rounds_too_much_is_judged_in_float64(monkeypatch):
    monkeypatch.setitem(deviation._TOLERANCES, torch.float32, 1e-12)  # how much is rounded depends on the machine
    monkeypatch.setattr(deviation, "_ULPS", 0)
    net = zoo.made("2d", torch.float32)
    net[0].weight.data *= 1e-6  # the first BatchNorm magnifies what rounding left
    net[0].bias.data += 100
    net[1].eps = 1e-30
    batch = zoo.points("2d", 16, dtype=torch.float32)
    sites = find_sites(net, batch)
    found = check_exact(net, sites, batch, sites.live_batchnorms)
    assert found.deviation is not None and found.deviation < 1e-9


# Points that depend on each other


def test_points_that_depend_on_each_other_are_refused_with_the_size_of_it():
    net = made(lambda m, h: m.bn(h - 0.3 * h.mean(0)), bn=bn)
    with pytest.raises(SamplingError, match=r"depends on which examples pass with it: .* differ .* by \d"):
        bnuq.draw(net, points(60), samples=2, batch_size=20)
    with pytest.raises(SamplingError, match="depends on which examples pass with it"):
        check_independent(net, points(20))


def weakly_dependent(m: Net, h: Tensor) -> Tensor:
    return m.bn(h - 1e-3 * h.mean(0) * (not m.training))


def test_points_that_depend_on_each_other_weakly_are_refused_in_float32_too():
    net = made(weakly_dependent, bn=bn).float()
    for points_alone in (lambda x: check_independent(net, x), lambda x: bnuq.statistics_of(net, [x])):
        with pytest.raises(SamplingError, match=r"depends on which examples pass with it: .* by 0\.\d+ %"):
            points_alone(points(40).float())


def coarse(h: Tensor) -> Tensor:
    """Rounds by another grid for every number of points, as libraries of other kernels do, to within 5e-5."""
    grid = 1e-5 * h.detach().abs().max() * (1 + len(h) / 100)
    return (h / grid).round() * grid if h.dtype == torch.float32 else h


ROUNDING = {
    "in float32 alone": lambda m, h: coarse(m.bn(h)),
    "casts to float32": lambda m, h: coarse(m.bn(h).float()).to(h.dtype),
    "no copy in float64": lambda m, h: coarse(m.bn(h)) @ torch.eye(6),
}


@pytest.mark.parametrize("kind", ROUNDING)
def test_rounding_of_float32_is_no_dependence(kind):
    net, x = made(lambda m, h: m.bn(h), bn=bn).float(), points(40).float()
    net._operation = ROUNDING[kind]
    assert 1e-5 < check_independent(net, x) < 3e-4
    found = check_exact(net, sites := find_sites(net, x), x, sites.live_batchnorms)
    assert found.fixed == () and found.deviation is not None and found.deviation < 3e-4


def test_a_weak_effect_of_training_alone_is_named_in_float32_too():
    class Centred(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x - 1e-3 * x.mean(0) if self.training else x

    net, x = made(lambda m, h: m.centred(m.bn(h)), centred=Centred, bn=bn).float(), points(40).float()
    found = check_exact(net, sites := find_sites(net, x), x, sites.live_batchnorms)
    assert [layer for layer, _ in found.fixed] == ["centred"]


# Forwards that do not repeat themselves

OWN = np.random.default_rng(0)


@pytest.mark.parametrize(
    ("noise", "cause"),
    [
        (lambda: random.random(), "Python's `random`"),
        (lambda: np.random.rand(), "numpy's generator"),
        (lambda: float(torch.randint(10000, ())) / 10000, "it draws random numbers"),
        (lambda: F.dropout(torch.ones(6)), r"F\.dropout always does, unless it is given training=self\.training"),
        (lambda: time.perf_counter_ns() % 997 / 997, "reads the time"),
        (lambda: OWN.random(), "its own random generator"),
    ],
)
def test_a_random_forward_is_refused_with_the_cause(noise, cause):
    net = made(lambda m, h: m.bn(h) + noise(), bn=bn)
    with pytest.raises(SamplingError, match=f"gives other outputs on svhn when it is called again .*{cause}"):
        check_repeatable(net, points(8), where=" on svhn")


def test_noise_from_a_generator_is_refused_however_small_it_is():
    net = made(lambda m, h: m.bn(h) + 1e-6 * random.random(), bn=bn)
    with pytest.raises(SamplingError, match=r"Python's `random`"):
        check_repeatable(net, points(8))
    check_repeatable(made(lambda m, h: (random.random(), m.bn(h))[1], bn=bn), points(8))


def test_outputs_that_are_not_finite_are_traced_to_their_cause():
    net = made(lambda m, h: m.bn(h), bn=bn)
    net.bn.running_var.copy_(torch.full((6,), -0.5))
    with pytest.raises(SamplingError, match=r"are NaN for every example: bn.running_var is negative \(-0.5\)"):
        check_repeatable(net, points(8))
    other = made(lambda m, h: torch.log(m.bn(h) * 0 - 1), bn=bn)
    with pytest.raises(SamplingError, match="are NaN for every example: its forward is the first to make such numbers"):
        check_repeatable(other, points(8))

    class Divided(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) / 0

    last = made(lambda m, h: m.bn(h), bn=bn)
    last.last.__class__ = Divided
    with pytest.raises(SamplingError, match="none of the network's outputs on svhn is finite: last is the first"):
        check_repeatable(last, points(8), where=" on svhn")


def test_a_network_of_nothing_but_nan_has_no_draws():
    net = made(lambda m, h: m.bn(h), bn=bn)
    net.last.weight.data.fill_(float("nan"))
    with pytest.raises(SamplingError, match="are NaN for every example: last is the first to make such numbers"):
        bnuq.draw(net, points(40), samples=2, batch_size=8)
    stale = made(lambda m, h: m.bn(h), bn=bn)
    stale.bn.running_var.fill_(float("nan"))  # which the draws replace
    assert bnuq.predict(stale, points(4), bnuq.draw(stale, points(40), samples=2, batch_size=8)).isfinite().all()


def compared(change: Callable[[Tensor], Tensor], *, draws: bool = False, masked: float | None = None) -> Discrepancy:
    """What becomes of 40 points, of which half may be masked in the first output; the second has an offset of 5,000."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        expected = torch.randn(2, 40, 2) * torch.tensor([1.0, 0.07]) + torch.tensor([0.0, 5000.0])
    if masked is not None:
        expected[:, ::2, 0] = masked
    expected = expected if draws else expected[0]
    return difference(change(expected.clone()), expected, draws=draws)


def rounded(outputs: Tensor) -> Tensor:
    return torch.where(outputs.isfinite(), outputs.nextafter(torch.zeros(())), outputs)


def test_a_difference_counts_values_that_are_not_finite() -> None:
    one = torch.tensor([[1.0, float("nan")], [-2.0, float("-inf")]])
    assert difference(one, one).relative == 0
    assert difference(one + torch.tensor([[0.0], [1.0]]), one).relative > 0.1
    for other in (torch.tensor([[1.0, 0.0], [-2.0, float("-inf")]]), -one, one[:1]):
        assert difference(other, one).relative == float("inf")
        assert not difference(other, one).is_within(1e6)


@pytest.mark.parametrize("draws", [False, True])
@pytest.mark.parametrize("masked", [None, -1e4, -1e9, float("-inf")])
@pytest.mark.parametrize("output", [0, 1])
def test_an_output_is_compared_by_its_own_spread(draws: bool, masked: float | None, output: int) -> None:
    def wrong(outputs: Tensor) -> Tensor:
        outputs[..., 1::2, output] += 0.1 * (0.07 if output else 1)  # of the largest output at most 2e-5
        return outputs

    assert compared(rounded, draws=draws, masked=masked).is_within(1e-2)
    change = compared(wrong, draws=draws, masked=masked)
    assert change.relative > 0.04 and not change.proves(1e-2)


def test_where_rounding_hides_the_spread_nothing_is_proved() -> None:
    change = compared(rounded, draws=True)
    assert change.is_within(1e-3) and not change.is_resolved(1e-3) and not change.proves(1e-3)
    assert compared(lambda outputs: outputs, draws=True).proves(1e-3)


# Networks made up


@dataclass(frozen=True)
class Part:
    """An operation of a made-up network: its parts, what it does, and whether it makes points depend on each other."""

    layer: Callable[[], nn.Module]
    forward: Callable[[nn.Module, Tensor], Tensor]
    dependent: bool = False


def sliced(rows: int) -> Callable[[nn.Module, Tensor], Tensor]:
    return lambda layer, h: torch.cat([layer(part) for part in h.split(rows)])


PARTS = {
    "bn": Part(bn, lambda layer, h: layer(h)),
    "bn twice": Part(bn, lambda layer, h: layer(torch.tanh(layer(h)))),
    "frozen": Part(bn, lambda layer, h: layer.eval()(h)),
    "slices of 8": Part(bn, sliced(8)),
    "slices of 16": Part(bn, sliced(16)),
    "padded": Part(bn, lambda layer, h: layer(F.pad(h, (0, 0, 0, -len(h) % 4)))[: len(h)]),
    "by hand": Part(ByHand, lambda layer, h: layer(h)),
    "renormalization": Part(Renormalization, lambda layer, h: layer(h)),
    "dropout": Part(lambda: nn.Dropout(0.4), lambda layer, h: layer(h)),
    "noise": Part(lambda: nn.RReLU(), lambda layer, h: layer(h)),
    "dense": Part(lambda: nn.Linear(6, 6), lambda layer, h: torch.tanh(layer(h))),
    "skip": Part(bn, lambda layer, h: h + layer(h)),
    "mean of the batch": Part(nn.Identity, lambda layer, h: h - 0.1 * h.mean(0), dependent=True),  # noqa: ARG005
}


class MadeUp(nn.Module):
    def __init__(self, names: list[str]) -> None:
        super().__init__()
        self.names, self.fc, self.last = names, nn.Linear(4, 6), nn.Linear(6, 3)
        self.parts = nn.ModuleList(PARTS[name].layer() for name in names)

    def forward(self, x: Tensor) -> Tensor:
        h = self.fc(x)
        for name, layer in zip(self.names, self.parts, strict=True):
            h = PARTS[name].forward(layer, h)
        return self.last(torch.tanh(h))


@settings(max_examples=25, deadline=None)
@given(names=st.lists(st.sampled_from(list(PARTS)), min_size=1, max_size=5), b=st.integers(4, 24))
@pytest.mark.nightly
def test_a_made_up_network_is_sampled_exactly_or_refused_with_the_cause(names, b):
    net, batch, x = zoo.settled(lambda: MadeUp(["bn", *names]), (4,)), points(b), points(40, seed=1)
    largest = min([8] * ("slices of 8" in names) + [16] * ("slices of 16" in names) + [b])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            omega = bnuq.statistics_of(net, [batch, points(b, seed=2)])
        except SamplingError as error:
            expected = f"--batch-size {largest}" if b > largest else "depends on which examples pass with it"
            assert expected in str(error)
            assert b > largest or any(PARTS[name].dependent for name in names)
            return
    assert b <= largest and not any(PARTS[name].dependent for name in names)
    held = {str(warning.message).partition(" is not sampled")[0] for warning in caught}
    twin = copy.deepcopy(net).train()
    for path, module in twin.named_modules():
        if path in held or isinstance(module, nn.Dropout):
            module.eval()
    with torch.no_grad():
        assert_close(bnuq.predict(net, batch, omega)[0], twin(batch), rtol=1e-8, atol=1e-9)
    whole = bnuq.predict(net, x, omega)
    assert_close(bnuq.predict(net, x, omega, chunk_size=4), whole, rtol=1e-8, atol=1e-9)
