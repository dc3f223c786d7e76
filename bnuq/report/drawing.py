"""Pictures in one style: drawn by matplotlib, which is imported late, and the same bytes for the same data."""

from __future__ import annotations

import contextlib
import io
import re
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from bnuq.errors import RequestError
from bnuq.files.writing import write_bytes
from bnuq.report.plain import printable

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Format = Literal["svg", "png"]

INK, GREY, PALE = "#1a1a1a", "#595959", "#d9d9d9"
PANEL = (6.4, 4.0)  # inches, width and height
_DOTS = 160  # an inch, of a PNG
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


@dataclass(frozen=True)
class Line:
    """How something is drawn wherever it appears: told apart by colour, by dashes and by marker."""

    colour: str
    dashes: str
    marker: str

    @property
    def plotted(self) -> dict[str, Any]:
        """As keywords of `Axes.plot`."""
        return {"color": self.colour, "linestyle": self.dashes, "marker": self.marker}


# Okabe & Ito 2008: told apart by eyes that see colours differently, and each dark enough on white.
_LINES = (
    Line("#595959", ":", "s"),
    Line("#0072B2", "-", "o"),
    Line("#D55E00", "--", "^"),
    Line("#009E73", "-.", "D"),
    Line("#CC79A7", "-", "v"),
    Line("#56B4E9", "--", "P"),
)


def lines_of(names: Sequence[str]) -> dict[str, Line]:
    """A line for each name, in their order; beyond six they repeat."""
    return {name: _LINES[number % len(_LINES)] for number, name in enumerate(names)}


def check() -> None:
    """RequestError where matplotlib is not installed."""
    if (why := why_not()) is not None:
        raise RequestError(why)


def why_not() -> str | None:
    """Why nothing can be drawn; None where matplotlib is installed."""
    try:
        import matplotlib  # noqa: F401 - whether it is there
    except ImportError:
        return 'figures are drawn by matplotlib, which is not installed. Install it: pip install "bnuq[figures]"'
    return None


@contextlib.contextmanager
def picture(
    path: Path,
    *,
    title: str,
    about: str = "",
    columns: int = 1,
    heights: Sequence[float] = (1.0,),
    size: tuple[float, float] = PANEL,
) -> Iterator[list[Axes]]:
    """Axes to draw on, row by row; what is on them when the block ends well is written to `path`, SVG or PNG by its
    name, beside and renamed.

    `title` is bold above all of them and `about` (which data, how many) below it; `size` is of one panel, in inches,
    and `heights` those of the rows, relative to it. Raises RequestError without matplotlib, ResultError where the file
    cannot be written.
    """
    check()
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with mpl.rc_context():
        mpl.rcdefaults()
        mpl.rcParams.update(_STYLE)
        head = 0.62 if about else 0.36
        width, height = columns * size[0], sum(heights) * size[1] + head
        figure = Figure(figsize=(width, height), layout="constrained")
        FigureCanvasAgg(figure)
        figure.get_layout_engine().set(rect=(0, 0, 1, 1 - head / height))  # pyright: ignore[reportOptionalMemberAccess, reportCallIssue]
        grid = figure.subplots(len(heights), columns, squeeze=False, height_ratios=list(heights))
        at = 0.1 / width
        figure.text(at, 1 - 0.1 / height, short(title, int(12 * width)), va="top", weight="bold", size=11)
        if about:
            figure.text(at, 1 - 0.36 / height, short(about, int(14 * width)), va="top", color=GREY, size=9)
        yield list(grid.flat)
        buffer = io.BytesIO()
        kind = path.suffix.removeprefix(".").lower()
        nameless = {"Date": None} if kind == "svg" else {}
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Glyph .* missing from font")  # a name in a script that the font lacks
            figure.savefig(buffer, format=kind, dpi=_DOTS, metadata=nameless)
    write_bytes(path, buffer.getbuffer())


def short(text: str, most: int = 40) -> str:
    """`text`, fit to be drawn, with its middle left out where it is longer than that."""
    text = printable(text, lines=False)
    return text if len(text) <= most else f"{text[: most // 2]}…{text[-(most - most // 2 - 1) :]}"


def file_name(*parts: str, kind: Format) -> str:
    """A name for a file, of letters, digits and a few signs alone, whatever is in the parts."""
    return "_".join(re.sub(r"[^\w+-]+", "-", part).strip("-")[:60] or "x" for part in parts) + f".{kind}"


def make_folder(folder: Path) -> None:
    """Make `folder`, with those above it, unless it is there. RequestError where that cannot be done."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        why = "it is a file" if isinstance(error, FileExistsError) else error.strerror
        raise RequestError(f"{folder}: figures cannot be put there: {why}. Name a folder.") from error
