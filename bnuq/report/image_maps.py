"""The most informative images of a segmentation: input, truth, prediction, errors and uncertainty side by side."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bnuq.records.evaluation import NOT_SCORED, ImageMaps, Result
from bnuq.records.points import chosen_score
from bnuq.report.document import Picture
from bnuq.report.drawing import GREY, INK, colours_of, picture, short
from bnuq.report.method_names import network_in_words
from bnuq.report.numbers import named, number
from bnuq.report.plotting import label_of
from bnuq.shapes import Bool, Int16

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_WIDTH = 3.0  # inches of a panel
_WRONG, _RIGHT, _IGNORED = INK, "#f2f2f2", "#bdbdbd"
UNCERTAIN = "magma"  # of increasing lightness, also in grey and to the colour-blind
MOST = 0.998  # quantile of a score at the end of its scale
_ROOM = 5  # pixels around a number in its region
_HOW = (
    "The numbers in the regions are those of the classes below. All images share one scale of each uncertainty; bright "
    "pixels are uncertain. Where uncertainty is useful, it is bright where there are errors."
)


def parts(result: Result) -> Iterator[Picture]:
    """A picture for each image with maps; none where the result has none."""
    shown = result.image_maps
    for at in range(0 if shown is None else len(shown.points)):
        assert shown is not None
        yield Picture(("maps", str(at + 1), _name(result, shown, at)), partial(_draw, result, shown, at), _HOW)


def _name(result: Result, shown: ImageMaps, at: int) -> str:
    row, test = int(shown.points[at]), result.sets["test"]
    return f"image {row if test.index is None else test.index[row]}" if test.names is None else str(test.names[row])


def _about(result: Result, shown: ImageMaps, at: int) -> str:
    """The scores of an image, and its place by each among those of the set."""
    points, row = result.methods[shown.method].sets["test"].points, int(shown.points[at])
    ranks = []
    for score, best in (("dice", "best"), (chosen_score(points, None), "most uncertain")):
        if score in points and np.isfinite(points[score][row]):
            position, n = 1 + int((points[score] > points[score][row]).sum()), int(np.isfinite(points[score]).sum())
            rank = {1: best, n: {"best": "worst"}.get(best, "least uncertain")}.get(position, f"number {position}")
            ranks.append(f"mean {named(score)} {number(float(points[score][row]), 3)}, {rank} of {n}")
    return f"{network_in_words(shown.method)}: {'; '.join(ranks)}"


def _draw(result: Result, shown: ImageMaps, at: int, path: Path) -> None:
    predicted, truth = shown.predicted[at], None if shown.truth is None else shown.truth[at]
    colours = colours_of(int(result.model["classes"]))
    height, width = predicted.shape
    panels = 1 + (shown.pixels is not None) + 2 * (truth is not None) + len(shown.scores)
    columns = 3 if panels > 4 else 2
    rows = -(-panels // columns)
    title = f"{_name(result, shown, at)}, of the test set"
    with picture(
        path, title=title, about=_about(result, shown, at), columns=columns, heights=(1.0,) * rows,
        size=(_WIDTH, min(2 * _WIDTH, _WIDTH * height / width + 0.3)),
    ) as axes:  # fmt: skip
        free = iter(axes)
        if shown.pixels is not None:
            pixels = shown.pixels[at]
            grey = {"cmap": "gray", "vmin": 0, "vmax": 255} if pixels.shape[2] == 1 else {}
            _show(next(free), pixels[..., 0] if grey else pixels, "input", **grey)
        for words, classes in (("truth", truth), ("prediction", predicted)):
            if classes is not None:
                _show(panel := next(free), _coloured(classes, colours), words)
                _number_regions(panel, classes)
        if truth is not None:
            scored = truth != NOT_SCORED
            wrong = scored & (truth != predicted)
            share = 100 * wrong.sum() / max(1, scored.sum())
            _show(next(free), _errors(wrong, scored), f"errors, {share:.0f} % of the pixels")
        for score, values in shown.scores.items():
            _show_score(next(free), values[at], score, float(np.quantile(values.astype(np.float64), MOST)))
        for rest in free:
            rest.set_axis_off()
        _legend(axes[0], result, [predicted, *(() if truth is None else (truth,))], colours)


def _show(axes: Axes, pixels: np.ndarray, words: str, **how: Any) -> Any:
    axes.set_title(words)
    axes.grid(visible=False)
    axes.set_xticks([])
    axes.set_yticks([])
    for spine in axes.spines.values():
        spine.set_visible(False)
    return axes.imshow(pixels, interpolation="nearest", **how)


def _show_score(axes: Axes, values: np.ndarray, score: str, most: float) -> None:
    scale = {"cmap": UNCERTAIN, "vmin": 0.0, "vmax": most or 1.0}
    drawn = _show(axes, values.astype(np.float32), label_of(score), **scale)
    bar = axes.figure.colorbar(drawn, ax=axes, extend="max", shrink=0.8, pad=0.02)
    bar.outline.set_visible(False)  # pyrefly: ignore


def _coloured(classes: Int16[np.ndarray, "row column"], colours: np.ndarray) -> np.ndarray:
    from matplotlib.colors import to_rgb

    return np.where((classes == NOT_SCORED)[..., None], to_rgb(_IGNORED), colours[np.maximum(classes, 0)])


def _errors(wrong: Bool[np.ndarray, "row column"], scored: Bool[np.ndarray, "row column"]) -> np.ndarray:
    from matplotlib.colors import to_rgb

    right = np.where(scored[..., None], to_rgb(_RIGHT), to_rgb(_IGNORED))
    return np.where(wrong[..., None], to_rgb(_WRONG), right)


def _number_regions(axes: Axes, classes: Int16[np.ndarray, "row column"]) -> None:
    """The number of each class in the middle of its widest region, where it fits."""
    from matplotlib.patheffects import withStroke
    from scipy.ndimage import distance_transform_edt

    for k in np.unique(classes[classes != NOT_SCORED]):
        inside = np.asarray(distance_transform_edt(np.pad(classes == k, 1)))[1:-1, 1:-1]
        row, column = np.unravel_index(np.argmax(inside), inside.shape)
        if inside[row, column] >= _ROOM:
            edge = [withStroke(linewidth=2, foreground="white")]
            axes.text(float(column), float(row), str(k), ha="center", va="center", size=8, color=INK, path_effects=edge)


def _legend(axes: Axes, result: Result, maps: list[np.ndarray], colours: np.ndarray) -> None:
    """Number, colour and name of the classes in these maps, and what the colours of errors mean."""
    from matplotlib.patches import Patch

    names = result.sets["test"].classes
    classes = np.unique(np.concatenate([each.ravel() for each in maps]))
    handles = [
        Patch(color=tuple(colours[k]), label=f"{k} {short(names[k], 20)}" if k < len(names) else f"class {k}")
        for k in map(int, classes[classes != NOT_SCORED])
    ]
    if len(maps) > 1:
        handles.append(Patch(facecolor=_WRONG, label="error"))
    if NOT_SCORED in classes:
        handles.append(Patch(facecolor=_IGNORED, edgecolor=GREY, hatch="//", label="not scored"))
    axes.figure.legend(handles=handles, loc="outside lower center", ncols=6, columnspacing=1.2, handlelength=1.2)
