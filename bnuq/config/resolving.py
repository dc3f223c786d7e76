"""Resolves options and run file to a request: an option overrides the run file, which overrides the default."""

from __future__ import annotations

import difflib
import itertools
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, get_args, get_origin

import msgspec

from bnuq.config.earlier_versions import in_current_settings
from bnuq.config.request import Member, Named, Options, Run, RunOfSeveral, Runs
from bnuq.config.runfile import as_toml, converted, read_run_file, section_from
from bnuq.config.schema import (
    Interpolation,
    RecordedRun,
    Request,
    RunFile,
    Sampler,
    SweepSection,
    option_name,
    parts_of,
    settings_of,
)
from bnuq.config.shorthand import (
    published_name,
    read_arguments,
    read_augment,
    read_normalize,
    read_perturbations,
    read_size,
)
from bnuq.errors import MistakenError, Mistakes, ModelError, RequestError
from bnuq.files.content import is_file
from bnuq.files.folders import expanded
from bnuq.files.hub import HubConfig, read_hub_config
from bnuq.files.suites import references_in
from bnuq.findings import note
from bnuq.methods import DETERMINISTIC, METHODS
from bnuq.trust import BY_USER, NamedBy

MAX_RUNS = 100_000
SAMPLES = 64  # default of T
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


def resolve_ensemble(models: Sequence[str], options: Options, *, folder: Path) -> Run:
    """The run that `models` and `options` request: a checkpoint or a run file (none: bnuq.toml in `folder`), and the
    checkpoints of the other networks of an ensemble.

    A run file that the user named is trusted. One that was only found (beside the checkpoint, or bnuq.toml) is not, and
    its code runs only with `trust_code`. Raises RequestError for anything wrong in the request, and for a run file of
    several runs, which `resolve_all` resolves; MistakenError lists all settings that are wrong, and has the run without
    them.
    """
    return _resolved_single(models, options, folder=folder)


def _resolved_single(models: Sequence[str], options: Options, *, folder: Path, samples: int = SAMPLES) -> Run:
    path, checkpoint, is_implicit = _run_file(models[0] if models else None, folder)
    mistakes = Mistakes()
    content = RunFile() if path is None else mistakes.of(read_run_file, path)
    if content.runs is not None:
        raise RequestError(f"{path} requests several runs ([runs]); expected one run.")
    run = mistakes.of(
        _resolved,
        content,
        options,
        path=path,
        checkpoint=checkpoint,
        is_implicit=is_implicit,
        others=models[1:],
        folder=folder,
        samples=samples,
    )
    mistakes.report(run)
    return run


def resolve_checkpoint(checkpoint: Path, options: Options, *, folder: Path) -> Run:
    """The run that a checkpoint and `options` request, whatever run file lies beside it; errors as for `resolve`."""
    return _merged(
        RunFile(), options, checkpoints=(checkpoint,), base=folder, named_by=BY_USER, folder=folder, run_file=None
    )


