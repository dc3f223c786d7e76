"""The record of the batch-size experiment: networks by training batch size, what MCBN says of each, and its file.

    /             attributes: format, bnuq, command, and as JSON experiment, published, notes, seconds, provenance
    /networks     by network: schedule, architecture, batch_size (M), steps, epochs, loss, accuracy (both of the
                  training images, in evaluation mode), seconds
    /figures      one row a figure: network, protocol, batch_size (b), metric, score, set, value, se, mc_se
    /slopes       one row a slope of ln MI on ln b: network, set, value, se, mc_se

`score` is what an AUROC ranks by, empty for other metrics. A network that two schedules share is there twice, once for
each. Missing numbers are NaN.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from bnuq.files.hdf5 import image_of
from bnuq.files.writing import write_bytes
from bnuq.metrics import METRICS
from bnuq.records import Figure
from bnuq.results.file import add_scale, add_variable, check_replaceable
from bnuq.results.reading import numbers, open_result
from bnuq.results.summary import SCHEMA, json_number

__all__ = ["BatchSizes", "Network", "Point", "check_replaceable", "read", "summary", "write"]

FORMAT = 1
COMMAND = "reproduce batch-size"
HEADLINE = "mutual_information"  # the paper's figure, and what its OOD separation is ranked by

_TEXTS = ("experiment", "published", "notes", "seconds", "provenance")
_AUROC = "auroc"


@dataclass(frozen=True)
class Point:
    """One network under MCBN with mini-batches of one size b: figures by metric and set, AUROC by score and OOD set."""

    batch_size: int
    figures: Mapping[str, Mapping[str, Figure]]
    auroc: Mapping[str, Mapping[str, Figure]]

    def mutual_information(self, of: str) -> Figure:
        """The mean over a set's points, in nats."""
        return self.figures[HEADLINE][of]


@dataclass(frozen=True)
class Network:
    """A network trained with mini-batches of `batch_size` = M, `steps` of them, `epochs` passes over the images.

    `loss` is its mean cross-entropy on them in evaluation mode, in nats, `accuracy` in [0, 1], `seconds` what training
    took. `matched` is MCBN with b = M; `single` the same network with other b, where it was swept over them, and
    `slopes` that of ln MI on ln b by set (−1 where MI falls as 1/b).
    """

    schedule: str
    architecture: str
    batch_size: int
    steps: int
    epochs: float
    loss: float
    accuracy: float
    seconds: float
    matched: Point
    single: tuple[Point, ...] = ()
    slopes: Mapping[str, Figure] = field(default_factory=dict)


@dataclass(frozen=True)
class BatchSizes:
    """The whole experiment. `experiment` says how it was made; `published` holds the paper's accuracies by
    architecture ("accuracy"), what its Figure 1 can be read for, and its source."""

    experiment: Mapping[str, Any]
    published: Mapping[str, Any]
    networks: tuple[Network, ...]
    notes: tuple[str, ...]
    seconds: Mapping[str, float]
    provenance: Mapping[str, str]
    path: Path | None = None

    @property
    def ood(self) -> str:
        """The name of the set out of distribution."""
        return self.experiment["ood"]

    def series(self) -> dict[tuple[str, str], tuple[Network, ...]]:
        """The networks of each schedule and architecture, by ascending M."""
        found: dict[tuple[str, str], list[Network]] = {}
        for network in self.networks:
            found.setdefault((network.schedule, network.architecture), []).append(network)
        return {key: tuple(sorted(some, key=lambda one: one.batch_size)) for key, some in found.items()}


# ── the file ─────────────────────────────────────────────────────────────────────────────────────────────────────────

_COLUMNS = {"batch_size": "1", "steps": "1", "epochs": "1", "loss": "nats", "accuracy": "1", "seconds": "s"}
_ERRORS = ("value", "se", "mc_se")


def write(found: BatchSizes, path: Path) -> BatchSizes:
    """Put the record at `path`, whole or not at all, and return it with that path; ResultError where it cannot be."""
    write_bytes(path, image_of(lambda file: _lay_out(file, found)))
    return replace(found, path=path.absolute())


