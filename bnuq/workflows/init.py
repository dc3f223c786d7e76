"""Writes the run file of a checkpoint: what could be found out is filled in, and what could not is marked TODO."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from bnuq.config import Named, Normalize, Run
from bnuq.config.normalizations import PUBLISHED
from bnuq.config.runfile_writing import Line, table
from bnuq.data import Points, factory_of, labelled, parse_reference
from bnuq.errors import BnuqError, ModelError, RequestError, SamplingError
from bnuq.evaluation.completeness import batchnorms, recorded_lines
from bnuq.evaluation.datasets import numbered, read_named, read_reference
from bnuq.evaluation.setup import check_readable, network_of
from bnuq.evaluation.task import are_several_labels, check_outputs, task_of
from bnuq.files.writing import check_writable, write_bytes
from bnuq.inspection.class_order import class_order
from bnuq.inspection.health import not_finite
from bnuq.inspection.load import LoadedNetwork, load_network
from bnuq.inspection.pipelines import DATA_OWN, QUICK, Suggestion, suggest
from bnuq.models.checkpoint import Checkpoint, read_checkpoint
from bnuq.models.loading import LoadedModel
from bnuq.models.recognition import is_installed, recognised
from bnuq.models.suggestions import described, suggested_architectures
from bnuq.progress import Progress, silent
from bnuq.records.evaluation import MEDIAN_LIMIT, WORST_LIMIT
from bnuq.sampling.outputs import as_logits, unconverted
from bnuq.sampling.plain_loop import Evaluation
from bnuq.sampling.site_search import find_sites
from bnuq.trust import NamedBy, resolve_factory

_TODO = "TODO: "  # opens the comment of a line that is to be filled in
_LIKELY = "likely, not certain: "  # and of one that is to be checked
_PIPELINE = ("normalize", "channel_order", "augment")
_HEAD = "# Written by `bnuq init`. Paths are relative to this file. A line with TODO is to be completed, without its #."


@dataclass(frozen=True)
class Written:
    """The run file that was written: the keys that are left to fill in, of which `needed` are needed to evaluate, and
    those whose values are likely, with what speaks for them."""

    path: Path
    todo: tuple[str, ...]
    needed: tuple[str, ...]
    unsure: tuple[str, ...]


def init(run: Run, path: Path, *, given: Collection[str] = (), progress: Progress = silent) -> Written:
    """Write the run file of `run` at `path`, in whose place there may be another, and remember its code as trusted.

    `given` are the keys that the user set: the training pipeline is searched unless one of its keys is among them, and
    needs an architecture and a reference (or else a test set). Raises BnuqError for a checkpoint, an architecture or
    a set that cannot be read or do not fit together; nothing is written then.
    """
    check_readable(run)
    check_writable(path)
    _check_reachable(run, path)
    checkpoint = read_checkpoint(run.checkpoint, entry=run.entry, trust_pickle=run.trust_pickle, only_finite=False)
    run = _with_recognised(run, checkpoint, path.parent)
    sets = _read_sets(run)
    loaded, ready = None, None
    if run.arch is not None or checkpoint.module is not None:
        if "train" in sets or "test" in sets:
            ready = load_network(run, needs_reference=run.train is not None)
        loaded = network_of(run, only_finite=False) if ready is None else ready.loaded
    task = [] if ready is None else [*_task_lines(run, ready, sets)]
    model = [*_model_lines(run, checkpoint, loaded), *task]
    regression = any(line.key == "task" and line.value == "regression" for line in task)
    if {*given} & {*_PIPELINE}:
        found, pipeline = None, [*_given_pipeline_lines(run, given)]
    else:
        found = _searched(run, ready, sets, progress)
        pipeline = [*_pipeline_lines(found, sets)]
    data = [*_data_lines(run, sets, regression), *_class_lines(ready, found, sets), *pipeline]
    batch_size = next(line.value for line in model if line.key == "train_batch_size")
    tables = {"model": model, "data": data, "sampling": [*_sampling_lines(batch_size)]}
    text = "\n\n".join([_HEAD, *(table(name, lines, path.parent.resolve()) for name, lines in tables.items())])
    try:
        content = f"{text}\n".encode()
    except UnicodeEncodeError as error:
        raise RequestError(f"{path}: a path in it is not text ({error.reason}). Rename that file.") from error
    _trust(run, NamedBy(path, hashlib.sha256(content).hexdigest()))
    write_bytes(path, content)
    lines = (*model, *data)
    todo = tuple(line.key for line in lines if line.comment.startswith(_TODO))
    likely = [line for line in lines if line.active and line.comment.startswith(_LIKELY)]
    unsure = tuple(f"{line.key}: {line.comment.removeprefix(_LIKELY)}" for line in likely)
    needs_reference = batchnorms(checkpoint) > 0
    needed = ("arch", "test", "task", "outputs", *(["train"] if needs_reference else []))
    return Written(path, todo, tuple(key for key in todo if key in needed), unsure)


def _with_recognised(run: Run, checkpoint: Checkpoint, folder: Path) -> Run:
    """`run` with the architecture that its weights are recognised as, where none was named and it can be built."""
    if run.arch is not None or checkpoint.state is None or checkpoint.hub is not None:
        return run
    network = recognised(checkpoint.state)
    if network is None or (one := network.one) is None or not is_installed(one.package):
        return run
    arguments = {**one.arguments, "num_classes": network.classes, **run.arch_args}
    return replace(run, arch=Named(one.arch, folder), arch_args=arguments)


def _check_reachable(run: Run, path: Path) -> None:
    """Raise RequestError for a module of the working folder that a run file elsewhere could not name."""
    folders = run.record()["options"].get("folders", {})
    code = [ref.text for ref, _ in _factories(run)] + ([] if run.arch is None else [run.arch.text])
    for text in code:
        folder = folders.get(text)
        if folder is not None and Path(folder).resolve() != path.parent.resolve():
            raise RequestError(
                f"{text} names a module of {folder}, and {path} lies elsewhere, from where it is not found. Name it as "
                "file.py:function, or write the run file there with --out."
            )


def _read_sets(run: Run) -> dict[str, Points]:
    """The sets that `run` names, by key; OOD sets are only checked to be readable."""
    sets = {} if run.train is None else {"train": read_reference(run)}
    if run.test is not None:
        sets["test"] = labelled(read_named(run, run.test, "test"))
    sets = numbered(run, **sets)
    for ref in run.ood:
        read_named(run, ref, "test", ood=True, like=sets.get("test"))
    return sets


# ── [model] ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _model_lines(run: Run, checkpoint: Checkpoint, loaded: LoadedModel | None) -> Iterator[Line]:
    record, count = run.record()["model"], batchnorms(checkpoint)
    yield Line("checkpoint", record["checkpoint"], f"{count} BatchNorm layer{'s' * (count != 1)}")
    if run.arch is not None and loaded is not None:
        yield Line("arch", record["arch"], f"{loaded.parameters:,} parameters")
    elif checkpoint.state is not None:
        yield Line(
            "arch",
            suggested_architectures(checkpoint)[0],
            f'{_TODO}or "package.module:factory", "timm:NAME", "torchvision:NAME"',
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


def _task_lines(run: Run, ready: LoadedNetwork, sets: dict[str, Points]) -> Iterator[Line]:
    """The task and what a classifier's outputs are, where neither was given."""
    points = sets.get("test", sets.get("train"))
    assert points is not None
    if run.task is not None or run.outputs != "logits" or (points := labelled(points)).targets is None:
        return
    output = Evaluation(ready.model).passes(ready.example)[0]
    if output.ndim > 2:
        yield Line("task", "classification", f"{_TODO}the outputs of a point have several axes", active=False)
        return
    outputs = output.shape[1] if output.ndim == 2 else 1
    where = f"{outputs} output{'s' * (outputs > 1)}"
    assert points.targets is not None
    if outputs == 1 and bool(np.all((points.targets == 0) | (points.targets == 1))):
        by_labels = points.targets.dtype.kind in "iu"
        what = _outputs(ready, points, ("binary", "probabilities"))
        comment = f"{_LIKELY}{where}, and labels 0 and 1" if by_labels else f"{_TODO}if this is not a regression"
        yield Line("task", "regression", "if this is not a classifier of two classes", active=False)
        yield Line("outputs", what or "binary", comment, active=by_labels)
        return
    if are_several_labels(points.targets, outputs):
        found = f"{_LIKELY}{where}, and targets of 0 and 1, several in a row"
        ends_in_sigmoid = f"{_TODO}remove the sigmoid at the end of the network first; {where}, and several labels"
        by_logits = _outputs(ready, points, ("multilabel",)) is not None
        yield Line("outputs", "multilabel", found if by_logits else ends_in_sigmoid, active=by_logits)
        yield Line("task", "regression", "if these targets are not labels", active=False)
        return
    try:
        task = task_of(run, outputs, points)
    except BnuqError as error:
        yield Line("task", "classification", f"{_TODO}{error}", active=False)
        return
    labels = "targets that are not labels" if task.is_regression else "labels"
    yield Line("task", task.name, f"found: {where}, and {labels}")
    if not task.is_regression:
        what = _outputs(ready, points, ("logits", "probabilities"))
        if what is None:
            comment = f"{_TODO}they lie between 0 and 1, and do not sum to 1; bnuq takes logits or probabilities"
            yield Line("outputs", "logits", comment, active=False)
        elif what != "logits":
            yield Line("outputs", what, "found: they sum to 1")


