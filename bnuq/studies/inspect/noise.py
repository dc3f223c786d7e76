"""Measures the noise of batch statistics at several mini-batch sizes, and compares each layer with its noise model."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from torch import nn

from bnuq.data import Points
from bnuq.estimates import Estimate
from bnuq.evaluation.draws import MiniBatchDrawing
from bnuq.evaluation.pipeline import Pipeline
from bnuq.metrics import effective_counts, finite_population_factor
from bnuq.metrics.noise import (
    chi2_p_values,
    fitted_freedom,
    log_slope,
    rejected_share,
    scaled_to_freedom,
    statistics_noise,
    unbiased_scale,
)
from bnuq.progress import Progress
from bnuq.sampling import counter_rng
from bnuq.sampling.batch_statistics import BatchStatistics, LayerStatistics
from bnuq.sampling.sites import BatchNormSite
from bnuq.studies.inspect.record import LayerNoise, NoiseBySize

SIZES = 5  # number of mini-batch sizes that the slope is fitted to
PREFERRED_VALUES, MIN_VALUES = 32, 8  # values per channel at the smallest size: preferred, and minimum
DRAW_OFFSET = 2**20  # offset between the draw numbers of different sizes, so that sizes share no batch


def noise(
    model: nn.Module,
    pipeline: Pipeline,
    points: Points,
    sites: Sequence[BatchNormSite],
    population: BatchStatistics,
    *,
    batch_size: int,
    draws: int,
    sizes: Sequence[int],
    size_draws: int,
    progress: Progress,
) -> NoiseBySize:
    """The noise about `population` (a single draw) of `draws` mini-batches of `points` at `batch_size`, and of
    `size_draws` at each of `sizes`, through the training pipeline; all of them independent of each other.

    Channels whose population variance is below 10 ε, or that are constant in some mini-batch, have no meaningful noise:
    they are left out of every mean, and NaN in `spread`. A layer without other channels has NaN estimates.
    """
    draws_of_sizes = dict.fromkeys(sorted(sizes), size_draws) | {batch_size: draws}
    purposes = counter_rng.NOISE, counter_rng.NOISE_AUGMENT
    banks = {}
    for size, count in draws_of_sizes.items():
        numbers = range(DRAW_OFFSET * size, DRAW_OFFSET * size + count)
        title = f"Measuring the noise of {count} mini-batches of {size}"
        banks[size] = MiniBatchDrawing(model, pipeline, points, size, sites, purposes, title).drawn(numbers, progress)
    measured = tuple(
        _layer(
            site,
            population.layers[number],
            {size: bank.layers[number] for size, bank in banks.items()},
            batch_size=batch_size,
            sizes=sizes,
            reference=len(points),
        )
        for number, site in enumerate(sites)
    )
    return NoiseBySize(
        batch_size=batch_size,
        draws=draws,
        sizes=tuple(sizes),
        layers=tuple(layer for layer, _ in measured),
        spatial_slope=_spatial_slope(
            np.array([layer.positions for layer, _ in measured]),
            np.array([batch_size * variance for _, variance in measured]),
        ),
    )


def _spatial_slope(positions: np.ndarray, variances: np.ndarray) -> Estimate | None:
    """The slope over the layers that have a variance."""
    usable = np.isfinite(variances) & (variances > 0)
    return log_slope(positions[usable], variances[usable])


def sizes_for(sites: Sequence[BatchNormSite], *, batch_size: int, reference: int, beyond: int = 1) -> tuple[int, ...]:
    """The mini-batch sizes that the slope is fitted to: five, evenly spaced by ratio, over a factor of up to 16, from
    `beyond` times `batch_size` down to 32 values per channel in every layer, or to 8 where the range would be too
    small.

    Where a dense layer has too few values at a small `batch_size`, larger sizes are used: up to four times as many as
    are enough, or 16 times in a network of dense layers alone, if that is cheap; at most a tenth of the reference.
    `batch_size` replaces the nearest size, unless it leaves too few values.
    """
    positions = [site.positions for site in sites]
    enough, least = (max(2, math.ceil(values / min(positions))) for values in (PREFERRED_VALUES, MIN_VALUES))
    fold = 16 if max(positions) == 1 else 4 if min(positions) == 1 else 0
    draws_of_sizes = max(beyond * batch_size, fold * enough)
    top = max(batch_size, min(draws_of_sizes, reference // 10))
    bottom = max(enough if top >= 4 * enough else least, round(top / 16))
    if bottom >= top:
        return (batch_size,)
    sizes = np.unique(np.geomspace(bottom, top, SIZES).round())
    if batch_size >= bottom:
        sizes[np.argmin(np.abs(np.log(sizes / batch_size)))] = batch_size
    return tuple(int(size) for size in sizes)


def _layer(
    site: BatchNormSite,
    population: LayerStatistics,
    layer_at_size: Mapping[int, LayerStatistics],
    *,
    batch_size: int,
    sizes: Sequence[int],
    reference: int,
) -> tuple[LayerNoise, float]:
    """The noise of one layer, and the variance of its normalised value at x = μ at `batch_size`, for an infinite
    reference."""
    mean, var = (values[0].astype(np.float64) for values in (population.mean, population.var))
    live = var >= 10 * site.eps
    for layer in layer_at_size.values():
        live &= (layer.var > 0).all(axis=0)
    factors = {size: float(finite_population_factor(size, population=reference)) for size in layer_at_size}

    def statistics_at(size: int) -> tuple[np.ndarray, np.ndarray]:
        return layer_at_size[size].mean[:, live], layer_at_size[size].var[:, live]

    def variance(size: int) -> float:
        if not live.any() or not factors[size]:
            return math.nan
        measured = statistics_noise(*statistics_at(size), population_mean=mean[live], population_var=var[live])
        return measured.output_variance / factors[size]

    layer_draws = layer_at_size[batch_size]
    nominal = int(layer_draws.count[0])
    spread = np.full(layer_draws.var.shape, np.nan, dtype=np.float32)
    estimates = dict.fromkeys(
        ("sigma_u", "sigma_v", "values_mean", "values_deviation", "rejected", "rejected_fitted"), math.nan
    )
    if live.any():
        measured = statistics_noise(*statistics_at(batch_size), population_mean=mean[live], population_var=var[live])
        counts = effective_counts(*statistics_at(batch_size), batch_size=batch_size, population=reference)
        spread[:, live] = measured.spread
        freedom = fitted_freedom(measured.spread)
        varied = np.isfinite(freedom)  # constant channels are left out
        estimates = {
            "sigma_u": measured.sigma_u,
            "sigma_v": measured.sigma_v,
            "values_mean": counts.mean * batch_size,
            "values_deviation": counts.sd * batch_size,
            "rejected": _rejected(measured.spread, (nominal - 1) / factor)
            if (factor := factors[batch_size])
            else math.nan,
            "rejected_fitted": _rejected(measured.spread[:, varied], freedom[varied]),
        }
    variances = np.array([variance(size) for size in sizes])
    layer = LayerNoise(
        name=site.name,
        channels=layer_draws.var.shape[1],
        positions=site.positions,
        nominal=nominal,
        slope=log_slope(np.array(sizes), variances),
        variances=variances,
        unbiased_scale=unbiased_scale(nominal),
        spread=spread,
        **estimates,
    )
    return layer, variance(batch_size)


def _rejected(spread: np.ndarray, freedom: float | np.ndarray) -> float:
    """The share of channels whose S² does not follow a scaled χ² with `freedom` degrees of freedom.

    Drawing without replacement reduces the variance of S² as it does that of the mean; more degrees of freedom account
    for it.
    """
    return rejected_share(chi2_p_values(scaled_to_freedom(spread, freedom=freedom), freedom=freedom))
