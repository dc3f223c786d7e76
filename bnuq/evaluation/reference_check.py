"""Checks by batch statistics that the reference, through its pipeline, is what the network was trained on."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np
from jaxtyping import Float

from bnuq.config import Run
from bnuq.config.repeating import other_command
from bnuq.data import Points
from bnuq.findings import Finding, warning
from bnuq.metrics.arrays import as_float64
from bnuq.records.evaluation import MEDIAN_LIMIT, WORST_LIMIT, ReferenceCheck
from bnuq.sampling.batch_statistics import BatchStatistics, LayerStatistics
from bnuq.sampling.sites import BatchNormSite

BATCHES = 24
BATCH_SIZE = 128


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
    b out of N_ref, gives √([(b/M)·m/(2−m) + 1/J + (b/N_ref)(1 − N_ref/N_train)]·(J−1)/(J−3)) by batch noise alone.
    Without `train_size` the reference may be any part of the training set, and N_ref/N_train counts as 0. Failed where
    the median layer exceeds 3 times that, or the worst layer 6 times.

    A channel that is constant in some batch is left out, and so is a layer in which no channel varies from batch to
    batch: without noise the gap has no unit. Where only the mean does not vary (another BatchNorm has just centred it),
    or only the variance, its gap counts as 0.

    None where nothing can be checked: no layer has an exponential average of its own that was ever trained, or no layer
    varies.
    """
    by_name = {layer.name: layer for layer in bank.layers}
    calls = Counter(site.address for site in sites)
    checked = [
        (site, by_name[site.name])
        for site in sites
        if site.name in by_name
        and site.running_mean is not None
        and site.momentum
        and not site.never_trained
        and calls[site.address] == 1  # running statistics of a layer called twice mix both calls
    ]
    if bank.samples < 4:
        return None
    measured = {site.name: _gaps(site, layer) for site, layer in checked}
    checked = [(site, layer) for site, layer in checked if np.isfinite(measured[site.name]).any()]
    if not checked:
        return None
    gaps = [np.nan_to_num(measured[site.name], nan=0.0) for site, _ in checked]
    expected = [
        _expected(
            site.momentum or 0.0,
            batch_size=bank.batch_size,
            batches=bank.samples,
            train_batch_size=train_batch_size or BATCH_SIZE,
            population=population,
            train_size=train_size,
        )
        for site, _ in checked
    ]
    ratios = np.array(gaps) / np.array(expected)[:, None]
    return ReferenceCheck(
        layers=tuple(site.name for site, _ in checked),
        mean=np.array([gap[0] for gap in gaps]),
        log_variance=np.array([gap[1] for gap in gaps]),
        expected=np.array(expected),
        passed=within_limits(ratios),
    )


def within_limits(ratios: Float[np.ndarray, "layer quantity"]) -> bool:
    """Whether both the median and the worst layer are within their limits of batch noise, in every quantity."""
    return bool((np.median(ratios, axis=0) <= MEDIAN_LIMIT).all() and ratios.max() <= WORST_LIMIT)


def _expected(
    momentum: float, *, batch_size: int, batches: int, train_batch_size: int, population: int, train_size: int | None
) -> float:
    average = batch_size / train_batch_size * momentum / (2 - momentum)
    share = 0.0 if train_size is None else min(1.0, population / train_size)
    reference = batch_size / population * (1 - share)
    return math.sqrt((average + 1 / batches + reference) * (batches - 1) / (batches - 3))


def _gaps(site: BatchNormSite, layer: LayerStatistics) -> tuple[float, float]:
    assert site.running_mean is not None and site.running_var is not None
    unbiased = layer.var.astype(np.float64) * (layer.count / (layer.count - 1))[:, None]
    alive = (unbiased > 0).all(axis=0)
    running_var = as_float64(site.running_var)
    alive &= running_var > 0
    return (
        _gap(
            as_float64(site.running_mean)[alive],
            layer.mean[:, alive].astype(np.float64),
            unit=np.sqrt(running_var[alive]),
        ),
        _gap(np.log(running_var[alive]), np.log(unbiased[:, alive]), unit=np.ones(alive.sum())),
    )


def _gap(running: np.ndarray, batches: np.ndarray, *, unit: np.ndarray) -> float:
    """The root mean square over channels of the gap in units of batch noise; NaN where no channel varies."""
    spread = batches.std(axis=0, ddof=1)
    varied = spread > 1e-6 * unit  # less is rounding, as for a mean that another BatchNorm has just centred
    if not varied.any():
        return math.nan
    z = (running - batches.mean(axis=0))[varied] / spread[varied]
    return float(np.sqrt(np.mean(z**2)))


def findings(check: ReferenceCheck | None, run: Run, train: Points) -> list[Finding]:
    """Warnings about a check of `train`, the reference of `run`: none where it passed."""
    if check is None:
        return [warning("reference-unchecked")]
    if check.passed:
        return []
    ratios = {name: getattr(check, name) / check.expected for name in ("mean", "log_variance")}
    quantity, worst = max(
        ((name, int(np.argmax(r))) for name, r in ratios.items()), key=lambda ratio: ratios[ratio[0]][ratio[1]]
    )
    keys = {"normalize": run.normalize, "augment": run.augment}
    if len(train.point_shape) != 3:
        del keys["augment"]  # augmentation is for pictures only
    return [
        warning(
            "reference-mismatch",
            median=float(np.median(ratios[quantity])),
            median_limit=float(MEDIAN_LIMIT),
            worst=float(ratios[quantity][worst]),
            worst_limit=float(WORST_LIMIT),
            worst_layer=check.layers[worst],
            settings=["train", *keys],
            missing=[name for name, is_set in keys.items() if not is_set],
            run_file=None if run.run_file is None else run.run_file.name,
            suggest=other_command(run, "inspect", "--suggest-pipeline"),
            precise=other_command(run, "precise-bn", "--out", f"{run.checkpoint.stem}_precise{run.checkpoint.suffix}"),
        )
    ]
