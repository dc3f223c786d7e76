"""An exported program as a module: its operations run one by one, with the mode of the module."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import field, replace
from typing import Any

from torch import Tensor, nn

from bnuq.frozen import frozen


@frozen
class ValueName:
    """The value of this name, computed by an earlier step."""

    name: str


@frozen
class RowCount:
    """So many times the number of points of the input."""

    times: int


@frozen
class InputDevice:
    """The device of the input: a program stores the one that it was exported on."""


@frozen
class Step:
    """One operation: its arguments, with values in place of names once it runs, and the names of its results.

    `mode` is the place or name of the argument that says whether it is in training mode, None where there is none or
    where it stays as written; `layer` is the path of the module that it belongs to.
    """

    name: str
    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    results: tuple[str, ...]
    layer: str = ""
    mode: int | str | None = None
    last_uses: tuple[str, ...] = field(default=(), compare=False)  # values that no later step needs


class _ProgramLayer(nn.Module):
    """A layer of the program: it holds tensors, and calls what is its own, so that hooks know where they are."""

    def forward(self, call: Callable[[], Any]) -> Any:
        return call()


class ExportedNetwork(nn.Module):
    """An exported program. Inputs and outputs are those of the network that was exported."""

    def __init__(self, tensors: Mapping[str, Tensor], buffers: Collection[str], layers: Collection[str]) -> None:
        super().__init__()
        self.steps: tuple[Step, ...] = ()
        self.inputs: tuple[str, ...] = ()
        self.outputs: tuple[Any, ...] = ()
        self.keys: tuple[Any, ...] | None = None  # of a dict of outputs
        self.single = True
        self.tensors: dict[str, str] = {}  # value → path
        for path, tensor in tensors.items():
            layer_path, _, name = path.rpartition(".")
            if path in buffers:
                self._layer_at(layer_path).register_buffer(name, tensor.detach())
            else:
                self._layer_at(layer_path).register_parameter(name, nn.Parameter(tensor.detach(), requires_grad=False))
        for layer in layers:
            self._layer_at(layer)

    def _layer_at(self, path: str) -> nn.Module:
        layer: nn.Module = self
        for name in path.split(".") if path else ():
            if name not in layer._modules:
                layer.add_module(name, _ProgramLayer())
            layer = layer.get_submodule(name)
        return layer

    def forward(self, *inputs: Any, **named: Any) -> Any:
        given = [*_nested_tensors(inputs), *_nested_tensors(tuple(named.values()))]
        if len(given) != len(self.inputs):
            raise TypeError(f"the exported program takes {len(self.inputs)} inputs, not {len(given)}")
        values: dict[str, Any] = dict(zip(self.inputs, given, strict=True))
        known = {**dict(self.named_parameters()), **dict(self.named_buffers())}
        values |= {name: known[path] for name, path in self.tensors.items()}
        first = given[0]
        for step in self.steps:
            args = [_filled(argument, values, first) for argument in step.args]
            kwargs = {name: _filled(argument, values, first) for name, argument in step.kwargs.items()}
            if isinstance(step.mode, int):
                args[step.mode] = self.training
            elif step.mode is not None:
                kwargs[step.mode] = self.training
            results = self._called(step, args, kwargs)
            several = isinstance(results, tuple | list) and step.name != "_operator.getitem"
            values.update(zip(step.results, results if several else (results,), strict=False))
            for name in step.last_uses:
                del values[name]
        outputs = tuple(_filled(output, values, first) for output in self.outputs)
        if self.keys is not None:
            return dict(zip(self.keys, outputs, strict=True))
        return outputs[0] if self.single else outputs

    def _called(self, step: Step, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        if not step.layer or step.mode is None:
            return step.function(*args, **kwargs)
        return self.get_submodule(step.layer)(lambda: step.function(*args, **kwargs))


def _nested_tensors(values: Any) -> Iterator[Tensor]:
    """The tensors among the arguments of a call."""
    if isinstance(values, Tensor):
        yield values
    elif isinstance(values, tuple | list):
        for value in values:
            yield from _nested_tensors(value)
    elif isinstance(values, dict):
        yield from _nested_tensors(tuple(values.values()))


def _filled(argument: Any, values: Mapping[str, Any], first: Tensor) -> Any:
    if isinstance(argument, ValueName):
        return values[argument.name]
    if isinstance(argument, RowCount):
        return argument.times * len(first)
    if isinstance(argument, InputDevice):
        return first.device
    if isinstance(argument, list):
        return [_filled(part, values, first) for part in argument]
    return argument


def mode_of(step: Step) -> Any:
    return step.args[step.mode] if isinstance(step.mode, int) else step.kwargs.get(step.mode or "")


def values_read(step: Step) -> Iterator[str]:
    """The values that a step is given."""
    pending: list[Any] = [*step.args, *step.kwargs.values()]
    while pending:
        argument = pending.pop()
        if isinstance(argument, ValueName):
            yield argument.name
        elif isinstance(argument, list):
            pending += argument


def with_last_uses(steps: Sequence[Step], outputs: Sequence[Any]) -> tuple[Step, ...]:
    needed = {part.name for output in outputs for part in (output if isinstance(output, list) else [output])
            if isinstance(part, ValueName)}  # fmt: skip
    made = {name for step in steps for name in step.results if name}
    released: list[Step] = []
    for step in reversed(steps):
        last = ({*values_read(step), *step.results} & made) - needed
        needed |= last
        released.append(replace(step, last_uses=(*last,)))
    return tuple(reversed(released))
