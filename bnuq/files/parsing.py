"""The child process of `bnuq.files.apart`: opens untrusted files, and sends their contents.

A request is a line of JSON, an operation with its arguments; so is an answer. Numbers follow in pieces, each after a
line with its length, so that this process holds few of them. Light: imports neither torch nor the rest of bnuq.
"""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import math
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy as np
from h5py import h5a, h5d, h5f, h5g, h5l, h5o, h5s  # pyrefly: ignore

_PLAIN_FILTERS = frozenset({1, 2, 3, 4, 5, 6, 32000})  # deflate … scale-offset, lzf; others load libraries by name
_PIECE = 64 * 2**20
_LITTLE, _AT_ONCE = 2**20, 32 * 2**20  # bytes of a data set, and of all, that are sent when a file is opened
_SPARE_MEMORY = 512 * 2**20
_SPARE_SECONDS, _BYTES_PER_SECOND = 8, 10_000_000
_ROWS = 256  # images that are sent at once
_SIMPLE = "fiubcS"
_LINKS = {h5l.TYPE_SOFT: "a soft link", h5l.TYPE_EXTERNAL: "a link to another file"}


def serve() -> None:
    """Answer requests until there are no more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent's to take
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what a library prints is not an answer
    limits = _Limits()
    for line in sys.stdin.buffer:
        operation, *arguments = json.loads(line)
        limits.allow(0, 0)
        try:
            value = _OPERATIONS[operation](limits, *arguments)
            if isinstance(value, _Pieces):
                answers.write(_json({"array": [value.dtype.str, value.shape]}))
                for piece in (piece for piece in value.pieces if piece.nbytes):  # a length of 0 ends the array
                    answers.write(_json({"piece": piece.nbytes}))
                    answers.write(np.ascontiguousarray(piece).reshape(-1).view(np.uint8).data)
                value = 0
                answers.write(_json({"piece": 0}))
            else:
                answers.write(_json({"value": value}))
        except Exception as error:
            answers.write(_json({"error": [_kind(error), _message(error)]}))
        answers.flush()


def answer(operation: str, *arguments: Any, empty: Callable[..., np.ndarray] = np.empty) -> Any:
    """What `serve` would answer, in this process, about a file that is no forged one; arrays are made by `empty`."""
    value = _OPERATIONS[operation](_NoLimits(), *arguments)
    if not isinstance(value, _Pieces):
        return value
    array, start = empty(value.shape, value.dtype), 0
    for piece in value.pieces:
        array.reshape(-1)[start : start + piece.size] = piece.reshape(-1)
        start += piece.size
    return array


def _json(value: Any) -> bytes:
    return json.dumps(value, default=lambda numbers: base64.b64encode(numbers).decode()).encode() + b"\n"


def _kind(error: Exception) -> str:
    return "KeyError" if isinstance(error, KeyError) else "OSError" if isinstance(error, OSError) else "ValueError"


def _message(error: Exception) -> str:
    if isinstance(error, MemoryError):
        return "reading it takes more memory than its size can explain"
    return (str(error).splitlines() or [type(error).__name__])[0].strip("'\"")[:160]


class _Limits:
    """What this process may take from now on, beyond what it has."""

    def __init__(self) -> None:
        try:
            import resource
        except ImportError:  # Windows has no such limits
            self._resource: Any = None
            return
        self._resource = resource
        self._limit(resource.RLIMIT_CORE, 0)

    def allow(self, memory: int, decoded: int) -> None:
        """Room for `memory` bytes at once, and time for so many to be decoded."""
        if self._resource is None:
            return
        used = self._resource.getrusage(self._resource.RUSAGE_SELF)
        seconds = math.ceil(used.ru_utime + used.ru_stime + _SPARE_SECONDS + decoded / _BYTES_PER_SECOND)
        self._limit(self._resource.RLIMIT_CPU, seconds)
        try:
            pages = int(Path("/proc/self/statm").read_text().split()[0])
        except (OSError, ValueError):
            return
        used_memory = pages * os.sysconf("SC_PAGE_SIZE")
        self._limit(self._resource.RLIMIT_AS, used_memory + _SPARE_MEMORY + 3 * memory)

    def _limit(self, resource_kind: int, value: int) -> None:
        hard = self._resource.getrlimit(resource_kind)[1]
        value = value if hard == self._resource.RLIM_INFINITY else min(value, hard)
        self._resource.setrlimit(resource_kind, (value, hard))


class _NoLimits(_Limits):
    """None: what is read was written here."""

    def __init__(self) -> None:
        self._resource = None


class _Pieces(NamedTuple):
    """An array to be sent."""

    dtype: np.dtype
    shape: tuple[int, ...]
    pieces: Iterator[np.ndarray]


# HDF5

_files: dict[int, h5py.File] = {}


def _open(_limits: _Limits, number: int, path: str | bytes) -> dict[str, Any]:
    """Open a file under this number, and look at every object in it. What was found: a `complaint` about links and
    storage; `declared`, the bytes that it can be read as, of which some are `unstored`, with the object `at` which most
    are declared; and the `objects` by their names, with what is small enough to be sent at once."""
    file = _opened(path)
    survey = _surveyed(file) if isinstance(path, str) else _kept(path, _surveys.get(path) or _found(file, own=True))
    if survey["complaint"] is None:
        _files[number] = file
    else:
        file.close()
    return survey


def _surveyed(file: h5py.File) -> dict[str, Any]:
    """What is found in a file, which is not sought again while the file is unchanged. A time of change in the last
    seconds says nothing: the next one may be the same. The file that is open is asked, not its path, which may lead to
    another one meanwhile."""
    if os.name != "posix":  # there ctime is not the time of change
        return _found(file)
    about, now = os.fstat(file.id.get_vfd_handle()), time.time()
    state = about.st_dev, about.st_ino, about.st_size, about.st_mtime_ns, about.st_ctime_ns
    survey = _surveys.pop(state, None) or _found(file)
    return _kept(state, survey) if max(about.st_mtime, about.st_ctime) < now - _COARSEST else survey


def _kept(state: Any, survey: dict[str, Any]) -> dict[str, Any]:
    """The survey, kept as the latest one."""
    _surveys.pop(state, None)
    _surveys[state] = survey
    while len(_surveys) > _SURVEYS:
        _surveys.pop(next(iter(_surveys)))
    return survey


def _found(file: h5py.File, *, own: bool = False) -> dict[str, Any]:
    survey = _Survey(file, own=own)
    return {key: getattr(survey, key) for key in ("complaint", "declared", "unstored", "at", "objects")}


_surveys: dict[Any, dict[str, Any]] = {}  # the latest ones, by the bytes, or what says that a file is unchanged
_SURVEYS, _COARSEST = 2, 2.0  # surveys that are kept, and seconds between two times of change on any file system


def _root_attributes(_limits: _Limits, path: str) -> list[str]:
    """The names of the attributes of a file, in which nothing else is looked at."""
    with _opened(path) as file:
        return list(file.attrs)


def _close(_limits: _Limits, number: int) -> None:
    if number in _files:
        _files.pop(number).close()


def _opened(path: str | bytes) -> h5py.File:
    """The file at a path, or of these bytes."""
    if isinstance(path, bytes):
        return h5py.File(h5f.open_file_image(path))
    try:
        return h5py.File(path, "r", locking=False)  # a read-only folder has no room for a lock
    except OSError as fault:
        if "locking flag" not in str(fault):
            raise
        return h5py.File(path, "r")  # this process has it open already, with a lock


class _Type(NamedTuple):
    """A type of data in a file, and numpy's for it."""

    stored: Any
    dtype: np.dtype
    is_text: bool


