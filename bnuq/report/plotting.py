"""What the pictures of an evaluation share: their explanations, subtitles, line styles and axis labels."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from bnuq.methods import DETERMINISTIC, OWN, POPULATION, method_named
from bnuq.metrics import METRICS
from bnuq.records.evaluation import Result
from bnuq.report import drawing
from bnuq.report.document import Picture
from bnuq.report.drawing import LineStyle
from bnuq.report.numbers import count, named

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_UNITS = ("nats", "target unit", "target unit²")  # others go without saying

_DIAGONAL = (
    "On the diagonal, confidence equals accuracy; below it predictions are overconfident, above it underconfident."
)
HOW = {
    "reliability": f"{_DIAGONAL} The histogram below shows how many examples have which confidence.",
    "calibration": _DIAGONAL,
    "interval_calibration": (
        "On the diagonal, a central interval covers as many targets as it should; below it the intervals are too "
        "narrow, above it too wide. Within the band, the difference is not significant."
    ),
    "class_reliability": (
        "On the diagonal, as many of the pixels with this probability of a class are of it as the probability says; "
        "below it the class is predicted too often. Bins of fewer than 50 pixels are left out."
    ),
    "risk_coverage": (
        "Error of the retained examples when the most uncertain ones are deferred: the lower the curve, the better "
        "the uncertainty identifies errors. A flat curve means that uncertain examples are wrong no more often "
        "than others."
    ),
    "ood": "The less the two overlap, the better OOD examples are separated from test examples.",
    "roc": (
        "Up and to the left is better; the diagonal is chance. Each step is a threshold on the score; the "
        "number is the area under the curve (AUROC)."
    ),
    "convergence": (
        "The same estimates from the first samples alone: once a curve is flat, more samples would change little."
    ),
    "shift": (
        "At 0 the inputs are unchanged; the bands of the metrics are 95 %, of the difference to that. The alarm is "
        "raised where the mean of mutual information (of a single pass, predictive entropy) leaves the grey band, in "
        "which the means of unchanged examples are; dashed is the "
        "accuracy that confidences tell without labels."
    ),
    "uncertainty_error": (
        "Examples sorted by their predicted σ. Where the running mean of the errors rises with the bands, σ "
        "separates large errors from small ones; dots far above the bands are unexpected errors."
    ),
}


def evaluation_picture(*kind: str, draw: Callable[[Path], None]) -> Picture:
    return Picture(kind, draw, HOW[kind[0]])


def about_test_set(result: Result, *, sampled: bool = True) -> str:
    model, test = Path(str(result.model["path"])).name, result.sets["test"]
    passes = f", {result.sampling['samples']} samples" if sampled and result.sampled else ""
    return f"{model}, test set, {count(test.n, 'example')}{passes}"


# A method's colour and marker, by a number of drawing.COLOURS in rows of eight. Those that often run together are in
# the first row, and no other has the colour of the deterministic network, of mcbn or of the population.
_NUMBERS: Mapping[str, int] = {
    DETERMINISTIC: 0, "mcbn": 1, "mcdo": 2, "mcbn+mcdo": 3, POPULATION: 4, "ensemble": 5, "laplace": 6, "tta": 7,
    "mcbn-chi2": 10, "mcbn-gaussian": 11, "mcbn-empirical": 13, OWN: 14, "mcbn+tta": 15,
    "learned": 18, "mcbn+learned": 19, "mcdo+learned": 21, "mcbn+mcdo+learned": 22,
}  # fmt: skip
_DASHES: Mapping[str | None, tuple[drawing.Dashes, ...]] = {  # by the recalibration and the row
    None: ("-", "-.", (0, (9, 2))),
    "temperature": ("--", (0, (5, 1, 1, 1, 1, 1)), (0, (9, 2, 1, 2))),
    "vector": (":", (0, (1, 3)), (0, (9, 2, 1, 2, 1, 2))),
}


def line_styles(result: Result) -> dict[str, LineStyle]:
    """How each method is drawn in every picture of every report: its colour and marker are those of its plain method,
    its dashes, and a hollow marker, tell that it is recalibrated. Methods named by the user have what is free."""
    methods = [method_named(name) for name in result.methods]
    numbers = {method.plain.name: _NUMBERS.get(method.plain.name) for method in methods}
    free = iter(number for number in range(3 * len(drawing.COLOURS)) if number not in numbers.values())
    places = {name: next(free, 0) if number is None else number for name, number in numbers.items()}
    return {method.name: _line_style(places[method.plain.name], method.recalibration) for method in methods}


def _line_style(number: int, recalibration: str | None) -> LineStyle:
    row, column = divmod(number, len(drawing.COLOURS))
    dashes = _DASHES[recalibration][row]
    return LineStyle(drawing.COLOURS[column], dashes, drawing.marker_of(number), hollow=recalibration is not None)


def label_of(metric: str, title: str | None = None) -> str:
    """A metric as it stands along an axis, with its unit."""
    unit = METRICS[metric].unit
    return (title or named(metric)) + (f" ({unit})" if unit in _UNITS else "")


def unit_square(axes: Axes) -> None:
    axes.set_xlim(0, 1)
    axes.set_ylim(-0.02, 1.02)
