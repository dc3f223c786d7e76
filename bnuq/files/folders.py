"""Where a user keeps bnuq's own files on this system."""

from __future__ import annotations

import contextlib
import functools
import os
import secrets
import sys
from pathlib import Path

_BYTES = 32  # of a secret


def config_folder() -> Path:
    """The folder of the user's decisions, such as which code to trust: `$XDG_CONFIG_HOME/bnuq` or `~/.config/bnuq`."""
    return _folder("XDG_CONFIG_HOME", ".config", mac="Library/Application Support", windows="APPDATA")


def user_secret() -> bytes:
    """Random bytes that only this user can read, made once and kept in `config_folder`; where nothing can be kept, they
    are those of this process."""
    return _secret_in(config_folder())


@functools.cache
def _secret_in(folder: Path) -> bytes:
    path, secret = folder / "units.key", secrets.token_bytes(_BYTES)
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        if path.exists() and not _is_private(path):  # such as one that a repository brought along
            path.unlink()
        try:
            with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.write(secret)
        except FileExistsError:
            secret = path.read_bytes()
    return secret


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
