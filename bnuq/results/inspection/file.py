"""The file of an inspection.

    /            attributes: format, bnuq, command, kind ("inspection"), and as JSON run, model, unreachable, warnings,
                 notes, seconds, provenance, parts (which groups there are); sites, how many there are
    /sites       by site: kind, order, reason, flags (JSON), variety; channels, positions, vanishing (−1: none); eps,
                 momentum, p (NaN: none)
    /gap         attributes points, batch_size, worth, passed, layers; by layer: explained_shift, explained_log_ratio,
                 ratio_mean, ratio_log_variance, dead, channels; by channel, those of one layer after those of the
                 other: shift, log_ratio
    /noise       attributes batch_size, draws, layers, spatial_slope; by layer: channels, positions, nominal, sigma_u,
                 sigma_v, values_mean, values_deviation, rejected, rejected_fitted, unbiased_scale; slope with _se,
                 _mc_se, _low, _high and _known (0: there is none); variances (layer, size); spread (draw, channel),
                 channels as in /gap
    /domains     attributes batch_size, samples, domains, crossings, metrics; by domain: reference, n, labelled
        d0, …    by layer: shift, log_ratio, ratio (d0: number 0 of domain)
        crossings  domain, statistics, and each metric as slope above
    /pipelines   attributes undetermined, lines, and how many candidates and first_round there are
        candidates, first_round   normalize ("": none), mean, std (JSON), channel_order, scale, augment, median, worst,
                 worst_layer, passed, tied

What a run did not look at has no group. Missing numbers are NaN, and every data set of numbers has units. A reader must
refuse a `format` above its own.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import numpy as np

from bnuq.files.hdf5 import image_of
from bnuq.files.writing import write_bytes
from bnuq.metrics import METRICS
from bnuq.records import Caution, Figure
from bnuq.results.file import add_scale, add_variable, check_replaceable, unit_of
from bnuq.results.inspection.records import (
    COMMAND,
    KIND,
    Candidate,
    Crossing,
    Domain,
    Domains,
    Flag,
    Gap,
    Inspection,
    LayerGap,
    LayerNoise,
    Noise,
    Pipelines,
    SiteRow,
)
from bnuq.results.inspection.summary import summary
from bnuq.results.reading import numbers, open_result
from bnuq.results.sweep.told import ERRORS, Size, ToldCaution, ToldFigure, figure_told

FORMAT = 1

Column = Literal["text", "json", "whole", "number", "yes"]
Rows = list[dict[str, Any]]

_SITE: dict[str, Column] = {
    "name": "text", "kind": "text", "order": "whole", "reason": "text", "flags": "json", "channels": "whole",
    "positions": "whole", "eps": "number", "momentum": "number", "vanishing": "whole", "p": "number", "variety": "text",
}  # fmt: skip
_GAP: dict[str, Column] = {
    "name": "text", "explained_shift": "number", "explained_log_ratio": "number", "ratio_mean": "number",
    "ratio_log_variance": "number", "dead": "whole",
}  # fmt: skip
_NOISE: dict[str, Column] = {
    "name": "text", "channels": "whole", "positions": "whole", "nominal": "whole", "sigma_u": "number",
    "sigma_v": "number", "values_mean": "number", "values_deviation": "number", "rejected": "number",
    "rejected_fitted": "number", "unbiased_scale": "number",
}  # fmt: skip
_DOMAIN: dict[str, Column] = {"name": "text", "reference": "text", "n": "whole", "labelled": "yes"}
_CROSSING: dict[str, Column] = {"domain": "text", "statistics": "text"}
_CANDIDATE: dict[str, Column] = {
    "normalize": "text", "mean": "json", "std": "json", "channel_order": "text", "scale": "whole", "augment": "text",
    "median": "number", "worst": "number", "worst_layer": "text", "passed": "yes", "tied": "yes",
}  # fmt: skip
_MAY_MISS = {"channels", "positions", "vanishing", "eps", "momentum", "p", "variety", "normalize"}


def write(inspection: Inspection, path: Path) -> None:
    """Write `inspection` to `path`, whole or not at all; ResultError where that cannot be done.

    Replicates of its figures are not kept.
    """
    check_replaceable(path)
    write_bytes(path, image_of(lambda file: _lay_out(file, inspection)))


def _lay_out(file: Any, found: Inspection) -> None:
    file.attrs["format"] = FORMAT
    file.attrs["bnuq"] = str(found.provenance["bnuq"])
    file.attrs["command"] = COMMAND
    file.attrs["kind"] = KIND
    _tell(
        file,
        run=dict(found.run),
        model=dict(found.model),
        unreachable=found.unreachable,
        warnings=[asdict(caution) for caution in found.cautions],
        notes=found.notes,
        seconds=dict(found.seconds),
        provenance=dict(found.provenance),
        sites=len(found.sites),
        parts=[name for name in _PARTS if getattr(found, name) is not None],
    )
    if found.sites:
        rows = [asdict(site) for site in found.sites]
        _add_rows(file.create_group("sites", track_order=True), "site", rows, _SITE)
    for name, lay_out in _PARTS.items():
        if (part := getattr(found, name)) is not None:
            lay_out(file.create_group(name, track_order=True), part)


def _tell(room: Any, **values: Any) -> None:
    for name, value in values.items():
        room.attrs[name] = json.dumps(value)


def _add_rows(room: Any, axis: str, rows: Sequence[Mapping[str, Any]], columns: Mapping[str, Column]) -> Any:
    """A column a key, along an axis of the rows' names, or of their numbers where they have none; the axis."""
    named = "name" in columns
    along = add_scale(room, axis, [_text(row["name"]) for row in rows] if named else np.arange(len(rows)))
    for key, kind in columns.items():
        values = [row[key] for row in rows]
        told: Any
        if key == "name":
            continue
        if kind == "text":
            told = [_text(value or "") for value in values]
        elif kind == "json":
            told = [json.dumps(value) for value in values]
        elif kind == "number":
            told = np.array([math.nan if value is None else value for value in values], np.float64)
        else:
            told = np.array([-1 if value is None else value for value in values], np.int64)
        add_variable(room, key, told, (along,))
    return along


