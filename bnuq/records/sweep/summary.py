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
        "models": [_model_summary(model) for model in sweep.models],
        "sampling": {
            "samples": sweep.samples,
            "draw_sets": sweep.draw_sets,
            "batch_sizes": sorted({point.batch_size for point in sweep.points}),
            "layers": list(sweep.models[0].layers),
            "seed": sweep.seed,
            **{key: value for key in ("device", "precision") if (value := _requested(sweep, key)) is not None},
        },
        "sets": {item.name: {"role": item.role, "n": item.n, "sha256": item.sha256} for item in sweep.sets},
        "score": sweep.score,
        "points": [_point_summary(sweep, point) for point in sweep.points],
        "recommended": None if sweep.recommended is None else _recommended_summary(sweep, sweep.recommended),
        "seconds": {name: round(value, 3) for name, value in sweep.seconds.items()},
        **catalogue.summary(sweep.findings),
        "result": None if sweep.path is None else str(sweep.path),
    }


def _requested(sweep: Sweep, key: str) -> Any:
    """An option of the first network's request."""
    return sweep.models[0].record.get("options", {}).get(key)


def _model_summary(model: SweptModel) -> dict[str, Any]:
    terms: dict[str, Any] | None = None
    if model.elbo is not None:
        layers = [
            {"name": layer.name, "channels": layer.channels}
            | {key: json_number(getattr(layer, key)) for key in ("nominal", "mean", "sd")}
            for layer in model.elbo.layers
        ]
        terms = _terms(model.elbo) | {"layers": layers}
    return {
        "name": model.name,
        "path": model.path,
        "sha256": model.sha256,
        "train_batch_size": model.train_batch_size,
        "parameters": model.parameters,
        "batchnorm_layers": model.batchnorm_layers,
        "layers": list(model.layers),
        "elbo": terms,
        "decay": {name: _decay(decay) for name, decay in model.decay.items()},
    }


def _point_summary(sweep: Sweep, point: SweepPoint) -> dict[str, Any]:
    auroc = {score: _estimate_summaries(by) for score, by in point.auroc.items()}
    elbo = {} if point.elbo is None else {key: estimate_summary(getattr(point.elbo, key)) for key in _OF_ELBO}
    return {
        "batch_size": point.batch_size,
        "train_batch_size": point.train_batch_size,
        "protocol": point.protocol,
        "model": sweep.models[point.model].name,
        "degenerate": point.degenerate,
        **{metric: _estimate_summaries(by) for metric, by in point.estimates.items()},
        "auroc": auroc.get(sweep.score, {}),
        "auroc_by": auroc,
        **dict.fromkeys((*_OF_ELBO, "kl")),
        **elbo,
        **({} if point.elbo is None else {"kl": json_number(point.elbo.kl)}),
        **({"compared_with": _compared(point.compared_with)} if point.compared_with else {}),
    }


_OF_ELBO = ("elbo", "expected_log_likelihood")


def _estimate_summaries(by: Mapping[str, Repeated]) -> dict[str, Any]:
    return {name: estimate_summary(repeated.estimate) for name, repeated in by.items()}


def _recommended_summary(sweep: Sweep, recommended: Recommended) -> dict[str, Any]:
    return {
        "batch_size": recommended.batch_size,
        "criterion": recommended.criterion,
        "range": [
            min(recommended.within, default=recommended.batch_size),
            max(recommended.within, default=recommended.batch_size),
        ],
        "predicted_batch_size": estimate_summary(recommended.predicted_batch_size),
        "decided_by": recommended.decided_by,
        "behind": {str(size): estimate_summary(estimate) for size, estimate in recommended.behind.items()},
        "protocol": recommended.protocol,
        "model": sweep.models[recommended.model].name,
        "of": recommended.of,
        "at_end": recommended.at_end,
    }


def _terms(terms: ElboTerms) -> dict[str, Any]:
    return vars(terms) | {
        "prior_parameters": {key: json_number(value) for key, value in terms.prior_parameters.items()},
        "c": estimate_summary(terms.c),
        "predicted": estimate_summary(terms.predicted),
    }


def _decay(decay: Decay) -> dict[str, Any]:
    return {"slope": estimate_summary(decay.slope), "residual": json_number(decay.residual), "sizes": list(decay.sizes)}


def _compared(by_network: Mapping[str, Mapping[str, Compared]]) -> dict[str, Any]:
    return {
        network: {
            metric: {
                "estimate": estimate_summary(compared.estimate),
                "difference": estimate_summary(compared.difference),
            }
            for metric, compared in of_network.items()
        }
        for network, of_network in by_network.items()
    }
