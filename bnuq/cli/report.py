"""`bnuq report`: show result files again, one or several beside each other."""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, TextIO

import typer

from bnuq.cli.options import Full, replaceable
from bnuq.cli.output import say, stdout
from bnuq.errors import RequestError
from bnuq.files.folders import expanded

Draw = Callable[[Any, Path, Any], tuple[Path, ...]]  # a record's pictures into a folder, of a format


def command(
    results: Annotated[
        list[str],
        typer.Argument(
            help="Result files of bnuq evaluate, sweep-batch-size, inspect or reproduce; two or more of bnuq evaluate "
            "are shown side by side, each under its file's name or as NAME=FILE.",
            metavar="RESULT …",
            show_default=False,
        ),
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON, and nothing else.")] = False,
    markdown: Annotated[
        str | None,
        typer.Option(
            help="Write the report as Markdown, as GitHub reads it; - prints it, and nothing else.",
            metavar="FILE",
            show_default="none",
        ),
    ] = None,
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
    full: Full = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,  # noqa: ARG001 - read by main
) -> None:
    """Show the report of a result file, as it was printed when it was made; of several, their figures side by side."""
    if form is not None and form not in ("svg", "png"):
        raise RequestError(f"--format is {form}; expected svg or png.")
    if form is not None and figures is None:
        raise RequestError(f"--format {form} says how pictures are drawn, and none are; add --figures DIR.")
    if as_json and markdown == "-":
        raise RequestError("--json and --markdown - both go to standard output; give --markdown a file.")
    page = None if html is None else replaceable(html, "--html", "page", rb"<!DOCTYPE html>.*<title>bnuq ")
    document = None if markdown in (None, "-") else replaceable(Path(markdown), "--markdown", "report", b"# bnuq ")
    shown, found = _read(results)
    if figures is not None and shown.draw is None:
        raise RequestError(f"--figures: {results[0]} is of {shown.of} runs, and has no pictures.")
    drawn = _drawn(shown.draw, found, expanded(figures), form or "svg") if figures is not None and shown.draw else ()
    if page is not None:
        _write_html(shown, found, page)
    if document is not None:
        from bnuq.files.writing import write_bytes

        write_bytes(document, _markdown(shown, found).encode("utf-8", "backslashreplace"))
    if as_json:
        say(json.dumps(shown.summary(found), allow_nan=False, indent=2))
        return
    if markdown == "-":
        say(_markdown(shown, found), nl=False)
        return
    (shown.show_full or shown.show if full else shown.show)(found, stdout())
    if drawn:
        from bnuq.report.terminal import print_figures

        print_figures(drawn, stdout())
    written = [(path, what) for path, what in ((page, "Page"), (document, "Markdown")) if path is not None]
    if written:
        from bnuq.report.document import PathLine, columns_of, draw

        draw((PathLine(path, what) for path, what in written), stdout(), columns_of(stdout()))


@dataclass(frozen=True)
class _Kind:
    """How results of one kind are read, told and drawn.

    `draw` is None where they have no pictures. `on_page` says what their page is made of, of the record, a folder for
    pictures (None without matplotlib) and why there are none; without it, the page is `parts` with all pictures.
    `show_full` is there where `show` leaves things out.
    """

    of: str
    read: Callable[[Path], Any]
    summary: Callable[[Any], Any]
    show: Callable[[Any, TextIO], None]
    parts: Callable[[Any], Iterable[Any]]
    draw: Draw | None = None
    on_page: Callable[[Any, Path | None, str], Iterable[Any]] | None = None
    show_full: Callable[[Any, TextIO], None] | None = None


# ── which results ────────────────────────────────────────────────────────────────────────────────────────────────────


def _read(asked: Sequence[str]) -> tuple[_Kind, Any]:
    """The one result that was named, or all of them by name; RequestError for what cannot stand side by side."""
    from bnuq.files.apart import start

    start()
    from bnuq.results.reading import kind_of_result

    named = [_named(text) for text in asked]
    if len(named) == 1:
        path = named[0][1]
        kind = kind_of_result(path)
        shown = _KINDS[kind]()
        return shown, shown.read(path)
    for _, path in named:
        if (kind := kind_of_result(path)) != "evaluate":
            raise RequestError(
                f"{path} is not a result of bnuq evaluate for one run, and only those stand side by side. Show it by "
                f"itself: bnuq report {path}"
            )
    if twice := [path for path, times in Counter(path.absolute() for _, path in named).items() if times > 1]:
        raise RequestError(f"{twice[0]} is named twice; name each result once.")
    shown = _KINDS["evaluate"]()
    found = {name: shown.read(path) for name, path in zip(_names(named), (path for _, path in named), strict=True)}
    tasks = {name: str(one.model.get("task")) for name, one in found.items()}
    if len(set(tasks.values())) > 1:
        told = ", ".join(f"{name} of a {task}" for name, task in tasks.items())
        raise RequestError(f"the results share no figures: {told}. Name results of one task.")
    return _beside(), found


def _named(text: str) -> tuple[str | None, Path]:
    """The name that was given to a result, if any, and its file."""
    name, equals, rest = text.partition("=")
    if not equals or not name or Path(text).exists():
        return None, Path(text)
    return name, Path(rest)


def _names(named: Sequence[tuple[str | None, Path]]) -> list[str]:
    """Names to tell results apart by: as given, or the file's stem, with its folder where that is not enough."""
    stems = [given or path.name.removesuffix(".h5").removesuffix(".bnuq") for given, path in named]
    if doubled := [name for name, times in Counter(given for given, _ in named if given).items() if times > 1]:
        raise RequestError(f"{doubled[0]} is the name of two results; give each its own, as NAME=FILE.")
    names: list[str] = []
    for stem, (given, path) in zip(stems, named, strict=True):
        name = stem if given or stems.count(stem) == 1 else f"{path.absolute().parent.name}/{stem}"
        number = 1
        while name in names:
            number += 1
            name = f"{name.partition(' (')[0]} ({number})"
        names.append(name)
    return names


# ── files ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _drawn(draw: Draw, found: Any, folder: Path, form: str) -> tuple[Path, ...]:
    from bnuq.report import drawing

    drawing.check()
    drawing.make_folder(folder)
    return draw(found, folder, form)


def _markdown(shown: _Kind, found: Any) -> str:
    from bnuq.report.markdown import markdown

    return markdown(shown.parts(found), level=1)


def _write_html(shown: _Kind, found: Any, page: Path) -> None:
    from bnuq.report import drawing
    from bnuq.report.document import Paragraph
    from bnuq.report.html import picture_at, write_page

    without = drawing.why_not() or ""
    with tempfile.TemporaryDirectory() as name:
        folder = None if without else Path(name)
        if shown.on_page is not None:
            write_page(page, shown.on_page(found, folder, without))
        elif shown.draw is None or folder is None:
            said = [Paragraph(f"Pictures are left out: {without}", "dim")] if shown.draw is not None else []
            write_page(page, [*shown.parts(found), *said])
        else:
            with drawing.for_page():
                paths = shown.draw(found, folder, "svg")
            write_page(page, shown.parts(found), [picture_at(path) for path in paths])


# ── every kind ───────────────────────────────────────────────────────────────────────────────────────────────────────


def _evaluate() -> _Kind:
    from bnuq.report.plots import draw_figures
    from bnuq.report.terminal import print_report, report_parts
    from bnuq.results.file import read
    from bnuq.results.summary import summary

    def on_page(found: Any, folder: Path | None, without: str) -> Iterator[Any]:
        from bnuq.report.page import page_parts, shown_of
        from bnuq.report.plots import pictures_of

        shown = {} if folder is None else shown_of(pictures_of(found), folder)
        return page_parts(found, shown, without=without)

    return _Kind(
        "bnuq evaluate",
        read,
        summary,
        print_report,
        report_parts,
        draw_figures,
        on_page,
        partial(print_report, full=True),
    )


def _beside() -> _Kind:
    from bnuq.report.comparison import print_beside, report_parts, summary

    def draw(found: Mapping[str, Any], folder: Path, form: Any) -> tuple[Path, ...]:
        from bnuq.report.comparison_plots import draw_figures

        return draw_figures(found, folder, form)

    def on_page(found: Mapping[str, Any], folder: Path | None, without: str) -> Iterator[Any]:
        from bnuq.report.comparison_plots import pictures_of
        from bnuq.report.page import beside_parts, shown_of

        shown = {} if folder is None else shown_of(pictures_of(found), folder)
        return beside_parts(found, shown, without=without)

    return _Kind("several", _evaluate().read, summary, print_beside, report_parts, draw, on_page)


def _several() -> _Kind:
    from bnuq.report.multirun import print_several, report_parts
    from bnuq.results.multirun import read, summary

    return _Kind("several", read, summary, print_several, report_parts)


def _sweep() -> _Kind:
    from bnuq.report.sweep import print_sweep, report_parts, save_figures
    from bnuq.results.sweep import read, summary

    return _Kind("sweep", read, summary, print_sweep, report_parts, save_figures)


def _inspection() -> _Kind:
    from bnuq.report import bn_noise
    from bnuq.report.inspection import page_parts, print_inspection, report_parts, save_figures
    from bnuq.results.inspection import read, summary

    def show(found: Any, stream: TextIO) -> None:
        (bn_noise.print_bn_noise if bn_noise.is_of_noise_alone(found) else print_inspection)(found, stream)

    def parts(found: Any) -> Iterator[Any]:
        return (bn_noise.report_parts if bn_noise.is_of_noise_alone(found) else report_parts)(found)

    def told(found: Any) -> dict[str, Any]:
        return (bn_noise.summary if bn_noise.is_of_noise_alone(found) else summary)(found)

    return _Kind("inspect", read, told, show, parts, save_figures, page_parts)


def _uci() -> _Kind:
    from bnuq.report.reproduction import print_reproduction, report_parts
    from bnuq.results.reproduction import read, summary

    return _Kind("uci", read, summary, print_reproduction, report_parts)


def _toy() -> _Kind:
    from bnuq.report.toy import print_toy, report_parts, save_figure
    from bnuq.results.toy import read, summary

    return _Kind("toy", read, summary, print_toy, report_parts, _one(save_figure))


def _batch_size() -> _Kind:
    from bnuq.report.batch_size import print_batch_sizes, report_parts, save_figure
    from bnuq.results.batch_size import read, summary

    return _Kind("batch-size", read, summary, print_batch_sizes, report_parts, _one(save_figure))


def _pll_over_samples() -> _Kind:
    from bnuq.report.pll_over_samples import print_pll, report_parts, save_figure
    from bnuq.results.pll_over_samples import read, summary

    return _Kind("pll-over-samples", read, summary, print_pll, report_parts, _one(save_figure))


def _one(save: Callable[..., Path]) -> Draw:
    """A kind of result that has a single picture."""
    return lambda found, folder, form: (save(found, folder, kind=form),)


_KINDS: dict[str, Callable[[], _Kind]] = {
    "evaluate": _evaluate,
    "several": _several,
    "sweep": _sweep,
    "inspection": _inspection,
    "reproduce uci": _uci,
    "reproduce toy": _toy,
    "reproduce batch-size": _batch_size,
    "reproduce pll-over-samples": _pll_over_samples,
}
