"""The lines of a run file that `bnuq init` writes: found values, and comments where one is to be filled in."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np

from bnuq.config import Normalize, Run
from bnuq.config.normalizations import PUBLISHED
from bnuq.config.runfile_writing import Line
from bnuq.data import Points, labelled
from bnuq.errors import BnuqError, ModelError
from bnuq.evaluation.completeness import batchnorms, beside, recorded_lines
from bnuq.evaluation.task import are_several_labels, check_outputs, task_of
from bnuq.models.checkpoint import Checkpoint
from bnuq.models.loading import LoadedModel
from bnuq.models.suggestions import described, suggested_architectures
from bnuq.records.evaluation import MEDIAN_LIMIT, WORST_LIMIT
from bnuq.sampling.outputs import as_logits, unconverted
from bnuq.sampling.plain_loop import Evaluation
from bnuq.studies.inspect.load import LoadedNetwork
from bnuq.studies.inspect.pipeline_settings import DATA_OWN
from bnuq.studies.inspect.pipelines import Suggestion, class_order

PIPELINE_KEYS = ("normalize", "channel_order", "augment")
TODO = "TODO: "  # opens the comment of a line that is to be filled in


LIKELY = "likely, not certain: "  # and of one that is to be checked


def model_lines(run: Run, checkpoint: Checkpoint, loaded: LoadedModel | None) -> Iterator[Line]:
    record, count = run.record()["model"], batchnorms(checkpoint)
    yield Line("checkpoint", record["checkpoint"], f"{count} BatchNorm layer{'s' * (count != 1)}")
    if run.arch is not None and loaded is not None:
        yield Line("arch", record["arch"], f"{loaded.parameters:,} parameters")
    elif checkpoint.state is not None:
        yield Line(
            "arch",
            suggested_architectures(checkpoint)[0],
            f'{TODO}or "package.module:factory", "timm:NAME", "torchvision:NAME"',
            active=False,
            above=f"The file {described(checkpoint)}.",
        )
    notes = {} if loaded is None else {finding.code: finding.values for finding in loaded.findings}
    arguments, comment = dict(run.arch_args), ""
    if (classes := notes.get("classes-from-file")) is not None:
        arguments[classes["argument"]], comment = classes["classes"], "the number of classes: as in the file"
    if arguments:
        yield Line("arch_args", arguments, comment)
    if loaded is not None and loaded.dropout_arguments:
        rate, *others = loaded.dropout_arguments
        comment = f"if it was trained with dropout: its rate{' or '.join(['', *others])}"
        yield Line("arch_args", {**arguments, rate: 0.1}, comment, active=False)
    yield from recorded_lines(run, checkpoint)
    yield from (Line(key, record[key]) for key in ("task", "outputs") if key in record)


def task_lines(run: Run, network: LoadedNetwork, sets: dict[str, Points]) -> Iterator[Line]:
    """The task and what a classifier's outputs are, where neither was given."""
    points = sets.get("test", sets.get("train"))
    assert points is not None
    if run.task is not None or run.outputs != "logits" or (points := labelled(points)).targets is None:
        return
    output = Evaluation(network.model).passes(network.example)[0]
    if output.ndim > 2:
        yield Line("task", "classification", f"{TODO}the outputs of an example have several axes", active=False)
        return
    outputs = output.shape[1] if output.ndim == 2 else 1
    where = f"{outputs} output{'s' * (outputs > 1)}"
    assert points.targets is not None
    if outputs == 1 and bool(np.all((points.targets == 0) | (points.targets == 1))):
        by_labels = points.targets.dtype.kind in "iu"
        what = _outputs(network, points, ("binary", "probabilities"))
        comment = f"{LIKELY}{where}, and labels 0 and 1" if by_labels else f"{TODO}if this is not a regression"
        yield Line("task", "regression", "if this is not a classifier of two classes", active=False)
        yield Line("outputs", what or "binary", comment, active=by_labels)
        return
    if are_several_labels(points.targets, outputs):
        found = f"{LIKELY}{where}, and targets of 0 and 1, several in a row"
        ends_in_sigmoid = f"{TODO}remove the sigmoid at the end of the network first; {where}, and several labels"
        by_logits = _outputs(network, points, ("multilabel",)) is not None
        yield Line("outputs", "multilabel", found if by_logits else ends_in_sigmoid, active=by_logits)
        yield Line("task", "regression", "if these targets are not labels", active=False)
        return
    try:
        task = task_of(run, outputs, points)
    except BnuqError as error:
        yield Line("task", "classification", f"{TODO}{error}", active=False)
        return
    truth = {"labels": "labels", "targets": "targets that are not labels"}[task.truth]
    yield Line("task", task.name, f"found: {where}, and {truth}")
    if not task.is_regression:
        what = _outputs(network, points, ("logits", "probabilities"))
        if what is None:
            comment = f"{TODO}they lie between 0 and 1, and do not sum to 1; bnuq takes logits or probabilities"
            yield Line("outputs", "logits", comment, active=False)
        elif what != "logits":
            yield Line("outputs", what, "found: they sum to 1")


