"""The analytic laws of a run: fitted to the running statistics, or to recorded mini-batches, and drawn from."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from torch import nn

from bnuq import metrics
from bnuq.data import Points
from bnuq.errors import SamplingError
from bnuq.progress import Progress
from bnuq.run import ANALYTIC, Counts, Run
from bnuq.sampling import keyed
from bnuq.sampling.analytic import LayerLaw, draw_chi2, draw_empirical, draw_gaussian, law_of
from bnuq.sampling.bank import BatchStatistics
from bnuq.sampling.sites import fingerprint
from bnuq.stages.drawing import drawn
from bnuq.stages.lower_bound import layer_counts
from bnuq.stages.material import Pipeline
from bnuq.stages.plan import Plan

FINITE = 0.05  # share of the reference, above which a mini-batch feels that nothing is drawn twice


@dataclass(frozen=True)
class Laws:
    """The laws of one run: the factorised one of every layer, and the recorded draws of the empirical one."""

    run: Run
    fingerprint: str
    batch_size: int
    layers: tuple[LayerLaw, ...]
    recorded: BatchStatistics | None
    counts: Counts | None = None  # of the factorised laws, None where there are none

    def notes(self) -> Iterator[str]:
        """How many values the factorised laws take statistics to be of, where that was measured."""
        if self.counts != "measured":
            return
        assert self.recorded is not None
        shares = [(100 * one.values_mean / one.count, 100 * one.values_deviation / one.count) for one in self.layers]
        of_mean, of_deviation = (
            " to ".join(f"{end:.{int(end < 10)}f}" for end in (min(of), max(of))) for of in zip(*shares, strict=True)
        )
        yield (
            f"counts of the analytic laws were measured on {self.recorded.samples} mini-batches: of the nominal b·z "
            f"values a channel, a mean moves like {of_mean} % from layer to layer, a deviation like {of_deviation} %"
        )

    def draw(self, method: str, draws: range) -> BatchStatistics:
        """ω of these draws under the law of `method`."""
        seed = self.run.seed
        if method != "mcbn-empirical":
            law = draw_chi2 if method == "mcbn-chi2" else draw_gaussian
            return law(
                self.layers,
                draws,
                seed=seed,
                variance=self.run.sampler.variance,
                fingerprint=self.fingerprint,
                batch_size=self.batch_size,
            )
        assert self.recorded is not None
        return draw_empirical(self.recorded, draws, seed=seed, covariance=self.run.sampler.covariance)


def counts_of(run: Run, train: Points | None) -> Counts:
    """How many values the factorised laws take statistics to be of; SamplingError for what cannot be measured."""
    if train is None and run.sampler.counts == "measured":
        raise SamplingError(
            'counts = "measured" takes mini-batches of a reference, and there is none; add --train REF, or use '
            "--counts nominal."
        )
    return run.sampler.counts or ("nominal" if train is None else "measured")


def fit_laws(
    run: Run, todo: Plan, model: nn.Module, pipeline: Pipeline, train: Points | None, progress: Progress
) -> Laws | None:
    """The laws of the run's analytic methods, None where there are none.

    What is measured is measured on mini-batches of its own, not on those that MCBN draws.
    """
    asked = [method for method in todo.methods if method in ANALYTIC]
    if not asked:
        return None
    assert todo.batch_size is not None
    measured = counts_of(run, train) == "measured"
    factorised = any(method != "mcbn-empirical" for method in asked)
    recorded = None
    if "mcbn-empirical" in asked or (factorised and measured):
        assert train is not None  # the plan saw to it
        number = run.sampler.law_draws
        recorded = drawn(
            model,
            pipeline,
            train,
            range(number),
            todo.batch_size,
            todo.layers,
            (keyed.LAW, keyed.LAW_AUGMENT),
            progress,
            f"Fitting the laws to {number} mini-batches of {todo.batch_size}",
        )
    layers: tuple[LayerLaw, ...] = ()
    if factorised:
        population = None if train is None else len(train)
        density: list[tuple[float, float] | None] = [None] * len(todo.layers)
        if measured:
            assert recorded is not None
            density = [(one.mean, one.sd) for one in layer_counts(recorded, math.inf)]  # as they vary at this very b
        shrink = 1.0
        finite = not (measured or run.sampler.replacement or run.augment)  # augmented points are never the same again
        if population is not None and finite and todo.batch_size > FINITE * population:
            shrink = float(metrics.finite_population_factor(todo.batch_size, population=population))
        layers = tuple(
            law_of(site, batch_size=todo.batch_size, density=one, shrink=shrink)
            for site, one in zip(todo.layers, density, strict=True)
        )
    return Laws(
        run, fingerprint(model), todo.batch_size, layers, recorded, counts_of(run, train) if factorised else None
    )
