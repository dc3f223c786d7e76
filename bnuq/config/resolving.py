"""From what was said and what is written to the request: an option wins over the run file, that over the default."""

from __future__ import annotations

import itertools
import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import msgspec

from bnuq.config.request import Named, Options, Run, RunOfSeveral, Runs
from bnuq.config.runfile import as_toml, converted, read_run_file, section_from
from bnuq.config.schema import DETERMINISTIC, Method, RecordedRun, Request, RunFile, Sampler, SweepSection, settings_of
from bnuq.errors import RequestError
from bnuq.files.content import is_file
from bnuq.files.folders import expanded
from bnuq.trust import BY_USER, NamedBy

MAX_RUNS = 100_000
SAMPLES = 64  # T, unless it is said
SWEEP_SAMPLES = 20  # that of a draw set; Mukhoti et al. 2020, Figure 1


def resolve(model: str | None, options: Options, *, folder: Path) -> Run:
    """The run that `model` (a checkpoint, a run file, or None for bnuq.toml in `folder`) and `options` ask for.

    A run file that was named speaks for the user; one that was merely found (beside the checkpoint, or bnuq.toml) does
    not, and its code runs only with trust. Raises RequestError for whatever is wrong or missing in the request itself,
    and for a run file of several runs, which `resolve_all` resolves.
    """
    path, checkpoint, found = _run_file(model, folder)
    spoken = read_run_file(path) if path is not None else RunFile()
    if spoken.runs is not None:
        raise RequestError(f"{path} asks for several runs ([runs]), and one was expected.")
    return _resolved(spoken, options, path=path, checkpoint=checkpoint, found=found, folder=folder)


def resolve_sweep(
    models: Sequence[str], options: Options, settings: dict[str, Any], *, folder: Path
) -> tuple[tuple[Run, ...], SweepSection]:
    """The runs of a sweep over mini-batch sizes, one a model (bnuq.toml for none), and how it goes.

    `settings` are those of SweepSection that were said on the command line; they win over [sweep] of the run files,
    which must agree. The result goes to --out, or to the first model's stem with `.sweep.h5` in `folder`.
    """
    runs, spoken = [], []
    for model in models or (None,):
        path, checkpoint, found = _run_file(model, folder)
        written = read_run_file(path) if path is not None else RunFile()
        if written.runs is not None:
            raise RequestError(f"{path} asks for several runs ([runs]), and a sweep takes one network a model.")
        run = _resolved(
            written, options, path=path, checkpoint=checkpoint, found=found, folder=folder, samples=SWEEP_SAMPLES
        )
        out = run.out if _given(options, "out") else folder / f"{run.checkpoint.stem}.sweep.h5"
        runs.append(replace(run, out=out if not runs else runs[0].out))
        spoken.append(written.sweep)
    for run, section in zip(runs[1:], spoken[1:], strict=True):
        for key in settings_of(SweepSection):
            one, other = getattr(spoken[0], key), getattr(section, key)
            if key not in settings and one != other:
                ours, theirs = ("not said" if value is None else as_toml(value) for value in (other, one))
                raise RequestError(
                    f"sweep.{key} is {ours} for {run.checkpoint.name}, and {theirs} for "
                    f"{runs[0].checkpoint.name}; expected the same for all models, or --{key.replace('_', '-')}."
                )
    written = spoken[0]
    if "prior" in settings:  # another prior has other parameters
        written = msgspec.structs.replace(written, prior_mean=None, prior_deviation=None, prior_precision=None)
    return tuple(runs), section_from(SweepSection, msgspec.to_builtins(written) | settings)


def _resolved(
    spoken: RunFile,
    options: Options,
    *,
    path: Path | None,
    checkpoint: Path | None,
    found: bool,
    folder: Path,
    samples: int = SAMPLES,
) -> Run:
    base, named_by = (path.parent, NamedBy(path) if found else BY_USER) if path is not None else (folder, BY_USER)
    if checkpoint is None:
        assert path is not None
        if spoken.model.checkpoint is None:
            raise RequestError(f'{path} names no checkpoint. Add to it:\n\n[model]\ncheckpoint = "model.pt"')
        checkpoint = base / expanded(spoken.model.checkpoint)
    run = _merged(
        spoken,
        options,
        checkpoint=checkpoint,
        base=base,
        named_by=named_by,
        folder=folder,
        run_file=path,
        samples=samples,
    )
    return replace(run, run_file_is_implicit=found and path is not None)


