"""Recomputes the estimates of a result from its points: a result that its own points contradict is refused."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from bnuq import metrics
from bnuq.errors import ResultError
from bnuq.metrics.registry import metric_of
from bnuq.records.addresses import estimates_of
from bnuq.records.certificate import Certification, certified
from bnuq.records.contributions import PointContributions
from bnuq.records.evaluation import OWN, Result

_SHOWN = 8  # contradictions that a message names
_ROUNDING = 1e-6
_SIZES = {"fraction": 1.0, "1": 1.0, "nats": 1.0, "percent": 100.0}  # by unit: what rounding is relative to, at least


def recomputed(result: Result) -> PointContributions:
    """The points of `result`; ResultError, naming estimates, where the file contradicts its own points. One that was
    neither damaged nor changed since bnuq wrote it here does not."""
    points = PointContributions(result)
    if result.computed.get(OWN):
        return points
    with np.errstate(all="ignore"):  # a damaged number may be of any size
        problems = [*_contradictions(points)]
    if problems:
        more = f"\n  - and {len(problems) - _SHOWN} more" if len(problems) > _SHOWN else ""
        shown = "\n".join(f"  - damaged: {problem}" for problem in problems[:_SHOWN])
        raise ResultError(
            f"{result.path} contradicts itself: it was damaged, or changed after bnuq wrote it. Evaluate again.\n"
            f"{shown}{more}"
        )
    return points


def _contradictions(points: PointContributions) -> Iterator[str]:
    if points.result.certification is not None:
        yield from _of_certificates(points.result.certification)
    for address, row in estimates_of(points.result).items():
        if metric_of(row["metric"]).is_fitted:
            continue  # to validation points, which are not in the file
        stated, value = row.estimate.value, points.value(row)
        if value is None:
            yield f"{address} is {stated:.6g}, and the scores of points that it is computed from are missing."
        elif not _agree(stated, value, row["metric"]):
            yield f"{address} is {stated:.6g}; recomputed from its points it is {value:.6g}."


def _of_certificates(certification: Certification) -> Iterator[str]:
    """Certificates whose thresholds do not follow from their validation points."""
    for method, certificate in certification.methods.items():
        asked = certification.risk, certification.confidence, certification.each
        again, of_before = (certified(certificate, *asked, apart=apart) for apart in (False, True))
        if not any(np.array_equal(made.thresholds, certificate.thresholds) for made in (again, of_before)):
            stated, value = (", ".join(f"{each:.6g}" for each in made.thresholds) for made in (certificate, again))
            yield f"the thresholds certified of {method} are {stated}; by its validation points they are {value}."


def _agree(stated: float, value: float, metric: str) -> bool:
    """Whether two values of a metric are equal up to rounding; NaN equals NaN."""
    if not (math.isfinite(stated) and math.isfinite(value)):
        return stated == value or (math.isnan(stated) and math.isnan(value))
    unit = metrics.METRICS[metric].unit if metric in metrics.METRICS else "percent"
    return abs(stated - value) <= _ROUNDING * max(abs(value), _SIZES.get(unit, 0.0))
