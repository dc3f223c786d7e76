"""Compiles a plan into steps: parameters converted to the layout and dtype of the arithmetic, for any row count; and
what a sampled site computes under each draw."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor

from bnuq import devices
from bnuq.arithmetic import FLOAT32, Arithmetic
from bnuq.frozen import frozen
from bnuq.sampling.dropout import Dropout, dropped
from bnuq.sampling.interception import DropoutCall, aten, noise_request
from bnuq.sampling.noise import Noise
from bnuq.sampling.schedule import Level, Plan, is_convolution_of_pictures, is_layer
from bnuq.sampling.sites import DropoutSite, NoiseSite
from bnuq.sampling.trace import Operation, Ref, filled

MIN_TILE_ROWS = 16
_LARGER = {Level.SAMPLE: 1, Level.CHUNK: 8}  # how many times larger than the cache its values may be
LARGE_PRODUCT_SIZE = 2**21  # multiply-adds from which oneDNN is faster despite its start-up cost
# oneDNN computes deep convolutions of small images in torch's own layout in a third to nine tenths of the time that it
# takes channels last (with AVX-512), the fewer positions the faster.
_SMALL_IMAGE, _DEEP_WEIGHT = 7 * 7, 2**18  # the most positions, and the fewest weights
_HAS_ONEDNN = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")


@frozen
class StepContext:
    """What the steps of one pass need: the draws that are computed together, the number of the first point, the folded
    weights, and, for several stacked draws, the index that selects them from a table."""

    draws: Sequence[int]
    start: int
    folded: Mapping[int, tuple[Tensor, Tensor]]
    measured: tuple[Tensor, Tensor] | None = None  # mean and variance of the batch at the next BatchNorm
    index: slice | Tensor | None = None


Step = Callable[[list[Any], StepContext], None]


class Program:
    """A compiled plan: parameters in the layout and dtype of the arithmetic, and steps for any row count.

    The subclass defines the steps of sampled sites.
    """

    def __init__(self, plan: Plan, *, device: torch.device, arithmetic: Arithmetic = FLOAT32) -> None:
        self.plan = plan
        # On a GPU tensor cores compute images channels last in half the time; exact products take up to five times as
        # long as in torch's own layout.
        uses_tensor_cores = arithmetic.half is not None or arithmetic.convolutions == "tf32"
        self._channels_last = plan.channels_last and (uses_tensor_cores or not devices.traits(device).plain_layout)
        self._dtype = None if arithmetic.half is None else getattr(torch, arithmetic.half)
        self._device = device
        self._large_product = LARGE_PRODUCT_SIZE
        self.tile = tile_rows(plan, device)
        trace = plan.trace
        exact = _exact_parameters(plan)
        constants = {n: tensor if n in exact else self._converted(tensor) for n, tensor in trace.constants.items()}
        if self._channels_last:
            for number in _picture_weights(plan, but=self._is_of_small_images) & constants.keys():
                constants[number] = constants[number].contiguous(memory_format=torch.channels_last)
        self.fixed: list[Any] = [constants.get(number) for number in range(len(trace.values))]
        self._bound: dict[tuple[Level, int, int], list[Step]] = {}
        self._finite: dict[int, Tensor] | None = None  # by position, while that is asked: whether all it computed is
        for step in self._steps(Level.ONCE, 0, 1):
            step(self.fixed, StepContext(range(0), 0, {}))

    def _chunk_level(self, inputs: Tensor, start: int) -> dict[int, Tensor]:
        """The values of these rows that the sample level reads."""
        inputs = self._converted(inputs)
        if self._channels_last and inputs.ndim == 4:
            inputs = channels_last(inputs)
        values = self.fixed.copy()
        values[self.plan.trace.input] = inputs
        for step in self._steps(Level.CHUNK, len(inputs), 1):
            step(values, StepContext(range(0), start, {}))
        return {number: values[number] for number in self.plan.boundary}

    def _values(self, tile: Mapping[int, Tensor]) -> list[Any]:
        """The values before a pass of these rows."""
        values = self.fixed.copy()
        for number, value in tile.items():
            values[number] = value
        return values

    def _steps(self, level: Level, rows: int, draws: int) -> list[Step]:
        key = level, rows, draws
        if key not in self._bound:
            dead: dict[int, list[int]] = {}
            if level is not Level.ONCE:
                for number, i in self.plan.last_reads(level).items():
                    if level is Level.SAMPLE or number not in self.plan.boundary:
                        dead.setdefault(i, []).append(number)
            activated = self._activated_steps(level, draws)
            replaced = {j for i in activated for j in self.plan.activated[i].replaced}
            steps = {
                i: _nothing if i in replaced else activated.get(i) or self._step(i, level, rows * draws, draws)
                for i in self.plan.at(level)
            }
            if self._finite is not None:
                results = {i: self.plan.activated[i].result for i in activated}
                steps = {i: self._then_look(i, step, results.get(i)) for i, step in steps.items()}
            self._bound[key] = [_then_free(step, dead.get(i)) for i, step in steps.items()]
        return self._bound[key]

    def _then_look(self, position: int, compute: Step, result: int | None) -> Step:
        """The step, which then looks whether what it computed is finite, also with the ReLU after it."""
        numbers = (*self.plan.operations[position].outputs, *([] if result is None else [result]))

        def step(values: list[Any], context: StepContext) -> None:
            compute(values, context)
            assert self._finite is not None
            for value in (values[number] for number in numbers):
                if isinstance(value, Tensor) and value.is_floating_point():
                    finite = value.isfinite().all()
                    self._finite[position] = finite & self._finite.get(position, finite)

        return step

    def _activated_steps(self, level: Level, draws: int) -> dict[int, Step]:  # noqa: ARG002 - of this class none
        """The steps that compute a convolution together with the ReLU after it, by position."""
        return {}

    def _step(self, position: int, level: Level, rows: int, draws: int) -> Step:
        operation = self.plan.operations[position]
        if level is Level.SAMPLE and operation.site is not None:
            step = self._site_step(position, operation, rows, draws)
            if step is not None:
                return step
        arguments, function = filled(operation.arguments, rows), operation.function
        if position in self.plan.in_place:
            function, number = self.plan.in_place[position]
            if number == 1:
                arguments = (arguments[1], arguments[0], *arguments[2:])
        elif self._channels_last and function is aten.view.default:
            function = aten.reshape.default  # a channels-last tensor cannot always be viewed
        run = self._product(function, operation, rows)
        if function is aten.relu_.default and self._dtype is torch.bfloat16 and devices.is_host(self._device):
            run = _relu_of_bfloat16_
        if self._dtype is not None and _is_output_layer(self.plan, operation):
            run = _in_dtype_of_weight(function)
        elif function is aten.view.dtype:  # of packed inputs
            run = self._converted_view
        return plain_step(function, arguments, operation.result, run)

    def _product(self, function: Any, layer: Operation, rows: int) -> Any:
        """The function that computes a layer on a CPU: `pooled`, deep convolutions of small images in torch's own
        layout, and oneDNN for large float32 products, which on non-Intel processors is twice as fast as torch's default
        library."""
        if function is aten.max_pool2d.default and devices.is_host(self._device):
            return pooled
        if self._is_of_small_images(layer):
            return lambda x, *rest: function(x.contiguous(), *rest).contiguous(memory_format=torch.channels_last)
        if function is not aten.linear.default or not _HAS_ONEDNN or not devices.is_host(self._device):
            return function
        output, weight = (self.plan.trace.values[n] for n in (layer.outputs[0], layer.arguments[1].number))
        float32 = output.dtype == weight.dtype == torch.float32 and self._dtype is None
        if not float32 or output.entries_per_row * weight.shape[1] * rows < self._large_product:
            return function
        return _linear

    def _is_of_small_images(self, layer: Operation) -> bool:
        """Whether the layer is a deep convolution of small images that a CPU computes faster in torch's own layout."""
        on_host = self._channels_last and devices.is_host(self._device) and self._dtype is None
        if not on_host or not is_layer(layer) or not is_convolution_of_pictures(layer):
            return False
        output, weight = (self.plan.trace.values[n] for n in (layer.outputs[0], layer.arguments[1].number))
        is_deep = prod(weight.shape) >= _DEEP_WEIGHT and max(weight.shape[2:]) > 1 and output.dtype == torch.float32
        return is_deep and len(output.shape) == 4 and prod(output.shape[2:]) <= _SMALL_IMAGE

    def _site_step(self, position: int, operation: Operation, rows: int, draws: int) -> Step | None:
        """The step of a stochastic site; None where it is not live."""
        raise NotImplementedError

    def _converted_view(self, tensor: Tensor, dtype: torch.dtype) -> Tensor:
        return self._converted(tensor.view(dtype))

    def _converted(self, tensor: Tensor) -> Tensor:
        return tensor if self._dtype is None or not tensor.is_floating_point() else tensor.to(self._dtype)


