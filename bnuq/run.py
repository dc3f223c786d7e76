"""The request: everything an evaluation needs to know, from options and a run file, checked key by key and resolved.

An option wins over the run file, the run file over what the checkpoint records, that over the default.
"""

from __future__ import annotations

import datetime
import difflib
import itertools
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta

from bnuq.code import BY_USER, NamedBy, names_a_file
from bnuq.errors import RequestError
from bnuq.files.content import exists, is_file
from bnuq.files.folders import expanded
from bnuq.records import Estimator

Method = Literal["deterministic", "mcbn", "mcdo", "mcbn+mcdo"]
DETERMINISTIC: Method = "deterministic"  # always runs, and first
Precision = Literal["float32", "tf32", "bfloat16", "float64"]
Samples = int | Literal["auto"]
Task = Literal["classification", "regression", "segmentation"]
Likelihood = Literal["mixture", "moment", "moment_full"]  # what PLL is of: the mixture of draws, or a Gaussian like it
Crps = Literal["gaussian", "mixture", "ensemble", "fair"]
Criterion = Literal["crps", "pll"]  # what τ and the constant baseline are the best by, on validation points

Positive = Annotated[int, Meta(ge=1)]
Seed = Annotated[int, Meta(ge=0, le=2**62)]
PositiveNumber = Annotated[float, Meta(gt=0)]
MonteCarloError = Annotated[float, Meta(gt=0, lt=1)]


class Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """A table of the run file; an unknown key is an error that names it."""


class Normalize(Section, frozen=True):
    """Per-channel (or per-feature) affine of the inputs: (x − mean) / std, after uint8 was scaled to 0–1."""

    mean: tuple[float, ...]
    std: tuple[float, ...]


class Augment(Section, frozen=True):
    """The training-input pipeline of image points: pad the raw 0–1 pixels, crop at random, flip at random."""

    pad: Annotated[int, Meta(ge=0)] = 0
    crop: Positive | None = None
    flip: bool = False
    pad_value: float = 0.0
    pad_mode: Literal["constant", "reflect"] = "constant"


class Split(Section, frozen=True):
    """Points to validate on: a seeded part of another set; `held_out` says that the network never trained on them."""

    split_of: Literal["train", "test"]
    fraction: Annotated[float, Meta(gt=0, lt=1)] = 0.1
    seed: Seed = 0
    held_out: bool = False


class ModelSection(Section, frozen=True):
    """[model]: the checkpoint and how to build its network."""

    checkpoint: str | None = None
    arch: str | None = None
    arch_args: dict[str, Any] = {}
    task: Task | None = None
    train_batch_size: Positive | None = None


class DataSection(Section, frozen=True):
    """[data]: the reference, the evaluated sets, and the input pipeline."""

    train: str | None = None
    test: str | None = None
    ood: tuple[str, ...] = ()
    validation: str | Split | None = None
    train_size: Positive | None = None
    normalize: Normalize | Literal["train"] | None = None
    normalize_targets: Normalize | Literal["train"] | None = None
    augment: Augment | None = None


class SamplingSection(Section, frozen=True):
    """[sampling]: methods and their parameters."""

    methods: tuple[Method, ...] | None = None
    samples: Positive | Literal["auto"] = 64
    bank: Positive | None = None
    mc_error: MonteCarloError = 0.02
    max_samples: Annotated[int, Meta(ge=16)] = 1024
    batch_size: Annotated[int, Meta(ge=2)] | None = None
    layers: str | tuple[str, ...] = "all"
    seed: Seed = 0
    mutual_information: Estimator = "plug-in"


class ScoringSection(Section, frozen=True):
    """[scoring]: how a regression is scored. A `tau` that is given is not fitted; else it is sought in `tau_range`."""

    pll: Likelihood = "mixture"
    crps: Crps = "gaussian"
    fit: Criterion = "crps"
    tau: PositiveNumber | None = None
    tau_range: tuple[PositiveNumber, PositiveNumber] | None = None


class RunsSection(Section, frozen=True):
    """[runs]: several runs, one for every split and seed; `{split}` and `{seed}` in the file's texts become theirs."""

    split: tuple[Seed, ...] | None = None
    seed: tuple[Seed, ...] | None = None


class RunFile(Section, frozen=True):
    """A run file, as written."""

    model: ModelSection = ModelSection()
    data: DataSection = DataSection()
    sampling: SamplingSection = SamplingSection()
    scoring: ScoringSection = ScoringSection()
    runs: RunsSection | None = None


