"""Memory of the device: the free memory, and the peak use."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import TypeVar

import torch

from bnuq.errors import is_out_of_memory
from bnuq.files.limits import available_memory, in_words

__all__ = ["available", "in_halves", "in_words", "peak"]

Result = TypeVar("Result")


def available(device: torch.device) -> int | None:
    """Free bytes; None where that is not known."""
    if device.type == "cuda":
        unused_reserve = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + unused_reserve
    return available_memory()


def reset_peak(device: torch.device) -> None:
    """Reset `peak` of a GPU; that of main memory is the whole process's."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def peak(device: torch.device) -> int | None:
    """The peak use of memory in bytes: on a GPU by torch since `reset_peak`, otherwise main memory of this process;
    None where that is not known."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
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
