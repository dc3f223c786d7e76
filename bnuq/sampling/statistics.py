"""Draws ω: one joint draw of every BatchNorm's statistics per mini-batch (Monte Carlo Batch Normalization)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bnuq.errors import SamplingError, is_out_of_memory
from bnuq.methods import Variance
from bnuq.sampling import counter_rng
from bnuq.sampling.batch_statistics import BatchStatistics, LayerStatistics
from bnuq.sampling.deviation import Discrepancy
from bnuq.sampling.digests import fingerprint
from bnuq.sampling.dropout import check_seed
from bnuq.sampling.exactness import check_exact, check_finite
from bnuq.sampling.inputs import Data, tensor_of
from bnuq.sampling.interception import fed, forward, undisturbed
from bnuq.sampling.measure import Measurement, MeasurementMode, MeasurementProgram
from bnuq.sampling.noise import Learned, Noise
from bnuq.sampling.plain_loop import SamplePass
from bnuq.sampling.planning import plan
from bnuq.sampling.recorded_calls import OtherCallsError, other_calls
from bnuq.sampling.recording import record
from bnuq.sampling.site_search import find_sites, listed, warn_of_unsampled
from bnuq.sampling.sites import BatchNormSite, Sites, select_layers
from bnuq.sampling.trace import NotTraceableError, checked_rows, on_other_inputs, other_inputs, uneven_parts

Plans = dict[tuple[object, ...], tuple[MeasurementProgram | None, set[int]]]
"""Compiled plans of one network, by the selection of layers and the points of a mini-batch, None where none agrees with
it; and the sizes of mini-batches that each was compared on: it may hold for few points and not for more."""


def draw(
    model: nn.Module,
    train_images: Data,
    *,
    samples: int = 64,
    batch_size: int = 128,
    seed: int = 0,
    layers: str | Sequence[str] = "all",
    variance: Variance = "biased",
    learned: Learned | None = None,
) -> BatchStatistics:
    """T joint draws of ω from random mini-batches of `train_images` (N, *input), preprocessed as for training; of a
    DataLoader or a Dataset, its inputs.

    A mini-batch is drawn without replacement, independently of the others. Draw t depends only on (seed, t), and a
    smaller mini-batch is the beginning of a larger one. `variance` "unbiased" divides by n − 1, unlike training. The
    model is not modified. With `learned`, mini-batch t passes through the network with its own noise of draw t, for
    samples that combine both.

    Raises SamplingError where there is no BatchNorm to sample, the batch exceeds N, or a layer would see fewer than two
    values per channel. Source: Teye et al. 2018, Algorithm 1.
    """
    images = tensor_of(train_images)
    check_batch_size(batch_size, len(images))
    check_seed(seed)
    if samples < 1:
        raise SamplingError(f"samples is {samples}; expected a whole number of at least 1.")
    rows_of = partial(counter_rng.batch_indices, population=len(images), batch_size=batch_size)
    indices = np.stack([rows_of(seed, t) for t in range(samples)])
    batches = (images[torch.from_numpy(rows)] for rows in indices)
    omega = statistics_of(model, batches, layers=layers, variance=variance, learned=learned)
    return replace(omega, seed=seed, indices=indices)


def check_batch_size(batch_size: int, population: int, *, least: int = 1, option: str = "batch_size") -> None:
    """Raise SamplingError unless a mini-batch of this size, set by `option`, can be drawn without replacement."""
    if not least <= batch_size <= population:
        raise SamplingError(
            f"{option} is {batch_size}; expected {least} to {population}, the number of training examples: "
            "mini-batches are drawn without replacement."
            + " Drawn with replacement (--replacement) they may be larger."
            * option.startswith("--")
        )


def statistics_of(
    model: nn.Module,
    batches: Tensor | np.ndarray | Iterable[Tensor | np.ndarray],
    *,
    layers: str | Sequence[str] | Sequence[BatchNormSite] = "all",
    variance: Variance = "biased",
    on_draw: Callable[[], object] | None = None,
    memory_limit: int | None = None,
    learned: Learned | None = None,
    plans: Plans | None = None,
) -> BatchStatistics:
    """ω of given mini-batches: a (T, b, *input) tensor or an iterable of (b, *input) mini-batches.

    Each mini-batch goes through the network once. Every selected layer normalises it by its mean and variance, so that
    deeper layers get the same inputs as in training. The other layers use their running statistics. The variance is
    biased, as in training, or "unbiased": n/(n − 1) times that, both in ω and in the normalisation. `layers` may also
    be the sites themselves; `on_draw` is called after each mini-batch. A mini-batch that would take more than
    `memory_limit` bytes is refused with the size that fits. Noise that the network draws is replaced by its mean, or,
    with `learned`, is that of the draw: the statistics of other weights than those of a sample would not normalise it.
    `plans`, an empty dict at first, spares further calls on the same network the compilation.
    """
    iterator = iter(batches)
    try:
        first = next(iterator)
    except StopIteration:
        raise SamplingError("there are no mini-batches to compute statistics of; expected at least one.") from None
    sites = _stochastic_sites(model, fed(model, first), layers)
    draws: list[Measurement] = []
    with undisturbed(model):  # once for all draws: each entry saves the network's buffers
        noise = None if learned is None else _NoiseOfDraws(find_sites(model, fed(model, first)), Noise(learned))
        measure = _measure(model, sites, fed(model, first), variance, memory_limit, noise, plans)
        for batch in chain([first], iterator):
            draws.append(_measured(measure, fed(model, batch)))
            if noise is not None:
                noise.draw += 1
            if on_draw is not None:
                on_draw()
    measured = tuple(
        LayerStatistics(
            name=site.name,
            eps=site.eps,
            mean=_array([measurement[site.key][0] for measurement in draws]),
            var=_array([measurement[site.key][1] for measurement in draws]),
            count=np.array([measurement[site.key][2] for measurement in draws], dtype=np.int64),
        )
        for site in sites
    )
    for layer in measured:
        if not (np.isfinite(layer.mean).all() and np.isfinite(layer.var).all()):
            raise SamplingError(
                f"layer {layer.name}: the statistics of a mini-batch are not finite; check the network's weights, "
                "and the training set for NaN or inf."
            )
    return BatchStatistics(measured, fingerprint(model), batch_size=len(first), variance=variance)


def _measured(measure: Callable[[Tensor], Measurement], batch: Tensor) -> Measurement:
    """The statistics of a batch; SamplingError where memory runs out, with the size that fits."""
    with suppress(_ExhaustedError):
        return _or_exhausted(measure, batch)
    # Outside the `with` block nothing refers to the failed batch's tensors any more.
    raise too_large(len(batch), _largest_that_fits(measure, batch))


def too_large(batch_size: int, fits: int) -> SamplingError:
    """The error for a mini-batch that exceeds memory, of which `fits` points would fit."""
    advice = f"about {fits} fit: use --batch-size {fits}" if fits >= 2 else "nor do 2 examples: use a larger machine"
    return SamplingError(
        f"a mini-batch of {batch_size} examples does not fit into memory, and cannot be cut into chunks; {advice}."
    )


class _ExhaustedError(Exception):
    """Memory ran out."""


def _or_exhausted(measure: Callable[[Tensor], Measurement], batch: Tensor) -> Measurement:
    try:
        return measure(batch)
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
    raise _ExhaustedError


def _largest_that_fits(measure: Callable[[Tensor], Measurement], batch: Tensor) -> int:
    """The largest mini-batch that fits, found by halving and then growing by eighths; 0 where two points do not fit."""

    def fits(size: int) -> bool:
        try:
            _or_exhausted(measure, batch[:size])
        except _ExhaustedError:
            return False
        return True

    size = len(batch) // 2
    while size >= 2 and not fits(size):
        size //= 2
    if size < 2:
        return 0
    step = max(1, size // 8)
    while size + step < len(batch) and fits(size + step):
        size += step
    return size


def _array(draws: Sequence[Tensor]) -> np.ndarray:
    stacked = torch.stack(list(draws)).cpu()
    return (stacked.float() if stacked.dtype is torch.bfloat16 else stacked).numpy()  # numpy has no bfloat16


def _stochastic_sites(model: nn.Module, batch: Tensor, layers: Any) -> tuple[BatchNormSite, ...]:
    if not isinstance(layers, str) and len(layers) and isinstance(layers[0], BatchNormSite):
        return tuple(layers)
    return exact_sites(model, batch, layers)


def exact_sites(model: nn.Module, batch: Tensor, layers: str | Sequence[str] = "all") -> tuple[BatchNormSite, ...]:
    """The BatchNorms that `layers` selects, after checking on `batch`, a real mini-batch, that sampling them is exact.

    A UserWarning, at the caller's line and once per network, names each layer that is random or batch-dependent in
    training but is not sampled. Raises SamplingError where there is no BatchNorm to sample.
    """
    sites = find_sites(model, batch)
    if not sites.live_batchnorms:
        reasons = [(site.name, site.reason) for site in sites.batchnorms[:1]]
        reasons = reasons or [*sites.left_out(check_exact(model, sites, batch, ()).fixed)]
        cause = f" ({named})" if (named := listed(reasons)) else ""
        raise SamplingError(
            f"the network has no BatchNorm layer that could be sampled{cause}; MCBN needs at least one."
        )
    selected = select_layers(sites.live_batchnorms, layers)
    warn_of_unsampled(model, sites.left_out(check_exact(model, sites, batch, selected).fixed))
    check_finite(model, batch, sites, selected)
    return selected


def _measure(
    model: nn.Module,
    sites: Sequence[BatchNormSite],
    batch: Tensor,
    variance: Variance = "biased",
    memory_limit: int | None = None,
    noise: _NoiseOfDraws | None = None,
    plans: Plans | None = None,
) -> Callable[[Tensor], Measurement]:
    """The function that measures the statistics of a mini-batch: a compiled plan of the network's operations, or the
    network itself where no plan agrees with it. Both are compared on other inputs, a few points, and on the first
    mini-batch that has more than any before it."""
    if noise is not None:
        return lambda batch: _plainly(model, sites, batch, variance, noise)
    layers = tuple(site.key for site in sites)
    plans, key = {} if plans is None else plans, (layers, batch.shape[1:], batch.dtype, variance)
    if key not in plans:
        few = batch[: checked_rows(batch)]
        plans[key] = _compiled(model, sites, few, variance) if len(batch) > 1 else None, set()
    program, verified = plans[key]
    point_bytes = program.bytes_per_point if program is not None else 0
    if memory_limit is not None and point_bytes * len(batch) > memory_limit:
        raise too_large(len(batch), memory_limit // point_bytes)

    def measure(batch: Tensor) -> Measurement:
        nonlocal program
        if program is not None and checked_rows(batch) <= len(batch) <= max(verified, default=0):
            return program.statistics(batch)
        try:
            expected = _plainly(model, sites, batch, variance)
        except OtherCallsError:
            raise other_calls(model, sites, batch) from None
        if program is None:
            return expected
        try:
            with on_other_inputs():
                measurement = program.statistics(batch)
        except NotTraceableError:
            measurement = {}
        if not _agree(measurement, expected):
            program = None
            return expected
        verified.add(len(batch))
        return measurement

    return measure


@dataclass
class _NoiseOfDraws:
    """The noise of a network's own layers while a mini-batch passes: that of draw number `draw`."""

    sites: Sites
    noise: Noise
    draw: int = 0

    def mode(self) -> SamplePass:
        return SamplePass(self.sites, {}, None, self.noise, draw=self.draw, start=_REFERENCE)


