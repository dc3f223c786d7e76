"""Reads the run file and checks it key by key, with errors that name the key."""

from __future__ import annotations

import datetime
import difflib
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from bnuq.config.earlier_versions import INSTEAD
from bnuq.config.schema import RunFile, Section, choices_of, extra_of, option_name, parts_of, settings_of
from bnuq.errors import MistakenError, Mistakes, RequestError

File = TypeVar("File", bound=RunFile)
AnySection = TypeVar("AnySection", bound=Section)


def read_run_file(path: Path) -> RunFile:
    """The checked run file; RequestError with file, key, value and expectation. MistakenError lists all settings that
    are wrong."""
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise RequestError(f"{path}: cannot be read: {error.strerror}.") from error
    if len(content) > _MAX_BYTES:
        raise RequestError(f"{path} has more than {_MAX_BYTES:,} bytes; expected a run file.")
    if re.search(_TOO_DOTTED, content):  # tomllib's time and memory are quadratic in the number of dots
        raise RequestError(f"{path}: {_line_of(content, _TOO_DOTTED)} nests too deep; expected a run file.")
    try:
        document = tomllib.loads(content.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise RequestError(f"{path} is not a TOML file: {error}.") from error
    except RecursionError:
        raise RequestError(f"{path}: {_line_of(content, _TOO_DEEP)} nests too deep; expected a run file.") from None
    except ValueError:  # of Python's int
        raise RequestError(
            f"{path}: {_line_of(content, _TOO_MANY_DIGITS)} holds a number of thousands of digits; expected a smaller "
            "number."
        ) from None
    mistakes = Mistakes()
    run_file = mistakes.of(converted, document, path, RunFile)
    mistakes.of(_check_no_dates, run_file.model.arch_args, path)
    mistakes.report(run_file)
    return run_file


_MAX_BYTES = 2**20  # bytes of a run file
_MOST_UNKNOWN = 8  # keys of a table that are named as not known
_MAX_DEPTH = 32  # tables and lists within each other
_TOO_DOTTED = rb"(?:\.[ \t]*[\w\"'-]{1,100}[ \t]*){50}"
_TOO_DEEP, _TOO_MANY_DIGITS = rb"[\[{]{50}", rb"\d[\d_]{4000}"


def _line_of(content: bytes, pattern: bytes) -> str:
    """The number of the first line where `pattern` matches, and the key there."""
    for number, line in enumerate(content.splitlines(), start=1):
        if (match := re.search(pattern, line)) is not None:
            key = line[: match.start()].partition(b"=")[0].decode(errors="replace").strip()
            return f"line {number} ({as_toml(key)[1:-1]})" if key else f"line {number}"
    return "it"


def unusable(document: dict[str, Any]) -> str | None:
    """A sentence on the first value that cannot be used, with its key; None if all can."""
    pending: list[tuple[str, Any, int]] = [("", document, 0)]
    while pending:
        key, value, depth = pending.pop()
        if isinstance(value, int) and not -(2**63) <= value < 2**63:
            return f"{key} is {as_toml(value)}; expected a smaller number."
        if isinstance(value, str) and "\0" in value:
            return f"{key} is {value[:80]!r}, with a NUL character in it; expected none."
        if isinstance(value, dict | list):
            if depth > _MAX_DEPTH:
                return f"{key[:80]}… nests deeper than {_MAX_DEPTH} tables and lists; expected fewer."
            items = value.items() if isinstance(value, dict) else enumerate(value)
            for name, inner in items:
                position = f"[{name}]" if isinstance(value, list) else f".{name}"
                pending.append((f"{key}{position}".lstrip("."), inner, depth + 1))
    return None


def _dates(value: Any, key: str) -> Iterator[tuple[str, Any]]:
    """The dates and times in a value of a TOML document, the only types that JSON does not have."""
    if isinstance(value, dict | list):
        for name, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _dates(inner, f"{key}.{name}" if isinstance(value, dict) else f"{key}[{name}]")
    elif isinstance(value, datetime.date | datetime.time):
        yield key, value


def _check_no_dates(arguments: dict[str, Any], path: Path) -> None:
    if wrong := [f"{key} is {value}" for key, value in _dates(arguments, "model.arch_args")]:
        remedy = "a date or a time; write it as a text, which the factory takes."
        raise MistakenError(*(f"{path}: {text}, {remedy}" for text in wrong))


def converted(document: dict[str, Any], path: Path, kind: type[File]) -> File:
    """The document as a record of this kind; MistakenError that lists all that is wrong, with file, key, value and
    expectation."""
    if wrong := unusable(document):
        raise RequestError(f"{path}: {wrong}")
    return table_from(document, kind, f"{path}: ")


def table_from(document: Mapping[str, Any], kind: type[AnySection], place: str) -> AnySection:
    """The document, a file or a table, as a section of this kind; MistakenError lists all that is wrong, each behind
    its `place`; of many keys that are not known the first, and how many there are."""
    document, count = _with_few_unknown(document, kind)
    try:
        return _checked(document, kind, lambda error, rest: place + complaint_about(error, rest, kind))
    except MistakenError as error:
        more = [f"{place}{count} more keys are not known."] if count else []
        raise MistakenError(*error.mistakes, *more, rest=error.rest) from None


def _with_few_unknown(document: Mapping[str, Any], kind: type[Section]) -> tuple[dict[str, Any], int]:
    """The document without keys that are not known beyond the first of each table, and their number."""
    known = settings_of(kind)
    unknown = [key for key in document if key not in known]
    rest, count = {key: document[key] for key in document if key in known or key in unknown[:_MOST_UNKNOWN]}, 0
    for key in rest.keys() & known:
        sections = [part for part in parts_of(known[key].type) if isinstance(part, type) and issubclass(part, Section)]
        if sections and isinstance(rest[key], dict):
            rest[key], more = _with_few_unknown(rest[key], sections[0])
            count += more
    return rest, count + max(0, len(unknown) - _MOST_UNKNOWN)


def _checked(
    document: Mapping[str, Any],
    kind: type[AnySection],
    complaint: Callable[[msgspec.ValidationError, dict[str, Any]], str],
) -> AnySection:
    """The document as a section of this kind; MistakenError has the `complaint` about everything that is wrong, and
    the section of all else."""
    mistakes: list[str] = []
    rest = {key: dict(value) if isinstance(value, dict) else value for key, value in document.items()}
    while True:
        try:
            section = msgspec.convert(rest, kind, strict=True)
        except msgspec.ValidationError as error:
            mistakes.append(complaint(error, rest))
            if not _without_wrong(error, rest):
                raise RequestError(str(MistakenError(*mistakes))) from None
        else:
            if mistakes:
                raise MistakenError(*mistakes, rest=section)
            return section


def _without_wrong(error: msgspec.ValidationError, document: dict[str, Any]) -> bool:
    """Take the setting that the error is about out of the document, so that the rest can be checked; False if that
    is the whole document."""
    complaint, _, where = str(error).partition(" - at `")
    path = [part for part in re.sub(r"\[.*", "", where.rstrip("`").removeprefix("$")).split(".") if part]
    if unknown := re.fullmatch(r"Object contains unknown field `(.*)`", complaint):
        path.append(unknown[1])
    if not path:
        return False
    *parents, last = path[:2]  # a section, or a setting of one
    table = document
    for part in parents:
        table = table[part]
    return table.pop(last, None) is not None


def section_from(kind: type[AnySection], settings: Mapping[str, Any]) -> AnySection:
    """A section, or a request of several, of the settings that were `settings`; MistakenError names the options of all
    that are wrong."""

    def complaint(error: msgspec.ValidationError, rest: dict[str, Any]) -> str:
        wrong, _, where = str(error).partition(" - at `$.")
        key = re.sub(r"\[.*", "", where.rstrip("`"))
        value: Any = rest
        for part in key.split("."):
            value = value[part]
        expected = _expected(wrong, hint := _hint(kind, key), " or ")
        return f"--{option_name(key.rpartition('.')[2], hint)} is {_typed(value)}; expected {expected}."

    return _checked(settings, kind, complaint)


def _typed(value: Any) -> str:
    """A value as it is typed on the command line, shortened if it is long."""
    values = value if isinstance(value, list | tuple) else (value,)
    shown = (as_toml(part) if isinstance(part, int) else part for part in values)
    text = ",".join(f"{part:g}" if isinstance(part, float) else part for part in shown)
    return as_toml(text)[1:-1] if text.strip() else as_toml(text)


def complaint_about(error: msgspec.ValidationError, document: dict[str, Any], kind: type[Section]) -> str:
    """A sentence on the error in a document of this kind: the key, its value, and what was expected."""
    complaint, _, where = str(error).partition(" - at `")
    key = where.rstrip("`").removeprefix("$").lstrip(".")
    value: Any = document
    if key.endswith("[...]"):  # a value of a table whose keys are free
        return (
            f"{key.removesuffix('[...]')} has a value that is {complaint.partition(', got ')[2].strip('`')}; expected "
            f"{complaint.removeprefix('Expected ').partition(', got ')[0].strip('`').replace(' | ', ' or ')}."
        )
    for part in re.findall(r"[^.\[\]]+", key):
        value = value[int(part)] if isinstance(value, list) else value.get(part)
    if unknown := re.fullmatch(r"Object contains unknown field `(.*)`", complaint):
        return _unknown_key(key, unknown[1], kind)
    if missing := re.fullmatch(r"Object missing required field `(.*)`", complaint):
        return f"{key}.{missing[1]} is missing; it has no default."
    shown = " is a table" if isinstance(value, dict) else f" is {as_toml(value)}"
    return f"{key or 'the file'}{shown}; expected {_expected(complaint, _hint(kind, key), ', ')}."


def _expected(complaint: str, hint: Any, last: str) -> str:
    """What was expected, by what msgspec says of a value for this type; `last` stands before the last of its texts."""
    if known := extra_of(hint).get("expected"):
        return known
    if complaint.startswith("Invalid enum value"):
        *texts, final = choices_of(hint)
        return f"{'one of ' if last == ', ' else ''}{', '.join(texts)}{last}{final}" if texts else f'"{final}"'
    expected = complaint.removeprefix("Expected ").partition(", got ")[0]
    expected = expected.removesuffix(" | null`") + "`" if expected.endswith(" | null`") else expected
    for term, words in _WORDS.items():
        expected = re.sub(rf"`?\b{term}\b`?", words, expected)
    for term, words in ((">=", "of at least"), ("<=", "of at most"), (">", "above"), ("<", "below")):
        expected = expected.replace(f" {term} ", f" {words} ")
    return expected.replace(" | ", " or ").replace("`", "")


def _unknown_key(table: str, key: str, kind: type[Section]) -> str:
    known = list(settings_of(_table(_hint(kind, table))))
    key = key if len(key) <= 80 else f"{key[:79]}…"
    close = difflib.get_close_matches(key, known, n=1, cutoff=0.7)
    hint = f"Did you mean {close[0]}?" if close else f"Known are: {', '.join(known)}."
    name = ".".join(filter(None, (table, key)))
    return f"{name} is not known. {INSTEAD.get(name, hint)}"


def _hint(kind: type[Section], key: str) -> Any:
    """The type of the setting at a key."""
    hint: Any = kind
    for part in re.findall(r"[^.\[\]]+", re.sub(r"\[.*", "", key)):
        hint = settings_of(_table(hint))[part].type
    return hint


def _table(hint: Any) -> type[Section]:
    """The section that a type consists of or contains."""
    return next(part for part in parts_of(hint) if isinstance(part, type) and issubclass(part, Section))


_WORDS = {
    "int": "a whole number",
    "float": "a number",
    "str": "a text",
    "bool": "true or false",
    "array": "a list",
    "object": "a table",
}


def as_toml(value: Any) -> str:
    """A value as it is written in a run file, shortened if it is long."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int) and value.bit_length() > 256:
        return f"a number of about {int(0.30103 * value.bit_length()) + 1} digits"
    text = f'"{value}"' if isinstance(value, str) else str(value)
    return text if len(text) <= 80 else f"{text[:79]}…"
