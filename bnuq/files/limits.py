"""Limits on the size that a file may declare: by its stored bytes, and by the available memory."""

from __future__ import annotations

import os
from pathlib import Path

from bnuq.errors import BnuqError

_MOST_EXPANSION = 1100  # deflate's limit is 1032
_ALWAYS_ALLOWED = 256 * 2**20


def check_size(where: object, declared: int, *, stored: int, error: type[BnuqError], memory: bool = True) -> None:
    """Raise `error`, whose message begins with `where`, for `declared` bytes that may not be read.

    They may not where `stored` compressed bytes cannot hold them and they are enough to do harm, or where the `memory`
    that is available cannot. What is read together is added up first.
    """
    if declared > max(_MOST_EXPANSION * stored, _ALWAYS_ALLOWED):
        raise error(f"{where}: declares {declared:.3g} bytes of data in {stored} bytes; it is damaged or hostile.")
    if memory:
        check_memory(where, declared, error=error)


def check_memory(where: object, needed: int, *, error: type[BnuqError], size: int | None = None) -> None:
    """Raise `error` if reading takes more memory than is available; `size` is the file's, if that is less."""
    free = available_memory()
    if free is not None and needed > free:
        has = "" if size is None or size == needed else f"has {in_words(size)}, "
        raise error(
            f"{where}: {has}takes {in_words(needed)} of memory to read and {in_words(free)} are available. "
            f"Use a smaller file, or a machine with more memory."
        )


def read_whole(path: Path, *, copies: int = 1, error: type[BnuqError]) -> bytes:
    """The bytes of the file, read once and only where memory can hold as many `copies` of them.

    What is checked, hashed and parsed are then the same bytes, whatever becomes of the file.
    """
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        check_memory(path, copies * size, error=error, size=size)
        data = file.read(size + 1)
    if len(data) != size:
        raise error(f"{path}: changed its size while it was read. Run it again.")
    return data


def available_memory() -> int | None:
    """Bytes that this process may still take; None if that is unknown."""
    amounts = (_of_the_machine(), _of_the_container(), _of_the_process())
    return min((amount for amount in amounts if amount is not None), default=None)


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
        counters = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):
        return None  # no limit is the word "max"
    return max(0, limit - used + int(counters.get("inactive_file", 0)))


def _of_the_process() -> int | None:
    """What is left of its address space (`ulimit -v`)."""
    try:
        import resource

        limit = resource.getrlimit(resource.RLIMIT_AS)[0]
        if limit == resource.RLIM_INFINITY:
            return None
        return max(0, limit - int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE"))
    except (ImportError, OSError, ValueError, IndexError):
        return None


def in_words(amount: int) -> str:
    """A number of bytes as people say it: 2 significant digits, in kB, MB or GB."""
    unit, word = next((u, w) for u, w in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")) if amount >= u or u == 1e3)
    return f"{float(f'{amount / unit:.2g}'):g} {word}"
