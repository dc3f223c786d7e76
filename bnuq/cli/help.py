"""The commands: take words as they are, and render help in panels: common options first, each with its default, never
truncated."""

from __future__ import annotations

import functools
import itertools
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, get_args

from typer.core import TyperCommand, TyperGroup

_WIDEST = 120
_FEW = 12  # options beside the common ones that are shown at once
_NO_BREAK = "\ue000"  # stands for a space at which a note must not be broken
_BOLD, _DIM, _PLAIN = "\x1b[1m", "\x1b[2m", "\x1b[0m"

Row = tuple[str, str, str]  # of help: the spellings of an option, what it is, and a note on its default


class Command(TyperCommand):
    """A command that shows its help in panels: of many options only the common ones, each in a clause, unless it
    `shows_all`, for `--help all`."""

    shows_all = False

    def get_params(self, ctx: Any) -> list[Any]:
        """The arguments and options, which take their words as they are."""
        return _taking_words(super().get_params(ctx))

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help to `formatter`."""
        panels = self.panels(ctx)
        first = {title: panels[title] for title in ("Arguments", "Common options") if title in panels}
        others = sum(map(len, panels.values())) - sum(map(len, first.values()))
        if self.shows_all or others < _FEW:
            formatter.write(_rendered(self, ctx, panels.items()))
            return
        short = {
            title: [(name, _first_clause(text), note) for name, text, note in rows] for title, rows in first.items()
        }
        formatter.write(_rendered(self, ctx, short.items()))
        formatter.write(f"\n`{ctx.command_path} --help all` explains them in full, and {others} more options.\n")

    def panels(self, ctx: Any) -> dict[str, list[Row]]:
        """The arguments and options by the titles of their panels, in the order of the help."""
        from bnuq.config.schema import Panel  # late: a list of commands needs none

        panels: dict[str, list[Row]] = {name: [] for name in ("Arguments", *get_args(Panel))}
        for parameter in self.get_params(ctx):
            is_argument = parameter.param_type_name == "argument"
            usual = "Arguments" if is_argument else "Common options"
            row = _argument(parameter) if is_argument else _option(parameter)
            panels[getattr(parameter, "rich_help_panel", None) or usual].append(row)
        return {title: rows for title, rows in panels.items() if rows}


class CommandGroup(TyperGroup):
    """A command of commands, which lists each with the first sentence of its help."""

    commands: Any

    def get_params(self, ctx: Any) -> list[Any]:
        """The arguments and options, which take their words as they are."""
        return _taking_words(super().get_params(ctx))

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help to `formatter`."""
        commands = [(name, sentence, "") for name, sentence in self.commands.sentences()]
        options = [_option(each) for each in self.get_params(ctx) if not getattr(each, "hidden", False)]
        formatter.write(_rendered(self, ctx, (("Commands", commands), ("Options", options))))


def _taking_words(parameters: list[Any]) -> list[Any]:
    """The parameters, without what typer makes of texts, flags and paths: for each option, given or not, a validator of
    pydantic, whose import takes a tenth of the time of a small command."""
    for parameter in parameters:
        parameter.process_value = functools.partial(_as_given, parameter)
    return parameters


def _as_given(parameter: Any, context: Any, value: Any) -> Any:
    """The value, or what typer makes of it where that is something else, or a complaint."""
    if value is None and not parameter.required:
        return () if parameter.multiple or parameter.nargs == -1 else None
    kind = getattr(getattr(parameter, "type_descriptor", None), "annotation", None)  # there is one since typer 0.29
    if kind is Path and isinstance(value, str) and (os.access(value, os.R_OK) or not os.access(value, os.F_OK)):
        return Path(value)
    if value and kind in (str, list[str]):
        return value
    return type(parameter).process_value(parameter, context, value)


def first_sentence(text: str) -> str:
    return re.split(r"(?<=[.?])\s", " ".join(text.split()))[0]


def _first_clause(text: str) -> str:
    return re.split(r"[:;.](?=\s)", text)[0].removesuffix(".") + "."


def _argument(parameter: Any) -> Row:
    return parameter.metavar or parameter.name.upper(), parameter.help or "", ""


def _option(parameter: Any) -> Row:
    spellings: list[str] = parameter.opts or parameter.secondary_opts
    names = ", ".join(sorted(spellings, key=len))
    if parameter.opts and parameter.secondary_opts:
        names = names.replace("--", "--[no-]", 1)
    metavar = "" if parameter.is_flag else parameter.metavar or "TEXT"
    shown = parameter.show_default if isinstance(parameter.show_default, str) else ""
    if not shown and parameter.show_default and not parameter.is_flag and parameter.default is not None:
        shown = str(parameter.default)
    note = "[required]" if parameter.required else f"[default: {shown}]" if shown else ""
    return f"{names} {metavar}".rstrip(), parameter.help or "", note


def _rendered(command: Any, ctx: Any, panels: Iterable[tuple[str, list[Row]]]) -> str:
    """The help as text for a terminal: usage, what the command does, and a panel of rows (name, text, note) for each
    title."""
    width = min(shutil.get_terminal_size().columns, _WIDEST)
    usage = " ".join((ctx.command_path, *command.collect_usage_pieces(ctx)))
    coloured = "" if os.environ.get("NO_COLOR") else "\x1b[36m"
    lines = _wrapped(f"Usage: {re.sub('[{}]', '', usage)}", width)
    for paragraph in re.split(r"\n\s*\n", command.help or ""):
        lines += ["", *(f"  {line}" for line in _wrapped(" ".join(paragraph.split()), width - 4))]
    panels = [(title, rows) for title, rows in panels if rows]
    widest = min(max(len(row[0]) for _, rows in panels for row in rows), width * 2 // 5)
    rule = "─" if (sys.stdout.encoding or "").lower().startswith("utf") else "-"
    for title, rows in panels:
        lines += ["", f"{_BOLD}{title}{_PLAIN} {_DIM}{rule * (width - len(title) - 1)}{_PLAIN}"]
        for name, text, note in rows:
            unbroken = note.replace(" ", _NO_BREAK) if len(note) <= width // 2 else note
            beside = [*_with_note(_wrapped(f"{text} {unbroken}".strip(), width - widest - 4), text)]
            names = _wrapped(name, widest)
            for name_line, line in itertools.zip_longest(names, beside, fillvalue=""):
                indent = " " * (widest + 2 - len(name_line))
                lines.append(f"  {coloured}{name_line}{_PLAIN}{indent if line else ''}{line}")
    return "\n".join((*lines, "")).replace(_NO_BREAK, " ")


def _wrapped(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, width, break_on_hyphens=False) or [""]


def _with_note(lines: Iterable[str], text: str) -> Iterator[str]:
    """The lines, of which all that comes after `text` is dim."""
    left = len(text.replace(" ", ""))
    for line in lines:
        letters = itertools.accumulate(letter != " " for letter in line)
        cut = 0 if not left else next((at for at, count in enumerate(letters, 1) if count == left), len(line))
        left = max(0, left - len(line.replace(" ", "")))
        yield line if cut == len(line) else f"{line[:cut]}{_DIM}{line[cut:]}{_PLAIN}"
