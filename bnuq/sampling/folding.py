"""Finds the BatchNorms to fold into the layer before them, the activations to compute with a convolution, and the pools
to compute once for all draws, before a sampled BatchNorm."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from math import prod

import torch

from bnuq.sampling.interception import aten
from bnuq.sampling.schedule import (
    LAYERS,
    Activation,
    Level,
    Plan,
    is_convolution_of_pictures,
    is_layer,
    output_channels,
)
from bnuq.sampling.trace import Operation, Ref, Trace, Value, refs_in

FOLDING_COST = 3  # cost of folding in reads of the layer's weights; not folding costs one read of its output


def foldable_layers(trace: Trace, levels: Sequence[Level], live: Sequence[bool], rows: int) -> dict[int, Operation]:
    """Maps the position of every foldable sampled BatchNorm to the layer that it can be folded into."""
    maker = {number: i for i, operation in enumerate(trace.operations) for number in operation.outputs}
    readers: dict[int, list[int]] = defaultdict(list)
    members: dict[int, list[int]] = defaultdict(list)
    for i, operation in enumerate(trace.operations):
        for number in operation.reads:
            readers[number].append(i)
    for number, value in enumerate(trace.values):
        members[value.group].append(number)
    static = set(trace.constants) | {
        n for i, op in enumerate(trace.operations) if levels[i] is Level.ONCE for n in op.outputs
    }
    layers = {}
    for i, operation in enumerate(trace.operations):
        if not live[i] or operation.function.overloadpacket is not aten.batch_norm:
            continue
        number = operation.arguments[0].number
        if number not in maker or number == trace.output:
            continue
        position = maker[number]
        layer = trace.operations[position]
        # Only a layer whose output nothing else reads or aliases may compute something else than was recorded.
        if (
            layer.function.overloadpacket not in LAYERS
            or levels[position] is not Level.SAMPLE
            or readers[number] != [i]
            or members[trace.values[number].group] != [number]
        ):
            continue
        parameters = [*refs_in(layer.arguments[1:3]), *refs_in(operation.arguments[1:3])]
        axis = output_channels(layer)
        weight, output = trace.values[layer.arguments[1].number], trace.values[number]
        inputs = trace.values[layer.arguments[0].number]
        written_between = any(inputs.group in between.writes for between in trace.operations[position:i])
        # Folding must cost less than it saves, over the rows that share it.
        if (
            set(parameters) <= static
            and axis is not None
            and output.axis == 0
            and len(output.shape) == len(weight.shape)
            and not written_between
            and FOLDING_COST * prod(weight.shape) <= output.entries_per_row * rows
        ):
            layers[i] = layer
    return layers


def activations_of(draft: Plan) -> dict[int, Activation]:
    """The convolutions of the sample level, with a BatchNorm folded into them or without, that only a ReLU reads, or an
    addition that only a ReLU reads. Of an addition of two convolutions, the later one."""
    values = draft.trace.values
    readers: dict[int, list[int]] = defaultdict(list)  # of each value, the positions of the operations that read it
    makers = {number: i for i, operation in enumerate(draft.operations) for number in operation.outputs}
    members: dict[int, list[int]] = defaultdict(list)
    for number, value in enumerate(values):
        members[value.group].append(number)
    for i in range(len(draft.operations)):
        for number in draft.reads(i):
            readers[number].append(i)

    def only_reader(number: int) -> int | None:
        alone = len(readers[number]) == 1 and number != draft.trace.output
        return readers[number][0] if alone else None

    activations = {}
    for i in draft.at(Level.SAMPLE):
        layer = draft.folded.get(i, draft.operations[i])
        if not is_layer(layer) or not is_convolution_of_pictures(layer):
            continue
        (number,) = draft.operations[i].outputs
        first = last = only_reader(number)
        if first is None:
            continue
        other = _added_to(number, draft.operations[first], values)
        if other is not None:
            # The addition is computed with the later convolution, when its other term is there.
            last = only_reader(draft.operations[first].outputs[0]) if makers.get(other, -1) <= i else None
        if last is None or draft.operations[last].function not in (aten.relu.default, aten.relu_.default):
            continue
        activation = Activation(draft.operations[last].outputs[0], other, (last,) if other is None else (first, last))
        # The fused kernel makes a new tensor and reads its arguments earlier than the operations that it replaces.
        stale = {n for group in _written_groups(draft, activation.replaced) for n in members[group]}
        stale -= {number, *(n for j in activation.replaced for n in draft.operations[j].outputs)}
        read_later = any(position > first for n in stale for position in readers[n])
        overwritten = other is not None and values[other].group in _written_groups(draft, range(i + 1, first))
        if not read_later and not overwritten:
            activations[i] = activation
    return activations


def _written_groups(draft: Plan, positions: Iterable[int]) -> set[int]:
    return {group for i in positions for group in draft.operations[i].writes}


def _added_to(number: int, operation: Operation, values: Sequence[Value]) -> int | None:
    """The value that the operation adds to the value of this number, where that is all it does."""
    if operation.function not in (aten.add.Tensor, aten.add_.Tensor) or operation.arguments[2:] not in ((), (1,)):
        return None
    terms = operation.arguments[:2]
    if not all(isinstance(term, Ref) for term in terms) or terms[0] == terms[1]:
        return None
    other = terms[1 if terms[0].number == number else 0].number
    same = all(getattr(values[other], name) == getattr(values[number], name) for name in ("shape", "dtype", "axis"))
    return other if same else None


_RELU = (aten.relu.default, aten.relu_.default)


def pooled_first(trace: Trace, levels: Sequence[Level], live: Sequence[bool], goals: Collection[int]) -> Trace:
    """The trace with each max-pooling that follows a live BatchNorm, or its ReLU, moved before it, where the input of
    the BatchNorm is not of the sample level.

    To the last digit the outputs are the same, of fewer entries: both are monotone, also when rounded. Where the weight
    of a channel is negative its smallest entries are pooled, as the largest of the negative ones.
    """
    operations, values, result = trace.operations, trace.values, trace
    readers, members = _readers(operations), _members(values)
    same = [operation for operation, level in zip(operations, levels, strict=True) if level is not Level.SAMPLE]
    given = {number for operation in same for number in operation.outputs}  # the same for every draw
    written = {group for operation in operations for group in operation.writes}
    for norm, is_live in zip(operations, live, strict=True):
        if not is_live or norm.function is not aten.batch_norm.default:
            continue
        (source, weight), (normalised,) = norm.arguments[:2], norm.outputs
        is_plain = source.number in given and values[source.number].group not in written
        if not is_plain or len(values[source.number].shape) != 4 or not _is_constant(weight, trace):
            continue
        activation = next((reader for reader in readers[normalised] if reader.function in _RELU), None)
        activated = normalised if activation is None else activation.outputs[0]
        pool = next((reader for reader in readers[activated] if reader.function is aten.max_pool2d.default), None)
        between = {normalised, activated}
        aliases = members[values[normalised].group] | members[values[activated].group]
        is_read_once = len(readers[normalised]) == len(readers[activated]) == 1
        if pool and is_read_once and aliases == between and between.isdisjoint((*goals, trace.output)):
            result = _moved(result, norm, activation, pool)
    return result


def _readers(operations: Sequence[Operation]) -> Mapping[int, Sequence[Operation]]:
    """The operations that read each value."""
    readers: dict[int, list[Operation]] = defaultdict(list)
    for operation in operations:
        for number in operation.reads:
            readers[number].append(operation)
    return readers


def _members(values: Sequence[Value]) -> Mapping[int, set[int]]:
    """The values of each group, which share memory."""
    members: dict[int, set[int]] = defaultdict(set)
    for number, value in enumerate(values):
        members[value.group].add(number)
    return members


def _is_constant(weight: Ref | None, trace: Trace) -> bool:
    return weight is None or weight.number in trace.constants


def _moved(trace: Trace, norm: Operation, activation: Operation | None, pool: Operation) -> Trace:
    """The trace with this pooling before the BatchNorm and the ReLU that it came after."""
    values, constants, (pooled,) = list(trace.values), dict(trace.constants), pool.outputs
    source, weight = norm.arguments[:2]

    def new(like: int, shape: tuple[int, ...] | None = None) -> Ref:
        group = 1 + max(value.group for value in values)
        values.append(replace(values[like], group=group, shape=shape or values[like].shape))
        return Ref(len(values) - 1)

    largest = new(pooled)
    moved = [replace(pool, arguments=(source, *pool.arguments[1:]), result=largest)]
    if weight is not None and bool((constants[weight.number] < 0).any()):
        signs = torch.where(constants[weight.number] < 0, -1, 1).to(constants[weight.number].dtype).view(-1, 1, 1)
        sign, turned, extreme = new(weight.number, tuple(signs.shape)), new(source.number), new(pooled)
        constants[sign.number] = signs
        moved = [
            Operation(aten.mul.Tensor, (source, sign), turned),
            replace(pool, arguments=(turned, *pool.arguments[1:]), result=largest),
            Operation(aten.mul.Tensor, (largest, sign), extreme),
        ]
        largest = extreme
    normalised = Ref(pooled) if activation is None else new(pooled)
    moved.append(replace(norm, arguments=(largest, *norm.arguments[1:]), result=normalised))
    if activation is not None:
        moved.append(Operation(aten.relu.default, (normalised,), Ref(pooled)))
    operations: list[Operation] = []
    for operation in trace.operations:
        if operation is norm:
            operations += moved
        elif operation is not activation and operation is not pool:
            operations.append(operation)
    return replace(trace, operations=tuple(operations), values=tuple(values), constants=constants)
