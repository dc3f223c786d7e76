"""The results of a folder that a new one is compared with: the last of them on the same points."""

from __future__ import annotations

from pathlib import Path

from bnuq.errors import ResultError
from bnuq.files.content import sha256_of_file
from bnuq.findings import Finding, note
from bnuq.gate.compatibility import check_comparable
from bnuq.gate.pairing import difference_of_points, under_one_name
from bnuq.gate.settings import GateSettings
from bnuq.records.evaluation import Result
from bnuq.records.evaluation_file import read
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
