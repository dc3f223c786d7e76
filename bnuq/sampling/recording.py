"""Records a network's forward as a trace of operations, for any number of rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from bnuq.errors import SamplingError
from bnuq.sampling.interception import (
    BatchNormCall,
    DropoutCall,
    Mode,
    NoiseCall,
    aten,
    differentiates,
    forward,
    noise_call,
    positional,
    stochastic_call,
    tensors_in,
    written_by,
)
from bnuq.sampling.noise import NoiseCalls
from bnuq.sampling.recorded_calls import BatchNormCalls
from bnuq.sampling.sites import NoiseSite, Site, Sites
from bnuq.sampling.trace import NotTraceableError, Operation, OtherPathError, PerRow, Ref, Trace, Value, refs_in


def record(model: nn.Module, sites: Sites, example: Tensor) -> Trace:
    """The trace of `model`, from a forward of two rows of `example` and one of three; call it inside `undisturbed`.

    Raises NotTraceableError where the two differ in more than numbers that grow with the rows, where an operation hands
    data to Python, is random, or writes into the network's own tensors, and where it computes in half precision.
    """
    if differentiates(model):
        raise NotTraceableError("its forward differentiates")
    three = torch.cat([example] * 3)[:3]
    forward(model, three[:2].clone())  # some networks cache values in their first call
    recordings = []
    for rows in (2, 3):
        recorder = _Recorder(sites, three[:rows].clone())
        try:
            with recorder, _ReadGuard(recorder):
                output = forward(model, recorder.input.clone())  # the network may write into its input
        except SamplingError as error:
            raise recorder.refusal or error from error  # TorchScript makes an error of its own of it
        recordings.append((recorder, recorder.number_of_output(output)))
        if rows == 2:
            recorder.free()
    (small, small_output), (large, large_output) = recordings
    if len(small.operations) != len(large.operations) or small_output != large_output:
        raise OtherPathError("it takes another path when the number of examples changes")
    groups = _groups(large)
    values = tuple(
        _value(two, three, group) for two, three, group in zip(small.tensors, large.tensors, groups, strict=True)
    )
    operations = tuple(
        replace(
            b,
            arguments=_as_function_of_rows(a.arguments, b.arguments, b.function),
            writes=frozenset(groups[number] for number in b.writes),
        )
        for a, b in zip(small.operations, large.operations, strict=True)
        if _same(a, b)
    )
    network_groups = {groups[number] for number in large.constants}
    for operation in operations:
        if operation.writes & network_groups:
            raise NotTraceableError(f"{_name(operation.function)} writes into the network's own tensors")
    if any(values[number].axis is not None for number in large.constants):
        raise NotTraceableError("it makes tensors in Python whose size depends on the number of examples")
    for number, value in enumerate(values):
        if number not in large.constants and value.dtype in (torch.float16, torch.bfloat16):
            kind = str(value.dtype).removeprefix("torch.")
            raise NotTraceableError(f"it computes in {kind}, which is too coarse to verify a plan")
    operations = tuple(_for_any_row_count(operation, values) for operation in operations)
    return Trace(operations, values, large.constants, 0, large_output)


class _Recorder(Mode):
    """Records every operation. Tensors stay alive during the recording, so that no identity is reused.

    The input is value 0.
    """

    def __init__(self, sites: Sites, inputs: Tensor) -> None:
        super().__init__()
        self.input = inputs
        self.operations: list[Operation] = []
        self.tensors: list[Tensor] = []
        self.numbers: dict[int, int] = {}  # id of a tensor object → number of its latest value
        self.constants: dict[int, Tensor] = {}
        self.refusal: NotTraceableError | None = None
        """Why the latest operation was not recorded."""
        self._batchnorms = {site.key: site for site in sites.batchnorms}
        self._dropouts = sites.dropouts
        self._batchnorm_calls = BatchNormCalls(sites.batchnorms)
        self._dropout_calls = 0
        self._noises, self._noise_calls = sites.noises, NoiseCalls(sites.noises)
        self._dependent = {self._new(inputs)}  # the values that depend on the input

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        call = stochastic_call(func, args, kwargs)
        noise = None if call is not None else noise_call(func, args, kwargs)
        if noise is not None and noise.into is None and not self._noises:
            return self._means(noise, args)
        if call is None and noise is None:
            self.refusal = _why_not_recordable(func, args, kwargs)
            if self.refusal is not None:
                raise self.refusal
        site = self._site(call) if noise is None else self._noise_site(noise)
        arguments = tuple(self._named(value) for value in positional(func, args, kwargs))
        written = [self.numbers[id(tensor)] for tensor in written_by(func, args, kwargs)]
        result = func(*args, **kwargs)
        if isinstance(call, DropoutCall) and site is not None and not call.in_place:
            result = result.clone()  # an active dropout returns a new tensor, not its input
        outputs = list(tensors_in(result))
        if func.overloadpacket in _OF_GRADIENTS or (
            outputs and not written and all(id(tensor) in self.numbers for tensor in outputs)
        ):
            return result  # its own input, unchanged
        if not written and not outputs:
            return result
        self.operations.append(Operation(func, arguments, self._results(result), site, frozenset(written)))
        if any(number in self._dependent for number in refs_in(arguments)):
            self._dependent.update(written, self.operations[-1].outputs)
        return result

    def depends_on_input(self, tensor: Tensor) -> bool:
        return self.numbers.get(id(tensor)) in self._dependent

    def number_of_output(self, output: Any) -> int:
        if not isinstance(output, Tensor) or id(output) not in self.numbers:
            raise NotTraceableError("its output is not one tensor made by its operations")
        return self.numbers[id(output)]

    def free(self) -> None:
        """Give the memory of all tensors back, and keep their shapes and dtypes."""
        self.tensors = [torch.empty(tensor.shape, dtype=tensor.dtype, device="meta") for tensor in self.tensors]
        self.constants.clear()

    def _site(self, call: BatchNormCall | DropoutCall | None) -> Site | None:
        if isinstance(call, BatchNormCall):
            return self._batchnorms.get(self._batchnorm_calls.key(call))
        if isinstance(call, DropoutCall):
            number, self._dropout_calls = self._dropout_calls, self._dropout_calls + 1
            site = self._dropouts[number] if number < len(self._dropouts) else None
            return site if site is not None and site.stochastic else None
        return None

    def _means(self, call: NoiseCall, args: tuple) -> Tensor:
        """The means of noise that is not drawn: a constant, or numbers of the shape of another tensor."""
        means = call.means()
        if args and isinstance(args[0], Tensor) and means.numel() and not call.is_complex:
            value = means.flatten()[0].item()
            if bool((means == value).all()):
                options = (call.dtype, None, call.device, None, None)
                arguments = (self._named(args[0]), value, *options)
                self.operations.append(Operation(aten.full_like.default, arguments, self._results(means)))
        return means

    def _noise_site(self, call: NoiseCall) -> NoiseSite:
        if call.into is not None or call.is_complex:
            raise NotTraceableError(f"{call.name} makes complex random numbers or writes them into a tensor")
        site = self._noise_calls.site(call)
        if not site.stochastic or site.batch_axis is not None:
            raise NotTraceableError("it draws random numbers for each example")
        return site

    def _named(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            if id(value) not in self.numbers:
                self.constants[self._new(value)] = value
            return Ref(self.numbers[id(value)])
        return type(value)(map(self._named, value)) if isinstance(value, (tuple, list)) else value

    def _results(self, result: Any) -> Any:
        if isinstance(result, Tensor):
            return Ref(self._new(result))
        return tuple(map(self._results, result)) if isinstance(result, (tuple, list)) else None

    def _new(self, tensor: Tensor) -> int:
        if tensor.is_nested:
            self.refusal = NotTraceableError("it computes with a nested tensor")
            raise self.refusal
        self.tensors.append(tensor)
        self.numbers[id(tensor)] = len(self.tensors) - 1
        return len(self.tensors) - 1


class _ReadGuard(TorchFunctionMode):
    """Raises NotTraceableError where the network reads input-dependent data in Python instead of by an operation."""

    def __init__(self, recorder: _Recorder) -> None:
        super().__init__()
        self._recorder = recorder

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _READERS and self._recorder.depends_on_input(args[0]):
            raise NotTraceableError(f"{func.__name__} hands its data to Python")
        return func(*args, **(kwargs or {}))


_READERS = {Tensor.tolist, Tensor.numpy, Tensor.__array__, Tensor.__dlpack__}
_READERS |= {Tensor.apply_, Tensor.map_, Tensor.map2_}  # by a function of Python, which no operation stands for


_OF_GRADIENTS = {aten.detach_, aten.requires_grad_}  # they do not change the data
_OF_SHAPE = {"size", "stride", "dim", "numel", "storage_offset", "result_type", "can_cast"}  # they read no data


def _why_not_recordable(func: Any, args: tuple, kwargs: dict) -> NotTraceableError | None:
    name, arguments = (
        _name(func),
        dict(zip((a.name for a in func._schema.arguments), positional(func, args, kwargs), strict=True)),
    )
    is_data_dependent = torch.Tag.data_dependent_output in func.tags or torch.Tag.dynamic_output_shape in func.tags
    if func.overloadpacket is aten.index:  # indexing by integers has the shape of the indices
        is_data_dependent = any(item.dtype in (torch.bool, torch.uint8) for item in tensors_in(arguments["indices"]))
    elif (
        not any("Tensor" in str(item.type) for item in func._schema.returns)
        and next(tensors_in(args), None) is not None
    ):
        reads_shape = name.removeprefix("sym_") in _OF_SHAPE or (name.startswith("is_") and name != "is_nonzero")
        is_data_dependent = bool(func._schema.returns) and not reads_shape
    if is_data_dependent:
        return NotTraceableError(f"{name} lets its path or its sizes depend on the data")
    if any(tensor.layout is not torch.strided for tensor in tensors_in(tuple(arguments.values()))):
        return NotTraceableError(f"{name} computes with a sparse tensor")
    rate = arguments.get("dropout_p", arguments.get("dropout"))
    active = (
        arguments.get("train", arguments.get("training", True))
        if rate is None
        else rate > 0 and arguments.get("train", True)
    )
    if torch.Tag.nondeterministic_seeded in func.tags and active:
        return NotTraceableError(f"{name} draws random numbers")
    return None


def _name(func: Any) -> str:
    return func.overloadpacket.__name__


def _groups(recorder: _Recorder) -> list[int]:
    """For every value, the first value that it may share memory with: by storage, and by the operations' schemas."""
    first: dict[int, int] = {}
    root = list(range(len(recorder.tensors)))

    def root_of(number: int) -> int:
        while root[number] != number:
            number = root[number]
        return number

    def join(a: int, b: int) -> None:
        a, b = sorted((root_of(a), root_of(b)))
        root[b] = a

    for number, tensor in enumerate(recorder.tensors):
        join(number, first.setdefault(tensor.untyped_storage()._cdata, number))
    for operation in recorder.operations:
        schema = operation.function._schema
        if any(returned.alias_info is not None for returned in schema.returns):
            aliased = [
                number
                for argument, value in zip(schema.arguments, operation.arguments, strict=True)
                if argument.alias_info is not None
                for number in refs_in(value)
            ]
            for number in operation.outputs:
                for other in aliased:
                    join(number, other)
    return [root_of(number) for number in range(len(root))]


