"""How long a request will take, estimated before anything is drawn from a small piece of each kind of work.

A plain forward of a few points gives an upper bound. Draws, samples and scoring are measured only where that bound is
above the limit.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from statistics import median
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bnuq import devices, metrics
from bnuq.config import ANALYTIC, AUGMENTED, ENSEMBLE, LAPLACE, PREDICTIONS, draws_by
from bnuq.data import Points
from bnuq.errors import is_out_of_memory
from bnuq.evaluation import memory
from bnuq.evaluation.augmentation import Augmented, augmenting
from bnuq.evaluation.draws import drawn, needs_bank, part_drawn
from bnuq.evaluation.estimates import RESAMPLES, detection_estimates, replicate_weights
from bnuq.evaluation.features import fitted_points
from bnuq.evaluation.noise_models import counts_of
from bnuq.evaluation.passes import fitting_chunk
from bnuq.evaluation.subject import VALIDATION, Subject, is_mcbn
from bnuq.metrics import DrawWeights
from bnuq.progress import Forecast
from bnuq.sampling import counter_rng
from bnuq.sampling.batch_statistics import BatchStatistics
from bnuq.sampling.dropout import Dropout
from bnuq.sampling.engine import Stochastic, chunks, default_chunk
from bnuq.sampling.noise import Learned
from bnuq.sampling.plain_loop import Evaluation

_DRAWS = 16  # draws of a first chunk, which show how long each further draw takes
_SCORED_POINTS = 64  # points that are scored to measure scoring
_SCORED_SAMPLES = 512  # samples of these points, at most; the time is extrapolated to more
_SEPARATED_POINTS = 500  # points of each of two sets that are separated to measure OOD separation
_SEPARATED_SAMPLES = 8, 24  # samples of these points; the difference shows how long a replicate takes
# Upper bounds in seconds: an output under one draw of one replicate; an output of one draw; ranking a point
_WEIGHED, _SCORED_ONCE, _RANKED = 2e-9, 1e-6, 1e-5
_RESAMPLED = 1000  # bootstrap resamples of points for the errors of an OOD set's estimates, at most
_SLOWER = 4  # how many times as long as a plain forward a draw or a sample takes, at most


@dataclass(frozen=True)
class _Request:
    """The amount of work."""

    mini_batches: Mapping[int, int]  # number by size
    points: int
    samples: int  # of every point, under each method
    methods: Sequence[str]
    draw_sets: int = 1  # whose samples are scored separately
    replicates: int = 1  # under which the samples of a draw set are scored
    weights: Callable[[int], DrawWeights] = metrics.plain_weights
    ood: Sequence[int] = ()  # points of each OOD set, under all methods
    ranked: int = 0  # replicates of the separation

    @property
    def drawn(self) -> int:
        """Points of all mini-batches."""
        return sum(size * number for size, number in self.mini_batches.items())

    @property
    def samples_per_score(self) -> int:
        return self.samples // self.draw_sets


@dataclass(frozen=True)
class _Seconds:
    draws: float
    samples: float
    scores: float

    @property
    def total(self) -> float:
        return self.draws + self.samples + self.scores

    def in_words(self) -> str:
        return ", ".join(f"{name} {100 * seconds / self.total:.0f} %" for name, seconds in vars(self).items())


def forecast(subject: Subject, *, limit: float) -> Forecast | None:
    """The forecast of an evaluation; None where it takes less than `limit` seconds."""
    run, todo, sets = subject.run, subject.todo, subject.sets
    if not todo.methods or todo.image:
        return None
    samples, bank = subject.max_samples, subject.bank
    noise_models = [method for method in todo.methods if method in ANALYTIC]
    has_recorded_draws = "mcbn-empirical" in noise_models or (
        noise_models and counts_of(run, subject.train) == "measured"
    )
    number = (bank or samples) * needs_bank(subject, stale=False) + run.sampler.law_draws * bool(has_recorded_draws)
    points = sum(map(len, sets.values()))
    request = _Request(
        mini_batches={todo.batch_size: number} if todo.batch_size is not None else {},
        points=points,
        samples=samples,
        methods=todo.methods,
        replicates=samples + RESAMPLES,
        weights=replicate_weights,
        ood=[len(points) for points in subject.compared.values()],
        ranked=(bank or samples) + RESAMPLES,
    )
    if (seconds := _measured(request, subject, limit=limit)) is None:
        return None
    prefix, option = ("up to ", "--max-samples") if run.samples == "auto" else ("", "--samples")
    options = [option, *(["--bank"] if bank else []), *(["--law-draws"] if has_recorded_draws else []), "--limit"]
    return Forecast(
        f"{prefix}{samples:,} samples of {points:,} points in {len(sets):,} sets by {', '.join(todo.methods)} "
        f"({seconds.in_words()})",
        seconds.total,
        f"lower {', '.join(options[:-1])} or {options[-1]}, or name fewer sets or methods (--method)",
    )


def forecast_of_sweep(
    subject: Subject, *, sizes: Sequence[int], samples: int, draw_sets: int, training_points: int, limit: float
) -> Forecast | None:
    """The forecast of a sweep of one network; None where it takes less than `limit` seconds, and of a segmentation."""
    if subject.todo.image:
        return None
    points = sum(map(len, subject.sets.values())) + training_points
    request = _Request(
        mini_batches=dict.fromkeys(sizes, samples * draw_sets),
        points=points,
        samples=samples * draw_sets * len(sizes),
        methods=("mcbn",),
        draw_sets=draw_sets * len(sizes),
    )
    if (seconds := _measured(request, subject, limit=limit)) is None:
        return None
    return Forecast(
        f"{draw_sets:,} draw sets of {samples:,} samples of {points:,} points at {len(sizes)} sizes "
        f"({seconds.in_words()})",
        seconds.total,
        "lower --samples, --draw-sets or --limit, or name fewer sets or --batch-sizes",
    )


def _measured(request: _Request, subject: Subject, *, limit: float) -> _Seconds | None:
    """The seconds that the request will take; None where they are below `limit`."""
    try:
        if _upper_bound(request, subject).total < limit:
            return None
        seconds = _extrapolated(request, subject)
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        return None  # the passes then halve their chunks, which is not forecast
    return seconds if seconds.total >= limit else None


def _upper_bound(request: _Request, subject: Subject) -> _Seconds:
    """The seconds that the request takes at most, by a plain forward of a few points."""
    seconds_per_point = _seconds_per_point(subject)
    methods, rows_per_point = len(request.methods), _rows_per_point(subject)
    outputs = request.points * methods * request.draw_sets * subject.todo.outputs * request.samples_per_score
    separated = (
        sum(len(subject.sets["test"]) + points for points in request.ood)
        * (request.ranked + _RESAMPLED)
        * (methods + 1)
    )
    return _Seconds(
        draws=_SLOWER * seconds_per_point * request.drawn,
        samples=_SLOWER * seconds_per_point * request.points * request.samples * methods * rows_per_point,
        scores=outputs * (_WEIGHED * request.replicates + _SCORED_ONCE) + _RANKED * separated,
    )


def _seconds_per_point(subject: Subject) -> float:
    """The seconds of a plain forward per point."""
    model, pipeline, test = subject.model, subject.pipeline, subject.sets["test"]
    rows = slice(0, min(len(test), _SCORED_POINTS))
    return _seconds(lambda: Evaluation(model).passes(pipeline.evaluated(test, rows)), pipeline.device) / rows.stop


def _rows_per_point(subject: Subject) -> int:
    """The rows that pass for each evaluated point: the point, and its mini-batch where queries pass with
    mini-batches."""
    by_query = subject.run.sampler.by_query and "mcbn" in subject.todo.methods
    return 1 + (subject.todo.batch_size or 0) * by_query


def _extrapolated(request: _Request, subject: Subject) -> _Seconds:
    """The seconds that the request takes, extrapolated from a few draws, a few samples of a first chunk by each method,
    and their scoring."""
    run, todo = subject.run, subject.todo
    size = max(request.mini_batches, default=2)
    omega, of_batch = (None, 0.0) if todo.batch_size is None else _draws(subject, size)
    samples = 0.0
    for method in request.methods:
        if method == PREDICTIONS:
            continue
        if method == ENSEMBLE:
            samples += request.points * (1 + len(subject.members)) * _seconds_per_point(subject)
            continue
        if method == "mcbn" and run.sampler.by_query:
            samples += request.points * request.samples * of_batch
            continue
        if method == "tta":
            samples += request.points * request.samples * _augmented(Evaluation(subject.model), subject)
            continue
        if method == LAPLACE:  # one pass, also of the reference
            samples += (request.points + len(fitted_points(subject))) * _seconds_per_point(subject)
            continue
        engine = Stochastic(
            subject.model,
            todo.sites,
            omega=omega if is_mcbn(method) else None,
            dropout=Dropout(_DRAWS, run.seed) if draws_by(method, "mcdo") else None,
            learned=Learned(_DRAWS, run.seed) if draws_by(method, "learned") else None,
            precision=run.precision,
        )
        once, per_sample = (0.0, _augmented(engine, subject)) if method in AUGMENTED else _samples(engine, subject)
        samples += request.points * (once + request.samples * per_sample)
    scores = len(request.methods) * request.points * request.draw_sets * _scores(request, subject)
    return _Seconds(request.drawn * of_batch / size, samples, scores + _separation(request, subject))


def _draws(subject: Subject, size: int) -> tuple[BatchStatistics, float]:
    """A few draws of ω, none of them used by the run, and the median seconds per draw."""
    ends: list[float] = []

    @contextmanager
    def clock(title: str, total: int) -> Iterator[Callable[[int], object]]:  # noqa: ARG001 - a Progress
        yield lambda _: ends.append(time.perf_counter())

    reference = part_drawn(subject) or subject.sets["test"]
    omega = drawn(
        subject.model,
        subject.pipeline,
        reference,
        range(_DRAWS),
        min(size, len(reference)),
        subject.todo.layers,
        (counter_rng.CHECK, counter_rng.CHECK_AUGMENT),
        clock,
        "Estimating the time",
    )
    return omega, median(after - before for before, after in pairwise(ends))


def _samples(engine: Stochastic, subject: Subject) -> tuple[float, float]:
    """Seconds per point: once, including loading, and for each sample."""
    run, pipeline, points = subject.run, subject.pipeline, subject.sets["test"]

    def load(rows: slice) -> Tensor:
        return pipeline.evaluated(points, rows)

    size = min(len(points), run.chunk_size or default_chunk(points.point_shape, pipeline.device))
    engine.prepare(load(slice(0, min(len(points), _SCORED_POINTS))), free=memory.available(pipeline.device))
    if run.chunk_size is None:
        size = fitting_chunk([engine], subject.todo.outputs, size, pipeline.device)
    points_passed = next(chunks(engine, len(points), load, size=size)).shape[1]
    one_draw, all_draws = (
        _seconds(lambda draws=draws: engine.passes(load(slice(0, points_passed)), 0, draws), pipeline.device)
        / points_passed
        for draws in (range(1), range(_DRAWS))
    )
    # A single draw may take as long as all of them: then the difference says nothing, and the second bound applies.
    per_sample = max((all_draws - one_draw) / (_DRAWS - 1), all_draws / (2 * _DRAWS))
    return max(0.0, one_draw - per_sample), per_sample


def _augmented(engine: Evaluation | Stochastic, subject: Subject) -> float:
    """Seconds per point and sample of test-time augmentation."""
    points = _first(subject.sets["test"], _SCORED_POINTS)
    sampling = Augmented(engine, 1, 0, augmenting(subject), points)
    return _seconds(lambda: sampling.passes(torch.arange(len(points))), subject.pipeline.device) / len(points)


def _scores(request: _Request, subject: Subject) -> float:
    """Seconds to score the samples of one point, for one method and one draw set."""
    samples = min(request.samples_per_score, _SCORED_SAMPLES)
    weights = request.weights(samples)
    first_points = {name: _first(points, _SCORED_POINTS) for name, points in subject.labelled.items()}
    blocks = {name: _random_outputs(subject, samples, len(points)) for name, points in first_points.items()}

    def score() -> None:
        fitted = None
        for name, points in first_points.items():
            scored = _scored(subject, weights, points, blocks[name], fitted=fitted, labelled=True)
            fitted = subject.scorer.fitted(scored, weights) if name == VALIDATION else fitted

    seconds = _seconds(score, subject.pipeline.device) / sum(map(len, first_points.values()))
    return seconds * request.replicates / len(weights.weights) * request.samples_per_score / samples


def _separation(request: _Request, subject: Subject) -> float:
    """Seconds to separate every OOD set from the test set, under all methods."""
    if not request.ood:
        return 0.0
    first_ood = next(iter(subject.compared.values()))
    test, first = (_first(points, _SEPARATED_POINTS) for points in (subject.sets["test"], first_ood))
    seconds = []
    for samples in _SEPARATED_SAMPLES:
        weights = replicate_weights(samples)
        inside, outside = (
            _scored(
                subject, weights, points, _random_outputs(subject, samples, len(points)), fitted=None, labelled=False
            )
            for points in (test, first)
        )
        seconds.append(_seconds(partial(detection_estimates, inside, outside, weights), times=1))
    replicate = max(0.0, seconds[1] - seconds[0]) / (_SEPARATED_SAMPLES[1] - _SEPARATED_SAMPLES[0])
    plain = seconds[0] - replicate * (_SEPARATED_SAMPLES[0] + RESAMPLES)
    pairs = sum(len(subject.sets["test"]) + points for points in request.ood) / (len(test) + len(first))
    methods = len(request.methods)
    return pairs * ((methods + 1) * max(0.0, plain) + methods * request.ranked * replicate)


def _scored(
    subject: Subject, weights: DrawWeights, points: Points, block: Tensor, *, fitted: Any, labelled: bool
) -> Any:
    reduction = subject.scorer.reduction(weights, points, fitted=fitted, labelled=labelled)
    reduction.add(block)
    return reduction.scores(group=points.group)


def _random_outputs(subject: Subject, samples: int, points: int) -> Tensor:
    """Random outputs: the time of scoring does not depend on their values."""
    outputs = np.random.default_rng(0).standard_normal((samples, points, subject.todo.outputs), dtype=np.float32)
    return torch.from_numpy(outputs).to(subject.pipeline.device)


def _first(points: Points, number: int) -> Points:
    return points.subset(np.arange(min(len(points), number)))


def _seconds(work: Callable[[], object], device: torch.device | None = None, *, times: int = 2) -> float:
    """The seconds of the last of `times` runs; the first runs with cold caches."""
    seconds = 0.0
    for _ in range(times):
        before = time.perf_counter()
        work()
        if device is not None:
            devices.synchronize(device)
        seconds = time.perf_counter() - before
    return seconds
