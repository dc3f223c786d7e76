"""Makes the certificates of a run: gathers the validation points of every plain method, and chooses score and method.

What is chosen depends on the test set alone, and validation points are scored by nothing that was fitted to them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import singledispatch
from typing import Any, TypeVar

import numpy as np

from bnuq import metrics
from bnuq.data import Points
from bnuq.errors import RequestError
from bnuq.estimates import Estimate
from bnuq.evaluation import estimates
from bnuq.evaluation.estimates import PixelScores, SetScores
from bnuq.evaluation.subject import VALIDATION, ScoredSets
from bnuq.evaluation.tasks.class_reduction import ClassScores
from bnuq.evaluation.tasks.regression_reduction import RegressionScores
from bnuq.evaluation.views import Outcome, ScoredMethod
from bnuq.files.keys import Key
from bnuq.findings import Finding, warning
from bnuq.methods import POPULATION, Method
from bnuq.metrics import SCORES, certificates
from bnuq.metrics.replicates import independent_units
from bnuq.records.certificate import ACCEPTED, ALL, WIDTH, WIDTHS, Certificate, Certification, certified, is_unfit
from bnuq.records.evaluation import MOST_PARTS, PIXEL_SCORES, MethodResult, SetResult
from bnuq.shapes import Float
from bnuq.tasks import CLASSIFICATION, REGRESSION, SEGMENTATION

AnyOutcome = TypeVar("AnyOutcome", bound=Outcome)
_CANDIDATES = 200  # thresholds that are tried
_POINT_SCORES = tuple(
    name for name, each in SCORES.items() if each.score and each.score.source in ("probabilities", "logits")
)
_OFFERED = {  # by task: the scores that a certificate can be by, and the parts that it can be for each of
    CLASSIFICATION: (_POINT_SCORES, ("class", "group")),
    REGRESSION: (WIDTHS, ("group",)),
    SEGMENTATION: (PIXEL_SCORES, ()),
}
_REFUTED = 0.01  # the level of all promises together at which the test set refutes one


def check_request(subject: ScoredSets, findings: tuple[Finding, ...]) -> None:
    """RequestError where a certificate was requested that these points, or this network, cannot have."""
    asked, task, why = subject.settings.certificate, subject.task, ""
    if asked.risk is None:
        return
    validation, test = subject.sets.get(VALIDATION), subject.sets["test"]
    method, _, score = (asked.score or "").rpartition(".")
    scores, parts = _OFFERED.get(task, ((), ()))
    if not scores:
        why = "for several labels per example: an error of one label is not an error of the example. Leave --risk out."
    elif validation is None:
        why = (
            "without validation examples held out of training and test: name them by --validation REF, or take a part "
            f"of the test set, {subject.half_of_test}. Halves of one test set fitted to each other keep no promise."
        )
    elif (validation.sha256 == test.sha256 and not _are_numbered(test)) or any(map(is_unfit, findings)):
        why = (
            f"by {validation.reference}: it shares examples with the test set or the training set, and only examples "
            "that are independent of both keep a promise. Name others with --validation."
        )
    elif validation.group is not None and "group" not in parts:
        why = "of images in groups: the bound on the loss of an image needs images that are independent of each other."
    elif subject.image and (test.targets is None and test.masks is None):
        why = "without the masks of the test set."
    elif asked.score and (score not in scores or method not in ("", *subject.method_names)):
        why = f"by {asked.score}; expected one of {', '.join(scores)}, or METHOD.SCORE."
    elif asked.each == "class" and asked.each not in parts:
        why = "for each class of a segmentation or a regression; leave each out."
    elif asked.each == "group" and (validation.group is None or test.group is None):
        why = "for each group, as the test set and the validation examples have no groups; see --group."
    if why:
        raise RequestError(f"--risk {asked.risk:g}: there is no certificate {why}")


def _are_numbered(points: Points) -> bool:
    """Whether points are known by their numbers alone, as those of predictions without ids are."""
    return points.names is None and isinstance(points.inputs, np.ndarray) and points.inputs.ndim == 1


def certify(subject: ScoredSets, outcome: AnyOutcome) -> tuple[AnyOutcome, Certification | None]:
    """The outcome of a run with the estimates and warnings of its certificates, and these; None where no risk was
    named. RequestError for a score or a method that this run has not."""
    if subject.settings.certificate.risk is None:
        return outcome, None
    made = _certification(subject, outcome)
    made, methods = _with_estimates(subject, outcome, made)
    kept = made.chosen.is_kept()
    findings = [] if kept else [warning("promise-not-earned", risk=made.risk, method=made.method)]
    test, group = methods[made.method].sets["test"], subject.sets["test"].group
    if refuted := [*_refuted(made, test, group)]:
        findings.append(warning("promise-refuted", risk=made.risk, method=made.method, refuted=refuted))
    return replace(outcome, methods=methods, findings=(*outcome.findings, *findings), scored={}), made


def _refuted(made: Certification, test: SetResult, group: np.ndarray | None) -> Iterator[tuple[str, float, int]]:
    """The kept promises of the chosen method that test points refute: the name of each, their error, and how many they
    are. By the exact binomial test; where losses are no single errors, or points in groups, by the bound of
    Hoeffding and Bentkus on as many independent ones."""
    certificate = made.chosen
    kept = [number for number in range(len(certificate.names)) if certificate.is_kept(number)]
    for number in kept:
        part, threshold = certificate.test_part, float(certificate.thresholds[number])
        rows = np.flatnonzero(part == number) if number and part is not None else np.arange(len(test.predicted))
        losses = certificate.test_errors
        if losses is not None and not certificate.is_expected:
            losses = (losses[rows] > threshold).astype(float)
        elif losses is None and "accuracy" in test.points:
            rows = rows[test.points[certificate.score][rows] <= threshold]
            losses = 1.0 - test.points["accuracy"][rows]
        if losses is None or not len(losses):
            continue
        right, units = 1 - float(losses.mean()), independent_units(len(losses), None if group is None else group[rows])
        if certificate.is_expected or units < len(losses):
            p = certificates.hoeffding_bentkus_p_value(right, units, 1 - made.risk)
        else:
            p = certificates.binomial_p_value(np.array(round(right * units)), np.array(units), 1 - made.risk)
        if p < _REFUTED / len(kept):
            yield certificate.names[number], 1 - right, len(losses)


def _certification(subject: ScoredSets, outcome: Outcome) -> Certification:
    """The certificates of all plain methods."""
    asked, scored = subject.settings.certificate, outcome.scored
    assert asked.risk is not None
    wanted, _, score = (asked.score or "").rpartition(".")
    made: dict[str, tuple[float, Certificate]] = {}
    for method, scores in scored.items():
        validation, test = scores.validation, scores.sets["test"]
        if validation is None or method.recalibration is not None or method.name == POPULATION:
            continue
        if method.normalizes_jointly:  # a promise needs points that do not depend on each other
            continue
        several = subject.samples_of(method, outcome.samples) > 1
        own = score if wanted in ("", method.name) else ""
        aurc = outcome.methods[method.name].sets["test"].estimates.get("aurc")
        made[method.name] = _certificate(test, validation, own, several=several, risk=asked.risk, aurc=aurc)
    if wanted and wanted not in made:
        raise RequestError(f"certificate.score is {asked.score}; this run has {', '.join(made)}.")
    if score and all(certificate.score != score for _, certificate in made.values()):
        raise RequestError(f"certificate.score is {asked.score}; no method of this run has this score.")
    chosen = wanted or min(made, key=lambda name: made[name][0])
    methods = {
        name: certified(_by_part(certificate, subject, scored, name), asked.risk, asked.confidence, asked.each or "")
        for name, (_, certificate) in made.items()
    }
    return Certification(asked.risk, asked.confidence, asked.each or "", chosen, methods)


@singledispatch
def _certificate(
    test: SetScores, validation: SetScores, score: str, *, several: bool, **_: Any
) -> tuple[float, Certificate]:
    """The AURC of a method of a classification on the test set, by the best of its scores or this one; and what its
    certificate follows from."""
    present = [name for name in _POINT_SCORES if name in validation.points and name in test.points]
    present = [name for name in present if several or not SCORES[name].score.needs_samples]  # type: ignore[union-attr]
    if score not in present:
        present = [name for name in present if SCORES[name].score.source == "probabilities"]  # type: ignore[union-attr]
    if "accuracy" in test.points:
        loss = 1 - test.points["accuracy"]
        ranked = {name: metrics.aurc(test.points[name], loss) for name in present}
    else:
        ranked = {name: float(name != "predictive_entropy") for name in present}
    best = score if score in ranked else min(ranked, key=lambda name: ranked[name])
    certificate = Certificate(
        score=best,
        names=(ALL,),
        thresholds=np.zeros(1),
        candidates=candidates_of(test.points[best]),
        scores=validation.points[best],
        losses=1.0 - validation.points["accuracy"],
        group=validation.group,
    )
    return ranked[best], certificate


def candidates_of(scores: Float[np.ndarray, " point"]) -> Float[np.ndarray, " candidate"]:
    """Thresholds that accept ever larger shares of these points, in equal steps, and last +∞, that accepts all; between
    scores, so that rounding moves no point across."""
    values, count = np.unique(scores, return_counts=True)
    ranks = np.ceil(np.arange(1, _CANDIDATES) / _CANDIDATES * len(scores))
    index = np.unique(np.searchsorted(np.cumsum(count), ranks))
    index = index[index < len(values) - 1]
    return np.append((values[index] + values[index + 1]) / 2, math.inf)


@_certificate.register(RegressionScores)
def _of_regression(
    test: RegressionScores, validation: RegressionScores, score: str, *, several: bool, risk: float, **_: Any
) -> tuple[float, Certificate]:
    """The mean half-width that covers the test set, by the better of both scores or this one; and what the certificate
    follows from. Of several outputs the worst error counts. The noise is what the test set's errors leave to it."""
    excess = np.mean(_errors(test) ** 2 - test.variance, axis=0)
    made: dict[str, tuple[float, Certificate]] = {}
    for name in WIDTHS if several else WIDTHS[:1]:
        noise = np.maximum(excess, 0.0) if name == "normalized_error" else None
        relative = (np.abs(_errors(each)) / _scale(each.variance, noise) for each in (validation, test))
        validation_errors, test_errors = (errors.max(-1) for errors in relative)
        certificate = Certificate(
            score=name,
            names=(ALL,),
            thresholds=np.zeros(1),
            candidates=np.zeros(0),
            scores=validation_errors,
            group=validation.group,
            test_errors=test_errors,
            noise=noise,
        )
        made[name] = float(np.quantile(test_errors, 1 - risk) * _scale(test.variance, noise).mean()), certificate
    return made[score] if score in made else min(made.values(), key=lambda each: each[0])


