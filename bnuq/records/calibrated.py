"""Whether an expected calibration error is more than what chance gives a calibrated classifier on so many points."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bnuq import metrics
from bnuq.frozen import frozen
from bnuq.records.evaluation import Result

_BLIND = 0.1  # of a floor that would hide even such an ECE
_LEVELS = 0.9, 0.95, 0.99  # of the ECEs of a calibrated classifier: clearly within them, `high`, clearly beyond


@frozen
class EceFloor:
    """The ECE of a calibrated classifier with the confidences of a method: its mean, and what 95 % do not exceed;
    `within` what 90 % do not, and `beyond` what 99 % do not."""

    mean: float
    within: float
    high: float
    beyond: float


def ece_floor(result: Result, method: str) -> EceFloor | None:
    """Of the test set, computed once while the record lives; None where points are no single predictions of classes."""
    floors: dict[str, EceFloor | None] = result.computed.setdefault("ECE floors", {})
    if method not in floors:
        curve, test = result.methods[method].calibration, result.methods[method].sets["test"]
        is_known = "ece" in test.estimates and {"count", "confidence"} <= curve.keys()
        is_known = is_known and result.task.unit == "examples"
        floors[method] = (
            EceFloor(*metrics.ece_floor(curve["count"], curve["confidence"], levels=_LEVELS)) if is_known else None
        )
    return floors[method]


def calibration_of(result: Result, method: str) -> Mapping[str, Any]:
    """Whether a method is "indistinguishable" from calibrated or "not", and the numbers behind it; nothing where there
    is no floor. "Undecided" where more than 1 % but less than 10 % of calibrated classifiers have such an ECE, so that
    no digit of it decides, where points are so few that the floor hides what counts, or in groups: without numbers, as
    the floor is that of independent points."""
    if (floor := ece_floor(result, method)) is None:
        return {}
    value = result.methods[method].sets["test"].estimates["ece"].value
    if result.sets["test"].group is not None:
        return {"calibrated": "undecided"}
    is_close = value > floor.within or floor.high > _BLIND
    known = "not" if value > floor.beyond else "undecided" if is_close else "indistinguishable"
    return {"calibrated": known, "ece": [value, floor.mean, floor.high]}
