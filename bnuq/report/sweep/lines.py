"""What of a sweep is told together, how its estimates are looked up, and how they are written in words."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from bnuq.estimates import Estimate
from bnuq.records.sweep import Recommended, Repeated, Sweep, SweepPoint, SweptModel
from bnuq.report.numbers import named, number


@dataclass(frozen=True)
class Line:
    """Points that are told together: of one network at several sizes, or (`model` None) of one network a size."""

    model: SweptModel | None
    points: tuple[SweepPoint, ...]

    @property
    def random(self) -> list[SweepPoint]:
        """Those where something is."""
        return [point for point in self.points if not point.degenerate]

    @property
    def compared(self) -> list[SweepPoint]:
        """Those that are compared with networks of a single pass."""
        return [point for point in self.random if point.compared_with]

    @property
    def title(self) -> str:
        return "A network for each size" if self.model is None else f"One network: {self.model.name}"


def lines_of(sweep: Sweep) -> list[Line]:
    single = [Line(model, sweep.line(number)) for number, model in enumerate(sweep.models)]
    return [line for line in (*single, Line(None, sweep.matched)) if line.points]


def spread_of(sweep: Sweep) -> str:
    """The metric that says how far draws disagree."""
    return "mutual_information" if sweep.task == "classification" else "variance"


def spread_name(sweep: Sweep) -> str:
    return "MI" if sweep.task == "classification" else "the variance of samples"


def names_of(sweep: Sweep, *roles: str) -> list[str]:
    return [one.name for role in roles for one in sweep.sets if one.role == role]


def estimate_of(point: SweepPoint, metric: str, name: str) -> Estimate | None:
    found = point.estimates.get(metric, {}).get(name)
    return None if found is None else found.estimate


def compared_by(line: Line) -> str:
    """The metric that tells what MCBN gains on a network of a single pass; empty where nothing is compared."""
    held = [of_network for point in line.compared for of_network in point.compared_with.values()]
    return next((metric for metric in ("pll", "mae") if held and all(metric in one for one in held)), "")


def auroc_of(sweep: Sweep, point: SweepPoint, name: str) -> Repeated | None:
    return point.auroc.get(sweep.score, {}).get(name)


def interval_of(estimate: Estimate) -> tuple[float, float]:
    """95 %, that of the estimate or of its errors; NaN where it has neither."""
    if estimate.low is not None and estimate.high is not None:
        return estimate.low, estimate.high
    error = error_of(estimate)
    reach = math.nan if error is None else 1.96 * error
    return estimate.value - reach, estimate.value + reach


def error_of(estimate: Estimate) -> float | None:
    """Over points and draws where both are known, else over the one that is."""
    known = [error for error in (estimate.se, estimate.mc_se) if error is not None]
    return math.hypot(*known) if known else None


def score_name(sweep: Sweep) -> str:
    return "MI" if sweep.score == "mutual_information" else named(sweep.score)


def and_error(estimate: Estimate) -> str:
    """Value and error with two digits of the error."""
    error = error_of(estimate)
    if error is None or not (math.isfinite(error) and error > 0):
        return brief(estimate.value)
    digits = min(9, max(0, 1 - power(error)))
    return f"{grouped(estimate.value, digits)} ± {grouped(error, digits)}"


def grouped(value: float, digits: int) -> str:
    if not 1000 <= abs(value) < 1e9:
        return number(value, digits)
    return f"{value:,.{digits}f}".replace("-", "−")


def brief(value: float) -> str:
    """Three digits."""
    if not math.isfinite(value) or value == 0:
        return number(value, 0)
    return grouped(value, min(9, max(0, 2 - power(abs(value)))))


def power(value: float) -> int:
    """That of ten in the first digit."""
    return math.floor(math.log10(value))


def behind_best(sweep: Sweep, line: Line) -> dict[int, Estimate]:
    """How far the ELBO of each size lies from the best, by place in the line; empty where none is known."""
    found = {
        place: point.elbo
        for place, point in enumerate(line.points)
        if point.elbo is not None and math.isfinite(point.elbo.elbo.value)
    }
    if not found:
        return {}
    chosen = sweep.recommended
    if chosen is not None and by_elbo_of(chosen, line):
        own = {place: chosen.behind.get(line.points[place].batch_size) for place in found}
        if None not in own.values():
            return {place: estimate for place, estimate in own.items() if estimate is not None}
    best = max(found, key=lambda place: found[place].elbo.value)
    behind = {}
    for place, one in found.items():
        terms = sweep.models[line.points[place].model].elbo
        ours, theirs = one.log_likelihood, found[best].log_likelihood
        error = None
        if terms is not None and len(ours) == len(theirs) > 1:
            with np.errstate(invalid="ignore", over="ignore"):
                error = terms.train_size * float(np.std(ours - theirs, ddof=1)) / math.sqrt(len(ours))
        behind[place] = Estimate(one.elbo.value - found[best].elbo.value, mc_se=error)
    return behind


def by_elbo_of(chosen: Recommended, line: Line) -> bool:
    """Whether a size was recommended by the ELBO of this line, so that its differences have their errors in full."""
    first = line.points[0]
    of_it = chosen.protocol == first.protocol and (line.model is None or chosen.model == first.model)
    return chosen.criterion == "elbo" and of_it
