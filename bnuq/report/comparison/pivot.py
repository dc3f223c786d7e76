"""The tables of estimates of several results as one: a row for each estimate, with its value in every result."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from bnuq.estimates import Estimate
from bnuq.frozen import frozen
from bnuq.gate.change_errors import Error, Errors
from bnuq.records.addresses import estimates_of
from bnuq.records.contributions import PointContributions
from bnuq.records.evaluation import Result
from bnuq.store.table import Row

_ROUNDING = 1e-10  # relative: what differs by less was added up in another order


@frozen
class EstimateAcross:
    """An estimate in each of several results, None where a result lacks it.

    `deviation` is its largest difference from that of the first result in standard errors; NaN if that is unknown.
    """

    row: Row  # of the first result that has it
    estimates: tuple[Estimate | None, ...]
    deviation: float

    @property
    def differs(self) -> bool:
        """Whether it is not the same in all results."""
        return not all(_same(estimate, self.estimates[0]) for estimate in self.estimates)


def pivot(results: Mapping[str, Result]) -> list[EstimateAcross]:
    """Every estimate of any of the results: the largest deviation first, then those whose deviation is unknown."""
    first, *others = results.values()
    tables = [estimates_of(result) for result in results.values()]
    points = PointContributions(first)
    errors = [Errors((other, first), (PointContributions(other), points)) for other in others]
    rows = []
    for address in dict.fromkeys(address for table in tables for address in table):
        across = [table.get(address) for table in tables]
        estimates = tuple(None if row is None else row.estimate for row in across)
        first_row = next(row for row in across if row is not None)
        rows.append(EstimateAcross(first_row, estimates, max(_deviations(across, errors), default=math.nan)))
    return sorted(rows, key=lambda row: -1.0 if math.isnan(row.deviation) else row.deviation, reverse=True)


def _deviations(rows: Sequence[Row | None], errors: Sequence[Errors]) -> Iterator[float]:
    """The known deviations of the other results from the first, with the error that `bnuq check` gives a change."""
    first = rows[0]
    for row, change_errors in zip(rows[1:], errors, strict=True):
        if first is None or row is None:
            continue
        difference = abs(row.estimate.value - first.estimate.value)
        if _same(row.estimate, first.estimate):
            yield 0.0
        elif math.isfinite(difference):
            error = Error.together(change_errors.over_points(row), change_errors.over_draws((row, first))).value
            if error > _ROUNDING * difference:  # without one, as many temperatures, unknown
                yield difference / error


def _same(estimate: Estimate | None, first: Estimate | None) -> bool:
    if estimate is None or first is None:
        return estimate is first
    a, b = estimate.value, first.value
    return math.isclose(a, b, rel_tol=_ROUNDING, abs_tol=1e-15) or (math.isnan(a) and math.isnan(b))