class _Data(NamedTuple):
    """What the head of a data set says of it, and the data set; None for one in chunks, whose caches take memory, or
    that may be."""

    shape: tuple[int, ...] | None  # None if it is declared empty
    type: Any
    opened: Any


class _Survey:
    """Every object of a file looked at. No link is followed before its class is known, no data read before its size; of
    our `own` file that much is known."""

    def __init__(self, file: h5py.File, *, own: bool) -> None:
        self._own = own
        self.declared = self.unstored = self._most = 0
        self.at = "/"
        self.complaint: str | None = None
        self.objects: dict[str, dict[str, Any]] = {}
        self._file, self._items = file, dict[str, Any]()
        self._types: dict[bytes, _Type] = {}
        self._walk(file)
        if self.complaint is None:
            self._read_all()

    def _walk(self, file: h5py.File) -> None:
        root = file["/"].id
        names: dict[Any, str] = {h5o.get_info(root).addr: "/"}
        groups = [(root, "/")]
        while groups:
            group, path = groups.pop()
            members: dict[str, str] = {}
            self.objects[path] = {"members": members}
            self._items[path] = h5py.Group(group)
            self._add_attributes(group, path)
            for key in group:
                name = f"{path.rstrip('/')}/{key.decode('utf-8', 'surrogateescape')}"
                kind = h5l.TYPE_HARD if self._own else group.links.get_info(key).type
                if kind != h5l.TYPE_HARD:
                    link = _LINKS.get(kind, "a link of an unknown kind")
                    self.complaint = f"{name} is {link} and would read something else."
                    return
                member = h5o.open(group, key)
                address = name if self._own else h5o.get_info(member).addr
                members[name.rpartition("/")[2]] = names.setdefault(address, name)
                if names[address] != name:
                    continue
                if isinstance(member, h5g.GroupID):
                    groups.append((member, name))
                elif isinstance(member, h5d.DatasetID):
                    self._look_at(member, name)
                    if self.complaint:
                        return
                else:
                    self.objects[name] = {"members": {}}

    def _look_at(self, data: Any, name: str) -> None:
        shape, kind = data.get_space().get_simple_extent_dims(), data.get_type()
        size = stored = _declared(shape, kind)
        chunked = size > _LITTLE
        if not self._own:
            creation = data.get_create_plist()
            self.complaint = _storage_complaint(creation, name)
            if self.complaint:
                return
            chunked = creation.get_layout() == h5d.CHUNKED
            chunks = data.get_num_chunks() if chunked else 0
            stored = chunks * _declared(creation.get_chunk(), kind) if chunked else data.get_storage_size()
        self._add(size, max(0, size - stored), name)  # what has no place in the file would be filled in
        self.objects[name] = {"bytes": size}
        self._items[name] = _Data(shape, kind, None if chunked else data)

    def _add(self, declared: int, unstored: int, name: str) -> None:
        self.declared += declared
        self.unstored += unstored
        if declared > self._most:
            self._most, self.at = declared, name

    def _add_attributes(self, item: Any, name: str) -> None:
        """Those of a group; no other is ever read."""
        names: list[bytes] = []
        h5a.iterate(item, names.append)  # by its number, HDF5 seeks each from the first
        for attribute in names:
            self._add(_bytes(h5a.open(item, attribute)), 0, name)

    def _read_all(self) -> None:
        """The attributes of groups, and data as long as it is little."""
        left = _AT_ONCE
        for name, facts in self.objects.items():
            item = self._items.get(name)
            if not isinstance(item, _Data):
                attributes = {} if item is None else item.attrs
                facts["attributes"] = {key: _tried(_attribute, attributes, key) for key in attributes}
                continue
            shape, (stored, dtype, is_text) = item.shape, self._type_of(item.type)
            text, simple = is_text and shape is not None, shape is not None and dtype.kind in _SIMPLE
            facts |= {"shape": shape, "dtype": dtype.str if simple else None, "text": text}
            if not (simple or text) or facts["bytes"] > min(left, _LITTLE):
                continue
            data = self._file[name].id if item.opened is None else item.opened
            if text:
                texts = _tried(_texts_of, h5py.Dataset(data), min(left, _LITTLE))
                left -= sum(map(len, texts.get("result", ())))
                facts |= {"texts": texts} if "result" in texts else {}  # others are asked for, by their own limit
            else:
                facts["value"] = _tried(_numbers_of, data, shape, dtype, stored if self._own else None)
                left -= facts["bytes"]

    def _type_of(self, stored: Any) -> _Type:
        """Of our own file each type is looked at once: hundreds of data sets have a few, and no strange ones."""
        key = stored.encode() if self._own else b""
        if (known := self._types.get(key)) is None or not self._own:
            dtype = stored.dtype
            known = self._types[key] = _Type(stored, dtype, h5py.check_string_dtype(dtype) is not None)
        return known


