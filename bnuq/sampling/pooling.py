"""Pools before a sampled BatchNorm, where its input is the same for every draw: once for all draws, not after each."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import torch

from bnuq.sampling.interception import aten
from bnuq.sampling.schedule import Level
from bnuq.sampling.trace import Operation, Ref, Trace, Value

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
