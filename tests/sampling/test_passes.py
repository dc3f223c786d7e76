"""Passes: the same whatever the chunks, and only the part of the network that is random is run again."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import zoo
from torch import Tensor, nn
from torch.nn import functional as F
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode

import bnuq
from bnuq import devices
from bnuq.errors import SamplingError
from bnuq.sampling import counter_rng
from bnuq.sampling.engine import Stochastic
from bnuq.sampling.site_search import find_sites

EXACT = {"rtol": 1e-10, "atol": 1e-11}


class Executed(TorchDispatchMode):
    """Counts the operations that are really executed, below whatever intercepts them."""

    def __init__(self, look: Callable[[Any, tuple], object] = lambda *_: None) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()
        self._look = look

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self._look(func, args)
        self.calls[func.overloadpacket.__name__] += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("kind", ["1d on (N, C)", "2d", "called twice", "in a shortcut", "nested"])
def test_the_chunk_size_changes_no_output(kind):
    net, x = zoo.made(kind), zoo.points(kind, 70)
    omega = bnuq.draw(net, zoo.points(kind, 30, seed=1), samples=3, batch_size=8)
    whole = bnuq.predict(net, x, omega, chunk_size=70)
    for size in (1, 7, 64):
        assert_close(bnuq.predict(net, x, omega, chunk_size=size), whole, **EXACT)


def test_the_same_call_gives_the_same_bits():
    net, x = zoo.made("2d"), zoo.points("2d", 9)
    one, two = (bnuq.predict(net, x, bnuq.draw(net, x, samples=3, batch_size=4, seed=2)) for _ in range(2))
    assert torch.equal(one, two)


def test_permuting_the_points_permutes_the_outputs():
    net, x = zoo.made("2d"), zoo.points("2d", 20)
    omega = bnuq.draw(net, zoo.points("2d", 30, seed=1), samples=3, batch_size=8)
    order = torch.randperm(20, generator=torch.Generator().manual_seed(0))
    assert_close(bnuq.predict(net, x[order], omega), bnuq.predict(net, x, omega)[:, order], **EXACT)


def test_a_part_of_the_draws_gives_that_part_of_the_outputs():
    net, x = zoo.made("2d"), zoo.points("2d", 9)
    omega = bnuq.draw(net, zoo.points("2d", 30, seed=1), samples=5, batch_size=8)
    # Three draws pass together, then five: products of other sizes, in float64.
    torch.testing.assert_close(
        bnuq.predict(net, x, omega[1:4]), bnuq.predict(net, x, omega)[1:4], rtol=1e-12, atol=1e-12
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_outputs_have_the_dtype_of_the_network(dtype):
    net, x = zoo.made("2d", dtype), zoo.points("2d", 9, dtype=dtype)
    assert bnuq.predict(net, x, bnuq.draw(net, x, samples=2, batch_size=4)).dtype == dtype


class Prefixed(nn.Module):
    """Two convolutions, then what is stochastic, then one more convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = (nn.Conv2d(2, 2, 3, padding=1) for _ in range(3))
        self.bn, self.drop, self.last = nn.BatchNorm2d(2), nn.Dropout(0.5), nn.Linear(2, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.second(F.relu(self.first(x)))
        return self.last(self.drop(F.relu(self.third(F.relu(self.bn(x)))).mean((2, 3))))


def prepared(net: nn.Module, x: Tensor, **stochastic: object) -> Stochastic:
    engine = Stochastic(net, find_sites(net, x[:3]), **stochastic)
    engine.prepare(x)
    assert not engine.why_plain
    return engine


@pytest.mark.parametrize("stacked", [False, True])
@pytest.mark.parametrize(("samples", "chunks"), [(1, 1), (5, 1), (5, 3)])
def test_what_precedes_the_first_draw_is_run_once_a_chunk(samples, chunks, stacked, monkeypatch):
    if not stacked:
        monkeypatch.setitem(devices._TRAITS, "cpu", replace(devices.traits("cpu"), stacked_entries=0))
    net, x = zoo.settled(Prefixed, (2, 4, 4)), zoo.points((2, 4, 4), 9)
    engine = prepared(net, x, omega=bnuq.draw(net, x, samples=samples, batch_size=4))
    for chunk in x.chunk(chunks):
        engine.passes(chunk)  # the first passes compare the plan with the plain loop
    with Executed() as executed:
        for chunk in x.chunk(chunks):
            engine.passes(chunk)
    assert executed.calls["conv2d"] == chunks * (2 + (1 if stacked else samples))


def test_only_what_follows_the_first_dropout_is_run_again(monkeypatch):
    monkeypatch.setitem(devices._TRAITS, "cpu", replace(devices.traits("cpu"), stacked_entries=0))
    net, x = zoo.settled(Prefixed, (2, 4, 4)), zoo.points((2, 4, 4), 9)
    engine = prepared(net, x, dropout=bnuq.Dropout(5))
    engine.passes(x)
    with Executed() as executed:
        engine.passes(x)
    assert (executed.calls["conv2d"], executed.calls["linear"]) == (3, 5)


class SmallImages(nn.Module):
    """A deep convolution of small images after one that is not deep, and a linear layer whose bias lies apart."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.deep = nn.Conv2d(2, 8, 3), nn.Conv2d(8, 64, 27, padding=13)
        self.norms = nn.ModuleList([nn.BatchNorm2d(8), nn.BatchNorm2d(64)])
        self.weight, self.bias = nn.Parameter(torch.ones(3, 64)), nn.Parameter(torch.arange(6.0))

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norms[1](self.deep(F.relu(self.norms[0](self.first(x))))))
        return F.linear(x.mean((2, 3)), self.weight, self.bias[::2])


def test_a_cpu_computes_deep_convolutions_of_small_images_in_torch_s_own_layout(monkeypatch):
    monkeypatch.setitem(devices._TRAITS, "cpu", replace(devices.traits("cpu"), stacked_entries=0))
    net, x = zoo.settled(SmallImages, (2, 8, 8), torch.float32), zoo.points((2, 8, 8), 9, dtype=torch.float32)
    engine, layouts = prepared(net, x, omega=bnuq.draw(net, x, samples=3, batch_size=4)), []
    outputs = engine.passes(x)
    assert_close(outputs, engine.plain.passes(x), rtol=0, atol=1e-5 * float(outputs.abs().max()))
    with Executed(lambda func, args: layouts.append((func, *args[:2]))):
        engine.passes(x)
    deep = [tensors for func, *tensors in layouts if func is torch.ops.aten.conv2d.default and len(tensors[1]) == 64]
    assert len(deep) == 3 and all(tensor.is_contiguous() for tensors in deep for tensor in tensors)


class Hazard(nn.Module):
    """A network whose suffix meets its prefix in one particular way."""

    def __init__(self, forward) -> None:
        super().__init__()
        self.fc, self.bn, self.last, self.drop = nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 3), nn.Dropout(0.3)
        self.register_buffer("scratch", torch.zeros(4))
        self._forward = forward

    def forward(self, x: Tensor) -> Tensor:
        return self._forward(self, x)


def skip_read(m, x):
    y = m.fc(x)
    return m.last(torch.tanh(m.bn(y)) + y)


def skip_written_by_add(m, x):
    y = m.fc(x)
    y += torch.tanh(m.bn(y))
    return m.last(y)


def skip_written_through_a_view(m, x):
    y = m.fc(x)
    z = m.bn(y)
    y.view(-1).mul_(2)
    y[:, :2].add_(1)
    return m.last(y + z)


def input_written_after_the_draw(m, x):
    x += m.bn(x)
    return m.last(x)


def input_written_late(m, x):
    z = torch.tanh(m.bn(m.fc(x)))
    x.mul_(0.5).add_(z)
    return m.last(x)


def input_written_before_the_draw(m, x):
    x.relu_()
    return m.last(torch.tanh(m.bn(m.fc(x))) + x)


def prefix_written_before_the_draw(m, x):
    y = m.fc(x)
    w = y.clone()
    y.relu_()
    y += w
    return m.last(torch.tanh(m.bn(y)).mul_(y))


def chunks_of_the_prefix(m, x):
    y = torch.cat([m.fc(x), x], 1)
    a, b = y[:, :4], y.split(4, 1)[1]
    z = m.bn(a)
    b.mul_(2)
    return m.last(z + b)


def number_read_from_the_prefix(m, x):
    y = m.fc(torch.ones_like(x[:1]))
    return m.last(m.bn(m.fc(x)) * (2 if y.sum().item() > 0 else 3) + float(y.max()))


def list_read_from_the_prefix(m, x):
    scales = (m.fc(torch.ones_like(x[:1]))[0] * 2).tolist()
    return m.last(m.bn(m.fc(x)) * scales[1] + scales[2])


def numpy_read_from_the_prefix(m, x):
    scale = float((m.fc(torch.ones_like(x[:1]))[0] * 2).numpy()[1])
    return m.last(m.bn(m.fc(x)) * scale)


def written_with_out(m, x):
    y = m.fc(x)
    torch.add(y, torch.tanh(m.bn(y)), out=y)
    return m.last(y)


def assigned_into_the_prefix(m, x):
    y = m.fc(x)
    y[:, 1:3] = torch.tanh(m.bn(y))[:, :2]
    y[y > 0] = 0.5
    return m.last(y)


def prefix_written_twice_and_drawn_twice(m, x):
    y = m.fc(x)
    y += m.bn(y)
    y *= 0.5
    y += torch.tanh(m.bn(y))
    return m.last(y)


def output_is_a_view_that_is_written_next_time(m, x):
    y = m.fc(x)
    y.copy_(m.bn(y))
    return y[:, :3]


def scratch_buffer(m, x):
    y = m.fc(x)
    m.scratch.add_(1)
    return m.last(m.bn(y))


def input_view_written_after_the_draw(m, x):
    left, right = x.chunk(2, 1)
    z = m.bn(m.fc(x))
    left += z[:, :2]
    return m.last(z + torch.cat([right, left], 1))


HAZARDS = {
    "relu_in_place_of_the_stochastic_output": lambda m, x: m.last(F.relu(m.bn(m.fc(x)), inplace=True)),
    "view_of_the_input": lambda m, x: m.last(torch.tanh(m.bn(m.fc(x.view(-1, 4)))) + x[:, :4]),
    "view_of_a_weight": lambda m, x: m.last(m.bn(x @ m.fc.weight.t() + m.fc.bias.view(1, 4))),
    "view_of_a_buffer": lambda m, x: m.last(m.bn(m.fc(x) + m.scratch[None].expand(len(x), 4))),
    "input_detached": lambda m, x: m.last(m.bn(m.fc(x.detach()))),
}
HAZARDS |= {
    forward.__name__: forward
    for forward in (
        input_view_written_after_the_draw, skip_read, skip_written_by_add, skip_written_through_a_view,
        input_written_after_the_draw, input_written_late, input_written_before_the_draw,
        prefix_written_before_the_draw, chunks_of_the_prefix, number_read_from_the_prefix, list_read_from_the_prefix,
        numpy_read_from_the_prefix, written_with_out, assigned_into_the_prefix, prefix_written_twice_and_drawn_twice,
        output_is_a_view_that_is_written_next_time, scratch_buffer,
    )
}  # fmt: skip


@pytest.mark.parametrize("forward", HAZARDS.values(), ids=HAZARDS)
def test_later_passes_are_those_of_networks_run_from_the_start(forward):
    net, x = zoo.settled(lambda: Hazard(forward), (4,)), zoo.points((4,), 6, seed=1)
    batches = zoo.points((4,), 32).reshape(4, 8, 4)
    given, state = x.clone(), {k: v.clone() for k, v in net.state_dict().items()}
    calls = 2 if forward is prefix_written_twice_and_drawn_twice else 1
    by_hand = [zoo.statistics_by_hand(net, batch, set(range(calls))) for batch in batches]
    found = bnuq.predict(net, x, bnuq.statistics_of(net, batches))
    assert_close(found, zoo.predicted_by_hand(net, x, by_hand), **EXACT)
    assert torch.equal(x, given)
    assert all(torch.equal(v, state[k]) for k, v in net.state_dict().items())


def test_dropout_in_place_on_the_prefix_does_not_reach_the_next_pass():
    def forward(m, x):
        y = m.fc(x)
        return m.last(F.dropout(y, 0.5, m.training, inplace=True) + y)

    net, x = zoo.settled(lambda: Hazard(forward), (4,)), zoo.points((4,), 6)
    found = bnuq.predict(net, x, dropout=bnuq.Dropout(4, seed=1))
    with torch.no_grad():
        y = net.fc(x)
    for t in range(4):
        keep = mask((64, 4), 0.5, draw=t, seed=1)[:6]
        with torch.no_grad():
            assert_close(found[t], net.last(2 * y * keep / 0.5), **EXACT)


def mask(shape: tuple[int, ...], p: float, *, draw: int, seed: int) -> Tensor:
    return torch.from_numpy(
        counter_rng.quarters(seed, [draw], counter_rng.MASK, 0, math.prod(shape)) >= p * 2**16
    ).view(shape)


def test_predictions_of_two_networks_may_alternate():
    nets = zoo.made("2d"), zoo.settled(lambda: Prefixed(), (2, 4, 5))
    x = zoo.points("2d", 12)
    omegas = [bnuq.draw(net, x, samples=3, batch_size=4) for net in nets]
    alone = [bnuq.predict(net, x, omega) for net, omega in zip(nets, omegas, strict=True)]
    for _ in range(2):
        for net, omega, expected in zip(nets, omegas, alone, strict=True):
            assert torch.equal(bnuq.predict(net, x, omega), expected)


def test_a_second_bank_of_one_network_leaves_the_first_alone():
    net, x = zoo.made("2d"), zoo.points("2d", 12)
    first = bnuq.draw(net, x, samples=3, batch_size=4)
    before = bnuq.predict(net, x, first)
    second = bnuq.draw(net, x, samples=3, batch_size=6, seed=9, layers="first:1")
    assert len(second.layers) == 1 and len(first.layers) == 2
    assert torch.equal(bnuq.predict(net, x, first), before)
    assert not torch.equal(bnuq.predict(net, x, second), before)


def test_omega_and_dropout_must_hold_as_many_draws():
    net, x = zoo.settled(Prefixed, (2, 4, 4)), zoo.points((2, 4, 4), 9)
    with pytest.raises(SamplingError, match="omega has 3 draws and dropout has 4 draws; expected the same number"):
        bnuq.predict(net, x, bnuq.draw(net, x, samples=3, batch_size=4), dropout=bnuq.Dropout(4))


def test_omega_and_dropout_together_are_both_at_work():
    net, x = zoo.settled(Prefixed, (2, 4, 4)), zoo.points((2, 4, 4), 9)
    omega, dropout = bnuq.draw(net, x, samples=3, batch_size=4), bnuq.Dropout(3)
    both = bnuq.predict(net, x, omega, dropout=dropout)
    assert not torch.equal(both, bnuq.predict(net, x, omega))
    assert not torch.equal(both, bnuq.predict(net, x, dropout=dropout))
    for size in (1, 4):
        assert_close(bnuq.predict(net, x, omega, dropout=dropout, chunk_size=size), both, **EXACT)


@pytest.mark.parametrize("points", [20, 300])
def test_a_recurrent_network_before_the_first_draw_takes_the_path_it_takes(points):
    # torch prepares the LSTM's hidden state differently when it is handed the tensors of an earlier pass
    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.read, self.norm, self.out = nn.LSTM(8, 16, batch_first=True), nn.BatchNorm1d(16), nn.Linear(16, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.out(self.norm(self.read(x)[0][:, -1]))

    net, x = zoo.settled(Recurrent, (5, 8)), zoo.points((5, 8), points)
    omega = bnuq.draw(net, x, samples=3, batch_size=8)
    with torch.no_grad():
        hidden = net.read(x)[0][:, -1]
        expected = [
            net.out(
                F.batch_norm(hidden, *(torch.from_numpy(v[t]) for v in (m.mean, m.var)), net.norm.weight, net.norm.bias)
            )
            for m in omega.layers
            for t in range(3)
        ]
    torch.testing.assert_close(bnuq.predict(net, x, omega), torch.stack(expected))


def test_a_network_that_remembers_its_calls_is_run_whole_in_every_pass():
    class Remembers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.out, self.calls = nn.BatchNorm1d(4), nn.Linear(4, 3), 0

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            for _ in range(self.calls):
                x = x * 0.5 + x * 0.5
            return self.out(self.norm(x))

    net, x = zoo.settled(Remembers, (4,)), zoo.points((4,), 12)
    omega = bnuq.draw(net, x, samples=3, batch_size=8)
    with torch.no_grad():
        (m,) = omega.layers
        expected = [
            net.out(
                F.batch_norm(x, torch.from_numpy(m.mean[t]), torch.from_numpy(m.var[t]), net.norm.weight, net.norm.bias)
            )
            for t in range(3)
        ]
    torch.testing.assert_close(bnuq.predict(net, x, omega), torch.stack(expected))
