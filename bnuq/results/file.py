"""The result file: one HDF5 file a run, laid out so that h5py, xarray and ArviZ read it without bnuq.

    /                                attributes: format, bnuq, command, and as JSON run, model, sampling, sets, seconds,
                                     warnings, notes, provenance
    /sets/SET                        label(point), group(point)
    /methods/METHOD/SET              one variable a per-point score (point)
    /methods/METHOD/convergence      pll, accuracy, mutual_information (samples)
    /methods/METHOD/calibration      count, confidence, accuracy (bin)
    /methods/METHOD/risk_coverage    risk (coverage)
    /figures                         one row a figure: method, set, score, metric, value, se, mc_se, low, high,
                                     jackknife(figure, draw), bootstrap(figure, resample)
    /reference_check                 mean, log_variance, expected (layer)
    /statistics/layerNNN             the bank ω: mean(draw, channel), var(draw, channel), count(draw)
    /log_likelihood                  METHOD_SET (chain, draw, SET_point)
    /observed_data                   SET (SET_point)
    /posterior_predictive            METHOD_SET (chain, draw, SET_point, class), raw outputs, only where kept

Missing numbers are NaN. Texts are UTF-8. A reader must refuse a `format` above its own.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from bnuq.errors import ResultError
from bnuq.files.hdf5 import open_hdf5
from bnuq.files.writing import replaced, write_bytes
from bnuq.records import Caution, Figure
from bnuq.results.result import EvaluatedSet, MethodResult, ReferenceCheck, Result, SetResult

FORMAT = 1

_TEXTS = ("run", "model", "sampling", "sets", "seconds", "warnings", "notes", "provenance")
_NUMBERS = ("value", "se", "mc_se", "low", "high")


def write(result: Result, path: Path) -> None:
    """Write `result` to `path`, whole or not at all; ResultError where that cannot be done.

    Built in memory and written as bytes, so that a full disk never reaches the HDF5 library. Only where raw samples
    were kept, which may not fit in memory, it is built on disk, after the room for it was found to be there.
    """
    kept = sum(8 * int(np.prod(s.samples.shape)) for m in result.methods.values() for s in m.sets.values() if s.samples)
    if kept == 0:
        with h5py.File("result", "w", driver="core", backing_store=False) as file:
            _lay_out(file, result)
            file.flush()
            image = file.id.get_file_image()
        write_bytes(path, image)
        return
    with replaced(path) as beside:
        _reserve(beside, kept)
        with h5py.File(beside, "w") as file:
            _lay_out(file, result)


def _reserve(file: Any, size: int) -> None:
    """Raise the system's error now if the disk has no room: HDF5 does not survive to find out itself."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file.fileno(), 0, size)
        file.truncate(0)


def _lay_out(file: Any, result: Result) -> None:
    file.attrs["format"] = FORMAT
    file.attrs["bnuq"] = str(result.provenance["bnuq"])
    file.attrs["command"] = "evaluate"
    texts = {
        "run": result.run,
        "model": result.model,
        "sampling": result.sampling,
        "sets": {n: {k: v for k, v in vars(s).items() if k not in ("labels", "group")} for n, s in result.sets.items()},
        "seconds": result.seconds,
        "warnings": [asdict(caution) for caution in result.cautions],
        "notes": result.notes,
        "provenance": result.provenance,
    }
    for name, value in texts.items():
        file.attrs[name] = json.dumps(value, ensure_ascii=False)
    for name, one in result.sets.items():
        room = file.create_group(f"sets/{name}")
        point = _scale(room, "point", np.arange(one.n))
        for key, values in (("label", one.labels), ("group", one.group)):
            if values is not None:
                _variable(room, key, values, (point,))
    for name, method in result.methods.items():
        _lay_out_method(file.create_group(f"methods/{name}"), method)
    _lay_out_figures(file.create_group("figures"), result)
    if result.reference_check is not None:
        check = result.reference_check
        room = file.create_group("reference_check")
        room.attrs["passed"] = check.passed
        layer = _scale(room, "layer", list(check.layers))
        for key in ("mean", "log_variance", "expected"):
            _variable(room, key, getattr(check, key), (layer,), unit="standard deviations of batch noise")
    if result.bank is not None:
        result.bank.write_to(file.create_group("statistics"))
    _lay_out_for_arviz(file, result)


