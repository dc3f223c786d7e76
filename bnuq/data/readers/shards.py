"""The files of a set that is stored in several: a folder of .parquet or .tar files, or names with {0..9} in them."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from pathlib import Path

from bnuq.errors import DataError

_MOST = 100_000  # files of a set
_RANGE = re.compile(r"\{(\d{1,9})\.\.(\d{1,9})\}")


def shards_of(path: Path) -> tuple[Path, ...]:
    """The files that a name such as train-{000000..000003}.tar stands for; none where it is no such name."""
    if (found := _RANGE.search(path.name)) is None:
        return ()
    (first, last), (start, end) = found.groups(), found.span()
    numbers = range(int(first), int(last) + 1)
    if not 0 < len(numbers) <= _MOST:
        raise DataError(f"{path}: stands for {len(numbers):,} files; expected {{FIRST..LAST}}, up to {_MOST:,} files.")
    names = (f"{path.name[:start]}{number:0{len(first)}}{path.name[end:]}" for number in numbers)
    return _present([path.parent / name for name in names])


def shards_in(folder: Path) -> tuple[Path, ...]:
    """The .parquet or the .tar files in a folder, in the order of their numbers; none where there are no such files.

    DataError where they are of several sets: their names differ by more than numbers.
    """
    files = [path for path in folder.iterdir() if path.suffix in (".parquet", ".tar") and not path.name.startswith(".")]
    files.sort(key=lambda path: ([int(number) for number in re.findall(r"\d+", path.name)], path.name))
    sets: dict[str, list[Path]] = {}
    for file in files:
        sets.setdefault(re.sub(r"\d+", "0", file.name), []).append(file)
    if len(sets) > 1:
        written = " or ".join(sorted(f"{folder.name}/{_written(names)}" for names in sets.values())[:4])
        raise DataError(f"{folder}: holds the files of several sets; name those of one: {written}.")
    for file in files[:1]:  # train-00000-of-00002.parquet
        if (parts := re.fullmatch(r"(.*-)(\d+)(-of-(\d+)\.\w+)", file.name)) and int(parts[4]) <= _MOST:
            numbers = range(int(parts[4]))
            files = [folder / f"{parts[1]}{number:0{len(parts[2])}}{parts[3]}" for number in numbers]
    return _present(files)


def _present(files: Sequence[Path]) -> tuple[Path, ...]:
    missing = next((file for file in files if not file.is_file()), None)
    if missing is not None:
        raise DataError(f"{missing}: there is no such file; expected all {len(files)} of the set.")
    return tuple(files)


def _written(files: Sequence[Path]) -> str:
    """One name that stands for these files, in order."""
    first, last = files[0].name, files[-1].name
    at = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(first, last, strict=False)))
    number = next((found for found in re.finditer(r"\d+", first) if found.end() > at), None)
    if len(files) == 1 or number is None:
        return first
    start, end = number.span()
    return f"{first[:start]}{{{number[0]}..{last[start : end + len(last) - len(first)]}}}{first[end:]}"
