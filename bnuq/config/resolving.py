"""From what was said and what is written to the request: an option wins over the run file, that over the default."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from bnuq.config.request import Named, OneOf, Options, Run, Runs
from bnuq.config.schema import (
    DETERMINISTIC,
    Method,
    Record,
    RunFile,
    Sampler,
    ScoringSection,
    Split,
    SweepSection,
    as_toml,
    complaint,
    converted,
    read_run_file,
)
from bnuq.errors import RequestError
from bnuq.files.content import is_file
from bnuq.files.folders import expanded
from bnuq.trust import BY_USER, NamedBy

MOST_RUNS = 100_000
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
    models: Sequence[str], options: Options, settings: Mapping[str, Any], *, folder: Path
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
        out = folder / options.out if options.out is not None else folder / f"{run.checkpoint.stem}.sweep.h5"
        runs.append(replace(run, out=out if not runs else runs[0].out))
        spoken.append(written.sweep)
    for run, section in zip(runs[1:], spoken[1:], strict=True):
        for key in (field.name for field in msgspec.structs.fields(SweepSection)):
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
    return tuple(runs), msgspec.structs.replace(written, **settings)


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
    return replace(run, run_file_was_found=found and path is not None)


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
    if samples_by_seed and options.seed is not None:
        raise RequestError(
            f"--seed {options.seed} would give every run the same sampling seed, and {path.name} lists one for each "
            "under [runs]. Leave the option out."
        )
    out = folder / options.out if options.out is not None else folder / f"{path.stem}.bnuq.h5"
    if (count := math.prod(map(len, listed.values()))) > MOST_RUNS:
        raise RequestError(f"{path}: [runs] asks for {count:,} runs; expected at most {MOST_RUNS:,}.")
    runs = []
    for split, seed in itertools.product(listed.get("split", (None,)), listed.get("seed", (None,))):
        filled = _filled(spoken, {"split": split, "seed": seed})
        if samples_by_seed:
            filled = msgspec.structs.replace(filled, sampling=msgspec.structs.replace(filled.sampling, seed=seed))
        run = _resolved(filled, options, path=path, checkpoint=None, found=found, folder=folder)
        runs.append(_beside(OneOf(run, split, seed), out))
    note = "no text of the run file has {seed} in it: the seeds of [runs] are those of sampling, of the same network"
    return Runs(tuple(runs), out, (note,) if samples_by_seed else ())


def resolve_all_again(
    kept: Sequence[tuple[int | None, int | None, dict[str, Any]]], source: Path, options: Options, *, folder: Path
) -> Runs:
    """The runs (split, seed, record) that the aggregate `source` holds, with `options` on top, as `resolve_again`."""
    out = folder / options.out if options.out is not None else folder / source.name
    runs = tuple(
        _beside(OneOf(resolve_again(record, source, options, folder=folder), split, seed), out)
        for split, seed, record in kept
    )
    before = {record.get("sampling", {}).get("seed") for _, _, record in kept}
    if options.seed is not None and len(before) > 1:
        raise RequestError(f"--seed {options.seed} would give every run of {source} the same sampling seed.")
    return Runs(runs, out)


_PLACES = ("split", "seed")  # what may stand in braces in the texts of a run file


def _beside(one: OneOf, out: Path) -> OneOf:
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
        if getattr(options, key.partition(".")[2], None) is not None:
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
    spoken = converted(record, source, Record)
    if spoken.runs is not None:
        raise RequestError(f"{source}: runs is not known in the record of one run.")
    kept = spoken.options
    merged = replace(
        options,
        device=_first(options.device, kept.device),
        precision=_first(options.precision, kept.precision),
        chunk_size=_first(options.chunk_size, kept.chunk_size),
        limit=_first(options.limit, kept.limit),
        save_samples=options.save_samples or kept.save_samples,
        data_root=_first(options.data_root, None if kept.data_root is None else Path(kept.data_root)),
    )
    if spoken.model.checkpoint is None:
        raise RequestError(f"{source}: its run names no checkpoint.")
    return _merged(
        spoken,
        merged,
        checkpoint=Path(spoken.model.checkpoint),
        base=source.parent,
        named_by=NamedBy(source),
        folder=folder,
        run_file=source,
        folders=kept.folders,
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
    def as_written(text: str) -> Named:
        return Named(text, Path((folders or {}).get(text, base)), named_by)

    def named(option: str | None, written: str | None) -> Named | None:
        if option is not None:
            return Named(option, folder)
        return None if written is None else as_written(written)

    _check_texts(options)
    checkpoint = Path(_clean(folder / checkpoint))
    methods = options.methods if options.methods is not None else spoken.sampling.methods
    layers = _single(options.layers) if options.layers is not None else spoken.sampling.layers
    ood = (
        tuple(Named(text, folder) for text in options.ood)
        if options.ood is not None
        else tuple(map(as_written, spoken.data.ood))
    )
    written = spoken.data.validation
    validation = (
        written if options.validation is None and isinstance(written, Split)
        else named(options.validation, None if isinstance(written, Split) else written)
    )  # fmt: skip
    return Run(
        checkpoint=checkpoint,
        out=folder / options.out if options.out is not None else folder / f"{checkpoint.stem}.bnuq.h5",
        arch=named(options.arch, spoken.model.arch),
        arch_args=spoken.model.arch_args,
        task=spoken.model.task,
        train_batch_size=spoken.model.train_batch_size,
        train=named(options.train, spoken.data.train),
        test=named(options.test, spoken.data.test),
        ood=ood,
        validation=validation,
        train_size=spoken.data.train_size,
        group=_first(options.group, spoken.data.group),
        channel_order=spoken.data.channel_order,
        normalize=spoken.data.normalize,
        normalize_targets=spoken.data.normalize_targets,
        augment=spoken.data.augment,
        methods=_methods(methods),
        samples=_first(options.samples, spoken.sampling.samples, samples),
        bank=_first(options.bank, spoken.sampling.bank),
        mc_error=_first(options.mc_error, spoken.sampling.mc_error),
        max_samples=_first(options.max_samples, spoken.sampling.max_samples),
        batch_size=_first(options.batch_size, spoken.sampling.batch_size),
        layers=layers,
        seed=_first(options.seed, spoken.sampling.seed),
        mutual_information=_first(options.mutual_information, spoken.sampling.mutual_information),
        sampler=_sampler(spoken.sampling, options),
        scoring=_scoring(spoken.scoring, options),
        device=_device(_first(options.device, "auto")),
        precision=_first(options.precision, "float32"),
        chunk_size=options.chunk_size,
        limit=options.limit,
        save_samples=options.save_samples,
        data_root=None if options.data_root is None else folder / expanded(options.data_root),
        trust_pickle=options.trust_pickle,
        trust_code=options.trust_code,
        run_file=run_file,
    )


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


def _check_texts(options: Options) -> None:
    """RequestError for an option that is an empty text, or has a NUL in it: nothing can be called so."""
    for key in ("arch", "train", "test", "ood", "validation", "group", "layers", "out", "data_root"):
        value = getattr(options, key)
        for text in value if isinstance(value, tuple) else (value,):
            if (isinstance(text, str) and not text.strip()) or (isinstance(text, str | Path) and "\0" in str(text)):
                raise RequestError(f"--{key.replace('_', '-')} is {str(text)[:80]!r}; expected a name.")


def _methods(methods: tuple[str, ...] | None) -> tuple[Method, ...] | None:
    if methods is None:
        return None
    known = Method.__args__  # pyright: ignore[reportAttributeAccessIssue]
    if not methods:
        raise RequestError(
            f"no method is named; expected some of {', '.join(known)}. For the network as it is, name deterministic."
        )
    for method in methods:
        if method not in known:
            raise RequestError(f"method {method!r} is not known; expected one of {', '.join(known)}.")
    return tuple(m for m in dict.fromkeys(methods) if m != DETERMINISTIC)  # pyright: ignore[reportReturnType]


def _scoring(written: ScoringSection, options: Options) -> ScoringSection:
    said = {key: getattr(options, key) for key in ("pll", "crps", "fit", "tau")}
    return msgspec.structs.replace(written, **{key: value for key, value in said.items() if value is not None})


def _sampler(written: Sampler, options: Options) -> Sampler:
    kept = {field.name: getattr(written, field.name) for field in msgspec.structs.fields(Sampler)}
    said = {key: value for key, value in options.sampler.items() if value is not None}
    try:
        return msgspec.convert(kept | said, Sampler)
    except msgspec.ValidationError as error:
        text = complaint(str(error).replace("`$.", "`$.sampling."), {"sampling": said})
        option, _, rest = text.removeprefix("sampling.").partition(" ")
        raise RequestError(f"--{option.replace('_', '-')} {rest}") from None


def _device(text: str) -> str:
    if re.fullmatch(r"auto|cpu|cuda(:\d+)?|mps", text):
        return text
    raise RequestError(f"device {text!r} is not known; expected auto, cpu, cuda, cuda:N or mps.")


def _first(*values: Any) -> Any:
    return next((value for value in values if value is not None), None)


def _single(layers: tuple[str, ...]) -> str | tuple[str, ...]:
    return layers[0] if len(layers) == 1 else layers


def _clean(path: Path) -> Path:
    return Path(*path.parts) if ".." not in path.parts else path.resolve()
