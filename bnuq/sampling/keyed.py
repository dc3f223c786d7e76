"""Random numbers by key: every number depends on (seed, draw, purpose) alone, never on the order of the calls.

The words come straight from Philox, whose stream numpy promises never to change, so that mini-batches and their
augmentation are the same on every device, in every process and under every version.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Int64, UInt16, UInt64

# purposes; part of what a seed means
BATCH, AUGMENT, MASK, CHECK, CHECK_AUGMENT, SUBSET, RANKED, MASK_TIE, MASK_KEY, OF_TILE = range(10)
POPULATION, POPULATION_AUGMENT, NOISE, NOISE_AUGMENT, DOMAIN, DOMAIN_AUGMENT = range(10, 16)  # what is measured
LAW, LAW_AUGMENT, LAW_NORMAL, LAW_CHI2, QUERY, QUERY_AUGMENT = range(16, 22)  # analytic laws; batches of one query

TILE = 64  # consecutive points of a set that share their draws of a bank


def words(
    seed: int, draw: int, purpose: int, count: int, *, site: int = 0, block: int = 0
) -> UInt64[np.ndarray, " count"]:
    """`count` random 64-bit words of one key, from block `block` of four on; fewer are the beginning of more."""
    return _philox(seed, draw, purpose, site, block).random_raw(count)


def _philox(seed: int, draw: int, purpose: int, site: int, block: int) -> np.random.Philox:
    key = np.array([seed, draw], dtype=np.uint64)
    return np.random.Philox(key=key, counter=np.array([block, site, 0, purpose], dtype=np.uint64))


def quarters(
    seed: int, draws: Sequence[int], purpose: int, first: int, count: int, *, site: int = 0
) -> UInt16[np.ndarray, "draw count"]:
    """For each draw, the quarters (16 bits) number `first`, `first` + 1, … of its stream of `words`."""
    block, skipped = divmod(first, 16)
    found = np.empty((len(draws), -(-(skipped + count) // 4)), dtype=np.uint64)
    philox = _philox(seed, 0, purpose, site, block)
    state = philox.state
    for row, draw in zip(found, draws, strict=True):
        state["state"]["key"][1] = draw  # a tenth of the time that another Philox takes
        philox.state = state
        row[:] = philox.random_raw(len(row))
    return found.view(np.uint16)[:, skipped : skipped + count]


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


def draws_of_tile(seed: int, tile: int, *, bank: int, samples: int) -> Int64[np.ndarray, " sample"]:
    """The draws 0 … `bank` − 1 that tile `tile` uses: points `tile`·64 … `tile`·64 + 63 of any set; none twice.

    They come in the order of their choice, and fewer are the beginning of more.
    """
    return batch_indices(seed, tile, population=bank, batch_size=samples, purpose=OF_TILE)


def augmentation_words(seed: int, draw: int, batch_size: int, purpose: int = AUGMENT) -> UInt64[np.ndarray, "batch 3"]:
    """Three words for every image of draw `draw`: vertical offset, horizontal offset, flip."""
    return words(seed, draw, purpose, 3 * batch_size).reshape(batch_size, 3)