def _errors(scores: RegressionScores) -> Float[np.ndarray, "point output"]:
    assert scores.targets is not None  # of labelled points
    return scores.targets - scores.mean


def _scale(variance: Float[np.ndarray, "*any output"], noise: np.ndarray | None) -> Float[np.ndarray, "*any output"]:
    """What the errors of each output are relative to."""
    return np.ones(variance.shape) if noise is None else np.sqrt(np.maximum(variance + noise, np.finfo(float).tiny))


@_certificate.register(PixelScores)
def _of_images(
    test: PixelScores, validation: PixelScores, score: str, *, aurc: Estimate, **_: Any
) -> tuple[float, Certificate]:
    """The AURC of the pixels of the test set, and what the certificate of a segmentation follows from: the share of an
    image's pixels that are wrong and accepted."""
    name = score or "predictive_entropy"
    counts = test.of_images[Key("coarse", name)].sum((0, 1), dtype=np.int64)
    share = np.cumsum(counts) / counts.sum()
    bins = np.unique(np.searchsorted(share, np.arange(1, _CANDIDATES + 1) / _CANDIDATES - 1e-12))
    certificate = Certificate(
        score=name,
        names=(ALL,),
        thresholds=np.zeros(1),
        candidates=_ends_of_bins()[bins],
        scores=np.zeros(validation.n),
        losses=_losses_of_images(validation, name)[:, bins],
        group=validation.group,
    )
    return aurc.value, certificate


