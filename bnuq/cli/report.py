"""`bnuq report`: shows result files again, one or several side by side."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import msgspec
import typer

from bnuq.cli.derived import SectionOptions, with_options
from bnuq.cli.output import Printing, print_result
from bnuq.cli.paths import checked_target
from bnuq.cli.progress import progress_of
from bnuq.cli.streams import importing, print_line, stdout
from bnuq.config.schema import Panel, Positive, Section, setting
from bnuq.errors import RequestError
from bnuq.files.folders import expanded
from bnuq.studies import STUDIES

if TYPE_CHECKING:
    from bnuq.report.document import Report, ReportSection
    from bnuq.report.kinds import Kind


class Forms(Section, frozen=True):
    """The forms in which a report is written, beside what is printed."""

    markdown: Annotated[
        str | None, setting("Write the report as GitHub Markdown; - prints only that.", metavar="FILE", shown="none")
    ] = None
    html: Annotated[
        str | None,
        setting(
            "Write the report as one self-contained HTML page, with its figures; without a FILE, as RESULT.html in the "
            "working folder.",
            metavar="[FILE]",
            shown="none",
        ),
    ] = None
    figures: Annotated[str | None, setting("Draw the figures into this folder.", metavar="DIR", shown="none")] = None
    maps: Annotated[
        str | None,
        setting(
            "Write the pixel maps of a segmentation, stored by evaluate --save-maps, into this folder: those of a set "
            "(--set) by a method (--method).",
            metavar="DIR",
            shown="none",
        ),
    ] = None
    format: Annotated[
        str | None, setting("Format of the figures; of maps: png or npz.", metavar="svg|png", shown="svg; for maps png")
    ] = None
    images: Annotated[bool, setting("Leave the small copies of images out of the page.", no="only", shown="")] = True


_MAP_FORMATS = ("png", "npz")
_CSV = rb"(set,method,index|result,time,address),"  # the header of a file of points, or of a trend
_POINTS: Panel = "Examples of bnuq evaluate"


class PointsSection(Section, frozen=True):
    """Which evaluated points are listed, and the file that all of them are written to."""

    points: Annotated[
        Positive | None,
        setting("List this many examples with the worst score, or with the largest if neither end is worse.", _POINTS),
    ] = None
    by: Annotated[
        str | None,
        setting(
            "The score; an unknown name lists those available.",
            _POINTS,
            metavar="SCORE",
            shown="mutual_information, or variance",
        ),
    ] = None
    set: Annotated[
        str, setting("The set: test, or the name of an OOD set; for --maps, too.", _POINTS, metavar="NAME")
    ] = "test"
    method: Annotated[
        str | None, setting("The method; for --maps, too.", _POINTS, metavar="NAME", shown="the first sampled one")
    ] = None
    csv: Annotated[
        str | None,
        setting("Write all examples of all sets and methods, with scores.", _POINTS, metavar="FILE", shown="none"),
    ] = None
    trend: Annotated[
        bool,
        setting(
            "Show several results in the order in which they were made, with the line through each estimate; --by "
            "METRIC shows that metric alone, --csv writes every estimate of every result."
        ),
    ] = False


@with_options(
    forms=SectionOptions(Forms),
    points=SectionOptions(PointsSection),
    printing=SectionOptions(Printing, "json full debug"),
)
def command(
    results: Annotated[
        list[str],
        typer.Argument(
            help="Result files of any command; two or more of bnuq evaluate are shown side by side, each under its "
            "file's name or as NAME=FILE.",
            metavar="RESULT",
            show_default=False,
        ),
    ],
    *,
    forms: Forms,
    points: PointsSection,
    printing: Printing,
) -> None:
    """Show the report of a result file, as originally printed; several are shown side by side."""
    if forms.html == "":
        stem = Path(results[0].partition("=")[2] or results[0]).name.removesuffix(".h5").removesuffix(".bnuq")
        forms = msgspec.structs.replace(forms, html=f"{stem}.html")
    if points.trend:
        without = {"points": points.points, "method": points.method, "maps": forms.maps, "set": points.set != "test"}
        if given := [name for name, value in without.items() if value]:
            raise RequestError(f"--{given[0]} is for one result, and --trend shows several; leave out one of them.")
        show(lambda: _read_trend(results, points.by), forms, printing, PointsSection(csv=points.csv))
    else:
        show(lambda: _read(results), forms, printing, points)


def show(
    read: Callable[[], tuple[Kind, Any]], forms: Forms, printing: Printing, points: PointsSection | None = None
) -> Any:
    """Print and write the requested forms of the record that `read` returns, and return it."""
    points = points or PointsSection()
    # All refusals come before the result is read and anything is written.
    figures, maps = (None if folder is None else expanded(folder) for folder in (forms.figures, forms.maps))
    _check_points(points, printing.json, maps)
    _check_format(forms.format, figures, maps)
    if not forms.images and forms.html is None:
        raise RequestError("--no-images leaves images out of the page, and none is written; add --html.")
    if printing.json and forms.markdown == "-":
        raise RequestError("--json and --markdown - both go to standard output; give --markdown a file.")
    page = _target(forms.html, "--html", "page", rb"<!DOCTYPE html>.*<title>bnuq ")
    document = _target(None if forms.markdown == "-" else forms.markdown, "--markdown", "report", b"# bnuq ")
    table = _target(points.csv, "--csv", "table of examples", _CSV)
    from bnuq.progress import stage

    progress = progress_of(printing)
    with stage(progress, "Reading the result"):
        kind, record = read()
    from bnuq.files.writing import replaced, write_bytes
    from bnuq.report.document import PathLine
    from bnuq.report.render import draw_pictures, print_paths, print_record, print_report, write_page
    from bnuq.report.render import markdown as in_markdown

    listed, rows = _points_of(record, points)
    report = cache(lambda: _whole(kind.report(record, columns=100), listed, images=forms.images))
    if figures is not None and not report().pictures:
        raise RequestError(f"--figures: this result of {kind.of} has no figures.")
    drawn = () if figures is None else draw_pictures(report(), figures, "png" if forms.format == "png" else "svg")
    mapped = () if maps is None else _written_maps(record, maps, forms.format, points)
    if page is not None:
        with stage(progress, "Writing the page"):
            write_page(page, report())
    if table is not None:
        with stage(progress, "Writing the table of examples"), replaced(table) as file:
            file.writelines(rows)
    if document is not None:
        write_bytes(document, in_markdown(report(), level=1).encode("utf-8", "backslashreplace"))
    # Standard output takes one form: JSON, Markdown, the named points, or the report.
    if printing.json:
        print_line(json.dumps(kind.summary(record), allow_nan=False, indent=2))
        return record
    if forms.markdown == "-":
        print_line(in_markdown(report(), level=1), nl=False)
        return record
    if listed:
        from bnuq.report.points import alone

        print_report(alone(report(), listed[0]), stdout())
    else:
        print_record(kind.report, record, stdout(), full=printing.full)
    print_figures(drawn)
    if maps is not None:
        print_line("")
        print_paths([PathLine(maps, f"Maps ({len(mapped)} files)")], stdout())
    written = ((page, "Page"), (document, "Markdown"), (table, "Points"))
    print_paths([PathLine(path, name) for path, name in written if path is not None], stdout())
    return record


def _whole(report: Report, listed: Sequence[ReportSection], *, images: bool) -> Report:
    """The report with the points that are listed, and where they are wanted its images."""
    from bnuq.report.document import Gallery

    others = (each for each in report.sections if images or not any(isinstance(part, Gallery) for part in each.parts))
    return replace(report, sections=(*listed, *others))


def _target(path: str | None, option: str, what: str, start: bytes) -> Path | None:
    return None if path is None else checked_target(Path(path), option, what, start)


def _check_format(form: str | None, figures: Path | None, maps: Path | None) -> None:
    """Raise RequestError for a format of nothing that is written."""
    if form is None:
        return
    if form not in ("svg", *_MAP_FORMATS):
        raise RequestError(f"--format is {form}; expected svg or png, or of maps {', '.join(_MAP_FORMATS)}.")
    if form not in (*(("svg", "png") if figures else ()), *(_MAP_FORMATS if maps else ())):
        of = {"svg": "figures", "png": "figures and of maps"}.get(form, "maps")
        option = {"svg": "--figures DIR", "png": "--figures DIR or --maps DIR"}.get(form, "--maps DIR")
        raise RequestError(f"--format {form} is a format of {of}, and none are written; add {option}.")


def _written_maps(record: Any, folder: Path, form: str | None, points: PointsSection) -> tuple[Path, ...]:
    from bnuq.records.evaluation import Result
    from bnuq.report.map_files import write_maps

    if not isinstance(record, Result):
        raise RequestError("--maps is for images of one result of bnuq evaluate; name one such file.")
    kind: Any = form if form in _MAP_FORMATS else "png"
    return write_maps(record, folder, kind, set=points.set, method=points.method)


def _check_points(points: PointsSection, as_json: bool, maps: Path | None) -> None:
    """Raise RequestError for options that would have no effect."""
    if points.points is None:
        options = ("by",) if maps is not None else ("by", "set", "method")
        given = [name for name in options if getattr(points, name) != getattr(PointsSection(), name)]
        if given:
            raise RequestError(f"--{given[0]} says which examples are listed, and none are; add --points N.")
    elif as_json:
        raise RequestError(
            "--json prints the summary, which has no examples; write them with --csv FILE, and leave out --points."
        )


def _points_of(record: Any, points: PointsSection) -> tuple[tuple[ReportSection, ...], Iterable[bytes]]:
    """The section that lists points, if it is requested, and the pieces of the CSV file of all points; RequestError for
    a record that has none."""
    if points.points is None and points.csv is None:
        return (), ()
    from bnuq.records.evaluation import Result
    from bnuq.records.points import points_csv
    from bnuq.report.points import points_section
    from bnuq.report.trend import Trend, trend_csv

    if isinstance(record, Trend):
        return (), (trend_csv(record),)

    if not isinstance(record, Result):
        option = "--csv" if points.points is None else "--points"
        raise RequestError(f"{option} is for examples of one result of bnuq evaluate; name one such file.")
    chosen = {"by": points.by, "set": points.set, "method": points.method}
    section = () if points.points is None else (points_section(record, points=points.points, **chosen),)
    return section, () if points.csv is None else points_csv(record)


def check_figures(folder: Path | None) -> None:
    """Make the folder of pictures, if one is named, before anything is computed; errors as of `draw_pictures`."""
    if folder is not None:
        from bnuq.report import drawing

        drawing.make_folder(folder)


def print_study(result: Any, printing: Printing, folder: Path | None = None) -> None:
    """Draw the pictures of a study's result into `folder`, if one is named, and print it."""
    from bnuq.records.as_json import json_of
    from bnuq.report.render import draw_pictures, print_record

    report = STUDIES[result.COMMAND].module("view").report
    drawn = () if folder is None else draw_pictures(report(result), folder)

    def show(record: Any, stream: TextIO) -> None:
        print_record(report, record, stream, full=printing.full)
        print_figures(drawn)

    print_result(result, printing, summary=json_of, show=show)


