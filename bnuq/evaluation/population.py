"""Population statistics, for evaluation mode to use in place of running averages.

Weights stay fixed, and dropout is off, as it is at prediction. The three estimators agree at the first BatchNorm and
differ behind it, because the input of a deeper layer depends on how the layers below normalised: by the statistics of
the mini-batch (population, mean_of_var), as in training, or by those of the population (full), as in evaluation mode.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor, nn

from bnuq.config import PopulationEstimator
from bnuq.data import Points
from bnuq.errors import SamplingError
from bnuq.evaluation.pipeline import Pipeline
from bnuq.forms import strided_parts
from bnuq.frozen import frozen
from bnuq.progress import Progress, silent, stage
from bnuq.sampling import counter_rng
from bnuq.sampling.batch_statistics import BatchStatistics, LayerStatistics
from bnuq.sampling.interception import BatchNormCall, Mode, fed, forward, stochastic_call, tensors_in, undisturbed
from bnuq.sampling.measure import merged, moments
from bnuq.sampling.recorded_calls import BatchNormCalls, OtherCallsError, largest_batch, other_calls
from bnuq.sampling.sites import BatchNormSite
from bnuq.sampling.statistics import exact_sites, statistics_of
from bnuq.shapes import Float, Int64


@runtime_checkable
class Batches(Protocol):
    """Mini-batches (b, *input) that can be iterated more than once: a tensor (J, b, *input), a list,
    `ReferenceBatches`."""

    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[Any]: ...


@frozen
class Population:
    """Mean and variance of a layer's input, channel by channel, over `count` values each."""

    name: str
    mean: Float[np.ndarray, " channel"]
    var: Float[np.ndarray, " channel"]
    count: int


def population_statistics(
    model: nn.Module,
    batches: Batches | Iterable[Any],
    *,
    estimator: PopulationEstimator = "population",
    sites: Sequence[BatchNormSite] | None = None,
    progress: Progress = silent,
    memory_limit: int | None = None,
) -> tuple[Population, ...]:
    """Population statistics of every stochastic BatchNorm (or of `sites`), in execution order and in float64.

    "population": mean Σn_j M_j/Σn_j and variance Σn_j(S²_j + M_j²)/Σn_j − mean² of mini-batches j, each normalised by
    its own statistics. "mean_of_var": the same mean, and the mean of the unbiased batch variances, weighted by n_j.
    "full": all points as one batch; where that takes more than `memory_limit` bytes, layer by layer, with the layers
    below at their population statistics, which gives the same. The model is unchanged.

    `batches` that can be iterated only once are stored in memory.

    Raises SamplingError where there is no BatchNorm, or statistics are not finite.
    Source: Wu & Johnson 2021, Rethinking "Batch" in BatchNorm, §3 (population: fvcore's update_bn_stats); Ioffe &
    Szegedy 2015, Algorithm 2 (mean_of_var).
    """
    if not isinstance(batches, Batches):
        batches = list(batches)
    first = next(iter(batches), None)
    if first is None:
        raise SamplingError("there are no mini-batches to take statistics of; expected at least one.")
    if sites is None:
        sites = exact_sites(model, fed(model, first))
    if not sites:
        raise SamplingError("the network has no BatchNorm layer whose statistics depend on data.")
    if estimator == "full":
        try:
            return _full(model, batches, sites, progress, memory_limit)
        except OtherCallsError as error:
            raise SamplingError(
                "the network normalises slices of its batch, so no forward normalises all examples at once, which the "
                "estimator full needs. Use the estimator population (--estimator population)."
            ) from error
    with progress(f"Passing {len(batches)} mini-batches", len(batches)) as advance:
        omega = statistics_of(model, batches, layers=sites, on_draw=lambda: advance(1), memory_limit=memory_limit)
    pooled = [wide(layer) for layer in omega.layers]
    result = [_only(layer) for layer in replace(omega, layers=tuple(pooled)).pooled().layers]
    if estimator == "population":
        return tuple(result)
    counts = [layer.count[:, None] for layer in pooled]
    means = [(n / n.sum() * (layer.var * n / (n - 1))).sum(0) for layer, n in zip(pooled, counts, strict=True)]
    return tuple(replace(population, var=var) for population, var in zip(result, means, strict=True))


def wide(layer: LayerStatistics) -> LayerStatistics:
    """The layer's statistics in float64."""
    return replace(layer, mean=layer.mean.astype(np.float64), var=layer.var.astype(np.float64))


def _only(layer: LayerStatistics) -> Population:
    return Population(layer.name, layer.mean[0], layer.var[0], int(layer.count[0]))


def _full(
    model: nn.Module, batches: Batches, sites: Sequence[BatchNormSite], progress: Progress, memory_limit: int | None
) -> tuple[Population, ...]:
    if (joint := _joint(model, batches, sites, progress, memory_limit)) is not None:
        return tuple(_only(wide(layer)) for layer in joint.layers)
    first = fed(model, next(iter(batches)))
    below: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}
    populations = []
    title = f"Passing {len(batches)} parts up to each of {len(sites)} layers"
    with undisturbed(model), progress(title, len(batches) * len(sites)) as advance:
        if largest_batch(model, sites, first, len(first)) < len(first):
            raise other_calls(model, sites, first)
        for site in sites:
            parts = []
            for batch in batches:
                parts.append(_statistics_at(model, site, below, fed(model, batch)))
                advance(1)
            count = sum(part[0] for part in parts)
            mean, var = merged(parts)
            if count < 2 or not bool(torch.isfinite(torch.stack([mean, var])).all()):
                raise SamplingError(
                    f"layer {site.name}: the statistics of its {count} values per channel are not finite; check the "
                    "network's weights, and the training set for NaN or inf."
                )
            below[site.key] = mean, var
            populations.append(Population(site.name, mean.numpy(), var.numpy(), count))
    return tuple(populations)


