"""The statistics of a whole population in place of running averages: what evaluation mode should normalise by.

Weights stay fixed, and dropout is off, as it is at prediction. Three estimators agree at the first BatchNorm and differ
behind it, because what reaches a deeper layer depends on how the layers below normalised: by the statistics of the very
mini-batch (population, mean_of_var), as in training, or by those of the population (full), as in evaluation mode.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor, nn

from bnuq.config import PopulationEstimator
from bnuq.data import Points
from bnuq.errors import SamplingError
from bnuq.evaluation.datasets import Pipeline
from bnuq.progress import Progress, silent
from bnuq.sampling import counter_rng
from bnuq.sampling.batch_statistics import BatchStatistics, LayerStatistics
from bnuq.sampling.interception import BatchNormCall, Mode, fed, forward, stochastic_call, tensors_in, undisturbed
from bnuq.sampling.moments import merged, moments
from bnuq.sampling.sites import BatchNormCalls, BatchNormSite, largest_batch, other_calls
from bnuq.sampling.statistics import exact_sites, statistics_of


@runtime_checkable
class Batches(Protocol):
    """Mini-batches (b, *input) that can be gone over more than once: a tensor (J, b, *input), a list, `Parted`."""

    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[Any]: ...


@dataclass(frozen=True)
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
    room: int | None = None,
) -> tuple[Population, ...]:
    """Population statistics of every stochastic BatchNorm (or of `sites`), in execution order and in float64.

    "population": mean Σn_j M_j/Σn_j and variance Σn_j(S²_j + M_j²)/Σn_j − mean² of mini-batches j that each normalise
    by their own statistics. "mean_of_var": the same mean, and the mean of the unbiased batch variances, weighted by
    n_j. "full": all points as one batch; where that takes more than `room` bytes, layer by layer, the layers below
    being at their population statistics, which is the same. The model is left as it was.

    `batches` that can be gone over only once are kept in memory.

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
        return _full(model, batches, sites, progress, room)
    with progress(f"Passing {len(batches)} mini-batches", len(batches)) as advance:
        omega = statistics_of(model, batches, layers=sites, on_draw=lambda: advance(1), room=room)
    pooled = [_wide(layer) for layer in omega.layers]
    found = [_only(layer) for layer in replace(omega, layers=tuple(pooled)).pooled().layers]
    if estimator == "population":
        return tuple(found)
    return tuple(replace(one, var=_mean_of_var(layer)) for one, layer in zip(found, pooled, strict=True))


def _wide(layer: LayerStatistics) -> LayerStatistics:
    return replace(layer, mean=layer.mean.astype(np.float64), var=layer.var.astype(np.float64))


def _only(layer: LayerStatistics) -> Population:
    return Population(layer.name, layer.mean[0], layer.var[0], int(layer.count[0]))


def _mean_of_var(layer: LayerStatistics) -> Float[np.ndarray, " channel"]:
    count = layer.count[:, None]
    return (count / count.sum() * (layer.var * count / (count - 1))).sum(0)


def _full(
    model: nn.Module, batches: Batches, sites: Sequence[BatchNormSite], progress: Progress, room: int | None
) -> tuple[Population, ...]:
    joint = _joint(model, batches, sites, progress, room)
    if joint is not None:
        return tuple(_only(_wide(layer)) for layer in joint.layers)
    first = fed(model, next(iter(batches)))
    found: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}
    populations = []
    title = f"Passing {len(batches)} parts up to each of {len(sites)} layers"
    with undisturbed(model), progress(title, len(batches) * len(sites)) as advance:
        if largest_batch(model, sites, first, len(first)) < len(first):
            raise other_calls(model, sites, first)
        for site in sites:
            parts = []
            for batch in batches:
                parts.append(_seen(model, site, found, fed(model, batch)))
                advance(1)
            count = sum(part[0] for part in parts)
            mean, var = merged(parts)
            if count < 2 or not bool(torch.isfinite(torch.stack([mean, var])).all()):
                raise SamplingError(
                    f"layer {site.name}: the statistics of its {count} values per channel are not finite; check the "
                    "network's weights, and the reference for NaN or inf."
                )
            found[site.key] = mean, var
            populations.append(Population(site.name, mean.numpy(), var.numpy(), count))
    return tuple(populations)


