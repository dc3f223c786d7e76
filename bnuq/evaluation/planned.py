"""Reads the network and the points of a request, and plans what is computed of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property
from typing import Any

import msgspec

from bnuq.arithmetic import FLOAT32, Arithmetic
from bnuq.config import DrawSettings, Run, ScoreSettings
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
from bnuq.evaluation.setup import Prepared, findings_on_labels, findings_on_outputs, prepare, scored_sets, subject_of
from bnuq.evaluation.subject import VALIDATION, Subject, described
from bnuq.evaluation.tasks.multilabel import MultilabelScorer
from bnuq.evaluation.tasks.regression import RegressionScorer
from bnuq.files.fetching import named_or_path
from bnuq.findings import Finding, note
from bnuq.frozen import frozen
from bnuq.models.loading import LoadedModel
from bnuq.records.evaluation import MASKS, EvaluatedSet
from bnuq.records.pixel_maps import rows_of
from bnuq.tasks import Task


@frozen
class PlannedEvaluation:
    """A run, of whose perturbations those are left that apply; the networks and the points that were read for it; and
    what is evaluated of them."""

    run: Run
    networks: tuple[LoadedModel, ...]
    data: RunData
    subject: Subject
    behaviour: dict[str, str]
    output_findings: tuple[Finding, ...]

    @cached_property
    def sets(self) -> dict[str, EvaluatedSet]:
        """The evaluated sets, as a result describes them."""
        return {name: _description(name, points, self.subject.task) for name, points in self.subject.sets.items()}

    @property
    def facts(self) -> dict[str, Any]:
        """All that determines the units of an evaluation, except their addresses."""
        return self.identity | surrounding(self.subject.pipeline) | {"chunk_size": self.run.chunk_size}

    @cached_property
    def identity(self) -> dict[str, Any]:
        """All that the estimates depend on."""
        sets = {**self.subject.sets, "train": self.data.train}
        return identity(self.run, self.networks, self.behaviour, sets, self.subject.pipeline.device)

    @property
    def model(self) -> dict[str, Any]:
        """The network, as a result records it."""
        subject, loaded = self.subject, self.networks[0]
        networks = [
            {
                "path": named_or_path(network.checkpoint.path),
                "sha256": network.checkpoint.sha256,
                "parameters": network.parameters,
            }
            for network in self.networks
        ]
        return {
            "path": named_or_path(self.run.checkpoint),
            "sha256": loaded.checkpoint.sha256,
            "task": subject.task.name,
            **subject.task.described(subject.outputs),
            "batchnorm_layers": len(subject.sites.batchnorms),
            "dropout_layers": len(subject.sites.dropouts),
            "learned_layers": len(subject.sites.noises),
            "parameters": loaded.parameters,
            **({"members": networks} if len(networks) > 1 else {}),
        }

    def provenance(self, arithmetic: Arithmetic = FLOAT32) -> dict[str, str]:
        """Where a result with samples of this arithmetic comes from."""
        device, train = self.subject.pipeline.device, self.data.train
        surroundings = provenance(self.run, device=device, train=train, arithmetic=arithmetic)
        made_of = {"identity": digest_of(self.identity), "data": digest_of(self.identity["data"])}
        return {**surroundings, "masks": MASKS, **made_of, **self.behaviour}

    def findings(self) -> Iterator[Finding]:
        """What was noticed before anything was drawn, except by the checks of the network."""
        subject = self.subject
        is_cross_fitted = not subject.task.recalibrations and subject.fitted_to == "test"
        tau = subject.settings.scoring.tau is not None
        if self.data.validation is None and not is_cross_fitted:
            yield note("no-validation", task=subject.task.name, tau=tau, reason=self.data.why_no_validation)
        yield from self.output_findings
        truth = self.sets["test"].labels
        if isinstance(subject.scorer, MultilabelScorer) and truth is not None:
            yield from subject.scorer.findings_on_labels(truth)
        for loaded in self.networks:
            yield from loaded.findings
        yield from self.data.findings
        yield from findings_on_labels(subject.sets.values(), test=subject.sets["test"], outputs=subject.outputs)
        yield from subject.findings


def checked_run(run: Run, watch: Stopwatch) -> tuple[PlannedEvaluation, list[int]]:
    """The network and the points, and what is to be computed of them; and the rows of the images to show. Only what is
    quickly found is checked."""
    prepared = prepare(run, needs_reference=needs_reference(run))
    watch.lap("load")
    planned = planned_evaluation(run, prepared)
    subject = planned.subject
    if run.show_images and not run.images:
        raise RequestError("--images names images to show, and --no-images keeps none. Leave out one of them.")
    shown = rows_of(run.show_images, planned.sets["test"])  # refuses those that the test set lacks
    subject.pipeline.check_arithmetic()
    check_calibration(subject)
    certification.check_request(subject, prepared.data.findings)
    check_augmentation(subject)
    check_resources(subject, run.out.parent)
    return planned, shown


def planned_evaluation(run: Run, prepared: Prepared) -> PlannedEvaluation:
    """What is evaluated of a run, by the network and the points that were read for it."""
    data, model, loaded, pipeline = prepared.data, prepared.model, prepared.loaded, prepared.pipeline
    draws, settings = DrawSettings.of(run), ScoreSettings.of(run)
    plan = plan_of(
        draws,
        settings,
        model,
        prepared.example,
        test=data.test,
        train=data.train,
        augment=pipeline.settings.test_time_augment,
        has_members=bool(run.members),
        trained_with=loaded.checkpoint.train_batch_size,
        dropout_arguments=loaded.dropout_arguments,
    )
    check_random(draws, run.augment, plan, data.train)
    sets, scorer = scored_sets(run, plan, data)
    scale = scorer.scale if isinstance(scorer, RegressionScorer) else None
    network = plan, model, pipeline
    perturbed = perturbed_sets(run.perturb, *network, sets["test"], scale, trust_code=run.trust_code)
    run = replace(run, perturb=tuple(perturbed))
    sets |= {change.set_name: points for change, points in perturbed.items()}
    odd_outputs = findings_on_outputs(prepared, plan)
    members, others = other_networks(run, prepared, plan)
    subject = subject_of(run, prepared, plan, sets, scorer, members=members)
    known = behaviour(model, prepared.example)
    return PlannedEvaluation(run, (loaded, *others), data, subject, known, odd_outputs)


def journal_header(run: Run) -> dict[str, Any]:
    """What the journal of an evaluation is about, for people."""
    return {"command": "evaluate", "out": str(run.out.absolute()), "run": run.record()}


def resolved(planned: PlannedEvaluation, noise_models: NoiseModels | None) -> Run:
    """The run with the settings that are resolved by the network and the data."""
    run, subject, sampler = planned.run, planned.subject, planned.run.sampler
    calibrate = run.calibrate if subject.fitted_to is None else subject.calibration
    if noise_models is not None and noise_models.counts is not None:
        sampler = msgspec.structs.replace(sampler, counts=noise_models.counts)
    methods = tuple(method.name for method in subject.methods)
    return replace(run, batch_size=subject.batch_size, methods=methods, sampler=sampler, calibrate=calibrate)


def _description(name: str, points: Points, task: Task) -> EvaluatedSet:
    is_perturbed = isinstance(points.inputs, Perturbed)
    targets = points.targets if (name == "test" or is_perturbed) and points.masks is None else None
    kind: Any = name if name in ("test", VALIDATION) else "perturbed" if is_perturbed else "ood"
    return described(name, points, kind, targets, of_values=task.truth == "targets")
