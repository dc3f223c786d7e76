"""Chooses what an adaptive sweep evaluates next: sizes around the best one, then draw sets of what is undecided.

The choice follows from the estimates alone, so that an interrupted sweep makes the same one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import pairwise

from scipy.special import stdtrit

from bnuq.frozen import frozen
from bnuq.records.sweep import Decay, Recommended, Stopped, decay_rate

FIRST = 2  # draw sets that a size has at first


@frozen
class Grid:
    """What may be evaluated: `draw_sets` of every size. With `by_peak`, the criterion has a single peak over the sizes,
    so that those away from it can be left out."""

    sizes: tuple[int, ...]
    draw_sets: int
    by_peak: bool

    @property
    def first(self) -> dict[int, int]:
        """The draw sets of the first round, by size."""
        return dict.fromkeys((self.sizes[0], self.sizes[-1]) if self.by_peak else self.sizes, FIRST)

    def next(
        self, sets: Mapping[int, int], recommended: Recommended | None, decay: Decay | None
    ) -> tuple[dict[int, int], Stopped]:
        """The draw sets to add by size, and why the sweep ends if there are none. `sets` are those of each size."""
        if missing := self._missing(sets, recommended):
            return dict.fromkeys(missing, FIRST), "decided"
        rivals = [] if recommended is None else self._rivals(sets, recommended)
        undecided = {*rivals, recommended.batch_size} if recommended is not None and rivals else set()
        if decay is not None and decay_rate(decay.slope.low or math.nan, decay.slope.high or math.nan) in (
            "may-fall-as-inverse",
            "not-clearly-falling",
        ):
            fewest = min(sets[size] for size in decay.sizes)
            undecided |= {size for size in decay.sizes if sets[size] == fewest}
        added = {size: 1 for size in sorted(undecided) if sets[size] < self.draw_sets}
        return added, "draw sets" if undecided else "decided"

    def _missing(self, sets: Mapping[int, int], recommended: Recommended | None) -> list[int]:
        """The sizes to add: the one nearest to the asymptotic optimum, then those next to the best; all if none is."""
        if recommended is None:
            return [size for size in self.sizes if size not in sets]
        predicted = recommended.predicted_batch_size
        if predicted is not None and predicted.value > 0:
            nearest = min(self.sizes, key=lambda size: abs(math.log(size / predicted.value)))
            if nearest not in sets:
                return [nearest]
        pairs = [pair for pair in pairwise(self.sizes) if recommended.batch_size in pair]
        return sorted({size for pair in pairs for size in pair if size not in sets})

    def _rivals(self, sets: Mapping[int, int], recommended: Recommended) -> list[int]:
        """The sizes that the draw sets that are left could make the best."""
        best, rivals = recommended.batch_size, []
        for size, difference in recommended.behind.items():
            fewest = min(sets[size], sets[best])
            # The mean of n of N draw sets differs from that of all by √(1 − n/N) of its error.
            left = math.sqrt(1 - fewest / self.draw_sets)
            quantile = 2.0 if recommended.criterion == "elbo" else float(stdtrit(fewest - 1, 0.975))
            if size != best and left and not abs(difference.value) > quantile * left * (difference.mc_se or math.inf):
                rivals.append(size)
        return rivals
