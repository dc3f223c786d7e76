"""Counter-based random numbers: every number depends only on (seed, draw, purpose), never on the order of the calls.

The words come straight from Philox, whose stream numpy promises never to change. Mini-batches and their augmentation
are therefore the same on every device, in every process and with every version.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from bnuq.shapes import Float64, Int64, UInt8, UInt16, UInt64

# purposes: part of the random key, never to be renumbered
BATCH, AUGMENT, MASK, CHECK, CHECK_AUGMENT, SUBSET, RANKED, MASK_TIE = range(8)
TILE_DRAWS = 9  # 8 is no longer used
POPULATION, POPULATION_AUGMENT, NOISE, NOISE_AUGMENT, DOMAIN, DOMAIN_AUGMENT = range(10, 16)  # what is measured
NOISE_MODEL, NOISE_MODEL_AUGMENT, NOISE_MODEL_NORMAL, NOISE_MODEL_CHI2 = range(16, 20)  # analytic noise models
HALVES = 22  # halves of a test set; 20 and 21 are no longer used
TTA = 23  # augmentation of evaluated points
LAPLACE = 24  # weights of a last layer
PERTURBATION = 25  # noise of evaluated points
LEARNED = 26  # noise that a network draws by itself
OWN_BATCHES = 28  # evaluated points that normalise each other
MONITOR = 27  # what a monitor watches, and draws by chance

PART, JITTER = 1, 2  # streams of a purpose beside its first, 0: parts of pictures, and their colours

TILE = 64  # consecutive points of a set that share their draws of a bank


def words(
    seed: int, draw: int, purpose: int, count: int, *, site: int = 0, block: int = 0, stream: int = 0
) -> UInt64[np.ndarray, " count"]:
    """`count` random 64-bit words of one key, starting at block `block` of four; a shorter result is a prefix of a
    longer one."""
    return _philox(seed, draw, purpose, site, block, stream).random_raw(count)


def uniform(
    seed: int, draw: int, purpose: int, count: int, *, site: int = 0, first: int = 0
) -> Float64[np.ndarray, " count"]:
    """`count` random numbers in the open interval (0, 1), made of `words` from number `first` on."""
    block, skipped = divmod(first, 4)
    random = words(seed, draw, purpose, skipped + count, site=site, block=block)[skipped:]
    return ((random >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52


def normal(seed: int, draw: int, purpose: int, count: int, *, site: int = 0) -> Float64[np.ndarray, " count"]:
    """`count` standard normal numbers, made of `uniform`."""
    from scipy.special import ndtri  # late: a sixth of a second, and many runs draw none

    return ndtri(uniform(seed, draw, purpose, count, site=site))


def _philox(seed: int, draw: int, purpose: int, site: int, block: int, stream: int = 0) -> np.random.Philox:
    key = np.array([seed, draw], dtype=np.uint64)
    return np.random.Philox(key=key, counter=np.array([block, site, stream, purpose], dtype=np.uint64))


def quarters(
    seed: int, draws: Sequence[int], purpose: int, first: int, count: int, *, site: int = 0
) -> UInt16[np.ndarray, "draw count"]:
    """For each draw, the quarters (16 bits) number `first`, `first` + 1, … of its stream of `words`."""
    block, skipped = divmod(first, 16)
    parts = np.empty((len(draws), -(-(skipped + count) // 4)), dtype=np.uint64)
    philox = _philox(seed, 0, purpose, site, block)
    state = philox.state
    for row, draw in zip(parts, draws, strict=True):
        state["state"]["key"][1] = draw  # takes a tenth of the time of a new Philox
        philox.state = state
        row[:] = philox.random_raw(len(row))
    return parts.view(np.uint16)[:, skipped : skipped + count]


class MaskKey(NamedTuple):
    """What determines the masks of one dropout: the seed, the draws, the number of its site, and the rate p."""

    seed: int
    draws: tuple[int, ...]
    site: int
    p: float


def kept(key: MaskKey, first: int, count: int) -> UInt8[np.ndarray, "draw entry"]:
    """1 with probability 1 − p and 0 otherwise, for entries number `first`, `first` + 1, … of a site, under each draw.

    Each is a function of (seed, draw, site, entry number), so any range of entries, and any tile of points, can be
    drawn independently. It is exact to 2⁻⁸⁰: an 80-bit uniform number is compared with p. Its last 64 bits are drawn
    only where the first 16 do not decide.
    """
    seed, draws, site, p = key
    high, low = thresholds(p)
    bits = quarters(seed, draws, MASK, first, count, site=site)
    mask = bits > high
    for tie in np.flatnonzero(bits == high).tolist():  # one entry in 65,536
        k, i = divmod(tie, count)
        mask[k, i] = words(seed, draws[k], MASK_TIE, 1, site=site, block=first + i)[0] >= low
    return mask.view(np.uint8)


def thresholds(p: float) -> tuple[int, int]:
    """The first 16 and the next 64 bits of a rate."""
    high = int(p * 2**16)
    return high, int((p * 2**16 - high) * 2**64)


def batch_indices(
    seed: int, draw: int, *, population: int, batch_size: int, purpose: int = BATCH, replacement: bool = False
) -> Int64[np.ndarray, " batch_size"]:
    """`batch_size` indices from range(population): the beginning of a random permutation, or, with `replacement`,
    independent indices.

    A smaller mini-batch is the beginning of a larger one, so that batch sizes are compared on common random numbers.
    This does not hold for `stratified_indices` and `indices_of_one_group`.
    """
    return _chosen_indices(words(seed, draw, purpose, batch_size), population, replacement=replacement)


def _chosen_indices(
    random: UInt64[np.ndarray, " chosen"], population: int, *, replacement: bool
) -> Int64[np.ndarray, " chosen"]:
    """One index from range(population) per random word."""
    if replacement:
        return (random % np.uint64(population)).astype(np.int64)
    moved: dict[int, int] = {}  # a sparse Fisher–Yates shuffle: only moved entries are stored
    chosen = np.empty(len(random), dtype=np.int64)
    numbers = np.arange(len(random), dtype=np.uint64)
    for i, j in enumerate((numbers + random % (np.uint64(population) - numbers)).tolist()):
        chosen[i] = moved.get(j, j)
        moved[j] = moved.get(i, i)
    return chosen


def stratified_indices(
    seed: int,
    draw: int,
    *,
    strata: Sequence[Int64[np.ndarray, " member"]],
    batch_size: int,
    purpose: int = BATCH,
    replacement: bool = False,
) -> Int64[np.ndarray, " batch_size"]:
    """A sample of `batch_size` points in which each stratum has its share, to within less than one point.

    Every point has the inclusion probability `batch_size` / N. The N points are sorted by stratum (the strata in random
    order) and randomly within a stratum, and are taken in equal steps from a random start. Source: Madow 1949,
    systematic sampling.
    """
    random = words(seed, draw, purpose, len(strata) + 1 + batch_size)
    order = _chosen_indices(
        random[: len(strata)], len(strata), replacement=False
    )  # in a fixed order some strata would never be drawn together
    population = sum(map(len, strata))
    passed, unused = int(random[len(strata)]) % population, random[len(strata) + 1 :]
    chosen = []
    for number in order:
        reached = passed + len(strata[number]) * batch_size
        share = reached // population - passed // population
        chosen.append(strata[number][_chosen_indices(unused[:share], len(strata[number]), replacement=replacement)])
        passed, unused = reached, unused[share:]
    return np.concatenate(chosen)


def indices_of_one_group(
    seed: int,
    draw: int,
    *,
    groups: Sequence[Int64[np.ndarray, " member"]],
    batch_size: int,
    purpose: int = BATCH,
    replacement: bool = False,
) -> Int64[np.ndarray, " batch_size"]:
    """A sample from a single group, which is chosen with probability proportional to its size.

    Every point has the inclusion probability `batch_size` / N. Without replacement, no group may be smaller than
    `batch_size`.
    """
    first, *_ = random = words(seed, draw, purpose, 1 + batch_size)
    ends = np.cumsum([len(group) for group in groups])
    group = groups[int(np.searchsorted(ends, int(first) % int(ends[-1]), side="right"))]
    return group[_chosen_indices(random[1:], len(group), replacement=replacement)]


def draws_of_tile(seed: int, tile: int, *, bank: int, samples: int) -> Int64[np.ndarray, " sample"]:
    """The distinct draws, out of 0 … `bank` − 1, that tile `tile` uses: points `tile`·64 … `tile`·64 + 63 of any set.

    They are in the order in which they are drawn; a smaller selection is the beginning of a larger one.
    """
    return batch_indices(seed, tile, population=bank, batch_size=samples, purpose=TILE_DRAWS)


def augmentation_words(
    seed: int, draw: int, batch_size: int, purpose: int = AUGMENT, *, first: int = 0
) -> UInt64[np.ndarray, "batch 3"]:
    """Three words for every image of draw `draw`: vertical offset, horizontal offset, flip; from image `first` on."""
    return _words_by_row(seed, draw, purpose, (batch_size, 3), first, 0)


def part_words(
    seed: int, draw: int, batch_size: int, count: int, purpose: int = AUGMENT, *, first: int = 0
) -> UInt64[np.ndarray, "batch count"]:
    """`count` words for the random part of every image of draw `draw`, from image `first` on."""
    return _words_by_row(seed, draw, purpose, (batch_size, count), first, PART)


def jitter_words(
    seed: int, draw: int, batch_size: int, purpose: int = AUGMENT, *, first: int = 0
) -> UInt64[np.ndarray, "batch 5"]:
    """Five words for the colours of every image of draw `draw`, from image `first` on: the order of the changes, and
    the four changes."""
    return _words_by_row(seed, draw, purpose, (batch_size, 5), first, JITTER)


def _words_by_row(
    seed: int, draw: int, purpose: int, shape: tuple[int, int], first: int, stream: int
) -> UInt64[np.ndarray, "row word"]:
    """Rows number `first`, `first` + 1, … of a stream of `words` that is cut into rows."""
    block, skipped = divmod(first * shape[1], 4)
    row_words = words(seed, draw, purpose, skipped + shape[0] * shape[1], block=block, stream=stream)
    return row_words[skipped:].reshape(shape)


def held_out_rows(
    points: int,
    *,
    fraction: float = 0.1,
    seed: int = 0,
    group: Int64[np.ndarray, " point"] | None = None,
    purpose: int = SUBSET,
) -> Int64[np.ndarray, " row"]:
    """The rows, ascending, that `validation = { split_of = …, fraction, seed }` takes of a set of `points` points.

    A network trained without them has them held out. With `group`, whole groups are taken.
    """
    names = np.arange(points) if group is None else np.unique(group, return_inverse=True)[1]
    count = int(names.max()) + 1
    group_count = min(max(1, round(fraction * count)), count - 1)
    chosen = batch_indices(seed, 0, population=count, batch_size=group_count, purpose=purpose)
    return np.flatnonzero(np.isin(names, chosen))
