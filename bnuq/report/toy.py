"""The toy regression on a terminal, its curves in block characters, and as a picture."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import numpy as np

from bnuq.report import drawing
from bnuq.report.document import (
    GAP,
    Cell,
    Drawing,
    Facts,
    Items,
    Paragraph,
    Part,
    PathLine,
    Row,
    Table,
    cleaner,
    columns_of,
    draw,
    title,
)
from bnuq.results.toy import COMMAND, Curve, Toy

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SOURCE = "A toy regression in the manner of Figure 1 of Teye, Azizpour & Smith 2018; the data are bnuq's own"
_ROWS = 11  # of a curve on a terminal
_ROOM = 1.5  # half the y axis, in sizes of the farthest point of data or true curve

_SCORES = (
    ("↓ RMSE", "rmse", 4),
    ("↓ RMSE as it is", "rmse_deterministic", 4),
    ("↓ CRPS", "crps", 4),
    ("↑ PLL", "pll", 3),
    ("↑ CRPS, normalised %", "normalized_crps", 1),
    ("↑ PLL, normalised %", "normalized_pll", 1),
    ("  in the 50 % band", "coverage50", 3),
    ("  in the 95 % band", "coverage95", 3),
)
_PLACES = {"inside": "among the data", "gap": "in the gap", "outside": "outside"}


def print_toy(toy: Toy, stream: TextIO, *, width: int | None = None) -> None:
    """Draw the report on `stream`: in colour on a terminal, plain in a pipe, in ASCII where the encoding needs it."""
    columns = columns_of(stream, width)
    blocks = cleaner(getattr(stream, "encoding", None) or "utf-8")("█") == "█"
    draw(report_parts(toy, columns, "░▒█·▔" if blocks else ".:#o="), stream, columns)


def report_parts(toy: Toy, columns: int = 100, marks: str = "░▒█·▔") -> Iterator[Part]:
    """What the report is made of; `marks` are those of a curve in characters."""
    made = toy.experiment
    near, far = made["data"]
    yield title(f"bnuq {COMMAND}  {toy.provenance.get('bnuq', '')}")
    yield Paragraph(f"{SOURCE}.")
    yield Facts(
        (
            ("data", f"{made['formula']} of sd {made['noise']}; x in {_clusters(near, far)}"),
            ("points", ", ".join(f"{n} {kind.replace('_', ' ')}" for kind, n in made["points"].items())),
            ("network", f"{'-'.join(map(str, made['layers']))} units, ReLU, {made['steps']} steps; one of each kind"),
            ("passes", f"{made['samples']} a point, seed {made['seed']}"),
            ("took", f"{toy.seconds['wall']:.1f} s, one thread"),
        )
    )
    yield from (GAP, title("In short"), Items(tuple(_in_short(toy))))
    band95, band50, mean, true, _ = marks
    marked = (
        f"{mean} mean, {band50} 50 % and {band95} 95 % band with observation noise, {true} the curve that the data "
        "were made from. The line below the x axis marks where training data lie."
    )
    for number, curve in enumerate(toy.curves.values(), 1):
        yield from (GAP, title(_name(curve)))
        yield Drawing(tuple(_drawn(toy, curve, columns, marks)), said=marked if number == len(toy.curves) else "")
    names = tuple(_short(curve) for curve in toy.curves.values())
    yield from (GAP, title("MC sd, and the mean's error against the true curve"))
    yield Table(names, tuple(_places(toy)), stacks=True)
    yield from (GAP, title(f"{made['points']['test']} test points among the data"))
    yield Table(names, tuple(_scores(toy)), stacks=True)
    yield GAP
    for text in (
        "± standard error over test points; another seed trains other networks, which differ by more. MC sd and error "
        "are root mean squares over the curve, in target units.",
        "Normalised: 0 is one constant uncertainty for all points, 100 the best one for each. The noise here is the "
        "same everywhere, so that among the data nothing beats a constant by much.",
        "Observation noise (1/√τ) and the constant are fitted to held-out points among the data by CRPS, nothing to "
        "the gap or the outside. CRPS is of the Gaussian of the samples' moments, PLL of their mixture.",
    ):
        yield Paragraph(text, "dim")
    for curve in toy.curves.values():
        if curve.tau_at_end == "infinite":
            yield Paragraph(
                f"{_name(curve)}: its samples spread enough for the noise too, so that none was added; its "
                "PLL is that of the Gaussian.",
                "dim",
            )
    if toy.path is not None:
        yield from (GAP, PathLine(toy.path))


def _clusters(near: float, far: float) -> str:
    return f"[−{far:g}, −{near:g}] and [{near:g}, {far:g}]"


def _name(curve: Curve) -> str:
    return f"MCBN, batches of {curve.batch_size}" if curve.method == "mcbn" else f"MCDO, dropout {curve.dropout_rate:g}"


def _short(curve: Curve) -> str:
    return f"MCBN {curve.batch_size}" if curve.method == "mcbn" else "MCDO"


def _in_short(toy: Toy) -> Iterator[str]:
    for curve in toy.curves.values():
        inside, gap, outside = (curve.places[place] for place in _PLACES)
        said = [
            f"{name} by a factor of {place.mc_sd / inside.mc_sd:.1f}"
            for name, place in (("in the gap", gap), ("outside", outside))
            if inside.mc_sd > 0 and place.mc_sd > 1.25 * inside.mc_sd
        ]
        grows = f"grows {' and '.join(said)}" if said else "does not grow where there are no data"
        sure = ", which is too sure" if outside.error > 2 * outside.mc_sd else ""
        yield (
            f"{_name(curve)}: the spread of its samples {grows}; outside, its mean is off by {outside.error:.2f} with "
            f"an MC sd of {outside.mc_sd:.2f}{sure}."
        )


def _drawn(toy: Toy, curve: Curve, columns: int, marks: str) -> Iterator[str]:
    """The curve and its bands in rows of characters, axes included."""
    band95, band50, mean_mark, true_mark, data_mark = marks
    margin = 6
    room = columns - margin - 1
    end = float(toy.experiment["end"])
    at = -end + (np.arange(room) + 0.5) * 2 * end / room
    top = _reach(toy)
    step = 2 * top / _ROWS

    def row_of(values: np.ndarray) -> np.ndarray:
        return np.floor((top - np.interp(at, toy.x, values)) / step).astype(int)

    canvas = np.full((_ROWS, room), " ", dtype="<U1")
    rows = np.arange(_ROWS)[:, None]
    for level, mark in (("95", band95), ("50", band50)):
        low, high = curve.band(level)
        canvas[(rows >= row_of(high)) & (rows <= row_of(low))] = mark
    canvas[rows == row_of(toy.truth)] = true_mark
    canvas[rows == row_of(curve.mean)] = mean_mark
    for number, line in enumerate(canvas):
        label = {0: top - step / 2, _ROWS // 2: 0.0, _ROWS - 1: -top + step / 2}.get(number)
        axis = "" if label is None else f"{label:.1f}".replace("-", "−")
        axis = axis if data_mark == "▔" else axis.replace("−", "-")
        yield f"{axis:>{margin - 1}} |{''.join(line)}".rstrip()
    near, far = toy.experiment["data"]
    there = (np.abs(at) >= near) & (np.abs(at) <= far)
    yield f"{'':{margin}} {''.join(np.where(there, data_mark, ' '))}".rstrip()
    yield f"{'x':>{margin - 1}} {_ticks(end, room, minus='−' if data_mark == '▔' else '-')}".rstrip()


def _reach(toy: Toy) -> float:
    """Half the height of the y axis, in target units; bands that go farther are cut off there."""
    return _ROOM * float(max(np.abs(toy.truth).max(), np.abs(toy.train_y).max()))


def _ticks(end: float, room: int, *, minus: str) -> str:
    line = [" "] * (room + 2)
    for value in range(-int(end), int(end) + 1):
        text = f"{value}".replace("-", minus)
        middle = 1 + round((value + end) / (2 * end) * (room - 1))
        start = min(max(0, middle - (len(text) - 1)), len(line) - len(text))
        line[start : start + len(text)] = text
    return "".join(line)


def _places(toy: Toy) -> Iterator[Row]:
    for place, name in _PLACES.items():
        found = [curve.places[place] for curve in toy.curves.values()]
        yield name, ()
        yield "  MC sd", tuple(Cell(f"{one.mc_sd:.3f}") for one in found)
        yield "  error", tuple(Cell(f"{one.error:.3f}") for one in found)
    yield "fitted", ()
    yield "  1/√τ", tuple(Cell(f"{curve.tau**-0.5:.3f}") for curve in toy.curves.values())
    yield "  constant", tuple(Cell(f"{curve.constant_sigma:.3f}") for curve in toy.curves.values())


def _scores(toy: Toy) -> Iterator[Row]:
    for label, key, digits in _SCORES:
        figures = [curve.scores[key] for curve in toy.curves.values()]
        yield (
            label,
            tuple(
                Cell(
                    f"{one.value:.{digits}f}".replace("-", "−"),
                    "" if one.se is None else f"±{one.se:.{digits}f}",
                )
                for one in figures
            ),
        )


def save_figure(toy: Toy, folder: Path, *, kind: drawing.Format = "svg") -> Path:
    """Write `folder`/toy.svg or toy.png: data, true curve, mean and bands of each network, and its MC sd below.

    RequestError without matplotlib; ResultError where it cannot be written. Returns the path.
    """
    path = folder / f"toy.{kind}"
    count, made = len(toy.curves), toy.experiment
    about = (
        f"{made['formula']} of sd {made['noise']}, {made['points']['train']} training points (shaded: where they lie); "
        f"{made['samples']} passes, seed {made['seed']}"
    )
    with drawing.picture(
        path, title=SOURCE, about=about, columns=count, heights=(1.0, 0.42), size=(4.3, 3.6)
    ) as panels:
        most = max(float(curve.mc_sd.max()) for curve in toy.curves.values())
        lines = drawing.lines_of(["", *toy.curves])
        for number, curve in enumerate(toy.curves.values()):
            upper, lower = panels[number], panels[count + number]
            _draw_curve(upper, toy, curve, colour=lines[curve.name].colour)
            _draw_sd(lower, toy, curve, colour=lines[curve.name].colour, most=most)
            if number == 0:
                upper.set_ylabel("y (target unit)")
                lower.set_ylabel("sd (target unit)")
            else:
                upper.tick_params(labelleft=False)
                lower.tick_params(labelleft=False)
        panels[0].legend(loc="lower right", handlelength=1.6, borderaxespad=0.2)  # curves go up there
        panels[-1].legend(loc="upper center", ncols=3, handlelength=1.6, columnspacing=1.2, borderaxespad=0.2)
    return path


def _draw_curve(axes: Axes, toy: Toy, curve: Curve, *, colour: str) -> None:
    _shade(axes, toy)
    axes.fill_between(toy.x, *curve.band("95"), color=colour, alpha=0.18, linewidth=0, label="95 % band")
    axes.fill_between(toy.x, *curve.band("50"), color=colour, alpha=0.38, linewidth=0, label="50 % band")
    axes.plot(toy.train_x, toy.train_y, ".", color=drawing.GREY, markersize=2.5, label="training data")
    axes.plot(toy.x, toy.truth, color=drawing.INK, linestyle="--", linewidth=1.2, label="true curve")
    axes.plot(toy.x, curve.mean, color=colour, label="mean")
    reach = _reach(toy)
    axes.set_ylim(-reach, reach)
    axes.set_title(f"{_name(curve)}: RMSE {curve.scores['rmse'].value:.3f}, PLL {curve.scores['pll'].value:.3f}")
    axes.tick_params(labelbottom=False)


def _draw_sd(axes: Axes, toy: Toy, curve: Curve, *, colour: str, most: float) -> None:
    _shade(axes, toy)
    axes.plot(toy.x, curve.mc_sd, color=colour, label="MC sd")
    axes.axhline(curve.tau**-0.5, color=drawing.GREY, linestyle=":", linewidth=1.4, label="fitted noise")
    axes.plot(toy.x, np.abs(curve.mean - toy.truth), color=drawing.INK, linestyle="--", linewidth=1, label="|error|")
    axes.set_ylim(0, 1.3 * most)
    axes.set_xlabel("x")


def _shade(axes: Axes, toy: Toy) -> None:
    near, far = toy.experiment["data"]
    for low, high in ((-far, -near), (near, far)):
        axes.axvspan(low, high, color="#f3f3f3", linewidth=0, zorder=0)
    axes.set_xlim(-toy.experiment["end"], toy.experiment["end"])
