"""The schedule of a trace: how often each operation runs, what is folded, and what that costs; and which operations are
layers with weights."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import IntEnum
from math import prod
from typing import Any

from bnuq.frozen import frozen
from bnuq.sampling.interception import aten
from bnuq.sampling.trace import Operation, Ref, Trace


class Level(IntEnum):
    """How often an operation runs."""

    ONCE = 0
    CHUNK = 1
    SAMPLE = 2


@frozen
class Activation:
    """What one kernel may compute with a convolution: the ReLU at this position, and the addition of value `other`
    before it, where there is one. `replaced` are the positions of both."""

    result: int
    other: int | None
    replaced: tuple[int, ...]


@frozen
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


def multiply_adds(plan: Plan, positions: Iterable[int]) -> int:
    """Multiply-adds per row of these operations; one that is not a layer counts one per entry."""
    values, total = plan.trace.values, 0
    for i in positions:
        layer = plan.folded.get(i, plan.operations[i])
        entries = sum(values[number].entries_per_row for number in plan.operations[i].outputs)
        axis = output_channels(layer) if layer.function.overloadpacket in LAYERS else None
        if axis is not None and isinstance(layer.arguments[1], Ref):
            weight = values[layer.arguments[1].number].shape
            entries *= prod(weight) // weight[axis]
        total += entries
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


# Operations with arguments (input, weight, bias, …): the positions of their `transposed` and `groups`.
LAYERS: dict[Any, tuple[Any, Any]] = {
    aten.linear: (None, None), aten.conv1d: (None, 6), aten.conv2d: (None, 6), aten.conv3d: (None, 6),
    aten.conv_transpose1d: (True, 6), aten.conv_transpose2d: (True, 6), aten.conv_transpose3d: (True, 6),
    aten.convolution: (6, 8), aten._convolution: (6, 8),
}  # fmt: skip


def is_layer(operation: Operation) -> bool:
    """Whether the operation takes (input, weight, bias, …)."""
    return operation.function.overloadpacket in LAYERS


def output_channels(layer: Operation) -> int | None:
    """The axis of the layer's weight that holds its output channels; None where no single axis does."""
    transposed, groups = LAYERS[layer.function.overloadpacket]
    if transposed is not None and transposed is not True:
        transposed = layer.arguments[transposed]
    if not transposed:
        return 0
    assert groups is not None
    return 1 if layer.arguments[groups] == 1 else None


def is_convolution_of_pictures(operation: Operation) -> bool:
    """Whether cuDNN computes the operation with a ReLU after it: two axes of positions, one group, not transposed."""
    packet = operation.function.overloadpacket
    if packet not in (aten.conv2d, aten.convolution):
        return False
    transposed, groups = LAYERS[packet]
    if (transposed is not None and operation.arguments[transposed]) or operation.arguments[groups] != 1:
        return False
    return all(not isinstance(size, str) and len(size) == 2 for size in operation.arguments[3:6])
