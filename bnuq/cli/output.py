"""Prints a command's result in the requested form, and refuses warnings under --strict."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Annotated, Any, TextIO

import msgspec
import typer

from bnuq.config.schema import Section, setting
from bnuq.errors import RequestError
from bnuq.findings import Finding, warnings


class Printing(Section, frozen=True):
    """The options for a command's output."""

    json: Annotated[bool, setting("Print only the summary, as JSON.", "Output")] = False
    full: Annotated[bool, setting("Print the full report, not only one screen.", "Output")] = False
    quiet: Annotated[bool, setting("Print only errors.", "Output", short="q")] = False
    strict: Annotated[bool, setting("Exit with code 2 on any warning.", "Output")] = False
    debug: Annotated[bool, setting("Show the traceback of an error.", "Safety")] = False  # read by main


def without_strict(printing: Printing) -> Printing:
    return msgspec.structs.replace(printing, strict=False)


def print_result(
    result: Any,
    printing: Printing,
    *,
    summary: Callable[[Any], Any],
    show: Callable[[Any, TextIO], None],
    findings: Sequence[Finding] | None = None,
) -> None:
    """Print `result`, which was already written to its path, if it has one. With --strict, RequestError where it has
    warnings (or among `findings`, where they are given)."""
    warned = warnings(result.findings if findings is None else findings)
    refused = printing.strict and bool(warned)
    if printing.json:
        if not refused:
            print_json(summary(result))
    elif not printing.quiet:
        show(result, stdout())
    if refused:
        path = getattr(result, "path", None)
        raise strict_error(warned, "" if path is None else f"; {path} was written and holds them")


def with_resuming_as_warning(result: Any, *, strict: bool = True) -> Any:
    """The record of a run, where `strict` with a warning in place of a note that it was resumed."""
    if not strict:
        return result
    findings = (
        replace(finding, severity="warning") if finding.code in _RESUMED else finding for finding in result.findings
    )
    return replace(result, findings=tuple(findings))


_RESUMED = ("evaluation-continued", "sweep-continued", "runs-reused")


def print_json(value: Any) -> None:
    """Print a value as JSON."""
    text = json.dumps(value, allow_nan=False, indent=2)
    print_line(text.replace("##[", "\\u0023#["))  # equivalent JSON, but not a command to a CI runner


def strict_error(warned: Sequence[Finding], consequence: str = "") -> RequestError:
    """The error for warnings under --strict."""
    codes = ", ".join(dict.fromkeys(finding.code for finding in warned))
    return RequestError(f"--strict: there were warnings ({codes}){consequence}.")


_stdout: TextIO | None = None


def stdout() -> TextIO:
    """The stream for reports: standard output, reserved for bnuq while a command runs."""
    return _stdout or sys.stdout


def print_line(text: str, *, nl: bool = True) -> None:
    """Write `text`, with a newline if `nl`, to standard output."""
    typer.echo(text, file=stdout(), nl=nl)


def print_entry(name: str, text: str) -> None:
    """Write `name` and `text` on one line; on a terminal wrapped at its width, the text beside the name, or below it
    where there is no room. No word is broken: paths stay whole."""
    stream = stdout()
    columns = shutil.get_terminal_size().columns if stream.isatty() else 0
    if 0 < columns < len(name) + _LEAST_BESIDE:
        if name.strip():
            print_line(name.rstrip())
        name = "    " if name else ""
    wrapped = textwrap.wrap(
        text,
        columns or sys.maxsize,
        initial_indent=name,
        subsequent_indent=" " * len(name),
        break_long_words=False,
        break_on_hyphens=False,
    )
    print_line("\n".join(wrapped))


_LEAST_BESIDE = 30  # columns for a text beside a name


@contextlib.contextmanager
def reserved_stdout(*, whole_process: bool) -> Iterator[None]:
    """Inside the block, `stdout` is a stream that user code cannot reach: neither by `sys.stdout` (see
    `stdout_to_stderr`) nor, with `whole_process`, by file descriptor 1.

    Afterwards file descriptor 1 stays redirected to standard error: C code may flush its output when the process ends.
    """
    global _stdout
    before, stream = _stdout, _duplicated_stdout() if whole_process else sys.stdout
    _stdout = stream
    try:
        with contextlib.redirect_stdout(stream):
            yield
            stream.flush()
    finally:
        _stdout = before
        if stream is not sys.stdout:
            with contextlib.suppress(OSError):  # the reader is gone
                stream.close()


def _duplicated_stdout() -> TextIO:
    """A duplicate of standard output; file descriptor 1 itself is redirected to standard error."""
    try:
        descriptor = os.dup(sys.stdout.fileno())
        if sys.stdout.fileno() == 1:
            os.dup2(sys.stderr.fileno(), 1)
    except (OSError, ValueError):  # not a file of the operating system
        return sys.stdout
    return os.fdopen(descriptor, "w", encoding=sys.stdout.encoding, errors="replace")


@contextlib.contextmanager
def stdout_to_stderr() -> Iterator[None]:
    """Redirect prints without an explicit stream to standard error inside the block."""
    with contextlib.redirect_stdout(sys.stderr):
        yield


def discard_stdout() -> None:
    """Discard what is still buffered for standard output, so that the interpreter's final flush succeeds."""
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stdout().fileno())
        os.close(nowhere)
