"""Reads the texts that stand for tables of settings: `cifar10`, `MEAN/STD`, `pad=4,crop=32,flip` and `NAME=VALUE`."""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import date, time
from typing import Any, Literal

import msgspec

from bnuq.config.normalizations import PUBLISHED
from bnuq.config.runfile import as_toml, complaint_about, unusable
from bnuq.config.schema import Augment, Normalize
from bnuq.errors import RequestError

NONE = "none"  # switches off what a run file sets


def published_name(text: Normalize | str | None) -> str | None:
    """The name in the table of published normalisations that `text` is, whatever its case and hyphens; None for
    another text."""
    by_letters = {_letters(name): name for name in PUBLISHED}
    return by_letters.get(_letters(text)) if isinstance(text, str) else None


def read_normalize(
    setting: Normalize | str | None, where: str, *, published: bool = True
) -> Normalize | Literal["train"] | None:
    """The normalisation that `setting`, set at `where`, stands for; RequestError for a text that stands for none.
    Names are known where `published`."""
    if not isinstance(setting, str):
        return setting
    text = setting.strip()
    if text in ("train", NONE):
        return "train" if text == "train" else None
    if published and (name := published_name(text)) is not None:
        mean, std = PUBLISHED[name]
        return Normalize(mean=mean, std=std)
    numbers = [_numbers(part) for part in text.split("/")]
    if len(numbers) == 2 and all(numbers):
        return Normalize(mean=numbers[0], std=numbers[1])
    expected = f"train, {NONE} or MEAN/STD, such as 0.5/0.25 or 0.49,0.48,0.45/0.25,0.24,0.26"
    hint = ""
    if published:
        expected += f", or one of {', '.join(PUBLISHED)}"
        close = difflib.get_close_matches(text.lower(), PUBLISHED, n=1)
        hint = f" Did you mean {close[0]}?" if close else ""
    raise RequestError(f"{where} is {as_toml(text)}; expected {expected}.{hint}")


def read_augment(setting: Augment | str | None, where: str) -> Augment | None:
    """The augmentation that `setting`, set at `where`, stands for: the keys of the section as KEY=VALUE, or as KEY for
    true, with commas. RequestError for a text that stands for none."""
    if not isinstance(setting, str):
        return setting
    if setting.strip() == NONE:
        return None
    values: dict[str, Any] = {}
    for part in re.split(r",(?![^\[]*\])", setting):  # commas inside [] separate the numbers of a list
        key, equals, text = (word.strip() for word in part.partition("="))
        if not key or (equals and not text):
            raise RequestError(f"{where} is {as_toml(setting)}; expected keys and values, such as pad=4,crop=32,flip.")
        if key in values:
            raise RequestError(f"{where} is {as_toml(setting)}, with {key} twice; expected it once.")
        values[key] = _toml_or_text(text) if equals else True
    if (wrong := unusable(values)) is not None:
        raise RequestError(f"{where}: {wrong}")
    try:
        return msgspec.convert(values, Augment, strict=True)
    except msgspec.ValidationError as error:
        raise RequestError(f"{where}: {complaint_about(error, values, Augment)}") from error


def read_arguments(texts: Iterable[str] | Mapping[str, Any]) -> dict[str, Any]:
    """The keyword arguments in NAME=VALUE texts: a value is read as TOML where it is, else as a text. RequestError for
    other texts."""
    if isinstance(texts, Mapping):
        return dict(texts)
    arguments: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.strip().isidentifier():
            raise RequestError(f"--arch-arg is {as_toml(text)}; expected NAME=VALUE, such as num_classes=10.")
        arguments[name.strip()] = _toml_or_text(value.strip())
    if (wrong := unusable(arguments)) is not None:
        raise RequestError(f"--arch-arg {wrong}")
    return arguments


def _toml_or_text(text: str) -> Any:
    with suppress(tomllib.TOMLDecodeError, ValueError, RecursionError):
        document = tomllib.loads(f"value = {text}")
        if document.keys() == {"value"} and not isinstance(document["value"], date | time):
            return document["value"]
    return text


def _numbers(text: str) -> tuple[float, ...]:
    """The numbers in a list with commas; none where it is no such list."""
    words = [word.strip() for word in text.split(",")]
    try:
        return tuple(float(word) for word in words) if text.isascii() and "_" not in text else ()
    except ValueError:
        return ()


def _letters(text: str) -> str:
    return re.sub(r"[\s_-]", "", text.lower())
