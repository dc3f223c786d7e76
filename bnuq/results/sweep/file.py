"""The file of a sweep over mini-batch sizes.

    /                 attributes: format, bnuq, command, kind ("sweep"), and as JSON task, samples, draw_sets, seed,
                      score, sets, points (how many there are), recommended, warnings, notes, seconds, provenance
    /models           one row a network: name, path, sha256, train_batch_size (−1: unknown), parameters,
                      batchnorm_layers, and as JSON layers, elbo (its terms), decay (by set), record (its request)
    /models/m0, …     layer, channels, and effective numbers of values an item: nominal, mean, sd
    /single/m0, …     one network at several sizes (m0: number 0 of models); /matched: one network a size, its own
        batch_size    the coordinate; by it degenerate, model, train_batch_size (−1: unknown), place (among all points)
        METRIC        (batch_size, set), and with _se, _mc_se, _low, _high; METRIC_of_sets (batch_size, set, draw_set);
                      METRIC_count, how many draw sets it is of: −1 where there is no such figure
        auroc         (batch_size, score, ood), likewise
        elbo, expected_log_likelihood with _se, …; kl; log_likelihood (batch_size, draw), per example; draws, how many
                      of them there are: −1 where there is no ELBO
        compared_with (batch_size), as JSON: networks of a single pass; only where the reference check failed

Missing numbers are NaN, and every data set of numbers has units. A reader must refuse a `format` above its own.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from bnuq.files.hdf5 import image_of
from bnuq.files.writing import write_bytes
from bnuq.metrics import METRICS, SCORES
from bnuq.records import Caution, Figure
from bnuq.results.file import add_scale, add_variable, check_replaceable, unit_of
from bnuq.results.reading import numbers, open_result
from bnuq.results.sweep.records import (
    COMMAND,
    KIND,
    Decay,
    Elbo,
    ElboTerms,
    LayerCounts,
    Protocol,
    Repeated,
    Sweep,
    SweepPoint,
    SweptModel,
    SweptSet,
)
from bnuq.results.sweep.summary import summary
from bnuq.results.sweep.told import (
    ERRORS,
    ToldDecay,
    ToldTerms,
    ToldTexts,
    compared_of,
    compared_told,
    decay_told,
    figure_of,
    recommended_of,
    recommended_told,
    terms_told,
)

FORMAT = 1


def write(sweep: Sweep, path: Path) -> None:
    """Write `sweep` to `path`, whole or not at all; ResultError where that cannot be done.

    Replicates of its figures are not kept: their values by draw set are.
    """
    check_replaceable(path)
    write_bytes(path, image_of(lambda file: _lay_out(file, sweep)))


def _lay_out(file: Any, sweep: Sweep) -> None:
    file.attrs["format"] = FORMAT
    file.attrs["bnuq"] = str(sweep.provenance["bnuq"])
    file.attrs["command"] = COMMAND
    file.attrs["kind"] = KIND
    texts = {
        "task": sweep.task,
        "samples": sweep.samples,
        "draw_sets": sweep.draw_sets,
        "seed": sweep.seed,
        "score": sweep.score,
        "sets": [asdict(one) for one in sweep.sets],
        "points": len(sweep.points),
        "recommended": None if sweep.recommended is None else recommended_told(sweep.recommended),
        "warnings": [asdict(caution) for caution in sweep.cautions],
        "notes": sweep.notes,
        "seconds": dict(sweep.seconds),
        "provenance": dict(sweep.provenance),
    }
    for name, value in texts.items():
        file.attrs[name] = json.dumps(value)
    _lay_out_models(file.create_group("models", track_order=True), sweep.models)
    places = {id(point): place for place, point in enumerate(sweep.points)}
    for model in range(len(sweep.models)):
        if line := sweep.line(model):
            _lay_out_line(file.create_group(f"single/m{model}", track_order=True), sweep, line, places)
    if sweep.matched:
        _lay_out_line(file.create_group("matched", track_order=True), sweep, sweep.matched, places)


def _lay_out_models(room: Any, models: Sequence[SweptModel]) -> None:
    axis = add_scale(room, "model", np.arange(len(models)))
    for key in ("name", "path", "sha256"):
        add_variable(room, key, [_utf8(getattr(one, key)) for one in models], (axis,))
    for key in ("train_batch_size", "parameters", "batchnorm_layers"):
        add_variable(room, key, _whole(getattr(one, key) for one in models), (axis,))
    for key, values in {
        "layers": [one.layers for one in models],
        "elbo": [None if one.elbo is None else terms_told(one.elbo) for one in models],
        "decay": [{name: decay_told(decay) for name, decay in one.decay.items()} for one in models],
        "record": [dict(one.record) for one in models],
    }.items():
        add_variable(room, key, [json.dumps(value) for value in values], (axis,))
    for number, one in enumerate(models):
        if one.elbo is None or not one.elbo.layers:
            continue
        counted = room.create_group(f"m{number}", track_order=True)
        layer = add_scale(counted, "layer", [_utf8(layer.name) for layer in one.elbo.layers])
        add_variable(counted, "channels", _whole(layer.channels for layer in one.elbo.layers), (layer,))
        for key in ("nominal", "mean", "sd"):
            values = np.array([getattr(layer, key) for layer in one.elbo.layers], np.float64)
            add_variable(counted, key, values, (layer,))


def _utf8(text: str) -> str:
    """A path may hold bytes that are not UTF-8, which Python keeps as surrogates."""
    return text.encode("utf-8", "backslashreplace").decode()


def _whole(values: Iterable[int | None]) -> np.ndarray:
    return np.array([-1 if value is None else value for value in values], np.int64)


def _lay_out_line(room: Any, sweep: Sweep, points: Sequence[SweepPoint], places: Mapping[int, int]) -> None:
    size = add_scale(room, "batch_size", _whole(point.batch_size for point in points))
    for key in ("degenerate", "model", "train_batch_size"):
        add_variable(room, key, _whole(getattr(point, key) for point in points), (size,))
    add_variable(room, "place", _whole(places[id(point)] for point in points), (size,))
    repeated = [
        one for point in points for by in (point.figures, point.auroc) for f in by.values() for one in f.values()
    ]
    draw_set = add_scale(room, "draw_set", np.arange(max([1, *(len(one.of_sets) for one in repeated)])))
    metrics = list(dict.fromkeys(metric for point in points for metric in point.figures))
    over = add_scale(room, "set", [one.name for one in sweep.sets])
    for metric in metrics:
        table = [[point.figures.get(metric, {}).get(one.name) for one in sweep.sets] for point in points]
        _add_repeated(room, metric, table, (size, over, draw_set), unit=unit_of(metric))
    scores = list(dict.fromkeys(score for point in points for score in point.auroc))
    bounded = any(point.elbo is not None for point in points)
    for key, value in (("metrics", metrics), ("scores", scores), ("bounded", bounded)):
        room.attrs[key] = json.dumps(value)
    if scores:
        names = list(dict.fromkeys(name for point in points for by in point.auroc.values() for name in by))
        score, ood = add_scale(room, "score", scores), add_scale(room, "ood", names)
        cube = [[[point.auroc.get(key, {}).get(name) for name in names] for key in scores] for point in points]
        _add_repeated(room, "auroc", cube, (size, score, ood, draw_set), unit="1")
    if any(point.compared_with for point in points):
        told = [json.dumps(compared_told(point.compared_with)) for point in points]
        add_variable(room, "compared_with", told, (size,))
    if bounded:
        _lay_out_elbo(room, [point.elbo for point in points], size)


def _add_repeated(room: Any, name: str, table: Any, axes: tuple[Any, ...], *, unit: str) -> None:
    """A figure by all axes but the last, which is of draw sets."""
    found = np.array(table, dtype=object)
    _add_figures(room, name, [None if one is None else one.figure for one in found.flat], axes[:-1], unit=unit)
    of_sets = np.full((found.size, axes[-1].shape[0]), np.nan)
    for row, one in zip(of_sets, found.flat, strict=True):
        if one is not None:
            row[: len(one.of_sets)] = one.of_sets
    add_variable(room, f"{name}_of_sets", of_sets.reshape(*found.shape, -1), axes, unit=unit)
    count = _whole(None if one is None else len(one.of_sets) for one in found.flat)
    add_variable(room, f"{name}_count", count.reshape(found.shape), axes[:-1])


def _add_figures(room: Any, name: str, figures: Sequence[Figure | None], axes: tuple[Any, ...], *, unit: str) -> None:
    shape = tuple(len(axis) for axis in axes)
    for key in ("value", *ERRORS):
        values = [None if figure is None else getattr(figure, key) for figure in figures]
        column = np.array([math.nan if value is None else value for value in values], np.float64)
        add_variable(room, name if key == "value" else f"{name}_{key}", column.reshape(shape), axes, unit=unit)


def _lay_out_elbo(room: Any, found: Sequence[Elbo | None], size: Any) -> None:
    for key in ("elbo", "expected_log_likelihood"):
        _add_figures(room, key, [None if one is None else getattr(one, key) for one in found], (size,), unit="nats")
    kl = np.array([math.nan if one is None else one.kl for one in found], np.float64)
    add_variable(room, "kl", kl, (size,), unit="nats")
    draws = _whole(None if one is None else len(one.log_likelihood) for one in found)
    add_variable(room, "draws", draws, (size,))
    by_draw = np.full((len(found), max(1, int(draws.max()))), np.nan)
    for row, one in zip(by_draw, found, strict=True):
        if one is not None:
            row[: len(one.log_likelihood)] = one.log_likelihood
    draw = add_scale(room, "draw", np.arange(by_draw.shape[1]))
    add_variable(room, "log_likelihood", by_draw, (size, draw), unit="nats")


def read(path: Path) -> Sweep:
    """The sweep in the file at `path`; ResultError where that is not one, is newer, or is damaged.

    Everything that a report or a summary uses is there and of its kind: what reads a Sweep need not look again.
    """
    with open_result(path, "sweep", newest=FORMAT) as file:
        found = _read(file, path.absolute())
        _check_complete(found)
        json.dumps(summary(found), allow_nan=False)
    return found


def _read(file: Any, path: Path) -> Sweep:
    texts = msgspec.convert({key: json.loads(file.attrs[key]) for key in ToldTexts.__struct_fields__}, ToldTexts)
    sets = tuple(SweptSet(**msgspec.structs.asdict(one)) for one in texts.sets)
    models = _read_models(file["models"])
    placed: list[tuple[int, SweepPoint]] = []
    if "single" in file:
        for name in file["single"]:
            placed += _read_line(file["single"][name], "single", sets)
    if "matched" in file:
        placed += _read_line(file["matched"], "matched", sets)
    if sorted(place for place, _ in placed) != list(range(texts.points)):
        raise ValueError("points of it are missing")
    return Sweep(
        task=texts.task,
        models=models,
        points=tuple(point for _, point in sorted(placed, key=lambda pair: pair[0])),
        sets=sets,
        samples=texts.samples,
        draw_sets=texts.draw_sets,
        seed=texts.seed,
        score=texts.score,
        recommended=None if texts.recommended is None else recommended_of(texts.recommended),
        cautions=tuple(Caution(one.code, one.text) for one in texts.warnings),
        notes=texts.notes,
        seconds=texts.seconds,
        provenance=texts.provenance,
        path=path,
    )


def _read_models(room: Any) -> tuple[SweptModel, ...]:
    columns = [room[key].asstr()[()] for key in ("name", "path", "sha256", "layers", "elbo", "decay", "record")]
    names, paths, digests, layers, elbos, decays, records = columns
    rows = names.shape
    if any(column.shape != rows for column in columns):
        raise ValueError(f"the columns of {room.name} are of different lengths")
    trained, parameters, batchnorm = (
        numbers(room, key, "i", shape=rows) for key in ("train_batch_size", "parameters", "batchnorm_layers")
    )
    found = []
    for row in range(len(names)):
        decay = msgspec.convert(json.loads(decays[row]), dict[str, ToldDecay])
        found.append(
            SweptModel(
                name=names[row],
                path=paths[row],
                sha256=digests[row],
                train_batch_size=None if trained[row] < 0 else int(trained[row]),
                parameters=int(parameters[row]),
                batchnorm_layers=int(batchnorm[row]),
                layers=msgspec.convert(json.loads(layers[row]), tuple[str, ...]),
                elbo=_read_terms(room, row, json.loads(elbos[row])),
                decay={name: Decay(one.slope.figure, float(one.residual), one.sizes) for name, one in decay.items()},
                record=msgspec.convert(json.loads(records[row]), dict[str, Any]),
            )
        )
    return tuple(found)


def _read_terms(room: Any, row: int, text: Any) -> ElboTerms | None:
    told = msgspec.convert(text, ToldTerms | None)
    if told is None:
        return None
    layers: tuple[LayerCounts, ...] = ()
    if told.layers:
        counted = room[f"m{row}"]
        names, shape = counted["layer"].asstr()[()], (told.layers,)
        channels = numbers(counted, "channels", "i", shape=shape)
        columns = [numbers(counted, key, "f", shape=shape) for key in ("nominal", "mean", "sd")]
        rows = zip(names, channels, *columns, strict=True)
        layers = tuple(LayerCounts(name, int(n), *map(float, values)) for name, n, *values in rows)
    fields = {key: getattr(told, key) for key in ToldTerms.__struct_fields__}
    fields["prior_parameters"] = {key: float(value) for key, value in told.prior_parameters.items()}
    return ElboTerms(**fields | {"layers": layers, "c": figure_of(told.c), "predicted": figure_of(told.predicted)})


def _read_line(room: Any, protocol: Protocol, sets: Sequence[SweptSet]) -> list[tuple[int, SweepPoint]]:
    """The points of one line, each with its place in the sweep."""
    sizes = numbers(room, "batch_size", "i")
    whole = {
        key: numbers(room, key, "i", shape=sizes.shape) for key in ("degenerate", "model", "train_batch_size", "place")
    }
    metrics, scores = (msgspec.convert(json.loads(room.attrs[key]), list[str]) for key in ("metrics", "scores"))
    bounded = msgspec.convert(json.loads(room.attrs["bounded"]), bool)
    if unknown := [
        name for name, known in zip((metrics, scores), (METRICS, SCORES), strict=True) if set(name) - set(known)
    ]:
        raise ValueError(f"a figure of {unknown[0]} is unknown")
    names = [one.name for one in sets]
    if list(room["set"].asstr()[()]) != names:
        raise ValueError("its sets are others than those of the sweep")
    figures = {metric: _read_repeated(room, metric, (len(sizes), len(names))) for metric in metrics}
    ood: list[str] = []
    aurocs = np.empty((len(sizes), 0, 0), dtype=object)
    if scores:
        ood = [str(name) for name in room["ood"].asstr()[()]]
        if set(ood) - set(names) or list(room["score"].asstr()[()]) != scores:
            raise ValueError("it tells sets apart that it has not, or by scores that it has not")
        aurocs = _read_repeated(room, "auroc", (len(sizes), len(scores), len(ood)))
    elbos = _read_elbo(room, len(sizes)) if bounded else [None] * len(sizes)
    compared = room["compared_with"].asstr()[()] if "compared_with" in room else ["{}"] * len(sizes)
    found = []
    for row, size in enumerate(sizes):
        trained = int(whole["train_batch_size"][row])
        point = SweepPoint(
            model=int(whole["model"][row]),
            protocol=protocol,
            batch_size=int(size),
            train_batch_size=None if trained < 0 else trained,
            degenerate=bool(whole["degenerate"][row]),
            figures=_by_name(metrics, [_by_name(names, figures[metric][row]) for metric in metrics]),
            auroc=_by_name(scores, [_by_name(ood, one) for one in aurocs[row]]),
            elbo=elbos[row],
            compared_with=compared_of(json.loads(compared[row])),
        )
        found.append((int(whole["place"][row]), point))
    return found


def _by_name(names: Sequence[str], found: Iterable[Any]) -> dict[str, Any]:
    """By name, without what is not there."""
    return {name: one for name, one in zip(names, found, strict=True) if one is not None and one != {}}


def _read_repeated(room: Any, name: str, shape: tuple[int, ...]) -> Any:
    """An array of this shape, of Repeated, and of None where there is no such figure."""
    figures = _read_figures(room, name, shape)
    count = numbers(room, f"{name}_count", "i", shape=shape)
    of_sets = numbers(room, f"{name}_of_sets", "f", shape=(*shape, room["draw_set"].shape[0]))
    if (count > of_sets.shape[-1]).any():
        raise ValueError(f"{room.name}/{name}_count counts draw sets that are not there")
    found = np.empty(shape, dtype=object)
    for place in np.ndindex(*shape):
        if count[place] >= 0:
            found[place] = Repeated(figures[place], of_sets[place][: count[place]])
    return found


def _read_figures(room: Any, name: str, shape: tuple[int, ...]) -> Any:
    """An array of figures, of this shape."""
    values = numbers(room, name, "f", shape=shape)
    errors = {key: numbers(room, f"{name}_{key}", "f", shape=shape) for key in ERRORS}
    found = np.empty(shape, dtype=object)
    for place in np.ndindex(*shape):
        known: dict[str, Any] = {
            key: None if np.isnan(column[place]) else float(column[place]) for key, column in errors.items()
        }
        found[place] = Figure(float(values[place]), **known)
    return found


def _read_elbo(room: Any, count: int) -> list[Elbo | None]:
    elbo, expected = (_read_figures(room, key, (count,)) for key in ("elbo", "expected_log_likelihood"))
    kl, draws = numbers(room, "kl", "f", shape=(count,)), numbers(room, "draws", "i", shape=(count,))
    by_draw = numbers(room, "log_likelihood", "f", dimensions=2)
    if by_draw.shape[0] != count or (draws > by_draw.shape[1]).any():
        raise ValueError(f"{room.name}/log_likelihood has shape {by_draw.shape} where another belongs")
    return [
        None if n < 0 else Elbo(elbo[row], expected[row], float(kl[row]), by_draw[row, :n])
        for row, n in enumerate(draws)
    ]


def _check_complete(found: Sweep) -> None:
    """Raise ValueError where something is missing, or names what is not there, that a report or a summary tells."""
    names = [one.name for one in found.sets]
    if not found.models or not found.points or "total" not in found.seconds:
        raise ValueError("its networks, its points or its seconds are missing")
    if len(set(names)) < len(names) or not names:
        raise ValueError("its sets are missing, or two have one name")
    if found.score not in SCORES:
        raise ValueError(f"the score {found.score} is unknown")
    if not isinstance(found.provenance["bnuq"], str):
        raise ValueError("its version is missing")
    for point in found.points:
        if not 0 <= point.model < len(found.models) or point.batch_size < 1:
            raise ValueError("a point of it is of no network, or of no size")
    for one in found.models:
        if unknown := set(one.decay) - set(names):
            raise ValueError(f"it tells how {min(unknown)} decays, which it has not")
    chosen = found.recommended
    if chosen is not None and all(
        (point.batch_size, point.model, point.protocol) != (chosen.batch_size, chosen.model, chosen.protocol)
        for point in found.points
    ):
        raise ValueError("the size that it recommends is none of its own")
