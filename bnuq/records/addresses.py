"""The address of an estimate of an evaluation: its path below `methods` in the JSON, such as mcbn.sets.test.pll."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from bnuq.records.evaluation import ERRORS, PARTS, Result
from bnuq.store.table import Row

NORMALIZED = "normalized"
AT_THRESHOLD = "at_threshold"  # in the place of a score: of rates at a threshold that was decided on
_BY = {"label": "by_label", **PARTS}  # below a set, before the name of a label, a class or a group
_BY_SCORE = "by_score"  # the same, of a score: that of errors is no separation of an OOD set
WITHOUT_EXACT = f"{NORMALIZED}_pll_without_exact"  # a metric of regressions that predict some points exactly
_COORDINATES = {  # by the group of a method that estimates stand in: what leads to them there
    "sets": ("set", "metric"),
    "ood": ("set", "score", "metric"),
    "bounds": ("bound", "metric"),
    NORMALIZED: ("metric",),
}


_BY_ADDRESS = "rows by address"  # what is computed of a record


def estimates_of(result: Result) -> Mapping[str, Row]:
    """Every estimate of a result by its address. Groups that an earlier version numbered are #0, #1, …: the same text
    may be the name of another group."""
    if _BY_ADDRESS not in result.computed:
        result.computed[_BY_ADDRESS] = {address_of(_named(row, result)): row for row in result.rows}
    return result.computed[_BY_ADDRESS]


def _named(row: Row, result: Result) -> Mapping[str, str]:
    if not row["group"] or result.sets[row["set"]].group_names:
        return row.coordinates
    return {**row.coordinates, "group": f"#{row['group']}"}


def address_of(coordinates: Mapping[str, str]) -> str:
    """The address of the estimate with these coordinates."""
    return ".".join(path_of(coordinates))


def path_of(coordinates: Mapping[str, str]) -> tuple[str, ...]:
    """The same, part by part."""
    for kind, by in _BY.items():
        if coordinates.get(kind):
            return coordinates["method"], "sets", coordinates["set"], by, coordinates[kind], coordinates["metric"]
    if coordinates.get("score") == AT_THRESHOLD:
        rate = coordinates["metric"].removeprefix("threshold_")
        return coordinates["method"], "sets", coordinates["set"], AT_THRESHOLD, rate
    if coordinates.get("score") and coordinates["metric"] == ERRORS:
        return coordinates["method"], "sets", coordinates["set"], _BY_SCORE, coordinates["score"], ERRORS
    group = (
        "ood"
        if coordinates.get("score")
        else "bounds"
        if coordinates.get("bound")
        else "sets"
        if coordinates.get("set")
        else NORMALIZED
    )
    parts = [coordinates[name] for name in _COORDINATES[group]]
    if group == NORMALIZED:
        parts = [parts[0].removeprefix(f"{NORMALIZED}_")]
    return coordinates["method"], group, *parts


def coordinates_of(address: str) -> dict[str, str]:
    """The coordinates of the estimate at this address; ValueError if it is none."""
    method, _, inside = address.partition(".")
    group, _, coordinates = inside.partition(".")
    for kind, by in (*_BY.items(), ("score", _BY_SCORE)) if group == "sets" else ():
        set_name, separator, rest = coordinates.partition(f".{by}.")
        if separator and "." in rest:
            name, _, metric = rest.rpartition(".")  # which may be any name
            return {"method": method, "set": set_name, kind: name, "metric": metric}
    names = _COORDINATES.get(group, ())
    parts = coordinates.split(".") if "set" not in names else coordinates.rsplit(".", len(names) - 1)  # test+fgsm:0.1
    if not names or len(names) != len(parts):
        raise ValueError(f"{address} is not the address of an estimate")
    if group == NORMALIZED:
        parts = [f"{NORMALIZED}_{parts[0]}"]
    return {"method": method, **dict(zip(names, parts, strict=True))}


def nested(groups: Iterable[tuple[str, ...]], values: Mapping[tuple[str, ...], Any]) -> dict[str, Any]:
    """Values by their paths as nested objects; `groups` are there also if they are empty."""
    methods: dict[str, Any] = {}

    def home(path: Iterable[str]) -> dict[str, Any]:
        group = methods
        for key in path:
            group = group.setdefault(key, {})
        return group

    for group in groups:
        home(group)
    for (*path, last), value in values.items():
        home(path)[last] = value
    return methods
