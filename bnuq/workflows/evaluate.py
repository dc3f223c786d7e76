"""The main job: draw samples of a trained network, score them on the test set, and score the separation of OOD sets."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np

from bnuq.config import Run
from bnuq.data import Points
from bnuq.errors import RequestError, ResultError, SamplingError
from bnuq.evaluation import memory
from bnuq.evaluation.augmentation import check_augmentation
from bnuq.evaluation.datasets import Material, fetch_missing, needs_reference
from bnuq.evaluation.draws import passes_of_samples
from bnuq.evaluation.ensemble import other_networks
from bnuq.evaluation.estimates import MIN_SAMPLES
from bnuq.evaluation.exactness import check_network, check_network_unchanged
from bnuq.evaluation.executors import Executor, UnitsLostError
from bnuq.evaluation.gallery import gallery
from bnuq.evaluation.measured import Measured
from bnuq.evaluation.noise_models import NoiseModels
from bnuq.evaluation.perturbations import Perturbed, perturbed_sets
from bnuq.evaluation.plan import Plan, check_random, plan
from bnuq.evaluation.posthoc import post_hoc_scores
from bnuq.evaluation.predictions import (
    Predictions,
    check_predictions,
    findings_on_predictions,
    read_predictions,
    with_samples,
)
from bnuq.evaluation.provenance import Stopwatch, behaviour, content, provenance, request_digest
from bnuq.evaluation.recalibration import check_calibration
from bnuq.evaluation.reference_check import findings as reference_findings
from bnuq.evaluation.resources import check_resources
from bnuq.evaluation.runner import RunnerResult, check_precision, compute_units, run_methods
from bnuq.evaluation.setup import (
    Prepared,
    check_listed_classes,
    check_request,
    findings_on_labels,
    findings_on_outputs,
    notes_on_request,
    prepare,
    scored_sets,
)
from bnuq.evaluation.subject import VALIDATION, Subject
from bnuq.evaluation.tasks.multilabel import MultilabelScorer
from bnuq.files.journal import Journal, WorkFolder, beside, root_of, secret_for, work_folder
from bnuq.files.places import Place
from bnuq.findings import Finding, note, warning
from bnuq.methods import DETERMINISTIC, method_named
from bnuq.models.loading import LoadedModel
from bnuq.progress import Progress, silent
from bnuq.records import evaluation_file as result_file
from bnuq.records.approximation import approximations
from bnuq.records.evaluation import EvaluatedSet, Result, Work
from bnuq.records.pixel_maps import rows_of
from bnuq.sampling.batch_statistics import BatchStatistics
from bnuq.tasks import Task
from bnuq.workflows.helpers import helpers
from bnuq.workflows.processes import Job, Turn, check_shareable

AnyExecutor = TypeVar("AnyExecutor", bound=Executor)

FEW = 20  # points, below which what is fitted to them is not to be trusted


def evaluate(
    run: Run,
    *,
    work: Path | str | None = None,
    progress: Progress = silent,
    look: Callable[[Mapping[str, EvaluatedSet]], None] | None = None,
    merged: bool = False,
    turn: AbstractContextManager[Turn] | None = None,
) -> Result:
    """Evaluate `run`, write its result file, and return the result.

    Finished units are saved in `work` (by default beside the result) and read after an interruption. `look` receives
    the sets before anything is drawn, and may raise where they cannot be used. `merged` units in `work` were computed
    by others; those of a `turn` are being computed by running processes, see `job_of`. Raises BnuqError with one
    message where the request cannot be carried out; the result file is then not touched.
    """
    watch = Stopwatch()
    check_request(run)
    if run.on != "local":
        check_shareable([run], work, f"--on {run.on}")
    fetch_missing(run, progress)
    replaces = run.out.exists()
    units = work_folder(run.out, work, request=["evaluate", run.record()])
    with units as folder, folder.forgotten_on(SamplingError):  # units that serve no other request
        with turn or helpers(run.on, job_of(run, work)) as others:
            planned, shown = _planned(run, watch, look)
            subject, run = planned.subject, planned.subject.run
            journal = folder.journal(_facts(planned), _about(run))
            checked = check_network(subject)
            post_hoc = None if run.on == "local" else post_hoc_scores(subject, progress)  # while others are at work
            others.wait(progress, passes_of_samples(subject))
            executor = Executor(journal, checks=not merged)
            measured = Measured(subject, executor, watch, progress)
            outcome = run_methods(subject, measured, progress, executor, post_hoc=post_hoc, shown=shown)
            check_network_unchanged(checked, subject)
            made = _provenance(planned) | {"units": root_of(journal.digests)}
        watch.lap("evaluate")
        continued = journal.reused and run.on == "local" and not merged
        findings = (
            *notes_on_request([run], replaces=run.out if replaces else None),
            *_found_before(planned),
            *checked.findings,
            *([note("evaluation-continued", parts=journal.reused)] if continued else []),
            *_findings(run, subject.todo, measured, outcome, planned.ready.material),
            *(() if measured.noise_models is None else measured.noise_models.findings()),
            *(finding for method in subject.todo.methods for finding in measured.fitted(method)[1]),
            *_dead_channels(outcome.omega),
        )
        result = Result(
            run=_resolved(subject, measured.noise_models).record(),
            model=_model(planned),
            sampling=_sampling(planned, outcome),
            sets=planned.described,
            methods=outcome.methods,
            findings=findings,
            seconds=watch.seconds(),
            work=Work(outcome.work, memory.peak(subject.pipeline.device)),
            provenance=made,
            reference_check=measured.check,
            gallery=gallery(subject, outcome.methods, planned.described),
            image_maps=outcome.image_maps,
            bank=outcome.omega,
            path=run.out,
            units=dict(sorted(journal.digests.items())),
        )
        result = replace(result, findings=(*result.findings, *_findings_on_noise_models(result)))
        result_file.write(result, run.out)
    return result


def job_of(run: Run, work: Path | str | None) -> Job:
    """What other processes do for `evaluate` with these arguments."""
    return Job(compute, (replace(run, on="local"), secret_for(work)), str(work or beside(run.out)), run.device)


def compute(
    run: Run,
    secret: bytes,
    place: Place,
    make: Callable[[Journal], AnyExecutor],
    progress: Progress = silent,
    *,
    expected: Result | None = None,
    checks: bool = False,
) -> list[AnyExecutor]:
    """Compute the units of `run` that fall to the executor made of its journal at this place, sealed with `secret`,
    without a result. ResultError if `run` is no longer, bit by bit, the request of the `expected` result. The process
    that makes the result checks that MCBN is exact; with `checks`, so does this."""
    watch = Stopwatch()
    planned, _ = _planned(run, watch, None)
    subject = planned.subject
    if expected is not None:
        _check_unchanged(planned, expected)
    executor = make(WorkFolder(place, secret).journal(_facts(planned), _about(subject.run)))
    try:
        if checks:
            check_network(subject)
        with suppress(UnitsLostError):
            compute_units(subject, Measured(subject, executor, watch, progress), progress, executor)
    except BaseException:
        executor.journal.retract()
        raise
    return [executor]


def _check_unchanged(planned: Planned, expected: Result) -> None:
    """Raise ResultError where a result was made of anything else."""
    made = _provenance(planned)
    pairs: dict[str, tuple[Any, Any]] = {
        "the checkpoint": (_files_of(_model(planned)), _files_of(expected.model)),
        "the code of the network": (made["network"], expected.provenance.get("network")),
        "the reference": (made.get("reference_sha256"), expected.provenance.get("reference_sha256")),
        **{name: (made[name], expected.provenance.get(name)) for name in ("bnuq", "torch")},
        "the device": (str(planned.ready.pipeline.device), expected.sampling["device"]),
    }
    for name in {**planned.described, **expected.sets}:
        of_both = [sets[name].sha256 if name in sets else None for sets in (planned.described, expected.sets)]
        pairs[f"set {name}"] = of_both[0], of_both[1]
    for name, (here, there) in pairs.items():
        if here != there:
            raise ResultError(
                f"{expected.path}: {name} is not that of the result any more: {here!s:.64}, and there {there!s:.64}. "
                "Nothing was compared."
            )


def _files_of(model: Mapping[str, Any]) -> list[str]:
    return [each["sha256"] for each in model.get("members", [model])]


def _planned(
    run: Run, watch: Stopwatch, look: Callable[[Mapping[str, EvaluatedSet]], None] | None
) -> tuple[Planned, list[int]]:
    """The network and the points, which `look` receives, and what is to be computed of them; and the rows of the images
    to show. Only what is quickly found is checked."""
    ready = prepare(run, needs_reference=needs_reference(run))
    predictions = None
    if run.predictions is not None:
        predictions = read_predictions(run.predictions, run, ready.material)
        run = with_samples(run, predictions)
    watch.lap("load")
    planned = planned_run(run, ready, predictions)
    subject = planned.subject
    if look is not None:
        look(planned.described)
    shown = shown_images(run, planned.described["test"])
    check_precision(run, ready.pipeline.device)
    check_listed_classes(run, subject.sets["test"], subject.todo.outputs)
    check_calibration(subject)
    check_augmentation(subject)
    check_predictions(subject)
    check_resources(subject)
    return planned, shown


def _found_before(planned: Planned) -> Iterator[Finding]:
    """What was noticed before anything was drawn, but for the checks of the network."""
    ready, subject = planned.ready, planned.subject
    yield from _without_validation(ready.material, subject)
    yield from planned.odd_outputs
    yield from _unranked_labels(planned)
    yield from findings_on_predictions(subject)
    for loaded in (ready.loaded, *planned.members):
        yield from loaded.findings
    yield from ready.material.findings
    yield from findings_on_labels(subject.sets.values(), test=subject.sets["test"], outputs=subject.todo.outputs)
    yield from subject.todo.findings


def shown_images(run: Run, test: EvaluatedSet) -> list[int]:
    """The rows of the images to show; RequestError for those that the test set lacks, or where none are kept."""
    if run.show_images and not run.images:
        raise RequestError("--images names images to show, and --no-images keeps none. Leave out one of them.")
    return rows_of(run.show_images, test)


@dataclass(frozen=True)
class Planned:
    """What was read for a request, and what its network allows."""

    ready: Prepared
    subject: Subject
    odd_outputs: tuple[Finding, ...]
    described: dict[str, EvaluatedSet]
    behaviour: dict[str, str]
    members: tuple[LoadedModel, ...]  # the networks of an ensemble after the first


def planned_run(run: Run, ready: Prepared, predictions: Predictions | None = None) -> Planned:
    material, model = ready.material, ready.model
    todo = plan(
        run,
        model,
        ready.example,
        test=material.test,
        train=material.train,
        trained_with=ready.loaded.checkpoint.train_batch_size,
        dropout_arguments=ready.loaded.dropout_arguments,
    )
    check_random(run, todo, material.train)
    sets, scorer = scored_sets(run, todo, material)
    sets |= perturbed_sets(run, todo, model, ready.pipeline, material, sets["test"])
    odd_outputs = findings_on_outputs(ready, todo)
    described = {name: _described(name, points, todo.task) for name, points in sets.items()}
    networks, members = other_networks(run, ready, (todo.outputs, *(todo.image or ())))
    subject = Subject(run, todo, model, ready.pipeline, sets, scorer, material.train, predictions, networks)
    return Planned(ready, subject, odd_outputs, described, behaviour(model, ready.example), members)


def _facts(planned: Planned) -> dict[str, Any]:
    """All that determines the units of an evaluation, except their addresses."""
    run, ready = planned.subject.run, planned.ready
    sha256, validation = ready.loaded.checkpoint.sha256, ready.material.validation
    return {
        "request": request_digest(run, checkpoint_sha256=sha256),
        "members": [loaded.checkpoint.sha256 for loaded in planned.members],
        "fitted_to": None if validation is None else validation.sha256,
        "calibrate": planned.subject.calibration,
        "chunk_size": run.chunk_size,
        **content(
            checkpoint_sha256=sha256,
            network=planned.behaviour,
            device=ready.pipeline.device,
            train=ready.material.train,
            by_group=run.sampler.batches == "group",
        ),
    }


def _about(run: Run) -> dict[str, Any]:
    """What the journal of an evaluation is about, for people and for `bnuq merge`."""
    return {"command": "evaluate", "out": str(run.out.absolute()), "run": run.record()}


def _model(planned: Planned) -> dict[str, Any]:
    loaded, todo = planned.ready.loaded, planned.subject.todo
    outputs = {"outputs" if todo.task.is_regression else "classes": todo.outputs}
    if todo.task.outputs == "labels":
        outputs = {"classes": 2, "labels": todo.outputs}
    return {
        "path": str(planned.subject.run.checkpoint),
        "sha256": loaded.checkpoint.sha256,
        "task": todo.task.name,
        **outputs,
        "batchnorm_layers": len(todo.sites.batchnorms),
        "dropout_layers": len(todo.sites.dropouts),
        "learned_layers": len(todo.sites.noises),
        "parameters": loaded.parameters,
        **({"members": [_network(each) for each in (loaded, *planned.members)]} if planned.members else {}),
    }


def _network(loaded: LoadedModel) -> dict[str, Any]:
    return {
        "path": str(loaded.checkpoint.path),
        "sha256": loaded.checkpoint.sha256,
        "parameters": loaded.parameters,
    }


def _sampling(planned: Planned, outcome: RunnerResult) -> dict[str, Any]:
    run, material = planned.subject.run, planned.ready.material
    return {
        "samples": outcome.samples,
        "bank": outcome.bank,
        "batch_size": planned.subject.todo.batch_size,
        "layers": [site.name for site in planned.subject.todo.layers],
        "seed": run.seed,
        "mutual_information": run.mutual_information,
        "device": str(planned.ready.pipeline.device),
        "precision": run.precision,
        "reference_points": None if material.train is None else len(material.train),
        "test_points": material.test_points,
    }


def _provenance(planned: Planned) -> dict[str, str]:
    run = planned.subject.run
    of_process = provenance(
        checkpoint=run.checkpoint,
        device=planned.ready.pipeline.device,
        train=planned.ready.material.train,
        by_group=run.sampler.batches == "group",
        precision=run.precision,
    )
    request = request_digest(run, checkpoint_sha256=planned.ready.loaded.checkpoint.sha256)
    made = planned.subject.predictions
    of_file = {} if made is None else {"predictions_sha256": made.sha256}
    return {**of_process, "request": request, **of_file, **planned.behaviour}


def _resolved(subject: Subject, noise_models: NoiseModels | None) -> Run:
    """The run with the settings that are resolved by the network and the data."""
    run, todo, sampler = subject.run, subject.todo, subject.run.sampler
    calibrate = run.calibrate if subject.fitted_to is None else subject.calibration
    if noise_models is not None and noise_models.counts is not None:
        sampler = msgspec.structs.replace(sampler, counts=noise_models.counts)
    methods = tuple(method.name for method in todo.methods)
    return replace(run, batch_size=todo.batch_size, methods=methods, sampler=sampler, calibrate=calibrate)


def _without_validation(material: Material, subject: Subject) -> Iterator[Finding]:
    """Why there is no constant baseline, and which estimates are absent without it."""
    task, tau = subject.todo.task, subject.run.scoring.tau is not None
    is_cross_fitted = task.is_regression and subject.fitted_to == "test"
    if material.validation is None and not is_cross_fitted:
        yield note("no-validation", task=task.name, tau=tau, reason=material.why_no_validation)


def _unranked_labels(planned: Planned) -> Iterator[Finding]:
    """A note on the labels of the test set that have no AUROC."""
    truth, scorer = planned.described["test"].labels, planned.subject.scorer
    if isinstance(scorer, MultilabelScorer) and truth is not None:
        yield from scorer.findings_on_labels(truth)


def _findings(
    run: Run,
    todo: Plan,
    measured: Measured,
    outcome: RunnerResult,
    material: Material,
) -> Iterator[Finding]:
    was_trained = any(site.tracked and not site.never_trained for site in todo.layers)  # else another warning says so
    if material.train is not None and measured.stale and was_trained:
        yield from reference_findings(measured.check, run, material.train, todo.sites.live_batchnorms, outcome.methods)
    if any(not site.tracked for site in todo.sites.live_batchnorms):
        yield warning("deterministic-from-reference")
    sizes = {"test": material.test} | material.ood
    few = [
        name for name, points in sizes.items() if len(points if points.group is None else np.unique(points.group)) < 2
    ]
    if few:
        yield warning("too-few-points", sets=few)
    if todo.task.is_regression:
        yield from _findings_on_scale(material, outcome)
    fitted_to = material.validation
    if fitted_to is not None and len(fitted_to) < FEW:
        yield warning("few-validation-points", points=len(fitted_to))
    yield from outcome.findings
    if run.methods is None and not any(not method_named(name).is_single for name in outcome.methods):
        yield warning("nothing-stochastic")
    elif outcome.samples < MIN_SAMPLES and any(not method_named(name).is_single for name in outcome.methods):
        yield warning("few-samples", samples=outcome.samples, minimum=MIN_SAMPLES)


def _findings_on_noise_models(result: Result) -> Iterator[Finding]:
    """Warnings about noise models that differ from MCBN, or cannot be compared with it."""
    compared = approximations(result)
    for model in compared:
        ratio = float(model.ratio["test"].value)
        if model.understates:
            yield warning("noise-model-understates", method=model.method, ratio=ratio)
        if model.overstates:
            yield warning("noise-model-overstates", method=model.method, ratio=ratio)
    if names := [name for name in result.methods if method_named(name).approximates and not compared]:
        yield warning("noise-model-unchecked", methods=names)


def _findings_on_scale(material: Material, outcome: RunnerResult) -> Iterator[Finding]:
    """Warnings where the targets of the sets, or the network's errors, are of different magnitude."""
    sets = {"test": material.test, "validation": material.validation, "the reference": material.train}
    spread = {
        name: float(np.std(np.asarray(points.targets, dtype=np.float64)))
        for name, points in sets.items()
        if points is not None and points.targets is not None
    }
    error = outcome.methods[DETERMINISTIC].sets["test"].estimates["mae"].value
    if len(material.test) >= FEW and error > 1.5 * spread["test"] > 0:
        yield warning("worse-than-the-mean", error=float(error), sd=spread["test"])
    for name, deviation in spread.items():
        if deviation == 0 and len(material.test) >= FEW:
            yield warning("constant-targets", set=name)
        elif spread["test"] > 0 and not 0.1 < deviation / spread["test"] < 10:
            yield warning("targets-of-another-scale", set=name, sd=deviation, test_sd=spread["test"])


def _dead_channels(omega: BatchStatistics | None) -> Iterator[Finding]:
    dead = {layer.name: layer.dead_channels for layer in omega.layers if layer.dead_channels} if omega else {}
    if dead:
        yield note("channels-nearly-constant", layers=[[name, int(count)] for name, count in dead.items()])


def _described(name: str, points: Points, task: Task) -> EvaluatedSet:
    is_perturbed = isinstance(points.inputs, Perturbed)
    targets = points.targets if (name == "test" or is_perturbed) and points.masks is None else None
    labels = not task.is_regression
    return EvaluatedSet(
        name=name,
        kind=name if name in ("test", VALIDATION) else "perturbed" if is_perturbed else "ood",
        reference=points.reference,
        sha256=points.sha256,
        n=len(points),
        labels=targets if labels else None,
        targets=None if labels else targets,
        group=points.group,
        classes=tuple(points.classes or ()),
        index=points.index,
        names=points.names,
    )
