"""The data of sample_configs/ with fewer points: what runs on them runs on all, in a fraction of the time."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]


def write_set(source: Path, target: Path, points: int) -> None:
    """The first points of a set in an npz file."""
    with np.load(source) as arrays:
        np.savez(target, **{name: arrays[name][:points] for name in arrays})


def write_samples(place: Path, *, train: int = 512, points: int = 200) -> Path:
    """sample_configs/ as it ships, but for the quickstart's sets: so many points of its reference and of each other."""
    shutil.copytree(ROOT / "sample_configs", place, ignore=shutil.ignore_patterns("*.npz"))
    for path in (ROOT / "sample_configs" / "quickstart").glob("*.npz"):
        write_set(path, place / "quickstart" / path.name, train if path.stem.endswith("train") else points)
    return place
