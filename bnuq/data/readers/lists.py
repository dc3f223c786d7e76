"""Pictures with labels beside them: lists of file names, WebDataset tars, and parquet and Arrow as of Hugging Face."""

from __future__ import annotations

import csv
import io
import itertools
import json
import re
import tarfile
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
from numpy.typing import NDArray

from bnuq.data.points import Contents
from bnuq.data.readers.common import GROUP, TARGETS, Selected, is_index, listed, readable
from bnuq.data.readers.images import check_file_size, contents_of, has_suffix, pictures_of, read_picture
from bnuq.data.readers.tables import headers_of, labels_in_column
from bnuq.errors import DataError
from bnuq.files.apart import ask
from bnuq.files.limits import check_memory, check_size

_LARGEST_HEADER = 2**20  # bytes that one header of a tar, or one label, may have
_TEXT_IN_MEMORY = 12  # bytes that a byte of a list takes at most, as objects
_LABELS = ("cls", "json")
_KEPT = 2**28  # bytes of encoded pictures of a set that stay in memory


# Lists of file names


def lists_pictures(path: Path) -> bool:
    """Whether the first or the second line of a text names a picture."""
    with readable(path, "a list of images"), path.open(encoding="utf-8-sig") as file:
        lines = [file.readline(_LARGEST_HEADER) for _ in range(2)]
    return any(has_suffix(word.strip('" \n')) for line in lines for word in re.split(r"[,;\t\n ]", line))


def read_list(
    path: Path,
    *,
    group: str = GROUP,
    target: str | None = None,
    needs_target: bool = True,
    selected: Selected = None,
    folder: Path | None = None,
) -> Contents:
    """The pictures that a text lists, relative to `folder` (default: its own): a table with a column of their names,
    and columns of labels and groups; or lines of a name, or of a name and a label."""
    with readable(path, "a list of images"), path.open(encoding="utf-8-sig", newline="") as file:
        check_memory(path, _TEXT_IN_MEMORY * path.stat().st_size, error=DataError)
        first = file.readline()
        separator = next((mark for mark in (",", ";", "\t") if mark in first), None)
        lines = itertools.chain((first,), file)
        rows = list(csv.reader(lines, delimiter=separator, strict=True)) if separator else list(_split_lines(lines))
    rows = [[field.strip() for field in row] for row in rows if any(row)]
    named = not any(map(has_suffix, rows[0]))
    names = rows[0] if named else [f"column {at}" for at in range(len(rows[0]))]
    rows = rows[1:] if named else rows
    uneven = next((at for at, row in enumerate(rows) if len(row) != len(names)), None)
    if uneven is not None:
        raise DataError(f"{path}: row {uneven} has {len(rows[uneven])} fields and others have {len(names)}.")
    inputs, labels = _columns(path, names, list(map(has_suffix, rows[0])), group, target, needs_target, selected)
    files = tuple(row[inputs] for row in rows)
    folder = folder or path.parent
    sizes = {file: _size_of(path, folder, row, file) for row, file in enumerate(files)}
    y = None if labels is None else np.array([row[labels] for row in rows], dtype=object)
    groups = np.array([row[names.index(group)] for row in rows], dtype=object) if group in names else None
    pictures = pictures_of(folder, files, sizes.__getitem__, lambda file: read_picture(folder / file))
    return Contents(pictures, y, groups, names=files)


def _split_lines(lines: Iterator[str]) -> Iterator[list[str]]:
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
        columns = [_column(path, names, name) for name in selected]
        return columns[0], columns[1] if len(columns) > 1 else None
    if True not in pictures:
        raise DataError(f"{path}: its first row names no image; expected a column of .png or .jpg files.")
    inputs = pictures.index(True)
    others = [at for at, name in enumerate(names) if at != inputs and name != group and not is_index(name, at)]
    if target is not None and (target in names or needs_target):
        return inputs, _column(path, names, target)
    called = [at for at in others if names[at].lower() in TARGETS]
    if target is not None or not others:
        return inputs, None
    if len(called or others) > 1:
        raise DataError(
            f"{path}: has columns {listed(names)}, and it is unclear which is the label. Name it: --target COLUMN, "
            f"target under [data], or {path.name}:PATHS,LABELS."
        )
    return inputs, (called or others)[0]


def _column(path: Path, names: list[str], name: str) -> int:
    if names.count(name) != 1:
        raise DataError(f"{path}: has {names.count(name)} columns called {name!r}; expected one of {listed(names)}.")
    return names.index(name)


def _size_of(path: Path, folder: Path, row: int, file: str) -> int:
    picture = folder / file
    with readable(picture, "an image"):
        if not has_suffix(file) or not picture.is_file():
            raise DataError(
                f"{path}: row {row} (counted from 0) names {file!r}, which is not an image file ({picture}); "
                f"expected paths relative to {folder}, or absolute ones."
            )
        return picture.stat().st_size


# Tars


