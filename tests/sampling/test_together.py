"""Samples with and without dropout that are computed together are those of each alone, and cost the layers before the
first dropout once."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from bnuq import Dropout, draw
from bnuq.sampling.engine import Stochastic
from bnuq.sampling.site_search import find_sites
from bnuq.sampling.together import compute_together

DRAWS, ROWS = 4, 70


def late() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 6, 3, bias=False), nn.BatchNorm2d(6), nn.ReLU(inplace=True),
        nn.Conv2d(6, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Dropout(0.4), nn.Linear(6, 3),
    )  # fmt: skip


class Between(nn.Module):
    """Dropout in place between convolutions, beside a connection that skips it, and writes into what both read."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(2, 6, 3), nn.Conv2d(6, 6, 3, padding=1)
        self.norm, self.other, self.head = nn.BatchNorm2d(6), nn.BatchNorm2d(6), nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.first(x))
        y = self.second(nn.functional.dropout2d(x.relu(), 0.3, self.training, inplace=True))
        x = self.other(y).add_(x).relu_()
        return self.head(nn.functional.dropout(x.mean((2, 3)), 0.5, self.training, inplace=True))


class Convolutions(TorchDispatchMode):
    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += func.overloadpacket in (torch.ops.aten.conv2d, torch.ops.aten.convolution)
        return func(*args, **kwargs or {})


def engines(net: nn.Module, x: torch.Tensor) -> tuple[Stochastic, Stochastic]:
    omega = draw(net, x, samples=DRAWS, batch_size=16, seed=1)
    sites = find_sites(net, x[:4], compare_with_training=True)
    plain, dropped = (Stochastic(net, sites, omega=omega, dropout=each) for each in (None, Dropout(DRAWS, 1)))
    for engine in (plain, dropped):
        engine.prepare(x[:64])
    return plain, dropped


@pytest.fixture(params=[late, Between])
def net(request) -> nn.Module:
    torch.manual_seed(3)
    net = request.param()
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.weight, 0.5, 2)
    return net.eval()


def test_both_have_the_samples_that_each_has_alone(net):
    x = torch.randn(ROWS, 2, 9, 9, generator=torch.Generator().manual_seed(5))
    alone = [engine.passes(x, 40) for engine in engines(net, x)]
    plain, dropped = engines(net, x)
    compute_together(plain, dropped)
    assert plain.together is not None
    torch.testing.assert_close(plain.passes(x, 40), alone[0])
    assert torch.equal(dropped.passes(x, 40), alone[1])
    assert not torch.equal(alone[0], alone[1])


def test_the_layers_before_the_first_dropout_are_computed_once():
    torch.manual_seed(3)
    net, x = late().eval(), torch.randn(ROWS, 2, 9, 9)
    counts = []
    for shares in (False, True):
        plain, dropped = engines(net, x)
        for engine in (plain, dropped):
            engine.passes(x)  # which verifies tiles of this size
        if shares:
            compute_together(plain, dropped)
        with Convolutions() as mode:
            for engine in (plain, dropped):
                engine.passes(x)
        counts.append(mode.count)
    assert counts[0] == 2 * counts[1] > 0


def test_other_points_and_other_draws_are_computed_alone(net):
    x = torch.randn(2 * ROWS, 2, 9, 9)
    plain, dropped = engines(net, x)
    wanted = dropped.passes(x[ROWS:], 0), dropped.passes(x[:ROWS], 7), dropped.passes(x[:ROWS], 0, [2])
    compute_together(plain, dropped)
    plain.passes(x[:ROWS], 0)
    given = dropped.passes(x[ROWS:], 0), dropped.passes(x[:ROWS], 7), dropped.passes(x[:ROWS], 0, [2])
    assert all(map(torch.equal, given, wanted))


def test_engines_of_other_statistics_are_not_computed_together(net):
    x = torch.randn(ROWS, 2, 9, 9)
    plain, dropped = engines(net, x)[0], engines(net, x.flip(0) * 1.1)[1]
    compute_together(plain, dropped)
    assert plain.together is None and dropped.together is None
