"""`bnuq report`: show a result file again."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TextIO

import typer

from bnuq.errors import RequestError
from bnuq.files.folders import expanded


def command(
    result: Annotated[Path, typer.Argument(help="A result file of bnuq evaluate or bnuq reproduce.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON, and nothing else.")] = False,
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
    if kind in ("several", "reproduce uci") and figures is not None:
        raise RequestError(f"--figures: {result} is of {kind.removeprefix('reproduce ')} runs, and has no pictures.")
    drawn = _SHOWN[kind](result, as_json, figures, form or "svg")
    if drawn and not as_json:
        from bnuq.report.terminal import print_figures

        print_figures(drawn, sys.stdout)


def _evaluated(path: Path, as_json: bool, figures: Path | None, form: Any) -> tuple[Path, ...]:
    from bnuq.report.terminal import print_report
    from bnuq.results.file import read
    from bnuq.results.summary import summary

    found = read(path)
    drawn: tuple[Path, ...] = ()
    if figures is not None:
        from bnuq.report.figures import draw_figures

        drawn = draw_figures(found, expanded(figures), form)
    _show(found, summary, print_report, as_json)
    return drawn


def _several(path: Path, as_json: bool, figures: Path | None, form: Any) -> tuple[Path, ...]:  # noqa: ARG001 - none
    from bnuq.report.several import print_several
    from bnuq.results.several import read, summary

    _show(read(path), summary, print_several, as_json)
    return ()


def _uci(path: Path, as_json: bool, figures: Path | None, form: Any) -> tuple[Path, ...]:  # noqa: ARG001 - none
    from bnuq.report.reproduction import print_reproduction
    from bnuq.results.reproduction import read, summary

    _show(read(path), summary, print_reproduction, as_json)
    return ()


def _toy(path: Path, as_json: bool, figures: Path | None, form: Any) -> tuple[Path, ...]:
    from bnuq.report import drawing
    from bnuq.report.toy import print_toy, save_figure
    from bnuq.results.toy import read, summary

    found = read(path)
    drawn: tuple[Path, ...] = ()
    if figures is not None:
        drawing.check()
        drawing.make_folder(expanded(figures))
        drawn = (save_figure(found, expanded(figures), kind=form),)
    _show(found, summary, print_toy, as_json)
    return drawn


_SHOWN = {"evaluate": _evaluated, "several": _several, "reproduce uci": _uci, "reproduce toy": _toy}


def _show(found: Any, summary: Callable[[Any], Any], print_it: Callable[[Any, TextIO], None], as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(summary(found), allow_nan=False, indent=2))
    else:
        print_it(found, sys.stdout)
