"""The process of a command: standard output, which is reserved for bnuq, its lines, and what keeps the prints of others
off it; and imports of many modules at once."""

from __future__ import annotations

import contextlib
import gc
import os
import shutil
import sys
import textwrap
from collections.abc import Iterator
from typing import TextIO

import typer

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


# ── imports in a process of bnuq's own ───────────────────────────────────────────────────────────────────────────────

_own_process = False


def own_the_process() -> None:
    """Say that bnuq alone runs in this process."""
    global _own_process
    _own_process = True


@contextlib.contextmanager
def importing() -> Iterator[None]:
    """A block of imports, whose objects stay: in a process of our own nothing that could be freed is sought among all
    that is there, now or later, which takes a twentieth of the time of a small command."""
    if not _own_process:
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
