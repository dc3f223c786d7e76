"""Networks of layers with learned noise as ordinary modules."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable

import pytest
import torch
from torch import nn

from experiments.layers import (
    AnalyticSequential,
    MeanFieldConv2d,
    MeanFieldLinear,
    MNFLinear,
    Moments,
    NormalizedConv2d,
    NormalizedLinear,
    kl,
)


def normalised(**of) -> nn.Module:
    layers = [NormalizedConv2d(3, 4, 3, **of), nn.ReLU(), nn.Flatten(), NormalizedLinear(144, 5, **of)]
    return AnalyticSequential(*layers, data=Moments(torch.zeros(3), torch.ones(3)))


def mean_field() -> nn.Module:
    conv = MeanFieldConv2d(3, 4, 3, padding=1, padding_mode="reflect")
    return nn.Sequential(conv, nn.BatchNorm2d(4), nn.Flatten(), MeanFieldLinear(256, 5))


def mnf() -> nn.Module:
    pytest.importorskip("zuko")
    return nn.Sequential(nn.Flatten(), MNFLinear(192, 6), nn.ReLU(), MNFLinear(6, 5, hidden_features=8))


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "weight": lambda: normalised(normalization="weight", noise="scale"),
    "analytic": lambda: normalised(normalization="analytic", noise="batch", effective_size=32),
    "batch": lambda: normalised(normalization="batch", noise="scale", per="layer"),
    "mean-field": mean_field,
    "mnf": mnf,
}


@pytest.fixture(params=NETWORKS)
def network(request: pytest.FixtureRequest) -> nn.Module:
    """A network after a step of training."""
    network = NETWORKS[request.param]()
    optimiser = torch.optim.SGD(network.parameters(), lr=1e-3)
    (network(torch.randn(8, 3, 8, 8)).square().mean() + 1e-3 * kl(network)).backward()
    assert all(parameter.grad is not None and parameter.grad.isfinite().all() for parameter in network.parameters())
    optimiser.step()
    return network


X = torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(0))


def test_it_is_random_in_training_mode_only(network: nn.Module, drawing) -> None:
    assert not torch.equal(network(X), network(X))
    output = network.eval()(X)
    assert torch.equal(network(X), output)
    assert torch.allclose(network(X[:1]), output[:1], atol=1e-6)
    with drawing(0) as drawn:
        sampled = network(X)
    with drawing(0):
        assert torch.equal(network(X), sampled) and not torch.allclose(sampled, output)
    assert len(drawn.shapes) >= 2


def test_noise_in_evaluation_mode_does_not_depend_on_the_points(network: nn.Module, drawing) -> None:
    network.eval()
    with drawing(0) as of_some, torch.inference_mode():
        some = network(X[:2])
    with drawing(0) as of_all, torch.inference_mode():
        everything = network(X)
    assert of_some.shapes == of_all.shapes
    assert torch.allclose(some, everything[:2], atol=1e-6)


def test_its_state_makes_another_the_same(network: nn.Module, request: pytest.FixtureRequest) -> None:
    file = io.BytesIO()
    torch.save(network.state_dict(), file)
    file.seek(0)
    other = NETWORKS[request.node.callspec.params["network"]]()
    other.load_state_dict(torch.load(file, weights_only=True))
    assert torch.equal(other.eval()(X), network.eval()(X))
    copied = copy.deepcopy(network)
    assert torch.equal(copied(X), network(X)) and not set(copied.parameters()) & set(network.parameters())


def test_it_is_exported_with_its_noise(network: nn.Module, drawing) -> None:
    network.eval()
    again = torch.export.export(network, (X,), dynamic_shapes=({0: torch.export.Dim("points")},)).module()
    more = torch.cat([X, X])
    assert torch.allclose(again(more), network(more), atol=1e-6)
    with drawing(3), torch.no_grad():
        sampled = again(more)
    with drawing(3), torch.no_grad():
        assert torch.allclose(sampled, network(more), atol=1e-6)
    assert not torch.allclose(sampled, network(more))
