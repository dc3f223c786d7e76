"""The main job: draw samples of a trained network, score them on the test set, tell the OOD sets apart."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace

import msgspec
import numpy as np

from bnuq.config import ANALYTIC, DETERMINISTIC, Run
from bnuq.data import Points
from bnuq.estimates import Caution
from bnuq.evaluation import memory
from bnuq.evaluation.datasets import Material
from bnuq.evaluation.draws import check_reference, draw_bank, needs_bank
from bnuq.evaluation.duration import Subject, forecast
from bnuq.evaluation.estimates import MIN_SAMPLES
from bnuq.evaluation.exactness import check_network, check_network_unchanged
from bnuq.evaluation.noise_models import NoiseModels, fit_noise_models
from bnuq.evaluation.plan import Plan, check_random, plan
from bnuq.evaluation.provenance import Stopwatch, behaviour, provenance, request_digest
from bnuq.evaluation.reference_check import cautions as reference_cautions
from bnuq.evaluation.resources import check_resources
from bnuq.evaluation.runner import VALIDATION, RunnerResult, bank_of, check_precision, passed
from bnuq.evaluation.setup import check_request, notes_on_request, output_cautions, prepare, scored_sets
from bnuq.progress import ForecastListener, Progress, silent
from bnuq.records import evaluation_file as result_file
from bnuq.records.approximation import approximations
from bnuq.records.evaluation import EvaluatedSet, ReferenceCheck, Result, Work
from bnuq.sampling.batch_statistics import BatchStatistics

FEW = 20  # points, below which what is fitted to them is not to be trusted


def evaluate(
    run: Run,
    *,
    progress: Progress = silent,
    look: Callable[[Mapping[str, EvaluatedSet]], None] | None = None,
    forecast_listener: ForecastListener | None = None,
) -> Result:
    """Evaluate `run`, write its result file, and return the result.

    `look` receives the sets before anything is drawn, and may raise where they cannot be used; `forecast_listener`
    receives a forecast of the duration, where it is long. Raises BnuqError with one message where the request cannot be
    carried out; the result file is then not touched.
    """
    watch = Stopwatch()
    check_request(run)
    replaces = run.out.exists()
    ready = prepare(run)
    loaded, material, pipeline, example = ready.loaded, ready.material, ready.pipeline, ready.example
    model = ready.model
    watch.lap("load")

    todo = plan(
        run,
        model,
        example,
        test=material.test,
        train=material.train,
        trained_with=loaded.checkpoint.train_batch_size,
    )
    check_random(run, todo, material.train)
    sets, scorer = scored_sets(run, todo, material)
    odd_outputs = output_cautions(ready, todo)
    described = {name: _described(name, points, todo.task) for name, points in sets.items()}
    if look is not None:
        look(described)
    check_precision(run, pipeline.device)
    check_resources(run, todo, sets, labelled=("test", VALIDATION), bank=bank_of(run, todo))
    checked = check_network(run, todo, model, pipeline, sets, material.train)
    if forecast_listener is not None:
        subject = Subject(run, todo, model, pipeline, sets, scorer, material.train)
        if (expected := forecast(subject, limit=forecast_listener.limit)) is not None:
            forecast_listener.notify(expected)
    check = None
    if material.train is not None:
        check = check_reference(run, todo, model, pipeline, material.train, progress)
    stale = check is not None and not check.passed
    noise_models = fit_noise_models(run, todo, model, pipeline, material.train, progress)
    watch.lap("draw")

    def draw(draws: range) -> dict[str, BatchStatistics]:
        watch.lap("evaluate")
        omegas = (
            {}
            if noise_models is None
            else {name: noise_models.draw(name, draws) for name in todo.methods if name in ANALYTIC}
        )
        if needs_bank(run, todo, stale=stale):
            assert material.train is not None  # ensured by the plan
            omegas["mcbn"] = draw_bank(draws, todo, model, pipeline, material.train, progress)
        watch.lap("draw")
        return omegas

    with ExitStack() as spools:
        train = material.train
        outcome = passed(run, todo, model, pipeline, sets, scorer, draw, progress, spools, train=train, stale=stale)
        check_network_unchanged(checked, model, pipeline, sets["test"])
        watch.lap("evaluate")
        result = Result(
            run=_resolved(run, todo, noise_models).record(),
            model={
                "path": str(run.checkpoint),
                "sha256": loaded.checkpoint.sha256,
                "task": todo.task,
                ("classes" if todo.task == "classification" else "outputs"): todo.outputs,
                "batchnorm_layers": len(todo.sites.batchnorms),
                "dropout_layers": len(todo.sites.dropouts),
                "parameters": loaded.parameters,
            },
            sampling={
                "samples": outcome.samples,
                "bank": outcome.bank,
                "batch_size": todo.batch_size,
                "layers": [site.name for site in todo.layers],
                "seed": run.seed,
                "mutual_information": run.mutual_information,
                "device": str(pipeline.device),
                "precision": run.precision,
                "reference_points": None if material.train is None else len(material.train),
                "test_points": material.test_points,
            },
            sets=described,
            methods=outcome.methods,
            cautions=(
                *odd_outputs,
                *material.cautions,
                *todo.cautions,
                *checked.cautions,
                *_cautions(run, todo, check, outcome, material),
            ),
            notes=(
                *notes_on_request([run], replaces=run.out if replaces else None),
                *_without_validation(material, run, todo),
                *loaded.notes,
                *material.notes,
                *todo.notes,
                *checked.notes,
                *outcome.notes,
                *(() if noise_models is None else noise_models.notes()),
                *_dead_channels(outcome.omega),
            ),
            seconds=watch.seconds(),
            work=Work(outcome.work, memory.peak(pipeline.device)),
            provenance={
                **provenance(
                    checkpoint=run.checkpoint,
                    device=pipeline.device,
                    train=material.train,
                    by_group=run.sampler.batches == "group",
                    precision=run.precision,
                ),
                "request": request_digest(run, checkpoint_sha256=loaded.checkpoint.sha256),
                **behaviour(model, example),
            },
            reference_check=check,
            bank=outcome.omega,
            path=run.out,
        )
        result = replace(result, cautions=(*result.cautions, *_noise_model_cautions(result)))
        result_file.write(result, run.out)
    return result


def _resolved(run: Run, todo: Plan, noise_models: NoiseModels | None) -> Run:
    """The run with the settings that are resolved by the network and the data."""
    sampler = run.sampler
    if noise_models is not None and noise_models.counts is not None:
        sampler = msgspec.structs.replace(sampler, counts=noise_models.counts)
    return replace(run, batch_size=todo.batch_size, methods=todo.methods, sampler=sampler)


def _without_validation(material: Material, run: Run, todo: Plan) -> Iterator[str]:
    """Why there is no constant baseline, and which estimates are absent without it."""
    if material.validation is not None:
        return
    absent = "the constant baseline and the normalised PLL are not available"
    if todo.task == "regression":
        absent = "the constant baseline and the normalised scores are not available"
        if run.scoring.tau is None:
            absent = "τ, PLL, CRPS and coverage, " + absent
    yield f"{absent}: {material.why_no_validation}; name them with --validation REF, or validation under [data]"


def _cautions(
    run: Run,
    todo: Plan,
    check: ReferenceCheck | None,
    outcome: RunnerResult,
    material: Material,
) -> Iterator[Caution]:
    if material.train is not None and todo.sites.live_batchnorms:
        yield from reference_cautions(check, run, material.train)
    if any(not site.tracked for site in todo.sites.live_batchnorms):
        yield Caution(
            "deterministic-from-reference",
            "Some BatchNorm layers keep no running statistics, so the network has no evaluation mode of its own: its "
            "deterministic estimates use the pooled statistics of all drawn mini-batches.",
        )
    sizes = {"test": material.test} | material.ood
    few = [
        name for name, points in sizes.items() if len(points if points.group is None else np.unique(points.group)) < 2
    ]
    if few:
        text = f"{', '.join(few)}: fewer than two points, or groups of points; no error over points can be estimated."
        yield Caution("too-few-points", text)
    if todo.task == "regression":
        yield from _scale_cautions(material, outcome)
    fitted_to = material.validation
    if fitted_to is not None and len(fitted_to) < FEW:
        yield Caution(
            "few-validation-points",
            f"Only {len(fitted_to)} validation points: what is fitted to them (τ, the constant baseline) has an "
            "error that the stated errors do not include.",
        )
    yield from outcome.cautions
    if len(outcome.methods) == 1 and run.methods is None:
        yield Caution(
            "nothing-stochastic", "Only the deterministic network was evaluated; the notes say what was left out."
        )
    elif outcome.samples < MIN_SAMPLES:
        least = MIN_SAMPLES
        text = f"With {outcome.samples} samples no Monte Carlo error can be estimated; use at least {least}."
        yield Caution("few-samples", text)


def _noise_model_cautions(result: Result) -> Iterator[Caution]:
    """Warnings about noise models that differ from MCBN, or cannot be compared with it."""
    compared = approximations(result)
    for model in compared:
        times = f"its mean uncertainty on the test set is {model.ratio['test'].value:.2g} times that of mcbn"
        if model.understates:
            yield Caution(
                "law-understates",
                f"{model.method} is a poor approximation of MCBN on this network: {times}, whose mini-batches "
                "change the statistics of all channels and layers jointly.",
            )
        if model.overstates:
            yield Caution("law-overstates", f"{model.method} is a poor approximation of MCBN on this network: {times}.")
    if names := [name for name in result.methods if name in ANALYTIC and not compared]:
        yield Caution(
            "law-unchecked",
            f"{', '.join(names)}: without a reference, the noise model cannot be compared with MCBN. Nominal "
            "counts treat all values of a feature map as independent, which they are not: such a model tends to "
            "understate the uncertainty of convolutional networks considerably.",
        )


def _scale_cautions(material: Material, outcome: RunnerResult) -> Iterator[Caution]:
    """Warnings where the targets of the sets, or the network's errors, are of different magnitude."""
    spread = {name: np.std(targets) for name, targets in _targets(material)}
    error = outcome.methods[DETERMINISTIC].sets["test"].estimates["mae"].value
    if len(material.test) >= FEW and error > 1.5 * spread["test"] > 0:
        yield Caution(
            "worse-than-the-mean",
            f"The network's mean error, {error:.3g}, is far above the standard deviation of the test targets, "
            f"{spread['test']:.3g}: predicting their mean would do better. Do normalize and normalize_targets match "
            "training?",
        )
    for name, deviation in spread.items():
        if deviation == 0 and len(material.test) >= FEW:
            yield Caution("constant-targets", f"All targets of {name} are the same.")
        elif spread["test"] > 0 and not 0.1 < deviation / spread["test"] < 10:
            yield Caution(
                "targets-of-another-scale",
                f"The targets of {name} have a standard deviation of {deviation:.3g}, those of the test set of "
                f"{spread['test']:.3g}: are they in the same unit?",
            )