def _tried(read: Callable[..., Any], *arguments: Any) -> dict[str, Any]:
    """The value read, or the error: a value that cannot be read may never be needed."""
    try:
        return {"result": read(*arguments)}
    except Exception as error:
        return {"error": [_kind(error), _message(error)]}


def _packed(array: np.ndarray) -> list[Any]:
    return [array.dtype.str, array.shape, array.tobytes()]


def _numbers_of(data: Any, shape: tuple[int, ...], dtype: np.dtype, stored: Any) -> list[Any]:
    """Numbers packed, read as of their `stored` type, or of that of `dtype`."""
    array = np.empty(shape, dtype)
    if array.size:
        data.read(h5s.ALL, h5s.ALL, array, stored)
    return _packed(array)


def _storage_complaint(creation: Any, name: str) -> str | None:
    if creation.get_layout() == h5d.VIRTUAL:
        return f"{name} is a virtual data set and would read other files."
    if creation.get_external_count():
        return f"{name} keeps its data in an external file."
    filters = {creation.get_filter(index)[0] for index in range(creation.get_nfilters())}
    if unknown := filters - _PLAIN_FILTERS:
        return f"{name} needs the HDF5 filter {min(unknown)}, which would load a library."
    return None


def _bytes(item: Any) -> int:
    return _declared(item.get_space().get_simple_extent_dims(), item.get_type())


