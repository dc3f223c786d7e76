"""The data of the UCI experiment: its eight sets, their splits and folds, standardised as the networks see them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bnuq.data.known import data_roots, known_set, places
from bnuq.data.readers.tables import read_csv
from bnuq.errors import DataError
from bnuq.files.content import exists
from bnuq.shapes import Float, Float64, Int64

TEST_SHARE = 0.2
FEWEST_ROWS = 60  # below it, a fold of a split has not enough rows for a mini-batch of 32


@dataclass(frozen=True)
class UciSet:
    """A set as stored on disk: inputs (row, input) and target (row,) in their own units, with path and SHA-256."""

    name: str
    x: Float64[np.ndarray, "row input"]
    y: Float64[np.ndarray, " row"]
    path: Path
    sha256: str


@dataclass(frozen=True)
class Material:
    """Training and evaluation rows of several networks' data, standardised by their training rows.

    Where one has fewer rows than another, its last rows are padding, which `rows` and `points` leave out. Targets
    `y` are standardised, `target` are those of the evaluation rows in their own unit: target = shift + scale · y.
    """

    x: Float[np.ndarray, "data row input"]
    y: Float[np.ndarray, "data row"]
    rows: Int64[np.ndarray, " data"]
    points: Int64[np.ndarray, " data"]
    x_point: Float[np.ndarray, "data point input"]
    target: Float64[np.ndarray, "data point"]
    shift: Float64[np.ndarray, " data"]
    scale: Float64[np.ndarray, " data"]


def read_set(name: str, data_root: Path | None = None) -> UciSet:
    """The set of that name from its CSV, target last.

    Raises DataError, with every path looked at, where it is nowhere; for values that are not finite, a constant target,
    and fewer rows than the protocol can split.
    """
    known = known_set(f"uci-{name}")
    assert known is not None
    looked_at = [path for _, path in places(known, "train", data_roots(data_root))]
    path = next((candidate for candidate in looked_at if exists(candidate)), None)
    if path is None:
        raise DataError(
            f"uci-{name}: not found. Looked at:\n"
            + "\n".join(f"  {candidate}" for candidate in looked_at)
            + "\nSay where it is with --data-root FOLDER or the environment variable BNUQ_DATA."
        )
    table = read_csv(path)
    x, y = np.asarray(table.inputs, np.float64), np.asarray(table.targets, np.float64)[:, 0]
    bad = np.argwhere(~np.isfinite(np.column_stack((x, y))))
    if len(bad):
        row, column = bad[0]
        raise DataError(
            f"{path}: row {row} (from 0, without the header), column {column} is not a finite number; expected numbers "
            "only. Fetch the set again."
        )
    if len(y) < FEWEST_ROWS:
        raise DataError(f"{path}: has {len(y)} rows; expected at least {FEWEST_ROWS}, to split into folds and batches.")
    if np.ptp(y) == 0:
        raise DataError(f"{path}: its target, the last column, is {y[0]:g} in every row; there is nothing to learn.")
    digest = hashlib.sha256(np.ascontiguousarray(np.column_stack((x, y))).tobytes()).hexdigest()
    return UciSet(name, x, y, path, digest)


def split(rows: int, seed: int) -> tuple[Int64[np.ndarray, " train"], Int64[np.ndarray, " test"]]:
    """Training and test rows of one split: the authors' shuffle, the first fifth of it for testing.

    Source: icml-mcbn/mcbn; the stream of numpy's legacy RandomState is frozen (NEP 19).
    """
    order = np.arange(rows)
    np.random.RandomState(seed).shuffle(order)
    test = round(TEST_SHARE * rows)
    return order[test:], order[:test]


def folds(rows: int, number: int) -> list[Int64[np.ndarray, " position"]]:
    """Positions among `rows` training rows that each fold holds out."""
    order = np.arange(rows)
    np.random.RandomState(1).shuffle(order)
    return np.array_split(order, number)


def cross_validation(
    data: UciSet, *, splits: Sequence[int], number: int, most_rows: int | None = None
) -> tuple[Material, Int64[np.ndarray, " data"], Int64[np.ndarray, " data"]]:
    """All folds of all splits, the folds of a split together, with the place of each one's split and its fold.

    With `most_rows` only so many training rows of a split take part (the first ones of its shuffle).
    """
    parts, of, which = [], [], []
    for place, seed in enumerate(splits):
        train = split(len(data.y), seed)[0][:most_rows]
        for fold, held_out in enumerate(folds(len(train), number)):
            remaining = np.setdiff1d(np.arange(len(train)), held_out)
            parts.append((train[remaining], train[held_out]))
            of.append(place)
            which.append(fold)
    return _material(data, parts), np.array(of), np.array(which)


def final(data: UciSet, *, splits: Sequence[int]) -> Material:
    """The training and test rows of each split."""
    return _material(data, [split(len(data.y), seed) for seed in splits])


def _material(data: UciSet, parts: list[tuple[np.ndarray, np.ndarray]]) -> Material:
    rows = np.array([len(train) for train, _ in parts])
    points = np.array([len(held_out) for _, held_out in parts])
    x = np.zeros((len(parts), rows.max(), data.x.shape[1]), np.float32)
    y = np.zeros((len(parts), rows.max()), np.float32)
    x_point = np.zeros((len(parts), points.max(), data.x.shape[1]), np.float32)
    target = np.zeros((len(parts), points.max()))
    shift, scale = np.zeros(len(parts)), np.zeros(len(parts))
    for place, (train, held_out) in enumerate(parts):
        mean, std = data.x[train].mean(0), _std(data.x[train])
        shift[place], scale[place] = data.y[train].mean(), _std(data.y[train])
        x[place, : len(train)] = (data.x[train] - mean) / std
        y[place, : len(train)] = (data.y[train] - shift[place]) / scale[place]
        x_point[place, : len(held_out)] = (data.x[held_out] - mean) / std
        target[place, : len(held_out)] = data.y[held_out]
    return Material(x, y, rows, points, x_point, target, shift, scale)


def _std(values: np.ndarray) -> np.ndarray:
    """Population standard deviation (ddof 0) by column, 1 where a column is constant."""
    std = values.std(0)
    return np.where(np.ptp(values, 0) == 0, 1.0, std)
