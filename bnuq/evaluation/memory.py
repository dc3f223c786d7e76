"""Memory of the device: what is left before the work, and the most that was taken."""

from __future__ import annotations

import sys
from collections.abc import Callable

import numpy as np
import torch

from bnuq.errors import is_out_of_memory
from bnuq.files.limits import available_memory, in_words

__all__ = ["available", "in_halves", "in_words", "peak"]


def available(device: torch.device) -> int | None:
    """Bytes that are free to be used; None where that cannot be told."""
    if device.type == "cuda":
        held_in_reserve = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + held_in_reserve
    return available_memory()


def reset_peak(device: torch.device) -> None:
    """Let `peak` of a GPU count from here on; of main memory it is the process's."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def peak(device: torch.device) -> int | None:
    """The most bytes that were held: on the GPU what torch took there since `reset_peak`, else what this process took
    of main memory; None where that cannot be told."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    try:
        import resource
    except ImportError:  # Windows has no such thing
        return None
    held = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return held if sys.platform == "darwin" else 1024 * held


def in_halves(work: Callable[[slice], np.ndarray], count: int) -> list[np.ndarray]:
    """What `work` gives for `count` points, in order: for all of them together, and for fewer where memory runs out."""
    parts, start, size = [], 0, count
    while start < count:
        try:
            parts.append(work(slice(start, min(count, start + size))))
        except (MemoryError, RuntimeError) as error:
            if size == 1 or not is_out_of_memory(error):
                raise
            size //= 2
        else:
            start += size
    return parts
