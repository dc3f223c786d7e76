"""Inputs in the forms that people have them in, as one tensor."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, IterableDataset

from bnuq.errors import DataError

Data = Tensor | np.ndarray | Iterable[Any]


def tensor_of(data: Data) -> Tensor:
    """All inputs of `data` (n, *input): a tensor or an array as it is, the points of a Dataset, or the batches of an
    iterable, such as a DataLoader, one after the other. Labels beside them are left out.

    DataError where there are none, or they differ in shape.
    """
    if isinstance(data, Tensor | np.ndarray):
        return torch.as_tensor(data)
    if isinstance(data, Dataset) and not isinstance(data, IterableDataset):
        points = [_input_of(data[index]) for index in range(len(data))]  # pyright: ignore[reportArgumentType]
        batches = [point[None] for point in points]
    else:
        batches = [_input_of(batch) for batch in data]  # pyright: ignore[reportGeneralTypeIssues]
        if isinstance(data, IterableDataset):
            batches = [point[None] for point in batches]
    if len(shapes := {batch.shape[1:] for batch in batches}) != 1:
        shown = " and ".join(str(tuple(shape)) for shape in sorted(shapes)[:2])
        raise DataError(f"the inputs have points of shape {shown}; expected one shape." if shapes else "no inputs.")
    return torch.cat(batches)


def _input_of(piece: Any) -> Tensor:
    return torch.as_tensor(piece[0] if isinstance(piece, tuple | list) else piece)
