"""Is a batch exchangeable with the reference? One p-value over all blocks of coordinates, and a bet on a stream.

Both are exact for finitely many points, whatever their distribution: no law of the statistics is assumed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import field

import numpy as np

from bnuq.frozen import frozen
from bnuq.sampling import counter_rng
from bnuq.shapes import Float, Float64, Int8, Int64

POWERS = (0.1, 0.25, 0.5, 0.75)  # κ of the bets κ·p^(κ − 1), of which the wealth is the mean
_ENTRIES = 2**22  # random words at once


@frozen
class Compared:
    """The p-value of a batch, those of its blocks and of all layers together, each corrected for all of them."""

    p_value: float
    blocks: Float64[np.ndarray, " block"]
    together: float


def compared(
    batch: Int8[np.ndarray, "row coordinate"],
    bag: Int8[np.ndarray, "point coordinate"],
    starts: Sequence[int],
    layers: Sequence[int],
    *,
    resamples: int,
    seed: int,
    step: int,
) -> Compared:
    """Test whether the rows of `batch` are drawn like those of `bag`, with blocks of coordinates from `starts` on, of
    which those numbered `layers` are layers of the network.

    The statistic of a block is the squared distance of the batch's mean from that of all rows. Its law is that of
    `resamples` random choices of as many rows out of batch and bag together: under exchangeability the batch is one of
    these choices, so that every p-value is valid for any number of rows. Cube roots are compared in standard
    deviations, which are nearly normal (Wilson & Hilferty 1931); blocks are corrected by the law of their maximum
    (Westfall & Young 1993, single step), and the p-value of the batch is the smallest. The smallest possible is
    1/(resamples + 1).
    """
    rows = np.concatenate([batch, bag]).astype(np.float32)  # in which sums of these whole numbers are exact
    centre = len(batch) * rows.mean(axis=0, dtype=np.float64)
    sums = [rows[: len(batch)].sum(axis=0)[None]]
    sums += [chosen @ rows for chosen in choices(len(rows), len(batch), resamples, seed, step)]
    distances = np.add.reduceat((np.concatenate(sums) - centre) ** 2, starts, axis=1)
    scores = _standardized(np.cbrt(distances))
    if len(layers) > 1:
        scores = np.column_stack([scores, _standardized(scores[:, layers].sum(axis=1)[:, None])])
    largest = scores.max(axis=1)
    p = (largest[:, None] >= scores[0] - 1e-9).mean(axis=0)  # the batch itself is among them
    together = float(p[-1] if len(layers) > 1 else p[layers[0]] if layers else 1.0)
    return Compared(float(p.min()), p[: len(starts)], together)


def choices(total: int, size: int, count: int, seed: int, step: int) -> Iterator[Float[np.ndarray, "choice row"]]:
    """Indicators of `count` random choices of `size` out of `total` rows, some at a time."""
    at_once = max(1, _ENTRIES // total)
    for part, first in enumerate(range(0, count, at_once)):
        shape = (min(at_once, count - first), total)
        words = counter_rng.words(seed, step, counter_rng.MONITOR, shape[0] * total, site=part, stream=1)
        chosen = np.zeros(shape, np.float32)
        np.put_along_axis(chosen, words.reshape(shape).argpartition(size - 1, axis=1)[:, :size], 1.0, axis=1)
        yield chosen


def _standardized(values: Float64[np.ndarray, "choice block"]) -> Float64[np.ndarray, "choice block"]:
    deviation = values.std(axis=0)
    return (values - values.mean(axis=0)) / np.where(deviation > 1e-12, deviation, np.inf)


@frozen
class Wealth:
    """What a gambler has after some p-values who starts with 1 and for whom no game is favourable while batches are
    exchangeable: at least 1/α ever with a probability of at most α (Ville 1939).

    Before each batch n a share 1/(n(n + 1)) of the start is put on "from here on batches have left", for each of
    `POWERS` alike, and is multiplied by κ·p^(κ − 1) with every p-value from then on (Vovk & Wang 2021). The rest,
    1/(n + 1) after batch n, waits. So batches that did not differ cost little, however many they were.
    """

    steps: int = 0
    bets: tuple[float, ...] = field(default=(0.0,) * len(POWERS))

    @property
    def e_value(self) -> float:
        return float(np.mean(self.bets)) + 1 / (self.steps + 1)

    def after(self, p_value: float) -> Wealth:
        """The wealth once the next batch has this p-value."""
        number = self.steps + 1
        placed = 1 / (number * (number + 1))
        bets = ((bet + placed) * power * p_value ** (power - 1) for bet, power in zip(self.bets, POWERS, strict=True))
        return Wealth(number, tuple(bets))


def absorbed(
    bag: Int8[np.ndarray, "point coordinate"],
    batch: Int8[np.ndarray, "row coordinate"],
    *,
    most: int,
    seed: int,
    step: int,
) -> Int8[np.ndarray, "point coordinate"]:
    """The bag for the next batch: a random choice of at most `most` rows of bag and batch together.

    The next p-value is then independent of all earlier ones: given the rows of both, an earlier p-value is uniform
    whatever the rows are, and this choice does not look at which of them were the batch. With a fixed bag it would not
    be, and the chance error of the reference would add up over a stream.
    """
    rows = np.concatenate([bag, batch])
    return rows[random_rows(len(rows), min(most, len(rows)), seed, step)]


def random_rows(total: int, count: int, seed: int, step: int) -> Int64[np.ndarray, " row"]:
    """So many of `total` rows, at random, in order."""
    words = counter_rng.words(seed, step, counter_rng.MONITOR, total, stream=2)
    return np.sort(words.argsort(kind="stable")[:count])