def resolve_live(
    model: Any, sets: Mapping[str, Any], settings: Mapping[str, Any], *, folder: Path, samples: int = SAMPLES
) -> Run:
    """The run of `model`, a network in memory or the path of a checkpoint or a run file, with `settings` by their keys
    in a run file; a list is an ensemble, of networks or of paths.

    `sets` holds "train", "test" and "validation", each a reference or data in memory, and "ood", which holds those by
    name; None if the run file decides. Raises RequestError as `resolve` does, and for a setting that is not known.
    """
    mistakes = Mistakes()
    mistakes.of(_check_known, settings)
    settings = {key: value for key, value in settings.items() if key in _SECTION_OF}
    by_key = {key: source for key, source in sets.items() if source is not None and key != "ood"}
    references = {key: source for key, source in by_key.items() if _is_reference(source)}
    options = Options({key: _listed(key, value) for key, value in {**settings, **references}.items()})
    networks = model if isinstance(model, list | tuple) else [model]
    if not networks or len({isinstance(network, str | Path) for network in networks}) > 1:
        raise RequestError("no models, or networks mixed with paths; expected networks in memory, or paths.")
    if isinstance(networks[0], str | Path):
        paths = tuple(map(str, networks))
        run = mistakes.of(_resolved_single, paths, options, folder=folder, samples=samples)
    else:
        names = [Path(type(network).__name__) for network in networks]
        run = mistakes.of(
            _merged,
            RunFile(),
            options,
            checkpoints=names,
            base=folder,
            named_by=BY_USER,
            folder=folder,
            run_file=None,
            samples=samples,
            in_memory=True,
        )
        first, *others = [Member(name, network=network) for name, network in zip(names, networks, strict=True)]
        run = replace(run, checkpoint=first.checkpoint, network=first.network, members=tuple(others))
    live: dict[str, Any] = {
        key: Named(key, folder, data=source) for key, source in by_key.items() if key not in references
    }
    if (ood := sets.get("ood")) is not None:
        live["ood"] = tuple(_named_ood(ood, folder))
    if run is not None:
        run = replace(run, given=None, **live)
    mistakes.report(run)
    assert run is not None
    return run


def _listed(key: str, value: Any) -> Any:
    """A text as the list of it alone, for a setting that takes a list and no text."""
    hint = settings_of(settings_of(Request)[_SECTION_OF[key]].type)[key].type
    kinds = {get_origin(part) or part for part in parts_of(hint)}
    return (value,) if isinstance(value, str) and tuple in kinds and str not in kinds else value


def _check_known(settings: Mapping[str, Any]) -> None:
    """Raise MistakenError for settings that no run file has."""
    unknown = []
    for key in settings:
        if key not in _SECTION_OF:
            close = difflib.get_close_matches(key, _SECTION_OF, n=1)
            hint = f"Did you mean {close[0]}?" if close else f"Known are: {', '.join(sorted(_SECTION_OF))}."
            unknown.append(f"{key} is not a setting. {hint}")
    if unknown:
        raise MistakenError(*unknown)


def _is_reference(source: Any) -> bool:
    """Whether this names a set, or a part of one, rather than being its data."""
    return isinstance(source, str | Path) or (isinstance(source, Mapping) and "split_of" in source)


def _named_ood(ood: Any, folder: Path) -> Iterator[Named]:
    """OOD sets by name, references without a name, or a single set, which is then called "ood"."""
    if isinstance(ood, Mapping) and "x" not in ood:
        for name, source in ood.items():
            if isinstance(source, str | Path):
                yield Named(f"{name}={os.fspath(source)}", folder)
            else:
                yield Named(str(name), folder, data=source)
    elif isinstance(ood, list | tuple) and all(isinstance(source, str | Path) for source in ood):
        yield from (Named(text, folder) for source in ood for text in references_in(os.fspath(source)))
    elif isinstance(ood, str | Path):
        yield from (Named(text, folder) for text in references_in(os.fspath(ood)))
    else:
        yield Named("ood", folder, data=ood)


def resolve_sweep(
    models: Sequence[str], options: Options, settings: dict[str, Any], *, folder: Path
) -> tuple[tuple[Run, ...], SweepSection]:
    """The runs of a sweep over mini-batch sizes, one per model (bnuq.toml for none), and the settings of the sweep.

    `settings` are the SweepSection settings of the command line; they override [sweep] of the run files, which must
    agree. The result goes to --out, or to the first model's stem with `.sweep.h5` in `folder`.
    """
    mistakes, runs, sections = Mistakes(), [], []
    for model in models or (None,):
        path, checkpoint, is_implicit = _run_file(model, folder)
        written = RunFile() if path is None else mistakes.of(read_run_file, path)
        if written.runs is not None:
            raise RequestError(f"{path} requests several runs ([runs]); a sweep takes one run per model.")
        run = mistakes.of(
            _resolved,
            written,
            options,
            path=path,
            checkpoint=checkpoint,
            is_implicit=is_implicit,
            folder=folder,
            samples=SWEEP_SAMPLES,
        )
        if run is None:  # it names no checkpoint
            mistakes.report()
        assert run is not None
        run = only_network(run)
        out = run.out if _is_given(options, "out") else folder / f"{run.checkpoint.stem}.sweep.h5"
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


