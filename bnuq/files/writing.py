"""Writing a file so that a reader finds the old one or the new one, whole, and never half of one."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import platform
import re
import secrets
import stat
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from bnuq import stopping
from bnuq.errors import RequestError, ResultError
from bnuq.files.content import exists, is_file


def write_bytes(path: Path, data: bytes | memoryview) -> None:
    """Put `data` at `path`. Raises ResultError if it cannot be written; the old file is then untouched."""
    with replaced(path) as file:
        file.write(data)


@contextlib.contextmanager
def replaced(path: Path) -> Iterator[BinaryIO]:
    """A new file beside `path` to write to, renamed to `path` when the block ends well and removed when it does not.

    It can be read back, and opened again by its name, inside the block. A symbolic link stays one: what it points to is
    replaced. Raises ResultError for a full disk, a folder that is missing or read-only, and the like; whatever else the
    block raises passes through.
    """
    target = _target(path)
    beside = _beside(target)
    with _refusals(path, beside):
        with _new_file(beside) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        stopping.check()  # an interrupted result is not kept
        beside.replace(target)
    _sync_folder(target.parent)


def check_writable(path: Path) -> None:
    """Raise ResultError if `replaced` could not put a file at `path`, by making one beside it. What killed processes
    have left there of the same file is removed."""
    target = _target(path)
    _remove_abandoned(target)
    beside = _beside(target)
    with _refusals(path, beside):
        _new_file(beside).close()
        beside.unlink()


@contextlib.contextmanager
def sole_request(path: Path, request: Any) -> Iterator[None]:
    """A block that runs of two requests never execute for the same file at once: RequestError where another is in it.
    A killed run leaves a small file that the next one removes; where files cannot be locked, nothing is promised."""
    target = path.resolve()
    name = target.with_name(f"{_start_of_name(target)}lock")
    handle = _locked(name, hashlib.sha256(json.dumps(request, sort_keys=True, default=str).encode()).digest())
    if handle is None:
        raise RequestError(
            f"{path}: a run with other settings is at work on this result, and one of the two would be lost. Wait for "
            "its end, or name another file with --out."
        )
    try:
        yield
    finally:
        if handle:
            _unlock(name, handle)


def _locked(path: Path, request: bytes) -> int | None:
    """The handle of a file that runs of this request have locked now; 0 where this system cannot lock it, None where
    runs of another request have."""
    try:
        import fcntl  # of POSIX only
    except ImportError:
        return 0
    while True:
        try:
            handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        except OSError:  # what is wrong with the folder is said where the result is written
            return 0
        try:
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.pwrite(handle, request, 0)
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
            if path.exists() and os.path.samestat(os.fstat(handle), path.stat()):  # else it has just been removed
                if os.pread(handle, len(request), 0) == request:
                    return handle
                os.close(handle)
                return None
        except BlockingIOError:  # another is just writing its request
            time.sleep(0.01)
        except OSError:
            os.close(handle)
            return 0
        os.close(handle)


def _unlock(path: Path, handle: int) -> None:
    """Give the lock back; the last run removes the file."""
    import fcntl

    with contextlib.suppress(OSError):  # others have it
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        path.unlink(missing_ok=True)
    os.close(handle)


_BINARY = getattr(os, "O_BINARY", 0)  # of Windows, where lines else end otherwise


def append_text(path: Path, text: str) -> None:
    """Write `text` to the end of `path`, a regular file or none yet. OSError for others, at once: a pipe without a
    reader would never answer."""
    handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_NONBLOCK", 0) | _BINARY, 0o666)
    with os.fdopen(handle, "ab") as file:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise OSError(errno.EINVAL, "it is a device, a pipe or a socket; expected a file")
        file.write(text.encode("utf-8", "backslashreplace"))


def _target(path: Path) -> Path:
    """The file that is replaced, behind symbolic links. ResultError if that is none: a folder, a pipe, a device."""
    target, requested = path.resolve(), str(path.absolute())
    if (exists(target) and not is_file(target)) or (_STREAMS.match(requested) and exists(path)):
        raise ResultError(f"{path}: is not a file, so it cannot be replaced by one. Name a file to write.")
    if _STREAMS.match(requested):
        raise ResultError(f"{path}: the system keeps its own things there, and no files. Name a file elsewhere.")
    return target


_STREAMS = re.compile("/dev/(std(in|out|err)$|fd/)|/proc/")  # what they stand for may be a file that is already open


def _beside(target: Path) -> Path:
    """A new name next to `target`, which identifies the process and the machine that write there."""
    return target.with_name(f"{_start_of_name(target)}{_MACHINE}-{os.getpid()}-{secrets.token_hex(4)}.tmp")


def _start_of_name(target: Path) -> str:
    return f".{os.fsdecode(os.fsencode(target.name)[:200])}."  # a name may have 255 bytes


_MACHINE = f"{zlib.crc32(os.fsencode(platform.node())):08x}"  # a folder may be shared by several


def _remove_abandoned(target: Path) -> None:
    """Remove the files beside `target` whose process, of this machine, is gone."""
    start = f"{_start_of_name(target)}{_MACHINE}-"
    with contextlib.suppress(OSError):  # a folder that cannot be listed
        for path in target.parent.iterdir():
            number = _OF_PROCESS.fullmatch(path.name.removeprefix(start)) if path.name.startswith(start) else None
            if number and not is_alive(int(number[1])):
                path.unlink(missing_ok=True)


_OF_PROCESS = re.compile(r"(\d{1,9})-[0-9a-f]{8}\.tmp")


def is_alive(process: int) -> bool:
    """Whether a process of this machine with this number is there."""
    if os.name != "posix":
        return True  # there, os.kill would end it
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:  # owned by another user
        return True
    return True


@contextlib.contextmanager
def _refusals(path: Path, beside: Path) -> Iterator[None]:
    """What the system refuses while `beside` is written, as one ResultError about `path`; `beside` is then removed."""
    try:
        yield
    except BaseException as error:
        with contextlib.suppress(OSError):
            beside.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename in (None, str(beside)):
            reason = _REASONS.get(error.errno or 0, f"{error.strerror or error}.")
            raise ResultError(f"{path}: could not be written: {reason}") from error
        raise


def _new_file(path: Path) -> BinaryIO:
    # Not tempfile: its files are 0600, and the result of a shared run is for the group to read.
    return open(path, "x+b", opener=lambda name, flags: os.open(name, flags, 0o666))


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
