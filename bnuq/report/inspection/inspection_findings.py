"""The verdicts of an inspection: whether the network is healthy, which layers are not, what to do; and on batch noise,
other domains and candidate pipelines."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from bnuq.estimates import Estimate
from bnuq.findings import Finding, verdict, warnings
from bnuq.metrics.noise import small_sample_slope
from bnuq.records.evaluation import MEDIAN_LIMIT, WORST_LIMIT
from bnuq.records.inspection import (
    SURE,
    Crossing,
    Domain,
    Domains,
    Gap,
    Inspection,
    LayerGap,
    LayerNoise,
    NoiseBySize,
    PipelineFit,
    Pipelines,
    SiteRow,
)
from bnuq.report.drawing import short
from bnuq.report.inspection.layer_tables import (
    MEAN_OF_ABSOLUTE,
    least_share,
    median_of,
    pipeline_of,
    ratio_of,
    share_of,
    worst_first,
)
from bnuq.report.numbers import error_of, interval_of

_SLIGHT = 0.01  # standard deviations: negligible, however small batch noise is
_FLAGS = ("not-finite", "never-trained", "vanishing", "frozen", "untracked", "called-again")
_HALF, _MORE = 0.5, 2.0  # of the nominal values: what is between them is nearly independent
_NEAR = 0.1  # of −1, where a slope is as expected


def findings(record: Inspection) -> Iterator[Finding]:
    """The verdicts: health in one, the pipelines and domains that were asked about, then what else is ill, and what can
    be sampled."""
    health = [*health_findings(record)]
    yield from health[:1]
    if record.pipelines is not None:
        yield from pipeline_findings(record.pipelines)
    if record.domains is not None:
        yield from domain_findings(record.domains)
    yield from health[1:]
    yield from _sites(record)


def _sites(record: Inspection) -> Iterator[Finding]:
    if not record.sites:
        yield verdict("nothing-stochastic")
        return
    live: list[str] = [site.kind for site in record.sites if site.stochastic]
    kinds = {"batchnorm": "mcbn", "dropout": "mcdo", "learned": "learned"}
    if methods := [method for kind, method in kinds.items() if kind in live]:
        yield verdict("sites", kinds={kind: live.count(kind) for kind in kinds}, methods=",".join(methods))
    fixed: dict[str, list[str]] = {}
    for site in record.sites:
        if not site.stochastic:
            fixed.setdefault(site.reason, []).append(site.name)
    yield from (verdict("sites-fixed", sites=names, why=why) for why, names in fixed.items())
    if record.unreachable:
        names = [name or "the network" for name, _ in record.unreachable]
        yield verdict("unreachable", layers=names, why=record.unreachable[0][1])


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


def domain_findings(domains: Domains) -> Iterator[Finding]:
    for domain in domains.domains:
        yield _distance(domain)
    crossings = {(crossing.domain, crossing.statistics): crossing for crossing in domains.crossings}
    for name in dict.fromkeys(crossing.domain for crossing in domains.crossings):
        running, population = crossings.get((name, "running")), crossings.get((name, name))
        if running is not None and population is not None:
            yield from _gain(name, running, population)


def _distance(domain: Domain, most: int = 3) -> Finding:
    """The layers that distinguish a domain from the reference the most."""
    rows = worst_first(zip(domain.layers, map(float, domain.ratio), strict=True), lambda row: row[1])
    if layers := [row for row in rows if row[1] > MEDIAN_LIMIT][:most]:
        return verdict("domain-distinguishable", name=domain.name, layers=layers)
    worst = max((ratio for _, ratio in rows if math.isfinite(ratio)), default=math.nan)
    return verdict("domain-alike" if math.isfinite(worst) else "domain-unmeasured", name=domain.name, worst=worst)


def _gain(name: str, running: Crossing, population: Crossing) -> Iterator[Finding]:
    """What a domain gains by its own statistics: each estimate before and after, and whether it moved beyond twice the
    error, over the points that both share; None where that is not known."""
    changes: dict[str, tuple[float, float, bool | None]] = {}
    directions = set[int]()
    for metric, better in (("accuracy", 1), ("pll", 1), ("rmse", -1)):
        before, after = running.estimates.get(metric), population.estimates.get(metric)
        if before is None or after is None or not math.isfinite(change := after.value - before.value):
            continue
        gain = population.gains.get(metric)
        errors = [error_of(each) for each in ((before, after) if gain is None else (gain,))]  # of earlier versions two
        known = [error for error in errors if error is not None]
        is_unknown = len(known) < len(errors) or (change and not any(known))  # 0 where all points change alike
        is_clear = None if is_unknown else abs(change) > 2 * math.hypot(*known)
        changes[metric] = before.value, after.value, is_clear
        directions |= {1 if change * better > 0 else -1} if is_clear else set()
    if changes:
        none = "unknown" if any(is_clear is None for *_, is_clear in changes.values()) else "no-effect"
        effects: dict[tuple[int, ...], str] = {(): none, (1,): "better", (-1,): "worse"}
        effect = effects.get(tuple(directions), "mixed")
        yield verdict(f"own-statistics-{effect}", name=name, changes=changes)


def pipeline_findings(pipelines: Pipelines) -> Iterator[Finding]:
    if not pipelines.candidates:
        yield verdict("no-pipeline-tried")
        return
    best, *others = pipelines.candidates
    if not best.passed:
        limits = (
            (best.median, "the median layer", MEDIAN_LIMIT),
            (best.worst, f"the worst layer, {best.worst_layer}", WORST_LIMIT),
        )
        exceeded = [(ratio, where, limit) for ratio, where, limit in limits if not ratio <= limit]
        yield verdict("no-pipeline-fits", pipeline=pipeline_of(best), exceeded=exceeded)
        yield from _closest(pipelines)
        return
    yield verdict("pipeline-fits", pipeline=pipeline_of(best), worst=best.worst, layer=best.worst_layer)
    equivalent = [pipeline_of(candidate) for candidate in others if candidate.tied]
    if pipelines.undetermined:
        yield from (verdict("pipeline-undetermined", text=text.rstrip(".")) for text in pipelines.undetermined)
    elif equivalent:
        yield verdict("pipelines-equivalent", pipelines=equivalent)


def _closest(pipelines: Pipelines) -> Iterator[Finding]:
    """Whether the closest candidate, where none fits, at least shows where mean and std come from."""

    def source(candidate: PipelineFit) -> tuple[str | None, int]:
        return candidate.normalize, candidate.scale

    best = pipelines.candidates[0]
    rivals = [candidate for candidate in pipelines.candidates if source(candidate) != source(best)]
    worst = [candidate.worst for candidate in pipelines.candidates]
    least = min((ratio for ratio in worst if not math.isnan(ratio)), default=math.nan)
    others = any(source(candidate) != source(best) for candidate in (*rivals, *pipelines.first_round))
    if not others or not all(candidate.worst >= SURE * least for candidate in rivals):
        return
    pixels = " to pixels of 0–255" if best.scale == 255 else ""
    normalize = "none at all" if best.normalize is None else short(best.normalize, 40)
    yield verdict("closest-normalization", normalize=normalize, pixels=pixels)


def noise_findings(noise: NoiseBySize) -> Iterator[Finding]:
    yield from independence(noise)
    yield from _slopes(noise)


def independence(noise: NoiseBySize) -> Iterator[Finding]:
    """Whether a channel's values are as good as independent, and the error of a noise model of nominal n; nothing if
    that is unknown."""
    layers = worst_first(
        (layer for layer in noise.layers if math.isfinite(least_share(layer))), lambda layer: -least_share(layer)
    )
    if not layers:
        return
    worst, share = layers[0], least_share(layers[0])
    if not share > 0:
        yield verdict("values-fully-dependent", layer=worst.name)
        return
    if share < _HALF:
        dependent = sum(least_share(layer) < _HALF for layer in layers)
        values = {"nominal": worst.nominal, "effective": share * worst.nominal, "factor": 1 / math.sqrt(share)}
        yield verdict("values-dependent", layer=worst.name, layers=dependent, of=len(layers), **values)
        return
    shares = [share_of(values, layer) for layer in layers for values in (layer.values_mean, layer.values_deviation)]
    within = "within a factor √2 of" if all(share <= _MORE for share in shares) else "at most √2 times"
    yield verdict("values-independent", layer=worst.name, share=share, within=within)


def _slopes(noise: NoiseBySize) -> Iterator[Finding]:
    """Whether the noise falls as 1/b, as far as slopes are known."""
    known = {layer.name: layer.slope for layer in noise.layers if layer.slope is not None}
    slopes = {name: slope for name, slope in known.items() if math.isfinite(slope.value)}
    if not slopes:
        return
    judged = [(layer.name, _judged(layer, slopes[layer.name], noise)) for layer in noise.layers if layer.name in slopes]
    off, uncertain = ([name for name, judgement in judged if judgement == outcome] for outcome in ("off", "uncertain"))
    values = [slope.value for slope in slopes.values()]
    if len(uncertain) == len(judged):
        yield verdict("slopes-uncertain", slopes=values)
        return
    yield verdict("slopes-off" if off else "slopes-expected", slopes=values, layers=off, of=len(judged))


def _judged(layer: LayerNoise, slope: Estimate, noise: NoiseBySize) -> str:
    """Whether the slope is near the expected one, surely is not, or may be either."""
    low, high = interval_of(slope)
    expected = small_sample_slope(np.array(noise.sizes, np.float64) * layer.positions) or -1.0
    if abs(slope.value - expected) <= _NEAR:
        return "expected"
    return "uncertain" if low <= expected <= high else "off"