def _text(text: str) -> str:
    """What HDF5 can hold: a name may have bytes that are not UTF-8, which Python keeps as surrogates, or zeros."""
    return text.encode("utf-8", "backslashreplace").decode().replace("\0", "\\x00")


def _add_figures(room: Any, name: str, figures: Sequence[Figure | None], axis: Any, *, unit: str = "1") -> None:
    for key in ("value", *ERRORS):
        values = [None if figure is None else getattr(figure, key) for figure in figures]
        column = np.array([math.nan if value is None else value for value in values], np.float64)
        add_variable(room, name if key == "value" else f"{name}_{key}", column, (axis,), unit=unit)
    known = np.array([figure is not None for figure in figures], np.int64)
    add_variable(room, f"{name}_known", known, (axis,))


def _lay_out_gap(room: Any, gap: Gap) -> None:
    worth = None if gap.worth is None else float(gap.worth)
    _tell(room, points=gap.points, batch_size=gap.batch_size, worth=worth, passed=gap.passed, layers=len(gap.layers))
    if gap.layers:
        layer = _add_rows(room, "layer", [vars(one) for one in gap.layers], _GAP)
        counts = np.array([len(one.shift) for one in gap.layers], np.int64)
        add_variable(room, "channels", counts, (layer,))
        channel = add_scale(room, "channel", np.arange(counts.sum()))
        add_variable(room, "shift", np.concatenate([one.shift for one in gap.layers]), (channel,))
        add_variable(room, "log_ratio", np.concatenate([one.log_ratio for one in gap.layers]), (channel,))


def _lay_out_noise(room: Any, noise: Noise) -> None:
    _tell(
        room,
        batch_size=noise.batch_size,
        draws=noise.draws,
        layers=len(noise.layers),
        spatial_slope=figure_told(noise.spatial_slope),
    )
    size = add_scale(room, "size", np.array(noise.sizes, np.int64))
    if noise.layers:
        layer = _add_rows(room, "layer", [vars(one) for one in noise.layers], _NOISE)
        _add_figures(room, "slope", [one.slope for one in noise.layers], layer)
        add_variable(room, "variances", np.stack([one.variances for one in noise.layers]), (layer, size))
        spread = np.concatenate([one.spread for one in noise.layers], axis=1)
        draw = add_scale(room, "draw", np.arange(len(spread)))
        channel = add_scale(room, "channel", np.arange(spread.shape[1]))
        add_variable(room, "spread", spread, (draw, channel))


