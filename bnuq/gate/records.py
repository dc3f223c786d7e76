"""The record of a check: every comparison, every required minimum, and whether they passed; and its JSON summary."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path
from typing import Any, Literal

from bnuq import catalogue
from bnuq.estimates import Direction
from bnuq.findings import Finding
from bnuq.frozen import frozen
from bnuq.records.addresses import NORMALIZED, address_of
from bnuq.records.as_json import SCHEMA, json_fields, json_number, json_value

BOUNDS = "bounds/"  # before the name of a bound, where a comparison has that in the place of a set
Outcome = Literal["better", "same", "inconclusive", "worse", "not gated"]


@frozen
class Side:
    """One of the two results: its file, and its provenance."""

    path: Path | None
    checkpoint: str
    checkpoint_sha256: str
    samples: int
    batch_size: int | None
    seed: int
    time: str  # ISO 8601, "" where the file does not say


@frozen
class Pairing:
    """What the two results share: the sets with the same points, and the methods with the same draws.

    `why_not` gives the reason for each method whose draws differ.
    """

    points: tuple[str, ...]
    draws: tuple[str, ...]
    why_not: tuple[tuple[str, str], ...] = ()


@frozen
class Decisive:
    """With how many points of each set, or samples, or both, an inconclusive change would be decided: with probability
    .8, if it is the true one. No points, or no samples, where more of them are not needed."""

    points: tuple[tuple[str, int], ...]
    samples: int | None


@frozen
class EstimateComparison:
    """One estimate of both results. `set` is that of the file ("normalized" for a normalised score of the test set,
    whose `metric` is then normalized_pll or normalized_crps; "bounds/constant" and "bounds/optimum" for its bounds),
    `score` the score that separates an OOD set, `label` one of several labels per point, `of_class` and `group` a class
    or a group of the points; "" elsewhere.

    `change` is current − baseline and `degradation` how much worse that is, below 0 if it is better, both in `unit`;
    without a direction it is |change|. `se` is the standard error of the change over points and draws, with the parts
    `se_points` and `se_draws`; None if it is not known. `p_value` is that of "there is no degradation", one-sided
    (two-sided without a direction), and `p_adjusted` is Holm's, among all gated estimates; `tolerance` is in `unit`.
    All three are None where the estimate is not gated, but a tolerance that no change exceeds is kept.

    `detectable` is the smallest worsening that would have failed the check with probability .8, in `unit`: None where
    the estimate is not gated, or nothing is known of its error. `decisive` is given where the change is beyond its
    tolerance and not significant: inconclusive. Of a `slope`, `baseline` and `current` are the ends of the line that is
    fitted to a history and the current result, in their order.
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
    degradation: float
    se: float | None
    se_points: float | None
    se_draws: float | None
    p_value: float | None
    p_adjusted: float | None
    tolerance: float | None
    outcome: Outcome
    label: str = ""
    of_class: str = ""
    group: str = ""
    detectable: float | None = None
    decisive: Decisive | None = None
    slope: bool = False

    @property
    def is_untested(self) -> bool:
        """Whether it is worse as a fact: the lost promise of a certificate about a class or group."""
        return self.outcome == "worse" and self.p_adjusted is None

    @property
    def is_gated(self) -> bool:
        """Whether it may fail the check."""
        return self.outcome != "not gated"

    @property
    def family(self) -> str:
        """Those that it is tested with: "by-class", "by-group", or "main", of all points."""
        return "by-class" if self.of_class else "by-group" if self.group else "main"

    @property
    def address(self) -> str:
        """The address of the estimate under `methods` in the JSON of `bnuq evaluate`: mcbn.sets.test.pll."""
        set_key = {"bound": self.set.removeprefix(BOUNDS)} if self.set.startswith(BOUNDS) else {"set": self.set}
        at = {"method": self.method, "label": self.label, "score": self.score, "metric": self.metric}
        at |= {"class": self.of_class, "group": self.group}
        return address_of(at if self.set == NORMALIZED else at | set_key)


@frozen
class Floor:
    """A required bound of an estimate, and its value; `relation` is the required relation of `value` to `bound`."""

    address: str
    relation: Literal[">=", "<="]
    bound: float
    value: float
    se: float | None

    @property
    def passed(self) -> bool:
        """Whether the requirement is met; never by NaN."""
        return self.value >= self.bound if self.relation == ">=" else self.value <= self.bound


