"""Random numbers by key: every number depends on (seed, draw, purpose) alone, never on the order of the calls.

The words come straight from Philox, whose stream numpy promises never to change, so that mini-batches and their
augmentation are the same on every device, in every process and under every version.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Int64, UInt64

BATCH, AUGMENT, DROPOUT, CHECK, CHECK_AUGMENT, SUBSET, RANKED = range(7)  # purposes; part of what a seed means


def words(
    seed: int, draw: int, purpose: int, count: int, *, site: int = 0, tile: int = 0
) -> UInt64[np.ndarray, " count"]:
    """`count` random 64-bit words of one key; the first k of a longer call are those of a call for k."""
    key = np.array([seed, draw], dtype=np.uint64)
    counter = np.array([0, site, tile, purpose], dtype=np.uint64)
    return np.random.Philox(key=key, counter=counter).random_raw(count)


def batch_indices(
    seed: int, draw: int, *, population: int, batch_size: int, purpose: int = BATCH
) -> Int64[np.ndarray, " batch_size"]:
    """The first `batch_size` entries of draw `draw`'s permutation of range(population): a sample without replacement.

    A smaller batch is the beginning of a larger one, so that batch sizes are compared on common random numbers.
    """
    moved: dict[int, int] = {}  # a Fisher–Yates shuffle that touches only what it moves
    chosen = np.empty(batch_size, dtype=np.int64)
    for i, word in enumerate(map(int, words(seed, draw, purpose, batch_size))):
        j = i + word % (population - i)
        chosen[i] = moved.get(j, j)
        moved[j] = moved.get(i, i)
    return chosen


def augmentation_words(seed: int, draw: int, batch_size: int, purpose: int = AUGMENT) -> UInt64[np.ndarray, "batch 3"]:
    """Three words for every image of draw `draw`: vertical offset, horizontal offset, flip."""
    return words(seed, draw, purpose, 3 * batch_size).reshape(batch_size, 3)


def mask_seed(seed: int, draw: int, *, site: int, tile: int) -> int:
    """The seed of the generator that draws the dropout mask of one tile of points at one site."""
    return int(words(seed, draw, DROPOUT, 1, site=site, tile=tile)[0] >> np.uint64(1))
