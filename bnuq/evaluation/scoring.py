"""Scores units: passes the points of a unit through an engine, and reduces its samples as they are and with each
recalibration."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from bnuq.data import Points
from bnuq.evaluation.augmentation import Augmented
from bnuq.evaluation.features import KeepingEvaluation
from bnuq.evaluation.passes import ChunkedPasses, Feed
from bnuq.evaluation.stored import OUTPUTS, raw_samples
from bnuq.evaluation.tasks.scorer import SampleReduction
from bnuq.evaluation.units import UnitGroup, WorkUnit
from bnuq.evaluation.views import SetScoring
from bnuq.files.journal import SECONDS, Arrays, Journal
from bnuq.sampling import bank_tiles
from bnuq.sampling.bank_tiles import BankEngine
from bnuq.sampling.plain_loop import BySet, Engine


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
