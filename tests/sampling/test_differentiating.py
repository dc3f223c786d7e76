"""Networks whose forward differentiates with torch.autograd, against the same forward with statistics and masks that
are put into the network by hand."""

from __future__ import annotations

import copy
from contextlib import nullcontext

import pytest
import torch
import zoo
from torch import Tensor, nn
from torch.testing import assert_close

import bnuq
from bnuq.sampling.dropout import Dropout, dropped
from bnuq.sampling.engine import Stochastic
from bnuq.sampling.exactness import check_exact
from bnuq.sampling.gradients import agrees
from bnuq.sampling.head import head
from bnuq.sampling.interception import DropoutCall, undisturbed
from bnuq.sampling.plain_loop import Evaluation, PlainLoop
from bnuq.sampling.site_search import find_sites
from bnuq.sampling.statistics import draw

EXACT = {"rtol": 1e-9, "atol": 1e-10}


class Forces(nn.Module):
    """The force of a learned energy, as interatomic potentials have it; the layers in `inside` belong to the energy,
    the others come behind its derivative."""

    def __init__(self, inside: tuple[str, ...] = (), *, enabled: bool = True, backward: bool = False) -> None:
        super().__init__()
        self.fc, self.hidden, self.last = nn.Linear(4, 6), nn.Linear(6, 6), nn.Linear(6, 3)
        self.bn, self.drop, self.first = nn.BatchNorm1d(6), nn.Dropout(0.3), nn.BatchNorm1d(6)
        self._inside, self._enabled, self._backward = inside, enabled, backward

    def _through(self, h: Tensor, *, inside: bool) -> Tensor:
        for name in ("bn", "drop"):
            if (name in self._inside) == inside:
                h = self.get_submodule(name)(h)
        return h

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(self.fc(x))
        with torch.enable_grad() if self._enabled else nullcontext():
            leaf = h.detach().requires_grad_()
            energy = self._through(torch.tanh(self.hidden(leaf)), inside=True).pow(3).sum()
            if self._backward:
                energy.backward()
                force = leaf.grad
            else:
                (force,) = torch.autograd.grad(energy, leaf, create_graph=True)
        return self.last(h + self._through(force, inside=False))


def points(n: int, seed: int = 0) -> Tensor:
    return zoo.points((4,), n, seed=seed)


def settled(*inside: str, **options: bool) -> nn.Module:
    """Such a network in evaluation mode, with running statistics of its own mini-batches."""
    torch.manual_seed(0)
    network = Forces(inside, **options).double().train()
    for seed in range(20):
        network(points(64, seed=100 + seed))
    return network.eval()


INSIDE = [(), ("drop",), ("bn",), ("bn", "drop")]


@pytest.mark.parametrize("options", [{}, {"enabled": False}, {"backward": True}], ids=["grad", "bare", "backward"])
@pytest.mark.parametrize("inside", INSIDE, ids=str)
def test_the_deterministic_network_is_the_network(inside, options):
    network, x = settled(*inside, **options), points(8)
    expected = network(x).detach()
    network.zero_grad()
    network.fc.weight.grad = marker = torch.ones_like(network.fc.weight)
    (outputs,) = Evaluation(network).passes(x)
    assert_close(outputs, expected, **EXACT)
    assert not outputs.requires_grad
    assert network.fc.weight.grad is marker
    assert bool((marker == 1).all())
    assert network.hidden.weight.grad is None


@pytest.mark.parametrize("inside", INSIDE, ids=str)
def test_samples_are_those_of_statistics_and_masks_put_in_by_hand(inside):
    network, x, samples = settled(*inside), points(8), 3
    sites = find_sites(network, x)
    omega = draw(network, points(200, seed=1), samples=samples, batch_size=32)
    dropout = Dropout(samples)
    engine = Stochastic(network, sites, omega=omega, dropout=dropout)
    outputs = engine.passes(x, start=5)
    assert engine.why_plain == "its forward differentiates"
    (site,) = sites.dropouts
    for number in range(samples):
        by_hand = copy.deepcopy(network)
        for layer in omega.layers:
            batchnorm = by_hand.get_submodule(layer.name)
            batchnorm.running_mean.copy_(torch.from_numpy(layer.mean[number]))
            batchnorm.running_var.copy_(torch.from_numpy(layer.var[number]))
        ones = DropoutCall(torch.ones(8, 6, dtype=x.dtype), 0.3, "dropout", in_place=False, training=False)
        mask = dropped(ones, site, dropout, [number], 5)
        assert 0 < int((mask == 0).sum()) < mask.numel()
        by_hand.drop.register_forward_hook(lambda _module, _args, output, mask=mask: output * mask)
        assert_close(outputs[number], by_hand(x).detach(), **EXACT)


def test_statistics_behind_the_derivative_are_those_of_training():
    network = settled()
    batch = points(32, seed=7)
    sites = find_sites(network, batch)
    assert [site.name for site in sites.live_batchnorms] == ["first", "bn"]
    exactness = check_exact(network, sites, batch, sites.live_batchnorms)
    assert exactness.deviation is not None
    assert exactness.deviation < 1e-9
    assert exactness.fixed == ()


def test_a_batchnorm_that_is_differentiated_is_not_sampled_and_the_others_are():
    network, batch = settled("bn"), points(32, seed=7)
    sites = find_sites(network, batch)
    reasons = {site.name: site.reason for site in sites.batchnorms}
    assert reasons["first"] == ""
    assert reasons["bn"].startswith("the forward differentiates through it")
    assert [layer.name for layer in draw(network, batch, samples=1, batch_size=16).layers] == ["first"]
    exactness = check_exact(network, sites, batch, sites.live_batchnorms)
    assert exactness.deviation is not None
    assert exactness.deviation < 1e-9


def test_such_a_network_is_attacked_and_its_last_layer_found():
    network, x = settled("drop"), points(8)
    assert agrees(PlainLoop(network, find_sites(network, x), dropout=Dropout(2)), x)
    found = head(network, x)
    assert_close(found.features @ found.weight.T + found.bias, network(x).detach(), **EXACT)
    with undisturbed(network):
        assert not found.features.requires_grad


def test_such_a_network_is_evaluated_with_each_method_that_it_allows():
    x, labels = points(60, seed=3), torch.arange(60) % 3
    network = settled("bn")
    result = bnuq.evaluate(network, test=(x, labels), train=points(200, seed=1), samples=4, calibrate="off")
    pll = result.summary()["methods"]["deterministic"]["sets"]["test"]["pll"]["value"]
    assert pll == pytest.approx(float(network(x).detach().log_softmax(1)[range(60), labels].mean()), abs=1e-6)
    assert {"mcbn", "mcdo", "mcbn+mcdo"} <= {*result.methods}
    reasons = [str(finding.values["reason"]) for finding in result.findings if finding.code == "not-stochastic"]
    assert len(reasons) == 1
    assert "differentiates" in reasons[0]


def test_a_transform_of_torch_func_needs_no_autograd():
    class Transformed(Forces):
        def forward(self, x: Tensor) -> Tensor:
            h = self.first(self.fc(x))
            return self.last(self.bn(torch.func.grad(lambda h: torch.tanh(self.hidden(h)).pow(3).sum())(h)))

    network, x = Transformed().double().eval(), points(8)
    (outputs,) = Evaluation(network).passes(x)
    assert_close(outputs, network(x).detach(), **EXACT)
    assert [site.name for site in find_sites(network, x).live_batchnorms] == ["first", "bn"]
