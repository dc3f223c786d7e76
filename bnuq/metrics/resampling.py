"""Bootstrap over points, by counts: a resample is the number of times that each bin was drawn, not a copy of points.

Up to EXACT points are drawn one by one. Of more, the counts of cells are drawn at once: they are multinomial, whatever
the number of points. Sums within a cell are then normal given its count, as those of many independent draws are.
"""

from collections.abc import Iterator
from functools import lru_cache

import numpy as np

from bnuq.metrics.replicates import group_index
from bnuq.shapes import Float, Integer, Shaped

_BLOCK_ENTRIES = 2**14  # counts in one block: 128 kB, which stays in the cache and is not mapped anew each time
EXACT = 50_000
_CELLS = 2**14  # of a score's ranks: their width is a tenth of the error of a quantile of a million points


def blocks(resamples: int, *, width: int) -> Iterator[int]:
    """The number of resamples of each block, where a resample takes `width` numbers."""
    step = max(1, _BLOCK_ENTRIES // width)
    for start in range(0, resamples, step):
        yield min(step, resamples - start)


def draws_cells(points: int, group: Integer[np.ndarray, "point"] | None) -> bool:
    """Whether the counts of cells are drawn at once, in place of points or groups."""
    return group is None and points > EXACT


def resampled_counts(
    generator: "np.random.Generator",  # a text, so that numpy.random is imported with the first draws
    rows: int,
    *,
    bin_of_point: Integer[np.ndarray, "point"],
    bins: int,
    group: Integer[np.ndarray, "point"] | None = None,
) -> Integer[np.ndarray, "row bin"]:
    """The number of draws from each bin in each of `rows` resamples.

    A resample draws as many points as there are, with replacement; with `group`, as many whole groups as there are. The
    draws do not depend on the blocks of rows, nor, up to EXACT points, on the bins.
    """
    offset = bins * np.arange(rows)[:, None]
    points = bin_of_point.size
    if draws_cells(points, group):
        return generator.multinomial(points, np.bincount(bin_of_point, minlength=bins) / points, size=rows)
    if group is None:
        drawn = bin_of_point[generator.integers(points, size=(rows, points))]
        drawn += offset
        return np.bincount(drawn.ravel(), minlength=rows * bins).reshape(rows, bins)
    groups = int(group.max()) + 1
    times = resampled_counts(generator, rows, bin_of_point=np.arange(groups), bins=groups)[:, group]
    counts = np.bincount((bin_of_point + offset).ravel(), weights=times.ravel(), minlength=rows * bins)
    return counts.astype(np.int64).reshape(rows, bins)


def counts_in_blocks(
    bin_of_point: Integer[np.ndarray, "point"],
    resamples: int,
    *,
    seed: tuple[int, ...],
    step: int | None = None,
    group: Shaped[np.ndarray, "point"] | None = None,
) -> Iterator[Integer[np.ndarray, "bin row"]]:
    """`resampled_counts` of the bins that hold points, `step` resamples at a time, a column for each. By the numbered
    child of a `seed`, or the seed itself; which points are drawn is remembered, for other bins of the same points."""
    step = step or max(1, _BLOCK_ENTRIES // bin_of_point.size)
    bins, bin_of_point = np.unique(bin_of_point, return_inverse=True)
    groups = None if group is None else group_index(group)
    if draws_cells(bin_of_point.size, groups):
        generator = _child(seed)
        for start in range(0, resamples, step):
            rows = min(step, resamples - start)
            counts = resampled_counts(generator, rows, bin_of_point=bin_of_point, bins=bins.size)
            yield np.ascontiguousarray(counts.T.astype(np.uint32))
        return
    order = np.argsort(bin_of_point, kind="stable")
    starts = np.searchsorted(bin_of_point[order], np.arange(bins.size))
    drawn = _times_drawn(seed, order.size if groups is None else int(groups.max()) + 1, resamples)
    taken = order if groups is None else groups[order]
    for start in range(0, resamples, step):
        counts = drawn[:, start : start + step].take(taken, axis=0).astype(np.uint32)
        yield counts if bins.size == order.size else np.add.reduceat(counts, starts, axis=0, dtype=np.uint32)


def running_counts(counts: Integer[np.ndarray, "bin row"]) -> Float[np.ndarray, "bin_or_none row"]:
    """The number of points in the first 0, 1, 2, … bins. Two counts, each below 2³¹, are added as one of 64 bits."""
    pairs = counts if counts.shape[1] % 2 else counts.view(np.uint64)
    result = np.zeros((len(counts) + 1, counts.shape[1]))
    result[1:] = np.cumsum(pairs, axis=0, dtype=pairs.dtype).view(np.int32)
    return result


def _child(seed: tuple[int, ...]) -> np.random.Generator:
    return np.random.default_rng(np.random.SeedSequence(seed[0], spawn_key=seed[1:]))


@lru_cache(maxsize=3)  # of a set by itself, and the two that are compared, by one score after the other
def _times_drawn(seed: tuple[int, ...], points: int, resamples: int) -> Integer[np.ndarray, "point resample"]:
    """How often each point is drawn: never as often as uint8 does not hold, of so many random points."""
    generator, result = _child(seed), np.empty((points, resamples), np.uint8)
    start = 0
    for rows in blocks(resamples, width=points):
        drawn = resampled_counts(generator, rows, bin_of_point=np.arange(points), bins=points)
        result[:, start : start + rows] = drawn.T
        start += rows
    return result


def cells_of(count: Integer[np.ndarray, "rung"]) -> Integer[np.ndarray, "rung"]:
    """The cell, from 0, of each rung of a ladder with these numbers of points: cells of about equally many consecutive
    points where there are more than EXACT, otherwise each rung by itself."""
    points = int(count.sum())
    if points <= EXACT:
        return np.arange(count.size)
    cell = (np.cumsum(count) - count) * _CELLS // points
    return np.cumsum(np.diff(cell, prepend=cell[0]) != 0)


def resampled_sums(
    generator: "np.random.Generator",
    drawn: Integer[np.ndarray, "row cell"],
    moments: tuple[Float[np.ndarray, "cell"], Float[np.ndarray, "cell"]],
) -> Float[np.ndarray, "row cell"]:
    """The sum of the values of the points that were `drawn` from cells of these `moments_of_cells`, normal given their
    number."""
    mean, variance = moments
    return drawn * mean + np.sqrt(drawn * variance) * generator.standard_normal(drawn.shape)


def moments_of_cells(
    values: Float[np.ndarray, "point"], cell_of_point: Integer[np.ndarray, "point"], cells: int
) -> tuple[Float[np.ndarray, "cell"], Float[np.ndarray, "cell"]]:
    """The mean and the variance of the values in each cell."""
    count = np.maximum(np.bincount(cell_of_point, minlength=cells), 1)
    mean = np.bincount(cell_of_point, weights=values, minlength=cells) / count
    squares = np.bincount(cell_of_point, weights=(values - mean[cell_of_point]) ** 2, minlength=cells)
    return mean, squares / count
