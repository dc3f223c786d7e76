"""The record of a certified operating point: what is promised of future points, and the validation points behind it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated

import numpy as np

from bnuq.estimates import Axis, Unit
from bnuq.findings import Finding
from bnuq.frozen import frozen
from bnuq.metrics import certificates
from bnuq.metrics.replicates import independent_units
from bnuq.shapes import Bool, Float, Int64

ALL = ""  # the name of the promise about all points
WIDTHS = ("absolute_error", "normalized_error")  # scores of a regression: in target units, and relative to the sd
ACCEPTED, WIDTH = "certified_coverage", "certified_width"  # the estimates
_UNFIT = "validation-in-reference", "validation-in-test"  # warnings about points that are not independent
_BY_CHANCE = 0.01  # of the validation points: equal rows that may be other points
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


def is_unfit(finding: Finding) -> bool:
    """Whether validation points are not independent of others, so that they keep no promise."""
    return finding.code in _UNFIT and finding.values["shared"] > _BY_CHANCE * finding.values["points"]


def certified(
    certificate: Certificate, risk: float, confidence: float, each: str = "class", *, apart: bool = False
) -> Certificate:
    """The certificate with its thresholds, which follow from its validation points; its parts are of `each` class, or
    of each known group. `apart`, as in 0.2, the promise about all points has its own level."""
    confidences = confidences_of(certificate.counts(each), risk, confidence, apart=apart)
    thresholds = [threshold_of(certificate, number, risk, level, each) for number, level in enumerate(confidences)]
    return replace(certificate, thresholds=np.array(thresholds))


def confidences_of(counts: Sequence[int], risk: float, confidence: float, *, apart: bool = False) -> list[float]:
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


def threshold_of(certificate: Certificate, number: int, risk: float, confidence: float, each: str) -> float:
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
