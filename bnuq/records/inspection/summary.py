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
        "unreachable": [{"name": name, "reason": why} for name, why in inspection.unreachable],
        "gap": None if inspection.gap is None else _gap(inspection.gap),
        "noise": None if inspection.noise is None else _noise(inspection.noise),
        "domains": None if inspection.domains is None else _domains(inspection.domains),
        "pipelines": None if inspection.pipelines is None else _pipelines(inspection.pipelines),
        "seconds": {name: json_number(round(value, 3)) for name, value in inspection.seconds.items()},
        **catalogue.summary(inspection.findings),
        "result": None if inspection.path is None else str(inspection.path),
    }


def _site(site: SiteRow) -> dict[str, Any]:
    ours = _OF_KIND[site.kind]
    return {
        "name": site.name,
        "kind": site.kind,
        "order": site.order,
        **{key: _told(getattr(site, key)) for key in ours},
        "stochastic": site.stochastic,
        "reason": site.reason,
        "flags": list(site.flags),
    }


_OF_KIND = {
    "batchnorm": ("channels", "positions", "eps", "momentum", "vanishing"),
    "dropout": ("p", "variety"),
}


def _told(value: Any) -> Any:
    return json_number(value) if isinstance(value, float) else value


def _told_of(one: Any, keys: Sequence[str]) -> dict[str, Any]:
    return {key: _told(getattr(one, key)) for key in keys}


def _gap(gap: Gap) -> dict[str, Any]:
    keys = (
        "rms_shift", "explained_shift", "mean_log_ratio", "explained_log_ratio", "ratio_mean", "ratio_log_variance",
        "dead",
    )  # fmt: skip
    layers = [{"name": one.name, "channels": len(one.shift)} | _told_of(one, keys) for one in gap.layers]
    return _told_of(gap, ("points", "batch_size", "worth", "passed")) | {"layers": layers}


def _noise(noise: Noise) -> dict[str, Any]:
    return {
        "batch_size": noise.batch_size,
        "draws": noise.draws,
        "sizes": list(noise.sizes),
        "spatial_slope": estimate_summary(noise.spatial_slope),
        "layers": [_layer_noise(one) for one in noise.layers],
    }


def _layer_noise(one: LayerNoise) -> dict[str, Any]:
    keys = (
        "name", "channels", "positions", "nominal", "sigma_u", "sigma_v", "values_mean", "values_deviation", "rejected",
        "rejected_fitted",
    )  # fmt: skip
    return _told_of(one, keys) | {
        "slope": estimate_summary(one.slope),
        "variances": _list(one.variances),
        "unbiased_scale": _told(one.unbiased_scale),
    }


def _list(values: Any) -> list[Any]:
    return [json_number(float(value)) for value in values]


def _domains(found: Domains) -> dict[str, Any]:
    domains = []
    for one in found.domains:
        layers = [
            {"name": name, "shift": shift, "log_ratio": log_ratio, "ratio": ratio}
            for name, shift, log_ratio, ratio in zip(
                one.layers, _list(one.shift), _list(one.log_ratio), _list(one.ratio), strict=True
            )
        ]
        domains.append(_told_of(one, ("name", "reference", "n", "labelled")) | {"layers": layers})
    return {
        "batch_size": found.batch_size,
        "samples": found.samples,
        "domains": domains,
        "crossings": [
            {"domain": one.domain, "statistics": one.statistics, **estimate_summaries(one.estimates)}
            for one in found.crossings
        ],
    }


def _pipelines(found: Pipelines) -> dict[str, Any]:
    return {
        "candidates": [_candidate(one) for one in found.candidates],
        "first_round": [_candidate(one) for one in found.first_round],
        "undetermined": list(found.undetermined),
        "lines": found.lines,
    }


def _candidate(one: Candidate) -> dict[str, Any]:
    keys = ("normalize", "channel_order", "scale", "augment", "median", "worst", "worst_layer", "passed", "tied")
    return _told_of(one, keys) | {"mean": _list(one.mean), "std": _list(one.std)}
