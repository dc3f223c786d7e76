"""A sweep over mini-batch sizes: what every network gives at every size, the ELBO, how MI decays, and their file.

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

Missing numbers are NaN, and every data set of numbers has units. A reader must refuse a `format` above its own.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import h5py
import msgspec
import numpy as np
from jaxtyping import Float64

from bnuq.files.writing import write_bytes
from bnuq.metrics import METRICS, SCORES
from bnuq.records import Caution, Figure
from bnuq.results.file import add_scale, add_variable, check_replaceable, unit_of
from bnuq.results.reading import numbers, open_result
from bnuq.results.summary import SCHEMA, json_number
from bnuq.run import Task

FORMAT = 1
KIND = "sweep"
COMMAND = "sweep-batch-size"

Protocol = Literal["single", "matched"]  # one network at several sizes; one network a size, that of its training
Choice = Literal["elbo", "pll", "auroc"]  # what a size is chosen by


@dataclass(frozen=True)
class Repeated:
    """A figure on R independent draw sets of T draws each: `figure` is their mean, its `mc_se` their sd/√R, its `se`
    that over points. `of_sets` are the values; draw set r of every size holds the same mini-batches, cut to the size.
    """

    figure: Figure
    of_sets: Float64[np.ndarray, " draw_set"]


@dataclass(frozen=True)
class Elbo:
    """ELBO(b) = expected log-likelihood − KL, in nats of the whole training set; the KL times its weight.

    `log_likelihood` is the mean log-likelihood of the training points under every draw, in nats per example.
    """

    elbo: Figure
    expected_log_likelihood: Figure
    kl: float
    log_likelihood: Float64[np.ndarray, " draw"]


@dataclass(frozen=True)
class SweepPoint:
    """One network at one size. `figures` are by metric and set, `auroc` by score and OOD set.

    Where every mini-batch is the whole reference nothing is random: `degenerate`, mutual information and variance are
    exactly 0, and there is no ELBO (the KL of a point mass is infinite).
    """

    model: int
    protocol: Protocol
    batch_size: int
    train_batch_size: int | None
    degenerate: bool
    figures: Mapping[str, Mapping[str, Repeated]]
    auroc: Mapping[str, Mapping[str, Repeated]]
    elbo: Elbo | None


@dataclass(frozen=True)
class LayerCounts:
    """The numbers of values a channel of one layer has for each item of a mini-batch: `nominal` (its positions), and
    how many independent ones its mean (`mean`) and its deviation (`sd`) move like; NaN where that cannot be told."""

    name: str
    channels: int
    nominal: float
    mean: float
    sd: float


@dataclass(frozen=True)
class ElboTerms:
    """What the ELBO of one network rests on, and its asymptotics.

    `points` training points stood for `train_size`. `c` is minus the slope of the mean log-likelihood per example on
    (1/b)(N_ref − b)/(N_ref − 1), in nats; `predicted` is b* = 2Nc/P + mean(1/ρ), P = 2 · `units`; None where they
    cannot be told: fewer than two sizes, or no size is too large.
    """

    prior: str
    prior_parameters: Mapping[str, float]
    counts: Literal["nominal", "measured"]
    kl_weight: float
    train_size: int
    reference_points: int
    points: int
    units: int
    tau: float | None
    layers: tuple[LayerCounts, ...]
    c: Figure | None
    predicted: Figure | None
    why_none: str = ""


@dataclass(frozen=True)
class Decay:
    """The log-log slope of mean mutual information (variance, of a regression) against b over `sizes`, the
    finite-population factor taken out: −1 where the law 1/b holds. `residual` is the largest distance from the line,
    in ln units."""

    slope: Figure
    residual: float
    sizes: tuple[int, ...]


@dataclass(frozen=True)
class SweptModel:
    """A network of the sweep; `decay` is by set, and there for networks that were swept over two sizes or more."""

    name: str
    path: str
    sha256: str
    train_batch_size: int | None
    parameters: int
    batchnorm_layers: int
    layers: tuple[str, ...]
    elbo: ElboTerms | None
    decay: Mapping[str, Decay]
    record: Mapping[str, Any]


@dataclass(frozen=True)
class Recommended:
    """The size that `criterion` is the highest at, on the points of `of` ("train", "validation" or "test").

    `behind` tells for every size that was compared how far its criterion lies above (+) or below (−) the recommended
    one's, with the error of that difference on common random numbers; `within` are the sizes that lie behind by no more
    than one such error. `decided_by` is "prior" where the likelihood changes over the sizes by less than its error.
    """

    batch_size: int
    model: int
    protocol: Protocol
    criterion: Choice
    of: str
    behind: Mapping[int, Figure]
    within: tuple[int, ...]
    decided_by: Literal["likelihood and prior", "prior", "data"]
    predicted_batch_size: Figure | None
    at_end: Literal["", "smallest", "largest"]


@dataclass(frozen=True)
class SweptSet:
    """A set that was evaluated; `role` is "test", "ood" or "validation"."""

    name: str
    role: str
    n: int
    sha256: str


@dataclass(frozen=True)
class Sweep:
    """Everything that a sweep found. `score` is the OOD score of its headline AUROC, `samples` the T of a draw set."""

    task: Task
    models: tuple[SweptModel, ...]
    points: tuple[SweepPoint, ...]
    sets: tuple[SweptSet, ...]
    samples: int
    draw_sets: int
    seed: int
    score: str
    recommended: Recommended | None
    cautions: tuple[Caution, ...]
    notes: tuple[str, ...]
    seconds: Mapping[str, float]
    provenance: Mapping[str, str]
    path: Path | None = field(default=None)

    def line(self, model: int) -> tuple[SweepPoint, ...]:
        """The points of one network, by ascending size: protocol "single"."""
        return tuple(point for point in self.points if point.protocol == "single" and point.model == model)

    @property
    def matched(self) -> tuple[SweepPoint, ...]:
        """The points of one network a size, by ascending size: protocol "matched"."""
        return tuple(point for point in self.points if point.protocol == "matched")


# ── the file ─────────────────────────────────────────────────────────────────────────────────────────────────────────

_ERRORS = ("se", "mc_se", "low", "high")


def write(sweep: Sweep, path: Path) -> None:
    """Write `sweep` to `path`, whole or not at all; ResultError where that cannot be done.

    Replicates of its figures are not kept: their values by draw set are.
    """
    check_replaceable(path)
    with h5py.File("sweep", "w", driver="core", backing_store=False) as file:
        _lay_out(file, sweep)
        file.flush()
        image = file.id.get_file_image()
    write_bytes(path, image)


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
        "recommended": None if sweep.recommended is None else _recommended_told(sweep.recommended),
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


def _recommended_told(found: Recommended) -> dict[str, Any]:
    told = {key: getattr(found, key) for key in _Recommended.__struct_fields__}
    behind = [[size, _told(figure)] for size, figure in found.behind.items()]
    return told | {"behind": behind, "predicted_batch_size": _told(found.predicted_batch_size)}


def _lay_out_models(room: Any, models: Sequence[SweptModel]) -> None:
    axis = add_scale(room, "model", np.arange(len(models)))
    for key in ("name", "path", "sha256"):
        add_variable(room, key, [_utf8(getattr(one, key)) for one in models], (axis,))
    for key in ("train_batch_size", "parameters", "batchnorm_layers"):
        add_variable(room, key, _whole(getattr(one, key) for one in models), (axis,))
    for key, values in {
        "layers": [one.layers for one in models],
        "elbo": [None if one.elbo is None else _terms_told(one.elbo) for one in models],
        "decay": [{name: _decay_told(decay) for name, decay in one.decay.items()} for one in models],
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


def _terms_told(terms: ElboTerms) -> dict[str, Any]:
    told = {key: getattr(terms, key) for key in _Terms.__struct_fields__}
    return told | {
        "prior_parameters": {key: json_number(value) for key, value in terms.prior_parameters.items()},
        "layers": len(terms.layers),
        "c": _told(terms.c),
        "predicted": _told(terms.predicted),
    }


def _decay_told(decay: Decay) -> dict[str, Any]:
    return {"slope": _told(decay.slope), "residual": json_number(decay.residual), "sizes": list(decay.sizes)}


def _told(figure: Figure | None) -> dict[str, Any] | None:
    """A figure as JSON values, without the errors that it has not."""
    if figure is None:
        return None
    errors = {key: getattr(figure, key) for key in _ERRORS}
    known = {key: value for key, value in errors.items() if value is not None and not math.isnan(value)}
    return {key: json_number(value) for key, value in {"value": figure.value, **known}.items()}


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
    for key in ("value", *_ERRORS):
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


_Size = Annotated[int, msgspec.Meta(ge=1)]
_Number = float | Literal["nan", "inf", "-inf"]


class _Figure(msgspec.Struct):
    value: _Number
    se: _Number | None = None
    mc_se: _Number | None = None
    low: _Number | None = None
    high: _Number | None = None

    @property
    def figure(self) -> Figure:
        told = {key: getattr(self, key) for key in _ERRORS}
        errors: dict[str, Any] = {key: None if value is None else float(value) for key, value in told.items()}
        return Figure(float(self.value), **errors)


class _Set(msgspec.Struct):
    name: str
    role: Literal["test", "ood", "validation"]
    n: _Size
    sha256: str


class _Caution(msgspec.Struct):
    code: str
    text: str


class _Recommended(msgspec.Struct):
    batch_size: _Size
    model: int
    protocol: Protocol
    criterion: Choice
    of: str
    behind: list[tuple[_Size, _Figure]]
    within: tuple[_Size, ...]
    decided_by: Literal["likelihood and prior", "prior", "data"]
    predicted_batch_size: _Figure | None
    at_end: Literal["", "smallest", "largest"]


class _Terms(msgspec.Struct):
    prior: str
    prior_parameters: dict[str, _Number]
    counts: Literal["nominal", "measured"]
    kl_weight: float
    train_size: _Size
    reference_points: _Size
    points: _Size
    units: int
    tau: float | None
    layers: Annotated[int, msgspec.Meta(ge=0)]
    c: _Figure | None
    predicted: _Figure | None
    why_none: str


class _Decay(msgspec.Struct):
    slope: _Figure
    residual: _Number
    sizes: tuple[_Size, ...]


class _Texts(msgspec.Struct):
    task: Task
    samples: _Size
    draw_sets: _Size
    seed: int
    score: str
    sets: list[_Set]
    points: _Size
    recommended: _Recommended | None
    warnings: list[_Caution]
    notes: tuple[str, ...]
    seconds: dict[str, float]
    provenance: dict[str, str]


def _read(file: Any, path: Path) -> Sweep:
    texts = msgspec.convert({key: json.loads(file.attrs[key]) for key in _Texts.__struct_fields__}, _Texts)
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
        recommended=None if texts.recommended is None else _recommended(texts.recommended),
        cautions=tuple(Caution(one.code, one.text) for one in texts.warnings),
        notes=texts.notes,
        seconds=texts.seconds,
        provenance=texts.provenance,
        path=path,
    )


def _recommended(told: _Recommended) -> Recommended:
    fields = {key: getattr(told, key) for key in _Recommended.__struct_fields__}
    fields["behind"] = {size: one.figure for size, one in told.behind}
    fields["predicted_batch_size"] = _figure(told.predicted_batch_size)
    return Recommended(**fields)


def _figure(told: _Figure | None) -> Figure | None:
    return None if told is None else told.figure


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
        decay = msgspec.convert(json.loads(decays[row]), dict[str, _Decay])
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
    told = msgspec.convert(text, _Terms | None)
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
    fields = {key: getattr(told, key) for key in _Terms.__struct_fields__}
    fields["prior_parameters"] = {key: float(value) for key, value in told.prior_parameters.items()}
    return ElboTerms(**fields | {"layers": layers, "c": _figure(told.c), "predicted": _figure(told.predicted)})


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
    errors = {key: numbers(room, f"{name}_{key}", "f", shape=shape) for key in _ERRORS}
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


# ── the summary ──────────────────────────────────────────────────────────────────────────────────────────────────────


def summary(sweep: Sweep) -> dict[str, Any]:
    """The sweep as JSON values; infinities and NaN are the strings "inf", "-inf" and "nan"."""
    return {
        "bnuq": sweep.provenance["bnuq"],
        "schema": SCHEMA,
        "command": COMMAND,
        "kind": KIND,
        "task": sweep.task,
        "models": [_model_summary(one) for one in sweep.models],
        "sampling": {
            "samples": sweep.samples,
            "draw_sets": sweep.draw_sets,
            "batch_sizes": sorted({point.batch_size for point in sweep.points}),
            "layers": list(sweep.models[0].layers),
            "seed": sweep.seed,
            **{key: told for key in ("device", "precision") if (told := _asked(sweep, key)) is not None},
        },
        "sets": {one.name: {"role": one.role, "n": one.n, "sha256": one.sha256} for one in sweep.sets},
        "score": sweep.score,
        "points": [_point_summary(sweep, point) for point in sweep.points],
        "recommended": None if sweep.recommended is None else _recommended_summary(sweep, sweep.recommended),
        "seconds": {name: round(value, 3) for name, value in sweep.seconds.items()},
        "warnings": [{"code": caution.code, "text": caution.text} for caution in sweep.cautions],
        "notes": list(sweep.notes),
        "result": None if sweep.path is None else str(sweep.path),
    }


def _asked(sweep: Sweep, key: str) -> Any:
    """An option of the first network's request."""
    return sweep.models[0].record.get("options", {}).get(key)