def _ends_of_bins() -> Float[np.ndarray, " bin"]:
    """The upper ends of the coarse bins of a score of pixels; the last has none."""
    middles = metrics.bin_values()
    last = np.arange(1, metrics.COARSE_BINS) * (metrics.SCORE_BINS // metrics.COARSE_BINS)
    return np.append((middles[last - 1] + middles[last]) / 2, math.inf)


def _losses_of_images(scores: PixelScores, score: str) -> Float[np.ndarray, "image bin"]:
    """The share of each image's pixels that are wrong and whose score is at most in this bin; 0 for no pixels."""
    right, wrong = np.moveaxis(scores.of_images[Key("coarse", score)].astype(np.int64), 1, 0)
    return np.cumsum(wrong, axis=1) / np.maximum(1, (right + wrong).sum(1, keepdims=True))


def _by_part(
    certificate: Certificate, subject: ScoredSets, scored: Mapping[Method, ScoredMethod], method: str
) -> Certificate:
    """The certificate with a promise for each predicted class, or for each group that both sets have: of these at most
    100, those with the most validation points."""
    each, sets = subject.settings.certificate.each, (VALIDATION, "test")
    if each is None:
        return certificate
    if each == "class":
        scores = next(scores for other, scores in scored.items() if other.name == method)
        assert scores.validation is not None  # as there is a certificate
        keys = [ClassScores.among(of).predicted for of in (scores.validation, scores.sets["test"])]
        classes = subject.sets["test"].classes or ()
        texts = [[classes[key] if len(classes) > key else str(key) for key in map(int, values)] for values in keys]
    else:
        texts = [subject.sets[name].group_of_point.tolist() for name in sets]
    known, counts = np.unique([text for text in texts[0] if text in {*texts[1]}], return_counts=True)
    names = sorted(known[np.argsort(-counts, kind="stable")[:MOST_PARTS]].tolist())
    number = {name: at for at, name in enumerate(names, 1)}
    part, test_part = (np.array([number.get(text, 0) for text in values]) for values in texts)
    return replace(certificate, names=(ALL, *names), part=part, test_part=test_part)


# ── its estimates ────────────────────────────────────────────────────────────────────────────────────────────────────


def _with_estimates(
    subject: ScoredSets, outcome: Outcome, made: Certification
) -> tuple[Certification, dict[str, MethodResult]]:
    """The certificates, and the results with the share of test points that each accepts, or the width of its intervals,
    at the given threshold: the error of that is not in theirs."""
    changed, by_method = dict(outcome.methods), dict(made.methods)
    for method, scored in outcome.scored.items():
        if (certificate := by_method.get(method.name)) is None:
            continue
        result, test = outcome.methods[method.name], scored.sets["test"]
        draws = subject.weights(method, outcome.samples)
        name = WIDTH if certificate.is_of_width else ACCEPTED
        value, points, replicates, losses = _at_threshold(test, certificate, draws)
        left_out = draws.jackknife.stop - draws.jackknife.start
        with np.errstate(invalid="ignore"):
            error = metrics.standard_error(points, group=test.group)
        estimate = estimates.estimate(
            name,
            value,
            se=estimates.error_over_points(error, test),
            jackknife=replicates[:left_out],
            bootstrap=replicates[left_out:],
            samples=draws.samples,
        )
        set_result = result.sets["test"]
        values, contributions = dict(set_result.points), dict(set_result.contributions)
        (values if losses is None else contributions)[name] = points
        if losses is not None:
            by_method[method.name] = replace(certificate, test_errors=losses)
        every = {**set_result.estimates, name: estimate}
        in_order = {key: every[key] for key in metrics.METRICS if key in every}
        set_result = replace(set_result, estimates=in_order, points=values, contributions=contributions)
        changed[method.name] = replace(result, sets={**result.sets, "test": set_result})
    return replace(made, methods=by_method), changed


_Shown = tuple[float, Float[np.ndarray, " point"], Float[np.ndarray, " replicate"], np.ndarray | None]


@singledispatch
def _at_threshold(test: SetScores, certificate: Certificate, _: metrics.DrawWeights) -> _Shown:
    """The share of points that is accepted, whether each is, and the share under the replicates of the error."""
    inside = (test.points[certificate.score] <= certificate.threshold).astype(np.float64)
    value = float(inside.mean())
    if certificate.score not in test.ranked:
        return value, inside, np.empty(0), None
    before = test.points[certificate.score][test.ranked_rows].astype(np.float32) <= certificate.threshold
    moved = (test.ranked[certificate.score] <= certificate.threshold).mean(1) - before.mean()
    return value, inside, np.clip(value + moved, 0, 1), None


@_at_threshold.register(RegressionScores)
def _widths(test: RegressionScores, certificate: Certificate, draws: metrics.DrawWeights) -> _Shown:
    """The mean half-width, that of each point over its outputs, and the mean under the replicates of the error."""
    threshold, noise = certificate.threshold, certificate.noise
    points = threshold * _scale(test.variance, noise).mean(-1)
    value = float(points.mean())
    if test.ranked_variance is None or draws.samples == 1 or math.isinf(threshold):
        return value, points, np.empty(0), None
    of_replicates = threshold * _scale(test.ranked_variance, noise).mean((1, 2))
    replicates = np.concatenate([of_replicates[draws.jackknife], of_replicates[draws.bootstrap]])
    return value, points, np.maximum(0.0, value + replicates - of_replicates[draws.full.start]), None


@_at_threshold.register(PixelScores)
def _of_pixels(test: PixelScores, certificate: Certificate, _: metrics.DrawWeights) -> _Shown:
    """The share of all pixels that is accepted, what images contribute to it, it under the replicates of the error, and
    the loss of each image."""
    bins = int(np.searchsorted(_ends_of_bins(), certificate.threshold, "right"))  # 0 where none is accepted
    coarse = test.of_images[Key("coarse", certificate.score)].astype(np.int64).sum(1)
    points = metrics.ratio_contributions(coarse[:, :bins].sum(1), coarse.sum(1))
    losses = _losses_of_images(test, certificate.score)[:, bins - 1] if bins else np.zeros(len(coarse))
    value, replicates = float(points.mean()), np.empty(0)
    if (counts := test.of_pixels.get(Key("replicates", certificate.score))) is not None:
        pooled = counts.sum(1)
        shares = pooled[:, :bins].sum(1) / pooled.sum(1)
        replicates = np.clip(value + shares[1:] - shares[0], 0, 1)
    return value, points, replicates, losses
