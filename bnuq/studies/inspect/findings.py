"""What an inspection shows: whether the network is healthy, which layers are not, what to do; and of batch noise, other
domains and candidate pipelines."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from bnuq.findings import Conclusion, all_of, warnings
from bnuq.records.evaluation import MEDIAN_LIMIT, WORST_LIMIT
from bnuq.records.words import percent
from bnuq.report.numbers import count, error_of, named, number, signed
from bnuq.studies.inspect.layer_tables import (
    MEAN_OF_ABSOLUTE,
    brief,
    least_share,
    listed,
    median,
    pipeline_of,
    ratio_of,
    share_of,
    times,
    worst_first,
)
from bnuq.studies.inspect.record import (
    Crossing,
    Domain,
    Domains,
    Gap,
    Inspection,
    LayerGap,
    NoiseBySize,
    Pipelines,
    SiteRow,
)

_SLIGHT = 0.01  # standard deviations: negligible, however small batch noise is
_FLAGS = {
    "not-finite": "Its statistics or weights contain NaN or infinity, and so do the network's outputs.",
    "never-trained": "Its running statistics still have their initial values; `bnuq precise-bn` computes them.",
    "vanishing": "Running variances are nearly 0 (below 10 ε): look for dead ReLUs or pruned filters in front.",
    "frozen": "It normalises by its running statistics in training too, so it has no batch noise.",
    "untracked": "It keeps no running statistics and normalises by the batch at evaluation.",
    "called-again": "It is called more than once per forward pass: its running statistics mix the calls.",
}
_HALF, _MORE = 0.5, 2.0  # of the nominal values: what is between them is nearly independent


def findings(record: Inspection) -> Iterator[Conclusion]:
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


def _sites(record: Inspection) -> Iterator[Conclusion]:
    if not record.sites:
        text = "Nothing can draw samples: the network calls no BatchNorm or dropout, and draws no noise."
        yield Conclusion("nothing-stochastic", text)
        return
    live: list[str] = [site.kind for site in record.sites if site.stochastic]
    kinds = {
        "batchnorm": ("mcbn", "BatchNorm layer"),
        "dropout": ("mcdo", "dropout"),
        "learned": ("learned", "noise layer"),
    }
    if found := [each for kind, each in kinds.items() if kind in live]:
        layers = all_of(count(live.count(kind), noun) for kind, (_, noun) in kinds.items() if kind in live)
        methods = ",".join(method for method, _ in found)
        yield Conclusion("sites", f"{layers} can draw samples: `bnuq evaluate --method {methods}`.")
    fixed: dict[str, list[str]] = {}
    for site in record.sites:
        if not site.stochastic:
            fixed.setdefault(site.reason, []).append(site.name)
    for why, names in fixed.items():
        yield Conclusion("sites-fixed", f"Not sampled: {listed(names)} ({why}).")
    if record.unreachable:
        names, why = [name or "the network" for name, _ in record.unreachable], record.unreachable[0][1]
        yield Conclusion("unreachable", f"Random in training, but out of reach for bnuq: {listed(names)} ({why}).")


def health_findings(record: Inspection) -> Iterator[Conclusion]:
    flagged = {flag: list(dict.fromkeys(site.name for site in record.sites if flag in site.flags)) for flag in _FLAGS}
    broken = [*flagged["not-finite"], *flagged["never-trained"]]
    if record.gap is not None:
        yield from _gap(record, record.gap, broken)
    elif broken:
        yield Conclusion("layers-broken", f"Not healthy: see {listed([*dict.fromkeys(broken)])}.")
    elif record.noise is None and any(site.kind == "batchnorm" for site in record.sites):
        yield from _unmeasured(record)
    for flag, names in flagged.items():
        if names:
            layers = f"{listed(names)} ({count(len(names), 'layer')})" if len(names) > 1 else names[0]
            yield Conclusion(flag, f"{flag.capitalize()}: {layers}. {_FLAGS[flag]}")
    if record.gap is not None and (dead := [layer for layer in record.gap.layers if layer.dead]):
        names = [layer.name for layer in worst_first(dead, lambda layer: layer.dead)]
        channels = count(sum(layer.dead for layer in dead), "channel")
        text = (
            f"Nearly constant in some batch: {channels}, most in {listed(names)}. If samples depend on few examples, "
            "leave these layers out (`--layers`) or use larger mini-batches."
        )
        yield Conclusion("dead-channels", text)


def _unmeasured(record: Inspection) -> Iterator[Conclusion]:
    """What is known of the running statistics without a comparison with a reference, and why there is none."""
    warned = {finding.code for finding in warnings(record.findings)}
    if "not-finite" in warned:
        yield Conclusion("weights-not-finite", "Not healthy: weights contain NaN or infinity; see the warnings.")
        return
    pipelines = record.pipelines
    unfit = pipelines is not None and not any(candidate.passed for candidate in pipelines.candidates)
    flagged = any(site.flags for site in record.sites if site.kind == "batchnorm")
    if not (flagged or unfit or warned - {"reference-unreadable"}):
        yield Conclusion("nothing-unusual", "The running statistics by themselves show nothing unusual.")
    why = next((str(finding.values["reason"]) for finding in record.findings if finding.code == "unmeasured"), "")
    data = record.run.get("data")
    if pipelines is not None and unfit:
        code, how = "fit-doubtful", "is doubtful: none of the pipelines tried makes them fit"
    elif pipelines is not None:
        code, how = (
            "fit-by-pipeline",
            "is reported below; inspect again with the lines for the run file for every layer",
        )
    elif "reference-unreadable" in warned:
        code, how = "fit-unread", "was not measured: the training set cannot be read; see the warnings"
    elif "no BatchNorm layer" in why or (isinstance(data, dict) and data.get("train") is not None):
        code, how = "fit-unmeasured", f"was not measured: {why or 'see the notes'}"
    else:
        code, how = "fit-without-reference", "can only be measured on the training set: name it with `--train`"
    yield Conclusion(code, f"Whether the running statistics fit the data {how}.")


def _gap(record: Inspection, gap: Gap, broken: Sequence[str]) -> Iterator[Conclusion]:
    """The verdict on the running statistics, then what could not be checked."""
    checked = [layer for layer in worst_first(gap.layers, ratio_of) if not math.isnan(ratio_of(layer))]
    unchecked = [layer for layer in gap.layers if math.isnan(layer.ratio_mean) or math.isnan(layer.ratio_log_variance)]
    mixed = {site.name for site in record.sites if "called-again" in site.flags}
    far = [layer for layer in unchecked if _is_far(layer, comparable=layer.name not in mixed)]
    ill = any(layer.name not in mixed for layer in far)
    if gap.passed is None or not checked:
        if ill:
            yield Conclusion("statistics-far", "Not healthy: the running statistics are not those of the training set.")
        else:
            text = "Whether the running statistics fit the training set could not be checked."
            yield Conclusion("statistics-unchecked", text)
        unchecked = unchecked or list(gap.layers)
    else:
        size = (
            f"differ by {_of_moments(checked)} times the random error in the median layer (up to {MEDIAN_LIMIT:.0f} is "
            f"normal), and {times(ratio_of(checked[0]))} times in the worst, `{checked[0].name}` (up to "
            f"{WORST_LIMIT:.0f})"
        )
        if not gap.passed:
            text = (
                f"Not healthy: the running statistics do not match this training set; they {size}. The pipeline or the "
                "data differ from training, or the running statistics are stale."
            )
            yield Conclusion("statistics-mismatch", text)
            yield from _cause(record)
        elif broken or ill:
            text = f"Not healthy, see below; the other running statistics match the training set: they {size}."
            yield Conclusion("unhealthy-elsewhere", text)
        elif far:
            text = f"The running statistics that could be checked match the training set's: they {size}."
            yield Conclusion("statistics-match-where-checked", text)
        else:
            text = f"Healthy: means and variances in the BatchNorm layers are those of the training data. They {size}."
            yield Conclusion("healthy", text)
    yield from _unchecked(record, unchecked)


def _of_moments(layers: Sequence[LayerGap]) -> str:
    """The median over layers of how far means and variances are off, as far as they are known: both are limited."""
    known = {"means": [each.ratio_mean for each in layers], "variances": [each.ratio_log_variance for each in layers]}
    medians = {name: median(ratios) for name, ratios in known.items()}
    return all_of(f"{times(each)} ({name})" for name, each in medians.items() if not math.isnan(each))


def _cause(record: Inspection) -> Iterator[Conclusion]:
    """Where running statistics do not match, what the run file lacks, and what to do."""
    data = record.run.get("data")
    if missing := [key for key in ("normalize", "augment") if isinstance(data, dict) and not data.get(key)]:
        keys = all_of((f"`{key}`" for key in missing), "or")
        text = f"Neither a run file nor an option sets {keys}; if training used it, that may be the cause."
        yield Conclusion("pipeline-incomplete", text)
    if record.pipelines is None:
        text = (
            "`--suggest-pipeline` searches for the pipeline that fits the running statistics; if the pipeline is right,"
            " `bnuq precise-bn` recomputes them."
        )
        yield Conclusion("search-pipeline", text)
    else:
        text = "If the pipeline is right, `bnuq precise-bn` recomputes the running statistics."
        yield Conclusion("recompute-statistics", text)


def _is_far(layer: LayerGap, *, comparable: bool) -> bool:
    """Whether what was not checked is far beyond what batch noise explains; if that is unknown, or running averages
    are not `comparable` as they mix several calls, beyond a standard deviation or a factor e of the variance."""
    rows = (
        (layer.ratio_mean, layer.rms_shift, layer.explained_shift),
        (layer.ratio_log_variance, layer.mean_log_ratio, MEAN_OF_ABSOLUTE * layer.explained_log_ratio),
    )
    limits = [max(WORST_LIMIT * by, _SLIGHT) if comparable and math.isfinite(by) else 1.0 for _, _, by in rows]
    return any(math.isnan(ratio) and distance > limit for (ratio, distance, _), limit in zip(rows, limits, strict=True))


def _unchecked(record: Inspection, layers: Sequence[LayerGap]) -> Iterator[Conclusion]:
    """Which layers could not be checked, and why."""
    sites = {site.name: site for site in record.sites}
    reasons: dict[str, list[str]] = {}
    for layer in layers:
        reasons.setdefault(_why_unchecked(sites.get(layer.name)), []).append(layer.name)
    for why, names in reasons.items():
        yield Conclusion("layers-unchecked", f"Not checked: {listed(names)} ({why}).")


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


def domain_findings(domains: Domains) -> Iterator[Conclusion]:
    for domain in domains.domains:
        yield _distance(domain)
    crossings = {(crossing.domain, crossing.statistics): crossing for crossing in domains.crossings}
    for name in dict.fromkeys(crossing.domain for crossing in domains.crossings):
        running, population = crossings.get((name, "running")), crossings.get((name, name))
        if running is not None and population is not None:
            yield from _gain(name, running, population)


def _distance(domain: Domain, most: int = 3) -> Conclusion:
    """The layers that distinguish a domain from the reference the most."""
    rows = worst_first(zip(domain.layers, map(float, domain.ratio), strict=True), lambda row: row[1])
    if layers := [f"{layer} ({times(ratio)} times the random error)" for layer, ratio in rows if ratio > MEDIAN_LIMIT]:
        text = f"{domain.name} is distinguishable from the training set, most in {', '.join(layers[:most])}."
        return Conclusion("domain-distinguishable", text)
    worst = max((ratio for _, ratio in rows if math.isfinite(ratio)), default=math.nan)
    if not math.isfinite(worst):
        text = f"No layer of {domain.name} could be compared with the training set."
        return Conclusion("domain-unmeasured", text)
    text = (
        f"No layer distinguishes {domain.name} from the training set: at most {times(worst)} times the random error "
        f"(up to {MEDIAN_LIMIT:.0f} is normal)."
    )
    return Conclusion("domain-alike", text)


def _gain(name: str, running: Crossing, population: Crossing) -> Iterator[Conclusion]:
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
    if not changes:
        return
    none = "unknown" if any(is_clear is None for *_, is_clear in changes.values()) else "no-effect"
    effects: dict[tuple[int, ...], str] = {(): none, (1,): "better", (-1,): "worse"}
    effect = effects.get(tuple(directions), "mixed")
    how = {
        "no-effect": f"With its own statistics, {name} changes little",
        "unknown": f"Whether its own statistics change {name} cannot be told from so few examples",
        "mixed": f"With its own statistics, {name} shows a mixed effect",
    }.get(effect, f"With its own statistics, {name} is {effect}")
    texts = (
        f"{named(metric)} {number(before, 3)} → {number(after, 3)} ({signed(after - before, 3)})"
        + ("" if is_clear else ", of an unknown error" if is_clear is None else ", within two errors")
        for metric, (before, after, is_clear) in changes.items()
    )
    yield Conclusion(f"own-statistics-{effect}", f"{how}: {'; '.join(texts)}.")


def pipeline_findings(pipelines: Pipelines) -> Iterator[Conclusion]:
    if not pipelines.candidates:
        yield Conclusion("no-pipeline-tried", "No pipeline could be tried.")
        return
    best, *others = pipelines.candidates
    if not best.passed:
        limits = (
            (best.median, "the median layer", MEDIAN_LIMIT),
            (best.worst, f"the worst layer, {best.worst_layer}", WORST_LIMIT),
        )
        exceeded = [
            f"{times(ratio)} times the random error in {where} (up to {limit:.0f} is normal)"
            for ratio, where, limit in limits
            if not ratio <= limit
        ]
        why = " and ".join(exceeded) or "by the check of the training set"
        text = f"None of the pipelines tried fits the running statistics. The closest is {pipeline_of(best)}: {why}."
        yield Conclusion("no-pipeline-fits", text)
        return
    text = (
        f"The running statistics fit {pipeline_of(best)} best: {times(best.worst)} times the random error in the worst "
        f"layer, `{best.worst_layer}`."
    )
    yield Conclusion("pipeline-fits", text)
    equivalent = [pipeline_of(candidate) for candidate in others if candidate.tied]
    for text in pipelines.undetermined:
        yield Conclusion("pipeline-undetermined", f"Undetermined by the statistics: {text.rstrip('.')}.")
    if equivalent and not pipelines.undetermined:
        yield Conclusion("pipelines-equivalent", f"These pipelines fit equally well: {listed(equivalent)}.")


def independence(noise: NoiseBySize) -> Iterator[Conclusion]:
    """Whether a channel's values are as good as independent, and the error of a noise model of nominal n; nothing if
    that is unknown."""
    layers = worst_first(
        (layer for layer in noise.layers if math.isfinite(least_share(layer))), lambda layer: -least_share(layer)
    )
    if not layers:
        return
    worst, share = layers[0], least_share(layers[0])
    if not share > 0:
        text = f"The values of a channel are not independent: least of all in {worst.name}."
        yield Conclusion("values-fully-dependent", text)
        return
    if share < _HALF:
        dependent = sum(least_share(layer) < _HALF for layer in layers)
        text = (
            f"The values of a channel are not independent in {dependent} of {count(len(layers), 'layer')}: in "
            f"{worst.name}, the effective sample size is {brief(share * worst.nominal)} where b·z = {worst.nominal:,}. "
            f"An analytic noise model with nominal n makes its noise {times(1 / math.sqrt(share))} times too small: it "
            "needs measured counts."
        )
        yield Conclusion("values-dependent", text)
        return
    shares = [share_of(values, layer) for layer in layers for values in (layer.values_mean, layer.values_deviation)]
    within = "within a factor √2 of" if all(share <= _MORE for share in shares) else "at most √2 times"
    text = (
        f"The values of a channel are nearly independent: the noise is {within} that of n = b·z independent values; at "
        f"worst, in {worst.name}, the effective sample size is {percent(share)} of n."
    )
    yield Conclusion("values-independent", text)
