"""The result file: one HDF5 file a run, laid out so that h5py, xarray and ArviZ read it without bnuq.

    /                                attributes: format, bnuq, command, and as JSON run, model, sampling, sets, seconds,
                                     work, warnings, notes, provenance
    /sets/SET                        label(point), or target(point, output); group(point)
    /methods/METHOD/SET              one variable a per-point score (point); predicted(point), or of a regression
                                     predicted and sigma (point, output)
    /methods/METHOD/convergence      pll, accuracy, mutual_information (samples)
    /methods/METHOD/calibration      count, confidence, accuracy (bin); of a regression coverage (level)
    /methods/METHOD/risk_coverage    risk (coverage)
    /methods/METHOD/uncertainty_error  sigma, error, running_error (rank), of a regression
    /figures                         one row a figure: method, set, score, metric, unit, value, se, mc_se, low, high,
                                     (those of the set "bounds/constant", "bounds/optimum" and "normalized" are of the
                                     test set)
                                     jackknife(figure, draw), bootstrap(figure, resample); with a bank of which points
                                     use their own draws, `draw` is one of the bank in the rows of MCBN
    /reference_check                 mean, log_variance, expected (layer)
    /statistics/layerNNN             the bank ω: mean(draw, channel), var(draw, channel), count(draw)
    /log_likelihood                  METHOD_SET (chain, draw, SET_point)
    /observed_data                   SET (SET_point)
    /posterior_predictive            METHOD_SET (chain, draw, SET_point, class), raw outputs, only where kept; of a
                                     regression (…, output), in target units

In /log_likelihood and /posterior_predictive `draw` is the position among a point's own draws. Missing numbers are NaN,
and every data set of numbers has units. Texts are UTF-8. A reader must refuse a `format` above its own.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Literal

import msgspec
import numpy as np

from bnuq.errors import ResultError
from bnuq.files.content import kind_of
from bnuq.files.hdf5 import image_of, open_hdf5
from bnuq.files.writing import check_writable, replaced
from bnuq.metrics import METRICS, SCORES
from bnuq.records import Caution, Estimator, Figure
from bnuq.results.reading import numbers, open_result
from bnuq.results.result import EvaluatedSet, MethodResult, ReferenceCheck, Result, Samples, SetResult, Work
from bnuq.run import DETERMINISTIC, ONE_PASS, ScoringSection, Task

FORMAT = 1
Address = tuple[str, str, str, str]  # of a figure: method, set, score ("" for a set's own metrics), metric

_TEXTS = ("run", "model", "sampling", "sets", "seconds", "work", "warnings", "notes", "provenance")
_NUMBERS = ("value", "se", "mc_se", "low", "high")


def write(result: Result, path: Path) -> None:
    """Write `result` to `path`, whole or not at all; ResultError where that cannot be done.

    Built in memory and written as bytes, so that a full disk never reaches the HDF5 library. Only raw samples, which
    may not fit in memory, are added on disk, after the room for them was taken.
    """
    check_replaceable(path)
    image = image_of(lambda file: _lay_out(file, result))
    kept = [one.samples for method in result.methods.values() for one in method.sets.values() if one.samples]
    with replaced(path) as beside:
        beside.write(image)
        if kept:
            beside.flush()
            _reserve(beside, len(image) + sum(map(_most_bytes, kept)))
            import h5py  # late: whoever only reads does not need it

            with h5py.File(beside.name, "r+", locking=False) as file:
                _add_samples(file, result)


def check_replaceable(path: Path) -> None:
    """Raise ResultError where a result cannot be put at `path`, or would replace a file that is not one."""
    kind = kind_of(path)
    if kind in ("folder", "special"):
        raise ResultError(f"{path}: is not a file, so it cannot be replaced by one. Name a file to write.")
    if kind == "unreadable":
        raise ResultError(f"{path}: cannot be opened; its name is too long, or it may not be read. Name another file.")
    if kind != "missing" and (kind != "hdf5" or not _is_result(path)):
        raise ResultError(f"{path} is not a result of bnuq; name another file to write.")
    check_writable(path)


def _is_result(path: Path) -> bool:
    try:
        with open_hdf5(path) as file:
            return {"format", "bnuq"} <= set(file.attrs)
    except ResultError:
        return False


def _most_bytes(kept: Samples) -> int:
    """What raw samples can take in the file, however badly they pack: chunks are whole, and each has its entry."""
    samples, points, classes = kept.shape
    chunk = _chunk_points(kept)
    return -(-points // chunk) * (kept.dtype.itemsize * samples * chunk * classes * 1001 // 1000 + 4096) + 2**16


def _chunk_points(kept: Samples) -> int:
    """Points in a chunk of the file: 64, or as few as keep it below 64 MiB."""
    samples, points, classes = kept.shape
    return max(1, min(points, 64, 2**26 // (kept.dtype.itemsize * samples * classes)))


def _reserve(file: BinaryIO, size: int) -> None:
    """Take the room on the disk now, or raise the system's error: HDF5 does not survive to find out itself.

    Opened to be changed, not made anew, the file keeps the room; what is left of it goes when HDF5 closes the file.
    """
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file.fileno(), 0, size)


def _lay_out(file: Any, result: Result) -> None:
    file.attrs["format"] = FORMAT
    file.attrs["bnuq"] = str(result.provenance["bnuq"])
    file.attrs["command"] = "evaluate"
    texts = {
        "run": result.run,
        "model": result.model,
        "sampling": result.sampling,
        "sets": {name: _facts(one) for name, one in result.sets.items()},
        "seconds": result.seconds,
        "work": result.work.told(),
        "warnings": [asdict(caution) for caution in result.cautions],
        "notes": result.notes,
        "provenance": result.provenance,
    }
    for name, value in texts.items():
        # A path may hold bytes that are not UTF-8, which Python keeps as surrogates: they become JSON's own escapes.
        file.attrs[name] = json.dumps(value, ensure_ascii=False).encode("utf-8", "backslashreplace").decode()
    for name, one in result.sets.items():
        room = file.create_group(f"sets/{name}")
        point = add_scale(room, "point", np.arange(one.n))
        for key, values in (("label", one.labels), ("group", one.group)):
            if values is not None:
                add_variable(room, key, values, (point,))
        if one.targets is not None:
            output = add_scale(room, "output", np.arange(one.targets.shape[1]))
            add_variable(room, "target", one.targets, (point, output), unit="target unit")
    for name, method in result.methods.items():
        _lay_out_method(file.create_group(f"methods/{name}"), method)
    _lay_out_figures(file.create_group("figures"), result)
    if result.reference_check is not None:
        check = result.reference_check
        room = file.create_group("reference_check")
        room.attrs["passed"] = check.passed
        layer = add_scale(room, "layer", list(check.layers))
        for key in ("mean", "log_variance", "expected"):
            add_variable(room, key, getattr(check, key), (layer,), unit="standard deviations of batch noise")
    if result.bank is not None:
        bank = file.create_group("statistics")
        result.bank.write_to(bank)
        bank.visititems(_give_unit)
    _lay_out_for_arviz(file, result)


def _facts(one: EvaluatedSet) -> dict[str, Any]:
    return {key: value for key, value in vars(one).items() if key not in ("labels", "targets", "group")}


def _lay_out_method(room: Any, method: MethodResult) -> None:
    for name, one in method.sets.items():
        group = room.create_group(name)
        point = add_scale(group, "point", np.arange(len(one.predicted)))
        if one.sigma is None:
            add_variable(group, "predicted", one.predicted, (point,))
        else:
            output = add_scale(group, "output", np.arange(one.predicted.shape[1]))
            for key, values in (("predicted", one.predicted), ("sigma", one.sigma)):
                add_variable(group, key, values, (point, output), unit="target unit")
        for key, values in one.points.items():
            add_variable(group, key, values, (point,), unit=unit_of(key))
    for name, values in (
        ("convergence", method.convergence),
        ("calibration", method.calibration),
        ("risk_coverage", method.risk),
        ("uncertainty_error", method.uncertainty_error),
    ):
        if not values:
            continue
        group = room.create_group(name)
        axis, *_ = (key for key in values if key in _AXES)
        scale = add_scale(group, axis, values[axis])
        for key, value in values.items():
            if key != axis:
                add_variable(group, key, value, (scale,), unit=unit_of(key))


_AXES = ("samples", "bin", "level", "coverage", "rank")  # of the curves, before what is told along them
_IN_TARGET_UNITS = ("error", "running_error", "crps_constant", "crps_optimum")


def unit_of(name: str) -> str:
    """The unit of a metric, a score, or a variable that is neither: a count, a number of order, a share."""
    if name in _IN_TARGET_UNITS:
        return "target unit"
    metric = METRICS.get(name) or SCORES.get(name)
    return "1" if metric is None or metric.unit == "fraction" else metric.unit


def _give_unit(name: str, item: Any) -> None:
    """Its unit to a data set of the bank."""
    units = {"mean": "activation units", "var": "activation units squared"}
    if hasattr(item, "shape"):  # no group
        item.attrs["units"] = units.get(name.rpartition("/")[2], "1")


BOUNDS, NORMALIZED = "bounds/", "normalized"  # in the place of a set's name, which has no slash and may be neither


def figures_of(result: Result) -> Iterable[tuple[Address, Figure]]:
    """Every figure with its address."""
    for method, found in result.methods.items():
        for name, one in found.sets.items():
            for metric, figure in one.figures.items():
                yield (method, name, "", metric), figure
        for name, scores in found.ood.items():
            for score, figures in scores.items():
                for metric, figure in figures.items():
                    yield (method, name, score, metric), figure
        for bound, figures in found.bounds.items():
            for metric, figure in figures.items():
                yield (method, f"{BOUNDS}{bound}", "", metric), figure
        for metric, figure in found.normalized.items():
            yield (method, NORMALIZED, "", metric), figure


def _lay_out_figures(room: Any, result: Result) -> None:
    rows = list(figures_of(result))
    figure = add_scale(room, "figure", np.arange(len(rows)))
    for place, key in enumerate(("method", "set", "score", "metric")):
        add_variable(room, key, [address[place] for address, _ in rows], (figure,))
    units = ["percent" if name == NORMALIZED else unit_of(metric) for (_, name, _, metric), _ in rows]
    add_variable(room, "unit", units, (figure,))
    for key in _NUMBERS:
        values = [getattr(f, key) for _, f in rows]
        column = np.array([np.nan if v is None else v for v in values], dtype=np.float64)
        add_variable(room, key, column, (figure,), unit=_BY_ROW)
    for key, axis in (("jackknife", "draw"), ("bootstrap", "resample")):
        values = [getattr(f, key) for _, f in rows]
        width = max((len(v) for v in values if v is not None), default=0)
        if width:
            table = np.full((len(rows), width), np.nan)
            for row, value in zip(table, values, strict=True):
                if value is not None:
                    row[: len(value)] = value
            add_variable(room, key, table, (figure, add_scale(room, axis, np.arange(width))), unit=_BY_ROW)


_BY_ROW = "that of the row, in unit"


def _lay_out_for_arviz(file: Any, result: Result) -> None:
    sampled = {name: method for name, method in result.methods.items() if name not in ONE_PASS}
    rooms: dict[str, Any] = {}
    scales: dict[str, dict[str, Any]] = {}

    def room(name: str, set_name: str, samples: int | None = None) -> Any:
        if name not in rooms:
            rooms[name], scales[name] = file.create_group(name), {}
        known = scales[name]
        wanted = {f"{set_name}_point": result.sets[set_name].n}
        if samples is not None:
            wanted |= {"chain": 1, "draw": samples}
        for axis, length in wanted.items():
            if axis not in known:
                known[axis] = add_scale(rooms[name], axis, np.arange(length))
        return rooms[name]

    for name, one in result.sets.items():
        if one.labels is not None and one.kind == "test":
            group = room("observed_data", name)
            add_variable(group, name, one.labels, (scales["observed_data"][f"{name}_point"],))
        if one.targets is not None:
            group = room("observed_data", name)
            output = add_scale(group, "output", np.arange(one.targets.shape[1]))
            axes = (scales["observed_data"][f"{name}_point"], output)
            add_variable(group, name, one.targets, axes, unit="target unit")
    for method, found in sampled.items():
        for name, one in found.sets.items():
            if one.log_likelihood is not None:
                group = room("log_likelihood", name, samples=len(one.log_likelihood))
                axes = tuple(scales["log_likelihood"][axis] for axis in ("chain", "draw", f"{name}_point"))
                add_variable(group, f"{method}_{name}", one.log_likelihood[None], axes, unit="nats")


def _add_samples(file: Any, result: Result) -> None:
    room = file.create_group("posterior_predictive")
    scales: dict[str, Any] = {}
    last, unit = ("output", "target unit") if result.model["task"] == "regression" else ("class", "1")
    for method, found in result.methods.items():
        for name, one in found.sets.items():
            if one.samples is None:
                continue
            samples, points, classes = one.samples.shape
            axes = {"chain": 1, "draw": samples, f"{name}_point": points, last: classes}
            for axis, length in axes.items():
                if axis not in scales:
                    scales[axis] = add_scale(room, axis, np.arange(length))
            chunk = _chunk_points(one.samples)
            kept = room.create_dataset(
                f"{method}_{name}",
                shape=tuple(axes.values()),
                dtype=one.samples.dtype,
                chunks=(1, samples, chunk, classes),
                **_PACKED,
            )
            for start, block in _in_chunks(one.samples.blocks(), chunk):
                kept[0, :, start : start + block.shape[1]] = block
            kept.attrs["units"] = unit
            for place, axis in enumerate(axes):
                kept.dims[place].attach_scale(scales[axis])


def _in_chunks(blocks: Iterable[tuple[int, np.ndarray]], size: int) -> Iterator[tuple[int, np.ndarray]]:
    """The blocks cut or joined to `size` points, so that no chunk of the file is packed twice."""
    start, waiting = 0, list[np.ndarray]()
    for _, block in blocks:
        waiting.append(block)
        while sum(one.shape[1] for one in waiting) >= size:
            joined = np.concatenate(waiting, axis=1)
            yield start, joined[:, :size]
            start, waiting = start + size, [joined[:, size:]]
    rest = np.concatenate(waiting, axis=1)
    if rest.shape[1]:
        yield start, rest


_PACKED: dict[str, Any] = {"compression": "gzip", "compression_opts": 1, "shuffle": True}


def add_scale(room: Any, name: str, values: Any) -> Any:
    data = room.create_dataset(name, data=values)
    data.make_scale(name)
    if isinstance(values, np.ndarray):
        data.attrs["units"] = "1"
    return data


def add_variable(room: Any, name: str, values: Any, axes: tuple[Any, ...], *, unit: str = "1") -> None:
    packed = _PACKED if isinstance(values, np.ndarray) and values.size > 1024 else {}
    data = room.create_dataset(name, data=values, **packed)
    for axis, scale in enumerate(axes):
        data.dims[axis].attach_scale(scale)
    if isinstance(values, np.ndarray):  # a text has none
        data.attrs["units"] = unit


def read(path: Path, *, log_likelihoods: bool = True) -> Result:
    """The result in the file at `path`, without its bank and raw samples; ResultError where that is not one.

    Everything that a report or a summary uses is there and of its kind: what reads a Result need not look again. The
    log-likelihoods (T × n), most of a file, may be left out.
    """
    with open_result(path, "evaluate", newest=FORMAT) as file:
        result = _read(file, path.absolute(), file.get("log_likelihood", {}) if log_likelihoods else {})
        _check_complete(result)
        if log_likelihoods:
            _check_log_likelihoods(result)
    return result


class _Set(msgspec.Struct):
    name: str
    kind: Literal["test", "validation", "ood"]
    reference: str
    sha256: str
    n: Annotated[int, msgspec.Meta(ge=1)]
    classes: tuple[str, ...] = ()


class _Caution(msgspec.Struct):
    code: str
    text: str


class _Texts(msgspec.Struct):
    """What the root attributes hold, each as JSON; the shape of `run` is checked when it is run again."""

    run: dict[str, Any]
    model: dict[str, Any]
    sampling: dict[str, Any]
    sets: dict[str, _Set]
    seconds: dict[str, float]
    work: Work
    warnings: list[_Caution]
    notes: tuple[str, ...]
    provenance: dict[str, Any]


_NEEDED: dict[str, dict[str, Any]] = {
    "model": {"path": str, "parameters": int, "batchnorm_layers": int, "dropout_layers": int, "task": Task},
    "sampling": {"samples": int, "batch_size": int | None, "seed": int, "device": str, "precision": str},
    "seconds": {"total": float},
    "provenance": {"bnuq": str},
}


def _read_texts(file: Any) -> _Texts:
    texts = {name: json.loads(file.attrs[name]) for name in _TEXTS}
    for name, keys in _NEEDED.items():
        for key, kind in keys.items():
            msgspec.convert(texts[name][key], kind)
    msgspec.convert(texts["sampling"].get("bank"), int | None)
    msgspec.convert(texts["model"]["outputs" if texts["model"]["task"] == "regression" else "classes"], int)
    data = texts["run"].get("data", {})
    if not isinstance(data, dict) or not isinstance(data.get("train", ""), str):
        raise ValueError("its run names no data")
    msgspec.convert(texts["run"].get("sampling", {}), dict[str, Any])
    msgspec.convert(texts["sampling"].get("mutual_information", "plug-in"), Estimator)
    msgspec.convert(texts["run"].get("scoring", {}), ScoringSection)
    return msgspec.convert(texts, _Texts)


def _read(file: Any, path: Path, likelihoods: Any) -> Result:
    texts = _read_texts(file)
    sets = {}
    for name, facts in texts.sets.items():
        room = file["sets"][name]
        arrays = {key: numbers(room, key, "iu") if key in room else None for key in ("label", "group")}
        targets = None
        if "target" in room:
            targets = numbers(room, "target", "f", shape=(facts.n, texts.model["outputs"]))
        sets[name] = EvaluatedSet(
            **msgspec.structs.asdict(facts), labels=arrays["label"], targets=targets, group=arrays["group"]
        )
    figures = _read_figures(file["figures"], texts.sampling)
    order = list(dict.fromkeys(address[0] for address, _ in figures))
    methods = {name: _read_method(file["methods"][name], name, figures, sets, likelihoods) for name in order}
    check = None
    if "reference_check" in file:
        room = file["reference_check"]
        check = ReferenceCheck(
            layers=tuple(room["layer"].asstr()[()]),
            mean=numbers(room, "mean", "f"),
            log_variance=numbers(room, "log_variance", "f"),
            expected=numbers(room, "expected", "f"),
            passed=bool(room.attrs["passed"]),
        )
    return Result(
        run=texts.run,
        model=texts.model,
        sampling=texts.sampling,
        sets=sets,
        methods=methods,
        cautions=tuple(Caution(caution.code, caution.text) for caution in texts.warnings),
        notes=texts.notes,
        seconds=texts.seconds,
        work=texts.work,
        provenance=texts.provenance,
        reference_check=check,
        path=path,
    )


def _read_figures(room: Any, sampling: Mapping[str, Any]) -> list[tuple[Address, Figure]]:
    texts = [room[key].asstr()[()] for key in ("method", "set", "score", "metric")]
    rows = texts[0].shape
    columns = {key: numbers(room, key, "f", shape=rows) for key in _NUMBERS}
    replicates = {
        key: numbers(room, key, "f", dimensions=2) if key in room else None for key in ("jackknife", "bootstrap")
    }
    found = []
    for row, address in enumerate(zip(*texts, strict=True)):
        errors = {key: float(columns[key][row]) for key in _NUMBERS[1:]}
        if any(np.isinf(errors[key]) or errors[key] < 0 for key in ("se", "mc_se")):
            raise ValueError(f"the error of {'/'.join(map(str, address))} is none")
        given: dict[str, Any] = {key: None if np.isnan(value) else value for key, value in errors.items()}
        arrays = {k: None if v is None or np.isnan(v[row]).all() else v[row] for k, v in replicates.items()}
        if arrays["jackknife"] is not None and not address[0].startswith("mcbn"):  # the row is as long as the bank
            arrays["jackknife"] = arrays["jackknife"][: sampling["samples"]]
        found.append((tuple(map(str, address)), Figure(float(columns["value"][row]), **given, **arrays)))
    return found


def _read_method(
    room: Any,
    name: str,
    figures: list[tuple[Address, Figure]],
    known: Mapping[str, EvaluatedSet],
    likelihoods: Any,
) -> MethodResult:
    found: dict[str, dict[str, Figure]] = {}
    ood: dict[str, dict[str, dict[str, Figure]]] = {one.name: {} for one in known.values() if one.kind == "ood"}
    bounds: dict[str, dict[str, Figure]] = {}
    normalized: dict[str, Figure] = {}
    for (method, set_name, score, metric), figure in figures:
        if method != name:
            continue
        if set_name == NORMALIZED or set_name.startswith(BOUNDS):
            home = normalized if set_name == NORMALIZED else bounds.setdefault(set_name.removeprefix(BOUNDS), {})
            home[metric] = figure
            continue
        home = ood.setdefault(set_name, {}).setdefault(score, {}) if score else found.setdefault(set_name, {})
        home[metric] = figure
    for set_name, one in known.items():  # a set may have no figures: a regression's OOD set under one pass
        if one.kind != "validation" and set_name in room:
            found.setdefault(set_name, {})
            if one.kind == "ood":
                ood.setdefault(set_name, {})
    sets: dict[str, SetResult] = {}
    for set_name in (one.name for one in known.values() if one.kind != "validation"):
        group, points = room[set_name], (known[set_name].n,)
        key = f"{name}_{set_name}"
        several = "sigma" in group
        sets[set_name] = SetResult(
            figures=found.get(set_name, {}),
            points={k: numbers(group, k, "f", shape=points) for k in group if k not in _NO_SCORES},
            predicted=numbers(group, "predicted", "iuf", dimensions=2 if several else 1),
            sigma=numbers(group, "sigma", "f", dimensions=2) if several else None,
            log_likelihood=numbers(likelihoods, key, "f", dimensions=3)[0] if key in likelihoods else None,
        )
    curves = {
        curve: {key: numbers(room[curve], key, "fiu") for key in room[curve]} if curve in room else {}
        for curve in ("convergence", "calibration", "risk_coverage", "uncertainty_error")
    }
    return MethodResult(
        sets=sets,
        ood=ood,
        convergence=curves["convergence"],
        calibration=curves["calibration"],
        risk=curves["risk_coverage"],
        uncertainty_error=curves["uncertainty_error"],
        bounds=bounds,
        normalized=normalized,
    )


_NO_SCORES = ("point", "output", "predicted", "sigma")


def _check_complete(result: Result) -> None:
    """Raise ValueError where a figure is missing that every result has, or is one that this version cannot know."""
    if next(iter(result.methods), None) != DETERMINISTIC or "test" not in result.sets:
        raise ValueError("the deterministic method or the test set is missing")
    others = {name for name, one in result.sets.items() if one.kind == "ood"}
    evaluated = others | {"test"}
    if any(one.kind == "ood" and name == "validation" for name, one in result.sets.items()):
        raise ValueError("a set out of distribution is called validation")
    wanted = _OF_TASK[result.model["task"]]
    test = result.sets["test"]
    if (test.labels if result.model["task"] == "classification" else test.targets) is None:
        raise ValueError("the truth about the test set is missing")
    if any(one.labels is not None and one.labels.shape != (one.n,) for one in result.sets.values()):
        raise ValueError("the labels of a set are not as many as its points")
    for method, found in result.methods.items():
        of_one_pass = method in ONE_PASS or result.sampling["samples"] == 1
        if set(found.sets) != evaluated or set(found.ood) != others:
            raise ValueError(f"{method} was not evaluated on every set")
        for name, one in found.sets.items():
            needed = {*wanted.anywhere, *(() if of_one_pass else wanted.of_several)}
            needed |= wanted.on_test if name == "test" else set()
            if missing := needed - set(one.figures) or set(one.figures) - set(METRICS):
                raise ValueError(f"figure {min(missing)} of {method} on {name} is missing or unknown")
            shape = result.sets[name].n, *((result.model["outputs"],) if result.model["task"] == "regression" else ())
            if one.predicted.shape != shape or (one.sigma is not None and one.sigma.shape != shape):
                raise ValueError(f"the predictions of {method} on {name} are of another shape")
        for name, scores in found.ood.items():
            told = scores or (of_one_pass and wanted.of_several == {"variance"})
            for score in scores:
                ranked = [found.sets[one].points.get(score) for one in ("test", name)]
                if any(values is None or np.isnan(values).any() for values in ranked):
                    raise ValueError(f"the {score} of the points of {method} is missing")
            if not told or set(scores) - set(SCORES) or any(set(f) != _OF_OOD for f in scores.values()):
                raise ValueError(f"figures of {method} on {name} against the test set are missing or unknown")
        if result.model["task"] == "regression":
            _check_regression(method, found)
        if missing := wanted.points - set(found.sets["test"].points):
            raise ValueError(f"the {min(missing)} of the points of {method} are missing")
        for curve in (found.convergence, found.uncertainty_error, found.calibration, found.risk):
            if len({len(values) for values in curve.values()}) > 1:
                raise ValueError(f"a curve of {method} is of different lengths")
        if found.convergence and "samples" not in found.convergence:
            raise ValueError(f"the convergence of {method} is incomplete")
        if set(found.bounds) - {"constant", "optimum"} or set(found.normalized) - {"pll", "crps", "pll_without_exact"}:
            raise ValueError(f"the bounds of {method} are unknown")
    check = result.reference_check
    if check and not len(check.layers) == len(check.mean) == len(check.log_variance) == len(check.expected) > 0:
        raise ValueError("the reference check is incomplete")


def _check_log_likelihoods(result: Result) -> None:
    """Raise ValueError where a PLL over draws has not those that it is the mean of."""
    mixture = result.run.get("scoring", {}).get("pll", "mixture") == "mixture"
    for method, found in result.methods.items():
        test, shape = found.sets["test"], (result.sampling["samples"], result.sets["test"].n)
        sampled = method not in ONE_PASS and "pll" in test.points
        held = test.log_likelihood is not None and test.log_likelihood.shape == shape
        if sampled and not held and (mixture or result.model["task"] == "classification"):
            raise ValueError(f"the log-likelihoods of {method} are missing, or of another shape")


def _check_regression(method: str, found: MethodResult) -> None:
    """Raise ValueError where what hangs together is not there together."""
    figures = found.sets["test"].figures
    together = {"tau", "crps", "coverage50", "coverage95"}
    if (together - {"crps"}) & set(figures) and not together <= set(figures):
        raise ValueError(f"of tau, crps and coverage of {method} some are missing")
    if any("crps" not in bound for bound in found.bounds.values()):
        raise ValueError(f"a bound of {method} has no CRPS")
    if set(found.normalized) - {"pll_without_exact"} - set(found.bounds.get("constant", ())):
        raise ValueError(f"a normalised score of {method} has no bounds")
    if found.calibration and set(found.calibration) != {"level", "coverage"}:
        raise ValueError(f"the calibration of {method} is incomplete")
    if set(found.uncertainty_error) != {"rank", "sigma", "error", "running_error"}:
        raise ValueError(f"the errors over uncertainty of {method} are incomplete")


@dataclass(frozen=True)
class _Needed:
    """What every result of a task holds: figures on every set, those of several draws, those on the test set, and
    per-point values there."""

    anywhere: set[str]
    of_several: set[str]
    on_test: set[str]
    points: set[str]


_OF_TASK = {
    "classification": _Needed(
        {"predictive_entropy", "max_probability"},
        {"mutual_information"},
        {"accuracy", "pll", "ece"},
        {"pll", "accuracy"},
    ),
    "regression": _Needed(set(), {"variance"}, {"rmse", "mae"}, {"squared_error"}),
}
_OF_OOD = {"auroc", "aupr_out", "aupr_in", "fpr95", "fpr95_id_positive"}
