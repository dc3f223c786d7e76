"""Runs every method over every set, unit by unit, and merges their scores; with "auto", draws are doubled until they
suffice."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool
from torch import Tensor

from bnuq import devices
from bnuq.config import (
    AUGMENTED,
    DETERMINISTIC,
    ENSEMBLE,
    LAPLACE,
    POPULATION,
    PREDICTIONS,
    SINGLE_SAMPLE_METHODS,
    Recalibration,
    Run,
    draws_by,
    without_recalibration,
)
from bnuq.data import Points
from bnuq.errors import RequestError, ResultError, SamplingError
from bnuq.evaluation import memory, perturbations, recalibration, regression
from bnuq.evaluation.anomalies import with_segments
from bnuq.evaluation.augmentation import Augmented, augmenting
from bnuq.evaluation.class_probabilities import are_kept
from bnuq.evaluation.draws import next_stop
from bnuq.evaluation.estimates import replicate_weights
from bnuq.evaluation.executors import Executor, UnitsLostError
from bnuq.evaluation.image_maps import chosen_images, image_maps
from bnuq.evaluation.measured import Measured, Omegas
from bnuq.evaluation.passes import Feed, Passes, stochastic_of
from bnuq.evaluation.pixels import bytes_of_maps
from bnuq.evaluation.plan import Plan
from bnuq.evaluation.posthoc import OfSets, post_hoc_scores
from bnuq.evaluation.predictions import Predicted, subject_of_predictions
from bnuq.evaluation.recalibration import Recalibrated
from bnuq.evaluation.subject import VALIDATION, Scorer, Subject, is_mcbn, kind_of_draws
from bnuq.evaluation.units import Gathered, Unit, UnitGroup, tiles
from bnuq.files.journal import SECONDS, Arrays, Journal
from bnuq.findings import Finding, note, warning
from bnuq.metrics import DrawWeights, LogitMaps
from bnuq.progress import Advance, Progress
from bnuq.records.evaluation import ImageMaps, MethodResult, MethodWork, Samples
from bnuq.sampling import bank_tiles, counter_rng
from bnuq.sampling.bank_tiles import BankEngine
from bnuq.sampling.batch_statistics import BatchStatistics
from bnuq.sampling.dropout import Dropout
from bnuq.sampling.engine import Stochastic, default_chunk
from bnuq.sampling.gradients import Differentiable
from bnuq.sampling.laplace import LastLayer, Posterior
from bnuq.sampling.noise import Learned
from bnuq.sampling.plain_loop import BySet, Engine, Ensemble, Evaluation

_MAP = "map/"  # before the names of maps of pixels
_MAPS_AT_ONCE = 2**24  # bytes of a unit's maps
_OUTPUTS = "outputs"  # raw samples of a unit, where they are needed again


@dataclass(frozen=True)
class Scored:
    """The scores of one method on every set, and what was fitted to validation points, in the task's own records; and
    the maps by which its logits are `recalibrated`, where they are."""

    sets: Mapping[str, Any]
    fitted: Any
    recalibrated: Recalibrated | None = None


@dataclass(frozen=True)
class Fits:
    """What was fitted to the samples of one method: by the scorer, recalibrations, and by the scorer to the samples
    with each of these."""

    plain: Any = None
    recalibrated: Mapping[Recalibration, Recalibrated] = field(default_factory=dict)
    with_each: Mapping[Recalibration, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class RunnerResult:
    """The outcome of all passes: T, the size of the bank where there is one, ω, and each method's result and work, in
    the order of the report."""

    samples: int
    bank: int | None
    omega: BatchStatistics | None
    methods: dict[str, MethodResult]
    work: dict[str, MethodWork]
    findings: tuple[Finding, ...]
    image_maps: ImageMaps | None = None


def check_precision(run: Run, device: torch.device) -> None:
    """Raise RequestError for a precision that this device does not have."""
    if run.precision == "tf32" and not devices.traits(device).tf32:
        raise RequestError(
            f"--precision tf32 is an arithmetic of CUDA devices, and this is {device}; use float32 or bfloat16."
        )


def run_methods(
    subject: Subject,
    measured: Measured,
    progress: Progress,
    executor: Executor,
    *,
    post_hoc: OfSets | None = None,
    shown: Sequence[int] = (),
) -> RunnerResult:
    """Every method on every set, first on "validation" where there is one, because τ and the constant baseline are
    fitted to it.

    Where the running statistics are stale, the network is also evaluated with the population statistics of the drawn
    mini-batches, to separate the effect of repairing them from the uncertainty that MCBN adds. The `executor` says
    which units are computed, and keeps them; its journal also keeps the raw samples where they are saved or will be
    needed again. Scores that are `post_hoc` are computed where they are not given; of a segmentation, the images of the
    rows `shown` are among those with pictures.
    """
    run, scorer = subject.run, subject.scorer
    passed = compute_units(subject, measured, progress, executor)
    rounds, scored, samples = passed.rounds, passed.scored, passed.samples
    post_hoc = post_hoc or post_hoc_scores(subject, progress)
    deterministic = scored[DETERMINISTIC]
    scored |= {DETERMINISTIC: replace(deterministic, sets=post_hoc.added_to(deterministic.sets))}
    findings = [*rounds.passes.findings, *post_hoc.findings]
    findings += [*_not_reached(subject, scored, samples)] if run.samples == "auto" else []
    for method, method_scores in scored.items():
        findings += scorer.findings(method, method_scores.fitted)
    findings += perturbations.findings(run, rounds.attacks)
    findings += recalibration.findings({name: each.recalibrated for name, each in scored.items() if each.recalibrated})
    results = {
        method: scorer.result(
            method_scores.sets,
            method_scores.fitted,
            _weights(subject, method, subject.samples_of(method, samples)),
            rounds.raw_samples(method),
        )
        for method, method_scores in scored.items()
    }
    if subject.todo.image:
        results = {name: rounds.with_segments(name, result, scored[name].sets) for name, result in results.items()}
    if run.save_maps:
        results = {method: rounds.with_maps(method, result) for method, result in results.items()}
    work = rounds.work()
    maps = rounds.image_maps(results, scored, samples, shown) if subject.todo.image and run.images else None
    return RunnerResult(samples, subject.bank, passed.omega, results, work, tuple(findings), maps)


@dataclass(frozen=True)
class Passed:
    """What all passes gave: their rounds, T, ω, and the scores of each method in the order of the report; of an
    executor that makes no result only those that other units depend on."""

    rounds: _Rounds
    samples: int
    omega: BatchStatistics | None
    scored: dict[str, Scored]


def compute_units(subject: Subject, measured: Measured, progress: Progress, executor: Executor) -> Passed:
    """The units of `run_methods`, as its executor says."""
    run, methods, scorer, bank = subject.run, subject.todo.methods, subject.scorer, subject.bank
    rounds = _Rounds(subject, progress, executor, measured)
    omega: BatchStatistics | None = None
    draws = range(0)
    scored: dict[str, Scored] = {}
    drawn = [method for method in methods if method != ENSEMBLE]
    while drawn or not scored:
        draws = range(draws.stop, next_stop(run, draws.stop))
        fresh = measured.omegas(draws if bank is None else range(bank))
        omega = _joined(omega, fresh.get("mcbn"))
        scored = rounds.run(draws, fresh)
        if not drawn or run.samples != "auto" or draws.stop >= run.max_samples:
            break
        if all(
            error <= 1
            for method_scores in scored.values()
            for error in _errors(run, scorer, method_scores, draws.stop).values()
        ):
            break
    deterministic = rounds.deterministic(omega)
    ensemble = rounds.ensemble() if ENSEMBLE in methods else {}
    population = rounds.population(omega) if measured.stale and omega is not None else {}
    return Passed(rounds, draws.stop, omega, deterministic | population | scored | ensemble)


def _joined(omega: BatchStatistics | None, fresh: BatchStatistics | None) -> BatchStatistics | None:
    return fresh if omega is None or fresh is None else omega.joined(fresh)


def _weights(subject: Subject, method: str, samples: int) -> DrawWeights:
    """The replicates of a method; dropout masks already differ from point to point and need no bank."""
    return subject.scorer.weights(samples, subject.bank if is_mcbn(method) else None)


def _errors(run: Run, scorer: Scorer, scored: Scored, samples: int) -> dict[str, float]:
    """Monte Carlo errors of a method's headline estimates, in units of the requested error."""
    errors = scorer.headline_errors(scored.sets, replicate_weights(samples))
    relative = "MI on", "variance on"
    return {name: error / (run.mc_error / (1 if name.startswith(relative) else 10)) for name, error in errors.items()}


