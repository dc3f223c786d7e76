"""Bootstrap over points, by counts: a resample is the number of times that each bin was drawn, not a copy of points."""

from collections.abc import Iterator

import numpy as np
from jaxtyping import Integer

_BLOCK_ENTRIES = 2**14  # counts in one block: 128 kB, which stays in the cache and is not mapped anew each time


def blocks(resamples: int, *, width: int) -> Iterator[int]:
    """The number of resamples of each block, where a resample takes `width` numbers."""
    step = max(1, _BLOCK_ENTRIES // width)
    for start in range(0, resamples, step):
        yield min(step, resamples - start)


def resampled_counts(
    generator: np.random.Generator,
    rows: int,
    *,
    bin_of_point: Integer[np.ndarray, "point"],
    bins: int,
    group: Integer[np.ndarray, "point"] | None = None,
) -> Integer[np.ndarray, "row bin"]:
    """The number of draws from each bin in each of `rows` resamples.

    A resample draws as many points as there are, with replacement; with `group`, as many whole groups as there are. The
    draws do not depend on the blocks of rows, nor on the bins.
    """
    offset = bins * np.arange(rows)[:, None]
    points = bin_of_point.size
    if group is None:
        drawn = bin_of_point[generator.integers(points, size=(rows, points))]
        drawn += offset
        return np.bincount(drawn.ravel(), minlength=rows * bins).reshape(rows, bins)
    groups = int(group.max()) + 1
    times = resampled_counts(generator, rows, bin_of_point=np.arange(groups), bins=groups)[:, group]
    counts = np.bincount((bin_of_point + offset).ravel(), weights=times.ravel(), minlength=rows * bins)
    return counts.astype(np.int64).reshape(rows, bins)
