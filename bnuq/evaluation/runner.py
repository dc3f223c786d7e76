"""Runs every method over every set, unit by unit, and makes their results; with "auto", draws are doubled until they
suffice."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from itertools import combinations

import numpy as np

from bnuq.arithmetic import Arithmetic
from bnuq.evaluation import memory, perturbations, recalibration
from bnuq.evaluation.draws import next_stop, passes_of_samples
from bnuq.evaluation.estimates import headline_errors, replicate_weights
from bnuq.evaluation.executors import UnitExecutor, UnitsLostError
from bnuq.evaluation.features import KeepingEvaluation
from bnuq.evaluation.measured import Measurements, Omegas
from bnuq.evaluation.method_run import MethodRun, ScoredMethod, relative_work
from bnuq.evaluation.methods import SamplerInputs, sampler_of
from bnuq.evaluation.passes import ChunkedPasses
from bnuq.evaluation.posthoc import OfSets, post_hoc_scores
from bnuq.evaluation.scoring import engine_of_set
from bnuq.evaluation.subject import Subject
from bnuq.evaluation.tasks.failing_images import chosen_images, image_maps
from bnuq.evaluation.views import Outcome
from bnuq.findings import Finding, warning
from bnuq.frozen import frozen
from bnuq.methods import DETERMINISTIC, POPULATION, Method, method_named
from bnuq.progress import Progress, stage
from bnuq.records.evaluation import ImageMaps, MethodResult, MethodWork
from bnuq.sampling.batch_statistics import BatchStatistics
from bnuq.sampling.engine import Stochastic, default_chunk
from bnuq.sampling.plain_loop import Engine
from bnuq.sampling.together import WithDropout

FirstAnswer = Callable[[Mapping[str, MethodResult], Sequence[str], float], object]


@frozen
class RunnerResult(Outcome):
    """The outcome of all passes: also the size of the bank where there is one, ω, each method's work, and the
    arithmetic of the samples."""

    bank: int | None
    omega: BatchStatistics | None
    work: dict[str, MethodWork]
    arithmetic: Arithmetic
    image_maps: ImageMaps | None = None


def run_methods(
    subject: Subject,
    measured: Measurements,
    progress: Progress,
    executor: UnitExecutor,
    *,
    post_hoc: OfSets | None = None,
    shown: Sequence[int] = (),
    answer: FirstAnswer | None = None,
) -> RunnerResult:
    """Every method on every set, first on "validation" where there is one, because τ and the constant baseline are
    fitted to it.

    Where the running statistics are stale, the network is also evaluated with the population statistics of the drawn
    mini-batches, to separate the effect of repairing them from the uncertainty that MCBN adds. The `executor` says
    which units are computed, and keeps them; its journal also keeps the raw samples where they are saved or will be
    needed again. Scores that are `post_hoc` are computed where they are not given; of a segmentation, the images of the
    rows `shown` are among those with pictures. The `answer` receives, before samples are drawn, what
    is known of the network, the methods that draw samples, and about how many seconds these will take.
    """
    settings = subject.settings
    passed = compute_units(subject, measured, progress, executor, answer)
    runner, scored = passed.runner, passed.scored
    deterministic = method_named(DETERMINISTIC)
    engine = runner.methods[deterministic].engine
    kept = engine.kept if isinstance(engine, KeepingEvaluation) else None
    post_hoc = post_hoc or post_hoc_scores(subject, progress, kept)
    of_deterministic = scored[deterministic]
    changed = {
        name: replace(each, result=post_hoc.added_to({name: each.result})[name])
        for name, each in of_deterministic.changed.items()
    }
    with_post_hoc = post_hoc.added_to(of_deterministic.sets)
    scored |= {deterministic: replace(of_deterministic, sets=with_post_hoc, changed=changed)}
    findings = [*runner.passes.findings, *post_hoc.findings]
    findings += [*_not_reached(subject, scored, passed.samples)] if subject.draws.samples == "auto" else []
    for method, method_scores in scored.items():
        findings += method_scores.view.scorer.findings(method.name)
    attacks = {method.name: of.attack for method, of in runner.methods.items() if of.is_attacked}
    findings += perturbations.findings(attacks) if subject.attacked else ()
    maps = {method: method_scores.view.maps for method, method_scores in scored.items()}
    findings += recalibration.findings({method: fit for method, fit in maps.items() if fit is not None})
    with_temperature = {method.plain: of for method, of in scored.items() if method.recalibration == "temperature"}
    results = {}
    for method, of in scored.items():
        with stage(progress, f"Estimates of {method.name}, and their errors"):
            results[method] = runner.methods[method.plain].result(of, with_temperature.get(method))
    pictures = runner.image_maps(results, shown) if subject.image and settings.images else None
    for method_run in runner.methods.values():
        method_run.release()
    return RunnerResult(
        passed.samples,
        {method.name: result for method, result in results.items()},
        tuple(findings),
        subject.bank,
        passed.omega,
        runner.work(),
        runner.passes.arithmetic,
        pictures,
        scored={} if settings.certificate.risk is None else scored,
    )


@frozen
class Passed:
    """What all passes gave: their runner, T, ω, and the scores of each method in the order of the report; of an
    executor that makes no result only those that other units depend on."""

    runner: _Runner
    samples: int
    omega: BatchStatistics | None
    scored: dict[Method, ScoredMethod]


def compute_units(
    subject: Subject,
    measured: Measurements,
    progress: Progress,
    executor: UnitExecutor,
    answer: FirstAnswer | None = None,
) -> Passed:
    """The units of `run_methods`, as its executor says: of the deterministic network first, unless it has layers that
    are normalised by the draws."""
    settings, bank = subject.draws, subject.bank
    runner = _Runner(subject, progress, executor, measured)
    omega: BatchStatistics | None = None
    draws = range(0)
    scored: dict[Method, ScoredMethod] = {}
    drawn = [method for method in subject.methods if method.is_drawn]
    given = [method for method in subject.methods if not method.is_drawn]
    deterministic, single = method_named(DETERMINISTIC), {}
    if all(site.tracked for site in subject.sites.live_batchnorms):
        single = runner.run_given(deterministic, None)
        if answer is not None:
            results = {method.name: runner.methods[deterministic].result(of) for method, of in single.items()}
            of_network = runner.methods[deterministic]
            seconds = passes_of_samples(subject) * of_network.seconds / max(1, of_network.passes)
            answer(results, [method.name for method in drawn], seconds)
    while True:
        draws = range(draws.stop, next_stop(settings, draws.stop))
        fresh = measured.omegas(draws if bank is None else range(bank))
        new = fresh.get("mcbn")
        omega = new if omega is None or new is None else omega.joined(new)
        scored = runner.draw(drawn, draws, fresh)
        if not drawn or settings.auto_limit is None or draws.stop >= settings.auto_limit:
            break
        if all(
            error <= 1
            for method_scores in scored.values()
            for error in _errors(subject, method_scores, draws.stop).values()
        ):
            break
    single = single or runner.run_given(deterministic, omega)
    for method in given:
        (single if method.is_single else scored).update(runner.run_given(method, omega))
    if measured.stale and omega is not None:
        single |= runner.run_given(method_named(POPULATION), omega)
    return Passed(runner, draws.stop, omega, single | scored)


def _errors(subject: Subject, scored: ScoredMethod, samples: int) -> dict[str, float]:
    """Monte Carlo errors of a method's headline estimates, in units of the requested error."""
    spread, requested = subject.task.spread, subject.draws.mc_error
    return headline_errors(spread, scored.sets, replicate_weights(samples), requested)


