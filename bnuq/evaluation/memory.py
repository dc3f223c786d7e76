"""Memory of the device: the free memory, and the peak use."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import TypeVar

import torch

from bnuq import devices
from bnuq.errors import is_out_of_memory
from bnuq.files.limits import available_memory, in_words

__all__ = ["available", "in_halves", "in_words", "peak"]

Result = TypeVar("Result")


def available(device: torch.device) -> int | None:
    """Free bytes; None where that is not known."""
    free = devices.free_bytes(device)
    return available_memory() if free is None else free


def reset_peak(device: torch.device) -> None:
    """Reset `peak` of a GPU; that of main memory is the whole process's."""
    devices.reset_peak(device)


def peak(device: torch.device) -> int | None:
    """The peak use of memory in bytes: on a GPU by torch since `reset_peak`, otherwise main memory of this process;
    None where that is not known."""
    if (most := devices.peak_bytes(device)) is not None:
        return most
    try:
        import resource
    except ImportError:  # Windows has no such module
        return None
    size = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return size if sys.platform == "darwin" else 1024 * size


def in_halves(work: Callable[[slice], Result], count: int, size: int | None = None) -> Iterator[Result]:
    """The results of `work` for `count` points, in order: for `size` of them at once (None: for all), or for ever
    smaller parts where memory runs out."""
    start, size = 0, size or count
    while start < count:
        rows = slice(start, min(count, start + size))
        try:
            result = work(rows)
        except (MemoryError, RuntimeError) as error:
            if size == 1 or not is_out_of_memory(error):
                raise
            size = max(1, min(size, count) // 2)
        else:
            yield result
            start = rows.stop
