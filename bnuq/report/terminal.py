"""Says on a terminal which pictures were drawn."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

from bnuq.report.parts import GAP, Items, PathLine, columns_of, draw


def print_figures(paths: Sequence[Path], stream: TextIO, *, width: int | None = None) -> None:
    """Say on `stream` which pictures were drawn, and where they lie."""
    names = Items(tuple(path.name for path in paths))
    draw((GAP, PathLine(paths[0].parent, "Figures"), names), stream, columns_of(stream, width))