def _joint(
    model: nn.Module, batches: Batches, sites: Sequence[BatchNormSite], progress: Progress, memory_limit: int | None
) -> BatchStatistics | None:
    """All points as one batch; None where they do not fit into memory."""
    first = fed(model, next(iter(batches)))
    bytes_per_point = 2 * (
        first[0].numel() * first.element_size() + _bytes_per_point(model, first)
    )  # a compiled plan may take a little more
    if memory_limit is not None and bytes_per_point * len(first) * len(batches) > memory_limit:
        return None
    with stage(progress, "Passing all examples as one batch"):
        inputs = torch.cat([fed(model, batch) for batch in batches])
        return statistics_of(model, [inputs], layers=sites)


def _bytes_per_point(model: nn.Module, example: Tensor) -> int:
    """The peak bytes of the tensors of a forward, per additional point."""
    two, three = (torch.cat([example] * 3)[:count] for count in (2, 3))
    peaks = []
    with undisturbed(model):
        for points in (two, three):
            with _PeakMemory() as memory:
                forward(model, points)
            peaks.append(memory.peak)
    return max(0, peaks[1] - peaks[0])


class _PeakMemory(Mode):
    """Counts the bytes of all results that are still referenced, and their peak."""

    def __init__(self) -> None:
        super().__init__()
        self.current = self.peak = 0
        self._references: Counter[int] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in tensors_in(result):
            storage = strided_parts(tensor)[-1].untyped_storage()  # of a sparse one the values
            key, size = storage._cdata, storage.nbytes()
            if not self._references[key]:
                self.current += size
                self.peak = max(self.peak, self.current)
            self._references[key] += 1
            weakref.finalize(tensor, self._release, key, size).atexit = False  # pyrefly: ignore - a property
        return result

    def _release(self, key: int, size: int) -> None:
        self._references[key] -= 1
        if not self._references[key]:
            self.current -= size


def _statistics_at(
    model: nn.Module, site: BatchNormSite, below: Mapping[tuple[int, int], tuple[Tensor, Tensor]], batch: Tensor
) -> tuple[int, Tensor, Tensor]:
    """Number of values per channel, their mean and biased variance in float64, of the input of `site` when the layers
    below normalise by these statistics."""
    with _StopAt(site, below) as mode:
        try:
            forward(model, batch.clone())  # a network may write into its input
        except Exception:
            if mode.statistics is None:
                raise
    if mode.statistics is None:
        raise SamplingError(
            f"layer {site.name} was not called for some examples; bnuq needs a network whose path does not depend on "
            "its input."
        )
    return mode.statistics


class _ReachedError(Exception):
    """Raised at the layer to stop the forward: later layers are not needed."""


class _StopAt(Mode):
    def __init__(self, site: BatchNormSite, below: Mapping[tuple[int, int], tuple[Tensor, Tensor]]) -> None:
        super().__init__()
        self.statistics: tuple[int, Tensor, Tensor] | None = None
        self._site, self._below = site, below
        self._calls = BatchNormCalls([site])

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        call = stochastic_call(func, args, kwargs or {})
        if not isinstance(call, BatchNormCall):
            return func(*args, **(kwargs or {}))
        key = self._calls.key(call)
        if key == self._site.key:
            mean, var = moments(call.input)
            self.statistics = call.input.numel() // call.input.shape[1], mean.cpu().double(), var.cpu().double()
            raise _ReachedError
        if key in self._below:
            mean, var = (values.to(call.input) for values in self._below[key])
            return call.normalized(mean, var)
        return func(*args, **(kwargs or {}))


@frozen
class ReferenceBatches:
    """Mini-batches of a run's reference, through its training pipeline: the same at every iteration.

    `rows` holds the reference rows of each mini-batch.
    """

    pipeline: Pipeline
    train: Points
    rows: tuple[Int64[np.ndarray, " _"], ...]

    @property
    def points(self) -> int:
        return sum(len(rows) for rows in self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[Tensor]:
        draws, purpose = range(len(self.rows)), counter_rng.POPULATION_AUGMENT
        return self.pipeline.batches(self.train, self.rows, draws=draws, purpose=purpose)


def reference_batches(pipeline: Pipeline, train: Points, *, points: int, batch_size: int) -> ReferenceBatches:
    """At most `points` of the reference points, without replacement and by the run's seed, in mini-batches of at most
    `batch_size`, as equal in size as possible: each point is in one mini-batch. The reference must hold at least two
    points."""
    chosen = counter_rng.batch_indices(
        pipeline.settings.seed,
        0,
        population=len(train),
        batch_size=min(points, len(train)),
        purpose=counter_rng.POPULATION,
    )
    count = max(1, min(-(-len(chosen) // batch_size), len(chosen) // 2))
    return ReferenceBatches(pipeline, train, tuple(np.array_split(chosen, count)))
