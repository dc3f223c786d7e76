"""Order and names of an inspection's layers, and the format of its numbers."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

import numpy as np

from bnuq.findings import all_of
from bnuq.records.evaluation import MEDIAN_LIMIT, WORST_LIMIT
from bnuq.records.inspection import LayerGap, LayerNoise, PipelineFit
from bnuq.report.drawing import short
from bnuq.report.numbers import exponent, grouped, number

MEAN_OF_ABSOLUTE = math.sqrt(2 / math.pi)  # of what is normally distributed, in units of its root mean square

T = TypeVar("T")


def brief(value: float) -> str:
    """Three digits, or two of a number below 1."""
    if not math.isfinite(value) or value == 0:
        return number(value, 0)
    digits = 1 if abs(value) < 1 else 2
    return grouped(value, min(9, max(0, digits - exponent(value))))


def times(ratio: float) -> str:
    """A ratio, whose second decimal is noise."""
    return number(ratio, 2) if abs(ratio) < 1 else brief(ratio) if abs(ratio) >= 100 else number(ratio, 1)


def ratio_of(layer: LayerGap) -> float:
    """The larger of mean and log variance; NaN if neither is known."""
    return float(np.fmax(layer.ratio_mean, layer.ratio_log_variance))


def median_of(layers: Sequence[LayerGap]) -> float:
    """The larger of the medians of mean and of log variance, by which the reference check decides; NaN without
    either."""
    mean = median([layer.ratio_mean for layer in layers])
    return float(np.fmax(mean, median([layer.ratio_log_variance for layer in layers])))


def share_of(values: float, layer: LayerNoise) -> float:
    """An effective sample size as a share of the layer's values."""
    return values / layer.nominal if layer.nominal else math.nan


def least_share(layer: LayerNoise) -> float:
    """The effective sample size of the noisier of mean and deviation, as a share; NaN if neither is known."""
    return share_of(float(np.fmin(layer.values_mean, layer.values_deviation)), layer)


def worst_first(rows: Iterable[T], by: Callable[[T], float]) -> list[T]:
    """The rows by size, largest first; those of which nothing is known last, in their order."""
    return sorted(rows, key=lambda row: -math.inf if math.isnan(value := by(row)) else value, reverse=True)


def median(values: Sequence[float]) -> float:
    """The median of what is known; NaN if nothing is."""
    known = [value for value in values if not math.isnan(value)]
    return statistics.median(known) if known else math.nan


def style_of(ratio: float, limit: float = WORST_LIMIT) -> str:
    """How a ratio to batch noise is coloured: too much, more than expected, or normal."""
    return "bold red" if ratio > limit else "yellow" if ratio > MEDIAN_LIMIT else "green" if ratio >= 0 else ""


def listed(names: Sequence[str], most: int = 3) -> str:
    """Names in a sentence: the first of them, and how many more."""
    words = [short(name, 48) for name in names]
    if len(words) > most + 1:
        words = [*words[:most], f"{len(words) - most} others"]
    return all_of(words) if words else ""


def pipeline_of(candidate: PipelineFit) -> str:
    """What a candidate does, in words."""
    parts = ["no normalisation" if candidate.normalize is None else short(candidate.normalize, 40)]
    parts += ["BGR"] * (candidate.channel_order == "bgr") + ["pixels 0–255"] * (candidate.scale == 255)
    return ", ".join([*parts, short(candidate.augment, 60) or "no augmentation"])
