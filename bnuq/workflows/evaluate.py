"""The main job: draw samples of a trained network, score them on the test set, and score the separation of OOD sets."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from bnuq.config import Run
from bnuq.errors import SamplingError
from bnuq.evaluation import certification, memory
from bnuq.evaluation.datasets import fetch_missing
from bnuq.evaluation.draws import passes_of_samples, shift_in_words
from bnuq.evaluation.exactness import check_network, check_network_unchanged
from bnuq.evaluation.executors import UnitExecutor, UnitsLostError
from bnuq.evaluation.gallery import gallery
from bnuq.evaluation.measured import Measurements
from bnuq.evaluation.outcome_findings import analysed, findings_on_outcome
from bnuq.evaluation.planned import PlannedEvaluation, checked_run, journal_header, resolved
from bnuq.evaluation.posthoc import post_hoc_scores
from bnuq.evaluation.provenance import Stopwatch
from bnuq.evaluation.reference_check import findings as reference_findings
from bnuq.evaluation.request_checks import notes_on_request
from bnuq.evaluation.runner import FirstAnswer, RunnerResult, compute_units, run_methods
from bnuq.files.journal import Journal, WorkFolder, beside, root_of, secret_for, work_folder
from bnuq.files.places import Place
from bnuq.findings import Finding, note
from bnuq.progress import CHECKING, READING, Progress, silent, stage
from bnuq.records import evaluation_file as result_file
from bnuq.records.evaluation import Result, Work
from bnuq.workflows.requests import check_evaluation
from bnuq.workflows.workers import Job, Turn, helpers

AnyExecutor = TypeVar("AnyExecutor", bound=UnitExecutor)


def evaluate(
    run: Run,
    *,
    work: Path | str | None = None,
    progress: Progress = silent,
    announce: Callable[[str], None] | None = None,
    answer: FirstAnswer | None = None,
    turn: AbstractContextManager[Turn] | None = None,
) -> Result:
    """Evaluate `run`, write its result file, and return the result.

    Finished units are saved in `work` (by default beside the result) and read after an interruption. `announce`
    receives how many points of changed sets there are, and how many passes, and `answer` what is known of the network
    before samples are drawn. The units of a `turn` are being computed by running processes, see `job_of`. Raises
    BnuqError with one message where the request cannot be carried out; the result file is then not touched.
    """
    watch = Stopwatch()
    check_evaluation(run, work)
    fetch_missing(run, progress)
    replaces = run.out.exists()
    units = work_folder(run.out, work, request=["evaluate", run.record()])
    with units as folder, folder.forgotten_on(SamplingError):  # units that serve no other request
        with turn or helpers(run.on, job_of(run, work)) as others:
            with stage(progress, READING):
                planned, shown = checked_run(run, watch)
            subject, run = planned.subject, planned.run
            if announce is not None and run.perturb:
                announce(shift_in_words(subject))
            journal = folder.journal(planned.facts, journal_header(run), others.before)
            with stage(progress, CHECKING):
                checked = check_network(subject)
            post_hoc = None if run.on == "local" else post_hoc_scores(subject, progress)  # while others are at work
            others.wait(progress, passes_of_samples(subject))
            executor = UnitExecutor(journal)
            measured = Measurements(subject, executor, watch, progress)
            answer = answer if run.on == "local" else None  # others have computed the samples
            outcome = run_methods(subject, measured, progress, executor, post_hoc=post_hoc, shown=shown, answer=answer)
            outcome, promised = certification.certify(subject, outcome)
            check_network_unchanged(checked, subject)
            made_of = planned.provenance(outcome.arithmetic) | {"units": root_of(journal.digests)}
        watch.lap("evaluate")
        findings = (
            *notes_on_request([run], replaces=run.out if replaces else None),
            *planned.findings(),
            *checked.findings,
            *([note("evaluation-continued", parts=journal.reused)] if journal.reused else journal.doubts),
            *_on_reference(planned, measured, outcome),
            *findings_on_outcome(subject, outcome, planned.data),
            *(finding for method in subject.methods for finding in measured.fitted(method)[1]),
        )
        result = Result(
            run=resolved(planned, measured.noise_models).record(),
            model=planned.model,
            sampling=_sampling(planned, outcome),
            sets=planned.sets,
            methods=outcome.methods,
            findings=findings,
            seconds=watch.seconds(),
            work=Work(outcome.work, memory.peak(subject.pipeline.device)),
            provenance=made_of,
            reference_check=measured.check,
            certification=promised,
            gallery=gallery(subject, outcome.methods, planned.sets),
            image_maps=outcome.image_maps,
            bank=outcome.omega,
            path=run.out,
            units=dict(sorted(journal.digests.items())),
        )
        with stage(progress, "Deciding, and writing the result"):
            result = analysed(result)
            result_file.write(result, run.out)
    return result


def job_of(run: Run, work: Path | str | None) -> Job:
    """What other processes do for `evaluate` with these arguments."""
    secret, _ = secret_for(run.out, work)
    return Job(compute, (replace(run, on="local"), secret), str(work or beside(run.out)), run.device)


def compute(
    run: Run, secret: bytes, place: Place, make: Callable[[Journal], AnyExecutor], progress: Progress = silent
) -> list[AnyExecutor]:
    """Compute the units of `run` that fall to the executor made of its journal at this place, sealed with `secret`,
    without a result. The process that makes the result checks that MCBN is exact."""
    watch = Stopwatch()
    planned, _ = checked_run(run, watch)
    subject = planned.subject
    executor = make(WorkFolder(place, secret).journal(planned.facts, journal_header(planned.run)))
    try:
        with suppress(UnitsLostError):
            compute_units(subject, Measurements(subject, executor, watch, progress), progress, executor)
    except BaseException:
        executor.journal.retract()
        raise
    return [executor]


def _on_reference(planned: PlannedEvaluation, measured: Measurements, outcome: RunnerResult) -> Iterator[Finding]:
    """What the reference check found; statistics that were never trained have a warning of their own."""
    subject, train = planned.subject, planned.data.train
    was_trained = any(site.tracked and not site.never_trained for site in subject.layers)
    if train is not None and measured.stale and was_trained:
        layers = subject.sites.live_batchnorms
        yield from reference_findings(measured.check, planned.run, train, layers, outcome.methods)


def _sampling(planned: PlannedEvaluation, outcome: RunnerResult) -> dict[str, Any]:
    run, subject, train = planned.run, planned.subject, planned.data.train
    return {
        "samples": outcome.samples,
        "bank": outcome.bank,
        "batch_size": subject.batch_size,
        "layers": [site.name for site in subject.layers],
        "seed": run.seed,
        "mutual_information": run.mutual_information,
        "device": str(subject.pipeline.device),
        "precision": outcome.arithmetic.name,
        "reference_points": None if train is None else len(train),
        "test_points": planned.data.test_points,
    }
