"""A journal of finished parts of long work, each in a file until all is done, so that an interruption costs a single
part."""

from __future__ import annotations

import contextlib
import io
import os
import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from bnuq.errors import BnuqError, RequestError
from bnuq.files.writing import write_bytes
from bnuq.sampling.batch_statistics import BatchStatistics

_KEY, _SUFFIX = 24, ".part"  # hexadecimal digits of a key, and how a part's name ends


class Journal:
    """A folder of finished parts, each of arrays by name; `key` is a digest of all that determines them."""

    def __init__(self, folder: Path, key: str) -> None:
        self.folder, self._key = folder, key[:_KEY]
        self.read = 0
        """The number of finished parts that were read."""

    def make_folder(self) -> None:
        """Make the folder; RequestError where it cannot be made or written to."""
        try:
            self.folder.mkdir(exist_ok=True)
        except OSError as error:
            raise RequestError(
                f"{self.folder}: the work folder cannot be created ({error.strerror}). Name another with --work FOLDER."
            ) from error
        if not os.access(self.folder, os.W_OK):
            raise RequestError(f"{self.folder}: the work folder is not writable. Name another with --work FOLDER.")

    def under(self, name: str) -> Journal:
        """A journal of further parts, which `forget` removes with these."""
        further = Journal(self.folder, self._key)
        further._key += f"-{name}"
        return further

    @property
    def is_empty(self) -> bool:
        """Whether there is no part of this key."""
        return next(self.folder.glob(f"{self._key}-*{_SUFFIX}"), None) is None

    def load(self, name: str) -> dict[str, np.ndarray] | None:
        """The part of this name; None where it does not exist or is not complete."""
        try:
            with np.load(io.BytesIO(self._path(name).read_bytes()), allow_pickle=False) as archive:
                arrays = {key: archive[key] for key in archive.files}
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
            return None
        self.read += 1
        return arrays

    def save(self, name: str, arrays: Mapping[str, np.ndarray]) -> None:
        """Save a part; ResultError where it cannot be written."""
        buffer = io.BytesIO()
        np.savez(buffer, **arrays)  # pyright: ignore[reportArgumentType] - its stub takes `allow_pickle` for one of them
        write_bytes(self._path(name), buffer.getbuffer())

    def load_bank(self, name: str) -> BatchStatistics | None:
        """The bank of this name; None where it does not exist or is not complete."""
        try:
            bank = BatchStatistics.load(self._path(name))
        except (BnuqError, OSError):
            return None
        self.read += 1
        return bank

    def save_bank(self, name: str, bank: BatchStatistics) -> None:
        """Save a bank; ResultError where it cannot be written."""
        bank.save(self._path(name))

    def forget(self) -> None:
        """Remove every part of this key."""
        for path in self.folder.glob(f"{self._key}-*{_SUFFIX}"):
            path.unlink(missing_ok=True)

    def _path(self, name: str) -> Path:
        return self.folder / f"{self._key}-{name}{_SUFFIX}"


def forget_folder(folder: Path) -> None:
    """Remove the parts of all keys from a folder, and the folder where nothing else is in it."""
    for path in folder.glob(f"{'[0-9a-f]' * _KEY}-*{_SUFFIX}"):
        path.unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        folder.rmdir()
