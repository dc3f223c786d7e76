"""The verdicts on the health of a network: its running statistics, and layers that are damaged."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from bnuq.findings import Finding, verdict, warnings
from bnuq.records.evaluation import WORST_LIMIT
from bnuq.records.inspection import Gap, Inspection, LayerGap, SiteRow
from bnuq.report.inspection.layer_numbers import MEAN_OF_ABSOLUTE, median_of, ratio_of, worst_first

_SLIGHT = 0.01  # standard deviations: negligible, however small batch noise is
_FLAGS = ("not-finite", "never-trained", "vanishing", "frozen", "untracked", "called-again")


def health_findings(record: Inspection) -> Iterator[Finding]:
    flagged = {flag: list(dict.fromkeys(site.name for site in record.sites if flag in site.flags)) for flag in _FLAGS}
    broken = [*flagged["not-finite"], *flagged["never-trained"]]
    if record.gap is not None:
        yield from _gap(record, record.gap, broken)
    elif broken:
        yield verdict("layers-broken", layers=list(dict.fromkeys(broken)))
    elif record.noise is None and any(site.kind == "batchnorm" for site in record.sites):
        yield from _unmeasured(record)
    yield from (verdict(flag, layers=layers) for flag, layers in flagged.items() if layers)
    if record.gap is not None and (dead := [layer for layer in record.gap.layers if layer.dead]):
        names = [layer.name for layer in worst_first(dead, lambda layer: layer.dead)]
        yield verdict("dead-channels", channels=sum(layer.dead for layer in dead), layers=names)


def _unmeasured(record: Inspection) -> Iterator[Finding]:
    """What is known of the running statistics without a comparison with a reference, and why there is none."""
    warned = {finding.code for finding in warnings(record.findings)}
    if "not-finite" in warned:
        yield verdict("weights-not-finite")
        return
    pipelines = record.pipelines
    unfit = pipelines is not None and not any(candidate.passed for candidate in pipelines.candidates)
    flagged = any(site.flags for site in record.sites if site.kind == "batchnorm")
    if not (flagged or unfit or warned - {"reference-unreadable"}):
        yield verdict("nothing-unusual")
    why = next((str(finding.values["reason"]) for finding in record.findings if finding.code == "unmeasured"), "")
    data = record.run.get("data")
    if pipelines is not None:
        code = "fit-doubtful" if unfit else "fit-by-pipeline"
    elif "reference-unreadable" in warned:
        code = "fit-unread"
    elif "no BatchNorm layer" in why or (isinstance(data, dict) and data.get("train") is not None):
        code = "fit-unmeasured"
    else:
        code = "fit-without-reference"
    yield verdict(code, why=why or "see the notes")


def _gap(record: Inspection, gap: Gap, broken: Sequence[str]) -> Iterator[Finding]:
    """The verdict on the running statistics, then what could not be checked."""
    checked = [layer for layer in worst_first(gap.layers, ratio_of) if not math.isnan(ratio_of(layer))]
    unchecked = [layer for layer in gap.layers if math.isnan(layer.ratio_mean) or math.isnan(layer.ratio_log_variance)]
    mixed = {site.name for site in record.sites if "called-again" in site.flags}
    far = [layer for layer in unchecked if _is_far(layer, comparable=layer.name not in mixed)]
    ill = any(layer.name not in mixed for layer in far)
    if gap.passed is None or not checked:
        yield verdict("statistics-far" if ill else "statistics-unchecked")
        unchecked = unchecked or list(gap.layers)
    else:
        code = "unhealthy-elsewhere" if broken or ill else "statistics-match-where-checked" if far else "healthy"
        code = code if gap.passed else "statistics-mismatch"
        yield verdict(code, median=median_of(checked), worst=ratio_of(checked[0]), layer=checked[0].name)
        if not gap.passed:
            yield from _cause(record)
    yield from _unchecked(record, unchecked)


def _cause(record: Inspection) -> Iterator[Finding]:
    """Where running statistics do not match, what the run file lacks, and what to do."""
    data = record.run.get("data")
    if missing := [key for key in ("normalize", "augment") if isinstance(data, dict) and not data.get(key)]:
        yield verdict("pipeline-incomplete", keys=" or ".join(f"`{key}`" for key in missing))
    yield verdict("search-pipeline" if record.pipelines is None else "recompute-statistics")


def _is_far(layer: LayerGap, *, comparable: bool) -> bool:
    """Whether what was not checked is far beyond what batch noise explains; if that is unknown, or running averages
    are not `comparable` as they mix several calls, beyond a standard deviation or a factor e of the variance."""
    rows = (
        (layer.ratio_mean, layer.rms_shift, layer.explained_shift),
        (layer.ratio_log_variance, layer.mean_log_ratio, MEAN_OF_ABSOLUTE * layer.explained_log_ratio),
    )
    limits = [max(WORST_LIMIT * by, _SLIGHT) if comparable and math.isfinite(by) else 1.0 for _, _, by in rows]
    return any(math.isnan(ratio) and distance > limit for (ratio, distance, _), limit in zip(rows, limits, strict=True))


def _unchecked(record: Inspection, layers: Sequence[LayerGap]) -> Iterator[Finding]:
    """Which layers could not be checked, and why."""
    sites = {site.name: site for site in record.sites}
    reasons: dict[str, list[str]] = {}
    for layer in layers:
        reasons.setdefault(_why_unchecked(sites.get(layer.name)), []).append(layer.name)
    yield from (verdict("layers-unchecked", layers=names, why=why) for why, names in reasons.items())


def _why_unchecked(site: SiteRow | None) -> str:
    if site is not None and "never-trained" in site.flags:
        return "initial running statistics"
    if site is not None and "called-again" in site.flags:
        return "running statistics shared by several calls"
    if site is not None and site.momentum is None:
        return "cumulative averages over all of training"
    if site is not None and site.momentum == 0:
        return "running statistics that a momentum of 0 never updates"
    return "too few distinct mini-batches to estimate the noise"
