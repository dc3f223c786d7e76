"""How a command ends: its result told as it was asked for, and refused where --strict has it so."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Any, TextIO

import typer

from bnuq.config.schema import Section, setting
from bnuq.errors import RequestError
from bnuq.estimates import Caution


class Printing(Section, frozen=True):
    """What a command prints."""

    json: Annotated[bool, setting("Print the summary as JSON, and nothing else.", "Output")] = False
    full: Annotated[bool, setting("Print everything, not one screen of what matters.", "Output")] = False
    quiet: Annotated[bool, setting("Print nothing but errors.", "Output", short="q")] = False
    strict: Annotated[bool, setting("A warning becomes exit code 2.", "Output")] = False
    debug: Annotated[bool, setting("Show the traceback of an error.", "Safety")] = False  # read by main


def print_result(
    result: Any,
    *,
    summary: Callable[[Any], Any],
    show: Callable[[Any, TextIO], None],
    as_json: bool,
    quiet: bool,
    strict: bool,
    cautions: Sequence[Caution] | None = None,
) -> None:
    """Print `result`, which is written already to its path where it has one; RequestError where it has warnings (or
    `cautions`, where they are given) and is not to have any."""
    warnings: Sequence[Caution] = result.cautions if cautions is None else cautions
    refused = strict and bool(warnings)
    if as_json:
        if not refused:
            text = json.dumps(summary(result), allow_nan=False, indent=2)
            say(text.replace("##[", "\\u0023#["))  # the same JSON, and no command to a CI's runner
    elif not quiet:
        show(result, stdout())
    if refused:
        path = getattr(result, "path", None)
        raise strict_error(warnings, "" if path is None else f"; {path} was written and tells them")


def strict_error(cautions: Sequence[Caution], rest: str = "") -> RequestError:
    """The refusal of what has warnings and is not to have any."""
    codes = ", ".join(dict.fromkeys(caution.code for caution in cautions))
    return RequestError(f"--strict: there were warnings ({codes}){rest}.")


_stdout: TextIO | None = None


def stdout() -> TextIO:
    """Where a command writes its report: standard output, which nobody else writes to while a command runs."""
    return _stdout or sys.stdout


def say(text: str, *, nl: bool = True) -> None:
    """Write `text`, and a line's end with `nl`, to standard output."""
    typer.echo(text, file=stdout(), nl=nl)


@contextlib.contextmanager
def reserved_stdout(*, whole_process: bool) -> Iterator[None]:
    """Inside, `stdout` is a stream that code which bnuq runs cannot reach: neither by `sys.stdout` (see
    `stdout_to_stderr`) nor, with `whole_process`, by file descriptor 1.

    That one stays with standard error afterwards: what C code has printed may be flushed as late as the process ends.
    """
    global _stdout
    before, own = _stdout, _own_copy() if whole_process else sys.stdout
    _stdout = own
    try:
        with contextlib.redirect_stdout(own):
            yield
            own.flush()
    finally:
        _stdout = before
        if own is not sys.stdout:
            with contextlib.suppress(OSError):  # nobody reads it
                own.close()


def _own_copy() -> TextIO:
    """A stream to where standard output goes; file descriptor 1 goes to standard error from now on."""
    try:
        kept = os.dup(sys.stdout.fileno())
        if sys.stdout.fileno() == 1:
            os.dup2(sys.stderr.fileno(), 1)
    except (OSError, ValueError):  # no files of the system
        return sys.stdout
    return os.fdopen(kept, "w", encoding=sys.stdout.encoding, errors="replace")


@contextlib.contextmanager
def stdout_to_stderr() -> Iterator[None]:
    """Inside, what is printed without naming a stream goes to standard error."""
    with contextlib.redirect_stdout(sys.stderr):
        yield


def discard_stdout() -> None:
    """What is still buffered for standard output goes nowhere, so that the interpreter's own last flush succeeds."""
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stdout().fileno())
        os.close(nowhere)
