"""The verdicts of a sweep: how its uncertainty falls, whether it still ranks, and which size is recommended."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from itertools import takewhile

from bnuq.estimates import Estimate
from bnuq.findings import Finding
from bnuq.findings import verdict as _verdict
from bnuq.methods import NETWORKS
from bnuq.metrics.replicates import error_of_change
from bnuq.records.comparisons import OTHER_SCALE, on_another_scale
from bnuq.records.sweep import Repeated, Sweep, SweepPoint, decay_rate
from bnuq.report.numbers import error_of, interval_of
from bnuq.report.sweep.recommendation_findings import is_mismatched, recommendation_findings
from bnuq.report.sweep.sweep_lines import (
    SweepLine,
    auroc_of,
    compared_by,
    disagreement_name,
    disagreement_of,
    estimate_of,
    lines_of,
    names_of,
)

_VAGUE = 0.3  # an interval of an AUROC that says little


def findings(sweep: Sweep) -> Iterator[Finding]:
    """What forbids conclusions, the recommendation, then the verdicts, line by line; `line` names it if there are
    several. Nothing is said of sets whose inputs are on another scale than the reference's, and no size recommended
    while a reference check fails."""
    rescaled = on_another_scale(sweep.findings)
    for name, values in rescaled.items():
        yield _verdict(OTHER_SCALE, set=name, sd=values["sd"], reference_sd=values["reference_sd"])
    if is_mismatched(sweep):
        yield _verdict("reference-mismatch")
    yield from recommendation_findings(sweep)
    lines = lines_of(sweep)
    for line in lines:
        name = "" if len(lines) == 1 else line.title if line.model is None else line.model.name
        verdict = partial(_verdict, line=name)
        if len(line.random) > 1 and "test" not in rescaled:
            yield _disagreement(sweep, line, verdict)
            for name in names_of(sweep, "ood"):
                if name not in rescaled:
                    yield from _ranking(sweep, line, name, verdict)
        if (metric := compared_by(line)) and not rescaled.keys() & {"test", "validation"}:
            ends = line.compared[:1] + line.compared[1:][-1:]
            gains = {name: [point.compared_with[name][metric].difference for point in ends] for name in NETWORKS}
            deterministic, population = gains.values()
            sizes = [point.batch_size for point in ends]
            yield verdict(
                "statistics-stale", metric=metric, sizes=sizes, deterministic=deterministic, population=population
            )
        if fixed := [point for point in line.points if point.degenerate]:
            all_whole = all(_is_whole_reference(sweep, point) for point in fixed)
            sizes = [point.batch_size for point in fixed]
            code = "whole-reference" if all_whole else "nothing-random"
            yield verdict(code, sizes=sizes, spread=disagreement_name(sweep))
    if any(line.model is None for line in lines):
        yield _verdict("different-weights")


def _is_whole_reference(sweep: Sweep, point: SweepPoint) -> bool:
    """Whether a mini-batch is known to be the whole reference."""
    terms = sweep.models[point.model].elbo
    return terms is not None and terms.reference_points == point.batch_size


# ── how the uncertainty falls ────────────────────────────────────────────────────────────────────────────────────────


def _disagreement(sweep: Sweep, line: SweepLine, verdict: Callable[..., Finding]) -> Finding:
    [test, *_] = names_of(sweep, "test")
    first, last = line.random[0], line.random[-1]
    before, after = (estimate_of(point, disagreement_of(sweep), test) for point in (first, last))
    if before is None or after is None:
        return verdict("spread-unknown", spread=disagreement_name(sweep))
    values = {
        "spread": disagreement_name(sweep),
        "sizes": (first.batch_size, last.batch_size),
        "ends": (before.value, after.value),
    }
    decay = None if line.model is None else line.model.decay.get(test)
    if decay is None:
        change = after.value - before.value
        return verdict(f"spread-{'rises' if change > 0 else 'falls' if change < 0 else 'unchanged'}", **values)
    return verdict(f"spread-{decay_rate(*interval_of(decay.slope))}", **values)


# ── whether it ranks ─────────────────────────────────────────────────────────────────────────────────────────────────


def _ranking(sweep: Sweep, line: SweepLine, name: str, verdict: Callable[..., Finding]) -> Iterator[Finding]:
    """Whether an OOD set stays separated where the size of the score does not."""
    aurocs = ((point.batch_size, auroc_of(sweep, point, name)) for point in line.random)
    known = [(b, auroc) for b, auroc in aurocs if auroc is not None and not math.isnan(auroc.estimate.value)]
    if len(known) < 2:
        yield verdict("ood-too-few-sizes", name=name)
        return
    (smallest, first), (largest, last) = known[0], known[-1]
    ends = first.estimate.value, last.estimate.value
    verdict = partial(verdict, name=name, sizes=(smallest, largest), ends=ends)
    by_chance = takewhile(lambda each: not interval_of(each[1].estimate)[0] > 0.5, reversed(known))  # NaN: unknown
    chance_from = min((size for size, _ in by_chance), default=None)
    if chance_from == smallest:
        intervals = [interval_of(auroc.estimate) for _, auroc in known]
        familiar, vague = all(high < 0.5 for _, high in intervals), any(high - low > _VAGUE for low, high in intervals)
        yield verdict("ood-familiar" if familiar else "ood-unclear" if vague else "ood-not-separated")
        return
    change = _change(first, last)
    error = error_of(change)
    if error is None or not math.isfinite(error):
        yield verdict("ood-separated")
    else:
        direction = "equally" if abs(change.value) <= 2 * error else "less" if change.value < 0 else "better"
        yield verdict(f"ood-separated-{direction}", change=change)
    if chance_from is not None:
        yield verdict("ood-chance", size=chance_from)


def _change(first: Repeated, last: Repeated) -> Estimate:
    """What the estimate gains from one size to another.

    Draw sets are paired. Errors over points are taken for independent: points are the same, so that this is more than
    enough wherever a point that ranks high at one size does so at the other.
    """
    points = [repeated.estimate.se for repeated in (first, last) if repeated.estimate.se is not None]
    draws = error_of_change(last.of_sets, first.of_sets) if min(len(first.of_sets), len(last.of_sets)) > 1 else None
    value = last.estimate.value - first.estimate.value
    return Estimate(value, se=math.hypot(*points) if points else None, mc_se=draws)