def _not_reached(subject: Subject, scored: Mapping[str, Scored], samples: int) -> Iterator[Finding]:
    for method, method_scores in scored.items():
        if method in SINGLE_SAMPLE_METHODS or without_recalibration(method) == ENSEMBLE:
            continue
        errors = _errors(subject.run, subject.scorer, method_scores, samples)
        name, error = max(errors.items(), key=lambda item: item[1])
        if error > 1:
            yield warning("mc-error-not-reached", method=method, samples=samples, estimate=name, ratio=float(error))


@dataclass
class _MethodWork:
    """The work of one method so far, and its latest engine."""

    engine: Engine
    seconds: float = 0.0
    passes: int = 0


@dataclass(frozen=True)
class Context:
    """What the units of one method and set share: the request, and what this process has made for it. A unit is
    determined by the request, what was fitted, and its address; another executor makes an engine and a feed of its
    own."""

    subject: Subject
    journal: Journal
    points: Points
    engine: Engine
    passes: Passes
    feed: Feed
    weights: DrawWeights
    fits: Fits
    second: Bool[np.ndarray, " point"] | None  # of a cross-fit, the points in the second half
    earlier: Sequence[range] | None  # draws whose raw samples are scored again with a unit's; None: none are kept
    maps: Mapping[Recalibration, LogitMaps] = field(default_factory=dict)  # by each of which units are scored once more

    def reduction(self, name: str, first: int = 0, kind: Recalibration | None = None) -> Any:
        """The reduction for the points of a set, from number `first` on, with a kind of recalibration."""
        fitted = self.fits.plain if kind is None else self.fits.with_each.get(kind)
        maps = None if kind is None else self.maps[kind]
        return _reduction(self.subject, self.weights, name, fitted, maps, self.second, first)