def _outputs(ready: LoadedNetwork, points: Points, candidates: Sequence[Any]) -> Any:
    """The first of the candidates that the network's outputs can be; None where they can be none."""
    for outputs in candidates:
        network = as_logits(unconverted(ready.model), outputs)
        with suppress(ModelError):
            if not check_outputs(network, lambda rows: ready.pipeline.evaluated(points, rows), points):
                return outputs
    return None


# ── [data] ───────────────────────────────────────────────────────────────────────────────────────────────────────────

_EXAMPLES = {
    "train": ("cifar10:train", f"{_TODO}the training set, which mini-batches are drawn from"),
    "test": ("cifar10:test", f"{_TODO}the labelled test set"),
    "ood": (["svhn:test"], "sets unlike the training set, if there are any"),
    "validation": ("validation.npz", "points that the network was not trained on; normalised scores need them"),
    "train_size": (50_000, "size of the whole training set, if train is only a part of it"),
}


def _data_lines(run: Run, sets: dict[str, Points], regression: bool) -> Iterator[Line]:
    record = run.record()["data"]
    for key, (example, comment) in _EXAMPLES.items():
        if key in record:
            points = sets.get(key)
            shape = "" if points is None else points.form if points.layout else " x ".join(map(str, points.point_shape))
            yield Line(key, record[key], "" if points is None else f"{len(points):,} points of {shape}")
        elif key != "train_size" or "train" in record:
            yield Line(key, example, comment, active=False)
    yield from (Line(key, value) for key, value in record.items() if key not in (*_EXAMPLES, *_PIPELINE))
    if regression and "normalize_targets" not in record:
        yield Line("normalize_targets", "train", "if targets were standardised in training", active=False)


