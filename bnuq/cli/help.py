"""Renders help in panels: common options first, each with its default, never truncated."""

from __future__ import annotations

import io
import re
import shutil
import sys
from collections.abc import Iterable
from typing import Any, get_args

from typer.core import TyperCommand, TyperGroup

from bnuq.config.schema import Panel

_WIDEST = 120
_PANELS = ("Arguments", *get_args(Panel))
_NO_BREAK = "\ue000"  # stands for a space at which a note must not be broken


class Command(TyperCommand):
    """A command that shows its help in panels."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help to `formatter`."""
        panels: dict[str, list[tuple[str, str, str]]] = {name: [] for name in _PANELS}
        for parameter in self.get_params(ctx):
            is_argument = parameter.param_type_name == "argument"
            usual = "Arguments" if is_argument else "Common options"
            row = _argument(parameter) if is_argument else _option(parameter)
            panels[getattr(parameter, "rich_help_panel", None) or usual].append(row)
        formatter.write(_rendered(self, ctx, panels.items()))


class CommandGroup(TyperGroup):
    """A command of commands, which lists each with the first sentence of its help."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Write the help to `formatter`."""
        commands = [
            (name, re.split(r"(?<=[.?])\s", " ".join((command.help or "").split()))[0], "")
            for name in self.list_commands(ctx)
            if (command := self.get_command(ctx, name)) is not None
        ]
        options = [_option(parameter) for parameter in self.get_params(ctx)]
        formatter.write(_rendered(self, ctx, (("Commands", commands), ("Options", options))))


def _argument(parameter: Any) -> tuple[str, str, str]:
    return parameter.metavar or parameter.name.upper(), parameter.help or "", ""


def _option(parameter: Any) -> tuple[str, str, str]:
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


def _rendered(command: Any, ctx: Any, panels: Iterable[tuple[str, list[tuple[str, str, str]]]]) -> str:
    from rich.console import Console
    from rich.padding import Padding
    from rich.rule import Rule
    from rich.table import Table
    from rich.text import Text

    width = min(shutil.get_terminal_size().columns, _WIDEST)
    console = Console(file=io.StringIO(), width=width, force_terminal=True, color_system="standard", highlight=False)
    usage = " ".join((ctx.command_path, *command.collect_usage_pieces(ctx)))
    console.print(Text(f"Usage: {re.sub('[{}]', '', usage)}"))
    for paragraph in re.split(r"\n\s*\n", command.help or ""):
        console.print(Padding(Text(" ".join(paragraph.split())), (1, 2, 0, 2)))
    panels = [(title, rows) for title, rows in panels if rows]
    names = min(max(len(row[0]) for _, rows in panels for row in rows), width * 2 // 5)
    line = "─" if (sys.stdout.encoding or "").lower().startswith("utf") else "-"
    for title, rows in panels:
        grid = Table.grid(padding=(0, 2, 0, 0))
        grid.add_column(width=names, overflow="fold")
        grid.add_column(ratio=1, overflow="fold")
        for name, text, note in rows:
            unbroken = note.replace(" ", _NO_BREAK) if len(note) <= width // 2 else note
            grid.add_row(Text(name, "cyan"), Text.assemble(text, " " * bool(note), (unbroken, "dim")))
        console.print()
        console.print(Rule(Text(title, "bold"), align="left", characters=line, style="dim"))
        console.print(Padding(grid, (0, 0, 0, 2)))
    assert isinstance(console.file, io.StringIO)
    return re.sub(r" +((?:\x1b\[[0-9;]*m)*)$", r"\1", console.file.getvalue(), flags=re.MULTILINE).replace(
        _NO_BREAK, " "
    )
