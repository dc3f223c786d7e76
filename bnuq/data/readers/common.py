"""What the readers share: names of arrays, limits on declared sizes, and one message for a foreign parser's failure."""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from bnuq.data.points import Contents
from bnuq.errors import BnuqError, DataError
from bnuq.files.limits import check_memory, check_size
from bnuq.files.mapped import Space, bytes_in_memory
from bnuq.findings import note
from bnuq.packing import pack

Selected = tuple[str, ...] | None  # the names of the inputs and, where there are two, of the labels

_NAMES = (("x", "y"), ("X", "y"), ("images", "labels"), ("data", "target"))
TARGETS = ("label", "labels", "target", "targets", "class", "y")  # names of columns, where y may be a coordinate
_TARGETS = ("y", "labels", "label", "target", "targets", "Y")


GROUP = "group"  # what the array or the column of the groups is called, unless it is said


def named_contents(
    path: Path,
    sizes: Mapping[str, int],
    read: Callable[[str], NDArray[Any]],
    *,
    stored: int,
    group: str = GROUP,
    selected: Selected = None,
) -> Contents:
    """Inputs, targets and groups by the names that are `selected`, or that arrays usually have; only these are read.
    Several inputs, `A+B`, are packed.

    `sizes` are the bytes that each array declares; those of the arrays used are added up, and checked against the
    `stored` bytes of the file and, as far as they are not mapped, the memory, before the first is read.
    """
    names = list(sizes)
    inputs, target = _usual(path, names) if selected is None else _selected(path, names, selected)
    used = {*inputs, target, group}
    others = [] if selected else [name for name in names if name not in used]
    declared = [sizes[name] for name in names if name in used]
    check_size(path, sum(declared), stored=stored, error=DataError, memory=False)
    check_memory(path, sum(map(bytes_in_memory, declared)), error=DataError)
    layout, targets = None, None if target is None else read(target)
    x = read(inputs[0])
    if len(inputs) > 1:
        short = [name.rpartition("/")[2] for name in inputs]
        called = short if len({*short}) == len(inputs) else inputs
        x, layout = pack({name: read(dataset) for name, dataset in zip(called, inputs, strict=True)}, f"{path}")
    return Contents(
        x,
        targets,
        read(group) if group in names else None,
        findings=(note("arrays-unused", names=others),) if others else (),
        layout=layout,
    )


def _usual(path: Path, names: list[str]) -> tuple[list[str], str | None]:
    pair = next(((x, y) for x, y in _NAMES if x in names), None)
    if pair is None:
        splits = list(_splits(names))
        advice = (
            f"Name one of its sets: {' or '.join(f'{path.name}:{split}' for split in splits[:4])}."
            if splits
            else f"Write the inputs as x and the targets as y, or name both: {path.name}:INPUTS,LABELS; several inputs "
            f"are {path.name}:A+B,LABELS."
        )
        raise DataError(f"{path}: has no array called x (or X, images, data); it has {listed(names)}. {advice}")
    return [pair[0]], next((name for name in (pair[1], *_TARGETS) if name in names), None)


def _selected(path: Path, names: list[str], selected: tuple[str, ...]) -> tuple[list[str], str | None]:
    inputs = [selected[0]] if selected[0] in names else [name.strip() for name in selected[0].split("+")]
    given = [name if name in names else name.strip("/") for name in (*inputs, *selected[1:])]
    missing = next((name for name in given if name not in names), None)
    if missing is None:
        return given[: len(inputs)], given[len(inputs)] if len(selected) > 1 else None
    splits = _splits(names)
    if len(given) == 1 and missing in splits:
        x, y = splits[missing]
        return [x], y
    also = f" and, of inputs and labels, {listed(list(splits))}" * bool(splits)
    raise DataError(
        f"{path}: holds nothing called {missing!r}; it has {listed(names)}{also}. Expected {path.name}:INPUTS or "
        f"{path.name}:INPUTS,LABELS, where several inputs are A+B; each set has its own option."
    )


def _splits(names: list[str]) -> dict[str, tuple[str, str | None]]:
    """The inputs and the labels of each set that a file of several has: train_images, x_train, train/x."""
    splits: dict[str, tuple[str, str | None]] = {}
    for x, y in _NAMES:
        for form in ("{split}_{name}", "{name}_{split}", "{split}/{name}"):
            before, after = form.format(split="\0", name=x).split("\0")
            for name in names:
                split = name.removeprefix(before).removesuffix(after)
                if split and f"{before}{split}{after}" == name:
                    target_names = (form.format(split=split, name=target) for target in (y, *_TARGETS))
                    splits.setdefault(split, (name, next((labels for labels in target_names if labels in names), None)))
    return splits


def is_index(name: str, position: int) -> bool:
    """Whether a column is the index that pandas or R writes beside the data: unnamed, or named by what reads it."""
    return (position == 0 and not name) or bool(re.fullmatch(r"Unnamed: \d+(\.\d+)*|__index_level_\d+__", name))


def position_of(path: Path, names: Sequence[str], name: str) -> int:
    """The column that is called so; DataError where there is none, or more than one."""
    if (count := names.count(name)) != 1:
        raise DataError(f"{path}: has {count} columns called {name!r}; expected one of {listed(names)}.")
    return names.index(name)


def listed(names: Sequence[str]) -> str:
    """The first of these names, for a message."""
    return ", ".join(repr(name[:100]) for name in names[:20]) + ", …" * (len(names) > 20) or "none"


_FACTORIES = {
    ".arrow": 'datasets.load_from_disk(PATH).with_format("torch")',
    ".parquet": 'datasets.load_dataset("parquet", data_files=PATHS, split="train").with_format("torch")',
    ".tar": 'webdataset.WebDataset(PATHS, shardshuffle=False).decode("torchrgb8").to_tuple("jpg;png", "cls")',
}


def with_a_factory(suffix: str) -> str:
    """How a set in such files, which no reader reads, is read by the library that wrote it, for a message."""
    return (
        "Let a function read it, and name that: --test data.py:points, where data.py defines points(), which returns "
        f"{_FACTORIES[suffix]}; docs/run-file.md shows it whole."
    )


def array_bytes(shape: Iterable[int], dtype: np.dtype[Any]) -> int:
    """Size of such an array, in integers that do not wrap around."""
    return math.prod(shape) * dtype.itemsize


def read_bytes(file: IO[bytes], size: int) -> NDArray[np.uint8]:
    """Up to `size` bytes, held in memory once, or mapped: a decompressor's own `read` holds them twice."""
    with Space(size) as space:
        while len(part := space.next) and (piece := file.read(len(part))):
            part[: len(piece)] = piece
            space.filled(len(piece))
        return space.bytes()


@contextlib.contextmanager
def readable(path: Path, kind: str) -> Iterator[None]:
    """Turn any failure of a foreign parser into one DataError: damaged files make parsers raise anything."""
    try:
        yield
    except BnuqError:
        raise
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: is not a text in UTF-8 ({error.reason}). Save it as UTF-8.") from error
    except MemoryError as error:
        raise DataError(f"{path}: there is not enough memory to read it. Use a part of it.") from error
    except Exception as error:
        if isinstance(error, OSError) and error.errno and error.strerror:  # the system's, not a parser's
            raise DataError(f"{path}: cannot be read: {error.strerror}. Was it changed meanwhile?") from error
        reason = " ".join(str(error).split())[:200].strip("'\"") or type(error).__name__
        raise DataError(f"{path}: cannot be read as {kind}: it is cut short or damaged ({reason}).") from error
