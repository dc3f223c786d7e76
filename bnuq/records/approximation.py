"""How far the analytic noise models of a result are from the MCBN that they approximate, where both were evaluated."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from bnuq import metrics
from bnuq.config import DEFAULT_SAMPLER
from bnuq.estimates import Estimate
from bnuq.frozen import frozen
from bnuq.methods import method_named
from bnuq.records.evaluation import Result

UNDERSTATES, OVERSTATES = 0.5, 2.0  # times MCBN's mean uncertainty, from where on a noise model is judged wrong


@frozen
class Approximation:
    """A noise model compared with MCBN on the same points. `ratio` is its mean uncertainty over MCBN's, by set, `rank`
    the Spearman correlation of the two points' uncertainties; `uncertainty` says which: mutual information, or the
    variance of a regression. `pll` is the difference on the test set, in nats, `auroc` that of separating each OOD set
    by the same uncertainty; both noise model − MCBN. The draws of the two are independent: Monte Carlo errors add in
    squares. `fit` bounds the relative error that a fit to R mini-batches leaves in the ratio, √(2/(R − 1)); 0 if
    nothing was fitted.
    """

    method: str
    uncertainty: str
    ratio: Mapping[str, Estimate]
    rank: Mapping[str, float]
    pll: Estimate | None
    auroc: Mapping[str, Estimate]
    fit: float

    @property
    def understates(self) -> bool:
        """Whether the model's uncertainty on the test set is below half of MCBN's by more than twice its error, that of
        the fit included; False if no error is known."""
        return self.ratio["test"].value + 2 * self._error < UNDERSTATES

    @property
    def overstates(self) -> bool:
        """Whether it is above twice MCBN's by more than twice its error; False if no error is known."""
        return self.ratio["test"].value - 2 * self._error > OVERSTATES

    @property
    def _error(self) -> float:
        test = self.ratio["test"]
        return math.nan if test.mc_se is None else math.hypot(test.mc_se, self.fit * test.value)


def approximations(result: Result) -> tuple[Approximation, ...]:
    """Every analytic method of a result beside its MCBN; empty if either is absent."""
    if "mcbn" not in result.methods:
        return ()
    return tuple(_approximation(result, name) for name in result.methods if method_named(name).approximates)


def _approximation(result: Result, name: str) -> Approximation:
    analytic, real = result.methods[name], result.methods["mcbn"]
    known, estimates = (method.sets["test"].estimates for method in (analytic, real))
    uncertainty = "variance" if "mutual_information" not in known else "mutual_information"
    pairs = {
        set_name: (set_result, real.sets[set_name])
        for set_name, set_result in analytic.sets.items()
        if uncertainty in set_result.points
    }
    return Approximation(
        method=name,
        uncertainty=uncertainty,
        ratio={key: _ratio(*(side.estimates[uncertainty] for side in pair)) for key, pair in pairs.items()},
        rank={key: metrics.spearman(*(side.points[uncertainty] for side in pair)) for key, pair in pairs.items()},
        pll=_change(known["pll"], estimates["pll"]) if "pll" in known and "pll" in estimates else None,
        auroc={
            set_name: _change(scores[uncertainty]["auroc"], real.ood[set_name][uncertainty]["auroc"])
            for set_name, scores in analytic.ood.items()
            if uncertainty in scores
        },
        fit=_fit(name, result.run.get("sampling", {})),
    )


def _fit(method: str, sampling: Mapping[str, Any]) -> float:
    """A variance estimated from R draws has a relative error of √(2/(R − 1)); a mean of several has a smaller one."""
    if "counts" in method_named(method).settings and sampling.get("counts") != "measured":
        return 0.0
    return math.sqrt(2 / (int(sampling.get("noise_model_draws", DEFAULT_SAMPLER.noise_model_draws)) - 1))


def _ratio(analytic: Estimate, real: Estimate) -> Estimate:
    if not real.value:
        return Estimate(math.nan)
    value = analytic.value / real.value
    if analytic.mc_se is None or real.mc_se is None:
        return Estimate(value)
    return Estimate(value, mc_se=math.hypot(analytic.mc_se, value * real.mc_se) / abs(real.value))


def _change(analytic: Estimate, real: Estimate) -> Estimate:
    if analytic.mc_se is None or real.mc_se is None:
        return Estimate(analytic.value - real.value)
    return Estimate(analytic.value - real.value, mc_se=math.hypot(analytic.mc_se, real.mc_se))


@frozen
class LayerCounts:
    """The numbers of values a channel of one layer has for each item of a mini-batch: `nominal` (its positions), and
    how many independent ones its mean (`mean`) and its deviation (`sd`) move like; NaN if that is unknown."""

    name: str
    channels: int
    nominal: float
    mean: float
    sd: float
