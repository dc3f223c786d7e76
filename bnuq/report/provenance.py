"""Where a result comes from: its request as a run file, and how its samples were drawn, where other than usual."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from bnuq.arithmetic import in_words
from bnuq.config.runfile_writing import as_key, as_value
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
