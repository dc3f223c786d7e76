"""Runs every method over every set and reduces the outputs chunk by chunk; with "auto", draws are doubled until they
suffice."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from bnuq.config import DETERMINISTIC, POPULATION, SINGLE_SAMPLE_METHODS, Run
from bnuq.data import Points
from bnuq.errors import RequestError, SamplingError, is_out_of_memory
from bnuq.estimates import Caution
from bnuq.evaluation import memory
from bnuq.evaluation.classification import bytes_of_scoring
from bnuq.evaluation.datasets import Pipeline
from bnuq.evaluation.draws import queries_engine
from bnuq.evaluation.estimates import replicate_weights
from bnuq.evaluation.plan import Plan
from bnuq.metrics import DrawWeights
from bnuq.progress import Advance, Progress
from bnuq.records.evaluation import MethodResult, MethodWork
from bnuq.records.samples import Rounds, Spool
from bnuq.sampling import counter_rng
from bnuq.sampling.bank_tiles import BankEngine, tiles
from bnuq.sampling.batch_statistics import BatchStatistics
from bnuq.sampling.dropout import Dropout
from bnuq.sampling.engine import Deviation, Stochastic, chunks, default_chunk
from bnuq.sampling.passes import Engine, Evaluation
from bnuq.sampling.per_query import PerQuery
from bnuq.sampling.sites import OtherCallsError

FIRST_ROUND = 16  # draws of the first round of "auto"

_QUERY_CHUNK = 8  # queries between two updates of the progress, where each takes T forwards of its own

VALIDATION = "validation"
Omegas = Mapping[str, BatchStatistics]  # ω by the method that it is drawn for; "mcbn+mcdo" shares that of "mcbn"
Draw = Callable[[range], Omegas]  # ω of the draws with these numbers


@runtime_checkable
class Scorer(Protocol):
    """Scores the samples of a task: `classification.Scorer`, `regression.Scorer`."""

    def reduction(self, weights: DrawWeights, points: Points, *, fitted: Any, labelled: bool) -> Any: ...
    def fitted(self, validation: Any, draws: DrawWeights) -> Any: ...
    def headline_errors(self, scores: Any, draws: DrawWeights) -> dict[str, float]: ...
    def cautions(self, method: str, fitted: Any) -> Iterator[Caution]: ...
    def result(self, scores: Any, fitted: Any, draws: DrawWeights, kept: Mapping[str, Rounds]) -> MethodResult: ...


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
    notes: tuple[str, ...]
    cautions: tuple[Caution, ...]


def check_precision(run: Run, device: torch.device) -> None:
    """Raise RequestError for a precision that this device does not have."""
    if run.precision == "tf32" and device.type != "cuda":
        raise RequestError(
            f"--precision tf32 is an arithmetic of CUDA devices, and this is {device}; use float32 or bfloat16."
        )


def passed(
    run: Run,
    todo: Plan,
    model: nn.Module,
    pipeline: Pipeline,
    sets: Mapping[str, Points],
    scorer: Scorer,
    draw: Draw,
    progress: Progress,
    spools: ExitStack,
    *,
    train: Points | None = None,
    stale: bool = False,
) -> RunnerResult:
    """Every method on every set, first on "validation" where there is one, because τ and the constant baseline are
    fitted to it.

    Where the running statistics are `stale`, the network is also evaluated with the population statistics of the drawn
    mini-batches, to separate the effect of repairing them from the uncertainty that MCBN adds. Raw samples are spooled
    where they are saved or will be needed again. `train` is needed where queries pass with mini-batches.
    """
    bank = bank_of(run, todo)
    state = _Runner(run, todo, model, pipeline, sets, scorer, progress, spools, bank, train)
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
    cautions = [*_not_reached(run, scorer, scored, draws.stop)] if run.samples == "auto" else []
    cautions += [
        caution for method, method_scores in scored.items() for caution in scorer.cautions(method, method_scores.fitted)
    ]
    return RunnerResult(
        samples=draws.stop,
        bank=bank,
        omega=omega,
        methods={
            method: scorer.result(method_scores.sets, method_scores.fitted, weights[method], state.kept(method))
            for method, method_scores in scored.items()
        },
        work=state.work(),
        notes=tuple(state.notes),
        cautions=tuple(cautions),
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


def _not_reached(run: Run, scorer: Scorer, scored: Mapping[str, Scored], samples: int) -> Iterator[Caution]:
    for method, method_scores in scored.items():
        if method in SINGLE_SAMPLE_METHODS:
            continue
        name, error = max(_errors(run, scorer, method_scores, samples).items(), key=lambda item: item[1])
        if error > 1:
            yield Caution(
                "mc-error-not-reached",
                f"{method}: with {samples} samples, the maximum allowed, the Monte Carlo error of {name} is "
                f"{error:.2g} times the requested one. Raise --max-samples or --mc-error.",
            )


@dataclass
class _MethodWork:
    """The work of one method so far, and its latest engine."""

    engine: Engine
    seconds: float = 0.0
    passes: int = 0


class _Runner:
    """The rounds of one run: their raw samples and their work."""

    def __init__(
        self,
        run: Run,
        todo: Plan,
        model: nn.Module,
        pipeline: Pipeline,
        sets: Mapping[str, Points],
        scorer: Scorer,
        progress: Progress,
        spools: ExitStack,
        bank: int | None,
        train: Points | None,
    ) -> None:
        self.notes: list[str] = []
        if bank is not None:
            self.notes.append(
                f"every {counter_rng.TILE} points use their own {run.samples} of a bank of {bank} mini-batches: the "
                "Monte Carlo error of means is smaller, but different points see different sampled networks"
            )
        if run.sampler.by_query and "mcbn" in todo.methods:
            self.notes.append(_by_query_in_words(run, todo, sum(map(len, sets.values()))))
        self._bank, self._train = bank, train
        self._largest_chunk: int | None = None  # chunk size, where memory does not allow the default
        self._run, self._todo, self._model, self._pipeline = run, todo, model, pipeline
        self._sets, self._scorer, self._progress, self._spools = sets, scorer, progress, spools
        self._rounds: dict[tuple[str, str], Rounds] = {}
        self._method_work: dict[str, _MethodWork] = {}

    def round(self, draws: range, omegas: Omegas) -> dict[str, Scored]:
        """Run further draws of every stochastic method, and return the scores of all draws so far."""
        if not self._todo.methods:
            return {}
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
        untracked = {site.name for site in self._todo.sites.live_batchnorms if not site.tracked}
        if untracked:
            assert omega is not None  # the plan ensures that omega holds these layers
            drawn = tuple(layer for layer in omega.layers if layer.name in untracked)
            engine = Stochastic(self._model, self._todo.sites, omega=replace(omega, layers=drawn).pooled())
        return self._run_engines({DETERMINISTIC: engine}, range(1))

    def population(self, omega: BatchStatistics) -> dict[str, Scored]:
        """The network with the pooled statistics of all draws in place of its running statistics."""
        return self._run_engines(
            {POPULATION: Stochastic(self._model, self._todo.sites, omega=omega.pooled())}, range(1)
        )

    def kept(self, method: str) -> dict[str, Rounds]:
        """The raw samples of each set, where they are saved."""
        return {name: rounds for (m, name), rounds in self._rounds.items() if m == method and self._run.save_samples}

    def work(self) -> dict[str, MethodWork]:
        """The work of each method, relative to the same number of passes of the deterministic network."""
        deterministic_work = self._method_work[DETERMINISTIC]
        order = [DETERMINISTIC, *(method for method in self._method_work if method != DETERMINISTIC)]
        shape = self._sets["test"].point_shape
        return {method: _work(self._method_work[method], deterministic_work, shape) for method in order}

    def _run_engines(self, engines: Mapping[str, Engine], draws: range) -> dict[str, Scored]:
        size, need = self._chunk_size(engines)
        points = sum(len(set_points) for set_points in self._sets.values())
        samples = f"{draws.stop} samples" if draws.stop > 1 else "deterministic"
        title = f"Evaluating {points} points, {samples}, about {memory.in_words(need)}"
        if any(isinstance(engine, PerQuery) for engine in engines.values()):
            title = f"{points * len(draws)} forwards of {_rows_by_query(self._run, self._todo)} points"
        result: dict[str, Scored] = {}
        with self._progress(title, points * sum(engine.samples for engine in engines.values())) as advance:
            for method, engine in engines.items():
                method_work = self._method_work.setdefault(method, _MethodWork(engine))
                method_work.engine = engine
                if self._pipeline.device.type == "cuda":
                    self._warm_up(engine, size)
                result[method] = self._scored(method, engine, draws, size, advance)
                if draws.start == 0:
                    self._note_precision(method, engine)
        return result

    def _scored(self, method: str, engine: Engine, draws: range, size: int, advance: Advance) -> Scored:
        def scores(name: str, fitted: Any = None) -> Any:
            return self._scores(method, engine, name, draws, size, advance, fitted)

        validation = scores(VALIDATION) if VALIDATION in self._sets else None
        fitted = self._scorer.fitted(validation, _weights(method, draws.stop, self._bank))
        return Scored({name: scores(name, fitted) for name in self._sets if name != VALIDATION}, fitted)

    def _scores(
        self, method: str, engine: Engine, name: str, draws: range, size: int, advance: Advance, fitted: Any
    ) -> Any:
        """The scores of one set under all draws so far."""
        points, run = self._sets[name], self._run
        blocks = self._blocks(method, engine, points, size, advance)
        if method not in SINGLE_SAMPLE_METHODS and (run.save_samples or run.samples == "auto"):
            rounds = self._rounds.setdefault((method, name), Rounds())
            advice = "run without --save-samples" if run.save_samples else "lower --max-samples"
            rounds.begin(self._spools.enter_context(Spool(run.out.parent, advice=advice)))
            blocks = _spooled(blocks, rounds)
            if draws.start:
                for _ in blocks:
                    pass
                blocks = (torch.from_numpy(block).to(self._pipeline.device) for _, block in rounds.blocks())
        weights = _weights(method, draws.stop, self._bank)
        reduction = self._scorer.reduction(weights, points, fitted=fitted, labelled=name in ("test", VALIDATION))
        first = 0
        for block in blocks:
            if isinstance(engine, BankEngine):
                for rows in tiles(first, first + block.shape[1]):
                    reduction.add(block[:, rows.start - first : rows.stop - first], engine.draws(rows))
            else:
                reduction.add(block)
            first += block.shape[1]
        if name == "test" and draws.stop > 1 and not reduction.passes_differ:
            raise SamplingError(_why_samples_agree(method, self._todo))
        return reduction.scores(group=points.group)

    def _blocks(self, method: str, engine: Engine, points: Points, size: int, advance: Advance) -> Iterator[Tensor]:
        method_work, device, loading = self._method_work[method], self._pipeline.device, 0.0
        if isinstance(engine, PerQuery):
            size = min(size, _QUERY_CHUNK)

        def load(rows: slice) -> Tensor:
            return self._pipeline.evaluated(points, rows)

        def feed(rows: slice) -> Tensor:
            nonlocal loading
            before = time.perf_counter()
            loaded = source(rows)
            loading = time.perf_counter() - before
            return loaded

        with ExitStack() as closing:
            source = Prefetch(load, len(points), closing) if device.type == "cuda" else load
            blocks = chunks(engine, len(points), feed, size=size, on_halved=self._note_halving)
            while True:
                before = time.perf_counter()
                block = next(blocks, None)
                if device.type == "cuda":
                    torch.cuda.synchronize(device)
                if block is None:
                    return
                method_work.seconds += time.perf_counter() - before - loading
                method_work.passes += engine.samples * block.shape[1]
                yield block
                advance(engine.samples * block.shape[1])

    def _warm_up(self, engine: Engine, size: int) -> None:
        """Make a GPU load its libraries and kernels, and choose algorithms, in a pass that is not timed."""
        stochastic, points = _stochastic(engine), next(iter(self._sets.values()))
        if isinstance(engine, PerQuery):  # among many small forwards the first hardly matters
            return
        inputs = self._pipeline.evaluated(points, slice(0, min(len(points), size)))
        try:
            if stochastic is None:
                engine.passes(inputs)
            else:
                work = stochastic.work(len(inputs))
                stochastic.passes(inputs, 0, range(min(stochastic.samples, 1 if work is None else work.stacked)))
        except (MemoryError, RuntimeError, OtherCallsError) as error:
            if not (is_out_of_memory(error) or isinstance(error, OtherCallsError)):
                raise  # otherwise the timed passes halve their chunks
        torch.cuda.synchronize(self._pipeline.device)

    def _chunk_size(self, engines: Mapping[str, Engine]) -> tuple[int, int]:
        """The chunk size, as requested or as memory allows, and the bytes it takes."""
        test, requested = self._sets["test"], self._run.chunk_size
        free = memory.available(self._pipeline.device)
        for engine in engines.values():
            if stochastic := _stochastic(engine):
                stochastic.prepare(self._pipeline.evaluated(test, slice(0, 64)), free=free)
        whole = default_chunk(test.point_shape)
        size = requested or min(whole, self._largest_chunk or whole)
        free = memory.available(self._pipeline.device)
        fitting = fitting_chunk(list(engines.values()), self._todo.outputs, size, self._pipeline.device)
        size = requested or fitting
        need = self._bytes(engines, size)
        samples = max(engine.samples for engine in engines.values())
        if samples > 1 and requested is None and free is not None and size < min(whole, self._largest_chunk or whole):
            self._largest_chunk = size
            self._note(
                f"{size} points are processed at once, because {memory.in_words(free)} of memory are free and these "
                f"take about {memory.in_words(need)} with {samples} samples"
            )
        return size, need

    def _bytes(self, engines: Mapping[str, Engine], size: int) -> int:
        return max(bytes_taken(engine, size, self._todo.outputs, self._pipeline.device) for engine in engines.values())

    def _note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    def _note_halving(self, why: str, size: int) -> None:
        self._largest_chunk = size
        self._note(f"{why}, so {size} points are processed at once from there on (--chunk-size {size})")

    def _note_precision(self, method: str, engine: Engine) -> None:
        stochastic = _stochastic(engine)
        deviation = stochastic.deviation if stochastic is not None else None
        if deviation is not None:
            self._note(precision_in_words(method, self._run.precision, deviation))


def fitting_chunk(engines: Sequence[Engine], outputs: int, size: int, device: torch.device) -> int:
    """`size` points, halved until their passes take no more than half of the free memory, or halving saves nothing.

    Stacks of draws and tiles are bounded first: otherwise fewer points would only lead to larger stacks.
    """
    free = memory.available(device)
    for stochastic in filter(None, map(_stochastic, engines)):
        stochastic.fit(free)

    def need(points: int) -> int:
        return max(bytes_taken(engine, points, outputs, device) for engine in engines)

    while free is not None and need(size) > free / 2 and need(size // 2) < 0.9 * need(size):
        size //= 2
    return size


def precision_in_words(method: str, precision: str, deviation: Deviation) -> str:
    """The note on how far results in another precision differ from those in float32."""
    values, shift = "probabilities" if deviation.measure == "mutual information" else "outputs", ""
    if math.isfinite(deviation.uncertainty):
        error = f" ± {100 * deviation.uncertainty_error:.1f}" if math.isfinite(deviation.uncertainty_error) else ""
        shift = f"{deviation.measure} is {100 * deviation.uncertainty:+.1f}{error} % from that of float32, "
    return (
        f"{method} was computed in {precision}: over {deviation.points} points and {deviation.draws} samples, "
        f"{shift}{values} differ by {deviation.mean:.2g} on average, {deviation.largest:.2g} at most; mini-batch "
        "statistics, deterministic estimates and scores use the usual precision"
    )


def bytes_taken(engine: Engine, size: int, outputs: int, device: torch.device) -> int:
    """The approximate bytes of passes of `size` points and their scoring, without the network."""
    if size < 1:
        return sys.maxsize
    stochastic = _stochastic(engine)
    work = stochastic.work(size) if stochastic is not None else None
    scored = bytes_of_scoring(engine.samples, size, outputs, device)
    return 3 * 8 * engine.samples * size * outputs + scored + (0 if work is None else work.bytes)


class Prefetch:
    """Loads the next chunk of points in a thread while the device works on the current chunk."""

    def __init__(self, load: Callable[[slice], Tensor], count: int, closing: ExitStack) -> None:
        self._load, self._count = load, count
        self._thread = closing.enter_context(ThreadPoolExecutor(max_workers=1))
        self._next: tuple[slice, Future[Tensor]] | None = None

    def __call__(self, rows: slice) -> Tensor:
        expected, future = self._next or (None, None)
        points = future.result() if future is not None and expected == rows else self._load(rows)
        next_rows = slice(rows.stop, min(self._count, rows.stop + rows.stop - rows.start))
        self._next = None
        if next_rows.start < next_rows.stop:
            self._next = next_rows, self._thread.submit(self._load, next_rows)
        return points


def _spooled(blocks: Iterator[Tensor], rounds: Rounds) -> Iterator[Tensor]:
    for block in blocks:
        rounds.append(block.cpu().numpy())
        yield block


def _stochastic(engine: Engine) -> Stochastic | None:
    """The engine that draws, also where a bank hands out its draws."""
    drawing_engine = engine.engine if isinstance(engine, BankEngine) else engine
    return drawing_engine if isinstance(drawing_engine, Stochastic) else None


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
    stochastic = _stochastic(engine)
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


def _by_query_in_words(run: Run, todo: Plan, points: int) -> str:
    """The note on the cost of queries that pass with mini-batches, and how to reduce it."""
    samples = run.max_samples if run.samples == "auto" else run.samples
    batches = "mini-batches of its own" if run.sampler.per_query else "each of the mini-batches"
    where = "inside" if run.sampler.query_in_batch else "beside"
    return (
        f"every query passes {where} {batches}: {'at most ' if run.samples == 'auto' else ''}{points * samples:,} "
        f"forwards of {_rows_by_query(run, todo)} points for mcbn; --limit evaluates fewer points of each set"
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
