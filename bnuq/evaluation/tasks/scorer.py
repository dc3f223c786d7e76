"""What every task provides: a reduction of samples, point by point; what is fitted to other points; and a result."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

import numpy as np
from jaxtyping import Bool, Int64

from bnuq.config import Run
from bnuq.data import Points
from bnuq.estimates import Estimate
from bnuq.evaluation import estimates
from bnuq.evaluation.units import Gathered
from bnuq.files.journal import Arrays
from bnuq.findings import Finding
from bnuq.methods import Method
from bnuq.metrics import DrawWeights, LogitMaps
from bnuq.metrics.registry import ALARMS
from bnuq.records.evaluation import MethodResult, Samples, SetResult
from bnuq.tasks import Task


@runtime_checkable
class Scores(Protocol):
    """The scores of a set: `points` holds the values of each point by their names."""

    @property
    def points(self) -> Mapping[str, np.ndarray]: ...
    @property
    def samples_differ(self) -> bool: ...


class SampleReduction(Protocol):
    """Takes samples block by block: `add(block)`, or of a bank `add(block, draws)`."""

    @property
    def add(self) -> Any: ...
    def arrays(self) -> Arrays:
        """What a unit keeps."""
        ...

    def scores(self, units: Gathered | None = None, *, group: Int64[np.ndarray, " point"] | None = None) -> Any:
        """The scores of all points added so far, or of those of `units`."""
        ...


S = TypeVar("S", bound=Scores)
F = TypeVar("F")  # what a task fits to other points


@dataclass(frozen=True)
class ScoredSet(Generic[F]):
    """Points of a set, and what their samples are scored by: whether by labels, and by what is `fitted` to others.

    Points are from number `first` on. The logits of each point are recalibrated by its entry of `maps`. With `by_class`
    the probabilities of all classes are scored too: prediction sets by what is `fitted` or, if these points are split
    (some into a `second` half), by the other half. Recalibrations and thresholds of sets are fitted to points scored
    with `calibrates`. Maps of images are kept where a segmentation `saves_maps`.
    """

    points: Points
    weights: DrawWeights
    labelled: bool = False
    fitted: F | None = None
    first: int = 0
    maps: LogitMaps | None = None
    by_class: bool = False
    calibrates: bool = False
    second: Bool[np.ndarray, " point"] | None = None
    saves_maps: bool = False


@dataclass(frozen=True)
class ChangedSet:
    """The test set after a change, by one method: its result without the likelihoods of each sample, and how well the
    scores that are alarms separate it from the test set."""

    result: SetResult
    separation: dict[str, dict[str, Estimate]]


@dataclass(frozen=True)
class ScoredNetwork:
    """What decides how the samples of a network are scored: the request, the number of outputs, and the test set. Of a
    segmentation also the size of the `image`; targets of a regression may be standardised by those of `train`."""

    run: Run
    outputs: int
    test: Points
    train: Points | None
    image: tuple[int, int] | None = None


@dataclass(frozen=True)
class Outcome:
    """What was scored: T, the result of each method, in the order of the report, and the scores that a requested
    certificate is made of."""

    samples: int
    methods: dict[str, MethodResult]
    findings: tuple[Finding, ...]
    scored: Mapping[Method, Any] = field(default_factory=dict, kw_only=True)


class TaskScorer(ABC, Generic[S, F]):
    """Scores the samples of networks of one task."""

    task: Task

    @classmethod
    @abstractmethod
    def of(cls, network: ScoredNetwork) -> TaskScorer[S, F]:
        """The scorer of the samples of a network."""

    @abstractmethod
    def checked(self, points: Points, *, is_ood: bool = False) -> Points:
        """The points with labels or targets that this task has; DataError for others."""

    @abstractmethod
    def reduction(self, scored: ScoredSet[F]) -> SampleReduction:
        """The reduction of the samples of these points."""

    @abstractmethod
    def weights(self, samples: int, bank: int | None) -> DrawWeights:
        """The replicates of estimates from so many samples."""

    @abstractmethod
    def fitted(self, validation: S | None, draws: DrawWeights) -> F | None:
        """What is fitted to the validation points, if there are any."""

    def cross_fitted(self, scores: S, draws: DrawWeights, second: Bool[np.ndarray, " point"]) -> F | None:
        """What is fitted to each half of a set, of which these are the `second` points; None if nothing is."""

    def findings(self, method: str, fitted: F | None) -> Iterator[Finding]:
        """Notes on what was fitted."""
        return iter(())

    @abstractmethod
    def headline_errors(self, scores: Mapping[str, S], draws: DrawWeights) -> dict[str, float]:
        """The Monte Carlo errors that "auto" reduces, by what they are of."""

    @abstractmethod
    def set_result(self, scores: S, draws: DrawWeights) -> SetResult:
        """The estimates and the points of one set."""

    def changed(self, test: Any, scores: Any, draws: DrawWeights) -> ChangedSet:
        """What is kept of the test set after a change of some severity."""
        result = replace(self.set_result(scores, draws), log_likelihood=None)
        return ChangedSet(result, estimates.detection_estimates(test, scores, draws, ALARMS))

    @abstractmethod
    def result(
        self, scores: Mapping[str, S], fitted: F | None, draws: DrawWeights, raw_samples: Mapping[str, Samples]
    ) -> MethodResult:
        """The result of a method from the scores of each set."""

    def compared(
        self, result: MethodResult, scores: Mapping[str, S], recalibrated: Mapping[str, S], draws: DrawWeights
    ) -> MethodResult:
        """The result of a method with what follows from its scores and those with a fitted temperature together."""
        return result
