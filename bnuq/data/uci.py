"""The UCI sets as they are published, in text files, and as they are stored here; and the digest of their numbers."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from bnuq.data.readers.common import readable
from bnuq.shapes import Float, Int64

Table = tuple[Float[np.ndarray, "row input"], Float[np.ndarray, " row"], list[Int64[np.ndarray, " test_row"]]]


def digest_of(inputs: np.ndarray, targets: np.ndarray, splits: Sequence[np.ndarray]) -> str:
    """The SHA-256 of the numbers: shape, inputs and targets in float64, and the test rows of each split in int64."""
    rows, columns = inputs.shape
    digest = hashlib.sha256(f"{rows} rows, {columns} inputs, {[len(split) for split in splits]}".encode())
    for values, kind in ((inputs, "<f8"), (targets, "<f8"), *((split, "<i8") for split in splits)):
        digest.update(np.ascontiguousarray(values, kind).tobytes())
    return digest.hexdigest()


def published_names(splits: int) -> tuple[str, ...]:
    """The text files of a set with so many splits."""
    return ("data.txt", "index_features.txt", "index_target.txt", *(f"index_test_{k}.txt" for k in range(splits)))


def read_published(folder: Path, splits: int) -> Table:
    """Inputs, targets and the test rows of each split in the text files of `folder`; DataError where they cannot be
    read."""
    table, features, target, *rows = (_numbers(folder / name) for name in published_names(splits))
    with readable(folder / "data.txt", "a table"):
        return table[:, _whole(features)], table[:, _whole(target)[0]], list(map(_whole, rows))


def write_stored(folder: Path, table: Table) -> None:
    """Write a table and its splits as they are stored here, every number exactly."""
    inputs, targets, splits = table
    (folder / "splits").mkdir(parents=True)
    lines = [",".join([*(f"x{column}" for column in range(inputs.shape[1])), "y"])]
    lines += [",".join(map(repr, row)) for row in np.column_stack((inputs, targets)).tolist()]
    (folder / "data.csv").write_text("\n".join(lines) + "\n")
    for number, rows in enumerate(splits):
        text = "".join(f"{row}\n" for row in rows)
        (folder / "splits" / f"test_{number:02d}.txt").write_text(text)


def _numbers(file: Path) -> np.ndarray:
    with readable(file, "numbers"):
        return np.loadtxt(file, dtype=np.float64, ndmin=2 if file.name == "data.txt" else 1)


def _whole(numbers: np.ndarray) -> np.ndarray:
    whole = numbers.astype(np.int64)
    if not np.array_equal(whole, numbers):
        raise ValueError("expected whole numbers")
    return whole
