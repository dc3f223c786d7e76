"""Draws of ω: for the run, and for the reference check."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import reduce
from pathlib import Path

import numpy as np
from torch import nn

from bnuq.config import DEFAULT_SAMPLER, Run
from bnuq.data import Points
from bnuq.evaluation import memory
from bnuq.evaluation.batch_composition import mini_batches
from bnuq.evaluation.executors import UnitExecutor
from bnuq.evaluation.pipeline import Pipeline
from bnuq.evaluation.reference_check import BATCH_SIZE, BATCHES, FEWEST_BATCHES, reference_check
from bnuq.evaluation.resources import check_memory_of_draws
from bnuq.evaluation.subject import Subject
from bnuq.evaluation.units import UnitGroup, WorkUnit
from bnuq.files.journal import Arrays, Journal
from bnuq.frozen import frozen
from bnuq.progress import Advance, Progress, silent
from bnuq.records.evaluation import ReferenceCheck
from bnuq.sampling import counter_rng
from bnuq.sampling.batch_statistics import BatchStatistics
from bnuq.sampling.interception import undisturbed
from bnuq.sampling.noise import Learned
from bnuq.sampling.recorded_calls import OtherCallsError, largest_batch
from bnuq.sampling.sites import BatchNormSite
from bnuq.sampling.statistics import Plans, statistics_of

FIRST_ROUND = 16  # draws of the first round of "auto"
_SHARE = 8  # the reference check may take the eighth part of the samples' passes
_BY_SAMPLER = (counter_rng.BATCH, counter_rng.NOISE_MODEL)  # purposes of mini-batches
_FEWEST_POINTS, _ENTRIES = 4, 2**19  # points, and numbers of points, that always pass


def next_stop(run: Run, done: int) -> int:
    """The number of draws after the next round: T, or with "auto" twice as many as are `done`."""
    if run.samples != "auto":
        return run.samples
    return min(run.max_samples, 2 * done or FIRST_ROUND)


def passes_of_samples(subject: Subject) -> int:
    """About how many passes of a point the methods take."""
    draws = next_stop(subject.run, 0)
    samples = sum(subject.samples_of(method, draws) for method in subject.plan.methods)
    return samples * sum(map(len, subject.sets.values()))


def shift_in_words(subject: Subject) -> str:
    """How many changed sets of how many points there are, and how many passes they take without those of attacks."""
    changes, points = subject.run.perturb, len(subject.sets["test"])
    families = len({change.kind.name for change in changes})
    passes = 1 + passes_of_samples(subject) // sum(map(len, subject.sets.values()))
    return (
        f"{families} {'families' if families > 1 else 'family'} of changes, {len(changes)} sets of {points:,} examples "
        f"beside the test set; with {passes:,} passes of each example {(len(changes) + 1) * points * passes:,} passes."
    )


def draws_from_reference(subject: Subject) -> bool:
    """Whether a method draws mini-batches of the reference."""
    return subject.train is not None and needs_omega(subject)


def needs_omega(subject: Subject) -> bool:
    """Whether a method draws ω of the run's mini-batches."""
    return any(method.draws_mini_batches for method in subject.plan.methods)


def draw_omega(
    subject: Subject,
    draws: range,
    progress: Progress,
    executor: UnitExecutor,
    *,
    noisy: bool = False,
    plans: Plans | None = None,
) -> BatchStatistics:
    """ω of the run's mini-batches with these numbers, in units of a few draws, of which those that are in the journal
    are not drawn again. `noisy` ones pass with the noise of the network's own layers, of the draws of the same numbers.
    `plans` as for `statistics_of`."""
    plan, train, size = subject.plan, subject.train, subject.plan.batch_size
    assert train is not None and size is not None  # ensured by the plan
    title, purposes = f"Drawing {len(draws)} mini-batches of {size}", (counter_rng.BATCH, counter_rng.AUGMENT)
    drawing = MiniBatchDrawing(subject.model, subject.pipeline, train, size, plan.layers, purposes, title)
    name = f"{_OMEGA}-learned" if noisy else _OMEGA
    return drawing.in_units(name, executor, draws, progress, noisy=noisy, plans=plans)


_OMEGA, _DRAWS = "omega", 8  # how units of ω begin, and the draws of each