def _not_reached(subject: Subject, scored: Mapping[Method, ScoredMethod], samples: int) -> Iterator[Finding]:
    for method, method_scores in scored.items():
        if not method.is_drawn:
            continue
        errors = _errors(subject, method_scores, samples)
        name, error = max(errors.items(), key=lambda item: item[1])
        if error > 1:
            yield warning(
                "mc-error-not-reached", method=method.name, samples=samples, estimate=name, ratio=float(error)
            )


@contextmanager
def computed_together(engines: Mapping[Method, Engine]) -> Iterator[None]:
    """Compute the samples of each method together with those of a later one that only has dropout as well."""
    pairs = []
    for (method, plain), (other, dropped) in combinations(engines.items(), 2):
        is_pair = "masks" not in method.differs_by and other.differs_by == method.differs_by | {"masks"}
        if is_pair and isinstance(plain, Stochastic) and isinstance(dropped, Stochastic):
            pairs.append(WithDropout(plain, dropped, method.name))
            plain.together = dropped.together = pairs[-1]
    yield
    for pair in pairs:
        pair.is_off = True
        pair.kept.clear()


class _Runner:
    """Runs methods on every set: what one run has done so far."""

    def __init__(self, subject: Subject, progress: Progress, executor: UnitExecutor, measured: Measurements) -> None:
        self.passes = ChunkedPasses(
            subject.pipeline,
            subject.outputs_of_point,
            dense=subject.image is not None,
            auto_limit=subject.draws.auto_limit,
        )
        self.methods: dict[Method, MethodRun] = {}
        self._subject, self._progress, self._executor, self._measured = subject, progress, executor, measured
        for finding in subject.findings_on_samples():
            self.passes.add(finding)
        self._second = {}
        if subject.fitted_to == "test":
            self._second = {"test": recalibration.second_half(subject.sets["test"], subject.draws.seed)}

    def draw(self, methods: Sequence[Method], draws: range, omegas: Omegas) -> dict[Method, ScoredMethod]:
        """The scores of these methods under further draws, and all draws so far."""
        engines = {}
        for method in methods:
            inputs = SamplerInputs(omegas, self._measured.fitted(method)[0])
            engines[method] = sampler_of(method).engine(self._subject, draws, inputs)
        return self._run(engines, draws, address=draws) if engines else {}

    def run_given(self, method: Method, omega: BatchStatistics | None) -> dict[Method, ScoredMethod]:
        """The scores of a method of given networks. If one has the pooled statistics of all draws, these are the
        address of its units."""
        engine = sampler_of(method).engine(
            self._subject, range(1), SamplerInputs({} if omega is None else {"mcbn": omega})
        )
        draws = range(engine.samples)
        pools = omega is not None and isinstance(engine, Stochastic)
        return self._run({method: engine}, draws, address=range(omega.samples) if pools else draws)

    def _run(self, engines: Mapping[Method, Engine], draws: range, *, address: range) -> dict[Method, ScoredMethod]:
        sets = self._subject.sets
        need = self.passes.prepare(engines.values(), sets["test"])
        points, first = sum(map(len, sets.values())), next(iter(sets))
        kind = "samples" if all(method.is_drawn for method in engines) else "networks"
        title = f"Evaluating {points} examples, {f'{draws.stop} {kind}' if draws.stop > 1 else 'deterministic'}"
        scored: dict[Method, ScoredMethod] = {}
        work = points * sum(engine.samples for engine in engines.values())
        # The outputs of images would be too many to keep, and each method attacks points through its own draws.
        alone = self._subject.image is not None or bool(self._subject.attacked)
        together = nullcontext() if alone else computed_together(engines)
        with together, self._progress(f"{title}, about {memory.in_words(need)}", work) as advance:
            for method, engine in engines.items():
                if method not in self.methods:
                    shared = self._subject, self._executor, self.passes, self._second
                    self.methods[method] = MethodRun(method, engine, *shared)
                self.passes.warm_up(engine_of_set(engine, first, sets[first]), sets[first])
                with nullcontext() if self._executor.makes_result else suppress(UnitsLostError):
                    scored |= self.methods[method].run(engine, draws, advance, address=address)
                if method != next((method for method in self.methods if not method.is_single), None):
                    self.methods[method].release()  # the first one's are used for pictures
                if draws.start == 0:
                    self.passes.note_arithmetic(method.name, engine)
        return scored

    def image_maps(self, results: Mapping[Method, MethodResult], shown: Sequence[int]) -> ImageMaps | None:
        """The maps of a few images of a segmentation, and of those of the rows `shown`, by the first sampled method,
        whose draws pass these again."""
        method = next((method for method in results if not method.is_single), method_named(DETERMINISTIC))
        points = self._subject.sets["test"]
        rows = [*dict.fromkeys([*chosen_images(results[method].sets["test"].points).tolist(), *shown])]
        maps = self.methods[method.plain].maps_of_images("test", rows)
        return image_maps(method.name, points, np.array(rows), maps, self._subject.settings.ignore)

    def work(self) -> dict[str, MethodWork]:
        """The work of each method, relative to the same number of passes of the deterministic network."""
        deterministic = self.methods[method_named(DETERMINISTIC)]
        chunk = default_chunk(self._subject.sets["test"].point_shape, self._subject.pipeline.device)
        order = dict.fromkeys([deterministic, *self.methods.values()])
        return {method_run.method.name: relative_work(method_run, deterministic, chunk) for method_run in order}
