"""JSON schemas of what `--json` prints, and of the record in a result file, made by msgspec from types.

What a summary copies from a record has the types of the record's own fields. Further keys are allowed everywhere: a
later version may add some. One that removes a key or changes a type has a new `SCHEMA`.
"""

from __future__ import annotations

import functools
import operator
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import msgspec
import numpy as np
from msgspec import UNSET, Struct, UnsetType, defstruct

from bnuq.estimates import Estimate, InRecord
from bnuq.gate import records as gate
from bnuq.records import approximation, decisions, evaluation, multirun
from bnuq.records.as_json import APART, SCHEMA, names_of
from bnuq.store.annotations import fields_of, metadata
from bnuq.store.codec import FORMAT
from bnuq.studies import STUDIES

ADDRESS = "https://bnuq.github.io/bnuq/schema/"
Number = float | Literal["inf", "-inf", "nan"]
_Any = dict[str, Any]


class EstimateSummary(Struct):
    """A number with its standard error over points, that over draws, and a 95 % interval: those that it has."""

    value: Number
    se: Number | UnsetType = UNSET
    mc_se: Number | UnsetType = UNSET
    low: Number | UnsetType = UNSET
    high: Number | UnsetType = UNSET


class InTable(Struct):
    """A row of /estimates."""

    estimate: int


class Array(Struct):
    """A data set of the file, by its path, or the numbers themselves."""

    array: str | UnsetType = UNSET
    values: list[Any] | UnsetType = UNSET


# ── from the types of records ────────────────────────────────────────────────────────────────────────────────────────


@cache
def _record(record: type, stored: bool) -> type:
    """A record as JSON: what `--json` prints of it, or in a file all that the codec stores."""
    if not stored:
        return _struct(record.__name__, _printed(record))
    optional = {
        each.name for each in fields(record) if each.default is not MISSING or each.default_factory is not MISSING
    }
    return _struct(record.__name__, {name: _in_json(hint, True) for name, hint in fields_of(record).items()}, optional)


def _struct(name: str, types: Mapping[str, Any], optional: Sequence[str] | set[str] = ()) -> type:
    required = [(key, kind) for key, kind in types.items() if key not in optional]
    return defstruct(
        name, [*required, *((key, kind | UnsetType, UNSET) for key, kind in types.items() if key in optional)]
    )


def _printed(record: type) -> dict[str, Any]:
    """The types of the fields and properties of a record that `--json` prints."""
    return _types(record, names_of(record))


def _of(record: type, names: str, *, optional: str = "", **more: Any) -> type:
    """These fields and properties of a record as a summary has them, and `more`."""
    return _struct(record.__name__, _types(record, f"{names} {optional}".split()) | more, {*optional.split()})


def _types(record: type, names: Iterable[str]) -> dict[str, Any]:
    hints = typing.get_type_hints(record, include_extras=True)
    for name in set(names) - hints.keys():
        hints[name] = typing.get_type_hints(getattr(record, name).fget, include_extras=True)["return"]
    return {name: _in_json(hints[name], False) for name in names}


def _in_json(hint: Any, stored: bool) -> Any:
    """The type of a field's JSON: in a file (`stored`), or in a summary."""
    if getattr(hint, "dim_str", None) is not None or hint is np.ndarray:
        return Array if stored else list[Any]
    if isinstance(hint, type) and is_dataclass(hint):
        return {True: InTable, False: EstimateSummary}[stored] if hint is Estimate else _record(hint, stored)
    if hint in (Path, float):
        return str if hint is Path else float if stored else Number
    arguments = get_args(hint)
    inner = [_in_json(each, stored) for each in arguments if each is not Ellipsis]
    origin = get_origin(hint)
    if origin is typing.Annotated:
        return Array if stored and metadata(hint, InRecord) else inner[0]
    if origin in (typing.Union, type(int | None)):
        return functools.reduce(operator.or_, inner)
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return dict[str, inner[1]]  # type: ignore[valid-type]
    if isinstance(origin, type) and issubclass(origin, Sequence):
        item = functools.reduce(operator.or_, inner)
        return list[item]
    return hint


# ── summaries ────────────────────────────────────────────────────────────────────────────────────────────────────────

_Estimates = dict[str, EstimateSummary]
_Warning = _struct("Warning", {"code": str, "text": str, "runs": int}, {"runs"})


class SetEstimates(Struct):
    """The estimates of a set by metric, and those of its classes, groups, labels or scores."""

    ece_floor: dict[str, Number] | UnsetType = UNSET
    at_threshold: _Estimates | UnsetType = UNSET
    by_class: dict[str, _Estimates] | UnsetType = UNSET
    by_group: dict[str, _Estimates] | UnsetType = UNSET
    by_label: dict[str, _Estimates] | UnsetType = UNSET
    by_score: dict[str, _Estimates] | UnsetType = UNSET


class MethodSummary(Struct):
    """Every estimate of a method at its address, and curves over the number of samples."""

    sets: dict[str, SetEstimates]
    ood: dict[str, dict[str, _Estimates]]
    normalized: _Estimates | UnsetType = UNSET
    bounds: dict[str, _Estimates] | UnsetType = UNSET
    convergence: dict[str, list[Number]] | UnsetType = UNSET


