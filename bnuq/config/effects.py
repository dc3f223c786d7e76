"""Settings that were made and have no effect in a run, by what the schema says that they need."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from bnuq.config.request import Run
from bnuq.config.schema import Calibration, RecordedRun, Section, extra_of, parts_of, settings_of
from bnuq.findings import Finding, note
from bnuq.methods import Method
from bnuq.tasks import TASKS, Task

ERRORS, NAMES = "errors of estimates", "names of classes"
_ARRAYS = re.compile(r"\.(npz|npy|mat|h5|hdf5)\b", re.IGNORECASE)


def settings_without_effect(
    run: Run,
    task: Task | None,
    methods: Sequence[Method],
    calibration: Calibration,
    sets: Iterable[Any],
    *,
    section: str = "",
    gives: Collection[str] = (ERRORS, NAMES),
) -> Iterator[Finding]:
    """Notes on the settings of a run by these methods, or of a section of them, as far as what they need is in the
    schema, on the points of `sets`, where the command `gives` this. An unknown task may be any."""
    sets, record = tuple(sets), run.record()
    data = record["data"]
    named = [data.get("train"), data.get("test"), data.get("validation"), *data.get("ood", ())]
    references = [each for each in (*named, *(points.reference for points in sets)) if isinstance(each, str)]
    known = {
        **{f"a {each}": task is None or task.name == each.name for each in TASKS},
        "masks": any(points.masks is not None for points in sets),
        "a table": not all(map(_ARRAYS.search, references)),
        "pictures": any(points.is_picture for points in sets),
        "images of another size": any(finding.code == "set-adapted" for points in sets for finding in points.findings),
        "--samples auto": run.samples == "auto",
        "a method of mini-batches": any(method.is_sampled_batchnorm for method in methods),
        "deterministic+own": any(method.normalizes_jointly for method in methods),
        "a method of test-time augmentation": any("augmentation" in method.differs_by for method in methods),
        "a temperature of a classification": "vector" in (() if task is None else task.recalibrations)
        and calibration != "off",
        **dict.fromkeys(gives, True),
    }
    facts = [fact for fact, holds in known.items() if holds]
    for place, needs in without_effect(record, facts):
        if place.startswith(section) and place.removeprefix("data.") not in run.configured:
            yield note("without-effect", key=place, needs=needs)


def data_without_effect(
    run: Run, sets: Iterable[Any], task: Task | None = None, gives: Collection[str] = ()
) -> Iterator[Finding]:
    """The same of the data of a run that is not evaluated, as far as they were `typed`."""
    for idle in settings_without_effect(run, task, (), "off", sets, section="data.", gives=gives):
        place = idle.values["key"].removeprefix("data.")
        for key in typed(run, [place.partition(".")[0]]):
            yield note(
                "without-effect",
                key=f"--{key.replace('_', '-')}" if key == place else f"data.{place}",
                needs=idle.values["needs"],
            )


def typed(run: Run, keys: Iterable[str]) -> list[str]:
    """Those of these settings that options give. A run file is shared by commands: what one of them has no use for is
    no mistake, and nothing is said of it."""
    return [key for key in keys if key in run.typed]


def without_effect(record: Mapping[str, Any], facts: Collection[str]) -> Iterator[tuple[str, str]]:
    """The place of each setting in the record of a run that has no effect, and what it needs: neither other settings
    that are there nor `facts` about the run."""
    needs = dict(_needs(RecordedRun, record))
    idle = {place for place, any_of in needs.items() if any_of and not {*any_of} & {*facts, *needs}}
    for place in needs:
        if place in idle and place.rpartition(".")[0] not in idle:
            yield place, " or ".join(needs[place])


def _needs(section: type[Section], values: Mapping[str, Any], start: str = "") -> Iterator[tuple[str, list[str]]]:
    """The place of every value, and what it needs: one of these, or nothing. A need that starts with a dot is a
    setting beside it."""
    for key, value in values.items():
        hint, default = settings_of(section)[key].type, settings_of(section)[key].default
        needs = extra_of(hint).get("needs", "").split("|") if value != default else []
        yield f"{start}{key}", [f"{start}{need[1:]}" if need.startswith(".") else need for need in needs if need]
        if isinstance(value, Mapping):
            tables = (part for part in parts_of(hint) if isinstance(part, type) and issubclass(part, Section))
            for table in [each for each in tables if {*value} <= {*settings_of(each)}][:1]:
                yield from _needs(table, value, f"{start}{key}.")
