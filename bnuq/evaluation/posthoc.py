"""Post-hoc OOD scores of the deterministic network: fitted to features of the reference, then taken of every point."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import TypeVar

import numpy as np
import torch

from bnuq.data.target_checks import labelled
from bnuq.evaluation.draws import always_passed, next_stop
from bnuq.evaluation.estimates import SetScores
from bnuq.evaluation.features import Kept, fitted_points, head_of, heads
from bnuq.evaluation.subject import VALIDATION, Subject
from bnuq.files.mapped import Pool
from bnuq.findings import Finding, note
from bnuq.frozen import frozen
from bnuq.metrics import SCORES
from bnuq.metrics.arrays import as_numpy
from bnuq.metrics.posthoc import PointScore, Reference
from bnuq.metrics.registry import metric_of
from bnuq.progress import Progress
from bnuq.records.evaluation import SetResult
from bnuq.sampling.head import Head, NoHeadError, last_layer
from bnuq.sampling.interception import float32_as

OfSet = TypeVar("OfSet", SetScores, SetResult)
_LARGEST_BANK = 2**26  # numbers: 256 MiB of features
_FEWEST_POINTS, _ENTRIES = 1000, 2**21  # that scores are fitted to: of large points fewer, so many numbers
_SHARE = 5  # of the samples of the test set, fitting may take the fifth part of the passes


@frozen
class PostHoc:
    """The scores by name, as functions of the last linear layer for some points; and findings."""

    scores: Mapping[str, PointScore]
    findings: tuple[Finding, ...]


@frozen
class OfSets:
    """The post-hoc scores of the points of each set by their names, and notes on those that are left out."""

    points: Mapping[str, Mapping[str, np.ndarray]]
    findings: tuple[Finding, ...] = ()

    def added_to(self, scores: Mapping[str, OfSet]) -> dict[str, OfSet]:
        """`scores`, with these added."""
        return {
            name: replace(set_scores, points={**set_scores.points, **self.points.get(name, {})})
            for name, set_scores in scores.items()
        }


@float32_as("ieee")
def post_hoc_scores(subject: Subject, progress: Progress, kept: Kept | None = None) -> OfSets:
    """The post-hoc scores of the deterministic network on the evaluated sets; none where no set is compared with the
    test set, or the run asks for none.

    The network is run once more over at most 50,000 points of the reference, of one that is read as needed those that
    mini-batches were drawn from, and over the evaluated sets whose features were not `kept`.
    """
    if not subject.has_post_hoc:
        return OfSets({})
    fitted = fitted_scores(subject, progress)
    if not fitted.scores:
        return OfSets({}, fitted.findings)
    evaluated = {name: points for name, points in subject.sets.items() if name != VALIDATION}
    total = sum(map(len, evaluated.values()))
    with progress(f"Post-hoc scores of {total} examples", total) as advance:
        result = {}
        for name, points in evaluated.items():
            parts = kept.of(name, len(points)) if kept is not None and name not in subject.perturbed else []
            result[name] = _scored(parts or heads(subject, points), len(points), fitted, advance)
    return OfSets(result, fitted.findings)


def _scored(
    parts: Iterable[Head], count: int, fitted: PostHoc, advance: Callable[[int], object]
) -> dict[str, np.ndarray]:
    # Made at once: what is kept of each chunk would lie between the large arrays of the chunks, whose memory could then
    # not be used again.
    pool = Pool()
    result = {name: pool.empty((count,), np.dtype(np.float64)) for name in fitted.scores}
    first = 0
    for last in parts:
        rows = slice(first, first + len(last.features))
        layer = last_layer(last.features, last.logits)
        for name, score in fitted.scores.items():
            result[name][rows] = as_numpy(score(layer).double())
        advance(len(last.features))
        first = rows.stop
    return result


def fitted_scores(subject: Subject, progress: Progress) -> PostHoc:
    """The scores that the network and its reference allow; none where the network has no last linear layer."""
    if any(not site.tracked for site in subject.sites.live_batchnorms):
        return PostHoc({}, (note("no-post-hoc-scores", reason="its BatchNorms keep no running statistics"),))
    try:
        first = head_of(subject, subject.sets["test"], slice(0, 2)).two_class
    except NoHeadError as error:
        return PostHoc({}, (note("no-post-hoc-scores", reason=str(error)),))
    known = {name: estimand.score for name, estimand in SCORES.items() if estimand.score}
    scores = {name: score.of_layer for name, score in known.items() if score.of_layer}
    if subject.train is None:
        return PostHoc(scores, (note("no-fitted-scores"),))
    # A share of the passes of a method's samples of the test set, whatever the other sets and methods are.
    passes = next_stop(subject.draws, 0) * len(subject.sets["test"])
    fewest = min(_FEWEST_POINTS, always_passed(subject.train, _ENTRIES))
    most = min(max(passes // _SHARE, fewest), _LARGEST_BANK // first.weight.shape[1])
    train = fitted_points(subject, most=most)
    with progress(f"Features of {len(train)} training examples", len(train)) as advance:
        parts = []
        for last in heads(subject, train):
            parts.append(last.features)
            advance(len(last.features))
    train = labelled(train)  # of the items that were just read
    features = torch.cat(parts)
    findings = [] if len(train) == len(subject.train) else [note("fitted-to-a-part", points=len(train))]
    labels = train.targets
    has_labels = labels is not None and labels.ndim == 1 and labels.dtype.kind in "iu"
    reference = Reference(features, first.weight, first.bias, labels if has_labels else None)
    for name, score in known.items():
        if score.fit and (has_labels or not score.needs_labels):
            fitted = score.fit(reference)
            if isinstance(fitted, str):
                findings.append(note("score-not-fitted", score=metric_of(name).label, reason=fitted))
            else:
                scores[name] = fitted
    if not has_labels:
        findings.append(note("no-labels-of-reference"))
    return PostHoc(scores, tuple(findings))