class KeptOptions(Section, frozen=True):
    """[options]: what a result file holds of the options that no run file does. Leave to run code is not among them.

    `folders` tells in which folder a `package.module:factory` was found, where that is not the environment's.
    """

    device: str | None = None
    precision: Precision | None = None
    chunk_size: Positive | None = None
    limit: Positive | None = None
    save_samples: bool = False
    data_root: str | None = None
    folders: dict[str, str] = {}


class Record(RunFile, frozen=True):
    """A run as a result file holds it."""

    options: KeptOptions = KeptOptions()


DEFAULT_SCORING = ScoringSection()


@dataclass(frozen=True)
class Options:
    """What was said on the command line; None where nothing was. Paths are relative to the working folder."""

    arch: str | None = None
    train: str | None = None
    test: str | None = None
    ood: tuple[str, ...] | None = None
    validation: str | None = None
    methods: tuple[str, ...] | None = None
    samples: Samples | None = None
    bank: int | None = None
    mc_error: float | None = None
    max_samples: int | None = None
    batch_size: int | None = None
    layers: tuple[str, ...] | None = None
    seed: int | None = None
    mutual_information: Estimator | None = None
    pll: Likelihood | None = None
    crps: Crps | None = None
    fit: Criterion | None = None
    tau: float | None = None
    device: str | None = None
    precision: Precision | None = None
    chunk_size: int | None = None
    limit: int | None = None
    out: Path | None = None
    save_samples: bool = False
    data_root: Path | None = None
    trust_pickle: bool = False
    trust_code: bool = False


@dataclass(frozen=True)
class Named:
    """A reference or a factory as it was written, the folder its relative paths begin in, and who named it."""

    text: str
    base: Path
    named_by: NamedBy = BY_USER


@dataclass(frozen=True)
class Run:
    """A request, resolved: what will be evaluated, on what, and how. `methods` and `batch_size` may be left to the
    network (None); everything else is settled."""

    checkpoint: Path
    out: Path
    arch: Named | None = None
    arch_args: dict[str, Any] = field(default_factory=dict)
    task: Task | None = None
    train_batch_size: int | None = None
    train: Named | None = None
    test: Named | None = None
    ood: tuple[Named, ...] = ()
    validation: Named | Split | None = None
    train_size: int | None = None
    normalize: Normalize | Literal["train"] | None = None
    normalize_targets: Normalize | Literal["train"] | None = None
    augment: Augment | None = None
    methods: tuple[Method, ...] | None = None
    samples: Samples = 64
    bank: int | None = None
    mc_error: float = 0.02
    max_samples: int = 1024
    batch_size: int | None = None
    layers: str | tuple[str, ...] = "all"
    seed: int = 0
    mutual_information: Estimator = "plug-in"
    scoring: ScoringSection = DEFAULT_SCORING
    device: str = "auto"
    precision: Precision = "float32"
    chunk_size: int | None = None
    limit: int | None = None
    save_samples: bool = False
    data_root: Path | None = None
    trust_pickle: bool = False
    trust_code: bool = False
    run_file: Path | None = None
    run_file_was_found: bool = False

    def record(self) -> dict[str, Any]:
        """The run as a run file would say it, with absolute paths, and the options that no run file holds."""
        data = {
            "train": _absolute(self.train),
            "test": _absolute(self.test),
            "ood": [_absolute(ref) for ref in self.ood],
            "validation": (
                msgspec.to_builtins(self.validation)
                if isinstance(self.validation, Split)
                else _absolute(self.validation)
            ),
            "train_size": self.train_size,
            "normalize": msgspec.to_builtins(self.normalize),
            "normalize_targets": msgspec.to_builtins(self.normalize_targets),
            "augment": msgspec.to_builtins(self.augment),
        }
        model = {
            "checkpoint": str(self.checkpoint),
            "arch": _absolute(self.arch),
            "arch_args": self.arch_args,
            "task": self.task,
            "train_batch_size": self.train_batch_size,
        }
        sampling = {
            "methods": None if self.methods is None else self.methods or (DETERMINISTIC,),
            "samples": self.samples,
            "bank": self.bank,
            "mc_error": self.mc_error if self.samples == "auto" else None,
            "max_samples": self.max_samples if self.samples == "auto" else None,
            "batch_size": self.batch_size,
            "layers": self.layers,
            "seed": self.seed,
            "mutual_information": self.mutual_information,
        }
        options = {
            "device": self.device,
            "precision": self.precision,
            "chunk_size": self.chunk_size,
            "limit": self.limit,
            "save_samples": self.save_samples,
            "data_root": None if self.data_root is None else str(self.data_root),
            "folders": {
                named.text: str(named.base.absolute())
                for named in (self.arch, self.train, self.test, self.validation, *self.ood)
                if isinstance(named, Named) and _is_module_in_base(named)
            },
        }
        scoring = msgspec.to_builtins(self.scoring)
        sections = {"model": model, "data": data, "sampling": sampling, "scoring": scoring, "options": options}
        return {
            name: {k: v for k, v in section.items() if v is not None and v not in ({}, [])}
            for name, section in sections.items()
        }


