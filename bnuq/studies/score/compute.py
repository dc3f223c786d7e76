"""Scores predictions of other software: what `bnuq evaluate` says of outputs, without a network or torch."""

from __future__ import annotations

import math
import platform
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

import bnuq
from bnuq.config import Run, ScoreSettings
from bnuq.config.effects import settings_without_effect
from bnuq.evaluation import certification, recalibration
from bnuq.evaluation.estimates import SetScores
from bnuq.evaluation.subject import VALIDATION, ScoredSets, described
from bnuq.evaluation.tasks.classification import ClassificationScorer
from bnuq.evaluation.tasks.multilabel import MultilabelScorer, names_of
from bnuq.evaluation.tasks.regression import RegressionScorer
from bnuq.evaluation.tasks.scorer import TaskScorer
from bnuq.evaluation.units import Gathered
from bnuq.evaluation.views import MethodScoring, Outcome, ScoredMethod, SetScoring, View
from bnuq.files.writing import sole_request
from bnuq.findings import Finding, note, warning
from bnuq.frozen import frozen
from bnuq.methods import Method, method_named
from bnuq.progress import Progress, silent, stage
from bnuq.records import evaluation_file
from bnuq.records.evaluation import Scored
from bnuq.studies.score.given import LEAST_LOG, GivenSet
from bnuq.studies.score.given_distributions import DistributionScorer, PairScorer
from bnuq.studies.score.request import Loaded, ScoreRequest, digest_of_source, loaded_of, name_of_source

_TILE = 2**16  # points that are reduced together
_RANKING = {"predictive_entropy", "expected_entropy", "least_confidence", "max_probability", "energy", "max_logit"}
_STEPS = 2.0**36  # of a mantissa that points are ranked by
_FEW = 20  # validation points, below which what is fitted to them is not to be trusted


@frozen
class _FileSubject(ScoredSets):
    """The request for one file, which has its own number of samples."""

    samples: int = 1

    def samples_of(self, method: Method, samples: int) -> int:  # noqa: ARG002 - of its file
        return self.samples


class _FileScoring(MethodScoring):
    """Scores the predictions of one file on every set."""

    def __init__(
        self, subject: _FileSubject, given: Mapping[str, GivenSet], second: Mapping[str, Any], progress: Progress
    ) -> None:
        self.method, self._subject, self._given, self._second = subject.methods[0], subject, given, second
        self._progress = progress
        self._weights, self._is_single = subject.weights(self.method, 1), subject.samples == 1

    def _samples(self, name: str) -> Iterator[np.ndarray]:
        return self._given[name].blocks(self._subject.task)

    def _scores(self, name: str, views: Sequence[View]) -> dict[Method, SetScores]:
        return {view.method: scores for view, scores in zip(views, self._scored_again(name, views), strict=True)}

    def _recalibrated(self, name: str, scores: SetScores) -> list[View]:
        with stage(self._progress, "Fitting recalibrations"):
            return super()._recalibrated(name, scores)

    def _scored_again(self, name: str, views: Sequence[View]) -> list[SetScores]:
        points = self._subject.sets[name]
        scoring = SetScoring(self._subject, name, points, self._weights, views, self._second.get(name))
        gathered = [Gathered() for _ in views]
        reductions, first, start = [scoring.reduction(view) for view in views], 0, 0
        with self._progress(f"Scoring {len(points):,} points of {name}", len(points)) as advance:
            for block in self._samples(name):
                for reduction in reductions:
                    reduction.add(block)
                first += block.shape[1]
                if first - start >= _TILE or first == len(points):
                    for of_view, reduction in zip(gathered, reductions, strict=True):
                        of_view.add(reduction.arrays())
                    advance(first - start)
                    start = first
        scored = []
        for view, reduction, of_view in zip(views, reductions, gathered, strict=True):
            scored.append(scores := scoring.scores(view, reduction, of_view))
            # Equal predictions differ in the last digits by the order of the classes; replicates are of all digits.
            for name in scores.points.keys() & _RANKING if self._is_single else ():
                mantissa, exponent = np.frexp(scores.points[name])
                np.ldexp(np.round(mantissa * _STEPS) / _STEPS, exponent, out=scores.points[name])
            scores.unload()
        return scored


def score(request: ScoreRequest, progress: Progress = silent) -> Scored:
    """Score the predictions of `request`, write the result file, and return the result. BnuqError with one message
    where that cannot be done; the file is then not touched."""
    evaluation_file.check_replaceable(request.out)
    with sole_request(request.out, request.record()):
        return _result(request, progress)


