"""Test-time augmentation: a sample is a pass of points that are augmented anew for every draw."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from bnuq import devices
from bnuq.data import Points
from bnuq.errors import RequestError
from bnuq.evaluation.pipeline import Pipeline
from bnuq.evaluation.subject import Subject
from bnuq.sampling import bank_tiles, counter_rng
from bnuq.sampling.bank_tiles import BankEngine
from bnuq.sampling.engine import Shrinking, Stochastic, default_chunk
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
        self._together = max(1, self._together // 2)
        if isinstance(self.engine, Shrinking):
            self.engine.shrink()

    def _passes(self, rows: range, draws: Sequence[int]) -> Tensor:
        """The outputs for these points under these of the engine's draws."""
        network = self.engine.engine if isinstance(self.engine, BankEngine) else self.engine
        together = 1 if isinstance(network, Stochastic) else max(1, self._together // len(rows))
        outputs = []
        for some, inputs, flipped in self._augmented(rows, draws, together):
            if isinstance(network, Stochastic):
                network.check_independent(inputs, rows.start)
                output = network.passes(inputs, rows.start, range(some[0], some[0] + 1))
            else:
                output = network.passes(inputs).unflatten(1, (len(some), len(rows)))[0]
            if output.ndim == 5:
                flipped = flipped.view(len(some), -1, 1, 1, 1)
                output = torch.where(flipped, output.flip(-1), output)
            outputs.append(output)
        return torch.cat(outputs)

    def _augmented(
        self, rows: range, draws: Sequence[int], together: int
    ) -> Iterator[tuple[Sequence[int], Tensor, Tensor]]:
        """These points augmented for some of the draws, at most so many `together`: the draws, the inputs (draw·point,
        …), and which are flipped."""
        assert self.points is not None
        indices, pipeline = np.arange(rows.start, rows.stop), self.pipeline
        key: dict[str, int] = {"purpose": counter_rng.TTA, "first": rows.start}
        if pipeline.augments_by_place:
            pictures = pipeline.padded(self.points, indices)
            for first in range(0, len(draws), together):
                some = draws[first : first + together]
                numbers = [self.first + draw for draw in some]
                yield some, *pipeline.parts(pictures, self.points.point_shape, draws=numbers, **key)
            return
        augment, raw = pipeline.settings.augment, None
        for draw in draws:
            if raw is None or augment is None or augment.resized_crop is not None:
                raw = pipeline.pixels(self.points, indices, draw=self.first + draw, **key)
            inputs = pipeline.augmented(raw, draw=self.first + draw, **key)
            yield [draw], inputs, pipeline.flips(len(rows), draw=self.first + draw, **key)

    @cached_property
    def _together(self) -> int:
        """How many augmented points pass together: on an accelerator those of several draws, as many as of another
        set; on a CPU those of one draw."""
        assert self.points is not None
        device = self.pipeline.device
        return 1 if devices.is_host(device) else default_chunk(self.points.point_shape, device)


def augmenting(subject: Subject) -> Pipeline:
    """The pipeline of evaluated points under test-time augmentation."""
    settings = subject.pipeline.settings
    return replace(subject.pipeline, settings=replace(settings, augment=settings.test_time_augment))


def check_augmentation(subject: Subject) -> None:
    """Raise RequestError where a method augments evaluated points, and the augmentation does not apply to them or gives
    points of another size."""
    if not any("augmentation" in method.differs_by for method in subject.methods):
        return
    pipeline, draw = augmenting(subject), {"draw": 0, "purpose": counter_rng.TTA}
    assert pipeline.settings.augment is not None  # ensured by the plan
    for name, points in subject.sets.items():
        shape, expected = pipeline.trained(points, np.arange(1), **draw).shape[1:], points.point_shape
        if tuple(shape) != expected:
            raise RequestError(
                f"{pipeline.settings.augment.place} makes examples of shape {tuple(shape)} from {name}, whose shape is "
                f"{expected}; test-time augmentation needs the same size. Add a table [tta] to the run "
                f"file, with the keys of augment: crop = {expected[-1]}."
            )
