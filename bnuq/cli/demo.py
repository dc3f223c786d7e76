"""`bnuq demo`: evaluates the small network that comes with bnuq, in a folder of the user's to go on from."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Annotated

import typer

from bnuq.cli.derived import SectionOptions, with_options
from bnuq.cli.evaluate import answering
from bnuq.cli.output import Printing
from bnuq.cli.paths import checked_target
from bnuq.cli.progress import progress_of
from bnuq.cli.streams import print_line, stdout
from bnuq.config import Options, resolve
from bnuq.errors import RequestError
from bnuq.files.content import exists, is_file
from bnuq.files.folders import expanded
from bnuq.files.writing import write_bytes

_NAME = "fashion_cnn"  # of the checkpoint, the run file, the result and the page


@with_options(printing=SectionOptions(Printing, "quiet debug"))
def command(
    folder: Annotated[
        str, typer.Argument(help="Folder to write to; created if missing.", metavar="FOLDER")
    ] = "bnuq-demo",
    *,
    printing: Printing,
) -> None:
    """Evaluate a small network that comes with bnuq, on its own data. Network, data, run file, result and report are
    put into a folder, to go on from."""
    place, supplies = expanded(folder), dict(_supplies())
    _check(place, supplies)
    page = place / f"{_NAME}.html"
    if exists(page):
        checked_target(page, "the report", "page", rb"<!DOCTYPE html>.*<title>bnuq ")
    _write(place, supplies)
    run = resolve(str(place / f"{_NAME}.toml"), Options(out=place / f"{_NAME}.bnuq.h5"), folder=Path.cwd())
    progress = progress_of(printing, needs_torch=True)
    from bnuq.evaluation.setup import threads
    from bnuq.report.evaluation import report
    from bnuq.report.render import print_record, write_page
    from bnuq.workflows.evaluate import evaluate

    with threads(run.threads), answering(printing) as answer:
        result = evaluate(run, progress=progress, answer=answer)
    write_page(page, report(result, columns=100))
    if not printing.quiet:
        print_record(report, result, stdout())
        print_line(next_steps(folder))


def _supplies() -> Iterator[tuple[str, bytes]]:
    """The files of the demo: their names and contents."""
    for file in files("bnuq").joinpath("demo").iterdir():
        if file.is_file():
            yield file.name, file.read_bytes()


def _check(place: Path, supplies: Mapping[str, bytes]) -> None:
    """Raise RequestError where something else than these files has their names."""
    if exists(place) and not place.is_dir():
        raise RequestError(f"{place} is a file; name a folder for the demo, or none for bnuq-demo.")
    others = (name for name in sorted(supplies) if os.path.lexists(place / name) and not _holds(place / name, supplies))
    if changed := ", ".join(others):
        raise RequestError(
            f"{place} has {changed}, which differ from the demo's and would be lost. Name another folder: bnuq demo "
            f"FOLDER. Or go on from this one: bnuq evaluate {shlex.quote(str(place / f'{_NAME}.toml'))}"
        )


def _holds(path: Path, supplies: Mapping[str, bytes]) -> bool:
    try:
        return is_file(path) and path.read_bytes() == supplies[path.name]
    except OSError:
        return False


def _write(place: Path, supplies: Mapping[str, bytes]) -> None:
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RequestError(f"{place} cannot be made ({error.strerror}); name another folder.") from error
    for name, content in supplies.items():
        write_bytes(place / name, content, named=False)


def next_steps(folder: str) -> str:
    """What to type after the demo in this folder."""
    commands = {
        f"cd {shlex.quote(folder)}": f"see {_NAME}.html",
        f"bnuq evaluate {_NAME}.toml -b 16 -o b16.h5": "other settings",
    }
    width = max(map(len, commands))
    lines = (f"  {words:{width}}  # {why}" for words, why in commands.items())
    own = "  bnuq init model.pt --arch net.py:FUNCTION --train train.npz --test test.npz"
    return "\n".join(("\nNext:", *lines, "With a network of your own:", own))
