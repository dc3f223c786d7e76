"""Writes a record to an HDF5 file and reads it back, by the type annotations of its fields.

    /            attributes: format, bnuq, kind, command, sha256 (of the estimates and the record's arrays)
    /record      the record as JSON; {"array": PATH} and {"estimate": ROW} refer to data elsewhere in the file,
                 {"values": […]} for an array of a few numbers
    /estimates   the table of estimates (`store.table`)
    /PATH        an array; its axes are named by its annotation: Float[np.ndarray, "draw channel"]

Field names are the paths. Reading converts and checks every value as its annotation says: keys, types, bounds, and of
arrays their dtype and their axes. Rules that types cannot state belong in a record's `__post_init__`. Fields, methods,
metrics and scores that this version does not know are left out, and named in a note, but for empty fields.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Protocol, TypeVar

import msgspec
import numpy as np

import bnuq
from bnuq.errors import ResultError
from bnuq.estimates import Among, Axis, Coordinate, Estimate, InRecord, Prefix, Unit
from bnuq.files import apart
from bnuq.files.apart import ask
from bnuq.files.content import kind_of
from bnuq.files.hdf5 import Group, image_of, open_hdf5
from bnuq.files.writing import check_writable, write_bytes
from bnuq.findings import SEVERITIES, Finding, note, warning
from bnuq.frozen import frozen
from bnuq.metrics.registry import is_known, is_score
from bnuq.store.annotations import arguments, axes_of, fields_of, metadata, record_of
from bnuq.store.datasets import Writer, digest_of, name_of
from bnuq.store.table import read_table, rows_of, unit_of, write_table
from bnuq.studies import STUDIES

FORMAT = 1
KINDS = ("evaluate", "score", "several", *(study.kind for study in STUDIES.values() if study.kind))  # in a report
_DAMAGE = (
    KeyError, ValueError, TypeError, OSError, IndexError, AttributeError, RuntimeError, ArithmeticError, RecursionError
)  # fmt: skip


class Record(Protocol):
    """What a file can be of: a frozen dataclass."""

    KIND: ClassVar[str]
    COMMAND: ClassVar[str]  # as the user types it

    @property
    def provenance(self) -> Mapping[str, Any]: ...

    @property
    def path(self) -> Path | None: ...


R = TypeVar("R", bound=Record)


def write(record: Record, path: Path) -> None:
    """Write `record` to `path`, completely or not at all; ResultError if that cannot be done."""
    check_replaceable(path)
    image = image_of(lambda file: lay_out(file, record))
    write_bytes(path, image)
    apart.note(image)


def check_replaceable(path: Path) -> None:
    """Raise ResultError if a result cannot be put at `path`, or would replace a file that is not one."""
    kind = kind_of(path)
    if kind in ("folder", "special"):
        raise ResultError(f"{path}: is not a file, so it cannot be replaced by one. Name a file to write.")
    if kind == "unreadable":
        raise ResultError(f"{path}: cannot be opened; its name is too long, or it may not be read. Name another file.")
    if kind != "missing" and (kind != "hdf5" or not _is_result(path)):
        raise ResultError(f"{path} is not a result of bnuq; name another file to write.")
    check_writable(path)


def _is_result(path: Path) -> bool:
    if apart.noted_bytes(path) is not None:
        return True
    try:
        return {"format", "bnuq"} <= set(ask("root attributes", str(path.absolute())))
    except (OSError, ValueError, KeyError):
        return False


# ── writing ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def lay_out(file: Any, record: Record) -> None:
    """Fill an open, empty HDF5 file."""
    file.attrs["format"], file.attrs["bnuq"] = FORMAT, str(record.provenance["bnuq"])
    file.attrs["kind"], file.attrs["command"] = record.KIND, record.COMMAND
    rows, writer = tuple(rows_of(record)), Writer(file)
    encoder = _Encoder(writer, {row.path: number for number, row in enumerate(rows)})
    tree = encoder.encode(replace(record, path=None), None, "", {})  # type: ignore[type-var]
    file["record"] = json.dumps(tree, default=lambda scalar: scalar.item())
    write_table(writer, rows)
    covered = {path: digest for path, digest in writer.digests.items() if path.startswith("/estimates/")}
    covered |= {path: writer.digests[path] for path in _array_paths(tree) if path in writer.digests}
    file.attrs["sha256"] = _digest(covered)


def _array_paths(tree: Any) -> Iterator[str]:
    """The paths of the arrays that the JSON of a record names."""
    if isinstance(tree, dict) and tree.keys() == {"array"} and isinstance(tree["array"], str):
        yield tree["array"]
    for item in tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list) else ():
        yield from _array_paths(item)


def _digest(digests: Mapping[str, str]) -> str:
    """One SHA-256 of those of data sets, by their paths."""
    lines = (f"{path} {digests[path]}\n" for path in sorted(digests))
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def bytes_of(value: Any) -> int:
    """About the bytes of all arrays in a record, as they are stored."""
    if isinstance(value, np.ndarray):
        return value.nbytes + (sum(32 + len(str(text)) for text in value.flat) if value.dtype.kind == "O" else 0)
    if is_dataclass(value):
        return sum(bytes_of(getattr(value, part.name)) for part in fields(value))
    inside = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
    return sum(map(bytes_of, inside))


@frozen
class _Encoder:
    """Makes JSON of a record. Its arrays go into the file; `rows` are the places of its estimates in their table."""

    writer: Writer
    rows: Mapping[str, int]

    def encode(self, value: Any, hint: Any, path: str, scales: dict[str, Any]) -> Any:
        """The value at `path` as JSON; `scales` are the dimension scales that hold there, by axis."""
        if isinstance(value, Estimate):
            return {"estimate": self.rows[path]}
        if isinstance(value, np.ndarray):
            if metadata(hint, InRecord) is not None:
                return {"values": value.tolist()}
            group, _, name = path.rpartition("/")
            unit = metadata(hint, Unit) or unit_of(name)
            self.writer.add(group, name, value, axes_of(hint) or (), scales, unit=unit)
            return {"array": path}
        if is_dataclass(value):
            return self._record(value, path, dict(scales))
        if isinstance(value, Mapping):
            _, inner = arguments(hint, Mapping, 2)
            inside = dict(scales)
            axis_first = sorted(value, key=lambda key: axes_of(inner) != (key,))
            places = {key: f"{path}/{name_of(str(key))}" for key in axis_first}
            return {str(key): self.encode(value[key], inner, place, inside) for key, place in places.items()}
        if isinstance(value, list | tuple):
            (inner,) = arguments(hint, Sequence, 1)
            return [self.encode(item, inner, f"{path}/{number}", scales) for number, item in enumerate(value)]
        return str(value) if isinstance(value, Path) else value

    def _record(self, record: Any, path: str, scales: dict[str, Any]) -> dict[str, Any]:
        hints = fields_of(type(record))
        for key, hint in hints.items():
            if axis := metadata(hint, Axis):
                scales[axis] = self.writer.add_scale(path, axis, getattr(record, key))
        arrays_first = sorted(hints, key=lambda key: not isinstance(getattr(record, key), np.ndarray))  # for their axes
        return {key: self.encode(getattr(record, key), hints[key], f"{path}/{key}", scales) for key in arrays_first}


# ── reading ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def kind_of_result(path: Path, known: Collection[str] | None = KINDS) -> str:
    """The kind of the result file at `path`; ResultError if it is not of a `known` kind (None: any), or cannot be
    read."""
    with open_hdf5(path) as file:
        kind, command = file.attrs.get("kind"), file.attrs.get("command")
        if not isinstance(kind, str) or "bnuq" not in file.attrs:
            raise ResultError(f"{path} is not a result file of bnuq; expected one that bnuq wrote.")
        if known is not None and kind not in known:
            raise ResultError(
                f"{path} is a result of bnuq {command}{f' ({kind})' * (kind != command)}; expected one of a kind that "
                f"is read here ({', '.join(known)})."
            )
        return kind


def time_of_result(path: Path) -> datetime:
    """When the result at `path` was made, in UTC, without reading the rest of it; ResultError if it does not say."""
    with open_hdf5(path) as file:
        try:
            time = json.loads(file["record"].asstr()[()])["provenance"]["time"]
            return datetime.fromisoformat(time).astimezone(UTC)
        except _DAMAGE as error:
            raise ResultError(f"{path} does not say when it was made, so it has no place in a history.") from error


def read(
    record: type[R],
    path: Path,
    *,
    summary: Callable[[R], Any] | None = None,
    by_hand: Callable[[Any, R], R] | None = None,
    groups: Collection[str] = (),
) -> R:
    """The record in the file at `path`; ResultError if it is of another kind, of a newer format, or is damaged.

    What only another version knows is left out, and named in a note. `summary` is computed once as a check, so that
    readers of the record need no further checks. `by_hand` completes the record from the open file, from HDF5 groups of
    these names. A file that this version has written here is known to be complete and consistent.
    """
    with open_hdf5(path) as file:
        try:
            _check_kind(file, record, path)
            result = _decode(file, record, groups)
            result = replace(by_hand(file, result) if by_hand else result, path=path.absolute())  # type: ignore[type-var]
            if summary is not None and not is_own(file):
                json.dumps(summary(result), allow_nan=False)
        except _DAMAGE as error:
            reason = " ".join(str(error).split())[:300].strip("'\"")
            raise ResultError(
                f"{path}: the result file is incomplete or damaged ({reason}). Fetch it again, or repeat the run."
                f"{_updating(file)}"
            ) from error
    return result


def is_own(file: Any) -> bool:
    """Whether this version has written the file here, byte for byte: nothing in it was damaged or changed since."""
    return file.is_own and file.attrs.get("bnuq") == bnuq.__version__


def _updating(file: Any) -> str:
    """What else to do where a newer bnuq wrote the file."""
    try:
        writer = str(file.attrs["bnuq"])
        newer = _version(writer) > _version(bnuq.__version__)
    except _DAMAGE:
        return ""
    return f" Or update bnuq: {writer} wrote it, and this is {bnuq.__version__}." if newer else ""


def _version(text: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", text)[:3]))


def _check_kind(file: Any, record: type[Record], path: Path) -> None:
    kind, command = (file.attrs.get(key) for key in ("kind", "command"))
    if kind != record.KIND or "bnuq" not in file.attrs:
        origin = f", but of bnuq {command}" if isinstance(kind, str) and isinstance(command, str) else ""
        raise ResultError(f"{path} is not a result file of bnuq {record.COMMAND}{origin}.")
    version = np.asarray(file.attrs["format"])[()]
    if not isinstance(version, int | np.integer) or version < 1:
        raise ValueError("its format has no number")
    if version > FORMAT:
        raise ResultError(
            f"{path} was written by bnuq {file.attrs['bnuq']} in format {version}; this version reads up to format "
            f"{FORMAT}. Please update bnuq."
        )


def _decode(file: Any, record: type[R], groups: Collection[str]) -> R:
    estimates = read_table(file["estimates"]) if "estimates" in file else []
    arrays = cache(lambda path: _array(file[path.lstrip("/")]))

    def decode(kind: type, encoded: Any) -> Any:
        if issubclass(kind, Path):
            return Path(encoded)
        if isinstance(encoded, dict):
            return np.array(encoded["values"], np.float64) if "values" in encoded else arrays(encoded["array"])
        return encoded

    own, known = is_own(file), _Known()
    written = json.loads(file["record"].asstr()[()])
    tree = _with_estimates(written, estimates)
    if "findings" in fields_of(record) and not own:  # which can say what is left out
        tree = known.part(tree, record)
        record_names = {"record", "estimates", *groups, *fields_of(record)}
        known.unknown |= {name: None for name in file if name not in record_names and isinstance(file[name], Group)}
    result = msgspec.convert(tree, record, dec_hook=decode, str_keys=True)
    for part in () if own else _records(result):
        _check_axes(part)
    stated = None if own else file.attrs.get("sha256")
    if stated is None and not own and "findings" in fields_of(record):
        result = _with_note(result, warning("without-digest"))
    if stated is not None:
        paths = [path for path in _array_paths(written) if path.lstrip("/") in file]
        paths += [f"/estimates/{name}" for name in file.get("estimates", ())]
        if stated != _digest({path: digest_of(arrays(path)) for path in paths}):
            raise ValueError("its estimates or arrays do not match their SHA-256")
    return with_unknown(result, known.unknown)


def with_unknown(record: R, names: Iterable[str]) -> R:
    """The record with a note of what its file has, and this version does not know; itself if there is nothing."""
    if not (names := [*names]):
        return record
    return _with_note(record, note("made-by-another-version", version=str(record.provenance["bnuq"]), names=names))


def _with_note(record: R, added: Finding) -> R:
    findings: tuple[Finding, ...] = record.findings  # type: ignore[attr-defined]
    return replace(record, findings=(*findings, added))  # type: ignore[type-var]


class _Known:
    """Leaves out of a record's JSON what this version does not know, and keeps the names of that."""

    def __init__(self) -> None:
        self.unknown: dict[str, None] = {}  # in their order, each once

    def part(self, tree: Any, hint: Any) -> Any:
        """The JSON of a value with this annotation without fields, keys and items that are not known."""
        if isinstance(tree, list):
            (inner,) = arguments(hint, Sequence, 1)
            return [self.part(item, inner) for item in tree if self._is_known_record(item, inner)]
        if not isinstance(tree, dict):
            return tree
        if (record := record_of(hint)) is not None:
            hints = fields_of(record)
            self.unknown |= dict.fromkeys(key for key in tree if key not in hints and not _is_empty(tree[key]))
            return {
                key: self.part(value, hints[key]) if self._is_known_record(value, hints[key]) else None
                for key, value in tree.items()
                if key in hints
            }
        key_hint, inner = arguments(hint, Mapping, 2)
        return {key: self.part(value, inner) for key, value in tree.items() if self._is_known(key, key_hint)}

    def _is_known(self, name: str, hint: Any) -> bool:
        if (among := metadata(hint, Among)) is not None:
            known = name in among.split() or (metadata(hint, Coordinate) == "score" and is_score(name))
        else:
            known = metadata(hint, Coordinate) != "metric" or is_known(f"{metadata(hint, Prefix) or ''}{name}")
        if not known:
            self.unknown[name] = None
        return known

    def _is_known_record(self, tree: Any, hint: Any) -> bool:
        """Whether the kind of a record, the method that it is of, and the severity of a finding are known."""
        if not isinstance(tree, dict) or (record := record_of(hint)) is None:
            return True
        if record is Finding and isinstance(severity := tree.get("severity"), str) and severity not in SEVERITIES:
            self.unknown[f"{tree.get('code')} ({severity})"] = None
            return False
        hints = fields_of(record)
        texts = {key: value for key, value in tree.items() if isinstance(value, str) and key in hints}
        return all(self._is_known(value, hints[key]) for key, value in texts.items())


