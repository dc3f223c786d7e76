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

from bnuq.cli.options import AsJson, Debug, Full
from bnuq.cli.output import say, stdout
from bnuq.cli.paths import checked_target
from bnuq.errors import RequestError
from bnuq.files.folders import expanded

AsMarkdown = Annotated[
    str | None,
    typer.Option(
        "--markdown",
        help="Write the report as Markdown, as GitHub reads it; - prints it, and nothing else.",
        metavar="FILE",
        show_default="none",
    ),
]
AsPage = Annotated[
    Path | None,
    typer.Option(
        "--html",
        help="Write the report as one HTML page that needs nothing else, with its pictures (by matplotlib) in it.",
        metavar="FILE",
        show_default="none",
    ),
]
Figures = Annotated[
    Path | None,
    typer.Option(help="Draw its pictures into this folder; needs matplotlib.", metavar="DIR", show_default="none"),
]
Form = Annotated[
    str | None, typer.Option("--format", help="Of the pictures: svg or png.", show_default="svg", metavar="NAME")
]

Draw = Callable[[Any, Path, Any], tuple[Path, ...]]  # a record's pictures into a folder, of a format


def command(
    results: Annotated[
        list[str],
        typer.Argument(
            help="Result files of bnuq evaluate, sweep-batch-size or inspect; two or more of bnuq evaluate "
            "are shown side by side, each under its file's name or as NAME=FILE.",
            metavar="RESULT",
            show_default=False,
        ),
    ],
    as_json: AsJson = False,
    markdown: AsMarkdown = None,
    html: AsPage = None,
    figures: Figures = None,
    form: Form = None,
    full: Full = False,
    debug: Debug = False,  # noqa: ARG001 - read by main
) -> None:
    """Show the report of a result file, as it was printed when it was made; several are shown side by side."""
    show(lambda: _read(results), as_json=as_json, markdown=markdown, html=html, figures=figures, form=form, full=full)


def show(
    read: Callable[[], tuple[Kind, Any]],
    *,
    as_json: bool,
    markdown: str | None,
    html: Path | None,
    figures: Path | None,
    form: str | None,
    full: bool = False,
) -> None:
    """Print and write what was asked for of the record that `read` gives."""
    if form is not None and form not in ("svg", "png"):
        raise RequestError(f"--format is {form}; expected svg or png.")
    if form is not None and figures is None:
        raise RequestError(f"--format {form} says how pictures are drawn, and none are; add --figures DIR.")
    if as_json and markdown == "-":
        raise RequestError("--json and --markdown - both go to standard output; give --markdown a file.")
    page = None if html is None else checked_target(html, "--html", "page", rb"<!DOCTYPE html>.*<title>bnuq ")
    document = None if markdown in (None, "-") else checked_target(Path(markdown), "--markdown", "report", b"# bnuq ")
    kind, record = read()
    if kind.report is not None:
        _show_report(
            kind,
            record,
            as_json=as_json,
            markdown=document or markdown,
            page=page,
            figures=figures,
            form=form,
            full=full,
        )
        return
    if figures is not None and kind.draw is None:
        raise RequestError(f"--figures: {record.path} is of {kind.of} runs, and has no pictures.")
    drawn = _drawn(kind.draw, record, expanded(figures), form or "svg") if figures is not None and kind.draw else ()
    if page is not None:
        _write_html(kind, record, page)
    if document is not None:
        from bnuq.files.writing import write_bytes

        write_bytes(document, _markdown(kind, record).encode("utf-8", "backslashreplace"))
    if as_json:
        say(json.dumps(kind.summary(record), allow_nan=False, indent=2))
        return
    if markdown == "-":
        say(_markdown(kind, record), nl=False)
        return
    shown = kind.show_full or kind.show if full else kind.show
    assert shown is not None
    shown(record, stdout())
    if drawn:
        from bnuq.report.terminal import print_figures

        print_figures(drawn, stdout())
    written = [(path, what) for path, what in ((page, "Page"), (document, "Markdown")) if path is not None]
    if written:
        from bnuq.report.parts import PathLine, columns_of, draw

        draw((PathLine(path, what) for path, what in written), stdout(), columns_of(stdout()))