@frozen
class MiniBatchDrawing:
    """Draws of the statistics of `layers` from mini-batches of a reference, through the training pipeline; `purposes`
    are the random keys of batches and augmentation.

    Mini-batches of MCBN and of its analytic noise models are drawn as the run's sampler says; all others are random,
    without replacement, with the biased variance.
    """

    model: nn.Module
    pipeline: Pipeline
    train: Points
    batch_size: int
    layers: Sequence[BatchNormSite]
    purposes: tuple[int, int]
    title: str

    def drawn(
        self, draws: range, progress: Progress, learned: Learned | None = None, plans: Plans | None = None
    ) -> BatchStatistics:
        """ω of the mini-batches with these numbers."""
        seed, (batch, augment) = self.pipeline.run.seed, self.purposes
        sampler = self.pipeline.run.sampler if batch in _BY_SAMPLER else DEFAULT_SAMPLER
        check_memory_of_draws(len(draws), self.layers, self.batch_size, title=self.title)
        rows_of = mini_batches(sampler, self.train, self.batch_size, seed=seed)
        indices = np.stack([rows_of(t, batch) for t in draws])
        batches = self.pipeline.batches(self.train, indices, draws=draws, purpose=augment)
        with progress(self.title, len(draws)) as advance:
            omega = statistics_of(
                self.model,
                batches,
                layers=self.layers,
                variance=sampler.variance,
                on_draw=lambda: advance(1),
                memory_limit=memory.available(self.pipeline.device),
                learned=learned,
                plans=plans,
            )
        return replace(omega, seed=seed, indices=indices)

    def in_units(
        self,
        name: str,
        executor: UnitExecutor,
        draws: range,
        progress: Progress,
        *,
        noisy: bool = False,
        plans: Plans | None = None,
    ) -> BatchStatistics:
        """ω as `drawn` gives it, in units of a few draws whose names begin with `name`: those that are in the journal
        are not drawn again."""
        check_memory_of_draws(len(draws), self.layers, self.batch_size, title=self.title)
        starts = range(draws.start, draws.stop, _DRAWS)
        parts = [range(start, min(start + _DRAWS, draws.stop)) for start in starts]
        units = [WorkUnit(name, "train", self.train.sha256, range(self.batch_size), part) for part in parts]
        is_there = all(executor.journal.has(unit.name) for unit in units)
        plans = {} if plans is None else plans
        with (silent if is_there else progress)(self.title, len(draws)) as advance:

            def within(title: str, total: int) -> AbstractContextManager[Advance]:  # noqa: ARG001 - a Progress
                return nullcontext(advance)

            def run(group: UnitGroup) -> Iterator[Arrays]:
                for unit in group:
                    seed, count = self.pipeline.run.seed, len(unit.draws)
                    learned = Learned(count, seed, unit.draws.start) if noisy else None
                    yield self.drawn(unit.draws, within, learned, plans).arrays()

            banks = [BatchStatistics.of_arrays(arrays) for (arrays,) in executor.run(zip(units), run)]
        return reduce(BatchStatistics.joined, banks)


def omega_of(subject: Subject, draws: range, progress: Progress, *, noisy: bool = False) -> BatchStatistics:
    """`draw_omega`, where nothing is kept."""
    with tempfile.TemporaryDirectory() as folder:
        return draw_omega(subject, draws, progress, UnitExecutor(Journal(Path(folder), {})), noisy=noisy)


def part_drawn(subject: Subject) -> Points | None:
    """The points that the run's first draws of ω consist of, of a reference that is read as needed, so that checks on
    them read no others. All of it if it is in memory, if no ω of random points is needed, or if mini-batches
    are of one group: a few cannot represent all."""
    train, sampler, seed = subject.train, subject.run.sampler, subject.run.seed
    if train is None or not train.listed or not needs_omega(subject) or sampler.batches == "group":
        return train
    assert subject.plan.batch_size is not None  # ensured by the plan
    rows_of = mini_batches(sampler, train, subject.plan.batch_size, seed=seed)
    rows = [rows_of(draw, counter_rng.BATCH) for draw in range(subject.bank or next_stop(subject.run, 0))]
    return train.subset(np.unique(np.concatenate(rows)))


def check_reference(
    model: nn.Module,
    pipeline: Pipeline,
    train: Points,
    layers: Sequence[BatchNormSite],
    progress: Progress,
    *,
    trained_with: int | None,
    passes: int | None = None,
    executor: UnitExecutor | None = None,
    plans: Plans | None = None,
) -> ReferenceCheck | None:
    """The reference compared with the running statistics of the network's stochastic BatchNorms; None where that cannot
    be checked. Its mini-batches are units of the `executor`, where there is one; beside so many `passes` they are fewer
    and smaller, see `size_of_check`, or where the network normalises slices of them. `plans` as for `statistics_of`."""
    batches, batch_size = size_of_check(train, passes)
    if batch_size < 2 or not layers:
        return None
    purposes = counter_rng.CHECK, counter_rng.CHECK_AUGMENT

    def bank_of(size: int) -> BatchStatistics:
        drawing = MiniBatchDrawing(model, pipeline, train, size, layers, purposes, "Checking the training set")
        if executor is None:
            return drawing.drawn(range(batches), progress)
        return drawing.in_units("check", executor, range(batches), progress, plans=plans)

    try:
        bank = bank_of(batch_size)
    except OtherCallsError:
        few = pipeline.trained(train, np.arange(2), draw=0, purpose=counter_rng.CHECK_AUGMENT)
        with undisturbed(model):
            largest = largest_batch(model, layers, few, batch_size)
        if largest == batch_size:
            raise
        bank = bank_of(largest)
    known = {"train_size": pipeline.run.train_size, "train_batch_size": trained_with}
    return reference_check(bank, layers, population=len(train), **known)


def size_of_check(train: Points, passes: int | None = None) -> tuple[int, int]:
    """The number of mini-batches of the reference check and their points: together at most an eighth of the `passes` of
    the samples, but for 12 mini-batches of 128, or of fewer points where these are large."""
    size = min(BATCH_SIZE, len(train) // 2)
    if passes is None:
        return BATCHES, size
    size = min(size, max(always_passed(train), passes // _SHARE // FEWEST_BATCHES))
    return min(BATCHES, max(FEWEST_BATCHES, passes // _SHARE // max(1, size))), size


def always_passed(points: Points, entries: int = _ENTRIES) -> int:
    """The number of such points that pass however few the samples are: together they have about so many `entries`."""
    return max(_FEWEST_POINTS, entries // math.prod(points.point_shape))
