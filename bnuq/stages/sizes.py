"""Every set under R draw sets at several mini-batch sizes: one pass over the data for all, in parts that are kept.

Draw t of every size takes the first b of one permutation, so that sizes are compared on common random numbers. All
sizes pass through one engine: points are loaded, and what the network computes before its first sampled BatchNorm is
computed, once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor, nn

from bnuq import metrics
from bnuq.data import Points
from bnuq.progress import Advance, Progress
from bnuq.run import Run
from bnuq.sampling.bank import BatchStatistics
from bnuq.sampling.engine import Stochastic, chunks, default_chunk
from bnuq.stages import memory
from bnuq.stages.drawing import draw_bank
from bnuq.stages.material import Pipeline
from bnuq.stages.parts import Parts
from bnuq.stages.passing import VALIDATION, Ahead, Scorer, bytes_taken
from bnuq.stages.plan import Plan

PART = 1024  # points whose scores are kept together
TRAIN = "train"
SPREAD = {"classification": "mutual_information", "regression": "variance"}  # what dies away as b grows

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
    """The training points that an expected log-likelihood is taken on, and what gives it."""

    points: Points
    log_likelihood: LogLikelihood


@dataclass(frozen=True)
class AtSize:
    """What a network gives at one size: per-point scores by set and name, (R, n) each; what was fitted in each draw
    set; and the log-likelihood of the training points, mean over them (draw,) and mean over draws (point,).

    `degenerate`: the draws do not differ; there is one draw set then, of one draw.
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
    parts: Parts,
    progress: Progress,
) -> dict[int, BatchStatistics]:
    """ω of all draws at each size; a single draw where every mini-batch is the whole reference."""
    found = {}
    for size in sizes:
        draws = 1 if is_whole(size, train, pipeline.run) else draw_sets.draws
        bank = parts.load_bank(f"b{size}-omega")
        if bank is None or bank.samples != draws:
            bank = draw_bank(range(draws), replace(todo, batch_size=size), model, pipeline, train, progress)
            assert bank is not None
            bank = replace(bank, indices=None)
            parts.save_bank(f"b{size}-omega", bank)
        found[size] = bank
    return found


def is_whole(size: int, train: Points, run: Run) -> bool:
    """Whether every mini-batch is the same: the whole reference, and nothing random done to it."""
    return size == len(train) and run.augment is None


def at_sizes(
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
    parts: Parts,
    progress: Progress,
) -> tuple[dict[int, AtSize], int]:
    """What the network gives at each size of `banks`; and the parts that were there already.

    `sets` hold "test", OOD sets, and "validation" where there are such points, which a regression is fitted to first.
    """
    evaluated = [*sets.values(), *([] if training is None else [training.points])]
    fits = todo.task == "regression" and VALIDATION in sets
    points = sum(map(len, evaluated)) + (len(sets[VALIDATION]) if fits else 0)
    draws = sum(bank.samples for bank in banks.values())
    sizes = f"{len(banks)} sizes" if len(banks) > 1 else f"b = {next(iter(banks))}"
    with progress(f"{points} points, {draws} draws, {sizes}", points * draws) as advance:
        passing = _Passing(banks, draw_sets, run, todo, model, pipeline, scorer, parts, advance)
        fitted: dict[int, list[Any]] = {size: [None] * passing.rows[size][1] for size in banks}
        if todo.task == "regression":
            fitted = passing.fitted(sets.get(VALIDATION))
        scores = {name: passing.scores(name, one, fitted) for name, one in sets.items()}
        likelihood = {} if training is None else passing.likelihoods(training)
    found = {}
    for size in banks:
        degenerate = passing.rows[size][0] == 1 or not scores["test"][size]["differ"].any()
        told = {name: {k: v for k, v in of_set[size].items() if k != "differ"} for name, of_set in scores.items()}
        if degenerate:  # rounding is no spread
            spread = SPREAD[todo.task]
            told = {name: values | {spread: np.zeros((1, len(sets[name])))} for name, values in told.items()}
        by_draw, by_point = likelihood.get(size, (None, None))
        found[size] = AtSize(size, degenerate, told, fitted[size], by_draw, by_point)
    return found, passing.kept