def _declared(shape: tuple[int, ...] | None, kind: Any) -> int:
    # In Python's integers: HDF5's own product wraps around.
    return 0 if shape is None else math.prod(shape) * kind.get_size()


def _attribute(attributes: Any, key: str) -> Any:
    """A text, or numbers packed."""
    opened = attributes.get_id(key)
    if (opened.dtype.kind == "O" and math.prod(opened.shape or ()) > 1) or _bytes(opened) > _LITTLE:
        raise ValueError(f"the attribute {key} holds neither one text nor a few numbers")
    value = attributes[key]
    if isinstance(value, str):
        return value
    array = np.asarray(value)
    if isinstance(value, h5py.Empty) or array.dtype.kind not in _SIMPLE:
        raise ValueError(f"the attribute {key} holds neither one text nor a few numbers")
    return _packed(array)


def _dataset(number: int, name: str) -> Any:
    if number not in _files:
        raise OSError("the process that had it open was stopped")
    return _files[number][name]


def _array_in_pieces(limits: _Limits, number: int, name: str, start: int = 0, stop: int | None = None) -> _Pieces:
    """A data set, or its rows from `start` to `stop`."""
    dataset = _dataset(number, name)
    step = _rows_at_once(dataset)
    row = math.prod(dataset.shape[1:]) * dataset.dtype.itemsize
    if stop is None:
        rows, shape = range(dataset.shape[0] if dataset.shape else 1), dataset.shape
    else:
        rows = range(start, stop)
        shape = (len(rows), *dataset.shape[1:])
    limits.allow(step * row, max(len(rows), step) * row)
    return _Pieces(dataset.dtype, shape, _in_pieces(dataset, step, rows))


