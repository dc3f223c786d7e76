"""The summary of a sweep that `--json` prints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bnuq import catalogue
from bnuq.records.summary import SCHEMA, estimate_summary, json_number
from bnuq.records.sweep.records import Compared, Decay, ElboTerms, Recommended, Repeated, Sweep, SweepPoint, SweptModel


def summary(sweep: Sweep) -> dict[str, Any]:
    """The sweep as JSON values; infinities and NaN are the strings "inf", "-inf" and "nan"."""
    return {
        "bnuq": sweep.provenance["bnuq"],
        "schema": SCHEMA,
        "command": sweep.COMMAND,
        "kind": sweep.KIND,
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
        **catalogue.summary(sweep.findings),
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
        terms = _terms(one.elbo) | {"layers": layers}
    return {
        "name": one.name,
        "path": one.path,
        "sha256": one.sha256,
        "train_batch_size": one.train_batch_size,
        "parameters": one.parameters,
        "batchnorm_layers": one.batchnorm_layers,
        "layers": list(one.layers),
        "elbo": terms,
        "decay": {name: _decay(decay) for name, decay in one.decay.items()},
    }


def _point_summary(sweep: Sweep, point: SweepPoint) -> dict[str, Any]:
    auroc = {score: _estimates_told(by) for score, by in point.auroc.items()}
    elbo = {} if point.elbo is None else {key: estimate_summary(getattr(point.elbo, key)) for key in _OF_ELBO}
    return {
        "batch_size": point.batch_size,
        "train_batch_size": point.train_batch_size,
        "protocol": point.protocol,
        "model": sweep.models[point.model].name,
        "degenerate": point.degenerate,
        **{metric: _estimates_told(by) for metric, by in point.estimates.items()},
        "auroc": auroc.get(sweep.score, {}),
        "auroc_by": auroc,
        **dict.fromkeys((*_OF_ELBO, "kl")),
        **elbo,
        **({} if point.elbo is None else {"kl": json_number(point.elbo.kl)}),
        **({"compared_with": _compared(point.compared_with)} if point.compared_with else {}),
    }


_OF_ELBO = ("elbo", "expected_log_likelihood")


def _estimates_told(by: Mapping[str, Repeated]) -> dict[str, Any]:
    return {name: estimate_summary(one.estimate) for name, one in by.items()}


def _recommended_summary(sweep: Sweep, found: Recommended) -> dict[str, Any]:
    return {
        "batch_size": found.batch_size,
        "criterion": found.criterion,
        "range": [min(found.within, default=found.batch_size), max(found.within, default=found.batch_size)],
        "predicted_batch_size": estimate_summary(found.predicted_batch_size),
        "decided_by": found.decided_by,
        "behind": {str(size): estimate_summary(estimate) for size, estimate in found.behind.items()},
        "protocol": found.protocol,
        "model": sweep.models[found.model].name,
        "of": found.of,
        "at_end": found.at_end,
    }


def _terms(terms: ElboTerms) -> dict[str, Any]:
    return vars(terms) | {
        "prior_parameters": {key: json_number(value) for key, value in terms.prior_parameters.items()},
        "c": estimate_summary(terms.c),
        "predicted": estimate_summary(terms.predicted),
    }


def _decay(decay: Decay) -> dict[str, Any]:
    return {"slope": estimate_summary(decay.slope), "residual": json_number(decay.residual), "sizes": list(decay.sizes)}


def _compared(found: Mapping[str, Mapping[str, Compared]]) -> dict[str, Any]:
    return {
        network: {
            metric: {"estimate": estimate_summary(one.estimate), "difference": estimate_summary(one.difference)}
            for metric, one in of_network.items()
        }
        for network, of_network in found.items()
    }
