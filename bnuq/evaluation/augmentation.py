"""Test-time augmentation: a sample is a pass of points that are augmented anew for every draw."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from bnuq.data import Points
from bnuq.errors import RequestError
from bnuq.evaluation.pipeline import Pipeline
from bnuq.evaluation.subject import Subject
from bnuq.sampling import bank_tiles, counter_rng
from bnuq.sampling.bank_tiles import BankEngine
from bnuq.sampling.engine import Shrinking, Stochastic
from bnuq.sampling.plain_loop import Engine, Evaluation


@dataclass
class Augmented:
    """T passes of a set's points, draw t of the augmentation under draw t of `engine`, or by the deterministic network.

    `first` is the number of the first draw. A point's augmentation depends on the seed, the draw and the point's number
    in its set alone, so on no chunk and no other set. `of` gives the engine of one set, whose inputs are the numbers of
    its points. Outputs (n, K, H, W) of pictures that were flipped are flipped back.
    """

    engine: Evaluation | Stochastic | BankEngine
    samples: int
    first: int
    pipeline: Pipeline
    points: Points | None = None

    def of(self, name: str, points: Points) -> Engine:  # noqa: ARG002 - other sets go by their names
        """The engine for the points of this set."""
        return replace(self, points=points)

    def passes(self, inputs: Tensor, start: int = 0, draws: Sequence[int] | None = None) -> Tensor:
        """Raw outputs (T, n, …) of `draws`, or of all, for points number `start`, `start` + 1, … of the set; `inputs`
        says how many."""
        rows = range(start, start + len(inputs))
        if isinstance(self.engine, BankEngine):
            tiles = bank_tiles.tiles(rows.start, rows.stop)
            return torch.cat([self._passes(tile, self.engine.draws(tile).tolist()) for tile in tiles], dim=1)
        return self._passes(rows, range(self.samples) if draws is None else draws)

    def shrink(self) -> None:
        """Reduce the memory that is used to about half, where it can be."""
        if isinstance(self.engine, Shrinking):
            self.engine.shrink()

    def _passes(self, rows: range, draws: Iterable[int]) -> Tensor:
        """The outputs for these points under these of the engine's draws."""
        assert self.points is not None
        indices, outputs = np.arange(rows.start, rows.stop), []
        network = self.engine.engine if isinstance(self.engine, BankEngine) else self.engine
        augment, raw = self.pipeline.run.augment, None
        for draw in draws:
            key = {"draw": self.first + draw, "purpose": counter_rng.TTA, "first": rows.start}
            if raw is None or augment is None or augment.resized_crop is not None:
                raw = self.pipeline.pixels(self.points, indices, **key)
            inputs = self.pipeline.augmented(raw, **key)
            if isinstance(network, Stochastic):
                output = network.passes(inputs, rows.start, [draw])
            else:
                output = network.passes(inputs)
            if output.ndim == 5:
                flipped = self.pipeline.flips(len(rows), **key)
                output = torch.where(flipped[:, None, None, None], output.flip(-1), output)
            outputs.append(output)
        return torch.cat(outputs)


def augmenting(subject: Subject) -> Pipeline:
    """The pipeline of evaluated points under test-time augmentation."""
    run = subject.run
    return replace(subject.pipeline, run=replace(run, augment=run.augment if run.tta is None else run.tta))


def check_augmentation(subject: Subject) -> None:
    """Raise RequestError where a method augments evaluated points, and the augmentation does not apply to them or gives
    points of another size."""
    if not any("augmentation" in method.differs_by for method in subject.plan.methods):
        return
    pipeline, draw = augmenting(subject), {"draw": 0, "purpose": counter_rng.TTA}
    assert pipeline.run.augment is not None  # ensured by the plan
    for name, points in subject.sets.items():
        shape, expected = pipeline.trained(points, np.arange(1), **draw).shape[1:], points.point_shape
        if tuple(shape) != expected:
            raise RequestError(
                f"{pipeline.run.augment.place} makes points of shape {tuple(shape)} of those of {name}, which have "
                f"{expected}; test-time augmentation needs the same size. Say how evaluated points are augmented in a "
                f"table [tta] of the run file, with the keys of augment: crop = {expected[-1]}."
            )
