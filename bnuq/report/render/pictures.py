"""Draws the pictures of a report into files: for a folder, or to stand on a page."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Sequence
from pathlib import Path

from bnuq.frozen import frozen
from bnuq.report import drawing
from bnuq.report.document import Picture, Report

WIDE = 380  # points: a picture wider than this is no smaller than its letters can be read, and moves in its box


@frozen
class DrawnPicture:
    """A picture for a page: its SVGs, what it is called and of, and how to read it.

    One that is `broad` takes the whole width: of several panels, or too wide to be read beside text.
    """

    name: str
    svgs: tuple[str, ...]
    about: str = ""
    how: str = ""
    broad: bool = False


def draw_pictures(report: Report, folder: Path, form: drawing.Format = "svg") -> tuple[Path, ...]:
    """Draw every picture of the report into `folder`, which is made if it is missing; their paths, in order.

    Raises RequestError where `folder` is a file, ResultError if one cannot be written.
    """
    drawing.make_folder(folder)
    return tuple(_files(report.pictures, folder, form))


def drawn_for_page(report: Report) -> dict[tuple[str, ...], DrawnPicture]:
    """Every picture of the report by its kind, as it stands on a page.

    What several pictures say of how to read them, the first of them says.
    """
    if not report.pictures:
        return {}
    with tempfile.TemporaryDirectory() as folder, drawing.for_page():
        paths = _files(report.pictures, Path(folder), "svg")
        hows = [picture.how for picture in report.pictures]
        return {
            picture.kind: _read(path, "" if picture.how in hows[:number] else picture.how)
            for number, (picture, path) in enumerate(zip(report.pictures, paths, strict=True))
        }


def _files(pictures: Sequence[Picture], folder: Path, form: drawing.Format) -> list[Path]:
    paths: list[Path] = []
    for picture in pictures:
        path = folder / drawing.file_name(*picture.kind, kind=form)
        while path in paths:  # names that differ only in signs that no file has
            path = path.with_stem(f"{path.stem}-")
        picture.draw(path)
        paths.append(path)
    return paths


def _read(path: Path, how: str) -> DrawnPicture:
    svgs = [part.read_text(encoding="utf-8") for part in drawing.parts_of(path)]
    name, about = (_words(pattern, svgs[0]) for pattern in ("<title>(.*?)</title>", "<dc:description>(.*?)<"))
    broad = len(svgs) > 1 or width_of(svgs[0]) > WIDE
    return DrawnPicture(name or path.stem.replace("_", " "), tuple(svgs), about, how, broad)


def _words(pattern: str, svg: str) -> str:
    match = re.search(pattern, svg, flags=re.DOTALL)
    if not match:
        return ""
    import html  # late: its table of characters takes milliseconds

    return html.unescape(match[1]).strip()


def width_of(svg: str) -> float:
    """The width of an SVG in points."""
    box = re.search(r'viewBox="[\d.+-]+ [\d.+-]+ ([\d.]+)', svg[:2000])
    return float(box[1]) if box else 0.0
