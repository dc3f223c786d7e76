"""The one point where a network is observed and made stochastic: below autograd, where every form of it meets.

A dispatch mode inside `torch.inference_mode()` sees each BatchNorm and each evaluation-mode dropout as one operation,
whoever called it: `nn.BatchNorm2d`, a fused layer, `F.dropout`, a scripted module. Nothing in the network is replaced.
That composite operations arrive whole is not documented, so `_self_test` checks it once a process.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.utils._python_dispatch import TorchDispatchMode

from bnuq.errors import BnuqError

aten = torch.ops.aten


class Mode(TorchDispatchMode):
    """A dispatch mode that does not bring torch's compiler along: importing it takes over a second."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False


_DROPOUTS = {
    getattr(aten, name + suffix): name
    for name in ("dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout")
    for suffix in ("", "_")
}


@dataclass(frozen=True)
class BatchNormCall:
    """One call of a BatchNorm, whatever module or function made it."""

    input: Tensor
    weight: Tensor | None
    bias: Tensor | None
    running_mean: Tensor | None
    running_var: Tensor | None
    training: bool
    momentum: float
    eps: float

    @property
    def address(self) -> int:
        """Tells layers apart: where the running mean lies in memory, else the scale; 0 where there is neither."""
        owned = self.running_mean if self.running_mean is not None else self.weight
        return 0 if owned is None else owned.data_ptr()

    def normalized(self, mean: Tensor, var: Tensor) -> Tensor:
        """The layer's output with these statistics in place of its own; the layer's own ε is applied here, once."""
        return torch.batch_norm(
            self.input, self.weight, self.bias, mean, var, False, 0.0, self.eps, torch.backends.cudnn.enabled
        )


@dataclass(frozen=True)
class DropoutCall:
    """One call of a dropout; `variety` is "dropout", "feature_dropout", "alpha_dropout" or "feature_alpha_dropout"."""

    input: Tensor
    p: float
    variety: str
    in_place: bool
    training: bool


def stochastic_call(func: Any, args: tuple, kwargs: dict) -> BatchNormCall | DropoutCall | None:
    """What this dispatched operation is, if it is one that can be made stochastic."""
    packet = func.overloadpacket
    if packet is aten.batch_norm:
        return BatchNormCall(*positional(func, args, kwargs)[:8])
    if packet in _DROPOUTS:
        values, p, training = positional(func, args, kwargs)[:3]
        return DropoutCall(values, float(p), _DROPOUTS[packet], packet.__name__.endswith("_"), bool(training))
    return None


def positional(func: Any, args: tuple, kwargs: dict) -> list:
    """All arguments of an operation in the order of its schema, defaults filled in."""
    rest = func._schema.arguments[len(args) :]
    return [*args, *(kwargs.get(a.name, a.default_value) for a in rest)]


def tensors_in(values: Any) -> Iterator[Tensor]:
    """Every tensor in the arguments or the result of an operation."""
    if isinstance(values, Tensor):
        yield values
    elif isinstance(values, (tuple, list)):
        for value in values:
            yield from tensors_in(value)
    elif isinstance(values, dict):
        yield from tensors_in(tuple(values.values()))


def written_by(func: Any, args: tuple, kwargs: dict) -> Iterator[Tensor]:
    """The tensors that this operation writes into."""
    for argument, value in zip(func._schema.arguments, positional(func, args, kwargs), strict=True):
        if argument.alias_info is not None and argument.alias_info.is_write:
            yield from tensors_in(value)


@contextmanager
def undisturbed(model: nn.Module, *, evaluation: bool = True) -> Iterator[None]:
    """Run `model` in evaluation mode without gradients, and leave its modes and buffers, torch's flags and the global
    generators as they were.

    Transformers' fused fast path, which hides its dropouts, is off meanwhile.
    """
    _self_test()
    modes = [(module, module.training) for module in model.modules()]
    buffers = [(buffer, buffer.detach().clone()) for buffer in model.buffers() if not is_lazy(buffer)]
    generators = _generator_states()
    fast_path = torch.backends.mha.get_fastpath_enabled()
    try:
        if evaluation:
            model.eval()
        torch.backends.mha.set_fastpath_enabled(False)
        with torch.inference_mode():
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast_path)
        for module, training in modes:
            module.training = training
        with torch.inference_mode():
            for buffer, before in buffers:  # a layer may count its calls, or update its statistics in every mode
                if not torch.equal(buffer, before):
                    buffer.copy_(before)
        for restore, state in generators:
            restore(state)


def _generator_states() -> list[tuple[Callable[[Any], object], Any]]:
    states: list[tuple[Callable[[Any], object], Any]] = [
        (torch.set_rng_state, torch.get_rng_state()),
        (random.setstate, random.getstate()),
        (np.random.set_state, np.random.get_state()),
    ]
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        for device in range(torch.cuda.device_count()):
            states.append((partial(torch.cuda.set_rng_state, device=device), torch.cuda.get_rng_state(device)))
    return states


@cache
def _self_test() -> None:
    seen: list[type] = []

    class Watch(Mode):
        def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
            call = stochastic_call(func, args, kwargs or {})
            if call is not None:
                seen.append(type(call))
            return func(*args, **(kwargs or {}))

    with torch.inference_mode(), Watch():
        torch.dropout(torch.batch_norm(torch.ones(2, 1), None, None, None, None, True, 0.1, 1e-5, False), 0.5, False)
    if seen != [BatchNormCall, DropoutCall]:
        raise BnuqError(
            f"torch {torch.__version__} does not show BatchNorm and dropout to dispatch modes as bnuq needs it "
            f"(seen: {[kind.__name__ for kind in seen]}). Please use another release of torch and report this one."
        )
