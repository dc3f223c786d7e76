"""How far the analytic laws of a result are from the MCBN that they stand for, where both were evaluated."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from bnuq import metrics
from bnuq.config import ANALYTIC, DEFAULT_SAMPLER
from bnuq.estimates import Estimate
from bnuq.records.evaluation import Result

UNDERSTATES, OVERSTATES = 0.5, 2.0  # times MCBN's mean uncertainty, from where on a law is told to be wrong


@dataclass(frozen=True)
class Approximation:
    """A law beside MCBN on the same points. `ratio` is its mean uncertainty over MCBN's, by set, `rank` the Spearman
    correlation of the two points' uncertainties; `uncertainty` says which: mutual information, or the variance of a
    regression. `pll` is the difference on the test set, in nats, `auroc` that of separating each OOD set by the same
    uncertainty; both law − MCBN. The draws of the two are independent: Monte Carlo errors add in squares.
    `fit` bounds the relative error that a fit to R mini-batches leaves in the ratio, √(2/(R − 1)); 0 where nothing was
    fitted.
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
        """Whether the law's uncertainty on the test set is below half of MCBN's by more than twice its error, that of
        the fit included; False where no error is known."""
        return self.ratio["test"].value + 2 * self._error < UNDERSTATES

    @property
    def overstates(self) -> bool:
        """Whether it is above twice MCBN's by more than twice its error; False where no error is known."""
        return self.ratio["test"].value - 2 * self._error > OVERSTATES

    @property
    def _error(self) -> float:
        test = self.ratio["test"]
        return math.nan if test.mc_se is None else math.hypot(test.mc_se, self.fit * test.value)


def approximations(result: Result) -> tuple[Approximation, ...]:
    """Every analytic method of a result beside its MCBN; empty where either is absent."""
    return tuple(_approximations(result)) if "mcbn" in result.methods else ()


def _approximations(result: Result) -> Iterator[Approximation]:
    real = result.methods["mcbn"]
    for name in result.methods:
        if name not in ANALYTIC:
            continue
        law = result.methods[name]
        known, estimates = (method.sets["test"].estimates for method in (law, real))
        uncertainty = "variance" if "mutual_information" not in known else "mutual_information"
        shared = [one for one in law.sets if uncertainty in law.sets[one].points]
        yield Approximation(
            method=name,
            uncertainty=uncertainty,
            ratio={one: _ratio(*(m.sets[one].estimates[uncertainty] for m in (law, real))) for one in shared},
            rank={one: metrics.spearman(*(m.sets[one].points[uncertainty] for m in (law, real))) for one in shared},
            pll=_change(known["pll"], estimates["pll"]) if "pll" in known and "pll" in estimates else None,
            auroc={
                one: _change(scores[uncertainty]["auroc"], real.ood[one][uncertainty]["auroc"])
                for one, scores in law.ood.items()
                if uncertainty in scores
            },
            fit=_fit(name, result.run.get("sampling", {})),
        )


def _fit(method: str, sampling: Mapping[str, Any]) -> float:
    """A variance that R draws tell has a relative error of √(2/(R − 1)); that of many is better known than of one."""
    if method != "mcbn-empirical" and sampling.get("counts") != "measured":
        return 0.0
    return math.sqrt(2 / (int(sampling.get("law_draws", DEFAULT_SAMPLER.law_draws)) - 1))


def _ratio(law: Estimate, real: Estimate) -> Estimate:
    if not real.value:
        return Estimate(math.nan)
    value = law.value / real.value
    if law.mc_se is None or real.mc_se is None:
        return Estimate(value)
    return Estimate(value, mc_se=math.hypot(law.mc_se, value * real.mc_se) / abs(real.value))


def _change(law: Estimate, real: Estimate) -> Estimate:
    if law.mc_se is None or real.mc_se is None:
        return Estimate(law.value - real.value)
    return Estimate(law.value - real.value, mc_se=math.hypot(law.mc_se, real.mc_se))
