"""What was requested of several results, and where that differs: network, points, draws, pipeline, scoring."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bnuq.config import DataSection
from bnuq.records.evaluation import Result
from bnuq.report.comparison.lookup import Results
from bnuq.report.numbers import of_reference
from bnuq.report.sampler import USUAL, laplace_in_words, laws_in_words, sampler_in_words

DRAWN = {"samples": "T", "batch_size": "b", "seed": "seed", "bank": "draws in the bank"}  # that samples depend on
_SAMPLING = DRAWN | {
    "layers": "sampled layers",
    "mutual_information": "estimator of mutual information",
    "device": "device",
    "precision": "precision",
}
_RUN_FILE = {  # what else changes estimates
    "data": ("group", "resize", "crop", "interpolation", "channel_order", "normalize", "normalize_targets", "augment"),
    "model": ("arch_args",),
    "options": ("limit",),
    "scoring": ("pll", "crps", "fit", "tau", "tau_range"),
}
_File = tuple[str, str]  # what a file is called, and its hash


@dataclass(frozen=True)
class Difference:
    """A setting: its value in each result, in words, and whether they are not all the same. Estimates of sets with
    `other_points` cannot be compared."""

    what: str
    values: Mapping[str, str]
    differs: bool
    other_points: bool = False


def compared(results: Results) -> list[Difference]:
    """Every setting that any of the results has, in the order of a report."""

    def of_each(value: Callable[[Result], Any]) -> dict[str, Any]:
        return {name: value(result) for name, result in results.items()}

    settings = [_by_hash("checkpoint", of_each(_checkpoint))]
    sets = {name: evaluated.kind for result in results.values() for name, evaluated in result.sets.items()}
    for name, kind in sorted(sets.items(), key=lambda item: item[0] != "test"):
        files = of_each(lambda result, name=name: _points(result, name))
        settings.append(_by_hash(name if name == kind else f"{kind} {name}", files, of_points=True))
    settings.append(_by_value("ignore", of_each(_ignored)))
    settings.append(_by_value("classes of pixels", of_each(_classes_of_pixels)))
    settings.append(_by_hash("reference", of_each(_reference)))
    for key, name in _SAMPLING.items():
        settings.append(_by_value(name, of_each(lambda result, key=key: result.sampling.get(key))))
    if any(of_each(sampler_in_words).values()):
        settings.append(_by_value("mini-batches", of_each(lambda result: sampler_in_words(result) or USUAL)))
    settings.append(_by_value("noise models", of_each(lambda result: laws_in_words(result) or None)))
    settings.append(_by_value("laplace", of_each(lambda result: laplace_in_words(result) or None)))
    for section, keys in _RUN_FILE.items():
        for key in keys:
            name = f"{section}.{key}" if section == "scoring" else key
            settings.append(_by_value(name, of_each(lambda result, s=section, k=key: _requested(result, s, k))))
    settings.append(_by_value("methods", of_each(lambda result: list(result.methods))))
    settings.append(_by_value("bnuq", of_each(lambda result: result.provenance["bnuq"])))
    return [setting for setting in settings if setting.differs or set(setting.values.values()) != {"none"}]


def _checkpoint(result: Result) -> _File:
    return Path(str(result.model["path"])).name, str(result.model.get("sha256", ""))


def _points(result: Result, name: str) -> _File | None:
    evaluated = result.sets.get(name)
    if evaluated is None:
        return None
    return f"{of_reference(evaluated.reference)} of {evaluated.n} points", evaluated.sha256


def _reference(result: Result) -> _File | None:
    train, sha256 = result.run.get("data", {}).get("train"), result.provenance.get("reference_sha256")
    return None if not train or not sha256 else (of_reference(str(train)), str(sha256))


def _ignored(result: Result) -> int | None:
    """Of a segmentation, the value of the pixels that are not scored."""
    dense = result.model.get("task") == "segmentation"
    return result.run.get("data", {}).get("ignore", DataSection().ignore) if dense else None


def _classes_of_pixels(result: Result) -> str | None:
    """Of a segmentation, the names that the class file gives."""
    dense = result.model.get("task") == "segmentation"
    return ", ".join(result.sets["test"].classes) or None if dense else None


def _requested(result: Result, section: str, key: str) -> Any:
    keys = result.run.get(section, {})
    return keys.get(key) if isinstance(keys, Mapping) else None


def _by_hash(name: str, files: Mapping[str, _File | None], *, of_points: bool = False) -> Difference:
    """Files are the same where their hashes are, whatever they are called."""
    hashes = {file and file[1] for file in files.values()}
    names = {file[0] for file in files.values() if file is not None}
    ambiguous = len(hashes - {None}) > len(names)  # of one name, but not the same
    words = {
        name: "none" if file is None else f"{file[0]} ({file[1][:8]})" if ambiguous else file[0]
        for name, file in files.items()
    }
    return Difference(name, words, len(hashes) > 1, of_points and len(hashes) > 1 and None not in hashes)


def _by_value(name: str, values: Mapping[str, Any]) -> Difference:
    words = {name: _words(value) for name, value in values.items()}
    return Difference(name, words, len(set(words.values())) > 1)


def _words(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return {None: "none", True: "yes", False: "no"}[value]
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_words(inner)}" for key, inner in value.items())
    if isinstance(value, list | tuple):
        words = [_words(inner) for inner in value]
        return " ".join(words) if len(words) <= 6 else f"{len(words)}, from {words[0]} to {words[-1]}"
    return str(value)
