"""The record of PLL against the number of draws, beside the published row, and its file.

    /            attributes: format, bnuq, command, and as JSON experiment, published, notes, seconds, provenance
    /points      log_likelihood (draw, point), of every draw; deterministic (point), of the network as it is; group
                 (point), where points belong together
    /curve       by samples: pll_first and pll, each with _se and _mc_se, accuracy, published, replication

The curve follows from the points, but for its accuracies: it is there for readers without bnuq.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float64, Int64

from bnuq.files.hdf5 import image_of
from bnuq.files.writing import write_bytes
from bnuq.metrics import jackknife_error, standard_error
from bnuq.records import Figure
from bnuq.results.file import add_scale, add_variable, check_replaceable
from bnuq.results.reading import numbers, open_result
from bnuq.results.summary import SCHEMA, json_number

__all__ = ["PllOverSamples", "Row", "check_replaceable", "read", "summary", "write"]

FORMAT = 1
COMMAND = "reproduce pll-over-samples"
FEW = 8  # draws of a group, below which its own jackknife says little; groups, below which their spread does

_TEXTS = ("experiment", "published", "notes", "seconds", "provenance")


@dataclass(frozen=True)
class Row:
    """PLL of so many draws, in nats per point; more is better.

    `first` is that of the first draws, as published; `mean` that of each of the `groups` disjoint groups of as many
    draws, averaged; `gain` how far `mean` lies above the network as it is, its `se` over paired points. Monte Carlo
    errors are None where there are too few draws to tell. `published` and `replication` are None where there is none.
    """

    samples: int
    first: Figure
    mean: Figure
    gain: Figure
    groups: int
    accuracy: float
    published: float | None
    replication: float | None

    @property
    def reaches(self) -> bool:
        """Whether `mean` is at least the PLL of the network as it is."""
        return self.gain.value >= 0


@dataclass(frozen=True)
class PllOverSamples:
    """The whole experiment. `experiment` says what was evaluated: model, data, sizes; `accuracies` are those of the
    first draws, by how many, and 0 is the network as it is. `published` holds the row ("samples", "pll",
    "replication"), both baselines, and their sources."""

    experiment: Mapping[str, Any]
    published: Mapping[str, Any]
    log_likelihood: Float64[np.ndarray, "draw point"]
    deterministic: Float64[np.ndarray, " point"]
    accuracies: Mapping[int, float]
    notes: tuple[str, ...]
    seconds: Mapping[str, float]
    provenance: Mapping[str, str]
    group: Int64[np.ndarray, " point"] | None = None
    path: Path | None = None

    @property
    def baseline(self) -> Figure:
        """PLL of the network as it is, with its error over points."""
        return Figure(float(self.deterministic.mean()), se=standard_error(self.deterministic, group=self.group))

    def rows(self) -> tuple[Row, ...]:
        """By ascending number of draws: 1, 2, 4, … and all of them."""
        return tuple(self._row(count) for count in sorted(self.accuracies) if count)

    def break_even(self) -> int | None:
        """The fewest draws, of those in the table, whose PLL reaches that of the network as it is; None where none
        does."""
        return next((row.samples for row in self.rows() if row.reaches), None)

    def _row(self, count: int) -> Row:
        groups = len(self.log_likelihood) // count
        grouped = self.log_likelihood[: groups * count].reshape(groups, count, -1)
        of_groups = np.logaddexp.reduce(grouped, axis=1) - math.log(count)
        spread = _spread(grouped, of_groups)
        places = dict(zip(self.published["samples"], range(len(self.published["samples"])), strict=True))

        def figure(points: Float64[np.ndarray, " point"], mc_se: float | None) -> Figure:
            return Figure(float(points.mean()), se=standard_error(points, group=self.group), mc_se=mc_se)

        mean, its_error = of_groups.mean(0), None if spread is None else spread / math.sqrt(groups)
        return Row(
            samples=count,
            first=figure(of_groups[0], spread),
            mean=figure(mean, its_error),
            gain=figure(mean - self.deterministic, its_error),
            groups=groups,
            accuracy=self.accuracies[count],
            published=self.published["pll"][places[count]] if count in places else None,
            replication=self.published["replication"][places[count]] if count in places else None,
        )


def _spread(
    grouped: Float64[np.ndarray, "group draw point"], of_groups: Float64[np.ndarray, "group point"]
) -> float | None:
    """Monte Carlo standard error of one group's PLL: by the jackknife within groups, by the spread between them where
    they are small; None where there are few of those too."""
    groups, count, _ = grouped.shape
    if count < FEW:
        return float(of_groups.mean(1).std(ddof=1)) if groups >= FEW else None
    squares = []
    for one in grouped:
        without = [np.logaddexp.reduce(np.delete(one, draw, axis=0), axis=0).mean() for draw in range(count)]
        squares.append(float(jackknife_error(np.array(without))) ** 2)
    return math.sqrt(np.mean(squares))


# ── the file ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def write(found: PllOverSamples, path: Path) -> PllOverSamples:
    """Put the record at `path`, whole or not at all, and return it with that path; ResultError where it cannot be."""
    write_bytes(path, image_of(lambda file: _lay_out(file, found)))
    return replace(found, path=path.absolute())


def _lay_out(file: Any, found: PllOverSamples) -> None:
    file.attrs["format"] = FORMAT
    file.attrs["bnuq"] = found.provenance.get("bnuq", "")
    file.attrs["command"] = COMMAND
    for name in _TEXTS:
        value = getattr(found, name)
        file.attrs[name] = json.dumps(dict(value) if isinstance(value, Mapping) else list(value))
    points = file.create_group("points")
    draws, n = found.log_likelihood.shape
    axes = add_scale(points, "draw", np.arange(draws)), add_scale(points, "point", np.arange(n))
    add_variable(points, "log_likelihood", found.log_likelihood, axes, unit="nats")
    add_variable(points, "deterministic", found.deterministic, axes[1:], unit="nats")
    if found.group is not None:
        add_variable(points, "group", found.group, axes[1:], unit="1")
    curve, rows = file.create_group("curve"), found.rows()
    axis = (add_scale(curve, "samples", np.array([0, *(row.samples for row in rows)])),)
    columns = {"accuracy": [found.accuracies[0], *(row.accuracy for row in rows)]}
    for key, figures in (
        ("pll_first", [found.baseline, *(row.first for row in rows)]),
        ("pll", [found.baseline, *(row.mean for row in rows)]),
    ):
        columns |= {key: [one.value for one in figures], f"{key}_se": [one.se for one in figures]}
        columns[f"{key}_mc_se"] = [one.mc_se for one in figures]
    told = found.published
    columns["published"] = [told["baseline"], *(row.published for row in rows)]
    columns["replication"] = [told["replication_baseline"], *(row.replication for row in rows)]
    for key, values in columns.items():
        column = np.array([math.nan if value is None else value for value in values], np.float64)
        add_variable(curve, key, column, axis, unit="1" if key == "accuracy" else "nats")


def read(path: Path) -> PllOverSamples:
    """The record in the file at `path`; ResultError where that is not one, or is damaged, or newer than this."""
    with open_result(path, COMMAND, newest=FORMAT) as file:
        texts: dict[str, Any] = {name: json.loads(file.attrs[name]) for name in _TEXTS}
        texts["notes"] = tuple(map(str, texts["notes"]))
        points, curve = file["points"], file["curve"]
        log_likelihood = numbers(points, "log_likelihood", "f", dimensions=2).astype(np.float64)
        shape = log_likelihood.shape[1:]
        samples = numbers(curve, "samples", "iu")
        accuracy = numbers(curve, "accuracy", "f", shape=samples.shape)
        found = PllOverSamples(
            **texts,
            log_likelihood=log_likelihood,
            deterministic=numbers(points, "deterministic", "f", shape=shape),
            accuracies={int(count): float(value) for count, value in zip(samples, accuracy, strict=True)},
            group=numbers(points, "group", "iu", shape=shape) if "group" in points else None,
            path=path.absolute(),
        )
        _check_complete(found)
    return found


_FACTS = {
    "model", "sha256", "parameters", "batchnorm_layers", "train_batch_size", "batch_size", "samples", "seed", "device",
    "test", "n", "test_points", "train", "reference_points", "train_size", "augment",
}  # fmt: skip


def _check_complete(found: PllOverSamples) -> None:
    """Raise ValueError where something is missing or impossible that a report or a summary tells."""
    draws, n = found.log_likelihood.shape
    if draws < 2 or n < 1 or not {0, 1, draws} <= set(found.accuracies) or max(found.accuracies) > draws:
        raise ValueError("its draws or accuracies are missing")
    if missing := _FACTS - set(found.experiment):
        raise ValueError(f"{min(missing)} of the experiment is missing")
    told = found.published
    if not len(told["samples"]) == len(told["pll"]) == len(told["replication"]):
        raise ValueError("the published row is of different lengths")
    json.dumps(summary(found), allow_nan=False)


# ── the summary ──────────────────────────────────────────────────────────────────────────────────────────────────────


def summary(found: PllOverSamples) -> dict[str, Any]:
    """What `--json` prints: everything but the points themselves."""
    return {
        "bnuq": found.provenance.get("bnuq", ""),
        "schema": SCHEMA,
        "command": COMMAND,
        "experiment": dict(found.experiment),
        "published": dict(found.published),
        "deterministic": {"pll": _told(found.baseline), "accuracy": found.accuracies[0]},
        "rows": [dict(_row_told(row)) for row in found.rows()],
        "break_even": found.break_even(),
        "notes": list(found.notes),
        "seconds": dict(found.seconds),
        "provenance": dict(found.provenance),
        "result": None if found.path is None else str(found.path),
    }


def _row_told(row: Row) -> Iterator[tuple[str, Any]]:
    yield "samples", row.samples
    yield "pll_first", _told(row.first)
    yield "pll", _told(row.mean)
    yield "gain", _told(row.gain)
    yield "groups", row.groups
    yield "accuracy", row.accuracy
    yield "published", row.published
    yield "replication", row.replication


def _told(figure: Figure) -> dict[str, Any]:
    errors = {key: getattr(figure, key) for key in ("se", "mc_se")}
    known = {key: value for key, value in errors.items() if value is not None and not math.isnan(value)}
    return {key: json_number(value) for key, value in {"value": figure.value, **known}.items()}