def _reduction(
    subject: Subject,
    weights: DrawWeights,
    name: str,
    fitted: Any,
    maps: LogitMaps | None,
    second: Bool[np.ndarray, " point"] | None,
    first: int = 0,
) -> Any:
    reduction = subject.scorer.reduction(
        weights,
        subject.sets[name],
        fitted=fitted,
        labelled=name in subject.labelled,
        first=first,
        maps=maps,
        by_class=name in ("test", subject.fitted_to),
        calibrates=name == subject.fitted_to,
        second=second,
    )
    if _saves_maps(subject, name):
        reduction.saves_maps = True
    return reduction


def _saves_maps(subject: Subject, name: str) -> bool:
    """Whether the maps of the images of a set are kept: for the result, or to find the segments of anomalies."""
    has_anomalies = name in subject.ood and subject.todo.image is not None and subject.sets[name].masks is not None
    return has_anomalies or (subject.run.save_maps and name != VALIDATION)


def run_unit(context: Context, unit: Unit) -> Arrays:
    """The scores of a unit, its seconds, and its raw samples where they are needed again."""
    engine, before = context.engine, context.passes.seconds
    first = unit.points.start
    reduction = context.reduction(unit.set, first)
    recalibrated = {kind: context.reduction(unit.set, first, kind) for kind in context.maps}
    blocks = _blocks(context.subject, context.passes, engine, context.points, unit.points, context.feed)
    raw: Arrays = {}
    if context.earlier is not None:
        outputs = list(blocks)
        raw[_OUTPUTS] = np.concatenate([block.cpu().numpy() for block in outputs], axis=1)
        if earlier := [_raw(context.journal, replace(unit, draws=draws)) for draws in context.earlier]:
            samples = torch.from_numpy(np.concatenate([*earlier, raw[_OUTPUTS]])).to(outputs[0].device)
            outputs = samples.split([block.shape[1] for block in outputs], dim=1)
        blocks = iter(outputs)
    for block in blocks:
        for each in (reduction, *recalibrated.values()):
            _add(each, block, first, engine)
        first += block.shape[1]
    more = {f"{kind}:{name}": v for kind, each in recalibrated.items() for name, v in each.arrays().items()}
    return reduction.arrays() | raw | {SECONDS: np.array(context.passes.seconds - before)} | more


def _blocks(
    subject: Subject, passes: Passes, engine: Engine, points: Points, rows: range, feed: Feed
) -> Iterator[Tensor]:
    """The outputs for these rows of a set: (T, chunk, K) each, or those of a segmentation for some draws."""
    if (image := subject.todo.image) is None:
        return passes.blocks(engine, points, rows, feed)
    return passes.dense_blocks(engine, points, rows, feed, subject.todo.outputs * math.prod(image))


def _of_set(engine: Engine, sets: Mapping[str, Points], name: str) -> Engine:
    return engine.of(name, sets[name]) if isinstance(engine, BySet) else engine


def _add(reduction: Any, block: Tensor, first: int, engine: Engine) -> None:
    """Add a block of samples to a reduction: of the points of a set from number `first` on."""
    bank = engine.engine if isinstance(engine, Augmented) else engine
    if isinstance(bank, BankEngine):
        for rows in bank_tiles.tiles(first, first + block.shape[1]):
            reduction.add(block[:, rows.start - first : rows.stop - first], bank.draws(rows))
    else:
        reduction.add(block)


