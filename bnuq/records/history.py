"""A history: a folder of results, or several of them, in the order of the times in their provenance."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

from bnuq.errors import ResultError
from bnuq.records.evaluation import Result


def made_at(result: Result) -> datetime | None:
    """The time at which a result was made, in UTC; None if its file does not say."""
    try:
        return datetime.fromisoformat(str(result.provenance["time"])).astimezone(UTC)
    except (KeyError, ValueError, OverflowError):
        return None


def copy_of(result: Result, others: Iterable[Result]) -> str | None:
    """That a result is a copy of one of the others, in words; None if it is a result of its own."""
    made = result.provenance, result.seconds  # no two runs take the same time to the last bit
    original = next((other for other in others if (other.provenance, other.seconds) == made), None)
    return None if original is None else f"it is a copy of {original.path}"


def in_order(results: Iterable[Result]) -> list[Result]:
    """Oldest first. ResultError for a result that does not say when it was made."""
    timed = []
    for result in results:
        if (time := made_at(result)) is None:
            raise ResultError(f"{result.path} does not say when it was made, so it has no place in a history.")
        timed.append((time, str(result.path), result))
    return [result for *_, result in sorted(timed, key=lambda item: item[:2])]


def files_of(folder: Path) -> list[Path]:
    """The HDF5 files of a folder, by name; ResultError if there is no such folder, or none in it."""
    if not folder.is_dir():
        raise ResultError(f"{folder} is {'a file' if folder.exists() else 'not there'}; expected a folder of results.")
    if not (paths := sorted(path for path in folder.glob("*.h5") if path.is_file())):
        raise ResultError(f"{folder} has no result file (*.h5): a history needs one at least.")
    return paths
