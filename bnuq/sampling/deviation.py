"""How far outputs deviate from what was expected, and how far rounding alone explains."""

from __future__ import annotations

import torch
from torch import Tensor

from bnuq import devices

TOLERANCES = {torch.float64: 1e-9, torch.float32: 3e-4}  # of outputs relative to the largest: rounding alone
_COARSE = 0.05  # the same for networks that compute in half precision
_AT_ONCE = 2**22  # values that are compared at a time


def deviation(outputs: Tensor, expected: Tensor) -> float:
    """The largest difference relative to the largest expected value; infinite where shapes, or what is not finite,
    differ."""
    if outputs.shape != expected.shape:
        return float("inf")
    difference, largest = 0.0, torch.finfo(expected.dtype).tiny
    for output_part, expected_part in zip(
        *(tensor.flatten().split(_AT_ONCE) for tensor in (outputs, expected)), strict=True
    ):
        finite = expected_part.isfinite()
        if not torch.equal(finite, output_part.isfinite()) or not torch.equal(
            output_part.isnan(), expected_part.isnan()
        ):
            return float("inf")
        if bool(finite.any()):
            values = devices.in_float64(expected_part[finite])
            difference = max(difference, float((devices.in_float64(output_part[finite]) - values).abs().max()))
            largest = max(largest, float(values.abs().max()))
    return difference / largest


def tolerance(outputs: Tensor) -> float:
    return TOLERANCES.get(outputs.dtype, _COARSE)
