"""What every task provides: a reduction of samples, point by point; what is fitted to other points; and a result."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import ClassVar, Generic, Self, TypeVar

import numpy as np

from bnuq.config import ScoreSettings
from bnuq.data import Points
from bnuq.estimates import Estimate
from bnuq.evaluation import estimates
from bnuq.evaluation.estimates import SetScores
from bnuq.evaluation.units import Blocks, Gathered
from bnuq.files.journal import Arrays
from bnuq.findings import Finding
from bnuq.frozen import frozen
from bnuq.metrics import DrawWeights, LogitMaps
from bnuq.metrics.arrays import Array
from bnuq.metrics.registry import ALARMS
from bnuq.perturbations import change_in
from bnuq.records.evaluation import MethodResult, Samples, SetResult
from bnuq.shapes import Bool, Float, Int64
from bnuq.tasks import Task

Scores = TypeVar("Scores", bound=SetScores, covariant=True)
Groups = Int64[np.ndarray, " point"] | None


class SampleReduction(ABC, Generic[Scores]):
    """Takes the samples of points block by block, and gives their scores."""

    _blocks: Blocks

    @abstractmethod
    def add(self, block: Array, draws: Int64[np.ndarray, " sample"] | None = None, /) -> None:
        """Add the next points; with a bank, `draws` are the draws that these use."""

    def arrays(self) -> Arrays:
        """What a unit keeps: what was added, for `scores` to merge."""
        return self._blocks.arrays()

    def scores(self, units: Gathered | None = None, *, group: Groups = None) -> Scores:
        """The scores of all points added so far, or of those of `units`: the `arrays` of reductions like this one, in
        the order of the points."""
        return self._merged(units or Gathered([self.arrays()]), group)

    @abstractmethod
    def _merged(self, units: Gathered, group: Groups) -> Scores: ...


@frozen
class ScoredSet:
    """Points of a set, and how their samples are scored: whether by labels, too.

    Points are from number `first` on. The logits of each point are recalibrated by its entry of `maps`. With `by_class`
    the probabilities of all classes are scored too: prediction sets by what was fitted or, if these points are split
    (some into a `second` half), by the other half. Recalibrations and thresholds of sets are fitted to points scored
    with `calibrates`. Maps of images are kept where a segmentation `saves_maps`. Where only the scores that `ranks` the
    points are wanted, labels say no more than which pixels of an image are scored.
    """

    points: Points
    weights: DrawWeights
    labelled: bool = False
    first: int = 0
    maps: LogitMaps | None = None
    by_class: bool = False
    calibrates: bool = False
    second: Bool[np.ndarray, " point"] | None = None
    saves_maps: bool = False
    ranks: bool = False


@frozen
class ChangedSet:
    """The test set after a change, by one method: its result without the likelihoods of each sample, and how well the
    scores that are alarms separate it from the test set."""

    result: SetResult
    separation: dict[str, dict[str, Estimate]]


@frozen
class ScoredNetwork:
    """What decides how the samples of a network are scored: the settings, the number of outputs, and the test set. Of a
    segmentation also the size of the `image`; targets of a regression may be standardised by those of `train`."""

    settings: ScoreSettings
    outputs: int
    test: Points
    train: Points | None
    image: tuple[int, int] | None = None


class TaskScorer(ABC):
    """Scores the samples of networks of one task, by what was fitted to other points where anything was. The scores
    that it takes are those of its own reductions."""

    task: ClassVar[Task]

    @classmethod
    @abstractmethod
    def of(cls, network: ScoredNetwork) -> TaskScorer:
        """The scorer of the samples of a network, to which nothing is fitted yet."""

    @abstractmethod
    def checked(self, points: Points, *, is_ood: bool = False) -> Points:
        """The points with labels or targets that this task has; DataError for others."""

    def bytes_of_probabilities(self, samples: int, points: int, classes: int) -> int | None:
        """About how many bytes the probabilities take that estimates of a labelled set need; None where these are too
        many to be kept."""
        return 0

    @abstractmethod
    def reduction(self, scored: ScoredSet) -> SampleReduction:
        """The reduction of the samples of these points."""

    @abstractmethod
    def set_result(self, scores: SetScores, draws: DrawWeights) -> SetResult:
        """The estimates and the points of one set."""

    def weights(self, samples: int, bank: int | None) -> DrawWeights:
        """The replicates of estimates from so many samples."""
        return estimates.replicate_weights(samples, bank)

    def fitted_to(self, validation: SetScores | None, draws: DrawWeights) -> Self:
        """This scorer with what is fitted to the validation points, if there are any."""
        return self

    def cross_fitted(
        self, scores: SetScores, draws: DrawWeights, second: Bool[np.ndarray, " point"]
    ) -> TaskScorer | None:
        """This scorer with what is fitted to each half of a set, of which these are the `second` points; None if
        nothing is."""
        return None

    def by_temperature(self, scores: SetScores) -> Float[np.ndarray, "likelihood image"] | None:
        """What temperatures are fitted to where samples are not kept; None where they are: the
        `likelihoods_by_temperature` of every image, then its `errors_of_points`."""
        return None

    def findings(self, method: str) -> Iterator[Finding]:
        """Notes on what was fitted to a method."""
        return iter(())

    def separation(self, test: SetScores, ood: SetScores, draws: DrawWeights) -> dict[str, dict[str, Estimate]]:
        """How well each score separates an OOD set from the test set."""
        return estimates.detection_estimates(test, ood, draws)

    def changed(self, test: SetScores, scores: SetScores, draws: DrawWeights) -> ChangedSet:
        """What is kept of the test set after a change of some severity."""
        result = replace(self.set_result(scores, draws), log_likelihood=None)
        return ChangedSet(result, estimates.detection_estimates(test, scores, draws, ALARMS))

    def in_target_units(self, samples: Samples) -> Samples:
        """The raw samples as a result holds them."""
        return samples

    def result(
        self, scores: Mapping[str, SetScores], draws: DrawWeights, ranked: SetScores | None = None
    ) -> MethodResult:
        """The result of a method from the scores of each set; here without curves of the test set and bounds. OOD sets
        are separated from the scores `ranked` of the test points, where these are given; perturbed points have what is
        fitted to halves, as test points have."""
        test = scores["test"]
        sets = {name: self.set_result(set_scores, draws) for name, set_scores in scores.items()}
        inside = test
        if ranked is not None:
            names = estimates.reported_scores(ranked.points, draws)
            values = {name: ranked.points[name] for name in names}
            inside = replace(test, points=test.points | values, ranked=test.ranked | ranked.ranked)
            sets["test"] = replace(sets["test"], ranked=values)
        return MethodResult(
            sets=sets,
            ood={
                name: self.separation(inside if change_in(name) is None else test, each, draws)
                for name, each in scores.items()
                if name != "test"
            },
            convergence={},
            calibration={},
            risk={},
        )

    def compared(
        self,
        result: MethodResult,
        scores: Mapping[str, SetScores],
        recalibrated: Mapping[str, SetScores],
        draws: DrawWeights,
    ) -> MethodResult:
        """The result of a method with what follows from its scores and those with a fitted temperature together."""
        return result
