"""The summary that `--json` prints: a result as plain JSON values."""

from __future__ import annotations

from typing import Any

from bnuq import catalogue
from bnuq.records import promises, shift_analysis
from bnuq.records.addresses import nested, path_of
from bnuq.records.approximation import Approximation, approximations
from bnuq.records.as_json import SCHEMA, estimate_summary, json_fields, json_number, json_value
from bnuq.records.calibrated import ece_floor
from bnuq.records.decisions import decided, judged
from bnuq.records.evaluation import ReferenceCheck, Result
from bnuq.records.gated import gated, rates


def summary(result: Result) -> dict[str, Any]:
    """The result as JSON values; infinities and NaN are the strings "inf", "-inf" and "nan"."""
    approximate = approximations(result)
    made = decided(result)
    decisions = [{"code": each.code, "values": json_value(each.values), "text": each.text} for each in made]
    return {
        "bnuq": result.provenance["bnuq"],
        "schema": SCHEMA,
        "command": result.COMMAND,
        "model": dict(result.model),
        "sampling": dict(result.sampling),
        "sets": {name: {"n": evaluated.n, "sha256": evaluated.sha256} for name, evaluated in result.sets.items()},
        "methods": _methods(result),
        **({"approximations": {item.method: _approximation(item) for item in approximate}} if approximate else {}),
        "decisions": decisions,
        "gated": list(gated(result)),
        "verdict": json_fields(judged(result), "worth", "best", "comparisons")
        | {"text": [each.text for each in made if each.about == "use"]},
        **({"certificate": json_value(promises.summary(result))} if result.certification else {}),
        **(shift_analysis.summary(result) if result.shift else {}),
        "reference_check": _reference_check(result.reference_check),
        "seconds": {name: round(value, 3) for name, value in result.seconds.items()},
        "work": result.work.summary(),
        **catalogue.summary(result.findings),
        "result": json_value(result.path),
    }


def _reference_check(check: ReferenceCheck | None) -> dict[str, Any] | None:
    """Layer by layer, in units of what batch noise explains; None if it could not be done."""
    if check is None:
        return None
    ratios = zip(check.layers, check.ratios.tolist(), strict=True)
    layers = [{"name": name, "mean": mean, "log_variance": variance} for name, (mean, variance) in ratios]
    return {"passed": check.passed, "layers": layers} | ({"unfit": list(check.unfit)} if check.unfit else {})


def _approximation(approximation: Approximation) -> dict[str, Any]:
    """A noise model against MCBN: ratio of the mean uncertainty, rank correlation by set, and other differences."""
    return {
        **json_fields(approximation, "uncertainty", "ratio"),
        "rank_correlation": json_value(approximation.rank),
        **json_fields(approximation, "pll", "auroc"),
    }


def _methods(result: Result) -> dict[str, Any]:
    """Every estimate at its address, and the convergence curves."""
    groups: list[tuple[str, ...]] = []
    for name, method in result.methods.items():
        groups += [(name, "sets"), *((name, "sets", set_name) for set_name in method.sets)]
        groups += [(name, "ood"), *((name, "ood", set_name) for set_name in method.ood)]
        groups += [(name, "normalized")] if method.normalized else []
    values = {path_of(row.coordinates): estimate_summary(row.estimate) for row in result.rows}
    at_thresholds = {path_of(rate.coordinates): {"value": rate.value} for rate in rates(result, decided(result))}
    methods = nested(groups, values | at_thresholds)
    for name, method in result.methods.items():
        if (floor := ece_floor(result, name)) is not None:
            methods[name]["sets"]["test"]["ece_floor"] = json_fields(floor, "mean", "high")
        if method.convergence:
            methods[name]["convergence"] = {
                curve: [int(v) if curve == "samples" else json_number(v) for v in values]
                for curve, values in method.convergence.items()
            }
    return methods
