"""Writes a copy of a checkpoint whose running averages are replaced by the statistics of its training data."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bnuq.config import (
    DEFAULT_BATCH_SIZE,
    PopulationEstimator,
    PreciseBnSection,
    Run,
    Split,
    data_without_effect,
)
from bnuq.data import in_colour
from bnuq.errors import ModelError, SamplingError
from bnuq.evaluation import memory
from bnuq.evaluation.datasets import (
    RunData,
    check_grouped,
    fetch_missing,
    load_data,
    numbered,
    read_reference,
    takes_rgb_alone,
)
from bnuq.evaluation.exactness import check_mcbn
from bnuq.evaluation.population import population_statistics, reference_batches
from bnuq.evaluation.provenance import Stopwatch, provenance
from bnuq.evaluation.request_checks import notes_on_request
from bnuq.evaluation.setup import Prepared, prepare
from bnuq.files.fetching import named_or_path
from bnuq.files.writing import alone, within, write_bytes
from bnuq.findings import Finding, about, note
from bnuq.frozen import frozen
from bnuq.metrics.arrays import as_float64
from bnuq.models.saving import with_statistics
from bnuq.progress import READING, Progress, silent, stage
from bnuq.sampling.counter_rng import held_out_rows
from bnuq.sampling.site_search import find_sites
from bnuq.sampling.sites import BatchNormSite, Sites, having
from bnuq.studies.precise_bn.change_scoring import change_on_test_set, scoring_of_test_set
from bnuq.studies.precise_bn.record import LayerChange, PreciseBN
from bnuq.studies.precise_bn.request import check_precise_bn

FEW = 1000  # points below which the statistics are noisy; 10³ to 10⁴ are enough by Wu & Johnson 2021
_DEFAULTS = PreciseBnSection()
_DEAD = 10  # times eps: a smaller variance has no effect


@within(lambda run, **_: alone(run.out))
def precise_bn(
    run: Run,
    *,
    estimator: PopulationEstimator = _DEFAULTS.estimator,
    points: int = _DEFAULTS.points,
    batch_size: int | None = None,
    progress: Progress = silent,
) -> PreciseBN:
    """Write to `run.out` the checkpoint of `run` with population statistics in its BatchNorms, and report what changed.

    At most `points` points of the reference pass, through the training pipeline, in mini-batches of `batch_size` (by
    default the training batch size); see `population_statistics` for the estimators. Where the run has a test set, its
    estimates before and after are reported. Raises BnuqError with one message where the request cannot be carried out;
    `run.out` is then not touched.
    """
    watch = Stopwatch()
    check_precise_bn(run, points, batch_size)
    fetch_missing(run, progress)
    replaces = run.out.exists()
    with stage(progress, READING):
        prepared = prepare(run, partial(_data, run), only_finite=False)
    loaded, model, train = prepared.loaded, prepared.model, prepared.data.train
    assert train is not None
    sites = find_sites(model, prepared.example)
    layers = _layers(model, sites)
    size = batch_size or run.train_batch_size or loaded.checkpoint.train_batch_size
    why_size = [] if size else [note("default-batch-size", batch_size=DEFAULT_BATCH_SIZE)]
    size = size or DEFAULT_BATCH_SIZE
    if len(train) < 2:
        raise SamplingError(f"the training set {train.reference} has a single example; a variance needs at least 2.")
    batches = reference_batches(prepared.pipeline, train, points=points, batch_size=size)
    checked = check_mcbn(model, sites, [next(iter(batches))], sites.live_batchnorms)
    broken = _not_finite(run, model, layers)
    scored, why_no_test = (None, broken) if broken else scoring_of_test_set(run, prepared, sites, progress)
    before = None if scored is None else scored()
    watch.lap("load")
    shared = {"progress": progress, "memory_limit": memory.available(prepared.pipeline.device)}
    populations = population_statistics(model, batches, estimator=estimator, sites=sites.live_batchnorms, **shared)
    watch.lap("draw")
    exact = dict[str, np.ndarray]()  # the new value of each statistic, by its name in the network's state dict
    by_name = {population.name: population for population in populations}
    for layer in layers:
        population = by_name[layer.site.name]
        exact |= dict.fromkeys(layer.means, population.mean) | dict.fromkeys(layer.variances, population.var)
    changed = with_statistics(loaded.checkpoint, exact)
    values = changed.statistics  # reported are the values as the file stores them
    rounded_to_zero = tuple(_rounded_to_zero(run, layers, exact, values))
    changes = tuple(_change(layer, values) for layer in layers)
    with torch.inference_mode():
        state = model.state_dict()
        for name, new in values.items():
            state[name].copy_(torch.from_numpy(new).to(state[name].dtype))
    test = None if scored is None or before is None else change_on_test_set(prepared.data.test, before, scored())
    watch.lap("evaluate")
    write_bytes(run.out, changed.data)
    return PreciseBN(
        model=_model(run, prepared, sites),
        estimator=estimator,
        reference=train.reference,
        reference_points=len(train),
        points=batches.points,
        batch_size=len(batches.rows[0]),
        batches=len(batches),
        seed=run.seed,
        device=str(prepared.pipeline.device),
        layers=changes,
        test=test,
        findings=(
            *notes_on_request([run], replaces=None),
            *(() if scored else data_without_effect(run, [train])),
            *([note("file-replaced", file=run.out.name)] if replaces else ()),
            *why_size,
            *([note("few-points", points=batches.points, minimum=FEW)] if batches.points < FEW else ()),
            *why_no_test,
            *loaded.findings,
            *changed.findings,
            *rounded_to_zero,
            *prepared.data.findings,
            *checked.findings,
            *_left_alone(sites),
        ),
        seconds=watch.seconds(),
        provenance=provenance(run, device=prepared.pipeline.device, train=train),
        path=run.out,
    )


def _model(run: Run, prepared: Prepared, sites: Sites) -> dict[str, Any]:
    checkpoint = prepared.loaded.checkpoint
    return {
        "path": named_or_path(run.checkpoint),
        "sha256": checkpoint.sha256,
        "form": checkpoint.form,
        "entry": checkpoint.key,
        "batchnorm_layers": len(sites.batchnorms),
        "parameters": prepared.loaded.parameters,
    }


def _not_finite(run: Run, model: nn.Module, layers: tuple[_Layer, ...]) -> tuple[Finding, ...]:
    """A note where statistics that will be replaced are not finite, so that the network cannot be evaluated before;
    ModelError where other tensors are not finite."""
    replaced = {name for layer in layers for name in (*layer.means, *layer.variances)}
    not_finite = [name for name, value in model.state_dict().items() if not bool(torch.isfinite(value).all())]
    if other_tensors := [name for name in not_finite if name not in replaced]:
        raise ModelError(
            f"{run.checkpoint}: {other_tensors[0]} holds NaN or infinite values, and is not one of the running "
            "statistics that are recomputed; expected finite weights. Give an earlier checkpoint."
        )
    return (note("not-finite-before", tensors=not_finite),) if not_finite else ()


def _data(run: Run, model: nn.Module) -> RunData:
    """The reference, and the test set where there is one."""
    split = run.validation if isinstance(run.validation, Split) else None
    if run.test is not None and run.task != "segmentation":
        return load_data(replace(run, ood=(), validation=split), model)
    assert run.train is not None
    train = numbered(run, train=read_reference(run))["train"]
    train = in_colour(train) if takes_rgb_alone(model, train) else train
    if run.test is None:  # a test set that is not read might have the groups
        check_grouped(run, [train])
    findings = about(train.name, train.findings)
    if split is not None and split.split_of == "train" and split.held_out:
        held_out = held_out_rows(len(train), fraction=split.fraction, seed=split.seed, group=train.group)
        train = train.subset(np.setdiff1d(np.arange(len(train)), held_out))
    return RunData(train, train, {}, None, "", len(train), findings)


@frozen
class _Layer:
    """A BatchNorm whose statistics are replaced, and their names in the network's state dict; several where it is
    shared."""

    site: BatchNormSite
    means: tuple[str, ...]
    variances: tuple[str, ...]


def _layers(model: nn.Module, sites: Sites) -> tuple[_Layer, ...]:
    """The layers whose running statistics can be replaced; SamplingError where there is none, or one is called
    twice."""
    tracked = [site for site in sites.live_batchnorms if site.tracked]
    if not tracked:
        raise SamplingError(f"there are no statistics to replace: {_why_none(sites)}.")
    calls = Counter(site.address for site in sites.batchnorms if site.tracked)
    for site in tracked:
        if calls[site.address] > 1:
            raise SamplingError(
                f"BatchNorm {site.name} is called {calls[site.address]} times per forward pass, on different "
                "activations, with one pair of running statistics for all calls: no population matches them all. "
                "Nothing was written."
            )
    state = model.state_dict()
    return tuple(
        _Layer(site, _names(state, site, site.running_mean), _names(state, site, site.running_var)) for site in tracked
    )


def _why_none(sites: Sites) -> str:
    if not sites.batchnorms:
        return "the network has no BatchNorm layer"
    first = sites.batchnorms[0]
    if not any(site.tracked for site in sites.batchnorms):
        return f"{having(sites.batchnorms)} no running statistics"
    reason = next((site.reason for site in sites.batchnorms if site.tracked and site.reason), first.reason)
    return f"{having(sites.batchnorms)} no statistics that depend on data ({reason})"


def _names(state: Mapping[str, object], site: BatchNormSite, statistic: Tensor | None) -> tuple[str, ...]:
    assert statistic is not None
    names = tuple(
        name
        for name, value in state.items()
        if isinstance(value, Tensor) and value.shape == statistic.shape and value.data_ptr() == statistic.data_ptr()
    )
    if not names:
        raise SamplingError(
            f"the running statistics of BatchNorm {site.name} are not in the network's state dict, so they cannot be "
            "written to a file of it. Register them as persistent buffers."
        )
    return names


def _rounded_to_zero(
    run: Run, layers: Sequence[_Layer], exact: Mapping[str, np.ndarray], stored: Mapping[str, np.ndarray]
) -> Iterator[Finding]:
    """Notes on variances that the file's type rounds to 0; ModelError where one of them is not negligible beside ε."""
    for layer in layers:
        name = layer.variances[0]
        zeroed = (exact[name] > 0) & (stored[name] == 0)
        if not zeroed.any():
            continue
        small, channels, eps = int(zeroed.sum()), len(zeroed), layer.site.eps
        if float(exact[name][zeroed].max()) >= _DEAD * eps:
            raise ModelError(
                f"{run.checkpoint}: {name}: {small} of {channels} variances are too small for the type they are stored "
                "in, and would be 0. Save the checkpoint in float32 first."
            )
        yield note("variances-too-small", tensor=name, small=small, channels=channels, eps=float(eps))


