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
