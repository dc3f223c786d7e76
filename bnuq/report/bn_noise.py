"""The report of `reproduce bn-noise`: the three panels of Shekhovtsov & Flach's Figure 4 in numbers."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from bnuq.report.document import (
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
from bnuq.report.inspection.lines import brief
from bnuq.report.inspection.tables import noise_parts
from bnuq.report.inspection.words import of_independence, of_space, with_error
from bnuq.report.numbers import number
from bnuq.report.remedies import advised
from bnuq.results.inspection import Inspection, Noise
from bnuq.results.inspection import summary as inspection_summary


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


def print_bn_noise(found: Inspection, stream: TextIO, width: int | None = None) -> None:
    """Draw the report on `stream`."""
    columns = columns_of(stream, width)
    draw(report_parts(found, columns), stream, columns)


def summary(found: Inspection) -> dict[str, Any]:
    """The inspection's summary, and the published figures beside it."""
    told = {
        "source": PUBLISHED.source,
        "batch_size": PUBLISHED.batch_size,
        "sigma_u": list(PUBLISHED.sigma_u),
        "positions": list(PUBLISHED.positions),
    }
    return {**inspection_summary(found), "published": told}


def report_parts(found: Inspection, columns: int = 100) -> Iterator[Part]:
    """What the report is made of, for so many columns."""
    noise = found.noise
    assert noise is not None
    name = max(12, min(44, columns // 2 - 4))
    yield title(f"bnuq reproduce bn-noise  {found.provenance['bnuq']}")
    yield Facts(
        (
            ("model", f"{Path(found.model['path']).name}: {len(noise.layers)} BatchNorm layers"),
            ("noise", f"{noise.draws} draws of mini-batches of {noise.batch_size:,}"),
            ("took", f"{found.seconds['total']:.1f} s"),
        )
    )
    yield from (GAP, title("The three panels"), Items(tuple(panels(noise))))
    yield from (GAP, title("Noise of a batch, by layer"), *noise_parts(noise, name=name))
    yield from (GAP, title("The published network"), *_published(noise))
    if found.cautions:
        yield from (GAP, title("Warnings", "bold yellow"), Advice(advised(found.cautions)))
    if found.notes:
        yield from (GAP, title("Notes"), Items(found.notes))
    if found.path is not None:
        yield from (GAP, PathLine(found.path))


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


def is_of_noise_alone(found: Inspection) -> bool:
    """Whether an inspection is that of `reproduce bn-noise`."""
    return bool(found.run.get("inspect", {}).get("noise_only"))
