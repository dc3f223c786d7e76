"""Figures in one style: drawn by matplotlib, which is imported late, with the same bytes for the same data."""

from __future__ import annotations

import contextlib
import io
import math
import os
import re
import textwrap
import warnings
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from bnuq.errors import RequestError
from bnuq.files.writing import check_writable, write_bytes
from bnuq.frozen import frozen
from bnuq.report.sanitize import printable

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Format = Literal["svg", "png"]
Dashes = str | tuple[float, tuple[float, ...]]  # as matplotlib has them
Legend = Literal["shared", "own"]

INK, GREY, PALE = "#1a1a1a", "#595959", "#d9d9d9"
PANEL = (6.4, 4.0)  # inches, width and height
_NARROW = 4.6  # inches: a panel on a page, whose letters can be read on a phone
_MOST_COLUMNS, _TICKS = 4, 22  # of a legend; names that fit below a picture
_DOTS = 160  # an inch, of a PNG
_FOR_PAGE: ContextVar[bool] = ContextVar("for_page", default=False)
_STYLE: Any = {
    "font.family": "DejaVu Sans",  # comes with matplotlib: the same everywhere
    "font.size": 10,
    "text.parse_math": False,  # names out of files are not formulas
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": GREY,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.titlesize": 10,
    "axes.titlelocation": "left",
    "grid.color": "#ececec",
    "grid.linewidth": 0.8,
    "xtick.color": GREY,
    "ytick.color": GREY,
    "lines.linewidth": 1.8,
    "lines.markersize": 5,
    "legend.frameon": False,
    "legend.fontsize": 9,
    "figure.facecolor": "white",
    "savefig.facecolor": "white",
    "svg.hashsalt": "bnuq",  # ids in an SVG are random otherwise
}


@frozen
class LineStyle:
    """How something is drawn wherever it appears: distinguished by colour, by dashes and by marker."""

    colour: str
    dashes: Dashes
    marker: str
    hollow: bool = False  # the marker

    @property
    def plotted(self) -> dict[str, Any]:
        """As keywords of `Axes.plot`."""
        face = {"markerfacecolor": "white"} if self.hollow else {}
        return {"color": self.colour, "linestyle": self.dashes, "marker": self.marker, **face}