def _lay_out_domains(room: Any, found: Domains) -> None:
    metrics = list(dict.fromkeys(name for one in found.crossings for name in one.figures))
    _tell(
        room,
        batch_size=found.batch_size,
        samples=found.samples,
        domains=len(found.domains),
        crossings=len(found.crossings),
        metrics=metrics,
    )
    if found.domains:
        _add_rows(room, "domain", [vars(one) for one in found.domains], _DOMAIN)
    for number, one in enumerate(found.domains):
        inside = room.create_group(f"d{number}", track_order=True)
        _tell(inside, layers=len(one.layers))
        if one.layers:
            layer = add_scale(inside, "layer", [_text(name) for name in one.layers])
            for key in ("shift", "log_ratio", "ratio"):
                add_variable(inside, key, np.asarray(getattr(one, key)), (layer,))
    if found.crossings:
        inside = room.create_group("crossings", track_order=True)
        crossing = _add_rows(inside, "crossing", [vars(one) for one in found.crossings], _CROSSING)
        for name in metrics:
            figures = [one.figures.get(name) for one in found.crossings]
            _add_figures(inside, name, figures, crossing, unit=unit_of(name))


def _lay_out_pipelines(room: Any, found: Pipelines) -> None:
    groups = {"candidates": found.candidates, "first_round": found.first_round}
    counts = {name: len(rows) for name, rows in groups.items()}
    _tell(room, undetermined=found.undetermined, lines=found.lines, **counts)
    for name, rows in groups.items():
        if rows:
            inside = room.create_group(name, track_order=True)
            _add_rows(inside, "candidate", [asdict(one) for one in rows], _CANDIDATE)


_PARTS: dict[str, Callable[[Any, Any], None]] = {
    "gap": _lay_out_gap,
    "noise": _lay_out_noise,
    "domains": _lay_out_domains,
    "pipelines": _lay_out_pipelines,
}


# ── reading ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def read(path: Path) -> Inspection:
    """The inspection in the file at `path`; ResultError where that is not one, is newer, or is damaged.

    Everything that a report or a summary uses is there and of its kind: what reads an Inspection need not look again.
    """
    with open_result(path, "inspection", newest=FORMAT) as file:
        found = _read(file, path.absolute())
        json.dumps(summary(found), allow_nan=False)
    return found


Count = Annotated[int, msgspec.Meta(ge=0)]


class _Model(msgspec.Struct):
    path: str
    parameters: Count
    batchnorm_layers: Count
    dropout_layers: Count
    train_batch_size: Size | None = None


class _Provenance(msgspec.Struct):
    bnuq: str


class _Texts(msgspec.Struct):
    run: dict[str, Any]
    model: dict[str, Any]
    unreachable: tuple[tuple[str, str], ...]
    warnings: tuple[ToldCaution, ...]
    notes: tuple[str, ...]
    seconds: dict[str, float]
    provenance: dict[str, Any]
    sites: Count
    parts: tuple[Literal["gap", "noise", "domains", "pipelines"], ...]


class _GapTexts(msgspec.Struct):
    points: Size
    batch_size: Size
    worth: float | None
    passed: bool | None
    layers: Count


class _NoiseTexts(msgspec.Struct):
    batch_size: Size
    draws: Size
    layers: Count
    spatial_slope: ToldFigure | None


class _DomainTexts(msgspec.Struct):
    batch_size: Size
    samples: Size
    domains: Count
    crossings: Count
    metrics: tuple[str, ...]


class _PipelineTexts(msgspec.Struct):
    undetermined: tuple[str, ...]
    lines: str
    candidates: Count
    first_round: Count


def _told(room: Any, kind: Any) -> Any:
    """The JSON attributes of a room, as this struct."""
    return msgspec.convert({key: json.loads(room.attrs[key]) for key in kind.__struct_fields__}, kind)


