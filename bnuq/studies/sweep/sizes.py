"""Runs every set under R draw sets at several mini-batch sizes, in one pass over the data.

Draw t of every size takes the first b of one permutation, so that sizes are compared on common random numbers. All
sizes pass through one engine: points are loaded once, and operations before the first sampled BatchNorm run once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from typing import TypeVar

import numpy as np
from torch import Tensor

from bnuq import metrics
from bnuq.arithmetic import Arithmetic
from bnuq.data import Points
from bnuq.errors import SamplingError
from bnuq.evaluation import estimates, memory
from bnuq.evaluation.draws import draw_omega
from bnuq.evaluation.executors import UnitExecutor
from bnuq.evaluation.passes import ChunkedPasses, Feed
from bnuq.evaluation.subject import VALIDATION, Subject
from bnuq.evaluation.tasks.observation_noise import NoiseFit
from bnuq.evaluation.tasks.regression import RegressionScorer
from bnuq.evaluation.tasks.scorer import SampleReduction, ScoredSet, TaskScorer
from bnuq.evaluation.units import Gathered, UnitGroup, tiles
from bnuq.files.journal import Arrays
from bnuq.findings import Finding
from bnuq.frozen import frozen
from bnuq.methods import method_named
from bnuq.metrics.arrays import as_float64
from bnuq.progress import Advance, Progress
from bnuq.sampling.batch_statistics import BatchStatistics
from bnuq.sampling.engine import Stochastic
from bnuq.shapes import Float64
from bnuq.studies.sweep.likelihood import Training

PART = 1024  # points of a unit
TRAIN = "train"

_DIFFER = "differ"  # beside the scores of a unit: whether the samples of any draw set differ
_LEFT_OUT = {*("max_probability", "crps_optimum", "pll_optimum", "crps_constant", "pll_constant")}

Key = TypeVar("Key")


SetScores = Mapping[str, Float64[np.ndarray, "draw_set _"]]


@frozen
class AtSize:
    """The scores of a network at one size: by set and name those of each point, (R, n); what was fitted in each draw
    set; and the log-likelihood of the training points, as mean over points (draw,) and as mean over draws (point,).

    `degenerate`: the draws do not differ. R is 1 then where every mini-batch is the whole reference.
    """

    batch_size: int
    degenerate: bool
    points: Mapping[str, SetScores]
    fitted: Sequence[NoiseFit]
    log_likelihood: Float64[np.ndarray, " draw"] | None
    of_training_points: Float64[np.ndarray, " training_point"] | None

    @property
    def draw_sets(self) -> int:
        return len(next(iter(self.points["test"].values())))

    def joined(self, later: AtSize) -> AtSize:
        """These draw sets followed by `later` ones."""
        points, by_draw, by_point = {}, None, None
        for name, scores in self.points.items():
            both = [score for score in scores if score in later.points[name]]
            points[name] = {score: np.concatenate([scores[score], later.points[name][score]]) for score in both}
        if self.log_likelihood is not None:
            parts = [present(each.log_likelihood) for each in (self, later)]
            means = [present(each.of_training_points) for each in (self, later)]
            by_draw, by_point = np.concatenate(parts), np.average(means, axis=0, weights=[*map(len, parts)])
        degenerate, fitted = self.degenerate and later.degenerate, [*self.fitted, *later.fitted]
        return AtSize(self.batch_size, degenerate, points, fitted, by_draw, by_point)


@frozen
class _OfSet:
    """What a size has of one set: see `AtSize`; and whether the samples of any draw set differ."""

    points: SetScores
    differ: bool

    def without(self, spread: str) -> _OfSet:
        """The same without any spread: between draws that do not differ it is rounding."""
        return replace(self, points={**self.points, spread: np.zeros_like(next(iter(self.points.values())))})


def banks_of(
    draws: Mapping[int, range], subject: Subject, executor: UnitExecutor, progress: Progress
) -> dict[int, BatchStatistics]:
    """ω of these draws at each size."""
    banks = {}
    for size, of_size in draws.items():
        at_size = replace(subject, batch_size=size)
        banks[size] = replace(draw_omega(at_size, of_size, progress, executor), indices=None)
    return banks


def noise_points(subject: Subject) -> Points | None:
    """The validation points, where there are any and τ of a regression is fitted to them."""
    return subject.sets.get(VALIDATION) if isinstance(subject.scorer, RegressionScorer) else None


def run_at_sizes(
    banks: Mapping[int, BatchStatistics],
    draws: Mapping[int, range],
    subject: Subject,
    executor: UnitExecutor,
    progress: Progress,
    *,
    samples: int,
    training: Training | None,
    method: str = "mcbn",
) -> SweepPasses:
    """The scores of the network at each size of `banks`, which are these `draws`, in sets of `samples`. A regression is
    first fitted to the validation points, where there are any."""
    sets, task, validation = subject.sets, subject.task, noise_points(subject)
    evaluated = [*sets.values(), *([] if training is None else [training.points])]
    points = sum(map(len, evaluated)) + len(validation or ())
    count = sum(map(len, draws.values()))
    sizes = f"{len(banks)} sizes" if len(banks) > 1 else f"b = {next(iter(banks))}"
    with progress(f"{points} examples, {count} draws, {sizes}", points * count) as advance:
        at_sizes = _AllSizes(banks, draws, samples, subject, executor, advance, method)
        scorers = at_sizes.scorers(validation)
        scores = {name: at_sizes.scores(name, set_points, scorers) for name, set_points in sets.items()}
        likelihood = {} if training is None else at_sizes.likelihoods(training)
    result = {}
    for size in banks:
        of_sets = {name: at_size[size] for name, at_size in scores.items()}
        degenerate = at_sizes.rows[size][0] == 1 or not of_sets["test"].differ
        if degenerate:
            of_sets = {name: size_set.without(task.spread) for name, size_set in of_sets.items()}
        by_draw, by_point = likelihood.get(size, (None, None))
        result[size] = AtSize(
            size,
            degenerate,
            {name: size_set.points for name, size_set in of_sets.items()},
            [scorer.fit for scorer in scorers[size] if isinstance(scorer, RegressionScorer) and scorer.fit],
            by_draw,
            by_point,
        )
    return SweepPasses(banks, result, tuple(at_sizes.passes.findings), at_sizes.passes.arithmetic)


@frozen
class SweepPasses:
    """ω and the scores at each size, notes for the user, and the arithmetic of the samples."""

    banks: Mapping[int, BatchStatistics]
    at: Mapping[int, AtSize]
    findings: tuple[Finding, ...]
    arithmetic: Arithmetic

    def joined(self, later: SweepPasses) -> SweepPasses:
        """These followed by `later` draws, also of further sizes; sizes in ascending order."""
        banks, at = {**self.banks}, {**self.at}
        for size, at_size in later.at.items():
            banks[size] = banks[size].joined(later.banks[size]) if size in banks else later.banks[size]
            at[size] = at[size].joined(at_size) if size in at else at_size
        banks, at = dict(sorted(banks.items())), dict(sorted(at.items()))
        return replace(self, banks=banks, at=at, findings=(*self.findings, *later.findings))


Compute = Callable[[UnitGroup, Iterator[Tensor]], Iterable[Arrays]]  # units of one tile, from their outputs


class _AllSizes:
    """The passes of one network at all sizes."""

    def __init__(
        self,
        banks: Mapping[int, BatchStatistics],
        draws: Mapping[int, range],
        samples: int,
        subject: Subject,
        executor: UnitExecutor,
        advance: Advance,
        method: str,
    ) -> None:
        self._draws = draws
        self._banks, self._subject, self._executor, self._advance = banks, subject, executor, advance
        self._method = method
        self.rows = {
            size: (1, 1) if len(part) == 1 else (samples, len(part) // samples) for size, part in draws.items()
        }
        """T and R by size."""
        self.passes = ChunkedPasses(subject.pipeline, subject.outputs, auto_limit=subject.draws.auto_limit)
        self._engines: dict[tuple[int, ...], Stochastic] = {}
        own = subject.pipeline.arithmetic
        self._arithmetic = own.exact if method_named(method).is_single else own
        if not self._arithmetic.is_exact:  # all sizes together settle it, whichever of them are still to be computed
            self._engine(tuple(banks), subject.sets["test"])

    def scorers(self, validation: Points | None) -> dict[int, list[TaskScorer]]:
        """The scorer of every draw set, with what is fitted to the validation points or the given τ."""
        reductions: dict[int, list[SampleReduction]] = {}
        scorer, sizes = self._subject.scorer, tuple(self._banks)
        if validation is not None:
            reductions = {
                size: self._reductions(size, VALIDATION, validation, [scorer] * self.rows[size][1]) for size in sizes
            }
            with self.passes.feeding(validation) as feed:
                blocks = self._blocks(validation, range(len(validation)), sizes, feed, self._advance)
                self._add(blocks, reductions, VALIDATION)
        return {
            size: [
                scorer.fitted_to(reductions[size][r].scores() if reductions else None, metrics.plain_weights(samples))
                for r in range(sets)
            ]
            for size, (samples, sets) in self.rows.items()
        }

    def scores(self, name: str, points: Points, scorers: Mapping[int, Sequence[TaskScorer]]) -> dict[int, _OfSet]:
        """The scores of one set at each size."""
        left_out = _LEFT_OUT - {"max_probability"} if name in self._subject.labelled else _LEFT_OUT

        def compute(units: UnitGroup, blocks: Iterator[Tensor]) -> Iterator[Arrays]:
            first = units[0].points.start
            reductions = {size: self._reductions(size, name, points, scorers[size], first) for size in _sizes(units)}
            self._add(blocks, reductions, name)
            for of_size in reductions.values():
                scores = [reduction.scores() for reduction in of_size]
                differ = np.array([float(any(set_scores.samples_differ for set_scores in scores))])
                yield _of_points(scores, left_out) | {f"most/{_DIFFER}": differ}

        return {
            size: _OfSet(arrays["draw"], bool(arrays["most"][_DIFFER]))
            for size, arrays in self._of_set(name, points, compute).items()
        }

    def likelihoods(self, training: Training) -> dict[int, tuple[np.ndarray, np.ndarray]]:
        """The log-likelihood of the training points at each size, by draw and by point."""
        points = training.points
        assert points.targets is not None
        all_targets = points.targets

        def compute(units: UnitGroup, blocks: Iterator[Tensor]) -> Iterator[Arrays]:
            first, count = units[0].points.start, len(units[0].points)
            likelihoods = {size: np.empty((self._banks[size].samples, count)) for size in _sizes(units)}
            targets, read = np.empty(0), slice(0)
            for size, draws, at, outputs in _parted(
                blocks, [(size, len(values)) for size, values in likelihoods.items()]
            ):
                if at != read:
                    targets, read = all_targets[first + at.start : first + at.stop], at

                def of_points(rows: slice, outputs: Tensor = outputs, targets: np.ndarray = targets) -> np.ndarray:
                    return as_float64(training.log_likelihood(outputs[:, rows], targets[rows]))

                likelihoods[size][draws, at] = np.concatenate([*memory.in_halves(of_points, outputs.shape[1])], axis=1)
            return ({"sum/draw": values.sum(1)[None], "point/mean": values.mean(0)} for values in likelihoods.values())

        return {
            size: (arrays["sum"]["draw"] / len(points), arrays["point"]["mean"])
            for size, arrays in self._of_set(TRAIN, points, compute).items()
        }

    def _of_set(self, name: str, points: Points, compute: Compute) -> dict[int, dict[str, Arrays]]:
        """The merged arrays of a set at each size; the sizes of a tile pass together."""
        units = [
            tuple(replace(tile, draws=draws, batch_size=size) for size, draws in self._draws.items())
            for tile in tiles(name, points, PART, method=self._method, draws=range(0))
        ]
        gathered = {size: Gathered() for size in self._banks}
        done = 0  # samples of the current tile that were computed

        def advance(samples: int) -> None:
            nonlocal done
            self._advance(samples)
            done += samples

        with self.passes.feeding(points) as feed:

            def run(group: UnitGroup) -> Iterable[Arrays]:
                return compute(group, self._blocks(points, group[0].points, _sizes(group), feed, advance))

            for group, arrays in zip(units, self._executor.run(units, run), strict=True):
                for of_size, of_tile in zip(gathered.values(), arrays, strict=True):
                    of_size.add(of_tile)
                self._advance(sum(len(unit.points) * len(unit.draws) for unit in group) - done)
                done = 0
        return {size: of_size.by_kind() for size, of_size in gathered.items()}

    def _reductions(
        self, size: int, name: str, points: Points, scorers: Sequence[TaskScorer], first: int = 0
    ) -> list[SampleReduction]:
        weights, labelled = metrics.plain_weights(self.rows[size][0]), name in self._subject.labelled
        return [scorer.reduction(ScoredSet(points, weights, labelled, first=first)) for scorer in scorers]

    def _add(self, blocks: Iterable[Tensor], reductions: Mapping[int, Sequence[SampleReduction]], name: str) -> None:
        """Add each draw set's outputs to its reduction."""
        parts = [((size, r), self.rows[size][0]) for size, of_size in reductions.items() for r in range(len(of_size))]
        for (size, r), _, _, outputs in _parted(blocks, parts):
            try:
                reductions[size][r].add(outputs)
            except SamplingError as error:
                raise SamplingError(f"b = {size}, {name}: {error}") from error

    def _blocks(
        self, points: Points, rows: range, sizes: tuple[int, ...], feed: Feed, advance: Advance
    ) -> Iterator[Tensor]:
        """The outputs (draws of these sizes, chunk, K) of some points of a set, chunk by chunk."""
        for block in self.passes.blocks(self._engine(sizes, points), points, rows, feed):
            yield block
            advance(block.shape[0] * block.shape[1])

    def _engine(self, sizes: tuple[int, ...], points: Points) -> Stochastic:
        """The engine of the draws of these sizes, planned on these points."""
        engine = self._engines.get(sizes)
        if engine is None:
            omega = reduce(BatchStatistics.joined, (self._banks[size] for size in sizes))
            subject = self._subject
            sites, task = subject.sites, subject.task
            engine = Stochastic(subject.model, sites, omega=omega, arithmetic=self._arithmetic, task=task)
            self.passes.prepare([engine], points)
            self._engines[sizes] = engine
            self.passes.note_arithmetic(self._method, engine)
        return engine


