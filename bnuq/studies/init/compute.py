"""Writes the run file of a checkpoint: what could be found out is filled in, and what could not is marked TODO."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterator
from dataclasses import replace
from pathlib import Path

from bnuq.config import Named, PointSettings, Run
from bnuq.config.runfile_writing import table
from bnuq.data import Points, factory_of, labelled, parse_reference
from bnuq.errors import RequestError, SamplingError
from bnuq.evaluation.completeness import batchnorms
from bnuq.evaluation.datasets import check_grouped, numbered, read_named, read_reference
from bnuq.evaluation.request_checks import check_readable
from bnuq.evaluation.setup import network_of
from bnuq.files.writing import alone, check_writable, within, write_bytes
from bnuq.frozen import frozen
from bnuq.models.checkpoint import Checkpoint, read_checkpoint
from bnuq.models.recognition import is_installed, recognised
from bnuq.progress import READING, Progress, silent, stage
from bnuq.sampling.site_search import find_sites
from bnuq.studies.init.run_file_lines import (
    LIKELY,
    PIPELINE_KEYS,
    TODO,
    class_lines,
    data_lines,
    given_pipeline_lines,
    model_lines,
    pipeline_lines,
    sampling_lines,
    task_lines,
)
from bnuq.studies.inspect.health import not_finite
from bnuq.studies.inspect.load import LoadedNetwork, load_network
from bnuq.studies.inspect.pipelines import QUICK, Suggestion, suggest
from bnuq.trust import NamedBy, resolve_factory

_HEAD = "# Written by `bnuq init`. Paths are relative to this file. Complete the lines with TODO, and remove their #."


@frozen
class Written:
    """The run file that was written: the keys that are left to fill in, of which `needed` are needed to evaluate, and
    those whose values are likely, with what speaks for them."""

    path: Path
    todo: tuple[str, ...]
    needed: tuple[str, ...]
    unsure: tuple[str, ...]


@within(lambda _, path, **__: alone(path))
def init(run: Run, path: Path, *, given: Collection[str] = (), progress: Progress = silent) -> Written:
    """Write the run file of `run` at `path`, in whose place there may be another, and remember its code as trusted.

    `given` are the keys that the user set: the training pipeline is searched unless one of its keys is among them, and
    needs an architecture and a reference (or else a test set). Raises BnuqError for a checkpoint, an architecture or
    a set that cannot be read or do not fit together; nothing is written then.
    """
    check_readable(run)
    check_writable(path, named=False)
    _check_reachable(run, path)
    with stage(progress, READING):
        checkpoint = read_checkpoint(run.checkpoint, entry=run.entry, trust_pickle=run.trust_pickle, only_finite=False)
        run = _with_recognised(run, checkpoint, path.parent)
        sets = _read_sets(run)
        loaded, network = None, None
        if run.arch is not None or checkpoint.module is not None:
            if "train" in sets or "test" in sets:
                network = load_network(run, needs_reference=run.train is not None)
            loaded = network_of(run, only_finite=False) if network is None else network.loaded
    task = [] if network is None else [*task_lines(run, network, sets)]
    model = [*model_lines(run, checkpoint, loaded), *task]
    regression = any(line.key == "task" and line.value == "regression" for line in task)
    if {*given} & {*PIPELINE_KEYS}:
        suggestion, pipeline = None, [*given_pipeline_lines(run, given)]
    else:
        suggestion = _searched(run, network, sets, progress)
        pipeline = [*pipeline_lines(suggestion, sets)]
    data = [*data_lines(run, sets, regression), *class_lines(network, suggestion, sets), *pipeline]
    batch_size = next(line.value for line in model if line.key == "train_batch_size")
    tables = {"model": model, "data": data, "sampling": [*sampling_lines(batch_size)]}
    text = "\n\n".join([_HEAD, *(table(name, lines, path.parent.resolve()) for name, lines in tables.items())])
    try:
        content = f"{text}\n".encode()
    except UnicodeEncodeError as error:
        raise RequestError(f"{path}: a path in it is not text ({error.reason}). Rename that file.") from error
    _trust(run, NamedBy(path, hashlib.sha256(content).hexdigest()))
    write_bytes(path, content, named=False)
    lines = (*model, *data)
    todo = tuple(line.key for line in lines if line.comment.startswith(TODO))
    likely = [line for line in lines if line.active and line.comment.startswith(LIKELY)]
    unsure = tuple(f"{line.key}: {line.comment.removeprefix(LIKELY)}" for line in likely)
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
    others = [read_named(run, ref, "test", ood=True, like=sets.get("test")) for ref in run.ood]
    check_grouped(run, [*sets.values(), *others])
    return sets


# ── [model] ──────────────────────────────────────────────────────────────────────────────────────────────────────────


# ── [data] ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def _searched(
    run: Run, network: LoadedNetwork | None, sets: dict[str, Points], progress: Progress
) -> Suggestion | str | None:
    """The training pipeline that the checkpoint's running statistics fit best, or why none was searched; None for
    several inputs, which are passed as they are."""
    points = sets.get("train", sets.get("test"))
    if points is not None and points.layout is not None:
        return None
    if network is None or points is None:
        return "this needs arch, and train or test"
    try:
        if broken := not_finite(network.model):
            raise SamplingError(f"{broken[0]} is not finite")
        sites = find_sites(network.model, network.example)
        known = {"trained_with": network.trained_with, "train_size": run.train_size}
        settings = PointSettings.of(run)
        return suggest(settings, network.model, points, sites, **known, effort=QUICK, progress=progress)
    except SamplingError as error:
        return str(error).removesuffix(".")


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
