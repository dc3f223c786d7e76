"""Scores what files give instead of samples: distributions of a regression point by point, and confidences of pairs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import msgspec
import numpy as np

from bnuq.config import ScoringSection
from bnuq.evaluation.estimates import ReplicateWeights, SetScores
from bnuq.evaluation.tasks.class_arrays import ArrayKernel
from bnuq.evaluation.tasks.class_reduction import ClassReduction
from bnuq.evaluation.tasks.classification import ClassificationScorer
from bnuq.evaluation.tasks.regression import LEVELS, RegressionScorer
from bnuq.evaluation.tasks.regression_reduction import RegressionReduction
from bnuq.evaluation.tasks.scorer import SampleReduction, ScoredSet
from bnuq.frozen import frozen
from bnuq.metrics import DrawWeights, plain_weights
from bnuq.records.evaluation import MethodResult, parts_of
from bnuq.shapes import Float

_NO_NOISE = sys.float_info.max  # τ: the distribution has all of it
_PSEUDO_SAMPLES = 100  # at equal steps of a quantile function whose levels are others
_NEAR = (1e-9, 0.1 + 1e-9)  # between levels that are equal, and that quantiles are linear between
_DIGITS = 12  # of a level, beyond which it is rounding


@frozen
class DistributionScorer(RegressionScorer):
    """Scores distributions in the form of samples that were not drawn: nothing depends on their number, and no noise is
    added to them. A Gaussian is two samples, one σ below and above its mean; quantiles at these `levels` have a CRPS
    and a coverage of their own, and are otherwise a Gaussian with their moments, as samples `drawn` of targets are."""

    levels: Float[np.ndarray, " level"] | None = None
    drawn: bool = False

    @property
    def scoring(self) -> ScoringSection:
        crps = "gaussian" if self.levels is None else "ensemble"
        return msgspec.structs.replace(self.settings.scoring, tau=_NO_NOISE, pll="moment", crps=crps, tau_range=None)

    @property
    def reducer(self) -> Callable[..., RegressionReduction]:
        return RegressionReduction if self.levels is None else partial(_QuantileReduction, self.levels)

    def weights(self, samples: int, bank: int | None) -> DrawWeights:
        if self.drawn:
            return super().weights(samples, bank)
        return plain_weights(samples if self.levels is None else len(_steps(self.levels)))

    def result(
        self, scores: Mapping[str, SetScores], draws: DrawWeights, ranked: SetScores | None = None
    ) -> MethodResult:
        result = super().result(scores, draws, ranked)
        sets = {
            name: replace(each, estimates={key: value for key, value in each.estimates.items() if key != "tau"})
            for name, each in result.sets.items()
        }
        calibration, inside = result.calibration, scores["test"].replicates
        if self.levels is not None and calibration:
            known = [level for level in LEVELS.tolist() if _inside(level) in inside]
            coverage = [float(inside[_inside(level)][0]) for level in known]
            calibration = {"level": np.array(known), "coverage": np.array(coverage)} if known else {}
        return replace(result, sets=sets, convergence=result.convergence if self.drawn else {}, calibration=calibration)


class _QuantileReduction(RegressionReduction):
    """Takes blocks of quantiles (L, chunk, 1) at these levels. Their quantile function is linear between the levels,
    and constant beyond them; coverage is known where it ends at levels, or between two that are near each other."""

    def __init__(self, levels: Float[np.ndarray, " level"], weights: DrawWeights, **options: Any) -> None:
        super().__init__(weights, **options)
        self._levels, self._quantiles = levels, np.empty((0, 0))

    def _add(self, f: Float[np.ndarray, "level chunk 1"], weights: ReplicateWeights) -> None:
        self._quantiles = f[..., 0]
        super()._add(self._at(_steps(self._levels))[..., None], weights)

    def _at(self, levels: Float[np.ndarray, " step"]) -> Float[np.ndarray, "step chunk"]:
        return np.stack([np.interp(levels, self._levels, row) for row in self._quantiles.T], axis=1)

    def _scored(
        self, f: Any, mean: Any, variance: Any, y: Any, weights: ReplicateWeights
    ) -> dict[str, Float[np.ndarray, "replicate chunk"]]:
        scored = super()._scored(f, mean, variance, y, weights)
        values = {name: value for name, value in scored.items() if name not in ("coverage50", "coverage95")}
        truth = y[:, 0]
        below, levels = truth - self._quantiles, self._levels[:, None]
        loss = 2 * np.maximum(levels * below, (levels - 1) * below).mean(0)
        values["crps"] = np.broadcast_to(loss, values["mae"].shape)
        for level in LEVELS.tolist():
            ends = np.round([(1 - level) / 2, (1 + level) / 2], _DIGITS)
            if all(_is_known(self._levels, end) for end in ends.tolist()):
                low, high = self._at(ends)
                inside = ((low <= truth) & (truth <= high)).astype(np.float64)
                self._blocks.add("sum", {_inside(level): inside.sum(keepdims=True)})
                if (name := f"coverage{level * 100:.0f}") in scored:
                    values[name] = inside[None]
        return values


def _steps(levels: Float[np.ndarray, " level"]) -> Float[np.ndarray, " step"]:
    """Equal steps of a quantile function: the levels, where they are that."""
    equal = (np.arange(len(levels)) + 0.5) / len(levels)
    return equal if np.allclose(levels, equal) else (np.arange(_PSEUDO_SAMPLES) + 0.5) / _PSEUDO_SAMPLES


def _is_known(levels: Float[np.ndarray, " level"], end: float) -> bool:
    at = int(np.searchsorted(levels, end - _NEAR[0]))
    return at < len(levels) and bool(levels[at] <= end + _NEAR[0] or (at and levels[at] - levels[at - 1] <= _NEAR[1]))


def _inside(level: float) -> str:
    return f"inside {level:.2f}"


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
            estimator=self.settings.mutual_information,
            first=scored.first,
            where=points.reference,
            are_log_probabilities=True,
            maps=scored.maps,
            parts={kind: of for kind, of in parts.items() if kind == "group"},
        )
