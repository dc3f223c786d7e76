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
from bnuq.files.journal import keeping, requests_at
from bnuq.files.places import place_of
from bnuq.progress import Progress, silent
from bnuq.records.evaluation import Result
from bnuq.workflows.evaluate import compute, evaluate
from bnuq.workflows.processes import check_shareable, raise_lost

_ENVIRONMENT = (  # number and count, as launchers say them
    ("RANK", "WORLD_SIZE"),
    ("SLURM_ARRAY_TASK_ID", "SLURM_ARRAY_TASK_COUNT"),
    ("SLURM_PROCID", "SLURM_NTASKS"),
    ("JOB_COMPLETION_INDEX", "JOB_COMPLETIONS"),
)
_SILENCE = 60.0  # seconds between two messages while others are waited for
_NAMED = 8  # missing units that a message names


def share_of(shard: str, environment: Mapping[str, str] = os.environ) -> Share:
    """The share that `--shard` names: I/N, or env; RequestError where that is none."""
    text = shard
    if shard == "env":
        variables = [pair for pair in _ENVIRONMENT if all(environment.get(name, "").isdigit() for name in pair)]
        if not variables:
            pairs = ", ".join(" and ".join(pair) for pair in _ENVIRONMENT)
            raise RequestError(f"--shard env: none of these is set: {pairs}. Name the shard, as in --shard 0/4.")
        index, of = next((pair for pair in variables if int(environment[pair[1]]) > 1), variables[0])
        first = int(environment.get("SLURM_ARRAY_TASK_MIN", 0)) if index == "SLURM_ARRAY_TASK_ID" else 0
        text = f"{int(environment[index]) - first}/{environment[of]}"
    number, count = map(int, text.split("/"))
    if not 0 <= number < count:
        raise RequestError(f"--shard {shard} is part {number} of {count}; parts are numbered from 0 to {count - 1}.")
    return Share(number, count, f"shard {number} of {count}", fixed=True)


def compute_shard(
    runs: Sequence[Run], work: str | None, *, progress: Progress = silent, say: Callable[[str], object] = print
) -> None:
    """Compute the part of the units of each run that `run.shard` names, and leave them at `work`.

    If units of others are needed before further ones can begin, it waits for them, says so, and computes them
    itself if none of them appears for ten minutes, or no other shard gives a sign of life. Raises BnuqError as
    `evaluate` does.
    """
    shard = runs[0].shard
    assert shard is not None
    share = share_of(shard)
    if work is None:
        raise RequestError(f"--shard {shard} needs --work, the folder or URL that all shards share.")
    if runs[0].on != "local":
        raise RequestError(
            f"--shard {shard} is a part for one process, and --on {runs[0].on} has several. Leave it out."
        )
    check_shareable(runs, work, f"--shard {shard}")
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
    place = place_of(work)
    expected = {"command": str, "out": str, "run": dict, "facts": dict}
    known = {
        key: about
        for key, about in requests_at(place).items()
        if about.get("command") == "evaluate" and all(isinstance(about.get(k), kind) for k, kind in expected.items())
    }
    if not known:
        raise RequestError(f"{work}: there are no units of an evaluation; expected the --work of its shards.")
    if len(known) > 1:
        outs = ", ".join(str(about.get("out")) for about in known.values())
        raise RequestError(
            f"{work}: there are units of {len(known)} requests ({outs}). `bnuq evaluate` with the same options, "
            "without --shard, makes the results of each."
        )
    [(key, about)] = known.items()
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
