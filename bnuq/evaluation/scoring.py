"""Scores units: passes the points of a unit through an engine, and reduces its samples as they are and with each
recalibration."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from bnuq.data import Points
from bnuq.evaluation.augmentation import Augmented
from bnuq.evaluation.features import KeepingEvaluation
from bnuq.evaluation.passes import ChunkedPasses, Feed
from bnuq.evaluation.tasks.scorer import SampleReduction
from bnuq.evaluation.units import OUTPUTS, UnitGroup, WorkUnit, raw_samples
from bnuq.evaluation.views import SetScoring
from bnuq.files.journal import SECONDS, Arrays, Journal
from bnuq.frozen import frozen
from bnuq.sampling import bank_tiles
from bnuq.sampling.bank_tiles import BankEngine
from bnuq.sampling.plain_loop import BySet, Engine


@frozen
class UnitScoring:
    """Scores the units of a set, as this process has made it: passes their points through an engine. Raw samples are
    kept where units are scored again, together with those of `earlier` draws; with None, nothing is kept. Of images the
    outputs are `kept` where they pass again."""

    of_set: SetScoring
    journal: Journal
    engine: Engine
    passes: ChunkedPasses
    feed: Feed
    earlier: Sequence[range] | None
    kept: KeptOutputs | None = None

    def run(self, group: UnitGroup) -> Iterator[Arrays]:
        """The arrays of each unit."""
        return (run_unit(self, unit) for unit in group)

    def blocks(self, rows: range) -> Iterator[Tensor]:
        """The outputs for these rows of the set: (T, chunk, K) each, or those of a segmentation for some draws."""
        subject = self.of_set.subject
        of_rows = self.engine, self.of_set.points, rows, self.feed
        if not subject.image:
            return self.passes.blocks(*of_rows)
        return self._of_images(rows)

    def _of_images(self, rows: range) -> Iterator[Tensor]:
        """The outputs for these images: those that are kept, and of the others by passes."""
        kept, first = self.kept, rows.start
        while kept is not None and first < rows.stop and kept.has(first):
            yield from kept.of(first)
            first += 1
        draws, rest = 0, range(first, rows.stop)
        for block in self.passes.dense_blocks(self.engine, self.of_set.points, rest, self.feed):
            if kept is not None:
                kept.add(first, draws, block)
            yield block
            draws += len(block)
            if draws == self.engine.samples:
                first, draws = first + block.shape[1], 0


class KeptOutputs:
    """The outputs of images that pass again, in a file without a name in this folder: of as many images as 2 GiB hold,
    and while the disk has 1 GiB left. The others are computed again."""

    _MOST, _SPARE = 2**31, 2**30

    def __init__(self, folder: Path, samples: int) -> None:
        self._folder, self._samples = folder, samples
        # without a buffer: what a full disk refuses is not tried again when the file is read or closed
        self._file = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115 - open as long as this is in use
        self._parts: dict[int, list[tuple[int, torch.Size]]] = {}  # of images: where draws begin, and their shape
        self._dtype = torch.float32
        self._memory = torch.empty(0)

    def close(self) -> None:
        """Keep nothing from now on."""
        self._parts.clear()
        self._memory = torch.empty(0)
        self._file.close()

    def add(self, first: int, draw: int, block: Tensor) -> None:
        """Keep the outputs (t, images, …) of the images from number `first` on, under the draws from this one on."""
        self._dtype = block.dtype
        for number, outputs in enumerate(block.split(1, dim=1), first):
            if self._file.closed or self._draws(number) != draw:
                return
            try:
                start = self._file.seek(0, os.SEEK_END)
                free = shutil.disk_usage(self._folder).free
                if start + outputs.nbytes > self._MOST or free < outputs.nbytes + self._SPARE:
                    return
                for of_draw in outputs:  # each of which lies together
                    if self._file.write(values := _bytes_of(of_draw.contiguous())) != len(values):
                        return
            except OSError:
                return
            self._parts.setdefault(number, []).append((start, outputs.shape))

    def has(self, image: int) -> bool:
        """Whether all draws of an image are there."""
        return self._draws(image) == self._samples

    def of(self, image: int) -> Iterator[Tensor]:
        """The outputs (t, 1, …) of an image, some draws at a time: always in the same memory."""
        for start, shape in self._parts[image]:
            if shape.numel() > self._memory.numel():
                self._memory = torch.empty(shape.numel(), dtype=self._dtype)
            outputs = self._memory[: shape.numel()].view(shape)
            self._file.seek(start)
            if self._file.readinto(_bytes_of(outputs)) != outputs.nbytes:
                raise OSError("the file of outputs that are kept is too short")
            yield outputs

    def _draws(self, image: int) -> int:
        return sum(shape[0] for _, shape in self._parts.get(image, ()))


def _bytes_of(values: Tensor) -> memoryview:
    return values.flatten().view(torch.uint8).numpy().data


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
