"""Mean and variance of a BatchNorm's input, and those of mini-batches: by running the network itself, or by a plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from bnuq import devices
from bnuq.errors import SamplingError
from bnuq.methods import Variance
from bnuq.sampling.interception import BatchNormCall, Mode, stochastic_call
from bnuq.sampling.program import Program, Step, StepContext, split_evenly
from bnuq.sampling.recorded_calls import BatchNormCalls
from bnuq.sampling.schedule import Level, Plan, peak_entries
from bnuq.sampling.sites import BatchNormSite
from bnuq.sampling.trace import Operation

Measurement = Mapping[tuple[int, int], tuple[Tensor, Tensor, int]]  # (address, occurrence) → mean, variance, values


class MeasurementProgram(Program):
    """The statistics of mini-batches by a plan: every BatchNorm of `sites` normalises by those of the mini-batch.

    The mini-batch is cut into tiles that stay in the cache and are synchronised at every BatchNorm.
    """

    def __init__(
        self, plan: Plan, sites: Sequence[BatchNormSite], *, device: torch.device, variance: Variance = "biased"
    ) -> None:
        super().__init__(plan, device=device)
        self._variance: Variance = variance
        self._sampled = {site.key for site in sites}

    def statistics(self, batch: Tensor, *, tile: int | tuple[int, ...] | None = None) -> Measurement:
        """Mean, variance and values per channel of every sampled BatchNorm, by address and occurrence."""
        parts_of_batch = split_evenly(batch, tile or self.tile)
        tiles = [self.fixed.copy() for _ in parts_of_batch]
        for rows, values in zip(parts_of_batch, tiles, strict=True):
            for number, value in self._chunk_level(rows, 0).items():
                values[number] = value
        programs = [self._steps(Level.SAMPLE, len(rows), 1) for rows in parts_of_batch]
        measurement = {}
        begin = 0
        context = StepContext(range(1), 0, {})
        for end, i in enumerate((*self.plan.at(Level.SAMPLE), None)):
            operation = None if i is None else self.plan.operations[i]
            if operation is not None and not self._is_measured(operation):
                continue
            parts = []
            for program, values in zip(programs, tiles, strict=True):
                for step in program[begin:end]:
                    step(values, context)
                if operation is not None:
                    x = values[operation.arguments[0].number]
                    parts.append((x.numel() // x.shape[1], *moments(x)))
            if operation is not None:
                assert isinstance(operation.site, BatchNormSite)
                count = sum(part[0] for part in parts)
                check_count(count, operation.site, len(batch))
                mean, var = merged(parts)
                var = with_divisor(var, count, self._variance)
                measurement[operation.site.key] = mean, var, count
                context = StepContext(range(1), 0, {}, (mean, var))
                begin = end
        return measurement

    @property
    def bytes_per_point(self) -> int:
        """The approximate bytes per point of a mini-batch, whose points are all in memory at once."""
        values, plan = self.plan.trace.values, self.plan
        entries = peak_entries(plan, Level.SAMPLE) + sum(values[n].entries_per_row for n in plan.boundary)
        return entries * values[plan.trace.input].dtype.itemsize

    def _is_measured(self, operation: Operation) -> bool:
        site = operation.site
        return isinstance(site, BatchNormSite) and site.key in self._sampled

    def _site_step(self, position: int, operation: Operation, rows: int, draws: int) -> Step | None:  # noqa: ARG002
        """A step that normalises by the statistics just measured."""
        if not self._is_measured(operation):
            return None
        source, result, site = operation.arguments[0].number, operation.outputs[0], operation.site
        assert isinstance(site, BatchNormSite)
        weight, bias = (None if ref is None else self.fixed[ref.number] for ref in operation.arguments[1:3])

        def compute(values: list[Any], context: StepContext) -> None:
            assert context.measured is not None
            mean, var = context.measured
            values[result] = torch.batch_norm(values[source], weight, bias, mean, var, False, 0.0, site.eps, False)

        return compute


class MeasurementMode(Mode):
    """Normalises each selected BatchNorm by the statistics of the mini-batch, and records them."""

    def __init__(self, sites: Sequence[BatchNormSite], variance: Variance = "biased") -> None:
        super().__init__()
        self._variance: Variance = variance
        self._sampled = {site.key: site for site in sites}
        self._calls = BatchNormCalls(sites)
        self._measurement: dict[tuple[int, int], tuple[Tensor, Tensor, int]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        call = stochastic_call(func, args, kwargs or {})
        if not isinstance(call, BatchNormCall):
            return func(*args, **(kwargs or {}))
        key = self._calls.key(call)
        if key not in self._sampled:
            return func(*args, **(kwargs or {}))
        count = call.input.numel() // call.input.shape[1]
        check_count(count, self._sampled[key], len(call.input))
        mean, var = moments(call.input)
        var = with_divisor(var, count, self._variance)
        self._measurement[key] = mean, var, count
        return call.normalized(mean, var)

    def measurement(self) -> Measurement:
        """The recorded statistics; OtherCallsError where the forward left out a call."""
        self._calls.check_complete()
        return self._measurement


def with_divisor(biased: Tensor, count: int, variance: Variance) -> Tensor:
    """The variance with the requested divisor, from a biased variance of `count` values."""
    return biased if variance == "biased" else biased * (count / (count - 1))


def check_count(count: int, site: BatchNormSite, points: int) -> None:
    """Raise SamplingError unless there are enough values for a variance."""
    if count < 2:
        raise SamplingError(
            f"layer {site.name} sees {count} value per channel in a mini-batch of {points}; a variance needs at least "
            "2: raise the batch size."
        )


_EVERY = 61  # rows, one of which is looked at first: a prime number, in step with no width of an image


def moments(values: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and biased variance of each channel (axis 1) over all other axes, accurate even where |mean| ≫ deviation;
    no gradient flows into them."""
    values = values.detach()
    rows = values.movedim(1, -1)
    if devices.is_host(values.device) and values.shape[2:].numel() > 1 and rows.is_contiguous():
        return _moments_of_rows(rows.reshape(-1, values.shape[1]))
    if values.shape[2:].numel() == 1:
        axes = [axis for axis in range(values.ndim) if axis != 1]
        var, mean = torch.var_mean(values.double(), dim=axes, correction=0)
        return mean.to(values.dtype), var.to(values.dtype)
    # torch's own kernel accumulates in double on a CPU (in channels_last it would not: mean off by 9 at mean 10⁴), and
    # on a GPU by Welford's algorithm
    return torch.batch_norm_update_stats(values.contiguous(), None, None, 0.0)


def _moments_of_rows(rows: Tensor) -> tuple[Tensor, Tensor]:
    """The moments of a table whose columns are channels, about the mean of a few rows: four times as fast as torch's
    kernel."""
    near = rows[::_EVERY].mean(0)  # not the mean, but much nearer to it than the values are
    centred = rows - near
    correction = centred.mean(0)
    return near + correction, centred.mul_(centred).mean(0) - correction * correction


def merged(parts: Sequence[tuple[int, Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """Mean and biased variance of all values, from (count, mean, biased variance) of their parts.

    Source: Chan, Golub & LeVeque 1983, Algorithms for computing the sample variance.
    """
    if len(parts) == 1:
        return parts[0][1:]
    means, variances = torch.stack([mean for _, mean, _ in parts]), torch.stack([var for _, _, var in parts])
    count = torch.tensor([count for count, _, _ in parts], dtype=means.dtype, device=means.device)[:, None]
    weight = count / count.sum()
    mean = means[0] + (weight * (means - means[0])).sum(0)
    return mean, (weight * (variances + (means - mean) ** 2)).sum(0)
