"""Reads the arrays or the columns of a file by their names, whatever they are of: predictions, labels, groups, ids."""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import mmap
import re
from array import array
from collections import Counter, UserDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bnuq.data.readers.common import listed, readable
from bnuq.data.readers.delimited import delimited, numbered_rows, places
from bnuq.data.readers.npy import npz_arrays, read_npy
from bnuq.data.readers.tables import header_of
from bnuq.errors import DataError
from bnuq.files.apart import ask
from bnuq.files.content import is_checkpoint, kind_of, what_is_wrong_with
from bnuq.files.limits import check_memory, check_size
from bnuq.frozen import frozen

_BYTES_OF_TEXT = 4  # of memory that a byte of a table takes
_MOST_NAMES = 100_000  # columns, or names in a line of JSON
_TOO_MANY = f" has more than {_MOST_NAMES:,} names. Write them as .npy or .npz."
_FEW = 2**16  # texts, of each of which there is one string
_SHORT = 16  # letters of texts in an array of fixed length, which takes a third of the memory of objects
_CELLS = 200_000  # of a table that are parsed together
_WITH_THOUSANDS = re.compile(r"[-+]?[1-9]\d{0,2}(\.\d{3})*").fullmatch
_MISSING = ("", "na", "n/a", "#n/a", "<na>", "null", "none")
UNNAMED = "column 0"  # the only column, where its first line, 0, is no name
_SCALARS = (str, int, float, type(None))  # bool is an int


@frozen
class Columns:
    """Numbers or texts (objects) by name, a row for each point (of an array of samples, the second axis); the one array
    of a .npy file, or of a table without a header, has no name. `keys` are the names along the last axis of what JSON
    objects hold, `nested` what holds neither numbers nor texts, `index` the columns of pandas' index, `exact` gives
    numbers as they are written, and `classes` are those of the labels, where they are known. Keys `by_score` begin with
    the largest of the first row. A table has a `separator`."""

    source: str
    values: Mapping[str, NDArray[Any]]
    keys: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    nested: tuple[str, ...] = ()
    index: tuple[str, ...] = ()
    by_score: bool = False
    exact: Callable[[str], NDArray[Any]] | None = None
    classes: frozenset[str] = frozenset()
    separator: str | None = None
    header: int | None = None  # of a text, the lines above its first row

    def place(self, rows: Sequence[int]) -> str:
        """Rows as an editor shows the file: by the lines of a text; of any other, counted from 0."""
        if self.header is None:
            return f"{places('row', rows)} (counted from 0)"
        return places("line", [self._lines[row + self.header] for row in rows])

    @functools.cached_property
    def _lines(self) -> list[int]:
        return [line for line, _ in numbered_rows(Path(self.source), self.separator)]

    def __getitem__(self, name: str) -> NDArray[Any]:
        if name not in self.values:
            raise DataError(f"{self.source}: has no array or column {name!r}; it has {listed(list(self.values))}.")
        return self.values[name]

    def texts(self, name: str, *others: str) -> NDArray[Any]:
        """A column as texts: as it is written, but for the fraction .0 where all have it. Several are joined."""
        if others:
            rows = zip(*(self.texts(each).tolist() for each in (name, *others)), strict=True)
            return np.array([", ".join(row) for row in rows], dtype=object)
        values = self[name]
        if values.dtype.kind in "fiu" and self.exact is not None:
            values = self.exact(name)
        return texts_of(values)


def texts_of(values: NDArray[Any]) -> NDArray[Any]:
    """Values as texts, whole numbers without a fraction."""
    if values.dtype.kind == "f" and bool(np.isfinite(values).all()) and bool((values == np.round(values)).all()):
        values = values.astype(np.int64) if bool((abs(values) < 2**63).all()) else values
    texts = [str(value) for value in values.tolist()] if values.ndim == 1 else values.astype(str)
    if len(texts) and all(str(text).endswith(".0") for text in texts):
        texts = [text[:-2] for text in texts]
    return np.array(texts, dtype=object if len(texts) and max(map(len, texts)) > _SHORT else str)


def as_csv(source: str, options: str, kind: str = "csv") -> str:
    """The command that writes what pandas reads of a file by these `options` to another one."""
    target = f"{Path(source).stem}{'_plain' * (kind == 'csv')}.csv"
    code = f"import pandas; pandas.read_{kind}({', '.join(filter(None, (repr(source), options)))})"
    return f'python -c "{code}.to_csv({target!r}, index=False)"\nThen name {target} in place of this file.'


