"""Small images in the place of Fashion-MNIST, of MNIST's test set, and of CIFAR-10."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from making_points import idx

SIDE = 10


def write_data(root: Path) -> Path:
    """A data root whose clothes are bright rows, digits bright columns, and coloured images bright planes."""
    random = np.random.default_rng(0)
    for name, prefix, count in (("fashion-mnist", "train", 240), ("fashion-mnist", "t10k", 60), ("mnist", "t10k", 50)):
        y = np.arange(count, dtype=np.uint8) % 10
        x = random.integers(0, 120, (count, SIDE, SIDE))
        x[np.arange(count), y] += 130
        x = x if name == "fashion-mnist" else x.transpose(0, 2, 1)
        folder = root / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{prefix}-images-idx3-ubyte").write_bytes(idx(x.astype(np.uint8)))
        (folder / f"{prefix}-labels-idx1-ubyte").write_bytes(idx(y))
    for name, count in (("train", 80), ("test", 30)):
        y = np.arange(count) % 10
        x = random.integers(0, 120, (count, SIDE, SIDE, 3)).astype(np.uint8)
        x[np.arange(count), y] += 130
        (root / "cifar10").mkdir(exist_ok=True)
        np.savez(root / "cifar10" / f"lossless_{name}.npz", x=x, y=y)
    return root