def present(values: Float64[np.ndarray, " value"] | None) -> Float64[np.ndarray, " value"]:
    assert values is not None  # every size has it where one has
    return values


def _parted(blocks: Iterable[Tensor], parts: Sequence[tuple[Key, int]]) -> Iterator[tuple[Key, slice, slice, Tensor]]:
    """The outputs of each of the `parts` of the draws, which have so many: its key, which of its draws and which points
    these are, and their outputs. A block holds some draws of some points; all those of the parts, in order, come before
    the next points."""
    part = draw = first = 0
    for block in blocks:
        remaining = block
        while len(remaining):
            key, count = parts[part]
            outputs, remaining = remaining[: count - draw], remaining[count - draw :]
            yield key, slice(draw, draw + len(outputs)), slice(first, first + block.shape[1]), outputs
            draw += len(outputs)
            if draw == count:
                part, draw = (part + 1) % len(parts), 0
                first += 0 if part else block.shape[1]


def _sizes(units: UnitGroup) -> tuple[int, ...]:
    return tuple(unit.batch_size for unit in units if unit.batch_size is not None)


def _of_points(scores: Sequence[estimates.SetScores], left_out: Collection[str]) -> Arrays:
    """The per-point scores (R, n) that every draw set has, from the scores of each."""
    names = [
        name
        for name in scores[0].points
        if name not in left_out and all(name in set_scores.points for set_scores in scores)
    ]
    return {f"draw/{name}": np.stack([set_scores.points[name] for set_scores in scores]) for name in names}
