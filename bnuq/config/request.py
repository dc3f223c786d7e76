"""A resolved request: one run, or several over splits and seeds, and the options of the command line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field, fields, replace
from pathlib import Path
from typing import Any, Literal, Self

import msgspec

from bnuq.arithmetic import Precision
from bnuq.config.schema import (
    Augment,
    Calibration,
    CertificateSection,
    ChannelOrder,
    DataSection,
    Interpolation,
    ModelSection,
    Normalize,
    RecordedOptions,
    SamplerSettings,
    Samples,
    SamplingSection,
    ScoringSection,
    Section,
    Split,
    settings_of,
)
from bnuq.config.shorthand import NONE
from bnuq.estimates import Estimator
from bnuq.files.content import exists
from bnuq.files.fetching import named_or_path
from bnuq.files.folders import expanded
from bnuq.files.references import folders_of, selection_of, without_arguments, without_name
from bnuq.findings import Finding
from bnuq.frozen import frozen
from bnuq.methods import DETERMINISTIC
from bnuq.perturbations import Perturbation
from bnuq.tasks import Outputs, TaskName
from bnuq.trust import BY_USER, NamedBy, names_a_file

DEFAULT_SCORING, DEFAULT_CERTIFICATE = ScoringSection(), CertificateSection()
DEFAULT_SAMPLER = SamplerSettings()
DEFAULT_BATCH_SIZE = 128  # where neither the request nor the checkpoint says that of the training


class Options(dict[str, Any]):
    """The settings of the command line, by their keys in the run file and the names of their options. None means not
    given. Paths are relative to the working folder."""


@frozen
class Named:
    """A reference or a factory: its text, the folder that relative paths start from, and who named it. A set that is
    in memory is its `data` (arrays, tensors, a Dataset, an iterable of batches), and `text` is its name."""

    text: str
    base: Path
    named_by: NamedBy = BY_USER
    data: Any = field(default=None, repr=False, compare=False)


@frozen
class Member:
    """A further network of an ensemble: its checkpoint and its architecture, or the network in memory."""

    checkpoint: Path
    arch: Named | None = None
    network: Any = field(default=None, repr=False, compare=False)  # a torch.nn.Module


@frozen
class RunSettings:
    """Settings of a run that one part of the work reads; all of them have the seed."""

    seed: int = 0

    @classmethod
    def of(cls, run: RunSettings) -> Self:
        """These settings of a run, which holds them by the same names."""
        return cls(**{setting.name: getattr(run, setting.name) for setting in fields(cls)})


@frozen
class PointSettings(RunSettings):
    """How points become the network's input, and pass through it; `on` is what computes: local, local:N or ray. `tta`
    takes the place of `augment` for evaluated points."""

    channel_order: ChannelOrder = "rgb"
    interpolation: Interpolation = "bilinear"
    normalize: Normalize | Literal["train"] | None = None
    normalize_name: str | None = None
    augment: Augment | None = None
    tta: Augment | None = None
    precision: Precision = "auto"
    chunk_size: int | None = None
    on: str = "local"

    @property
    def test_time_augment(self) -> Augment | None:
        """How evaluated points are augmented."""
        return self.augment if self.tta is None else self.tta


@frozen
class DrawSettings(RunSettings):
    """What is drawn, and how often. `methods` and `batch_size` may be None, to be derived from the network."""

    methods: tuple[str, ...] | None = None
    samples: Samples = 64
    bank: int | None = None
    mc_error: float = 0.02
    max_samples: int = 1024
    batch_size: int | None = None
    layers: str | tuple[str, ...] = "all"
    sampler: SamplerSettings = DEFAULT_SAMPLER
    train_size: int | None = None
    train_batch_size: int | None = None

    @property
    def auto_limit(self) -> int | None:
        """The most samples of a point, where their number is "auto"."""
        return self.max_samples if self.samples == "auto" else None


@frozen
class ScoreSettings(RunSettings):
    """How samples are scored, and what is kept of them."""

    task: TaskName | None = None
    outputs: Outputs = "logits"
    perturb: tuple[Perturbation, ...] = ()
    ignore: int = 255
    normalize_targets: Normalize | Literal["train"] | None = None
    mutual_information: Estimator = "plug-in"
    post_hoc: bool = True
    calibrate: Calibration | None = None
    scoring: ScoringSection = DEFAULT_SCORING
    certificate: CertificateSection = DEFAULT_CERTIFICATE
    limit: int | None = None
    save_samples: bool = False
    save_maps: bool = False
    images: bool = True
    show_images: tuple[str | int, ...] = ()


@frozen
class Files:
    """The checkpoint, and the file that the result is written to."""

    checkpoint: Path
    out: Path


@frozen
class Run(PointSettings, DrawSettings, ScoreSettings, Files):
    """A resolved request: the network, the data and all settings. `methods` and `batch_size` may be None, to be derived
    from the network; everything else is final. `members` are the other networks of an ensemble, of which this one is
    the first. `normalize_name` is the name that the numbers of `normalize` were requested by; the record holds the
    numbers alone. `configured` are the settings of [data] that the config beside the weights has: the record states
    them even where they are the defaults, as they would be the config's otherwise."""

    network: Any = field(default=None, repr=False, compare=False)  # a torch.nn.Module
    arch: Named | None = None
    members: tuple[Member, ...] = ()
    arch_args: dict[str, Any] = field(default_factory=dict)
    entry: str | None = None
    train: Named | None = None
    test: Named | None = None
    ood: tuple[Named, ...] = ()
    validation: Named | Split | None = None
    target: str | None = None
    group: str | None = None
    palette: Path | None = None
    classes: Path | tuple[str, ...] | None = None
    resize: int | tuple[int, int] | None = None  # the shorter side, or height and width
    crop: tuple[int, int] | None = None
    device: str = "auto"
    threads: int | None = None
    data_root: Path | None = None
    download: bool = False
    trust_pickle: bool = False
    trust_code: bool = False
    run_file: Path | None = None
    run_file_is_implicit: bool = False
    configured: tuple[str, ...] = ()
    given: Mapping[str, Any] | None = field(default=None, repr=False, compare=False)  # the options, where typed for it
    typed: frozenset[str] = field(default=frozenset(), repr=False, compare=False)  # all keys that were, also in Python

    def record(self) -> dict[str, Any]:
        """The run in the form of a run file, with absolute paths, and the options that run files do not hold."""
        networks = (self, *self.members)
        factories = [_absolute(network.arch) for network in networks]
        checkpoints = [named_or_path(network.checkpoint) for network in networks]
        special = {
            "checkpoint": checkpoints if self.members else checkpoints[0],
            "arch": factories if len({*factories}) > 1 else factories[0],
            "ood": list(map(_absolute, self.ood)),
            "perturb": list(map(_recorded_change, self.perturb)),
            "methods": None if self.methods is None else self.methods or (DETERMINISTIC,),
            "layers": self.layers,
            "folders": {each.text: str(each.base.absolute()) for each in self.named if _is_module_in_base(each)},
        }
        unchanged = (key for key in _WHERE_CHANGED if getattr(self, key) == getattr(Run, key))
        special |= {key: None for key in unchanged if key not in self.configured}
        if self.normalize is None and "normalize" in self.configured:
            special["normalize"] = NONE
        sections = {
            name: {key: special[key] if key in special else _recorded(getattr(self, key)) for key in keys}
            for name, keys in _SECTIONS.items()
        }
        sections["sampling"] |= _recorded(self.sampler)
        sections["scoring"] = _recorded(self.scoring)
        record = {
            name: {key: value for key, value in sections[name].items() if value is not None and value not in ({}, [])}
            for name in ("model", "data", "sampling", "scoring", "options")
        }
        whole = {"certificate": _recorded(self.certificate) or None, "tta": _recorded(self.tta)}
        return record | {name: section for name, section in whole.items() if section is not None}

    @property
    def named(self) -> tuple[Named, ...]:
        """All factories and references, and what names the code of perturbations."""
        archs, changes = (each.arch for each in (self, *self.members)), (change.source for change in self.perturb)
        every = (*archs, self.train, self.test, self.validation, *self.ood, *changes)
        return tuple(each for each in every if isinstance(each, Named))

    @property
    def single(self) -> tuple[Run, ...]:
        """The request for each network of an ensemble alone, or this one."""
        others = (replace(self, members=(), **vars(member)) for member in self.members)
        return replace(self, members=()), *others


