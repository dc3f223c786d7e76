"""Schedules a trace: which operations run once, per chunk or per sample, and which BatchNorms are folded."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any

from bnuq.sampling.folding import activations_of, foldable_layers, pooled_first
from bnuq.sampling.interception import aten
from bnuq.sampling.schedule import LAYERS, Level, Plan
from bnuq.sampling.sites import BatchNormSite, DropoutSite
from bnuq.sampling.trace import NotTraceableError, Operation, PerRow, Ref, Trace, refs_in


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
