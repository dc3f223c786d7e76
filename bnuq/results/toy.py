"""The record of the toy regression: its data, each network's curve and bands, what they are worth, and its file.

    /              attributes: format, bnuq, command, and as JSON experiment, seconds, provenance
                   x, truth (x): where the curves are taken, and the curve that the data were made from
    /train         x, y (point)
    /curves/NAME   mean, mc_sd, sd, low50, high50, low95, high95 (x); attributes: method, batch_size or dropout_rate,
                   tau, tau_at_end, constant_sigma, and as JSON scores and places

Bands are those of N(mean, sd²), where sd² is the variance over the samples plus 1/τ; mc_sd is that without 1/τ.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float64

from bnuq.files.hdf5 import image_of
from bnuq.files.writing import write_bytes
from bnuq.records import Figure
from bnuq.results.file import add_scale, add_variable, check_replaceable
from bnuq.results.reading import numbers, open_result
from bnuq.results.summary import SCHEMA, json_number

__all__ = ["Curve", "Place", "Toy", "check_replaceable", "read", "summary", "write"]

FORMAT = 1
COMMAND = "reproduce toy"
BANDS = {"50": 0.6744897501960817, "95": 1.959963984540054}  # per cent, and half their width in sd

_UNIT = "target unit"


@dataclass(frozen=True)
class Place:
    """What a network says in one place, both in target units, ≥ 0, root mean squares over the curve there.

    `mc_sd` is the spread of its samples, `error` how far their mean lies from the curve that the data were made from.
    """

    mc_sd: float
    error: float


@dataclass(frozen=True)
class Curve:
    """One network's predictions along x, in target units, and its scores on test points among the data.

    `mc_sd` is the standard deviation over samples, `sd` with observation noise: √(mc_sd² + 1/τ). `batch_size` is of
    mcbn, `dropout_rate` of mcdo, None for the other. `scores` carry standard errors over the test points.
    """

    name: str
    method: str
    batch_size: int | None
    dropout_rate: float | None
    tau: float
    tau_at_end: str
    constant_sigma: float
    mean: Float64[np.ndarray, " x"]
    mc_sd: Float64[np.ndarray, " x"]
    sd: Float64[np.ndarray, " x"]
    scores: Mapping[str, Figure]
    places: Mapping[str, Place]

    def band(self, level: str) -> tuple[Float64[np.ndarray, " x"], Float64[np.ndarray, " x"]]:
        """The lower and the upper end of the band of "50" or "95" per cent, in target units."""
        half = BANDS[level] * self.sd
        return self.mean - half, self.mean + half


@dataclass(frozen=True)
class Toy:
    """The whole experiment. `experiment` says how it was made: seed, sizes, formula, what training did.

    `x` are the places of the curves, `truth` the curve without noise there; `train_x` and `train_y` the training set.
    """

    experiment: Mapping[str, Any]
    x: Float64[np.ndarray, " x"]
    truth: Float64[np.ndarray, " x"]
    train_x: Float64[np.ndarray, " point"]
    train_y: Float64[np.ndarray, " point"]
    curves: Mapping[str, Curve]
    seconds: Mapping[str, float]
    provenance: Mapping[str, str]
    path: Path | None = None


def write(toy: Toy, path: Path) -> Toy:
    """Put the record at `path`, whole or not at all, and return it with that path; ResultError where it cannot be."""
    write_bytes(path, image_of(lambda file: _lay_out(file, toy)))
    return replace(toy, path=path.absolute())


def _lay_out(file: Any, toy: Toy) -> None:
    file.attrs["format"] = FORMAT
    file.attrs["bnuq"] = toy.provenance.get("bnuq", "")
    file.attrs["command"] = COMMAND
    for name in ("experiment", "seconds", "provenance"):
        file.attrs[name] = json.dumps(dict(getattr(toy, name)))
    x = add_scale(file, "x", toy.x)
    add_variable(file, "truth", toy.truth, (x,), unit=_UNIT)
    train = file.create_group("train")
    train.create_dataset("x", data=toy.train_x).attrs["units"] = "1"
    train.create_dataset("y", data=toy.train_y).attrs["units"] = _UNIT
    for name, curve in toy.curves.items():
        room = file.create_group(f"curves/{name}")
        for key in ("mean", "mc_sd", "sd"):
            add_variable(room, key, getattr(curve, key), (x,), unit=_UNIT)
        for level in BANDS:
            low, high = curve.band(level)
            add_variable(room, f"low{level}", low, (x,), unit=_UNIT)
            add_variable(room, f"high{level}", high, (x,), unit=_UNIT)
        for key in ("method", "batch_size", "dropout_rate", "tau", "tau_at_end", "constant_sigma"):
            if (value := getattr(curve, key)) is not None:
                room.attrs[key] = value
        room.attrs["scores"] = json.dumps(_figures(curve))
        room.attrs["places"] = json.dumps({key: asdict(one) for key, one in curve.places.items()})


def read(path: Path) -> Toy:
    """The record in the file at `path`; ResultError where that is not one, or is damaged, or newer than this."""
    with open_result(path, "reproduce toy", newest=FORMAT) as file:
        return _read(file, path.absolute())


def _read(file: Any, path: Path) -> Toy:
    x = numbers(file, "x", "f")
    curves = {}
    for name, room in file["curves"].items():
        attrs = room.attrs
        curves[name] = Curve(
            name=name,
            method=str(attrs["method"]),
            batch_size=int(attrs["batch_size"]) if "batch_size" in attrs else None,
            dropout_rate=float(attrs["dropout_rate"]) if "dropout_rate" in attrs else None,
            tau=float(attrs["tau"]),
            tau_at_end=str(attrs["tau_at_end"]),
            constant_sigma=float(attrs["constant_sigma"]),
            mean=numbers(room, "mean", "f", shape=x.shape),
            mc_sd=numbers(room, "mc_sd", "f", shape=x.shape),
            sd=numbers(room, "sd", "f", shape=x.shape),
            scores={
                key: Figure(float(one["value"]), se=None if one["se"] is None else float(one["se"]))
                for key, one in json.loads(attrs["scores"]).items()
            },
            places={key: _place(one) for key, one in json.loads(attrs["places"]).items()},
        )
    texts = {name: json.loads(file.attrs[name]) for name in ("experiment", "seconds", "provenance")}
    order = texts["experiment"]["curves"]  # HDF5 has them by name
    return Toy(
        x=x,
        truth=numbers(file, "truth", "f", shape=x.shape),
        train_x=numbers(file["train"], "x", "f"),
        train_y=numbers(file["train"], "y", "f"),
        curves={name: curves[name] for name in order},
        path=path,
        **texts,
    )


def _place(told: dict[str, Any]) -> Place:
    return Place(**{key: float(value) for key, value in told.items()})


def summary(toy: Toy) -> dict[str, Any]:
    """What `--json` prints: everything but the curves themselves."""
    return {
        "bnuq": toy.provenance.get("bnuq", ""),
        "schema": SCHEMA,
        "command": COMMAND,
        "experiment": dict(toy.experiment),
        "networks": {name: _told(curve) for name, curve in toy.curves.items()},
        "seconds": dict(toy.seconds),
        "provenance": dict(toy.provenance),
        "result": None if toy.path is None else str(toy.path),
    }


def _told(curve: Curve) -> dict[str, Any]:
    return {
        "method": curve.method,
        "batch_size": curve.batch_size,
        "dropout_rate": curve.dropout_rate,
        "tau": json_number(curve.tau),
        "tau_at_end": curve.tau_at_end,
        "constant_sigma": json_number(curve.constant_sigma),
        "scores": _figures(curve),
        "places": {
            key: {name: json_number(value) for name, value in asdict(one).items()} for key, one in curve.places.items()
        },
    }


def _figures(curve: Curve) -> dict[str, dict[str, float | str | None]]:
    return {
        key: {"value": json_number(one.value), "se": None if one.se is None else json_number(one.se)}
        for key, one in curve.scores.items()
    }
