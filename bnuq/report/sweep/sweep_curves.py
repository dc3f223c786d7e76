"""The curves of a sweep in characters, for a terminal."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import numpy as np

from bnuq.records.sweep import Sweep
from bnuq.report.document import Drawing
from bnuq.report.drawing import short
from bnuq.report.numbers import three_digits
from bnuq.report.sweep.sweep_lines import SweepLine, disagreement_name, disagreement_of, estimate_of, names_of

_ROWS = 9  # of the curves on a terminal
_MARKS = "ox+*#"  # of the sets in them
_BETWEEN = "·"  # the points of a curve


def curves_of(sweep: Sweep, line: SweepLine, columns: int) -> Iterator[Drawing]:
    """Mean disagreement against the size, both logarithmic; nothing for fewer than three sizes."""
    names = names_of(sweep, "test", "ood")[: len(_MARKS)]
    curves = {name: curve for name in names if len(curve := _positive(sweep, line, name)) > 2}
    sizes = sorted({size for curve in curves.values() for size in curve})
    if len({value for curve in curves.values() for value in curve.values()}) < 2:
        return
    rows, hidden = _rows(list(curves.values()), sizes, columns)
    keys = ", ".join(f"{mark} {short(name, 18)}" for mark, name in zip(_MARKS, curves, strict=False))
    first = "; where they coincide, the first is shown" if hidden else ""
    caption = f"Mean {disagreement_name(sweep)}, both axes logarithmic: {keys}{first}."
    yield Drawing(tuple(rows), caption, {_BETWEEN: "."})


def _rows(curves: list[Mapping[int, float]], sizes: list[int], columns: int) -> tuple[list[str], bool]:
    """The rows, axes included, and whether a mark hides another."""
    logs = [math.log(value) for curve in curves for value in curve.values()]
    low, high = min(logs), max(logs)
    levels = {0: high, _ROWS // 2: (low + high) / 2, _ROWS - 1: low}
    labels = {row: three_digits(math.exp(level)) for row, level in levels.items()}
    margin = 1 + max(map(len, labels.values()))
    width = min(64, columns - margin - 4)
    reach = math.log(sizes[-1] / sizes[0])

    def column(size: float) -> float:
        return math.log(size / sizes[0]) / reach * (width - 1)

    canvas = np.full((_ROWS, width), " ", dtype="<U1")
    places = {
        mark: (
            np.rint([(high - math.log(value)) / (high - low) * (_ROWS - 1) for value in curve.values()]).astype(int),
            np.rint([column(size) for size in curve]).astype(int),
        )
        for mark, curve in zip(_MARKS, curves, strict=False)
    }
    for rows, at in places.values():
        every = np.arange(at[0], at[-1] + 1)
        canvas[np.rint(np.interp(every, at, rows)).astype(int), every] = _BETWEEN
    hidden = False
    for mark, cells in reversed(places.items()):
        hidden = hidden or bool(np.isin(canvas[cells], list(_MARKS)).any())
        canvas[cells] = mark
    lines = [f"{labels.get(row, ''):>{margin}} |{''.join(text)}".rstrip() for row, text in enumerate(canvas)]
    ticks = [" "] * (width + 6)
    free = 0
    for size in sizes:
        text = f"{size:,}"
        start = max(0, round(column(size)) - (len(text) - 1) // 2)
        if start >= free and start + len(text) <= len(ticks):
            ticks[start : start + len(text)] = text
            free = start + len(text) + 1
    return [*lines, f"{'b':>{margin}}  {''.join(ticks)}"[:columns].rstrip()], hidden


def _positive(sweep: Sweep, line: SweepLine, name: str) -> dict[int, float]:
    """The mean disagreement of a set by size, if it has a logarithm."""
    estimates = {point.batch_size: estimate_of(point, disagreement_of(sweep), name) for point in line.random}
    return {
        size: estimate.value
        for size, estimate in estimates.items()
        if estimate is not None and 0 < estimate.value < math.inf
    }
