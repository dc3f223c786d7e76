"""The verdicts on other domains and on candidate pipelines, by their statistics."""

from __future__ import annotations

import math
from collections.abc import Iterator

from bnuq.findings import Finding, verdict
from bnuq.records.evaluation import MEDIAN_LIMIT, WORST_LIMIT
from bnuq.records.inspection import SURE, Crossing, Domain, Domains, PipelineFit, Pipelines
from bnuq.report.drawing import short
from bnuq.report.inspection.layer_numbers import pipeline_of, worst_first
from bnuq.report.numbers import error_of


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
