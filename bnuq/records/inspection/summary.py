"""The summary of an inspection that `--json` prints."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bnuq import catalogue
from bnuq.records.inspection.records import Candidate, Domains, Gap, Inspection, LayerNoise, Noise, Pipelines, SiteRow
from bnuq.records.summary import SCHEMA, estimate_summaries, estimate_summary, json_number


def summary(inspection: Inspection) -> dict[str, Any]:
    """The inspection as JSON values, every site and layer in it; infinities and NaN are the strings "inf", "-inf" and
    "nan". What belongs to single channels (and the draws' S²/σ²) is in the file alone."""
    return {
        "bnuq": inspection.provenance["bnuq"],
        "schema": SCHEMA,
        "command": inspection.COMMAND,
        "kind": inspection.KIND,
        "model": dict(inspection.model),
        "sites": [_site(site) for site in inspection.sites],
        "unreachable": [{"name": name, "reason": reason} for name, reason in inspection.unreachable],
        "gap": None if inspection.gap is None else _gap(inspection.gap),
        "noise": None if inspection.noise is None else _noise(inspection.noise),
        "domains": None if inspection.domains is None else _domains(inspection.domains),
        "pipelines": None if inspection.pipelines is None else _pipelines(inspection.pipelines),
        "seconds": {name: json_number(round(value, 3)) for name, value in inspection.seconds.items()},
        **catalogue.summary(inspection.findings),
        "result": None if inspection.path is None else str(inspection.path),
    }


def _site(site: SiteRow) -> dict[str, Any]:
    keys = _OF_KIND[site.kind]
    return {
        "name": site.name,
        "kind": site.kind,
        "order": site.order,
        **{key: _json_value(getattr(site, key)) for key in keys},
        "stochastic": site.stochastic,
        "reason": site.reason,
        "flags": list(site.flags),
    }


_OF_KIND = {
    "batchnorm": ("channels", "positions", "eps", "momentum", "vanishing"),
    "dropout": ("p", "variety"),
}


def _json_value(value: Any) -> Any:
    return json_number(value) if isinstance(value, float) else value


def _json_values(part: Any, keys: Sequence[str]) -> dict[str, Any]:
    return {key: _json_value(getattr(part, key)) for key in keys}


def _gap(gap: Gap) -> dict[str, Any]:
    keys = (
        "rms_shift", "explained_shift", "mean_log_ratio", "explained_log_ratio", "ratio_mean", "ratio_log_variance",
        "dead",
    )  # fmt: skip
    layers = [{"name": layer.name, "channels": len(layer.shift)} | _json_values(layer, keys) for layer in gap.layers]
    return _json_values(gap, ("points", "batch_size", "worth", "passed")) | {"layers": layers}


def _noise(noise: Noise) -> dict[str, Any]:
    return {
        "batch_size": noise.batch_size,
        "draws": noise.draws,
        "sizes": list(noise.sizes),
        "spatial_slope": estimate_summary(noise.spatial_slope),
        "layers": [_layer_noise(layer) for layer in noise.layers],
    }


def _layer_noise(layer: LayerNoise) -> dict[str, Any]:
    keys = (
        "name", "channels", "positions", "nominal", "sigma_u", "sigma_v", "values_mean", "values_deviation", "rejected",
        "rejected_fitted",
    )  # fmt: skip
    return _json_values(layer, keys) | {
        "slope": estimate_summary(layer.slope),
        "variances": _list(layer.variances),
        "unbiased_scale": _json_value(layer.unbiased_scale),
    }


def _list(values: Any) -> list[Any]:
    return [json_number(float(value)) for value in values]


def _domains(domains: Domains) -> dict[str, Any]:
    summaries = []
    for domain in domains.domains:
        layers = [
            {"name": name, "shift": shift, "log_ratio": log_ratio, "ratio": ratio}
            for name, shift, log_ratio, ratio in zip(
                domain.layers, _list(domain.shift), _list(domain.log_ratio), _list(domain.ratio), strict=True
            )
        ]
        summaries.append(_json_values(domain, ("name", "reference", "n", "labelled")) | {"layers": layers})
    return {
        "batch_size": domains.batch_size,
        "samples": domains.samples,
        "domains": summaries,
        "crossings": [
            {"domain": domain.domain, "statistics": domain.statistics, **estimate_summaries(domain.estimates)}
            for domain in domains.crossings
        ],
    }


def _pipelines(pipelines: Pipelines) -> dict[str, Any]:
    return {
        "candidates": [_candidate(candidate) for candidate in pipelines.candidates],
        "first_round": [_candidate(candidate) for candidate in pipelines.first_round],
        "undetermined": list(pipelines.undetermined),
        "lines": pipelines.lines,
    }


def _candidate(candidate: Candidate) -> dict[str, Any]:
    keys = ("normalize", "channel_order", "scale", "augment", "median", "worst", "worst_layer", "passed", "tied")
    return _json_values(candidate, keys) | {"mean": _list(candidate.mean), "std": _list(candidate.std)}
