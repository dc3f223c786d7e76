"""Writing a file so that a reader finds the old one or the new one, whole, and never half of one."""

from __future__ import annotations

import contextlib
import errno
import functools
import hashlib
import json
import os
import platform
import re
import secrets
import stat
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, BinaryIO, ParamSpec, TypeVar

from bnuq import stopping
from bnuq.errors import RequestError, ResultError
from bnuq.files.content import exists, is_file


def write_bytes(path: Path, data: bytes | memoryview, *, named: bool = True) -> None:
    """Put `data` at `path`, as `replaced` does. Raises ResultError if it cannot be written; the old file is then
    untouched."""
    with replaced(path, named=named) as file:
        file.write(data)


@contextlib.contextmanager
def replaced(path: Path, *, named: bool = True, like: Path | None = None) -> Iterator[BinaryIO]:
    """A new file beside `path` to write to, renamed to `path` when the block ends well and removed when it does not.

    It can be read back, and opened again by its name, inside the block. It has the permissions of the file that it
    replaces, or else those of the file `like`. A symbolic link that the user has `named` stays one: what it points to
    is replaced; under a name that bnuq gave, another may have put it there, and it is replaced itself. Raises
    ResultError for a full disk, a folder that is missing or read-only, and the like; whatever else the block raises
    passes through.
    """
    target = _target(path, named=named)
    beside = _beside(target)
    with _refusals(path, beside):
        mode = _mode_of(target) or (_mode_of(like.resolve()) if like else None)
        with _new_file(beside) as file:
            if mode is not None:  # before there is anything to read in it
                beside.chmod(mode | stat.S_IRUSR | stat.S_IWUSR)
            yield file
            file.flush()
            os.fsync(file.fileno())
        if mode is not None:
            beside.chmod(mode)
        stopping.check()  # an interrupted result is not kept
        beside.replace(target)
    _sync_folder(target.parent)


def _mode_of(path: Path) -> int | None:
    """The permissions of a regular file; None where there is none."""
    mode = path.lstat().st_mode if exists(path) else 0
    return stat.S_IMODE(mode) & 0o777 if stat.S_ISREG(mode) else None


def check_writable(path: Path, *, named: bool = True) -> None:
    """Raise ResultError if `replaced` could not put a file at `path`, by making one beside it. What killed processes
    have left there of the same file is removed."""
    target = _target(path, named=named)
    _remove_abandoned(target)
    beside = _beside(target)
    with _refusals(path, beside):
        _new_file(beside).close()
        beside.unlink()


@contextlib.contextmanager
def sole_request(path: Path, request: Any) -> Iterator[None]:
    """A block that runs of two requests never execute for the same file at once: RequestError where another is in it,
    or where a link or another user's file has the name of the lock. A killed run leaves a small file that the next one
    removes; where files cannot be locked, nothing is promised."""
    with _locked(path, hashlib.sha256(json.dumps(request, sort_keys=True, default=str).encode()).digest()):
        yield


@contextlib.contextmanager
def alone(*paths: Path | None) -> Iterator[None]:
    """A block that one process at a time executes for each of these files, as of `sole_request`; others wait."""
    with contextlib.ExitStack() as locks:
        for path in sorted({_resolved(path) for path in paths if path is not None}):  # in one order: none waits forever
            locks.enter_context(_locked(path, None))
        yield


_Arguments = ParamSpec("_Arguments")
_Value = TypeVar("_Value")


def within(
    block: Callable[..., AbstractContextManager[None]],
) -> Callable[[Callable[_Arguments, _Value]], Callable[_Arguments, _Value]]:
    """A decorator: every call of the function runs in the block that its arguments make."""

    def decorated(function: Callable[_Arguments, _Value]) -> Callable[_Arguments, _Value]:
        @functools.wraps(function)
        def inside(*given: _Arguments.args, **named: _Arguments.kwargs) -> _Value:
            with block(*given, **named):
                return function(*given, **named)

        return inside

    return decorated


@contextlib.contextmanager
def _locked(path: Path, request: bytes | None) -> Iterator[None]:
    """A block in which runs of this request, or without one this block alone, have the lock of a file."""
    try:
        import fcntl  # of POSIX only
    except ImportError:
        yield
        return
    target = path.resolve()
    lock = target.with_name(f"{_start_of_name(target)}lock")
    while True:
        try:
            handle = _opened_lock(lock)
        except OSError:  # what is wrong with the folder is said where the result is written
            yield
            return
        try:
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.pwrite(handle, request or b"", 0)
            fcntl.flock(handle, (fcntl.LOCK_SH if request else fcntl.LOCK_EX) | fcntl.LOCK_NB)
            if lock.exists() and os.path.samestat(os.fstat(handle), lock.stat()):  # else it has just been removed
                break
        except BlockingIOError:  # of another that is alone in it, or just writing its request
            stopping.check()
            time.sleep(0.01)
        except OSError:
            os.close(handle)
            yield
            return
        os.close(handle)
    try:
        if request and os.pread(handle, len(request), 0) != request:
            raise RequestError(
                f"{path}: a run with other settings is at work on this result, and one of the two would be lost. Wait "
                "for its end, or name another file with --out."
            )
        yield
    finally:
        with contextlib.suppress(OSError):  # others have it; the last one removes the file
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            lock.unlink(missing_ok=True)
        os.close(handle)


def _opened_lock(path: Path) -> int:
    """The handle of a lock, made if it is missing; RequestError for what may lie elsewhere, or be another user's."""
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK
    with contextlib.suppress(FileExistsError):
        return os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        handle = os.open(path, flags)
    except FileNotFoundError:  # it has just been removed
        return _opened_lock(path)
    except OSError:
        handle = None
    if handle is not None:
        about = os.fstat(handle)
        if stat.S_ISREG(about.st_mode) and about.st_nlink < 2 and about.st_uid == os.geteuid():
            return handle
        os.close(handle)
    raise RequestError(
        f"{path}: another user's run is at work on this result, or the lock is not a regular file. If no run is at "
        "work there, remove it; or write to another file or folder."
    )


_BINARY = getattr(os, "O_BINARY", 0)  # of Windows, where lines else end otherwise


def append_text(path: Path, text: str) -> None:
    """Write `text` to the end of `path`, a regular file or none yet. OSError for others, at once: a pipe without a
    reader would never answer."""
    handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_NONBLOCK", 0) | _BINARY, 0o666)
    with os.fdopen(handle, "ab") as file:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise OSError(errno.EINVAL, "it is a device, a pipe or a socket; expected a file")
        file.write(text.encode("utf-8", "backslashreplace"))


def _resolved(path: Path) -> Path:
    try:
        return path.resolve()
    except ValueError as error:
        raise ResultError(f"{str(path)!r}: has a NUL character in its name. Name another file.") from error


def _target(path: Path, *, named: bool = True) -> Path:
    """The file that is replaced, behind symbolic links if it is `named`. ResultError if that is none: a folder, a pipe,
    a device."""
    whole, requested = _resolved(path), str(path.absolute())
    target = whole if named else path.parent.resolve() / path.name
    if not named and target.is_symlink():
        return target
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