def _lay_out_method(room: Any, method: MethodResult) -> None:
    for name, one in method.sets.items():
        group = room.create_group(name)
        point = _scale(group, "point", np.arange(len(one.predicted)))
        _variable(group, "predicted", one.predicted, (point,))
        for key, values in one.points.items():
            _variable(group, key, values, (point,), unit=_UNITS.get(key, ""))
    for name, axis, values in (
        ("convergence", "samples", method.convergence),
        ("calibration", "bin", method.calibration),
        ("risk_coverage", "coverage", method.risk),
    ):
        if not values:
            continue
        group = room.create_group(name)
        scale = _scale(group, axis, values[axis])
        for key, value in values.items():
            if key != axis:
                _variable(group, key, value, (scale,), unit=_UNITS.get(key, ""))


_UNITS: dict[str, str] = {
    **dict.fromkeys(("pll", "mutual_information", "predictive_entropy", "expected_entropy"), "nats"),
    **dict.fromkeys(("accuracy", "max_probability", "least_confidence", "variation_ratio", "risk", "confidence"), "1"),
}


def _rows(result: Result) -> Iterable[tuple[tuple[str, str, str, str], Figure]]:
    """Every figure with its address: method, set, score ("" for a set's own metrics), metric."""
    for method, found in result.methods.items():
        for name, one in found.sets.items():
            for metric, figure in one.figures.items():
                yield (method, name, "", metric), figure
        for name, scores in found.ood.items():
            for score, figures in scores.items():
                for metric, figure in figures.items():
                    yield (method, name, score, metric), figure


def _lay_out_figures(room: Any, result: Result) -> None:
    rows = list(_rows(result))
    figure = _scale(room, "figure", np.arange(len(rows)))
    for place, key in enumerate(("method", "set", "score", "metric")):
        _variable(room, key, [address[place] for address, _ in rows], (figure,))
    for key in _NUMBERS:
        values = [getattr(f, key) for _, f in rows]
        _variable(room, key, np.array([np.nan if v is None else v for v in values], dtype=np.float64), (figure,))
    for key, axis in (("jackknife", "draw"), ("bootstrap", "resample")):
        values = [getattr(f, key) for _, f in rows]
        width = max((len(v) for v in values if v is not None), default=0)
        if width:
            table = np.full((len(rows), width), np.nan)
            for row, value in zip(table, values, strict=True):
                if value is not None:
                    row[: len(value)] = value
            _variable(room, key, table, (figure, _scale(room, axis, np.arange(width))))


def _lay_out_for_arviz(file: Any, result: Result) -> None:
    sampled = {name: method for name, method in result.methods.items() if name != "deterministic"}
    rooms: dict[str, Any] = {}
    scales: dict[str, dict[str, Any]] = {}

    def room(name: str, set_name: str, samples: int | None = None, classes: int | None = None) -> Any:
        if name not in rooms:
            rooms[name], scales[name] = file.create_group(name), {}
        known = scales[name]
        wanted = {f"{set_name}_point": result.sets[set_name].n}
        if samples is not None:
            wanted |= {"chain": 1, "draw": samples}
        if classes is not None:
            wanted |= {"class": classes}
        for axis, length in wanted.items():
            if axis not in known:
                known[axis] = _scale(rooms[name], axis, np.arange(length))
        return rooms[name]

    for name, one in result.sets.items():
        if one.labels is not None and one.kind == "test":
            group = room("observed_data", name)
            _variable(group, name, one.labels, (scales["observed_data"][f"{name}_point"],))
    for method, found in sampled.items():
        for name, one in found.sets.items():
            if one.log_likelihood is not None:
                group = room("log_likelihood", name, samples=len(one.log_likelihood))
                axes = tuple(scales["log_likelihood"][axis] for axis in ("chain", "draw", f"{name}_point"))
                _variable(group, f"{method}_{name}", one.log_likelihood[None], axes, unit="nats")
            if one.samples is not None:
                samples, points, classes = one.samples.shape
                group = room("posterior_predictive", name, samples=samples, classes=classes)
                kept = group.create_dataset(
                    f"{method}_{name}",
                    shape=(1, samples, points, classes),
                    dtype=np.float32,
                    chunks=(1, samples, min(points, 64), classes),
                    **_PACKED,
                )
                for start, block in one.samples.blocks():
                    kept[0, :, start : start + block.shape[1]] = block
                for axis, label in enumerate(("chain", "draw", f"{name}_point", "class")):
                    kept.dims[axis].attach_scale(scales["posterior_predictive"][label])


_PACKED: dict[str, Any] = {"compression": "gzip", "compression_opts": 1, "shuffle": True}


def _scale(room: Any, name: str, values: Any) -> Any:
    data = room.create_dataset(name, data=values)
    data.make_scale(name)
    return data


