"""`bnuq report`: show a result file again."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TextIO

import typer

from bnuq.errors import RequestError
from bnuq.files.folders import expanded

Draw = Callable[[Any, Path, Any], tuple[Path, ...]]  # a record's pictures into a folder, of a format


def command(
    result: Annotated[Path, typer.Argument(help="A result file of bnuq evaluate, sweep-batch-size or reproduce.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON, and nothing else.")] = False,
    html: Annotated[
        Path | None,
        typer.Option(
            help="Write the report as one HTML page that needs nothing else, with its pictures (by matplotlib) in it.",
            metavar="FILE",
            show_default="none",
        ),
    ] = None,
    figures: Annotated[
        Path | None,
        typer.Option(help="Draw its pictures into this folder; needs matplotlib.", metavar="DIR", show_default="none"),
    ] = None,
    form: Annotated[
        str | None, typer.Option("--format", help="Of the pictures: svg or png.", show_default="svg", metavar="NAME")
    ] = None,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,  # noqa: ARG001 - read by main
) -> None:
    """Show the report of a result file, as it was printed when it was made."""
    if form is not None and form not in ("svg", "png"):
        raise RequestError(f"--format is {form}; expected svg or png.")
    if form is not None and figures is None:
        raise RequestError(f"--format {form} says how pictures are drawn, and none are; add --figures DIR.")
    from bnuq.results.reading import kind_of_result

    kind = kind_of_result(result)
    shown = _KINDS[kind]()
    if figures is not None and shown.draw is None:
        raise RequestError(f"--figures: {result} is of {kind.removeprefix('reproduce ')} runs, and has no pictures.")
    page = None if html is None else _html_path(html)
    found = shown.read(result)
    drawn = _drawn(shown.draw, found, expanded(figures), form or "svg") if figures is not None and shown.draw else ()
    if page is not None:
        _write_html(shown, found, page)
    if as_json:
        typer.echo(json.dumps(shown.summary(found), allow_nan=False, indent=2))
        return
    shown.show(found, sys.stdout)
    if drawn:
        from bnuq.report.terminal import print_figures

        print_figures(drawn, sys.stdout)
    if page is not None:
        from bnuq.report.parts import PathLine, columns_of, draw

        draw((PathLine(page, "Page"),), sys.stdout, columns_of(sys.stdout))


@dataclass(frozen=True)
class _Kind:
    """How results of one kind are read, told and drawn; `draw` is None where they have no pictures."""

    read: Callable[[Path], Any]
    summary: Callable[[Any], Any]
    show: Callable[[Any, TextIO], None]
    parts: Callable[[Any], Iterator[Any]]
    draw: Draw | None = None


def _html_path(asked: Path) -> Path:
    """Where the page goes; RequestError for what is there and no page of bnuq."""
    path = expanded(asked)
    if path.exists() and not _is_page(path):
        raise RequestError(f"--html {asked} is another file than a page of bnuq; name another.")
    return path


def _is_page(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return b"<title>bnuq " in file.read(400)
    except OSError:
        return False


def _drawn(draw: Draw, found: Any, folder: Path, form: str) -> tuple[Path, ...]:
    from bnuq.report import drawing

    drawing.check()
    drawing.make_folder(folder)
    return draw(found, folder, form)


def _write_html(shown: _Kind, found: Any, page: Path) -> None:
    from bnuq.report import drawing
    from bnuq.report.html import pictures, write_page

    parts = list(shown.parts(found))
    if shown.draw is None:
        write_page(page, parts)
    elif (why_none := drawing.why_not()) is not None:
        from bnuq.report.parts import Paragraph

        write_page(page, [*parts, Paragraph(f"Pictures are left out: {why_none}", "dim")])
    else:
        with tempfile.TemporaryDirectory() as folder:
            write_page(page, parts, pictures(shown.draw(found, Path(folder), "svg")))


def _evaluate() -> _Kind:
    from bnuq.report.figures import draw_figures
    from bnuq.report.terminal import print_report, report_parts
    from bnuq.results.file import read
    from bnuq.results.summary import summary

    return _Kind(read, summary, print_report, report_parts, draw_figures)


def _several() -> _Kind:
    from bnuq.report.several import print_several, report_parts
    from bnuq.results.several import read, summary

    return _Kind(read, summary, print_several, report_parts)


def _sweep() -> _Kind:
    from bnuq.report.sweep import print_sweep, report_parts, save_figures
    from bnuq.results.sweep import read, summary

    return _Kind(read, summary, print_sweep, report_parts, save_figures)


def _uci() -> _Kind:
    from bnuq.report.reproduction import print_reproduction, report_parts
    from bnuq.results.reproduction import read, summary

    return _Kind(read, summary, print_reproduction, report_parts)


def _toy() -> _Kind:
    from bnuq.report.toy import print_toy, report_parts, save_figure
    from bnuq.results.toy import read, summary

    return _Kind(read, summary, print_toy, report_parts, _one(save_figure))


def _batch_size() -> _Kind:
    from bnuq.report.batch_size import print_batch_sizes, report_parts, save_figure
    from bnuq.results.batch_size import read, summary

    return _Kind(read, summary, print_batch_sizes, report_parts, _one(save_figure))


def _pll_over_samples() -> _Kind:
    from bnuq.report.pll_over_samples import print_pll, report_parts, save_figure
    from bnuq.results.pll_over_samples import read, summary

    return _Kind(read, summary, print_pll, report_parts, _one(save_figure))


def _one(save: Callable[..., Path]) -> Draw:
    """A kind of result that has a single picture."""
    return lambda found, folder, form: (save(found, folder, kind=form),)


_KINDS: dict[str, Callable[[], _Kind]] = {
    "evaluate": _evaluate,
    "several": _several,
    "sweep": _sweep,
    "reproduce uci": _uci,
    "reproduce toy": _toy,
    "reproduce batch-size": _batch_size,
    "reproduce pll-over-samples": _pll_over_samples,
}
