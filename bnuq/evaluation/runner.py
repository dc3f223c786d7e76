"""Runs every method over every set, unit by unit, and merges their scores; with "auto", draws are doubled until they
suffice."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor, nn

from bnuq.config import DETERMINISTIC, POPULATION, SINGLE_SAMPLE_METHODS, Run
from bnuq.data import Points
from bnuq.errors import RequestError, ResultError, SamplingError
from bnuq.evaluation import memory
from bnuq.evaluation.datasets import Pipeline
from bnuq.evaluation.draws import queries_engine
from bnuq.evaluation.estimates import replicate_weights
from bnuq.evaluation.passes import Feed, Passes, stochastic_of
from bnuq.evaluation.plan import Plan
from bnuq.evaluation.units import Unit, UnitGroup, run_units, tiles
from bnuq.files.journal import Arrays, Journal
from bnuq.findings import Finding, note, warning
from bnuq.metrics import DrawWeights
from bnuq.progress import Advance, Progress
from bnuq.records.evaluation import MethodResult, MethodWork, Samples
from bnuq.sampling import bank_tiles, counter_rng
from bnuq.sampling.bank_tiles import BankEngine
from bnuq.sampling.batch_statistics import BatchStatistics
from bnuq.sampling.dropout import Dropout
from bnuq.sampling.engine import Stochastic, default_chunk
from bnuq.sampling.passes import Engine, Evaluation
from bnuq.sampling.per_query import PerQuery

FIRST_ROUND = 16  # draws of the first round of "auto"

_OUTPUTS, _SECONDS = "outputs", "seconds"  # raw samples of a unit, where they are needed again, and what it took

VALIDATION = "validation"
Omegas = Mapping[str, BatchStatistics]  # ω by the method that it is drawn for; "mcbn+mcdo" shares that of "mcbn"
Draw = Callable[[range], Omegas]  # ω of the draws with these numbers


@runtime_checkable
class Scorer(Protocol):
    """Scores the samples of a task: `classification.Scorer`, `regression.Scorer`."""

    def reduction(
        self, weights: DrawWeights, points: Points, *, fitted: Any, labelled: bool, first: int = 0
    ) -> Any: ...
    def fitted(self, validation: Any, draws: DrawWeights) -> Any: ...
    def headline_errors(self, scores: Any, draws: DrawWeights) -> dict[str, float]: ...
    def findings(self, method: str, fitted: Any) -> Iterator[Finding]: ...
    def result(
        self, scores: Any, fitted: Any, draws: DrawWeights, raw_samples: Mapping[str, Samples]
    ) -> MethodResult: ...


@dataclass(frozen=True)
class Scored:
    """The scores of one method on every set, and what was fitted to validation points, in the task's own records."""

    sets: Mapping[str, Any]
    fitted: Any


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


def check_precision(run: Run, device: torch.device) -> None:
    """Raise RequestError for a precision that this device does not have."""
    if run.precision == "tf32" and device.type != "cuda":
        raise RequestError(
            f"--precision tf32 is an arithmetic of CUDA devices, and this is {device}; use float32 or bfloat16."
        )


def run_methods(
    run: Run,
    todo: Plan,
    model: nn.Module,
    pipeline: Pipeline,
    sets: Mapping[str, Points],
    scorer: Scorer,
    draw: Draw,
    progress: Progress,
    journal: Journal,
    *,
    train: Points | None = None,
    stale: bool = False,
) -> RunnerResult:
    """Every method on every set, first on "validation" where there is one, because τ and the constant baseline are
    fitted to it.

    Where the running statistics are `stale`, the network is also evaluated with the population statistics of the drawn
    mini-batches, to separate the effect of repairing them from the uncertainty that MCBN adds. Finished units are read
    from the journal; it also keeps the raw samples where they are saved or will be needed again. `train` is needed
    where queries pass with mini-batches.
    """
    bank = bank_of(run, todo)
    state = _Runner(run, todo, model, pipeline, sets, scorer, progress, journal, bank, train)
    omega: BatchStatistics | None = None
    draws = range(0)
    scored: dict[str, Scored] = {}
    while todo.methods or not scored:
        draws = range(draws.stop, _next_stop(run, draws.stop))
        fresh = draw(draws if bank is None else range(bank))
        omega = _joined(omega, fresh.get("mcbn"))
        scored = state.round(draws, fresh)
        if not todo.methods or run.samples != "auto" or draws.stop >= run.max_samples:
            break
        if all(
            error <= 1
            for method_scores in scored.values()
            for error in _errors(run, scorer, method_scores, draws.stop).values()
        ):
            break
    scored = state.deterministic(omega) | (state.population(omega) if stale and omega is not None else {}) | scored
    weights = {method: _weights(method, draws.stop, bank) for method in scored}
    findings = [*state.passes.findings]
    findings += [*_not_reached(run, scorer, scored, draws.stop)] if run.samples == "auto" else []
    findings += [
        finding for method, method_scores in scored.items() for finding in scorer.findings(method, method_scores.fitted)
    ]
    return RunnerResult(
        samples=draws.stop,
        bank=bank,
        omega=omega,
        methods={
            method: scorer.result(method_scores.sets, method_scores.fitted, weights[method], state.raw_samples(method))
            for method, method_scores in scored.items()
        },
        work=state.work(),
        findings=tuple(findings),
    )


