"""The `bnuq` command: its subcommands, and the one place where an error becomes a message and an exit code."""

from __future__ import annotations

import contextlib
import functools
import io
import os
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

import bnuq
from bnuq import stopping
from bnuq.cli import (
    check,
    data,
    evaluate,
    export,
    init,
    inspect,
    merge,
    methods,
    metrics,
    precise_bn,
    report,
    sweep,
    verify,
)
from bnuq.cli.failures import DONE, reported
from bnuq.cli.help import Command, CommandGroup
from bnuq.cli.output import print_line, reserved_stdout, stdout_to_stderr
from bnuq.files import apart


def program(help: str, commands: Mapping[str, Callable[..., None]]) -> typer.Typer:  # noqa: A002 - typer's name
    """A command line of these commands, for `run`."""
    typer_app = typer.Typer(
        cls=CommandGroup,
        help=help,
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    for name, command in commands.items():
        typer_app.command(name, cls=Command)(_wrapping_exceptions(command))
    return typer_app


def _wrapping_exceptions(command: Callable[..., None]) -> Callable[..., None]:
    """`command`, with those exceptions wrapped that typer handles itself; it would turn a closed pipe into exit code
    1."""

    @functools.wraps(command)
    def called(*args: Any, **kwargs: Any) -> None:
        try:
            with stdout_to_stderr():
                command(*args, **kwargs)
        except (KeyboardInterrupt, EOFError, OSError) as error:
            raise _WrappedException(error) from error

    return called


app = program(
    "How far can I trust this network's predictions? Uncertainty of trained networks, from BatchNorm and dropout.",
    {
        "evaluate": evaluate.command,
        "init": init.command,
        "sweep-batch-size": sweep.command,
        "inspect": inspect.command,
        "precise-bn": precise_bn.command,
        "export": export.command,
        "check": check.command,
        "merge": merge.command,
        "report": report.command,
        "verify": verify.command,
        "data": data.command,
        "metrics": metrics.command,
        "methods": methods.command,
    },
)


@app.callback(invoke_without_command=True)
def _options(version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False) -> None:
    if version:
        print_line(bnuq.__version__)
        raise typer.Exit


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command `bnuq` and exit, see `run`."""
    run(app, "bnuq", arguments)


def run(app: typer.Typer, name: str, arguments: Sequence[str] | None = None, *, folder: Path | None = None) -> NoReturn:
    """Run a command line and exit: 0 done, 1 `check` found a regression, 2 refused with a message, 3 a bug in bnuq,
    130/143 interrupted. Without `arguments` it owns the process, and file descriptor 1 is reserved for bnuq's output.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    _prepare_streams()
    try:
        with stopping.on_signals(), reserved_stdout(whole_process=arguments is None):
            code = _run(app, name, report.with_page_named([word for word in words if word != "--debug"]))
    except BaseException as error:
        if "--debug" in words and not isinstance(error, (typer.Exit, BrokenPipeError)):
            with contextlib.suppress(OSError):
                traceback.print_exc()
        code = reported(error, folder)
    code = code if isinstance(code, int) else DONE
    if arguments is None:
        _leave(code)
    sys.exit(code)


def _leave(code: int) -> NoReturn:
    """End the process with this exit code, without exit handlers: user code may have registered some that change it."""
    apart.stop()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


_built = functools.cache(typer.main.get_command)  # once in a process, however often it is called


def _run(app: typer.Typer, name: str, arguments: list[str]) -> Any:
    try:
        return _built(app)(arguments, prog_name=name, standalone_mode=False)
    except _WrappedException as wrapped:
        raise wrapped.error from wrapped.error.__cause__


def _prepare_streams() -> None:
    """Replace a closed stream (`>&-`) by one that discards its output; print characters that cannot be encoded as
    question marks."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115, PTH123 - it lives as long as the process
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")


class _WrappedException(BaseException):
    def __init__(self, error: BaseException) -> None:
        self.error = error