def _lay_out(file: Any, found: BatchSizes) -> None:
    file.attrs["format"] = FORMAT
    file.attrs["bnuq"] = found.provenance.get("bnuq", "")
    file.attrs["command"] = COMMAND
    for name in _TEXTS:
        value = getattr(found, name)
        file.attrs[name] = json.dumps(dict(value) if isinstance(value, Mapping) else list(value))
    room = file.create_group("networks")
    axis = (add_scale(room, "network", np.arange(len(found.networks))),)
    for key in ("schedule", "architecture"):
        add_variable(room, key, [getattr(one, key) for one in found.networks], axis)
    for key, unit in _COLUMNS.items():
        add_variable(room, key, np.array([getattr(one, key) for one in found.networks]), axis, unit=unit)
    rows = [row for number, one in enumerate(found.networks) for row in _rows(number, one)]
    keys = ("network", "protocol", "batch_size", "metric", "score", "set")
    _lay_out_rows(file.create_group("figures"), keys, rows)
    slopes = [
        ((number, *slope[:1]), slope[1]) for number, one in enumerate(found.networks) for slope in one.slopes.items()
    ]
    if slopes:
        _lay_out_rows(file.create_group("slopes"), ("network", "set"), slopes)


Address = tuple[int, str, int, str, str, str]  # network, protocol, b, metric, score, set


def _rows(number: int, network: Network) -> Iterator[tuple[Address, Figure]]:
    points = [("matched", network.matched), *(("single", point) for point in network.single)]
    for protocol, point in points:
        for metric, sets in point.figures.items():
            for name, figure in sets.items():
                yield (number, protocol, point.batch_size, metric, "", name), figure
        for score, sets in point.auroc.items():
            for name, figure in sets.items():
                yield (number, protocol, point.batch_size, _AUROC, score, name), figure


def _lay_out_rows(room: Any, keys: Sequence[str], rows: Sequence[tuple[tuple[Any, ...], Figure]]) -> None:
    axis = (add_scale(room, "row", np.arange(len(rows))),)
    for place, key in enumerate(keys):
        values = [address[place] for address, _ in rows]
        if isinstance(values[0], str):
            add_variable(room, key, values, axis)
        else:
            add_variable(room, key, np.array(values), axis, unit="1")
    metrics = [address[keys.index("metric")] if "metric" in keys else "" for address, _ in rows]
    add_variable(room, "unit", [METRICS[name].unit if name in METRICS else "1" for name in metrics], axis)
    for key in _ERRORS:
        values = [getattr(figure, key) for _, figure in rows]
        column = np.array([math.nan if value is None else value for value in values], np.float64)
        add_variable(room, key, column, axis, unit="that of the row")


def read(path: Path) -> BatchSizes:
    """The record in the file at `path`; ResultError where that is not one, or is damaged, or newer than this."""
    with open_result(path, COMMAND, newest=FORMAT) as file:
        texts: dict[str, Any] = {name: json.loads(file.attrs[name]) for name in _TEXTS}
        texts["notes"] = tuple(map(str, texts["notes"]))
        found = BatchSizes(
            **texts,
            networks=tuple(_read_networks(file)),
            path=path.absolute(),
        )
        _check_complete(found)
    return found


def _read_networks(file: Any) -> Iterator[Network]:
    room = file["networks"]
    names = {key: room[key].asstr()[()] for key in ("schedule", "architecture")}
    count = names["schedule"].shape
    columns = {key: numbers(room, key, "iuf", shape=count) for key in _COLUMNS}
    points: dict[int, dict[tuple[str, int], Point]] = {number: {} for number in range(*count)}
    for (number, protocol, size, metric, score, name), figure in _read_rows(file["figures"]):
        point = points[number].setdefault((protocol, size), Point(size, {}, {}))
        home, key = (point.auroc, score) if metric == _AUROC else (point.figures, metric)
        home.setdefault(key, {})[name] = figure  # pyright: ignore[reportAttributeAccessIssue] - a dict while it is read
    slopes: dict[int, dict[str, Figure]] = {}
    if "slopes" in file:
        for (number, name), figure in _read_rows(file["slopes"]):
            slopes.setdefault(number, {})[name] = figure
    for number in range(*count):
        whole = ("batch_size", "steps")
        facts: dict[str, Any] = {key: str(texts[number]) for key, texts in names.items()}
        facts |= {key: (int if key in whole else float)(values[number]) for key, values in columns.items()}
        yield Network(
            **facts,
            matched=next(point for (protocol, _), point in points[number].items() if protocol == "matched"),
            single=tuple(point for (protocol, _), point in points[number].items() if protocol == "single"),
            slopes=slopes.get(number, {}),
        )


