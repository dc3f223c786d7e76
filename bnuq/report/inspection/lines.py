"""How an inspection's layers are ordered and named, and its numbers written."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

import numpy as np

from bnuq.records.evaluation import MEDIAN_LIMIT, WORST_LIMIT
from bnuq.records.inspection import Candidate, LayerGap, LayerNoise
from bnuq.report.drawing import short
from bnuq.report.numbers import count, number
from bnuq.report.sweep.lines import grouped, power

MEAN_OF_ABSOLUTE = math.sqrt(2 / math.pi)  # of what is normally distributed, in units of its root mean square
FOLDS = 24  # rows that are all shown

_RATIOS = ("ratio_mean", "ratio_log_variance")

T = TypeVar("T")


def brief(value: float) -> str:
    """Three digits, or two of a number below 1."""
    if not math.isfinite(value) or value == 0:
        return number(value, 0)
    digits = 1 if abs(value) < 1 else 2
    return grouped(value, min(9, max(0, digits - power(abs(value)))))


def times(ratio: float) -> str:
    """A ratio, of which the second decimal says nothing."""
    return number(ratio, 2) if abs(ratio) < 1 else brief(ratio) if abs(ratio) >= 100 else number(ratio, 1)


def percent(share: float) -> str:
    """Of a share, two digits, or all before the decimal point."""
    if not math.isfinite(share):
        return number(share)
    told = 100 * share
    return f"{grouped(told, 0) if abs(told) >= 10 else number(told, 1) if abs(told) >= 1 else brief(told)} %"


def ratio_of(layer: LayerGap) -> float:
    """The larger of mean and log variance; NaN where neither is known."""
    return float(np.fmax(layer.ratio_mean, layer.ratio_log_variance))


def median_of(layers: Sequence[LayerGap]) -> float:
    """The larger of the medians of mean and of log variance, which the reference check goes by; NaN without either."""
    mean, log_variance = (median([getattr(one, key) for one in layers]) for key in _RATIOS)
    return float(np.fmax(mean, log_variance))


def values_of(layer: LayerNoise) -> float:
    """The independent values that the noisier of mean and deviation moves like; NaN where neither is known."""
    return float(np.fmin(layer.values_mean, layer.values_deviation))


def share_of(values: float, layer: LayerNoise) -> float:
    return values / layer.nominal if layer.nominal else math.nan


def worst_first(rows: Iterable[T], by: Callable[[T], float]) -> list[T]:
    """The rows by what is known of them, largest first; those of which nothing is known last, in their order."""
    return sorted(rows, key=lambda row: -math.inf if math.isnan(value := by(row)) else value, reverse=True)


def median(values: Sequence[float]) -> float:
    known = [value for value in values if not math.isnan(value)]
    return statistics.median(known) if known else math.nan


def style_of(ratio: float, limit: float = WORST_LIMIT) -> str:
    """How a ratio to batch noise is coloured: too much, more than expected, or normal."""
    return "bold red" if ratio > limit else "yellow" if ratio > MEDIAN_LIMIT else "green" if ratio >= 0 else ""


def named(names: Sequence[str], most: int = 3) -> str:
    """Names in a sentence: the first of them, and how many more."""
    told = [short(name, 48) for name in names]
    if len(told) > most + 1:
        told = [*told[:most], f"{len(told) - most} others"]
    return " and ".join(filter(None, (", ".join(told[:-1]), *told[-1:])))


def pipeline_of(one: Candidate) -> str:
    """What a candidate does, in words."""
    parts = ["no normalisation" if one.normalize is None else f"{short(one.normalize, 40)}"]
    parts += ["BGR"] * (one.channel_order == "bgr") + ["pixels 0–255"] * (one.scale == 255)
    return ", ".join([*parts, short(one.augment, 60) or "no augmentation"])


def are(amount: int, what: str, one: str = "is", many: str = "are") -> str:
    return f"{count(amount, what)} {one if amount == 1 else many}"