def one_reading(columns: Columns, count: int | None) -> Columns:
    """A table of one column below 0, which is its name or its first value, by the count of its points; DataError where
    that does not say which."""
    if {*columns.values} != {"0", UNNAMED}:
        return columns
    for name, values in columns.values.items():
        if len(values) == count:
            return replace(columns, values={name.removeprefix(UNNAMED): values})
    raise DataError(
        f"{columns.source}: its first line, 0, is its name (--columns 0) or a value (--columns '{UNNAMED}')."
    )


class _Lazy(UserDict[str, Any]):
    """Arrays by name, each read when it is first asked for: others may be large, or hold objects."""

    def __init__(self, values: Mapping[str, NDArray[Any] | None], read: Callable[[str], NDArray[Any]]) -> None:
        super().__init__(values)
        self._read = read

    def __getitem__(self, key: str) -> NDArray[Any]:
        if self.data[key] is None:
            self.data[key] = self._read(key)
        return self.data[key]


def read_columns(path: Path) -> Columns:
    """What a `.npz`, `.npy`, CSV, parquet, JSON or JSON lines file holds; DataError for any other. Nothing is
    unpickled."""
    kind = kind_of(path)
    if wrong := what_is_wrong_with(kind):
        raise DataError(f"{path}: {wrong}")
    if kind == "npy":
        return Columns(f"{path}", {"": np.asarray(read_npy(path).inputs)})
    if is_checkpoint(path):
        save = f"numpy.save('{path.stem}.npy', torch.load('{path.name}').detach().numpy())"
        raise DataError(f"{path}: is a file of torch. Save its tensor as an array, in Python: {save}.")
    if kind == "zip":
        return Columns(f"{path}", _of_archive(path))
    if kind == "parquet":
        return _of_parquet(path)
    if kind == "folder":
        raise DataError(f"{path}: is a folder; expected a file of predictions or labels.")
    if kind == "gzip":
        raise DataError(f"{path}: is compressed. Unpack it: gunzip {path.name}.")
    if kind != "text":
        with path.open("rb") as file:
            head = file.read(4096)
        raise DataError(
            f"{path}: is a text, and not in UTF-8. Save it as UTF-8: iconv -f LATIN1 (or UTF-16) -t UTF-8 FILE."
            if head[:2] in (b"\xff\xfe", b"\xfe\xff") or b"\0" not in head
            else f"{path}: is not a file of predictions or labels; expected .npz, .npy, CSV, parquet or JSON."
        )
    with readable(path, "a text"), path.open(encoding="utf-8-sig") as file:
        is_json = file.read(4096).lstrip()[:1] in ("{", "[")
    check_memory(path, _BYTES_OF_TEXT * path.stat().st_size, error=DataError)
    return _of_json(path) if is_json else _of_table(path)


def _of_archive(path: Path) -> _Lazy:
    with npz_arrays(path) as (sizes, _):
        if {"xl/workbook.xml", "content.xml"} & {*sizes}:
            text = f"{path}: is the workbook of a spreadsheet (.xlsx or .ods). Save its sheet as CSV, or by pandas:\n  "
            raise DataError(text + as_csv(f"{path}", "", "excel"))
        check_size(path, sum(sizes.values()), stored=path.stat().st_size, error=DataError, memory=False)

    def read_one(name: str) -> NDArray[Any]:
        check_memory(path, sizes[name], error=DataError)
        with npz_arrays(path) as (_, read):
            return read(name)

    return _Lazy(dict.fromkeys(sizes), read_one)


def _of_parquet(path: Path) -> Columns:
    header = header_of(path)
    location, size, words = str(path.absolute()), header["bytes"], header["not numbers"]

    def texts(name: str) -> NDArray[Any]:
        if name in header["nested"]:
            with readable(path, "parquet"):
                lists = ask("parquet lists", location, name, size)
            if not lists.size:
                wanted = "expected a number, a text, or lists of as many numbers. Write a column for each class"
                raise DataError(f"{path}: {name!r} holds structures, or lists of several lengths; {wanted}.")
            return lists
        with readable(path, "parquet"):
            values, codes = ask("parquet values", location, name, size)
        known = np.array(["" if value is None else str(value) for value in values] or [""], dtype=object)
        return known[np.asarray(codes, dtype=np.intp)]

    with readable(path, "parquet"):
        check_size(path, size, stored=path.stat().st_size, error=DataError)
        numeric = [name for name in header["names"] if name not in words]
        columns = ask("parquet numbers", location, numeric, size) if numeric else np.empty((0, 0))
    places = {name: at for at, name in enumerate(numeric)}
    values = {name: columns[:, places[name]] if name in places else None for name in header["names"]}
    return Columns(f"{path}", _Lazy(values, texts), index=(*header["index"],), exact=texts)


