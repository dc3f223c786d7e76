"""How the mini-batches of an evaluation were drawn, where other than usual, and how its noise models were fitted."""

from __future__ import annotations

from bnuq.config import DEFAULT_SAMPLER
from bnuq.methods import method_named
from bnuq.records.evaluation import Result


def sampler_in_words(result: Result) -> str:
    """How MCBN's mini-batches were drawn; "" if that was as usual, or no method drew any."""
    if not any(method_named(name).is_sampled_batchnorm for name in result.methods):
        return ""
    sampling = result.run.get("sampling", {})
    group = result.run.get("data", {}).get("group", "group")
    options = {
        "stratified by class": sampling.get("batches") == "stratified",
        f"each from one {group}": sampling.get("batches") == "group",
        "drawn with replacement": sampling.get("replacement"),
        "unbiased variance": sampling.get("variance") == "unbiased",
    }
    return ", ".join(words for words, holds in options.items() if holds)


def augmentation_in_words(result: Result) -> str:
    """How test-time augmentation changed the evaluated points, as "pad 4, crop 32, flip"; "" where no method did."""
    if not any("augmentation" in method_named(name).differs_by for name in result.methods):
        return ""
    keys = result.run.get("tta", result.run.get("data", {}).get("augment", {}))
    return ", ".join(key if value is True else f"{key} {value}" for key, value in keys.items())


def laplace_in_words(result: Result) -> str:
    """The posterior of the last layer, as "Kronecker factors, prior precision 5.62"; "" where no method draws from
    it."""
    fits = (finding.values for finding in result.findings if finding.code == "laplace-fitted")
    if (values := next(fits, None)) is None:
        return ""
    curvature = "Kronecker factors" if values["curvature"] == "kron" else "diagonal"
    return f"{curvature}, prior precision {values['prior_precision']:.3g}"


def noise_models_in_words(result: Result) -> str:
    """How the analytic noise models were fitted, as "counts measured (64 mini-batches), covariance layer"; "" where no
    method is of one."""
    settings = {key for name in result.methods for key in method_named(name).settings}
    sampling = result.run.get("sampling", {})
    recorded = f" ({sampling.get('noise_model_draws', DEFAULT_SAMPLER.noise_model_draws)} mini-batches)"  # stated once
    parts: list[str] = []
    if "counts" in settings:
        by_default = "measured" if result.run.get("data", {}).get("train") else "nominal"
        counts = sampling.get("counts", by_default)
        parts.append(f"counts {counts}{recorded if counts == 'measured' else ''}")
    if "covariance" in settings:
        covariance = f"covariance {sampling.get('covariance', DEFAULT_SAMPLER.covariance)}"
        parts.append(covariance if any(recorded in part for part in parts) else covariance + recorded)
    return ", ".join(parts)