def _read(file: Any, path: Path) -> Inspection:
    texts: _Texts = _told(file, _Texts)
    msgspec.convert(texts.model, _Model)
    msgspec.convert(texts.provenance, _Provenance)
    if "total" not in texts.seconds:
        raise ValueError("how long it took is missing")
    return Inspection(
        run=texts.run,
        model=texts.model,
        sites=tuple(_site(row) for row in _read_rows(_in(file, "sites", texts.sites), "site", texts.sites, _SITE)),
        unreachable=texts.unreachable,
        gap=_read_gap(file["gap"]) if "gap" in texts.parts else None,
        noise=_read_noise(file["noise"]) if "noise" in texts.parts else None,
        domains=_read_domains(file["domains"]) if "domains" in texts.parts else None,
        pipelines=_read_pipelines(file["pipelines"]) if "pipelines" in texts.parts else None,
        cautions=tuple(Caution(one.code, one.text) for one in texts.warnings),
        notes=texts.notes,
        seconds=texts.seconds,
        provenance=texts.provenance,
        path=path,
    )


def _in(room: Any, name: str, count: int) -> Any:
    """The group of a table; without rows there is none."""
    return room[name] if count else None


def _read_rows(room: Any, axis: str, count: int, columns: Mapping[str, Column]) -> Rows:
    """The rows of a table, as many as there must be."""
    rows: Rows = [{} for _ in range(count)]
    if count and room[axis].shape != (count,):
        raise ValueError(f"{room.name} has not the {count} rows that belong there")
    for key, kind in columns.items() if count else ():
        column = _column(room, axis if key == "name" else key, kind, count, missing=key in _MAY_MISS)
        for row, value in zip(rows, column, strict=True):
            row[key] = value
    return rows


def _column(room: Any, key: str, kind: Column, count: int, *, missing: bool) -> Iterable[Any]:
    if kind in ("text", "json"):
        texts = room[key].asstr()[()]
        if texts.shape != (count,):
            raise ValueError(f"{room.name}/{key} has not the {count} rows that belong there")
        return (
            [json.loads(one) for one in texts] if kind == "json" else [one or None if missing else one for one in texts]
        )
    if kind == "number":
        column = [float(value) for value in numbers(room, key, "f", shape=(count,))]
        return [None if missing and math.isnan(value) else value for value in column]
    whole = [int(value) for value in numbers(room, key, "i", shape=(count,))]
    if kind == "yes":
        return [bool(value) for value in whole]
    if not missing and min(whole) < 0:
        raise ValueError(f"{room.name}/{key} counts {min(whole)}")
    return [None if value < 0 else value for value in whole]


def _site(row: dict[str, Any]) -> SiteRow:
    kind = msgspec.convert(row["kind"], Literal["batchnorm", "dropout"])
    return SiteRow(**row | {"kind": kind, "flags": msgspec.convert(row["flags"], tuple[Flag, ...])})


def _read_figures(room: Any, name: str, count: int) -> list[Figure | None]:
    columns = {
        key: numbers(room, name if key == "value" else f"{name}_{key}", "f", shape=(count,))
        for key in ("value", *ERRORS)
    }
    known = numbers(room, f"{name}_known", "i", shape=(count,))
    return [
        _figure({key: float(column[row]) for key, column in columns.items()}) if known[row] else None
        for row in range(count)
    ]


def _figure(told: Mapping[str, float]) -> Figure:
    se, mc_se, low, high = (None if math.isnan(told[key]) else told[key] for key in ERRORS)
    return Figure(told["value"], se=se, mc_se=mc_se, low=low, high=high)


def _cut(values: np.ndarray, counts: Sequence[int], axis: int = 0) -> list[np.ndarray]:
    """The channels of each layer."""
    if min(counts) < 1:
        raise ValueError("a layer has no channels")
    return np.split(values, np.cumsum(counts)[:-1], axis=axis)


