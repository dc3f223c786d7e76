"""Figure 4 of Shekhovtsov & Flach 2018 on a network of the user's: how BatchNorm's statistics are distributed."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bnuq.catalogue import advised, noted
from bnuq.config import Run
from bnuq.errors import ResultError
from bnuq.progress import Progress, silent
from bnuq.records.as_json import json_of
from bnuq.report.document import Cell, Paragraph, PathLine, Report, ReportSection, Table
from bnuq.report.numbers import and_error, count, number
from bnuq.studies.inspect import record as inspection
from bnuq.studies.inspect.compute import Settings, inspect
from bnuq.studies.inspect.findings import independence
from bnuq.studies.inspect.layer_tables import brief, noise_parts
from bnuq.studies.inspect.plots import noise_panels
from bnuq.studies.inspect.record import Inspection, NoiseBySize
from bnuq.studies.inspect.view import name_width

BATCH_SIZE, DRAWS, SIZE_DRAWS = 32, 256, 64
BEYOND = 8  # times the batch size, up to which its variance is measured


@dataclass(frozen=True)
class Published:
    """σ_U of the paper's network, layer by layer, in batches of `batch_size`; `positions` are those of convolutions
    without padding, which alone reach the 2 × 2 that the caption of its Fig. 4 gives for layer 6, counted from 0."""

    source: str
    batch_size: int
    sigma_u: tuple[float, ...]
    positions: tuple[int, ...]


PUBLISHED = Published(
    source="Shekhovtsov & Flach 2018, §3.1: nine convolutions on CIFAR-10, σ_U by layer",
    batch_size=32,
    sigma_u=(0.05, 0.03, 0.026, 0.023, 0.02, 0.026, 0.041, 0.045, 0.071),
    positions=(900, 784, 169, 121, 81, 16, 4, 4, 4),
)


def reproduce(
    run: Run, *, batch_size: int = BATCH_SIZE, draws: int = DRAWS, points: int = 10_000, progress: Progress = silent
) -> Inspection:
    """The noise of the network of `run` in mini-batches of its reference, written to `run.out` as an inspection.

    `draws` of `batch_size` give its distribution, and 64 each of five sizes up to 8 times that show how it falls.
    RequestError where there is no noise to measure, and what `inspect` raises.
    """
    size_draws = min(draws, SIZE_DRAWS)
    settings = Settings(points, draws, batch_size, BEYOND, size_draws, noise_only=True, needs_reference=True)
    return inspect(run, settings, progress=progress)


def read(path: Path) -> Inspection:
    """The inspection of the noise alone in the file at `path`; ResultError where that is not one."""
    record = inspection.read(path)
    settings = record.run.get("inspect")
    if record.noise is None or not isinstance(settings, dict) or not settings.get("noise_only"):
        raise ResultError(f"{path} is not a result of an experiment. Show it with: bnuq report {path}")
    return record


def summary(record: Inspection) -> dict[str, Any]:
    """The inspection's summary, and the published estimates beside it."""
    return {**json_of(record), "published": asdict(PUBLISHED)}


def report(record: Inspection, *, columns: int = 100) -> Report:
    """The report: the three panels in words, the noise of every layer, and the published network."""
    noise = record.noise
    assert noise is not None
    by_layer = tuple(noise_parts(noise, name=name_width(columns)))
    return Report(
        command="bnuq experiments bn-noise",
        version=record.provenance["bnuq"],
        subject=Path(record.model["path"]).name,
        facts=(
            ("model", f"{Path(record.model['path']).name}: {count(len(noise.layers), 'BatchNorm layer')}"),
            ("noise", f"{noise.draws} draws of mini-batches of {noise.batch_size:,}"),
            ("time", f"{record.seconds['total']:.1f} s"),
        ),
        summary=tuple(panels(noise)),
        sections=(
            ReportSection("The three panels", (noise_panels(record, noise, "bn-noise"),)),
            ReportSection("Noise of a batch, by layer", by_layer),
            ReportSection("The published network", (_published(), _beside_published(noise))),
        ),
        warnings=advised(record.findings),
        notes=noted(record.findings),
        path=None if record.path is None else PathLine(record.path),
    )


def panels(noise: NoiseBySize) -> Iterator[str]:
    """Each panel in a sentence or two."""
    known = [layer for layer in noise.layers if math.isfinite(layer.rejected)]
    if known:
        channels = sum(layer.channels for layer in known)
        rejected = sum(layer.rejected * layer.channels for layer in known) / channels
        fitted = sum(layer.rejected_fitted * layer.channels for layer in known) / channels
        yield (
            f"S² in proportion to χ² with n − 1 degrees of freedom is rejected in {100 * rejected:.0f} % of the "
            "channels (Kolmogorov–Smirnov, 5 % false discovery rate); χ² with the best-fitting degrees of each channel "
            f"in {100 * fitted:.0f} %."
        )
        yield from (each.text for each in independence(noise))
    slopes = [slope for layer in noise.layers if (slope := layer.slope) is not None and math.isfinite(slope.value)]
    if slopes:
        values = sorted(slope.value for slope in slopes)
        middle = f"{number(values[0], 2)} to {number(values[-1], 2)}, median {number(float(np.median(values)), 2)}"
        sizes = ", ".join(f"{size:,}" for size in noise.sizes)
        yield (
            f"Variance of the normalised value against the batch size ({sizes}): log-log slope "
            f"{and_error(slopes[0]) if len(slopes) == 1 else middle}; −1 is 1/b."
        )
    if noise.spatial_slope is not None and math.isfinite(noise.spatial_slope.value):
        yield (
            "Across layers, b times the variance scales with the number of positions to the power "
            f"{and_error(noise.spatial_slope)}; independent positions give −1."
        )


def _published() -> Table:
    layers = zip(PUBLISHED.sigma_u, PUBLISHED.positions, strict=True)
    rows = tuple((f"layer {place}", _cells(*layer)) for place, layer in enumerate(layers, start=1))
    return Table(("z", "σ_U", "nominal", "effective n", "of n"), rows, stacks=True)


def _cells(sigma_u: float, positions: int) -> tuple[Cell, ...]:
    nominal, effective = positions * PUBLISHED.batch_size, 1 / (2 * sigma_u**2)
    nominal_sigma_u = 1 / math.sqrt(2 * nominal)
    texts = (f"{positions:,}", brief(sigma_u), brief(nominal_sigma_u), f"{effective:,.0f}")
    return (*map(Cell, texts), Cell(f"{100 * effective / nominal:.1f} %"))


def _beside_published(noise: NoiseBySize) -> Paragraph:
    known = [layer.sigma_u for layer in noise.layers if math.isfinite(layer.sigma_u)]
    here = f" Here it is {brief(min(known))} to {brief(max(known))} at b = {noise.batch_size:,}." if known else ""
    return Paragraph(
        f"{PUBLISHED.source}, b = {PUBLISHED.batch_size}: {brief(min(PUBLISHED.sigma_u))} to "
        f"{brief(max(PUBLISHED.sigma_u))}.{here} nominal: σ_U of n = b·z independent Gaussian values, 1/√(2n); "
        "effective n: as many as would have this σ_U, 1/(2σ_U²), also as a share of n. z is that of unpadded "
        "convolutions: the caption of Fig. 4 has 2 × 2 in layer 6, counted from 0.",
        dim=True,
    )
