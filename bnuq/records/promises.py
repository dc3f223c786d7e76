"""What a certified operating point promises, what the test set shows of it, and this as JSON."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from bnuq.estimates import Estimate
from bnuq.frozen import frozen
from bnuq.metrics import certificates, standard_error
from bnuq.records.certificate import ACCEPTED, WIDTH, Certificate, confidences_of, threshold_of
from bnuq.records.evaluation import Result


def resampled_values(result: Result, method: str, resamples: int) -> Iterator[float]:
    """The share of test points that is accepted, or the mean half-width, by certificates of resampled validation points
    (groups, where there are any): which ones depends on their number alone."""
    certification = result.certification
    assert certification is not None
    certificate, test = certification.methods[method], result.methods[method].sets["test"]
    group = np.arange(len(certificate.scores)) if certificate.group is None else certificate.group
    members = np.split(np.argsort(group, kind="stable"), np.flatnonzero(np.diff(np.sort(group))) + 1)
    level = confidences_of(certificate.counts(certification.each), certification.risk, certification.confidence)[0]
    generator = np.random.default_rng(0)
    for _ in range(resamples):
        drawn = [members[unit] for unit in generator.integers(len(members), size=len(members))]
        rows, units = np.concatenate(drawn), np.repeat(np.arange(len(drawn)), list(map(len, drawn)))
        again = replace(
            certificate,
            scores=certificate.scores[rows],
            losses=None if certificate.losses is None else certificate.losses[rows],
            group=None if certificate.group is None else units,
        )
        threshold = threshold_of(again, 0, certification.risk, level, certification.each)
        if certificate.is_of_width:
            yield float(np.mean(test.points[WIDTH])) * (threshold / certificate.threshold)
        else:
            yield float(np.mean(test.points[certificate.score] <= threshold))


@frozen
class Promise:
    """One promise, and what the test set shows of it.

    `threshold` is as in `Certificate`. `coverage` is the share of test points (or pixels) that are accepted; of a
    regression that of the points within their intervals, whose mean half-width is `width`. Of `accepted` test points
    `errors` are wrong (of a regression all, and those outside their interval), with the exact `interval` of that rate;
    of images the mean loss is `loss`. Of `points` validation points, or groups, at least `needed` are needed, all
    without an error; `smallest_risk` is what could have been promised where nothing is. `law` is the exact law of the
    coverage of intervals: its mean and 95 % of it.
    """

    name: str
    threshold: float
    is_kept: bool
    points: int
    needed: int
    coverage: Estimate | None = None
    width: Estimate | None = None
    accepted: int | None = None
    errors: int | None = None
    interval: tuple[float, float] | None = None
    loss: float | None = None
    smallest_risk: float | None = None
    law: tuple[float, float, float] | None = None


def outcomes(result: Result, method: str) -> Iterator[Promise]:
    """The promises of one method and what the test set shows of them, that about all points first."""
    certification = result.certification
    assert certification is not None
    certificate, test = certification.methods[method], result.methods[method].sets["test"]
    risk, of_each, counts = certification.risk, certification.each, certificate.counts(certification.each)
    confidences = confidences_of(counts, risk, certification.confidence)
    for number, name in enumerate(certificate.names):
        confidence = confidences[number] if confidences[number] < 1 else confidences[0]
        is_kept = certificate.is_kept(number)
        outcome = Promise(
            name,
            float(certificate.thresholds[number]),
            is_kept,
            counts[number],
            math.ceil(1 / risk) - 1 if certificate.is_expected else certificates.points_needed(risk, confidence),
            coverage=test.estimates.get(ACCEPTED) if number == 0 else None,
            width=test.estimates.get(WIDTH) if number == 0 else None,
            smallest_risk=None if is_kept else _smallest_risk(certificate, number, risk, confidence, of_each),
        )
        if certificate.is_of_width and is_kept and certificate.units(number, of_each) is None:
            rank = certificates.conformal_rank(counts[number], risk, confidence)
            assert rank is not None
            outcome = replace(outcome, law=certificates.coverage_law(rank, counts[number]))
        yield _on_test_points(outcome, certificate, result, method, number, of_each)


def _on_test_points(
    outcome: Promise, certificate: Certificate, result: Result, method: str, number: int, each: str
) -> Promise:
    """The outcome with what test points show: of a class or group its own."""
    points, errors = result.methods[method].sets["test"].points, certificate.test_errors
    if certificate.is_expected:
        return outcome if errors is None else replace(outcome, loss=float(np.mean(errors)))
    part = certificate.test_part
    rows = np.arange(result.sets["test"].n) if number == 0 or part is None else np.flatnonzero(part == number)
    inside = (points[certificate.score] if errors is None else errors)[rows] <= outcome.threshold
    if outcome.coverage is None and len(rows):
        group = None if number and each == "group" else result.sets["test"].group
        group = None if group is None else group[rows]
        se = standard_error(inside.astype(np.float64), group=group) if len(rows) > 1 else None
        outcome = replace(outcome, coverage=Estimate(float(inside.mean()), se))
    if errors is None and "accuracy" not in points:
        return replace(outcome, accepted=int(inside.sum()))
    wrong = ~inside if errors is not None else points["accuracy"][rows][inside] == 0
    accepted, wrong = len(wrong), int(wrong.sum())
    is_exact = certificate.units(number, each) is None
    interval = certificates.exact_interval(wrong, accepted) if is_exact else None
    return replace(outcome, accepted=accepted, errors=wrong, interval=interval)


def _smallest_risk(certificate: Certificate, number: int, risk: float, confidence: float, each: str) -> float | None:
    """The smallest risk, to three decimals, at which something would be promised; None if there is none below 1."""

    def is_kept(thousandths: int) -> bool:
        return threshold_of(certificate, number, thousandths / 1000, confidence, each) != certificate.nothing

    larger = range(math.floor(1000 * risk) + 1, 1000)
    smallest = bisect_left(larger, True, key=is_kept)
    return larger[smallest] / 1000 if smallest < len(larger) else None


def summary(result: Result) -> dict[str, Any]:
    """The certificate as JSON has it: that of the chosen method, and those of all."""
    certification = result.certification
    assert certification is not None
    methods = {method: _of_method(result, method) for method in certification.methods}
    return {
        "method": certification.method,
        **methods[certification.method],
        "risk": certification.risk,
        "confidence": None if certification.chosen.is_expected else certification.confidence,
        "each": certification.each or None,
        "methods": methods,
    }


def _of_method(result: Result, method: str) -> dict[str, Any]:
    certification = result.certification
    assert certification is not None
    first, *parts = ({k: v for k, v in vars(each).items() if v is not None} for each in outcomes(result, method))
    return {
        "score": certification.methods[method].score,
        **{key: value for key, value in first.items() if key != "name"},
        "by_group": {each["name"]: {key: value for key, value in each.items() if key != "name"} for each in parts},
    }
