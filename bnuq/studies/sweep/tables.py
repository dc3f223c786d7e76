"""The tables of a sweep: each line of sizes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

from bnuq.estimates import Estimate
from bnuq.methods import NETWORKS
from bnuq.metrics import METRICS
from bnuq.metrics.registry import estimates_of_task
from bnuq.report.document import Cell, Heading, Part, Row, Table
from bnuq.report.drawing import short
from bnuq.report.numbers import and_error, decimals, exponent, named, total, with_error
from bnuq.studies.sweep.lines import (
    SweepLine,
    auroc_of,
    choice_of,
    compared_by,
    disagreement_of,
    estimate_of,
    names_of,
    score_name,
)
from bnuq.studies.sweep.record import Sweep, SweepPoint

MOST_SETS = 3  # of unfamiliar data that fit on one screen


def table(sweep: Sweep, line: SweepLine, *, brief: bool = False) -> Table:
    """A row a size, with how far it lies from the recommended one; in `brief` with the disagreement on the test set
    alone."""
    columns: dict[str, list[Cell]] = {}
    chosen, best = choice_of(sweep, line), 0
    if chosen is not None:
        best, behind = chosen.batch_size, [chosen.behind.get(point.batch_size) for point in line.points]
        columns["from best"] = [Cell("–" if difference is None else and_error(difference)) for difference in behind]
    if line.model is None:
        columns["network"] = [Cell(short(sweep.models[point.model].name, 20)) for point in line.points]
        if any(map(is_of_other_size, line.points)):
            trained = [point.train_batch_size for point in line.points]
            columns["M"] = [Cell("–" if size is None else f"{size:,}") for size in trained]
    columns |= _estimate_columns(sweep, line, () if brief else names_of(sweep, "ood"))
    for name in names_of(sweep, "ood")[: MOST_SETS if brief else None]:
        aurocs = [auroc_of(sweep, point, name) for point in line.points]
        if any(aurocs):
            header = f"↑ {'AUROC ' * (not brief)}{short(name, 18)}"
            columns[header] = [with_error(None if auroc is None else auroc.estimate, 3) for auroc in aurocs]
    rows = [
        (
            f"{'→ ' * (point.batch_size == best)}{point.batch_size:,}{'*' * point.degenerate}",
            tuple(column[row] for column in columns.values()),
        )
        for row, point in enumerate(line.points)
    ]
    return size_table(tuple(columns), rows)


def _estimate_columns(sweep: Sweep, line: SweepLine, ood: Sequence[str]) -> dict[str, list[Cell]]:
    """Metrics of the test set, those with a better direction first; before the others the disagreement on it and on
    these OOD sets, whose columns share their decimals."""
    disagreement, [test, *_] = disagreement_of(sweep), names_of(sweep, "test")
    shown = estimates_of_task(sweep.task, shown="sensitivity")
    directed, undirected = (
        [(metric, test, named(metric, roomy=False)) for metric in shown if (shown[metric].direction == "none") is last]
        for last in (False, True)
    )
    label = score_name(disagreement)
    disagreements = [(disagreement, name, f"{label} {short(name, 18)}" if ood else label) for name in (test, *ood)]
    columns: dict[str, list[Cell]] = {}
    for metric, name, header in (*directed, *disagreements, *undirected):
        estimates = [estimate_of(point, metric, name) for point in line.points]
        if any(estimate is not None for estimate in estimates):
            all_estimates = (estimate_of(point, metric, set_name) for point in line.points for set_name in (test, *ood))
            digits = decimals_of(metric, all_estimates if metric == disagreement else estimates)
            columns[f"{METRICS[metric].arrow} {header}".strip()] = [
                Cell("0") if point.degenerate and metric == disagreement else with_error(estimate, digits)
                for point, estimate in zip(line.points, estimates, strict=True)
            ]
    return columns


def is_of_other_size(point: SweepPoint) -> bool:
    return point.train_batch_size != point.batch_size


def size_table(header: tuple[str, ...], rows: Sequence[Row]) -> Table:
    """A row for each size, which stands to the right."""
    width = max(len(label) for label, _ in rows)
    return Table(header, tuple((f"{label:>{width}}", cells) for label, cells in rows), stacks=True)


def decimals_of(metric: str, estimates: Iterable[Estimate | None]) -> int:
    """Decimals of a column: four of what has a fixed scale, else so many that the smallest is seen and its error is."""
    is_disagreement = METRICS[metric].unit == "nats" and METRICS[metric].direction == "none"  # falls as 1/b
    if METRICS[metric].digits is not None and not is_disagreement:
        return 4
    known = [each for each in estimates if each is not None and math.isfinite(each.value) and each.value != 0]
    if not known:
        return 4
    values = [abs(estimate.value) for estimate in known]
    errors = [error for estimate in known if 0 < (error := total(estimate) or 0.0) < math.inf]
    finest = max(1 - exponent(min(values)), -exponent(min(errors)) if errors else 0)
    return min(7, max(0, decimals(values) - 1, finest))


def compared_parts(line: SweepLine) -> Iterator[Part]:
    """MCBN beside deterministic networks, where the running statistics do not fit the reference."""
    if not (metric := compared_by(line)):
        return
    networks = {point.batch_size: [point.compared_with[name][metric] for name in NETWORKS] for point in line.compared}
    estimates = {
        size: [*(each.estimate for each in pair), *(each.difference for each in pair)]
        for size, pair in networks.items()
    }
    digits = decimals_of(metric, (estimate for row in estimates.values() for estimate in row))
    rows = [(f"{size:,}", tuple(with_error(estimate, digits) for estimate in row)) for size, row in estimates.items()]
    yield Heading(f"{named(metric, roomy=False)} on the test set, compared with a single deterministic pass")
    yield size_table(("deterministic", "population statistics", "MCBN − deterministic", "MCBN − population"), rows)
