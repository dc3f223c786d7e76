"""Analytic noise models of ω: draws from a model of the noise of batch statistics, in place of mini-batches; an
approximation of MCBN."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from bnuq.frozen import frozen
from bnuq.methods import Variance
from bnuq.metrics.arrays import as_float64
from bnuq.sampling import counter_rng
from bnuq.sampling.batch_statistics import BatchStatistics, LayerStatistics
from bnuq.sampling.sites import BatchNormSite
from bnuq.shapes import Float64

MIN_VALUES = 2.0  # independent values: fewer have no variance


@frozen
class LayerNoiseModel:
    """The factorised noise model of one layer: mean and variance (C,) of its population, and the effective sample sizes
    of the mini-batch's mean and deviation per channel; `count` is the nominal number of values, b·z."""

    name: str
    eps: float
    mean: Float64[np.ndarray, " channel"]
    var: Float64[np.ndarray, " channel"]
    values_mean: float
    values_deviation: float
    count: int


def noise_model_of(
    site: BatchNormSite, *, batch_size: int, density: tuple[float, float] | None, shrink: float
) -> LayerNoiseModel:
    """The noise model of one layer around its running statistics, for mini-batches of `batch_size`.

    `density` holds the effective sample sizes of the mean and of the deviation per item of the mini-batch; None: all
    positions (nominal). `shrink` is the finite-population factor (N − b)/(N − 1) of a variance.
    """
    assert site.running_mean is not None and site.running_var is not None
    mean_density, deviation_density = density or (site.positions, site.positions)
    return LayerNoiseModel(
        name=site.name,
        eps=site.eps,
        mean=as_float64(site.running_mean),
        var=as_float64(site.running_var),
        values_mean=batch_size * mean_density / shrink,
        values_deviation=max(MIN_VALUES, batch_size * deviation_density / shrink),
        count=batch_size * site.positions,
    )


def draw_chi2(
    layers: Sequence[LayerNoiseModel], draws: range, *, seed: int, variance: Variance = "biased", **fields: Any
) -> BatchStatistics:
    """ω of independent Gaussian values: M ∼ N(μ, σ²/n), n·S²/σ² ∼ χ² with n − 1 degrees of freedom, all independent.

    With different counts n_V for the mean and n_U for the deviation: S² ∼ σ²·(1 − 1/n_V)·χ²_ν/ν with ν = n_U − 1, which
    is the same where they agree. "unbiased" multiplies S² by n/(n − 1), n the nominal count. Draw t depends only on
    (seed, t) and the layer's position in `layers`; `fields` are the bank's other fields.

    Source: Shekhovtsov & Flach 2018, §3.1, with S² dividing by n, as batch normalisation does.
    """

    from scipy.special import gammaincinv  # late, as everywhere: a sixth of a second

    def drawn(layer: LayerNoiseModel, order: int) -> LayerStatistics:
        degrees = layer.values_deviation - 1
        uniform = _uniform(draws, counter_rng.NOISE_MODEL_CHI2, len(layer.mean), seed=seed, site=order)
        ratio = 2 * gammaincinv(degrees / 2, uniform) / degrees
        return _layer(
            layer, _means(layer, order, draws, seed), layer.var * max(0.0, 1 - 1 / layer.values_mean) * ratio, variance
        )

    return BatchStatistics(
        tuple(drawn(layer, order) for order, layer in enumerate(layers)), seed=seed, variance=variance, **fields
    )


def draw_gaussian(
    layers: Sequence[LayerNoiseModel], draws: range, *, seed: int, variance: Variance = "biased", **fields: Any
) -> BatchStatistics:
    """ω of the central limit: M ∼ N(μ, σ²/n), S ∼ N(σ, (κ − 1)σ²/(4n)) above 0, all independent.

    A measured count of the deviation includes the kurtosis κ; a nominal count assumes κ = 3. S is truncated: drawn from
    the normal distribution above 0. Draw t depends only on (seed, t). Source: Teye et al. 2018, footnotes 8 and 9.
    """

    from scipy.special import ndtr, ndtri

    def drawn(layer: LayerNoiseModel, order: int) -> LayerStatistics:
        sd = np.sqrt(1 / (2 * layer.values_deviation))  # of S/σ
        below = ndtr(-1 / sd)  # the probability that S < 0
        uniform = _uniform(draws, counter_rng.NOISE_MODEL_CHI2, len(layer.mean), seed=seed, site=order)
        ratio = 1 + sd * ndtri(below + (1 - below) * uniform)
        return _layer(layer, _means(layer, order, draws, seed), layer.var * np.maximum(ratio, 0) ** 2, variance)

    return BatchStatistics(
        tuple(drawn(layer, order) for order, layer in enumerate(layers)), seed=seed, variance=variance, **fields
    )


