"""Measured noise: the law holds for independent Gaussian values, and every way of breaking it is told."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

from bnuq.config import PointSettings
from bnuq.data import Points
from bnuq.evaluation.pipeline import Pipeline
from bnuq.evaluation.population import reference_batches
from bnuq.progress import silent
from bnuq.sampling.site_search import find_sites
from bnuq.sampling.sites import BatchNormSite
from bnuq.studies.inspect.health import batch_statistics
from bnuq.studies.inspect.noise import _spatial_slope, noise, sizes_for
from bnuq.studies.inspect.record import LayerNoise, NoiseBySize

CHANNELS = 24


def noise_of(
    values: np.ndarray, *, batch_size: int = 64, sizes: tuple[int, ...] = (32, 64, 128), draws: int = 100, seed: int = 0
) -> NoiseBySize:
    """The noise of a network that is a single BatchNorm over the channels of `values`."""
    model = (nn.BatchNorm1d if values.ndim < 4 else nn.BatchNorm2d)(values.shape[1]).eval()
    points = Points("train", "train", values.astype(np.float32))
    pipeline = Pipeline(PointSettings(seed=seed), torch.device("cpu"))
    sites = find_sites(model, torch.from_numpy(values[:3].astype(np.float32))).live_batchnorms
    bank = batch_statistics(model, reference_batches(pipeline, points, points=10_000, batch_size=64), sites, silent)
    return noise(
        model, pipeline, points, sites, bank.pooled(),
        batch_size=batch_size, draws=draws, sizes=sizes, size_draws=draws, progress=silent,
    )  # fmt: skip


def gaussian(n: int, *shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(1.0, 3.0, (n, CHANNELS, *shape))


@pytest.fixture(scope="module")
def independent() -> LayerNoise:
    return noise_of(gaussian(8000)).layers[0]


def test_independent_gaussian_values_obey_the_law(independent):
    n = 64
    assert (independent.nominal, independent.positions, independent.channels) == (n, 1, CHANNELS)
    assert independent.sigma_v == pytest.approx(1 / math.sqrt(n), rel=0.06)
    assert independent.sigma_u == pytest.approx(1 / math.sqrt(2 * n), rel=0.1)
    assert independent.values_mean == pytest.approx(n, rel=0.1)
    assert independent.values_deviation == pytest.approx(n, rel=0.1)
    assert independent.rejected == independent.rejected_fitted == 0
    assert independent.unbiased_scale == pytest.approx(math.sqrt(64 / 63))


def test_the_variance_falls_as_one_over_the_batch_size(independent):
    sizes = np.array([32, 64, 128])
    expected, _ = np.polyfit(np.log(sizes), -np.log(sizes - 3), 1)
    assert independent.slope is not None and independent.slope.value == pytest.approx(expected, abs=0.06)
    np.testing.assert_allclose(independent.variances, 1 / (sizes - 3), rtol=0.1)


@pytest.mark.parametrize(("n", "batch_size", "draws"), [(4000, 512, 100), (400, 128, 200)])
def test_draws_of_more_values_than_the_population_has_are_held_against_the_laws_shape(n, batch_size, draws):
    layer = noise_of(gaussian(n), batch_size=batch_size, sizes=(batch_size,), draws=draws).layers[0]
    assert layer.rejected == layer.rejected_fitted == 0


def test_copies_of_a_value_count_once():
    layer = noise_of(np.repeat(gaussian(6000)[:, :, None], 9, axis=2), sizes=(64,)).layers[0]
    assert (layer.nominal, layer.positions) == (9 * 64, 9)
    assert layer.values_mean == pytest.approx(64, rel=0.12)
    assert layer.values_deviation == pytest.approx(64, rel=0.12)
    assert layer.rejected > 0.9 and layer.rejected_fitted == 0
    assert layer.slope is None  # of one size


def test_independent_positions_all_count():
    layer = noise_of(gaussian(1500, 4, 4), batch_size=16, sizes=(8, 16, 32)).layers[0]
    assert layer.nominal == 256
    assert layer.values_mean == pytest.approx(256, rel=0.12)
    assert layer.rejected == 0


def test_a_small_reference_does_not_pass_for_more_values():
    """Half the points are drawn each time: the variance of their mean is half of what independent draws have."""
    layer = noise_of(gaussian(128), sizes=(8, 16, 32, 64)).layers[0]
    assert layer.sigma_v == pytest.approx(math.sqrt(1 / 64 / 2), rel=0.1)
    assert layer.values_mean == pytest.approx(64, rel=0.15)
    assert layer.slope is not None and layer.slope.value == pytest.approx(-1.1, abs=0.15)


def test_channels_that_do_not_vary_are_left_out():
    values = gaussian(2000)
    values[:, 3] = 5.0
    layer = noise_of(values, sizes=(64,)).layers[0]
    assert layer.spread.shape == (100, CHANNELS)
    assert np.isnan(layer.spread[:, 3]).all() and np.isfinite(np.delete(layer.spread, 3, axis=1)).all()
    assert layer.sigma_v == pytest.approx(1 / 8, rel=0.1)


def test_a_layer_without_a_channel_that_varies_has_no_estimates():
    layer = noise_of(np.full((500, CHANNELS), 2.0), sizes=(32, 64, 128)).layers[0]
    assert math.isnan(layer.sigma_u) and math.isnan(layer.values_mean) and layer.slope is None


def test_a_layer_without_estimates_does_not_take_the_slope_over_positions_with_it():
    positions, variances = np.array([1, 4, 16, 64, 64]), np.array([1.0, 0.5, 0.25, 0.125, math.nan])
    slope = _spatial_slope(positions, variances)
    assert slope is not None and slope.value == pytest.approx(-0.5)
    assert _spatial_slope(positions[3:], variances[3:]) is None


def test_draws_are_the_seeds_and_sizes_share_none():
    values = gaussian(3000)
    one, again, other = (noise_of(values, draws=20, seed=seed, sizes=(32, 64)).layers[0] for seed in (0, 0, 1))
    np.testing.assert_array_equal(one.spread, again.spread)
    assert (one.spread != other.spread).all()
    alone = noise_of(values, draws=20, sizes=(64,)).layers[0]  # whatever sizes are drawn beside it
    np.testing.assert_array_equal(one.spread, alone.spread)


def site(positions: int) -> BatchNormSite:
    return BatchNormSite("bn", 0, channels=4, positions=positions)


@pytest.mark.parametrize(
    ("positions", "batch_size", "reference", "sizes"),
    [
        ((1024, 64), 128, 4660, (8, 16, 32, 64, 128)),
        ((1, 1), 128, 60_000, (32, 64, 128, 256, 512)),  # dense layers cost nothing
        ((1,), 128, 1500, (32, 47, 69, 102, 128)),  # at most a tenth of the reference, which 128 is near
        ((256, 1), 128, 60_000, (32, 45, 64, 91, 128)),  # a dense layer behind convolutions
        ((256, 1), 32, 60_000, (32, 45, 64, 91, 128)),  # beyond b, where it would see too few values
        ((64,), 4, 100, (2, 3, 4)),
        ((64,), 2, 100, (2,)),
    ],
)
def test_the_sizes_leave_values_enough(positions, batch_size, reference, sizes):
    assert sizes_for([site(z) for z in positions], batch_size=batch_size, reference=reference) == sizes


def test_sizes_may_go_beyond_the_batch_size():
    assert sizes_for([site(64)], batch_size=32, reference=4660, beyond=8) == (16, 32, 64, 128, 256)
    assert sizes_for([site(64)], batch_size=30, reference=4660, beyond=8) == (15, 30, 60, 120, 240)
    assert 16 in sizes_for([site(81)], batch_size=16, reference=600, beyond=8)
    assert sizes_for([site(1)], batch_size=4, reference=60_000)[0] == 32  # 4 values tell nothing
    assert sizes_for([site(64)], batch_size=32, reference=1000, beyond=8)[-1] == 100
