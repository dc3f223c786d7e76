"""What a new result is compared with: the last results of a folder, or a baseline, which it can replace."""

from __future__ import annotations

import itertools
import shutil
from datetime import UTC, datetime
from pathlib import Path

from bnuq.errors import ResultError
from bnuq.files.content import exists, sha256_of_file
from bnuq.files.writing import alone, replaced, within
from bnuq.findings import Finding, note, warning
from bnuq.gate.compatibility import check_comparable
from bnuq.gate.pairing import difference_of_points, under_one_name
from bnuq.gate.settings import GateSettings
from bnuq.records.evaluation import Result
from bnuq.records.evaluation_file import check_replaceable, read
from bnuq.records.history import copy_of, files_of, made_at
from bnuq.store.codec import kind_of_result, time_of_result

LAST = 5  # results that a new one is compared with


def last_results(
    folder: Path, current: Result, settings: GateSettings, *, last: int = LAST
) -> tuple[list[Result], list[Finding]]:
    """The `last` results in `folder` that were made before `current` and can be compared with it, on the same points;
    oldest first. And notes: how many there are, and which files were left out, and why.

    Raises ResultError for a folder without such a result, and for a damaged file, by its name.
    """
    if (now := made_at(current)) is None:
        raise ResultError(f"{current.path} does not say when it was made, so no result can be before it.")
    own = None if current.path is None else sha256_of_file(current.path)
    left_out: dict[str, str] = {}
    timed = []
    for path in files_of(folder):
        if (kind := kind_of_result(path, None)) != current.KIND:
            left_out[path.name] = f"it is of another kind ({kind})"
        elif (time := time_of_result(path)) < now:
            timed.append((time, path))
        elif sha256_of_file(path) != own:
            left_out[path.name] = f"it was not made before {current.path}"
    found: list[Result] = []
    for _, path in sorted(timed, reverse=True):
        if len(found) == last:
            break
        result = under_one_name(current, read(path, log_likelihoods=False))
        if why := copy_of(result, found) or why_not(current, result, settings):
            left_out[path.name] = why
        else:
            found.insert(0, result)
    if not found:
        reasons = "".join(f"\n  - {name}: {why}" for name, why in left_out.items())
        raise ResultError(f"{folder} has no result that {current.path} can be compared with.{reasons}")
    told = note("history", folder=str(folder), used=len(found), asked=last)
    return found, [told, *(note("left-out-of-history", file=name, reason=why) for name, why in left_out.items())]


def why_not(current: Result, result: Result, settings: GateSettings) -> str | None:
    """Why a result is none of the history of the current one; None if it is."""
    for name, points in current.sets.items():
        if name in result.sets and (difference := difference_of_points(points, result.sets[name])):
            return f"its {name} set is not the same: {difference}"
    try:
        check_comparable(current, result, settings)
    except ResultError as error:
        return str(error).partition("\n  - ")[2].partition("\n")[0]
    return None


@within(lambda _, baseline: alone(baseline))
def accept(current: Path, baseline: Path) -> Path | None:
    """Put a copy of `current` at `baseline`; return the path of the old baseline's backup, None if there was none.

    The backup is named after the time at which the old baseline was made, `base.20261122T101500Z.h5`, so that none is
    ever lost. Raises ResultError if `baseline` is not a result file, is `current` itself, or cannot be written; it
    is then unchanged.
    """
    check_acceptable(current, baseline)
    backup = None
    if exists(baseline) and sha256_of_file(baseline) != sha256_of_file(current):
        backup = _backup_path(baseline)
        if not exists(backup):
            _copy(baseline, backup, named=False)
    _copy(current, baseline)
    return backup


def check_acceptable(current: Path, baseline: Path) -> None:
    """Raise ResultError if `baseline` cannot be replaced by `current`."""
    check_replaceable(baseline)
    if exists(baseline) and current.samefile(baseline):
        raise ResultError(f"{current} is the baseline itself; there is nothing to accept.")


def held_images(result: Result) -> tuple[Finding, ...]:
    """A warning of the images of the test data that whoever reads this baseline can see."""
    images = {(shown.set, point) for shown in result.gallery for point in shown.points.tolist()}
    if result.image_maps is not None:
        images |= {("test", point) for point in result.image_maps.points.tolist()}
    return (warning("baseline-holds-images", count=len(images)),) if images else ()


def _backup_path(baseline: Path) -> Path:
    """The path of the backup: that of an earlier copy of the same bytes, or an unused path."""
    time_mark = _made_at(baseline)
    sha256 = sha256_of_file(baseline)
    for number in itertools.count(1):
        mark = time_mark if number == 1 else f"{time_mark}-{number}"
        path = baseline.with_name(f"{baseline.stem}.{mark}{baseline.suffix}")
        if not exists(path) or sha256_of_file(path) == sha256:
            return path
    raise AssertionError


def _made_at(baseline: Path) -> str:
    """The time at which a result was made: as its file says, otherwise that of the file system."""
    try:
        time = made_at(read(baseline, log_likelihoods=False))
    except ResultError:
        time = None
    time = time or datetime.fromtimestamp(baseline.stat().st_mtime, UTC)
    return time.strftime("%Y%m%dT%H%M%SZ")


def _copy(source: Path, target: Path, *, named: bool = True) -> None:
    with source.open("rb") as old, replaced(target, named=named, like=source) as new:
        shutil.copyfileobj(old, new)
