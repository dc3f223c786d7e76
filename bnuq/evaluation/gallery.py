"""The most informative pictures: confident mistakes, which may be wrong labels, most uncertain ones, familiar OOD
points."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from bnuq.data import Points
from bnuq.data.resizing import resized
from bnuq.evaluation.subject import Subject
from bnuq.methods import DETERMINISTIC, method_named
from bnuq.records.evaluation import LARGEST, EvaluatedSet, MethodResult, Thumbnails
from bnuq.records.points import chosen_score, largest_first
from bnuq.shapes import Float

OF_EACH = 16  # pictures of a kind, of which there are three: 48 at most

PerPoint = Float[np.ndarray, " point"]


def gallery(
    subject: Subject, methods: Mapping[str, MethodResult], described: Mapping[str, EvaluatedSet]
) -> tuple[Thumbnails, ...]:
    """The most informative pictures, whose points are read again; none where points are not pictures, or the run
    keeps none.

    Confident mistakes are those of the deterministic network; the most uncertain points of the test set, and the least
    uncertain of the OOD sets, are by the first sampled method.
    """
    if not subject.settings.images or subject.image:
        return ()
    shown = []
    for kind, name, method, rows in _chosen(methods, described):
        if len(pixels := small_copies(subject.sets[name], rows, LARGEST)):
            shown.append(Thumbnails(kind, name, method, rows, pixels))
    return tuple(shown)


def _chosen(methods: Mapping[str, MethodResult], described: Mapping[str, EvaluatedSet]) -> Iterator[tuple]:
    """Of each kind the set, the method, and the numbers of the points."""
    method = next((name for name in methods if not method_named(name).is_single), DETERMINISTIC)
    sets, test = methods[method].sets, methods[DETERMINISTIC].sets["test"]
    score = chosen_score(sets["test"].points, None)
    labels = described["test"].labels
    if labels is not None and labels.ndim == 1:
        wrong = test.predicted != labels
        rows = largest_first(np.where(wrong, test.points["max_probability"], -np.inf))
        yield "confidently-wrong", "test", DETERMINISTIC, rows[: min(OF_EACH, int(wrong.sum()))]
    yield "uncertain", "test", method, largest_first(sets["test"].points[score])[:OF_EACH]
    ood = [name for name, each in described.items() if each.kind == "ood" and score in sets[name].points]
    for name in ood[:OF_EACH]:
        familiar = largest_first(-sets[name].points[score])
        yield "familiar", name, method, familiar[: max(1, OF_EACH // len(ood))]


def small_copies(points: Points, rows: np.ndarray, largest: int) -> np.ndarray:
    """Copies (picture, row, column, channel) of these points, of at most `largest` pixels of a side; none where they
    are not pictures of 0 to 1."""
    shape, nothing = points.point_shape, np.zeros((0, 1, 1, 1), np.uint8)
    if not points.is_picture or not len(rows):
        return nothing
    pixels = points.raw(rows)
    if pixels.min() < 0 or pixels.max() > 1:
        return nothing
    scale = min(1.0, largest / max(shape[1:]))
    size = max(1, round(scale * shape[1])), max(1, round(scale * shape[2]))
    eight_bit = np.round(255 * pixels).astype(np.uint8)
    return np.stack([np.moveaxis(resized(picture, size, "bilinear"), 0, 2) for picture in eight_bit])