def resolve_all(model: str | None, options: Options, *, folder: Path) -> Runs | None:
    """The runs that a run file with [runs] asks for, splits outside and seeds inside; None where it asks for one.

    Options hold for every run. A seed whose `{seed}` is nowhere in the file is the sampling seed of its runs. The
    aggregate goes to --out, or to the run file's stem with `.bnuq.h5` in `folder`. Raises RequestError as `resolve`
    does, and for lists and placeholders that do not belong together.
    """
    path, checkpoint, found = _run_file(model, folder)
    spoken = read_run_file(path) if path is not None else RunFile()
    if path is None or spoken.runs is None:
        return None
    if checkpoint is not None:
        raise RequestError(
            f"{path.name} beside {checkpoint.name} asks for several runs ([runs]), and one checkpoint was named. Name "
            f"{path.name} to evaluate them all."
        )
    listed = {name: values for name in _PLACES if (values := getattr(spoken.runs, name)) is not None}
    used = _placeholders(spoken, options, listed, path)
    _check_listed(listed, used, path)
    samples_by_seed = "seed" in listed and "seed" not in used
    if samples_by_seed and _given(options, "seed"):
        raise RequestError(
            f"--seed {options['seed']} would give every run the same sampling seed, and {path.name} lists one for each "
            "under [runs]. Leave the option out."
        )
    out = folder / (options.get("out") or f"{path.stem}.bnuq.h5")
    if (count := math.prod(map(len, listed.values()))) > MAX_RUNS:
        raise RequestError(f"{path}: [runs] asks for {count:,} runs; expected at most {MAX_RUNS:,}.")
    runs = []
    for split, seed in itertools.product(listed.get("split", (None,)), listed.get("seed", (None,))):
        filled = _filled(spoken, {"split": split, "seed": seed})
        if samples_by_seed:
            filled = msgspec.structs.replace(filled, sampling=msgspec.structs.replace(filled.sampling, seed=seed))
        run = _resolved(filled, options, path=path, checkpoint=None, found=found, folder=folder)
        runs.append(_beside(RunOfSeveral(run, split, seed), out))
    note = "no text of the run file has {seed} in it: the seeds of [runs] are those of sampling, of the same network"
    return Runs(tuple(runs), out, (note,) if samples_by_seed else ())


def resolve_all_again(
    kept: Sequence[tuple[int | None, int | None, dict[str, Any]]], source: Path, options: Options, *, folder: Path
) -> Runs:
    """The runs (split, seed, record) that the aggregate `source` holds, with `options` on top, as `resolve_again`."""
    out = folder / (options.get("out") or source.name)
    runs = tuple(
        _beside(RunOfSeveral(resolve_again(record, source, options, folder=folder), split, seed), out)
        for split, seed, record in kept
    )
    before = {record.get("sampling", {}).get("seed") for _, _, record in kept}
    if _given(options, "seed") and len(before) > 1:
        raise RequestError(f"--seed {options['seed']} would give every run of {source} the same sampling seed.")
    return Runs(runs, out)


_PLACES = ("split", "seed")  # what may stand in braces in the texts of a run file


def _beside(one: RunOfSeveral, out: Path) -> RunOfSeveral:
    """`one`, its own result file named after that of the aggregate."""
    stem = out.name.removesuffix(".bnuq.h5") if out.name.endswith(".bnuq.h5") else out.stem
    return replace(one, run=replace(one.run, out=out.with_name(f"{stem}.{one.label}.bnuq.h5")))