_REFERENCE = 2**40  # the number of the first point of a mini-batch, whose noise of its own no evaluated point has


def _plainly(
    model: nn.Module,
    sites: Sequence[BatchNormSite],
    batch: Tensor,
    variance: Variance,
    noise: _NoiseOfDraws | None = None,
) -> Measurement:
    with MeasurementMode(sites, variance) as mode, nullcontext() if noise is None else noise.mode():
        forward(model, batch.clone())  # a network may write into its input
    return mode.measurement()


def _compiled(
    model: nn.Module, sites: Sequence[BatchNormSite], example: Tensor, variance: Variance
) -> MeasurementProgram | None:
    try:
        trace = record(model, Sites(tuple(sites), ()), example)
        sampled = {site.key for site in sites}
        normalisations = [operation for operation in trace.operations if operation.site is not None]
        schedule = plan(
            trace,
            sampled=lambda operation: isinstance(operation.site, BatchNormSite) and operation.site.key in sampled,
            goals=[number for operation in normalisations for number in operation.outputs],
        )
        inputs = other_inputs(example)
        with on_other_inputs():
            program = MeasurementProgram(schedule, sites, device=example.device, variance=variance)
            expected, measurement = (
                _plainly(model, sites, inputs, variance),
                program.statistics(inputs, tile=uneven_parts(len(inputs))),
            )
    except NotTraceableError:
        return None
    return program if _agree(measurement, expected) else None


def _agree(measurement: Measurement, expected: Measurement) -> bool:
    """Whether two measurements of the same statistics differ by no more than rounding."""
    if measurement.keys() != expected.keys():
        return False
    for key, (mean, var, count) in expected.items():
        tolerance, eps = 1e-7 if mean.dtype == torch.float64 else 1e-2, torch.finfo(mean.dtype).eps
        # A mean is compared by the deviation of its channel, and a variance by itself; what rounding of the inputs may
        # move them by follows from the size of the mean.
        deviation, size = var.sqrt(), mean.abs()
        of_mean = Discrepancy((measurement[key][0] - mean).abs(), deviation, size, eps)
        of_var = Discrepancy((measurement[key][1] - var).abs(), var, size * (deviation + eps * size), eps)
        if not (of_mean.is_within(tolerance) and of_var.is_within(tolerance)) or measurement[key][2] != count:
            return False
    return True
