"""A resolved request: one run, or several over splits and seeds, and the options of the command line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import msgspec

from bnuq.config.schema import (
    DETERMINISTIC,
    Augment,
    Calibration,
    ChannelOrder,
    Interpolation,
    Method,
    Normalize,
    Outputs,
    PerturbationKind,
    Precision,
    Sampler,
    Samples,
    ScoringSection,
    Split,
    Task,
)
from bnuq.estimates import Estimator
from bnuq.files.content import exists
from bnuq.files.folders import expanded
from bnuq.files.references import folders_of, selection_of, without_arguments, without_name
from bnuq.findings import Finding
from bnuq.trust import BY_USER, NamedBy, names_a_file

DEFAULT_SCORING = ScoringSection()
DEFAULT_SAMPLER = Sampler()


class Options(dict[str, Any]):
    """The settings of the command line, by their keys in the run file and the names of their options. None means not
    given. Paths are relative to the working folder."""


@dataclass(frozen=True)
class Named:
    """A reference or a factory: its text, the folder that relative paths start from, and who named it. A set that is
    in memory is its `data` (arrays, tensors, a Dataset, an iterable of batches), and `text` is its name."""

    text: str
    base: Path
    named_by: NamedBy = BY_USER
    data: Any = field(default=None, repr=False, compare=False)


@dataclass(frozen=True)
class Perturbation:
    """A change of the inputs of the test set, of this size before normalisation: the standard deviation of noise, or
    the largest change of a number by an attack."""

    kind: PerturbationKind
    size: float

    def __str__(self) -> str:
        return f"{self.kind}:{str(self.size).removesuffix('.0')}"

    @property
    def set_name(self) -> str:
        """The name of the test set after this change."""
        return f"test+{self}"


@dataclass(frozen=True)
class Member:
    """A further network of an ensemble: its checkpoint and its architecture, or the network in memory."""

    checkpoint: Path
    arch: Named | None = None
    network: Any = field(default=None, repr=False, compare=False)  # a torch.nn.Module


@dataclass(frozen=True)
class Run:
    """A resolved request: the network, the data and all settings. `methods` and `batch_size` may be None, to be derived
    from the network; everything else is final. `members` are the other networks of an ensemble, of which this one is
    the first. `normalize_name` is the name that the numbers of `normalize` were requested by; the record holds the
    numbers alone."""

    checkpoint: Path
    out: Path
    network: Any = field(default=None, repr=False, compare=False)  # a torch.nn.Module
    arch: Named | None = None
    members: tuple[Member, ...] = ()
    arch_args: dict[str, Any] = field(default_factory=dict)
    entry: str | None = None
    task: Task | None = None
    outputs: Outputs = "logits"
    train_batch_size: int | None = None
    train: Named | None = None
    test: Named | None = None
    ood: tuple[Named, ...] = ()
    perturb: tuple[Perturbation, ...] = ()
    validation: Named | Split | None = None
    train_size: int | None = None
    target: str | None = None
    group: str | None = None
    ignore: int = 255
    palette: Path | None = None
    resize: int | tuple[int, int] | None = None  # the shorter side, or height and width
    crop: tuple[int, int] | None = None
    interpolation: Interpolation = "bilinear"
    channel_order: ChannelOrder = "rgb"
    normalize: Normalize | Literal["train"] | None = None
    normalize_name: str | None = None
    normalize_targets: Normalize | Literal["train"] | None = None
    augment: Augment | None = None
    tta: Augment | None = None  # in place of `augment`, for evaluated points
    methods: tuple[Method, ...] | None = None
    samples: Samples = 64
    samples_by_default: bool = field(default=False, repr=False, compare=False)
    predictions: Path | None = None
    bank: int | None = None
    mc_error: float = 0.02
    max_samples: int = 1024
    batch_size: int | None = None
    layers: str | tuple[str, ...] = "all"
    seed: int = 0
    mutual_information: Estimator = "plug-in"
    post_hoc: bool = True
    calibrate: Calibration | None = None
    sampler: Sampler = DEFAULT_SAMPLER
    scoring: ScoringSection = DEFAULT_SCORING
    device: str = "auto"
    precision: Precision = "float32"
    chunk_size: int | None = None
    threads: int | None = None
    limit: int | None = None
    save_samples: bool = False
    save_maps: bool = False
    images: bool = True
    show_images: tuple[str | int, ...] = ()
    data_root: Path | None = None
    download: bool = False
    on: str = "local"  # what computes: local, local:N or ray
    shard: str | None = None  # the part of the units that is computed: I/N, or env
    trust_pickle: bool = False
    trust_code: bool = False
    run_file: Path | None = None
    run_file_is_implicit: bool = False
    given: Mapping[str, Any] | None = field(default=None, repr=False, compare=False)  # the options, where typed for it

    def record(self) -> dict[str, Any]:
        """The run in the form of a run file, with absolute paths, and the options that run files do not hold."""
        data = {
            "train": _absolute(self.train),
            "test": _absolute(self.test),
            "ood": [_absolute(ref) for ref in self.ood],
            "perturb": [str(perturbation) for perturbation in self.perturb],
            "validation": (
                msgspec.to_builtins(self.validation)
                if isinstance(self.validation, Split)
                else _absolute(self.validation)
            ),
            "train_size": self.train_size,
            "target": self.target,
            "group": self.group,
            "ignore": None if self.ignore == 255 else self.ignore,
            "palette": None if self.palette is None else str(self.palette.absolute()),
            "resize": list(self.resize) if isinstance(self.resize, tuple) else self.resize,
            "crop": None if self.crop is None else list(self.crop),
            "interpolation": None if self.interpolation == "bilinear" else self.interpolation,
            "channel_order": None if self.channel_order == "rgb" else self.channel_order,
            "normalize": msgspec.to_builtins(self.normalize),
            "normalize_targets": msgspec.to_builtins(self.normalize_targets),
            "augment": msgspec.to_builtins(self.augment),
        }
        checkpoints = [str(run.checkpoint) for run in (self, *self.members)]
        archs = [run.arch for run in (self, *self.members)]
        factories = list(map(_absolute, archs))
        model = {
            "checkpoint": checkpoints if self.members else checkpoints[0],
            "arch": factories if len({*factories}) > 1 else factories[0],
            "arch_args": self.arch_args,
            "entry": self.entry,
            "task": self.task,
            "outputs": None if self.outputs == "logits" else self.outputs,
            "train_batch_size": self.train_batch_size,
        }
        sampling = {
            "methods": None if self.methods is None else self.methods or (DETERMINISTIC,),
            "samples": self.samples,
            "bank": self.bank,
            "predictions": None if self.predictions is None else str(self.predictions.absolute()),
            "mc_error": self.mc_error if self.samples == "auto" else None,
            "max_samples": self.max_samples if self.samples == "auto" else None,
            "batch_size": self.batch_size,
            "layers": self.layers,
            "seed": self.seed,
            "mutual_information": self.mutual_information,
            "post_hoc": None if self.post_hoc else False,
            "calibrate": self.calibrate,
            **msgspec.to_builtins(self.sampler),
        }
        options = {
            "device": self.device,
            "precision": self.precision,
            "chunk_size": self.chunk_size,
            "threads": self.threads,
            "limit": self.limit,
            "save_samples": self.save_samples,
            "save_maps": self.save_maps or None,
            "images": None if self.images else False,
            "show_images": list(self.show_images),
            "data_root": None if self.data_root is None else str(self.data_root),
            "folders": {
                named.text: str(named.base.absolute())
                for named in (*archs, self.train, self.test, self.validation, *self.ood)
                if isinstance(named, Named) and _is_module_in_base(named)
            },
        }
        scoring = msgspec.to_builtins(self.scoring)
        sections = {"model": model, "data": data, "sampling": sampling, "scoring": scoring, "options": options}
        record = {
            name: {k: v for k, v in section.items() if v is not None and v not in ({}, [])}
            for name, section in sections.items()
        }
        return record if self.tta is None else record | {"tta": msgspec.to_builtins(self.tta)}

    @property
    def single(self) -> tuple[Run, ...]:
        """The request for each network of an ensemble alone, or this one."""
        others = (replace(self, members=(), **vars(member)) for member in self.members)
        return replace(self, members=()), *others


@dataclass(frozen=True)
class RunOfSeveral:
    """One of several runs: its request, split and seed; None if no splits or seeds are listed."""

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
    """Several runs, each with its own result file beside `out`, the file of the aggregate."""

    all: tuple[RunOfSeveral, ...]
    out: Path
    findings: tuple[Finding, ...] = ()


def _absolute(named: Named | None) -> str | None:
    """The text of a reference or a factory; its path, if it has one, is made absolute."""
    if named is None or named.data is not None:
        return None if named is None else f"{named.text} (in memory)"
    direct = named.base / expanded(named.text)
    if exists(direct):  # a path with a = in it is a path
        return str(direct)
    name, text = without_name(named.text)
    start = "" if name is None else f"{name}="
    if folders := folders_of(text, named.base):
        images, masks, pattern = folders
        return f"{start}{images}:{masks}{f'/{pattern}' * (pattern != '*')}"
    if part := selection_of(text, named.base):
        return f"{start}{part[0]}:{part[1]}"
    spec, arguments = without_arguments(text)
    place, colon, function = spec.rpartition(":")
    path, tail = (place, colon + function + arguments) if place.lower().endswith(".py") else (text, "")
    absolute = named.base / expanded(path)
    return f"{start}{absolute}{tail}" if exists(absolute) else named.text


def _is_module_in_base(named: Named) -> bool:
    """Whether the text names a module that exists in its base folder."""
    spec = without_arguments(without_name(named.text)[1])[0]
    top = spec.rpartition(":")[0].partition(".")[0]
    if not top.isidentifier() or names_a_file(spec) or _absolute(named) != named.text:
        return False
    return exists(named.base / top) or exists(named.base / f"{top}.py")