def _result(request: ScoreRequest, progress: Progress) -> Scored:
    started = datetime.now(UTC)
    with stage(progress, "Reading predictions"):
        loaded = loaded_of(request)
    import h5py  # late: an error in the request needs none

    drawn = loaded.task.is_regression and request.scoring.pll == "mixture" and request.scoring.tau is None
    scoring = msgspec.structs.replace(request.scoring, pll="moment") if drawn else request.scoring
    run = Run(
        Path(name_of_source(next(iter(request.predictions.values())))),
        request.out,
        seed=request.sampling.seed,
        mutual_information=request.sampling.mutual_information,
        calibrate=request.sampling.calibrate,
        scoring=scoring,
        certificate=request.certificate,
    )
    subject, outcome = _scored(run, loaded, progress)
    outcome, promised = certification.certify(subject, outcome)
    test = loaded.points["test"]
    findings = [*loaded.findings, *outcome.findings]
    if len(test) < 2:
        findings.append(warning("too-few-points", sets=["test"]))
    if 0 < len(loaded.points.get(VALIDATION, ())) < _FEW:
        findings.append(warning("few-validation-points", points=len(loaded.points[VALIDATION])))
    findings += _of_numbers(loaded)
    if run.seed and request.section.held_out is None and subject.fitted_to != "test":
        findings.append(note("without-effect", key="--seed", needs="--held-out or --calibrate cross"))
    record = request.record()
    record["sampling"]["calibrate"] = subject.calibration
    record["scoring"] = msgspec.to_builtins(scoring)
    sets = {}
    for name, points in loaded.points.items():
        kind: Any = name if name in ("test", VALIDATION) else "ood"
        of_values = points.targets is not None and points.targets.dtype.kind == "f"
        sets[name] = described(name, points, kind, points.targets, of_values=of_values)
    seconds = {"total": (datetime.now(UTC) - started).total_seconds()}
    result = Scored(
        run=record,
        model=_model(request, loaded),
        sampling={
            "samples": outcome.samples,
            "bank": None,
            "batch_size": None,
            "seed": run.seed,
            "mutual_information": run.mutual_information,
            "device": "cpu",
            "precision": "float64",
            "test_points": len(test),
        },
        sets=sets,
        methods=outcome.methods,
        findings=tuple(findings),
        seconds=seconds,
        provenance={
            "bnuq": bnuq.__version__,
            "python": platform.python_version(),
            "numpy": np.__version__,
            "h5py": h5py.__version__,
            "platform": platform.platform(),
            "time": started.isoformat(timespec="seconds"),
            "command": " ".join(sys.argv),
        },
        certification=promised,
        path=request.out,
    )
    with stage(progress, "Writing the result"):
        evaluation_file.write(result, request.out)
    return result


# ── scoring ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _scored(run: Run, loaded: Loaded, progress: Progress) -> tuple[ScoredSets, Outcome]:
    """The results of all files, and of their recalibrations; the subject of all together is that of the first."""
    settings = ScoreSettings.of(run)
    methods = {name: replace(method_named(name), differs_by=frozenset({"file"})) for name in loaded.given}
    subjects = {
        name: _FileSubject(
            loaded.task,
            loaded.outputs,
            (methods[name],),
            settings,
            {
                set_: points
                if (right := getattr(loaded.given[name].get(set_), "right", None)) is None
                else replace(points, targets=right)  # whether predictions are right, in the place of labels
                for set_, points in loaded.points.items()
            },
            _scorer(settings, loaded, loaded.given[name]["test"]),
            (),
            samples=loaded.given[name]["test"].samples,
        )
        for name in loaded.given
    }
    subject, all_methods = next(iter(subjects.values())), tuple(methods.values())
    calibration, sets = subject.calibration, subject.sets
    notes = tuple(settings_without_effect(run, loaded.task, all_methods, calibration, sets.values()))
    whole = _AllFiles(loaded.task, loaded.outputs, all_methods, settings, sets, subject.scorer, notes, subjects)
    recalibration.check_calibration(whole)
    certification.check_request(whole, ())
    second = {"test": recalibration.second_half(sets["test"], settings.seed)} if subject.fitted_to == "test" else {}
    scored: dict[Method, ScoredMethod] = {}
    findings, results, fits = [*whole.findings_on_samples()], {}, {}
    for name, of_file in subjects.items():
        made = _FileScoring(of_file, loaded.given[name], second, progress).scored(of_file.fitted_to)
        weights = of_file.weights(methods[name], 1)
        of_own = {set_: of.scores for set_, of in loaded.given[name].items()}
        plain = made[methods[name]]
        sets = {set_: replace(of, points={**of.points, **of_own[set_]}) for set_, of in plain.sets.items()}
        made[methods[name]] = replace(plain, sets=sets)
        for method, each in made.items():
            scorer = each.view.scorer
            with stage(progress, f"Estimates of {method.name}, and their errors"):
                result = scorer.result(each.sets, weights, each.ranked)
            recalibrated = made.get(methods[name].recalibrated("temperature")) if method.recalibration is None else None
            if recalibrated is not None:
                result = scorer.compared(result, each.sets, recalibrated.sets, weights)
            results[method.name] = result
            each.sets["test"].unload()
            for finding in scorer.findings(method.name):  # draws that need no noise may hold that of the targets
                holds = finding.code == "tau-infinite"
                findings.append(note("draws-hold-noise", method=method.name) if holds else finding)
            tau = result.sets["test"].estimates.get("tau")
            if tau is not None and run.scoring.tau is None and 0 < tau.value < math.inf:
                findings.append(note("noise-added", method=method.name, sd=tau.value**-0.5, draws=of_file.samples > 1))
            if each.view.maps is not None:
                fits[method] = each.view.maps
        scored |= made if run.certificate.risk is not None else {}
    findings += recalibration.findings(fits)
    samples = max(of_file.samples for of_file in subjects.values())
    return whole, Outcome(samples, results, tuple(findings), scored=scored)


