"""Which operations of a trace are layers with weights, and where these have their output channels."""

from __future__ import annotations

from typing import Any

from bnuq.sampling.interception import aten
from bnuq.sampling.trace import Operation

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
