"""Scores units: passes the points of a unit through an engine, and reduces its samples as they are and with each
recalibration."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool
from torch import Tensor

from bnuq.data import Points
from bnuq.evaluation.augmentation import Augmented
from bnuq.evaluation.features import KeepingEvaluation
from bnuq.evaluation.passes import ChunkedPasses, Feed
from bnuq.evaluation.recalibration import Recalibrated
from bnuq.evaluation.stored import OUTPUTS, raw_samples
from bnuq.evaluation.subject import VALIDATION, Subject
from bnuq.evaluation.tasks.scorer import SampleReduction, ScoredSet
from bnuq.evaluation.units import Gathered, UnitGroup, WorkUnit
from bnuq.files.journal import SECONDS, Arrays, Journal
from bnuq.methods import Method
from bnuq.metrics import DrawWeights, LogitMaps
from bnuq.sampling import bank_tiles
from bnuq.sampling.bank_tiles import BankEngine
from bnuq.sampling.plain_loop import BySet, Engine


@dataclass(frozen=True)
class View:
    """A way to score samples: with the logits of `method`, which are recalibrated by `maps` where there are any, and by
    what its scorer `fitted` to other points."""

    method: Method
    fitted: Any = None
    maps: Recalibrated | None = None

    @property
    def prefix(self) -> str:
        """How the names of its arrays begin in a unit."""
        return "" if self.maps is None else f"{self.method.recalibration}:"

    def arrays(self, unit: Arrays) -> Arrays:
        """Its arrays in a unit."""
        if self.maps is None:
            return unit
        return {key.removeprefix(self.prefix): values for key, values in unit.items() if key.startswith(self.prefix)}


@dataclass(frozen=True)
class SetScoring:
    """Scores one set under one method, by each of its `views`. A unit is determined by the request, the views and its
    address."""

    subject: Subject  # with the scorer of the method
    set: str
    points: Points
    weights: DrawWeights
    views: Sequence[View]
    second: Bool[np.ndarray, " point"] | None = None  # of a cross-fit, the points in the second half

    @cached_property
    def _maps(self) -> Mapping[Method, LogitMaps]:
        """The maps of the logits of each point, of the views that have any."""
        return {view.method: view.maps.of(self.set, self.points) for view in self.views if view.maps is not None}

    def reduction(self, view: View, first: int = 0) -> SampleReduction:
        """The reduction of samples for the points from number `first` on."""
        subject = self.subject
        return subject.scorer.reduction(
            ScoredSet(
                subject.sets[self.set],
                self.weights,
                labelled=self.set in subject.labelled,
                fitted=view.fitted,
                first=first,
                maps=self._maps.get(view.method),
                by_class=self.set in ("test", subject.fitted_to),
                calibrates=self.set == subject.fitted_to,
                second=self.second,
                saves_maps=saves_maps(subject, self.set),
            )
        )

    def scores(self, view: View, reduction: SampleReduction, units: Gathered | None = None) -> Any:
        """The scores of a set, by what a reduction has added or by all its units; the temperature of each point is
        among them, where it has one."""
        scores = reduction.scores(units, group=self.points.group)
        maps = self._maps.get(view.method)
        temperature = None if maps is None else maps.temperature
        return scores if temperature is None else replace(scores, points=scores.points | {"temperature": temperature})


@dataclass(frozen=True)
class UnitScoring:
    """Scores the units of a set, as this process has made it: passes their points through an engine. Raw samples are
    kept where units are scored again, together with those of `earlier` draws; with None, nothing is kept."""

    of_set: SetScoring
    journal: Journal
    engine: Engine
    passes: ChunkedPasses
    feed: Feed
    earlier: Sequence[range] | None

    def run(self, group: UnitGroup) -> Iterator[Arrays]:
        """The arrays of each unit."""
        return (run_unit(self, unit) for unit in group)

    def blocks(self, rows: range) -> Iterator[Tensor]:
        """The outputs for these rows of the set: (T, chunk, K) each, or those of a segmentation for some draws."""
        subject = self.of_set.subject
        of_rows = self.engine, self.of_set.points, rows, self.feed
        if not subject.plan.task.is_dense:
            return self.passes.blocks(*of_rows)
        return self.passes.dense_blocks(*of_rows, subject.plan.outputs_of_point)


def run_unit(scoring: UnitScoring, unit: WorkUnit) -> Arrays:
    """The scores of a unit by each view, its seconds, and its raw samples where they are needed again."""
    engine, before, first = scoring.engine, scoring.passes.seconds, unit.points.start
    reductions = {view.prefix: scoring.of_set.reduction(view, first) for view in scoring.of_set.views}
    blocks = scoring.blocks(unit.points)
    raw: Arrays = {}
    if scoring.earlier is not None:
        outputs = list(blocks)
        raw[OUTPUTS] = np.concatenate([block.cpu().numpy() for block in outputs], axis=1)
        if earlier := [raw_samples(scoring.journal, replace(unit, draws=draws)) for draws in scoring.earlier]:
            samples = torch.from_numpy(np.concatenate([*earlier, raw[OUTPUTS]])).to(outputs[0].device)
            outputs = samples.split([block.shape[1] for block in outputs], dim=1)
        blocks = iter(outputs)
    for block in blocks:
        for reduction in reductions.values():
            add_block(reduction, block, first, engine)
        first += block.shape[1]
    scores = {f"{start}{key}": v for start, reduction in reductions.items() for key, v in reduction.arrays().items()}
    return scores | raw | {SECONDS: np.array(scoring.passes.seconds - before)}


def add_block(reduction: SampleReduction, block: Tensor, first: int, engine: Engine) -> None:
    """Add a block of samples to a reduction: of the points of a set from number `first` on."""
    bank = engine.engine if isinstance(engine, Augmented) else engine
    if isinstance(bank, BankEngine):
        for rows in bank_tiles.tiles(first, first + block.shape[1]):
            reduction.add(block[:, rows.start - first : rows.stop - first], bank.draws(rows))
    else:
        reduction.add(block)


def engine_of_set(engine: Engine, name: str, points: Points) -> Engine:
    """The engine for the points of a set."""
    if isinstance(engine, KeepingEvaluation):
        return engine.of_set(name)
    return engine.of(name, points) if isinstance(engine, BySet) else engine


def saves_maps(subject: Subject, name: str) -> bool:
    """Whether the maps of the images of a set are kept: for the result, or to find the segments of anomalies."""
    has_anomalies = name in subject.ood and subject.plan.task.is_dense and subject.sets[name].masks is not None
    return has_anomalies or (subject.run.save_maps and name != VALIDATION)
