"""The last linear layer of a classifier, found by its operation: its features, and the logits that it gives."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from bnuq import devices
from bnuq.errors import BnuqError
from bnuq.frozen import frozen
from bnuq.metrics.posthoc import LastLayer
from bnuq.sampling.interception import Mode, aten, forward, positional, storages_of, tensors_in, undisturbed, written_by
from bnuq.sampling.program import pooled

_AFTER = {aten.softmax, aten.log_softmax, aten._softmax, aten._log_softmax, aten.sigmoid}  # from logits to outputs
_UNCHANGED = {aten.view, aten.reshape, aten._unsafe_view, aten.alias, aten.detach, aten.squeeze, aten.unsqueeze}


class NoHeadError(BnuqError):
    """The network does not end in one linear layer; the message says what it ends in."""


@frozen
class Head:
    """The input (n, features) of a network's last linear layer, its output (n, K), its weight and its bias, which is 0
    where it has none."""

    features: Tensor
    logits: Tensor
    weight: Tensor
    bias: Tensor
    has_bias: bool = True

    @property
    def two_class(self) -> Head:
        """The same with the logits 0 and z of two classes where there is one logit."""
        if self.logits.shape[1] > 1:
            return self
        logits, weight, bias = (
            torch.cat([torch.zeros_like(values), values], axis)
            for values, axis in ((self.logits, 1), (self.weight, 0), (self.bias, 0))
        )
        return Head(self.features, logits, weight, bias, self.has_bias)


def last_layer(features: Tensor, logits: Tensor) -> LastLayer:
    """What post-hoc scores are taken of; where there is one logit, z, the logits of two classes are 0 and z."""
    logits = logits.double()
    logits = torch.cat([torch.zeros_like(logits), logits], 1) if logits.shape[1] == 1 else logits
    return LastLayer(features, logits, logits.softmax(-1))


def head(model: nn.Module, inputs: Tensor) -> Head:
    """The last linear layer of `model` in a forward of `inputs`, whose output is the network's, or whose softmax or
    sigmoid is. NoHeadError where the network ends in anything else."""
    with undisturbed(model), HeadRecorder() as recorder:
        output = forward(model, inputs.clone())
    return recorder.head(output, len(inputs))


class HeadRecorder(Mode):
    """Remembers the latest linear layer, and which operation made each of the latest tensors of what it gives."""

    def __init__(self) -> None:
        super().__init__()
        self._linear: tuple[Tensor, Tensor, Tensor | None, Tensor] | None = None
        self._since: dict[int, Tensor] = {}  # by identity: the output of the linear layer, and what stands for it
        self._kept: set[int] = set()  # storages of the layer's input and output
        self._last = "nothing"

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        # Takes a small network longer than its convolutions; the same numbers, in a tenth of the time.
        pools = func is aten.max_pool2d.default and devices.is_host(args[0].device)
        result = pooled(*positional(func, args, kwargs)) if pools else func(*args, **kwargs)
        if not self._kept.isdisjoint(storages_of(tuple(written_by(func, args, kwargs)))):
            self._since = {}  # what the layer was given or gave is no longer that, or a part of it is not
        if not isinstance(result, Tensor):
            return result
        packet = func.overloadpacket
        if packet is aten.linear:
            inputs, weight, bias = positional(func, args, kwargs)
            self._linear, self._since = (inputs, weight, bias, result), {id(result): result}
            self._kept = storages_of((inputs, result))
        elif packet in _AFTER | _UNCHANGED and any(id(tensor) in self._since for tensor in tensors_in(args)):
            self._since[id(result)] = result
        self._last = packet.__name__
        return result

    def head(self, output: Any, points: int) -> Head:
        if self._linear is None:
            raise NoHeadError("it has no linear layer")
        features, weight, bias, logits = self._linear
        if not isinstance(output, Tensor) or not any(_same(output, tensor) for tensor in self._since.values()):
            raise NoHeadError(f"its outputs are not those of one linear layer; its last operation is {self._last}")
        if features.ndim != 2 or len(features) != points:
            raise NoHeadError(f"its last linear layer takes inputs of shape {tuple(features.shape)}")
        layer_bias = logits.new_zeros(len(weight)) if bias is None else bias.detach()
        return Head(features.detach(), logits.detach(), weight.detach(), layer_bias, bias is not None)


def _same(a: Tensor, b: Tensor) -> bool:
    return a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr() and a.numel() == b.numel()