def _model_summary(one: SweptModel) -> dict[str, Any]:
    terms: dict[str, Any] | None = None
    if one.elbo is not None:
        layers = [
            {"name": layer.name, "channels": layer.channels}
            | {key: json_number(getattr(layer, key)) for key in ("nominal", "mean", "sd")}
            for layer in one.elbo.layers
        ]
        terms = _terms_told(one.elbo) | {"layers": layers}
    return {
        "name": one.name,
        "path": one.path,
        "sha256": one.sha256,
        "train_batch_size": one.train_batch_size,
        "parameters": one.parameters,
        "batchnorm_layers": one.batchnorm_layers,
        "layers": list(one.layers),
        "elbo": terms,
        "decay": {name: _decay_told(decay) for name, decay in one.decay.items()},
    }


def _point_summary(sweep: Sweep, point: SweepPoint) -> dict[str, Any]:
    auroc = {score: _figures_told(by) for score, by in point.auroc.items()}
    elbo = {} if point.elbo is None else {key: _told(getattr(point.elbo, key)) for key in _OF_ELBO}
    return {
        "batch_size": point.batch_size,
        "train_batch_size": point.train_batch_size,
        "protocol": point.protocol,
        "model": sweep.models[point.model].name,
        "degenerate": point.degenerate,
        **{metric: _figures_told(by) for metric, by in point.figures.items()},
        "auroc": auroc.get(sweep.score, {}),
        "auroc_by": auroc,
        **dict.fromkeys((*_OF_ELBO, "kl")),
        **elbo,
        **({} if point.elbo is None else {"kl": json_number(point.elbo.kl)}),
    }


_OF_ELBO = ("elbo", "expected_log_likelihood")


def _figures_told(by: Mapping[str, Repeated]) -> dict[str, Any]:
    return {name: _told(one.figure) for name, one in by.items()}


def _recommended_summary(sweep: Sweep, found: Recommended) -> dict[str, Any]:
    return {
        "batch_size": found.batch_size,
        "criterion": found.criterion,
        "range": [min(found.within, default=found.batch_size), max(found.within, default=found.batch_size)],
        "predicted_batch_size": _told(found.predicted_batch_size),
        "decided_by": found.decided_by,
        "behind": {str(size): _told(figure) for size, figure in found.behind.items()},
        "protocol": found.protocol,
        "model": sweep.models[found.model].name,
        "of": found.of,
        "at_end": found.at_end,
    }
