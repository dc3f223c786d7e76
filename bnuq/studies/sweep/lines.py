"""The lines of a sweep that are reported together, and the lookup of its estimates."""

from __future__ import annotations

import math

from bnuq.estimates import Estimate
from bnuq.frozen import frozen
from bnuq.metrics.replicates import error_of_change
from bnuq.report.numbers import named
from bnuq.studies.sweep.record import Recommended, Repeated, Sweep, SweepPoint, SweptModel
from bnuq.tasks import task_named


@frozen
class SweepLine:
    """Points that are reported together: of one network at several sizes, or (`model` None) of one network a size."""

    model: SweptModel | None
    points: tuple[SweepPoint, ...]

    @property
    def random(self) -> list[SweepPoint]:
        """The points at which a draw changes an output."""
        return [point for point in self.points if not point.degenerate]

    @property
    def compared(self) -> list[SweepPoint]:
        """The points that are compared with deterministic networks."""
        return [point for point in self.random if point.compared_with]

    @property
    def title(self) -> str:
        return "A network for each size" if self.model is None else f"One network: {self.model.name}"


def lines_of(sweep: Sweep) -> list[SweepLine]:
    single = [SweepLine(model, sweep.line(number)) for number, model in enumerate(sweep.models)]
    return [line for line in (*single, SweepLine(None, sweep.matched)) if line.points]


def main_line(sweep: Sweep) -> SweepLine:
    """The line that a size is recommended from; the one with most sizes where none is."""
    return max(lines_of(sweep), key=lambda line: (choice_of(sweep, line) is not None, len(line.points)))


def choice_of(sweep: Sweep, line: SweepLine) -> Recommended | None:
    """The recommendation of a size, if it is one of this line."""
    chosen, first = sweep.recommended, line.points[0]
    if chosen is None or chosen.protocol != first.protocol or (line.model is not None and chosen.model != first.model):
        return None
    return chosen


def disagreement_of(sweep: Sweep) -> str:
    """The metric of the disagreement between samples."""
    return task_named(sweep.task).spread


def disagreement_name(sweep: Sweep) -> str:
    spread = disagreement_of(sweep)
    return "disagreement between samples" if spread == "mutual_information" else named(spread)


def score_name(score: str) -> str:
    return "MI" if score == "mutual_information" else named(score)


def names_of(sweep: Sweep, *roles: str) -> list[str]:
    return [swept.name for role in roles for swept in sweep.sets if swept.role == role]


def estimate_of(point: SweepPoint, metric: str, name: str) -> Estimate | None:
    repeated = point.estimates.get(metric, {}).get(name)
    return None if repeated is None else repeated.estimate


def auroc_of(sweep: Sweep, point: SweepPoint, name: str) -> Repeated | None:
    """The AUROC of an OOD set."""
    return point.auroc.get(sweep.score, {}).get(name)


def compared_by(line: SweepLine) -> str:
    """The metric that MCBN is compared with deterministic networks by; empty if nothing is compared."""
    networks = [estimates for point in line.compared for estimates in point.compared_with.values()]
    return next((metric for metric in ("pll", "mae") if networks and all(metric in each for each in networks)), "")


def behind_best(sweep: Sweep, line: SweepLine) -> dict[int, Estimate]:
    """The ELBO of each size minus that of the best, by place in the line; empty if none is known."""
    bounds = [(index, point.elbo) for index, point in enumerate(line.points) if point.elbo is not None]
    known = {index: elbo for index, elbo in bounds if math.isfinite(elbo.elbo.value)}
    chosen = choice_of(sweep, line)
    if chosen is not None and chosen.criterion == "elbo":
        sizes = ((index, line.points[index].batch_size) for index in known)
        return {index: chosen.behind[size] for index, size in sizes if size in chosen.behind}
    differences = {}
    for index, elbo in known.items():
        best = max(known.values(), key=lambda elbo: elbo.elbo.value)
        terms, error = sweep.models[line.points[index].model].elbo, None
        if terms is not None and min(len(elbo.log_likelihood), len(best.log_likelihood)) > 1:
            error = terms.train_size * error_of_change(elbo.log_likelihood, best.log_likelihood)
        differences[index] = Estimate(elbo.elbo.value - best.elbo.value, mc_se=error)
    return differences
