"""What a CI service takes of a command: marks in its log, a summary of the step; and what it must not take for one."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import typer

if TYPE_CHECKING:
    from bnuq.gate import Verdict


@contextlib.contextmanager
def workflow_commands_disabled(stream: TextIO | None) -> Iterator[None]:
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


def annotate_ci(told: Verdict | str, *, marks: TextIO | None) -> None:
    """What GitHub's runners take of a verdict, or of why there is none: annotations in the log, on the stream `marks`,
    and Markdown in the step's summary."""
    summary = os.environ.get("GITHUB_STEP_SUMMARY")
    if not summary and not _on_github():
        return
    from bnuq.files.writing import append_text
    from bnuq.report.check import annotations, check_markdown, refused_annotation, refused_markdown

    if _on_github() and marks is not None:
        for line in (refused_annotation(told),) if isinstance(told, str) else annotations(told):
            print(line, file=marks, flush=True)
    if summary:
        text = refused_markdown(told) if isinstance(told, str) else check_markdown(told)
        try:
            append_text(Path(summary), text + "\n")
        except OSError as error:
            typer.echo(f"bnuq: the step summary {summary} could not be written: {error.strerror}.", err=True)


def _on_github() -> bool:
    return os.environ.get("GITHUB_ACTIONS") == "true"
