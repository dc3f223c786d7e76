"""A sweep's curves in rows of characters."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from bnuq.records.sweep import Sweep
from bnuq.report.drawing import short
from bnuq.report.sweep.lines import Line, brief, estimate_of, names_of, spread_name, spread_of

_ROWS = 9  # of the curves on a terminal
_MARKS = "ox+*#"  # of the sets in them


def curves_of(sweep: Sweep, line: Line, columns: int, between: str) -> Iterator[str]:
    """Mean spread against the size, both logarithmic, in rows of characters; nothing for fewer than three sizes."""
    curves = {
        name: one
        for name in names_of(sweep, "test", "ood")[: len(_MARKS)]
        if len(one := _positive(sweep, line, name)) > 2
    }
    if not curves:
        return
    sizes = sorted({size for one in curves.values() for size in one})
    ends = [math.log(value) for one in curves.values() for value in one.values()]
    low, high = min(ends), max(ends)
    if not (high > low and len(sizes) > 2):
        return
    labels = {
        0: brief(math.exp(high)), _ROWS // 2: brief(math.exp((low + high) / 2)), _ROWS - 1: brief(math.exp(low)),
    }  # fmt: skip
    margin = 1 + max(map(len, labels.values()))
    room = min(64, columns - margin - 4)
    reach = math.log(sizes[-1] / sizes[0])

    def column(size: float) -> float:
        return math.log(size / sizes[0]) / reach * (room - 1)

    canvas = np.full((_ROWS, room), " ", dtype="<U1")
    places = {
        mark: (
            np.rint([(high - math.log(value)) / (high - low) * (_ROWS - 1) for value in one.values()]).astype(int),
            np.rint([column(size) for size in one]).astype(int),
        )
        for mark, one in zip(_MARKS, curves.values(), strict=False)
    }
    for rows, at in places.values():
        every = np.arange(at[0], at[-1] + 1)
        canvas[np.rint(np.interp(every, at, rows)).astype(int), every] = between
    hidden = False
    for mark, where in reversed(places.items()):
        hidden = hidden or bool(np.isin(canvas[where], list(_MARKS)).any())
        canvas[where] = mark
    for row, text in enumerate(canvas):
        yield f"{labels.get(row, ''):>{margin}} |{''.join(text)}".rstrip()
    ticks = [" "] * (room + 6)
    free = 0
    for size in sizes:
        text = f"{size:,}"
        start = max(0, round(column(size)) - (len(text) - 1) // 2)
        if start >= free and start + len(text) <= len(ticks):
            ticks[start : start + len(text)] = text
            free = start + len(text) + 1
    yield f"{'b':>{margin}}  {''.join(ticks)}"[:columns].rstrip()
    keys = ", ".join(f"{mark} {short(name, 18)}" for mark, name in zip(_MARKS, curves, strict=False))
    first = "; where they coincide, the first is shown" if hidden else ""
    yield f"Mean {spread_name(sweep).removeprefix('the ')}, both axes logarithmic: {keys}{first}."


def _positive(sweep: Sweep, line: Line, name: str) -> dict[int, float]:
    """The mean spread of a set by size, where it is one and has a logarithm."""
    found = {point.batch_size: estimate_of(point, spread_of(sweep), name) for point in line.random}
    return {size: one.value for size, one in found.items() if one is not None and 0 < one.value < math.inf}
