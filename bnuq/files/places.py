"""Where finished units of work are stored: a local folder, or a store behind a URL that fsspec supports.

A reader sees a complete file or none: a local file is written under a temporary name and renamed, a remote one is a
single PUT. Nothing is locked, and nothing is appended to.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Protocol, TypeVar

from bnuq.errors import RequestError, ResultError, first_line
from bnuq.files.writing import write_bytes

_Value = TypeVar("_Value")
_URL = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]+(::|://)")
_TRIES, _PAUSE = 3, 0.5  # of a remote operation, and the seconds before the second one


class Place(Protocol):
    """A flat collection of files by name."""

    def read(self, name: str) -> bytes | None: ...  # None if there is no such file

    def write(self, name: str, data: bytes) -> None: ...  # ResultError if it cannot be written

    def exists(self, name: str) -> bool: ...

    def names(self) -> list[str]: ...

    def remove(self, names: Iterable[str]) -> None: ...

    def of(self, name: str) -> Path | str: ...  # where a file lies, for a message


def place_of(work: str | Path) -> Place:
    """The place that a path or a URL names; RequestError if it cannot be made or written to."""
    text = str(work).removeprefix("file://")
    if "\0" in text:
        raise RequestError(f"{text!r}: no folder has a NUL character in its name. Name another with --work FOLDER.")
    return Store(text) if _URL.match(text) else Folder.made(Path(text))


class Folder:
    """A folder of this machine, or of a file system that it shares with others."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def made(cls, path: Path) -> Folder:
        """The folder, made if it is missing; RequestError if that, or writing there, is impossible."""
        try:
            path.mkdir(exist_ok=True)
        except OSError as error:
            raise RequestError(
                f"{path}: the work folder cannot be made ({error.strerror}). Name another with --work FOLDER."
            ) from error
        if not os.access(path, os.W_OK):
            raise RequestError(f"{path}: the work folder is not writable. Name another with --work FOLDER.")
        return cls(path)

    def __str__(self) -> str:
        return str(self.path)

    def of(self, name: str) -> Path:
        return self.path / name

    def read(self, name: str) -> bytes | None:
        try:
            return self.of(name).read_bytes()
        except OSError:
            return None

    def write(self, name: str, data: bytes) -> None:
        write_bytes(self.of(name), data, named=False)

    def exists(self, name: str) -> bool:
        return self.of(name).exists()

    def names(self) -> list[str]:
        try:
            return [path.name for path in self.path.iterdir()]
        except OSError:
            return []

    def remove(self, names: Iterable[str]) -> None:
        for name in names:
            with contextlib.suppress(OSError):
                self.of(name).unlink()

    def remove_empty(self) -> None:
        """Remove the folder, unless something is in it."""
        with contextlib.suppress(OSError):
            self.path.rmdir()


class Store:
    """A store behind a URL: memory://, s3://, gs://, abfs://, … by the packages that fsspec names."""

    def __init__(self, url: str) -> None:
        from fsspec.core import url_to_fs

        self.url = url.rstrip("/")
        try:
            self._fs, self._root = url_to_fs(self.url)
        except ImportError as error:
            raise RequestError(f"--work {url}: {first_line(error)}: a package that is not installed here.") from error
        except Exception as error:
            raise RequestError(f"--work {url}: cannot be opened ({first_line(error)}).") from error
        probe = f"{self._root}/.bnuq-{os.getpid()}-{time.time_ns()}"
        try:
            with contextlib.suppress(NotImplementedError):
                self._fs.makedirs(self._root, exist_ok=True)
            self._fs.pipe_file(probe, b"")
            self._fs.rm_file(probe)
        except Exception as error:
            raise RequestError(f"--work {url}: cannot be written to ({first_line(error)}). Name another.") from error

    def __str__(self) -> str:
        return self.url

    def of(self, name: str) -> str:
        return f"{self.url}/{name}"

    def read(self, name: str) -> bytes | None:
        return self._tried("read", lambda: self._fs.cat_file(self._path(name)), None)

    def write(self, name: str, data: bytes) -> None:
        self._tried("written", lambda: self._fs.pipe_file(self._path(name), data))

    def exists(self, name: str) -> bool:
        return self._tried("looked at", lambda: self._fs.info(self._path(name)) is not None, False)

    def names(self) -> list[str]:
        def listed() -> list[str]:
            self._fs.invalidate_cache()
            return [str(path).rstrip("/").rpartition("/")[2] for path in self._fs.ls(self._root, detail=False)]

        return self._tried("listed", listed, [])

    def remove(self, names: Iterable[str]) -> None:
        for name in names:
            self._tried("removed", lambda name=name: self._fs.rm_file(self._path(name)), None)

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"

    def _tried(self, what: str, operation: Callable[[], Any], where_missing: Any = None) -> Any:
        """What the operation gives, or `where_missing`; ResultError if it fails again and again."""
        for left in range(_TRIES - 1, -1, -1):
            try:
                self._fs.invalidate_cache()
                return operation()
            except FileNotFoundError:
                return where_missing
            except Exception as error:
                if not left:
                    raise ResultError(f"{self.url} could not be {what}: {first_line(error)}.") from error
                time.sleep(_PAUSE * 2 ** (_TRIES - 1 - left))
        raise AssertionError("unreachable")
