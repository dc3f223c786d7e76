"""Bootstrap over points, as counts: a resample is how often each bin was drawn, never a copy of points."""

from collections.abc import Iterator

import numpy as np
from jaxtyping import Integer

_CELLS = 2**17  # counts in one block: a megabyte, so that what is computed from them stays in the processor's cache


def blocks(resamples: int, *, width: int) -> Iterator[int]:
    """How many resamples to hold at once, block after block, where each takes `width` numbers."""
    step = max(1, _CELLS // width)
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
    """How often the points of each bin are drawn in each of `rows` resamples.

    As many points as there are, with replacement; with `group`, as many whole groups as there are. What is drawn does
    not depend on how the rows are cut into blocks, nor on the bins.
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