def _texts(spoken: RunFile) -> dict[str, tuple[str, ...]]:
    """The texts of a run file that name what differs from run to run, by key."""
    one = {
        "model.checkpoint": spoken.model.checkpoint,
        "data.train": spoken.data.train,
        "data.test": spoken.data.test,
        "data.validation": spoken.data.validation if isinstance(spoken.data.validation, str) else None,
    }
    return {key: (text,) for key, text in one.items() if text is not None} | {"data.ood": spoken.data.ood}


def _placeholders(spoken: RunFile, options: Options, listed: Mapping[str, Any], path: Path) -> set[str]:
    """What stands in braces in the texts that no option replaces; RequestError for what [runs] does not list."""
    found = set()
    for key, texts in _texts(spoken).items():
        if _given(options, key.partition(".")[2]):
            continue
        for text in texts:
            for name in re.findall(r"\{(\w+)\}", text):
                if name not in listed:
                    add = f"add {name} = [0, 1, 2] to it" if name in _PLACES else "expected {split} or {seed}"
                    raise RequestError(f"{path}: {key} is {as_toml(text)}, and [runs] lists no {name}; {add}.")
                found.add(name)
    return found


def _check_listed(listed: Mapping[str, tuple[int, ...]], used: set[str], path: Path) -> None:
    if not listed:
        raise RequestError(f"{path}: [runs] lists nothing; expected split = [0, 1, 2], or seed = [0, 1, 2], or both.")
    for name, values in listed.items():
        if not values or len(set(values)) < len(values):
            wrong = "lists a number twice" if values else "is empty"
            raise RequestError(f"{path}: runs.{name} {wrong}; expected whole numbers, each once, such as [0, 1, 2].")
    if "split" in listed and "split" not in used:
        raise RequestError(
            f"{path}: runs.split is {list(listed['split'])}, and no text has {{split}} in it, so that all splits would "
            'be the same. Write it where the number goes, as in train = "uci-boston:train:{split}".'
        )


def _filled(spoken: RunFile, numbers: Mapping[str, int | None]) -> RunFile:
    """The run file of one run: numbers in the place of their names in braces."""

    def fill(text: Any) -> Any:
        for name, number in numbers.items():
            text = text.replace(f"{{{name}}}", str(number)) if isinstance(text, str) and number is not None else text
        return text

    data = spoken.data
    return msgspec.structs.replace(
        spoken,
        runs=None,
        model=msgspec.structs.replace(spoken.model, checkpoint=fill(spoken.model.checkpoint)),
        data=msgspec.structs.replace(
            data,
            train=fill(data.train),
            test=fill(data.test),
            ood=tuple(map(fill, data.ood)),
            validation=fill(data.validation),
        ),
    )


def resolve_again(record: dict[str, Any], source: Path, options: Options, *, folder: Path) -> Run:
    """The run that a result file holds, with `options` on top; code it names is code that a found file names.

    The result file is the run's run file, so that the run will not write over it.
    """
    spoken = converted(record, source, RecordedRun)
    if spoken.runs is not None:
        raise RequestError(f"{source}: runs is not known in the record of one run.")
    if spoken.model.checkpoint is None:
        raise RequestError(f"{source}: its run names no checkpoint.")
    return _merged(
        spoken,
        options,
        checkpoint=Path(spoken.model.checkpoint),
        base=source.parent,
        named_by=NamedBy(source),
        folder=folder,
        run_file=source,
        folders=spoken.options.folders,
    )