def _given_pipeline_lines(run: Run, given: Collection[str]) -> Iterator[Line]:
    for key in _PIPELINE:
        value = run.normalize_name or run.normalize if key == "normalize" else getattr(run, key)
        if key in given:
            yield Line(key, "none" if value is None else value)
        elif key in _UNKNOWN:
            yield Line(key, *_UNKNOWN[key], active=False)


_UNKNOWN = {
    "normalize": ("imagenet", f"{_TODO}as in training, if inputs were normalised"),
    "augment": ("pad=4,crop=32,flip", f"{_TODO}as in training, if inputs were augmented"),
}


def _searched(
    run: Run, ready: LoadedNetwork | None, sets: dict[str, Points], progress: Progress
) -> Suggestion | str | None:
    """The training pipeline that the checkpoint's running statistics fit best, or why none was searched; None for
    several inputs, which are passed as they are."""
    points = sets.get("train", sets.get("test"))
    if points is not None and points.layout is not None:
        return None
    if ready is None or points is None:
        return "this needs arch, and train or test"
    try:
        if broken := not_finite(ready.model):
            raise SamplingError(f"{broken[0]} is not finite")
        sites = find_sites(ready.model, ready.example)
        trained_with = ready.trained_with
        return suggest(run, ready.model, points, sites, trained_with=trained_with, effort=QUICK, progress=progress)
    except SamplingError as error:
        return str(error).removesuffix(".")


