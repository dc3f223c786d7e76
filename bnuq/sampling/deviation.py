"""How far outputs deviate from what was expected, and how far rounding alone, or the Monte Carlo error, explains."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from bnuq import devices, metrics
from bnuq.frozen import frozen
from bnuq.shapes import Float, Float64

TOLERANCES = {torch.float64: 1e-9, torch.float32: 3e-4}  # of outputs relative to the largest: rounding alone
_COARSE = 0.05  # the same for networks that compute in half precision
_AT_ONCE = 2**20  # values that are compared at a time
_MOST_ENTRIES = 2**24  # outputs of all draws on which another arithmetic is compared


def deviation(outputs: Tensor, expected: Tensor) -> float:
    """The largest difference relative to the largest expected value; infinite where shapes, or what is not finite,
    differ."""
    if outputs.shape != expected.shape:
        return float("inf")
    difference, largest = 0.0, torch.finfo(expected.dtype).tiny
    for output_part, expected_part in zip(
        *(tensor.flatten().split(_AT_ONCE) for tensor in (outputs, expected)), strict=True
    ):
        values, others = devices.in_float64(expected_part), devices.in_float64(output_part)
        peaks = (others - values).abs_().max(), values.abs().max()
        if not all(map(math.isfinite, map(float, peaks))):
            finite = values.isfinite()
            if not torch.equal(finite, others.isfinite()) or not torch.equal(others.isnan(), values.isnan()):
                return float("inf")
            if not bool(finite.any()):
                continue
            values, others = values[finite], others[finite]
            peaks = (others - values).abs_().max(), values.abs().max()
        difference, largest = max(difference, float(peaks[0])), max(largest, float(peaks[1]))
    return difference / largest


def tolerance(outputs: Tensor) -> float:
    return TOLERANCES.get(outputs.dtype, _COARSE)


@frozen
class Deviation:
    """The deviation of another arithmetic from the exact one, over some points and draws.

    `mean` and `largest` are of probabilities (softmax of the outputs; of a single output, the output itself).
    `uncertainty` is the relative deviation of the mean of `measure`, `uncertainty_error` its standard error over
    points, and `monte_carlo_error` the relative one of that mean over the draws; NaN where they are undefined.
    `of_mean_prediction` is the deviation of the means over the draws in units of their Monte Carlo errors (root mean
    squares over points and outputs).
    """

    measure: Literal["mutual information", "variance"]  # the latter of a single output
    mean: float
    largest: float
    points: int
    draws: int
    uncertainty: float
    uncertainty_error: float
    monte_carlo_error: float
    of_mean_prediction: float

    def is_below_monte_carlo_error(self, draws: int) -> bool:
        """Whether neither the uncertainty nor the mean prediction deviates by more than the Monte Carlo error of so
        many draws. False where that is not known."""
        shrinks = math.sqrt(self.draws / draws)
        return abs(self.uncertainty) <= shrinks * self.monte_carlo_error and self.of_mean_prediction <= shrinks


def deviation_of_samples(outputs: Tensor, exact: Tensor) -> Deviation:
    """How far raw outputs (T, n, K, …) are from the exact ones; of many, at evenly spaced positions or points."""
    values, expected = (_probabilities(_some_rows(tensor).cpu().double()) for tensor in (outputs, exact))
    difference = (values - expected).abs()
    spread, exact_spread = _uncertainty(values), _uncertainty(expected)
    total, count, draws = exact_spread.sum(), len(exact_spread), len(expected)
    ratio = spread.sum() / total
    error = (spread - ratio * exact_spread).square().sum().mul(count / (count - 1) if count > 1 else math.nan).sqrt()
    monte_carlo_error = of_mean_prediction = math.nan
    if draws > 1:
        monte_carlo_error = float(metrics.jackknife_error(_left_out(expected).numpy()) / (total / count))
        of_means = (values.mean(0) - expected.mean(0)).square().mean() / (expected.var(0) / draws).mean()
        of_mean_prediction = float(of_means.sqrt())
    return Deviation(
        measure="mutual information" if exact.shape[2] > 1 else "variance",
        mean=float(difference.mean()),
        largest=float(difference.max()),
        points=exact.shape[1],
        draws=draws,
        uncertainty=float(ratio - 1),
        uncertainty_error=float(error / total),
        monte_carlo_error=monte_carlo_error,
        of_mean_prediction=of_mean_prediction,
    )


def _some_rows(outputs: Tensor) -> Float[Tensor, "draw row output"]:
    """The outputs of every point and, if any, every position, or of some of them."""
    step = -(-outputs.numel() // _MOST_ENTRIES)
    if outputs.ndim == 3:
        return outputs[:, ::step]
    return outputs.flatten(3)[..., ::step].movedim(2, -1).flatten(1, 2)


def _probabilities(rows: Tensor) -> Tensor:
    return rows.softmax(2) if rows.shape[2] > 1 else rows


def _uncertainty(rows: Float64[Tensor, "draw row output"]) -> Float64[Tensor, " row"]:
    """The mutual information of every row; of a single output, the variance."""
    if rows.shape[2] == 1:
        return rows[..., 0].var(0, correction=0)
    return torch.as_tensor(metrics.mutual_information(rows))


def _left_out(rows: Float64[Tensor, "draw row output"]) -> Float64[Tensor, " draw"]:
    """The mean of `_uncertainty` without each of the draws."""
    total, others = rows.sum(0), len(rows) - 1
    if rows.shape[2] == 1:
        squares = rows.square().sum(0)
        return torch.stack([((squares - x.square()) / others - ((total - x) / others).square()).mean() for x in rows])
    entropies = torch.special.entr(rows).sum(2)
    of_all = entropies.sum(0)
    return torch.stack([
        (torch.special.entr((total - p).clamp_min(0) / others).sum(1) - (of_all - entropy) / others).mean()
        for p, entropy in zip(rows, entropies, strict=True)
    ])  # fmt: skip
