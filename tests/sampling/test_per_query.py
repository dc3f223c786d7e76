"""Queries that pass with a mini-batch: against training's own forward, and against ω that all points share."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
import zoo
from torch import Tensor, nn
from torch.testing import assert_close

import bnuq
from bnuq.errors import SamplingError
from bnuq.sampling.per_query import PerQuery
from bnuq.sampling.plain_loop import Engine
from bnuq.sampling.sites import find_sites, select_layers

KINDS = pytest.mark.parametrize("kind", zoo.KINDS)
EXACT = {"rtol": 1e-9, "atol": 1e-10}
Batch = Callable[[int, int], Tensor]


def batches(kind: str, size: int = 7) -> Batch:
    """Batches that differ by draw and point."""
    return lambda draw, point: zoo.points(kind, size, seed=1000 * draw + point + 1)


def engine(net: nn.Module, kind: str, batch: Batch, *, layers: str = "all", draws: range = range(3), **how) -> PerQuery:
    sites = find_sites(net, zoo.points(kind, 3)).live_batchnorms
    options = {"shared": False, "query_counts": False} | how
    return PerQuery(net, select_layers(sites, layers), draws=draws, batch=batch, **options)


@KINDS
def test_a_query_in_the_batch_has_the_training_forward_of_both(kind):
    net, x = zoo.made(kind), zoo.points(kind, 2)
    batch = batches(kind)
    found = engine(net, kind, batch, query_counts=True).passes(x, 4)
    for t in range(3):
        for i in range(2):
            together = torch.cat([batch(t, 4 + i), x[i : i + 1]])
            assert_close(found[t, i], zoo.trained_forward(net, together)[-1], **EXACT)


@KINDS
def test_with_the_same_batches_for_all_queries_it_is_shared_omega(kind):
    net, x = zoo.made(kind), zoo.points(kind, 3)
    one = [zoo.points(kind, 7, seed=t + 1) for t in range(3)]
    omega = bnuq.statistics_of(net, one)
    for shared in (True, False):
        found = engine(net, kind, lambda draw, _: one[draw], shared=shared).passes(x)
        assert_close(found, bnuq.predict(net, x, omega), **EXACT)


@pytest.mark.parametrize("variance", ["biased", "unbiased"])
@pytest.mark.parametrize("layers", ["first:1", "last:2", "body.*", "stem"])
def test_the_layers_that_are_not_selected_keep_their_running_statistics(layers, variance):
    net, x, batch = zoo.made("nested"), zoo.points("nested", 3), zoo.points("nested", 7, seed=1)
    omega = bnuq.statistics_of(net, batch[None], layers=layers, variance=variance)
    found = engine(net, "nested", lambda *_: batch, layers=layers, variance=variance, draws=range(1)).passes(x)
    assert_close(found, bnuq.predict(net, x, omega), **EXACT)


def test_outputs_depend_on_the_numbers_of_draw_and_point_alone():
    net, x = zoo.made("2d"), zoo.points("2d", 5)
    whole = engine(net, "2d", batches("2d"), draws=range(4)).passes(x)
    parts = [engine(net, "2d", batches("2d"), draws=range(4)).passes(x[i : i + 2], i) for i in (0, 2, 4)]
    assert torch.equal(torch.cat(parts, dim=1), whole)
    assert torch.equal(engine(net, "2d", batches("2d"), draws=range(1, 3)).passes(x), whole[1:3])


def test_queries_of_shared_batches_do_not_see_each_other():
    net, x = zoo.made("2d"), zoo.points("2d", 4)
    how = {"shared": True, "query_counts": True}
    whole = engine(net, "2d", batches("2d"), **how).passes(x)
    alone = [engine(net, "2d", batches("2d"), **how).passes(x[i : i + 1], i) for i in range(4)]
    assert torch.equal(torch.cat(alone, dim=1), whole)


def test_unbiased_divides_by_n_minus_1_of_what_counts():
    net, x, batch = zoo.made("functional"), zoo.points("functional", 1), zoo.points("functional", 6, seed=1)
    for counts, n in ((False, 6), (True, 7)):
        found = engine(net, "functional", lambda *_: batch, query_counts=counts, variance="unbiased", draws=range(1))
        rows = torch.cat([batch, x])

        def decide(_, h, n=n):
            return h[:n].mean(0), h[:n].var(0, correction=1)

        with zoo.batchnorm_by_hand(decide):
            expected = net(rows)[-1]
        assert_close(found.passes(x)[0, 0], expected.detach(), **EXACT)


def test_the_model_and_the_generators_are_left_as_they_were():
    net, x = zoo.made("2d"), zoo.points("2d", 2)
    net.train()
    before, numbers = copy.deepcopy(net.state_dict()), torch.get_rng_state()
    found = engine(net, "2d", batches("2d"))
    assert isinstance(found, Engine)
    found.passes(x)
    assert torch.equal(numbers, torch.get_rng_state())
    assert all(module.training for module in net.modules())
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())


class Folded(nn.Module):
    """A BatchNorm whose rows are the points' positions."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.last = nn.BatchNorm1d(2), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.norm(x.transpose(1, 2).reshape(-1, 2)).reshape(len(x), -1))


def test_a_batchnorm_whose_rows_are_not_the_points_is_refused_by_name():
    net, x = zoo.settled(Folded, (2, 3)), torch.randn(4, 2, 3, dtype=torch.float64)
    sites = find_sites(net, x).live_batchnorms
    asked = PerQuery(net, sites, draws=range(2), batch=lambda *_: x, shared=False, query_counts=False)
    with pytest.raises(SamplingError, match=r"BatchNorm norm gets 15 rows for 5 points, .* --per-query"):
        asked.passes(x)


def test_a_batch_without_a_variance_is_refused_by_the_layers_name():
    net, x = zoo.made("1d on (N, C)"), zoo.points("1d on (N, C)", 1)
    with pytest.raises(SamplingError, match="layer 1 sees 1 value per channel"):
        engine(net, "1d on (N, C)", batches("1d on (N, C)", 1)).passes(x)
    assert engine(net, "1d on (N, C)", batches("1d on (N, C)", 1), query_counts=True).passes(x).isfinite().all()