def _outputs(network: LoadedNetwork, points: Points, candidates: Sequence[Any]) -> Any:
    """The first of the candidates that the network's outputs can be; None where they can be none."""
    for outputs in candidates:
        classifier = as_logits(unconverted(network.model), outputs)
        with suppress(ModelError):
            if not check_outputs(classifier, lambda rows: network.pipeline.evaluated(points, rows), points):
                return outputs
    return None


_EXAMPLES = {
    "train": ("train.npz", f"{TODO}the training set, which mini-batches are drawn from"),
    "test": ("test.npz", f"{TODO}the labelled test set"),
    "ood": (["other.npz"], "sets unlike the training set, if there are any"),
    "validation": ("validation.npz", "examples that the network was not trained on; normalised scores need them"),
    "train_size": (50_000, "size of the whole training set, if train is only a part of it"),
}


def data_lines(run: Run, sets: dict[str, Points], regression: bool) -> Iterator[Line]:
    record = run.record()["data"]
    found = {"train": beside(run.test, "test", "train"), "test": beside(run.train, "train", "test")}
    for key, (example, comment) in _EXAMPLES.items():
        if key in record:
            points = sets.get(key)
            shape = "" if points is None else points.form if points.layout else " x ".join(map(str, points.point_shape))
            yield Line(key, record[key], "" if points is None else f"{len(points):,} examples of {shape}")
        elif key != "train_size" or "train" in record:
            yield Line(key, found.get(key, example), comment, active=False)
    yield from (Line(key, value) for key, value in record.items() if key not in (*_EXAMPLES, *PIPELINE_KEYS))
    if regression and "normalize_targets" not in record:
        yield Line("normalize_targets", "train", "if targets were standardised in training", active=False)


def given_pipeline_lines(run: Run, given: Collection[str]) -> Iterator[Line]:
    for key in PIPELINE_KEYS:
        value = run.normalize_name or run.normalize if key == "normalize" else getattr(run, key)
        if key in given:
            yield Line(key, "none" if value is None else value)
        elif key in _UNKNOWN:
            yield Line(key, *_UNKNOWN[key], active=False)


_UNKNOWN = {
    "normalize": ("imagenet", f"{TODO}as in training, if inputs were normalised"),
    "augment": ("pad=4,crop=32,flip", f"{TODO}as in training, if inputs were augmented"),
}


def pipeline_lines(suggestion: Suggestion | str | None, sets: dict[str, Points]) -> Iterator[Line]:
    points = sets.get("train", sets.get("test"))
    if isinstance(suggestion, Suggestion):
        assert points is not None
        yield from _suggested_lines(suggestion, points, by_test="train" not in sets)
    elif suggestion is not None:
        pictures = points is None or len(points.point_shape) == 3
        for key in _UNKNOWN if pictures else ("normalize",):
            above = f"Not searched: {suggestion}." if key == "normalize" else ""
            yield Line(key, *_UNKNOWN[key], active=False, above=above)


