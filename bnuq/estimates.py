"""The types that all layers share: metrics, estimates, and the annotations of records."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec
import numpy as np

from bnuq.frozen import frozen

Direction = Literal["higher", "lower", "none"]
ARROWS: dict[Direction, str] = {"higher": "↑", "lower": "↓", "none": " "}
Estimator = Literal["plug-in", "corrected", "jackknife"]  # of mutual information, from finitely many draws


@frozen
class Metric:
    """Everything about a metric except its formula, for files, tables, sentences and the gate.

        `label` is its name in tables and sentences, `short` the name if there is little space. `direction` says which
    way is better, "none" where neither is (shown, never gated). `tolerance` is how much worse `bnuq check` lets it be
    by default: in its unit, or "1%" of the baseline's. `mc_error`: its Monte Carlo error is by the jackknife, or by the
    bootstrap where it goes in steps of 1/n. `digits` are the decimals shown, None if they depend on the scale of
    the targets; `percent`: sentences show it in percent. `worse` and `better` say what a change means: {who}, {where}
    and {truth} are the method, the set, and labels or targets. `meaning` is for legends: {unit} is what is right or
    wrong, {truth} the probability of the label or the density of the target.
    """

    name: str
    title: str
    label: str
    unit: str
    direction: Direction
    source: str
    short: str = ""
    tolerance: str = ""
    mc_error: Literal["jackknife", "bootstrap"] = "jackknife"
    digits: int | None = 4
    percent: bool = False
    worse: str = ""
    better: str = ""
    meaning: str = ""

    @property
    def arrow(self) -> str:
        """Which way is better, as a sign; a space where neither is."""
        return ARROWS[self.direction]


@frozen
class Estimate:
    """A number with its errors.

    `se` is the standard error over points, `mc_se` the Monte Carlo standard error over the T draws, `low` and `high`
    a 95 % interval over both; None if there is no such thing. `jackknife` holds the T leave-one-draw-out values and
    `bootstrap` those of the shared bootstrap weights over draws: two results can only be compared through them.
    """

    value: float
    se: float | None = None
    mc_se: float | None = None
    low: float | None = None
    high: float | None = None
    jackknife: np.ndarray | None = None
    bootstrap: np.ndarray | None = None


class Axis(str):
    """In an annotation, of a field that holds the coordinates of an axis: Annotated[tuple[str, ...], Axis("layer")]."""


class Coordinate(str):
    """In an annotation, of a field or of a mapping's keys: the estimates inside are found by it."""


class Prefix(str):
    """In an annotation of keys, what stands before a key in its coordinate: "normalized_" before "pll"."""


class Among(str):
    """In an annotation, of the names (separated by spaces) that this version knows: a file may have others."""


class Unit(str):
    """In an annotation, the unit of an array; without one it is that of the metric of this name."""


class ByHand(str):
    """In an annotation, of a field that the codec does not store: other code does."""


class FileOnly(str):
    """In an annotation, of a field that only the file holds: `--json` leaves it out."""


class InRecord(str):
    """In an annotation, of an array of a few numbers, which is stored in the record's JSON itself."""


Count = Annotated[int, msgspec.Meta(ge=0)]
Size = Annotated[int, msgspec.Meta(ge=1)]
MetricName = Annotated[str, Coordinate("metric")]


def require(values: Mapping[str, Any], **types: Any) -> None:
    """Raise ValueError if a value is missing, or not of its type; one that may be None may be missing."""
    for key, wanted in types.items():
        try:
            msgspec.convert(values.get(key), wanted)
        except msgspec.ValidationError as error:
            raise ValueError(f"{key}: {error}") from error
