"""The run file: its tables and keys, read and checked key by key, with errors that name the key."""

from __future__ import annotations

import datetime
import difflib
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin

import msgspec
from msgspec import Meta

from bnuq.errors import RequestError
from bnuq.records import Estimator

Method = Literal["deterministic", "mcbn", "mcdo", "mcbn+mcdo", "mcbn-chi2", "mcbn-gaussian", "mcbn-empirical"]
ANALYTIC: tuple[Method, ...] = ("mcbn-chi2", "mcbn-gaussian", "mcbn-empirical")  # models of q(ω), not MCBN itself
DETERMINISTIC: Method = "deterministic"  # always runs, and first
POPULATION = "deterministic+population"  # runs beside mcbn where the reference check fails
ONE_PASS: tuple[str, ...] = (DETERMINISTIC, POPULATION)
Precision = Literal["float32", "tf32", "bfloat16", "float64"]
Samples = int | Literal["auto"]
Task = Literal["classification", "regression", "segmentation"]
Likelihood = Literal["mixture", "moment", "moment_full"]  # what PLL is of: the mixture of draws, or a Gaussian like it
Crps = Literal["gaussian", "mixture", "ensemble", "fair"]
SizeCriterion = Literal["elbo", "pll", "auroc"]  # what a mini-batch size is chosen by
PriorKind = Literal["unit", "gaussian", "weight_decay", "flat", "gamma"]  # p(ω) of the ELBO
Counts = Literal["nominal", "measured"]  # how many values statistics are taken of: b·z, or as they vary
Variance = Literal["biased", "unbiased"]  # divisor n, as training normalises; or n − 1
Batches = Literal["random", "stratified", "group"]  # any points; every class in proportion; all of one group
ChannelOrder = Literal["rgb", "bgr"]  # the order that the network takes; files hold red first
Criterion = Literal["crps", "pll"]  # what τ and the constant baseline are the best by, on validation points

MOST = 10**12  # of whatever is counted: points, draws, sizes
Positive = Annotated[int, Meta(ge=1, le=MOST)]
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

    pad: Annotated[int, Meta(ge=0, le=10_000)] = 0
    crop: Annotated[int, Meta(ge=1, le=100_000)] | None = None
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
    group: str | None = None
    channel_order: ChannelOrder = "rgb"
    normalize: Normalize | Literal["train"] | None = None
    normalize_targets: Normalize | Literal["train"] | None = None
    augment: Augment | None = None


class Sampler(Section, frozen=True):
    """The keys of [sampling] that say what a mini-batch is, and which law stands for it.

    Of MCBN: which points come together (`batches`, `replacement`), the divisor of their variance, whether the query is
    one of them (in the place of the last) and whether every query has mini-batches of its own. Of the analytic laws:
    `counts` (absent: measured where there is a reference), the mini-batches that they are fitted to, and what varies
    together under mcbn-empirical: "channel", "layer", "layer:k" (k directions), "network".
    """

    variance: Variance = "biased"
    batches: Batches = "random"
    replacement: bool = False
    query_in_batch: bool = False
    per_query: bool = False
    counts: Counts | None = None
    covariance: Annotated[str, Meta(pattern="^(channel|layer(:[1-9][0-9]{0,5})?|network)$")] = "layer"
    law_draws: Annotated[int, Meta(ge=8, le=100_000)] = 64

    @property
    def by_query(self) -> bool:
        """Whether a query passes together with a mini-batch, so that no ω is shared by all."""
        return self.query_in_batch or self.per_query


class SamplingSection(Sampler, frozen=True):
    """[sampling]: methods and their parameters."""

    methods: tuple[Method, ...] | None = None
    samples: Positive | Literal["auto"] | None = None  # 64, or 20 of a sweep
    bank: Positive | None = None
    mc_error: MonteCarloError = 0.02
    max_samples: Annotated[int, Meta(ge=16, le=MOST)] = 1024
    batch_size: Annotated[int, Meta(ge=2, le=MOST)] | None = None
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


class SweepSection(Section, frozen=True):
    """[sweep]: the sizes of `sweep-batch-size`, R draw sets of `samples` draws at each, and its ELBO.

    `train_points` of the reference stand for the training set. `prior_mean` and `prior_deviation` are mean and variance
    of the Gaussian prior of a channel's mean and of its standard deviation, `prior_precision` is Nτλ of a weight decay.
    """

    batch_sizes: Annotated[tuple[Positive, ...], Meta(min_length=1)] | None = None
    draw_sets: Annotated[int, Meta(ge=2, le=MOST)] = 5
    train_points: Positive = 1000
    criterion: SizeCriterion = "elbo"
    prior: PriorKind = "unit"
    prior_mean: tuple[float, PositiveNumber] | None = None
    prior_deviation: tuple[float, PositiveNumber] | None = None
    prior_precision: PositiveNumber | None = None
    counts: Counts = "measured"
    kl_weight: Annotated[float, Meta(ge=0, le=1e9)] = 1.0