def engine_of(
    subject: Subject, method: str, draws: range, omegas: Omegas, posterior: Posterior | None = None
) -> Engine:
    """The engine of these draws of a method."""
    seed = subject.run.seed
    if method == PREDICTIONS:
        return Predicted(subject, len(draws), draws)
    if method == ENSEMBLE:
        return Ensemble([subject.model, *subject.members])
    if method == LAPLACE:
        assert posterior is not None
        to = {"device": subject.pipeline.device, "dtype": subject.pipeline.dtype}
        return LastLayer(subject.model, posterior, draws=draws, seed=seed, **to)
    bank = subject.bank if is_mcbn(method) else None
    # a draw of the bank includes its mask and its noise
    drawn = (len(draws), seed, draws.start) if bank is None else (bank, seed)
    dropout = Dropout(*drawn) if draws_by(method, "mcdo") else None
    learned = Learned(*drawn) if draws_by(method, "learned") else None
    engine: Evaluation | Stochastic | BankEngine = Evaluation(subject.model)
    if method not in ("tta", DETERMINISTIC):
        omega = omegas[kind_of_draws(method)] if is_mcbn(method) else None
        options = {"omega": omega, "dropout": dropout, "learned": learned, "precision": subject.run.precision}
        engine = Stochastic(subject.model, subject.todo.sites, **options)
        engine = engine if bank is None else BankEngine(engine, samples=len(draws), seed=seed)
    return Augmented(engine, len(draws), draws.start, augmenting(subject)) if method in AUGMENTED else engine


