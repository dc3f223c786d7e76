"""Parts of the units of an evaluation, each computed by a process of its own on any machine, and their result."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from bnuq.config import Options, Run, resolve_again
from bnuq.errors import RequestError, ResultError
from bnuq.evaluation.executors import Missing, Share, Worker
from bnuq.evaluation.request_checks import check_request
from bnuq.evaluation.setup import recorded_threads, threads
from bnuq.files.journal import keeping
from bnuq.files.places import place_of
from bnuq.progress import Progress, silent
from bnuq.records.evaluation import Result
from bnuq.workflows.evaluate import compute, evaluate
from bnuq.workflows.processes import raise_lost
from bnuq.workflows.requests import check_shard, part_of, unmerged

_SILENCE = 60.0  # seconds between two messages while others are waited for
_NAMED = 8  # missing units that a message names


def share_of(shard: str, environment: Mapping[str, str] = os.environ) -> Share:
    """The share that `--shard` names, see `part_of`."""
    number, count = part_of(shard, environment)
    return Share(number, count, f"shard {number} of {count}", fixed=True)


def compute_shard(
    runs: Sequence[Run], work: str | None, *, progress: Progress = silent, say: Callable[[str], object] = print
) -> None:
    """Compute the part of the units of each run that `run.shard` names, and leave them at `work`.

    If units of others are needed before further ones can begin, it waits for them, says so, and computes them
    itself if none of them appears for ten minutes, or no other shard gives a sign of life. Raises BnuqError as
    `evaluate` does.
    """
    check_shard(runs, work)
    share = share_of(runs[0].shard or "")
    assert work is not None  # ensured by check_shard
    place, said = place_of(work), -_SILENCE

    def wait(text: str) -> None:
        nonlocal said
        if time.monotonic() - said >= _SILENCE:
            said = time.monotonic()
            say(f"{share.name}: {text}")

    lost: dict[str, str] = {}
    with keeping(place):
        for run in runs:
            check_request(run)
            make = partial(Worker, share=share, on_wait=wait)
            made = compute(run, b"", place, make, progress, checks=True)
            lost |= {unit: why for worker in made for unit, why in worker.lost.items()}
        raise_lost(lost)


def merge(
    work: str, options: Options, *, folder: Path, progress: Progress = silent, run_file: str | None = None
) -> Result:
    """The result of the evaluation whose units are at `work`, written as `evaluate` would have; the units are then
    removed. Code that the `run_file` names may run. ResultError where some are missing, which it names."""
    place, (key, about) = place_of(work), unmerged(work)
    source = folder / f"{key}.json" if "://" in work else Path(work).absolute() / f"{key}.json"
    _check_out(Path(about["out"]), options, folder, work)
    given = Options({"out": about["out"], **{name: value for name, value in options.items() if value is not None}})
    run = replace(resolve_again(about["run"], source, given, folder=folder, run_file=run_file), on="local")
    check_request(run)
    with keeping(place), threads(recorded_threads(about["facts"].get("threads"), source)):
        [missing] = compute(run, b"", place, Missing, progress)
        if missing.journal.key != key:
            missing.journal.retract()
            raise ResultError(f"{work}: the checkpoint, the data or the software are not those of the shards any more.")
        if missing.missing:
            raise ResultError(_complaint(work, missing))
        return evaluate(run, work=work, progress=progress, merged=True)


def _check_out(recorded: Path, options: Options, folder: Path, work: str) -> None:
    """Raise RequestError where nobody but the work folder says that a file elsewhere is to be written."""
    if options.get("out") is None and recorded.parent.resolve() != folder.resolve():
        raise RequestError(
            f"{work}: the result of these units is {recorded}, which is not in this folder. Add --out {recorded}, or "
            "name another file."
        )


def _complaint(work: str, missing: Missing) -> str:
    names = [*dict.fromkeys(missing.missing)]
    lines = []
    for name in names[:_NAMED]:
        tried = missing.journal.attempts(name)
        lines.append(f"  - {name}" + (f" (tried {len(tried)} times, last by {tried[-1].get('by')})" if tried else ""))
    if len(names) > _NAMED:
        lines.append(f"  - and {len(names) - _NAMED} others")
    units = "1 unit is" if len(names) == 1 else f"{len(names)} units are"
    return f"{work}: {units} missing, and what depends on them:\n" + "\n".join(lines) + "\nRun their shards again."
