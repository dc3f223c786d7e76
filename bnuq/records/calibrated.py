"""Whether an expected calibration error is more than what chance gives a calibrated classifier on so many points."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bnuq import metrics
from bnuq.frozen import frozen
from bnuq.records.evaluation import Result

_BLIND = 0.1  # of a floor that would hide even such an ECE


@frozen
class EceFloor:
    """The ECE of a calibrated classifier with the confidences of a method: its mean, and what 95 % do not exceed."""

    mean: float
    high: float


def ece_floor(result: Result, method: str) -> EceFloor | None:
    """Of the test set, computed once while the record lives; None where points are no single predictions of classes."""
    floors: dict[str, EceFloor | None] = result.computed.setdefault("ECE floors", {})
    if method not in floors:
        curve, test = result.methods[method].calibration, result.methods[method].sets["test"]
        is_known = "ece" in test.estimates and {"count", "confidence"} <= curve.keys()
        is_known = is_known and result.task.unit == "examples"
        floors[method] = EceFloor(*metrics.ece_floor(curve["count"], curve["confidence"])) if is_known else None
    return floors[method]


def calibration_of(result: Result, method: str) -> Mapping[str, Any]:
    """Whether a method is "indistinguishable" from calibrated or "not", "undecided" where its points are in groups or
    so few that the floor hides what counts, and the numbers behind it; nothing where there is no floor."""
    if (floor := ece_floor(result, method)) is None:
        return {}
    value = result.methods[method].sets["test"].estimates["ece"].value
    known = "indistinguishable" if value <= floor.high else "not"
    is_blind = result.sets["test"].group is not None or (value <= floor.high and floor.high > _BLIND)
    return {"calibrated": "undecided" if is_blind else known, "ece": [value, floor.mean, floor.high]}