def _merged(
    spoken: RunFile,
    options: Options,
    *,
    checkpoint: Path,
    base: Path,
    named_by: NamedBy,
    folder: Path,
    run_file: Path | None,
    folders: Mapping[str, str] | None = None,
    samples: int = SAMPLES,
) -> Run:
    given = {key: os.fspath(value) if isinstance(value, Path) else value for key, value in options.items()}
    given = {key: value for key, value in given.items() if value is not None}
    asked = _settled(spoken, given)

    def named(key: str, text: str) -> Named:
        return Named(text, folder) if key in given else Named(text, Path((folders or {}).get(text, base)), named_by)

    model, data, sampling, other = asked.model, asked.data, asked.sampling, asked.options
    checkpoint = Path(_clean(folder / checkpoint))
    return Run(
        checkpoint=checkpoint,
        out=folder / (other.out or f"{checkpoint.stem}.bnuq.h5"),
        arch=None if model.arch is None else named("arch", model.arch),
        arch_args=model.arch_args,
        task=model.task,
        train_batch_size=model.train_batch_size,
        train=None if data.train is None else named("train", data.train),
        test=None if data.test is None else named("test", data.test),
        ood=tuple(named("ood", text) for text in data.ood),
        validation=named("validation", data.validation) if isinstance(data.validation, str) else data.validation,
        train_size=data.train_size,
        group=data.group,
        channel_order=data.channel_order,
        normalize=data.normalize,
        normalize_targets=data.normalize_targets,
        augment=data.augment,
        methods=_methods(sampling.methods),
        samples=sampling.samples or samples,
        bank=sampling.bank,
        mc_error=sampling.mc_error,
        max_samples=sampling.max_samples,
        batch_size=sampling.batch_size,
        layers=_single(sampling.layers) if "layers" in given else sampling.layers,
        seed=sampling.seed,
        mutual_information=sampling.mutual_information,
        sampler=Sampler(**{key: getattr(sampling, key) for key in settings_of(Sampler)}),
        scoring=asked.scoring,
        device=other.device or "auto",
        precision=other.precision or "float32",
        chunk_size=other.chunk_size,
        limit=other.limit,
        save_samples=other.save_samples,
        data_root=None if other.data_root is None else folder / expanded(other.data_root),
        trust_pickle=other.trust_pickle,
        trust_code=other.trust_code,
        run_file=run_file,
    )


def _settled(spoken: RunFile, given: dict[str, Any]) -> Request:
    """What is written, with what was given in its place."""
    asked: dict[str, dict[str, Any]] = msgspec.to_builtins(spoken)
    for key, value in given.items():
        section = _SECTION_OF[key]
        asked[section] = asked.get(section, {}) | {key: value}
    _check_texts(given)
    return section_from(Request, asked)


_SECTION_OF = {  # of every setting that may be given
    key: name
    for name in ("model", "data", "sampling", "scoring", "options")
    for key in settings_of(settings_of(Request)[name].type)
}


def _given(options: Options, key: str) -> bool:
    return options.get(key) is not None


def _run_file(model: str | None, folder: Path) -> tuple[Path | None, Path | None, bool]:
    """(run file, checkpoint, whether the run file was merely found)."""
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
    if path.suffix.lower() == ".toml":
        if not is_file(path):
            raise RequestError(f"{model}: there is no such run file.")
        return path, None, False
    beside = path.with_suffix(".toml")
    return (beside if is_file(beside) else None), path, True


def _check_texts(given: Mapping[str, Any]) -> None:
    """RequestError for an option that is an empty text, or has a NUL in it: nothing can be called so; and for an output
    that is called like a folder."""
    for key in ("arch", "train", "test", "ood", "validation", "group", "layers", "out", "data_root"):
        value = given.get(key)
        for text in value if isinstance(value, tuple) else (value,):
            if isinstance(text, str) and (not text.strip() or "\0" in text):
                raise RequestError(f"--{key.replace('_', '-')} is {text[:80]!r}; expected a name.")
    if isinstance(out := given.get("out"), str) and out.endswith(("/", os.sep)):
        raise RequestError(f"--out {out} names a folder; expected the file to write, such as {out}result.h5.")


def _methods(methods: tuple[Method, ...] | None) -> tuple[Method, ...] | None:
    if methods is None:
        return None
    if not methods:
        raise RequestError(
            f"no method is named; expected some of {', '.join(get_args(Method))}. For the network as it is, name "
            "deterministic."
        )
    return tuple(method for method in dict.fromkeys(methods) if method != DETERMINISTIC)


def _single(layers: str | tuple[str, ...]) -> str | tuple[str, ...]:
    return layers[0] if len(layers) == 1 else layers


def _clean(path: Path) -> Path:
    return Path(*path.parts) if ".." not in path.parts else path.resolve()
