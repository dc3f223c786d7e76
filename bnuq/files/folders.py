"""Where a user keeps bnuq's own files on this system."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def config_folder() -> Path:
    """The folder of the user's decisions, such as which code to trust: `$XDG_CONFIG_HOME/bnuq` or `~/.config/bnuq`."""
    return _folder("XDG_CONFIG_HOME", ".config", mac="Library/Application Support", windows="APPDATA")


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
