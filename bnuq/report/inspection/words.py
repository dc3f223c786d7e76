"""An inspection in words: whether the network is healthy, which layers are not, and what to do."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Literal

import numpy as np

from bnuq.estimates import Estimate
from bnuq.findings import warnings
from bnuq.metrics.noise import small_sample_slope
from bnuq.records.evaluation import MEDIAN_LIMIT, WORST_LIMIT
from bnuq.records.inspection import (
    Candidate,
    Crossing,
    Domain,
    Domains,
    Gap,
    Inspection,
    LayerGap,
    LayerNoise,
    Noise,
    Pipelines,
    SiteRow,
)
from bnuq.records.inspection.records import FEW_VALUES, SURE
from bnuq.report.drawing import short
from bnuq.report.inspection.lines import (
    MEAN_OF_ABSOLUTE,
    are,
    brief,
    median_of,
    named,
    percent,
    pipeline_of,
    ratio_of,
    share_of,
    times,
    values_of,
    worst_first,
)
from bnuq.report.numbers import count, number, signed
from bnuq.report.numbers import named as metric_name
from bnuq.report.sweep.lines import error_of, interval_of

_HALF, _MORE = 0.5, 2.0  # of the nominal values: what is between them is nearly independent
_POINTS = 3  # that a slope with an error takes
_NEAR = 0.1  # of −1, where a slope is as it should be


def in_words(found: Inspection) -> Iterator[str]:
    """What a user wants first."""
    yield from _of_health(found)
    yield from _of_sites(found)
    if found.noise is not None and found.noise.layers:
        yield from _of_noise(found.noise)
    if found.domains is not None:
        yield from of_domains(found.domains)
    if found.pipelines is not None:
        yield from of_pipelines(found.pipelines)


# ── health ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def _of_health(found: Inspection) -> Iterator[str]:
    ill = {flag: [site.name for site in found.sites if flag in site.flags] for flag in _FLAGS}
    broken = [*ill["not-finite"], *ill["never-trained"]]
    if found.gap is not None:
        yield from _of_gap(found, found.gap, broken)
    elif broken:
        yield f"Not healthy: see {named(list(dict.fromkeys(broken)))}."
    elif found.noise is None and any(site.kind == "batchnorm" for site in found.sites):
        yield _of_what_is_unmeasured(found)
    for flag, text in _FLAGS.items():
        if names := list(dict.fromkeys(ill[flag])):
            layers = f"{named(names)} ({count(len(names), 'layer')})" if len(names) > 1 else names[0]
            yield f"{_capital(flag)}: {layers}. {text}"
    if found.gap is not None and (dead := [layer for layer in found.gap.layers if layer.dead]):
        channels = sum(layer.dead for layer in dead)
        names = [layer.name for layer in worst_first(dead, lambda layer: layer.dead)]
        yield (
            f"{are(channels, 'channel')} dead in some batch (variance below 10 ε), most in {named(names)}: their "
            "output depends on ε."
        )


_FLAGS = {
    "not-finite": "Its statistics or weights contain NaN or infinity, and so do the network's outputs.",
    "never-trained": "Its running statistics still have their initial values; `bnuq precise-bn` computes them.",
    "vanishing": "Running variances below 10 ε: those channels are dead, or their output depends on ε.",
    "frozen": "It normalises by its running statistics in training too, so it has no batch noise.",
    "untracked": "It keeps no running statistics and normalises by the batch at evaluation.",
    "called-again": "It is called more than once per forward pass: its running statistics mix the calls.",
}


def _of_what_is_unmeasured(found: Inspection) -> str:
    """What is known of the running statistics without having been held against a reference, and why they were not."""
    warned = {finding.code for finding in warnings(found.findings)}
    if "not-finite" in warned:
        return "Not healthy: weights contain NaN or infinity; see the warnings."
    flagged = any(site.flags for site in found.sites if site.kind == "batchnorm")
    unfit = found.pipelines is not None and not any(one.passed for one in found.pipelines.candidates)
    unremarkable = not (flagged or unfit or warned - {"reference-unreadable"})
    opening = "The running statistics by themselves show nothing unusual. " if unremarkable else ""
    whether = f"{opening}Whether {'they' if opening else 'the running statistics'} fit the data"
    if unfit:
        return f"{whether} is doubtful: none of the pipelines tried makes them fit."
    if found.pipelines is not None:
        return (
            f"{whether} is reported below; inspect again with the lines for the run file for a layer-by-layer "
            "comparison."
        )
    if "reference-unreadable" in warned:
        return f"{whether} was not measured: the reference cannot be read; see the warnings."
    why = next((str(finding.values["reason"]) for finding in found.findings if finding.code == "unmeasured"), "")
    data = found.run.get("data")
    if "no BatchNorm layer" in why or (isinstance(data, dict) and data.get("train") is not None):
        return f"{whether} was not measured{f': {why}' if why else ', see the notes'}."
    return f"{whether} can only be measured with a reference: name the training set with `--train`."


def _of_gap(found: Inspection, gap: Gap, broken: Sequence[str]) -> Iterator[str]:
    """The verdict on the running statistics, then what could not be checked."""
    rows = worst_first(gap.layers, ratio_of)
    checked = [layer for layer in rows if not math.isnan(ratio_of(layer))]
    unchecked = [layer for layer in gap.layers if _is_unchecked(layer)]
    mixed = {site.name for site in found.sites if "called-again" in site.flags}
    far = [layer for layer in unchecked if _is_far(layer, comparable=layer.name not in mixed)]
    ill = any(layer.name not in mixed for layer in far)
    if gap.passed is None or not checked:
        yield (
            "Not healthy: the running statistics differ from the reference's by more than batch noise explains."
            if ill
            else "Whether the running statistics fit the reference could not be checked."
        )
        yield _of_unchecked(found, unchecked or gap.layers, far)
        return
    worst = ratio_of(checked[0])
    told = (
        f"{times(median_of(checked))} times what batch noise explains in the median layer, {times(worst)} times in the "
        f"worst, {checked[0].name} (up to {MEDIAN_LIMIT:.0f} and {WORST_LIMIT:.0f} is normal)"
    )
    if gap.passed and (broken or ill):
        yield f"Not healthy, see below; the other running statistics match the reference: they differ by {told}."
    elif gap.passed and far:
        yield f"The running statistics that could be checked match the reference's: they differ by {told}."
    elif gap.passed:
        yield f"Healthy: the running statistics match the reference's population; they differ by {told}."
    else:
        yield _of_failure(found, told, [layer.name for layer in checked if ratio_of(layer) > WORST_LIMIT])
    if unchecked:
        yield _of_unchecked(found, unchecked, far)


def _of_failure(found: Inspection, told: str, far: Sequence[str]) -> str:
    where = f" Largest differences: {named(far)}." if len(far) > 1 else ""
    data = found.run.get("data")
    if missing := [f"`{key}`" for key in ("normalize", "augment") if isinstance(data, dict) and not data.get(key)]:
        where += f" The run file has no {' and no '.join(missing)}; if training used it, that is the cause."
    if found.pipelines is None:
        advice = "`--suggest-pipeline` searches for the pipeline that fits them"
    elif found.pipelines.candidates and found.pipelines.candidates[0].passed:
        advice = f"They fit another pipeline: {pipeline_of(found.pipelines.candidates[0])}"
    else:
        advice = "None of the pipelines tried makes them fit"
    return (
        f"Not healthy: the running statistics do not match this reference; they differ by {told}.{where} The "
        f"pipeline or the data differ from training, or the running statistics are stale. {advice}; if the "
        "pipeline is right, `bnuq precise-bn` recomputes the statistics."
    )


def _is_unchecked(layer: LayerGap) -> bool:
    return math.isnan(layer.ratio_mean) or math.isnan(layer.ratio_log_variance)


def _is_far(layer: LayerGap, *, comparable: bool) -> bool:
    """Whether what was not checked is far beyond what batch noise explains; where that is unknown, or running averages
    are not `comparable` as they mix several calls, beyond a standard deviation or a factor e of the variance."""
    rows = (
        (layer.ratio_mean, layer.rms_shift, layer.explained_shift),
        (layer.ratio_log_variance, layer.mean_log_ratio, MEAN_OF_ABSOLUTE * layer.explained_log_ratio),
    )
    limits = [max(WORST_LIMIT * by, _SLIGHT) if comparable and math.isfinite(by) else 1.0 for _, _, by in rows]
    return any(math.isnan(ratio) and distance > limit for (ratio, distance, _), limit in zip(rows, limits, strict=True))


_SLIGHT = 0.01  # standard deviations, which do no harm however small batch noise is


def _of_unchecked(found: Inspection, layers: Sequence[LayerGap], far: Sequence[LayerGap]) -> str:
    """Which layers could not be checked and why, and how far off they are."""
    sites = {site.name: site for site in found.sites}
    reasons: dict[str, list[str]] = {}
    for layer in layers:
        reasons.setdefault(_why_unchecked(sites.get(layer.name)), []).append(layer.name)
    why = "; ".join(f"{named(names)} ({reason})" for reason, names in reasons.items())
    text = f"Not checked: {why}." if why else "No layer could be checked."
    if far:
        by_mean, by_variance = (worst_first(far, by)[0] for by in (_shift_of, _log_ratio_of))
        text += (
            f" Largest differences: {times(by_mean.rms_shift)} standard deviations in the mean ({by_mean.name}) "
            f"and {times(by_variance.mean_log_ratio)} in ln variance ({by_variance.name})."
        )
    return text


def _shift_of(layer: LayerGap) -> float:
    return layer.rms_shift


def _log_ratio_of(layer: LayerGap) -> float:
    return layer.mean_log_ratio


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


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _of_sites(found: Inspection) -> Iterator[str]:
    if not found.sites:
        yield "Nothing here can be made stochastic: the network calls no BatchNorm or dropout."
        return
    kinds = (("batchnorm", "BatchNorm layer"), ("dropout", "dropout"))
    live = {what: sum(site.stochastic for site in found.sites if site.kind == kind) for kind, what in kinds}
    told = [count(amount, what) for what, amount in live.items() if amount]
    text = f"{_capital(' and '.join(told) or 'nothing')} can be made stochastic"
    fixed: dict[str, list[str]] = {}
    for site in found.sites:
        if not site.stochastic:
            fixed.setdefault(site.reason, []).append(site.name)
    cannot = "; ".join(f"{named(names)}: {reason}" for reason, names in fixed.items())
    yield f"{text}; not {cannot}." if fixed else f"{text}."
    if found.unreachable:
        names = [name or "the network" for name, _ in found.unreachable]
        yield f"Random in training, but out of reach here: {named(names)} ({found.unreachable[0][1]})."


# ── noise ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _of_noise(noise: Noise) -> Iterator[str]:
    by_u, by_v = (worst_first(noise.layers, by) for by in (lambda one: one.sigma_u, lambda one: one.sigma_v))
    if any(math.isfinite(sd) for one in noise.layers for sd in (one.sigma_u, one.sigma_v)):
        yield (
            f"At b = {noise.batch_size:,}, batch noise scales activations by U with sd "
            f"{_range([one.sigma_u for one in by_u])} (most in {by_u[0].name}) and shifts them by V with sd "
            f"{_range([one.sigma_v for one in by_v])} (most in {by_v[0].name}), in units of a channel's standard "
            "deviation."
        )
    if text := of_independence(noise):
        yield text
    if (text := _of_slopes(noise)) is not None:
        yield text
    yield of_bias(noise)


def _range(values: Sequence[float]) -> str:
    known = [value for value in values if math.isfinite(value)]
    if not known:
        return "–"
    low, high = brief(min(known)), brief(max(known))
    return low if low == high else f"{low} to {high}"


def of_independence(noise: Noise) -> str:
    """Whether a channel's values are as good as independent, and what a law of nominal n gets wrong; "" where nothing
    is known."""
    known = [one for one in noise.layers if math.isfinite(share_of(values_of(one), one))]
    if not known:
        return ""
    rows = worst_first(known, lambda one: -share_of(values_of(one), one))
    least, share = rows[0], share_of(values_of(rows[0]), rows[0])
    far = [one for one in rows if share_of(values_of(one), one) < _HALF]
    if not far:
        shares = [share_of(values, one) for one in known for values in (one.values_mean, one.values_deviation)]
        within = "within a factor √2 of" if all(value <= _MORE for value in shares) else "at most √2 times"
        text = (
            f"The values of a channel are nearly independent: the noise is {within} that of n = b·z independent "
            f"values; at worst, in {least.name}, the effective sample size is {percent(share)} of n"
        )
        less = [one for one in known if _MORE < share_of(one.values_mean, one) < math.inf]
        if not less:
            return f"{text}."
        one = worst_first(less, lambda one: share_of(one.values_mean, one))[0]
        return (
            f"{text}; in {len(less)} of {count(len(rows), 'layer')} the mean varies less, because the same batch "
            f"normalised the layers before (most in {one.name}, {times(math.sqrt(share_of(one.values_mean, one)))} "
            "times less)."
        )
    one, values = far[0], values_of(far[0])
    if not values > 0:
        return f"The values of a channel are not independent: least of all in {one.name}."
    wrong = math.sqrt(one.nominal / values)
    return (
        f"The values of a channel are not independent in {len(far)} of {count(len(rows), 'layer')}: in "
        f"{one.name}, the effective sample size is {brief(values)} where b·z = {one.nominal:,}. An analytic noise "
        f"model with nominal n makes its noise {times(wrong)} times too small: it needs measured counts."
    )


def _of_slopes(noise: Noise) -> str | None:
    known = [(one, one.slope) for one in noise.layers if one.slope is not None and math.isfinite(one.slope.value)]
    if not known:
        return None
    told = [slope.value for _, slope in known]
    text = f"slope of ln variance on ln b {number(min(told), 2)} to {number(max(told), 2)}"
    text = text if len(told) > 1 else f"slope of ln variance on ln b {number(told[0], 2)}"
    judged = {one.name: _judged(one, slope, noise) for one, slope in known}
    off, unsure = ([name for name, told in judged.items() if told == what] for what in ("off", "unsure"))
    of = f"of {count(len(known), 'layer')}"
    if len(unsure) == len(known):
        return f"The slopes are too uncertain to say whether the noise falls as 1/b ({text}, −1 expected)."
    doubt = f" In {len(unsure)} {of} the slope is too uncertain to say: {named(unsure)}." if unsure else ""
    if not off:
        return f"The noise falls as 1/b, as it should: {text}.{doubt}"
    return f"In {len(off)} {of} the noise does not fall as 1/b ({text}, −1 expected): {named(off)}.{doubt}"


def _judged(one: LayerNoise, slope: Estimate, noise: Noise) -> Literal["expected", "off", "unsure"]:
    """Whether the slope is near what it should be, surely is not, or may be either."""
    low, high = interval_of(slope)
    expected = small_sample_slope(np.array(noise.sizes, np.float64) * one.positions) or -1.0
    if abs(slope.value - expected) <= _NEAR:
        return "expected"
    return "unsure" if low <= expected <= high else "off"


def of_bias(noise: Noise) -> str:
    """What normalising by the unbiased variance would change, and whether that matters."""
    few = worst_first((one for one in noise.layers if one.nominal < FEW_VALUES), lambda one: one.unbiased_scale)
    if few:
        one, names = few[0], named([one.name for one in few])
        return (
            f"Biased or unbiased variance matters in {names}: at n = {one.nominal} values per channel they differ by "
            f"{percent(one.unbiased_scale - 1)} in scale. Training normalises by the biased one, evaluation by an "
            "average of unbiased ones; MCBN uses the biased one."
        )
    one = worst_first(noise.layers, lambda one: one.unbiased_scale)[0]
    return (
        f"Biased or unbiased variance makes no difference here: at most {percent(one.unbiased_scale - 1)} in scale "
        f"({one.name}, n = {one.nominal:,}); below n ≈ {FEW_VALUES} values per channel it would (1 %)."
    )


def of_space(noise: Noise) -> str:
    """How the variance goes with the positions over layers, or why that is not known."""
    slope = noise.spatial_slope
    if slope is None or not math.isfinite(slope.value):
        return f"Across layers, no slope of the variance over the number of positions: {_why_no_slope(noise)}."
    error = error_of(slope)
    text = f"Across layers, b times the variance scales with the number of positions to the power {with_error(slope)}"
    if error is None or not math.isfinite(error):
        return f"{text}; independent positions give −1, which Shekhovtsov & Flach 2018 found approximately."
    says = "this disagrees" if abs(slope.value + 1) > 2 * error else "this agrees"
    return f"{text}: {says} with Shekhovtsov & Flach 2018, who found approximately −1, as for independent positions."


def _why_no_slope(noise: Noise) -> str:
    known = [one for one in noise.layers if math.isfinite(one.sigma_v)]
    if len(known) < _POINTS:
        return f"it takes at least {_POINTS} layers with a known variance, and the network has {len(known)}"
    if len({one.positions for one in known}) == 1:
        return f"all layers have the same number of positions, {known[0].positions:,}"
    return "the variances of too few layers are known"


def with_error(estimate: Estimate, digits: int = 2) -> str:
    error = error_of(estimate)
    known = error is not None and math.isfinite(error)
    return f"{number(estimate.value, digits)} ± {number(error, digits)}" if known else number(estimate.value, digits)


# ── domains and pipelines ────────────────────────────────────────────────────────────────────────────────────────────


def of_domains(found: Domains) -> Iterator[str]:
    for domain in found.domains:
        yield _of_domain(domain)
    own = {(one.domain, one.statistics): one for one in found.crossings}
    for name in dict.fromkeys(one.domain for one in found.crossings):
        if (text := _of_crossing(name, own.get((name, "running")), own.get((name, name)))) is not None:
            yield text


def most_apart(domain: Domain, most: int = 3) -> list[tuple[str, float]]:
    """The layers that tell a domain apart the most, with their ratios to batch noise; those that are too much alone."""
    rows = worst_first(zip(domain.layers, map(float, domain.ratio), strict=True), lambda row: row[1])
    return [row for row in rows if row[1] > MEDIAN_LIMIT][:most]


def _of_domain(domain: Domain) -> str:
    apart = most_apart(domain)
    if not apart:
        ratios = [float(ratio) for ratio in domain.ratio if math.isfinite(ratio)]
        most = f": at most {times(max(ratios))} times batch noise" if ratios else ""
        return f"No layer distinguishes {domain.name} from the reference{most} (up to {MEDIAN_LIMIT:.0f} is normal)."
    layers = ", ".join(f"{name} ({times(ratio)} times batch noise)" for name, ratio in apart)
    return f"{domain.name} is distinguishable from the reference, most in {layers}."


def _of_crossing(name: str, running: Crossing | None, own: Crossing | None) -> str | None:
    """What a domain gains by statistics of its own."""
    if running is None or own is None:
        return None
    told, signs = [], []
    for metric, better in (("accuracy", 1), ("pll", 1), ("rmse", -1)):
        before, after = running.estimates.get(metric), own.estimates.get(metric)
        if before is None or after is None or not math.isfinite(after.value - before.value):
            continue
        change = after.value - before.value
        error = math.hypot(error_of(before) or 0.0, error_of(after) or 0.0)
        signs.append(0 if abs(change) <= 2 * error else 1 if change * better > 0 else -1)
        words = f"{metric_name(metric)} {number(before.value, 3)} → {number(after.value, 3)} ({signed(change, 3)})"
        told.append(words + (", within two errors" if not signs[-1] else ""))
    if not told:
        return None
    moved = set(signs) - {0}
    effect = "little change" if not moved else "mixed effect" if len(moved) > 1 else "better" if 1 in moved else "worse"
    return f"{name} with its own statistics, {effect}: {'; '.join(told)}."


def of_pipelines(found: Pipelines) -> Iterator[str]:
    if not found.candidates:
        yield "No pipeline could be tried."
        return
    best = found.candidates[0]
    if not best.passed:
        yield (
            f"None of the pipelines tried fits the running statistics. The closest is {pipeline_of(best)}: "
            f"{_failed(best)}. {_of_the_closest(found)}"
        )
        return
    told = f"{times(best.worst)} times batch noise in the worst layer, {best.worst_layer}"
    yield f"The running statistics fit {pipeline_of(best)} best: {told}."
    others = [one for one in found.candidates[1:] if one.tied]
    if found.undetermined:
        yield f"Undetermined by the statistics: {'; '.join(text.rstrip('.') for text in found.undetermined)}."
    elif others:
        yield f"{_capital(are(len(others), 'other'))} as good: {named([pipeline_of(one) for one in others])}."


def _failed(one: Candidate) -> str:
    """By which of the two limits a candidate fails."""
    failed = [
        f"{times(ratio)} times batch noise in {where} (up to {limit:.0f} is normal)"
        for ratio, where, limit in (
            (one.median, "the median layer", MEDIAN_LIMIT),
            (one.worst, f"the worst layer, {one.worst_layer}", WORST_LIMIT),
        )
        if not ratio <= limit
    ]
    return " and ".join(failed) or "by the reference check"


def _of_the_closest(found: Pipelines) -> str:
    """What the candidates tell where none fits: at most where mean and std come from."""
    best = found.candidates[0]
    own = (best.normalize, best.scale)
    rivals = [one for one in found.candidates if (one.normalize, one.scale) != own]
    least = min((one.worst for one in found.candidates if not math.isnan(one.worst)), default=math.nan)
    others = any((one.normalize, one.scale) != own for one in (*found.candidates, *found.first_round))
    if not others or not all(one.worst >= SURE * least for one in rivals):
        return "It is not recommended."
    name = "none at all" if best.normalize is None else best.normalize
    pixels = " to pixels of 0–255" if best.scale == 255 else ""
    return (
        f"Of the normalisations, {short(name, 40)}{pixels} is by far the closest, though the running averages fit none."
    )
