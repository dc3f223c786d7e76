"""The `bnuq` command: its subcommands, and the one place where an error becomes a message and an exit code."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Sequence
from types import FrameType
from typing import Annotated, NoReturn

import typer

import bnuq
from bnuq.cli import data, evaluate, methods, metrics, report
from bnuq.errors import BnuqError

DONE, REFUSED, FAULT, INTERRUPTED, TERMINATED = 0, 2, 3, 130, 143

app = typer.Typer(
    name="bnuq",
    help="How far can I trust this network's predictions? Uncertainty of trained networks, from BatchNorm and dropout.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback(invoke_without_command=True)
def _options(version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False) -> None:
    if version:
        typer.echo(bnuq.__version__)
        raise typer.Exit


app.command("evaluate")(evaluate.command)
app.command("report")(report.command)
app.command("data")(data.command)
app.command("metrics")(metrics.command)
app.command("methods")(methods.command)


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit: 0 done, 2 refused with a message, 3 a fault in bnuq, 130/143 interrupted."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    debug = "--debug" in given
    signal.signal(signal.SIGTERM, _terminated)
    try:
        code = app([word for word in given if word != "--debug"], standalone_mode=False)
        sys.stdout.flush()
    except BnuqError as error:
        if debug:
            raise
        code = _say(str(error), REFUSED)
    except KeyboardInterrupt:
        code = _say("interrupted; nothing was written.", INTERRUPTED)
    except _Terminated:
        code = _say("terminated; nothing was written.", TERMINATED)
    except BrokenPipeError:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115, PTH123 - so that the interpreter's own flush stays silent
        code = DONE
    except typer.Exit as leave:
        code = leave.exit_code
    except Exception as error:
        if debug:
            raise
        code = _usage_or_fault(error)
    sys.exit(code if isinstance(code, int) else DONE)


def _usage_or_fault(error: Exception) -> int:
    show = getattr(error, "show", None)  # typer's own errors: an unknown option, a missing value, Ctrl-C at a prompt
    if callable(show):
        show()
        return REFUSED
    if type(error).__name__ == "Abort":
        return _say("interrupted; nothing was written.", INTERRUPTED)
    if isinstance(error, MemoryError):
        return _say("out of memory. Use a smaller --chunk-size, or fewer --samples.", REFUSED)
    return _say(
        f"a fault in bnuq: {type(error).__name__}: {error}\n"
        "Please report it, with the output of the same command and --debug.",
        FAULT,
    )


def _say(message: str, code: int) -> int:
    with contextlib.suppress(BrokenPipeError):
        typer.echo(f"bnuq: {message}", err=True)
    return code


class _Terminated(BaseException):
    """SIGTERM, as an exception, so that what was begun is cleaned up."""


def _terminated(signum: int, frame: FrameType | None) -> None:  # noqa: ARG001 - a signal handler
    raise _Terminated