def print_figures(paths: Sequence[Path]) -> None:
    """Say which pictures were drawn, and where; nothing where none were."""
    from bnuq.report.document import PathLine
    from bnuq.report.render import print_paths

    if paths:
        print_line("")
        print_paths([PathLine(paths[0].parent, "Figures")], stdout(), names=[path.name for path in paths])


# ── which results ────────────────────────────────────────────────────────────────────────────────────────────────────


def _read(arguments: Sequence[str]) -> tuple[Kind, Any]:
    """The result, or several results by name; RequestError for results that cannot be shown side by side."""
    from bnuq.files.apart import start

    results = [_name_and_path(text) for text in arguments]
    start(*(path for _, path in results))
    with importing():
        from bnuq.report.kinds import kind_named, side_by_side
        from bnuq.store.codec import kind_of_result

    if len(results) == 1:
        path = results[0][1]
        kind = kind_of_result(path)
        with importing():
            shown = kind_named(kind)
        return shown, shown.read(path)
    for _, path in results:
        if (kind := kind_of_result(path)) not in ("evaluate", "score"):
            raise RequestError(
                f"{path} is not a result of bnuq evaluate for one run; only those can be shown side by side. Show it "
                f"alone: bnuq report {path}"
            )
    if duplicates := [path for path, times in Counter(path.absolute() for _, path in results).items() if times > 1]:
        raise RequestError(f"{duplicates[0]} is named twice; name each result once.")
    shown = kind_named("evaluate")
    records = {
        name: shown.read(path) for name, path in zip(_names(results), (path for _, path in results), strict=True)
    }
    tasks = {name: str(record.model.get("task")) for name, record in records.items()}
    if len(set(tasks.values())) > 1:
        tasks_of_results = ", ".join(f"{name} of a {task}" for name, task in tasks.items())
        raise RequestError(f"the results share no estimates: {tasks_of_results}. Name results of one task.")
    return side_by_side(), records


