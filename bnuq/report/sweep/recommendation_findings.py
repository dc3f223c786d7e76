"""The verdicts on which mini-batch size is recommended, and how sure that is."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

from bnuq.findings import Finding, verdict
from bnuq.metrics.registry import metric_of
from bnuq.records.comparisons import REACH, on_another_scale
from bnuq.records.sweep import Recommended, Sweep
from bnuq.report.sweep.sweep_lines import names_of


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
            mean=" on average" if len(names_of(sweep, "ood")) > 1 else "",
            ood=names_of(sweep, "ood"),
            beside=_beside(chosen),
        )
        sizes = sorted({*chosen.behind, chosen.batch_size})
        position = sizes.index(chosen.batch_size)
        yield from _lead(chosen)
        yield from _optimum(chosen, sizes, position)


def _beside(chosen: Recommended) -> dict[str, Any] | None:
    """The metrics of the test set by which the recommended size is better than all others, and those by which another
    one is, beyond twice their paired errors; None where no metric has an error."""
    said = chosen.criterion if chosen.of == "test" else ""
    also, but, known = [], [], {name: each for name, each in chosen.on_test.items() if each.se and name != said}
    for metric, other in known.items():
        gain = other.difference * (-1 if metric_of(metric).direction == "lower" else 1)
        reach = REACH * (other.se or 0.0)
        if gain > reach:
            also.append(metric)
        elif gain < -reach:
            values = {"difference": other.difference, "se": other.se}
            but.append({"metric": metric, "against": f"{other.batch_size:,}", **values})
    return {"also": also, "but": but} if known else None


def _lead(chosen: Recommended) -> Iterator[Finding]:
    """Whether other sizes are as good as the recommended one."""
    estimates = [estimate for size, estimate in chosen.behind.items() if size != chosen.batch_size]
    if any(math.isfinite(estimate.se or 0.0) and math.isfinite(estimate.mc_se or 0.0) for estimate in estimates):
        within = sorted({chosen.batch_size, *chosen.within})
        yield verdict("recommended-among" if len(within) > 1 else "recommended-alone", sizes=within)
    else:
        yield verdict("recommended-without-errors")


def _optimum(chosen: Recommended, sizes: Sequence[int], position: int) -> Iterator[Finding]:
    """Why another size than the recommended one, which is number `position`, may be the best."""
    if chosen.decided_by == "prior":
        yield verdict("prior-decides")
    if chosen.at_end:
        neighbour = sizes[1] if position == 0 else sizes[position - 1]
        code = f"recommended-is-{'trained-end' if chosen.protocol == 'matched' else chosen.at_end}"
        yield verdict(code, end=chosen.at_end, neighbour=neighbour)
