"""Mean-field layers: closed forms, and local reparameterisation against drawn weights."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import integrate, stats
from torch import nn

from experiments.layers import MeanFieldConv1d, MeanFieldConv2d, MeanFieldConv3d, MeanFieldLinear, kl

LAYERS = [
    (MeanFieldLinear, nn.Linear, (3, 2), {}, (4, 3)),
    (MeanFieldLinear, nn.Linear, (3, 2), {"bias": False}, (4, 5, 3)),
    (MeanFieldConv1d, nn.Conv1d, (3, 2, 2), {"stride": 2}, (4, 3, 7)),
    (MeanFieldConv2d, nn.Conv2d, (4, 2, 3), {"padding": 1, "padding_mode": "reflect", "groups": 2}, (4, 4, 5, 5)),
    (MeanFieldConv3d, nn.Conv3d, (1, 2, 2), {"padding": 1}, (2, 1, 3, 4, 3)),
]


def spread(layer: nn.Module) -> nn.Module:
    """The layer in float64 with standard deviations of all sizes."""
    nn.init.uniform_(layer.weight_u, -2, 0.5)
    if layer.bias_u is not None:
        nn.init.uniform_(layer.bias_u, -2, 0.5)
    return layer.double()


@pytest.mark.parametrize(("bayesian", "plain", "sizes", "options", "shape"), LAYERS)
def test_the_mean_is_torchs_layer_with_the_same_parameters(bayesian, plain, sizes, options, shape) -> None:
    layer, expected = bayesian(*sizes, **options), plain(*sizes, **options)
    missing = layer.load_state_dict(expected.state_dict(), strict=False).missing_keys
    assert missing == (["weight_u", "bias_u"] if expected.bias is not None else ["weight_u"])
    x = torch.randn(shape)
    assert torch.equal(layer.eval()(x), expected(x))


@pytest.mark.parametrize(("bayesian", "sizes", "options", "shape"), [(b, s, o, x) for b, _, s, o, x in LAYERS[::2]])
@pytest.mark.nightly
def test_local_reparameterisation_has_the_moments_of_drawn_weights(bayesian, sizes, options, shape, samples) -> None:
    layer, count = spread(bayesian(*sizes, **options)), 1500
    x = torch.randn(shape, dtype=torch.float64)
    by_weights = samples(layer, x, count)
    with torch.no_grad():
        local = layer.train()(x.repeat(count, *[1] * (x.dim() - 1))).view_as(by_weights)
    sd = by_weights.std(0)
    assert ((local.mean(0) - by_weights.mean(0)).abs() / sd).max() < 5 * (2 / count) ** 0.5
    assert (local.std(0) / sd - 1).abs().max() < 5 / count**0.5


@pytest.mark.parametrize("training", [True, False])
def test_a_pre_activation_has_the_closed_form_distribution(training: bool, samples) -> None:
    layer, x = spread(MeanFieldLinear(3, 1)), torch.tensor([[0.5, -2.0, 1.0]], dtype=torch.float64)
    with torch.no_grad():
        mean = (layer.weight @ x[0] + layer.bias).item()
        sds, bias_sd = layer.sds()
        sd = ((sds**2 @ x[0] ** 2 + bias_sd**2) ** 0.5).item()
        drawn = layer.train()(x.expand(2000, 3)) if training else samples(layer, x, 2000)
    assert stats.kstest(drawn.numpy().ravel(), stats.norm(mean, sd).cdf).pvalue > 0.01


def test_points_share_drawn_weights_and_not_the_noise_of_training(samples) -> None:
    layer, x = MeanFieldConv2d(2, 3, 3), torch.ones(1, 2, 5, 5).expand(4, -1, -1, -1)
    sample = samples(layer, x, 2)
    assert torch.allclose(sample, sample[:, :1, :, :1, :1].expand_as(sample), atol=1e-6)
    assert not torch.allclose(sample[0], sample[1])
    assert len(layer.train()(x).unique()) == 4 * 3 * 9


@pytest.mark.parametrize("prior_sd", [0.3, 2.0])
def test_the_divergence_is_that_of_quadrature(prior_sd: float) -> None:
    layer, prior, expected = spread(MeanFieldLinear(2, 2, prior_sd=prior_sd)), stats.norm(0, prior_sd), 0.0
    sds = [sd.detach() for sd in layer.sds()]
    for mean, sd in zip((layer.weight.detach(), layer.bias.detach()), sds, strict=True):
        for m, s in zip(mean.ravel().tolist(), sd.ravel().tolist(), strict=True):
            q = stats.norm(m, s)
            integrand = lambda w, q=q: q.pdf(w) * (q.logpdf(w) - prior.logpdf(w))  # noqa: E731
            expected += integrate.quad(integrand, m - 12 * s, m + 12 * s)[0]
    assert layer.kl().item() == pytest.approx(expected, rel=1e-7)


def test_the_divergence_is_torchs_with_its_gradient() -> None:
    layer = spread(MeanFieldConv2d(2, 3, 2, prior_sd=0.7, bias=False))
    q = torch.distributions.Normal(layer.weight, layer.sds()[0])
    expected = torch.distributions.kl_divergence(q, torch.distributions.Normal(0.0, 0.7)).sum()
    assert torch.allclose(kl(layer), expected)
    parameters = list(layer.parameters())
    gradients = zip(torch.autograd.grad(kl(layer), parameters), torch.autograd.grad(expected, parameters), strict=True)
    assert all(torch.allclose(one, other) for one, other in gradients)


def test_gradients_of_a_drawn_pre_activation_are_those_of_differences() -> None:
    layer, x = spread(MeanFieldLinear(3, 2)), torch.randn(4, 3, dtype=torch.float64)
    names, values = zip(*layer.named_parameters(), strict=True)

    def output(*values: torch.Tensor) -> torch.Tensor:
        torch.manual_seed(3)
        return torch.func.functional_call(layer, dict(zip(names, values, strict=True)), (x,))

    assert torch.autograd.gradcheck(output, values)


def test_a_blank_input_has_finite_gradients() -> None:
    layer = MeanFieldConv2d(1, 2, 3, bias=False)
    layer(torch.zeros(2, 1, 4, 4)).sum().backward()
    assert all(np.isfinite(p.grad.numpy()).all() for p in layer.parameters())


def test_impossible_priors_are_refused() -> None:
    with pytest.raises(ValueError, match="prior_sd is -1; expected a positive, finite number"):
        MeanFieldLinear(2, 2, prior_sd=-1)
    with pytest.raises(ValueError, match="initial_sd is inf; expected a positive, finite number"):
        MeanFieldLinear(2, 2, initial_sd=float("inf"))