def _joined(omega: BatchStatistics | None, fresh: BatchStatistics | None) -> BatchStatistics | None:
    return fresh if omega is None or fresh is None else omega.joined(fresh)


def _next_stop(run: Run, done: int) -> int:
    if run.samples != "auto":
        return run.samples
    return min(run.max_samples, 2 * done or FIRST_ROUND)


def bank_of(run: Run, todo: Plan) -> int | None:
    """The size of the bank of which each tile uses its own T draws; None where all points share T draws, or no method
    samples BatchNorm."""
    if run.bank is None or run.bank == run.samples or not any(map(_is_of_batchnorm, todo.methods)):
        return None
    return run.bank


def _is_of_batchnorm(method: str) -> bool:
    return method.startswith("mcbn")


def _weights(method: str, samples: int, bank: int | None) -> DrawWeights:
    """The replicates of a method; dropout masks already differ from point to point and need no bank."""
    if method in SINGLE_SAMPLE_METHODS:
        return replicate_weights(1)
    return replicate_weights(samples, bank if _is_of_batchnorm(method) else None)


def _errors(run: Run, scorer: Scorer, scored: Scored, samples: int) -> dict[str, float]:
    """Monte Carlo errors of a method's headline estimates, in units of the requested error."""
    errors = scorer.headline_errors(scored.sets, replicate_weights(samples))
    relative = "MI on", "variance on"
    return {name: error / (run.mc_error / (1 if name.startswith(relative) else 10)) for name, error in errors.items()}


def _not_reached(run: Run, scorer: Scorer, scored: Mapping[str, Scored], samples: int) -> Iterator[Finding]:
    for method, method_scores in scored.items():
        if method in SINGLE_SAMPLE_METHODS:
            continue
        name, error = max(_errors(run, scorer, method_scores, samples).items(), key=lambda item: item[1])
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
    """All that a unit of one method and set is computed from."""

    passes: Passes
    engine: Engine
    points: Points
    feed: Feed
    reduction: Callable[[int], Any]  # of the points from this number on
    earlier: Callable[[Unit], list[np.ndarray]] | None  # raw samples of earlier rounds; None where none are kept


def run_unit(context: Context, unit: Unit) -> Arrays:
    """The scores of a unit, its seconds, and its raw samples where they are needed again."""
    engine, before = context.engine, context.passes.seconds
    reduction = context.reduction(unit.points.start)
    blocks: Iterator[Tensor] = context.passes.blocks(engine, context.points, unit.points, context.feed)
    raw: Arrays = {}
    if context.earlier is not None:
        outputs = list(blocks)
        raw[_OUTPUTS] = np.concatenate([block.cpu().numpy() for block in outputs], axis=1)
        if earlier := context.earlier(unit):
            samples = torch.from_numpy(np.concatenate([*earlier, raw[_OUTPUTS]])).to(outputs[0].device)
            outputs = samples.split([block.shape[1] for block in outputs], dim=1)
        blocks = iter(outputs)
    first = unit.points.start
    for block in blocks:
        if isinstance(engine, BankEngine):
            for rows in bank_tiles.tiles(first, first + block.shape[1]):
                reduction.add(block[:, rows.start - first : rows.stop - first], engine.draws(rows))
        else:
            reduction.add(block)
        first += block.shape[1]
    return reduction.arrays() | raw | {_SECONDS: np.array(context.passes.seconds - before)}


