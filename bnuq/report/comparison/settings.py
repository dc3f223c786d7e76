"""What was requested of several results, and where that differs: network, points, draws, pipeline, scoring."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from bnuq.config import DataSection
from bnuq.frozen import frozen
from bnuq.records.evaluation import Result
from bnuq.report.numbers import count, of_reference
from bnuq.report.sampler import USUAL, laplace_in_words, noise_models_in_words, sampler_in_words

Results = Mapping[str, Result]  # by name, in the order of the columns; all of one task
_SAMPLING = {
    "samples": "T",
    "batch_size": "b",
    "seed": "seed",
    "bank": "draws in the bank",
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


@frozen
class Difference:
    """A setting: its value in each result, in words, and whether they are not all the same. Estimates of sets with
    `other_points` cannot be compared."""

    what: str
    values: Mapping[str, str]
    differs: bool
    other_points: bool = False


def compared(results: Results) -> list[Difference]:
    """Every setting that any of the results has, in the order of a report."""

    def by_result(value: Callable[[Result], Any]) -> dict[str, Any]:
        return {name: value(result) for name, result in results.items()}

    settings = [_by_hash("checkpoint", by_result(_checkpoint))]
    sets = {name: evaluated.kind for result in results.values() for name, evaluated in result.sets.items()}
    for name, kind in sorted(sets.items(), key=lambda item: item[0] != "test"):
        files = by_result(lambda result, name=name: _points(result, name))
        settings.append(_by_hash(name if name == kind else f"{kind} {name}", files, are_points=True))
    settings.append(_by_hash("reference", by_result(_reference)))
    settings += [_by_value(name, values) for name, values in _values(by_result)]
    return [setting for setting in settings if setting.differs or set(setting.values.values()) != {"none"}]


def _checkpoint(result: Result) -> _File:
    return Path(str(result.model["path"])).name, str(result.model.get("sha256", ""))


def _points(result: Result, name: str) -> _File | None:
    evaluated = result.sets.get(name)
    if evaluated is None:
        return None
    return f"{of_reference(evaluated.reference)} of {count(evaluated.n, 'point')}", evaluated.sha256


def _reference(result: Result) -> _File | None:
    train, sha256 = result.run.get("data", {}).get("train"), result.provenance.get("reference_sha256")
    return None if not train or not sha256 else (of_reference(str(train)), str(sha256))


def _values(by_result: Callable[[Callable[[Result], Any]], dict[str, Any]]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The settings that are no files, each with its values."""
    if any(by_result(lambda result: result.task.is_dense).values()):  # all are of one task
        yield "ignore", by_result(lambda result: result.run.get("data", {}).get("ignore", DataSection().ignore))
        yield "classes of pixels", by_result(lambda result: ", ".join(result.sets["test"].classes) or None)
    for key, name in _SAMPLING.items():
        yield name, by_result(lambda result, key=key: result.sampling.get(key))
    if any(by_result(sampler_in_words).values()):
        yield "mini-batches", by_result(lambda result: sampler_in_words(result) or USUAL)
    yield "noise models", by_result(lambda result: noise_models_in_words(result) or None)
    yield "laplace", by_result(lambda result: laplace_in_words(result) or None)
    for section, keys in _RUN_FILE.items():
        for key in keys:
            name = f"{section}.{key}" if section == "scoring" else key
            yield name, by_result(lambda result, s=section, k=key: result.run.get(s, {}).get(k))
    yield "methods", by_result(lambda result: list(result.methods))
    yield "bnuq", by_result(lambda result: result.provenance["bnuq"])


def _by_hash(name: str, files: Mapping[str, _File | None], *, are_points: bool = False) -> Difference:
    """Files are the same where their hashes are, whatever they are called."""
    hashes = {file and file[1] for file in files.values()}
    names = {file[0] for file in files.values() if file is not None}
    ambiguous = len(hashes - {None}) > len(names)  # of one name, but not the same
    words = {
        name: "none" if file is None else f"{file[0]} ({file[1][:8]})" if ambiguous else file[0]
        for name, file in files.items()
    }
    return Difference(name, words, len(hashes) > 1, are_points and len(hashes) > 1 and None not in hashes)


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