def _targets(material: Material) -> Iterator[tuple[str, np.ndarray]]:
    sets = {"test": material.test, "validation": material.validation, "the reference": material.train}
    for name, points in sets.items():
        if points is not None and points.targets is not None:
            yield name, np.asarray(points.targets, dtype=np.float64)


def _dead_channels(omega: BatchStatistics | None) -> Iterator[str]:
    dead = {layer.name: layer.dead_channels for layer in omega.layers if layer.dead_channels} if omega else {}
    if dead:
        layers = ", ".join(f"{name} {count}" for name, count in list(dead.items())[:5])
        yield (
            f"{sum(dead.values())} channels are nearly constant in some mini-batch, their variance below 10 times eps "
            f"({layers}{' …' if len(dead) > 5 else ''}): a point that differs there is scaled up as far as eps allows"
        )


def _described(name: str, points: Points, task: str) -> EvaluatedSet:
    targets, labels = points.targets if name == "test" else None, task == "classification"
    return EvaluatedSet(
        name=name,
        kind=name if name in ("test", VALIDATION) else "ood",
        reference=points.reference,
        sha256=points.sha256,
        n=len(points),
        labels=targets if labels else None,
        targets=None if labels else targets,
        group=points.group,
        classes=tuple(points.classes or ()),
    )
