"""The points of a set that are held out, at random."""

from __future__ import annotations

import numpy as np

from bnuq.sampling import counter_rng
from bnuq.shapes import Int64


def held_out_rows(
    points: int,
    *,
    fraction: float = 0.1,
    seed: int = 0,
    group: Int64[np.ndarray, " point"] | None = None,
    purpose: int = counter_rng.SUBSET,
) -> Int64[np.ndarray, " row"]:
    """The rows, ascending, that `validation = { split_of = …, fraction, seed }` takes of a set of `points` points.

    A network trained without them has them held out. With `group`, whole groups are taken.
    """
    names = np.arange(points) if group is None else np.unique(group, return_inverse=True)[1]
    count = int(names.max()) + 1
    group_count = min(max(1, round(fraction * count)), count - 1)
    chosen = counter_rng.batch_indices(seed, 0, population=count, batch_size=group_count, purpose=purpose)
    return np.flatnonzero(np.isin(names, chosen))
