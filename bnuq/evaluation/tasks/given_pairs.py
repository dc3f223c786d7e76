"""Scores the confidence of predictions that are right or wrong, without the classes that they chose among."""

from __future__ import annotations

from typing import Any

import numpy as np

from bnuq.evaluation.tasks.class_arrays import ArrayKernel
from bnuq.evaluation.tasks.class_reduction import ClassReduction
from bnuq.evaluation.tasks.classification import ClassificationScorer
from bnuq.evaluation.tasks.scorer import SampleReduction, ScoredSet
from bnuq.frozen import frozen
from bnuq.records.evaluation import parts_of
from bnuq.shapes import Float


class _PairKernel(ArrayKernel):
    """Scores of two classes, "wrong" and "right", of which each point is one. The confidence is the probability of the
    second, however small it is; the entropy rises with 1 − confidence throughout, and the Brier score is that of one
    of the two. What was predicted is given as the class of the point: the label of all is "right"."""

    def scores_of_means(self, mean: Float[np.ndarray, "replicate chunk class"], y: Any) -> dict[str, np.ndarray]:
        values, confidence = super().scores_of_means(mean, y), mean[..., 1]
        entropy = values["predictive_entropy"]
        values["predictive_entropy"] = np.where(confidence < 0.5, 2 * np.log(2) - entropy, entropy)
        values |= {"max_probability": confidence, "least_confidence": mean[..., 0]}
        values["predicted"] = np.ones(confidence.shape, dtype=np.int64)
        if y is not None:
            values |= {"accuracy": np.zeros_like(confidence) + y, "brier": values["brier"] / 2}
            values["predicted"] *= y
        return values


class _PairReduction(ClassReduction):
    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._kernel = _PairKernel()


@frozen
class PairScorer(ClassificationScorer):
    """Scores confidences in what is right or wrong."""

    def reduction(self, scored: ScoredSet) -> SampleReduction:
        points = scored.points
        parts = parts_of(points.targets, self.names, points.group, points.group_names) if scored.labelled else {}
        return _PairReduction(
            scored.weights,
            points=len(points),
            labels=points.targets if scored.labelled else None,
            estimator=self.run.mutual_information,
            first=scored.first,
            where=points.reference,
            are_log_probabilities=True,
            maps=scored.maps,
            parts={kind: of for kind, of in parts.items() if kind == "group"},
        )
