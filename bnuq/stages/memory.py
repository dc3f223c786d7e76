"""Memory of the device: what is left before the work, and the most that was taken."""

from __future__ import annotations

import sys
from pathlib import Path

import torch


def available(device: torch.device) -> int | None:
    """Bytes that are free to be used; None where that cannot be told."""
    if device.type == "cuda":
        held_in_reserve = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + held_in_reserve
    known = [amount for amount in (_of_the_machine(), _of_the_container()) if amount is not None]
    return min(known, default=None)


def _of_the_machine() -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return next(1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration, ValueError, IndexError):
        return None


def _of_the_container() -> int | None:
    folder = Path("/sys/fs/cgroup")
    try:
        limit, used = (int((folder / name).read_text()) for name in ("memory.max", "memory.current"))
        held = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):
        return None  # no limit is the word "max"
    return max(0, limit - used + int(held.get("inactive_file", 0)))


def peak(device: torch.device) -> int | None:
    """The most bytes that this process has held: on the GPU what torch took there, else of main memory; None where
    that cannot be told."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    try:
        import resource
    except ImportError:  # Windows has no such thing
        return None
    held = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return held if sys.platform == "darwin" else 1024 * held


def in_words(amount: int) -> str:
    """A number of bytes as people say it: 2 significant digits, in kB, MB or GB."""
    unit, word = next((u, w) for u, w in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")) if amount >= u or u == 1e3)
    return f"{float(f'{amount / unit:.2g}'):g} {word}"
