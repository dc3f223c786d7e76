"""What a check found: every comparison, every floor, and whether they passed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from bnuq.records import Caution, Direction
from bnuq.results.file import NORMALIZED

Outcome = Literal["better", "same", "worse", "not gated"]


@dataclass(frozen=True)
class Side:
    """One of the two results: its file, and what made it."""

    path: Path | None
    checkpoint: str
    checkpoint_sha256: str
    samples: int
    batch_size: int | None
    seed: int
    time: str  # ISO 8601, "" where the file does not say


@dataclass(frozen=True)
class Pairing:
    """What the two results share: the sets whose points are the same, and the methods whose draws are.

    `why_not` says for each method whose draws differ, why.
    """

    points: tuple[str, ...]
    draws: tuple[str, ...]
    why_not: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Comparison:
    """One figure of both results. `set` is that of the file ("normalized" for a normalised score of the test set, whose
    `metric` is then normalized_pll or normalized_crps; "bounds/constant" and "bounds/optimum" for its bounds), and
    `score` what an OOD set is told apart by, "" elsewhere.

    `change` is current − baseline, `harm` how much of it is for the worse, both in `unit`; without a direction `harm`
    is |change|. `se` is the standard error of the change over points and draws, of which `se_points` and `se_draws` are
    the parts; None where it is not known. `p_value` is that of "there is no harm", one-sided (two-sided without a
    direction), and `p_adjusted` is Holm's, among all that is gated; `tolerance` is in `unit`. All three are None where
    the figure is not gated.
    """

    method: str
    set: str
    score: str
    metric: str
    unit: str
    direction: Direction
    baseline: float
    current: float
    change: float
    harm: float
    se: float | None
    se_points: float | None
    se_draws: float | None
    p_value: float | None
    p_adjusted: float | None
    tolerance: float | None
    outcome: Outcome

    @property
    def address(self) -> str:
        """Where the figure stands under `methods` in the JSON of `bnuq evaluate`: mcbn.sets.test.pll."""
        return address_of(self.method, self.set, self.score, self.metric)


@dataclass(frozen=True)
class Floor:
    """A bound that was asked of a figure, and what it is; `relation` is what `value` must be to `bound`."""

    address: str
    relation: Literal[">=", "<="]
    bound: float
    value: float
    se: float | None

    @property
    def passed(self) -> bool:
        """Whether it is kept; not by a NaN."""
        return self.value >= self.bound if self.relation == ">=" else self.value <= self.bound


@dataclass(frozen=True)
class Verdict:
    """What a check found. Comparisons come worst first; `baseline` and `pairing` are None where only floors were asked.

    `gated` counts the comparisons that were held together. `accepted` is the file that the current result was accepted
    to as the new baseline, and `kept` where the old one is kept.
    """

    current: Side
    baseline: Side | None
    pairing: Pairing | None
    comparisons: tuple[Comparison, ...]
    floors: tuple[Floor, ...]
    cautions: tuple[Caution, ...]
    notes: tuple[str, ...]
    bnuq: str
    seconds: float
    accepted: Path | None = None
    kept: Path | None = None

    @property
    def gated(self) -> int:
        """How many comparisons could have failed the check."""
        return sum(one.outcome != "not gated" for one in self.comparisons)

    @property
    def worse(self) -> tuple[Comparison, ...]:
        """The comparisons that fail it."""
        return tuple(one for one in self.comparisons if one.outcome == "worse")

    @property
    def broken(self) -> tuple[Floor, ...]:
        """The floors that fail it."""
        return tuple(one for one in self.floors if not one.passed)

    @property
    def passed(self) -> bool:
        """Whether nothing is worse and every floor is kept."""
        return not self.worse and not self.broken

    @property
    def failed(self) -> bool:
        """Whether the check fails: a regression that was accepted is told, and does not."""
        return bool(self.broken) or (bool(self.worse) and self.accepted is None)


def address_of(method: str, set_name: str, score: str, metric: str) -> str:
    """Where a figure of the result file stands under `methods` in the JSON of `bnuq evaluate`."""
    if score:
        return f"{method}.ood.{set_name}.{score}.{metric}"
    if "/" in set_name or set_name == NORMALIZED:
        return f"{method}.{set_name.replace('/', '.')}.{metric.removeprefix(f'{NORMALIZED}_')}"
    return f"{method}.sets.{set_name}.{metric}"
