"""Derives options from the sections that hold each setting's type, bounds, default, help and panel."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import Annotated, Any, get_origin

import typer
from msgspec import NODEFAULT, Meta
from typer.models import OptionInfo

from bnuq.cli.paths import split_values
from bnuq.config import section_from
from bnuq.config.schema import Section, choices_of, extra_of, option_name, parts_of, settings_of
from bnuq.frozen import frozen

Help = str | tuple[str, str]  # a command's own help text, or help text and default


@frozen
class SectionOptions:
    """The settings of a section that a command takes as options: those named, or all that have help, less those of
    `without`."""

    section: type[Section]
    names: str = ""
    help: Mapping[str, Help] = field(default_factory=dict)
    without: str = ""

    def types(self) -> dict[str, Any]:
        """The type of each setting, by name."""
        every = settings_of(self.section)
        helped = (name for name, known in every.items() if "panel" in extra_of(known.type))
        names = self.names.split() or helped
        return {name: every[name].type for name in names if name not in self.without.split()}


def with_options(
    **groups: SectionOptions | tuple[SectionOptions, ...],
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Decorate a command that takes these settings as options. For each keyword it is called with the section, or, for
    a tuple of sections, with a dict of the settings that were given."""
    sections = {keyword: (group,) if isinstance(group, SectionOptions) else group for keyword, group in groups.items()}
    types = {
        keyword: {name: kind for section in group for name, kind in section.types().items()}
        for keyword, group in sections.items()
    }
    infos = {
        name: option(section.section, name, section.help)
        for group in sections.values()
        for section in group
        for name in section.types()
    }
    hints = {
        name: Annotated[_typed_as(kind), infos[name]]  # pyrefly: ignore - types that are known at run time
        for group in types.values()
        for name, kind in group.items()
    }

    def decorated(command: Callable[..., None]) -> Callable[..., None]:
        def called(**arguments: Any) -> None:
            texts = {name: text for name in hints if (text := arguments.pop(name)) is not None}
            for keyword, group in types.items():
                values = {name: _read(texts[name], kind) for name, kind in group.items() if name in texts}
                section = groups[keyword]
                arguments[keyword] = (
                    section_from(section.section, values) if isinstance(section, SectionOptions) else values
                )
            command(**arguments)

        parameters = [
            parameter
            for parameter in inspect.signature(command, eval_str=True).parameters.values()
            if parameter.name not in groups
        ]
        added = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=hint)
            for name, hint in hints.items()
        ]
        called.__doc__ = command.__doc__
        called.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters} | hints
        called.__signature__ = inspect.Signature([*parameters, *added])  # pyrefly: ignore
        return called

    return decorated


def option(section: type[Section], name: str, helps: Mapping[str, Help] | None = None) -> OptionInfo:
    """The option of a section's setting, with its own help or that of `helps`."""
    setting = settings_of(section)[name]
    extra, long = extra_of(setting.type), option_name(name, setting.type)
    text = next(part.description for part in parts_of(setting.type) if isinstance(part, Meta) and part.description)
    default = extra.get(
        "shown", "" if any(setting.default is off for off in (None, (), False, NODEFAULT)) else setting.default
    )
    override = (helps or {}).get(name, text)
    text, default = override if isinstance(override, tuple) else (override, default)
    return typer.Option(
        *([f"-{extra['short']}"] if "short" in extra else []),
        {None: f"--{long}", "only": f" /--no-{long}"}.get(extra.get("no"), f"--{long}/--no-{long}"),
        help=text,
        show_default=f"{default:g}" if isinstance(default, float) else str(default) or False,
        metavar=extra.get("metavar") or _metavar(setting.type, long),
        rich_help_panel=extra["panel"],
    )


_WIDEST = 30  # letters of an option with its values in a help of 80 columns


def _metavar(kind: Any, long: str) -> str | None:
    parts, values = tuple(parts_of(kind)), "|".join(choices_of(kind))
    if bool in parts:
        return None
    if values:
        return values if len(f"--{long} {values}") <= _WIDEST else "NAME"
    return "LIST" if any(get_origin(part) is tuple for part in parts) else "INTEGER" if int in parts else "NUMBER"


def _typed_as(kind: Any) -> Any:
    """The type that typer parses: a flag for a bool, otherwise texts."""
    return bool | None if bool in parts_of(kind) else list[str] | None if "commas" in extra_of(kind) else str | None


def _read(value: Any, kind: Any) -> Any:
    """The value in the form of a run file, with numbers in place of numeric texts."""
    if isinstance(value, list):
        return split_values(value) if extra_of(kind)["commas"] else tuple(value)
    parts = tuple(parts_of(kind))
    if isinstance(value, str) and any(get_origin(part) is tuple for part in parts):
        return tuple(_number(word.strip(), parts) for word in value.split(","))
    return _number(value, parts) if isinstance(value, str) else value


def _number(text: str, parts: Sequence[Any]) -> int | float | str:
    for kind in (int, float):
        if kind in parts and text.isascii() and "_" not in text:  # Python would accept 1_000 and non-ASCII digits
            with contextlib.suppress(ValueError):
                return kind(text)
    return text