@dataclass(frozen=True)
class OneOf:
    """One of several runs: the split and the seed it is of, None where none are listed, and its request."""

    run: Run
    split: int | None = None
    seed: int | None = None

    @property
    def label(self) -> str:
        """`split0-seed1`, for the name of its file."""
        return "-".join(f"{name}{number}" for name, number in self._numbers())

    @property
    def words(self) -> str:
        """`split 0, seed 1`, for messages."""
        return ", ".join(f"{name} {number}" for name, number in self._numbers())

    def _numbers(self) -> Iterator[tuple[str, int]]:
        for name, number in (("split", self.split), ("seed", self.seed)):
            if number is not None:
                yield name, number


@dataclass(frozen=True)
class Runs:
    """Several runs, each with a result file of its own beside `out`, which their aggregate goes to."""

    all: tuple[OneOf, ...]
    out: Path
    notes: tuple[str, ...] = ()


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


def _resolved(
    spoken: RunFile, options: Options, *, path: Path | None, checkpoint: Path | None, found: bool, folder: Path
) -> Run:
    base, named_by = (path.parent, NamedBy(path) if found else BY_USER) if path is not None else (folder, BY_USER)
    if checkpoint is None:
        assert path is not None
        if spoken.model.checkpoint is None:
            raise RequestError(f'{path} names no checkpoint. Add to it:\n\n[model]\ncheckpoint = "model.pt"')
        checkpoint = base / expanded(spoken.model.checkpoint)
    run = _merged(spoken, options, checkpoint=checkpoint, base=base, named_by=named_by, folder=folder, run_file=path)
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
                    raise RequestError(f"{path}: {key} is {_as_toml(text)}, and [runs] lists no {name}; {add}.")
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
    spoken = _converted(record, source, Record)
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
) -> Run:
    def as_written(text: str) -> Named:
        return Named(text, Path((folders or {}).get(text, base)), named_by)

    def named(option: str | None, written: str | None) -> Named | None:
        if option is not None:
            return Named(option, folder)
        return None if written is None else as_written(written)

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
        normalize=spoken.data.normalize,
        normalize_targets=spoken.data.normalize_targets,
        augment=spoken.data.augment,
        methods=_methods(methods),
        samples=_first(options.samples, spoken.sampling.samples),
        bank=_first(options.bank, spoken.sampling.bank),
        mc_error=_first(options.mc_error, spoken.sampling.mc_error),
        max_samples=_first(options.max_samples, spoken.sampling.max_samples),
        batch_size=_first(options.batch_size, spoken.sampling.batch_size),
        layers=layers,
        seed=_first(options.seed, spoken.sampling.seed),
        mutual_information=_first(options.mutual_information, spoken.sampling.mutual_information),
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


File = TypeVar("File", bound=RunFile)


