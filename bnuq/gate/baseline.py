"""Accepts a result as the new baseline, and keeps the old baseline beside it."""

from __future__ import annotations

import itertools
import shutil
from datetime import UTC, datetime
from pathlib import Path

from bnuq.errors import ResultError
from bnuq.files.content import exists, sha256_of_file
from bnuq.files.writing import alone, replaced, within
from bnuq.findings import Finding, warning
from bnuq.records.evaluation import Result
from bnuq.records.evaluation_file import check_replaceable, read
from bnuq.records.history import made_at


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
