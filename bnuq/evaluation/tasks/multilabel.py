"""The estimates of a classifier with several labels per point: of each label, and macro means over the labels.

Each label is a classification of two classes, with the logits 0 and z, and has its own reduction. A value of a
point is the mean over its labels, so that errors over points and OOD separation take a point as a whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from typing import Any

import numpy as np

from bnuq import metrics
from bnuq.data import Points, check_label_matrix
from bnuq.errors import is_out_of_memory
from bnuq.estimates import Estimate, Estimator
from bnuq.evaluation import estimates
from bnuq.evaluation.estimates import SetScores, fetched, on_host
from bnuq.evaluation.tasks import classification
from bnuq.evaluation.tasks.scorer import Groups, SampleReduction, ScoredNetwork, ScoredSet
from bnuq.evaluation.units import Gathered
from bnuq.files.journal import Arrays
from bnuq.files.keys import Key, of_kind, taken_out
from bnuq.findings import Finding, note
from bnuq.frozen import frozen
from bnuq.metrics import METRICS, CalibrationBins, DrawWeights
from bnuq.metrics.arrays import Array, array_namespace
from bnuq.metrics.registry import limits_of
from bnuq.records.evaluation import SetResult
from bnuq.shapes import Float, Int64
from bnuq.tasks import MULTILABEL

_LABEL_MEANS = tuple(  # the means over points that are given by label
    name for name, estimand in METRICS.items() if estimand.by_label and estimand.formula is None
)
_AT_ONCE = 16  # labels of a chunk that an accelerator scores before the host waits for it
_FEWEST = 2  # points with a label, and without it, from which it has an AUROC with an error


@frozen
class LabelScores(classification.ClassScores):
    """The scores of one set: means over its labels, and where it is labelled, its labels `truth`, the scores of each
    label, the values of the points by label, and by label the score that its AUROC ranks, under every replicate."""

    predicted: Int64[np.ndarray, "point label"]
    log_likelihood: Float[np.ndarray, "sample point label"] | None = field(default=None, kw_only=True)
    ranked_wrong: Float[np.ndarray, "error_replicate kept"] | None = field(default=None, kw_only=True)
    truth: Int64[np.ndarray, "point label"] | None = field(default=None, kw_only=True)
    labels: tuple[classification.ClassScores, ...] = field(default=(), kw_only=True)
    label_points: dict[str, Float[np.ndarray, "point label"]] = field(default_factory=dict, kw_only=True)
    label_ranked: Float[np.ndarray, "error_replicate kept label"] | None = field(default=None, kw_only=True)


class LabelReduction(SampleReduction[LabelScores]):
    """Takes blocks of logits (T, chunk, L) in the order of the points from `first` on, and gives `LabelScores`."""

    def __init__(
        self, weights: DrawWeights, points: Points, *, labels: int, labelled: bool, estimator: Estimator, first: int
    ) -> None:
        self._truth = points.targets if labelled else None
        self._ranked_rows, self._first, self._estimator = estimates.ranked_rows(len(points)), first, estimator
        self._parts = [
            classification.ClassReduction(
                weights,
                points=len(points),
                labels=None if self._truth is None else self._truth[:, label],
                estimator=estimator,
                first=first,
                where=points.reference,
            )
            for label in range(labels)
        ]

    def add(
        self, logits: Float[Array, "sample chunk label"], draws: Int64[np.ndarray, " sample"] | None = None
    ) -> None:
        """Add the next points; see `classification.ClassReduction.add`."""
        labels = [(part, logits[..., label]) for label, part in enumerate(self._parts)]
        at_once = 1 if on_host(logits) else _AT_ONCE
        for first in range(0, len(labels), at_once):
            self._add(labels[first : first + at_once], draws)

    def _add(
        self, labels: Sequence[tuple[classification.ClassReduction, Array]], draws: Int64[np.ndarray, " sample"] | None
    ) -> None:
        """Add the next points of these labels. Several are fetched from their device in one wait."""
        xp = array_namespace(labels[0][1])
        blocks = [(part, xp.stack([xp.zeros_like(z), z], axis=-1)) for part, z in labels]
        values: dict[str, Array] = {}
        try:
            if len(blocks) > 1:
                for number, (part, block) in enumerate(blocks):
                    values |= {f"{number} {name}": value for name, value in part.scored_at_once(block, draws).items()}
                    part.release()
            arrays = fetched(values)
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            arrays = {}
        values.clear()
        for number, (part, block) in enumerate(blocks):
            own = {name.partition(" ")[2]: array for name, array in arrays.items() if name.startswith(f"{number} ")}
            if own:
                part.add_scored(own, block, draws)
            else:
                part.add(block, draws)
            part.release()  # one label at a time needs it

    def arrays(self) -> Arrays:
        """What was added, for `scores` to merge: by label along the last axis where the set is labelled, otherwise
        means over the labels."""
        parts = [part.arrays() for part in self._parts]
        result = {key: self._joined(key, [arrays[key] for arrays in parts]) for key in parts[0]}
        if self._truth is not None and Key("draw/ranked", "wrong") in parts[0]:
            first, self._first = self._first, self._first + len(result["point/predicted"])
            rows = self._ranked_rows[slice(*np.searchsorted(self._ranked_rows, [first, self._first]))]
            uncertain, wrong = (Key("draw/ranked", name) for name in ("least_confidence", "wrong"))
            scores = [
                metrics.label_score(arrays[uncertain], arrays[wrong] ^ (y == 1))
                for arrays, y in zip(parts, self._truth[rows].T, strict=True)
            ]
            result["draw/label_ranked"] = np.stack(scores, -1)
        return result

    def _joined(self, key: str, values: Sequence[np.ndarray]) -> np.ndarray:
        kind, _, name = key.partition("/")
        if kind == "most":
            return np.max([value.max(0, keepdims=True) for value in values], axis=0)
        if len({len(value) for value in values}) > 1:  # sums of other blocks, as memory ran out
            values = [value.sum(0, keepdims=True) for value in values]
        by_label = name == "predicted" or (self._truth is not None and Key(name).kind != "ranked")
        if by_label:
            return np.stack(values, -1)
        return np.mean(values, axis=0, dtype=np.result_type(values[0], np.float32))

    def _merged(self, units: Gathered, group: Groups) -> LabelScores:
        arrays = units.by_kind()
        points, draws, sums = arrays["point"], arrays["draw"], arrays["sum"]
        predicted, n, labelled = points.pop("predicted"), len(points["max_probability"]), self._truth is not None
        bins, ranked = of_kind(taken_out(sums, "bins"), "bins"), of_kind(draws, "ranked")
        replicates = {name: total / n for name, total in sums.items()}
        shared: dict[str, Any] = {"ranked_rows": self._ranked_rows, "estimator": self._estimator, "group": group}
        likelihoods = draws.get("log_likelihood")

        def of_label(label: int) -> classification.ClassScores:
            return classification.ClassScores(
                n=n,
                points={name: values[:, label] for name, values in points.items()},
                predicted=predicted[:, label],
                replicates={name: values[:, label] for name, values in replicates.items()},
                ranked={},
                log_likelihood=None if likelihoods is None else likelihoods[:, :, label],
                bins=CalibrationBins(**{name: values[..., label] for name, values in bins.items()}),
                **shared,
            )

        return LabelScores(
            n=n,
            points={name: values.mean(-1) for name, values in points.items()} if labelled else points,
            predicted=predicted,
            replicates={name: values.mean(-1) for name, values in replicates.items()} if labelled else replicates,
            ranked_wrong=ranked.pop("wrong", None),
            ranked=ranked,
            log_likelihood=likelihoods,
            bins=CalibrationBins(**{name: values.sum(-1) for name, values in bins.items()}) if labelled else None,
            samples_differ=estimates.samples_differ(arrays["most"]),
            truth=self._truth,
            labels=tuple(of_label(label) for label in range(predicted.shape[1])) if labelled else (),
            label_points=points if labelled else {},
            label_ranked=draws.get("label_ranked"),
            **shared,
        )


_Parts = tuple[Float[np.ndarray, " replicate"], Float[np.ndarray, " point"]]  # an estimate, and what points contribute


def ranked_labels(truth: Int64[np.ndarray, "point label"]) -> Int64[np.ndarray, " ranked"]:
    """The labels that have an AUROC: enough of the points whose ranks are replicated have them, and enough do not."""
    count = truth[rows := estimates.ranked_rows(len(truth))].sum(0)
    return np.flatnonzero(np.minimum(count, len(rows) - count) >= _FEWEST)


def set_estimates(
    scores: LabelScores, draws: DrawWeights, names: Sequence[str]
) -> tuple[dict[str, Estimate], dict[str, dict[str, Estimate]]]:
    """The estimates of one set, which are means over labels, and where it is labelled those of each label."""
    means = {name: _mean(name, scores, draws) for name in scores.replicates}
    by_label: dict[str, dict[str, Estimate]] = {}
    parts: dict[str, list[_Parts]] = {}
    for label, of_label in enumerate(scores.labels):
        names_of_means = [name for name in _LABEL_MEANS if name in of_label.replicates]
        estimates_by_name = {name: _mean(name, of_label, draws) for name in names_of_means}
        for name, part in _parts(scores, label, draws):
            parts.setdefault(name, []).append(part)
            estimates_by_name[name] = _estimate(name, [part], scores, draws)
        by_label[names[label]] = _in_order(estimates_by_name)
    means |= {name: _estimate(name, of_labels, scores, draws) for name, of_labels in parts.items()}
    if scores.labels:
        means |= classification.selective_estimates(scores, draws)
    return _in_order(means), by_label


def _mean(name: str, scores: classification.ClassScores, draws: DrawWeights) -> Estimate:
    return estimates.mean_estimate(name, scores, draws, limits=limits_of(name, "classification", scores.estimator))


def _in_order(unordered: Mapping[str, Estimate]) -> dict[str, Estimate]:
    return {name: unordered[name] for name in METRICS if name in unordered}


def _parts(scores: LabelScores, label: int, draws: DrawWeights) -> Iterator[tuple[str, _Parts]]:
    """ECE and AUROC of a label, which are no means over points."""
    of_label = scores.labels[label]
    assert of_label.bins is not None and scores.truth is not None
    confidence, right = of_label.points["max_probability"], of_label.points["accuracy"]
    yield "ece", (metrics.ece_of_bins(of_label.bins), metrics.ece_influence(confidence, right, group=scores.group))
    if label not in ranked_labels(scores.truth):
        return
    y, uncertain = scores.truth[:, label], of_label.points["least_confidence"]
    score = metrics.label_score(uncertain, of_label.predicted)
    replicates = np.full(len(draws.weights), metrics.label_auroc(score, y))
    if scores.label_ranked is not None:
        rows = scores.ranked_rows
        ranked = metrics.label_score(uncertain[rows].astype(np.float32), of_label.predicted[rows])
        aurocs = np.array([metrics.label_auroc(values, y[rows]) for values in scores.label_ranked[..., label]])
        replicates[draws.jackknife.start : draws.bootstrap.stop] += aurocs - metrics.label_auroc(ranked, y[rows])
    yield "label_auroc", (replicates, metrics.label_auroc_influence(score, y))


def _estimate(name: str, parts: Sequence[_Parts], scores: LabelScores, draws: DrawWeights) -> Estimate:
    """The mean over labels; its error over points is that of the mean of what the points contribute."""
    replicates, contributions = (np.mean(of_labels, axis=0) for of_labels in zip(*parts, strict=True))
    se = estimates.error_over_points(metrics.standard_error(contributions, group=scores.group), scores)
    return estimates.of_replicates(name, replicates, draws, se=se)


@frozen
class MultilabelScorer(classification.ClassificationScorer):
    """Scores the samples of a classifier with several labels per point, which have these `names`, and two classes
    each."""

    task = MULTILABEL

    @classmethod
    def of(cls, network: ScoredNetwork) -> MultilabelScorer:
        return cls(network.settings, 2, names_of(network.test, network.outputs))

    def checked(self, points: Points, *, is_ood: bool = False) -> Points:
        return points if is_ood else check_label_matrix(points, len(self.names))

    def findings_on_labels(self, truth: np.ndarray) -> Iterator[Finding]:
        """A note on the labels that have no AUROC among these points."""
        without = np.setdiff1d(np.arange(truth.shape[1]), ranked_labels(truth))
        if without.size:
            yield note("labels-without-auroc", labels=[self.names[label] for label in without])

    def reduction(self, scored: ScoredSet) -> SampleReduction:
        return LabelReduction(
            scored.weights,
            scored.points,
            labels=len(self.names),
            labelled=scored.labelled,
            estimator=self.settings.mutual_information,
            first=scored.first,
        )

    def separation(self, test: SetScores, ood: SetScores, draws: DrawWeights) -> dict[str, dict[str, Estimate]]:
        return estimates.detection_estimates(test, ood, draws)

    def _labels_of(self, points: int) -> int:
        return points * len(self.names)

    def set_result(self, scores: SetScores, draws: DrawWeights) -> SetResult:
        scores = LabelScores.among(scores)
        means, by_label = set_estimates(scores, draws, self.names)
        return SetResult(
            estimates=means,
            points=scores.points,
            predicted=scores.predicted,
            log_likelihood=scores.log_likelihood,
            by_label=by_label,
            label_points=scores.label_points,
        )


def names_of(points: Points, labels: int) -> tuple[str, ...]:
    """The names of the labels, as the data give them or their numbers from 0."""
    classes = tuple(points.classes or ())
    return classes if len({*classes}) == len(classes) == labels else tuple(map(str, range(labels)))
