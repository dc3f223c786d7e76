"""Gradients w.r.t. a network's inputs: through one pass, or through the mean of several draws."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack

import torch
from torch import Tensor, nn

from bnuq.errors import SamplingError
from bnuq.frozen import frozen
from bnuq.sampling.deviation import difference, tolerance
from bnuq.sampling.interception import AboveAutograd, forward, undisturbed
from bnuq.sampling.plain_loop import PlainLoop, tensor_output
from bnuq.shapes import Float

Loss = Callable[[Float[Tensor, "pass point output"]], Tensor]  # float64 outputs → their loss, summed over the points
Pass = Callable[[Tensor, int], Tensor]  # inputs, and the number of their first point → outputs


@frozen
class Differentiable:
    """Passes of `networks` through which gradients flow; several are averaged by the loss."""

    networks: Sequence[nn.Module]
    passes: Sequence[Pass]

    @staticmethod
    def of_networks(networks: Sequence[nn.Module]) -> Differentiable:
        """The passes of these networks in evaluation mode, one each."""

        def of(model: nn.Module) -> Pass:
            return lambda inputs, _: tensor_output(forward(model, inputs))

        return Differentiable(networks, [of(model) for model in networks])

    @staticmethod
    def of_draws(loop: PlainLoop, draws: Sequence[int]) -> Differentiable:
        """The passes of these draws of a plain loop."""

        def of(draw: int) -> Pass:
            return lambda inputs, start: _drawn(loop, inputs, start, draw)

        return Differentiable([loop.model], [of(draw) for draw in draws])

    def gradient(self, inputs: Tensor, loss: Loss, *, start: int = 0) -> Tensor:
        """The gradient of `loss` w.r.t. the inputs, points `start`, `start` + 1, … of their set, in their dtype. It may
        not be finite: an accelerator is not waited for.

        That of each point is scaled by its own positive number, so that a confident prediction does not make it
        underflow. Networks, their gradients, modes and buffers stay as they were. SamplingError where there is none.
        """
        with ExitStack() as closing:
            for model in self.networks:
                closing.enter_context(undisturbed(model, gradients=True))
            pull = None
            if len(self.passes) > 1:
                with torch.no_grad():
                    leaves = [inputs.clone().requires_grad_() for _ in self.passes]  # as below
                    outputs = [each(leaf, start) for each, leaf in zip(self.passes, leaves, strict=True)]
                    pull = _pull(torch.stack(outputs), loss)
            total = torch.zeros_like(inputs)
            for number, sample_pass in enumerate(self.passes):
                leaf = inputs.detach().clone().requires_grad_()
                output = sample_pass(leaf.clone(), start)  # a network may write into its input
                output_gradient = (_pull(output.detach()[None], loss) if pull is None else pull)[number]
                total += _by_input(output, leaf, output_gradient)
        return total


def _by_input(output: Tensor, leaf: Tensor, output_gradient: Tensor) -> Tensor:
    """The gradient w.r.t. the input, from that w.r.t. the output."""
    if output.requires_grad:
        try:
            [gradient] = torch.autograd.grad(output, leaf, output_gradient, allow_unused=True)
        except RuntimeError as error:
            raise SamplingError(f"no gradient by the network's inputs can be computed: {error}") from error
        if gradient is not None:
            return gradient
    raise SamplingError(
        "the network's outputs have no gradient with respect to its inputs (torch.no_grad, detach or rounding in its "
        "forward?), so they cannot be attacked. Leave attacks out, or remove what stops the gradient."
    )


def _pull(outputs: Float[Tensor, "pass point output"], loss: Loss) -> Tensor:
    """The gradient of the loss by the outputs, each point's divided by its largest number."""
    with torch.enable_grad():
        leaf = outputs.detach().double().requires_grad_()
        [gradient] = torch.autograd.grad(loss(leaf), leaf)
    largest = gradient.abs().amax((0, *range(2, gradient.ndim)), keepdim=True)
    return (gradient / largest.clamp_min(torch.finfo(torch.float64).tiny)).to(outputs)


def agrees(loop: PlainLoop, inputs: Tensor) -> bool:
    """Whether the differentiable pass of a draw is that of the plain loop, for these points: it is not where a network
    normalises or drops by an operation that is out of Python's reach, as scripted modules do."""
    with undisturbed(loop.model):
        expected = loop.sample(inputs, 0, 0)
    try:
        with undisturbed(loop.model, gradients=True):
            outputs = _drawn(loop, inputs.clone().requires_grad_().clone(), 0, 0).detach()
    except (SamplingError, RuntimeError):
        return False
    return bool(expected.isfinite().any()) and difference(outputs, expected).is_within(tolerance(outputs))


def _drawn(loop: PlainLoop, inputs: Tensor, start: int, draw: int) -> Tensor:
    """The pass of one draw as a function that torch can differentiate."""
    with loop.sample_pass(start, draw) as sample_pass, AboveAutograd():
        output = tensor_output(forward(loop.model, inputs))
    sample_pass.check_complete()
    return output