_TOPICS = {  # what a ranking leaves undetermined, by key
    "normalize": ("normalize",),
    "channel_order": ("channel order",),
    "augment": ("pad and crop", "flip"),
}


def _suggested_lines(suggestion: Suggestion, points: Points, *, by_test: bool) -> Iterator[Line]:
    """The lines of [data] for the best pipeline; comments, where no pipeline fits. `by_test` says that it was searched
    on the test set."""
    ranking = suggestion.pipelines
    best, tried = ranking.candidates[0], len(ranking.candidates) + len(ranking.first_round)
    ratios = (
        f"{best.worst:.1f} times batch noise in the worst layer, {best.median:.1f} in the median (limits "
        f"{WORST_LIMIT:g} and {MEDIAN_LIMIT:g})"
    )
    above = f"Of {tried} pipelines, this fits the running statistics best: {ratios}."
    if not best.passed:
        above = f"None of {tried} pipelines fits the running statistics. The closest: {ratios}."
    above += " Searched on the test set, as train is unknown." * by_test
    undetermined = {text.partition(":")[0]: text for text in ranking.undetermined}
    for key, value in suggestion.settings.items():
        unsure, is_default = key in suggestion.undetermined, value in (None, "rgb")
        only_for_pictures = key == "augment" and len(points.point_shape) != 3
        if is_default and (only_for_pictures or (key == "channel_order" and not unsure)):
            continue
        texts = [undetermined[topic] for topic in _TOPICS[key] if topic in undetermined]
        comment = "found: nothing else that was tried fits as well"
        if unsure:
            comment = f"{LIKELY}{'; '.join(texts)}"
        if not best.passed:
            comment = f"{TODO}as in training; this is {'a guess' if unsure else 'the closest'}"
            if key == "augment" and unsure and value is not None:
                comment = f"{TODO}as in training, or leave it out: the statistics do not tell"
        if key == "normalize" and isinstance(value, Normalize):
            own = best.normalize == DATA_OWN and len(value.mean) > 4 and not by_test
            value = "train" if own else _by_name(value)
        shown = "none" if value is None else value
        yield Line(key, shown, comment, active=best.passed, above=above if key == "normalize" else "")


def _by_name(normalize: Normalize) -> Normalize | str:
    """The name of a published normalisation, else the numbers."""
    numbers = (normalize.mean, normalize.std)
    return next((name for name, published in PUBLISHED.items() if published == numbers), normalize)


def class_lines(
    network: LoadedNetwork | None, suggestion: Suggestion | str | None, sets: dict[str, Points]
) -> Iterator[Line]:
    """The classes in timm's order where this fits the labels of a set better than the order of texts; a comment where
    the labels do not tell."""
    if network is None:
        return
    pipeline = network.pipeline
    if isinstance(suggestion, Suggestion):
        settings = replace(pipeline.settings, channel_order=suggestion.settings["channel_order"] or "rgb")
        pipeline = replace(pipeline, settings=settings, normalize=suggestion.settings["normalize"])
    for points in filter(None, map(sets.get, ("test", "train"))):
        order = class_order(network.model, pipeline, points)
        if order is None:
            continue
        both = (
            f"accuracy {order.accuracy:.1%} in timm's order, {order.accuracy_as_texts:.1%} in that of texts, on "
            f"{order.points:,} examples of {points.name}"
        )
        if order.is_natural:
            yield Line("classes", order.natural, f"found: {both}")
        elif not order.is_sorted_as_texts:
            yield Line("classes", order.natural, f"if the network was trained with this order: {both}", active=False)
        return


def sampling_lines(batch_size: int) -> Iterator[Line]:
    yield Line("methods", ["mcbn", "mcdo", "mcbn+mcdo"], "default: what the network allows", active=False)
    yield Line("samples", 64, "T, stochastic forward passes", active=False)
    yield Line("batch_size", batch_size, "b, mini-batches of MCBN; default: train_batch_size", active=False)
    comment = "temperatures, fitted to each half of the test set for the other; default without validation examples"
    yield Line("calibrate", "cross", comment, active=False)
    yield Line("layers", "all", active=False)
    yield Line("seed", 0, active=False)
