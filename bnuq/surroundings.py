"""What a process may find missing around it, in words: memory, libraries, its working folder, a temporary one."""

from __future__ import annotations

import errno
import os

LEAST_ADDRESS_SPACE = 10**9  # bytes, below which libraries of numpy and scipy end the process, or never come back


def environment_problem(error: BaseException) -> str | None:
    """What is wrong with the surroundings where they explain `error`, and what to do; None where they do not."""
    try:
        os.getcwd()  # noqa: PTH109 - light
    except OSError:
        return "the working folder no longer exists. Change to one that does."
    if isinstance(error, ImportError) and not (error.name or "").startswith("bnuq"):
        said = (str(error).strip().splitlines() or ["ImportError"])[-1].strip().rstrip(".")
        advice = limited_address_space() or "Install bnuq anew, in an environment of its own."
        return f"a library that bnuq needs cannot be loaded: {said}. {advice}"
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM):
        limit = limited_address_space()
        return f"out of memory. {limit}" if limit else None
    if isinstance(error, FileNotFoundError) and "No usable temporary directory" in str(error):
        return "there is no folder for temporary files. Let TMPDIR name one that may be written to."
    return None


def limited_address_space() -> str:
    """That this process may not use all of its addresses, with what to do; empty where it may."""
    if not (limit := _address_space()):
        return ""
    size = f"{limit / 1e9:.1g} GB"
    return f"This process may use {size} of addresses, and loading torch takes one: raise that limit (ulimit -v)."


def too_small() -> bool:
    """Whether the address space is too small to load anything."""
    return 0 < _address_space() < LEAST_ADDRESS_SPACE


def _address_space() -> int:
    """The limit on addresses, in bytes; 0 where there is none."""
    try:
        import resource
    except ImportError:  # Windows
        return 0
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    return 0 if limit == resource.RLIM_INFINITY else limit