def _pipeline_lines(found: Suggestion | str | None, sets: dict[str, Points]) -> Iterator[Line]:
    points = sets.get("train", sets.get("test"))
    if isinstance(found, Suggestion):
        assert points is not None
        yield from _suggested_lines(found, points, by_test="train" not in sets)
    elif found is not None:
        pictures = points is None or len(points.point_shape) == 3
        for key in _UNKNOWN if pictures else ("normalize",):
            above = f"Not searched: {found}." if key == "normalize" else ""
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
            comment = f"{_LIKELY}{'; '.join(texts)}"
        if not best.passed:
            comment = f"{_TODO}as in training; this is {'a guess' if unsure else 'the closest'}"
        if key == "normalize" and isinstance(value, Normalize):
            own = best.normalize == DATA_OWN and len(value.mean) > 4 and not by_test
            value = "train" if own else _by_name(value)
        shown = "none" if value is None else value
        yield Line(key, shown, comment, active=best.passed, above=above if key == "normalize" else "")


def _by_name(normalize: Normalize) -> Normalize | str:
    """The name of a published normalisation, else the numbers."""
    numbers = (normalize.mean, normalize.std)
    return next((name for name, published in PUBLISHED.items() if published == numbers), normalize)


def _class_lines(
    ready: LoadedNetwork | None, found: Suggestion | str | None, sets: dict[str, Points]
) -> Iterator[Line]:
    """The classes in timm's order where this fits the labels of a set better than the order of texts; a comment where
    the labels do not tell."""
    if ready is None:
        return
    pipeline = ready.pipeline
    if isinstance(found, Suggestion):
        run = replace(pipeline.run, channel_order=found.settings["channel_order"] or "rgb")
        pipeline = replace(pipeline, run=run, normalize=found.settings["normalize"])
    for points in filter(None, map(sets.get, ("test", "train"))):
        order = class_order(ready.model, pipeline, points)
        if order is None:
            continue
        both = (
            f"accuracy {order.accuracy:.1%} in timm's order, {order.accuracy_as_texts:.1%} in that of texts, on "
            f"{order.points:,} points of {points.name}"
        )
        if order.is_natural:
            yield Line("classes", order.natural, f"found: {both}")
        elif not order.is_sorted_as_texts:
            yield Line("classes", order.natural, f"if the network was trained with this order: {both}", active=False)
        return


def _sampling_lines(batch_size: int) -> Iterator[Line]:
    yield Line("methods", ["mcbn", "mcdo", "mcbn+mcdo"], "default: what the network allows", active=False)
    yield Line("samples", 64, "T, stochastic forward passes", active=False)
    yield Line("batch_size", batch_size, "b, mini-batches of MCBN; default: train_batch_size", active=False)
    comment = "temperatures, fitted to each half of the test set for the other; default without validation points"
    yield Line("calibrate", "cross", comment, active=False)
    yield Line("layers", "all", active=False)
    yield Line("seed", 0, active=False)


def _trust(run: Run, naming: NamedBy) -> None:
    """Remember the code that the run file names as trusted: the user has named it here."""
    if run.arch is not None:
        network_of(replace(run, arch=replace(run.arch, named_by=naming), trust_code=True), only_finite=False)
    for ref, factory in _factories(run):
        resolve_factory(factory, base=ref.base, named_by=naming, trust=True, objects=True)


def _factories(run: Run) -> Iterator[tuple[Named, str]]:
    """The references of `run` that name code, and the factory that each names."""
    for ref in (*run.ood, run.train, run.test, run.validation):
        if isinstance(ref, Named):
            factory = factory_of(parse_reference(ref.text, base=ref.base)[1], base=ref.base)
            if factory is not None:
                yield ref, factory
