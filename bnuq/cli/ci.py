"""Output for CI services: annotations in the log, a summary of the step, and protection against injected commands."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

import typer

if TYPE_CHECKING:
    from bnuq.gate import CheckVerdict


@contextlib.contextmanager
def workflow_commands_disabled(stream: TextIO | None) -> Iterator[None]:
    """Text printed on `stream` inside the block is never interpreted as a workflow command by GitHub's runners."""
    if stream is None or not _on_github():
        yield
        return
    import secrets

    word = secrets.token_hex(8)
    print(f"::stop-commands::{word}", file=stream)
    try:
        yield
    finally:
        print(f"::{word}::", file=stream)


def annotate_ci(outcome: CheckVerdict | str, *, marks: TextIO | None) -> None:
    """Report a verdict, or the error in its place, to GitHub's runners: annotations on the stream `marks`, and Markdown
    in the step's summary."""
    summary = os.environ.get("GITHUB_STEP_SUMMARY")
    if not summary and not _on_github():
        return
    from bnuq.files.writing import append_text
    from bnuq.report.check import annotations, report
    from bnuq.report.render import markdown

    if _on_github() and marks is not None:
        for line in annotations(outcome):
            print(line, file=marks, flush=True)
    if summary:
        try:
            append_text(Path(summary), markdown(report(outcome)) + "\n")
        except OSError as error:
            typer.echo(f"bnuq: the step summary {summary} could not be written: {error.strerror}.", err=True)


def _on_github() -> bool:
    return os.environ.get("GITHUB_ACTIONS") == "true"
