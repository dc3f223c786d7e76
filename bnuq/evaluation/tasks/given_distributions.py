"""Scores predictive distributions of a regression that are given point by point: Gaussians, or quantiles."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace

import msgspec

from bnuq.config import ScoringSection
from bnuq.evaluation.estimates import SetScores
from bnuq.evaluation.tasks.regression import RegressionScorer
from bnuq.metrics import DrawWeights, plain_weights
from bnuq.records.evaluation import MethodResult

_NO_NOISE = sys.float_info.max  # τ: the distribution has all of it


class DistributionScorer(RegressionScorer):
    """Scores distributions in the form of samples that were not drawn: nothing depends on their number, and no noise is
    added to them. A Gaussian is two samples, one σ below and above its mean."""

    @property
    def scoring(self) -> ScoringSection:
        return msgspec.structs.replace(self.run.scoring, tau=_NO_NOISE, pll="moment", tau_range=None)

    def weights(self, samples: int, bank: int | None) -> DrawWeights:
        return plain_weights(samples)

    def result(
        self, scores: Mapping[str, SetScores], draws: DrawWeights, ranked: SetScores | None = None
    ) -> MethodResult:
        result = super().result(scores, draws, ranked)
        sets = {
            name: replace(each, estimates={key: value for key, value in each.estimates.items() if key != "tau"})
            for name, each in result.sets.items()
        }
        return replace(result, sets=sets, convergence={})
