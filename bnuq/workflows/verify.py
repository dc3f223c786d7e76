"""Some units of a result computed again: are they bitwise those that its figures were made of?"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from bnuq.config import Options, resolve_again
from bnuq.errors import RequestError, ResultError
from bnuq.evaluation.executors import Chosen
from bnuq.evaluation.request_checks import check_readable
from bnuq.evaluation.setup import recorded_threads, threads
from bnuq.files.journal import root_of
from bnuq.files.places import Folder
from bnuq.frozen import frozen
from bnuq.gate.recomputing import recomputed
from bnuq.progress import Progress, silent
from bnuq.records.evaluation import Result
from bnuq.records.evaluation_file import read
from bnuq.workflows.evaluate import compute


@frozen
class Verified:
    """The units that were chosen, those computed again (with all that these depend on), and those that differ."""

    result: Result
    chosen: tuple[str, ...]
    computed: tuple[str, ...]
    differing: tuple[str, ...]


def verify(
    path: Path,
    options: Options,
    *,
    units: int,
    folder: Path,
    progress: Progress = silent,
    chosen: Sequence[str] | None = None,
    run_file: str | None = None,
) -> Verified:
    """Compute `units` units of a result again, at random or those that are `chosen`, and compare their digests. Code
    that the `run_file` names may run.

    Raises ResultError for a file without digests or one that does not agree with itself, and where the checkpoint, the
    data, the network's code or the software are others; BnuqError as `evaluate` does.
    """
    result = read(path)
    if not result.units:
        raise ResultError(f"{path}: has no digests of units; expected a result of this version of bnuq evaluate.")
    if root_of(result.units) != result.provenance.get("units"):
        raise ResultError(f"{path}: the digests of its units are not those of its root; the file was changed.")
    recomputed(result)
    again = resolve_again(dict(result.run), path.resolve(), options, folder=folder, run_file=run_file)
    run = replace(again, out=path)
    check_readable(run)
    names = chosen or random.SystemRandom().sample(sorted(result.units), min(units, len(result.units)))
    if unknown := set(names) - set(result.units):
        raise RequestError(f"{path}: has no unit {min(unknown)}.")
    made_with = recorded_threads(result.provenance.get("threads"), path)
    with tempfile.TemporaryDirectory(prefix="bnuq-verify-") as work, threads(made_with):
        [executor] = compute(run, b"", Folder(Path(work)), partial(Chosen, names=names), progress, expected=result)
    digests = executor.journal.digests
    if missing := [name for name in (*names, *digests) if name not in digests or name not in result.units]:
        raise ResultError(f"{path}: {missing[0]} is not in both; the points are divided into other units here.")
    differing = tuple(name for name, digest in digests.items() if digest != result.units[name])
    return Verified(result, tuple(sorted(names)), tuple(digests), differing)
