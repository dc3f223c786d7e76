"""Learned noise: found, drawn once for each sample, shared by points, and its mean in a deterministic pass."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import kstest
from torch import Tensor, nn
from torch.nn import functional as F

import bnuq
from bnuq.errors import SamplingError
from bnuq.nn import standard_normal
from bnuq.sampling import counter_rng
from bnuq.sampling.engine import Stochastic
from bnuq.sampling.gradients import agrees
from bnuq.sampling.noise import Learned
from bnuq.sampling.plain_loop import Evaluation, PlainLoop
from bnuq.sampling.site_search import find_sites

FEATURES, HIDDEN, OUTPUTS, POINTS = 5, 16, 3, 40


class Gaussian(nn.Linear):
    """Weights of mean `weight` and of one deviation, which `noise` multiplies."""

    deviation = 0.1

    def noise(self) -> Tensor:
        return standard_normal(self.weight, training=self.training)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight + self.deviation * self.noise(), self.bias)


class Foreign(Gaussian):
    """Draws in its forward, whatever the mode, as layers of other libraries do."""

    def noise(self) -> Tensor:
        return torch.randn_like(self.weight)


class Distribution(Gaussian):
    def noise(self) -> Tensor:
        return torch.distributions.Normal(torch.zeros_like(self.weight), 1.0, validate_args=False).rsample()


class Buffered(Gaussian):
    """Writes its numbers into a buffer."""

    def __init__(self, *sizes: int) -> None:
        super().__init__(*sizes)
        self.register_buffer("eps", torch.full_like(self.weight, 7.0))

    def noise(self) -> Tensor:
        return self.eps.data.normal_()  # type: ignore


class PerPoint(Gaussian):
    """Noise of the outputs, another one for each point: local reparameterisation."""

    def forward(self, x: Tensor) -> Tensor:
        mean = F.linear(x, self.weight, self.bias)
        return mean + self.deviation * x.square().sum(1, keepdim=True).sqrt() * torch.randn_like(mean)


SHARED = (Gaussian, Foreign, Distribution, Buffered)


def network(layer: type[nn.Linear], *between: nn.Module) -> nn.Module:
    torch.manual_seed(3)
    first, last = layer(FEATURES, HIDDEN), layer(HIDDEN, OUTPUTS)
    return nn.Sequential(first, *between, nn.ReLU(), last).eval()


def points(count: int = POINTS) -> Tensor:
    return torch.from_numpy(np.random.default_rng(1).normal(size=(count, FEATURES)).astype(np.float32))


def engine(model: nn.Module, samples: int = 20, seed: int = 4, first: int = 0) -> Stochastic:
    return Stochastic(model, find_sites(model, points(3)), learned=Learned(samples, seed, first))


def expected(model: nn.Module, seed: int, draw: int) -> np.ndarray:
    """The pass of one draw, by hand in float64."""
    values = points().double().numpy()
    layers = [layer for layer in model if isinstance(layer, nn.Linear)]  # type: ignore
    for order, layer in enumerate(layers):
        mean, bias = (tensor.detach().double().numpy() for tensor in (layer.weight, layer.bias))
        noise = counter_rng.normal(seed, draw, counter_rng.LEARNED, mean.size, site=order).reshape(mean.shape)
        values = values @ (mean + 0.1 * noise).T + bias
        values = np.maximum(values, 0) if layer is layers[0] else values
    return values


@pytest.mark.parametrize("layer", SHARED)
def test_a_sample_is_one_function_with_drawn_weights(layer: type[nn.Linear]):
    model = network(layer)
    samples = engine(model).passes(points())
    for draw in (0, 13):
        np.testing.assert_allclose(samples[draw].numpy(), expected(model, 4, draw), rtol=0, atol=2e-6)


@pytest.mark.parametrize("layer", (*SHARED, PerPoint))
def test_a_deterministic_pass_has_the_mean_in_place_of_noise(layer: type[nn.Linear]):
    model = network(layer)
    plain = nn.Sequential(*[_plain(module) for module in model])  # type: ignore
    assert torch.equal(Evaluation(model).passes(points())[0], plain(points()))


def _plain(module: nn.Module) -> nn.Module:
    if not isinstance(module, nn.Linear):
        return module
    twin = nn.Linear(module.in_features, module.out_features)
    twin.load_state_dict({name: module.state_dict()[name] for name in ("weight", "bias")})
    return twin


@pytest.mark.parametrize(
    ("layer", "has_plan"), ((Gaussian, True), (Foreign, True), (Buffered, False), (PerPoint, False))
)
def test_a_plan_is_made_where_points_share_the_noise(layer: type[nn.Linear], has_plan: bool):
    made = engine(network(layer))
    made.prepare(points())
    assert (made.work(POINTS) is not None) == has_plan, made.why_plain


def test_a_plan_without_noise_has_its_means():
    model = network(PerPoint, nn.BatchNorm1d(HIDDEN))
    plain = nn.Sequential(*[_plain(module) for module in model])  # type: ignore
    omega = bnuq.draw(model, points(200), samples=4, batch_size=32, seed=0)
    made = Stochastic(model, find_sites(model, points(3)), omega=omega)
    samples = made.passes(points())
    assert made.work(POINTS) is not None, made.why_plain
    expected = bnuq.predict(plain, points(), bnuq.draw(plain, points(200), samples=4, batch_size=32, seed=0))
    torch.testing.assert_close(samples, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("layer", (Gaussian, Buffered, PerPoint))
def test_samples_do_not_depend_on_chunks_or_on_how_many_there_are(layer: type[nn.Linear]):
    model = network(layer)
    together = engine(model).passes(points())
    parts = engine(model)
    apart = torch.cat([parts.passes(points()[:13], 0), parts.passes(points()[13:], 13)], dim=1)
    later = engine(model, samples=5, first=15).passes(points())
    torch.testing.assert_close(apart, together, rtol=0, atol=1e-6)
    torch.testing.assert_close(later, together[15:], rtol=0, atol=1e-6)


def test_noise_of_each_point_is_independent_and_normal():
    model = nn.Sequential(PerPoint(FEATURES, OUTPUTS)).eval()
    samples = engine(model, samples=200).passes(points())
    mean = Evaluation(model).passes(points())
    numbers = ((samples - mean) / (0.1 * points().square().sum(1).sqrt()[None, :, None])).double().numpy()
    assert kstest(numbers.ravel(), "norm").pvalue > 0.01
    assert np.abs(np.corrcoef(numbers.reshape(200, -1).T) - np.eye(POINTS * OUTPUTS)).max() < 0.4


@pytest.mark.parametrize(
    ("numbers", "mean", "moments"),
    (
        (lambda x: torch.empty_like(x).uniform_(-1, 3), 1.0, (1.0, 16 / 12)),
        (lambda x: torch.rand(40), 0.5, (0.5, 1 / 12)),  # noqa: ARG005
        (lambda x: torch.bernoulli(torch.full_like(x, 0.3)), 0.3, (0.3, 0.21)),
        (lambda x: torch.empty_like(x).bernoulli_(0.3), 0.3, (0.3, 0.21)),
        (lambda x: torch.normal(2.0, 3.0, (40,)), 2.0, (2.0, 9.0)),  # noqa: ARG005
    ),
)
def test_the_distributions_of_torch(numbers, mean: float, moments: tuple[float, float]):
    class Layer(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x[:, :1] * 0 + numbers(torch.zeros(40))

    model = Layer().eval()
    assert torch.allclose(Evaluation(model).passes(points()), torch.tensor(mean))
    samples = engine(model, samples=300).passes(points(2))[:, 0].double()
    variance = moments[1]
    assert float(samples.mean()) == pytest.approx(moments[0], abs=5 * (variance / samples.numel()) ** 0.5)
    assert float(samples.var()) == pytest.approx(variance, rel=0.05)


def test_noise_joins_mini_batches_and_masks():
    model = network(Gaussian, nn.BatchNorm1d(HIDDEN), nn.Dropout(0.3))
    omega = bnuq.draw(model, points(200), samples=6, batch_size=32, seed=0)
    dropout, learned = bnuq.Dropout(6, 2), Learned(6, 2)
    joint = bnuq.predict(model, points(), omega, dropout=dropout, learned=learned)
    alone = [
        bnuq.predict(model, points(), omega, dropout=dropout),
        bnuq.predict(model, points(), omega, learned=learned),
        bnuq.predict(model, points(), dropout=dropout, learned=learned),
    ]
    assert all(float((joint - other).abs().max()) > 0.01 for other in alone)
    sites = find_sites(model, points(3))
    assert [site.place for site in (*sites.noises, *sites.batchnorms, *sites.dropouts)] == [0, 3, 1, 2]


@pytest.mark.parametrize("layer", SHARED)
def test_mini_batches_pass_with_the_noise_of_their_draw(layer: type[nn.Linear]):
    """A sample is one function: its statistics are those of its own weights, and their mean no weights' of any."""
    model, reference, learned = network(layer, nn.BatchNorm1d(HIDDEN)), points(200), Learned(5, seed=2, first=3)
    options = {"samples": 5, "batch_size": 32, "seed": 0}
    omega = bnuq.draw(model, reference, **options, learned=learned)
    first, norm, _, last = (model[0], model[1], model[-2], model[-1])
    assert isinstance(first, nn.Linear) and isinstance(norm, nn.BatchNorm1d) and isinstance(last, nn.Linear)
    assert omega.indices is not None
    samples = bnuq.predict(model, points(), omega, learned=learned)
    for draw in range(5):
        weights = []
        for order, each in enumerate((first, last)):
            noise = counter_rng.normal(2, 3 + draw, counter_rng.LEARNED, each.weight.numel(), site=order)
            weights.append(
                each.weight.detach().double() + each.deviation * torch.from_numpy(noise).view_as(each.weight)
            )
        batch = F.linear(reference[omega.indices[draw]].double(), weights[0], first.bias.detach().double())
        np.testing.assert_allclose(omega.layers[0].mean[draw], batch.mean(0), rtol=0, atol=1e-5)
        np.testing.assert_allclose(omega.layers[0].var[draw], batch.var(0, correction=0), rtol=1e-4)
        hidden = F.linear(points().double(), weights[0], first.bias.detach().double())
        hidden = (hidden - batch.mean(0)) / (batch.var(0, correction=0) + norm.eps).sqrt()
        hidden = F.relu(hidden * norm.weight.detach() + norm.bias.detach())
        expected = F.linear(hidden, weights[1], last.bias.detach().double())
        np.testing.assert_allclose(samples[draw], expected, rtol=0, atol=1e-4)
    assert np.abs(bnuq.draw(model, reference, **options).layers[0].mean - omega.layers[0].mean).max() > 0.01


