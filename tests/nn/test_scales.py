"""Noise of scales: their distributions, divergences and gradients."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import integrate, special, stats
from torch import nn

from experiments.layers import MeanFieldLinear, NormalizedLinear, StochasticScale, kl
from experiments.layers.learned import positive, unconstrained
from experiments.layers.scales import inverse_chi

MANY = 40_000


def bayesian(s: float, sd: float, **options) -> StochasticScale:
    scale = StochasticScale(1, noise="scale", initial_sd=sd, **options).double()
    nn.init.constant_(scale.scale, s)
    return scale


def test_the_standard_deviation_is_exponential_below_zero_and_linear_above() -> None:
    u = torch.tensor([-3.0, -1e-12, 0.0, 2.5], dtype=torch.float64, requires_grad=True)
    sd = positive(u)
    assert torch.allclose(sd, torch.tensor([np.exp(-3.0), 1.0, 1.0, 3.5], dtype=torch.float64))
    sd.sum().backward()
    assert u.grad is not None and torch.allclose(u.grad, torch.tensor([np.exp(-3.0), 1.0, 1.0, 1.0]).double())
    assert [float(positive(torch.tensor(unconstrained(v)).double())) for v in (1e-3, 0.7, 4.0)] == pytest.approx(
        [1e-3, 0.7, 4.0]
    )


def test_large_parameters_have_finite_gradients() -> None:
    u = torch.tensor([200.0, -200.0], requires_grad=True)
    positive(u).sum().backward()
    assert u.grad is not None and u.grad.isfinite().all()


@pytest.mark.parametrize(("s", "sd"), [(1.0, 0.1), (-0.4, 2.5), (3.0, 10.0)])
def test_the_divergence_of_a_scale_is_that_of_quadrature(s: float, sd: float) -> None:
    q, p = stats.norm(s, sd), stats.norm(1, 10)
    expected, _ = integrate.quad(lambda x: q.pdf(x) * (q.logpdf(x) - p.logpdf(x)), s - 12 * sd, s + 12 * sd)
    assert bayesian(s, sd).kl().item() == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("sd", [0.3, 2.0])
def test_the_gradient_of_the_divergence_is_the_closed_form(sd: float) -> None:
    scale = bayesian(0.7, sd)
    scale.kl().backward()
    of_u = (sd if sd < 1 else 1.0) * (-1 / sd + sd / 100)
    assert scale.scale.grad.item() == pytest.approx((0.7 - 1) / 100)
    assert scale.scale_u.grad.item() == pytest.approx(of_u)


def test_the_divergence_of_a_network_sums_layers_once_and_doubles_scales_on_request() -> None:
    shared = NormalizedLinear(3, 3, noise="scale")
    network = nn.Sequential(shared, shared, MeanFieldLinear(3, 2), NormalizedLinear(2, 2))
    scale, weights = shared.stochastic.kl(), network[2].kl()
    assert torch.allclose(kl(network), scale + weights)
    assert torch.allclose(kl(network, doubled_scales=True), 2 * scale + weights)
    assert kl(nn.Linear(2, 2)).item() == 0
    with pytest.raises(NotImplementedError):
        from experiments.layers import LearnedNoise

        LearnedNoise().kl()


@pytest.mark.parametrize(("n", "tolerance"), [(16, 0.013), (32, 0.003), (64, 0.001), (1000, 1e-5)])
def test_u_has_the_quantiles_of_an_inverse_chi(n: int, tolerance: float) -> None:
    z = torch.linspace(-3, 3, 60, dtype=torch.float64)
    exact = np.sqrt(n / stats.chi2(n - 1).ppf(special.ndtr(z.numpy())))
    assert np.abs(inverse_chi(z, n).numpy() / exact - 1).max() < tolerance


def test_u_has_the_moments_of_an_inverse_chi_and_is_one_without_noise() -> None:
    n = 32
    z, weight = np.polynomial.hermite_e.hermegauss(120)
    u, weight = inverse_chi(torch.from_numpy(z), n).numpy(), weight / weight.sum()
    mean = np.sqrt(n / 2) * np.exp(special.gammaln((n - 2) / 2) - special.gammaln((n - 1) / 2))
    assert weight @ u == pytest.approx(mean, rel=1e-4)
    assert weight @ u**2 == pytest.approx(n / (n - 3), rel=1e-3)
    assert inverse_chi(torch.zeros(3), n).tolist() == [1, 1, 1]


def test_noise_like_batchnorms_is_that_of_batches_of_normal_values() -> None:
    n, query = 16, 1.3
    noisy = StochasticScale(1, noise="batch", effective_size=n)(torch.full((MANY, 1), query)).detach().numpy().ravel()
    batches = np.random.default_rng(0).normal(size=(MANY, n))
    assert stats.ks_2samp(noisy, (query - batches.mean(1)) / batches.std(1)).pvalue > 0.01
    u = np.sqrt(n / 2) * np.exp(special.gammaln((n - 2) / 2) - special.gammaln((n - 1) / 2))
    assert noisy.var() == pytest.approx(query**2 * (n / (n - 3) - u**2) + 1 / (n - 3), rel=0.05)


def test_a_bayesian_scale_multiplies_by_normal_numbers() -> None:
    y = bayesian(2.0, 0.5)(torch.full((MANY, 1), -3.0, dtype=torch.float64)).detach().numpy().ravel()
    assert stats.kstest(y, stats.norm(-6, 1.5).cdf).pvalue > 0.01


@pytest.mark.parametrize("noise", ["scale", "batch"])
@pytest.mark.parametrize("per", ["channel", "layer"])
def test_positions_share_the_noise_and_points_do_not(noise: str, per: str, drawing) -> None:
    layer = StochasticScale(4, noise=noise, per=per, effective_size=16 if noise == "batch" else None, bias=False)
    h = torch.ones(5, 4, 3, 3)
    y = layer(h)
    assert torch.equal(y, y[:, :, :1, :1].expand_as(y))
    assert len(y[:, 0, 0, 0].unique()) == 5
    assert len(y[0, :, 0, 0].unique()) == (1 if per == "layer" else 4)
    with drawing(0) as drawn:
        sampled = layer.eval()(h)
    assert torch.equal(sampled, sampled[:1, :, :1, :1].expand_as(sampled)) and not torch.equal(sampled, h)
    assert drawn.shapes == [(1 if per == "layer" else 4,)] * (2 if noise == "batch" else 1)
    assert torch.equal(layer(h), h)


def test_rows_of_a_product_may_have_several_axes() -> None:
    y = StochasticScale(4, channel_axis=-1)(torch.ones(5, 7, 4))
    assert torch.equal(y, y[:, :1].expand_as(y)) and len(y[:, 0].unique()) == 20


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"noise": "loud"}, "noise is 'loud'; expected 'none', 'batch' or 'scale'"),
        ({"per": "pixel"}, "per is 'pixel'; expected 'channel' or 'layer'"),
        ({"noise": "batch"}, 'effective_size is None; expected the latter with noise="batch"'),
        ({"noise": "scale", "effective_size": 32}, "effective_size is 32; expected the latter"),
        ({"noise": "batch", "effective_size": 4}, "effective_size is 4; expected at least 16"),
        ({"initial_sd": 0.0}, "initial_sd is 0.0; expected a positive, finite number"),
    ],
)
def test_impossible_noise_is_refused(options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        StochasticScale(3, **options)
