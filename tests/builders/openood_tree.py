"""A data root in OpenOOD's layout, of a few small grey pictures a set."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from making_points import png

from bnuq.files.suites import suites


def write(root: Path, suite: str = "openood:cifar10", *, count: int = 12, side: int = 6) -> Path:
    """The lists and pictures of every set of the suite below `root`; the pictures of later sets are brighter."""
    random = np.random.default_rng(0)
    for number, member in enumerate(suites()[suite]):
        names = [f"{member.name}/class {k % 2}/{k}.png" for k in range(count)]
        for name in names:
            picture = root / member.pictures / name
            picture.parent.mkdir(parents=True, exist_ok=True)
            picture.write_bytes(png(random.integers(20 * number, 120 + 25 * number, (side, side), dtype=np.uint8)))
        listed = root / member.list_file
        listed.parent.mkdir(parents=True, exist_ok=True)
        listed.write_text("".join(f"{name} -1\n" for name in names))
    return root