class _Passing:
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
        parts: Parts,
        advance: Advance,
    ) -> None:
        self._banks, self._run, self._todo, self._model = banks, run, todo, model
        self._pipeline, self._scorer, self._parts, self._advance = pipeline, scorer, parts, advance
        self.rows = {
            size: (1, 1) if bank.samples == 1 else (draw_sets.samples, draw_sets.sets) for size, bank in banks.items()
        }
        """T and R by size."""
        self.kept = 0
        self._engine: Stochastic | None = None
        self._chunk = 0

    def fitted(self, validation: Points | None) -> dict[int, list[Any]]:
        """What is fitted to the validation points, in every draw set; or what was given."""
        reductions: dict[int, list[Any]] = {}
        if validation is not None:
            reductions = self._reductions(
                validation, VALIDATION, {size: [None] * r for size, (_, r) in self.rows.items()}
            )
            for block in self._blocks(validation):
                self._take(block, reductions)
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
        """The per-point scores (R, n) of one set at each size, and "differ": whether the passes of a draw set do."""

        def made(part: Points, blocks: Iterator[Tensor]) -> dict[int, dict[str, np.ndarray]]:
            reductions = self._reductions(part, name, fitted)
            for block in blocks:
                self._take(block, reductions)
            return {size: _of_reductions(of_size) for size, of_size in reductions.items()}

        found = list(self._parted(name, points, made))
        return {
            size: {key: np.concatenate([part[size][key] for part in found], axis=1) for key in found[0][size]}
            for size in self._banks
        }

    def likelihoods(self, training: Training) -> dict[int, tuple[np.ndarray, np.ndarray]]:
        """The log-likelihood of the training points at each size, by draw and by point."""

        def made(part: Points, blocks: Iterator[Tensor]) -> dict[int, dict[str, np.ndarray]]:
            found: dict[int, list[np.ndarray]] = {size: [] for size in self._banks}
            first = 0
            assert part.targets is not None
            for block in blocks:
                targets = part.targets[first : first + block.shape[1]]
                for size, own in self._by_size(block):
                    found[size].append(training.log_likelihood(own, targets).double().cpu().numpy())
                first += block.shape[1]
            joined = {size: np.concatenate(values, axis=1) for size, values in found.items()}
            return {size: {"draw": values.sum(1)[:, None], "point": values.mean(0)} for size, values in joined.items()}

        found = list(self._parted(TRAIN, training.points, made))
        return {
            size: (
                np.sum([part[size]["draw"][:, 0] for part in found], axis=0) / len(training.points),
                np.concatenate([part[size]["point"] for part in found]),
            )
            for size in self._banks
        }

    def _parted(
        self,
        name: str,
        points: Points,
        made: Callable[[Points, Iterator[Tensor]], dict[int, dict[str, np.ndarray]]],
    ) -> Iterator[dict[int, dict[str, np.ndarray]]]:
        """The parts of a set in order, those that are kept read and the others made."""
        firsts = range(0, len(points), PART)
        there = [all(self._parts.has(_part_name(size, name, first)) for size in self._banks) for first in firsts]
        for first, is_there in zip(firsts, there, strict=True):
            rows = np.arange(first, min(len(points), first + PART))
            kept = {size: self._parts.load(_part_name(size, name, first)) for size in self._banks} if is_there else {}
            whole = {size: one for size, one in kept.items() if one is not None}
            if len(whole) == len(self._banks):
                self.kept += 1
                self._advance(len(rows) * sum(bank.samples for bank in self._banks.values()))
                yield whole
                continue
            part = points.subset(rows)
            found = made(part, self._blocks(part))
            for size, arrays in found.items():
                self._parts.save(_part_name(size, name, first), arrays)
            yield found

    def _reductions(self, points: Points, name: str, fitted: Mapping[int, Sequence[Any]]) -> dict[int, list[Any]]:
        return {
            size: [
                self._scorer.reduction(
                    metrics.plain_weights(samples),
                    points,
                    fitted=fitted[size][r],
                    labelled=name in ("test", VALIDATION),
                )
                for r in range(sets)
            ]
            for size, (samples, sets) in self.rows.items()
        }

    def _take(self, block: Tensor, reductions: Mapping[int, Sequence[Any]]) -> None:
        for size, own in self._by_size(block):
            samples, _ = self.rows[size]
            for r, reduction in enumerate(reductions[size]):
                reduction.add(own[r * samples : (r + 1) * samples])

    def _by_size(self, block: Tensor) -> Iterator[tuple[int, Tensor]]:
        first = 0
        for size, bank in self._banks.items():
            yield size, block[first : first + bank.samples]
            first += bank.samples

    def _blocks(self, points: Points) -> Iterator[Tensor]:
        """The outputs (draws of all sizes, chunk, K) of some points of a set, chunk by chunk."""
        engine = self._ready(points)

        def load(rows: slice) -> Tensor:
            return self._pipeline.evaluated(points, rows)

        with ExitStack() as closing:
            feed = Ahead(load, len(points), closing) if self._pipeline.device.type == "cuda" else load
            for block in chunks(engine, len(points), feed, size=self._chunk, on_halved=self._halved):
                yield block
                self._advance(engine.samples * block.shape[1])

    def _halved(self, size: int) -> None:
        self._chunk = size

    def _ready(self, points: Points) -> Stochastic:
        """The engine of all sizes' draws, and how many points pass it together."""
        if self._engine is None:
            omega = reduce(BatchStatistics.joined, self._banks.values())
            self._engine = Stochastic(self._model, self._todo.sites, omega=omega, precision=self._run.precision)
            self._engine.prepare(self._pipeline.evaluated(points, slice(0, 64)))
            self._chunk = self._run.chunk_size or default_chunk(points.point_shape)
            free = memory.available(self._pipeline.device)
            if self._run.chunk_size is None and free is not None:
                while self._chunk > 1 and bytes_taken(self._engine, self._chunk, self._todo.outputs) > free / 2:
                    self._chunk //= 2
        return self._engine


