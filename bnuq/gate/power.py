"""What a comparison can see: the smallest worsening that it finds, and the points or samples that would decide it.

A gated estimate fails where its degradation exceeds its tolerance and is significant. Here significant means p below
its share of the level: the first step of Holm's method, and the strictest. Which later step an estimate gets depends
on how bad the others are, and is only easier; so what is stated is what the check finds at least.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import cache

from bnuq import metrics
from bnuq.frozen import frozen
from bnuq.gate.records import Decisive

POWER = 0.8  # the probability with which `detectable` is found
_STEPS = 100


@frozen
class Chance:
    """What chance does to the expected calibration error of a baseline: it adds a `floor`, so that about √(t² + floor²)
    is measured of a true t (the mean of |g + noise| over gaps g), and t may be 0 where that is not above `high`. The
    gaps of two such results have their own signs, so that their change between the same points has the error of
    `unpaired` ones."""

    floor: float
    high: float
    baseline: float
    unpaired: float

    @property
    def share(self) -> float:
        """Of chance in the square of what the baseline measured."""
        return 1.0 if self.baseline <= self.high else (self.floor / self.baseline) ** 2

    def true_worsening(self, change: float) -> float:
        """The true worsening that is measured as this change."""
        before = max(self.baseline, self.floor)
        return math.sqrt((before + change) ** 2 - self.floor**2) - before * math.sqrt(1 - self.share)


@frozen
class Sight:
    """The error of a change as a check sees with it, one-sided at `level`.

    `deviation` is not counted as a degradation. `step` is what one point that turns wrong adds to the estimate: a
    larger change of an accuracy has more such points, and so a larger error; 0 of estimates that do not count points.
    `change` is the one that the errors were measured with, ≥ 0.
    """

    se_points: float
    se_draws: float
    df: float
    level: float
    deviation: float = 0.0
    step: float = 0.0
    change: float = 0.0
    chance: Chance | None = None

    @property
    def is_blank(self) -> bool:
        """Whether nothing changed that an error could be computed from."""
        return self.change == self.step == self._error(0.0) == 0

    def detectable(self, tolerance: float, power: float = POWER) -> float:
        """The smallest true worsening that fails the check with this probability.

        The change is taken as Student's t about the true one, so that `power` of it lies above a limit that is the
        quantile at `power` below it.
        """
        critical, beyond = self._quantile(1 - self.level), self._quantile(power)
        return self._size(lambda error: max(tolerance, self.deviation + critical * error) + beyond * error)

    def distinguishable(self, power: float) -> float:
        """The smallest true worsening that is significant with this probability, whatever the tolerance."""
        factor = self._quantile(1 - self.level) + self._quantile(power)
        return self._size(lambda error: self.deviation + factor * error)

    def _size(self, by_error: Callable[[float], float]) -> float:
        """The size of a worsening that its own error gives, which grows less than proportionally with it."""
        size = 0.0
        for _ in range(_STEPS):
            last, size = size, by_error(self._error(size))
            if math.isclose(last, size, rel_tol=1e-9):
                break
        return size if self.chance is None else self.chance.true_worsening(size)

    def decisive(self, degradation: float, sizes: Mapping[str, int], samples: int) -> Decisive | None:
        """The points of each set, and the samples, with which this degradation would be significant with probability
        .8, if it is the true one; from the numbers now. Whichever is less work, or both."""
        needed = (degradation - self.deviation) / (self._quantile(1 - self.level) + self._quantile(POWER))
        if not (needed > 0 and math.isfinite(self.se_points + self.se_draws)):
            return None
        parts = self.se_points**2 / needed**2, self.se_draws**2 / needed**2
        both = parts[0] + parts[1]
        sides = parts, parts[::-1]
        more_points, more_samples = (own / (1 - other) if other < 1 else math.inf for own, other in sides)
        if min(more_points, more_samples) > 2 * both:
            more_points = more_samples = both
        elif more_points <= more_samples:
            more_samples = 1.0
        else:
            more_points = 1.0
        return Decisive(
            points=tuple((name, _rounded_up(more_points * n)) for name, n in sizes.items()) if more_points > 1 else (),
            samples=_rounded_up(more_samples * samples) if more_samples > 1 else None,
        )

    def _quantile(self, probability: float) -> float:
        return _student_quantile(probability, self.df)

    def _error(self, worsening: float) -> float:
        more = self.step * max(0.0, worsening - self.change) if self.step else 0.0
        if self.chance is not None:
            more += self.chance.share * max(0.0, self.chance.unpaired**2 - self.se_points**2)
        return math.sqrt(self.se_points**2 + self.se_draws**2 + more)


_student_quantile = cache(metrics.student_quantile)  # many estimates have the same degrees of freedom


def _rounded_up(number: float) -> int:
    """To two digits: more would claim too much."""
    scale = 10 ** max(0, math.floor(math.log10(number)) - 1)
    return math.ceil(number / scale) * scale
