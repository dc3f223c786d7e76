"""The verdicts of an inspection: whether the network is healthy, which layers are not, and what to do."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from operator import attrgetter

import numpy as np

from bnuq.estimates import Estimate
from bnuq.findings import Catalogue, Entry, Finding, all_of, sentence, warnings
from bnuq.findings import verdict as _verdict
from bnuq.metrics.noise import small_sample_slope
from bnuq.records.evaluation import MEDIAN_LIMIT, WORST_LIMIT
from bnuq.records.inspection import (
    FEW_VALUES,
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
from bnuq.report.inspection.lookup import (
    MEAN_OF_ABSOLUTE,
    brief,
    least_share,
    listed,
    median_of,
    percent,
    pipeline_of,
    ratio_of,
    share_of,
    times,
    worst_first,
)
from bnuq.report.numbers import count, error_of, interval_of, named, number, signed

_HALF, _MORE = 0.5, 2.0  # of the nominal values: what is between them is nearly independent
_POINTS = 3  # that a slope with an error takes
_NEAR = 0.1  # of −1, where a slope is as expected
_SLIGHT = 0.01  # standard deviations, which do no harm however small batch noise is
_FLAGS = ("not-finite", "never-trained", "vanishing", "frozen", "untracked", "called-again")


def findings(record: Inspection) -> Iterator[Finding]:
    """The verdicts: health first, then what can be sampled, the noise, the domains and the pipelines."""
    yield from _health(record)
    yield from _sites(record)
    if record.noise is not None and record.noise.layers:
        yield from _noise(record.noise)
    if record.domains is not None:
        yield from _domains(record.domains)
    if record.pipelines is not None:
        yield from _pipelines(record.pipelines)


def sentences(findings: Iterable[Finding]) -> tuple[str, ...]:
    """What the findings say."""
    return tuple(sentence(finding, SENTENCES, _FORMATS) for finding in findings)


# ── health ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def _health(record: Inspection) -> Iterator[Finding]:
    flagged = {flag: list(dict.fromkeys(site.name for site in record.sites if flag in site.flags)) for flag in _FLAGS}
    broken = [*flagged["not-finite"], *flagged["never-trained"]]
    if record.gap is not None:
        yield from _gap(record, record.gap, broken)
    elif broken:
        yield _verdict("layers-broken", layers=list(dict.fromkeys(broken)))
    elif record.noise is None and any(site.kind == "batchnorm" for site in record.sites):
        yield from _unmeasured(record)
    yield from (_verdict(flag, layers=layers) for flag, layers in flagged.items() if layers)
    if record.gap is not None and (dead := [layer for layer in record.gap.layers if layer.dead]):
        names = [layer.name for layer in worst_first(dead, lambda layer: layer.dead)]
        yield _verdict("dead-channels", channels=sum(layer.dead for layer in dead), layers=names)


def _unmeasured(record: Inspection) -> Iterator[Finding]:
    """What is known of the running statistics without a comparison with a reference, and why there is none."""
    warned = {finding.code for finding in warnings(record.findings)}
    if "not-finite" in warned:
        yield _verdict("weights-not-finite")
        return
    pipelines = record.pipelines
    unfit = pipelines is not None and not any(candidate.passed for candidate in pipelines.candidates)
    flagged = any(site.flags for site in record.sites if site.kind == "batchnorm")
    if not (flagged or unfit or warned - {"reference-unreadable"}):
        yield _verdict("nothing-unusual")
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
    yield _verdict(code, why=why or "see the notes")


def _gap(record: Inspection, gap: Gap, broken: Sequence[str]) -> Iterator[Finding]:
    """The verdict on the running statistics, then what could not be checked."""
    checked = [layer for layer in worst_first(gap.layers, ratio_of) if not math.isnan(ratio_of(layer))]
    unchecked = [layer for layer in gap.layers if math.isnan(layer.ratio_mean) or math.isnan(layer.ratio_log_variance)]
    mixed = {site.name for site in record.sites if "called-again" in site.flags}
    far = [layer for layer in unchecked if _is_far(layer, comparable=layer.name not in mixed)]
    ill = any(layer.name not in mixed for layer in far)
    if gap.passed is None or not checked:
        yield _verdict("statistics-far" if ill else "statistics-unchecked")
        unchecked = unchecked or list(gap.layers)
    else:
        code = "unhealthy-elsewhere" if broken or ill else "statistics-match-where-checked" if far else "healthy"
        code = code if gap.passed else "statistics-mismatch"
        yield _verdict(code, median=median_of(checked), worst=ratio_of(checked[0]), layer=checked[0].name)
        if not gap.passed:
            yield from _cause(record, [layer.name for layer in checked if ratio_of(layer) > WORST_LIMIT])
    yield from _unchecked(record, unchecked, far)


def _cause(record: Inspection, far: Sequence[str]) -> Iterator[Finding]:
    """Where running statistics do not match, what the run file lacks, and what to do."""
    if len(far) > 1:
        yield _verdict("largest-differences", layers=far)
    data = record.run.get("data")
    if missing := [key for key in ("normalize", "augment") if isinstance(data, dict) and not data.get(key)]:
        yield _verdict("pipeline-incomplete", keys=" and no ".join(f"`{key}`" for key in missing))
    yield _verdict("search-pipeline" if record.pipelines is None else "recompute-statistics")


def _is_far(layer: LayerGap, *, comparable: bool) -> bool:
    """Whether what was not checked is far beyond what batch noise explains; if that is unknown, or running averages
    are not `comparable` as they mix several calls, beyond a standard deviation or a factor e of the variance."""
    rows = (
        (layer.ratio_mean, layer.rms_shift, layer.explained_shift),
        (layer.ratio_log_variance, layer.mean_log_ratio, MEAN_OF_ABSOLUTE * layer.explained_log_ratio),
    )
    limits = [max(WORST_LIMIT * by, _SLIGHT) if comparable and math.isfinite(by) else 1.0 for _, _, by in rows]
    return any(math.isnan(ratio) and distance > limit for (ratio, distance, _), limit in zip(rows, limits, strict=True))


def _unchecked(record: Inspection, layers: Sequence[LayerGap], far: Sequence[LayerGap]) -> Iterator[Finding]:
    """Which layers could not be checked and why, and the largest differences of those that are far off."""
    sites = {site.name: site for site in record.sites}
    reasons: dict[str, list[str]] = {}
    for layer in layers:
        reasons.setdefault(_why_unchecked(sites.get(layer.name)), []).append(layer.name)
    yield from (_verdict("layers-unchecked", layers=names, why=why) for why, names in reasons.items())
    if far:
        shifted, scaled = (worst_first(far, attrgetter(key))[0] for key in ("rms_shift", "mean_log_ratio"))
        shift, ratio = shifted.rms_shift, scaled.mean_log_ratio
        yield _verdict("largest-unchecked", shift=shift, shifted=shifted.name, ratio=ratio, scaled=scaled.name)


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


def _sites(record: Inspection) -> Iterator[Finding]:
    if not record.sites:
        yield _verdict("nothing-stochastic")
        return
    live = [site.kind for site in record.sites if site.stochastic]
    yield _verdict("sites", kinds={kind: live.count(kind) for kind in ("batchnorm", "dropout", "learned")})
    fixed: dict[str, list[str]] = {}
    for site in record.sites:
        if not site.stochastic:
            fixed.setdefault(site.reason, []).append(site.name)
    yield from (_verdict("sites-fixed", sites=names, why=why) for why, names in fixed.items())
    if record.unreachable:
        names = [name or "the network" for name, _ in record.unreachable]
        yield _verdict("unreachable", layers=names, why=record.unreachable[0][1])


# ── noise ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _noise(noise: NoiseBySize) -> Iterator[Finding]:
    sizes = {key: {layer.name: getattr(layer, key) for layer in noise.layers} for key in ("sigma_u", "sigma_v")}
    if any(math.isfinite(sd) for by_layer in sizes.values() for sd in by_layer.values()):
        yield _verdict("noise-size", batch_size=noise.batch_size, **sizes)
    yield from independence(noise)
    yield from _slopes(noise)
    yield _variance_bias(noise)


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
        yield _verdict("values-fully-dependent", layer=worst.name)
        return
    if share < _HALF:
        dependent = sum(least_share(layer) < _HALF for layer in layers)
        values = {"nominal": worst.nominal, "effective": share * worst.nominal, "factor": 1 / math.sqrt(share)}
        yield _verdict("values-dependent", layer=worst.name, layers=dependent, of=len(layers), **values)
        return
    shares = [share_of(values, layer) for layer in layers for values in (layer.values_mean, layer.values_deviation)]
    within = "within a factor √2 of" if all(share <= _MORE for share in shares) else "at most √2 times"
    yield _verdict("values-independent", layer=worst.name, share=share, within=within)
    means = {layer.name: share_of(layer.values_mean, layer) for layer in layers}
    steady = {name: share for name, share in means.items() if _MORE < share < math.inf}
    if steady:
        name = max(steady, key=lambda name: steady[name])
        yield _verdict("mean-steadier", layers=len(steady), of=len(layers), layer=name, factor=math.sqrt(steady[name]))


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
        yield _verdict("slopes-uncertain", slopes=values)
        return
    yield _verdict("slopes-off" if off else "slopes-expected", slopes=values, layers=off, of=len(judged))
    if uncertain:
        yield _verdict("slopes-partly-uncertain", layers=uncertain, of=len(judged))


def _judged(layer: LayerNoise, slope: Estimate, noise: NoiseBySize) -> str:
    """Whether the slope is near the expected one, surely is not, or may be either."""
    low, high = interval_of(slope)
    expected = small_sample_slope(np.array(noise.sizes, np.float64) * layer.positions) or -1.0
    if abs(slope.value - expected) <= _NEAR:
        return "expected"
    return "uncertain" if low <= expected <= high else "off"


def _variance_bias(noise: NoiseBySize) -> Finding:
    """What normalising by the unbiased variance would change, and whether that matters."""
    few = [layer for layer in noise.layers if layer.nominal < FEW_VALUES]
    layers = worst_first(few or noise.layers, lambda layer: layer.unbiased_scale)
    nominal, change = layers[0].nominal, layers[0].unbiased_scale - 1
    if few:
        names = [layer.name for layer in layers]
        return _verdict("variance-bias-matters", layers=names, nominal=nominal, change=change)
    return _verdict("variance-bias-negligible", layer=layers[0].name, nominal=nominal, change=change)


def spatial_slope(noise: NoiseBySize) -> Finding:
    """How the variance goes with the positions over layers, or why that is not known."""
    slope = noise.spatial_slope
    if slope is None or not math.isfinite(slope.value):
        known = [layer for layer in noise.layers if math.isfinite(layer.sigma_v)]
        if len(known) < _POINTS:
            return _verdict("no-spatial-slope-few-layers", known=len(known))
        if len({layer.positions for layer in known}) == 1:
            return _verdict("no-spatial-slope-same-positions", positions=known[0].positions)
        return _verdict("no-spatial-slope-few-variances")
    error = error_of(slope)
    if error is None or not math.isfinite(error):
        return _verdict("spatial-slope-without-error", slope=slope)
    return _verdict(f"spatial-slope-{'disagrees' if abs(slope.value + 1) > 2 * error else 'agrees'}", slope=slope)


# ── domains and pipelines ────────────────────────────────────────────────────────────────────────────────────────────


def _domains(domains: Domains) -> Iterator[Finding]:
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
        return _verdict("domain-distinguishable", name=domain.name, layers=layers)
    worst = max((ratio for _, ratio in rows if math.isfinite(ratio)), default=math.nan)
    return _verdict("domain-alike" if math.isfinite(worst) else "domain-unmeasured", name=domain.name, worst=worst)


def _gain(name: str, running: Crossing, population: Crossing) -> Iterator[Finding]:
    """What a domain gains by its own statistics: each estimate before and after, and whether it moved."""
    changes: dict[str, tuple[float, float, bool]] = {}
    directions = set[int]()
    for metric, better in (("accuracy", 1), ("pll", 1), ("rmse", -1)):
        before, after = running.estimates.get(metric), population.estimates.get(metric)
        if before is None or after is None or not math.isfinite(change := after.value - before.value):
            continue
        moved = abs(change) > 2 * math.hypot(error_of(before) or 0.0, error_of(after) or 0.0)
        changes[metric] = before.value, after.value, moved
        directions |= {1 if change * better > 0 else -1} if moved else set()
    if changes:
        effects: dict[tuple[int, ...], str] = {(): "no-effect", (1,): "better", (-1,): "worse"}
        effect = effects.get(tuple(directions), "mixed")
        yield _verdict(f"own-statistics-{effect}", name=name, changes=changes)


def _pipelines(pipelines: Pipelines) -> Iterator[Finding]:
    if not pipelines.candidates:
        yield _verdict("no-pipeline-tried")
        return
    best, *others = pipelines.candidates
    if not best.passed:
        limits = (
            (best.median, "the median layer", MEDIAN_LIMIT),
            (best.worst, f"the worst layer, {best.worst_layer}", WORST_LIMIT),
        )
        exceeded = [(ratio, where, limit) for ratio, where, limit in limits if not ratio <= limit]
        yield _verdict("no-pipeline-fits", pipeline=pipeline_of(best), exceeded=exceeded)
        yield _closest(pipelines)
        return
    yield _verdict("pipeline-fits", pipeline=pipeline_of(best), worst=best.worst, layer=best.worst_layer)
    equivalent = [pipeline_of(candidate) for candidate in others if candidate.tied]
    if pipelines.undetermined:
        yield from (_verdict("pipeline-undetermined", text=text.rstrip(".")) for text in pipelines.undetermined)
    elif equivalent:
        yield _verdict("pipelines-equivalent", pipelines=equivalent)


def _closest(pipelines: Pipelines) -> Finding:
    """Whether the closest candidate, where none fits, at least shows where mean and std come from."""

    def source(candidate: PipelineFit) -> tuple[str | None, int]:
        return candidate.normalize, candidate.scale

    best = pipelines.candidates[0]
    rivals = [candidate for candidate in pipelines.candidates if source(candidate) != source(best)]
    worst = [candidate.worst for candidate in pipelines.candidates]
    least = min((ratio for ratio in worst if not math.isnan(ratio)), default=math.nan)
    others = any(source(candidate) != source(best) for candidate in (*rivals, *pipelines.first_round))
    if not others or not all(candidate.worst >= SURE * least for candidate in rivals):
        return _verdict("closest-not-recommended")
    pixels = " to pixels of 0–255" if best.scale == 255 else ""
    normalize = "none at all" if best.normalize is None else short(best.normalize, 40)
    return _verdict("closest-normalization", normalize=normalize, pixels=pixels)


# ── their sentences ──────────────────────────────────────────────────────────────────────────────────────────────────


def _kinds(kinds: Mapping[str, int]) -> str:
    names = {"batchnorm": "BatchNorm layer", "dropout": "dropout", "learned": "noise layer"}
    found = [count(amount, names[kind]) for kind, amount in kinds.items() if amount]
    return all_of(found) if found else "Nothing"


def _range(by_layer: Mapping[str, float]) -> str:
    known = [value for value in by_layer.values() if math.isfinite(value)]
    low, high = (brief(min(known)), brief(max(known))) if known else ("–", "–")
    most = worst_first(by_layer, by_layer.__getitem__)[0]
    return f"{low if low == high else f'{low} to {high}'} (most in {most})"


def _slopes_between(slopes: Sequence[float]) -> str:
    low, high = number(min(slopes), 2), number(max(slopes), 2)
    return f"slope of ln variance on ln b {low if low == high else f'{low} to {high}'}"


def with_error(estimate: Estimate, digits: int = 2) -> str:
    """Value and error in a sentence; the value alone where its error is unknown."""
    error, value = error_of(estimate), number(estimate.value, digits)
    return f"{value} ± {number(error, digits)}" if error is not None and math.isfinite(error) else value


def _ratios(layers: Sequence[tuple[str, float]]) -> str:
    return ", ".join(f"{layer} ({times(ratio)} times batch noise)" for layer, ratio in layers)


def _changes(changes: Mapping[str, tuple[float, float, bool]]) -> str:
    return "; ".join(
        f"{named(metric)} {number(before, 3)} → {number(after, 3)} ({signed(after - before, 3)})"
        + ("" if moved else ", within two errors")
        for metric, (before, after, moved) in changes.items()
    )


def _limits(exceeded: Sequence[tuple[float, str, float]]) -> str:
    texts = (f"{times(r)} times batch noise in {where} (up to {limit:.0f} is normal)" for r, where, limit in exceeded)
    return " and ".join(texts) or "by the reference check"


_FORMATS = {
    "times": times,
    "percent": percent,
    "brief": brief,
    "names": listed,
    "layers": lambda names: f"{listed(names)} ({count(len(names), 'layer')})" if len(names) > 1 else names[0],
    "len": lambda names: f"{len(names)}",
    "of": lambda amount: count(amount, "layer"),
    "channels": lambda amount: count(amount, "channel"),
    "kinds": _kinds,
    "range": _range,
    "slopes": _slopes_between,
    "estimate": with_error,
    "ratios": _ratios,
    "changes": _changes,
    "limits": _limits,
}
_SIZE = (
    "{median:times} times what batch noise explains in the median layer, {worst:times} times in the worst, {layer} "
    f"(up to {MEDIAN_LIMIT:.0f} and {WORST_LIMIT:.0f} is normal)"
)
_NO_SLOPE = "Across layers, no slope of the variance over the number of positions"
_SPATIAL = "Across layers, b times the variance scales with the number of positions to the power {slope:estimate}"
_PAPER = "Shekhovtsov & Flach 2018, who found approximately −1, as for independent positions"
_TEXTS = {
    "healthy": f"Healthy: the running statistics match the reference's population; they differ by {_SIZE}.",
    "unhealthy-elsewhere": (
        f"Not healthy, see below; the other running statistics match the reference: they differ by {_SIZE}."
    ),
    "statistics-match-where-checked": (
        f"The running statistics that could be checked match the reference's: they differ by {_SIZE}."
    ),
    "statistics-mismatch": (
        f"Not healthy: the running statistics do not match this reference; they differ by {_SIZE}. The pipeline or the "
        "data differ from training, or the running statistics are stale."
    ),
    "largest-differences": "Largest differences: {layers:names}.",
    "pipeline-incomplete": "The run file has no {keys}; if training used it, that is the cause.",
    "search-pipeline": (
        "`--suggest-pipeline` searches for the pipeline that fits the running statistics; if the pipeline is right, "
        "`bnuq precise-bn` recomputes them."
    ),
    "recompute-statistics": "If the pipeline is right, `bnuq precise-bn` recomputes the running statistics.",
    "statistics-far": (
        "Not healthy: the running statistics differ from the reference's by more than batch noise explains."
    ),
    "statistics-unchecked": "Whether the running statistics fit the reference could not be checked.",
    "layers-unchecked": "Not checked: {layers:names} ({why}).",
    "largest-unchecked": (
        "Largest differences of layers that were not checked: {shift:times} standard deviations in the mean "
        "({shifted}) and {ratio:times} in ln variance ({scaled})."
    ),
    "layers-broken": "Not healthy: see {layers:names}.",
    "weights-not-finite": "Not healthy: weights contain NaN or infinity; see the warnings.",
    "nothing-unusual": "The running statistics by themselves show nothing unusual.",
    "fit-doubtful": (
        "Whether the running statistics fit the data is doubtful: none of the pipelines tried makes them fit."
    ),
    "fit-by-pipeline": (
        "Whether the running statistics fit the data is reported below; inspect again with the lines for the run file "
        "for a layer-by-layer comparison."
    ),
    "fit-unread": (
        "Whether the running statistics fit the data was not measured: the reference cannot be read; see the warnings."
    ),
    "fit-unmeasured": "Whether the running statistics fit the data was not measured: {why}.",
    "fit-without-reference": (
        "Whether the running statistics fit the data can only be measured with a reference: name the training set with "
        "`--train`."
    ),
    "not-finite": (
        "Not-finite: {layers:layers}. Its statistics or weights contain NaN or infinity, and so do the network's "
        "outputs."
    ),
    "never-trained": (
        "Never-trained: {layers:layers}. Its running statistics still have their initial values; `bnuq precise-bn` "
        "computes them."
    ),
    "vanishing": (
        "Vanishing: {layers:layers}. Running variances below 10 ε: those channels are dead, or their output depends "
        "on ε."
    ),
    "frozen": (
        "Frozen: {layers:layers}. It normalises by its running statistics in training too, so it has no batch noise."
    ),
    "untracked": (
        "Untracked: {layers:layers}. It keeps no running statistics and normalises by the batch at evaluation."
    ),
    "called-again": (
        "Called-again: {layers:layers}. It is called more than once per forward pass: its running statistics mix the "
        "calls."
    ),
    "dead-channels": (
        "Dead in some batch (variance below 10 ε): {channels:channels}, most in {layers:names}. Their output depends "
        "on ε."
    ),
    "nothing-stochastic": (
        "Nothing can be made stochastic: the network calls no BatchNorm or dropout, and draws no noise."
    ),
    "sites": "{kinds:kinds} can be made stochastic.",
    "sites-fixed": "Not stochastic: {sites:names} ({why}).",
    "unreachable": "Random in training, but out of reach for bnuq: {layers:names} ({why}).",
    "noise-size": (
        "At b = {batch_size:,}, batch noise scales activations by U with sd {sigma_u:range} and shifts them by V with "
        "sd {sigma_v:range}, in units of a channel's standard deviation."
    ),
    "values-dependent": (
        "The values of a channel are not independent in {layers} of {of:of}: in {layer}, the effective sample size is "
        "{effective:brief} where b·z = {nominal:,}. An analytic noise model with nominal n makes its noise "
        "{factor:times} times too small: it needs measured counts."
    ),
    "values-fully-dependent": "The values of a channel are not independent: least of all in {layer}.",
    "values-independent": (
        "The values of a channel are nearly independent: the noise is {within} that of n = b·z independent values; at "
        "worst, in {layer}, the effective sample size is {share:percent} of n."
    ),
    "mean-steadier": (
        "In {layers} of {of:of} the mean varies less than that, because the same batch normalised the layers before "
        "(most in {layer}, {factor:times} times less)."
    ),
    "slopes-uncertain": (
        "The slopes are too uncertain to tell whether the noise falls as 1/b ({slopes:slopes}, −1 expected)."
    ),
    "slopes-expected": "The noise falls as 1/b, as expected: {slopes:slopes}.",
    "slopes-off": (
        "In {layers:len} of {of:of} the noise does not fall as 1/b ({slopes:slopes}, −1 expected): {layers:names}."
    ),
    "slopes-partly-uncertain": ("In {layers:len} of {of:of} the slope is too uncertain to judge: {layers:names}."),
    "variance-bias-matters": (
        "Biased or unbiased variance matters in {layers:names}: at n = {nominal} values per channel they differ by "
        "{change:percent} in scale. Training normalises by the biased one, evaluation by an average of unbiased ones; "
        "MCBN uses the biased one."
    ),
    "variance-bias-negligible": (
        "Biased or unbiased variance makes no difference here: at most {change:percent} in scale ({layer}, n = "
        f"{{nominal:,}}); below n ≈ {FEW_VALUES} values per channel it would (1 %)."
    ),
    "no-spatial-slope-few-layers": (
        f"{_NO_SLOPE}: it takes at least {_POINTS} layers with a known variance, and the network has {{known}}."
    ),
    "no-spatial-slope-same-positions": (f"{_NO_SLOPE}: all layers have the same number of positions, {{positions:,}}."),
    "no-spatial-slope-few-variances": f"{_NO_SLOPE}: the variances of too few layers are known.",
    "spatial-slope-without-error": (
        f"{_SPATIAL}; independent positions give −1, which Shekhovtsov & Flach 2018 found approximately."
    ),
    "spatial-slope-agrees": f"{_SPATIAL}: this agrees with {_PAPER}.",
    "spatial-slope-disagrees": f"{_SPATIAL}: this disagrees with {_PAPER}.",
    "domain-distinguishable": "{name} is distinguishable from the reference, most in {layers:ratios}.",
    "domain-alike": (
        "No layer distinguishes {name} from the reference: at most {worst:times} times batch noise "
        f"(up to {MEDIAN_LIMIT:.0f} is normal)."
    ),
    "domain-unmeasured": "No layer of {name} could be compared with the reference.",
    "own-statistics-no-effect": "With its own statistics, {name} changes little: {changes:changes}.",
    "own-statistics-better": "With its own statistics, {name} is better: {changes:changes}.",
    "own-statistics-worse": "With its own statistics, {name} is worse: {changes:changes}.",
    "own-statistics-mixed": "With its own statistics, {name} shows a mixed effect: {changes:changes}.",
    "no-pipeline-tried": "No pipeline could be tried.",
    "no-pipeline-fits": (
        "None of the pipelines tried fits the running statistics. The closest is {pipeline}: {exceeded:limits}."
    ),
    "closest-not-recommended": "The closest pipeline is not recommended.",
    "closest-normalization": (
        "Of the normalisations, {normalize}{pixels} is by far the closest, though the running averages fit none."
    ),
    "pipeline-fits": (
        "The running statistics fit {pipeline} best: {worst:times} times batch noise in the worst layer, {layer}."
    ),
    "pipeline-undetermined": "Undetermined by the statistics: {text}.",
    "pipelines-equivalent": "These pipelines fit equally well: {pipelines:names}.",
}
SENTENCES: Catalogue = {code: Entry(text) for code, text in _TEXTS.items()}