def _resolved(
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
        if not (written := _several(content.model.checkpoint)):
            raise MistakenError(f'{path} names no checkpoint. Add to it:\n\n[model]\ncheckpoint = "model.pt"')
        checkpoints = [base / expanded(text) for text in written]
    if run_files := [text for text in others if is_run_file(text)]:
        raise RequestError(
            f"{run_files[0]} is a run file; expected checkpoints after the first (those of an ensemble)."
        )
    run = _merged(
        content,
        options,
        checkpoints=[*checkpoints, *(folder / expanded(text) for text in others)],
        base=base,
        named_by=named_by,
        folder=folder,
        run_file=path,
        samples=samples,
    )
    return replace(run, run_file_is_implicit=is_implicit and path is not None)


def resolve_each(models: Sequence[str], options: Options, *, folder: Path) -> tuple[Run, ...]:
    """The runs of several run files, to which the options apply. Each result is named after its run file, in `folder`
    or in the folder that --out names. Raises RequestError as `resolve` does, and where two would have one name."""
    if others := [text for text in models if not is_run_file(text)]:
        raise RequestError(
            f"{others[0]} is no run file, and {next(filter(is_run_file, models))} is one; expected several run "
            "files, which are evaluated one by one, or checkpoints alone, which are an ensemble."
        )
    out = folder / (options.get("out") or ".")
    if not out.is_dir():
        raise RequestError(f"--out {options.get('out')}: {len(models)} run files were named; expected a folder.")
    runs: dict[Path, Run] = {}
    for text in models:
        path = out / f"{Path(text).stem}.bnuq.h5"
        if path in runs:
            raise RequestError(f"{runs[path].run_file} and {text} would both write {path.name}. Rename one of them.")
        try:
            run = resolve_ensemble((text,), Options({**options, "out": None}), folder=folder)
        except MistakenError as error:
            raise RequestError(f"{text}: {error}") from None
        runs[path] = replace(run, out=path)
    return tuple(runs.values())


def is_run_file(model: str) -> bool:
    """Whether a model on the command line is a run file."""
    return Path(model).suffix.lower() == ".toml"


def resolve_all(models: Sequence[str], options: Options, *, folder: Path) -> Runs | None:
    """The runs of a run file with [runs]: for every split, every seed. None if the run file requests a single run.

    Options apply to every run. Without `{seed}` in the file, the listed seeds are the sampling seeds. The aggregate
    goes to --out, or to the run file's stem with `.bnuq.h5` in `folder`. Raises RequestError as `resolve` does, and for
    lists and placeholders that do not match.
    """
    path, checkpoint, is_implicit = _run_file(models[0] if models else None, folder)
    mistakes = Mistakes()
    content = RunFile() if path is None else mistakes.of(read_run_file, path)
    if path is None or content.runs is None:
        return None  # of a single run, `resolve` says what is wrong
    if models[1:]:
        raise RequestError(f"{path.name} requests several runs ([runs]); name the other checkpoints in it.")
    if checkpoint is not None:
        raise RequestError(
            f"{path.name} beside {checkpoint.name} requests several runs ([runs]), and one checkpoint was named. Name "
            f"{path.name} to evaluate them all."
        )
    alike = mistakes.of(_resolved, content, options, path=path, checkpoint=None, is_implicit=is_implicit, folder=folder)
    mistakes.report(alike)
    listed = {name: values for name in _PLACES if (values := getattr(content.runs, name)) is not None}
    used = _placeholders(content, options, listed, path)
    _check_listed(listed, used, path)
    samples_by_seed = "seed" in listed and "seed" not in used
    if samples_by_seed and _is_given(options, "seed"):
        raise RequestError(
            f"--seed {options['seed']} would give every run the same sampling seed, and {path.name} lists one for each "
            "under [runs]. Leave the option out."
        )
    out = folder / (options.get("out") or f"{path.stem}.bnuq.h5")
    if (count := math.prod(map(len, listed.values()))) > MAX_RUNS:
        raise RequestError(f"{path}: [runs] asks for {count:,} runs; expected at most {MAX_RUNS:,}.")
    runs = []
    for split, seed in itertools.product(listed.get("split", (None,)), listed.get("seed", (None,))):
        filled = _filled(content, {"split": split, "seed": seed})
        if samples_by_seed:
            filled = msgspec.structs.replace(filled, sampling=msgspec.structs.replace(filled.sampling, seed=seed))
        run = _resolved(filled, options, path=path, checkpoint=None, is_implicit=is_implicit, folder=folder)
        runs.append(_with_own_file(RunOfSeveral(replace(run, given=None), split, seed), out))
    return Runs(tuple(runs), out, (note("seeds-of-sampling"),) if samples_by_seed else ())


def resolve_all_again(
    recorded: Sequence[tuple[int | None, int | None, dict[str, Any]]], source: Path, options: Options, *, folder: Path
) -> Runs:
    """The runs (split, seed, record) of the aggregate `source`, with `options` applied, see `resolve_again`."""
    out = folder / (options.get("out") or source.name)
    runs = tuple(
        _with_own_file(RunOfSeveral(resolve_again(record, source, options, folder=folder), split, seed), out)
        for split, seed, record in recorded
    )
    before = {record.get("sampling", {}).get("seed") for _, _, record in recorded}
    if _is_given(options, "seed") and len(before) > 1:
        raise RequestError(f"--seed {options['seed']} would give every run of {source} the same sampling seed.")
    return Runs(runs, out)


_PLACES = ("split", "seed")  # the placeholders of a run file's texts


def _with_own_file(run: RunOfSeveral, out: Path) -> RunOfSeveral:
    """`run` with a result file named after the aggregate's."""
    stem = out.name.removesuffix(".bnuq.h5") if out.name.endswith(".bnuq.h5") else out.stem
    return replace(run, run=replace(run.run, out=out.with_name(f"{stem}.{run.label}.bnuq.h5")))


def _texts(content: RunFile) -> dict[str, tuple[str, ...]]:
    """The texts of a run file that may contain placeholders, by key."""
    texts = {
        "model.checkpoint": content.model.checkpoint,
        "data.train": content.data.train,
        "data.test": content.data.test,
        "data.validation": content.data.validation if isinstance(content.data.validation, str) else None,
    }
    texts["sampling.predictions"] = content.sampling.predictions
    return {key: _several(text) for key, text in texts.items()} | {"data.ood": content.data.ood}


def _placeholders(content: RunFile, options: Options, listed: Mapping[str, Any], path: Path) -> set[str]:
    """The placeholders in the texts that no option replaces; RequestError for one that [runs] does not list."""
    used = set()
    for key, texts in _texts(content).items():
        if _is_given(options, key.partition(".")[2]):
            continue
        for text in texts:
            for name in re.findall(r"\{(\w+)\}", text):
                if name not in listed:
                    add = f"add {name} = [0, 1, 2] to it" if name in _PLACES else "expected {split} or {seed}"
                    raise RequestError(f"{path}: {key} is {as_toml(text)}, and [runs] lists no {name}; {add}.")
                used.add(name)
    return used


def _check_listed(listed: Mapping[str, tuple[int, ...]], used: set[str], path: Path) -> None:
    if not listed:
        raise RequestError(f"{path}: [runs] lists nothing; expected split = [0, 1, 2], or seed = [0, 1, 2], or both.")
    for name, values in listed.items():
        if not values or len(set(values)) < len(values):
            problem = "lists a number twice" if values else "is empty"
            raise RequestError(f"{path}: runs.{name} {problem}; expected whole numbers, each once, such as [0, 1, 2].")
    if "split" in listed and "split" not in used:
        raise RequestError(
            f"{path}: runs.split is {list(listed['split'])}, but the file does not contain {{split}}, so all splits "
            'would be the same. Write it in place of the number, as in train = "uci-boston:train:{split}".'
        )


def _filled(content: RunFile, numbers: Mapping[str, int | None]) -> RunFile:
    """The run file of one run: its placeholders are replaced by numbers."""

    def fill(text: Any) -> Any:
        for name, number in numbers.items():
            text = text.replace(f"{{{name}}}", str(number)) if isinstance(text, str) and number is not None else text
        return text

    data = content.data
    return msgspec.structs.replace(
        content,
        runs=None,
        model=msgspec.structs.replace(
            content.model, checkpoint=tuple(map(fill, _several(content.model.checkpoint))) or None
        ),
        sampling=msgspec.structs.replace(content.sampling, predictions=fill(content.sampling.predictions)),
        data=msgspec.structs.replace(
            data,
            train=fill(data.train),
            test=fill(data.test),
            ood=tuple(map(fill, data.ood)),
            validation=fill(data.validation),
        ),
    )


def resolve_again(
    record: dict[str, Any], source: Path, options: Options, *, folder: Path, run_file: str | None = None
) -> Run:
    """The run of a result file, with `options` applied. Code that the result file names is not trusted, unless a
    `run_file` that the user named also names it.

    The result file takes the place of the run file, so that the run will not overwrite it.
    """
    content = converted(in_current_settings(record), source, RecordedRun)
    if content.runs is not None:
        raise RequestError(f"{source}: runs is not known in the record of one run.")
    if not (checkpoints := _several(content.model.checkpoint)):
        raise RequestError(f"{source}: its run names no checkpoint.")
    run = _merged(
        content,
        options,
        checkpoints=[Path(text) for text in checkpoints],
        base=source.parent,
        named_by=NamedBy(source),
        folder=folder,
        run_file=source,
        folders=content.options.folders,
    )
    if run_file is not None:
        if not is_run_file(run_file):
            raise RequestError(f"{run_file}: is no run file; expected the one that {source} was made from.")
        run = _with_code_of(run, _resolved_single([run_file], Options(), folder=folder))
    return replace(run, given=None)


def _with_code_of(run: Run, named: Run) -> Run:
    """`run`, in which the code that `named` names, too, is the user's."""
    places = (*(each.arch for each in named.single), named.train, named.test, named.validation, *named.ood)
    codes = {place.code for place in places if isinstance(place, Named) and place.named_by == BY_USER}

    def trusted(place: Any) -> Any:
        return replace(place, named_by=BY_USER) if isinstance(place, Named) and place.code in codes else place

    members = tuple(replace(member, arch=trusted(member.arch)) for member in run.members)
    sets = {key: trusted(getattr(run, key)) for key in ("arch", "train", "test", "validation")}
    return replace(run, **sets, ood=tuple(map(trusted, run.ood)), members=members)


@dataclass(frozen=True)
class _Origin:
    """Where texts come from: options, named from `folder`, or a run file, named from `base` or one of `folders`."""

    options: Mapping[str, Any]
    folder: Path
    base: Path
    named_by: NamedBy
    folders: Mapping[str, str]
    run_file: Path | None

    def named(self, key: str, text: str) -> Named:
        if key in self.options:
            return Named(text, self.folder)
        return Named(text, Path(self.folders.get(text, self.base)), self.named_by)

    def path(self, key: str, text: str | None) -> Path | None:
        return None if text is None else (self.folder if key in self.options else self.base) / expanded(text)

    def key(self, key: str, section: Any) -> str:
        """A key of a section as the user wrote it."""
        option = option_name(key, settings_of(type(section))[key].type)
        return f"--{option}" if key in self.options else f"{self.run_file}: data.{key}"


def _for_each(checkpoints: Sequence[Path], archs: Sequence[Named]) -> Sequence[Named | None]:
    """The architecture of each checkpoint, of one for all or one each."""
    if len(archs) not in (0, 1, len(checkpoints)):
        raise RequestError(
            f"{len(archs)} architectures are named for {len(checkpoints)} checkpoints; expected one for all, or one "
            "each (--arch, repeated, or a list under [model])."
        )
    return archs if len(archs) > 1 else [next(iter(archs), None)] * len(checkpoints)


def _merged(
    content: RunFile,
    options: Options,
    *,
    checkpoints: Sequence[Path],
    base: Path,
    named_by: NamedBy,
    folder: Path,
    run_file: Path | None,
    folders: Mapping[str, str] | None = None,
    samples: int = SAMPLES,
    in_memory: bool = False,
) -> Run:
    options_given = {key: os.fspath(value) if isinstance(value, Path) else value for key, value in options.items()}
    options_given = {key: value for key, value in options_given.items() if value is not None}
    mistakes = Mistakes()
    hub = None if in_memory else read_hub_config(_clean(folder / checkpoints[0]))
    request = mistakes.of(_request, content, options_given, hub)

    origin = _Origin(options_given, folder, base, named_by, folders or {}, run_file)
    named = origin.named

    def read(key: str, reader: Callable[..., Any], **settings: Any) -> Any:
        return mistakes.of(reader, getattr(data, key), origin.key(key, request.data), **settings)

    model, data, sampling, computation = request.model, request.data, request.sampling, request.options
    checkpoint, *others = [Path(_clean(folder / path)) for path in checkpoints]
    archs = _for_each(checkpoints, [named("arch", text) for text in _several(model.arch)])
    sections = (model, data, sampling, computation)
    as_requested = {
        key: getattr(section, key) for section in sections for key in settings_of(type(section)) if key in _FIELDS
    }
    resolved: dict[str, Any] = {
        "out": folder / (computation.out or f"{checkpoint.stem}.bnuq.h5"),
        "checkpoint": checkpoint,
        "arch": archs[0],
        "members": tuple(map(Member, others, archs[1:])),
        "train": None if data.train is None else named("train", data.train),
        "test": None if data.test is None else named("test", data.test),
        "ood": tuple(named("ood", text) for each in data.ood for text in references_in(each)),
        "perturb": read("perturb", read_perturbations) or (),
        "validation": named("validation", data.validation) if isinstance(data.validation, str) else data.validation,
        "palette": origin.path("palette", data.palette),
        "classes": _names_or_file(data.classes, origin),
        "resize": read("resize", read_size),
        "crop": (side, side) if isinstance(side := read("crop", read_size), int) else side,
        "normalize": read("normalize", read_normalize),
        "normalize_name": published_name(data.normalize),
        "normalize_targets": read("normalize_targets", read_normalize, published=False),
        "augment": read("augment", read_augment),
        "tta": request.tta,
        "methods": mistakes.of(_methods, sampling.methods),
        "samples": sampling.samples or samples,
        "samples_by_default": sampling.samples is None,
        "predictions": origin.path("predictions", sampling.predictions),
        "layers": _single(sampling.layers) if "layers" in options_given else sampling.layers,
        "sampler": Sampler(**{key: getattr(sampling, key) for key in settings_of(Sampler)}),
        "scoring": request.scoring,
        "device": computation.device or "auto",
        "precision": computation.precision or "float32",
        "data_root": None if computation.data_root is None else folder / expanded(computation.data_root),
        "run_file": run_file,
        "given": options_given,
    }
    run = Run(**as_requested | resolved)
    mistakes.report(run)
    return run


_FIELDS = {field.name for field in fields(Run)}


def _request(content: RunFile, options: dict[str, Any], hub: HubConfig | None) -> Request:
    """The content of the run file, overridden by the options, over what the config beside the weights has recorded of
    [data]; MistakenError for options that are wrong, ModelError for such a config."""
    mistakes = Mistakes()
    sections: dict[str, dict[str, Any]] = msgspec.to_builtins(content)
    data = sections.setdefault("data", {})
    resized = any(key in data or key in options for key in ("resize", "crop"))
    recorded, config = ({}, None) if hub is None else (hub.data, hub.place)
    for key, value in recorded.items():
        if key in data or (key != "normalize" and resized):
            continue
        if key == "interpolation" and key not in options and value not in (known := get_args(Interpolation)):
            raise ModelError(
                f"{config}: interpolation is {str(value)[:80]}; expected {', '.join(known)}. Choose one of these with "
                "--interpolation."
            )
        data[key] = value
    for key, value in options.items():
        section = _SECTION_OF[key]
        if key == "arch_args":  # an argument overrides the run file's of the same name
            value = sections.get(section, {}).get(key, {}) | mistakes.of(read_arguments, value)
        sections[section] = sections.get(section, {}) | {key: value}
    mistakes.of(_check_texts, options)
    request = mistakes.of(section_from, Request, sections)
    mistakes.report(request)
    return request


_SECTION_OF = {  # setting → its section
    key: name
    for name in ("model", "data", "sampling", "scoring", "options")
    for key in settings_of(settings_of(Request)[name].type)
}


def _is_given(options: Options, key: str) -> bool:
    return options.get(key) is not None


def _run_file(model: str | None, folder: Path) -> tuple[Path | None, Path | None, bool]:
    """(run file, checkpoint, whether the run file was found rather than named)."""
    if model is not None and (not model.strip() or "\0" in model):
        raise RequestError(f"the model is {model[:80]!r}; expected a checkpoint (model.pt) or a run file (model.toml).")
    if model is None:
        path = folder / "bnuq.toml"
        if not is_file(path):
            raise RequestError(
                "no model was named and there is no bnuq.toml in this folder. "
                "Name a checkpoint (bnuq evaluate model.pt) or a run file (bnuq evaluate model.toml)."
            )
        return path, None, True
    path = folder / expanded(model)
    if is_run_file(model):
        if not is_file(path):
            raise RequestError(f"{model}: there is no such run file.")
        return path, None, False
    beside = path.with_suffix(".toml")
    return (beside if is_file(beside) else None), path, True


_TEXTS = ("arch", "entry", "train", "test", "ood", "validation", "target", "group", "layers", "predictions", "out")
_TEXTS += ("data_root", "palette", "classes")


def _check_texts(options: Mapping[str, Any]) -> None:
    """Raise MistakenError for options that are empty or contain a NUL character, and for an output that is named like a
    folder."""
    mistakes = []
    for key in _TEXTS:
        value = options.get(key)
        for text in value if isinstance(value, tuple) else (value,):
            if isinstance(text, str) and (not text.strip() or "\0" in text):
                mistakes.append(f"--{key.replace('_', '-')} is {text[:80]!r}; expected a name.")
    if isinstance(out := options.get("out"), str) and out.endswith(("/", os.sep)):
        mistakes.append(f"--out {out} names a folder; expected the file to write, such as {out}result.h5.")
    if mistakes:
        raise MistakenError(*mistakes)


def _names_or_file(value: str | tuple[str, ...] | None, origin: _Origin) -> Path | tuple[str, ...] | None:
    """The names of the classes, or the file that lists them, which an option names as a list of one."""
    if isinstance(value, tuple) and len(value) == 1 and "classes" in origin.options:
        value = value[0]
    return value if isinstance(value, tuple) else origin.path("classes", value)


def _methods(methods: tuple[str, ...] | None) -> tuple[str, ...] | None:
    if methods is None:
        return None
    if not methods:
        raise MistakenError(
            f"no method is named; expected some of {', '.join(map(str, METHODS))}. For the deterministic network "
            "alone, name deterministic."
        )
    return tuple(method for method in dict.fromkeys(methods) if method != DETERMINISTIC)


def _several(texts: str | tuple[str, ...] | None) -> tuple[str, ...]:
    return () if texts is None else (texts,) if isinstance(texts, str) else texts


def _single(layers: str | tuple[str, ...]) -> str | tuple[str, ...]:
    return layers[0] if len(layers) == 1 else layers


def _clean(path: Path) -> Path:
    return Path(*path.parts) if ".." not in path.parts else path.resolve()
