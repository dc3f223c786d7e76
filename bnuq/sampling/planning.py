"""Schedules a trace: which operations run once, per chunk or per sample, and which BatchNorms are folded into
the layer before them, which activations are computed with a convolution, and which pools before a sampled BatchNorm."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any

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
from bnuq.sampling.sites import BatchNormSite, DropoutSite
from bnuq.sampling.trace import NotTraceableError, Operation, PerRow, Ref, Trace, Value, refs_in

FOLDING_COST = 3  # cost of folding in reads of the layer's weights; not folding costs one read of its output


def foldable_layers(trace: Trace, levels: Sequence[Level], live: Sequence[bool], rows: int) -> dict[int, Operation]:
    """Maps the position of every foldable sampled BatchNorm to the layer that it can be folded into."""
    maker = {number: i for i, operation in enumerate(trace.operations) for number in operation.outputs}
    readers, members = _readers(operation.reads for operation in trace.operations), _members(trace.values)
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
            or members[trace.values[number].group] != {number}
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
    makers = {number: i for i, operation in enumerate(draft.operations) for number in operation.outputs}
    readers, members = _readers(map(draft.reads, range(len(draft.operations)))), _members(values)

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
    readers, members = _readers(operation.reads for operation in operations), _members(values)
    same = [operation for operation, level in zip(operations, levels, strict=True) if level is not Level.SAMPLE]
    given = {number for operation in same for number in operation.outputs}  # the same for every draw
    written = {group for operation in operations for group in operation.writes}
    for norm, is_live in zip(operations, live, strict=True):
        if not is_live or norm.function is not aten.batch_norm.default:
            continue
        (source, weight), (normalised,) = norm.arguments[:2], norm.outputs
        is_plain = source.number in given and values[source.number].group not in written
        is_constant = weight is None or weight.number in trace.constants
        if not is_plain or len(values[source.number].shape) != 4 or not is_constant:
            continue
        activation = _one_of(_RELU, readers[normalised], operations)
        activated = normalised if activation is None else activation.outputs[0]
        pool = _one_of((aten.max_pool2d.default,), readers[activated], operations)
        between = {normalised, activated}
        aliases = members[values[normalised].group] | members[values[activated].group]
        is_read_once = len(readers[normalised]) == len(readers[activated]) == 1
        if pool and is_read_once and aliases == between and between.isdisjoint((*goals, trace.output)):
            result = _moved(result, norm, activation, pool)
    return result


def _one_of(functions: Collection[Any], at: Sequence[int], operations: Sequence[Operation]) -> Operation | None:
    return next((operations[i] for i in at if operations[i].function in functions), None)


def _readers(reads: Iterable[Iterable[int]]) -> Mapping[int, Sequence[int]]:
    """The positions of the operations that read each value, from the values that each reads."""
    readers: dict[int, list[int]] = defaultdict(list)
    for i, numbers in enumerate(reads):
        for number in numbers:
            readers[number].append(i)
    return readers


def _members(values: Sequence[Value]) -> Mapping[int, set[int]]:
    """The values of each group, which share memory."""
    members: dict[int, set[int]] = defaultdict(set)
    for number, value in enumerate(values):
        members[value.group].add(number)
    return members


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


def plan(
    trace: Trace, *, sampled: Callable[[Operation], bool], rows: int = 0, goals: Collection[int] | None = None
) -> Plan:
    """The plan of a trace whose `sampled` sites differ between draws, computing the values `goals` (default: the
    output). A BatchNorm is folded where that costs less than it saves, over the `rows` rows that share the folding.
    """
    trace = _without_empty_pads(trace)

    def live_of(operations: Sequence[Operation]) -> tuple[bool, ...]:
        return tuple(operation.site is not None and sampled(operation) for operation in operations)

    live, goals = live_of(trace.operations), (trace.output,) if goals is None else goals
    trace = pooled_first(trace, _levels(trace, live), live, goals)
    operations = trace.operations
    live = live_of(operations)
    levels = _levels(trace, live)
    at_level = tuple(zip(operations, levels, strict=True))
    once = set(trace.constants).union(*(operation.outputs for operation, level in at_level if level is Level.ONCE))
    for operation, is_live in zip(operations, live, strict=True):
        is_batchnorm = is_live and isinstance(operation.site, BatchNormSite)
        if is_batchnorm and not once.issuperset(refs_in(operation.arguments[1:3])):
            raise NotTraceableError("the scale or the shift of a BatchNorm is computed in every pass")
    folded = foldable_layers(trace, levels, live, rows)
    swallowed = {id(layer) for layer in folded.values()}
    positions = _needed(trace, swallowed, folded, goals)
    position = {old: new for new, old in enumerate(positions)}
    operations = tuple(operations[i] for i in positions)
    levels = tuple(levels[i] for i in positions)
    folded = {position[i]: layer for i, layer in folded.items() if i in position}
    draft = Plan(
        trace=trace,
        rows=rows,
        operations=operations,
        levels=levels,
        folded=folded,
        channels_last=_takes_channels_last(operations, trace),
        stackable=False,
        boundary=(),
        in_place={},
        activated={},
    )
    sample_values = {n for i in draft.at(Level.SAMPLE) for n in operations[i].outputs}
    chunk_values = {trace.input} | {n for i in draft.at(Level.CHUNK) for n in operations[i].outputs}
    read = {n for i in draft.at(Level.SAMPLE) for n in draft.reads(i)} | {trace.output}
    return replace(
        draft,
        stackable=_stackable(draft, sample_values),
        boundary=tuple(sorted(read & chunk_values)),
        in_place=_in_place(draft, sample_values),
        activated=activations_of(draft),
    )


def _without_empty_pads(trace: Trace) -> Trace:
    """The trace without empty pads, which only copy; the copy stays where an operation writes into either tensor."""
    written = {group for operation in trace.operations for group in operation.writes}
    original: dict[int, int] = {}
    operations = []
    for recorded in trace.operations:
        operation = replace(recorded, arguments=_renamed(recorded.arguments, original))
        if operation.function.overloadpacket in (aten.pad, aten.constant_pad_nd) and not any(operation.arguments[1]):
            source, (copy,) = operation.arguments[0].number, operation.outputs
            if written.isdisjoint((trace.values[source].group, trace.values[copy].group)):
                original[copy] = source
                continue
        operations.append(operation)
    return replace(trace, operations=tuple(operations), output=original.get(trace.output, trace.output))


def _renamed(tree: Any, names: Mapping[int, int]) -> Any:
    if isinstance(tree, Ref):
        return Ref(names.get(tree.number, tree.number))
    return type(tree)(_renamed(item, names) for item in tree) if isinstance(tree, (tuple, list)) else tree


def _levels(trace: Trace, live: Sequence[bool]) -> tuple[Level, ...]:
    """The level of every operation: the lowest at which its inputs are available and at which no operation overwrites a
    value that a later sample reads."""
    levels = [Level.SAMPLE if is_live else Level.ONCE for is_live in live]
    maker = {number: i for i, operation in enumerate(trace.operations) for number in operation.outputs}
    settled = False
    while not settled:
        settled = True
        written: dict[int, Level] = defaultdict(lambda: Level.ONCE)
        for operation, level in zip(trace.operations, levels, strict=True):
            for group in operation.writes:
                written[group] = max(written[group], level)
        read: dict[int, Level] = defaultdict(lambda: Level.ONCE)
        for i, operation in enumerate(trace.operations):
            groups = operation.writes.union(trace.values[number].group for number in operation.outputs)
            needs = [levels[i], *(written[group] for group in groups), *(read[group] for group in operation.writes)]
            for number in operation.reads:
                needs.append(
                    Level.CHUNK if number == trace.input else levels[maker[number]] if number in maker else Level.ONCE
                )
            if _grows(operation, trace):
                needs.append(Level.CHUNK)
            if max(needs) > levels[i]:
                levels[i], settled = max(needs), False
            for number in operation.reads:
                group = trace.values[number].group
                read[group] = max(read[group], levels[i])
    return tuple(levels)


def _grows(operation: Operation, trace: Trace) -> bool:
    def in_tree(tree: Any) -> bool:
        return isinstance(tree, PerRow) or (isinstance(tree, (tuple, list)) and any(map(in_tree, tree)))

    return in_tree(operation.arguments) or any(trace.values[number].axis is not None for number in operation.outputs)


def _needed(trace: Trace, swallowed: set[int], folded: Mapping[int, Operation], goals: Collection[int]) -> list[int]:
    """The positions of the operations that the goals depend on."""
    numbers = set(goals)
    groups = {trace.values[number].group for number in goals}
    positions = []
    for i in reversed(range(len(trace.operations))):
        operation = trace.operations[i]
        if id(operation) in swallowed:
            continue
        if numbers.isdisjoint(operation.outputs) and groups.isdisjoint(operation.writes):
            continue
        positions.append(i)
        for number in (*operation.reads, *(folded[i].reads if i in folded else ())):
            numbers.add(number)
            groups.add(trace.values[number].group)
    return positions[::-1]


BY_LAYOUT = {  # the memory layout decides whether they return an alias or a copy, or fail
    aten.view, aten.view_as, aten.reshape, aten.reshape_as, aten.flatten, aten.ravel, aten.contiguous, aten.to,
}  # fmt: skip


def _takes_channels_last(operations: Sequence[Operation], trace: Trace) -> bool:
    """Whether images may be stored channels last: there are images, and no operation depends on the layout."""
    written: set[int] = set()
    for operation in reversed(operations):
        groups = {trace.values[number].group for number in operation.outputs}
        if operation.function.overloadpacket in BY_LAYOUT and not written.isdisjoint(groups):
            return False
        written |= operation.writes
    packets = {operation.function.overloadpacket for operation in operations}
    strided = {aten.as_strided, aten.as_strided_, aten.set_, aten.lstm, aten.gru}
    pictures = any(
        operation.function.overloadpacket in LAYERS and len(trace.values[operation.outputs[0]].shape) == 4
        for operation in operations
    )
    return pictures and packets.isdisjoint(strided)


def _stackable(draft: Plan, sample_values: set[int]) -> bool:
    """Whether draws can be stacked along the row axis, like additional points."""
    values = draft.trace.values
    if any(values[number].axis is None for number in sample_values):
        return False
    for i in draft.at(Level.SAMPLE):
        operation = draft.operations[i]
        if operation.site is not None:
            expected_axis = operation.site.batch_axis if isinstance(operation.site, DropoutSite) else 0
            if values[operation.outputs[0]].axis != expected_axis:
                return False
    return True


_IN_PLACE = {
    aten.relu.default: aten.relu_.default,
    aten.relu6.default: aten.relu6_.default,
    aten.hardtanh.default: aten.hardtanh_.default,
    aten.leaky_relu.default: aten.leaky_relu_.default,
    aten.elu.default: aten.elu_.default,
    aten.silu.default: aten.silu_.default,
    aten.hardswish.default: aten.hardswish_.default,
    aten.hardsigmoid.default: aten.hardsigmoid_.default,
    aten.sigmoid.default: aten.sigmoid_.default,
    aten.tanh.default: aten.tanh_.default,
    aten.gelu.default: aten.gelu_.default,
    aten.add.Tensor: aten.add_.Tensor,
    aten.mul.Tensor: aten.mul_.Tensor,
}


def _in_place(draft: Plan, sample_values: set[int]) -> dict[int, tuple[Any, int]]:
    """The operations of the sample level that may overwrite an argument nothing else needs."""
    trace, last, groups = draft.trace, draft.last_reads(Level.SAMPLE), _members(draft.trace.values)
    written = {group for operation in draft.operations for group in operation.writes}
    in_place = {}
    for i in draft.at(Level.SAMPLE):
        operation = draft.operations[i]
        form = _IN_PLACE.get(operation.function)
        if form is None:
            continue
        (result,) = operation.outputs
        candidates = operation.arguments[:1]
        if operation.function in (aten.add.Tensor, aten.mul.Tensor) and operation.arguments[2:] in ((), (1,)):
            candidates = operation.arguments[:2]
        for argument_number, argument in enumerate(candidates):
            if not isinstance(argument, Ref):
                continue
            value, output = trace.values[argument.number], trace.values[result]
            members = groups[value.group]
            if (
                sample_values.issuperset(members)
                and value.group not in written
                and all(last.get(number, len(draft.operations)) <= i for number in members)
                and (value.shape, value.dtype, value.axis) == (output.shape, output.dtype, output.axis)
                and all(prod(trace.values[number].shape) == prod(value.shape) for number in members)  # none overlaps
                and [trace.values[number].group for number in operation.reads].count(value.group) == 1
            ):
                in_place[i] = form, argument_number
                break
    return in_place