def draw_empirical(recorded: BatchStatistics, draws: range, *, seed: int, covariance: str) -> BatchStatistics:
    """ω of a Gaussian in (M, ln(S² + ε)) with the moments (divisor R − 1) of R recorded draws.

    `covariance` says what varies jointly: the two statistics of a "channel", all of a "layer", or the whole "network";
    everything else is independent. With "layer:k" a layer keeps the k principal directions of its correlations, and
    the remaining variance as independent noise. Draw t depends only on (seed, t).

    The ε in the logarithm is the layer's: the effect of a channel depends on S² + ε, also where S² is 0.
    """
    together, _, directions = covariance.partition(":")
    layers = []
    for order, layer in enumerate(recorded.layers):
        eps = np.float64(layer.eps)
        values = np.concatenate([layer.mean, np.log(layer.var.astype(np.float64) + eps)], axis=1).astype(np.float64)
        centre, deviations = values.mean(axis=0), values - values.mean(axis=0)
        site = 0 if together == "network" else order
        if together == "channel":
            noise = _per_channel(deviations, draws, seed=seed, site=site)
        else:
            noise = _joint(deviations, draws, seed=seed, site=site, directions=int(directions) if directions else None)
        mean, log = np.split(centre + noise, 2, axis=1)
        var = np.maximum(np.exp(log) - eps, 0)
        count = np.full(len(draws), layer.count[0], dtype=np.int64)
        layers.append(LayerStatistics(layer.name, layer.eps, mean, var, count))
    return BatchStatistics(
        tuple(layers), recorded.fingerprint, recorded.batch_size, seed=seed, variance=recorded.variance
    )


def _joint(
    deviations: Float64[np.ndarray, "recorded unit"], draws: range, *, seed: int, site: int, directions: int | None
) -> Float64[np.ndarray, "draw unit"]:
    """Normal numbers with the covariance of the rows of `deviations`, as random combinations of these rows: no
    covariance matrix is formed."""
    rows, units = deviations.shape
    if directions is None or directions >= min(rows - 1, units):
        return _normal(draws, rows, seed=seed, site=site) @ deviations / np.sqrt(rows - 1)
    sd = deviations.std(axis=0, ddof=1)
    scaled = np.divide(deviations, sd, out=np.zeros_like(deviations), where=sd > 0)
    _, sizes, axes = np.linalg.svd(scaled / np.sqrt(rows - 1), full_matrices=False)
    main = sizes[:directions, None] * axes[:directions]
    residual = np.sqrt(np.maximum((sd > 0) - np.sum(main**2, axis=0), 0))
    numbers = _normal(draws, directions + units, seed=seed, site=site)
    return sd * (numbers[:, :directions] @ main + numbers[:, directions:] * residual)


def _per_channel(
    deviations: Float64[np.ndarray, "recorded unit"], draws: range, *, seed: int, site: int
) -> Float64[np.ndarray, "draw unit"]:
    """Normal numbers with the variances of mean and log variance of every channel, and the covariance of the two."""
    mean, log = np.split(deviations, 2, axis=1)
    first, second = np.split(_normal(draws, deviations.shape[1], seed=seed, site=site), 2, axis=1)
    sd, log_sd = mean.std(axis=0, ddof=1), log.std(axis=0, ddof=1)
    product = (mean * log).sum(axis=0) / (len(deviations) - 1)
    r = np.divide(product, sd * log_sd, out=np.zeros_like(product), where=sd * log_sd > 0).clip(-1, 1)
    return np.concatenate([sd * first, log_sd * (r * first + np.sqrt(1 - r**2) * second)], axis=1)


def _means(layer: LayerNoiseModel, order: int, draws: range, seed: int) -> Float64[np.ndarray, "draw channel"]:
    normal = _normal(draws, len(layer.mean), seed=seed, site=order)
    return layer.mean + np.sqrt(layer.var / layer.values_mean) * normal


def _layer(
    layer: LayerNoiseModel,
    mean: Float64[np.ndarray, "draw channel"],
    var: Float64[np.ndarray, "draw channel"],
    variance: Variance,
) -> LayerStatistics:
    if variance == "unbiased":
        var = var * (layer.count / (layer.count - 1))
    count = np.full(len(mean), layer.count, dtype=np.int64)
    return LayerStatistics(layer.name, layer.eps, mean, var, count)


def _normal(draws: range, count: int, *, seed: int, site: int) -> Float64[np.ndarray, "draw count"]:
    return np.stack([counter_rng.normal(seed, t, counter_rng.NOISE_MODEL_NORMAL, count, site=site) for t in draws])


def _uniform(draws: range, purpose: int, count: int, *, seed: int, site: int) -> Float64[np.ndarray, "draw count"]:
    return np.stack([counter_rng.uniform(seed, t, purpose, count, site=site) for t in draws])