def _change(layer: _Layer, values: Mapping[str, np.ndarray]) -> LayerChange:
    site = layer.site
    assert site.running_mean is not None and site.running_var is not None
    mean, var = as_float64(site.running_mean), as_float64(site.running_var)
    new_mean, new_var = values[layer.means[0]], values[layer.variances[0]]
    finite = np.isfinite(var) & np.isfinite(mean)
    alive = (new_var >= _DEAD * site.eps) & (var > 0) & finite
    shift = (new_mean - mean)[alive] / np.sqrt(new_var[alive])
    ratio = np.log(new_var[alive] / var[alive])
    return LayerChange(
        name=site.name,
        channels=site.channels,
        shift=float(np.sqrt(np.mean(shift**2))) if alive.any() else math.nan,
        log_variance=float(np.mean(np.abs(ratio))) if alive.any() else math.nan,
        dead=int((finite & ~alive).sum()),
        not_finite=int((~finite).sum()),
        never_trained=site.never_trained,
    )


def _left_alone(sites: Sites) -> Iterator[Finding]:
    """What was not mended."""
    for site in sites.batchnorms:
        if site.reason and site.tracked:
            yield note("statistics-unchanged", layer=f"BatchNorm {site.name}", reason=site.reason)
    for layer, reason in sites.unreachable:
        if "BatchNorm" in reason or "statistics" in reason:
            yield note("statistics-unchanged", layer=layer, reason=reason)