class _Runner:
    """The rounds of one run: the draws of their raw samples, and their work."""

    def __init__(
        self,
        run: Run,
        todo: Plan,
        model: nn.Module,
        pipeline: Pipeline,
        sets: Mapping[str, Points],
        scorer: Scorer,
        progress: Progress,
        journal: Journal,
        bank: int | None,
        train: Points | None,
    ) -> None:
        self.passes = Passes(run, pipeline, todo.outputs)
        if bank is not None:
            self.passes.add(note("bank-of-draws", tile=counter_rng.TILE, samples=run.samples, bank=bank))
        if run.sampler.by_query and "mcbn" in todo.methods:
            self.passes.add(_passes_by_query(run, todo, sum(map(len, sets.values()))))
        self._bank, self._train = bank, train
        self._run, self._todo, self._model, self._pipeline = run, todo, model, pipeline
        self._sets, self._scorer, self._progress, self._journal = sets, scorer, progress, journal
        self._rounds: list[range] = []  # of draws whose raw samples are kept
        self._units: dict[tuple[str, str], list[Unit]] = {}  # of the first round
        self._method_work: dict[str, _MethodWork] = {}

    def round(self, draws: range, omegas: Omegas) -> dict[str, Scored]:
        """Run further draws of every stochastic method, and return the scores of all draws so far."""
        if not self._todo.methods:
            return {}
        self._rounds.append(draws)
        return self._run_engines({method: self._engine(method, draws, omegas) for method in self._todo.methods}, draws)

    def _engine(self, method: str, draws: range, omegas: Omegas) -> Engine:
        if method == "mcbn" and self._run.sampler.by_query:
            assert self._train is not None  # ensured by the plan
            return queries_engine(self._todo, self._model, self._pipeline, self._train, draws)
        engine = Stochastic(
            self._model,
            self._todo.sites,
            omega=omegas[method.removesuffix("+mcdo")] if _is_of_batchnorm(method) else None,
            dropout=self._dropout(method, draws) if method.endswith("mcdo") else None,
            precision=self._run.precision,
        )
        if self._bank is None or not _is_of_batchnorm(method):
            return engine
        return BankEngine(engine, samples=len(draws), seed=self._run.seed)

    def _dropout(self, method: str, draws: range) -> Dropout:
        if self._bank is not None and _is_of_batchnorm(method):  # a draw of the bank includes its mask
            return Dropout(self._bank, self._run.seed)
        return Dropout(len(draws), self._run.seed, draws.start)

    def deterministic(self, omega: BatchStatistics | None) -> dict[str, Scored]:
        """The deterministic network; where it keeps no running statistics, with the statistics of all draws pooled."""
        engine: Engine = Evaluation(self._model)
        pooled = range(1)
        untracked = {site.name for site in self._todo.sites.live_batchnorms if not site.tracked}
        if untracked:
            assert omega is not None  # the plan ensures that omega holds these layers
            drawn = tuple(layer for layer in omega.layers if layer.name in untracked)
            engine = Stochastic(self._model, self._todo.sites, omega=replace(omega, layers=drawn).pooled())
            pooled = range(omega.samples)
        return self._run_engines({DETERMINISTIC: engine}, range(1), pooled)

    def population(self, omega: BatchStatistics) -> dict[str, Scored]:
        """The network with the pooled statistics of all draws in place of its running statistics."""
        engine = Stochastic(self._model, self._todo.sites, omega=omega.pooled())
        return self._run_engines({POPULATION: engine}, range(1), range(omega.samples))

    def raw_samples(self, method: str) -> dict[str, Samples]:
        """The raw samples of each set, where they are saved."""
        if not self._run.save_samples or method in SINGLE_SAMPLE_METHODS:
            return {}
        return {
            name: StoredSamples.of(self._journal, units, self._rounds)
            for (of_method, name), units in self._units.items()
            if of_method == method
        }

    def work(self) -> dict[str, MethodWork]:
        """The work of each method, relative to the same number of passes of the deterministic network."""
        deterministic_work = self._method_work[DETERMINISTIC]
        order = [DETERMINISTIC, *(method for method in self._method_work if method != DETERMINISTIC)]
        shape = self._sets["test"].point_shape
        return {method: _work(self._method_work[method], deterministic_work, shape) for method in order}

    def _run_engines(
        self, engines: Mapping[str, Engine], draws: range, pooled: range | None = None
    ) -> dict[str, Scored]:
        """The scores of all draws so far; `pooled` are the draws whose pooled statistics a single pass uses."""
        need = self.passes.prepare(engines.values(), self._sets["test"])
        points = sum(len(set_points) for set_points in self._sets.values())
        samples = f"{draws.stop} samples" if draws.stop > 1 else "deterministic"
        title = f"Evaluating {points} points, {samples}, about {memory.in_words(need)}"
        if any(isinstance(engine, PerQuery) for engine in engines.values()):
            title = f"{points * len(draws)} forwards of {_rows_by_query(self._run, self._todo)} points"
        result: dict[str, Scored] = {}
        with self._progress(title, points * sum(engine.samples for engine in engines.values())) as advance:
            for method, engine in engines.items():
                self._method_work.setdefault(method, _MethodWork(engine)).engine = engine
                if self._pipeline.device.type == "cuda":
                    self.passes.warm_up(engine, next(iter(self._sets.values())))
                result[method] = self._scored(method, engine, draws, pooled or draws, advance)
                if draws.start == 0:
                    self.passes.note_precision(method, engine)
        return result

    def _scored(self, method: str, engine: Engine, draws: range, address: range, advance: Advance) -> Scored:
        weights = _weights(method, draws.stop, self._bank)

        def scores(name: str, fitted: Any = None) -> Any:
            return self._scores(method, engine, name, weights, address, advance, fitted)

        validation = scores(VALIDATION) if VALIDATION in self._sets else None
        fitted = self._scorer.fitted(validation, weights)
        return Scored({name: scores(name, fitted) for name in self._sets if name != VALIDATION}, fitted)

    def _scores(
        self,
        method: str,
        engine: Engine,
        name: str,
        weights: DrawWeights,
        draws: range,
        advance: Advance,
        fitted: Any,
    ) -> Any:
        """The scores of one set under all draws so far."""
        points, passes, work = self._sets[name], self.passes, self._method_work[method]
        again = method not in SINGLE_SAMPLE_METHODS and (self._run.save_samples or self._run.samples == "auto")
        size = passes.tile(engine, points, keeps_samples=again)
        first = self._units.setdefault((method, name), tiles(name, points, size, method=method, draws=draws))
        units = [replace(unit, draws=draws) for unit in first]  # the same tiles in every round

        def reduction(first: int) -> Any:
            labelled = name in ("test", VALIDATION)
            return self._scorer.reduction(weights, points, fitted=fitted, labelled=labelled, first=first)

        with passes.feeding(points) as feed:
            context = Context(passes, engine, points, feed, reduction, self._earlier if again else None)

            def run(group: UnitGroup) -> Iterator[Arrays]:
                return (run_unit(context, unit) for unit in group)

            def arrays() -> Iterator[Arrays]:
                results = run_units(zip(units), run, self._journal, needed=again)
                for unit, (of_unit,) in zip(units, results, strict=True):
                    work.seconds += float(of_unit[_SECONDS])
                    work.passes += engine.samples * len(unit.points)
                    advance(engine.samples * len(unit.points))
                    yield of_unit

            scores = reduction(0).scores(arrays(), group=points.group)
        if name == "test" and weights.samples > 1 and not scores.samples_differ:
            raise SamplingError(_why_samples_agree(method, self._todo))
        return scores

    def _earlier(self, unit: Unit) -> list[np.ndarray]:
        """The raw samples of a unit's points in earlier rounds."""
        return [_raw(self._journal, replace(unit, draws=draws)) for draws in self._rounds[:-1]]


