"""What an error is on the command line: a message on standard error, and an exit code."""

from __future__ import annotations

import contextlib
import errno
import sys
from functools import partial
from pathlib import Path

import typer

from bnuq import stopping
from bnuq.cli.ci import workflow_commands_disabled
from bnuq.cli.streams import discard_stdout
from bnuq.errors import BnuqError, device_failure_message, is_device_failure, is_out_of_memory
from bnuq.report.sanitize import printable
from bnuq.surroundings import environment_problem

DONE, REFUSED, FAULT, INTERRUPTED, TERMINATED = 0, 2, 3, 130, 143


def reported(error: BaseException, folder: Path | None = None, *, subject: str = "") -> int:
    """Report `error`, raised in a program whose code is in `folder`, and return its exit code. The message begins with
    what it is about, its `subject`."""
    say = partial(_said, subject)
    if isinstance(error, BnuqError):
        notes = (note[:1].upper() + note[1:] for note in getattr(error, "__notes__", ()))
        return say(" ".join((str(error), *notes)), REFUSED)
    if isinstance(error, KeyboardInterrupt):
        return say(f"interrupted; {_interruption_note(error)}", INTERRUPTED)
    if isinstance(error, stopping.Terminated):
        return say(f"terminated; {_interruption_note(error)}", TERMINATED)
    if isinstance(error, BrokenPipeError):
        discard_stdout()
        return DONE
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO):
        discard_stdout()
        return say(f"the output could not be written: {error.strerror}. Free some space.", REFUSED)
    if callable(show := getattr(error, "show", None)):  # typer's own: an unknown option, a missing value
        with contextlib.suppress(OSError):  # the reader is gone
            show()
        return REFUSED
    from bnuq.user_code import message_of, place_of

    user_code_place = place_of(error, users_only=True, program=folder)
    if not user_code_place and (problem := environment_problem(error)) is not None:
        return say(problem, REFUSED)
    if is_out_of_memory(error):
        return say("out of memory. Use a smaller --chunk-size, or fewer --samples.", REFUSED)
    if is_device_failure(error):
        return say(device_failure_message(error), REFUSED)
    raised = f"{type(error).__name__}: {message_of(error)}"
    if isinstance(error, SystemExit) or user_code_place:
        location = user_code_place or place_of(error) or "an unknown place"
        return say(f"user code ended the run with {raised}, at {location}. Fix that code.", REFUSED)
    return say(
        f"a bug in bnuq: {raised}\nPlease report it{_address()}, with the output of the same command and --debug.",
        FAULT,
    )


def _address() -> str:
    """Where to report: the address in the metadata of the package."""
    from importlib.metadata import PackageNotFoundError, metadata

    try:
        addresses = dict(entry.split(", ", 1) for entry in metadata("bnuq").get_all("Project-URL") or ())
    except (PackageNotFoundError, ValueError):
        return ""
    return f" at {addresses['Issues']}" if "Issues" in addresses else ""


def _interruption_note(error: BaseException) -> str:
    """The note that the stopped command added to the exception."""
    return " ".join(getattr(error, "__notes__", ())) or "an unfinished result is not saved."


def _said(subject: str, message: str, code: int) -> int:
    with contextlib.suppress(OSError), workflow_commands_disabled(sys.stderr):
        typer.echo(f"bnuq: {printable(subject + message)}", err=True)
    return code
