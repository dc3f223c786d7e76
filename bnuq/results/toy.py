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
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from jaxtyping import Float64

from bnuq.errors import ResultError
from bnuq.files.hdf5 import open_hdf5
from bnuq.files.writing import write_bytes
from bnuq.records import Figure
from bnuq.results.file import check_replaceable

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
    with h5py.File("toy", "w", driver="core", backing_store=False) as file:
        _lay_out(file, toy)
        file.flush()
        image = file.id.get_file_image()
    write_bytes(path, image)
    return replace(toy, path=path.absolute())


def _lay_out(file: Any, toy: Toy) -> None:
    file.attrs["format"] = FORMAT
    file.attrs["bnuq"] = toy.provenance.get("bnuq", "")
    file.attrs["command"] = COMMAND
    for name in ("experiment", "seconds", "provenance"):
        file.attrs[name] = json.dumps(dict(getattr(toy, name)))
    x = file.create_dataset("x", data=toy.x)
    x.make_scale("x")
    x.attrs["units"] = "1"
    _variable(file, "truth", toy.truth, x)
    train = file.create_group("train")
    train.create_dataset("x", data=toy.train_x).attrs["units"] = "1"
    train.create_dataset("y", data=toy.train_y).attrs["units"] = _UNIT
    for name, curve in toy.curves.items():
        room = file.create_group(f"curves/{name}")
        for key in ("mean", "mc_sd", "sd"):
            _variable(room, key, getattr(curve, key), x)
        for level in BANDS:
            low, high = curve.band(level)
            _variable(room, f"low{level}", low, x)
            _variable(room, f"high{level}", high, x)
        for key in ("method", "batch_size", "dropout_rate", "tau", "tau_at_end", "constant_sigma"):
            if (value := getattr(curve, key)) is not None:
                room.attrs[key] = value
        room.attrs["scores"] = json.dumps(_figures(curve))
        room.attrs["places"] = json.dumps({key: asdict(one) for key, one in curve.places.items()})


def _variable(room: Any, name: str, values: np.ndarray, x: Any) -> None:
    data = room.create_dataset(name, data=values)
    data.dims[0].attach_scale(x)
    data.attrs["units"] = _UNIT


def read(path: Path) -> Toy:
    """The record in the file at `path`; ResultError where that is not one, or is damaged, or newer than this."""
    with open_hdf5(path) as file:
        if file.attrs.get("command") != COMMAND:
            raise ResultError(f"{path} does not hold the toy regression; expected a file of bnuq {COMMAND}.")
        try:
            version = int(np.asarray(file.attrs["format"])[()])
            if version > FORMAT:
                raise ResultError(
                    f"{path} was written in format {version}; this version reads up to format {FORMAT}. "
                    "Please update bnuq."
                )
            return _read(file, path.absolute())
        except (KeyError, ValueError, TypeError, AttributeError, OSError) as error:
            raise ResultError(f"{path} is damaged: {error}. Make it again with bnuq {COMMAND}.") from error


def _read(file: Any, path: Path) -> Toy:
    def array(room: Any, key: str, size: int | None = None) -> Float64[np.ndarray, " entry"]:
        values = np.asarray(room[key][()], dtype=np.float64)
        if values.ndim != 1 or len(values) != (size or len(values)):
            raise ValueError(f"{room.name}/{key} has shape {values.shape}")
        return values

    x = array(file, "x")
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
            mean=array(room, "mean", len(x)),
            mc_sd=array(room, "mc_sd", len(x)),
            sd=array(room, "sd", len(x)),
            scores={
                key: Figure(math.nan if one["value"] is None else one["value"], se=one["se"])
                for key, one in json.loads(attrs["scores"]).items()
            },
            places={key: Place(**one) for key, one in json.loads(attrs["places"]).items()},
        )
    texts = {name: json.loads(file.attrs[name]) for name in ("experiment", "seconds", "provenance")}
    order = texts["experiment"]["curves"]  # HDF5 has them by name
    return Toy(
        x=x,
        truth=array(file, "truth", len(x)),
        train_x=array(file["train"], "x"),
        train_y=array(file["train"], "y"),
        curves={name: curves[name] for name in order},
        path=path,
        **texts,
    )


def summary(toy: Toy) -> dict[str, Any]:
    """What `--json` prints: everything but the curves themselves; null for what has no value."""
    return {
        "command": COMMAND,
        "experiment": dict(toy.experiment),
        "networks": {name: _told(curve) for name, curve in toy.curves.items()},
        "seconds": dict(toy.seconds),
        "provenance": dict(toy.provenance),
        "path": None if toy.path is None else str(toy.path),
    }


def _told(curve: Curve) -> dict[str, Any]:
    return {
        "method": curve.method,
        "batch_size": curve.batch_size,
        "dropout_rate": curve.dropout_rate,
        "tau": _finite(curve.tau),
        "tau_at_end": curve.tau_at_end,
        "constant_sigma": curve.constant_sigma,
        "scores": _figures(curve),
        "places": {key: asdict(one) for key, one in curve.places.items()},
    }


def _figures(curve: Curve) -> dict[str, dict[str, float | None]]:
    return {
        key: {"value": _finite(one.value), "se": None if one.se is None else _finite(one.se)}
        for key, one in curve.scores.items()
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
