"""A stack of networks is so many single ones: the same gradients, steps and passes as torch's own modules."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from experiments.uci.networks import (
    EPS,
    LEARNING_RATE,
    Architecture,
    DropoutMasks,
    State,
    Training,
    mcbn_passes,
    mcdo_passes,
)

KINDS = ["batchnorm", "dropout"]
NETS, ROWS = 3, 8


def start(kind, *, seed: int = 0) -> tuple[Architecture, Tensor, Tensor, Tensor]:
    """An architecture, random parameters in float64, and a mini-batch for each network."""
    architecture = Architecture(kind, inputs=4, units=7)
    generator = torch.Generator().manual_seed(seed)
    rows = torch.randn(NETS, architecture.parameters, generator=generator, dtype=torch.float64)
    x = torch.randn(NETS, ROWS, 4, generator=generator, dtype=torch.float64)
    return architecture, rows, x, torch.randn(NETS, ROWS, 1, generator=generator, dtype=torch.float64)


def module_of(architecture: Architecture, row: Tensor, rate: float = 0.0) -> nn.Sequential:
    """One network of a stack as torch's own modules."""
    batchnorm = architecture.kind == "batchnorm"
    layers: list[nn.Module] = [] if batchnorm else [nn.Dropout(rate)]
    for inputs in (architecture.inputs, architecture.units):
        layers.append(nn.Linear(inputs, architecture.units, bias=not batchnorm))
        layers.append(nn.BatchNorm1d(architecture.units, eps=EPS) if batchnorm else nn.ReLU())
        layers.append(nn.ReLU() if batchnorm else nn.Dropout(rate))
    network = nn.Sequential(*layers, nn.Linear(architecture.units, 1)).double()
    block = {name: value[0] for name, value in architecture.blocks(row[None]).items()}
    linear = [layer for layer in network if isinstance(layer, nn.Linear)]
    norms = [layer for layer in network if isinstance(layer, nn.BatchNorm1d)]
    with torch.no_grad():
        for number, layer in enumerate(linear, 1):
            layer.weight.copy_(block[f"weight{number}"].T)
            if layer.bias is not None:
                layer.bias.copy_(block[f"bias{number}"][0])
        for number, layer in enumerate(norms, 1):
            layer.weight.copy_(block[f"scale{number}"][0])
            layer.bias.copy_(block[f"shift{number}"][0])
    return network


def row_of(network: nn.Sequential) -> Tensor:
    linear = [layer for layer in network if isinstance(layer, nn.Linear)]
    norms = [layer for layer in network if isinstance(layer, nn.BatchNorm1d)]
    weights = [layer.weight.T.reshape(-1) for layer in linear]
    if norms:
        small = [part for layer in norms for part in (layer.weight, layer.bias)] + [linear[-1].bias]
    else:
        small = [layer.bias for layer in linear]
    return torch.cat([*weights, *small]).detach()