# ── tables ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def _of_table(path: Path) -> Columns:
    """Numbers where every cell of a column is one, or has none; other columns are read again as texts, once they are
    asked for."""
    with readable(path, "a table"), path.open(encoding="utf-8-sig") as file:
        line = file.readline()
    if max(map(line.count, ",;\t")) >= _MOST_NAMES:
        raise DataError(f"{path}: its first line has more than {_MOST_NAMES:,} columns. Write them as .npy or .npz.")
    with delimited(path, is_header=_are_names) as table:
        names, named, first, separator = [*table.names], table.named, table.first, table.separator
    while len(names) > 1 and not names[-1]:  # of separators at the ends of lines
        names.pop()
    if len({*names}) < len(names):
        [(twice, _)] = Counter(names).most_common(1)
        raise DataError(f"{path}: two columns have one name, {twice!r}; expected all to differ.")

    def blocks() -> Iterator[list[list[str]]]:
        with delimited(path, is_header=_are_names) as table:
            rows, number = table.rows(), 0
            while block := list(itertools.islice(rows, max(1, _CELLS // len(names)))):
                for row in block:
                    while len(row) > len(names) and not row[-1]:
                        row.pop()
                    if len(row) != len(names):
                        where = Columns(f"{path}", {}, separator=separator, header=int(named)).place([number])
                        raise DataError(
                            f"{path}: {where} has {len(row)} cells, and the first {len(names)}; expected as many."
                        )
                    number += 1
                yield block

    try:
        joined = _at_once(path)
    except DataError:
        numbers = {at: list[NDArray[Any]]() for at in range(len(names))}
        for block in blocks():
            for at, cells in enumerate(zip(*block, strict=True)):
                if at in numbers:
                    if (column := _numbers(cells)) is None:
                        del numbers[at]
                    else:
                        numbers[at].append(column)
        joined = {at: np.concatenate(columns) for at, columns in numbers.items()}

    @functools.cache
    def texts(name: str) -> NDArray[Any]:
        at, known = names.index(name), dict[str, str]()  # few texts once each
        with delimited(path, is_header=_are_names) as table:
            cells = (row[at] for block in blocks() for row in block)
            if at in joined and not _has_quotes(path):  # rows that numpy has read
                cells = (line.split(table.separator, at + 1)[at].strip() for line in table.lines)
            once = (known.get(text, text) if len(known) > _FEW else known.setdefault(text, text) for text in cells)
            parts = []
            while part := list(itertools.islice(once, _FEW)):
                parts.append(np.array(part, dtype=str if max(map(len, part)) <= _SHORT else object))
            return np.concatenate(parts)

    if not named and len(joined) == len(names):
        if first == ["0"] and len(joined[0]) > 1:  # a value, or what pandas calls a Series
            return Columns(f"{path}", {"0": joined[0][1:], UNNAMED: joined[0]})
        return Columns(f"{path}", {"": np.stack([*joined.values()], axis=-1)}, separator=separator, header=0)
    if separator == ";":
        _check_points(path, texts, [name for at, name in enumerate(names) if at in joined and np.any(joined[at] % 1)])
    by_name = {name: joined.get(at) for at, name in enumerate(names)}
    read = _Lazy(by_name, lambda name: _as_lists(texts(name)))
    return Columns(f"{path}", read, exact=texts, separator=separator, header=int(named))


def _check_points(path: Path, texts: Callable[[str], NDArray[Any]], names: Sequence[str]) -> None:
    """DataError where the points of a column, in a table that may be European, may stand between thousands."""
    for name in names:
        if all(map(_WITH_THOUSANDS, cells := texts(name))):
            shown = next(text for text in cells if "." in text)
            thousands, plain = (as_csv(f"{path}", options) for options in ("sep=';', thousands='.'", "sep=';'"))
            text = f"{path}: {name!r} has numbers such as {shown}. Is the point between thousands, or a decimal one?"
            raise DataError(f"{text}\nBetween thousands: {thousands}\nA decimal one: {plain}")


def _as_lists(texts: NDArray[Any]) -> NDArray[Any]:
    """Texts such as [0.1, 0.9] or [0.1 0.9], of one length, as an array; others as they are."""
    if all(text.startswith("[") and text.endswith("]") for text in texts.tolist()):
        with contextlib.suppress(ValueError):
            return np.array([[float(of) for of in text[1:-1].replace(",", " ").split()] for text in texts.tolist()])
    return texts


def _has_quotes(path: Path) -> bool:
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as whole:
        return whole.find(b'"', whole.find(b"\n")) >= 0


def _at_once(path: Path) -> dict[int, NDArray[Any]]:
    """The columns that hold no word in the first row, by numpy, in a third of the time; DataError where another row
    has a word or nothing there, and for quotes, which it takes less seriously than `csv`."""
    if _has_quotes(path):
        raise DataError(f"{path}: has quotes below its first line.")
    with delimited(path, is_header=_are_names) as table:
        numeric = [at for at, cell in enumerate(table.first) if _numbers((cell,)) is not None]
        numbers = table.numbers(dict.fromkeys({*range(len(table.names))} - {*numeric}, lambda _: 0.0))
    return {at: numbers[:, at] for at in numeric}


def _are_names(fields: Sequence[str]) -> bool:
    """Whether the first line names the columns: it is not all numbers, or numbers them, from 0 as pandas does, or three
    and more from 1."""
    starts = {1: (), 2: (0,)}.get(len(fields), (0, 1))
    numbered = any([*fields] == [*map(str, range(start, start + len(fields)))] for start in starts)
    return numbered or not all(cell and cell[-1] != "%" and _numbers((cell,)) is not None for cell in fields)


def _numbers(cells: Sequence[str]) -> NDArray[np.float64] | None:
    """Cells as numbers, NaN where there is none; None where one is a word."""
    try:
        numbers = np.fromiter(map(float, cells), np.float64, len(cells))
    except ValueError:
        if all(cell.endswith("%") for cell in cells):
            numbers = _numbers([cell[:-1] for cell in cells])
            return None if numbers is None else numbers / 100
        filled = ["nan" if cell.strip().lower() in _MISSING else cell for cell in cells]
        return None if filled == [*cells] else _numbers(filled)
    return None if "_" in "".join(cells) else numbers  # 1_000 is a number in Python alone


# ── JSON ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _of_json(path: Path) -> Columns:
    """An object of each point, in lines or in one array; or one object of columns. Its values are numbers, texts, lists
    of numbers or of such lists, or objects of numbers by class, of which a list of {label, score} is another form."""
    with readable(path, "JSON"), path.open(encoding="utf-8-sig") as file:
        rows, first = _rows(path, file), None
        collected, shapes, keys = dict[str, Any](), dict[str, tuple[int, ...]](), dict[str, tuple[str, ...]]()
        nested: list[str] = []
        for number, row in rows:
            if first is None:
                first = row
                for name, value in row.items():
                    collected[name] = [] if isinstance(value, _SCALARS) else array("d")
                    shapes[name] = _shape(value)
                    if isinstance(value, dict) and value and shapes[name]:
                        keys[name] = tuple(value)
                nested = [name for name, value in row.items() if not isinstance(value, _SCALARS) and not shapes[name]]
            if row.keys() != first.keys():
                odd = listed(sorted(row.keys() ^ first.keys()))
                raise DataError(f"{path}: {number} and the first differ in {odd}; expected the same names.")
            for name, values in collected.items():
                if name not in nested:
                    _add(values, row[name], keys.get(name), shapes[name], f"{path}: {name} in {number}")
        if not first:
            raise DataError(f"{path}: holds no rows; expected at least one point.")
        joined = {name: _joined(of, shapes[name]) for name, of in collected.items() if name not in nested}
    by_score = any(isinstance(value, _ByScore) for value in first.values())
    return Columns(f"{path}", joined, keys, tuple(nested), by_score=by_score)


def _rows(path: Path, file: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """The object of each point, with what it is called in a message."""
    lines = ((number, line) for number, line in enumerate(file, 1) if line.strip())
    number, line = next(lines)
    first = line.partition("}")[0] if line.lstrip()[0] == "[" else line  # of an array the first point
    if first.count('":') + first.count('" :') > _MOST_NAMES:
        raise DataError(f"{path}: its first line{_TOO_MANY}")
    begun = next(lines, None)
    try:
        values = [json.loads(line)]
    except ValueError:  # one value on several lines
        values = [json.loads("".join([line, *([] if begun is None else [begun[1]]), *(rest for _, rest in lines)]))]
        begun = None
    if begun is not None:
        for at, text in itertools.chain([(number, line), begun], lines):
            yield f"line {at}", _row(json.loads(text), f"{path}: line {at}")
        return
    [value] = values
    if isinstance(value, dict):
        lengths = {len(of) if isinstance(of, list) else -1 for of in value.values()}
        if lengths == {-1} or len(lengths) > 1:
            value = [value]
        else:  # columns
            value = [dict(zip(value, row, strict=True)) for row in zip(*value.values(), strict=True)]
    for at, row in enumerate(value):
        yield f"element {at + 1}", _row(row, f"{path}: element {at + 1}")


def _row(value: Any, where: str) -> dict[str, Any]:
    """The object of a point: scores of labels by their labels, and of lm-eval's choices their log-likelihoods alone."""
    if isinstance(value, list) and (scores := _by_label(value)) is not None:
        value = value[0] if len(value) == 1 else {"scores": scores}
    if isinstance(value, list):
        value = {"": value}
    if not isinstance(value, dict):
        raise DataError(f"{where} is {json.dumps(value)[:80]}; expected an object or a list of each point.")
    if len(value) > _MOST_NAMES:
        raise DataError(f"{where}{_TOO_MANY}")
    words, of = value.get("labels"), value.get("scores")  # of a zero-shot pipeline, the largest score first
    if isinstance(words, list) and isinstance(of, list) and len(words) == len({*map(str, words)}) == len(of):
        value = {name: each for name, each in value.items() if name != "labels"}
        value["scores"] = _ByScore(zip(map(str, words), of, strict=True))
    made = {}
    for name, of in value.items():
        if isinstance(of, list) and (scores := _by_label(of)) is not None:
            of = scores
        if isinstance(of, dict) and of.keys() == {"label", "score"}:  # of one prediction
            made["score"], of = of["score"], of["label"]
        if name == "filtered_resps" and isinstance(of, list) and all(isinstance(x, list) and len(x) == 2 for x in of):
            of = [float(choice[0]) for choice in of]
        made[name] = of
    return made


class _ByScore(dict[str, float]):
    """Scores by label, in an order that says nothing of the numbers of the classes."""


def _by_label(value: list[Any]) -> dict[str, float] | None:
    """The scores of a list of {label, score}; None for any other list."""
    if not value or not all(isinstance(each, dict) and each.keys() == {"label", "score"} for each in value):
        return None
    return _ByScore((str(each["label"]), each["score"]) for each in value)


def _shape(value: Any) -> tuple[int, ...]:
    """The shape of numbers; () of a single one, of a text, and of what is neither."""
    with contextlib.suppress(ValueError, TypeError):
        found = np.array([*value.values()] if isinstance(value, dict) else value)
        if found.dtype.kind in "fiub":
            return found.shape
    return ()


def _add(collected: Any, value: Any, keys: tuple[str, ...] | None, shape: tuple[int, ...], where: str) -> None:
    """Add a value of a point; DataError where it is of another kind, or of another shape, than the first."""
    if isinstance(collected, list):
        known = next((before for before in collected if before is not None), None)  # null says nothing
        if not isinstance(value, _SCALARS) or (isinstance(value, str) and isinstance(known, int | float)):
            expected = "a text" if isinstance(known, str) else "a number"
            raise DataError(f"{where} is {json.dumps(value)[:80]}; expected {expected}, as in the first.")
        collected.append(value)
        return
    if keys is not None:
        if not isinstance(value, dict) or value.keys() != {*keys}:
            raise DataError(f"{where} is not a number for each of {listed(keys)}, as in the first.")
        value = [value[key] for key in keys]
    with contextlib.suppress(ValueError, TypeError):  # of lists that fit into no array
        numbers = np.asarray(value)
        if numbers.ndim and numbers.dtype.kind in "biuf":
            if numbers.shape != shape:
                raise DataError(f"{where} has shape {numbers.shape}; expected {shape}, as in the first.")
            collected.frombytes(numbers.astype(np.float64).tobytes())
            return
    raise DataError(f"{where} is {json.dumps(value)[:80]}; expected numbers, as in the first.")


def _joined(values: Any, shape: tuple[int, ...]) -> NDArray[Any]:
    if isinstance(values, list):
        kinds = {type(value) for value in values}
        if kinds <= {int, float, type(None)}:
            whole = kinds == {int} and all(abs(value) < 2**63 for value in values)
            return np.array(values, dtype=np.int64 if whole else np.float64)
        if kinds == {bool}:
            return np.array(values)
        return np.array(["" if value is None else str(value) for value in values], dtype=object)
    joined = np.frombuffer(values).reshape(-1, *shape)
    return np.moveaxis(joined, 1, 0) if len(shape) == 2 else joined  # (n, T, K) as (T, n, K)