def _read_gap(room: Any) -> Gap:
    told: _GapTexts = _told(room, _GapTexts)
    rows = _read_rows(room, "layer", told.layers, _GAP)
    layers: tuple[LayerGap, ...] = ()
    if rows:
        counts = [int(value) for value in numbers(room, "channels", "i", shape=(len(rows),))]
        shape = (sum(counts),)
        shift, log_ratio = (_cut(numbers(room, key, "f", shape=shape), counts) for key in ("shift", "log_ratio"))
        layers = tuple(
            LayerGap(**row, shift=one, log_ratio=other) for row, one, other in zip(rows, shift, log_ratio, strict=True)
        )
    return Gap(points=told.points, batch_size=told.batch_size, worth=told.worth, passed=told.passed, layers=layers)


def _read_noise(room: Any) -> Noise:
    told: _NoiseTexts = _told(room, _NoiseTexts)
    sizes = tuple(int(size) for size in numbers(room, "size", "i"))
    if sizes and min(sizes) < 1:
        raise ValueError("a batch size is not a positive number")
    count = told.layers
    columns: dict[str, Column] = {key: kind for key, kind in _NOISE.items() if key not in ("channels", "positions")}
    rows = _read_rows(room, "layer", count, columns)
    layers: tuple[LayerNoise, ...] = ()
    if rows:
        channels, positions = (
            [int(value) for value in numbers(room, key, "i", shape=(count,))] for key in ("channels", "positions")
        )
        slopes = _read_figures(room, "slope", count)
        variances = numbers(room, "variances", "f", shape=(count, len(sizes)))
        spread = _cut(numbers(room, "spread", "f", shape=(told.draws, sum(channels))), channels, axis=1)
        layers = tuple(
            LayerNoise(
                **row, channels=channels[at], positions=positions[at], slope=slopes[at], variances=variances[at],
                spread=spread[at],
            )
            for at, row in enumerate(rows)
        )  # fmt: skip
    slope = None if told.spatial_slope is None else told.spatial_slope.figure
    return Noise(batch_size=told.batch_size, draws=told.draws, sizes=sizes, layers=layers, spatial_slope=slope)


def _read_domains(room: Any) -> Domains:
    told: _DomainTexts = _told(room, _DomainTexts)
    if unknown := set(told.metrics) - set(METRICS):
        raise ValueError(f"a figure of {min(unknown)} is unknown")
    domains = []
    for number, row in enumerate(_read_rows(room, "domain", told.domains, _DOMAIN)):
        inside = room[f"d{number}"]
        count = msgspec.convert(json.loads(inside.attrs["layers"]), Count)
        names = tuple(str(name) for name in inside["layer"].asstr()[()]) if count else ()
        shift, log_ratio, ratio = (
            numbers(inside, key, "f", shape=(count,)) if count else np.zeros(0)
            for key in ("shift", "log_ratio", "ratio")
        )
        if len(names) != count:
            raise ValueError(f"{inside.name} has not the {count} layers that belong there")
        domains.append(Domain(**row, layers=names, shift=shift, log_ratio=log_ratio, ratio=ratio))
    inside = _in(room, "crossings", told.crossings)
    rows = _read_rows(inside, "crossing", told.crossings, _CROSSING)
    figures = {name: _read_figures(inside, name, len(rows)) for name in told.metrics} if rows else {}
    crossings = tuple(
        Crossing(
            **row,
            figures={name: figure for name, column in figures.items() if (figure := column[at]) is not None},
        )
        for at, row in enumerate(rows)
    )
    return Domains(tuple(domains), crossings, batch_size=told.batch_size, samples=told.samples)


def _read_pipelines(room: Any) -> Pipelines:
    told: _PipelineTexts = _told(room, _PipelineTexts)
    candidates, first_round = (
        tuple(_candidate(row) for row in _read_rows(_in(room, name, count), "candidate", count, _CANDIDATE))
        for name, count in (("candidates", told.candidates), ("first_round", told.first_round))
    )
    return Pipelines(candidates, first_round, undetermined=told.undetermined, lines=told.lines)


def _candidate(row: dict[str, Any]) -> Candidate:
    kinds = {
        "mean": tuple[float, ...], "std": tuple[float, ...], "channel_order": Literal["rgb", "bgr"],
        "scale": Literal[1, 255],
    }  # fmt: skip
    return Candidate(**row | {key: msgspec.convert(row[key], kind) for key, kind in kinds.items()})