def test_mini_batches_are_exact_where_layers_draw_in_training_mode():
    model = network(PerPoint, nn.BatchNorm1d(HIDDEN))
    omega = bnuq.draw(model, points(200), samples=4, batch_size=32, seed=0)
    plain = nn.Sequential(*[_plain(module) for module in model])  # type: ignore
    again = bnuq.draw(plain, points(200), samples=4, batch_size=32, seed=0)
    np.testing.assert_allclose(omega.layers[0].mean, again.layers[0].mean, rtol=0, atol=1e-6)


@pytest.mark.parametrize("layer", (*SHARED, PerPoint))
def test_gradients_flow_through_a_draw(layer: type[nn.Linear]):
    model = network(layer)
    assert agrees(PlainLoop(model, find_sites(model, points(3)), learned=Learned(4, 4)), points())


def test_generators_and_buffers_are_left_as_they_were():
    model = network(Buffered)
    state = torch.get_rng_state()
    bnuq.predict(model, points(), learned=Learned(3))
    assert torch.equal(torch.get_rng_state(), state)
    assert float(model[0].eps.min()) == 7.0  # type: ignore


def test_a_network_without_noise_is_refused():
    with pytest.raises(SamplingError, match="no layer of the network has noise"):
        bnuq.predict(network(nn.Linear), points(), learned=Learned(3))