@pytest.mark.parametrize("kind", KINDS)
def test_the_gradient_written_by_hand_is_autograds(kind) -> None:
    architecture, rows, x, y = start(kind)
    decay, rate = torch.tensor([0.3, 0.01, 0.0]), 0.25
    training = Training(
        architecture, State.fresh(rows), weight_decay=decay, batch=ROWS,
        dropout=rate, generator=torch.Generator().manual_seed(1),
    )  # fmt: skip
    loss = training.differentiate(x, y)

    leaf = rows.clone().requires_grad_()
    w = architecture.blocks(leaf)
    masks = DropoutMasks(NETS, ROWS, (4, 7, 7), rate, torch.Generator().manual_seed(1), rows.device).draw()
    hidden = x if kind == "batchnorm" else x * masks[0]
    for layer in (1, 2):
        z = hidden @ w[f"weight{layer}"]
        if kind == "batchnorm":
            z = (z - z.mean(1, keepdim=True)) / (z.var(1, correction=0, keepdim=True) + EPS).sqrt()
            hidden = (z * w[f"scale{layer}"] + w[f"shift{layer}"]).relu()
        else:
            hidden = (z + w[f"bias{layer}"]).relu() * masks[layer]
    expected = (hidden @ w["weight3"] + w["bias3"] - y).square().mean((1, 2)) / 2
    penalty = sum(w[f"weight{layer}"].square().sum((1, 2)) for layer in (1, 2, 3)) / 2
    (expected + decay.double() * penalty).sum().backward()

    torch.testing.assert_close(loss, expected.detach())
    assert leaf.grad is not None
    for name, block in architecture.blocks(leaf.grad).items():
        torch.testing.assert_close(training.gradient[name], block, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("kind", KINDS)
def test_steps_of_a_stack_are_those_of_torchs_modules_and_adam(kind) -> None:
    architecture, rows, _, _ = start(kind)
    batches = [start(kind, seed=seed)[2:] for seed in range(1, 6)]
    decay = torch.tensor([0.0, 0.1, 0.0])
    training = Training(architecture, State.fresh(rows.clone()), weight_decay=decay, batch=ROWS)
    for x, y in batches:
        training.step(x, y)
    for net in range(NETS):
        network = module_of(architecture, rows[net])
        weights = [layer.weight for layer in network if isinstance(layer, nn.Linear)]
        adam = torch.optim.Adam(network.parameters(), lr=LEARNING_RATE)
        for x, y in batches:
            penalty = torch.stack([weight.square().sum() for weight in weights]).sum() / 2
            loss = (network(x[net]) - y[net]).square().mean() / 2 + decay[net].double() * penalty
            adam.zero_grad()
            loss.backward()
            adam.step()
        torch.testing.assert_close(training.state().parameters[net], row_of(network), rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("kind", KINDS)
def test_a_state_goes_on_where_it_was_left(kind) -> None:
    architecture, rows, _, _ = start(kind)
    batches = [start(kind, seed=seed)[2:] for seed in range(1, 5)]
    decay = torch.full((NETS,), 0.01)
    whole = Training(architecture, State.fresh(rows.clone()), weight_decay=decay, batch=ROWS)
    first = Training(architecture, State.fresh(rows.clone()), weight_decay=decay, batch=ROWS)
    for x, y in batches:
        whole.step(x, y)
    for x, y in batches[:2]:
        first.step(x, y)
    second = Training(architecture, first.state(), weight_decay=decay, batch=ROWS)
    for x, y in batches[2:]:
        second.step(x, y)
    assert second.state().steps == 4
    torch.testing.assert_close(second.state().parameters, whole.state().parameters, rtol=0, atol=0)


def test_an_mcbn_pass_of_a_mini_batch_over_itself_is_the_training_forward() -> None:
    architecture, rows, x, _ = start("batchnorm")
    outputs = next(mcbn_passes(architecture, rows, iter([x]), x))
    for net in range(NETS):
        torch.testing.assert_close(outputs[net], module_of(architecture, rows[net]).train()(x[net])[:, 0].detach())


def test_an_mcbn_pass_is_the_evaluation_forward_with_the_mini_batchs_biased_statistics() -> None:
    architecture, rows, batch, _ = start("batchnorm")
    points = start("batchnorm", seed=9)[2][:, :5]
    outputs = next(mcbn_passes(architecture, rows, iter([batch]), points))
    for net in range(NETS):
        network = module_of(architecture, rows[net])
        norms = [layer for layer in network if isinstance(layer, nn.BatchNorm1d)]
        for layer in norms:
            layer.momentum = 1.0
        network.train()(batch[net])
        for layer in norms:
            assert layer.running_var is not None
            layer.running_var.mul_((ROWS - 1) / ROWS)  # torch keeps the unbiased one
        torch.testing.assert_close(outputs[net], network.eval()(points[net])[:, 0].detach())


def test_passes_without_dropout_are_the_plain_network_and_with_it_differ_around_it() -> None:
    architecture, rows, x, _ = start("dropout")
    plain = next(mcdo_passes(architecture, rows, x, dropout=0.0, samples=1, generator=None))
    for net in range(NETS):
        torch.testing.assert_close(plain[net], module_of(architecture, rows[net])(x[net])[:, 0].detach())
    generator = torch.Generator().manual_seed(0)
    drawn = torch.stack(list(mcdo_passes(architecture, rows, x, dropout=0.1, samples=50, generator=generator)))
    assert (drawn.std(0) > 0).all()


@pytest.mark.parametrize("rate", [0.001, 0.05, 0.2])
def test_masks_are_independent_bernoulli_numbers(rate: float) -> None:
    masks = DropoutMasks(5, 200, (13, 50), rate, torch.Generator().manual_seed(3), torch.device("cpu"))
    numbers = torch.stack([torch.cat([mask.reshape(-1) for mask in masks.draw()]) for _ in range(10)])
    zero = numbers == 0
    torch.testing.assert_close(numbers[~zero].unique(), torch.tensor([1 / (1 - rate)]))
    share, error = zero.double().mean().item(), math.sqrt(rate * (1 - rate) / zero.numel())
    assert abs(share - rate) < 5 * error
    beside = (zero[:, 1:] & zero[:, :-1]).double().mean().item()  # neighbours, which the gaps could tie together
    few = 10 / zero.numel()  # so many pairs more happen by chance where hardly one is expected
    assert abs(beside - rate**2) < 5 * math.sqrt(rate**2 / zero.numel()) + few
    early, late = zero[:, :1000].double().mean().item(), zero[:, -1000:].double().mean().item()
    assert max(abs(early - rate), abs(late - rate)) < 5 * math.sqrt(rate / 10_000)


def test_the_start_is_a_truncated_normal_that_depends_on_its_seed_alone() -> None:
    architecture = Architecture("batchnorm", inputs=13, units=50)
    rows = architecture.initial([[0, 1], [0, 2], [0, 1]])
    assert torch.equal(rows[0], rows[2])
    assert not torch.equal(rows[0], rows[1])
    blocks = architecture.blocks(rows)
    weights = blocks["weight2"]
    assert weights.abs().max() <= 0.2
    assert abs(weights.std().item() - 0.0880) < 0.003  # of a normal of sd .1 that is cut at two of them
    assert (blocks["scale1"] == 1).all()
    assert (blocks["shift2"] == 0).all()
    assert (blocks["bias3"] == 0).all()
