"""The record of a certified operating point: what is promised of future points, and the validation points behind it."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np

from bnuq.estimates import Axis, Estimate, Unit
from bnuq.frozen import frozen
from bnuq.metrics import certificates, standard_error
from bnuq.metrics.replicates import independent_units
from bnuq.shapes import Bool, Float, Int64

if TYPE_CHECKING:
    from bnuq.records.evaluation import Result

ALL = ""  # the name of the promise about all points
WIDTHS = ("absolute_error", "normalized_error")  # scores of a regression: in target units, and relative to the sd
ACCEPTED, WIDTH = "certified_coverage", "certified_width"  # the estimates
_OF_SCORE = Unit("unit of the score")


@frozen
class Certificate:
    """The promises of one method, by name: that about all points is "", and there may be one of each class or group.

    A classification accepts points with a `score` of at most the threshold: +∞ is all, −∞ none. So does a segmentation
    with pixels. A regression's intervals reach as far as the threshold, or for "normalized_error" the threshold times
    √(variance of the draws + `noise`) of each output; +∞ where nothing is promised.

    Behind it are the validation points: their scores, of a regression their errors on that scale, of an image none;
    their losses (0 or 1), of an image by each of the `candidates`, which do not depend on them; the groups of points
    that depend on each other; and the number of the promise that each belongs to beside that about all (0: none), as
    `test_part` says of the test points. `test_errors` are those of a regression's test points on its scale, and of a
    segmentation's test images the losses at the threshold.
    """

    score: str
    names: Annotated[tuple[str, ...], Axis("promise")]
    thresholds: Annotated[Float[np.ndarray, " promise"], _OF_SCORE]
    candidates: Annotated[Float[np.ndarray, " candidate"], _OF_SCORE]
    scores: Annotated[Float[np.ndarray, " point"], _OF_SCORE]
    losses: Annotated[Float[np.ndarray, " point *candidate"] | None, Unit("1")] = None
    group: Int64[np.ndarray, " point"] | None = None
    part: Int64[np.ndarray, " point"] | None = None
    test_part: Int64[np.ndarray, " test_point"] | None = None
    test_errors: Annotated[Float[np.ndarray, " test_point"] | None, _OF_SCORE] = None
    noise: Annotated[Float[np.ndarray, " output"] | None, Unit("squared target unit")] = None

    @property
    def threshold(self) -> float:
        """That of the promise about all points."""
        return float(self.thresholds[0])

    @property
    def is_of_width(self) -> bool:
        return self.score in WIDTHS

    @property
    def is_expected(self) -> bool:
        """Whether the promise holds in expectation over the validation points, in place of with a confidence."""
        return self.losses is not None and self.losses.ndim == 2

    def units(self, number: int, each: str) -> Int64[np.ndarray, " part_point"] | None:
        """The groups of the points that a promise is about; None where these are independent, as within a group that is
        known: a promise for `each` "group"."""
        return None if self.group is None or (number and each == "group") else self.group[self.points(number)]

    def counts(self, each: str) -> tuple[int, ...]:
        """The independent validation points of each promise: points, or the groups of them."""
        numbers = range(len(self.names))
        return tuple(independent_units(int(self.points(k).sum()), self.units(k, each)) for k in numbers)

    def is_kept(self, number: int = 0) -> bool:
        """Whether anything is promised under this number of its name."""
        return float(self.thresholds[number]) != self.nothing

    @property
    def nothing(self) -> float:
        """The threshold where nothing is promised."""
        return math.inf if self.is_of_width else -math.inf

    def points(self, number: int) -> Bool[np.ndarray, " point"]:
        """The validation points that a promise is about."""
        return np.ones(len(self.scores), bool) if number == 0 or self.part is None else self.part == number


@frozen
class Certification:
    """The certificates of all plain methods: each alone keeps its promises with this `confidence` over the validation
    points, that about all points and those by class or group together. `method` was requested, or chosen on the test
    set, which the validation points are independent of; `each` is "class", "group" or ""."""

    risk: float
    confidence: float
    each: str
    method: str
    methods: Mapping[str, Certificate]

    @property
    def chosen(self) -> Certificate:
        """That of the chosen method."""
        return self.methods[self.method]


def certified(
    certificate: Certificate, risk: float, confidence: float, each: str = "class", *, apart: bool = False
) -> Certificate:
    """The certificate with its thresholds, which follow from its validation points; its parts are of `each` class, or
    of each known group. `apart`, as in 0.2, the promise about all points has its own level."""
    confidences = _confidences(certificate.counts(each), risk, confidence, apart=apart)
    thresholds = [_threshold(certificate, number, risk, level, each) for number, level in enumerate(confidences)]
    return replace(certificate, thresholds=np.array(thresholds))


def _confidences(counts: Sequence[int], risk: float, confidence: float, *, apart: bool = False) -> list[float]:
    """The confidence of each promise, 1 where it is not tried: that about all points and those by class or group hold
    together, and share the level: as many of these as have enough points for it, which their number alone says."""

    def shared(parts: int) -> float:
        return 1 - (1 - confidence) / max(1, parts + (not apart))

    largest = sorted(range(1, len(counts)), key=lambda number: -counts[number])
    while largest and counts[largest[-1]] < certificates.points_needed(risk, shared(len(largest))):
        largest.pop()
    of_part = shared(len(largest))
    of_parts = (of_part if number in largest else 1.0 for number in range(1, len(counts)))
    return [confidence if apart else of_part, *of_parts]


def _threshold(certificate: Certificate, number: int, risk: float, confidence: float, each: str) -> float:
    """The threshold of one promise."""
    if confidence == 1:
        return certificate.nothing
    rows = certificate.points(number)
    scores, losses = certificate.scores[rows], certificate.losses
    settings = {"risk": risk, "confidence": confidence, "group": certificate.units(number, each)}
    if losses is None:
        return certificates.certified_width(scores, **settings)
    if losses.ndim == 1:
        return certificates.certified_threshold(scores, losses[rows], certificate.candidates, **settings)
    index = certificates.risk_controlling_index(losses[rows], risk)
    return -math.inf if index < 0 else float(certificate.candidates[index])


def resampled_values(result: Result, method: str, resamples: int) -> Iterator[float]:
    """The share of test points that is accepted, or the mean half-width, by certificates of resampled validation points
    (groups, where there are any): which ones depends on their number alone."""
    certification = result.certification
    assert certification is not None
    certificate, test = certification.methods[method], result.methods[method].sets["test"]
    group = np.arange(len(certificate.scores)) if certificate.group is None else certificate.group
    members = np.split(np.argsort(group, kind="stable"), np.flatnonzero(np.diff(np.sort(group))) + 1)
    level = _confidences(certificate.counts(certification.each), certification.risk, certification.confidence)[0]
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
        threshold = _threshold(again, 0, certification.risk, level, certification.each)
        if certificate.is_of_width:
            yield float(np.mean(test.points[WIDTH])) * (threshold / certificate.threshold)
        else:
            yield float(np.mean(test.points[certificate.score] <= threshold))


# ── what it says ─────────────────────────────────────────────────────────────────────────────────────────────────────


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
    confidences = _confidences(counts, risk, certification.confidence)
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
        return _threshold(certificate, number, thousandths / 1000, confidence, each) != certificate.nothing

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
