"""Pictures with labels beside them: lists of file names, and tables that hold pictures."""

from __future__ import annotations

import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bnuq.data.points import Contents
from bnuq.data.readers.common import GROUP, TARGETS, Selected, is_index, listed, position_of, readable
from bnuq.data.readers.delimited import delimited, numbered_rows, places
from bnuq.data.readers.images import has_suffix, pictures_of, read_picture
from bnuq.data.readers.tables import header_of, labels_in_column
from bnuq.errors import DataError
from bnuq.files.apart import ask
from bnuq.files.limits import check_memory, check_size

_LONGEST_LINE = 2**20  # characters that are looked at
_TEXT_IN_MEMORY = 12  # bytes that a byte of a list takes at most, as objects
_KEPT = 2**28  # bytes of encoded pictures of a set that stay in memory


# Lists of file names


def lists_pictures(path: Path) -> bool:
    """Whether the first or the second line of a text names a picture."""
    with readable(path, "a list of images"), path.open(encoding="utf-8-sig") as file:
        lines = [file.readline(_LONGEST_LINE) for _ in range(2)]
    return any(has_suffix(word.strip('" \n')) for line in lines for word in re.split(r"[,;\t\n ]", line))


def read_list(
    path: Path, *, group: str = GROUP, target: str | None = None, needs_target: bool = True, selected: Selected = None
) -> Contents:
    """The pictures that a text lists, relative to its folder: a table with a column of their names, and columns of
    labels and groups; or lines of a name, or of a name and a label."""
    check_memory(path, _TEXT_IN_MEMORY * path.stat().st_size, error=DataError)
    with delimited(path, "a list of images", is_header=_names_no_picture) as text:
        of_lines = text.rows() if text.separator else _split_lines(text.lines)
        header = text.names if text.separator else next(_split_lines(text.names))
        rows = [row for row in of_lines if any(row)]
    names = header if text.named else [f"column {column}" for column in range(len(rows[0]))]

    def place(row: int) -> str:
        lines = [line for line, cells in numbered_rows(path, text.separator) if any(cells)]
        return places("line", [lines[row + text.named]])

    if (uneven := next((number for number, row in enumerate(rows) if len(row) != len(names)), None)) is not None:
        raise DataError(f"{path}: {place(uneven)} has {len(rows[uneven])} fields and others have {len(names)}.")
    inputs, labels = _columns(path, names, list(map(has_suffix, rows[0])), group, target, needs_target, selected)
    files = tuple(row[inputs] for row in rows)
    folder = path.parent
    sizes = {file: _size_of(path, folder, file, partial(place, row)) for row, file in enumerate(files)}
    y = None if labels is None else np.array([row[labels] for row in rows], dtype=object)
    groups = np.array([row[names.index(group)] for row in rows], dtype=object) if group in names else None
    pictures = pictures_of(folder, files, sizes.__getitem__, lambda file: read_picture(folder / file))
    return Contents(pictures, y, groups, names=files)


def _names_no_picture(fields: Sequence[str]) -> bool:
    return not any(has_suffix(word) for field in fields for word in (field, *field.rsplit(maxsplit=1)[:1]))


def _split_lines(lines: Iterable[str]) -> Iterator[list[str]]:
    """The name and, where there is one, the label of each line; a name may hold spaces."""
    for line in lines:
        words = line.strip().rsplit(maxsplit=1)
        yield words if words and not has_suffix(line.strip()) else [line.strip()]


def _columns(
    path: Path,
    names: list[str],
    pictures: list[bool],
    group: str,
    target: str | None,
    needs_target: bool,
    selected: Selected,
) -> tuple[int, int | None]:
    """The columns of the pictures' names and of the labels."""
    if selected is not None:
        columns = [position_of(path, names, name) for name in selected]
        return columns[0], columns[1] if len(columns) > 1 else None
    if True not in pictures:
        raise DataError(f"{path}: its first row names no image; expected a column of .png or .jpg files.")
    inputs = pictures.index(True)
    others = [at for at, name in enumerate(names) if at != inputs and name != group and not is_index(name, at)]
    if target is not None and (target in names or needs_target):
        return inputs, position_of(path, names, target)
    called = [column for column in others if names[column].lower() in TARGETS]
    if target is not None or not others:
        return inputs, None
    if len(called or others) > 1:
        raise DataError(
            f"{path}: has columns {listed(names)}, and it is unclear which is the label. Name it: --target COLUMN, "
            f"target under [data], or {path.name}:PATHS,LABELS."
        )
    return inputs, (called or others)[0]


