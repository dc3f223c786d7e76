"""What a CI service takes of a command: marks in its log, a summary of the step; and what it must not take for one."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import typer

if TYPE_CHECKING:
    from bnuq.gate import Verdict


@contextlib.contextmanager
def uninterpreted(stream: TextIO | None) -> Iterator[None]:
    """What is printed on `stream` inside the block is no command to GitHub's runners, whatever texts are in it."""
    if stream is None or not _on_github():
        yield
        return
    word = secrets.token_hex(8)
    print(f"::stop-commands::{word}", file=stream)
    try:
        yield
    finally:
        print(f"::{word}::", file=stream)


def tell_ci(verdict: Verdict, *, marks: TextIO | None) -> None:
    """What GitHub's runners take: annotations in the log, on the stream `marks`, and Markdown in the step's summary."""
    from bnuq.report.check import annotations, check_markdown

    _tell(lambda: annotations(verdict), lambda: check_markdown(verdict), marks=marks)


def tell_ci_refused(message: str, *, marks: TextIO | None) -> None:
    """The same of a check that could not be carried out."""
    from bnuq.report.check import refused_annotation, refused_markdown

    _tell(lambda: (refused_annotation(message),), lambda: refused_markdown(message), marks=marks)


def _tell(lines: Callable[[], Iterable[str]], document: Callable[[], str], *, marks: TextIO | None) -> None:
    if _on_github() and marks is not None:
        for line in lines():
            print(line, file=marks, flush=True)
    if place := os.environ.get("GITHUB_STEP_SUMMARY"):
        try:
            with Path(place).open("a", encoding="utf-8") as file:
                file.write(document() + "\n")
        except OSError as error:
            typer.echo(f"bnuq: the step summary {place} could not be written: {error.strerror}.", err=True)


def _on_github() -> bool:
    return os.environ.get("GITHUB_ACTIONS") == "true"