class _Rounds:
    """The rounds of draws of one run: which raw samples are kept, and the work of each method."""

    def __init__(self, subject: Subject, progress: Progress, executor: Executor, measured: Measured) -> None:
        image = subject.todo.image
        outputs = subject.todo.outputs * math.prod(image or ())
        self.passes = Passes(subject.run, subject.pipeline, outputs, dense=image is not None)
        if subject.bank is not None:
            samples = subject.run.samples
            self.passes.add(note("bank-of-draws", tile=counter_rng.TILE, samples=samples, bank=subject.bank))
        self._subject, self._progress, self._executor, self._measured = subject, progress, executor, measured
        self._journal = executor.journal
        self._draws: list[range] = []  # of each round
        self._units: dict[tuple[str, str], list[Unit]] = {}  # of the first round
        self._method_work: dict[str, _MethodWork] = {}
        self._maps: dict[tuple[str, str], StoredMaps] = {}  # by method and set
        self.attacks: dict[str, Differentiable | None] = {}  # what perturbed points of a method are attacked through
        for name in subject.labelled:
            points, classes = len(subject.sets[name]), subject.todo.outputs
            if subject.classifies and name in ("test", subject.fitted_to) and not are_kept(points, classes):
                self.passes.add(note("probabilities-not-kept", set=name, points=points, classes=classes))
        self._second = {}  # of a cross-fit, by the set: which points are in the second half
        if subject.fitted_to == "test":
            self._second = {"test": recalibration.second_half(subject.sets["test"], subject.run.seed)}

    def run(self, draws: range, omegas: Omegas) -> dict[str, Scored]:
        """Run further draws of every stochastic method, and return the scores of all draws so far."""
        methods = [method for method in self._subject.todo.methods if method != ENSEMBLE]
        if not methods:
            return {}
        self._draws.append(draws)
        posterior = self._measured.posterior[0] if LAPLACE in methods else None
        return self._run_engines(
            {name: engine_of(self._subject, name, draws, omegas, posterior) for name in methods}, draws
        )

    def _stochastic(self, omega: BatchStatistics | None, **options: Any) -> Stochastic:
        return Stochastic(self._subject.model, self._subject.todo.sites, omega=omega, **options)

    def _of(self, method: str) -> Subject:
        """The subject of this method, with its scorer."""
        return subject_of_predictions(self._subject) if method == PREDICTIONS else self._subject

    def _points(self, method: str, name: str) -> Points:
        """The points of a set under a method, through whose first draws they are attacked."""
        points, subject = self._subject.sets[name], self._subject
        if name not in subject.perturbed:
            return points
        if method not in self.attacks:
            example = subject.pipeline.evaluated(subject.sets["test"], slice(0, 2))
            self.attacks[method] = perturbations.attack_of(self._method_work[method].engine, example)
        return perturbations.attacked(points, self.attacks[method])

    def deterministic(self, omega: BatchStatistics | None) -> dict[str, Scored]:
        """The deterministic network; where it keeps no running statistics, with the statistics of all draws pooled."""
        untracked = {site.name for site in self._subject.todo.sites.live_batchnorms if not site.tracked}
        if not untracked:
            return self._run_engines({DETERMINISTIC: Evaluation(self._subject.model)}, range(1))
        assert omega is not None  # the plan ensures that omega holds these layers
        drawn = replace(omega, layers=tuple(layer for layer in omega.layers if layer.name in untracked))
        return self._run_engines({DETERMINISTIC: self._stochastic(drawn.pooled())}, range(1), range(omega.samples))

    def population(self, omega: BatchStatistics) -> dict[str, Scored]:
        """The network with the pooled statistics of all draws in place of its running statistics."""
        return self._run_engines({POPULATION: self._stochastic(omega.pooled())}, range(1), range(omega.samples))

    def ensemble(self) -> dict[str, Scored]:
        """The deterministic networks of the ensemble."""
        engine = engine_of(self._subject, ENSEMBLE, range(1 + len(self._subject.members)), {})
        return self._run_engines({ENSEMBLE: engine}, range(engine.samples))

    def image_maps(
        self, results: Mapping[str, MethodResult], scored: Mapping[str, Scored], samples: int, shown: Sequence[int]
    ) -> ImageMaps | None:
        """The maps of a few images of a segmentation, and of those of the rows `shown`, by the first sampled method,
        whose draws pass these again."""
        subject, name = self._subject, "test"
        method = next((method for method in results if method not in SINGLE_SAMPLE_METHODS), DETERMINISTIC)
        engine, points = _of_set(self._method_work[method].engine, subject.sets, name), subject.sets[name]
        weights = _weights(subject, method, subject.samples_of(method, samples))
        rows = chosen_images(results[method].sets[name].points)
        rows = np.array([*dict.fromkeys([*rows.tolist(), *shown])])

        def maps() -> Iterator[dict[str, np.ndarray]]:
            with self.passes.feeding(points, engine) as feed:
                for row in map(int, rows):
                    reduction = _reduction(subject, weights, name, scored[method].fitted, None, None, row)
                    reduction.maps, reduction.saves_maps = [], False
                    for block in _blocks(subject, self.passes, engine, points, range(row, row + 1), feed):
                        reduction.add(block)
                    yield from reduction.maps

        return image_maps(method, points, rows, maps(), subject.run.ignore)

    def raw_samples(self, method: str) -> dict[str, Samples]:
        """The raw samples of each set, where they are saved."""
        if not self._subject.run.save_samples or method in SINGLE_SAMPLE_METHODS:
            return {}
        return {
            name: StoredSamples.of(self._journal, units, self._rounds(method))
            for (of_method, name), units in self._units.items()
            if of_method == method
        }

    def with_segments(self, method: str, result: MethodResult, scores: Mapping[str, Any]) -> MethodResult:
        """The result with estimates of the segments of anomalies, of OOD sets whose masks say where they are."""
        for name, points in self._subject.ood.items():
            if points.masks is not None:
                result = with_segments(result, name, scores[name], self._maps[method, name], points.masks)
        return result

    def with_maps(self, method: str, result: MethodResult) -> MethodResult:
        """The result with the maps of each set, in the journal until they are in a file."""
        sets = {name: replace(each, maps=self._maps[method, name]) for name, each in result.sets.items()}
        return replace(result, sets=sets)

    def _rounds(self, method: str) -> list[range]:
        """The draws of each round of a method of several samples."""
        return [range(1 + len(self._subject.members))] if method == ENSEMBLE else self._draws

    def _matters(self, name: str) -> bool:
        """Whether anything depends on the scores of a set: the result, what is fitted to it, or the number of draws."""
        subject = self._subject
        is_fitted_to = name in (VALIDATION, subject.fitted_to)
        return self._executor.makes_result or is_fitted_to or subject.run.samples == "auto"

    def work(self) -> dict[str, MethodWork]:
        """The work of each method, relative to the same number of passes of the deterministic network."""
        deterministic_work = self._method_work[DETERMINISTIC]
        order = [DETERMINISTIC, *(m for m in self._method_work if m not in (DETERMINISTIC, PREDICTIONS))]
        chunk = default_chunk(self._subject.sets["test"].point_shape, self._subject.pipeline.device)
        return {method: _work(self._method_work[method], deterministic_work, chunk) for method in order}

    def _run_engines(
        self, engines: Mapping[str, Engine], draws: range, pooled: range | None = None
    ) -> dict[str, Scored]:
        """The scores of all draws so far; `pooled` are the draws whose pooled statistics a single pass uses."""
        sets = self._subject.sets
        need = self.passes.prepare(engines.values(), sets["test"])
        points = sum(map(len, sets.values()))
        samples = f"{draws.stop} samples" if draws.stop > 1 else "deterministic"
        samples = f"{draws.stop} networks" if ENSEMBLE in engines else samples
        title = f"Evaluating {points} points, {samples}, about {memory.in_words(need)}"
        result: dict[str, Scored] = {}
        with self._progress(title, points * sum(engine.samples for engine in engines.values())) as advance:
            for method, engine in engines.items():
                self._method_work.setdefault(method, _MethodWork(engine)).engine = engine
                if not devices.is_host(self._subject.pipeline.device):
                    self.passes.warm_up(_of_set(engine, sets, next(iter(sets))), next(iter(sets.values())))
                if not self._executor.wants(method):
                    continue
                with nullcontext() if self._executor.makes_result else suppress(UnitsLostError):
                    result |= self._scored(method, engine, draws, pooled or draws, advance)
                if draws.start == 0:
                    self.passes.note_arithmetic(method, engine)
        return result

    def _scored(self, method: str, engine: Engine, draws: range, address: range, advance: Advance) -> dict[str, Scored]:
        """The scores of the method, and where recalibrations are fitted those of the method with each."""
        subject, samples = self._of(method), self._subject.samples_of(method, draws.stop)
        weights = _weights(self._subject, method, samples)

        def scores(name: str, fits: Fits) -> tuple[Any, dict[Recalibration, Any]]:
            return self._scores(method, engine, name, weights, address, advance, fits)

        def scored_again(name: str, fits: Fits) -> dict[Recalibration, Any]:
            kinds = fits.recalibrated
            return {kind: self._scored_again(method, engine, name, kind, weights, address, fits) for kind in kinds}

        validation = scores(VALIDATION, Fits())[0] if VALIDATION in subject.sets else None
        fits = Fits(subject.scorer.fitted(validation, weights))
        if validation is not None and subject.fitted_to == VALIDATION:
            fits = replace(fits, recalibrated=self._fits(method, address, VALIDATION, validation))
            again = {} if subject.todo.image else scored_again(VALIDATION, fits)
            fits = replace(fits, with_each={kind: subject.scorer.fitted(each, weights) for kind, each in again.items()})
        plain, recalibrated = dict[str, Any](), dict[str, dict[Recalibration, Any]]()
        for name in subject.sets:
            if name != VALIDATION:
                plain[name], recalibrated[name] = scores(name, fits)
            if name == subject.fitted_to == "test":
                if subject.todo.task == "regression":
                    fits = Fits(regression.fitted(plain[name], weights, self._second[name]))
                    plain[name] = self._scored_again(method, engine, name, None, weights, address, fits)
                    continue
                found = self._fits(method, address, name, plain[name])
                fits = Fits(fits.plain, found, dict.fromkeys(found, fits.plain))
                recalibrated[name] = scored_again(name, fits)
        with_each = {
            f"{method}+{kind}": Scored({name: by_kind[kind] for name, by_kind in recalibrated.items()}, fitted, fit)
            for kind, fit in fits.recalibrated.items()
            for fitted in [fits.with_each.get(kind)]
        }
        return {method: Scored(plain, fits.plain)} | with_each

    def _fits(self, method: str, draws: range, name: str, scores: Any) -> dict[Recalibration, Recalibrated]:
        """The recalibrations of a method, fitted to the set of this name with these scores."""
        subject, points = self._subject, self._subject.sets[name]
        assert points.targets is not None

        second, device = self._second.get(name), subject.pipeline.device
        if subject.todo.image:
            return {"temperature": recalibration.fitted_to_images(scores.pll_by_temperature, second)}
        stored = self._stored(method, name, draws)

        def blocks() -> Iterator[Tensor]:
            for _, block in stored.blocks():
                samples = torch.from_numpy(block)
                yield samples.to(device) if devices.traits(device).float64 else samples

        return recalibration.fitted(subject.recalibrations, blocks, points.targets, second)

    def _stored(self, method: str, name: str, draws: range) -> StoredSamples:
        """The raw samples of a set under all draws so far; `draws` are those of a single pass."""
        rounds = [draws] if method in SINGLE_SAMPLE_METHODS else self._rounds(method)
        return StoredSamples.of(self._journal, self._units[method, name], rounds)

    def _scored_again(
        self,
        method: str,
        engine: Engine,
        name: str,
        kind: Recalibration | None,
        weights: DrawWeights,
        draws: range,
        fits: Fits,
    ) -> Any:
        """The scores of a labelled set with a kind of recalibration, or with what was fitted to it, from its raw
        samples; of images, whose outputs are too large to be kept, these are computed again."""
        subject, points = self._of(method), self._subject.sets[name]
        maps = None if kind is None else fits.recalibrated[kind].of(name, points)

        def reduction_of(first: int) -> Any:
            fitted = fits.plain if kind is None else fits.with_each.get(kind)
            return _reduction(subject, weights, name, fitted, maps, self._second.get(name), first)

        if not subject.todo.image:
            if not self._matters(name):
                return None
            reduction = reduction_of(0)
            for first, block in self._stored(method, name, draws).blocks():
                _add(reduction, torch.from_numpy(block).to(subject.pipeline.device), first, engine)
            return _recalibrated(reduction, None, maps, points)
        units = [replace(unit, method=f"{method}+{kind}") for unit in self._units[method, name]]
        of_set = _of_set(engine, subject.sets, name)
        with self.passes.feeding(points, engine) as feed:

            def run_group(group: UnitGroup) -> Iterator[Arrays]:
                for unit in group:
                    reduction = reduction_of(unit.points.start)
                    for block in _blocks(subject, self.passes, of_set, points, unit.points, feed):
                        reduction.add(block)
                    yield reduction.arrays()

            if not self._matters(name):
                return self._executor.finish(zip(units), run_group)
            results = self._executor.run(zip(units), run_group, needed=_saves_maps(subject, name))
            self._maps[f"{method}+{kind}", name] = StoredMaps(self._journal, units)
            return _recalibrated(reduction_of(0), Gathered(arrays for (arrays,) in results), maps, points)

    def _scores(
        self,
        method: str,
        engine: Engine,
        name: str,
        weights: DrawWeights,
        draws: range,
        advance: Advance,
        fits: Fits,
    ) -> tuple[Any, dict[Recalibration, Any]]:
        """The scores of one set under all draws so far, and those with each of its recalibrations."""
        points, run, work = self._points(method, name), self._subject.run, self._method_work[method]
        maps: dict[Recalibration, LogitMaps] = {k: fit.of(name, points) for k, fit in fits.recalibrated.items()}
        is_single = method in SINGLE_SAMPLE_METHODS
        again = not is_single and (run.save_samples or run.samples == "auto")
        again = (again or name == self._subject.fitted_to) and not self._subject.todo.image
        size = self.passes.tile(engine, points, keeps_samples=again)
        if keeps_maps := _saves_maps(self._subject, name):
            size = min(size, max(1, _MAPS_AT_ONCE // bytes_of_maps(self._subject.todo)))
        first = self._units.setdefault((method, name), tiles(name, points, size, method=method, draws=draws))
        units = [replace(unit, draws=draws) for unit in first]  # the same tiles in every round
        for of_method, start in ((method, ""), *((f"{method}+{kind}", f"{kind}:") for kind in maps)):
            self._maps[of_method, name] = StoredMaps(self._journal, units, start)
        earlier = (() if is_single else self._rounds(method)[:-1]) if again else None
        recalibrated: dict[Recalibration, Gathered] = {kind: Gathered() for kind in maps}
        with self.passes.feeding(points, engine) as feed:
            of_set = _of_set(engine, {name: points}, name)
            shared = self._of(method), self._journal, points, of_set, self.passes, feed, weights
            context = Context(*shared, fits, self._second.get(name), earlier, maps)

            def run_group(group: UnitGroup) -> Iterator[Arrays]:
                return (run_unit(context, unit) for unit in group)

            if not self._matters(name):
                self._executor.finish(zip(units), run_group)
                return None, dict.fromkeys(maps)

            def arrays() -> Iterator[Arrays]:
                results = self._executor.run(zip(units), run_group, needed=again or keeps_maps)
                for unit, (of_unit,) in zip(units, results, strict=True):
                    work.seconds += float(of_unit[SECONDS])
                    work.passes += engine.samples * len(unit.points)
                    advance(engine.samples * len(unit.points))
                    for kind, gathered in recalibrated.items():
                        gathered.add(_scores_with(kind, of_unit))
                    yield of_unit

            scores = context.reduction(name).scores(Gathered(arrays()), group=points.group)
        if name == "test" and weights.samples > 1 and not scores.samples_differ:
            raise SamplingError(_why_samples_agree(method, self._subject.todo))
        return scores, {
            kind: _recalibrated(context.reduction(name, kind=kind), recalibrated[kind], maps[kind], points)
            for kind in recalibrated
        }


def _scores_with(kind: Recalibration, of_unit: Arrays) -> Arrays:
    """What a unit holds of its scores with a recalibration, without maps, of which there would be too many."""
    start = f"{kind}:"
    kept = {key: each for key, each in of_unit.items() if key.startswith(start) and not key.startswith(start + _MAP)}
    return {key.removeprefix(start): each for key, each in kept.items()}


def _recalibrated(reduction: Any, units: Gathered | None, maps: LogitMaps | None, points: Points) -> Any:
    """The scores of recalibrated units; the temperature of each point is among them, where it has one."""
    scores, temperature = reduction.scores(units, group=points.group), None if maps is None else maps.temperature
    return scores if temperature is None else replace(scores, points=scores.points | {"temperature": temperature})


def _raw(journal: Journal, unit: Unit) -> np.ndarray:
    return _kept(journal, unit, "samples")[_OUTPUTS]


def _kept(journal: Journal, unit: Unit, what: str) -> Arrays:
    arrays = journal.load(unit.name, unit.sha256)
    if arrays is None:
        raise ResultError(
            f"{journal.path(unit.name)}: these {what} were kept there, and can no longer be read. Run it again."
        )
    return arrays


@dataclass(frozen=True)
class StoredSamples:
    """The raw samples of one set in a journal: `units` of the first round of draws, and the draws of all rounds."""

    journal: Journal
    units: tuple[Unit, ...]
    rounds: tuple[range, ...]
    shape: tuple[int, int, int]  # (T, n, K)
    dtype: np.dtype

    @staticmethod
    def of(journal: Journal, units: Sequence[Unit], rounds: Sequence[range]) -> StoredSamples:
        """The samples of these units under the draws of these rounds."""
        first = _raw(journal, units[0])
        shape = rounds[-1].stop, units[-1].points.stop, first.shape[2]
        return StoredSamples(journal, tuple(units), tuple(rounds), shape, first.dtype)

    def blocks(self) -> Iterator[tuple[int, np.ndarray]]:
        """(number of the first point, its block of all draws), in order."""
        for unit in self.units:
            of_rounds = [_raw(self.journal, replace(unit, draws=draws)) for draws in self.rounds]
            yield unit.points.start, np.concatenate(of_rounds)


@dataclass(frozen=True)
class StoredMaps:
    """The maps of one set in a journal, in the arrays of its `units` whose names begin with `start`."""

    journal: Journal
    units: Sequence[Unit]
    start: str = ""

    def __iter__(self) -> Iterator[dict[str, np.ndarray]]:
        """The maps of each image by their names, (H, W) each, in order."""
        for unit in self.units:
            arrays, start = _kept(self.journal, unit, "maps"), self.start + _MAP
            maps = {key.removeprefix(start): each for key, each in arrays.items() if key.startswith(start)}
            yield from ({name: of_unit[at] for name, of_unit in maps.items()} for at in range(len(unit.points)))

    def __len__(self) -> int:
        return self.units[-1].points.stop


def _work(method_work: _MethodWork, deterministic_work: _MethodWork, chunk: int) -> MethodWork:
    engine = method_work.engine
    comparable = (
        engine.samples > 1 and deterministic_work.seconds > 0 and isinstance(deterministic_work.engine, Evaluation)
    ) and not isinstance(engine, Ensemble)  # whose networks may be of other sizes
    work_done = MethodWork(
        seconds=method_work.seconds,
        passes=method_work.passes,
        ratio=(method_work.seconds / method_work.passes) / (deterministic_work.seconds / deterministic_work.passes)
        if comparable
        else None,
    )
    stochastic = stochastic_of(engine)
    if stochastic is None or isinstance(engine, Augmented):  # which shares nothing between samples
        return work_done
    work = stochastic.work(chunk)
    if work is None:
        return replace(work_done, why_plain=stochastic.why_plain)
    stacked = min(work.stacked, engine.samples)
    return replace(work_done, once=work.once, each=work.per_draw, folded=work.folded, stacked=stacked)


def _why_samples_agree(method: str, todo: Plan) -> str:
    """The error for samples that do not differ, which would give a table of zeros."""
    if method == ENSEMBLE:
        why = "all networks give the same outputs."
    elif method == PREDICTIONS:
        why = "all arrays of the file repeat one sample."
    elif method == "tta":
        why = "the augmentation ([tta], or augment under [data]) changes no output."
    elif is_mcbn(method):
        why = (
            f"the outputs are the same for every mini-batch of {todo.batch_size}; is the reference one point "
            "repeated, or does the output not depend on these BatchNorms?"
        )
    elif draws_by(method, "learned"):
        why = f"the noise of its layers changes no output: {', '.join(site.name for site in todo.sites.live_noises)}."
    elif method == LAPLACE:
        why = "the posterior of the last layer is too narrow for any sample to differ."
    else:
        rates = ", ".join(f"{site.name} {site.p:g}" for site in todo.sites.live_dropouts)
        why = f"dropout at these rates changes no output: {rates}."
    return f"the samples of {method} are identical, so there is no uncertainty: {why}"
