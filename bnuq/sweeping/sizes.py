"""Runs every set under R draw sets at several mini-batch sizes, in one pass over the data.

Draw t of every size takes the first b of one permutation, so that sizes are compared on common random numbers. All
sizes pass through one engine: points are loaded once, and operations before the first sampled BatchNorm run once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor

from bnuq import metrics
from bnuq.data import Points
from bnuq.errors import SamplingError
from bnuq.evaluation import memory
from bnuq.evaluation.draws import draw_bank
from bnuq.evaluation.passes import Feed, Passes
from bnuq.evaluation.subject import VALIDATION, Subject
from bnuq.evaluation.units import UnitGroup, merged, run_units, tiles
from bnuq.files.journal import Arrays, Journal
from bnuq.findings import Finding
from bnuq.progress import Advance, Progress
from bnuq.sampling.batch_statistics import BatchStatistics
from bnuq.sampling.engine import Stochastic

PART = 1024  # points of a unit
TRAIN = "train"
SPREAD = {"classification": "mutual_information", "regression": "variance"}  # the spread, which vanishes as b grows

_DIFFER = "differ"  # beside the scores of a unit: whether the samples of any draw set differ
_LEFT_OUT = {"variation_ratio", "max_probability", "crps_optimum", "pll_optimum", "crps_constant", "pll_constant"}

LogLikelihood = Callable[[Tensor, np.ndarray], Tensor]  # of outputs (draw, n, K) and targets (n, …): (draw, n)


@dataclass(frozen=True)
class DrawSets:
    """R draw sets of T draws: set r are the draws r·T … (r + 1)·T − 1."""

    samples: int
    sets: int

    @property
    def draws(self) -> int:
        return self.samples * self.sets


@dataclass(frozen=True)
class Training:
    """The training points of the expected log-likelihood, and the log-likelihood function."""

    points: Points
    log_likelihood: LogLikelihood


@dataclass(frozen=True)
class AtSize:
    """The scores of a network at one size: per-point scores by set and name, (R, n) each; what was fitted in each draw
    set; and the log-likelihood of the training points, as mean over points (draw,) and as mean over draws (point,).

    `degenerate`: the draws do not differ. R is 1 then where every mini-batch is the whole reference.
    """

    batch_size: int
    degenerate: bool
    points: Mapping[str, Mapping[str, Float64[np.ndarray, "draw_set _"]]]
    fitted: Sequence[Any]
    log_likelihood: Float64[np.ndarray, " draw"] | None
    of_training_points: Float64[np.ndarray, " training_point"] | None


def banks_of(
    sizes: Sequence[int], draw_sets: DrawSets, subject: Subject, journal: Journal, progress: Progress
) -> dict[int, BatchStatistics]:
    """ω of all draws at each size; a single draw where every mini-batch is the whole reference, without
    augmentation."""
    train, banks = subject.train, {}
    assert train is not None  # a sweep needs a reference
    for size in sizes:
        draws = range(1 if size == len(train) and subject.run.augment is None else draw_sets.draws)
        at_size = replace(subject, todo=replace(subject.todo, batch_size=size))
        bank = draw_bank(at_size, draws, progress, journal)
        banks[size] = replace(bank, indices=None)
    return banks


def run_at_sizes(
    banks: Mapping[int, BatchStatistics],
    draw_sets: DrawSets,
    subject: Subject,
    journal: Journal,
    progress: Progress,
    *,
    training: Training | None,
    method: str = "mcbn",
) -> SweepPasses:
    """The scores of the network at each size of `banks`; a regression is first fitted to the validation points, where
    there are any."""
    sets, task = subject.sets, subject.todo.task
    evaluated = [*sets.values(), *([] if training is None else [training.points])]
    fits = task == "regression" and VALIDATION in sets
    points = sum(map(len, evaluated)) + (len(sets[VALIDATION]) if fits else 0)
    draws = sum(bank.samples for bank in banks.values())
    sizes = f"{len(banks)} sizes" if len(banks) > 1 else f"b = {next(iter(banks))}"
    with progress(f"{points} points, {draws} draws, {sizes}", points * draws) as advance:
        at_sizes = _AllSizes(banks, draw_sets, subject, journal, advance, method)
        fitted: dict[int, list[Any]] = {size: [None] * at_sizes.rows[size][1] for size in banks}
        if task == "regression":
            fitted = at_sizes.fitted(sets.get(VALIDATION))
        scores = {name: at_sizes.scores(name, set_points, fitted) for name, set_points in sets.items()}
        likelihood = {} if training is None else at_sizes.likelihoods(training)
    result = {}
    for size in banks:
        samples, sets_of_draws = at_sizes.rows[size]
        degenerate = samples == 1 or not scores["test"][size][1]
        scores_of_size = {name: of_set[size][0] for name, of_set in scores.items()}
        if degenerate:  # spread by rounding counts as 0
            scores_of_size = {
                name: values | {SPREAD[task]: np.zeros((sets_of_draws, len(sets[name])))}
                for name, values in scores_of_size.items()
            }
        by_draw, by_point = likelihood.get(size, (None, None))
        result[size] = AtSize(size, degenerate, scores_of_size, fitted[size], by_draw, by_point)
    return SweepPasses(result, tuple(at_sizes.passes.findings))


@dataclass(frozen=True)
class SweepPasses:
    """The scores at each size, and notes for the user."""

    at: dict[int, AtSize]
    findings: tuple[Finding, ...]


Compute = Callable[[UnitGroup, Iterator[Tensor]], Iterable[Arrays]]  # units of one tile, from their outputs


class _AllSizes:
    """The passes of one network at all sizes."""

    def __init__(
        self,
        banks: Mapping[int, BatchStatistics],
        draw_sets: DrawSets,
        subject: Subject,
        journal: Journal,
        advance: Advance,
        method: str,
    ) -> None:
        self._banks, self._subject, self._journal, self._advance = banks, subject, journal, advance
        self._method = method
        self.rows = {
            size: (1, 1) if bank.samples == 1 else (draw_sets.samples, draw_sets.sets) for size, bank in banks.items()
        }
        """T and R by size."""
        self.passes = Passes(subject.run, subject.pipeline, subject.todo.outputs)
        self._engines: dict[tuple[int, ...], Stochastic] = {}

    def fitted(self, validation: Points | None) -> dict[int, list[Any]]:
        """What is fitted to the validation points in every draw set, or the given τ."""
        reductions: dict[int, list[Any]] = {}
        if validation is not None:
            sizes = tuple(self._banks)
            reductions = {
                size: self._reductions(size, VALIDATION, validation, [None] * self.rows[size][1]) for size in sizes
            }
            with self.passes.feeding(validation) as feed:
                for block in self._blocks(validation, range(len(validation)), sizes, feed, self._advance):
                    self._add(block, reductions, VALIDATION)
        return {
            size: [
                self._subject.scorer.fitted(
                    reductions[size][r].scores() if reductions else None, metrics.plain_weights(samples)
                )
                for r in range(sets)
            ]
            for size, (samples, sets) in self.rows.items()
        }

    def scores(self, name: str, points: Points, fitted: Mapping[int, Sequence[Any]]) -> dict[int, tuple[Arrays, bool]]:
        """The per-point scores (R, n) of one set at each size, and whether the samples of a draw set differ."""
        left_out = _LEFT_OUT - {"max_probability"} if name in self._subject.labelled else _LEFT_OUT

        def compute(units: UnitGroup, blocks: Iterator[Tensor]) -> Iterator[Arrays]:
            first = units[0].points.start
            reductions = {size: self._reductions(size, name, points, fitted[size], first) for size in _sizes(units)}
            for block in blocks:
                self._add(block, reductions, name)
            return (_of_reductions(of_size, left_out) for of_size in reductions.values())

        return {
            size: (arrays["draw"], bool(arrays["most"][_DIFFER]))
            for size, arrays in self._of_set(name, points, compute).items()
        }

    def likelihoods(self, training: Training) -> dict[int, tuple[np.ndarray, np.ndarray]]:
        """The log-likelihood of the training points at each size, by draw and by point."""
        points = training.points
        assert points.targets is not None
        all_targets = points.targets

        def compute(units: UnitGroup, blocks: Iterator[Tensor]) -> Iterator[Arrays]:
            log_likelihoods: dict[int, list[np.ndarray]] = {size: [] for size in _sizes(units)}
            first = units[0].points.start
            for block in blocks:
                targets = all_targets[first : first + block.shape[1]]
                for size, outputs in self._by_size(block, _sizes(units)):

                    def of_points(rows: slice, outputs: Tensor = outputs, targets: np.ndarray = targets) -> np.ndarray:
                        return training.log_likelihood(outputs[:, rows], targets[rows]).double().cpu().numpy()

                    log_likelihoods[size] += memory.in_halves(of_points, block.shape[1])
                first += block.shape[1]
            joined = (np.concatenate(values, axis=1) for values in log_likelihoods.values())
            return ({"sum/draw": values.sum(1)[None], "point/mean": values.mean(0)} for values in joined)

        return {
            size: (arrays["sum"]["draw"] / len(points), arrays["point"]["mean"])
            for size, arrays in self._of_set(TRAIN, points, compute).items()
        }

    def _of_set(self, name: str, points: Points, compute: Compute) -> dict[int, dict[str, Arrays]]:
        """The merged arrays of a set at each size; the sizes of a tile pass together."""
        draws_of_sizes = {size: range(bank.samples) for size, bank in self._banks.items()}
        units = [
            tuple(replace(tile, draws=draws, batch_size=size) for size, draws in draws_of_sizes.items())
            for tile in tiles(name, points, PART, method=self._method, draws=range(0))
        ]
        of_tiles, done = [], 0  # samples of the current tile that were computed

        def advance(samples: int) -> None:
            nonlocal done
            self._advance(samples)
            done += samples

        with self.passes.feeding(points) as feed:

            def run(group: UnitGroup) -> Iterable[Arrays]:
                return compute(group, self._blocks(points, group[0].points, _sizes(group), feed, advance))

            for group, arrays in zip(units, run_units(units, run, self._journal), strict=True):
                of_tiles.append(arrays)
                self._advance(sum(len(unit.points) * len(unit.draws) for unit in group) - done)
                done = 0
        return {size: merged(arrays[k] for arrays in of_tiles) for k, size in enumerate(self._banks)}

    def _reductions(self, size: int, name: str, points: Points, fitted: Sequence[Any], first: int = 0) -> list[Any]:
        weights, labelled = metrics.plain_weights(self.rows[size][0]), name in self._subject.labelled
        reduction = self._subject.scorer.reduction
        return [reduction(weights, points, fitted=fit, labelled=labelled, first=first) for fit in fitted]

    def _add(self, block: Tensor, reductions: Mapping[int, Sequence[Any]], name: str) -> None:
        for size, outputs in self._by_size(block, list(reductions)):
            samples, _ = self.rows[size]
            try:
                for r, reduction in enumerate(reductions[size]):
                    reduction.add(outputs[r * samples : (r + 1) * samples])
            except SamplingError as error:
                raise SamplingError(f"b = {size}, {name}: {error}") from error

    def _by_size(self, block: Tensor, sizes: Sequence[int]) -> Iterator[tuple[int, Tensor]]:
        first = 0
        for size in sizes:
            yield size, block[first : first + self._banks[size].samples]
            first += self._banks[size].samples

    def _blocks(
        self, points: Points, rows: range, sizes: tuple[int, ...], feed: Feed, advance: Advance
    ) -> Iterator[Tensor]:
        """The outputs (draws of these sizes, chunk, K) of some points of a set, chunk by chunk."""
        engine = self._engines.get(sizes)
        if engine is None:
            omega = reduce(BatchStatistics.joined, (self._banks[size] for size in sizes))
            subject = self._subject
            engine = Stochastic(subject.model, subject.todo.sites, omega=omega, precision=subject.run.precision)
            self.passes.prepare([engine], points)
            self._engines[sizes] = engine
            self.passes.note_precision(self._method, engine)
        for block in self.passes.blocks(engine, points, rows, feed):
            yield block
            advance(engine.samples * block.shape[1])


def _sizes(units: UnitGroup) -> tuple[int, ...]:
    return tuple(unit.batch_size for unit in units if unit.batch_size is not None)


def _of_reductions(reductions: Sequence[Any], left_out: Collection[str]) -> Arrays:
    """The per-point scores that every draw set has, (R, n), and whether the samples of one differ."""
    scores = [reduction.scores() for reduction in reductions]
    names = [
        name
        for name in scores[0].points
        if name not in left_out and all(name in set_scores.points for set_scores in scores)
    ]
    differ = any(set_scores.samples_differ for set_scores in scores)
    result = {f"draw/{name}": np.stack([set_scores.points[name] for set_scores in scores]) for name in names}
    return result | {f"most/{_DIFFER}": np.array([float(differ)])}


def classification_likelihood(outputs: Tensor, targets: np.ndarray) -> Tensor:
    """ln softmax of the class of each label, (draw, n), in nats."""
    labels = torch.from_numpy(np.asarray(targets)).to(outputs.device)
    wide = outputs.cpu().double() if outputs.device.type == "mps" else outputs.double()
    return torch.as_tensor(metrics.log_likelihood(wide, labels.to(wide.device)))


def regression_likelihood(tau: float, *, mean: np.ndarray | float, std: np.ndarray | float) -> LogLikelihood:
    """The Gaussian log-likelihood of targets under outputs · std + mean with precision `tau`, (draw, n), in nats."""

    def log_likelihood(outputs: Tensor, targets: np.ndarray) -> Tensor:
        f = outputs.cpu().double() * torch.tensor(std) + torch.tensor(mean)
        return torch.as_tensor(metrics.gaussian_log_likelihood(f, torch.from_numpy(np.asarray(targets)), tau=tau))

    return log_likelihood
