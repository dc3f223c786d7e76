"""What differs between samples in numpy arrays and in torch tensors. torch is imported only where there is a tensor."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext

import numpy as np

from bnuq.metrics.arrays import Array


def on_host(block: Array) -> bool:
    """Whether the values are in the memory of the process."""
    if isinstance(block, np.ndarray):
        return True
    from bnuq import devices

    return devices.is_host(block.device)


def as_block(values: Array, block: Array) -> Array:
    """The values as those of a block are: an array, or a tensor on its device."""
    if isinstance(block, np.ndarray):
        return values
    import torch

    from bnuq import devices

    tensor = values if isinstance(values, torch.Tensor) else torch.tensor(values)
    return devices.upload(tensor, block.device)


def fetched(values: Mapping[str, Array]) -> dict[str, np.ndarray]:
    """The values as arrays of the host, which waits for an accelerator once."""
    if all(isinstance(value, np.ndarray | np.generic) for value in values.values()):
        return {name: np.asarray(value) for name, value in values.items()}
    from bnuq import devices

    return devices.fetch(values)


def without_gradients(block: Array) -> AbstractContextManager[object]:
    """A context in which no operation on such a block is recorded."""
    if isinstance(block, np.ndarray):
        return nullcontext()
    import torch

    return torch.inference_mode()