def _raw(journal: Journal, unit: Unit) -> np.ndarray:
    arrays = journal.load(unit.name)
    if arrays is None:
        raise ResultError(
            f"{journal.path(unit.name)}: these samples were kept there, and cannot be read any more. Run it again."
        )
    return arrays[_OUTPUTS]


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


def _work(method_work: _MethodWork, deterministic_work: _MethodWork, points: Sequence[int]) -> MethodWork:
    engine = method_work.engine
    comparable = (
        engine.samples > 1 and deterministic_work.seconds > 0 and isinstance(deterministic_work.engine, Evaluation)
    )
    work_done = MethodWork(
        seconds=method_work.seconds,
        passes=method_work.passes,
        ratio=(method_work.seconds / method_work.passes) / (deterministic_work.seconds / deterministic_work.passes)
        if comparable
        else None,
    )
    stochastic = stochastic_of(engine)
    if stochastic is None:
        return work_done
    work = stochastic.work(default_chunk(points))
    if work is None:
        return replace(work_done, why_plain=stochastic.why_plain)
    stacked = min(work.stacked, engine.samples)
    return replace(work_done, once=work.once, each=work.per_draw, folded=work.folded, stacked=stacked)


def _rows_by_query(run: Run, todo: Plan) -> int:
    """The rows of one forward: a mini-batch, and the query where it is not part of the mini-batch."""
    assert todo.batch_size is not None
    return todo.batch_size + (not run.sampler.query_in_batch)


def _passes_by_query(run: Run, todo: Plan, points: int) -> Finding:
    """The note on the cost of queries that pass with mini-batches, and how to reduce it."""
    samples = run.max_samples if run.samples == "auto" else run.samples
    return note(
        "passes-by-query",
        forwards=points * samples,
        at_most=run.samples == "auto",
        points=_rows_by_query(run, todo),
        in_batch=run.sampler.query_in_batch,
        own_batches=run.sampler.per_query,
    )


def _why_samples_agree(method: str, todo: Plan) -> str:
    """The error for samples that do not differ, which would give a table of zeros."""
    if method.startswith("mcbn"):
        why = (
            f"the outputs are the same for every mini-batch of {todo.batch_size}; is the reference one point "
            "repeated, or does the output not depend on these BatchNorms?"
        )
    else:
        rates = ", ".join(f"{site.name} {site.p:g}" for site in todo.sites.live_dropouts)
        why = f"dropout at these rates changes no output: {rates}."
    return f"the samples of {method} are identical, so there is no uncertainty: {why}"
