"""The sets of a published suite, read in the layout that its publisher gives them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from bnuq.data.known import data_roots
from bnuq.data.points import Contents
from bnuq.data.readers.lists import read_list
from bnuq.errors import DataError
from bnuq.files.content import exists
from bnuq.files.suites import SCRIPT, SuiteMember, benchmark_of, suites


def read_member(member: SuiteMember, data_root: Path | None = None) -> tuple[Contents, Path]:
    """The pictures of a set of a suite, without labels, and the list of their names. DataError, which names all that is
    missing of the suite, where it is nowhere below the data roots."""
    top = _top_of(member, data_root)
    if top is None:
        raise DataError(missing_message(member.suite, data_root))
    file = top / member.list_file
    try:
        contents = read_list(file, folder=top / member.pictures)
    except DataError as error:
        raise DataError(f"{error} {_how_to_get(member.suite)}") from error
    return replace(contents, targets=None, classes=None, findings=()), file


def missing_sets(suite: str, data_root: Path | None = None) -> tuple[SuiteMember, ...]:
    """The sets of a suite whose list or folder of pictures is nowhere."""
    return tuple(member for member in suites()[suite] if _top_of(member, data_root) is None)


def missing_message(suite: str, data_root: Path | None = None) -> str:
    """What is missing of a suite, where it was looked for, and how it is published."""
    missing = missing_sets(suite, data_root)
    lines = [f"{suite}: {len(missing)} of its {len(suites()[suite])} sets are missing:" if missing else f"{suite}:"]
    lines += [f"  {member.list_file}, with its images in {member.pictures}/" for member in missing]
    lines += ["Looked in:", *(f"  {top}" for top in _tops(data_root)), _how_to_get(suite)]
    return "\n".join(lines)


def _how_to_get(suite: str) -> str:
    return (
        "OpenOOD publishes lists and images by a script, without checksums, so bnuq does not fetch them. In a copy "
        f"of github.com/Jingkang50/OpenOOD run {SCRIPT} {benchmark_of(suite)}, and name that folder by --data-root or "
        "the environment variable BNUQ_DATA."
    )


def _top_of(member: SuiteMember, data_root: Path | None) -> Path | None:
    paths = (member.list_file, member.pictures)
    return next((top for top in _tops(data_root) if all(exists(top / path) for path in paths)), None)


def _tops(data_root: Path | None) -> tuple[Path, ...]:
    return tuple(top for root in data_roots(data_root) for top in (root, root / "openood"))
