"""Checks the health of a network's BatchNorms: sites with their problems, and the gap of the running averages."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from bnuq.evaluation import memory
from bnuq.evaluation.population import ReferenceBatches, wide
from bnuq.findings import Finding, warning
from bnuq.metrics.arrays import as_float64
from bnuq.metrics.noise import (
    effective_samples_of_average,
    explained_log_variance,
    share_left_by_averaging,
    unbiased_scale,
)
from bnuq.progress import Progress
from bnuq.records.evaluation import ReferenceCheck
from bnuq.sampling.batch_statistics import BatchStatistics
from bnuq.sampling.sites import BatchNormSite, NoiseSite, Sites
from bnuq.sampling.statistics import statistics_of
from bnuq.studies.inspect.record import FEW_VALUES, Flag, Gap, LayerGap, LayerNoise, NoiseBySize, SiteRow


def not_finite(model: nn.Module) -> tuple[str, ...]:
    """The names of the parameters and buffers that hold NaN or infinite values, or variances below 0."""
    named = [pair for pair in (*model.named_parameters(), *model.named_buffers()) if not is_lazy(pair[1])]
    return tuple(
        name
        for name, tensor in named
        if not _is_finite(tensor) or (name.endswith("running_var") and bool((tensor < 0).any()))
    )


def _is_finite(tensor: Tensor | None) -> bool:
    return tensor is None or not tensor.is_floating_point() or bool(torch.isfinite(tensor.float()).all())


def site_rows(sites: Sites, broken: Sequence[str] = ()) -> tuple[SiteRow, ...]:
    """Every BatchNorm, dropout and draw of noise in execution order, with flags; `broken` are the names of tensors that
    are not finite."""
    calls = Counter(site.address for site in sites.batchnorms if site.address)
    layers = {name.rpartition(".")[0] for name in broken}
    rows = [_batchnorm_row(site, repeated=calls[site.address] > 1, layers=layers) for site in sites.batchnorms]
    rows += [
        SiteRow(name=site.name, kind="dropout", order=site.place, reason=site.reason, p=site.p, variety=site.variety)
        for site in sites.dropouts
    ]
    rows += [_noise_row(site) for site in sites.noises]
    places = [site.place for site in (*sites.batchnorms, *sites.dropouts, *sites.noises)]
    return tuple(
        replace(row, order=order)
        for order, (_, row) in enumerate(sorted(zip(places, rows, strict=True), key=lambda pair: pair[0]))
    )


def _noise_row(site: NoiseSite) -> SiteRow:
    axis, per_point = site.batch_axis, site.batch_axis is not None
    numbers = site.rows * math.prod(size for place, size in enumerate(site.shape) if place != axis)
    return SiteRow(
        name=site.name,
        kind="learned",
        order=site.place,
        reason=site.reason,
        variety=site.family,
        numbers=numbers,
        per_point=per_point,
    )


def _batchnorm_row(site: BatchNormSite, *, repeated: bool, layers: set[str]) -> SiteRow:
    vanishing = None
    if site.tracked and site.running_var is not None:
        vanishing = int((site.running_var < 10 * site.eps).sum())
    finite = (
        _is_finite(site.running_mean) and _is_finite(site.running_var) and site.name.partition("#")[0] not in layers
    )
    flags: dict[Flag, bool] = {
        "never-trained": site.never_trained,
        "frozen": site.is_frozen,
        "not-finite": not finite,
        "vanishing": bool(vanishing),
        "untracked": not site.tracked,
        "called-again": repeated,
    }
    return SiteRow(
        name=site.name,
        kind="batchnorm",
        order=site.place,
        reason=site.reason,
        flags=tuple(flag for flag, raised in flags.items() if raised),
        channels=site.channels,
        positions=site.positions,
        eps=site.eps,
        momentum=site.momentum,
        vanishing=vanishing,
    )


def batch_statistics(
    model: nn.Module, batches: ReferenceBatches, sites: Sequence[BatchNormSite], progress: Progress
) -> BatchStatistics:
    """The statistics of these mini-batches in float64; their `pooled()` is the population, by the default estimator of
    `bnuq precise-bn`."""
    with progress(f"Taking the population statistics of {batches.points} examples", len(batches)) as advance:
        free = memory.available(batches.pipeline.device)
        bank = statistics_of(model, batches, layers=sites, on_draw=lambda: advance(1), memory_limit=free)
    return replace(bank, layers=tuple(map(wide, bank.layers)))


def gap(
    bank: BatchStatistics,
    population: BatchStatistics,
    sites: Sequence[BatchNormSite],
    noise: NoiseBySize,
    check: ReferenceCheck | None,
    *,
    points: int,
    reference: int,
    train_size: int | None,
    train_batch_size: int | None,
) -> Gap | None:
    """The running averages compared with `population`, the pooled batches of `bank`: `points` of the `reference`
    points, which are a part of the `train_size` training points. None if no layer has running averages.

    The gap that batch noise explains follows from the measured noise. The training batch size M is assumed to be 128
    if it is unknown. NaN if the average is cumulative. Gaps are in units of √(σ² + ε), the divisor of evaluation
    mode.
    """
    measured = dict(zip((site.name for site in sites), noise.layers, strict=True))
    # by layer, the distances of mean and log variance relative to batch noise
    ratios = {} if check is None else dict(zip(check.layers, check.ratios.tolist(), strict=True))
    layers = []
    for number, site in enumerate(sites):
        if site.running_mean is None or site.running_var is None:
            continue
        layer = population.layers[number]
        share = share_left_by_averaging(
            momentum=site.momentum or 0.0,
            train_batch_size=train_batch_size or 128,
            points=points,
            population=reference,
            train_size=train_size or reference,
        )
        shift, log_ratio = _distances(site, layer.mean[0], layer.var[0])
        # the variances of V and of ln S² for a batch of a single point, from the noise at `batch_size`
        mean_of_point = noise.batch_size / measured[site.name].values_mean
        log_variance_of_point = noise.batch_size * explained_log_variance(measured[site.name].values_deviation)
        ratio_mean, ratio_log_variance = ratios.get(site.name, (math.nan, math.nan))
        layers.append(
            LayerGap(
                name=site.name,
                shift=shift,
                log_ratio=log_ratio,
                explained_shift=math.sqrt(mean_of_point * share),
                explained_log_ratio=math.sqrt(log_variance_of_point * share),
                ratio_mean=ratio_mean,
                ratio_log_variance=ratio_log_variance,
                dead=bank.layers[number].dead_channels,
            )
        )
    if not layers:
        return None
    momentum, *other_momenta = {site.momentum for site in sites if site.tracked} or {None}
    worth = None
    if train_batch_size is not None and momentum and not other_momenta:
        worth = effective_samples_of_average(momentum, batch_size=train_batch_size)
    return Gap(
        points=points,
        batch_size=bank.batch_size,
        worth=worth,
        passed=None if check is None else check.fits,
        layers=tuple(layers),
    )


def _distances(site: BatchNormSite, mean: np.ndarray, var: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    assert site.running_mean is not None and site.running_var is not None
    running_mean, running_var = as_float64(site.running_mean), as_float64(site.running_var)
    total = var.astype(np.float64) + site.eps
    return (running_mean - mean) / np.sqrt(total), np.log((running_var + site.eps) / total)


# ── warnings ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def findings_on_sites(rows: Sequence[SiteRow], broken: Sequence[str]) -> Iterator[Finding]:
    """Warnings from the sites alone."""
    if broken:
        yield warning("not-finite", tensors=list(broken))
    flagged = {flag: [row for row in rows if flag in row.flags] for flag in ("never-trained", "frozen", "vanishing")}
    if sites := flagged["never-trained"]:
        yield warning("never-trained", layers=_names(sites), evaluated=False)
    if sites := flagged["frozen"]:
        yield warning("frozen", layers=_names(sites))
    if sites := flagged["vanishing"]:
        yield warning("vanishing", layers=_names(sites), channels=int(sum(row.vanishing or 0 for row in sites)))


def findings_on_gap(measured: Gap) -> Iterator[Finding]:
    """Warnings from the gap, in addition to the reference check."""
    dead = [layer for layer in measured.layers if layer.dead]
    if dead:
        yield warning("dead-channels", layers=[[layer.name, int(layer.dead)] for layer in dead])


def findings_on_noise(measured: NoiseBySize, *, train_batch_size: int | None = None) -> Iterator[Finding]:
    """A warning where so few values are used that biased and unbiased variance differ: in a training mini-batch, or,
    where its size is unknown, in a mini-batch of the noise measurement."""
    size = train_batch_size or measured.batch_size
    values_of = {
        layer.name: train_batch_size * layer.positions if train_batch_size else layer.nominal
        for layer in measured.layers
    }
    few_valued = [layer for layer in measured.layers if values_of[layer.name] < FEW_VALUES]
    if few_valued:
        values = min(values_of[layer.name] for layer in few_valued)
        yield warning(
            "biased-variance",
            layers=_names(few_valued),
            values=values,
            batch_size=size,
            in_training=train_batch_size is not None,
            scale=float(unbiased_scale(max(values, 2))),
        )


def _names(rows: Sequence[SiteRow] | Sequence[LayerNoise]) -> list[str]:
    return [row.name for row in rows]
