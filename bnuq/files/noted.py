"""Which files this user's bnuq has written here, by their SHA-256: a file of the same bytes is no forged one.

A note is an empty file in the state folder, named by an HMAC of the digest whose key is a secret of this user. Where
the state folder is not believed, or nothing can be noted, files are read as everyone's are, see `files.apart`.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import stat
from pathlib import Path

from bnuq.files.folders import state_folder, user_secret

_LARGEST = 2**25  # bytes of a file that is read into memory
_MOST = 512  # notes


def note(data: bytes) -> None:
    """Note a file of these bytes, if it is not large; where there are too many notes the older half is dropped."""
    if len(data) > _LARGEST:
        return
    with contextlib.suppress(OSError):
        (folder := state_folder() / "written").mkdir(exist_ok=True)
        (folder / _name_of(data)).touch(mode=0o600)  # or noted again
        notes = sorted(folder.iterdir(), key=lambda each: each.lstat().st_mtime_ns)
        for old in notes[: -_MOST // 2] if len(notes) > _MOST else ():
            old.unlink()


def noted_bytes(path: Path) -> bytes | None:
    """What the file holds, if that is noted: it is these bytes that can be relied on, whatever the file becomes."""
    with contextlib.suppress(OSError):
        about = path.stat()
        if os.name != "posix" or about.st_size > _LARGEST or not stat.S_ISREG(about.st_mode):
            return None  # elsewhere an owner cannot be asked for, and a pipe would be waited for
        folder, data = state_folder() / "written", path.read_bytes()
        about = (folder / _name_of(data)).lstat()
        if stat.S_ISREG(about.st_mode) and about.st_size == 0:
            return data
    return None


def _name_of(data: bytes) -> str:
    return hmac.new(user_secret()[0], hashlib.sha256(data).digest(), hashlib.sha256).hexdigest()
