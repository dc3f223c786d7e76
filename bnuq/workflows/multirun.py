"""Several runs of one request, over splits and seeds: each is evaluated, or read where its result exists already."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np

from bnuq.catalogue import distinct
from bnuq.config import Run, RunOfSeveral, Runs
from bnuq.errors import BnuqError, RequestError
from bnuq.evaluation.planned import checked_run
from bnuq.evaluation.provenance import Stopwatch, digest_of
from bnuq.files.content import is_file, sha256_of_file
from bnuq.files.journal import beside, keeping
from bnuq.files.places import place_of
from bnuq.files.writing import sole_request, within
from bnuq.findings import Finding, note, notes, warning
from bnuq.frozen import frozen
from bnuq.methods import POPULATION, method_named
from bnuq.progress import Progress, silent
from bnuq.records import evaluation_file as result_file
from bnuq.records import multirun as several_file
from bnuq.records.evaluation import Result
from bnuq.records.multirun import Several, one_run, shared_warnings, table_of
from bnuq.tasks import TaskName
from bnuq.workflows.evaluate import evaluate, job_of
from bnuq.workflows.requests import check_several, check_shareable
from bnuq.workflows.workers import Turn, workers

# Provenance that runs do not share
_OF_REFERENCE = ("reference_sha256", "reference_groups_sha256")
NOT_SHARED = (*_OF_REFERENCE, "identity", "code", "data", "network", "outputs")


@within(lambda runs, **_: sole_request(runs.out, ["several", [single.run.record() for single in runs.all]]))
def evaluate_several(runs: Runs, *, work: Path | str | None = None, progress: Progress = silent) -> Several:
    """Evaluate every run, each into its own file, write the aggregate to `runs.out`, and return it.

    A run whose file exists already, made by this version from the same request, network and data, is read instead, so
    that an interrupted series continues; within a run `evaluate` continues from the units in `work`.
    Raises BnuqError, naming the run, where a run cannot be carried out; the results of earlier runs stay, and no
    aggregate is written.
    """
    start = time.perf_counter()
    replaces = runs.out.exists()
    check_several(runs)
    rows, first = [], None
    summaries: list[_RunSummary] = []
    missing = [single.run for single in runs.all if not _is_there(single.run)]
    reused = len(runs.all) - len(missing)
    with progress("runs", len(runs.all)) as advance, _queued(missing, work) as turns:
        for run_of_series in runs.all:
            try:
                if run_of_series.run in missing:
                    result = evaluate(run_of_series.run, work=work, turn=next(turns))
                else:
                    result = result_file.read(run_of_series.run.out)
                first = first or (run_of_series, _form(result))
                _check_alike(*first, _form(result))
            except BnuqError as error:
                several = f"The {len(rows)} runs before it are" if len(rows) > 1 else "The run before it is"
                kept = f"\n{several} kept: the same command resumes from here." if rows else ""
                raise type(error)(f"{run_of_series.words}: {error}{kept}") from error
            digest = sha256_of_file(run_of_series.run.out)
            rows.append(one_run(result, sha256=digest, split=run_of_series.split, seed=run_of_series.seed))
            summaries.append(
                _RunSummary(
                    run_of_series,
                    task=result.model["task"],
                    test_sha256=result.sets["test"].sha256,
                    findings=result.findings,
                    provenance={k: v for k, v in result.provenance.items() if k not in NOT_SHARED},
                )
            )
            advance(1)
    several = Several(
        runs=tuple(run for run, _ in rows),
        **table_of([estimates for _, estimates in rows]),
        task=summaries[0].task,
        findings=(*runs.findings, *_shared_notes(summaries, reused=reused, replaces=runs.out if replaces else None)),
        seconds=time.perf_counter() - start,
        provenance=summaries[-1].provenance,
        path=runs.out,
    )
    shared = shared_warnings([summary.findings for summary in summaries])
    findings = (*_same_tests(summaries), *_undefined(several), *shared, *several.findings, *_without_errors(several))
    several = replace(several, findings=findings)
    several_file.write(several, runs.out)
    return several


@contextmanager
def _queued(runs: Sequence[Run], work: Path | str | None) -> Iterator[Iterator[AbstractContextManager[Turn] | None]]:
    """The turn of each run, with the processes at work inside the block that the first one names; None where there are
    no others."""
    on = runs[0].on if runs else "local"
    if on == "local":
        yield itertools.repeat(None)
        return
    check_shareable(runs, work, f"--on {on}")
    with ExitStack() as stack:
        for run in runs:
            stack.enter_context(keeping(place_of(work or beside(run.out)), removes_empty=work is None))
        others = stack.enter_context(workers(on, [job_of(run, work) for run in runs]))
        yield map(others.turn, range(len(runs)))


@frozen
class _RunSummary:
    """The parts of a result that are kept in memory, in addition to its estimates."""

    run: RunOfSeveral
    task: TaskName
    test_sha256: str
    findings: tuple[Finding, ...]
    provenance: dict[str, str]


def _is_there(run: Run) -> bool:
    """Whether the result of `run` exists: of the same identity."""
    if not is_file(run.out):
        return False
    try:
        result = result_file.read(run.out)
        planned, _ = checked_run(run, Stopwatch())
        return result.provenance.get("identity") == digest_of(planned.identity)
    except (BnuqError, OSError):  # the evaluation will raise the error
        return False


_Form = tuple[str, tuple[str, ...], tuple[str, ...]]


def _form(result: Result) -> _Form:
    """What must be the same in all runs: task, methods, sets."""
    methods = tuple(name for name in result.methods if method_named(name).plain.name != POPULATION)  # by the check
    return result.model["task"], methods, tuple(sorted(result.sets))


def _check_alike(first: RunOfSeveral, form: _Form, actual_form: _Form) -> None:
    for key, expected, actual in zip(("task", "methods", "sets"), form, actual_form, strict=True):
        if expected != actual:
            texts = (value if isinstance(value, str) else ", ".join(value) for value in (actual, expected))
            actual_words, expected_words = texts
            raise RequestError(
                f"its {key} are {actual_words}, and those of {first.words} are {expected_words}; expected the same in "
                "every run. A set of another file in every run needs one name: NAME=REF."
            )


def _same_tests(summaries: Sequence[_RunSummary]) -> Iterator[Finding]:
    tests = {summary.run.split: summary.test_sha256 for summary in summaries}
    if duplicates := [number for number, sha in tests.items() if Counter(tests.values())[sha] > 1]:
        of_runs = sum(summary.run.split in duplicates for summary in summaries)
        yield replace(warning("splits-share-test-set", splits=duplicates), runs=of_runs)


def _undefined(several: Several) -> Iterator[Finding]:
    """Warnings about estimates that only some runs have, and undefined normalised scores: they have no mean."""
    missing: dict[tuple[str, tuple[int, ...]], list[str]] = {}
    for aggregate in several.aggregates.values():
        of_test = aggregate["set"] == "test"
        without = tuple(int(row) for row in np.flatnonzero(np.isnan(aggregate.values)))
        if without and (aggregate.normalized or (of_test and len(without) < len(several.runs))):
            name = aggregate["metric"].replace("normalized_", "normalised ")
            missing.setdefault((aggregate["method"], without), []).append(name)
    for (method, without), names in missing.items():
        affected = [several.runs[row].words for row in without]
        found = warning("undefined-in-some-runs", method=method, estimates=names, without=affected)
        yield replace(found, runs=len(without))


def _shared_notes(runs: Sequence[_RunSummary], *, reused: int, replaces: Path | None) -> Iterator[Finding]:
    if reused:
        yield note("runs-reused", reused=reused, all_runs=len(runs))
    if replaces:
        yield note("result-replaced", file=replaces.name)
    of_runs = [distinct(notes(summary.findings)) for summary in runs]
    counts = Counter(itertools.chain.from_iterable(of_runs))
    everywhere = [by_text for by_text, count in counts.items() if count == len(runs)]
    yield from (of_runs[0][by_text] for by_text in everywhere)
    if unshared := len(counts) - len(everywhere):
        yield note("notes-of-some-runs", count=unshared)


def _without_errors(several: Several) -> Iterator[Finding]:
    """Why there is no Nadeau–Bengio error."""
    if len(several.splits) < 2:
        yield note("no-splits")
    elif several.test_share is None:
        yield note("no-training-size")
