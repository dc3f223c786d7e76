"""The verdicts on which mini-batch size is recommended, and how sure that is."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from bnuq.estimates import Estimate
from bnuq.findings import Finding, verdict
from bnuq.records.sweep import Recommended, Sweep
from bnuq.records.verdict import on_another_scale
from bnuq.report.numbers import error_of
from bnuq.report.sweep.sweep_lines import names_of, score_name


def is_mismatched(sweep: Sweep) -> bool:
    """Whether the reference check of a network failed."""
    return any(finding.code == "reference-mismatch" for finding in sweep.findings)


def recommendation_findings(sweep: Sweep) -> Iterator[Finding]:
    """The recommended size, how clearly it leads, and whether the optimum may lie elsewhere; or why there is none."""
    chosen = sweep.recommended
    random = sum(not point.degenerate for point in sweep.points)
    if is_mismatched(sweep) and random > 1:
        yield verdict("not-recommended-mismatched")
    elif chosen is None:
        is_unknown = any(finding.code == "no-recommendation" for finding in sweep.findings)
        why = "scale" if on_another_scale(sweep.findings) and not is_unknown else "criterion"
        yield verdict(f"not-recommended-{why if random > 1 else 'few' if random else 'none'}")
    else:
        network, matched = sweep.models[chosen.model].name, chosen.protocol == "matched"
        yield verdict(
            f"recommended-by-{chosen.criterion}",
            size=chosen.batch_size,
            whose=f" for {network}" if len(sweep.models) > 1 and not matched else "",
            network=f" (the network {network})" if matched else "",
            of=chosen.of,
            mean="the mean " if len(names_of(sweep, "ood")) > 1 else "",
            ood=names_of(sweep, "ood"),
            score=score_name(sweep),
        )
        if (by_pll := chosen.by_pll) is not None and by_pll.batch_size != chosen.batch_size:
            clear = by_pll.change > 2 * by_pll.se
            yield verdict("recommended-costs", size=by_pll.batch_size, change=by_pll.change, se=by_pll.se, clear=clear)
        sizes = sorted({*chosen.behind, chosen.batch_size})
        position = sizes.index(chosen.batch_size)
        yield from _lead(chosen, sizes, position)
        yield from _optimum(chosen, sizes, position)


def _lead(chosen: Recommended, sizes: Sequence[int], position: int) -> Iterator[Finding]:
    """How far the other sizes are behind the recommended one, which is number `position`."""
    estimates = [estimate for size, estimate in chosen.behind.items() if size != chosen.batch_size]
    if any(math.isfinite(estimate.se or 0.0) and math.isfinite(estimate.mc_se or 0.0) for estimate in estimates):
        within = sorted({chosen.batch_size, *chosen.within})
        yield verdict("recommended-among" if len(within) > 1 else "recommended-alone", sizes=within)
    else:
        yield verdict("recommended-without-errors")
    if behind := {size: chosen.behind[size] for size in _decisive_sizes(chosen, sizes, position)}:
        yield verdict("recommended-ahead", behind=behind, unit=_UNITS[chosen.criterion])


def _optimum(chosen: Recommended, sizes: Sequence[int], position: int) -> Iterator[Finding]:
    """What the recommended size, which is number `position`, leaves open about the best of all sizes."""
    if chosen.decided_by == "prior":
        yield verdict("prior-decides")
    if chosen.at_end:
        neighbour = sizes[1] if position == 0 else sizes[position - 1]
        code = f"recommended-is-{'trained-end' if chosen.protocol == 'matched' else chosen.at_end}"
        yield verdict(code, end=chosen.at_end, neighbour=neighbour)
    if (predicted := chosen.predicted_batch_size) is not None:
        yield verdict("optimum-predicted", predicted=predicted)
        if not sizes[0] <= predicted.value <= sizes[-1]:
            yield verdict("optimum-outside")
        if chosen.criterion == "elbo" and not _is_next_to(predicted, sizes, position):
            yield verdict("optimum-contradicted")


def _is_next_to(predicted: Estimate, sizes: Sequence[int], position: int) -> bool:
    """Whether an optimum may lie, within twice its error, where size number `position` is the best: between the sizes
    next to it, and beyond it where it is the first or the last."""
    margin = 2 * (error_of(predicted) or 0.0)
    low = 0 if position == 0 else sizes[position - 1]
    high = math.inf if position == len(sizes) - 1 else sizes[position + 1]
    return low - margin <= predicted.value <= high + margin


def _decisive_sizes(chosen: Recommended, sizes: Sequence[int], position: int) -> list[int]:
    """The neighbours of the recommended size, and the worst of all."""
    neighbours = [*sizes[max(0, position - 1) : position], *sizes[position + 1 : position + 2]]
    others = [size for size in sizes if size != chosen.batch_size and math.isfinite(chosen.behind[size].value)]
    worst = [min(others, key=lambda size: chosen.behind[size].value)] if others else []
    return [*neighbours, *(size for size in worst if size not in neighbours)]


_UNITS = {"elbo": " (nats of the whole training set)", "pll": " (nats per point)", "auroc": ""}
