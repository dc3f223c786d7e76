"""Runs every set under R draw sets at several mini-batch sizes, in one pass over the data whose finished parts are
saved.

Draw t of every size takes the first b of one permutation, so that sizes are compared on common random numbers. All
sizes pass through one engine: points are loaded once, and operations before the first sampled BatchNorm run once.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor, nn

from bnuq import metrics
from bnuq.config import Run
from bnuq.data import Points
from bnuq.errors import SamplingError
from bnuq.evaluation import memory
from bnuq.evaluation.datasets import Pipeline
from bnuq.evaluation.draws import draw_bank
from bnuq.evaluation.plan import Plan
from bnuq.evaluation.runner import VALIDATION, Prefetch, Scorer, fitting_chunk, precision_in_words
from bnuq.progress import Advance, Progress
from bnuq.sampling.batch_statistics import BatchStatistics
from bnuq.sampling.engine import Stochastic, chunks, default_chunk
from bnuq.sweeping.journal import Journal

PART = 1024  # points of one part of the journal
TRAIN = "train"
SPREAD = {"classification": "mutual_information", "regression": "variance"}  # the spread, which vanishes as b grows

_DIFFER = "differ"  # key beside the scores of a part: whether the samples of each draw set differ
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
    sizes: Sequence[int],
    draw_sets: DrawSets,
    *,
    todo: Plan,
    model: nn.Module,
    pipeline: Pipeline,
    train: Points,
    parts: Journal,
    progress: Progress,
) -> dict[int, BatchStatistics]:
    """ω of all draws at each size; a single draw where every mini-batch is the whole reference."""
    banks_of_sizes = {}
    for size in sizes:
        draws = 1 if is_whole(size, train, pipeline.run) else draw_sets.draws
        bank = parts.load_bank(f"b{size}-omega")
        if bank is None or bank.samples != draws:
            bank = draw_bank(range(draws), replace(todo, batch_size=size), model, pipeline, train, progress)
            assert bank is not None
            bank = replace(bank, indices=None)
            parts.save_bank(f"b{size}-omega", bank)
        banks_of_sizes[size] = bank
    return banks_of_sizes


def is_whole(size: int, train: Points, run: Run) -> bool:
    """Whether every mini-batch is the same: the whole reference, without augmentation."""
    return size == len(train) and run.augment is None


def run_at_sizes(
    banks: Mapping[int, BatchStatistics],
    sets: Mapping[str, Points],
    draw_sets: DrawSets,
    *,
    run: Run,
    todo: Plan,
    model: nn.Module,
    pipeline: Pipeline,
    scorer: Scorer,
    training: Training | None,
    parts: Journal,
    progress: Progress,
) -> SweepPasses:
    """The scores of the network at each size of `banks`.

    `sets` hold "test", OOD sets, and "validation" where there are validation points, which a regression is fitted to
    first.
    """
    evaluated = [*sets.values(), *([] if training is None else [training.points])]
    fits = todo.task == "regression" and VALIDATION in sets
    points = sum(map(len, evaluated)) + (len(sets[VALIDATION]) if fits else 0)
    draws = sum(bank.samples for bank in banks.values())
    sizes = f"{len(banks)} sizes" if len(banks) > 1 else f"b = {next(iter(banks))}"
    with progress(f"{points} points, {draws} draws, {sizes}", points * draws) as advance:
        runner = _Runner(banks, draw_sets, run, todo, model, pipeline, scorer, parts, advance)
        fitted: dict[int, list[Any]] = {size: [None] * runner.rows[size][1] for size in banks}
        if todo.task == "regression":
            fitted = runner.fitted(sets.get(VALIDATION))
        scores = {name: runner.scores(name, set_points, fitted) for name, set_points in sets.items()}
        likelihood = {} if training is None else runner.likelihoods(training)
    result = {}
    for size in banks:
        degenerate = runner.rows[size][0] == 1 or not scores["test"][size][_DIFFER].any()
        scores_of_size = {
            name: {k: v for k, v in of_set[size].items() if k != _DIFFER} for name, of_set in scores.items()
        }
        if degenerate:  # spread by rounding counts as 0
            spread, sets_of_draws = SPREAD[todo.task], runner.rows[size][1]
            scores_of_size = {
                name: values | {spread: np.zeros((sets_of_draws, len(sets[name])))}
                for name, values in scores_of_size.items()
            }
        by_draw, by_point = likelihood.get(size, (None, None))
        result[size] = AtSize(size, degenerate, scores_of_size, fitted[size], by_draw, by_point)
    return SweepPasses(result, tuple(runner.notes))


@dataclass(frozen=True)
class SweepPasses:
    """The scores at each size, and notes for the user."""

    at: dict[int, AtSize]
    notes: tuple[str, ...]


class _Runner:
    """The passes of one network at all sizes."""

    def __init__(
        self,
        banks: Mapping[int, BatchStatistics],
        draw_sets: DrawSets,
        run: Run,
        todo: Plan,
        model: nn.Module,
        pipeline: Pipeline,
        scorer: Scorer,
        parts: Journal,
        advance: Advance,
    ) -> None:
        self._banks, self._run, self._todo, self._model = banks, run, todo, model
        self._pipeline, self._scorer, self._parts, self._advance = pipeline, scorer, parts, advance
        self.rows = {
            size: (1, 1) if bank.samples == 1 else (draw_sets.samples, draw_sets.sets) for size, bank in banks.items()
        }
        """T and R by size."""
        self.notes: list[str] = []
        self._engines: dict[tuple[int, ...], Stochastic] = {}
        self._chunk: int | None = None

    def fitted(self, validation: Points | None) -> dict[int, list[Any]]:
        """What is fitted to the validation points in every draw set, or the given τ."""
        reductions: dict[int, list[Any]] = {}
        if validation is not None:
            reductions = self._reductions(
                validation, VALIDATION, {size: [None] * r for size, (_, r) in self.rows.items()}
            )
            for block in self._blocks(validation, tuple(self._banks)):
                self._add(block, reductions, VALIDATION)
        return {
            size: [
                self._scorer.fitted(
                    reductions[size][r].scores() if reductions else None, metrics.plain_weights(samples)
                )
                for r in range(sets)
            ]
            for size, (samples, sets) in self.rows.items()
        }

    def scores(
        self, name: str, points: Points, fitted: Mapping[int, Sequence[Any]]
    ) -> dict[int, dict[str, np.ndarray]]:
        """The per-point scores (R, n) of one set at each size, and "differ": whether the samples of a draw set
        differ."""

        def compute(part: Points, blocks: Iterator[Tensor], sizes: Sequence[int]) -> dict[int, dict[str, np.ndarray]]:
            reductions = self._reductions(part, name, {size: fitted[size] for size in sizes})
            for block in blocks:
                self._add(block, reductions, name)
            left_out = _LEFT_OUT - {"max_probability"} if name in ("test", VALIDATION) else _LEFT_OUT
            return {size: _of_reductions(of_size, left_out) for size, of_size in reductions.items()}

        parts_of_set = list(self._parts_of_set(name, points, compute))
        return {
            size: {
                key: np.concatenate([part[size][key] for part in parts_of_set], axis=1) for key in parts_of_set[0][size]
            }
            for size in self._banks
        }

    def likelihoods(self, training: Training) -> dict[int, tuple[np.ndarray, np.ndarray]]:
        """The log-likelihood of the training points at each size, by draw and by point."""

        def compute(part: Points, blocks: Iterator[Tensor], sizes: Sequence[int]) -> dict[int, dict[str, np.ndarray]]:
            log_likelihoods: dict[int, list[np.ndarray]] = {size: [] for size in sizes}
            first = 0
            assert part.targets is not None
            for block in blocks:
                targets = part.targets[first : first + block.shape[1]]
                for size, outputs in self._by_size(block, sizes):

                    def of_points(rows: slice, outputs: Tensor = outputs, targets: np.ndarray = targets) -> np.ndarray:
                        return training.log_likelihood(outputs[:, rows], targets[rows]).double().cpu().numpy()

                    log_likelihoods[size] += memory.in_halves(of_points, block.shape[1])
                first += block.shape[1]
            joined = {size: np.concatenate(values, axis=1) for size, values in log_likelihoods.items()}
            return {size: {"draw": values.sum(1)[:, None], "point": values.mean(0)} for size, values in joined.items()}

        log_likelihoods = list(self._parts_of_set(TRAIN, training.points, compute))
        return {
            size: (
                np.sum([part[size]["draw"][:, 0] for part in log_likelihoods], axis=0) / len(training.points),
                np.concatenate([part[size]["point"] for part in log_likelihoods]),
            )
            for size in self._banks
        }

    def _parts_of_set(
        self,
        name: str,
        points: Points,
        compute: Callable[[Points, Iterator[Tensor], Sequence[int]], dict[int, dict[str, np.ndarray]]],
    ) -> Iterator[dict[int, dict[str, np.ndarray]]]:
        """The parts of a set in order: read from the journal for the sizes that have them, computed for the others."""
        of_set = f"{name}-{points.sha256[:8]}"
        for first in range(0, len(points), PART):
            rows = np.arange(first, min(len(points), first + PART))
            saved = {size: self._parts.load(f"b{size}-{of_set}-{first}") for size in self._banks}
            arrays_of_sizes = {size: arrays for size, arrays in saved.items() if arrays is not None}
            self._advance(len(rows) * sum(self._banks[size].samples for size in arrays_of_sizes))
            if missing := tuple(size for size in self._banks if size not in arrays_of_sizes):
                part = points.subset(rows)
                fresh = compute(part, self._blocks(part, missing), missing)
                for size, arrays in fresh.items():
                    self._parts.save(f"b{size}-{of_set}-{first}", arrays)
                arrays_of_sizes |= fresh
            yield arrays_of_sizes

    def _reductions(self, points: Points, name: str, fitted: Mapping[int, Sequence[Any]]) -> dict[int, list[Any]]:
        labelled = name in ("test", VALIDATION)
        return {
            size: [
                self._scorer.reduction(metrics.plain_weights(self.rows[size][0]), points, fitted=fit, labelled=labelled)
                for fit in of_size
            ]
            for size, of_size in fitted.items()
        }

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

    def _blocks(self, points: Points, sizes: tuple[int, ...]) -> Iterator[Tensor]:
        """The outputs (draws of these sizes, chunk, K) of some points of a set, chunk by chunk."""
        engine, chunk = self._ready(points, sizes)

        def load(rows: slice) -> Tensor:
            return self._pipeline.evaluated(points, rows)

        with ExitStack() as closing:
            feed = Prefetch(load, len(points), closing) if self._pipeline.device.type == "cuda" else load
            for block in chunks(engine, len(points), feed, size=chunk, on_halved=self._halved):
                yield block
                self._advance(engine.samples * block.shape[1])

    def _halved(self, why: str, size: int) -> None:
        self._chunk = size
        self._note(f"{why}, so {size} points are processed at once from there on (--chunk-size {size})")

    def _note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    def _ready(self, points: Points, sizes: tuple[int, ...]) -> tuple[Stochastic, int]:
        """The engine of these sizes' draws, and its chunk size."""
        engine = self._engines.get(sizes)
        if engine is None:
            omega = reduce(BatchStatistics.joined, (self._banks[size] for size in sizes))
            engine = Stochastic(self._model, self._todo.sites, omega=omega, precision=self._run.precision)
            engine.prepare(self._pipeline.evaluated(points, slice(0, 64)), free=memory.available(self._pipeline.device))
            self._engines[sizes] = engine
            if engine.deviation is not None:
                self._note(precision_in_words("mcbn", self._run.precision, engine.deviation))
        size = self._run.chunk_size or min(default_chunk(points.point_shape), self._chunk or sys.maxsize)
        if self._run.chunk_size is None:
            size = fitting_chunk([engine], self._todo.outputs, size, self._pipeline.device)
        return engine, size


def _of_reductions(reductions: Sequence[Any], left_out: Collection[str]) -> dict[str, np.ndarray]:
    """The per-point scores that every draw set has, (R, n), and whether its samples differ, (R, 1)."""
    scores = [reduction.scores() for reduction in reductions]
    names = [
        name
        for name in scores[0].points
        if name not in left_out and all(name in set_scores.points for set_scores in scores)
    ]
    result = {name: np.stack([set_scores.points[name] for set_scores in scores]) for name in names}
    return result | {_DIFFER: np.array([[float(reduction.passes_differ)] for reduction in reductions])}


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
