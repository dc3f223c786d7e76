"""An engine for a bank of more than T draws: every tile of 64 consecutive points uses its own T of them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from bnuq.sampling import counter_rng
from bnuq.sampling.engine import Stochastic
from bnuq.shapes import Int64


class BankEngine:
    """T samples of every point by an engine that holds a bank of more draws.

    The draws of a tile depend only on the seed and the tile's number: no output depends on how points are chunked.
    """

    def __init__(self, engine: Stochastic, *, samples: int, seed: int) -> None:
        self.samples = samples
        self.engine, self._seed = engine, seed

    def passes(self, inputs: Tensor, start: int = 0) -> Tensor:
        """Raw outputs (T, n, …) for points number `start`, `start` + 1, … of their set.

        The first axis is the position among a point's own draws, in the order of `draws`.
        """
        outputs = []
        for rows in tiles(start, start + len(inputs)):
            part = inputs[rows.start - start : rows.stop - start]
            self.engine.check_independent(part, rows.start)
            outputs.append(self.engine.passes(part, rows.start, self.draws(rows).tolist()))
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs, dim=1)

    def shrink(self) -> None:
        """Reduce the memory that is used to about half."""
        self.engine.shrink()

    def draws(self, rows: range) -> Int64[np.ndarray, " sample"]:
        """The draws of the bank that these points, all of the same tile, use."""
        tile = rows.start // counter_rng.TILE
        return counter_rng.draws_of_tile(self._seed, tile, bank=self.engine.samples, samples=self.samples)


def tiles(start: int, stop: int) -> Iterator[range]:
    """The points number `start` … `stop` − 1 of a set, cut at tile boundaries."""
    cuts = [start, *range(start - start % counter_rng.TILE + counter_rng.TILE, stop, counter_rng.TILE), stop]
    yield from (range(first, last) for first, last in pairwise(cuts))
