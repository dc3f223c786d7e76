"""Finds the BatchNorms to fold into the layer before them, and the activations to compute with a convolution."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from math import prod

from bnuq.sampling.interception import aten
from bnuq.sampling.layers import LAYERS, is_convolution_of_pictures, is_layer, output_channels
from bnuq.sampling.schedule import Activation, Level, Plan
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
