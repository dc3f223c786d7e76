"""Counts of pixels: by class, by bin of confidence, and by distance from a class boundary."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from jaxtyping import Float, Int64, Num
from torch import Tensor

from bnuq import devices
from bnuq.records.evaluation import BAND, REACH

CONFIDENCE_BINS = 15  # of confidence


def counted(numbers: Int64[Tensor, "row pixel"], bins: int, values: Tensor | None = None) -> Num[Tensor, "row bin"]:
    """How often each of 0 … bins − 1 occurs in each row, or the sum of the values there."""
    rows = torch.arange(len(numbers), device=numbers.device)[:, None]
    weights = None if values is None else values.expand_as(numbers).flatten()
    return devices.counted((numbers + bins * rows).flatten(), bins * len(numbers), weights).view(-1, bins)


def confidence_bins(p: Float[Tensor, "*any"]) -> Int64[Tensor, "*any"]:
    return torch.bucketize(p, torch.arange(1, CONFIDENCE_BINS, device=p.device, dtype=torch.float64) / CONFIDENCE_BINS)


def class_bins(
    p: Float[Tensor, "replicate class pixel"], mask: Int64[Tensor, " pixel"]
) -> Float[Tensor, "replicate class 3 bin"]:
    flat = p.flatten(0, 1).contiguous()
    cells = confidence_bins(flat)
    true = (mask == torch.arange(p.shape[1], device=p.device)[:, None]).double().repeat(len(p), 1)
    sums = [
        counted(cells, CONFIDENCE_BINS),
        counted(cells, CONFIDENCE_BINS, flat),
        counted(cells, CONFIDENCE_BINS, true),
    ]
    return torch.stack([values.double() for values in sums], dim=1).view(len(p), p.shape[1], 3, CONFIDENCE_BINS)


def sums_by_distance(values: Mapping[str, Tensor], distance: Tensor, full: int) -> dict[str, Tensor]:
    """The sums over pixels near class boundaries and over those inside, under every replicate, and of all draws those
    at each whole distance."""
    known: dict[str, Tensor] = {name: values[name] for name in AT_BOUNDARIES if name in values}
    band = (distance > BAND).long().expand_as(values["predicted"])
    cell = distance.long()[None]
    sums = {f"band.{name}": counted(band, len(PLACES), value) for name, value in known.items()}
    sums["band.count"] = counted(band, len(PLACES))
    for name, value in (known | {"error_rate": values["error_rate"]}).items():
        sums[f"distance.{name}"] = counted(cell, REACH + 1, value[full : full + 1])
    return sums | {"distance.count": counted(cell, REACH + 1)}


AT_BOUNDARIES = ("mutual_information", "predictive_entropy")


PLACES = ("boundary", "interior")  # of pixels: up to BAND from a class boundary, and further away
