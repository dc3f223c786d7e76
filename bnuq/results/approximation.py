"""How far the analytic laws of a result are from the MCBN that they stand for, where both were evaluated."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from bnuq import metrics
from bnuq.records import Figure
from bnuq.results.result import Result
from bnuq.run import ANALYTIC

UNDERSTATES, OVERSTATES = 0.5, 2.0  # times MCBN's mean uncertainty, from where on a law is told to be wrong


@dataclass(frozen=True)
class Approximation:
    """A law beside MCBN on the same points. `ratio` is its mean uncertainty over MCBN's, by set, `rank` the Spearman
    correlation of the two points' uncertainties; `uncertainty` says which: mutual information, or the variance of a
    regression. `pll` is the difference on the test set, in nats, `auroc` that of separating each OOD set by the same
    uncertainty; both law − MCBN. The draws of the two are independent: Monte Carlo errors add in squares.
    """

    method: str
    uncertainty: str
    ratio: Mapping[str, Figure]
    rank: Mapping[str, float]
    pll: Figure | None
    auroc: Mapping[str, Figure]

    @property
    def understates(self) -> bool:
        """Whether the law's uncertainty on the test set is below half of MCBN's, beyond twice its error."""
        test = self.ratio["test"]
        return test.value + 2 * (test.mc_se or 0.0) < UNDERSTATES

    @property
    def overstates(self) -> bool:
        """Whether it is above twice MCBN's, beyond twice its error."""
        test = self.ratio["test"]
        return test.value - 2 * (test.mc_se or 0.0) > OVERSTATES


def approximations(result: Result) -> tuple[Approximation, ...]:
    """Every analytic method of a result beside its MCBN; empty where either is absent."""
    return tuple(_approximations(result)) if "mcbn" in result.methods else ()


def _approximations(result: Result) -> Iterator[Approximation]:
    real = result.methods["mcbn"]
    for name in result.methods:
        if name not in ANALYTIC:
            continue
        law = result.methods[name]
        known = law.sets["test"].figures
        uncertainty = "variance" if "mutual_information" not in known else "mutual_information"
        shared = [one for one in law.sets if uncertainty in law.sets[one].points]
        yield Approximation(
            method=name,
            uncertainty=uncertainty,
            ratio={one: _ratio(*(m.sets[one].figures[uncertainty] for m in (law, real))) for one in shared},
            rank={one: metrics.spearman(*(m.sets[one].points[uncertainty] for m in (law, real))) for one in shared},
            pll=_change(known["pll"], real.sets["test"].figures["pll"]) if "pll" in known else None,
            auroc={
                one: _change(scores[uncertainty]["auroc"], real.ood[one][uncertainty]["auroc"])
                for one, scores in law.ood.items()
                if uncertainty in scores
            },
        )


def _ratio(law: Figure, real: Figure) -> Figure:
    if not real.value:
        return Figure(math.nan)
    value = law.value / real.value
    if law.mc_se is None or real.mc_se is None:
        return Figure(value)
    return Figure(value, mc_se=math.hypot(law.mc_se, value * real.mc_se) / abs(real.value))


def _change(law: Figure, real: Figure) -> Figure:
    if law.mc_se is None or real.mc_se is None:
        return Figure(law.value - real.value)
    return Figure(law.value - real.value, mc_se=math.hypot(law.mc_se, real.mc_se))
