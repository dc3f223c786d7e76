"""Options, derived from the sections that hold each setting's type, bounds, default, help and panel."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, get_origin

import typer
from msgspec import Meta
from typer.models import OptionInfo

from bnuq.cli.paths import split_values
from bnuq.config import section_from
from bnuq.config.schema import Section, choices_of, extra_of, option_name, parts_of, settings_of

Help = str | tuple[str, str]  # help that fits a command better than the section's; or that, and the default


@dataclass(frozen=True)
class SectionOptions:
    """The settings of a section that a command takes, by name; all that have help where none are named."""

    section: type[Section]
    names: str = ""
    help: Mapping[str, Help] = field(default_factory=dict)

    def types(self) -> dict[str, Any]:
        """The type of each setting, by name."""
        every = settings_of(self.section)
        helped = (name for name, known in every.items() if "panel" in extra_of(known.type))
        return {name: every[name].type for name in self.names.split() or helped}


def with_options(
    **groups: SectionOptions | tuple[SectionOptions, ...],
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """The command takes these settings as options. For each keyword it is called with the section, settled; or, where
    there are several or a run file has a say, with a dict of what was given."""
    every = {keyword: (group,) if isinstance(group, SectionOptions) else group for keyword, group in groups.items()}
    types = {
        keyword: {name: kind for of in group for name, kind in of.types().items()} for keyword, group in every.items()
    }
    infos = {name: option(of.section, name, of.help) for group in every.values() for of in group for name in of.types()}
    hints = {name: Annotated[_typed_as(kind), infos[name]] for group in types.values() for name, kind in group.items()}

    def decorated(command: Callable[..., None]) -> Callable[..., None]:
        def called(**given: Any) -> None:
            texts = {name: text for name in hints if (text := given.pop(name)) is not None}
            for keyword, group in types.items():
                said = {name: _read(texts[name], kind) for name, kind in group.items() if name in texts}
                of = groups[keyword]
                given[keyword] = section_from(of.section, said) if isinstance(of, SectionOptions) else said
            command(**given)

        own = [
            known for known in inspect.signature(command, eval_str=True).parameters.values() if known.name not in groups
        ]
        added = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=hint)
            for name, hint in hints.items()
        ]
        called.__doc__ = command.__doc__
        called.__annotations__ = {known.name: known.annotation for known in own} | hints
        called.__signature__ = inspect.Signature([*own, *added])  # pyright: ignore[reportFunctionMemberAccess]
        return called

    return decorated


def option(section: type[Section], name: str, said: Mapping[str, Help] | None = None) -> OptionInfo:
    """The option of a section's setting, with its help or the one that is `said` of it."""
    setting = settings_of(section)[name]
    extra, long = extra_of(setting.type), option_name(name, setting.type)
    text = next(part.description for part in parts_of(setting.type) if isinstance(part, Meta) and part.description)
    default = extra.get("shown", "" if any(setting.default is off for off in (None, (), False)) else setting.default)
    here = (said or {}).get(name, text)
    text, default = here if isinstance(here, tuple) else (here, default)
    return typer.Option(
        *([f"-{extra['short']}"] if "short" in extra else []),
        f"--{long}/--no-{long}" if "no" in extra else f"--{long}",
        help=text,
        show_default=f"{default:g}" if isinstance(default, float) else str(default) or False,
        metavar=extra.get("metavar") or _metavar(setting.type),
        rich_help_panel=extra["panel"],
    )


def _metavar(kind: Any) -> str | None:
    parts, choices = tuple(parts_of(kind)), choices_of(kind)
    if bool in parts:
        return None
    if choices:
        return "|".join(choices) if len(choices) == 2 else "NAME"
    return "LIST" if any(get_origin(part) is tuple for part in parts) else "INTEGER" if int in parts else "NUMBER"


def _typed_as(kind: Any) -> Any:
    """The type that typer reads: texts, but for what is on or off."""
    return bool | None if bool in parts_of(kind) else list[str] | None if "commas" in extra_of(kind) else str | None


def _read(given: Any, kind: Any) -> Any:
    """What was given, as a run file would have it: numbers for texts, where they are some."""
    if isinstance(given, list):
        return split_values(given) if extra_of(kind)["commas"] else tuple(given)
    parts = tuple(parts_of(kind))
    if isinstance(given, str) and any(get_origin(part) is tuple for part in parts):
        return tuple(_number(word.strip(), parts) for word in given.split(","))
    return _number(given, parts) if isinstance(given, str) else given


def _number(text: str, parts: Sequence[Any]) -> int | float | str:
    for kind in (int, float):
        if kind in parts and text.isascii() and "_" not in text:  # Python takes 1_000 and the digits of every script
            with contextlib.suppress(ValueError):
                return kind(text)
    return text