def _size_of(path: Path, folder: Path, file: str, place: Callable[[], str]) -> int:
    picture = folder / file
    with readable(picture, "an image"):
        if not has_suffix(file) or not picture.is_file():
            raise DataError(
                f"{path}: {place()} names {file!r}, which is not an image file ({picture}); "
                f"expected paths relative to {folder}, or absolute ones."
            )
        return picture.stat().st_size


# Tables that hold pictures, as those of Hugging Face


def read_pictures_of_columns(
    path: Path, *, target: str | None = None, needs_target: bool = True, selected: Selected = None
) -> Contents | None:
    """The encoded pictures in a column of a parquet file, which are read a group of rows at a time as they are needed,
    with the labels of another column; None where no column holds pictures."""
    header = header_of(path)
    names, pictures = header["names"], header["pictures"]
    if not pictures:
        return None
    with readable(path, "parquet"):
        if not header["rows"]:
            raise DataError(f"{path}: contains no images; expected at least one row.")
        check_size(path, header["bytes"], stored=path.stat().st_size, error=DataError, memory=False)
        flags = [name == pictures[0] for name in names]
        inputs, label = _columns(path, names, flags, "", target, needs_target, selected)
        if names[inputs] not in pictures:
            raise DataError(f"{path}: column {names[inputs]!r} holds no encoded images; expected {listed(pictures)}.")
        y, classes = (None, None) if label is None else labels_in_column(path, names[label], header)
        if y is not None and np.all(y == -1):  # what Hugging Face's test sets without labels have
            y, classes = None, None
    rows = tuple(f"row {row}" for row in range(header["rows"]))
    groups = _Groups(path, names[inputs], header["groups"])
    return Contents(pictures_of(path, rows, groups.bytes_around, groups.read), y, classes=classes)


class _Groups:
    """The encoded pictures of a table, by "row ROW". Groups of rows are read as they are needed; the latest ones are
    kept, up to `_KEPT` bytes, or a single larger one."""

    def __init__(self, path: Path, column: str, groups: Sequence[tuple[int, int]]) -> None:
        self._path, self._column = path, column
        self._rows, self._sizes = zip(*groups, strict=True)
        self._ends = np.cumsum(self._rows)
        self._latest: OrderedDict[int, list[NDArray[np.uint8]]] = OrderedDict()
        self._lock = threading.Lock()
        check_memory(path, max(self._sizes), error=DataError)

    def read(self, name: str) -> bytes:
        """The bytes of a picture."""
        group, row = self._place(name)
        with self._lock:
            if group not in self._latest:
                pictures = self._read_group(group)
                size = self._sizes[group] + sum(self._sizes[latest_group] for latest_group in self._latest)
                while self._latest and size > _KEPT:
                    size -= self._sizes[self._latest.popitem(last=False)[0]]
                self._latest[group] = pictures
            self._latest.move_to_end(group)
            picture = self._latest[group][row]
        if not len(picture):
            raise DataError(f"{self._path}: {name} has no bytes of an image; a path alone is not followed. Embed them.")
        return picture.tobytes()

    def bytes_around(self, name: str) -> int:
        """The bytes of the group that a picture is in: of the picture alone nothing is known."""
        return self._sizes[self._place(name)[0]]

    def _place(self, name: str) -> tuple[int, int]:
        """The group, and the row within the group."""
        row = int(name.removeprefix("row "))
        group = int(np.searchsorted(self._ends, row, side="right"))
        return group, row - (int(self._ends[group - 1]) if group else 0)

    def _read_group(self, group: int) -> list[NDArray[np.uint8]]:
        rows = self._rows[group]
        data = ask("pictures", str(self._path.absolute()), self._column, group, self._sizes[group])
        lengths, content = data[: 8 * rows].view(np.int64), data[8 * rows :]
        if len(lengths) != rows or lengths.min() < 0 or lengths.sum() != len(content):
            raise DataError(f"{self._path}: does not hold the images that it declares; it is damaged.")
        return np.split(content, np.cumsum(lengths)[:-1])
