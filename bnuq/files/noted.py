"""Which files this user's bnuq has written here, by their SHA-256: a file of the same bytes is no forged one.

A note is an empty file in a folder that is this user's alone, named by an HMAC of the digest whose key is a secret of
this user: no archive or cache that is unpacked there brings one along. What cannot be noted is no error: such files are
read as everyone's are, see `files.apart`.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from bnuq.files.folders import cache_folder, keep_user_secret, user_secret

_LARGEST = 2**25  # bytes of a file that is read into memory
_MOST = 512  # notes
_FOLDER_FLAGS = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_NOFOLLOW", 0)


def note(data: bytes) -> None:
    """Note a file of these bytes, if it is not large; where there are too many notes the older half is dropped."""
    if len(data) > _LARGEST:
        return
    with contextlib.suppress(OSError, NotImplementedError):  # the latter where a call takes no folder
        _place().mkdir(mode=0o700, parents=True, exist_ok=True)
        with _own_folder() as folder:
            keep_user_secret()
            name = _name_of(data)
            os.close(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o600, dir_fd=folder))
            os.utime(name, dir_fd=folder, follow_symlinks=False)  # noted again
            notes = [(each.stat(follow_symlinks=False).st_mtime_ns, each.name) for each in os.scandir(folder)]
            for _, name in sorted(notes)[: -_MOST // 2] if len(notes) > _MOST else ():
                os.unlink(name, dir_fd=folder)


def noted_bytes(path: Path) -> bytes | None:
    """What the file holds, if that is noted: it is these bytes that can be relied on, whatever the file becomes."""
    with contextlib.suppress(OSError, NotImplementedError), _own_folder() as folder:
        if path.stat().st_size > _LARGEST:
            return None
        data = path.read_bytes()
        about = os.stat(_name_of(data), dir_fd=folder, follow_symlinks=False)
        if stat.S_ISREG(about.st_mode) and about.st_uid == os.geteuid() and about.st_size == 0:
            return data
    return None


def _name_of(data: bytes) -> str:
    return hmac.new(user_secret(), hashlib.sha256(data).digest(), hashlib.sha256).hexdigest()


def _place() -> Path:
    return cache_folder() / "written"


@contextlib.contextmanager
def _own_folder() -> Iterator[int]:
    """The folder of notes, open; OSError unless it is a folder that this user alone can look into and write to."""
    if os.name != "posix":
        raise OSError("its owner cannot be asked for")
    folder = os.open(_place(), _FOLDER_FLAGS)
    try:
        about = os.fstat(folder)
        if about.st_uid != os.geteuid() or stat.S_IMODE(about.st_mode) & 0o077:
            raise OSError("it is not this user's alone")
        yield folder
    finally:
        os.close(folder)
