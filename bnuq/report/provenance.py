"""Where a result comes from: its request as a run file, and how its samples were drawn, where other than usual."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from bnuq.arithmetic import in_words
from bnuq.config import DEFAULT_SAMPLER
from bnuq.config.runfile_writing import as_key, as_value
from bnuq.methods import method_named
from bnuq.records.evaluation import Result, Scored
from bnuq.report.document import Facts, Heading, Listing, Paragraph, Part, ReportSection
from bnuq.report.numbers import count

_REPEAT = (
    "All options, whether from the command line, the run file, the checkpoint or the defaults. To repeat the run, save "
    "this as a run file, or use `bnuq evaluate --from` with the result file."
)
_REPEAT_SCORING = "All options, including defaults. To repeat the run, give them to `bnuq score`."


def provenance_section(
    provenance: Mapping[str, Any],
    seconds: Mapping[str, float],
    run: Mapping[str, Any],
    *,
    sources: Iterable[tuple[str, str]],
    repeat: str,
) -> ReportSection:
    """Versions, machine, command and time; `sources` are the checkpoint and the data; then the request, to be copied,
    and how to `repeat` it."""
    device = (provenance.get("device"), provenance.get("platform"))
    facts = _facts(provenance, seconds, device, sources)
    return ReportSection("Provenance", (facts, *_request(run, repeat)), only_on_page=True)


def origin(result: Result) -> Facts:
    """Versions, machine, command, checkpoint, data and time of an evaluation."""
    provenance, sampling = result.provenance, result.sampling
    device = (sampling["device"], provenance.get("device"), provenance.get("platform"), in_words(sampling["precision"]))
    return _facts(provenance, result.seconds, device, _sources(result))


def evaluation_provenance(result: Result) -> ReportSection:
    """Where an evaluation comes from, and its request."""
    repeat = _REPEAT_SCORING if isinstance(result, Scored) else _REPEAT
    return ReportSection("Provenance", (origin(result), *_request(result.run, repeat)), only_on_page=True)


def _sources(result: Result) -> Iterator[tuple[str, str]]:
    """The checkpoint and the data, with their hashes."""
    model, sha256 = result.model, result.provenance.get("reference_sha256")
    if isinstance(result, Scored):
        for name, file in model["files"].items():
            yield name, f"{file['path']}, SHA-256 `{file['sha256']}`"
    else:
        yield "checkpoint", f"{model['path']}, SHA-256 `{model.get('sha256', 'unknown')}`"
    for number, member in enumerate(model.get("members", ())[1:], start=2):
        yield f"network {number}", f"{member['path']}, SHA-256 `{member['sha256']}`"
    reference, points = result.run.get("data", {}).get("train"), result.sampling.get("reference_points")
    if reference and sha256:
        yield "reference", f"{reference}, {f'{points} examples, ' if points else ''}SHA-256 `{sha256}`"
    if made := result.provenance.get("predictions_sha256"):
        yield "predictions", f"{result.run.get('sampling', {}).get('predictions')}, SHA-256 `{made}`"
    for name, evaluated in result.sets.items():
        label = name if evaluated.kind == name else f"{evaluated.kind} {name}"
        yield label, f"{evaluated.reference}, {count(evaluated.n, 'example')}, SHA-256 `{evaluated.sha256}`"


def _facts(
    provenance: Mapping[str, Any],
    seconds: Mapping[str, float],
    device: Iterable[Any],
    sources: Iterable[tuple[str, str]],
) -> Facts:
    versions = ", ".join(
        f"{name} {provenance[name]}" for name in ("bnuq", "python", "torch", "numpy", "h5py") if name in provenance
    )
    stages = (f"{name} {value:.1f}" for name, value in seconds.items() if math.isfinite(value))
    rows = {
        "versions": versions,
        "device": ", ".join(str(part) for part in device if part),
        "time": str(provenance.get("time", "")),
        "command": f"`{provenance['command']}`" if provenance.get("command") else "",
        "git revision": f"`{provenance['git']}`" if provenance.get("git") else "",
        **dict(sources),
        "seconds": ", ".join(stages),
    }
    return Facts(tuple((name, text) for name, text in rows.items() if text))


def _request(run: Mapping[str, Any], repeat: str) -> Iterator[Part]:
    if text := run_file(run):
        yield Heading("The run, as resolved")
        if repeat:
            yield Paragraph(repeat)
        yield Listing("As a run file", text)


def run_file(run: Mapping[str, Any]) -> str:
    """The run as TOML that `bnuq evaluate` takes; what no run file holds stands in comments."""
    lines: list[str] = []
    for section, keys in run.items():
        if not isinstance(keys, Mapping) or not keys:
            continue
        mark = "# " if section == "options" else ""
        lines += [""] * bool(lines) + [f"{mark}[{as_key(section)}]"]
        lines += [f"{mark}{as_key(key)} = {as_value(value)}" for key, value in keys.items() if value is not None]
    return "\n".join(lines)


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
