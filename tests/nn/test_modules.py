"""Networks of layers with learned noise as ordinary modules, and networks that are converted to such."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from experiments.layers import (
    AnalyticSequential,
    BatchNorm,
    MeanFieldConv2d,
    MeanFieldLinear,
    MNFLinear,
    Moments,
    NormalizedConv2d,
    NormalizedLinear,
    convert,
    kl,
)


def normalised(**of) -> nn.Module:
    layers = [NormalizedConv2d(3, 4, 3, **of), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), NormalizedLinear(36, 5, **of)]
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


class Residual(nn.Module):
    """Somebody's own network: branches, a shared layer, attention, a layer with a hook."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)
        self.conv, self.skip = nn.Conv2d(8, 8, 3, padding=1), nn.Conv2d(8, 8, 1)
        self.attention = nn.TransformerEncoderLayer(8, 2, dim_feedforward=8, batch_first=True)
        self.head = nn.Linear(8, 5)
        self.constrained = nn.utils.parametrizations.weight_norm(nn.Linear(5, 5))

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.stem(x)).relu()
        x = self.conv(self.conv(x)).relu() + self.skip(x)
        return self.constrained(self.head(self.attention(x.flatten(2).mT).mean(1)))


@pytest.fixture(scope="module")
def stranger() -> nn.Module:
    torch.manual_seed(7)
    network = Residual()
    nn.init.normal_(network.norm.weight)
    nn.init.normal_(network.norm.bias)
    network(torch.randn(64, 3, 8, 8))
    for parameter in network.skip.parameters():
        parameter.requires_grad_(False)
    return network.eval()


SCALED = {"norm": BatchNorm, "conv": NormalizedConv2d, "skip": NormalizedConv2d, "head": NormalizedLinear}
WEIGHTS = {"stem": MeanFieldConv2d, "conv": MeanFieldConv2d, "skip": MeanFieldConv2d, "head": MeanFieldLinear}
FORMS = [
    ("scales", {}, SCALED),
    ("scales", {"per": "layer"}, SCALED),
    ("batch-noise", {"effective_size": 64}, SCALED),
    ("mean-field", {"prior_sd": 0.5}, WEIGHTS),
    ("mnf", {"hidden_features": 4}, {"head": MNFLinear}),
]


@pytest.mark.parametrize(("to", "options", "expected"), FORMS)
def test_a_converted_network_has_the_same_outputs_and_noise(to, options, expected, stranger, samples) -> None:
    if to == "mnf":
        pytest.importorskip("zuko")
    before = {name: value.clone() for name, value in stranger.state_dict().items()}
    network = convert(stranger, to, **options)
    assert not network.training and not any(module.training for module in network.modules())
    layers = {name: type(layer) for name, layer in network.named_children()}
    assert {name: kind for name, kind in layers.items() if kind.__module__.startswith("experiments.")} == expected
    with torch.no_grad():
        assert torch.allclose(network(X), stranger(X), atol=1e-5)
    assert (samples(network, X, 3).std(0) > 1e-6).all()
    assert all(torch.equal(value, before[name]) for name, value in stranger.state_dict().items())
    assert (kl(network) > 0) == (to != "batch-noise")


def test_standard_deviations_start_in_units_of_the_scale(stranger) -> None:
    network = convert(stranger, "scales", initial_sd=0.2)
    sd = torch.where(network.norm.stochastic.scale_u < 0, network.norm.stochastic.scale_u.exp(), 1.0)
    assert torch.allclose(sd, 0.2 * stranger.norm.weight.abs(), atol=1e-6)
    assert torch.equal(network.norm.stochastic.scale, stranger.norm.weight)


def test_a_converted_network_is_trained_from_there() -> None:
    torch.manual_seed(1)
    network = convert(nn.Sequential(nn.Linear(3, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 1)))
    x = torch.randn(256, 3)
    optimiser, losses = torch.optim.Adam(network.parameters(), lr=0.01), []
    for _ in range(60):
        optimiser.zero_grad()
        loss = (network(x)[:, 0] - x[:, 0]).square().mean() + kl(network) / 1e4
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < 0.3 * losses[0]


def test_types_modes_and_ties_are_kept() -> None:
    layer = nn.Linear(4, 4)
    other = nn.Linear(4, 4, bias=False)
    other.weight = layer.weight
    network = convert(nn.Sequential(layer, other).double().train(), "mean-field")
    assert network[0].weight is network[1].weight and network.training
    assert {value.dtype for value in network.state_dict().values()} == {torch.float64}
    assert {value.dtype for value in convert(layer.double()).state_dict().values()} == {torch.float64}


def test_what_cannot_be_converted_is_said() -> None:
    with pytest.raises(ValueError, match='no layer of Sequential can be converted to "scales"; expected plain torch'):
        convert(nn.Sequential(nn.ReLU()))
    with pytest.raises(ValueError, match="to is 'sacles'; expected 'scales', 'batch-noise', 'mean-field' or 'mnf'"):
        convert(nn.Linear(2, 2), "sacles")
    with pytest.raises(ValueError, match="effective_size=32"):
        convert(nn.Linear(2, 2), "batch-noise")
    with pytest.raises(TypeError, match="prior"):
        convert(nn.Linear(2, 2), "mean-field", prior=1.0)