class RunsSection(Section, frozen=True):
    """[runs]: several runs, one for every split and seed; `{split}` and `{seed}` in the file's texts become theirs."""

    split: tuple[Seed, ...] | None = None
    seed: tuple[Seed, ...] | None = None


class CheckSection(Section, frozen=True):
    """[check]: how `bnuq check`, and `evaluate --baseline`, compare: tolerances by metric or address, floors
    (ADDRESS>=NUMBER), and what may differ between the two results."""

    tolerance: dict[str, float | str] = {}
    require: tuple[str, ...] = ()
    allow: tuple[str, ...] = ()


class RunFile(Section, frozen=True):
    """A run file, as written."""

    model: ModelSection = ModelSection()
    data: DataSection = DataSection()
    sampling: SamplingSection = SamplingSection()
    scoring: ScoringSection = ScoringSection()
    sweep: SweepSection = SweepSection()
    runs: RunsSection | None = None
    check: CheckSection | None = None


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


File = TypeVar("File", bound=RunFile)


def read_run_file(path: Path) -> RunFile:
    """The run file, checked: RequestError with file, key, value and what was expected."""
    try:
        with path.open("rb") as file:
            content = file.read(_LARGEST + 1)
    except OSError as error:
        raise RequestError(f"{path}: cannot be read: {error.strerror}.") from error
    if len(content) > _LARGEST:
        raise RequestError(f"{path} has more than {_LARGEST:,} bytes; expected a run file.")
    if re.search(_TOO_DOTTED, content):  # tomllib takes the square of their number in time and memory
        raise RequestError(f"{path}: {_line_of(content, _TOO_DOTTED)} nests too deep; expected a run file.")
    try:
        document = tomllib.loads(content.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise RequestError(f"{path} is not a TOML file: {error}.") from error
    except RecursionError:
        raise RequestError(f"{path}: {_line_of(content, _TOO_DEEP)} nests too deep; expected a run file.") from None
    except ValueError:  # of Python's int
        raise RequestError(
            f"{path}: {_line_of(content, _TOO_LONG)} holds a number of thousands of digits; expected a smaller one."
        ) from None
    spoken = converted(document, path, RunFile)
    for key, value in _dates(spoken.model.arch_args, "model.arch_args"):
        raise RequestError(f"{path}: {key} is {value}, a date or a time; write it as a text, which the factory takes.")
    return spoken


_LARGEST = 2**20  # bytes of a run file
_DEEPEST = 32  # tables and lists within each other
_TOO_DOTTED = rb"(?:\.[ \t]*[\w\"'-]{1,100}[ \t]*){50}"
_TOO_DEEP, _TOO_LONG = rb"[\[{]{50}", rb"\d[\d_]{4000}"


def _line_of(content: bytes, pattern: bytes) -> str:
    """The number of the first line where `pattern` matches, and the key there."""
    for number, line in enumerate(content.splitlines(), start=1):
        if (there := re.search(pattern, line)) is not None:
            key = line[: there.start()].partition(b"=")[0].decode(errors="replace").strip()
            return f"line {number} ({as_toml(key)[1:-1]})" if key else f"line {number}"
    return "it"


def _impossible(document: dict[str, Any]) -> str | None:
    """The key of the first value that nothing can be done with, and why; None where there is none."""
    waiting: list[tuple[str, Any, int]] = [("", document, 0)]
    while waiting:
        key, value, depth = waiting.pop()
        if isinstance(value, int) and not -(2**63) <= value < 2**63:
            return f"{key} is {as_toml(value)}; expected a smaller number."
        if isinstance(value, str) and "\0" in value:
            return f"{key} is {value[:80]!r}, with a NUL character in it; expected none."
        if isinstance(value, dict | list):
            if depth > _DEEPEST:
                return f"{key[:80]}… nests deeper than {_DEEPEST} tables and lists; expected fewer."
            items = value.items() if isinstance(value, dict) else enumerate(value)
            for name, inner in items:
                place = f"[{name}]" if isinstance(value, list) else f".{name}"
                waiting.append((f"{key}{place}".lstrip("."), inner, depth + 1))
    return None


def _dates(value: Any, key: str) -> Iterator[tuple[str, Any]]:
    """The dates and times in a value of a TOML document: nothing else in one is unknown to JSON."""
    if isinstance(value, dict | list):
        for name, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _dates(inner, f"{key}.{name}" if isinstance(value, dict) else f"{key}[{name}]")
    elif isinstance(value, datetime.date | datetime.time):
        yield key, value


def converted(document: dict[str, Any], path: Path, kind: type[File]) -> File:
    """The document as a record of this kind; RequestError with file, key, value and what was expected."""
    if wrong := _impossible(document):
        raise RequestError(f"{path}: {wrong}")
    try:
        return msgspec.convert(document, kind, strict=True)
    except msgspec.ValidationError as error:
        raise RequestError(f"{path}: {complaint(str(error), document)}") from error


def complaint(said: str, document: dict[str, Any]) -> str:
    """What msgspec says of a document, in our words: the key, its value, and what was expected."""
    said, _, where = said.partition(" - at `")
    key = where.rstrip("`").removeprefix("$").lstrip(".")
    value: Any = document
    if key.endswith("[...]"):  # a value of a table whose keys are free
        return (
            f"{key.removesuffix('[...]')} has a value that is {said.partition(', got ')[2].strip('`')}; expected "
            f"{said.removeprefix('Expected ').partition(', got ')[0].strip('`').replace(' | ', ' or ')}."
        )
    for part in re.findall(r"[^.\[\]]+", key):
        value = value[int(part)] if isinstance(value, list) else value.get(part)
    if unknown := re.fullmatch(r"Object contains unknown field `(.*)`", said):
        return _unknown_key(key, unknown[1])
    if missing := re.fullmatch(r"Object missing required field `(.*)`", said):
        return f"{key}.{missing[1]} is missing; it has no default."
    shown = " is a table" if isinstance(value, dict) else f" is {as_toml(value)}"
    expected = said.removeprefix("Expected ").partition(", got ")[0]
    expected = expected.removesuffix(" | null`") + "`" if expected.endswith(" | null`") else expected
    for theirs, ours in _WORDS.items():
        expected = re.sub(rf"`?\b{theirs}\b`?", ours, expected)
    if said.startswith("Invalid enum value"):
        expected = _choices(key)
    for theirs, ours in ((">=", "of at least"), ("<=", "of at most"), (">", "above"), ("<", "below")):
        expected = expected.replace(f" {theirs} ", f" {ours} ")
    if key == "sampling.samples":
        expected = 'a whole number of at least 1, or "auto"'
    if key in ("data.normalize", "data.normalize_targets"):
        expected = '"train" (mean and std of the reference) or numbers, as in { mean = [0.5], std = [0.25] }'
    if key == "sampling.covariance":
        expected = "channel, layer, layer:k (of k directions, at least 1) or network"
    return f"{key or 'the file'}{shown}; expected {expected.replace(' | ', ' or ').replace('`', '')}."


def _unknown_key(table: str, key: str) -> str:
    known = _keys(table)
    close = difflib.get_close_matches(key, known, n=1, cutoff=0.7)
    hint = f"Did you mean {close[0]}?" if close else f"Known are: {', '.join(known)}."
    return f"{'.'.join(filter(None, (table, key)))} is not known. {hint}"


_SECTIONS: dict[str, type[Section]] = {
    "": RunFile,
    "options": KeptOptions,
    "model": ModelSection,
    "data": DataSection,
    "sampling": SamplingSection,
    "scoring": ScoringSection,
    "sweep": SweepSection,
    "runs": RunsSection,
    "check": CheckSection,
    "data.normalize": Normalize,
    "data.normalize_targets": Normalize,
    "data.augment": Augment,
    "data.validation": Split,
}


def _keys(table: str) -> list[str]:
    """The keys that a table of the run file may have."""
    return [field.name for field in msgspec.structs.fields(_SECTIONS[table])]


def _choices(key: str) -> str:
    """The texts that a key may have, from the type of its field."""
    table, _, name = re.sub(r"\[.*", "", key).rpartition(".")
    types = [field.type for field in msgspec.structs.fields(_SECTIONS[table]) if field.name == name]
    texts = []
    while types:
        one = types.pop()
        if get_origin(one) is Literal:
            texts += get_args(one)
        else:
            types += get_args(one)
    return f"one of {', '.join(texts)}" if len(texts) > 1 else f'"{texts[0]}"'


_WORDS = {
    "int": "a whole number",
    "float": "a number",
    "str": "a text",
    "bool": "true or false",
    "array": "a list",
    "object": "a table",
}


def as_toml(value: Any) -> str:
    """A value as a run file would have it, cut where it is long."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int) and value.bit_length() > 256:
        return f"a number of about {int(0.30103 * value.bit_length()) + 1} digits"
    text = f'"{value}"' if isinstance(value, str) else str(value)
    return text if len(text) <= 80 else f"{text[:79]}…"
