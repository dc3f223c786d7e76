"""The analytic noise models of a run: fitted to the running statistics or to recorded mini-batches, and drawn from."""

from __future__ import annotations

import math

from bnuq import metrics
from bnuq.config import Counts, DrawSettings
from bnuq.evaluation.draws import MiniBatchDrawing
from bnuq.evaluation.executors import UnitExecutor
from bnuq.evaluation.subject import Subject
from bnuq.frozen import frozen
from bnuq.methods import Method
from bnuq.progress import Progress
from bnuq.records.approximation import LayerCounts
from bnuq.sampling import counter_rng
from bnuq.sampling.analytic import LayerNoiseModel, draw_chi2, draw_empirical, draw_gaussian, noise_model_of
from bnuq.sampling.batch_statistics import BatchStatistics
from bnuq.sampling.digests import fingerprint

FINITE = 0.05  # share of the reference above which a mini-batch needs the finite-population correction
_FACTORISED = {"mcbn-chi2": draw_chi2, "mcbn-gaussian": draw_gaussian}


@frozen
class NoiseModels:
    """The noise models of one run: the factorised model of every layer, and the recorded draws of the empirical
    model."""

    draws: DrawSettings
    fingerprint: str
    batch_size: int
    layers: tuple[LayerNoiseModel, ...]
    recorded: BatchStatistics | None
    counts: Counts | None = None  # of the factorised noise models; None where there are none

    def draw(self, method: Method, draws: range) -> BatchStatistics:
        """ω of these draws under the noise model of `method`."""
        seed, sampler = self.draws.seed, self.draws.sampler
        if not method.is_fitted_to_mini_batches:
            return _FACTORISED[method.name](
                self.layers,
                draws,
                seed=seed,
                variance=sampler.variance,
                fingerprint=self.fingerprint,
                batch_size=self.batch_size,
            )
        assert self.recorded is not None
        return draw_empirical(self.recorded, draws, seed=seed, covariance=sampler.covariance)


def fit_noise_models(subject: Subject, progress: Progress, executor: UnitExecutor) -> NoiseModels | None:
    """The noise models of the run's analytic methods; None where there are none.

    They are measured on separate mini-batches, not on those that MCBN draws.
    """
    settings, train, batch_size = subject.draws, subject.train, subject.batch_size
    requested = [method for method in subject.methods if method.approximates]
    if not requested:
        return None
    assert batch_size is not None
    # of the factorised models: the nominal or the measured number of values
    counts: Counts = settings.sampler.counts or ("nominal" if train is None else "measured")
    measured = counts == "measured"
    factorised = not all(method.is_fitted_to_mini_batches for method in requested)
    recorded = None
    if any(method.is_fitted_to_mini_batches for method in requested) or measured:
        assert train is not None  # ensured by the plan
        number = settings.sampler.noise_model_draws
        title = f"Fitting the noise models to {number} mini-batches of {batch_size}"
        purposes = (counter_rng.NOISE_MODEL, counter_rng.NOISE_MODEL_AUGMENT)
        network = subject.model, subject.pipeline
        drawing = MiniBatchDrawing(*network, train, batch_size, subject.layers, purposes, title, settings.sampler)
        recorded = drawing.in_units("noise-model", executor, range(number), progress)
    layers: tuple[LayerNoiseModel, ...] = ()
    if factorised:
        population = None if train is None else len(train)
        density: list[tuple[float, float] | None] = [None] * len(subject.layers)
        if measured:
            assert recorded is not None
            density = [(layer.mean, layer.sd) for layer in layer_counts(recorded, math.inf)]  # at this batch size
        shrink = 1.0
        augmented = subject.pipeline.settings.augment
        finite = not (measured or settings.sampler.replacement or augmented)  # augmentation makes every point new
        if population is not None and finite and batch_size > FINITE * population:
            shrink = float(metrics.finite_population_factor(batch_size, population=population))
        layers = tuple(
            noise_model_of(site, batch_size=batch_size, density=layer_density, shrink=shrink)
            for site, layer_density in zip(subject.layers, density, strict=True)
        )
    made_of = settings, fingerprint(subject.model), batch_size, layers, recorded
    return NoiseModels(*made_of, counts if factorised else None)


def layer_counts(bank: BatchStatistics, population: int | float) -> tuple[LayerCounts, ...]:
    """The values of a channel per item of the mini-batch, layer by layer; the nominal number where the draws give no
    estimate."""
    result = []
    for layer in bank.layers:
        nominal = float(layer.count[0]) / bank.batch_size
        var = layer.var if bank.variance == "biased" else layer.var * (1 - 1 / layer.count[:, None])
        counts = metrics.effective_counts(layer.mean, var, batch_size=bank.batch_size, population=population)
        mean, sd = (value if math.isfinite(value) and value > 0 else nominal for value in (counts.mean, counts.sd))
        result.append(LayerCounts(layer.name, layer.mean.shape[1], nominal, mean, sd))
    return tuple(result)
