"""Explains errors of the environment: missing memory, libraries, working folder or temporary folder."""

from __future__ import annotations

import errno
import os

MIN_ADDRESS_SPACE = 10**9  # bytes; with less, numpy's and scipy's libraries abort or hang the process


def environment_problem(error: BaseException) -> str | None:
    """The problem of the environment that explains `error`, with its remedy; None if there is none."""
    try:
        os.getcwd()  # noqa: PTH109 - light
    except OSError:
        return "the working folder no longer exists. Change to an existing folder."
    if isinstance(error, ImportError) and not (error.name or "").startswith("bnuq"):
        error_text = (str(error).strip().splitlines() or ["ImportError"])[-1].strip().rstrip(".")
        advice = limited_address_space() or "Reinstall bnuq in a separate environment."
        return f"a library that bnuq needs cannot be loaded: {error_text}. {advice}"
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM):
        limit = limited_address_space()
        return f"out of memory. {limit}" if limit else None
    if isinstance(error, FileNotFoundError) and "No usable temporary directory" in str(error):
        return "there is no folder for temporary files. Set TMPDIR to a writable folder."
    return None


def limited_address_space() -> str:
    """A sentence about the limit of the address space, with its remedy; empty if there is no limit."""
    if not (limit := _address_space()):
        return ""
    size = f"{limit / 1e9:.1g} GB"
    return f"The address space of this process is limited to {size}, too little for torch: raise the limit (ulimit -v)."


def too_small() -> bool:
    """Whether the address space is too small to load anything."""
    return 0 < _address_space() < MIN_ADDRESS_SPACE


def _address_space() -> int:
    """The limit on addresses, in bytes; 0 if there is none."""
    try:
        import resource
    except ImportError:  # Windows
        return 0
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    return 0 if limit == resource.RLIM_INFINITY else limit
