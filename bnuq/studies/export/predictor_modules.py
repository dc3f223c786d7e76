"""The passes of an engine as modules that torch.export can trace."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from torch import Tensor, nn

from bnuq.catalogue import texts
from bnuq.config import Augment
from bnuq.errors import RequestError, ResultError, SamplingError
from bnuq.evaluation.augmentation import Augmented
from bnuq.evaluation.pipeline import Pipeline
from bnuq.evaluation.posthoc import PostHoc, fitted_scores
from bnuq.evaluation.subject import Subject
from bnuq.models.loading import LoadedModel
from bnuq.progress import Progress
from bnuq.sampling.bank_tiles import BankEngine
from bnuq.sampling.digests import is_of
from bnuq.sampling.engine import Stochastic
from bnuq.sampling.executor import PlanExecutor
from bnuq.sampling.head import head, last_layer
from bnuq.sampling.laplace import LastLayerPasses
from bnuq.sampling.outputs import unconverted
from bnuq.sampling.plain_loop import Engine, Ensemble, Evaluation
from bnuq.sampling.predictor import LastLayerDraws, LastLayerScores, SamplePasses
from bnuq.sampling.program_draws import Augmentation, BankDraws
from bnuq.sampling.site_search import find_sites
from bnuq.studies.monitor.features import Watch
from bnuq.studies.monitor.program import Drift
from bnuq.studies.monitor.record import read_baseline


def pass_modules(subject: Subject, engine: Engine, inputs: Tensor) -> list[SamplePasses]:
    """The passes of an engine as modules, planned by these inputs; SamplingError for a network that has no plan."""
    if isinstance(engine, Ensemble):
        return [SamplePasses(_executor(network, inputs), 1) for network in engine.networks]
    if isinstance(engine, LastLayerPasses):
        change = LastLayerDraws(engine.change.unflatten(0, (engine.samples, -1)), engine.normalised)
        return [SamplePasses(_executor(unconverted(subject.model), inputs), engine.samples, change=change)]
    augmentation = bank = None
    if isinstance(engine, Augmented):
        augmentation, engine = _augmentation(engine.pipeline, inputs), engine.engine
    samples = subject.samples_of(subject.methods[0], subject.max_samples)
    if isinstance(engine, BankEngine):
        bank, engine = BankDraws(engine.engine.samples, samples, subject.draws.seed), engine.engine
    if not isinstance(engine, Stochastic | Evaluation):
        raise SamplingError(f"{subject.methods[0]} cannot be exported: no module computes the samples of its engine.")
    executor = _planned(engine, inputs) if isinstance(engine, Stochastic) else _executor(subject.model, inputs)
    return [SamplePasses(executor, samples, augmentation=augmentation, bank=bank)]


def _executor(network: nn.Module, inputs: Tensor) -> PlanExecutor:
    """The plan of a network that draws nothing."""
    return _planned(Stochastic(network, find_sites(network, inputs[:3], compare_with_training=False)), inputs)


def _planned(engine: Stochastic, inputs: Tensor) -> PlanExecutor:
    engine.prepare(inputs)
    if engine.executor is None:
        raise SamplingError(
            f"the network cannot be exported, as its operations cannot be recorded: {engine.why_plain}."
        )
    return engine.executor


def drift_module(path: Path, subject: Subject, loaded: LoadedModel, inputs: Tensor) -> Drift:
    """What says how far points are from the baseline of a file; ResultError where that is of another network,
    RequestError where its inputs are made otherwise."""
    baseline = read_baseline(path)
    if not is_of(baseline.model["fingerprint"], loaded.module):
        raise ResultError(f"{path} was made with other weights than those of {subject.checkpoints[0].name}.")
    if list(inputs.shape[1:]) != baseline.inputs["shape"] or subject.pipeline.normalize != baseline.normalize:
        raise RequestError(f"--monitor {path}: its inputs have another shape or normalisation than those of the run.")
    watch = Watch(subject.model, subject.task, inputs[:3], seed=baseline.seed)
    return Drift(subject.model, watch, baseline, inputs)


def ood_module(
    subject: Subject, names: Sequence[str], inputs: Tensor, progress: Progress
) -> tuple[LastLayerScores, dict[str, Tensor]]:
    """These post-hoc scores, fitted as in an evaluation, and their values of the inputs; RequestError without one."""
    fitted = fitted_scores(subject, progress) if subject.task.classifies_points else PostHoc({}, ())
    for name in names:
        if name not in fitted.scores:
            why = "; ".join(texts(fitted.findings)) or f"it is of classes, and this is a {subject.task}"
            raise RequestError(f"--ood-score {name} cannot be had of this network: {why}.")
    network, scores = unconverted(subject.model), {name: fitted.scores[name] for name in names}
    last = head(network, inputs)
    own = {name: score(last_layer(last.features, last.logits)) for name, score in scores.items()}
    return LastLayerScores(SamplePasses(_executor(network, inputs), 1), scores), own


def check_exportable(augment: Augment | None) -> None:
    """RequestError for a part of the augmentation that needs the original pictures."""
    for key in ("jitter", "resized_crop"):
        if augment is not None and getattr(augment, key) is not None:
            raise RequestError(
                f"{augment.place}.{key} cannot be exported: it changes original images, and a program takes "
                "those that are ready for the network. Padding, crops and flips can be (pad, pad_mode, crop, flip)."
            )


def _augmentation(pipeline: Pipeline, inputs: Tensor) -> Augmentation:
    """The augmentation of evaluated points as a module."""
    augment = pipeline.settings.augment
    assert augment is not None  # ensured by the plan
    channels, *size = inputs.shape[1:]
    border = None
    if augment.pad_mode != "reflect":  # the value of the padding, normalised
        border = pipeline.prepared(np.full((1, channels, 1, 1), augment.pad_value, np.float32))[0]
    crop = (size[0], size[1]) if augment.crop is None else (augment.crop, augment.crop)
    return Augmentation(pipeline.settings.seed, border=border, pad=augment.pad, crop=crop, flip=augment.flip)