def read_tar(path: Path, shards: Sequence[Path] = ()) -> Contents:
    """The pictures in a tar, never unpacked to disk: samples of a WebDataset (000.jpg, 000.cls or 000.json), or class
    folders. Of several tars in the folder `path`, those of each of the `shards` in order."""
    members: dict[str, tuple[Path, int, int]] = {}
    for tar in shards or (path,):
        with readable(tar, "a tar archive"), tar.open("rb") as file:
            within = f"{tar.name}/" if shards else ""
            members |= {within + name: (tar, start, size) for name, (start, size) in _members(tar, file)}

    def read(name: str) -> bytes:
        tar, start, size = members[name]
        with readable(path / name, "an image"), tar.open("rb") as file:
            file.seek(start)
            return file.read(size)

    sizes = {name: size for name, (_, _, size) in members.items()}
    if not any(_extension(name) in _LABELS for name in members):
        if shards:
            raise DataError(
                f"{path}: {shards[0].name} and others hold no labels; expected samples of a WebDataset (000.jpg with "
                "000.cls or 000.json) in each. Class folders are read from a single tar."
            )
        return contents_of(path, sizes, read)
    samples: dict[str, dict[str, str]] = {}
    for name in members:
        if has_suffix(name) or _extension(name) in _LABELS:
            kind, parts = "picture" if has_suffix(name) else _extension(name), samples.setdefault(_key(name), {})
            if kind in parts:
                raise DataError(f"{path}: sample {_key(name)!r} has two of a kind: {parts[kind]}, {name}.")
            parts[kind] = name
    bare = next((key for key, parts in samples.items() if "picture" not in parts), None)
    if bare is not None:
        raise DataError(f"{path}: sample {bare!r} has no image; expected a .jpg or .png beside {samples[bare]}.")
    y = np.array([_label(path, key, parts, sizes, read) for key, parts in samples.items()], dtype=object)
    files = tuple(parts["picture"] for parts in samples.values())
    return Contents(pictures_of(path, files, sizes.__getitem__, read), y, names=files)


def _members(path: Path, file: io.BufferedReader) -> Iterator[tuple[str, tuple[int, int]]]:
    """Name, place and size of the regular files; DataError for what could mean other files or more than is stored."""
    stored, seen = path.stat().st_size, set[str]()
    for member in tarfile.open(fileobj=cast("IO[bytes]", _Headers(file)), mode="r:"):  # noqa: SIM115 - the file is closed by the caller
        name = member.name.removeprefix("./")
        if member.isdir():
            continue
        if not member.isreg() or member.issparse():
            raise DataError(f"{path}: {name} is a link, a device or sparse; expected regular files alone.")
        if name.startswith(("/", "\\")) or ".." in re.split(r"[/\\]", name):
            raise DataError(f"{path}: {name} lies outside the archive by its name; expected names below its top.")
        if member.size < 0 or member.offset_data + member.size > stored:
            raise DataError(f"{path}: {name} declares {member.size} bytes, beyond the file's end; it is cut short.")
        if name in seen:
            raise DataError(f"{path}: lists {name} twice. Make the archive again.")
        check_file_size(path / name, member.size)
        seen.add(name)
        yield name, (member.offset_data, member.size)


class _Headers:
    """A tar's headers, of which tarfile asks for as many bytes as they declare."""

    def __init__(self, file: io.BufferedReader) -> None:
        self._file, self.seek, self.tell = file, file.seek, file.tell

    def read(self, size: int) -> bytes:
        if not 0 <= size <= _LARGEST_HEADER:
            raise ValueError(f"a header declares {size} bytes")
        return self._file.read(size)


def _key(name: str) -> str:
    folder, slash, file = name.rpartition("/")
    return folder + slash + file.partition(".")[0]


def _extension(name: str) -> str:
    return name.rpartition("/")[2].partition(".")[2].lower()


def _label(
    path: Path, key: str, parts: Mapping[str, str], sizes: Mapping[str, int], read: Callable[[str], bytes]
) -> str:
    name = parts.get("cls") or parts.get("json")
    if name is None:
        raise DataError(f"{path}: sample {key!r} has no label, which others have; expected {key}.cls or {key}.json.")
    if sizes[name] > _LARGEST_HEADER:
        raise DataError(f"{path}: {name} has {sizes[name]:,} bytes; expected a label.")
    with readable(path / name, "a label"):
        text = read(name).decode()
        if name == parts.get("cls"):
            return text.strip()
        values = json.loads(text)
        label = next((values[name] for name in TARGETS if name in values), None) if isinstance(values, dict) else values
    if not isinstance(label, int | float | str):
        raise DataError(f"{path}: {name} has no label; expected a number or a text under {', '.join(TARGETS)}.")
    return str(label).strip()


# Hugging Face's files