# Okabe & Ito 2008 and two darker ones: distinguishable with colour blindness.
COLOURS = ("#595959", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#332288", "#8B1A1A", "#56B4E9")
_DASHES: tuple[Dashes, ...] = (":", "-", "--", "-.", (0, (6, 1, 1, 1, 1, 1)))


def marker_of(number: int) -> str:
    """A marker that no other number below 64 has with the same colour."""
    return "so^DvPX*"[(number + 3 * (number // len(COLOURS))) % 8]


def line_styles(names: Sequence[str]) -> dict[str, LineStyle]:
    """A line for each name, in their order; beyond forty they repeat."""
    return {
        name: LineStyle(COLOURS[number % len(COLOURS)], _DASHES[number % len(_DASHES)], marker_of(number))
        for number, name in enumerate(names)
    }


def matplotlib_here() -> Any:
    """matplotlib, imported when something is drawn, whatever backend the environment names."""
    chosen = os.environ.pop("MPLBACKEND", None)  # as Jupyter sets it: matplotlib refuses what it cannot import
    try:
        import matplotlib
    finally:
        if chosen is not None:
            os.environ["MPLBACKEND"] = chosen
    return matplotlib


@contextlib.contextmanager
def for_page() -> Iterator[None]:
    """Inside, SVGs are drawn to stand on a page: narrow, and without words above them, which they keep as metadata
    (title and description) for the page to say. Columns that can stand apart become their own files, see `parts_of`.
    """
    before = _FOR_PAGE.set(True)
    try:
        yield
    finally:
        _FOR_PAGE.reset(before)


def on_page() -> bool:
    """Whether what is drawn now is for a page."""
    return _FOR_PAGE.get()


def parts_of(path: Path) -> list[Path]:
    """The files that a picture for a page was drawn into, from left to right."""
    return [path, *sorted(path.parent.glob(f"{path.stem}__[0-9][0-9].svg"))]


def colours_of(classes: int) -> np.ndarray:
    """A colour for each class, (class, 3) from 0 to 1: the strong ones first."""
    mpl = matplotlib_here()
    if classes <= 20:
        pairs = mpl.colormaps["tab20"](np.arange(20))[:, :3]
        return np.concatenate([pairs[::2], pairs[1::2]])[:classes]
    return mpl.colormaps["hsv"](np.arange(classes) * 0.618034 % 1)[:, :3]  # the golden ratio: neighbours are far apart


@contextlib.contextmanager
def picture(
    path: Path,
    *,
    title: str,
    about: str = "",
    columns: int = 1,
    heights: Sequence[float] = (1.0,),
    size: tuple[float, float] = PANEL,
    apart: bool = False,
    legend: Legend = "shared",
) -> Iterator[list[Axes]]:
    """Axes to draw on, row by row; what is on them when the block ends well is written to `path`, SVG or PNG by its
    name, beside and renamed.

    `title` is bold above all of them and `about` (which data, how many) below it; `size` is of one panel, in inches,
    and `heights` those of the rows, relative to it. `apart` says that each column has its own labels. What has a label
    is told in one legend below all panels, or of several columns in each panel's "own". Raises
    ResultError if the file cannot be written.
    """
    mpl, page = matplotlib_here(), on_page()
    split = page and (apart or columns == 1)
    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(_STYLE)
        head = 0.0 if page else 0.62 if about else 0.36
        panel = (min(size[0], _NARROW), size[1]) if split else size
        across = 1 if split else columns
        figures = [_figure(across * panel[0], sum(heights) * panel[1], head) for _ in range(columns if split else 1)]
        grids = [
            figure.subplots(len(heights), across, squeeze=False, height_ratios=list(heights)) for figure in figures
        ]
        yield [axes for row in range(len(heights)) for grid in grids for axes in grid[row]]
        words = {"Title": printable(title, lines=False), "Description": printable(about, lines=False)} if page else {}
        for number, (figure, grid) in enumerate(zip(figures, grids, strict=True)):
            for axes in grid.flat if split else ():  # break those wider than a narrow panel
                axes.set_xlabel(textwrap.fill(axes.get_xlabel(), 46))
                axes.set_ylabel(textwrap.fill(axes.get_ylabel(), 34))
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "Glyph .* missing from font")  # of a name in another script
                _add_legends(figure, grid, legend)
                if not page:
                    _write_head(figure, title, about)
                _save(figure, path.with_stem(f"{path.stem}__{number:02}") if number else path, words)


def _figure(width: float, height: float, head: float) -> Figure:
    """An empty figure of this size in inches, with room for its head above."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height + head), layout="constrained")
    FigureCanvasAgg(figure)
    figure.get_layout_engine().set(rect=(0, 0, 1, 1 - head / (height + head)))  # pyrefly: ignore
    return figure


def _write_head(figure: Figure, title: str, about: str) -> None:
    width, height = figure.get_size_inches()
    figure.text(0.1 / width, 1 - 0.1 / height, short(title, int(12 * width)), va="top", weight="bold", size=11)
    if about:
        figure.text(0.1 / width, 1 - 0.36 / height, short(about, int(14 * width)), va="top", color=GREY, size=9)


def _add_legends(figure: Figure, grid: np.ndarray, kind: Legend) -> None:
    """Give a figure that has none its legends: one below all panels, for which it grows, or each panel its own."""
    if figure.legends or any(axes.get_legend() for axes in grid.flat):
        return
    if kind == "own" and grid.shape[1] > 1:
        for axes in grid.flat:
            if axes.get_legend_handles_labels()[1]:
                axes.legend(fontsize=7)
        return
    room = _legend_of(list(grid.flat), figure)
    width, height = figure.get_size_inches()
    engine: Any = figure.get_layout_engine()
    head = height * (1 - engine.get()["rect"][3])
    height += room / figure.dpi
    figure.set_size_inches(width, height)
    engine.set(rect=(0, 0, 1, 1 - head / height))


def _legend_of(panels: Sequence[Axes], figure: Figure) -> float:
    """Tell the labels of these panels, each once, in as many columns as there is room for; the height of that. Curves
    with bars come first, which matplotlib has last."""
    from matplotlib.container import Container

    entries: dict[str, Any] = {}
    for axes in panels:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            entries.setdefault(label, handle)
    labels = sorted(entries, key=lambda label: not isinstance(entries[label], Container))
    handles = [entries[label] for label in labels]
    for columns in range(min(len(labels), _MOST_COLUMNS), 0, -1):
        legend = figure.legend(handles, labels, ncols=columns, columnspacing=1.4, loc="outside lower center")
        box = legend.get_window_extent()
        if box.width <= figure.bbox.width or columns == 1:
            return box.height
        legend.remove()
    return 0.0


def sizes_across(axes: Axes, ticks: Sequence[float]) -> None:
    """An x axis of sizes by factors of 2, with these numbers written out."""
    axes.set_xscale("log", base=2)
    axes.set_xticks(ticks)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.minorticks_off()


def layer_axis(axes: Axes, names: Sequence[str]) -> None:
    """An x axis of layers in execution order; of many every k-th is named."""
    at = range(0, len(names), math.ceil(len(names) / _TICKS))
    axes.set_xticks(list(at))
    axes.set_xticklabels([short(names[index], 18) for index in at], rotation=90, fontsize=9)
    axes.set_xlim(-0.6, len(names) - 0.4)
    axes.grid(visible=False, axis="x")


def factors_up(axes: Axes, low: float, high: float, *, whole: float = 300, ticks: int = 12) -> None:
    """A y axis from `low` to `high` by factors, its numbers written out: powers of 10 alone from a range of `whole`."""
    from matplotlib.ticker import LogLocator, NullFormatter

    axes.set_yscale("log")
    axes.set_ylim(low, high)
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0,) if high > whole * low else (1.0, 2.0, 5.0), numticks=ticks))
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.yaxis.set_minor_formatter(NullFormatter())


def _save(figure: Figure, path: Path, words: dict[str, str]) -> None:
    buffer = io.BytesIO()
    kind = path.suffix.removeprefix(".").lower()
    metadata = {"Date": None} | words if kind == "svg" else {}
    figure.savefig(buffer, format=kind, dpi=_DOTS, metadata=metadata)
    write_bytes(path, buffer.getbuffer(), named=False)


def short(text: str, most: int = 40) -> str:
    """`text`, fit to be drawn, with its middle left out if it is longer than that."""
    text = printable(text, lines=False)
    return text if len(text) <= most else f"{text[: most // 2]}…{text[-(most - most // 2 - 1) :]}"


def file_name(*parts: str, kind: Format) -> str:
    """A name for a file, of letters, digits and a few signs alone, whatever is in the parts."""
    return "_".join(re.sub(r"[^\w+-]+", "-", part).strip("-")[:60] or "x" for part in parts) + f".{kind}"


def make_folder(folder: Path, what: str = "figures") -> None:
    """Make `folder`, with those above it, for figures or what else. RequestError if that cannot be done, ResultError
    where nothing can be written to it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        why = "it is a file" if isinstance(error, FileExistsError) else error.strerror
        raise RequestError(f"{folder}: {what} cannot be put there: {why}. Name a folder.") from error
    check_writable(folder / "figure.svg", named=False)
