"""Schedules a trace: which operations run once, per chunk or per sample, and which BatchNorms are folded."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from math import prod
from typing import Any

from bnuq.sampling.interception import aten
from bnuq.sampling.sites import DropoutSite
from bnuq.sampling.trace import Operation, PerRow, Ref, Trace, Value, refs_in

FOLDING_COST = 3  # cost of folding in reads of the layer's weights; not folding costs one read of its output


class Level(IntEnum):
    """How often an operation runs."""

    ONCE = 0
    CHUNK = 1
    SAMPLE = 2


@dataclass(frozen=True)
class Activation:
    """What one kernel may compute with a convolution: the ReLU at this position, and the addition of value `other`
    before it, where there is one. `replaced` are the positions of both."""

    result: int
    other: int | None
    replaced: tuple[int, ...]


@dataclass(frozen=True)
class Plan:
    """The schedule of the operations for passes of `rows` rows. `folded` maps the position of a BatchNorm in
    `operations` to the layer that it is folded into; `activated` maps positions of convolutions, and of BatchNorms
    folded into them, to what may be computed with them.
    """

    trace: Trace
    rows: int
    operations: tuple[Operation, ...]
    levels: tuple[Level, ...]
    folded: Mapping[int, Operation]
    channels_last: bool
    stackable: bool
    boundary: tuple[int, ...]  # the chunk-level values that the sample level needs
    in_place: Mapping[int, tuple[Any, int]]  # position → (the operation's in-place form, the argument it overwrites)
    activated: Mapping[int, Activation]

    def reads(self, position: int) -> tuple[int, ...]:
        """The values that the operation at this position reads, including those of a layer folded with it."""
        layer = self.folded.get(position)
        reads = self.operations[position].reads
        return reads if layer is None else (*layer.reads, *reads[1:])

    def last_reads(self, level: Level) -> dict[int, int]:
        """For every value made at this level, the position of the last operation of the level that reads it."""
        last = {n: i for i in self.at(level) for n in self.operations[i].outputs}
        for i in self.at(level):
            last |= {n: i for n in self.reads(i) if n in last}
        return {n: i for n, i in last.items() if n != self.trace.output}

    def at(self, level: Level) -> tuple[int, ...]:
        """The positions of the operations of one level, in order."""
        return tuple(i for i, operation_level in enumerate(self.levels) if operation_level is level)


def plan(
    trace: Trace, *, sampled: Callable[[Operation], bool], rows: int = 0, goals: Collection[int] | None = None
) -> Plan:
    """The plan of a trace whose `sampled` sites differ between draws, computing the values `goals` (default: the
    output). A BatchNorm is folded where that costs less than it saves, over the `rows` rows that share the folding.
    """
    trace = _without_empty_pads(trace)
    operations = trace.operations
    live = tuple(operation.site is not None and sampled(operation) for operation in operations)
    levels = _levels(trace, live)
    folded = _foldable(trace, levels, live, rows)
    swallowed = {id(layer) for layer in folded.values()}
    positions = _needed(trace, swallowed, folded, goals if goals is not None else (trace.output,))
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
        activated=_activated(draft),
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


# Operations with arguments (input, weight, bias, …): the positions of their `transposed` and `groups`.
_LAYERS: dict[Any, tuple[Any, Any]] = {
    aten.linear: (None, None), aten.conv1d: (None, 6), aten.conv2d: (None, 6), aten.conv3d: (None, 6),
    aten.conv_transpose1d: (True, 6), aten.conv_transpose2d: (True, 6), aten.conv_transpose3d: (True, 6),
    aten.convolution: (6, 8), aten._convolution: (6, 8),
}  # fmt: skip


def is_layer(operation: Operation) -> bool:
    """Whether the operation takes (input, weight, bias, …)."""
    return operation.function.overloadpacket in _LAYERS


def output_channels(layer: Operation) -> int | None:
    """The axis of the layer's weight that holds its output channels; None where no single axis does."""
    transposed, groups = _LAYERS[layer.function.overloadpacket]
    if transposed is not None and transposed is not True:
        transposed = layer.arguments[transposed]
    if not transposed:
        return 0
    assert groups is not None
    return 1 if layer.arguments[groups] == 1 else None


