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
from bnuq.sampling.together import WithDropout

DRAWS, ROWS = 4, 300  # too many for draws to be stacked


def late() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 6, 3, bias=False), nn.BatchNorm2d(6), nn.ReLU(inplace=True),
        nn.Conv2d(6, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Dropout(0.4), nn.Linear(6, 3),
    )  # fmt: skip


class Tail(nn.Module):
    """Two dropouts, one of them in place, before operations that a plan computes in place, and a connection that skips
    them. `aux` has a dropout that no output sees."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk, self.head, self.aux = late()[:8], nn.Linear(6, 3), nn.Dropout(0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        features = self.trunk(x)
        self.aux(features)
        y = nn.functional.dropout(features, 0.3, self.training).tanh()
        z = nn.functional.dropout(features * 2, 0.5, self.training, inplace=True).add_(1)
        return self.head(y + features * z)


class Early(nn.Module):
    """A dropout of what is computed once, long before the end."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.block, self.head = nn.Linear(5, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = nn.functional.dropout(self.stem(x.flatten(1)[:, :5]), 0.5, self.training)
        return self.head(x + self.block(x.tanh()))


class Unseen(nn.Module):
    """Of its two dropouts the output sees none."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk, self.aux = nn.Sequential(*late()[:8], nn.Linear(6, 3)), nn.Dropout(0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.trunk(x)
        self.aux(x)
        return x


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


def pair(net: nn.Module, x: torch.Tensor) -> WithDropout:
    together = WithDropout(*engines(net, x), "mcbn")
    together.plain.together = together.dropped.together = together
    return together


def made(kind) -> nn.Module:
    torch.manual_seed(3)
    net = kind()
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d | nn.BatchNorm1d):
            nn.init.uniform_(module.weight, 0.5, 2)
    return net.eval()


X = torch.randn(ROWS, 2, 9, 9, generator=torch.Generator().manual_seed(5))


@pytest.mark.parametrize(("kind", "is_shared"), [(late, True), (Tail, True), (Early, False), (Unseen, False)])
def test_both_have_the_samples_that_each_has_alone(kind, is_shared):
    net = made(kind)
    alone = [engine.passes(X, 40) for engine in engines(net, X)]
    together = pair(net, X)
    torch.testing.assert_close(together.plain.passes(X, 40), alone[0])
    assert torch.equal(together.dropped.passes(X, 40), alone[1])
    assert together.given_by(together.dropped) == ("mcbn" if is_shared else None)
    assert together.given_by(together.plain) is None and not together.kept
    assert torch.equal(*alone) == (kind is Unseen)


def test_the_layers_before_the_first_dropout_are_computed_once():
    net, counts = made(late), []
    for make in (engines, pair):
        both = make(net, X)
        each = (both.plain, both.dropped) if isinstance(both, WithDropout) else both
        for engine in each:
            engine.passes(X)  # which verifies tiles of this size, and what is computed together
        with Convolutions() as mode:
            for engine in each:
                engine.passes(X)
        counts.append(mode.count)
    assert counts[0] == 2 * counts[1] > 0


def test_other_points_and_other_draws_are_computed_alone():
    net, x = made(late), torch.cat([X, X.flip(0)])
    dropped = engines(net, x)[1]
    wanted = dropped.passes(x[ROWS:], 0), dropped.passes(x[:ROWS], 7), dropped.passes(x[:ROWS], 0, [2])
    together = pair(net, x)
    for _ in range(2):  # asked twice, it is kept once
        together.plain.passes(x[:ROWS], 0)
    assert len(together.kept) == 1
    dropped = together.dropped
    given = dropped.passes(x[ROWS:], 0), dropped.passes(x[:ROWS], 7), dropped.passes(x[:ROWS], 0, [2])
    assert all(map(torch.equal, given, wanted)) and together.given_by(dropped) is None


def test_what_would_take_too_much_memory_is_not_kept(monkeypatch):
    monkeypatch.setattr("bnuq.sampling.together._MOST_KEPT", 100)
    together = pair(made(late), X)
    together.plain.passes(X)
    assert together.is_off and not together.kept


def test_engines_of_other_statistics_are_not_computed_together():
    net = made(late)
    plain, dropped = engines(net, X)[0], engines(net, X.flip(0) * 1.1)[1]
    together = WithDropout(plain, dropped, "mcbn")
    plain.together = together
    torch.testing.assert_close(plain.passes(X), engines(net, X)[0].passes(X))
    assert together.is_off
