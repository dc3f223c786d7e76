"""Scores a method by views of its samples: as they are, by what is fitted to other points, and recalibrated."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field, replace
from functools import cached_property, partial
from typing import Generic, TypeVar

import numpy as np

from bnuq.data import Points
from bnuq.evaluation import recalibration
from bnuq.evaluation.estimates import SetScores
from bnuq.evaluation.recalibration import Recalibrated
from bnuq.evaluation.subject import VALIDATION, ScoredSets
from bnuq.evaluation.tasks.scorer import ChangedSet, SampleReduction, ScoredSet, TaskScorer
from bnuq.evaluation.units import Gathered
from bnuq.files.journal import Arrays
from bnuq.findings import Finding
from bnuq.frozen import frozen
from bnuq.methods import Method, Recalibration
from bnuq.metrics import DrawWeights, LogitMaps
from bnuq.metrics.arrays import Array
from bnuq.records.evaluation import MethodResult
from bnuq.shapes import Bool

AnySubject = TypeVar("AnySubject", bound=ScoredSets)
Halves = Mapping[str, Bool[np.ndarray, " point"]]  # of a cross-fit, by the set: which points are in the second half


@frozen
class View:
    """A way to score samples: by a `scorer`, with the logits of `method`, which are recalibrated by `maps` where there
    are any. One that only `ranks` gives the scores of test points that other sets are separated from, without labels.
    """

    method: Method
    scorer: TaskScorer
    maps: Recalibrated | None = None
    ranks: bool = False

    @property
    def prefix(self) -> str:
        """How the names of its arrays begin in a unit, other than those of all other views of the method."""
        return "" if self.maps is None else f"{'ranks ' if self.ranks else ''}{self.method.recalibration}:"

    def arrays(self, unit: Arrays) -> Arrays:
        """Its arrays in a unit."""
        if self.maps is None:
            return unit
        return {key.removeprefix(self.prefix): values for key, values in unit.items() if key.startswith(self.prefix)}


@frozen
class SetScoring:
    """Scores one set under one method, by each of its `views`. A unit is determined by the request, the views and its
    address."""

    subject: ScoredSets  # with the scorer of the method
    set: str
    points: Points
    weights: DrawWeights
    views: Sequence[View]
    second: Bool[np.ndarray, " point"] | None = None  # of a cross-fit, the points in the second half

    @cached_property
    def _maps(self) -> Mapping[str, LogitMaps]:
        """The maps of the logits of each point, of the views that have any, by their prefix."""
        return {view.prefix: view.maps.of(self.set, self.points) for view in self.views if view.maps is not None}

    def reduction(self, view: View, first: int = 0) -> SampleReduction:
        """The reduction of samples for the points from number `first` on."""
        subject = self.subject
        return view.scorer.reduction(
            ScoredSet(
                subject.sets[self.set],
                self.weights,
                labelled=self.set in subject.labelled and not view.ranks,
                first=first,
                maps=self._maps.get(view.prefix),
                by_class=self.set in ("test", subject.fitted_to) and not view.ranks,
                calibrates=self.set == subject.fitted_to and not view.ranks,
                second=self.second,
                saves_maps=saves_maps(subject, self.set) and not view.ranks,
                ranks=view.ranks,
            )
        )

    def scores(self, view: View, reduction: SampleReduction, units: Gathered | None = None) -> SetScores:
        """The scores of a set, by what a reduction has added or by all its units; the temperature of each point is
        among them, where it has one."""
        scores = reduction.scores(units, group=self.points.group)
        maps = self._maps.get(view.prefix)
        temperature = None if maps is None else maps.temperature
        return scores if temperature is None else replace(scores, points=scores.points | {"temperature": temperature})


def saves_maps(subject: ScoredSets, name: str) -> bool:
    """Whether the maps of the images of a set are kept for the result."""
    return subject.settings.save_maps and name != VALIDATION


@frozen
class ScoredMethod:
    """The scores of one method on every set, and the view of its samples that they are of; of a plain one also those of
    the validation points, by nothing that was fitted to them. Of sets by severity there are `changed` ones instead. If
    it is cross-fitted, `ranked` are the scores of the test points by what was fitted to all of them, as OOD points have
    them."""

    sets: Mapping[str, SetScores]
    view: View
    validation: SetScores | None = None
    changed: Mapping[str, ChangedSet] = field(default_factory=dict)
    ranked: SetScores | None = None


@frozen
class Outcome:
    """What was scored: T, the result of each method, in the order of the report, and the scores that a requested
    certificate is made of."""

    samples: int
    methods: dict[str, MethodResult]
    findings: tuple[Finding, ...]
    scored: Mapping[Method, ScoredMethod] = field(default_factory=dict, kw_only=True)


class MethodScoring(ABC, Generic[AnySubject]):
    """Scores a method on every set, by each view of its samples: wherever these come from."""

    method: Method
    _subject: AnySubject
    _weights: DrawWeights
    _second: Halves

    @abstractmethod
    def _scores(self, name: str, views: Sequence[View]) -> dict[Method, SetScores]:
        """The scores of one set by each view; of none where nothing depends on them."""

    @abstractmethod
    def _scored_again(self, name: str, views: Sequence[View]) -> list[SetScores]:
        """The scores of a labelled set by each of other views of its samples; none where nothing depends on them."""

    @abstractmethod
    def _samples(self, name: str) -> Iterator[Array]:
        """The samples of a set, block by block."""

    def scored(self, fitted_to: str | None) -> dict[Method, ScoredMethod]:
        """The scores of the method, and where recalibrations are `fitted_to` a set those of the method with each."""
        subject, scorer = self._subject, self._subject.scorer
        unfitted = self._scores(VALIDATION, [View(self.method, scorer)]) if VALIDATION in subject.sets else {}
        validation = unfitted.get(self.method)
        plain = View(self.method, scorer.fitted_to(validation, self._weights))
        views = [plain]
        if validation is not None and fitted_to == VALIDATION:
            for view in self._recalibrated(VALIDATION, validation):
                again = [] if subject.image else self._scored_again(VALIDATION, [view])
                views.append(replace(view, scorer=scorer.fitted_to(next(iter(again), None), self._weights)))
        scored: dict[Method, dict[str, SetScores]] = {view.method: {} for view in views}
        ranked: dict[Method, SetScores] = {}
        changed: dict[Method, dict[str, ChangedSet]] = {}
        for name in subject.sets:
            if name == VALIDATION:
                continue
            for method, scores in self._scores(name, views).items():
                if name not in subject.by_severity:
                    scored[method][name] = scores
                else:
                    kept = scorer.changed(scored[method]["test"], scores, self._weights)
                    changed.setdefault(method, {})[name] = kept
            if name == fitted_to:
                views = self._cross_fitted(name, plain, scored, ranked)
        of_views = {view.method: view for view in views}
        return {
            of: ScoredMethod(scored[of], view, unfitted.get(of), changed.get(of, {}), ranked.get(of))
            for of, view in of_views.items()
        }

    def _cross_fitted(
        self, name: str, plain: View, scored: dict[Method, dict[str, SetScores]], ranked: dict[Method, SetScores]
    ) -> list[View]:
        """The views by what is fitted to halves of this set, whose scores by each are added; where there are OOD sets
        also those by what is fitted to all of it."""
        scores, scorer = scored[self.method][name], self._subject.scorer
        if (fitted := scorer.cross_fitted(scores, self._weights, self._second[name])) is not None:
            plain = replace(plain, scorer=fitted)
            scored[self.method][name] = self._scored_again(name, [plain])[0]
        recalibrated = [replace(view, scorer=plain.scorer) for view in self._recalibrated(name, scores)]
        for view in recalibrated:
            assert view.maps is not None
            whole = replace(view, maps=replace(view.maps, second=None), ranks=True)
            halves, *of_all = self._scored_again(name, [view, whole] if self._subject.ood else [view])
            scored[view.method] = {name: halves}
            if of_all:
                ranked[view.method] = of_all[0]
        return [plain, *recalibrated]

    def _recalibrated(self, name: str, scores: SetScores) -> list[View]:
        """The views with recalibrations that are fitted to the set of this name, which has these scores."""
        subject, points, second = self._subject, self._subject.sets[name], self._second.get(name)
        if not subject.recalibrations:
            return []
        assert points.targets is not None
        fits: Mapping[Recalibration, Recalibrated]
        if (likelihoods := subject.scorer.by_temperature(scores)) is not None:
            fits = {"temperature": recalibration.fitted_to_images(likelihoods, second)}
        else:
            blocks = partial(self._samples, name)
            fits = recalibration.fitted(subject.recalibrations, blocks, points.targets, second)
        return [View(self.method.recalibrated(kind), subject.scorer, maps) for kind, maps in fits.items()]