def _part_name(size: int, name: str, first: int) -> str:
    return f"b{size}-{name}-{first}"


def _of_reductions(reductions: Sequence[Any]) -> dict[str, Float64[np.ndarray, "draw_set point"]]:
    """The per-point scores of every draw set, and whether its passes differ."""
    scores = [reduction.scores() for reduction in reductions]
    found = {name: np.stack([one.points[name] for one in scores]) for name in scores[0].points}
    differ = np.array([[float(reduction.passes_differ)] * scores[0].n for reduction in reductions])
    return found | {"differ": differ}


def classification_likelihood(outputs: Tensor, targets: np.ndarray) -> Tensor:
    """ln softmax of the labels' classes, (draw, n), in nats."""
    labels = torch.from_numpy(np.asarray(targets)).to(outputs.device)
    wide = outputs.cpu().double() if outputs.device.type == "mps" else outputs.double()
    return torch.as_tensor(metrics.log_likelihood(wide, labels.to(wide.device)))


def regression_likelihood(tau: float, *, mean: np.ndarray | float, std: np.ndarray | float) -> LogLikelihood:
    """The Gaussian log-likelihood of targets under outputs · std + mean with precision `tau`, (draw, n), in nats."""

    def log_likelihood(outputs: Tensor, targets: np.ndarray) -> Tensor:
        f = outputs.cpu().double() * torch.tensor(std) + torch.tensor(mean)
        return torch.as_tensor(metrics.gaussian_log_likelihood(f, torch.from_numpy(np.asarray(targets)), tau=tau))

    return log_likelihood
