"""The first steps of every command: check the request, read the network and the points, and choose the scorer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn

from bnuq.config import DrawSettings, PointSettings, Run, ScoreSettings
from bnuq.config.effects import settings_without_effect
from bnuq.data import Points
from bnuq.errors import DataError, RequestError, SamplingError
from bnuq.evaluation import memory
from bnuq.evaluation.batch_composition import check_classes
from bnuq.evaluation.datasets import RunData, load_data
from bnuq.evaluation.pipeline import Pipeline, device_and_notes, input_normalize
from bnuq.evaluation.subject import VALIDATION, Plan, Subject
from bnuq.evaluation.task import check_outputs
from bnuq.evaluation.tasks.classification import ClassificationScorer
from bnuq.evaluation.tasks.multilabel import MultilabelScorer
from bnuq.evaluation.tasks.regression import RegressionScorer
from bnuq.evaluation.tasks.scorer import ScoredNetwork, TaskScorer
from bnuq.evaluation.tasks.segmentation import SegmentationScorer
from bnuq.findings import Finding, about, note, warning
from bnuq.frozen import frozen
from bnuq.models.loading import LoadedModel, live_model, load_model
from bnuq.sampling.inputs import Unpacked
from bnuq.sampling.outputs import as_logits
from bnuq.sampling.plain_loop import Evaluation
from bnuq.tasks import Task
from bnuq.trust import BY_USER


@frozen
class Prepared:
    """The network on its device, the points of the run, their pipeline, and a few test points as network input."""

    loaded: LoadedModel
    model: nn.Module
    data: RunData
    pipeline: Pipeline
    example: Tensor


def prepare(
    run: Run,
    data: RunData | Callable[[nn.Module], RunData] | None = None,
    *,
    only_finite: bool = True,
    needs_reference: bool = True,
) -> Prepared:
    """Read the network and the points of `run`, unless `data` is them, or reads them for the network; BnuqError
    where they cannot be read or do not fit together, but for a reference that is not needed, see `load_data`. With
    `only_finite`, weights that are not finite are refused."""
    loaded = network_of(run, only_finite=only_finite)
    if callable(data):
        data = data(loaded.module)
    data = data or load_data(run, loaded.module, needs_reference=needs_reference)
    check_train_size(run.train_size, data.train)
    device, passed_over = device_and_notes(run.device)
    loaded = replace(loaded, findings=(*loaded.findings, *passed_over))
    memory.reset_peak(device)
    settings = PointSettings.of(run)
    pipeline = Pipeline(settings, device, input_normalize(settings, data.train, data.test))
    sets = (data.test, data.train, data.validation, *data.ood.values())
    read = [points for points in sets if points is not None]
    model, pipeline, taken = as_taken(loaded.module.to(pipeline.device, pipeline.dtype), pipeline, read)
    loaded = replace(loaded, findings=(*loaded.findings, *taken))
    model = as_logits(model, run.outputs)
    return Prepared(loaded, model, data, pipeline, pipeline.evaluated(data.test, slice(0, 3)))


def check_train_size(train_size: int | None, train: Points | None) -> None:
    """Raise RequestError for a training set of fewer points than the part of it that is given."""
    if train_size is not None and train is not None and train_size < len(train):
        raise RequestError(
            f"data.train_size is {train_size}, and train alone has {len(train)} examples; expected the size of the "
            "whole training set, with that part included."
        )


@contextmanager
def threads(count: int | None) -> Iterator[None]:
    """Inside the block, torch computes with `count` threads on the CPU; with as many as before, where None."""
    before = torch.get_num_threads()
    if count is not None:
        torch.set_num_threads(count)
    try:
        yield
    finally:
        if count is not None:
            torch.set_num_threads(before)


def network_of(run: Run, *, only_finite: bool = True) -> LoadedModel:
    """The network of `run`, in memory or read from its checkpoint; see `load_model` for errors."""
    if run.network is not None:
        return live_model(run.network, run.checkpoint, only_finite=only_finite)
    arch = run.arch
    return load_model(
        run.checkpoint,
        arch=arch.text if arch else None,
        arch_args=run.arch_args,
        entry=run.entry,
        base=arch.base if arch else None,
        named_by=arch.named_by if arch else BY_USER,
        trust_code=run.trust_code,
        trust_pickle=run.trust_pickle,
        only_finite=only_finite,
    )


def as_taken(
    model: nn.Module, pipeline: Pipeline, sets: Sequence[Points]
) -> tuple[nn.Module, Pipeline, tuple[Finding, ...]]:
    """The network and the pipeline for these sets, and a note where inputs are passed as they are: several ones, which
    the network is given unpacked, and integers. RequestError for inputs that the network does not take."""
    if (layout := sets[0].layout) is not None:
        return Unpacked(model, layout), replace(pipeline, integers=True), (note("several-inputs", inputs=str(layout)),)
    if _takes_integers(model, pipeline, sets):
        return model, replace(pipeline, integers=True), (note("integer-inputs"),)
    return model, pipeline, ()


def _takes_integers(model: nn.Module, pipeline: Pipeline, sets: Sequence[Points]) -> bool:
    """Whether the network fails on these points as floating-point numbers and takes them as integers, as an embedding
    of token numbers does. Only rows of whole numbers, which nothing normalises or augments, may be integers."""
    first = sets[0]
    changed = pipeline.settings.normalize is not None or pipeline.settings.augment is not None
    if changed or len(first.point_shape) != 1 or not _whole(first.inputs[:3]):
        return False
    try:
        Evaluation(model).passes(pipeline.evaluated(first, slice(0, 3)))
    except SamplingError as error:
        if not all(_whole(points.inputs[:]) for points in sets):
            return False
        if "Long" in str(error):  # "Expected tensor for argument 'indices' to have one of the scalar types: Long, Int"
            return True
        with suppress(SamplingError):
            Evaluation(model).passes(replace(pipeline, integers=True).evaluated(first, slice(0, 3)))
            return True
    return False


def _whole(values: np.ndarray) -> bool:
    return values.dtype.kind in "iub" or bool((values == np.floor(values)).all())


SCORERS: Mapping[Task, type[TaskScorer]] = {
    scorer.task: scorer for scorer in (ClassificationScorer, MultilabelScorer, RegressionScorer, SegmentationScorer)
}


def check_class_names(run: Run, points: Points, outputs: int) -> None:
    names = points.classes or ()
    if run.classes is not None and len(names) != outputs:
        raise DataError(
            f"data.classes (--classes) lists {len(names)} names, and the network has {outputs} outputs. List one name "
            f"for each output, in their order; the first are {', '.join(names[:5])}."
        )


def scored_sets(run: Run, plan: Plan, data: RunData) -> tuple[dict[str, Points], TaskScorer]:
    """The sets in the order of evaluation, their labels checked, and the scorer; SamplingError for stratified
    mini-batches of a regression, and DataError where a run lists more or fewer classes than the network has outputs."""
    test, train = data.test, data.train
    scorer = SCORERS[plan.task].of(ScoredNetwork(ScoreSettings.of(run), plan.outputs, test, train, plan.image))
    if train is not None and plan.batch_size is not None:
        check_classes(run.sampler, plan.task, train)
    sets = {} if data.validation is None else {VALIDATION: scorer.checked(data.validation)}
    sets["test"] = test if test.targets is None and test.masks is None else scorer.checked(test)
    check_class_names(run, sets["test"], plan.outputs)
    return sets | {name: scorer.checked(points, is_ood=True) for name, points in data.ood.items()}, scorer


def subject_of(
    run: Run,
    prepared: Prepared,
    plan: Plan,
    sets: Mapping[str, Points],
    scorer: TaskScorer,
    *,
    members: tuple[nn.Module, ...] = (),
    calibrates: bool = True,
) -> Subject:
    """What is evaluated of a run; `calibrates` says whether recalibrations are fitted."""
    scored = {"settings": ScoreSettings.of(run), "sets": sets, "scorer": scorer, "notes": ()}
    network = {"model": prepared.model, "members": members, "pipeline": prepared.pipeline, "train": prepared.data.train}
    checkpoints = tuple(single.checkpoint for single in run.single)
    subject = Subject(**vars(plan), **scored, **network, draws=DrawSettings.of(run), checkpoints=checkpoints)
    calibration = subject.calibration if calibrates else "off"
    notes = settings_without_effect(run, plan.task, plan.methods, calibration, sets.values())
    return replace(subject, notes=tuple(notes))


def findings_on_labels(sets: Iterable[Points], *, test: Points, outputs: int) -> Iterator[Finding]:
    """The warnings about the masks of these sets, and one where the test set's classes are numbered by their names
    and are fewer than the network's outputs."""
    for points in sets:
        yield from about(points.name, (finding for finding in points.findings if finding.code == "masks-ignored"))
    names = list(test.classes or ())
    if test.classes_sorted and len(names) < outputs:
        yield warning("fewer-classes-than-outputs", names=names, outputs=outputs)


def findings_on_outputs(prepared: Prepared, plan: Plan) -> tuple[Finding, ...]:
    """Warnings about the outputs of a classifier; ModelError where they are probabilities."""
    test = prepared.data.test
    return check_outputs(prepared.model, lambda rows: prepared.pipeline.evaluated(test, rows), test, plan.task)