def _read_rows(room: Any) -> Iterator[tuple[tuple[Any, ...], Figure]]:
    """What `_lay_out_rows` laid out, row by row."""
    keys = ("network", "protocol", "batch_size", "metric", "score", "set") if "metric" in room else ("network", "set")
    shape = numbers(room, "value", "f").shape
    columns = [
        numbers(room, key, "iu", shape=shape).tolist()
        if key in ("network", "batch_size")
        else room[key].asstr()[()].tolist()
        for key in keys
    ]
    errors = {key: numbers(room, key, "f", shape=shape) for key in _ERRORS}
    for row, address in enumerate(zip(*columns, strict=True)):
        se, mc_se = (None if math.isnan(one) else one for one in (float(errors[key][row]) for key in _ERRORS[1:]))
        yield tuple(address), Figure(float(errors["value"][row]), se=se, mc_se=mc_se)


_FACTS = {
    "images", "image_size", "test", "ood", "points", "samples", "draw_sets", "seed", "device", "recipe", "epochs",
    "augment", "architectures",
}  # fmt: skip


def _check_complete(found: BatchSizes) -> None:
    """Raise ValueError where something is missing that a report, a picture or a summary tells."""
    if missing := _FACTS - set(found.experiment):
        raise ValueError(f"{min(missing)} of the experiment is missing")
    if not found.networks or not {"accuracy", "source"} <= set(found.published):
        raise ValueError("its networks or what was published are missing")
    if not {"training", "evaluation"} <= set(found.seconds):
        raise ValueError("its seconds are missing")
    for network in found.networks:
        if network.batch_size < 1 or not 0 <= network.accuracy <= 1:
            raise ValueError("a network's batch size or accuracy is impossible")
        for point in (network.matched, *network.single):
            if not {"test", found.ood} <= set(point.figures.get(HEADLINE, ())):
                raise ValueError(f"mutual information at batch size {point.batch_size} is missing")
            if found.ood not in point.auroc.get(HEADLINE, ()):
                raise ValueError(f"AUROC at batch size {point.batch_size} is missing")
            if not all("test" in point.figures.get(metric, ()) for metric in ("accuracy", "pll")):
                raise ValueError(f"accuracy or PLL at batch size {point.batch_size} is missing")
    json.dumps(summary(found), allow_nan=False)


# ── the summary ──────────────────────────────────────────────────────────────────────────────────────────────────────


def summary(found: BatchSizes) -> dict[str, Any]:
    """The record as JSON values; infinities and NaN are the strings "inf", "-inf" and "nan"."""
    return {
        "bnuq": found.provenance.get("bnuq", ""),
        "schema": SCHEMA,
        "command": COMMAND,
        "experiment": dict(found.experiment),
        "published": dict(found.published),
        "networks": [_network_told(network) for network in found.networks],
        "notes": list(found.notes),
        "seconds": dict(found.seconds),
        "provenance": dict(found.provenance),
        "result": None if found.path is None else str(found.path),
    }


def _network_told(network: Network) -> dict[str, Any]:
    return {
        "schedule": network.schedule,
        "architecture": network.architecture,
        "train_batch_size": network.batch_size,
        "steps": network.steps,
        "epochs": network.epochs,
        "training": {"loss": json_number(network.loss), "accuracy": network.accuracy, "seconds": network.seconds},
        "matched": _point_told(network.matched),
        "single": [_point_told(point) for point in network.single],
        "slopes": {name: _told(figure) for name, figure in network.slopes.items()},
    }


def _point_told(point: Point) -> dict[str, Any]:
    metrics = {metric: {name: _told(one) for name, one in sets.items()} for metric, sets in point.figures.items()}
    auroc = {score: {name: _told(one) for name, one in sets.items()} for score, sets in point.auroc.items()}
    return {"batch_size": point.batch_size, **metrics, _AUROC: auroc}


def _told(figure: Figure) -> dict[str, Any]:
    errors = {key: getattr(figure, key) for key in ("se", "mc_se")}
    known = {key: value for key, value in errors.items() if value is not None and not math.isnan(value)}
    return {key: json_number(value) for key, value in {"value": figure.value, **known}.items()}