def read_pictures_of_columns(
    path: Path,
    files: Sequence[Path],
    *,
    target: str | None = None,
    needs_target: bool = True,
    selected: Selected = None,
) -> Contents | None:
    """The encoded pictures in a column of parquet or Arrow files, which are read a group of rows at a time as they are
    needed, with the labels of another column; None where no column holds pictures. Of several files the points have
    names: their file and row."""
    headers = headers_of(path, files)
    names, pictures = headers[0]["names"], headers[0]["pictures"]
    if not pictures:
        return None
    with readable(path, "parquet"):
        if not all(header["rows"] for header in headers):
            raise DataError(f"{path}: contains no images, or a file without any; expected at least one row in each.")
        declared = sum(header["bytes"] for header in headers)
        check_size(path, declared, stored=sum(file.stat().st_size for file in files), error=DataError, memory=False)
        flags = [name == pictures[0] for name in names]
        inputs, label = _columns(path, names, flags, "", target, needs_target, selected)
        if names[inputs] not in pictures:
            raise DataError(f"{path}: column {names[inputs]!r} holds no encoded images; expected {listed(pictures)}.")
        y, classes = (None, None) if label is None else labels_in_column(files, names[label], headers)
        if y is not None and np.all(y == -1):  # what Hugging Face's test sets without labels have
            y, classes = None, None
    several = len(files) > 1
    rows = tuple(
        f"{file.name}: row {row}" if several else f"row {row}"
        for file, header in zip(files, headers, strict=True)
        for row in range(header["rows"])
    )
    groups = _Groups(path, files, names[inputs], headers)
    source = pictures_of(path, rows, groups.bytes_around, groups.read)
    return Contents(source, y, classes=classes, names=rows if several else None)


class _Groups:
    """The encoded pictures of tables, by "row ROW", or "FILE: row ROW" of several files. Groups of rows are read as
    they are needed; the latest ones are kept, up to `_KEPT` bytes, or a single larger one."""

    def __init__(self, path: Path, files: Sequence[Path], column: str, headers: Sequence[Mapping[str, Any]]) -> None:
        self._path, self._column = path, column
        self._files = {f"{file.name}: " if len(files) > 1 else "": file for file in files}
        self._groups = dict(zip(self._files, (header["groups"] for header in headers), strict=True))
        self._ends = {name: np.cumsum([rows for rows, _ in groups]) for name, groups in self._groups.items()}
        self._latest: OrderedDict[tuple[str, int], list[NDArray[np.uint8]]] = OrderedDict()
        self._lock = threading.Lock()
        for groups in self._groups.values():
            check_memory(path, max(size for _, size in groups), error=DataError)

    def read(self, name: str) -> bytes:
        """The bytes of a picture."""
        file, group, row = self._place(name)
        with self._lock:
            if (file, group) not in self._latest:
                pictures = self._read_group(file, group)
                size = self._groups[file][group][1] + sum(self._groups[of][at][1] for of, at in self._latest)
                while self._latest and size > _KEPT:
                    of, at = self._latest.popitem(last=False)[0]
                    size -= self._groups[of][at][1]
                self._latest[file, group] = pictures
            self._latest.move_to_end((file, group))
            picture = self._latest[file, group][row]
        if not len(picture):
            raise DataError(f"{self._path}: {name} has no bytes of an image; a path alone is not followed. Embed them.")
        return picture.tobytes()

    def bytes_around(self, name: str) -> int:
        """The bytes of the group that a picture is in: of the picture alone nothing is known."""
        file, group, _ = self._place(name)
        return self._groups[file][group][1]

    def _place(self, name: str) -> tuple[str, int, int]:
        """The file, the group, and the row within the group."""
        file, _, number = name.rpartition("row ")
        group = int(np.searchsorted(self._ends[file], int(number), side="right"))
        return file, group, int(number) - (int(self._ends[file][group - 1]) if group else 0)

    def _read_group(self, file: str, group: int) -> list[NDArray[np.uint8]]:
        rows, size = self._groups[file][group]
        data = ask("pictures", str(self._files[file].absolute()), self._column, group, size)
        lengths, content = data[: 8 * rows].view(np.int64), data[8 * rows :]
        if len(lengths) != rows or lengths.min() < 0 or lengths.sum() != len(content):
            raise DataError(f"{self._path}: does not hold the images that it declares; it is damaged.")
        return np.split(content, np.cumsum(lengths)[:-1])


def read_saved_folder(path: Path, *, target: str | None = None, needs_target: bool = True) -> Contents:
    """The pictures in a folder that `save_to_disk` wrote: Arrow files, which state.json lists."""
    state = path / "state.json"
    with readable(state, "the list of a saved data set"):
        if state.stat().st_size > _LARGEST_HEADER:
            raise DataError(f"{state}: is larger than any list of files.")
        files = [str(entry["filename"]) for entry in json.loads(state.read_bytes())["_data_files"]]
    strange = next((file for file in files if not re.fullmatch(r"[\w-][\w.-]*\.arrow", file)), None)
    if strange is not None or not files:
        raise DataError(f"{state}: lists {strange!r}; expected names of .arrow files beside it.")
    contents = read_pictures_of_columns(path, [path / file for file in files], target=target, needs_target=needs_target)
    if contents is None:
        raise DataError(f"{path}: has no column of encoded images; other columns are read from .parquet or .csv.")
    return contents
