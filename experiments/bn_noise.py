"""Figure 4 of Shekhovtsov & Flach 2018 on a network of the user's: the noise of BatchNorm's statistics and its law."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from bnuq.config import Run
from bnuq.errors import ResultError
from bnuq.progress import Progress, silent
from bnuq.records import inspection
from bnuq.records.inspection import Inspection, Noise
from bnuq.report.inspection.lines import brief
from bnuq.report.inspection.tables import noise_parts
from bnuq.report.inspection.words import of_independence, of_space, with_error
from bnuq.report.numbers import number
from bnuq.report.parts import (
    GAP,
    Advice,
    Cell,
    Facts,
    Items,
    Paragraph,
    Part,
    PathLine,
    Table,
    columns_of,
    draw,
    title,
)
from bnuq.report.remedies import advised, noted
from bnuq.workflows.inspect import Settings, inspect

BATCH_SIZE, DRAWS, SIZE_DRAWS = 32, 256, 64
BEYOND = 8  # times the batch size, up to which its variance is told


@dataclass(frozen=True)
class Published:
    """σ_U of the paper's network, layer by layer, in batches of `batch_size`; `positions` are not said there: those of
    its layers if none of them shrinks the picture but by its stride."""

    source: str
    batch_size: int
    sigma_u: tuple[float, ...]
    positions: tuple[int, ...]


PUBLISHED = Published(
    source="Shekhovtsov & Flach 2018, §3.1: nine convolutions on CIFAR-10, σ_U by layer",
    batch_size=32,
    sigma_u=(0.05, 0.03, 0.026, 0.023, 0.02, 0.026, 0.041, 0.045, 0.071),
    positions=(1024, 1024, 256, 256, 256, 64, 64, 64, 64),
)


def reproduce(
    run: Run, *, batch_size: int = BATCH_SIZE, draws: int = DRAWS, points: int = 10_000, progress: Progress = silent
) -> Inspection:
    """The noise of the network of `run` in mini-batches of its reference, written to `run.out` as an inspection.

    `draws` of `batch_size` tell the law, and 64 each of five sizes up to 8 times that how the noise falls. RequestError
    where there is no noise to measure, and what `inspect` raises.
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


def print_bn_noise(record: Inspection, stream: TextIO, width: int | None = None) -> None:
    """Draw the report on `stream`."""
    columns = columns_of(stream, width)
    draw(report_parts(record, columns), stream, columns)


def summary(record: Inspection) -> dict[str, Any]:
    """The inspection's summary, and the published estimates beside it."""
    return {**inspection.summary(record), "published": asdict(PUBLISHED)}


def report_parts(record: Inspection, columns: int = 100) -> Iterator[Part]:
    """What the report is made of, for so many columns."""
    noise = record.noise
    assert noise is not None
    name = max(12, min(44, columns // 2 - 4))
    yield title(f"bnuq experiments bn-noise  {record.provenance['bnuq']}")
    yield Facts(
        (
            ("model", f"{Path(record.model['path']).name}: {len(noise.layers)} BatchNorm layers"),
            ("noise", f"{noise.draws} draws of mini-batches of {noise.batch_size:,}"),
            ("took", f"{record.seconds['total']:.1f} s"),
        )
    )
    yield from (GAP, title("The three panels"), Items(tuple(panels(noise))))
    yield from (GAP, title("Noise of a batch, by layer"), *noise_parts(noise, name=name))
    yield from (GAP, title("The published network"), *_published(noise))
    if advice := advised(record.findings):
        yield from (GAP, title("Warnings", "bold yellow"), Advice(advice))
    if texts := noted(record.findings):
        yield from (GAP, title("Notes"), Items(texts))
    if record.path is not None:
        yield from (GAP, PathLine(record.path))


def panels(noise: Noise) -> Iterator[str]:
    """Each panel in a sentence or two."""
    known = [one for one in noise.layers if math.isfinite(one.rejected)]
    if known:
        rejected = sum(one.rejected * one.channels for one in known) / sum(one.channels for one in known)
        fitted = sum(one.rejected_fitted * one.channels for one in known) / sum(one.channels for one in known)
        yield (
            f"S² in proportion to χ² with n − 1 degrees: rejected in {100 * rejected:.0f} % of the channels "
            f"(Kolmogorov–Smirnov, 5 % false discoveries); to χ² with the degrees that fit each channel best, in "
            f"{100 * fitted:.0f} %. {of_independence(noise)}".rstrip()
        )
    slopes = [one.slope for one in noise.layers if one.slope is not None and math.isfinite(one.slope.value)]
    if slopes:
        values = sorted(slope.value for slope in slopes)
        middle = slopes[0] if len(slopes) == 1 else None
        told = (
            with_error(middle)
            if middle
            else f"{number(values[0], 2)} to {number(values[-1], 2)}, median {number(float(np.median(values)), 2)}"
        )
        sizes = ", ".join(f"{size:,}" for size in noise.sizes)
        yield f"Variance of the normalised value against the batch size ({sizes}): log-log slope {told}; −1 is 1/b."
    yield of_space(noise)


def _published(noise: Noise) -> Iterator[Part]:
    yield Table(
        ("z", "σ_U", "by law", "values", "of n"),
        tuple(
            (f"layer {place}", _cells(sigma_u, positions * PUBLISHED.batch_size, positions))
            for place, (sigma_u, positions) in enumerate(
                zip(PUBLISHED.sigma_u, PUBLISHED.positions, strict=True), start=1
            )
        ),
        stacks=True,
    )
    ours = [one.sigma_u for one in noise.layers if math.isfinite(one.sigma_u)]
    beside = "" if not ours else f" Here it is {brief(min(ours))} to {brief(max(ours))} at b = {noise.batch_size:,}."
    yield Paragraph(
        f"{PUBLISHED.source}, b = {PUBLISHED.batch_size}: {brief(min(PUBLISHED.sigma_u))} to "
        f"{brief(max(PUBLISHED.sigma_u))}.{beside} by law: σ_U of n = b·z independent Gaussian values, 1/√(2n); "
        "values: as many as would have the σ_U that was found, 1/(2σ_U²); of n: the share of n that they are. The "
        "paper does not say z; it is taken from its strides.",
        "dim",
    )


def _cells(sigma_u: float, nominal: int, positions: int) -> tuple[Cell, ...]:
    values = 1 / (2 * sigma_u**2)
    return (
        Cell(f"{positions:,}"),
        Cell(brief(sigma_u)),
        Cell(brief(1 / math.sqrt(2 * nominal))),
        Cell(f"{values:,.0f}"),
        Cell(f"{100 * values / nominal:.1f} %"),
    )
