"""MNF layers: the flow's density, the bound on the divergence, and a regression that is trained."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor, nn

from experiments.layers import MNFLinear
from experiments.layers.flows import _through

pytestmark = pytest.mark.run  # networks are trained

pytest.importorskip("zuko")


def untidy(layer: MNFLinear) -> MNFLinear:
    """The layer in float64 with flows that are no longer identities."""
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.4)
    nn.init.uniform_(layer.weight_u, -3, -1)
    return layer.double()


def test_it_starts_as_torchs_layer() -> None:
    layer, expected = MNFLinear(5, 3), nn.Linear(5, 3)
    layer.load_state_dict(expected.state_dict(), strict=False)
    x = torch.randn(4, 5)
    assert torch.equal(layer.eval()(x), expected(x))


@pytest.mark.parametrize("features", [1, 2, 5])
def test_the_density_of_the_multipliers_is_that_of_a_change_of_variables(features: int) -> None:
    layer = untidy(MNFLinear(features, 2, transforms=3))
    for flow in (layer.flow, layer.auxiliary_flow):
        z = torch.randn(features, dtype=torch.float64)
        jacobian = torch.autograd.functional.jacobian(lambda z, flow=flow: _through(flow, z)[0], z)
        assert torch.allclose(_through(flow, z)[1], jacobian.det().abs().log())
    torch.manual_seed(1)
    z, log_q = layer.multipliers(torch.empty(features).double(), training=True)
    torch.manual_seed(1)
    sd = torch.where(layer.z_u < 0, layer.z_u.exp(), layer.z_u + 1)
    base = layer.z_mean + sd * torch.randn(features, dtype=torch.float64)
    expected, slope = _through(layer.flow, base)
    assert torch.allclose(z, expected)
    assert torch.allclose(log_q, torch.distributions.Normal(layer.z_mean, sd).log_prob(base).sum() - slope)


def test_every_feature_changes_under_the_flow() -> None:
    layer = untidy(MNFLinear(4, 2))
    z = torch.zeros(2, 4, dtype=torch.float64)
    z[1] = 1
    sent, _ = _through(layer.flow, z)
    assert (sent - z).abs().min() > 1e-3


def gaussian(inputs: int, prior_sd: float = 0.8) -> MNFLinear:
    """A layer whose flow is the identity, so that its weights are jointly normal."""
    layer = MNFLinear(inputs, 2, bias=False, prior_sd=prior_sd).double()
    nn.init.normal_(layer.weight)
    nn.init.uniform_(layer.z_u, -1, 0.5)
    nn.init.uniform_(layer.weight_u, -2, -1)
    return layer


def true_divergence(layer: MNFLinear) -> Tensor:
    """Of the joint normal distribution of the weights, input by input, from its prior: torch's."""
    sd, z_sd = layer.sds()[0], torch.where(layer.z_u < 0, layer.z_u.exp(), layer.z_u + 1)
    total = torch.zeros((), dtype=torch.float64)
    for i in range(layer.in_features):
        column = layer.weight[:, i]
        covariance = z_sd[i] ** 2 * torch.outer(column, column) + torch.diag(sd[:, i] ** 2)
        q = torch.distributions.MultivariateNormal(layer.z_mean[i] * column, covariance)
        p = torch.distributions.MultivariateNormal(torch.zeros(2).double(), layer.prior_sd**2 * torch.eye(2).double())
        total = total + torch.distributions.kl_divergence(q, p)
    return total


@pytest.mark.parametrize("inputs", [1, 3])
def test_the_bound_is_above_the_true_divergence(inputs: int) -> None:
    layer = gaussian(inputs)
    with torch.no_grad():
        draws = torch.stack([layer.kl() for _ in range(200)])
        bound = layer.kl(20_000)
    assert bound.item() > true_divergence(layer).item() + 0.1
    assert abs(draws.mean() - bound) < 5 * draws.std() / 200**0.5  # each is an unbiased estimate


