"""Inputs in the usual forms, as one tensor; and a network of several inputs as one that takes rows."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, IterableDataset

from bnuq.errors import DataError, RequestError
from bnuq.packing import Layout
from bnuq.sampling.outputs import Around, unconverted

Data = Tensor | np.ndarray | Iterable[Any]


def tensor_of(data: Data) -> Tensor:
    """All inputs of `data` (n, *input): a tensor or an array as it is, those of a pair (inputs, targets), the points
    of a Dataset, or the batches of a list or an iterator, such as a DataLoader, one after the other. Labels beside them
    are left out.

    DataError where there are none or several for a point, or they differ in shape.
    """
    if isinstance(data, Tensor) and (data.layout is not torch.strided or data.is_nested):
        raise DataError("the inputs are a sparse or nested tensor; expected a dense one, as `.to_dense()` makes it.")
    if isinstance(data, Tensor | np.ndarray):
        return torch.as_tensor(data)
    if isinstance(data, Dataset) and not isinstance(data, IterableDataset):
        points = [_input_of(data[index], 0) for index in range(len(data))]  # pyrefly: ignore
        batches = [point[None] for point in points]
    elif isinstance(data, IterableDataset):
        batches = [_input_of(point, 0)[None] for point in data]
    elif isinstance(data, tuple) and all(isinstance(part, Tensor | np.ndarray) for part in data):
        batches = [_input_of(data, 1)]  # (inputs, targets): the targets are not drawn into mini-batches
    else:
        batches = [_input_of(batch, 1) for batch in data]
    if len(shapes := {batch.shape[1:] for batch in batches}) != 1:
        shown = " and ".join(str(tuple(shape)) for shape in sorted(shapes)[:2])
        raise DataError(f"the inputs have examples of shape {shown}; expected one shape." if shapes else "no inputs.")
    return torch.cat(batches)


def _input_of(piece: Any, axes: int) -> Tensor:
    """The input in an item (`axes` 0) or in a batch (1)."""
    first, *others = piece if isinstance(piece, tuple | list) else (piece,)
    in_one = isinstance(first, Mapping) or (
        isinstance(first, tuple | list) and any(torch.is_tensor(part) and part.ndim for part in first)
    )
    if in_one or any(getattr(part, "ndim", 0) > axes for part in others[:-1]):
        raise DataError(
            "the examples have several inputs, and one tensor is expected here; `bnuq.evaluate` takes several."
        )
    return torch.as_tensor(first)


class Unpacked(Around):
    """A network of several inputs that takes rows (points, words) of `packing.pack`.

    Its inputs are passed by name or by place; in one dictionary or tuple where its forward takes a single argument and
    none of their names. Floats are cast to the dtype of its first floating-point tensor, and nothing else is. Raises
    RequestError for inputs that the forward does not take.
    """

    def __init__(self, network: nn.Module, layout: Layout) -> None:
        super().__init__(network)
        self.layout = layout
        self.as_one = _takes_one_argument(network, layout)

    def forward(self, rows: Tensor) -> Any:
        tensors = chain(self.network.parameters(), self.network.buffers())
        dtype = next((tensor.dtype for tensor in tensors if tensor.is_floating_point()), None)
        inputs, start = [], 0
        for part in self.layout.inputs:
            words = rows[:, start : start + part.words]
            values = words.view(getattr(torch, part.dtype))[:, : part.entries]
            if dtype is not None and values.is_floating_point():
                values = values.to(dtype)
            inputs.append(values.clone(memory_format=torch.contiguous_format).view(len(rows), *part.shape))
            start += part.words
        if not self.layout.by_name:
            return self.network(tuple(inputs)) if self.as_one else self.network(*inputs)
        named = {part.name: values for part, values in zip(self.layout.inputs, inputs, strict=True)}
        return self.network(named) if self.as_one else self.network(**named)


def form_of(model: nn.Module, inputs: Tensor) -> str:
    """What the network is given, for a message."""
    network = unconverted(model)
    if not isinstance(network, Unpacked):
        return f"inputs of shape {tuple(inputs.shape)}"
    together = "" if not network.as_one else ", in one dictionary" if network.layout.by_name else ", in one tuple"
    return f"the inputs {network.layout}{together}"


def _takes_one_argument(network: nn.Module, layout: Layout) -> bool:
    """Whether the forward takes all inputs as one argument, rather than each as one of its own; RequestError where it
    takes neither."""
    try:
        signature = inspect.signature(getattr(network, "_orig_mod", network).forward)
    except (TypeError, ValueError):  # a forward that is not written in Python
        return False
    names = [part.name for part in layout.inputs]
    try:
        signature.bind(**dict.fromkeys(names)) if layout.by_name else signature.bind(*names)
        return False
    except TypeError as error:
        try:
            signature.bind(None)
        except TypeError:
            pass
        else:
            if not layout.by_name or signature.parameters.keys().isdisjoint(names):
                return True
        raise RequestError(
            f"the network's forward takes {', '.join(signature.parameters) or 'nothing'}, and the inputs are {layout} "
            f"({error}); expected one input for each parameter that has no default."
        ) from None
