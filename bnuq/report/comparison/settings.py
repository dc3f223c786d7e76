"""What was requested of several results, and where that differs: network, points, draws, pipeline, scoring."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from bnuq.frozen import frozen
from bnuq.records import identity
from bnuq.records.evaluation import Result
from bnuq.records.identity import words_of
from bnuq.report.numbers import count, of_reference

Results = Mapping[str, Result]  # by name, in the order of the columns; all of one task
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
    if any(by_result(lambda result: result.task.unit == "pixels").values()):  # all are of one task
        classes = by_result(lambda result: ", ".join(result.sets["test"].classes) or None)
        settings.append(_by_value("classes of pixels", classes))
    for name, values in identity.compared([*results.values()], all_set=True).items():
        settings.append(_by_value(name, dict(zip(results, values, strict=True))))
    settings.append(_by_value("bnuq", by_result(lambda result: result.provenance["bnuq"])))
    return [setting for setting in settings if setting.differs or set(setting.values.values()) != {"none"}]


def _checkpoint(result: Result) -> _File:
    return Path(str(result.model["path"])).name, str(result.model.get("sha256", ""))


def _points(result: Result, name: str) -> _File | None:
    evaluated = result.sets.get(name)
    if evaluated is None:
        return None
    return f"{of_reference(evaluated.reference)} of {count(evaluated.n, 'example')}", evaluated.sha256


def _reference(result: Result) -> _File | None:
    train, sha256 = result.run.get("data", {}).get("train"), result.provenance.get("reference_sha256")
    return None if not train or not sha256 else (of_reference(str(train)), str(sha256))


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
    first, *others = values.values()
    differs = any(value != first for value in others)
    return Difference(name, dict(zip(values, words_of([*values.values()]), strict=True)), differs)
