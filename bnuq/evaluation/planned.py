"""Reads the network and the points of a request, and plans what is computed of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property
from typing import Any

import msgspec

from bnuq.arithmetic import FLOAT32, Arithmetic
from bnuq.config import Run
from bnuq.data import Points
from bnuq.errors import RequestError
from bnuq.evaluation import certification
from bnuq.evaluation.augmentation import check_augmentation
from bnuq.evaluation.datasets import RunData, needs_reference
from bnuq.evaluation.ensemble import other_networks
from bnuq.evaluation.noise_models import NoiseModels
from bnuq.evaluation.perturbations import Perturbed, perturbed_sets
from bnuq.evaluation.plan import check_random, plan_of
from bnuq.evaluation.provenance import Stopwatch, behaviour, digest_of, identity, provenance, surrounding
from bnuq.evaluation.recalibration import check_calibration
from bnuq.evaluation.resources import check_resources
from bnuq.evaluation.setup import Prepared, findings_on_labels, findings_on_outputs, prepare, scored_sets
from bnuq.evaluation.subject import VALIDATION, Subject, described
from bnuq.evaluation.tasks.multilabel import MultilabelScorer
from bnuq.files.fetching import named_or_path
from bnuq.findings import Finding, note
from bnuq.frozen import frozen
from bnuq.models.loading import LoadedModel
from bnuq.records.evaluation import MASKS, EvaluatedSet
from bnuq.records.pixel_maps import rows_of
from bnuq.tasks import Task


@frozen
class PlannedRun:
    """What was read for a request, and what its network allows. `sets` describe the subject's sets, and `members` are
    the networks of an ensemble after the first."""

    prepared: Prepared
    subject: Subject
    output_findings: tuple[Finding, ...]
    sets: dict[str, EvaluatedSet]
    behaviour: dict[str, str]
    members: tuple[LoadedModel, ...]

    @property
    def facts(self) -> dict[str, Any]:
        """All that determines the units of an evaluation, except their addresses."""
        return self.identity | surrounding(self.prepared.pipeline) | {"chunk_size": self.subject.run.chunk_size}

    @cached_property
    def identity(self) -> dict[str, Any]:
        """All that the estimates depend on."""
        prepared, sets = self.prepared, {**self.subject.sets, "train": self.prepared.data.train}
        networks = (prepared.loaded, *self.members)
        return identity(self.subject.run, networks, self.behaviour, sets, prepared.pipeline.device)

    @property
    def model(self) -> dict[str, Any]:
        """The network, as a result records it."""
        loaded, plan = self.prepared.loaded, self.subject.plan
        networks = [
            {
                "path": named_or_path(network.checkpoint.path),
                "sha256": network.checkpoint.sha256,
                "parameters": network.parameters,
            }
            for network in (loaded, *self.members)
        ]
        return {
            "path": named_or_path(self.subject.run.checkpoint),
            "sha256": loaded.checkpoint.sha256,
            "task": plan.task.name,
            **plan.task.described(plan.outputs),
            "batchnorm_layers": len(plan.sites.batchnorms),
            "dropout_layers": len(plan.sites.dropouts),
            "learned_layers": len(plan.sites.noises),
            "parameters": loaded.parameters,
            **({"members": networks} if self.members else {}),
        }

    def provenance(self, arithmetic: Arithmetic = FLOAT32) -> dict[str, str]:
        """Where a result with samples of this arithmetic comes from."""
        prepared = self.prepared
        device, train = prepared.pipeline.device, prepared.data.train
        surroundings = provenance(self.subject.run, device=device, train=train, arithmetic=arithmetic)
        made_of = {"identity": digest_of(self.identity), "data": digest_of(self.identity["data"])}
        return {**surroundings, "masks": MASKS, **made_of, **self.behaviour}

    def findings(self) -> Iterator[Finding]:
        """What was noticed before anything was drawn, except by the checks of the network."""
        prepared, subject = self.prepared, self.subject
        yield from _without_validation(prepared.data, subject)
        yield from self.output_findings
        truth = self.sets["test"].labels
        if isinstance(subject.scorer, MultilabelScorer) and truth is not None:
            yield from subject.scorer.findings_on_labels(truth)
        for loaded in (prepared.loaded, *self.members):
            yield from loaded.findings
        yield from prepared.data.findings
        yield from findings_on_labels(subject.sets.values(), test=subject.sets["test"], outputs=subject.plan.outputs)
        yield from subject.plan.findings


def checked_run(run: Run, watch: Stopwatch) -> tuple[PlannedRun, list[int]]:
    """The network and the points, and what is to be computed of them; and the rows of the images to show. Only what is
    quickly found is checked."""
    prepared = prepare(run, needs_reference=needs_reference(run))
    watch.lap("load")
    planned = planned_run(run, prepared)
    subject = planned.subject
    shown = shown_images(run, planned.sets["test"])
    prepared.pipeline.check_arithmetic()
    check_calibration(subject)
    certification.check_request(subject, prepared.data.findings)
    check_augmentation(subject)
    check_resources(subject)
    return planned, shown


def planned_run(run: Run, prepared: Prepared) -> PlannedRun:
    data, model = prepared.data, prepared.model
    plan = plan_of(
        run,
        model,
        prepared.example,
        test=data.test,
        train=data.train,
        trained_with=prepared.loaded.checkpoint.train_batch_size,
        dropout_arguments=prepared.loaded.dropout_arguments,
    )
    check_random(run, plan, data.train)
    sets, scorer = scored_sets(run, plan, data)
    run, perturbed = perturbed_sets(run, plan, model, prepared.pipeline, data, sets["test"])
    sets |= perturbed
    output_findings = findings_on_outputs(prepared, plan)
    descriptions = {name: _description(name, points, plan.task) for name, points in sets.items()}
    networks, members = other_networks(run, prepared, plan)
    subject = Subject(run, plan, sets, scorer, model, prepared.pipeline, data.train, networks)
    return PlannedRun(prepared, subject, output_findings, descriptions, behaviour(model, prepared.example), members)


def shown_images(run: Run, test: EvaluatedSet) -> list[int]:
    """The rows of the images to show; RequestError for those that the test set lacks, or where none are kept."""
    if run.show_images and not run.images:
        raise RequestError("--images names images to show, and --no-images keeps none. Leave out one of them.")
    return rows_of(run.show_images, test)


def journal_header(run: Run) -> dict[str, Any]:
    """What the journal of an evaluation is about, for people."""
    return {"command": "evaluate", "out": str(run.out.absolute()), "run": run.record()}


def resolved(subject: Subject, noise_models: NoiseModels | None) -> Run:
    """The run with the settings that are resolved by the network and the data."""
    run, plan, sampler = subject.run, subject.plan, subject.run.sampler
    calibrate = run.calibrate if subject.fitted_to is None else subject.calibration
    if noise_models is not None and noise_models.counts is not None:
        sampler = msgspec.structs.replace(sampler, counts=noise_models.counts)
    methods = tuple(method.name for method in plan.methods)
    return replace(run, batch_size=plan.batch_size, methods=methods, sampler=sampler, calibrate=calibrate)


def _without_validation(data: RunData, subject: Subject) -> Iterator[Finding]:
    """Why there is no constant baseline, and which estimates are absent without it."""
    task, tau = subject.plan.task, subject.run.scoring.tau is not None
    is_cross_fitted = not task.recalibrations and subject.fitted_to == "test"
    if data.validation is None and not is_cross_fitted:
        yield note("no-validation", task=task.name, tau=tau, reason=data.why_no_validation)


def _description(name: str, points: Points, task: Task) -> EvaluatedSet:
    is_perturbed = isinstance(points.inputs, Perturbed)
    targets = points.targets if (name == "test" or is_perturbed) and points.masks is None else None
    kind: Any = name if name in ("test", VALIDATION) else "perturbed" if is_perturbed else "ood"
    return described(name, points, kind, targets, of_values=task.truth == "targets")
