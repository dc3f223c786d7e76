"""What in a network can be stochastic, and how healthy its BatchNorm is: sites, lagging averages, the noise,
domains and pipelines that its statistics tell apart."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields

import numpy as np

from bnuq.config import (
    DEFAULT_BATCH_SIZE,
    InspectSection,
    PointSettings,
    Run,
    data_without_effect,
    typed,
)
from bnuq.config.effects import ERRORS
from bnuq.data import Points
from bnuq.errors import ModelError, RequestError, SamplingError
from bnuq.evaluation.datasets import fetch_missing
from bnuq.evaluation.draws import check_reference
from bnuq.evaluation.exactness import check_mcbn, mini_batch
from bnuq.evaluation.plan import findings_on_dropout_rate
from bnuq.evaluation.population import ReferenceBatches, reference_batches
from bnuq.evaluation.provenance import Stopwatch, provenance
from bnuq.evaluation.reference_check import findings as reference_findings
from bnuq.evaluation.request_checks import notes_on_request
from bnuq.files.fetching import named_or_path
from bnuq.files.writing import alone, within
from bnuq.findings import Finding, note
from bnuq.progress import READING, Progress, silent, stage
from bnuq.sampling.site_search import find_sites
from bnuq.sampling.sites import Sites
from bnuq.studies.inspect import health
from bnuq.studies.inspect.domains import domains
from bnuq.studies.inspect.load import LoadedNetwork, load_network
from bnuq.studies.inspect.noise import noise, sizes_for
from bnuq.studies.inspect.pipelines import findings as pipeline_findings
from bnuq.studies.inspect.pipelines import suggest
from bnuq.studies.inspect.record import Domains, Gap, Inspection, NoiseBySize, Pipelines, write
from bnuq.studies.inspect.request import InspectSettings as Settings
from bnuq.studies.inspect.request import check_inspection

LEAST_REFERENCE = 8  # minimum number of reference points for measurements
POINTS_PER_BATCH_POINT = 10  # times the largest mini-batch, left over so that the noise is measured on other points
_DEFAULTS = InspectSection()


DEFAULT = Settings()


@within(lambda run, *_, **__: alone(run.out))
def inspect(run: Run, settings: Settings = DEFAULT, *, progress: Progress = silent) -> Inspection:
    """Inspect the network of `run`, write the result to `run.out`, and return it.

    Measurements that need a reference are None where none can be read, or where the checkpoint's weights are not
    finite; the sites are reported in any case. `pipelines` is also None where the network's statistics cannot separate
    pipelines. `run.layers` limits the layers that the mutual information of domains is drawn from; everything else uses
    all layers. Raises BnuqError with one message where the request cannot be carried out; the result file is then not
    touched.
    """
    watch = Stopwatch()
    check_inspection(run, settings)
    fetch_missing(run, progress, settings.domains)
    replaces = run.out.exists()
    on_data = bool(settings.domains) or settings.suggest_pipeline
    needs = {"needs_reference": settings.needs_reference or on_data, "needs_test": bool(settings.domains)}
    with stage(progress, READING):
        network = load_network(run, input_shape=settings.input_shape, **needs)
    sites = find_sites(network.model, network.example)
    broken = health.not_finite(network.model)
    if on_data and broken:
        raise ModelError(f"{run.checkpoint}: {broken[0]} is not finite; neither domains nor pipelines can be tried.")
    rows = health.site_rows(sites, broken)
    if settings.batch_size is not None and network.train is not None:
        _check_batch_size(settings.batch_size, network.train)
    watch.lap("load")
    pipelines, suggestion_notes = _suggested(run, settings, network, sites, progress)
    no_fit = () if pipelines is None else pipeline_findings(pipelines)
    watch.lap("pipelines")
    lag, measured_noise, notes_of_measurement = None, None, ()
    why_not_measured = _why_not_measured(run, network, sites, broken, suggested=pipelines is not None)
    if why_not_measured is None:
        lag, measured_noise, notes_of_measurement = _measured(run, settings, network, sites, progress)
    elif settings.noise_only:
        raise RequestError(f"{run.checkpoint}: there is no noise to measure: {why_not_measured}.")
    watch.lap("measure")
    domains_record, notes_of_domains = _domains(run, settings, network, sites, progress)
    watch.lap("domains")
    asked = {field.name: getattr(settings, field.name) for field in fields(settings)}
    asked["domains"] = [named.text for named in settings.domains]
    result = Inspection(
        run={**run.record(), "inspect": {key: value for key, value in asked.items() if value is not None}},
        model={
            "path": named_or_path(run.checkpoint),
            "sha256": network.loaded.checkpoint.sha256,
            **({"task": run.task} if run.task else {}),
            **({"train_batch_size": network.trained_with} if network.trained_with else {}),
            "batchnorm_layers": len(sites.batchnorms),
            "dropout_layers": len(sites.dropouts),
            "learned_layers": len(sites.noises),
            "parameters": network.loaded.parameters,
        },
        sites=rows,
        unreachable=sites.unreachable,
        gap=lag,
        noise=measured_noise,
        domains=domains_record,
        pipelines=pipelines,
        findings=(
            *notes_on_request([run], replaces=run.out if replaces else None),
            *data_without_effect(
                run,
                [each for each in (network.train, network.test) if each is not None],
                gives=(ERRORS, "a table") if settings.domains else (),
            ),
            *health.findings_on_sites(rows, broken),
            *findings_on_dropout_rate(sites, network.loaded.dropout_arguments),
            *network.loaded.findings,
            *network.findings,
            *suggestion_notes,
            *([note("unmeasured", reason=why_not_measured)] if why_not_measured else []),
            *notes_of_measurement,
            *no_fit,
            *notes_of_domains,
            *_on_settings(run, settings, network, uses_batch_noise=lag is not None or pipelines is not None),
        ),
        seconds=watch.seconds(),
        provenance=provenance(run, device=network.pipeline.device, train=network.train),
        path=run.out,
    )
    write(result, run.out)
    return result


def _why_not_measured(
    run: Run, network: LoadedNetwork, sites: Sites, broken: tuple[str, ...], *, suggested: bool
) -> str | None:
    """Why neither gap nor noise can be measured; None where they can."""
    if not sites.live_batchnorms:
        return "the network has no BatchNorm layer that could be sampled"
    if broken:
        return "the checkpoint's weights are not finite"
    if network.train is None:
        return "this needs training data: name it with --train REF, or train under [data]"
    if len(network.train) < LEAST_REFERENCE:
        return f"the training set has {len(network.train)} examples, fewer than {LEAST_REFERENCE}"
    if suggested and run.normalize is None and run.augment is None and run.channel_order == "rgb":
        return (
            "the training pipeline, through which they are measured, is not given; inspect again with the lines "
            "for the run file"
        )
    return None


def _check_batch_size(batch_size: int, train: Points) -> None:
    most = len(train) // 2
    if batch_size > most:
        raise RequestError(
            f"--batch-size is {batch_size}, and the training set ({train.reference}) has {len(train)} examples; "
            f"expected at most {most}, half of them: larger mini-batches, drawn without replacement, are too similar "
            "to have the noise of training."
        )


def _on_settings(run: Run, settings: Settings, network: LoadedNetwork, *, uses_batch_noise: bool) -> Iterator[Finding]:
    """The assumption where the training batch size is not known and something is compared with batch noise; and the
    options of domains where there are none."""
    of_domains = typed(run, ("limit", "test"))
    of_domains = ["samples", *of_domains] if settings.samples != InspectSection().samples else of_domains
    for key in () if settings.domains else of_domains:
        yield note("without-effect", key=f"--{key}", needs="--domain")
    if settings.input_shape is not None and network.train is not None:
        yield note("without-effect", key="--input-shape", needs="a network without examples")
    if uses_batch_noise and not network.trained_with:
        yield note("training-batch-size-assumed", batch_size=DEFAULT_BATCH_SIZE)


def _suggested(
    run: Run, settings: Settings, network: LoadedNetwork, sites: Sites, progress: Progress
) -> tuple[Pipelines | None, tuple[Finding, ...]]:
    """The pipelines, or a note on why none can be suggested."""
    if not settings.suggest_pipeline:
        return None, ()
    assert network.train is not None
    try:
        known = {"trained_with": network.trained_with, "train_size": run.train_size}
        given = PointSettings.of(run)
        return suggest(given, network.model, network.train, sites, **known, progress=progress).pipelines, ()
    except SamplingError as error:
        return None, (note("no-pipeline-suggested", reason=" ".join(str(error).split()).removesuffix(".")),)


def _domains(
    run: Run, settings: Settings, network: LoadedNetwork, sites: Sites, progress: Progress
) -> tuple[Domains | None, tuple[Finding, ...]]:
    if not settings.domains:
        return None, ()
    assert network.train is not None
    batch_size, _ = _noise_batch_size(run, settings, network.trained_with, len(network.train))
    return domains(
        run,
        settings.domains,
        model=network.model,
        sites=sites,
        pipeline=network.pipeline,
        train=network.train,
        test=network.test,
        batch_size=batch_size,
        samples=settings.samples,
        progress=progress,
    )


def _measured(
    run: Run, settings: Settings, network: LoadedNetwork, sites: Sites, progress: Progress
) -> tuple[Gap | None, NoiseBySize, tuple[Finding, ...]]:
    """The running averages and the noise, measured on the reference."""
    train, model, pipeline, layers = network.train, network.model, network.pipeline, sites.live_batchnorms
    assert train is not None
    trained_with = network.trained_with
    batch_size, batch_size_notes = _noise_batch_size(run, settings, trained_with, len(train))
    batches = reference_batches(
        pipeline, train, points=settings.points, batch_size=min(trained_with or DEFAULT_BATCH_SIZE, len(train) // 2)
    )
    checked = check_mcbn(model, sites, [mini_batch(pipeline, train, batch_size)], layers)
    bank = health.batch_statistics(model, batches, layers, progress)
    population = bank.pooled()
    sizes = sizes_for(layers, batch_size=batch_size, reference=len(train), beyond=settings.beyond)
    points, points_notes = _other_points(train, batches, largest=max(batch_size, *sizes))
    measured_noise = noise(
        model,
        pipeline,
        points,
        layers,
        population,
        batch_size=batch_size,
        draws=settings.draws,
        sizes=sizes,
        size_draws=settings.size_draws or settings.draws,
        progress=progress,
    )
    findings = [*batch_size_notes, *points_notes]
    findings += checked.findings
    biased = health.findings_on_noise(measured_noise, train_batch_size=trained_with)
    if settings.noise_only:
        return None, measured_noise, (*findings, *biased)
    known = {"trained_with": trained_with, "train_size": run.train_size}
    check = check_reference(model, pipeline, train, layers, progress, **known)
    lag = health.gap(
        bank,
        population,
        layers,
        measured_noise,
        check,
        points=batches.points,
        reference=len(train),
        train_size=run.train_size,
        train_batch_size=trained_with,
    )
    findings += [*reference_findings(check, run, train, layers), *(() if lag is None else health.findings_on_gap(lag))]
    return lag, measured_noise, (*findings, *biased)


def _noise_batch_size(
    run: Run, settings: Settings, trained_with: int | None, reference: int
) -> tuple[int, tuple[Finding, ...]]:
    """The mini-batch size of the noise, and a note where it is not the training batch size."""
    if settings.batch_size is not None:
        return settings.batch_size, ()
    preferred = trained_with or run.batch_size or DEFAULT_BATCH_SIZE
    chosen = max(2, min(preferred, reference // 2))
    origin = "the run's batch_size" if run.batch_size else "the default"
    findings = []
    if not trained_with:
        findings.append(note("noise-batch-size", batch_size=chosen, origin=origin))
    if chosen < preferred:
        findings.append(note("noise-batch-size-halved", batch_size=chosen, preferred=preferred))
    return chosen, tuple(findings)


def _other_points(train: Points, batches: ReferenceBatches, *, largest: int) -> tuple[Points, tuple[Finding, ...]]:
    """The points that the noise is measured on: those that are not in the population, where there are enough."""
    unused_rows = np.setdiff1d(np.arange(len(train)), np.concatenate(batches.rows))
    if len(unused_rows) >= POINTS_PER_BATCH_POINT * largest:
        return train.subset(unused_rows), ()
    return train, (note("noise-on-the-same-points"),)
