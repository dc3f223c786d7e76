"""Tables in the place of the UCI sets."""

from __future__ import annotations

from pathlib import Path

import numpy as np


def write_set(root: Path, name: str, table: np.ndarray) -> Path:
    """The table as the CSV of a UCI set below `root`."""
    path = root / "uci" / name / "data.csv"
    path.parent.mkdir(parents=True, exist_ok=True)
    names = ",".join([*(f"x{i}" for i in range(table.shape[1] - 1)), "y"])
    np.savetxt(path, table, delimiter=",", header=names, comments="")
    return path


def write_made_up(root: Path) -> Path:
    """A data root whose boston and yacht are noisy smooth functions of three inputs."""
    for seed, name in enumerate(("boston", "yacht")):
        random = np.random.default_rng(seed)
        x = random.standard_normal((100, 3))
        y = 20 + 3 * np.sin(x[:, 0]) + x[:, 1] + 0.5 * random.standard_normal(100)
        write_set(root, name, np.column_stack((x, y)))
    return root


def text_files(table: tuple[np.ndarray, np.ndarray, list[np.ndarray]]) -> dict[str, str]:
    """A table as it is published: the target first, numbers in full and apart by spaces, a row number a line."""
    inputs, targets, splits = table
    columns = np.column_stack((targets, inputs))
    lines = (" ".join(f"{value:.18e}" for value in row) for row in columns)
    return {
        "data.txt": "".join(f"{line}\n" for line in lines),
        "index_features.txt": "".join(f"{column}\n" for column in range(1, columns.shape[1])),
        "index_target.txt": "0\n",
        **{f"index_test_{k}.txt": "".join(f"{row}\n" for row in rows) for k, rows in enumerate(splits)},
    }
