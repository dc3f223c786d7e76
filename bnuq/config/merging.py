"""Merges options, run file and the config beside the weights into the settings of one run."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, get_args

import msgspec

from bnuq.config.request import Member, Named, Options, Run
from bnuq.config.runfile import section_from
from bnuq.config.schema import Interpolation, Request, RunFile, SamplerSettings, option_name, settings_of
from bnuq.config.shorthand import (
    published_name,
    read_arguments,
    read_augment,
    read_normalize,
    read_perturbations,
    read_size,
    read_validation,
)
from bnuq.errors import MistakenError, Mistakes, ModelError, RequestError
from bnuq.files.fetching import stem_of, timm_architecture
from bnuq.files.folders import expanded
from bnuq.files.hub import HubConfig, read_hub_config
from bnuq.frozen import frozen
from bnuq.methods import DETERMINISTIC, METHODS
from bnuq.perturbations import Perturbation
from bnuq.trust import NamedBy

SAMPLES = 64  # default of T


@frozen
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
    """The architecture of each checkpoint, of one for all or one each; that of timm's published weights needs none."""
    if len(archs) not in (0, 1, len(checkpoints)):
        raise RequestError(
            f"{len(archs)} architectures are named for {len(checkpoints)} checkpoints; expected one for all, or one "
            "each (--arch, repeated, or a list under [model])."
        )
    if not archs:
        published = map(timm_architecture, checkpoints)
        return [None if name is None else Named(name, Path()) for name in published]
    return archs if len(archs) > 1 else [archs[0]] * len(checkpoints)


def merged(
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
    """The run of `content`, a run file, overridden by `options`. Texts of the run file are relative to `base` (or, of a
    recorded run, to the folder that `folders` has for them), and those of options to `folder`. MistakenError lists all
    settings that are wrong."""
    given = {key: value for key, value in options.items() if value is not None}
    options_given = {key: os.fspath(value) if isinstance(value, Path) else value for key, value in given.items()}
    mistakes = Mistakes()
    hub = None if in_memory else read_hub_config(without_dots(folder / checkpoints[0]))
    # A record is complete: what it does not have is the default.
    request = mistakes.of(_request, content, options_given, hub if folders is None else None)

    origin = _Origin(options_given, folder, base, named_by, folders or {}, run_file)
    named = origin.named

    def read(key: str, reader: Callable[..., Any], **settings: Any) -> Any:
        return mistakes.of(reader, getattr(data, key), origin.key(key, request.data), **settings)

    model, data, sampling, computation = request.model, request.data, request.sampling, request.options
    checkpoint, *others = [Path(without_dots(folder / path)) for path in checkpoints]
    archs = _for_each([checkpoint, *others], [named("arch", text) for text in texts_in(model.arch)])
    validation = read("validation", read_validation)
    unchanged = _unchanged_settings(model, data, sampling, computation)
    # Every reader runs before anything is raised, so that one message lists all mistakes.
    resolved: dict[str, Any] = {
        "out": folder / (computation.out or f"{stem_of(checkpoint)}.bnuq.h5"),
        "checkpoint": checkpoint,
        "arch": archs[0],
        "members": tuple(map(Member, others, archs[1:])),
        "train": None if data.train is None else named("train", data.train),
        "test": None if data.test is None else named("test", data.test),
        "ood": tuple(named("ood", text) for text in data.ood),
        "perturb": _with_sources(read("perturb", read_perturbations) or (), origin),
        "validation": named("validation", validation) if isinstance(validation, str) else validation,
        "palette": origin.path("palette", data.palette),
        "classes": _names_or_file(data.classes, origin),
        "resize": read("resize", read_size),
        "crop": (side, side) if isinstance(side := read("crop", read_size), int) else side,
        "interpolation": data.interpolation or Run.interpolation,
        "normalize": read("normalize", read_normalize),
        "normalize_name": published_name(data.normalize),
        "normalize_targets": read("normalize_targets", read_normalize, published=False),
        "augment": read("augment", read_augment),
        "configured": () if hub is None else tuple(hub.data),
        "tta": request.tta,
        "methods": mistakes.of(_methods_of, sampling.methods),
        "samples": sampling.samples or samples,
        "layers": sampling.layers[0] if "layers" in options_given and len(sampling.layers) == 1 else sampling.layers,
        "sampler": SamplerSettings(**{key: getattr(sampling, key) for key in settings_of(SamplerSettings)}),
        "scoring": request.scoring,
        "certificate": request.certificate,
        "device": computation.device or "auto",
        "precision": computation.precision or "auto",
        "data_root": origin.path("data_root", computation.data_root),
        "run_file": run_file,
        "given": options_given,
        "typed": frozenset(options_given),
    }
    run = Run(**unchanged | resolved)
    mistakes.report(run)
    return run


def _with_sources(changes: Sequence[Perturbation], origin: _Origin) -> tuple[Perturbation, ...]:
    """The perturbations; those by code know which file named it, and where."""
    return tuple(
        replace(change, source=origin.named("perturb", change.code)) if change.code else change for change in changes
    )


def _unchanged_settings(*sections: Any) -> dict[str, Any]:
    """The settings of sections that a run holds under the same name."""
    names = {field.name for field in fields(Run)}
    return {key: getattr(section, key) for section in sections for key in settings_of(type(section)) if key in names}


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
        section = SECTION_OF[key]
        if key == "arch_args":  # an argument overrides the run file's of the same name
            value = sections.get(section, {}).get(key, {}) | mistakes.of(read_arguments, value)
        sections[section] = sections.get(section, {}) | {key: value}
    mistakes.of(_check_texts, options)
    request = mistakes.of(section_from, Request, sections)
    mistakes.report(request)
    return request


SECTION_OF = {  # setting → its section
    key: name
    for name in ("model", "data", "sampling", "scoring", "certificate", "options")
    for key in settings_of(settings_of(Request)[name].type)
}


def is_given(options: Options, key: str) -> bool:
    return options.get(key) is not None


_TEXTS = ("arch", "entry", "train", "test", "ood", "validation", "target", "group", "layers", "out")
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


def _methods_of(methods: tuple[str, ...] | None) -> tuple[str, ...] | None:
    if methods is None:
        return None
    if not methods:
        raise MistakenError(
            f"no method is named; expected some of {', '.join(map(str, METHODS))}. For the deterministic network "
            "alone, name deterministic."
        )
    return tuple(method for method in dict.fromkeys(methods) if method != DETERMINISTIC)


def texts_in(texts: str | tuple[str, ...] | None) -> tuple[str, ...]:
    return () if texts is None else (texts,) if isinstance(texts, str) else texts


def without_dots(path: Path) -> Path:
    return Path(*path.parts) if ".." not in path.parts else path.resolve()