_WHERE_CHANGED = ("outputs", "ignore", "interpolation", "channel_order", "mc_error", "max_samples", "post_hoc")
_WHERE_CHANGED += ("save_maps", "images")
_SECTIONS = {  # of the record, and their keys
    "model": settings_of(ModelSection),
    "data": settings_of(DataSection),
    "sampling": [key for key in settings_of(SamplingSection) if key not in settings_of(SamplerSettings)],
    "options": settings_of(RecordedOptions),
}


def _recorded_change(change: Perturbation) -> str:
    """A perturbation as it stands in a run file, its code with an absolute path."""
    return str(replace(change, code=_absolute(change.source) or "") if change.code else change)


def _recorded(value: Any) -> Any:
    """A value as it stands in a run file; a section by the settings that are not the defaults, written or not."""
    if isinstance(value, Section):
        values = [(key, getattr(value, key), field.default) for key, field in settings_of(type(value)).items()]
        changed = [(key, inner) for key, inner, default in values if inner != default]
        return {key: _recorded(inner) if isinstance(inner, Section) else inner for key, inner in changed}
    if isinstance(value, Named):
        return _absolute(value)
    if isinstance(value, Path):
        return str(value.absolute())
    return list(value) if isinstance(value, tuple) else msgspec.to_builtins(value)


@frozen
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


@frozen
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
    file, colon, function = spec.rpartition(":")
    path, tail = (file, colon + function + arguments) if file.lower().endswith(".py") else (text, "")
    absolute = named.base / expanded(path)
    return f"{start}{absolute}{tail}" if exists(absolute) else named.text


def _is_module_in_base(named: Named) -> bool:
    """Whether the text names a module that exists in its base folder."""
    spec = without_arguments(without_name(named.text)[1])[0]
    top = spec.rpartition(":")[0].partition(".")[0]
    if not top.isidentifier() or names_a_file(spec) or _absolute(named) != named.text:
        return False
    return exists(named.base / top) or exists(named.base / f"{top}.py")
