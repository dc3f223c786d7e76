"""Records of a sweep as JSON values, for its file and its summary."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec

from bnuq.records import Figure
from bnuq.results.summary import json_number
from bnuq.results.sweep.records import (
    Choice,
    Compared,
    Decay,
    ElboTerms,
    Protocol,
    Recommended,
)
from bnuq.run import Task

ERRORS = ("se", "mc_se", "low", "high")
Size = Annotated[int, msgspec.Meta(ge=1)]
Number = float | Literal["nan", "inf", "-inf"]


class ToldFigure(msgspec.Struct):
    value: Number
    se: Number | None = None
    mc_se: Number | None = None
    low: Number | None = None
    high: Number | None = None

    @property
    def figure(self) -> Figure:
        told = {key: getattr(self, key) for key in ERRORS}
        errors: dict[str, Any] = {key: None if value is None else float(value) for key, value in told.items()}
        return Figure(float(self.value), **errors)


class ToldCompared(msgspec.Struct):
    figure: ToldFigure
    difference: ToldFigure


class ToldSet(msgspec.Struct):
    name: str
    role: Literal["test", "ood", "validation"]
    n: Size
    sha256: str


class ToldCaution(msgspec.Struct):
    code: str
    text: str


class ToldRecommended(msgspec.Struct):
    batch_size: Size
    model: int
    protocol: Protocol
    criterion: Choice
    of: str
    behind: list[tuple[Size, ToldFigure]]
    within: tuple[Size, ...]
    decided_by: Literal["likelihood and prior", "prior", "data"]
    predicted_batch_size: ToldFigure | None
    at_end: Literal["", "smallest", "largest"]


class ToldTerms(msgspec.Struct):
    prior: str
    prior_parameters: dict[str, Number]
    counts: Literal["nominal", "measured"]
    kl_weight: float
    train_size: Size
    reference_points: Size
    points: Size
    units: int
    tau: float | None
    layers: Annotated[int, msgspec.Meta(ge=0)]
    c: ToldFigure | None
    predicted: ToldFigure | None
    why_none: str


class ToldDecay(msgspec.Struct):
    slope: ToldFigure
    residual: Number
    sizes: tuple[Size, ...]


class ToldTexts(msgspec.Struct):
    task: Task
    samples: Size
    draw_sets: Size
    seed: int
    score: str
    sets: list[ToldSet]
    points: Size
    recommended: ToldRecommended | None
    warnings: list[ToldCaution]
    notes: tuple[str, ...]
    seconds: dict[str, float]
    provenance: dict[str, str]


def recommended_of(told: ToldRecommended) -> Recommended:
    fields = {key: getattr(told, key) for key in ToldRecommended.__struct_fields__}
    fields["behind"] = {size: one.figure for size, one in told.behind}
    fields["predicted_batch_size"] = figure_of(told.predicted_batch_size)
    return Recommended(**fields)


def figure_of(told: ToldFigure | None) -> Figure | None:
    return None if told is None else told.figure


def recommended_told(found: Recommended) -> dict[str, Any]:
    told = {key: getattr(found, key) for key in ToldRecommended.__struct_fields__}
    behind = [[size, figure_told(figure)] for size, figure in found.behind.items()]
    return told | {"behind": behind, "predicted_batch_size": figure_told(found.predicted_batch_size)}


def terms_told(terms: ElboTerms) -> dict[str, Any]:
    told = {key: getattr(terms, key) for key in ToldTerms.__struct_fields__}
    return told | {
        "prior_parameters": {key: json_number(value) for key, value in terms.prior_parameters.items()},
        "layers": len(terms.layers),
        "c": figure_told(terms.c),
        "predicted": figure_told(terms.predicted),
    }


def decay_told(decay: Decay) -> dict[str, Any]:
    return {"slope": figure_told(decay.slope), "residual": json_number(decay.residual), "sizes": list(decay.sizes)}


def compared_told(found: Mapping[str, Mapping[str, Compared]]) -> dict[str, Any]:
    return {
        network: {
            metric: {"figure": figure_told(one.figure), "difference": figure_told(one.difference)}
            for metric, one in of_network.items()
        }
        for network, of_network in found.items()
    }


def compared_of(told: Any) -> dict[str, dict[str, Compared]]:
    found = msgspec.convert(told, dict[Literal["deterministic", "deterministic+population"], dict[str, ToldCompared]])
    if len(found) == 1:
        raise ValueError(f"MCBN is compared with {min(found)} alone")
    return {
        network: {metric: Compared(one.figure.figure, one.difference.figure) for metric, one in of_network.items()}
        for network, of_network in found.items()
    }


def figure_told(figure: Figure | None) -> dict[str, Any] | None:
    """A figure as JSON values, without the errors that it has not."""
    if figure is None:
        return None
    errors = {key: getattr(figure, key) for key in ERRORS}
    known = {key: value for key, value in errors.items() if value is not None and not math.isnan(value)}
    return {key: json_number(value) for key, value in {"value": figure.value, **known}.items()}