def read_run_file(path: Path) -> RunFile:
    """The run file, checked: RequestError with file, key, value and what was expected."""
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise RequestError(f"{path}: cannot be read: {error.strerror}.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise RequestError(f"{path} is not a TOML file: {error}.") from error
    spoken = _converted(document, path, RunFile)
    for key, value in _dates(spoken.model.arch_args, "model.arch_args"):
        raise RequestError(f"{path}: {key} is {value}, a date or a time; write it as a text, which the factory takes.")
    return spoken


def _dates(value: Any, key: str) -> Iterator[tuple[str, Any]]:
    """The dates and times in a value of a TOML document: nothing else in one is unknown to JSON."""
    if isinstance(value, dict | list):
        for name, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _dates(inner, f"{key}.{name}" if isinstance(value, dict) else f"{key}[{name}]")
    elif isinstance(value, datetime.date | datetime.time):
        yield key, value


def _converted(document: dict[str, Any], path: Path, kind: type[File]) -> File:
    try:
        return msgspec.convert(document, kind, strict=True)
    except msgspec.ValidationError as error:
        raise RequestError(f"{path}: {_complaint(str(error), document)}") from error


def _complaint(said: str, document: dict[str, Any]) -> str:
    """What msgspec says of a document, in our words: the key, its value, and what was expected."""
    said, _, where = said.partition(" - at `")
    key = where.rstrip("`").removeprefix("$").lstrip(".")
    value: Any = document
    for part in re.findall(r"[^.\[\]]+", key):
        value = value[int(part)] if isinstance(value, list) else value.get(part)
    if unknown := re.fullmatch(r"Object contains unknown field `(.*)`", said):
        return _unknown_key(key, unknown[1])
    if missing := re.fullmatch(r"Object missing required field `(.*)`", said):
        return f"{key}.{missing[1]} is missing; it has no default."
    shown = " is a table" if isinstance(value, dict) else f" is {_as_toml(value)}"
    expected = said.removeprefix("Expected ").partition(", got ")[0]
    expected = expected.removesuffix(" | null`") + "`" if expected.endswith(" | null`") else expected
    for theirs, ours in _WORDS.items():
        expected = re.sub(rf"`?\b{theirs}\b`?", ours, expected)
    if said.startswith("Invalid enum value"):
        expected = f"one of {_choices(key)}"
    for theirs, ours in ((">=", "of at least"), ("<=", "of at most"), (">", "above"), ("<", "below")):
        expected = expected.replace(f" {theirs} ", f" {ours} ")
    if key == "sampling.samples":
        expected = 'a whole number of at least 1, or "auto"'
    return f"{key or 'the file'}{shown}; expected {expected.replace(' | ', ' or ').replace('`', '')}."


def _unknown_key(table: str, key: str) -> str:
    known = _keys(table)
    close = difflib.get_close_matches(key, known, n=1, cutoff=0.7)
    hint = f"Did you mean {close[0]}?" if close else f"Known are: {', '.join(known)}."
    return f"{'.'.join(filter(None, (table, key)))} is not known. {hint}"


def _keys(table: str) -> list[str]:
    """The keys that a table of the run file may have."""
    sections: dict[str, type[Section]] = {
        "": RunFile,
        "options": KeptOptions,
        "model": ModelSection,
        "data": DataSection,
        "sampling": SamplingSection,
        "scoring": ScoringSection,
        "runs": RunsSection,
        "data.normalize": Normalize,
        "data.normalize_targets": Normalize,
        "data.augment": Augment,
        "data.validation": Split,
    }
    return [field.name for field in msgspec.structs.fields(sections[table])]


def _choices(key: str) -> str:
    last = re.sub(r"\[.*", "", key.rpartition(".")[2])
    choices = {
        "task": Task,
        "methods": Method,
        "precision": Precision,
        "split_of": Literal["train", "test"],
        "mutual_information": Estimator,
        "pll": Likelihood,
        "crps": Crps,
        "fit": Criterion,
    }
    known: Any = choices.get(last, Literal["constant", "reflect"])
    return ", ".join(known.__args__)


_WORDS = {
    "int": "a whole number",
    "float": "a number",
    "str": "a text",
    "bool": "true or false",
    "array": "a list",
    "object": "a table",
}


def _as_toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    text = f'"{value}"' if isinstance(value, str) else str(value)
    return text if len(text) <= 80 else f"{text[:79]}…"


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


def _absolute(named: Named | None) -> str | None:
    """The text of a reference or a factory with its path, where it has one, made absolute."""
    if named is None:
        return None
    whole = named.base / expanded(named.text)
    if exists(whole):  # a path with a = in it is a path
        return str(whole)
    name, equals, text = named.text.partition("=")
    if not equals:
        name, text = "", named.text
    place, colon, function = text.rpartition(":")
    path, tail = (place, colon + function) if place.lower().endswith(".py") else (text, "")
    absolute = named.base / expanded(path)
    return f"{name}{equals}{absolute}{tail}" if exists(absolute) else named.text


def _is_module_in_base(named: Named) -> bool:
    """Whether the text may name a module, and its base folder has one of that name."""
    spec = named.text.rpartition("=")[2]
    top = spec.rpartition(":")[0].partition(".")[0]
    if not top.isidentifier() or names_a_file(spec):
        return False
    return exists(named.base / top) or exists(named.base / f"{top}.py")
