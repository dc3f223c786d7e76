"""The report of `reproduce bn-noise`: the three panels of Shekhovtsov & Flach's Figure 4 in numbers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol, TextIO

import numpy as np

from bnuq.report.inspection.lines import brief
from bnuq.report.inspection.tables import noise_parts
from bnuq.report.inspection.words import of_independence, of_space, with_error
from bnuq.report.numbers import number
from bnuq.report.parts import GAP, Cell, Facts, Items, Paragraph, Part, PathLine, Table, columns_of, draw, title
from bnuq.results.inspection import Inspection, Noise
from bnuq.results.inspection import summary as inspection_summary


class Published(Protocol):
    """What the paper gives: σ_U by layer, of batches of `batch_size`, and the positions of its layers."""

    @property
    def source(self) -> str: ...
    @property
    def batch_size(self) -> int: ...
    @property
    def sigma_u(self) -> Sequence[float]: ...
    @property
    def positions(self) -> Sequence[int]: ...


def print_bn_noise(found: Inspection, published: Published, stream: TextIO, width: int | None = None) -> None:
    """Draw the report on `stream`."""
    columns = columns_of(stream, width)
    draw(report_parts(found, published, columns), stream, columns)


def summary(found: Inspection, published: Published) -> dict[str, Any]:
    """The inspection's summary, and the published figures beside it."""
    told = {
        "source": published.source,
        "batch_size": published.batch_size,
        "sigma_u": list(published.sigma_u),
        "positions": list(published.positions),
    }
    return {**inspection_summary(found), "published": told}


def report_parts(found: Inspection, published: Published, columns: int = 100) -> Iterator[Part]:
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
    yield from (GAP, title("The published network"), *_published(noise, published))
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
            f"n·S²/σ² against χ² with n − 1 degrees: rejected in {100 * rejected:.0f} % of the channels "
            f"(Kolmogorov–Smirnov, 5 % false discoveries); against χ² with the degrees that fit each channel best, in "
            f"{100 * fitted:.0f} %. {of_independence(noise)}"
        )
    slopes = [one.slope for one in noise.layers if one.slope is not None]
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
    space = of_space(noise)
    yield space or "Variance against the spatial size: all layers have the same number of positions, and no slope."


def _published(noise: Noise, published: Published) -> Iterator[Part]:
    yield Table(
        ("z", "σ_U", "by law", "values", "of n"),
        tuple(
            (f"layer {place}", _cells(sigma_u, positions * published.batch_size, positions))
            for place, (sigma_u, positions) in enumerate(
                zip(published.sigma_u, published.positions, strict=True), start=1
            )
        ),
        stacks=True,
    )
    ours = [one.sigma_u for one in noise.layers if math.isfinite(one.sigma_u)]
    beside = "" if not ours else f" Here it is {brief(min(ours))} to {brief(max(ours))} at b = {noise.batch_size:,}."
    yield Paragraph(
        f"{published.source}, b = {published.batch_size}: {brief(min(published.sigma_u))} to "
        f"{brief(max(published.sigma_u))}.{beside} by law: σ_U of n = b·z independent Gaussian values, 1/√(2n); "
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