def run_steps(steps: Sequence[Step], values: list[Any], context: StepContext) -> None:
    """Run steps, which fill the values."""
    for step in steps:
        step(values, context)


def tile_rows(plan: Plan, device: torch.device) -> int:
    """The rows of a tile: few enough that the largest value stays in the cache, and enough that the weights, which are
    read for every tile, are a small part of the memory traffic. What is computed once may be larger."""
    largest, enough = devices.traits(device).tile_entries, 0
    widest = 1
    for level in _LARGER:
        entries = entries_at(plan, level)
        read = {number for i in plan.at(level) for number in plan.reads(i)} & plan.trace.constants.keys()
        weights = sum(plan.trace.constants[number].numel() for number in read)
        enough = max(enough, 2 * weights // max(1, sum(entries)))
        widest = max([widest, *(size // _LARGER[level] for size in entries)])
    return max(MIN_TILE_ROWS, largest // widest, enough)


def entries_at(plan: Plan, level: Level) -> list[int]:
    """The entries per row of every value that is computed at this level."""
    values = plan.trace.values
    return [values[n].entries_per_row for i in plan.at(level) for n in plan.operations[i].outputs]


def positions_of_convolutions(plan: Plan) -> int:
    """The mean number of positions per row over the outputs of the sample level's convolutions of pictures."""
    layers = (plan.folded.get(i, plan.operations[i]) for i in plan.at(Level.SAMPLE))
    shapes = [plan.trace.values[layer.outputs[0]].shape for layer in layers if is_layer(layer)]
    positions = [prod(shape[2:]) for shape in shapes if len(shape) == 4]
    return sum(positions) // max(1, len(positions))


def split_evenly(rows: Tensor, largest: int | tuple[int, ...]) -> tuple[Tensor, ...]:
    """The rows split into parts of similar size, at most `largest` each, or into parts of these sizes."""
    if isinstance(largest, tuple):
        return rows.split(largest)
    return rows.tensor_split(max(1, -(-len(rows) // largest)))


def channels_last(pictures: Tensor) -> Tensor:
    """The pictures, stored channels last. Those of one channel get the strides that say so: torch takes theirs for both
    layouts, and its convolution then gives the slower one."""
    pictures = pictures.contiguous(memory_format=torch.channels_last)
    _, channels, height, width = pictures.shape
    is_ambiguous = channels == 1 and pictures.is_contiguous()
    return pictures.as_strided(pictures.shape, (height * width, 1, width, 1)) if is_ambiguous else pictures


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """A linear layer by oneDNN, which reads a bias as if its entries lay side by side."""
    bias = None if bias is None else bias.contiguous()
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")


def pooled(x: Tensor, kernel: Sequence[int], stride: Sequence[int] = (), *rest: Any) -> Tensor:
    """torch's max-pooling. Of pairs it is the larger of two halves of the rows, and then of the columns, which takes a
    third of the time, because no indices are kept."""
    if {*kernel, *stride} != {2} or rest != ([0, 0], [1, 1], False) or x.requires_grad:
        return aten.max_pool2d.default(x, kernel, stride, *rest)
    height, width = (size // 2 * 2 for size in x.shape[-2:])
    rows = torch.maximum(x[..., 0:height:2, :width], x[..., 1:height:2, :width])
    return torch.maximum(rows[..., 0::2], rows[..., 1::2])


def _relu_of_bfloat16_(x: Tensor) -> Tensor:
    """ReLU in place on the sign bit: a negative bfloat16 is a negative 16-bit integer. Six times as fast as torch's.

    It would hide a negative NaN, but the same points are also computed in float32, where outputs must be finite.
    """
    if x.dtype is not torch.bfloat16:
        return x.relu_()
    x.view(torch.int16).clamp_min_(0)
    return x


def _nothing(values: list[Any], context: StepContext) -> None:
    """The step of an operation that is computed with an earlier one."""


def _then_free(compute: Step, dead: Sequence[int] | None) -> Step:
    """The step, which then frees the `dead` values."""
    if not dead:
        return compute

    def step(values: list[Any], context: StepContext) -> None:
        compute(values, context)
        for number in dead:
            values[number] = None

    return step


def plain_step(function: Any, arguments: tuple, result: Any, run: Any = None) -> Step:
    """A step that runs an operation as recorded, or a replacement."""
    run = run or function
    schema = function._schema.arguments
    count = sum(not argument.kwarg_only for argument in schema)
    named = {
        argument.name: value
        for argument, value in zip(schema[count:], arguments[count:], strict=True)
        if value is not None
    }
    template = list(arguments[:count])
    slots = [(index, value.number) for index, value in enumerate(template) if isinstance(value, Ref)]
    nested = [
        (index, value) for index, value in enumerate(template) if isinstance(value, (tuple, list)) and _has_refs(value)
    ]
    deep = any(_has_refs(value) for value in named.values())
    number = result.number if isinstance(result, Ref) else None

    def compute(values: list[Any], context: StepContext) -> None:  # noqa: ARG001 - every step is called so
        arguments = template.copy()
        for index, argument in slots:
            arguments[index] = values[argument]
        for index, tree in nested:
            arguments[index] = _resolved(tree, values)
        options = {name: _resolved(value, values) for name, value in named.items()} if deep else named
        output = run(*arguments, **options)
        if number is not None:
            values[number] = output
        else:
            _assign(result, output, values)

    return compute


def _has_refs(tree: Any) -> bool:
    return isinstance(tree, Ref) or (isinstance(tree, (tuple, list)) and any(map(_has_refs, tree)))


def _resolved(tree: Any, values: Sequence[Any]) -> Any:
    if isinstance(tree, Ref):
        return values[tree.number]
    return [_resolved(item, values) for item in tree] if isinstance(tree, (tuple, list)) else tree


def _assign(result: Any, output: Any, values: list[Any]) -> None:
    if isinstance(result, Ref):
        values[result.number] = output
    elif isinstance(result, tuple):
        for item, value in zip(result, output, strict=True):
            _assign(item, value, values)


def _exact_parameters(plan: Plan) -> set[int]:
    """Parameters that only BatchNorms and the output layer read; they keep the network's dtype."""
    exact, rounded = set(), set()
    for position, operation in enumerate(plan.operations):
        is_batchnorm = operation.function.overloadpacket is aten.batch_norm
        (exact if is_batchnorm or _is_output_layer(plan, operation) else rounded).update(plan.reads(position))
    return exact - rounded


def _is_output_layer(plan: Plan, operation: Operation) -> bool:
    return is_layer(operation) and operation.outputs == (plan.trace.output,)


def _in_dtype_of_weight(layer: Any) -> Any:
    """The output layer in the network's dtype: the rounding error of coarse logits differs between draws and would
    count as uncertainty."""

    def run(x: Tensor, weight: Tensor, bias: Tensor | None = None, *rest: Any) -> Tensor:
        return layer(x.to(weight.dtype), weight, None if bias is None else bias.to(weight.dtype), *rest)

    return run


def _picture_weights(plan: Plan, but: Callable[[Operation], bool]) -> set[int]:
    """The weights of two-dimensional convolutions, but for those of some."""
    layers = [*plan.operations, *plan.folded.values()]
    weights = {
        operation.arguments[1].number
        for operation in layers
        if "conv" in operation.function.overloadpacket.__name__
        and isinstance(operation.arguments[1], Ref)
        and not but(operation)
    }
    return {number for number in weights if len(plan.trace.values[number].shape) == 4}


def folded_step(position: int, operation: Operation, arguments: tuple, function: Any) -> Step:
    """A layer with the BatchNorm after it folded into its weights."""
    source, rest, result = arguments[0].number, arguments[3:], operation.outputs[0]

    def compute(values: list[Any], context: StepContext) -> None:
        values[result] = function(values[source], *context.folded[position], *rest)

    return compute


def affine_step(source: int, result: int, scale: Tensor, shift: Tensor) -> Step:
    """A sampled BatchNorm of (n, C) values, whose scale and shift are (T, C)."""
    scales, shifts = scale.unbind(), shift.unbind()

    def compute(values: list[Any], context: StepContext) -> None:
        t = context.draws[0]
        values[result] = _affine(values[source], scales[t], shifts[t])

    return compute


def batchnorm_step(
    source: int, result: int, eps: float, parameters: Sequence[Tensor | None], statistics: tuple[Tensor, Tensor]
) -> Step:
    """A sampled BatchNorm of images or sequences, in one kernel of torch."""
    (weight, bias), (mean, var) = parameters, statistics

    def compute(values: list[Any], context: StepContext) -> None:
        t = context.draws[0]
        values[result] = torch.batch_norm(
            values[source], weight, bias, mean[t], var[t], False, 0.0, eps, torch.backends.cudnn.enabled
        )

    return compute


def stacked_affine_step(source: int, result: int, scale: Tensor, shift: Tensor, shape: tuple[int, ...]) -> Step:
    """A sampled BatchNorm of draws that are stacked along the row axis; `shape` is that of their scales."""

    def compute(values: list[Any], context: StepContext) -> None:
        x = values[source].unflatten(0, (shape[0], -1))
        scales, shifts = scale[context.index].view(shape), shift[context.index].view(shape)
        values[result] = _affine(x, scales, shifts).flatten(0, 1)

    return compute


def _affine(x: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    """`x` · `scale` + `shift` in the dtype of scale and shift, rounded once to that of `x`."""
    if x.dtype == scale.dtype:
        return torch.addcmul(shift, x, scale)
    return torch.addcmul(shift, x, scale, out=torch.empty_like(x))


def dropout_step(operation: Operation, dropout: Dropout | None) -> Step:
    """A dropout with the masks of the draws; without any, the values of a result that later steps may overwrite."""
    source, result, site = operation.arguments[0].number, operation.outputs[0], operation.site
    assert isinstance(site, DropoutSite)
    in_place = bool(operation.writes)

    def compute(values: list[Any], context: StepContext) -> None:
        if dropout is None:
            values[result] = values[source] if in_place else values[source].clone()
            return
        call = DropoutCall(values[source], site.p, site.variety, in_place, training=False)
        values[result] = dropped(call, site, dropout, context.draws, context.start)

    return compute


def noise_step(operation: Operation, noise: Noise) -> Step:
    """Noise that all points share: nothing of its arguments depends on the number of rows."""
    site, function = operation.site, operation.function
    assert isinstance(site, NoiseSite)

    def recorded_call(*arguments: Any, **named: Any) -> Any:
        return noise_request(function, arguments, named)

    run = plain_step(function, operation.arguments, operation.result, recorded_call)
    (result,) = operation.outputs

    def compute(values: list[Any], context: StepContext) -> None:
        run(values, context)
        values[result] = noise.drawn(values[result], site, context.draws[0], context.start)

    return compute
