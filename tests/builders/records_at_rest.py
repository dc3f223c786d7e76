"""Result files, changed by hand."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py


def read_text(path: Path) -> Any:
    """The record as JSON."""
    with h5py.File(path) as file:
        return json.loads(file["record"][()])


def write_text(path: Path, text: str) -> None:
    with h5py.File(path, "r+") as file:
        del file["record"]
        file["record"] = text


def without_digest(path: Path) -> Path:
    """The file as an earlier version wrote it: what is changed in it then meets the other checks."""
    with h5py.File(path, "r+") as file:
        del file.attrs["sha256"]
    return path


@contextlib.contextmanager
def edited(path: Path) -> Iterator[Any]:
    """The record as JSON, to be changed inside the block."""
    record = read_text(path)
    yield record
    write_text(path, json.dumps(record))


def replace_in_record(file: h5py.File, old: str, new: str) -> None:
    """Replace `old` by `new` in the text of an open file's record."""
    text = file["record"].asstr()[()]  # type: ignore
    assert old in text
    del file["record"]
    file["record"] = text.replace(old, new)