def _variable(room: Any, name: str, values: Any, axes: tuple[Any, ...], *, unit: str = "") -> None:
    packed = _PACKED if isinstance(values, np.ndarray) and values.size > 1024 else {}
    data = room.create_dataset(name, data=values, **packed)
    for axis, scale in enumerate(axes):
        data.dims[axis].attach_scale(scale)
    if unit:
        data.attrs["units"] = unit


def read(path: Path) -> Result:
    """The result in the file at `path`, without its bank and raw samples; ResultError where that is not one."""
    with open_hdf5(path) as file:
        version = file.attrs.get("format")
        if version is None or "run" not in file.attrs:
            raise ResultError(f"{path} is not a result file of bnuq; expected one written by bnuq evaluate.")
        if int(version) > FORMAT:
            raise ResultError(
                f"{path} was written by bnuq {file.attrs.get('bnuq', '?')} in format {int(version)}; this version "
                f"reads up to format {FORMAT}. Please update bnuq."
            )
        try:
            return _read(file, path)
        except (KeyError, ValueError, TypeError, OSError, IndexError, AttributeError) as error:
            raise ResultError(f"{path}: the result file is incomplete or damaged ({error}).") from error


def _read(file: Any, path: Path) -> Result:
    texts = {name: json.loads(file.attrs[name]) for name in _TEXTS}
    sets = {}
    for name, facts in texts["sets"].items():
        room = file["sets"][name]
        facts["classes"] = tuple(facts["classes"])
        arrays = {key: room[key][()] if key in room else None for key in ("label", "group")}
        sets[name] = EvaluatedSet(**facts, labels=arrays["label"], group=arrays["group"])
    figures = _read_figures(file["figures"])
    order = list(dict.fromkeys(address[0] for address, _ in figures))
    methods = {name: _read_method(file, name, figures) for name in order}
    check = None
    if "reference_check" in file:
        room = file["reference_check"]
        check = ReferenceCheck(
            layers=tuple(room["layer"].asstr()[()]),
            mean=room["mean"][()],
            log_variance=room["log_variance"][()],
            expected=room["expected"][()],
            passed=bool(room.attrs["passed"]),
        )
    return Result(
        run=texts["run"],
        model=texts["model"],
        sampling=texts["sampling"],
        sets=sets,
        methods=methods,
        cautions=tuple(Caution(**caution) for caution in texts["warnings"]),
        notes=tuple(texts["notes"]),
        seconds=texts["seconds"],
        provenance=texts["provenance"],
        reference_check=check,
        path=path,
    )


def _read_figures(room: Any) -> list[tuple[tuple[str, str, str, str], Figure]]:
    texts = [room[key].asstr()[()] for key in ("method", "set", "score", "metric")]
    numbers = {key: room[key][()] for key in _NUMBERS}
    replicates = {key: room[key][()] if key in room else None for key in ("jackknife", "bootstrap")}
    found = []
    for row, address in enumerate(zip(*texts, strict=True)):
        errors = {key: float(numbers[key][row]) for key in _NUMBERS[1:]}
        given: dict[str, Any] = {key: None if np.isnan(value) else value for key, value in errors.items()}
        arrays = {k: None if v is None or np.isnan(v[row]).all() else v[row] for k, v in replicates.items()}
        found.append((address, Figure(float(numbers["value"][row]), **given, **arrays)))
    return found


def _read_method(file: Any, name: str, figures: list[tuple[tuple[str, str, str, str], Figure]]) -> MethodResult:
    room = file["methods"][name]
    sets: dict[str, SetResult] = {}
    ood: dict[str, dict[str, dict[str, Figure]]] = {}
    for (method, set_name, score, metric), figure in figures:
        if method != name:
            continue
        if score:
            ood.setdefault(set_name, {}).setdefault(score, {})[metric] = figure
        elif set_name not in sets:
            sets[set_name] = SetResult(figures={}, points={}, predicted=np.empty(0, dtype=np.int64))
    for set_name in sets:
        mine = {m: f for (method, s, score, m), f in figures if (method, s, score) == (name, set_name, "")}
        group = room[set_name]
        likelihoods = file.get("log_likelihood", {})
        likelihood = likelihoods.get(f"{name}_{set_name}")
        sets[set_name] = SetResult(
            figures=mine,
            points={key: group[key][()] for key in group if key not in ("point", "predicted")},
            predicted=group["predicted"][()],
            log_likelihood=None if likelihood is None else likelihood[0],
        )
    curves = {
        curve: {key: room[curve][key][()] for key in room[curve]} if curve in room else {}
        for curve in ("convergence", "calibration", "risk_coverage")
    }
    return MethodResult(sets, ood, curves["convergence"], curves["calibration"], curves["risk_coverage"])