# In which further keys are not unknown ones, but estimates.
_KEYED = {"SetEstimates"}


def _summary(command: str, types: Mapping[str, Any], optional: str = "", *, findings: bool = True) -> type:
    head = {"bnuq": str, "schema": Literal[SCHEMA], "command": Literal[command]}  # type: ignore[valid-type]
    ends = {"warnings": list[_Warning], "notes": list[str]} if findings else {}  # type: ignore[valid-type]
    return _struct("Summary", {**head, **types, **ends}, {*optional.split()})


def _evaluate(command: str = "evaluate") -> type:
    check = _struct("ReferenceCheck", {"passed": bool, "layers": list[_Any], "unfit": list[str]}, {"unfit"})
    evaluated = _struct("Set", {"n": int, "sha256": str})
    shared = {"model": _Any, "sampling": _Any, "sets": dict[str, evaluated]}
    decision = _struct("Decision", {"code": str, "values": _Any, "text": str})
    judged = _of(decisions.Verdict, "worth best comparisons", text=list[str])
    about = _of(approximation.Approximation, "uncertainty ratio pll auroc", rank_correlation=dict[str, Number])
    parts = {"methods": dict[str, MethodSummary], "decisions": list[decision], "gated": list[str], "verdict": judged}
    more = {"approximations": dict[str, about], "certificate": _Any}
    more |= {"families": dict[str, list[_Any]], "lead": _Any, "shift_window": int, "shift_loss": float}
    rest = {"reference_check": check | None, "seconds": dict[str, float], "work": _Any, "result": str | None}
    return _summary(command, shared | parts | more | rest, " ".join(more))


def _several() -> type:
    run = _struct("Run", {"split": int, "seed": int, "result": str, "sha256": str}, {"split", "seed"})
    return _summary(
        "evaluate",
        {"kind": Literal["several"], "task": str, "runs": list[run], "test_share": float | None,
         "aggregate": dict[str, _Any], "seconds": dict[str, float], "result": str | None},
    )  # fmt: skip


def _derived(record: Any) -> type:
    """The JSON that `as_json.json_of` makes of a record."""
    content = _printed(record)
    for apart in APART:
        content.pop(apart, None)
    return _summary(record.COMMAND, {"kind": Literal[record.KIND], **content, "result": str | None})  # type: ignore[valid-type]


def _check() -> type:
    side = _struct(
        "Side",
        {"path": str, "checkpoint": str, "sha256": str, "samples": int, "batch_size": int, "seed": int, "time": str},
        {"path", "checkpoint", "sha256", "batch_size", "time"},
    )
    known = "se se_points se_draws p_value p_adjusted tolerance detectable family"
    where = dict.fromkeys(("method", "set", "label", "score", "metric", "address", "group", "class", "test"), str)
    comparison = _of(gate.EstimateComparison, "unit outcome baseline current change", optional=known).__annotations__
    decisive = _struct("Decisive", {"points": dict[str, int], "samples": int}, {"points", "samples"})
    comparison = comparison | {"decisive": decisive}
    comparisons = _struct("Comparison", where | comparison, {*where, *known.split(), "decisive"})
    floors = _of(gate.Floor, "address relation bound value passed", optional="se")
    paired = _struct("Paired", {"points": list[str], "draws": list[str], "why_not": dict[str, str]})
    return _summary(
        "check",
        {"passed": bool, "current": side, "baseline": side | None, "history": list[side], "paired": paired | None,
         "gated": int, "comparisons": list[comparisons], "floors": list[floors], "seconds": float,
         "accepted": str | None, "kept": str | None},
        "history",
    )  # fmt: skip


_RECORDS = {
    "evaluate": evaluation.Result, "score": evaluation.Scored, "several": multirun.Several,
    **{name: study.result_class() for name, study in STUDIES.items() if study.kind},
}  # fmt: skip
_SUMMARIES: dict[str, Callable[[], type]] = {
    "evaluate": _evaluate, "score": partial(_evaluate, "score"), "several": _several, "check": _check,
    **{name: partial(_derived, study.result_class()) for name, study in STUDIES.items() if study.result},
}  # fmt: skip


def names() -> tuple[str, ...]:
    """Every schema by the name of its file, less `.json`: of summaries, and of records in result files."""
    summaries = (f"{name}-v{SCHEMA}" for name in _SUMMARIES)
    return (*summaries, *(f"{name}-record-v{FORMAT}" for name in _RECORDS))


def schema(name: str) -> dict[str, Any]:
    """The schema of this name, see `names`, in the dialect of 2020-12."""
    what, _, _ = name.rpartition("-v")
    command = what.removesuffix("-record")
    kind = _record(_RECORDS[command], True) if what != command else _SUMMARIES[command]()
    (made,), parts = msgspec.json.schema_components([kind], ref_template="#/$defs/{name}")
    of_estimate = {"$ref": "#/$defs/EstimateSummary"}
    for part in _KEYED & parts.keys():
        parts[part]["additionalProperties"] = of_estimate
    of = f"The record of `bnuq {command}` in /record of its file" if what != command else f"`bnuq {command} --json`"
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": f"{ADDRESS}{name}.json", "title": of}
    return head | made | {"$defs": parts}