def test_the_bound_is_the_true_divergence_where_the_auxiliary_is_the_posterior_of_z() -> None:
    """One weight W ~ N(z·M, σ²), z normal: the posterior of z given W is normal with a mean linear in W, which r(z|W)
    becomes as tanh(c·W) does for small c."""
    layer = MNFLinear(1, 1, bias=False, prior_sd=0.9, initial_sd=0.3).double()
    nn.init.constant_(layer.weight, 1.4)
    nn.init.constant_(layer.z_mean, 0.0)
    nn.init.constant_(layer.z_u, np.log(0.7))
    precision = 1 / 0.7**2 + 1.4**2 / 0.3**2
    c, gain = 1e-5, (1.4 / 0.3**2) / precision
    with torch.no_grad():
        layer.auxiliary_rows.fill_(c)
        layer.auxiliary_log_variance.zero_()
        scale = layer.auxiliary_flow[0].phi[1]  # r(z|W) is a unit normal after this slope
        slope = 0.5 * np.log(precision)
        scale.fill_(slope / (1 - slope / abs(np.log(0.1))))
        layer.auxiliary_mean.fill_(gain * precision**0.5 / c)
        bounds = torch.stack([layer.kl(2000) for _ in range(10)])
    variance = 0.7**2 * 1.4**2 + 0.3**2
    truth = 0.5 * (variance / 0.81 - 1 - np.log(variance / 0.81))
    assert bounds.mean().item() == pytest.approx(truth, abs=5 * bounds.std().item() / 10**0.5)
    assert bounds.std() < 0.05


@pytest.mark.nightly
def test_gradients_of_the_bound_are_those_of_differences() -> None:
    layer = untidy(MNFLinear(3, 2, hidden_features=2))
    names, values = zip(*layer.named_parameters(), strict=True)

    def bound(*values: Tensor) -> Tensor:
        torch.manual_seed(5)
        named = {f"layer.{name}": value for name, value in zip(names, values, strict=True)}
        return torch.func.functional_call(Bound(layer), named, ())

    assert torch.autograd.gradcheck(bound, values)


class Bound(nn.Module):
    def __init__(self, layer: MNFLinear) -> None:
        super().__init__()
        self.layer = layer

    def forward(self) -> Tensor:
        return self.layer.kl(2)


@pytest.mark.nightly
def test_training_and_drawn_weights_agree_in_distribution(samples) -> None:
    layer, x = untidy(MNFLinear(3, 2)), torch.tensor([[0.5, -1.0, 2.0]], dtype=torch.float64)
    by_weights = samples(layer, x, 600)[:, 0]
    with torch.no_grad():
        local = layer.train()(x.expand(20_000, 3))
    for output in range(2):  # and their difference, as both share z
        assert stats.ks_2samp(by_weights[:, output], local[:, output]).pvalue > 0.01
    assert stats.ks_2samp(by_weights @ torch.tensor([1.0, -1.0]).double(), local[:, 0] - local[:, 1]).pvalue > 0.01


def test_standard_deviations_are_at_most_the_given_one() -> None:
    layer = MNFLinear(2, 2, max_sd=0.3)
    nn.init.constant_(layer.weight_u, 5.0)
    sd, bias_sd = layer.sds()
    assert sd.max().item() == pytest.approx(0.3) and bias_sd is not None and bias_sd.max() < 0.3


def test_without_zuko_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "zuko.flows", None)
    with pytest.raises(ImportError, match=r"MNFLinear needs zuko, which is not installed: pip install zuko"):
        MNFLinear(2, 2)


def test_impossible_flows_are_refused() -> None:
    with pytest.raises(ValueError, match="transforms is 0, hidden_features is 50; expected at least 1 of each"):
        MNFLinear(2, 2, transforms=0)
    with pytest.raises(ValueError, match="max_sd is 0; expected a positive, finite number"):
        MNFLinear(2, 2, max_sd=0)