def _is_empty(tree: Any) -> bool:
    """Whether a field holds nothing: no one misses it."""
    return tree is None or tree is False or (isinstance(tree, str | list | dict) and not tree)


def _array(data: Any) -> np.ndarray:
    return np.array(data.asstr()) if data.is_text else data[()]


def _with_estimates(tree: Any, estimates: list[dict[str, Any]]) -> Any:
    if isinstance(tree, dict):
        if tree.keys() == {"estimate"}:
            return estimates[tree["estimate"]]
        return {key: _with_estimates(value, estimates) for key, value in tree.items()}
    return [_with_estimates(value, estimates) for value in tree] if isinstance(tree, list) else tree


def _records(value: Any) -> Iterator[Any]:
    """The record and every record in it."""
    if is_dataclass(value):
        yield value
        value = [getattr(value, part.name) for part in fields(value)]
    for item in value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ():
        yield from _records(item)


def _check_axes(record: Any) -> None:
    """Raise ValueError if two arrays of a record share an axis and differ in its length."""
    lengths: dict[str, int] = {}
    for key, hint in fields_of(type(record)).items():
        value, axis = getattr(record, key), metadata(hint, Axis)
        axis_lengths = [(axis, len(value))] if axis else []
        for values in value.values() if isinstance(value, Mapping) else (value,):
            if isinstance(values, np.ndarray) and (axes := axes_of(hint)):
                axis_lengths += zip(axes, values.shape, strict=False)
        for axis, length in axis_lengths:
            if lengths.setdefault(axis, length) != length:
                raise ValueError(f"{key} has {length} along {axis}, another {lengths[axis]}")