@frozen
class CheckVerdict:
    """The outcome of a check. Comparisons come worst first; `baseline` and `pairing` are None if only required
    minimums were checked.

    `history` are the results whose mean is the baseline, oldest first; `baseline` is then the last of them.
    `gated` counts the comparisons that were tested together. If `inconclusive_fails`, one that is inconclusive fails
    the check. `accepted` is the file that the current result was accepted to as the new baseline, and `kept` the backup
    of the old one.
    """

    current: Side
    baseline: Side | None
    pairing: Pairing | None
    comparisons: tuple[EstimateComparison, ...]
    floors: tuple[Floor, ...]
    findings: tuple[Finding, ...]
    bnuq: str
    seconds: float
    accepted: Path | None = None
    kept: Path | None = None
    history: tuple[Side, ...] = ()
    inconclusive_fails: bool = False

    @property
    def of_gated(self) -> tuple[EstimateComparison, ...]:
        """The comparisons that may fail the check, worst first."""
        return tuple(each for each in self.comparisons if each.is_gated)

    @property
    def families(self) -> Counter[str]:
        """How many comparisons were tested together, by family; a lost promise of a class or group is none of them."""
        return Counter(each.family for each in self.comparisons if each.is_gated and not each.is_untested)

    @property
    def gated(self) -> int:
        """The number of comparisons that were tested."""
        return self.families.total()

    @property
    def worse(self) -> tuple[EstimateComparison, ...]:
        """The comparisons that got worse: they fail the check."""
        return self._of("worse")

    @property
    def inconclusive(self) -> tuple[EstimateComparison, ...]:
        """The comparisons beyond their tolerance that chance may explain."""
        return self._of("inconclusive")

    def _of(self, outcome: Outcome) -> tuple[EstimateComparison, ...]:
        return tuple(comparison for comparison in self.comparisons if comparison.outcome == outcome)

    @property
    def failing(self) -> tuple[EstimateComparison, ...]:
        """The comparisons for which the check does not pass."""
        return (*self.worse, *(self.inconclusive if self.inconclusive_fails else ()))

    @property
    def broken(self) -> tuple[Floor, ...]:
        """The required minimums that are not met."""
        return tuple(floor for floor in self.floors if not floor.passed)

    @property
    def passed(self) -> bool:
        """Whether nothing is worse, or inconclusive where that fails, and every requirement is met."""
        return not self.failing and not self.broken

    @property
    def failed(self) -> bool:
        """Whether the check fails: a regression that was accepted is reported, but does not fail it."""
        return bool(self.broken) or (bool(self.failing) and self.accepted is None)


# ── the summary ──────────────────────────────────────────────────────────────────────────────────────────────────────

_ERRORS = ("se", "se_points", "se_draws")
_NUMBERS = ("baseline", "current", "change", *_ERRORS, "p_value", "p_adjusted", "tolerance", "detectable")


def summary(verdict: CheckVerdict) -> dict[str, Any]:
    """The verdict as JSON values; infinities and NaN are the strings "inf", "-inf" and "nan", and unknown values of a
    side, a comparison or a requirement are absent."""
    shared = verdict.pairing
    return {
        "bnuq": verdict.bnuq,
        "schema": SCHEMA,
        "command": "check",
        "passed": verdict.passed,
        "current": _side(verdict.current),
        "baseline": None if verdict.baseline is None else _side(verdict.baseline),
        **({"history": [_side(side) for side in verdict.history]} if verdict.history else {}),
        "paired": None if shared is None else json_value(shared) | {"why_not": dict(shared.why_not)},
        "gated": verdict.gated,
        "comparisons": [_comparison(item) for item in verdict.comparisons],
        "floors": [_floor(item) for item in verdict.floors],
        **catalogue.summary(verdict.findings),
        "seconds": round(verdict.seconds, 3),
        **json_fields(verdict, "accepted", "kept"),
    }


def _side(side: Side) -> dict[str, Any]:
    values = {key.removeprefix("checkpoint_"): value for key, value in json_value(side).items()}
    return {key: value for key, value in values.items() if value not in (None, "")}


def _comparison(comparison: EstimateComparison) -> dict[str, Any]:
    coordinates = json_fields(comparison, "method", "set", "label", "score", "metric", "address", "group")
    coordinates |= {"class": comparison.of_class, "test": "slope" if comparison.slope else ""}
    decisive = comparison.decisive
    needed = {} if decisive is None else {"points": dict(decisive.points), "samples": decisive.samples}
    return {
        **{key: value for key, value in coordinates.items() if value},
        "unit": comparison.unit,
        **_known_numbers(comparison, _NUMBERS, always=("baseline", "current", "change")),
        "outcome": comparison.outcome,
        **({} if not comparison.is_gated else {"family": comparison.family}),
        **({} if decisive is None else {"decisive": {key: value for key, value in needed.items() if value}}),
    }


def _floor(floor: Floor) -> dict[str, Any]:
    numbers = _known_numbers(floor, ("bound", "value", "se"), always=("bound", "value"))
    return {"address": floor.address, "relation": floor.relation, **numbers, "passed": floor.passed}


def _known_numbers(record: Any, keys: tuple[str, ...], *, always: tuple[str, ...]) -> dict[str, float | str]:
    """The numbers that are known: an error of NaN is not."""
    numbers = {key: getattr(record, key) for key in keys}
    return {
        key: json_number(value)
        for key, value in numbers.items()
        if value is not None and (key in always or not math.isnan(value))
    }
