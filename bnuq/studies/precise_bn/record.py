"""The record of a `bnuq precise-bn` run: what it changed in a checkpoint, and whether that helped."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal

from bnuq.config import PopulationEstimator
from bnuq.estimates import Direction, Estimate
from bnuq.findings import Finding
from bnuq.frozen import frozen
from bnuq.records.as_json import shown


@frozen
class LayerChange:
    """How far the running statistics of a BatchNorm moved.

    `shift` is the root mean square over channels of (new mean − old mean)/new standard deviation, `log_variance` the
    mean of |ln(new variance/old variance)|. Both are over the channels that are alive, NaN if none is: `dead` of
    them have a new variance below 10 ε or an old one of 0, and `not_finite` had a NaN or infinity. `never_trained` ones
    were at (0, 1).
    """

    name: str
    channels: int
    shift: float
    log_variance: float
    dead: int = 0
    not_finite: int = 0
    never_trained: bool = False


@frozen
class EstimateChange:
    """An estimate of the test set before and after; the error of `change` is that over points, which both share."""

    before: Estimate
    after: Estimate
    change: Estimate
    direction: Direction

    @shown
    def verdict(self) -> Literal["better", "worse", "same", "unknown"]:
        """Whether it changed for the better by more than twice the error of the change, or for the worse.

        Where one side is infinite the sign of the change decides; else, without a finite error, it is "unknown".
        """
        change, error = self.change.value, self.change.se
        if not math.isinf(change):
            if math.isnan(change) or error is None or not math.isfinite(error):
                return "unknown"
            if abs(change) <= 2 * error:
                return "same"
        return "better" if (change > 0) == (self.direction == "higher") else "worse"


@frozen
class TestChange:
    """What the change did to the test set: "accuracy" and "pll", or "rmse" and "mae", and, where τ is known, "pll" and
    "crps"."""

    __test__ = False  # for pytest

    reference: str
    sha256: str
    n: int
    estimates: Mapping[str, EstimateChange]


@frozen
class PreciseBN:
    """Everything that one `bnuq precise-bn` did. `points` passed, of `reference_points`, in `batches` mini-batches of
    at most `batch_size`; `test` is None if there was no test set. `path` is the checkpoint that was written."""

    KIND: ClassVar[str] = "precise-bn"
    COMMAND: ClassVar[str] = "precise-bn"

    model: Mapping[str, Any]
    estimator: PopulationEstimator
    reference: str
    reference_points: int
    points: int
    batch_size: int
    batches: int
    seed: int
    device: str
    layers: tuple[LayerChange, ...]
    test: TestChange | None
    findings: tuple[Finding, ...]
    seconds: Mapping[str, float]
    provenance: Mapping[str, Any]
    path: Path