def _value(two: Tensor, three: Tensor, group: int) -> Value:
    if two.ndim != three.ndim or two.dtype != three.dtype:
        raise OtherPathError("it takes another path when the number of examples changes")
    grown = [axis for axis, (a, b) in enumerate(zip(two.shape, three.shape, strict=True)) if a != b]
    if len(grown) > 1:
        raise NotTraceableError("one of its tensors grows with the number of examples along more than one axis")
    axis = grown[0] if grown else None
    rows = three.shape[axis] - two.shape[axis] if axis is not None else 1
    return Value(tuple(three.shape), three.dtype, axis, rows, group)


def _for_any_row_count(operation: Operation, values: Sequence[Value]) -> Operation:
    """The operation; a squeeze names its axes, so that it does not drop the row axis of a single row."""
    if operation.function is not aten.squeeze.default:
        return operation
    (number,) = operation.reads
    dropped = [axis for axis, size in enumerate(values[number].shape) if size == 1]
    return replace(operation, function=aten.squeeze.dims, arguments=(Ref(number), dropped))


def _same(a: Operation, b: Operation) -> bool:
    if a.function is not b.function or a.result != b.result or a.site != b.site or a.writes != b.writes:
        raise OtherPathError("it takes another path when the number of examples changes")
    return True


def _as_function_of_rows(two: Any, three: Any, func: Any) -> Any:
    """The tree of arguments for any row count, from the trees for two and for three rows."""
    if isinstance(three, (tuple, list)) and type(two) is type(three) and len(two) == len(three):
        return type(three)(_as_function_of_rows(a, b, func) for a, b in zip(two, three, strict=True))
    if two is three or (type(two) is type(three) and two == three):
        return three
    if type(two) is int and type(three) is int:
        return PerRow(three - two, 3 * two - 2 * three)
    raise NotTraceableError(f"an argument of {_name(func)} depends on the number of examples")
