"""What a request asks for: all settings of the schema and the code that they name, but for the few that cannot matter.

A new setting is part of it by default. Units of work, results that are used again, and comparisons take it from here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from bnuq.config import Named, Run, SweepSection
from bnuq.config.earlier_versions import in_current_settings
from bnuq.config.schema import Request, Section, settings_of
from bnuq.files.references import without_name
from bnuq.records.evaluation import Result
from bnuq.trust import code_of

CANNOT_MATTER: Mapping[str, str] = {
    "model.checkpoint": "the bytes of its files count",
    "model.arch": "its code and the name of its function count",
    **dict.fromkeys(("data.train", "data.test", "data.ood", "data.validation"), "the examples that were found count"),
    "data.perturb": "the changed examples count, by what they are computed from",
    **dict.fromkeys(("data.classes", "data.palette"), "the names of the points' classes count, and their labels"),
    "runs": "each run is a separate request, whose texts contain its split and seed",
    **dict.fromkeys(("check", "gate"), "it judges results that are there"),
    "sweep.batch_sizes": "the address of a unit has its size",
    **dict.fromkeys(("sweep.budget", "sweep.full_grid"), "the address of a unit has its draws"),
    "options.data_root": "the examples that were found count",
    "options.folders": "the code that was found counts",
    "options.chunk_size": "it changes the last bits alone, as the free memory does: units of an evaluation count them",
    "options.threads": "the threads that there were count",
    "options.out": "it is written when all has been computed",
    "options.on": "units are the same whichever process computes them",
    "options.download": "the examples that were found count",
    "options.trust_pickle": "it is a permission",
    "options.trust_code": "it is a permission",
}


def settings_of_record(record: Mapping[str, Any]) -> dict[str, Any]:
    """Every setting of a recorded request by its address, such as "data.resize", also one that only a newer version
    knows; its default where it was left out."""
    settings = {}
    tables = json.loads(json.dumps(in_current_settings(record)))
    for name, field in settings_of(Request).items():
        section, table = type(field.default), tables.get(name)
        if not issubclass(section, Section):
            settings[name] = table
            continue
        written = table if isinstance(table, dict) else {}
        values = {key: _default(setting) for key, setting in settings_of(section).items()} | written
        settings |= {f"{name}.{key}": value for key, value in values.items()}
    return settings


def _default(setting: msgspec.structs.FieldInfo) -> Any:
    default = setting.default_factory() if setting.default is msgspec.NODEFAULT else setting.default
    return list(default) if isinstance(default, tuple) else default


def settings_of_result(result: Result) -> dict[str, Any]:
    """Every setting of a result that can matter, as it was resolved for the network and the data; and its code."""
    settings, sampling = settings_of_record(result.run), result.sampling
    settings |= {f"sampling.{key}": sampling[key] for key in sampling if f"sampling.{key}" in settings}
    settings |= {f"options.{key}": sampling[key] for key in ("device", "precision") if key in sampling}
    settings["sampling.methods"] = [*result.methods]
    settings |= {key: value[:8] for key, value in result.provenance.items() if key == "code"}
    return {address: value for address, value in settings.items() if address not in CANNOT_MATTER}


def compared(results: Sequence[Result], *, all_set: bool = False) -> dict[str, tuple[Any, ...]]:
    """The settings that are not the same in all results, by their names: their value in each. With `all_set`, also
    those that are the same, unless they are the defaults."""
    usual, tables = settings_of_record({}), [*map(settings_of_result, results)]
    names = dict.fromkeys(name for table in tables for name in table)
    rows = {name: tuple(table.get(name) for table in tables) for name in names}
    if None in rows.get("code", ()):  # results of earlier versions do not say
        del rows["code"]

    def is_shown(address: str, values: tuple[Any, ...]) -> bool:
        likewise = all_set and (address in NAMES or values[0] != usual.get(address, values[0]))
        return likewise or any(value != values[0] for value in values)

    return {NAMES.get(address, address): values for address, values in rows.items() if is_shown(address, values)}


NAMES = {
    "sampling.samples": "T",
    "sampling.batch_size": "b",
    "sampling.bank": "draws in the bank",
    "sampling.layers": "sampled layers",
    "sampling.mutual_information": "estimator of mutual information",
    **{f"sampling.{key}": key for key in ("methods", "seed")},
    **{f"options.{key}": key for key in ("device", "precision")},
}


def in_words(value: Any) -> str:
    """The value of a setting for people."""
    if value is None or isinstance(value, bool):
        return {None: "none", True: "yes", False: "no"}[value]
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {in_words(inner)}" for key, inner in value.items())
    if isinstance(value, list | tuple):
        words = [*map(in_words, value)]
        return " ".join(words) if len(words) <= 6 else f"{len(words)}, from {words[0]} to {words[-1]}"
    return str(value)


def words_of(values: Sequence[Any]) -> tuple[str, ...]:
    """The values of one setting for people; in full, where different ones would read the same."""
    words = tuple(map(in_words, values))
    alike = any(w == words[0] and value != values[0] for w, value in zip(words, values, strict=True))
    return tuple(map(repr, values)) if alike else words


def of_inputs(record: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that the outputs of the deterministic network for a point depend on, but for numbers that a baseline
    has of its own."""
    return {
        address: value
        for address, value in settings_of_record(record).items()
        if address not in CANNOT_MATTER and not address.startswith(_NOT_OF_INPUTS)
    }


def of_mini_batches(record: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that the pixels and features of a drawn mini-batch depend on, whichever points are drawn."""
    settings = settings_of_record(record)
    augmented = {f"data.{key}": settings[f"data.{key}"] for key in ("augment", "normalize")}
    return augmented | {name: value for name, value in of_inputs(record).items() if name.startswith("data.")}


_NOT_OF_INPUTS = (  # beginnings of addresses: what is drawn, scored, chosen or measured
    "sampling.", "scoring.", "certificate.", "sweep.", "tta", "options.", "model.train_batch_size", "data.train_size",
    "data.target", "data.group", "data.ignore", "data.augment", "data.normalize",
)  # fmt: skip


def of_request(run: Run, sweep: SweepSection | None = None) -> dict[str, Any]:
    """What a run asks for, and a `sweep` of it, as JSON values: its settings and its code."""
    swept = {} if sweep is None else {"sweep": msgspec.to_builtins(sweep)}
    settings = settings_of_record(run.record() | swept)
    return {
        "settings": {address: value for address, value in settings.items() if address not in CANNOT_MATTER},
        "networks": [Path(network.arch.text).name for network in (run, *run.members) if network.arch],
        "code": code_of_request(run),
    }


def code_of_request(run: Run) -> list[str]:
    """SHA-256 of each file of code that the run names, see `code_of`."""
    functions = (*(network.arch for network in (run, *run.members)), *(change.source for change in run.perturb))
    specs = [(named.text, named.base) for named in functions if named is not None]
    for named in (run.train, run.test, run.validation, *run.ood):
        if isinstance(named, Named) and named.data is None:
            specs.append((without_name(named.text)[1], named.base))
    return sorted({digest for spec, base in specs for digest in code_of(spec, base)})
