"""Parses strings in place of tables of settings: `cifar10`, `MEAN/STD`, `pad=4,crop=32,flip` and `NAME=VALUE`."""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import date, time
from typing import Any, Literal

from bnuq.config.normalizations import PUBLISHED
from bnuq.config.runfile import as_toml, table_from, unusable
from bnuq.config.schema import MAX_SIDE, Augment, Normalize, Size, Split
from bnuq.errors import MistakenError, Mistakes
from bnuq.perturbations import ALL, FAMILIES, Perturbation, perturbation

NONE = "none"  # switches off what a run file, or the config beside the weights, sets


def published_name(text: Normalize | str | None) -> str | None:
    """The name in the table of published normalisations that `text` is, whatever its case and hyphens; None for
    another text."""
    name_of_letters = {_letters(name): name for name in PUBLISHED}
    return name_of_letters.get(_letters(text)) if isinstance(text, str) else None


def read_normalize(
    setting: Normalize | str | None, where: str, *, published: bool = True
) -> Normalize | Literal["train"] | None:
    """The normalisation that `setting`, set at `where`, denotes; MistakenError for an invalid string.
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
    raise MistakenError(f"{where} is {as_toml(text)}; expected {expected}.{hint}")


def read_perturbations(texts: Sequence[str], where: str) -> tuple[Perturbation, ...]:
    """The perturbations that KIND:SIZE or KIND@SEVERITY, set at `where`, denote; MistakenError for an invalid
    string, and for one that is named twice."""
    requested: dict[str, Perturbation] = {}
    for text in texts:
        try:
            change = perturbation(text)
        except ValueError as error:
            raise MistakenError(f"{where} is {as_toml(text)}; expected {error}.") from None
        if change.set_name in requested:
            raise MistakenError(f"{where} names {change} twice; expected each kind and size once.")
        requested[change.set_name] = change
    return tuple(requested.values())


def read_families(families: Sequence[str], severities: Sequence[str]) -> tuple[str, ...]:
    """KIND@SEVERITY of each of these families, or "all", at each of these severities; MistakenError, which names the
    options of `bnuq shift`, for those that do not exist."""
    changes = list[str]()
    for family in families or (ALL,):
        try:
            perturbation(f"{family.strip()}@1")
        except ValueError as error:
            close = difflib.get_close_matches(family.strip().lower(), FAMILIES, n=1, cutoff=0.6)
            hint = f"Did you mean {close[0]}?" if close else f"Known are: {', '.join(FAMILIES)}."
            expected = f"the name of a family of corruptions, or file.py:function. {hint}"
            expected = f"{error}." if ":" in family else expected
            raise MistakenError(f"--family is {as_toml(family)}; expected {expected}") from None
        changes += [f"{family.strip()}@{severity}" for severity in severities]
    for change in changes:
        try:
            perturbation(change)
        except ValueError:
            own = change.rpartition("@")[0] not in (*FAMILIES, ALL)
            expected = "numbers above 0" if own else "whole numbers from 1 to 5"
            given, wrong = as_toml(",".join(severities)), as_toml(change.rpartition("@")[2])
            raise MistakenError(
                f"--severities is {given}; expected {expected} with commas, such as 1,3,5; {wrong} is not one."
            ) from None
    if repeated := next((change for change in changes if changes.count(change) > 1), None):
        raise MistakenError(f"{repeated} is named twice; expected each family and each severity once.")
    return tuple(changes)


def read_augment(setting: Augment | str | None, where: str) -> Augment | None:
    """The augmentation that `setting`, set at `where`, denotes: the keys of the section as KEY=VALUE, or as KEY for
    true, with commas. MistakenError for an invalid string."""
    if not isinstance(setting, str):
        return setting
    if setting.strip() == NONE:
        return None
    return table_from(_values(setting, where, "pad=4,crop=32,flip"), Augment, f"{where}: ")


def read_validation(setting: Split | str | None, where: str) -> Split | str | None:
    """The part of a set that `setting`, set at `where`, denotes, or the reference that it is; MistakenError for an
    invalid string."""
    if not isinstance(setting, str) or not setting.startswith("split_of="):
        return setting
    return table_from(_values(setting, where, "split_of=test,fraction=0.5"), Split, f"{where}: ")


def _values(setting: str, where: str, example: str) -> dict[str, Any]:
    """The values of KEY=VALUE,KEY=VALUE; those of keys alone are true."""
    values: dict[str, Any] = {}
    for part in re.split(r",(?![^\[]*\])", setting):  # commas inside [] separate the numbers of a list
        key, equals, text = (word.strip() for word in part.partition("="))
        if not key or (equals and not text):
            raise MistakenError(f"{where} is {as_toml(setting)}; expected keys and values, such as {example}.")
        if key in values:
            raise MistakenError(f"{where} is {as_toml(setting)}, with {key} twice; expected it once.")
        values[key] = _toml_or_text(text) if equals else True
    if (wrong := unusable(values)) is not None:
        raise MistakenError(f"{where}: {wrong}")
    return values


def read_size(setting: Size | None, where: str) -> int | tuple[int, int] | None:
    """The side, or height and width, of `setting`, set at `where`; MistakenError for sizes that no image has."""
    if setting is None or isinstance(setting, int):
        return setting
    height, width = map(int, re.split("[x×]", setting)) if isinstance(setting, str) else setting
    if not (1 <= height <= MAX_SIDE and 1 <= width <= MAX_SIDE):
        raise MistakenError(f"{where} is {as_toml(setting)}; expected height and width of 1 to {MAX_SIDE} pixels.")
    return height, width


def read_arguments(texts: Iterable[str] | Mapping[str, Any]) -> dict[str, Any]:
    """The keyword arguments in NAME=VALUE texts: a value is read as TOML if possible, else as a string. MistakenError
    for all other texts."""
    if isinstance(texts, Mapping):
        return dict(texts)
    mistakes, arguments = Mistakes(), {}
    for text in texts:
        arguments |= mistakes.of(_argument, text) or {}
    mistakes.report(arguments)
    return arguments


def _argument(text: str) -> dict[str, Any]:
    name, equals, value = text.partition("=")
    if not equals or not name.strip().isidentifier():
        raise MistakenError(f"--arch-arg is {as_toml(text)}; expected NAME=VALUE, such as num_classes=10.")
    argument = {name.strip(): _toml_or_text(value.strip())}
    if (wrong := unusable(argument)) is not None:
        raise MistakenError(f"--arch-arg {wrong}")
    return argument


def _toml_or_text(text: str) -> Any:
    with suppress(tomllib.TOMLDecodeError, ValueError, RecursionError):
        document = tomllib.loads(f"value = {text}")
        if document.keys() == {"value"} and not isinstance(document["value"], date | time):
            return document["value"]
    return text


def _numbers(text: str) -> tuple[float, ...]:
    """The numbers in a list with commas; none if it is not such a list."""
    words = [word.strip() for word in text.split(",")]
    try:
        return tuple(float(word) for word in words) if text.isascii() and "_" not in text else ()
    except ValueError:
        return ()


def _letters(text: str) -> str:
    return re.sub(r"[\s_-]", "", text.lower())
