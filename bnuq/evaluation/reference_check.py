"""Checks by batch statistics that the reference, through its pipeline, is what the network was trained on."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from bnuq.config import Run
from bnuq.config.runfile_writing import other_command
from bnuq.data import Points
from bnuq.files.fetching import stem_of
from bnuq.findings import Finding, note, warning
from bnuq.metrics.arrays import as_float64
from bnuq.records.evaluation import MEDIAN_LIMIT, WORST_LIMIT, ReferenceCheck, within_limits
from bnuq.records.reference import Methods, averages_lag, is_doubtful, population_effect
from bnuq.sampling.batch_statistics import BatchStatistics, LayerStatistics
from bnuq.sampling.sites import BatchNormSite, having

BATCHES, FEWEST_BATCHES = 24, 12
BATCH_SIZE = 128
_LARGEST_CHANGE = 1.0  # standard deviations of the population


def reference_check(
    bank: BatchStatistics,
    sites: Sequence[BatchNormSite],
    *,
    population: int,
    train_size: int | None = None,
    train_batch_size: int | None = None,
) -> ReferenceCheck | None:
    """The checkpoint's running statistics compared with those of the reference batches in `bank`, layer by layer.

    Per channel (running − mean over batches) / (spread over batches), for the mean and for the log variance; per layer
    the root mean square over channels. An average of momentum m over training batches of M, compared with J batches of
    b out of N_ref, gives √([((b/M)·m/(2−m) + (b/N_ref)(1 − N_ref/N_train))/(1 − b/N_ref) + 1/J]·(J−1)/(J−3)) by batch
    noise alone: mini-batches without replacement vary less, by 1 − b/N_ref. Without `train_size` the reference may be
    any part of the training set, and N_ref/N_train counts as 0. Failed where the median layer exceeds 3 times that, or
    the worst layer 6 times.

    A channel that is constant in some batch or has a running variance of 0 is left out, and so is a layer in which no
    channel varies from batch to batch: without noise the gap has no unit. Where only the mean does not vary (another
    BatchNorm has just centred it), or only the variance, its gap counts as 0.

    What is left out, and layers without an exponential average of a single call, are compared by what they change: an
    `unfit` layer normalises the population otherwise by more than a standard deviation. The check passes only where
    there is none, and no layer was never trained.

    None where nothing can be checked: no layer has its own exponential average that was ever trained, or no layer
    varies.
    """
    by_name = {layer.name: layer for layer in bank.layers}
    tracked = [site for site in sites if site.name in by_name and site.running_mean is not None]
    trained = [site for site in tracked if not site.never_trained]
    if bank.samples < 4:
        return None
    measured = {site.name: _gaps(site, by_name[site.name]) for site in trained if can_be_checked(site, sites)}
    measured = {name: gaps for name, gaps in measured.items() if np.isfinite(gaps).any()}
    checked = [site for site in trained if site.name in measured]
    if not checked:
        return None
    expected = [
        _expected(
            site.momentum or 0.0,
            batch_size=bank.batch_size,
            batches=bank.samples,
            train_batch_size=train_batch_size or BATCH_SIZE,
            population=population,
            train_size=train_size,
        )
        for site in checked
    ]
    gaps = np.nan_to_num(np.array([measured[site.name] for site in checked]), nan=0.0)
    changes = {site.name: _change(site, by_name[site.name], is_measured=site.name in measured) for site in trained}
    unfit = tuple(name for name, change in changes.items() if not change <= _LARGEST_CHANGE)
    passed = within_limits(gaps / np.array(expected)[:, None]) and not unfit and len(trained) == len(tracked)
    names = tuple(site.name for site in checked)
    return ReferenceCheck(names, gaps[:, 0], gaps[:, 1], np.array(expected), passed, unfit)


def _expected(
    momentum: float, *, batch_size: int, batches: int, train_batch_size: int, population: int, train_size: int | None
) -> float:
    average = batch_size / train_batch_size * momentum / (2 - momentum)
    share = 0.0 if train_size is None else min(1.0, population / train_size)
    reference = batch_size / population * (1 - share)
    drawn = max(1, population - batch_size) / population
    return math.sqrt(((average + reference) / drawn + 1 / batches) * (batches - 1) / (batches - 3))


def _gaps(site: BatchNormSite, layer: LayerStatistics) -> tuple[float, float]:
    running_mean, running_var = _running(site)
    unbiased = layer.var.astype(np.float64) * (layer.count / (layer.count - 1))[:, None]
    varied = _measurable(layer, running_var)
    return (
        _gap(running_mean[varied], layer.mean[:, varied].astype(np.float64), unit=np.sqrt(running_var[varied])),
        _gap(np.log(running_var[varied]), np.log(unbiased[:, varied]), unit=np.ones(varied.sum())),
    )


def _running(site: BatchNormSite) -> tuple[np.ndarray, np.ndarray]:
    assert site.running_mean is not None and site.running_var is not None
    return as_float64(site.running_mean), as_float64(site.running_var)


def _measurable(layer: LayerStatistics, running_var: np.ndarray) -> np.ndarray:
    """The channels that can be compared in units of batch noise: constant neither in a batch nor by the checkpoint."""
    return (layer.var > 0).all(axis=0) & (running_var > 0)


def _change(site: BatchNormSite, layer: LayerStatistics, *, is_measured: bool) -> float:
    """The root mean square over channels of the difference between a value of the population normalised by the running
    statistics and by its own; in a layer that `is_measured` in units of batch noise, of the channels left out there."""
    running_mean, running_var = _running(site)
    mean, var = layer.mean.astype(np.float64), layer.var.astype(np.float64)
    var = var.mean(0) + mean.var(0)
    with np.errstate(invalid="ignore", divide="ignore"):  # of running variances below 0
        scale = 1 / np.sqrt(running_var + layer.eps)
        square = ((mean.mean(0) - running_mean) * scale) ** 2 + var * (scale - 1 / np.sqrt(var + layer.eps)) ** 2
    return math.sqrt(np.where(_measurable(layer, running_var) & is_measured, 0.0, square).mean())


def _gap(running: np.ndarray, batches: np.ndarray, *, unit: np.ndarray) -> float:
    """The root mean square over channels of the gap in units of batch noise; NaN where no channel varies."""
    spread = batches.std(axis=0, ddof=1)
    varied = spread > 1e-6 * unit  # less is rounding, as for a mean that another BatchNorm has just centred
    if not varied.any():
        return math.nan
    z = (running - batches.mean(axis=0))[varied] / spread[varied]
    return float(np.sqrt(np.mean(z**2)))


def can_be_checked(site: BatchNormSite, sites: Sequence[BatchNormSite]) -> bool:
    """Whether a layer has its own exponential average: running statistics of one called twice mix both calls."""
    once = sum(other.address == site.address for other in sites) == 1
    return site.running_mean is not None and bool(site.momentum) and not site.never_trained and once


def why_uncheckable(sites: Sequence[BatchNormSite]) -> str:
    """Why no layer can be checked; empty where one can."""
    if not sites:
        return "the network has no BatchNorm layer whose statistics depend on data"
    if any(can_be_checked(site, sites) for site in sites):
        return ""
    reasons = {
        "no running statistics are kept": all(site.running_mean is None for site in sites),
        "they still have mean 0 and variance 1": all(site.never_trained for site in sites),
        "they are plain averages, momentum None": all(site.momentum is None for site in sites),
        "their momentum is 0, which never updates them": all(site.momentum == 0 for site in sites),
    }
    reason = next((f" ({reason})" for reason, holds in reasons.items() if holds), "")
    its = "its" if len(sites) == 1 else "their"
    return f"{having(sites)} no trained exponential running average of {its} own{reason}"


def findings(
    check: ReferenceCheck | None,
    run: Run,
    train: Points,
    sites: Sequence[BatchNormSite],
    methods: Methods | None = None,
) -> list[Finding]:
    """The finding on a check of `train`, the reference of `run`, by these sites: none where it passed, a note where
    evaluated `methods` show that it makes little difference."""
    methods = methods or {}
    keys = {"normalize": run.normalize, "augment": run.augment}
    if len(train.point_shape) != 3:
        del keys["augment"]  # augmentation is for pictures only
    effect = [[metric, *change] for metric, change in population_effect(methods).items()]
    matters = not effect or is_doubtful(check, methods)
    if check is None:
        few = "the training set has fewer than 4 examples, or its batch statistics do not vary (all examples equal)"
        why = why_uncheckable(sites) or few
        unchecked = warning("reference-unchecked", why=why, effect=effect, settings=["train", *keys])
        return [unchecked if matters else note("reference-uncompared", why=why, effect=effect)]
    if check.fits:  # layers that were never trained have a warning
        return []
    row, quantity = np.unravel_index(np.argmax(check.ratios), check.ratios.shape)
    median, worst = float(np.median(check.ratios[:, quantity])), float(check.ratios[row, quantity])
    lags = averages_lag(check, methods)
    precise = other_command(run, "precise-bn", "--out", f"{stem_of(run.checkpoint)}_precise{run.checkpoint.suffix}")
    if not matters:
        return [note("reference-differs", median=median, worst=worst, lags=lags, effect=effect, precise=precise)]
    return [
        warning(
            "reference-mismatch",
            median=median,
            median_limit=float(MEDIAN_LIMIT),
            worst=worst,
            worst_limit=float(WORST_LIMIT),
            worst_layer=check.layers[row],
            unfit=list(check.unfit),
            lags=lags,
            effect=effect,
            settings=["train", *keys],
            missing=[name for name, is_set in keys.items() if not is_set],
            run_file=None if run.run_file is None else run.run_file.name,
            suggest=other_command(run, "inspect", "--suggest-pipeline"),
            precise=precise,
        )
    ]
