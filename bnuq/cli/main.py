"""The `bnuq` command: its subcommands, and the one place where an error becomes a message and an exit code."""

from __future__ import annotations

import contextlib
import functools
import importlib
import io
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple, NoReturn

import typer

import bnuq
from bnuq import stopping
from bnuq.cli.failures import DONE, REFUSED, reported
from bnuq.cli.help import Command, CommandGroup, first_sentence
from bnuq.cli.streams import importing, own_the_process, print_line, reserved_stdout, stdout_to_stderr
from bnuq.errors import NoModelError, RequestError
from bnuq.files.folders import strictly
from bnuq.studies import STUDIES


class Later(NamedTuple):
    """A command that is imported when it is asked for, from a module of `bnuq`."""

    module: str

    @property
    def help(self) -> str:
        """The docstring of its function, without the import."""
        path = Path(bnuq.__file__).parent / f"{self.module.replace('.', '/')}.py"
        return path.read_text(encoding="utf-8").partition("\ndef command(")[2].split('"""')[1]


class _Commands(Mapping[str, Any]):
    """Commands by their names. Each is built when it is asked for, as the many options of one take a while."""

    def __init__(self, commands: Mapping[str, Callable[..., None] | Later]) -> None:
        self._commands = commands

    def __getitem__(self, name: str) -> Any:
        command = self._commands[name]
        if isinstance(command, Later):
            with importing():
                command = importlib.import_module(f"bnuq.{command.module}").command
        app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
        app.command(name, cls=Command)(_wrapping_exceptions(command, name))
        return typer.main.get_command(app)

    def __iter__(self) -> Iterator[str]:
        return iter(self._commands)

    def __len__(self) -> int:
        return len(self._commands)

    def sentences(self) -> Iterator[tuple[str, str]]:
        """Each command with the first sentence of its help."""
        for name, command in self._commands.items():
            yield name, first_sentence(command.help if isinstance(command, Later) else command.__doc__ or "")


def program(
    help: str,  # noqa: A002 - typer's name
    commands: Mapping[str, Callable[..., None] | Later],
    options: Callable[..., None] = lambda: None,
    *,
    completes: bool = False,
) -> Any:
    """A command line of these commands, and of the options that this function takes, for `run`; a shell `completes` it
    with typer's options."""
    typer_app = typer.Typer(
        cls=CommandGroup,
        help=help,
        callback=options,
        invoke_without_command=True,
        no_args_is_help=True,
        add_completion=completes,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    group = typer.main.get_command(typer_app)
    group.commands = _Commands(commands)  # type: ignore[attr-defined]
    return group


def _wrapping_exceptions(command: Callable[..., None], name: str) -> Callable[..., None]:
    """`command`, whose `name` an error shows where no network was named, with those exceptions wrapped that typer
    handles itself, or raises after a completion; it would turn a closed pipe into exit code 1."""

    @functools.wraps(command)
    def called(*args: Any, **kwargs: Any) -> None:
        try:
            with stdout_to_stderr(), strictly(strict=bool(kwargs.get("strict"))):
                command(*args, **kwargs)
        except NoModelError as error:
            raise NoModelError(f"{error}: bnuq {name} model.pt") from error
        except (KeyboardInterrupt, EOFError, OSError, SystemExit) as error:
            raise _WrappedException(error) from error

    return called


def _options(
    version: Annotated[bool, typer.Option("--version", help="Print the versions of bnuq, torch and Python.")] = False,
) -> None:
    if version:
        python = ".".join(map(str, sys.version_info[:3]))
        print_line(f"bnuq {bnuq.__version__}, torch {_installed('torch')}, Python {python}")
        raise typer.Exit


def _installed(package: str) -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


app = program(
    "How far can I trust this network's predictions? Uncertainty of trained networks, from BatchNorm and dropout.",
    {
        "demo": Later("cli.demo"),
        "evaluate": Later("cli.evaluate"),
        **{name: Later(f"studies.{study.folder}.command") for name, study in STUDIES.items()},
        "report": Later("cli.report"),
        "data": Later("cli.data"),
        "metrics": Later("cli.metrics"),
        "methods": Later("cli.methods"),
    },
    _options,
    completes=True,
)


def _with_all_help(words: Sequence[str]) -> list[str]:
    """The words of a command line without the `all` behind `--help`, which a help then heeds."""
    asks = [before in ("--help", "-h") and word == "all" for before, word in zip(["", *words], words, strict=False)]
    Command.shows_all = any(asks)
    return [word for word, is_all in zip(words, asks, strict=True) if not is_all]


def _with_page_named(words: Sequence[str]) -> list[str]:
    """The words of a command line, of which an --html at the end or before another option has an empty value."""
    return [
        f"{word}=" if word == "--html" and following.startswith("-") and following != "-" else word
        for word, following in zip(words, [*words[1:], "--"], strict=False)
    ]


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command `bnuq` and exit, see `run`."""
    run(app, "bnuq", arguments)


def run(app: Any, name: str, arguments: Sequence[str] | None = None, *, folder: Path | None = None) -> NoReturn:
    """Run a command line and exit: 0 done, 1 `check` found a regression, 2 refused with a message, 3 a bug in bnuq,
    130/143 interrupted. Without `arguments` it owns the process, and file descriptor 1 is reserved for bnuq's output.
    """
    words = _with_all_help(sys.argv[1:] if arguments is None else arguments)
    _prepare_streams()
    if arguments is None:
        own_the_process()
    try:
        with stopping.on_signals(), reserved_stdout(whole_process=arguments is None):
            code = _run(app, name, _with_page_named([word for word in words if word != "--debug"]))
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
    if (apart := sys.modules.get("bnuq.files.apart")) is not None:
        apart.stop()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


def _run(app: Any, name: str, arguments: list[str]) -> Any:
    if any("\0" in word for word in arguments):  # of programs that call `main`: no shell passes one
        raise RequestError("a word of the command line has a NUL character in it; expected none.")
    completing = arguments[:1] in (["--install-completion"], ["--show-completion"])
    try:
        code = app(arguments, prog_name=name, standalone_mode=False)
    except _WrappedException as wrapped:
        raise wrapped.error from wrapped.error.__cause__
    except SystemExit as done:  # of typer's completion
        code = done.code and REFUSED
    except (OSError, ValueError) as error:
        if not completing or isinstance(error, BrokenPipeError):
            raise
        raise RequestError(f"completion cannot be installed: {error}") from error
    return REFUSED if completing and code else code  # typer has 1 for a shell that it does not know


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
