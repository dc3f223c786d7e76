"""Writing a file so that a reader finds the old one or the new one, whole, and never half of one."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from bnuq import stopping
from bnuq.errors import ResultError
from bnuq.files.content import exists, is_file


def write_bytes(path: Path, data: bytes | memoryview) -> None:
    """Put `data` at `path`. Raises ResultError where it cannot be written; the old file is then untouched."""
    with replaced(path) as file:
        file.write(data)


@contextlib.contextmanager
def replaced(path: Path) -> Iterator[BinaryIO]:
    """A new file beside `path` to write to, renamed to `path` when the block ends well and removed when it does not.

    It can be read back, and opened again by its name, inside the block. A symbolic link stays one: what it points to is
    replaced. Raises ResultError for a full disk, a folder that is missing or read-only, and the like; whatever else the
    block raises passes through.
    """
    target = path.resolve()
    if exists(target) and not is_file(target):
        raise ResultError(f"{path}: is not a file, so it cannot be replaced by one. Name a file to write.")
    stem = os.fsdecode(os.fsencode(target.name)[:200])  # a name may have 255 bytes
    beside = target.with_name(f".{stem}.{secrets.token_hex(4)}.tmp")
    try:
        with _new_file(beside) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        stopping.check()  # an interrupted result is not kept
        beside.replace(target)
    except BaseException as error:
        with contextlib.suppress(OSError):
            beside.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename in (None, str(beside)):
            raise ResultError(f"{path}: could not be written: {_reason(error)}") from error
        raise
    _sync_folder(target.parent)


def _new_file(path: Path) -> BinaryIO:
    # Not tempfile: its files are 0600, and the result of a shared run is for the group to read.
    return open(path, "x+b", opener=lambda name, flags: os.open(name, flags, 0o666))


def _reason(error: OSError) -> str:
    return _REASONS.get(error.errno or 0, f"{error.strerror or error}.")


_REASONS = {
    errno.ENOSPC: "the disk is full. Free some space or write elsewhere.",
    errno.EDQUOT: "the disk quota is used up. Free some space or write elsewhere.",
    errno.EFBIG: "the file would be larger than this system allows. Write elsewhere, or less.",
    errno.EACCES: "permission denied. Name a file in a folder that you may write to.",
    errno.EPERM: "permission denied. Name a file in a folder that you may write to.",
    errno.EROFS: "the file system is read-only. Name a file elsewhere.",
    errno.ENOENT: "its folder does not exist. Make the folder first.",
    errno.ENOTDIR: "its folder is a file. Name a file in a folder.",
    errno.ENAMETOOLONG: "its name is too long. Give a shorter one.",
}


def _sync_folder(folder: Path) -> None:
    """So that the rename, too, survives a loss of power; not every system can, and the file is there either way."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
