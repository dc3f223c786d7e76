"""Finished units of long work, each in a file until all is done, so that an interruption costs a single unit."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from bnuq.errors import BnuqError, RequestError, ResultError
from bnuq.files.writing import write_bytes

Arrays = dict[str, np.ndarray]
_Value = TypeVar("_Value")

_KEY, _SUFFIX = 24, ".part"  # hexadecimal digits of a key, and how the name of a unit's file ends


def _arrays(path: Path) -> Arrays:
    with np.load(io.BytesIO(path.read_bytes()), allow_pickle=False) as archive:
        return {name: archive[name] for name in archive.files}


class Journal:
    """Finished units, in a folder that others may share: only those that the same `facts` determined are seen."""

    def __init__(self, folder: Path, facts: Mapping[str, Any]) -> None:
        text = json.dumps(facts, sort_keys=True)
        self.folder, self._key = folder, hashlib.sha256(text.encode()).hexdigest()[:_KEY]
        self.reused = 0
        """The number of units that were finished before, and read."""
        self._seen: set[str] = set()
        self._given_up = False  # units could not be written

    def path(self, unit: str) -> Path:
        """The file of a unit."""
        return self.folder / f"{self._key}-{unit}{_SUFFIX}"

    def load(self, unit: str, read: Callable[[Path], _Value] = _arrays) -> _Value | None:
        """A finished unit, by default arrays by name; None where it does not exist or is not whole."""
        try:
            value = read(self.path(unit))
        except (BnuqError, OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
            return None
        self.reused += unit not in self._seen
        self._seen.add(unit)
        return value

    def save(self, unit: str, arrays: Mapping[str, np.ndarray], *, needed: bool = True) -> None:
        """Save a finished unit; see `write`."""
        buffer = io.BytesIO()
        np.savez(buffer, **arrays)  # pyright: ignore[reportArgumentType] - its stub takes `allow_pickle` for one of them
        self.write(unit, lambda path: write_bytes(path, buffer.getbuffer()), needed=needed)

    def write(self, unit: str, write: Callable[[Path], object], *, needed: bool = False) -> None:
        """Let `write` make the file of a finished unit. Where it cannot be written, that is a ResultError if the unit
        is `needed` again in this run; otherwise the disk is left to the result, without any units."""
        if needed:
            write(self.path(unit))
        elif not self._given_up:
            try:
                write(self.path(unit))
            except ResultError:
                self._given_up = True
                self.forget()
        self._seen.add(unit)

    def forget(self) -> None:
        """Remove every unit of these facts."""
        for path in self.folder.glob(f"{self._key}-*{_SUFFIX}"):
            path.unlink(missing_ok=True)

    @contextlib.contextmanager
    def forgotten_on(self, kind: type[BaseException]) -> Iterator[None]:
        """A block whose units are removed where it raises this: they are wrong then, or of no use."""
        try:
            yield
        except kind:
            self.forget()
            raise


@dataclass(frozen=True)
class WorkFolder:
    """A folder of finished units, and the journals that were opened there."""

    path: Path
    opened: list[Journal] = field(default_factory=list)

    def journal(self, facts: Mapping[str, Any]) -> Journal:
        """The journal of the units that these facts determine."""
        self.opened.append(Journal(self.path, facts))
        return self.opened[-1]


@contextlib.contextmanager
def work_folder(out: Path, work: Path | None = None) -> Iterator[WorkFolder]:
    """The folder of units that work towards `out` goes on from: `work`, or beside `out` where None.

    At the end of the block the units of its journals are removed, and a folder beside `out` altogether; after an
    interruption they stay, which the exception says. RequestError where the folder cannot be made or written to.
    """
    folder = work or out.with_name(f"{out.name[:200]}.work")  # a name may have 255 bytes
    _make(folder)
    opened = WorkFolder(folder)
    try:
        yield opened
    except BaseException as error:
        if next(folder.glob(_OF_ANY_KEY), None) is not None:
            note = f"finished parts are kept in {folder}: the same command goes on from them."
            if note not in getattr(error, "__notes__", ()):  # as an experiment's sweep has said before
                error.add_note(note)
        elif work is None:
            _remove_empty(folder)
        raise
    for journal in opened.opened:
        journal.forget()
    if work is None:
        for path in (*folder.glob(_OF_ANY_KEY), *folder.glob(f".{_OF_ANY_KEY}.*.tmp")):  # of a killed process, too
            path.unlink(missing_ok=True)
        _remove_empty(folder)


_OF_ANY_KEY = f"{'[0-9a-f]' * _KEY}-*{_SUFFIX}"


def _make(folder: Path) -> None:
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise RequestError(
            f"{folder}: the work folder cannot be made ({error.strerror}). Name another with --work FOLDER."
        ) from error
    if not os.access(folder, os.W_OK):
        raise RequestError(f"{folder}: the work folder is not writable. Name another with --work FOLDER.")


def _remove_empty(folder: Path) -> None:
    with contextlib.suppress(OSError):  # something else is in it
        folder.rmdir()