def _show_report(
    kind: Kind,
    record: Any,
    *,
    as_json: bool,
    markdown: Path | str | None,
    page: Path | None,
    figures: Path | None,
    form: str | None,
    full: bool,
) -> None:
    from bnuq.report.document import PathLine
    from bnuq.report.render import draw_pictures, print_paths, print_record, write_page
    from bnuq.report.render import markdown as in_markdown

    assert kind.report is not None
    report = kind.report(record, columns=100)
    if figures is not None and not report.pictures:
        raise RequestError(f"--figures: {record.path} is of {kind.of} runs, and has no pictures.")
    drawn = () if figures is None else draw_pictures(report, expanded(figures), "png" if form == "png" else "svg")
    if page is not None:
        write_page(page, report)
    if isinstance(markdown, Path):
        from bnuq.files.writing import write_bytes

        write_bytes(markdown, in_markdown(report, level=1).encode("utf-8", "backslashreplace"))
    if as_json:
        say(json.dumps(kind.summary(record), allow_nan=False, indent=2))
        return
    if markdown == "-":
        say(in_markdown(report, level=1), nl=False)
        return
    print_record(kind.report, record, stdout(), full=full)
    if drawn:
        say("")
        print_paths([PathLine(drawn[0].parent, "Figures")], stdout(), names=[path.name for path in drawn])
    written = [
        PathLine(path, name) for path, name in ((page, "Page"), (markdown, "Markdown")) if isinstance(path, Path)
    ]
    print_paths(written, stdout())


@dataclass(frozen=True)
class Kind:
    """How results of one kind are read, told and drawn.

    `draw` is None where they have no pictures. `on_page` says what their page is made of, of the record, a folder for
    pictures (None without matplotlib) and why there are none; without it, the page is `parts` with all pictures.
    `show_full` is there where `show` leaves things out. `report`, where it is given, stands for all of them.
    """

    of: str
    read: Callable[[Path], Any]
    summary: Callable[[Any], Any]
    show: Callable[[Any, TextIO], None] | None = None
    parts: Callable[[Any], Iterable[Any]] | None = None
    draw: Draw | None = None
    on_page: Callable[[Any, Path | None, str], Iterable[Any]] | None = None
    show_full: Callable[[Any, TextIO], None] | None = None
    report: Callable[..., Any] | None = None


# ── which results ────────────────────────────────────────────────────────────────────────────────────────────────────


def _read(asked: Sequence[str]) -> tuple[Kind, Any]:
    """The one result that was named, or all of them by name; RequestError for what cannot stand side by side."""
    from bnuq.files.apart import start

    start()
    from bnuq.store.codec import kind_of_result

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
        raise RequestError(f"the results share no estimates: {told}. Name results of one task.")
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


def _markdown(shown: Kind, found: Any) -> str:
    from bnuq.report.markdown import markdown

    assert shown.parts is not None
    return markdown(shown.parts(found), level=1)


def _write_html(shown: Kind, found: Any, page: Path) -> None:
    from bnuq.report import drawing
    from bnuq.report.html import picture_at, write_page
    from bnuq.report.parts import Paragraph

    without = drawing.why_not() or ""
    assert shown.parts is not None
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


def _evaluate() -> Kind:
    from bnuq.records.evaluation_file import read
    from bnuq.records.summary import summary
    from bnuq.report.plots import draw_figures
    from bnuq.report.terminal import print_report, report_parts

    def on_page(found: Any, folder: Path | None, without: str) -> Iterator[Any]:
        from bnuq.report.page import page_parts, shown_of
        from bnuq.report.plots import pictures_of

        shown = {} if folder is None else shown_of(pictures_of(found), folder)
        return page_parts(found, shown, without=without)

    return Kind(
        "bnuq evaluate",
        read,
        summary,
        print_report,
        report_parts,
        draw_figures,
        on_page,
        partial(print_report, full=True),
    )


def _beside() -> Kind:
    from bnuq.report.comparison import print_beside, report_parts, summary

    def draw(found: Mapping[str, Any], folder: Path, form: Any) -> tuple[Path, ...]:
        from bnuq.report.comparison_plots import draw_figures

        return draw_figures(found, folder, form)

    def on_page(found: Mapping[str, Any], folder: Path | None, without: str) -> Iterator[Any]:
        from bnuq.report.comparison_plots import pictures_of
        from bnuq.report.page import beside_parts, shown_of

        shown = {} if folder is None else shown_of(pictures_of(found), folder)
        return beside_parts(found, shown, without=without)

    return Kind("several", _evaluate().read, summary, print_beside, report_parts, draw, on_page)


def _several() -> Kind:
    from bnuq.records.multirun import read, summary
    from bnuq.report.multirun import print_several, report_parts

    return Kind("several", read, summary, print_several, report_parts)


def _sweep() -> Kind:
    from bnuq.records.sweep import read, summary
    from bnuq.report.sweep import print_sweep, report_parts, save_figures

    return Kind("sweep", read, summary, print_sweep, report_parts, save_figures)


def _inspection() -> Kind:
    from bnuq.records.inspection import read, summary
    from bnuq.report.inspection import page_parts, print_inspection, report_parts, save_figures

    return Kind("bnuq inspect", read, summary, print_inspection, report_parts, save_figures, page_parts)


_KINDS: dict[str, Callable[[], Kind]] = {
    "evaluate": _evaluate,
    "several": _several,
    "sweep": _sweep,
    "inspection": _inspection,
}
