"""MCBN per query: every evaluated point is computed together with a mini-batch, in the same forward."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from bnuq.config import Variance
from bnuq.errors import SamplingError
from bnuq.sampling.interception import BatchNormCall, Mode, forward, stochastic_call, undisturbed
from bnuq.sampling.measure import check_count, with_divisor
from bnuq.sampling.moments import moments
from bnuq.sampling.plain_loop import tensor_output
from bnuq.sampling.sites import BatchNormCalls, BatchNormSite

Batch = Callable[[int, int], Tensor]  # (draw, number of the evaluated point) → reference points, ready for the network


class PerQuery:
    """One forward for every draw and point: the reference points that `batch` returns, followed by the point.

    Every layer of `layers` normalises all these rows by the statistics of the reference points, or, with
    `query_counts`, of all rows; the other layers run as in evaluation mode. With `shared`, all points use the same
    mini-batch of a draw, and `batch` is called for point 0. Outputs depend only on the numbers of draw and point.

    Raises SamplingError where the rows of a BatchNorm are not the points. Source: Teye et al. 2018. In the released
    code, the CIFAR-10 network has a fresh mini-batch for every point and sample; in the SegNet network the mini-batch
    also contains the point.
    """

    def __init__(
        self,
        model: nn.Module,
        layers: Sequence[BatchNormSite],
        *,
        draws: range,
        batch: Batch,
        shared: bool,
        query_counts: bool,
        variance: Variance = "biased",
    ) -> None:
        self.samples = len(draws)
        self._model, self._layers, self._draws, self._batch = model, tuple(layers), draws, batch
        self._shared, self._query_counts = shared, query_counts
        self._variance: Variance = variance

    def passes(self, inputs: Tensor, start: int = 0) -> Tensor:
        """Raw outputs (T, n, …) for points number `start`, `start` + 1, … of their set."""
        with undisturbed(self._model):
            return torch.stack([torch.cat(list(self._outputs_of_draw(inputs, start, draw))) for draw in self._draws])

    def _outputs_of_draw(self, inputs: Tensor, start: int, draw: int) -> Any:
        shared = self._batch(draw, 0) if self._shared else None
        for i in range(len(inputs)):
            batch = self._batch(draw, start + i) if shared is None else shared
            rows = torch.cat([batch, inputs[i : i + 1].to(batch.dtype)])
            counted = len(rows) if self._query_counts else len(batch)
            with _InBatch(self._layers, rows=len(rows), counted=counted, variance=self._variance) as mode:
                output = tensor_output(forward(self._model, rows))
            mode.check_complete()
            if len(output) != len(rows):
                raise SamplingError(
                    f"the network returns shape {tuple(output.shape)} for {len(rows)} points; expected one row per "
                    "point."
                )
            yield output[-1:].clone()


class _InBatch(Mode):
    """Normalises each selected BatchNorm by the statistics of the first `counted` rows."""

    def __init__(self, sites: Sequence[BatchNormSite], *, rows: int, counted: int, variance: Variance) -> None:
        super().__init__()
        self._sampled = {site.key: site for site in sites}
        self._rows, self._counted = rows, counted
        self._variance: Variance = variance
        self._calls = BatchNormCalls(sites)
        self.check_complete = self._calls.check_complete

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        call = stochastic_call(func, args, kwargs or {})
        if not isinstance(call, BatchNormCall):
            return func(*args, **(kwargs or {}))
        site = self._sampled.get(self._calls.key(call))
        if site is None:
            return func(*args, **(kwargs or {}))
        if len(call.input) != self._rows:
            raise SamplingError(
                f"BatchNorm {site.name} gets {len(call.input)} rows for {self._rows} points, so the query's rows are "
                "not known; --per-query and --query-in-batch need a network whose rows are the points."
            )
        counting = call.input[: self._counted]
        count = counting.numel() // counting.shape[1]
        check_count(count, site, self._counted)
        mean, var = moments(counting)
        return call.normalized(mean, with_divisor(var, count, self._variance))