def _read_trend(arguments: Sequence[str], metric: str | None) -> tuple[Kind, Any]:
    """The trend of these results, of all estimates that the gate tests, or of one metric."""
    from bnuq.files.apart import start

    paths = dict.fromkeys(_name_and_path(text)[1] for text in arguments)
    start(*paths)
    from bnuq.records.evaluation_file import read
    from bnuq.report.kinds import trend_kind
    from bnuq.report.trend import trend

    return trend_kind(), trend([read(path, log_likelihoods=False) for path in paths], metric)


def _name_and_path(text: str) -> tuple[str | None, Path]:
    """The name given to a result, if any, and its file."""
    name, equals, path = text.partition("=")
    if not equals or not name or Path(text).exists():
        return None, Path(text)
    return name, Path(path)


def _names(results: Sequence[tuple[str | None, Path]]) -> list[str]:
    """A unique name for each result: the given one, or the file's stem, with the folder where stems are equal."""
    stems = [label or path.name.removesuffix(".h5").removesuffix(".bnuq") for label, path in results]
    if duplicates := [name for name, times in Counter(label for label, _ in results if label).items() if times > 1]:
        raise RequestError(f"{duplicates[0]} is the name of two results; give each its own, as NAME=FILE.")
    names: list[str] = []
    for stem, (label, path) in zip(stems, results, strict=True):
        name = stem if label or stems.count(stem) == 1 else f"{path.absolute().parent.name}/{stem}"
        number = 1
        while name in names:
            number += 1
            name = f"{name.partition(' (')[0]} ({number})"
        names.append(name)
    return names
