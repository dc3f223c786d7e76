"""Where a user keeps bnuq's own files on this system."""

from __future__ import annotations

import contextlib
import functools
import os
import secrets
import stat
import sys
from collections.abc import Iterator
from pathlib import Path

_KEY, _BYTES = "units.key", 32  # the file of the secret, and its size
_OF_THIS_PROCESS = secrets.token_bytes(_BYTES)
_strict = False  # in a block of `strictly`


def config_folder() -> Path:
    """The folder of the user's decisions, such as which code to trust: `$XDG_CONFIG_HOME/bnuq` or `~/.config/bnuq`."""
    return _folder("XDG_CONFIG_HOME", ".config", mac="Library/Application Support", windows="APPDATA")


def state_folder(*trees: Path) -> Path:
    """The folder of what bnuq alone writes and believes later, made where it is missing: `$XDG_STATE_HOME/bnuq` or
    `~/.local/state/bnuq`. OSError, which says why, where it cannot be made or is not to be believed: with `CI` set or
    under --strict, as a cache may have been unpacked; in the working folder or one of `trees`, as a repository may have
    brought it along; with a symbolic link on its way; and where another user owns it or can write to it."""
    usual = _folder("XDG_STATE_HOME", ".local/state", mac="Library/Application Support", windows="LOCALAPPDATA")
    folder = Path(os.path.abspath(usual))  # noqa: PTH100 - without following links
    if _strict:
        raise PermissionError("--strict was given")
    if os.environ.get("CI", "").lower() not in ("", "0", "false"):
        raise PermissionError("CI is set")
    for tree in (Path.cwd(), *trees):
        if folder.is_relative_to(tree.resolve()):
            raise PermissionError(f"{folder} lies in {tree}")
    if links := [*filter(Path.is_symlink, (folder, *folder.parents))]:
        raise PermissionError(f"{links[0]} is a symbolic link")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = folder.lstat()
    if os.name == "posix" and (status.st_uid != os.geteuid() or status.st_mode & 0o022):
        raise PermissionError(f"{folder} is another user's, or others can write to it")
    return folder


@contextlib.contextmanager
def strictly(*, strict: bool) -> Iterator[None]:
    """A block in which the state folder is not believed, if `strict`."""
    global _strict
    before, _strict = _strict, _strict or strict
    try:
        yield
    finally:
        _strict = before


def user_secret(*trees: Path) -> tuple[bytes, str]:
    """Random bytes that only this user can read, kept in the state folder; those of this process where that is not
    believed, with the reason, see `state_folder`."""
    try:
        return _secret_in(state_folder(*trees)), ""
    except OSError as error:
        return _OF_THIS_PROCESS, str(error)


@functools.cache
def _secret_in(folder: Path) -> bytes:
    path = folder / _KEY
    with contextlib.suppress(FileNotFoundError):
        if not _is_private(path):
            path.unlink()
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    with contextlib.suppress(FileExistsError), os.fdopen(os.open(path, flags, 0o600), "wb") as file:
        file.write(secrets.token_bytes(_BYTES))
    if not _is_private(path):
        raise PermissionError(f"{path} is being written, or others can read it")
    return path.read_bytes()


def _is_private(path: Path) -> bool:
    """Whether a file has the size of a secret, and nobody else can read it."""
    status = path.lstat()
    alone = os.name != "posix" or not status.st_mode & 0o77
    return alone and stat.S_ISREG(status.st_mode) and status.st_size == _BYTES


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
