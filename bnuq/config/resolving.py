"""Resolves options and run file to a request: an option overrides the run file, which overrides the default."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from bnuq.config.earlier_versions import in_current_settings
from bnuq.config.merging import SAMPLES, is_given, merged, texts_in
from bnuq.config.request import Options, Run
from bnuq.config.runfile import as_toml, converted, read_run_file, section_from
from bnuq.config.schema import RecordedRun, RunFile, SweepSection, settings_of
from bnuq.errors import MistakenError, Mistakes, NoModelError, RequestError
from bnuq.files.content import is_file
from bnuq.files.fetching import model_path, stem_of
from bnuq.files.folders import expanded
from bnuq.trust import BY_USER, NamedBy

SWEEP_SAMPLES = 20  # default of T per draw set in a sweep; Mukhoti et al. 2020, Figure 1


def resolve(model: str | None, options: Options, *, folder: Path) -> Run:
    """The run of one network that `model` (a checkpoint, a run file, or None for bnuq.toml in `folder`) and `options`
    request; errors as for `resolve_ensemble`."""
    return only_network(resolve_ensemble(() if model is None else (model,), options, folder=folder))


def only_network(run: Run) -> Run:
    """`run`; RequestError if it names an ensemble."""
    if run.members:
        raise RequestError(
            f"{1 + len(run.members)} checkpoints are named, from {run.checkpoint.name} to "
            f"{run.members[-1].checkpoint.name}, and this command takes one network; an ensemble is for bnuq evaluate."
        )
    return run


def resolve_ensemble(models: Sequence[str], options: Options, *, folder: Path, samples: int = SAMPLES) -> Run:
    """The run that `models` and `options` request: a checkpoint or a run file (none: bnuq.toml in `folder`), and the
    checkpoints of the other networks of an ensemble.

    A run file that the user named is trusted. One that was only found (beside the checkpoint, or bnuq.toml) is not, and
    its code runs only with `trust_code`. Raises RequestError for anything wrong in the request, and for a run file of
    several runs, which `resolve_all` resolves; MistakenError lists all settings that are wrong, and has the run without
    them.
    """
    path, checkpoint, is_implicit = named_files(models[0] if models else None, folder)
    mistakes = Mistakes()
    content = RunFile() if path is None else mistakes.of(read_run_file, path)
    if content.runs is not None:
        raise RequestError(f"{path} requests several runs ([runs]); expected one run.")
    files = {"path": path, "checkpoint": checkpoint, "is_implicit": is_implicit}
    run = mistakes.of(resolved, content, options, **files, others=models[1:], folder=folder, samples=samples)
    mistakes.report(run)
    return run


def resolve_checkpoint(checkpoint: Path, options: Options, *, folder: Path) -> Run:
    """The run that a checkpoint and `options` request, whatever run file lies beside it; errors as for `resolve`."""
    return merged(
        RunFile(), options, checkpoints=(checkpoint,), base=folder, named_by=BY_USER, folder=folder, run_file=None
    )


def resolve_sweep(
    models: Sequence[str], options: Options, settings: dict[str, Any], *, folder: Path
) -> tuple[tuple[Run, ...], SweepSection]:
    """The runs of a sweep over mini-batch sizes, one per model (bnuq.toml for none), and the settings of the sweep.

    `settings` are the SweepSection settings of the command line; they override [sweep] of the run files, which must
    agree. The result goes to --out, or to the first model's stem with `.sweep.h5` in `folder`.
    """
    mistakes, runs, sections = Mistakes(), [], []
    for model in models or (None,):
        path, checkpoint, is_implicit = named_files(model, folder)
        written = RunFile() if path is None else mistakes.of(read_run_file, path)
        if written.runs is not None:
            raise RequestError(f"{path} requests several runs ([runs]); a sweep takes one run per model.")
        files = {"path": path, "checkpoint": checkpoint, "is_implicit": is_implicit}
        run = mistakes.of(resolved, written, options, **files, folder=folder, samples=SWEEP_SAMPLES)
        if run is None:  # it names no checkpoint
            mistakes.report()
        assert run is not None
        run = only_network(run)
        out = run.out if is_given(options, "out") else folder / f"{stem_of(run.checkpoint)}.sweep.h5"
        runs.append(replace(run, out=out if not runs else runs[0].out))
        sections.append(written.sweep)
    for run, section in zip(runs[1:], sections[1:], strict=True):
        for key in settings_of(SweepSection):
            first, setting = getattr(sections[0], key), getattr(section, key)
            if key not in settings and first != setting:
                text, first_text = ("not given" if value is None else as_toml(value) for value in (setting, first))
                raise RequestError(
                    f"sweep.{key} is {text} for {run.checkpoint.name}, and {first_text} for "
                    f"{runs[0].checkpoint.name}; expected the same for all models, or --{key.replace('_', '-')}."
                )
    written = sections[0]
    if "prior" in settings:  # another prior has other parameters
        written = msgspec.structs.replace(written, prior_mean=None, prior_deviation=None, prior_precision=None)
    section = mistakes.of(section_from, SweepSection, msgspec.to_builtins(written) | settings)
    mistakes.report(tuple(runs))
    return tuple(runs), section


def resolved(
    content: RunFile,
    options: Options,
    *,
    path: Path | None,
    checkpoint: Path | None,
    is_implicit: bool,
    folder: Path,
    others: Sequence[str] = (),
    samples: int = SAMPLES,
) -> Run:
    base, named_by = (path.parent, NamedBy(path) if is_implicit else BY_USER) if path is not None else (folder, BY_USER)
    checkpoints = [] if checkpoint is None else [checkpoint]
    if checkpoint is None:
        assert path is not None
        if not (written := texts_in(content.model.checkpoint)):
            raise MistakenError(f'{path} names no checkpoint. Add to it:\n\n[model]\ncheckpoint = "model.pt"')
        checkpoints = [model_path(text, base, fetch=not is_implicit) for text in written]
    if run_files := [text for text in others if is_run_file(text)]:
        raise RequestError(
            f"{run_files[0]} is a run file; expected checkpoints after the first (those of an ensemble). Evaluate run "
            "files one by one."
        )
    run = merged(
        content,
        options,
        checkpoints=[*checkpoints, *(model_path(text, folder) for text in others)],
        base=base,
        named_by=named_by,
        folder=folder,
        run_file=path,
        samples=samples,
    )
    return replace(run, run_file_is_implicit=is_implicit and path is not None)


def is_run_file(model: str) -> bool:
    """Whether a model on the command line is a run file."""
    return Path(model).suffix.lower() == ".toml"


def resolve_again(record: dict[str, Any], source: Path, options: Options, *, folder: Path) -> Run:
    """The run of a result file, with `options` applied. Code that the result file names is not trusted.

    The result file takes the place of the run file, so that the run will not overwrite it.
    """
    content = converted(in_current_settings(record), source, RecordedRun)
    if content.runs is not None:
        raise RequestError(f"{source}: runs is not known in the record of one run.")
    if not (checkpoints := texts_in(content.model.checkpoint)):
        raise RequestError(f"{source}: its run names no checkpoint.")
    run = merged(
        content,
        options,
        checkpoints=[model_path(text, source.parent, fetch=False) for text in checkpoints],
        base=source.parent,
        named_by=NamedBy(source),
        folder=folder,
        run_file=source,
        folders=content.options.folders,
    )
    return replace(run, given=None)


def named_files(model: str | None, folder: Path) -> tuple[Path | None, Path | None, bool]:
    """(run file, checkpoint, whether the run file was found rather than named)."""
    if model is not None and (not model.strip() or "\0" in model):
        raise RequestError(f"the model is {model[:80]!r}; expected a checkpoint (model.pt) or a run file (model.toml).")
    if model is None:
        path = folder / "bnuq.toml"
        if not is_file(path):
            raise NoModelError(
                "no model was named and there is no bnuq.toml in this folder. Name a checkpoint (model.pt) or a run "
                "file (model.toml)"
            )
        return path, None, True
    path = folder / expanded(model) if is_run_file(model) else model_path(model, folder)
    if is_run_file(model):
        if not is_file(path):
            raise RequestError(f"{model}: there is no such run file.")
        return path, None, False
    beside = path.with_suffix(".toml")
    return (beside if is_file(beside) else None), path, True
