"""The verdicts on batch noise: whether values are independent, and how noise depends on size."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from bnuq.estimates import Estimate
from bnuq.findings import Finding, verdict
from bnuq.metrics.noise import small_sample_slope
from bnuq.records.inspection import LayerNoise, NoiseBySize
from bnuq.report.inspection.layer_numbers import least_share, share_of, worst_first
from bnuq.report.numbers import interval_of

_HALF, _MORE = 0.5, 2.0  # of the nominal values: what is between them is nearly independent
_NEAR = 0.1  # of −1, where a slope is as expected


def noise_findings(noise: NoiseBySize) -> Iterator[Finding]:
    yield from independence(noise)
    yield from _slopes(noise)


def independence(noise: NoiseBySize) -> Iterator[Finding]:
    """Whether a channel's values are as good as independent, and the error of a noise model of nominal n; nothing if
    that is unknown."""
    layers = worst_first(
        (layer for layer in noise.layers if math.isfinite(least_share(layer))), lambda layer: -least_share(layer)
    )
    if not layers:
        return
    worst, share = layers[0], least_share(layers[0])
    if not share > 0:
        yield verdict("values-fully-dependent", layer=worst.name)
        return
    if share < _HALF:
        dependent = sum(least_share(layer) < _HALF for layer in layers)
        values = {"nominal": worst.nominal, "effective": share * worst.nominal, "factor": 1 / math.sqrt(share)}
        yield verdict("values-dependent", layer=worst.name, layers=dependent, of=len(layers), **values)
        return
    shares = [share_of(values, layer) for layer in layers for values in (layer.values_mean, layer.values_deviation)]
    within = "within a factor √2 of" if all(share <= _MORE for share in shares) else "at most √2 times"
    yield verdict("values-independent", layer=worst.name, share=share, within=within)


def _slopes(noise: NoiseBySize) -> Iterator[Finding]:
    """Whether the noise falls as 1/b, as far as slopes are known."""
    known = {layer.name: layer.slope for layer in noise.layers if layer.slope is not None}
    slopes = {name: slope for name, slope in known.items() if math.isfinite(slope.value)}
    if not slopes:
        return
    judged = [(layer.name, _judged(layer, slopes[layer.name], noise)) for layer in noise.layers if layer.name in slopes]
    off, uncertain = ([name for name, judgement in judged if judgement == outcome] for outcome in ("off", "uncertain"))
    values = [slope.value for slope in slopes.values()]
    if len(uncertain) == len(judged):
        yield verdict("slopes-uncertain", slopes=values)
        return
    yield verdict("slopes-off" if off else "slopes-expected", slopes=values, layers=off, of=len(judged))


def _judged(layer: LayerNoise, slope: Estimate, noise: NoiseBySize) -> str:
    """Whether the slope is near the expected one, surely is not, or may be either."""
    low, high = interval_of(slope)
    expected = small_sample_slope(np.array(noise.sizes, np.float64) * layer.positions) or -1.0
    if abs(slope.value - expected) <= _NEAR:
        return "expected"
    return "uncertain" if low <= expected <= high else "off"
