"""Networks with learned noise on the UCI sets: their objective, their samples, their stacks, and an interrupted run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import at_night
import numpy as np
import pytest
import torch
from torch import nn

import bnuq
from bnuq.errors import RequestError
from experiments.layers import MeanFieldLinear
from experiments.uci import protocol
from experiments.uci.protocol import PAPER, QUICK, Learned, chosen_methods
from experiments.uci.sets import Material, final, read_set
from experiments.uci.variational import Regression, Stack

pytestmark = pytest.mark.nightly  # not installed; test_commands.py runs four whole experiments

CPU = torch.device("cpu")
NEXT_TO_NONE = -25.0  # the parameter of a standard deviation of e^-25


@pytest.fixture
def material(made_up: Path) -> Material:
    return final(read_set("boston", made_up), splits=[1, 2])


def silenced(network: nn.Module) -> None:
    """Standard deviations next to none, so that training mode repeats itself."""
    with torch.no_grad():
        for name, values in network.named_parameters():
            if name.endswith(("weight_u", "bias_u")):
                values.fill_(NEXT_TO_NONE)


# ── the objective ────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("kind", ["vi", "vi-bn"])
def test_the_elbo_is_its_likelihood_and_its_divergence_by_hand(kind: Learned) -> None:
    torch.manual_seed(0)
    network = Regression(kind, 3, 5, prior_sd=0.7).double()
    silenced(network)
    with torch.no_grad():
        network.log_sd.fill_(-0.4)
    x, y = torch.randn(30, 3).double(), torch.randn(30).double()
    hidden, divergence = x.numpy(), 0.0
    layers = [layer for layer in network.body if isinstance(layer, MeanFieldLinear)]
    assert len(layers) == 3
    for place, layer in enumerate(layers):
        means = [values.detach().numpy() for values in (layer.weight, layer.bias)]
        for mean in means:
            ratio = np.exp(NEXT_TO_NONE) / 0.7
            divergence += np.sum(ratio**2 / 2 + (mean / 0.7) ** 2 / 2 - 0.5 - np.log(ratio))
        hidden = hidden @ means[0].T + means[1]
        if place < 2:
            if kind == "vi-bn":
                hidden = (hidden - hidden.mean(0)) / np.sqrt(hidden.var(0) + 1e-5)
            hidden = np.maximum(hidden, 0)
    sd = np.exp(-0.4)
    likelihood = -(((y.numpy() - hidden[:, 0]) / sd) ** 2) / 2 - np.log(sd) - np.log(2 * np.pi) / 2
    for rows in (30, 400):
        assert float(network(x, y, rows).detach()) == pytest.approx(divergence / rows - likelihood.mean(), rel=1e-9)


def test_the_divergence_of_mnf_is_that_of_all_its_layers() -> None:
    pytest.importorskip("zuko")
    network = Regression("mnf", 3, 5, prior_sd=0.7)
    silenced(network)
    x, y = torch.randn(30, 3), torch.randn(30)
    torch.manual_seed(1)
    near = float(network(x, y, 1).detach())
    torch.manual_seed(1)
    far = float(network(x, y, 10**9).detach())
    torch.manual_seed(1)
    network(x)  # the same random numbers
    expected = sum(float(layer.kl().detach()) for layer in network.body if hasattr(layer, "kl"))
    assert near - far == pytest.approx(expected, rel=1e-5)


def test_a_stack_trains_each_network_as_it_is_trained_alone(material: Material) -> None:
    torch.manual_seed(0)
    material = replace(material, rows=np.full(2, 40))  # a whole mini-batch, in whatever order
    pair = Stack("vi-bn", 6, material, [0, 1], 1e-2, CPU)
    silenced_state = {name: values for name, values in pair.state.items() if name.endswith(("weight_u", "bias_u"))}
    with torch.no_grad():
        for values in silenced_state.values():
            values.fill_(NEXT_TO_NONE)
    start = pair.copied()
    pair.train(3)
    for net in (0, 1):
        alone = Stack("vi-bn", 6, material, [net], 1e-2, CPU)
        with torch.no_grad():
            for name, values in alone.state.items():
                values.copy_(start[name][net : net + 1])
        alone.train(3)
        for name, values in alone.state.items():
            torch.testing.assert_close(values[0], pair.state[name][net], rtol=1e-3, atol=1e-5)
            assert name.endswith("num_batches_tracked") or not torch.equal(values[0], start[name][net])


# ── samples ──────────────────────────────────────────────────────────────────────────────────────────────────────────


# tests/nn/ holds of each layer that drawn weights are distributed as in training
@pytest.mark.parametrize("kind", at_night.but({"vi"}, ["mnf", "vi", "vi-bn"]))
def test_its_samples_are_distributed_as_those_of_the_method_learned(kind: Learned, material: Material) -> None:
    pytest.importorskip("zuko")
    torch.manual_seed(0)
    stack = Stack(kind, 10, material, [0, 1], 1e-2, CPU)
    stack.train(10)
    network, samples = stack.network, 600
    network.load_state_dict({name: values[1] for name, values in stack.copied().items()})
    f, plain = stack.outputs(stack.state, 1, samples), stack.outputs(stack.state, 1, 0)
    x = torch.from_numpy(material.x_point[1, : f.shape[1]])
    network.eval()
    mean, scale = material.shift[1], material.scale[1]
    np.testing.assert_allclose(plain[0], mean + scale * network(x).detach().double().numpy(), rtol=1e-4)
    drawn = mean + scale * bnuq.predict(network, x, learned=bnuq.Learned(samples, 0)).double().numpy().squeeze(-1)
    spread = drawn.std(0)
    assert (spread > 0).all()
    np.testing.assert_allclose(f.std(0) / spread, 1, atol=0.12)
    assert np.abs((f.mean(0) - drawn.mean(0)) / spread).max() < 5 * np.sqrt(2 / samples)


# ── the whole ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_methods_that_are_asked_for_and_what_they_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    assert chosen_methods([]) == ("mcbn", "mcdo")
    assert chosen_methods(["VI", " mcdo"]) == ("mcdo", "vi", "vi-bn")
    assert PAPER.for_learned() == PAPER
    assert QUICK.for_learned().seeds < QUICK.seeds
    assert QUICK.of("protein").for_learned().max_epochs == 12
    monkeypatch.setattr(protocol, "find_spec", lambda _: None)
    assert chosen_methods(["vi"]) == ("vi", "vi-bn")
    with pytest.raises(RequestError, match="needs zuko"):
        chosen_methods(["mnf"])
