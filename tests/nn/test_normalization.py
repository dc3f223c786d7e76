"""Normalised layers against formulas, torch's own layers and Monte Carlo."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import integrate, stats
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from experiments.layers import (
    AnalyticSequential,
    BatchNorm,
    Moments,
    NormalizedConv1d,
    NormalizedConv2d,
    NormalizedConv3d,
    NormalizedLinear,
    data_moments,
    project,
    propagated,
)
from experiments.layers.moments import relu_moments


def with_affine(layer: nn.Module) -> nn.Module:
    """The layer in float64 with scales and biases of all sizes."""
    for part in layer.modules():
        if hasattr(part, "scale"):
            nn.init.uniform_(part.scale, 0.5, 1.5)
            nn.init.normal_(part.bias, std=0.3)
    return layer.double()


CONVOLUTIONS = [
    (NormalizedConv1d, nn.Conv1d, (4, 6, 3), {"stride": 2}, (5, 4, 9)),
    (NormalizedConv2d, nn.Conv2d, (4, 6, 3), {"padding": 1, "padding_mode": "circular", "groups": 2}, (5, 4, 6, 7)),
    (NormalizedConv3d, nn.Conv3d, (4, 6, 2), {"dilation": 2}, (5, 4, 4, 5, 6)),
]
LAYERS = [*CONVOLUTIONS, (NormalizedLinear, nn.Linear, (4, 6), {}, (5, 4))]


@pytest.mark.parametrize(("normalized", "plain", "sizes", "options", "shape"), LAYERS)
def test_weight_normalisation_is_that_of_torch(normalized, plain, sizes, options, shape) -> None:
    layer = with_affine(normalized(*sizes, normalization="weight", **options))
    expected = parametrizations.weight_norm(plain(*sizes, **options).double())
    with torch.no_grad():
        expected.parametrizations.weight.original1.copy_(layer.weight)
        expected.parametrizations.weight.original0.copy_(
            layer.stochastic.scale.view_as(expected.parametrizations.weight.original0)
        )
        expected.bias.copy_(layer.stochastic.bias)
    x = torch.randn(shape, dtype=torch.float64)
    assert torch.allclose(layer(x), expected(x), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("normalized", "plain", "sizes", "options", "shape"), LAYERS)
@pytest.mark.parametrize("training", [True, False])
def test_batchnorm_is_that_of_torch(normalized, plain, sizes, options, shape, training) -> None:
    layer = with_affine(normalized(*sizes, normalization="batch", eps=1e-3, momentum=0.3, **options))
    product = plain(*sizes, bias=False, **options).double()
    norms = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d, 5: nn.BatchNorm3d}
    norm = norms[len(shape)](6, eps=1e-3, momentum=0.3).double()
    product.load_state_dict({"weight": layer.weight})
    affine = layer.stochastic.stochastic
    norm.load_state_dict({"weight": affine.scale, "bias": affine.bias}, strict=False)
    for _ in range(2):
        x = torch.randn(shape, dtype=torch.float64)
        assert torch.allclose(layer(x), norm(product(x)), rtol=1e-12, atol=1e-12)
    layer.train(training), norm.train(training)
    assert torch.allclose(layer(x), norm(product(x)), rtol=1e-12, atol=1e-12)
    assert torch.allclose(layer.stochastic.running_var, norm.running_var)


@pytest.mark.parametrize(("normalized", "plain", "sizes", "options", "shape"), LAYERS)
def test_analytic_normalisation_is_by_moments_of_independent_inputs(normalized, plain, sizes, options, shape) -> None:
    layer = with_affine(normalized(*sizes, normalization="analytic", eps=1e-4, **options))
    x = torch.randn(shape, dtype=torch.float64)
    mean, variance = torch.randn(4, dtype=torch.float64), torch.rand(4, dtype=torch.float64)
    groups = options.get("groups", 1)
    of_output = torch.arange(6) // (6 // groups)
    expected_mean, expected_variance = torch.zeros(6).double(), torch.zeros(6).double()
    for out in range(6):
        for position, weight in enumerate(layer.weight[out]):
            channel = of_output[out] * (4 // groups) + position
            expected_mean[out] += (weight * mean[channel]).sum()
            expected_variance[out] += (weight**2 * variance[channel]).sum()
    product = plain(*sizes, bias=False, **options).double()
    product.load_state_dict({"weight": layer.weight})
    along = [1, 6] + [1] * (len(shape) - 2)
    h = (product(x) - expected_mean.view(along)) / (expected_variance + 1e-4).sqrt().view(along)
    y = h * layer.stochastic.scale.view(along) + layer.stochastic.bias.view(along)
    if "padding" in options:  # the border sees padding after the normalisation, too
        assert options["padding_mode"] == "circular"
    assert torch.allclose(layer(x, Moments(mean, variance)), y, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("normalization", ["none", "weight", "analytic", "batch"])
def test_gradients_are_those_of_differences(normalization: str) -> None:
    network = AnalyticSequential(
        NormalizedConv2d(2, 3, 2, normalization=normalization),
        nn.LeakyReLU(0.2),
        nn.Flatten(),
        NormalizedLinear(12, 2, normalization=normalization),
        data=Moments(torch.tensor([0.3, -0.2]), torch.tensor([0.5, 1.5])),
    )
    with_affine(network)
    x = torch.randn(4, 2, 3, 3, dtype=torch.float64)
    names, values = zip(*network.named_parameters(), strict=True)

    def output(*values: Tensor) -> Tensor:
        return torch.func.functional_call(network, dict(zip(names, values, strict=True)), (x,))

    assert torch.autograd.gradcheck(output, values)


@pytest.mark.parametrize("normalization", ["none", "weight", "analytic", "batch"])
def test_projection_changes_weights_and_not_the_function(normalization: str) -> None:
    network = AnalyticSequential(
        NormalizedConv2d(3, 4, 3, normalization=normalization, eps=1e-12),
        nn.ReLU(),
        nn.Flatten(),
        NormalizedLinear(16, 2, normalization=normalization, eps=1e-12),
        data=Moments(torch.zeros(3), torch.ones(3)),
    )
    x = torch.randn(50, 3, 4, 4, dtype=torch.float64)
    with_affine(network)(x)
    before = network.eval()(x)
    project(network)
    norms = torch.cat([layer.weight.flatten(1).norm(dim=1) for layer in (network[0], network[3])])
    assert torch.allclose(norms, torch.ones(6).double()) == (normalization != "none")
    assert torch.allclose(network(x), before, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("slope", [0.0, 0.1, 1.0])
@pytest.mark.parametrize(("mean", "sd"), [(0.0, 1.0), (0.7, 0.2), (-1.5, 2.0)])
def test_moments_of_a_rectified_normal_are_those_of_quadrature(slope: float, mean: float, sd: float) -> None:
    density = stats.norm(mean, sd).pdf

    def moment(power: int) -> float:
        function = lambda y: (y if y > 0 else slope * y) ** power * density(y)  # noqa: E731
        return integrate.quad(function, mean - 12 * sd, 0)[0] + integrate.quad(function, 0, mean + 12 * sd)[0]

    of = relu_moments(Moments(*torch.tensor([[mean], [sd**2]], dtype=torch.float64)), slope)
    assert of.mean.item() == pytest.approx(moment(1), abs=1e-8)
    assert of.variance.item() == pytest.approx(moment(2) - moment(1) ** 2, abs=1e-8)


def test_a_rectified_constant_has_no_variance() -> None:
    mean, variance = relu_moments(Moments(torch.tensor([0.0, 2.0, -3.0]), torch.zeros(3)))
    assert torch.allclose(mean, torch.tensor([0.0, 2.0, 0.0])) and torch.allclose(variance, torch.zeros(3), atol=1e-6)


THROUGH = [nn.Conv2d(3, 4, 3), nn.Conv2d(3, 3, 2, groups=3), nn.ReLU(), nn.LeakyReLU(0.3), nn.Dropout(0.5).eval()]


@pytest.mark.parametrize("layer", THROUGH, ids=str)
def test_moments_of_independent_normal_inputs_are_those_of_monte_carlo(layer: nn.Module) -> None:
    mean, sd = torch.tensor([0.4, -1.0, 2.0]), torch.tensor([1.0, 0.5, 2.0])
    expected = data_moments(layer(torch.randn(20_000, 3, 6, 6) * sd.view(-1, 1, 1) + mean.view(-1, 1, 1)))
    of = propagated(layer, Moments(mean, sd**2))
    assert torch.allclose(of.mean, expected.mean, atol=0.02)
    assert torch.allclose(of.variance, expected.variance, rtol=0.03)


def test_moments_pass_a_flattening_and_batchnorm() -> None:
    linear, norm = nn.Linear(8, 3), nn.BatchNorm1d(3)
    nn.init.uniform_(norm.weight), nn.init.uniform_(norm.bias)
    x = torch.randn(100_000, 2, 4) * torch.tensor([[1.0], [2.0]]) + torch.tensor([[0.5], [-1.0]])
    moments = propagated(nn.Flatten(), Moments(torch.tensor([0.5, -1.0]), torch.tensor([1.0, 4.0])))
    of, expected = propagated(linear, moments), data_moments(linear(x.flatten(1)))
    assert torch.allclose(of.mean, expected.mean, atol=0.02) and torch.allclose(
        of.variance, expected.variance, rtol=0.03
    )
    assert torch.equal(propagated(norm, of).mean, norm.bias) and torch.equal(
        propagated(norm, of).variance, norm.weight**2
    )


def analytic_network(data: Moments) -> AnalyticSequential:
    torch.manual_seed(0)
    of = {"normalization": "analytic"}
    layers = [
        NormalizedConv2d(1, 16, 3, **of),
        nn.ReLU(),
        NormalizedConv2d(16, 32, 3, stride=2, **of),
        nn.LeakyReLU(0.1),
    ]
    layers += [NormalizedConv2d(32, 32, 4, stride=4, **of), nn.ReLU(), nn.Flatten()]
    return with_affine(AnalyticSequential(*layers, NormalizedLinear(288, 10, **of), data=data))


def sd_ratios(network: AnalyticSequential, x: Tensor) -> list[Tensor]:
    """Of every layer: standard deviation of its output over data, over that propagated, channel by channel."""
    moments, ratios = Moments(network.data_mean, network.data_variance), []
    with torch.no_grad():
        for layer in network:
            x = layer(x, moments) if hasattr(layer, "stochastic") else layer(x)
            moments = propagated(layer, moments)
            if not isinstance(layer, nn.Flatten):
                ratios.append((data_moments(x).variance / moments.variance).sqrt())
    return ratios


@pytest.fixture(scope="module")
def pictures(data_pack: Path) -> Tensor:
    with gzip.open(data_pack / "fashion-mnist" / "train-images-idx3-ubyte.gz") as opened:
        pixels = np.frombuffer(opened.read(16 + 600 * 784), np.uint8)[16:].reshape(-1, 1, 28, 28)
    x = torch.tensor(pixels, dtype=torch.float64)
    return (x - x.mean()) / x.std()


def test_propagated_moments_are_those_of_real_pixels_that_are_independent(pictures: Tensor) -> None:
    shuffled = pictures.flatten()[torch.randint(pictures.numel(), pictures.shape)]
    ratios = sd_ratios(analytic_network(data_moments(pictures)), shuffled)
    assert (ratios[0] - 1).abs().max() < 0.01  # exact for the first layer
    assert all(abs(r.median() - 1) < 0.1 for r in ratios)  # its channels share inputs, so that others are approximate
    assert all((r - 1).abs().max() < 0.5 for r in ratios)


def test_propagated_moments_keep_real_pictures_in_range_layer_by_layer(pictures: Tensor) -> None:
    """Neighbouring pixels are correlated, which the model leaves out: within a factor of four, without drifting off."""
    assert all(0.25 < r.median() < 4 for r in sd_ratios(analytic_network(data_moments(pictures)), pictures))


def test_a_sequence_gives_its_layers_the_moments_that_they_need(pictures: Tensor) -> None:
    moments = data_moments(pictures)
    network, x = analytic_network(moments), pictures[:8]
    expected, of = x, moments
    for layer in network:
        expected = layer(expected, of) if hasattr(layer, "stochastic") else layer(expected)
        of = propagated(layer, of)
    assert torch.allclose(network(x), expected)
    layers = list(network)
    nested = AnalyticSequential(nn.Sequential(*layers[:4]), nn.Sequential(nn.Sequential(*layers[4:])), data=moments)
    assert torch.equal(nested.double()(x), network(x))


def test_what_does_not_fit_is_refused() -> None:
    layer, moments = NormalizedLinear(4, 2, normalization="analytic"), Moments(torch.zeros(3), torch.ones(3))
    with pytest.raises(ValueError, match="needs the moments of its input: put the layer into an AnalyticSequential"):
        layer(torch.zeros(1, 4))
    with pytest.raises(ValueError, match="has 4 input channels; the moments are those of 3"):
        layer(torch.zeros(1, 4), moments)
    with pytest.raises(ValueError, match="moments were given to a layer with normalization='weight'"):
        NormalizedLinear(3, 2)(torch.zeros(1, 3), moments)
    with pytest.raises(ValueError, match="normalization is 'layer'; expected 'none', 'weight', 'analytic' or 'batch'"):
        NormalizedLinear(3, 2, normalization="layer")
    with pytest.raises(ValueError, match=r"input of NormalizedConv2d has shape \(3, 8, 8\); expected 4 axes"):
        NormalizedConv2d(3, 2, 3)(torch.zeros(3, 8, 8))
    with pytest.raises(ValueError, match=r"input of BatchNorm has shape \(3,\)"):
        BatchNorm(3)(torch.zeros(3))
    with pytest.raises(ValueError, match="eps is -1; expected a positive, finite number"):
        NormalizedLinear(3, 2, eps=-1)
    with pytest.raises(ValueError, match=r"shapes \(2,\) and \(3,\); expected a mean and a variance"):
        AnalyticSequential(data=Moments(torch.zeros(2), torch.ones(3)))
    with pytest.raises(TypeError, match="moments cannot be propagated through Tanh"):
        AnalyticSequential(nn.Tanh(), layer, data=Moments(torch.zeros(4), torch.ones(4)))(torch.zeros(1, 4))


def test_layers_after_the_last_analytic_one_may_be_any() -> None:
    layer = NormalizedLinear(4, 2, normalization="analytic")
    network = AnalyticSequential(layer, nn.Tanh(), nn.Softmax(1), data=Moments(torch.zeros(4), torch.ones(4)))
    assert network(torch.randn(3, 4)).sum(1).tolist() == pytest.approx([1, 1, 1])
