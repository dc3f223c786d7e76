"""The tensor to be scored in what a network returns, and the logits that it stands for."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from bnuq.errors import ModelError
from bnuq.tasks import Outputs

_KEYS = ("logits", "out")  # of a dict, in this order: transformers, torchvision's segmentation


def scored_output(output: Any) -> tuple[Any, str]:
    """The tensor to be scored in what a network returned, and where in it: `["logits"]`, `["out"]` or the only tensor
    of a dict, the attribute `.logits`, or `[0]` of a tuple; empty for the output itself, or where none was found."""
    if isinstance(output, Tensor):
        return output, ""
    if isinstance(output, Mapping):
        tensors = [key for key, value in output.items() if isinstance(value, Tensor)]
        key = next((key for key in _KEYS if key in tensors), tensors[0] if len(tensors) == 1 else None)
        return (output, "") if key is None else (output[key], f"[{key!r}]".replace("'", '"'))
    if isinstance(logits := getattr(output, "logits", None), Tensor):
        return logits, ".logits"
    if isinstance(output, tuple | list) and output and isinstance(output[0], Tensor):
        return output[0], "[0]"
    return output, ""


def as_rows(output: Any, inputs: Tensor) -> Any:
    """One number per point as a column, and (points, K, 1, 1) or (points, K, 1), which are not pixels of larger inputs,
    as (points, K); anything else as it is."""
    if not isinstance(output, Tensor) or not output.ndim or len(output) != len(inputs):
        return output
    if output.ndim == 1:
        return output[:, None]
    is_row = output.ndim > 2 and math.prod(output.shape[2:]) == 1 and output.shape[2:] != inputs.shape[2:]
    return output.flatten(1) if is_row else output


class Around(nn.Module):
    """A network that is called otherwise than it is defined. The network itself is not modified; its layers and tensors
    have the same names here."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network
        self.training = network.training

    def named_modules(self, *args: Any, **kwargs: Any) -> Any:
        return self.network.named_modules(*args, **kwargs)

    def get_submodule(self, target: str) -> nn.Module:
        return self.network.get_submodule(target)

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        return self.network.state_dict(*args, **kwargs)


class AsLogits(Around):
    """A network whose outputs are converted to logits (points, classes).

    softmax(logits) are the probabilities that the network gives, or those of the classes 0 and 1. Of "multilabel"
    outputs they are logits (points, labels), and sigmoid(logits) the probabilities of the labels.
    """

    def __init__(self, network: nn.Module, outputs: Outputs) -> None:
        super().__init__(network)
        self.outputs: Outputs = outputs

    def forward(self, inputs: Tensor) -> Any:
        is_attacked = inputs.requires_grad and self.outputs == "probabilities"
        with _Activation() if is_attacked else nullcontext() as activation:
            output = as_rows(scored_output(self.network(inputs))[0], inputs)
        if not isinstance(output, Tensor) or output.ndim < 2:
            return output
        logits = None if activation is None else activation.logits(output)
        return _logits(output, self.outputs, is_attacked) if logits is None else logits


class _Activation(TorchFunctionMode):
    """Remembers the latest sigmoid or softmax of a forward, whose gradient is lost where it has saturated."""

    _latest: Any = None  # its name, argument and result, and the result's version

    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if (name := getattr(func, "__name__", "")) in ("sigmoid", "softmax") and args:
            self._latest = name, args[0], result, result._version
        return result

    def logits(self, output: Tensor) -> Tensor | None:
        """The logarithms of the probabilities `output`, of what the activation that gave them was given, if one did."""
        name, given, result, version = self._latest or ("", output, output, -1)
        if result.data_ptr() != output.data_ptr() or (result._version, result.numel()) != (version, output.numel()):
            return None
        if not (result.is_contiguous() and output.is_contiguous()):  # such as a transposed one
            return None
        x = given.reshape(output.shape)
        if name == "sigmoid":
            return nn.functional.logsigmoid(torch.cat([-x, x], 1)) if x.shape[1] == 1 else None
        return x.log_softmax(1)


def as_logits(network: nn.Module, outputs: Outputs) -> nn.Module:
    """`network` with outputs that are logits; itself where they are."""
    return network if outputs == "logits" else AsLogits(network, outputs)


def outputs_of(model: nn.Module) -> Outputs:
    """What the outputs of the network as it was loaded are."""
    return model.outputs if isinstance(model, AsLogits) else "logits"


def unconverted(model: nn.Module) -> nn.Module:
    """The network as it was loaded."""
    return model.network if isinstance(model, AsLogits) else model


def _logits(output: Tensor, outputs: Outputs, is_attacked: bool = False) -> Tensor:
    """The logits of a network's outputs (points, K, …); NaN for what is not a probability.

    A probability of 0 counts as the smallest normal number of its type, whose logarithm is -87.3 in float32, but not
    under attack: there it has no gradient, and the point is named.
    """
    classes = output.shape[1]
    if outputs == "binary":
        if classes != 1:
            raise ModelError(
                f'outputs is "binary", and the network gives {tuple(output.shape)}; expected one logit per example. '
                "With an output for each class leave --outputs out."
            )
        return torch.cat([torch.zeros_like(output), output], 1)
    if outputs == "multilabel":
        if classes < 2:
            raise ModelError(
                f'outputs is "multilabel", and the network gives {tuple(output.shape)}; expected the logits of several '
                "labels per example. For one label say --outputs binary."
            )
        return output
    lowest = math.log(torch.finfo(output.dtype).tiny)
    if outputs == "probabilities":
        logits = output.log() if classes > 1 else torch.cat([(-output).log1p(), output.log()], 1)
    else:
        logits = output if classes > 1 else torch.cat([(-output.expm1()).log(), output], 1)
    return logits if is_attacked else logits.clamp_min(lowest)
