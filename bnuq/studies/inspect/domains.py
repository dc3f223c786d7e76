"""Domains, such as laboratories, cameras or sites: which layers separate them, and the effect of evaluating with the
batch statistics of another domain."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import reduce

import numpy as np
import torch
from torch import Tensor, nn

from bnuq import metrics
from bnuq.config import Named, Run, ScoreSettings
from bnuq.data import Points
from bnuq.errors import DataError, RequestError, SamplingError
from bnuq.estimates import Estimate
from bnuq.evaluation import memory
from bnuq.evaluation.datasets import check_same_inputs, limited, numbered, read_named
from bnuq.evaluation.estimates import error_over_points, interval, of_replicates, replicate_weights
from bnuq.evaluation.passes import ChunkedPasses
from bnuq.evaluation.pipeline import Pipeline
from bnuq.evaluation.resources import check_memory_of_draws
from bnuq.evaluation.setup import SCORERS
from bnuq.evaluation.task import check_outputs, task_of
from bnuq.evaluation.tasks.regression_reduction import RegressionScores
from bnuq.evaluation.tasks.scorer import ScoredNetwork, ScoredSet, TaskScorer
from bnuq.findings import Finding, note
from bnuq.frozen import frozen
from bnuq.metrics.arrays import as_numpy
from bnuq.progress import Advance, Progress, silent
from bnuq.sampling import counter_rng
from bnuq.sampling.batch_statistics import BatchStatistics, LayerStatistics
from bnuq.sampling.engine import Stochastic
from bnuq.sampling.plain_loop import Engine, Evaluation
from bnuq.sampling.sites import BatchNormSite, Sites, select_layers
from bnuq.sampling.statistics import statistics_of
from bnuq.shapes import Float
from bnuq.studies.inspect.record import Crossing, Domain, Domains

SAMPLES = 16  # T
POPULATION_POINTS = 4096  # maximum points of a set for its population statistics
EVALUATED_POINTS = 2000  # maximum points of a set for accuracy and likelihood, without --limit
SPREAD_POINTS = 256  # maximum points for the spread of MCBN, which takes T samples per source of statistics
MIXED_BATCHES = 24
POINTS_PER_BATCH_POINT = 10  # minimum size of a set relative to the batch size
MIN_BATCH_SIZE = 8  # the batch size is not reduced below this for small sets
_MIN_DRAWS = 8  # minimum draws for an estimate of the noise of batch statistics

RUNNING, TRAIN, TEST, MIXED = "running", "train", "test", "mixed"
_SPLIT = 1  # random key of splitting a domain in half


def domains(
    run: Run,
    named: Sequence[Named],
    *,
    model: nn.Module,
    sites: Sites,
    pipeline: Pipeline,
    train: Points,
    test: Points | None = None,
    batch_size: int,
    samples: int = SAMPLES,
    progress: Progress = silent,
) -> tuple[Domains, tuple[Finding, ...]]:
    """How far every domain's BatchNorm statistics are from the reference's, and the scores of its points under the
    statistics of each domain: the record, and notes on sets that were limited.

    Half of a domain (by the run's seed, whole groups if it has groups) gives its statistics, through the training
    pipeline; the other half is evaluated, and so is `test`. Accuracy and PLL (RMSE of a regression) are those of the
    network with population statistics; mutual information (the variance) is that of `samples` draws of MCBN with
    mini-batches from the same source, in the layers that `run.layers` selects. "mixed" mini-batches hold equally many
    points of every domain, or, for a single domain, of the domain and the reference. `run.limit` bounds the evaluated
    points of each set.

    Mini-batches hold at most a tenth of the smallest set that they are drawn from, or 8 if that is less: drawing
    without replacement reduces their noise by (b − 1)/(n − 1), which would make small sets differ from large sets.

    Raises DataError, RequestError or SamplingError, with the domain's name, for a domain that cannot be read, has
    points of another shape, or labels that are not the network's, too few points, and for a name given twice.
    """
    if run.outputs == "multilabel":
        raise RequestError('outputs is "multilabel", which is not scored on domains. Leave --domain out.')
    if samples < 2:
        raise RequestError(f"the samples of a domain are {samples}; expected at least 2.")
    layers, sampled = _layers(run.layers, sites)
    if not named:
        raise RequestError("there are no domains; name one with --domain NAME=REF.")
    if len(train) < 4:
        raise DataError(f"the training set ({train.reference}) holds {len(train)} examples; expected at least 4.")
    points_of_domains = _read(run, named, train)
    scorer = _scorer(
        ScoreSettings.of(run), model, pipeline, train, [*([] if test is None else [test]), *points_of_domains.values()]
    )
    halves = {name: _halves(points, run.seed) for name, points in points_of_domains.items()}
    size, findings = _batch_size(batch_size, {name: first for name, (first, _) in halves.items()}, train)
    sources = {TRAIN: _PointSource(TRAIN, (train,))}
    sources |= {name: _PointSource(name, (first,)) for name, (first, _) in halves.items()}
    together = tuple(first for first, _ in halves.values())
    sources[MIXED] = _PointSource(MIXED, together if len(together) > 1 else (*together, train))
    check_memory_of_draws(len(sources) * samples, layers, size, title=f"{samples} samples of each domain")
    statistics_of_sources = {
        name: _statistics(source, model, layers, sampled, pipeline, size, samples, progress)
        for name, source in sources.items()
    }
    evaluated = {name: scorer.labelled(name, second) for name, (_, second) in halves.items()}
    if test is not None:
        evaluated[TEST] = scorer.labelled(TEST, test)
    evaluated = {name: limited(points, run.limit or EVALUATED_POINTS, run.seed) for name, points in evaluated.items()}
    crossing = _Crossing(run.auto_limit, model, sites, pipeline, scorer, statistics_of_sources, samples, progress)
    crossings = [source for name, points in evaluated.items() for source in crossing.of(name, points)]
    result = Domains(
        domains=tuple(
            _domain(
                name,
                points,
                evaluated[name].targets is not None,
                statistics_of_sources[name],
                statistics_of_sources[TRAIN],
                size,
            )
            for name, points in points_of_domains.items()
        ),
        crossings=tuple(crossings),
        batch_size=size,
        samples=samples,
    )
    return result, findings


def _layers(
    selected: str | tuple[str, ...], sites: Sites
) -> tuple[tuple[BatchNormSite, ...], tuple[BatchNormSite, ...]]:
    """The network's BatchNorms, and those that are sampled."""
    layers = sites.live_batchnorms
    if not layers:
        raise SamplingError("the network has no BatchNorm layer whose statistics could be a domain's.")
    sampled = select_layers(layers, selected)
    if bare := [site.name for site in layers if not site.tracked and site not in sampled]:
        raise SamplingError(
            f"BatchNorm {bare[0]} keeps no running statistics and layers leaves it out; expected layers to include "
            'every such layer: use layers = "all".'
        )
    return layers, sampled


# ── points ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def _read(run: Run, named: Sequence[Named], train: Points) -> dict[str, Points]:
    result: dict[str, Points] = {}
    for ref in named:
        points = read_named(run, ref, "test", ood=True, like=train)
        if points.name in (RUNNING, MIXED):
            raise RequestError(
                f"a domain is called {points.name}, which has a meaning here; give it another name: "
                f"--domain NAME={points.reference}."
            )
        if points.name in result:
            raise RequestError(
                f"two domains are called {points.name}; give them different names: --domain NAME={points.reference}."
            )
        check_same_inputs(f"domain {points.name}", points, train)
        if points.point_shape != train.point_shape:
            raise DataError(
                f"domain {points.name} ({points.reference}) has examples of shape {points.point_shape}, the training "
                f"set of {train.point_shape}; expected the same."
            )
        result[points.name] = points
    return {name: points for name, points in numbered(run, train=train, **result).items() if name != TRAIN}


def _halves(points: Points, seed: int) -> tuple[Points, Points]:
    """The half for statistics and the half for evaluation, in the order of the set."""
    members = np.arange(len(points)) if points.group is None else np.unique(points.group, return_inverse=True)[1]
    groups = int(members.max()) + 1
    if len(points) < 8 or groups < 2:
        size_text = f"{len(points)} examples" if groups == len(points) else f"{len(points)} examples in {groups} groups"
        raise DataError(
            f"domain {points.name} ({points.reference}) holds {size_text}; expected at least 8 examples, and 2 groups "
            "where examples have groups: statistics are taken from half of it, and the other half is evaluated."
        )
    order = counter_rng.batch_indices(seed, _SPLIT, population=groups, batch_size=groups, purpose=counter_rng.SUBSET)
    reached = np.cumsum(np.bincount(members)[order])
    groups_taken = min(int(np.searchsorted(reached, len(points) / 2)) + 1, groups - 1)
    first = np.isin(members, order[:groups_taken])
    if first.sum() < 4:
        raise DataError(
            f"domain {points.name} ({points.reference}): its groups leave {int(first.sum())} examples for statistics; "
            "expected at least 4."
        )
    return points.subset(np.flatnonzero(first)), points.subset(np.flatnonzero(~first))


def _batch_size(requested: int, halves: Mapping[str, Points], train: Points) -> tuple[int, tuple[Finding, ...]]:
    """The mini-batch size of all statistics: a tenth of the smallest set that they are drawn from at most, so that
    drawing without replacement affects the noise of all sets alike; 8, or half of a set, if that is less than 8."""
    sets = {**halves, TRAIN: train}
    smallest = min(sets, key=lambda name: len(sets[name]))
    least = len(sets[smallest])
    size = min(requested, max(least // POINTS_PER_BATCH_POINT, min(MIN_BATCH_SIZE, least // 2)))
    if size == requested and size * POINTS_PER_BATCH_POINT <= least:
        return size, ()
    factor = float(metrics.finite_population_factor(size, population=least))
    return size, (
        note(
            "domain-batch-size",
            batch_size=size,
            requested=requested,
            smallest=smallest,
            points=least,
            variance_left=factor,
        ),
    )


# ── statistics ───────────────────────────────────────────────────────────────────────────────────────────────────────


@frozen
class _PointSource:
    """The points that mini-batches are drawn from: one set, or equal shares of several."""

    name: str
    parts: tuple[Points, ...]

    def drawn(self, pipeline: Pipeline, draw: int, batch_size: int, purposes: tuple[int, int]) -> Tensor:
        """Mini-batch number `draw`; several sets take turns in contributing one more point."""
        batches, augment = purposes
        shares = [
            (batch_size + (number + draw) % len(self.parts)) // len(self.parts) for number in range(len(self.parts))
        ]
        seed, first, raw = pipeline.settings.seed, 0, []
        for part, share in zip(self.parts, shares, strict=True):
            if share:
                rows = counter_rng.batch_indices(seed, draw, population=len(part), batch_size=share, purpose=batches)
                raw.append(pipeline.pixels(part, rows, draw=draw, purpose=augment, first=first))
                first += share
        return pipeline.augmented(np.concatenate(raw), draw=draw, purpose=augment)


@frozen
class _Statistics:
    """Draws of MCBN from one source of `size` points, for the sampled layers (`omega`) and for all layers (`draws`),
    and the population statistics over `points` points."""

    omega: BatchStatistics
    draws: BatchStatistics
    population: BatchStatistics
    size: int
    points: int


def _statistics(
    source: _PointSource,
    model: nn.Module,
    layers: Sequence[BatchNormSite],
    sampled: Sequence[BatchNormSite],
    pipeline: Pipeline,
    batch_size: int,
    samples: int,
    progress: Progress,
) -> _Statistics:
    seed, size = pipeline.settings.seed, sum(map(len, source.parts))
    first, *further_sets = source.parts
    if further_sets:
        purposes, points = (counter_rng.POPULATION, counter_rng.POPULATION_AUGMENT), MIXED_BATCHES * batch_size
        population_batches: list[Callable[[], Tensor]] = [
            lambda t=t: source.drawn(pipeline, t, batch_size, purposes) for t in range(MIXED_BATCHES)
        ]
    else:
        points = min(len(first), POPULATION_POINTS)
        chosen = counter_rng.batch_indices(
            seed, 0, population=len(first), batch_size=points, purpose=counter_rng.POPULATION
        )
        parts = np.array_split(chosen, max(1, round(points / batch_size)))
        population_batches = [
            lambda t=t, rows=rows: pipeline.trained(first, rows, draw=t, purpose=counter_rng.POPULATION_AUGMENT)
            for t, rows in enumerate(parts)
        ]
    purposes = counter_rng.DOMAIN, counter_rng.DOMAIN_AUGMENT
    drawn = [lambda t=t: source.drawn(pipeline, t, batch_size, purposes) for t in range(max(samples, _MIN_DRAWS))]
    samples_some = len(sampled) < len(layers)  # the remaining layers then use their running statistics
    requests = [(population_batches, layers), (drawn, layers), *([(drawn[:samples], sampled)] if samples_some else [])]
    with progress(f"Statistics of {source.name}", sum(len(batches) for batches, _ in requests)) as advance:
        try:
            population, all_layers, *sampled_layers = (
                statistics_of(
                    model,
                    pipeline.made(batches, *source.parts),
                    layers=sites,
                    on_draw=lambda: advance(1),
                    memory_limit=memory.available(pipeline.device),
                )
                for batches, sites in requests
            )
        except SamplingError as error:
            raise SamplingError(f"{source.name}: {error}") from error
    omega = sampled_layers[0] if sampled_layers else all_layers[:samples]
    return _Statistics(omega, all_layers, population.pooled(), size, points)


def _domain(
    name: str, points: Points, labelled: bool, domain: _Statistics, reference: _Statistics, batch_size: int
) -> Domain:
    rows = []
    for layer, reference_layer, domain_draws, reference_draws in zip(
        domain.population.layers, reference.population.layers, domain.draws.layers, reference.draws.layers, strict=True
    ):
        (mean, var), (m, v) = (
            (statistics.mean[0].astype(np.float64), statistics.var[0].astype(np.float64))
            for statistics in (layer, reference_layer)
        )
        alive = (var >= 10 * layer.eps) | (v >= 10 * layer.eps)
        domain_noise, reference_noise = (
            _noise(draws, statistics, batch_size)
            for draws, statistics in ((domain_draws, domain), (reference_draws, reference))
        )
        unit = np.sqrt(v + layer.eps)
        difference = np.stack([mean - m, np.log(var + layer.eps) - np.log(v + layer.eps)])
        shift, log_ratio = difference[0] / unit, difference[1]
        noise = np.sqrt(domain_noise + reference_noise)
        usable = alive & (noise > 1e-6 * np.stack([unit, np.ones_like(v)]))  # less is rounding
        freedom = 2 * (len(domain_draws.mean) - 1)
        z = [_rms(a[u] / n[u]) for a, n, u in zip(difference, noise, usable, strict=True) if u.any()]
        rows.append(
            (
                _rms(shift[alive]),
                float(np.mean(np.abs(log_ratio[alive]))) if alive.any() else math.nan,
                max(z, default=math.nan) / math.sqrt(freedom / (freedom - 2)),
            )
        )
    shifts, log_ratios, ratios = map(np.array, zip(*rows, strict=True))
    return Domain(
        name=name,
        reference=points.reference,
        n=len(points),
        labelled=labelled,
        layers=tuple(layer.name for layer in domain.population.layers),
        shift=shifts,
        log_ratio=log_ratios,
        ratio=ratios,
    )


def _noise(draws: LayerStatistics, statistics: _Statistics, batch_size: int) -> Float[np.ndarray, "quantity channel"]:
    """The sampling variance of a population's mean and log variance: that of a batch, divided by the number of
    batches."""
    factor = float(metrics.finite_population_factor(batch_size, population=statistics.size))
    logs = np.log(draws.var.astype(np.float64) + draws.eps)
    spread = np.stack([draws.mean.var(0, ddof=1, dtype=np.float64), logs.var(0, ddof=1)])
    return spread / factor * batch_size / statistics.points


def _rms(values: np.ndarray) -> float:
    return float(np.sqrt(np.mean(values**2))) if values.size else math.nan


# ── crossing ─────────────────────────────────────────────────────────────────────────────────────────────────────────


_Score = tuple[float, np.ndarray, tuple[float, float]]  # an estimate, what points contribute to it, and its limits


@frozen
class _Scorer:
    """Scores outputs of a classification, or of a regression with the scale of its targets."""

    outputs: int
    scorer: TaskScorer

    def labelled(self, name: str, points: Points) -> Points:
        """The points, whose labels, if they have any, are checked."""
        if points.targets is None:
            return points
        try:
            return self.scorer.checked(points)
        except DataError as error:
            raise DataError(f"domain {name}: {error}") from error

    def fixed(self, outputs: Tensor, points: Points) -> dict[str, _Score]:
        """The scores from the outputs (n, K) of a deterministic forward of labelled points."""
        assert points.targets is not None
        if not self.scorer.task.is_regression:
            logits = outputs.cpu().double()
            y = torch.from_numpy(np.ascontiguousarray(points.targets))
            values = {
                "accuracy": as_numpy((logits.argmax(-1) == y).double()),
                "pll": as_numpy(metrics.log_likelihood(logits, y)),
            }
            limits = {"accuracy": (0.0, 1.0), "pll": (-math.inf, 0.0)}
            return {name: (float(np.mean(of)), of, limits[name]) for name, of in values.items()}
        reduction = self.scorer.reduction(ScoredSet(points, replicate_weights(1)))
        reduction.add(outputs[None])
        mean = RegressionScores.among(reduction.scores()).mean
        squared = np.mean((mean - points.targets) ** 2, axis=1)
        rmse = math.sqrt(float(np.mean(squared)))
        return {"rmse": (rmse, metrics.rmse_influence(squared), (0.0, math.inf))}

    def spread(self, samples: Tensor, points: Points) -> dict[str, Estimate]:
        """The spread of the samples (T, n, K) of MCBN."""
        draws = replicate_weights(len(samples))
        reduction = self.scorer.reduction(ScoredSet(points, draws))
        reduction.add(samples)
        scores = reduction.scores(group=points.group)
        name = self.scorer.task.spread
        se = error_over_points(metrics.standard_error(scores.points[name], group=points.group), scores)
        return {name: of_replicates(name, scores.replicates[name], draws, se=se, limits=(0.0, math.inf))}


def _estimate(
    name: str, value: float, contributions: np.ndarray, limits: tuple[float, float], points: Points
) -> Estimate:
    error = metrics.standard_error(contributions, group=points.group)
    se = error if math.isfinite(error) else None
    low, high = interval(name, value, se, None, limits=limits)
    return Estimate(value=value, se=se, low=low, high=high)


def _scorer(
    settings: ScoreSettings, model: nn.Module, pipeline: Pipeline, train: Points, sets: Sequence[Points]
) -> _Scorer:
    """The scorer of the run's task, which is inferred from outputs and labels if it is not set."""
    output = Evaluation(model).passes(pipeline.evaluated(train, slice(0, 3)))[0]
    if output.ndim != 2:
        raise DataError(
            f"the network returns shape {tuple(output.shape)} for {len(output)} examples; expected a "
            "classification or a regression, with outputs (examples, classes) or (examples, outputs)."
        )
    outputs = output.shape[1]
    labelled = next((points for points in (*sets, train) if points.targets is not None), None)
    task = task_of(settings, outputs, labelled)
    check_outputs(model, lambda rows: pipeline.evaluated(train, rows), train, task)
    network = ScoredNetwork(settings, outputs, sets[0] if sets else train, train)
    return _Scorer(outputs, SCORERS[task].of(network))


@frozen
class _Crossing:
    """Evaluates points under the statistics of every source."""

    auto_limit: int | None  # of samples
    model: nn.Module
    sites: Sites
    pipeline: Pipeline
    scorer: _Scorer
    statistics: Mapping[str, _Statistics]
    samples: int
    progress: Progress

    def of(self, name: str, points: Points) -> Iterator[Crossing]:
        """One crossing for each source of statistics under which these points have scores."""
        spread_points = limited(points, SPREAD_POINTS, self.pipeline.settings.seed)
        names = list(self.statistics)
        passes = (len(names) + 1) * len(points) + len(names) * self.samples * len(spread_points)
        with self.progress(f"{name} under each of the statistics", passes) as advance:
            scores: dict[str, dict[str, _Score]] = {source_name: {} for source_name in (RUNNING, *names)}
            if points.targets is not None:
                for source_name, outputs in self._fixed(points, advance):
                    scores[source_name] = self._scored(name, source_name, outputs, points)
            omega = reduce(BatchStatistics.joined, (statistics.omega for statistics in self.statistics.values()))
            samples = self._outputs(self._engine(omega), spread_points, advance).split(self.samples)
            spread = {
                source_name: self.scorer.spread(of_source, spread_points)
                for source_name, of_source in zip(names, samples, strict=True)
            }
        for source_name, of_source in scores.items():
            estimates = {metric: _estimate(metric, *score, points) for metric, score in of_source.items()}
            gains = {
                metric: _estimate(metric, value - before[0], contributions - before[1], (-math.inf, math.inf), points)
                for metric, (value, contributions, _) in of_source.items()
                if source_name == name and (before := scores[RUNNING].get(metric))
            }
            if estimates := estimates | spread.get(source_name, {}):
                yield Crossing(domain=name, statistics=source_name, estimates=estimates, gains=gains)

    def _fixed(self, points: Points, advance: Advance) -> Iterator[tuple[str, Tensor]]:
        """The outputs (n, K) under running statistics where the network has them, and under population statistics."""
        if all(site.tracked for site in self.sites.live_batchnorms):
            yield RUNNING, self._outputs(Evaluation(self.model), points, advance)[0]
        omega = reduce(BatchStatistics.joined, (statistics.population for statistics in self.statistics.values()))
        yield from zip(self.statistics, self._outputs(self._engine(omega), points, advance), strict=True)

    def _scored(self, name: str, statistics: str, outputs: Tensor, points: Points) -> dict[str, _Score]:
        if not bool(torch.isfinite(outputs).all()):
            raise SamplingError(
                f"{name}: the network's outputs under the statistics of {statistics} are not finite (NaN or inf)."
            )
        return self.scorer.fixed(outputs, points)

    def _engine(self, omega: BatchStatistics) -> Stochastic:
        requested = self.pipeline.arithmetic
        arithmetic = requested.exact if requested.by_default else requested  # few passes, of few statistics
        return Stochastic(self.model, self.sites, omega=omega, arithmetic=arithmetic, task=self.scorer.scorer.task)

    def _outputs(self, engine: Engine, points: Points, advance: Advance) -> Tensor:
        """Raw outputs (T, n, K) on the CPU."""
        passes, blocks = ChunkedPasses(self.pipeline, self.scorer.outputs, auto_limit=self.auto_limit), []
        passes.prepare([engine], points)
        with passes.feeding(points) as feed:
            for block in passes.blocks(engine, points, range(len(points)), feed):
                blocks.append(block.cpu())
                advance(block.shape[0] * block.shape[1])
        return torch.cat(blocks, dim=1)