def _rows_at_once(dataset: Any) -> int:
    """As many rows as a piece has room for, and whole chunks: each is unpacked once."""
    rows = dataset.chunks[0] if dataset.chunks else 1
    width = math.prod(dataset.shape[1:]) * dataset.dtype.itemsize
    return rows * max(1, _PIECE // max(1, rows * width))


def _in_pieces(dataset: Any, step: int, rows: range) -> Iterator[np.ndarray]:
    if not dataset.shape or 0 in dataset.shape:
        yield from [np.asarray(dataset[()])] if not dataset.shape else []
        return
    for start in rows[::step]:
        yield dataset[start : min(start + step, rows.stop)]


def _texts(limits: _Limits, number: int, name: str) -> list[str]:
    """The texts of a data set. Each has its own place in the file, so that together they are no longer than it: others
    are forged, and share one."""
    dataset = _dataset(number, name)
    size = _files[number].id.get_filesize()
    limits.allow(size, size)
    return _texts_of(dataset, size + _bytes(dataset.id))


def _texts_of(dataset: Any, most: int) -> list[str]:
    """Texts of one axis, or none, of `most` characters together. Read so many at once as would all fit if each were as
    long as the file."""
    strings = dataset.asstr(errors="replace")
    if not dataset.shape:
        return [strings[()]]
    if len(dataset.shape) > 1:
        raise ValueError("its texts are not in a row")
    texts: list[str] = []
    step = max(1, _PIECE // max(dataset.dtype.itemsize, dataset.file.id.get_filesize()))
    for start in range(0, dataset.shape[0], step):
        piece = list(strings[start : start + step])
        most -= sum(map(len, piece))
        if most < 0:
            raise ValueError("its texts are longer than the file")
        texts += piece
    return texts


# MATLAB files before version 7.3


def _mat_variables(_limits: _Limits, path: str) -> list[Any]:
    """Name, shape and kind of each."""
    import scipy.io  # late: 0.2 s

    return [[name, [int(size) for size in shape], kind] for name, shape, kind in scipy.io.whosmat(path)]


def _mat_array(limits: _Limits, path: str, name: str, declared: int) -> _Pieces:
    import scipy.io

    limits.allow(declared, declared)
    array = np.asarray(scipy.io.loadmat(path, variable_names=[name])[name])
    if array.dtype.kind not in _SIMPLE or array.nbytes > 2 * declared:  # complex ones
        raise ValueError(f"{name} does not hold the numbers that it declares")
    array = array if array.flags.c_contiguous else np.ascontiguousarray(array)
    return _Pieces(array.dtype, array.shape, iter([array]))


# parquet


def _parquet_file(limits: _Limits, path: str, decoded: int, **options: Any) -> Any:
    os.environ["ARROW_DEFAULT_MEMORY_POOL"] = "system"  # the others take address space for what may come
    limits.allow(_SPARE_MEMORY + decoded, decoded)
    import pyarrow.parquet  # late: 0.3 s

    return pyarrow.parquet.ParquetFile(path, **options)


def _parquet(limits: _Limits, path: str) -> dict[str, Any]:
    """The number of rows; the columns' names, those of pandas' index, that do not hold numbers, that are nested, those
    of encoded images, and the class names of labels; what all columns take as they are read and in one table; and of
    each group of rows, which can be read alone, the number of rows and of bytes."""
    with _parquet_file(limits, path, 0) as file:
        facts, schema = file.metadata, file.schema_arrow
        groups = [
            (
                facts.row_group(part).num_rows,
                sum(facts.row_group(part).column(at).total_uncompressed_size for at in range(facts.num_columns)),
            )
            for part in range(facts.num_row_groups)
        ]
        rows, columns = facts.num_rows, facts.num_columns
    import pyarrow.types as kinds

    numbers = (kinds.is_integer, kinds.is_floating, kinds.is_boolean, kinds.is_decimal, kinds.is_null)
    not_numbers = [field.name for field in schema if not any(is_of(field.type) for is_of in numbers)]
    size = max(0, sum(size for _, size in groups)) + 16 * rows * columns
    return {
        "names": schema.names,
        "index": _index_names(schema.metadata or {}),
        "not numbers": not_numbers,
        "nested": [field.name for field in schema if kinds.is_nested(field.type)],
        "bytes": size,
        "rows": rows,
        "pictures": [field.name for field in schema if _is_encoded(field.type)],
        "classes": _class_names(schema.metadata or {}),
        "groups": [(count, max(0, size) + 16 * count * columns) for count, size in groups],
    }


def _columns_read(
    limits: _Limits, path: str, names: list[str], decoded: int, group: int | None = None, **options: Any
) -> Any:
    """These columns, of all rows or of one group of them."""
    with _parquet_file(limits, path, decoded, **options) as file:
        if group is not None:
            return file.read_row_group(group, columns=names, use_threads=False)
        return file.read(columns=names, use_threads=False)


def _is_encoded(kind: Any) -> bool:
    """Whether a column holds files: their bytes, or a struct of these and their path, as an Image of `datasets`."""
    import pyarrow.types as kinds

    if kinds.is_struct(kind):
        return kind.get_field_index("bytes") >= 0 and _is_encoded(kind.field("bytes").type)
    return kinds.is_binary(kind) or kinds.is_large_binary(kind)


def _index_names(metadata: dict[bytes, bytes]) -> list[str]:
    """The columns of the index, which pandas notes in the schema; what counts rows alone has none."""
    try:
        return [name for name in json.loads(metadata[b"pandas"])["index_columns"] if isinstance(name, str)]
    except (KeyError, ValueError, TypeError, RecursionError):
        return []


def _class_names(metadata: dict[bytes, bytes]) -> dict[str, list[str]]:
    """The names of the classes of each ClassLabel, which `datasets` notes in the schema."""
    try:
        features = json.loads(metadata[b"huggingface"])["info"]["features"]
        labels = {name: feature.get("names") for name, feature in features.items() if isinstance(feature, dict)}
    except (KeyError, ValueError, TypeError, AttributeError, RecursionError):
        return {}
    return {name: names for name, names in labels.items() if isinstance(names, list) and set(map(type, names)) == {str}}


def _pictures(limits: _Limits, path: str, name: str, group: int, decoded: int) -> _Pieces:
    """The number of bytes of each row of a group, as int64, and then all bytes; 0 if there are none."""
    column = _columns_read(limits, path, [name], decoded, group).column(name)
    import pyarrow.compute as compute
    import pyarrow.types as kinds

    if kinds.is_struct(column.type):
        column = compute.struct_field(column, "bytes")  # pyrefly: ignore
    lengths = compute.binary_length(column).fill_null(0)  # pyrefly: ignore
    lengths = np.asarray(lengths.to_numpy(), dtype=np.int64)
    pieces = (
        np.frombuffer(b"".join(value or b"" for value in column.slice(start, _ROWS).to_pylist()), np.uint8)
        for start in range(0, len(lengths), _ROWS)
    )
    shape = (8 * len(lengths) + int(lengths.sum()),)
    return _Pieces(np.dtype(np.uint8), shape, itertools.chain((lengths.view(np.uint8),), pieces))


def _parquet_numbers(limits: _Limits, path: str, names: list[str], decoded: int) -> _Pieces:
    """These columns as a table of float64, a group of rows after the other."""
    with _parquet_file(limits, path, decoded) as file:
        facts = file.metadata
    groups = (_table_of(_columns_read(limits, path, names, decoded, at), names) for at in range(facts.num_row_groups))
    return _Pieces(np.dtype(np.float64), (facts.num_rows, len(names)) if names else (0, 0), groups)


def _table_of(numbers: Any, names: list[str]) -> np.ndarray:
    columns = [np.asarray(numbers.column(name).to_numpy(), dtype=np.float64) for name in names]
    return np.stack(columns, axis=1) if columns else np.empty((0, 0))


def _parquet_values(limits: _Limits, path: str, name: str, decoded: int) -> tuple[list[Any], list[int]]:
    """The different values of a column, and for each row which it has. Texts of a dictionary stay there, once."""
    column = _columns_read(limits, path, [name], decoded, read_dictionary=[name]).column(name)
    if not hasattr(column.type, "value_type") or not hasattr(column.type, "index_type"):
        column = column.dictionary_encode()
    values: list[Any] = []
    indices: list[int] = []
    for chunk in column.chunks:
        begin = len(values)
        values += [*map(_plain, chunk.dictionary.to_pylist()), None]
        indices += [len(values) - 1 if at is None else begin + at for at in chunk.indices.to_pylist()]
    return values, indices


def _parquet_lists(limits: _Limits, path: str, name: str, decoded: int) -> _Pieces:
    """A column of lists of numbers, all of one length, as an array; an empty one of any other nested column."""
    rows = _columns_read(limits, path, [name], decoded).column(name).to_numpy()
    lists = np.empty((0, 0))
    with contextlib.suppress(ValueError, TypeError):
        lists = np.array([*rows], dtype=np.float64)
    return _Pieces(lists.dtype, lists.shape, iter([lists]))


def _plain(value: Any) -> Any:
    return value if isinstance(value, str | int | float | None) else str(value)


_OPERATIONS = {
    "open": _open,
    "root attributes": _root_attributes,
    "close": _close,
    "read": _array_in_pieces,
    "texts": _texts,
    "mat variables": _mat_variables,
    "mat array": _mat_array,
    "parquet": _parquet,
    "parquet numbers": _parquet_numbers,
    "parquet values": _parquet_values,
    "parquet lists": _parquet_lists,
    "pictures": _pictures,
}