def _foldable(trace: Trace, levels: Sequence[Level], live: Sequence[bool], rows: int) -> dict[int, Operation]:
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
        if (
            layer.function.overloadpacket not in _LAYERS
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
        operation.function.overloadpacket in _LAYERS and len(trace.values[operation.outputs[0]].shape) == 4
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
    trace, last = draft.trace, draft.last_reads(Level.SAMPLE)
    groups: dict[int, list[int]] = defaultdict(list)
    for number, value in enumerate(trace.values):
        groups[value.group].append(number)
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
        for place, argument in enumerate(candidates):
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
                in_place[i] = form, place
                break
    return in_place


def is_convolution_of_pictures(operation: Operation) -> bool:
    """Whether cuDNN computes the operation with a ReLU after it: two axes of positions, one group, not transposed."""
    packet = operation.function.overloadpacket
    if packet not in (aten.conv2d, aten.convolution):
        return False
    transposed, groups = _LAYERS[packet]
    if (transposed is not None and operation.arguments[transposed]) or operation.arguments[groups] != 1:
        return False
    return all(not isinstance(each, str) and len(each) == 2 for each in operation.arguments[3:6])


def _activated(draft: Plan) -> dict[int, Activation]:
    """The convolutions of the sample level, with a BatchNorm folded into them or without, that only a ReLU reads, or an
    addition that only a ReLU reads. Of an addition of two convolutions, the later one."""
    values = draft.trace.values
    readers: dict[int, list[int]] = defaultdict(list)
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

    activated = {}
    for i in draft.at(Level.SAMPLE):
        layer = draft.folded.get(i, draft.operations[i])
        if not is_layer(layer) or not is_convolution_of_pictures(layer):
            continue
        (number,) = draft.operations[i].outputs
        first = last = only_reader(number)
        other = None if first is None else _added_to(number, draft.operations[first], values)
        if first is None or (other is not None and makers.get(other, -1) > i):
            continue
        if other is not None:
            last = only_reader(draft.operations[first].outputs[0])
        if last is None or draft.operations[last].function not in (aten.relu.default, aten.relu_.default):
            continue
        result = draft.operations[last].outputs[0]
        replaced = (last,) if other is None else (first, last)
        made = {number, result, *(n for j in replaced for n in draft.operations[j].outputs)}
        written = {group for j in replaced for group in draft.operations[j].writes}
        read_later = any(
            position > first for group in written for n in members[group] if n not in made for position in readers[n]
        )
        overwritten = other is not None and any(
            values[other].group in draft.operations[j].writes for j in range(i + 1, first)
        )
        if not read_later and not overwritten:
            activated[i] = Activation(result, other, replaced)
    return activated


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


def multiply_adds(plan: Plan) -> dict[Level, int]:
    """Multiply-adds per row at every level; an operation that is not a layer counts one per entry."""
    values, total = plan.trace.values, dict.fromkeys(Level, 0)
    for i, operation in enumerate(plan.operations):
        layer = plan.folded.get(i, operation)
        entries = sum(values[number].entries_per_row for number in operation.outputs)
        axis = output_channels(layer) if layer.function.overloadpacket in _LAYERS else None
        if axis is not None and isinstance(layer.arguments[1], Ref):
            weight = values[layer.arguments[1].number].shape
            entries *= prod(weight) // weight[axis]
        total[plan.levels[i]] += entries
    return total


def peak_entries(plan: Plan, level: Level) -> int:
    """The peak number of entries per row that are alive at once, among the values of a level."""
    values, last = plan.trace.values, plan.last_reads(level)
    alive = peak = 0
    for i in plan.at(level):
        outputs = {values[n].group: values[n].entries_per_row for n in plan.operations[i].outputs}
        alive += 0 if i in plan.in_place else sum(outputs.values())
        swallowed = plan.folded[i].outputs if i in plan.folded else ()  # made after all where draws are stacked
        peak = max(peak, alive + sum(values[n].entries_per_row for n in swallowed))
        freed = {values[n].group: values[n].entries_per_row for n, end in last.items() if end == i}
        alive -= 0 if i in plan.in_place else sum(freed.values())
    return peak