def test_draws_of_different_numbers_are_refused():
    with pytest.raises(SamplingError, match="dropout has 4 draws and learned has 3 draws; expected the same number"):
        bnuq.predict(network(Gaussian, nn.Dropout(0.3)), points(), dropout=bnuq.Dropout(4), learned=Learned(3))


def test_a_path_that_depends_on_the_input_is_refused():
    class Sometimes(Gaussian):
        def noise(self) -> Tensor:
            return standard_normal(self.weight, training=False) if self.often else torch.zeros_like(self.weight)

        def forward(self, x: Tensor) -> Tensor:
            self.often = bool(x.abs().max() > 100)
            return super().forward(x)

    made = engine(nn.Sequential(Sometimes(FEATURES, OUTPUTS), Gaussian(OUTPUTS, OUTPUTS)).eval())
    with pytest.raises(SamplingError, match="drew different noise from the first time"):
        made.passes(1000 * points())


class Seeded(nn.Linear):
    """Adds fixed numbers of a generator of its own."""

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight + torch.randn(self.weight.shape, generator=torch.Generator().manual_seed(0)))


def test_numbers_of_a_generator_of_the_networks_own_are_left_alone():
    model = network(Seeded, nn.BatchNorm1d(HIDDEN))
    assert find_sites(model, points(3)).noises == ()
    np.testing.assert_array_equal(Evaluation(model).passes(points())[0], model(points()).detach())
    with pytest.warns(UserWarning, match="random numbers \\(randn\\) in evaluation mode too"):
        omega = bnuq.draw(model, points(200), samples=3, batch_size=32, seed=0)
    first, again = (bnuq.predict(model, points(), omega) for _ in range(2))
    np.testing.assert_array_equal(first, again)


@pytest.mark.parametrize(("kept", "times"), [(20, 20), (12, 20 + 3 * 8), (0, 4 * 20 + 2 + 3)])
def test_noise_that_points_share_is_drawn_once_for_all_chunks_as_far_as_memory_allows(kept, times, monkeypatch):
    model, drawn, uniform = network(Gaussian), list[int](), counter_rng.uniform

    def counting(seed: int, draw: int, purpose: int, count: int, **rest: int) -> np.ndarray:
        drawn.append(count)
        return uniform(seed, draw, purpose, count, **rest)

    together, sampled = engine(model).passes(points()), engine(model)
    sampled.prepare(points())
    assert sampled.plain.noise is not None
    sampled.shrink()  # forgets what the checks of the plan have drawn
    bytes_of_draw = 4 * HIDDEN * (FEATURES + OUTPUTS)
    monkeypatch.setattr("bnuq.sampling.noise.available_memory", lambda: 8 * kept * bytes_of_draw)
    monkeypatch.setattr(counter_rng, "uniform", counting)
    apart = [sampled.passes(points()[start : start + 10], start) for start in range(0, POINTS, 10)]
    torch.testing.assert_close(torch.cat(apart, dim=1), together, rtol=0, atol=1e-6)
    assert drawn.count(HIDDEN * OUTPUTS) == times  # five of them for a check of ten points, also in three parts
