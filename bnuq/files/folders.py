"""Where a user keeps bnuq's own files on this system."""

from __future__ import annotations

import contextlib
import functools
import os
import secrets
import sys
from pathlib import Path

_KEY, _BYTES = "units.key", 32  # the file of the secret, and its size


def config_folder() -> Path:
    """The folder of the user's decisions, such as which code to trust: `$XDG_CONFIG_HOME/bnuq` or `~/.config/bnuq`."""
    return _folder("XDG_CONFIG_HOME", ".config", mac="Library/Application Support", windows="APPDATA")


def user_secret() -> bytes:
    """Random bytes that only this user can read, as `keep_user_secret` has put them in `config_folder`; new ones, those
    of this process, where there are none yet."""
    return _secret_in(config_folder())


def keep_user_secret() -> None:
    """Write the secret of this user, unless it is there. Where nothing can be kept, it stays that of this process."""
    folder = config_folder()
    secret = _secret_in(folder)
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        if (path := folder / _KEY).exists() and not _is_private(path):  # such as one that a repository brought along
            path.unlink()
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(secret)


@functools.cache
def _secret_in(folder: Path) -> bytes:
    with contextlib.suppress(OSError):
        if _is_private(folder / _KEY):
            return (folder / _KEY).read_bytes()
    return secrets.token_bytes(_BYTES)


def _is_private(path: Path) -> bool:
    """Whether a file has the size of a secret, and is this user's alone."""
    status = path.lstat()
    alone = os.name != "posix" or (status.st_uid == os.getuid() and not status.st_mode & 0o177)
    return alone and status.st_size == _BYTES and not path.is_symlink()


def cache_folder() -> Path:
    """The folder of files that can be fetched again, such as data sets: `$XDG_CACHE_HOME/bnuq` or `~/.cache/bnuq`."""
    return _folder("XDG_CACHE_HOME", ".cache", mac="Library/Caches", windows="LOCALAPPDATA")


def _folder(variable: str, usual: str, *, mac: str, windows: str) -> Path:
    chosen = os.environ.get(variable, "")
    if Path(chosen).is_absolute():  # the XDG specification has relative ones ignored
        return Path(chosen) / "bnuq"
    if sys.platform == "win32" and os.environ.get(windows):
        return Path(os.environ[windows]) / "bnuq"
    try:
        home = Path.home()
    except RuntimeError:  # a user without an entry, as in a container: the root, where no other user can put a file
        home = Path(Path.cwd().anchor)
    return home / (mac if sys.platform == "darwin" else usual) / "bnuq"


def expanded(path: str | Path) -> Path:
    """`path` with a leading ~ or ~user resolved; as it stands if there is no such user, which is then not found."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        return Path(path)