def _joint(
    model: nn.Module, batches: Batches, sites: Sequence[BatchNormSite], progress: Progress, room: int | None
) -> BatchStatistics | None:
    """All points as one batch; None where they do not fit into memory."""
    first = fed(model, next(iter(batches)))
    each = 2 * (
        first[0].numel() * first.element_size() + _bytes_held(model, first)
    )  # of a plan a little more, at times
    if room is not None and each * len(first) * len(batches) > room:
        return None
    with progress("Passing all points as one batch", 1) as advance:
        whole = torch.cat([fed(model, batch) for batch in batches])
        omega = statistics_of(model, [whole], layers=sites)
        advance(1)
    return omega


def _bytes_held(model: nn.Module, example: Tensor) -> int:
    """The most bytes that the tensors of a forward take at once, for one more point."""
    two, three = (torch.cat([example] * 3)[:count] for count in (2, 3))
    peaks = []
    with undisturbed(model):
        for few in (two, three):
            with _Held() as held:
                forward(model, few)
            peaks.append(held.peak)
    return max(0, peaks[1] - peaks[0])


class _Held(Mode):
    """Counts the bytes of all results that somebody still holds."""

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._holders: Counter[int] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in tensors_in(result):
            storage = tensor.untyped_storage()
            key, size = storage._cdata, storage.nbytes()
            if not self._holders[key]:
                self.now += size
                self.peak = max(self.peak, self.now)
            self._holders[key] += 1
            weakref.finalize(tensor, self._let_go, key, size).atexit = False
        return result

    def _let_go(self, key: int, size: int) -> None:
        self._holders[key] -= 1
        if not self._holders[key]:
            self.now -= size


def _seen(
    model: nn.Module, site: BatchNormSite, below: Mapping[tuple[int, int], tuple[Tensor, Tensor]], batch: Tensor
) -> tuple[int, Tensor, Tensor]:
    """Values a channel, their mean and biased variance in float64, of what reaches `site` when the layers below it
    normalise by these statistics."""
    with _UpTo(site, below) as mode:
        try:
            forward(model, batch.clone())  # a network may write into its input
        except Exception:
            if mode.seen is None:
                raise
    if mode.seen is None:
        raise SamplingError(
            f"layer {site.name} was not called for some of the points; bnuq needs a network whose path does not depend "
            "on its input."
        )
    return mode.seen


class _ReachedError(Exception):
    """The layer is reached: what lies behind it is of no account."""


class _UpTo(Mode):
    def __init__(self, site: BatchNormSite, below: Mapping[tuple[int, int], tuple[Tensor, Tensor]]) -> None:
        super().__init__()
        self.seen: tuple[int, Tensor, Tensor] | None = None
        self._site, self._below = site, below
        self._calls = BatchNormCalls([site])

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        call = stochastic_call(func, args, kwargs or {})
        if not isinstance(call, BatchNormCall):
            return func(*args, **(kwargs or {}))
        key = self._calls.key(call)
        if key == self._site.key:
            mean, var = moments(call.input)
            self.seen = call.input.numel() // call.input.shape[1], mean.cpu().double(), var.cpu().double()
            raise _ReachedError
        if key in self._below:
            mean, var = (values.to(call.input) for values in self._below[key])
            return call.normalized(mean, var)
        return func(*args, **(kwargs or {}))


@dataclass(frozen=True)
class Parted:
    """Mini-batches of a run's reference, through its training pipeline: the same whenever they are gone over.

    `rows` are the reference points of each.
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
        for number, rows in enumerate(self.rows):
            yield self.pipeline.trained(self.train, rows, draw=number, purpose=counter_rng.POPULATION_AUGMENT)


def parted(pipeline: Pipeline, train: Points, *, points: int, batch_size: int) -> Parted:
    """At most so many of the reference's points, without replacement and by the run's seed, in mini-batches of at most
    `batch_size`, as equal in size as can be: each point is in one of them. At least two points must be there."""
    chosen = counter_rng.batch_indices(
        pipeline.run.seed,
        0,
        population=len(train),
        batch_size=min(points, len(train)),
        purpose=counter_rng.POPULATION,
    )
    count = max(1, min(-(-len(chosen) // batch_size), len(chosen) // 2))
    return Parted(pipeline, train, tuple(np.array_split(chosen, count)))
