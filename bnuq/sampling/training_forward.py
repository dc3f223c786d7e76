"""The training-mode forward of a copy of the network, and the first module in which it differs from evaluation mode."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from bnuq.errors import SamplingError, is_out_of_memory
from bnuq.forms import strided_parts
from bnuq.sampling.deviation import difference, tolerance
from bnuq.sampling.interception import (
    BatchNormCall,
    DropoutCall,
    Mode,
    copied,
    forward,
    stochastic_call,
    tensors_in,
    undisturbed,
)
from bnuq.sampling.plain_loop import tensor_output
from bnuq.sampling.recorded_calls import hooked
from bnuq.sampling.sites import BatchNormSite, Sites


def training_copy(model: nn.Module) -> tuple[nn.Module | None, str]:
    try:
        return copied(model).train(), ""
    except Exception as error:  # networks of any make
        if is_out_of_memory(error):
            raise
        return None, f"the network cannot be copied and put in training mode ({type(error).__name__})"


class TrainingForward:
    """The training-mode forward of a copy of the network, its dropouts and the BatchNorms that are not sampled being as
    in evaluation mode."""

    def __init__(self, model: nn.Module, twin: nn.Module, sites: Sites, layers: Sequence[BatchNormSite]) -> None:
        self._twin = twin
        tensors = zip(_tensors_of(model), _tensors_of(twin), strict=True)
        self._addresses = {copied.data_ptr(): original.data_ptr() for original, copied in tensors}
        fixed = [site for site in sites.batchnorms if site.stochastic or site.is_differentiated]
        self._kept = {site.key for site in fixed} - {site.key for site in layers}
        self._model = model
        self.calls: list[tuple[tuple[int, int], int]] = []
        """The calls of the last forward that normalised by their batch: site and values a channel."""
        self.is_bound = False
        """Whether a forward ran layers of the network that was copied, as a function that holds on to it does."""

    def outputs(self, batch: Tensor) -> tuple[Tensor | None, str]:
        """The outputs; None, and why, where the forward fails or gives something else than one tensor."""
        try:
            with undisturbed(self._model), undisturbed(self._twin, evaluation=False), self._mode():
                return tensor_output(_main(forward(self._twin, batch.clone()))).clone(), ""
        except SamplingError as error:
            return None, str(error)

    def otherwise(self, counts: Mapping[tuple[int, int], int]) -> str:
        """How the last forward normalised sampled sites differently than `counts` says; empty if it did not."""
        sampled = {address for address, _ in counts}
        for key, count in self.calls:
            if key[0] in sampled and key not in self._kept and counts.get(key) != count:
                return f"{count} values per channel where it normalises {counts.get(key, 'none')} in evaluation mode"
        called = {key for key, _ in self.calls}
        if any(address == 0 for address, _ in called - counts.keys()) and counts.keys() - called:
            return "by another call than in evaluation mode"
        return ""

    def modules(self, batch: Tensor) -> list[_ModuleCall]:
        """What every module of it was given and gave."""
        with undisturbed(self._model), undisturbed(self._twin, evaluation=False):
            with recorded_modules(self._twin) as calls, self._mode():
                forward(self._twin, batch.clone())
            return calls

    def _mode(self) -> Mode:
        calls: Counter[int] = Counter()
        training, addresses = self, set(self._addresses.values())
        self.calls = []

        class EvaluationSites(Mode):
            def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
                call = stochastic_call(func, args, kwargs or {})
                if isinstance(call, DropoutCall):
                    return call.input
                if isinstance(call, BatchNormCall):
                    address = training._addresses.get(call.address, 0)
                    training.is_bound |= bool(call.address) and call.address in addresses
                    key = address, calls[address]
                    calls[address] += 1
                    if call.training:
                        training.calls.append((key, call.input.numel() // call.input.shape[1]))
                    if call.training and key in training._kept:
                        assert call.running_mean is not None and call.running_var is not None
                        return call.normalized(call.running_mean, call.running_var)
                return func(*args, **(kwargs or {}))

        return EvaluationSites()


def _main(output: Any) -> Any:
    """The first entry of a dict: auxiliary heads of training come behind it."""
    return next(iter(output.values())) if isinstance(output, dict) and output else output


def _tensors_of(model: nn.Module) -> list[Tensor]:
    return [part for tensor in (*model.parameters(), *model.buffers()) for part in strided_parts(tensor)]


_ModuleCall = tuple[str, str, list[Tensor], list[Tensor]]  # path, path of the caller, digests of inputs and outputs


@contextmanager
def recorded_modules(model: nn.Module) -> Iterator[list[_ModuleCall]]:
    """Every call of a module of `model` meanwhile, in the order in which they end."""
    calls: list[_ModuleCall] = []
    inside: list[tuple[str, list[Tensor]]] = []

    def enter(path: str, args: Any) -> None:
        inside.append((path, _digests(args)))

    def leave(path: str, output: Any) -> None:
        _, received = inside.pop()
        calls.append((path, inside[-1][0] if inside else "", received, _digests(output)))

    with hooked(model, enter, leave):
        yield calls


def _digests(values: Any) -> list[Tensor]:
    """A sample of each tensor's values: of up to 32 rows and as many columns."""
    dense = [tensor.detach() for tensor in tensors_in(values) if not tensor.is_nested]
    tensors = [tensor for tensor in dense if tensor.is_floating_point() and tensor.numel()]
    tables = [tensor.reshape(len(tensor) if tensor.ndim > 1 else 1, -1) for tensor in tensors]
    return [table[:: max(1, len(table) // 32), :: max(1, table.shape[1] // 32)].cpu() for table in tables]


def first_difference(calls: Sequence[_ModuleCall], training_calls: Sequence[_ModuleCall]) -> str:
    """The first module to give something else for the same inputs, or else the one whose own operations do."""
    numbered: Counter[str] = Counter()
    training_values = {}
    for path, _, received, returned in training_calls:
        training_values[path, numbered[path]] = received, returned
        numbered[path] += 1
    numbered.clear()
    for path, caller, received, returned in calls:
        call = path, numbered[path]
        numbered[path] += 1
        if call in training_values and _differ(returned, training_values[call][1]):
            return _above(caller, calls, training_values) if _differ(received, training_values[call][0]) else path
    return ""


def _above(path: str, calls: Sequence[_ModuleCall], training_values: Mapping[Any, Any]) -> str:
    """The module at `path`, or the nearest one around it that was given the same inputs."""
    for module, caller, received, _ in calls:
        if path and module == path and (path, 0) in training_values and _differ(received, training_values[path, 0][0]):
            return _above(caller, calls, training_values)
    return path


def _differ(first: Sequence[Tensor], second: Sequence[Tensor]) -> bool:
    return len(first) != len(second) or any(
        not difference(a, b).is_within(tolerance(a) / 10) for a, b in zip(first, second, strict=True)
    )


def _unlike_training(twin: nn.Module, path: str) -> dict[str, nn.Module]:
    """The module at `path`, and all others of its class where that is none of torch's; empty where it cannot, or must
    not, be put in evaluation mode."""
    module = twin.get_submodule(path)
    if isinstance(module, _BatchNorm) or not module.training:
        return {}
    if type(module).__module__.startswith("torch.") or not path:
        return {path: module}
    return {name: other for name, other in twin.named_modules() if type(other) is type(module) and other.training}
