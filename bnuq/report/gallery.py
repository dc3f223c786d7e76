"""The most informative images of a result, with the label and prediction of each; for the HTML page."""

from __future__ import annotations

import io
from collections.abc import Iterator
from itertools import groupby

import numpy as np

from bnuq.records.evaluation import Result, Thumbnails
from bnuq.records.points import chosen_score, points_table, scores_of
from bnuq.report.document import Gallery, Heading, Part
from bnuq.report.method_names import network_in_words
from bnuq.report.numbers import named, number

_KINDS = {
    "confidently-wrong": "Confident mistakes of {method}, or wrong labels",
    "uncertain": "Most uncertain of the test set, by {score} of {method}",
    "familiar": "Least uncertain of {set}, by {score} of {method}",
}


def parts(result: Result) -> Iterator[Part]:
    """A heading and pictures for each kind; nothing if the result has no pictures."""
    for (kind, name, method), group in groupby(result.gallery, key=lambda each: (each.kind, each.set, each.method)):
        if kind not in _KINDS:
            continue
        score = chosen_score(scores_of(result, set=name, method=method), None)
        heading = _KINDS[kind].format(score=named(score), method=network_in_words(method), set=name)
        yield Heading(heading[0].upper() + heading[1:])
        yield Gallery(tuple(picture for each in group for picture in _pictures(result, each)))


def _pictures(result: Result, shown: Thumbnails) -> Iterator[tuple[bytes, str]]:
    table = points_table(result, set=shown.set, method=shown.method)
    for row, pixels in zip(shown.points, shown.pixels, strict=True):
        said = [str(table["label"][row])] if "label" in table else []
        if "prediction" in table:
            sure = f" ({number(float(table['max_probability'][row]), 2)})" if "max_probability" in table else ""
            said.append(f"predicted {table['prediction'][row]}{sure}")
        said.append(str(table["name"][row]) if "name" in table else f"example {table['index'][row]}")
        yield _png(pixels), ", ".join(said)


def _png(pixels: np.ndarray) -> bytes:
    from PIL import Image  # late: only a page needs it

    file = io.BytesIO()
    Image.fromarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels).save(file, "PNG")
    return file.getvalue()