def _of_numbers(loaded: Loaded) -> Iterator[Finding]:
    """A warning for each file that gives the class of some points a probability of 0; for quantiles a note on what the
    outer ones hold, and on what their scores are."""
    labels = loaded.points["test"].targets
    for name, sets in loaded.given.items():
        if (levels := sets["test"].levels) is not None and labels is not None:
            (low, high), q = levels[[0, -1]].tolist(), sets["test"].values[0]
            inside = float(((q[:, 0] <= labels[:, 0]) & (labels[:, 0] <= q[:, -1])).mean())
            share, count = high - low, len(levels)
            yield note("quantiles-scored", method=name, low=low, high=high, share=share, inside=inside, count=count)
    if loaded.task.classifies_points and isinstance(labels, np.ndarray):
        for name, sets in loaded.given.items():
            of_labels = sets["test"].values[:, np.arange(len(labels)), labels]
            if sets["test"].kind == "probabilities" and (count := int((of_labels <= 0).all(0).sum())):
                yield warning("probabilities-of-zero", method=name, points=len(labels), count=count, least=LEAST_LOG)


@frozen
class _AllFiles(ScoredSets):
    """The request for all files."""

    files: Mapping[str, _FileSubject] = field(default_factory=dict)

    def samples_of(self, method: Method, samples: int) -> int:
        return self.files[method.plain.name].samples_of(method, samples)


def _scorer(settings: ScoreSettings, loaded: Loaded, given: GivenSet) -> TaskScorer:
    test = loaded.points["test"]
    if given.kind == "means":
        return RegressionScorer(settings, None, loaded.outputs)
    of_classes = replace(settings, outputs="logits" if given.kind == "logits" else "log_probabilities")
    if given.kind == "confidences":
        return PairScorer(of_classes, 2, tuple(test.classes or ()))
    match loaded.task.outputs:
        case "values":
            return DistributionScorer(settings, None, loaded.outputs, levels=given.levels, drawn=given.kind == "draws")
        case "labels":
            return MultilabelScorer(of_classes, 2, names_of(test, loaded.outputs))
        case "classes":
            return ClassificationScorer(of_classes, loaded.outputs, tuple(test.classes or ()))


# ── the record ───────────────────────────────────────────────────────────────────────────────────────────────────────


def _model(request: ScoreRequest, loaded: Loaded) -> dict[str, Any]:
    """What is known of the predictions in place of a network."""
    files = {
        name: {
            "path": name_of_source(source),
            "sha256": digest_of_source(source),
            "samples": loaded.given[name]["test"].samples if loaded.given[name]["test"].is_of_samples else 1,
            "outputs": loaded.given[name]["test"].kind,
            "roles": {role: [*columns] for role, columns in loaded.given[name]["test"].roles.items()},
        }
        for name, source in request.predictions.items()
    }
    first = next(iter(files.values()))
    common = {"path": first["path"], "sha256": first["sha256"], "task": loaded.task.name}
    return common | loaded.task.described(loaded.outputs) | {"files": files}
