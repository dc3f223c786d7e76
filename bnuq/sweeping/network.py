"""One network at all its mini-batch sizes: its passes, its estimates, and its ELBO."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import msgspec
import numpy as np
from scipy.special import stdtrit

from bnuq import metrics
from bnuq.config import Run, SweepSection
from bnuq.data import Points, check_labels, check_targets, labelled
from bnuq.errors import RequestError
from bnuq.estimates import Estimate
from bnuq.evaluation.datasets import Scale, target_scale
from bnuq.evaluation.draws import check_reference
from bnuq.evaluation.estimates import interval
from bnuq.evaluation.exactness import Checked, check_network, check_network_unchanged
from bnuq.evaluation.executors import Executor
from bnuq.evaluation.passes import deterministic_outputs
from bnuq.evaluation.plan import plan
from bnuq.evaluation.provenance import Stopwatch, behaviour, code_of, content
from bnuq.evaluation.reference_check import findings as reference_findings
from bnuq.evaluation.resources import check_resources_of_sweep
from bnuq.evaluation.runner import check_precision
from bnuq.evaluation.setup import Prepared, findings_on_labels, findings_on_outputs, scored_sets
from bnuq.evaluation.subject import VALIDATION, Subject
from bnuq.files.journal import Journal, WorkFolder
from bnuq.findings import Finding, note, warning
from bnuq.methods import DETERMINISTIC, POPULATION
from bnuq.metrics.decay import least_squares_coefficients
from bnuq.metrics.registry import estimates_of_task, metric_of
from bnuq.progress import Progress
from bnuq.records.evaluation import ReferenceCheck
from bnuq.records.sweep import Compared, Decay, Repeated, SweepPoint, SweptModel
from bnuq.sampling import counter_rng
from bnuq.sampling.batch_statistics import BatchStatistics
from bnuq.sampling.batchnorm_calls import largest_batch
from bnuq.sampling.interception import undisturbed
from bnuq.sampling.sites import BatchNormSite
from bnuq.sampling.statistics import check_batch_size
from bnuq.sweeping.elbo import NORMAL, LowerBound, TrainingErrors, lower_bound
from bnuq.sweeping.recommendation import Candidate
from bnuq.sweeping.sizes import (
    AtSize,
    DrawSets,
    SweepPasses,
    Training,
    banks_of,
    classification_likelihood,
    regression_likelihood,
    run_at_sizes,
)
from bnuq.tasks import Task

_SMALLEST, _LARGEST = 16, 2048  # of the default sizes
_SCORES = {
    "classification": metrics.CLASSIFICATION_SCORES,
    "regression": metrics.REGRESSION_SCORES,
}
_FEW_VALUES = 3  # values per channel up to which 1/S has no finite variance
_DIFFERENCE = "difference"


def default_sizes(reference_points: int) -> tuple[int, ...]:
    """Powers of two from 16 to 2048, at most half the reference; only 2 if that is below 16."""
    largest = min(_LARGEST, reference_points // 2)
    return tuple(size for size in (_SMALLEST * 2**k for k in range(8)) if size <= largest) or (2,)


def samples_of(run: Run) -> int:
    """T of a draw set; RequestError for "auto", or fewer than 2."""
    if run.samples == "auto":
        raise RequestError('samples is "auto", which a sweep does not support; give a number with --samples.')
    if run.samples < 2:
        raise RequestError(f"--samples is {run.samples}; expected at least 2, because one sample has no spread.")
    return run.samples


def sizes_of(requested: Sequence[int] | None, default: Sequence[int]) -> tuple[int, ...]:
    """The requested sizes in ascending order without repeats; the default if none were requested."""
    return tuple(sorted(set(requested if requested is not None else default)))


@dataclass(frozen=True)
class Swept:
    """The sweep of one network; `candidates` are the sizes that may be recommended."""

    model: SweptModel
    points: tuple[SweepPoint, ...]
    candidates: tuple[Candidate, ...]
    findings: tuple[Finding, ...]


class AllPassed(NamedTuple):
    """The passes of one network: the check of its reference, ω and scores at each size, and what MCBN is compared
    with."""

    check: ReferenceCheck | None
    banks: dict[int, BatchStatistics]
    passed: SweepPasses
    comparisons: dict[int, dict[str, dict[str, Compared]]]


class Network:
    """One network of a sweep: at `sizes`, or at its training batch size `trained_with`, or both."""

    def __init__(
        self, number: int, name: str, run: Run, prepared: Prepared, settings: SweepSection, *, several: bool
    ) -> None:
        assert prepared.material.train is not None  # ensured by check_complete
        self._number, self.name, self.run, self.ready, self._settings = number, name, run, prepared, settings
        self._train: Points = prepared.material.train
        self.trained_with = run.train_batch_size or prepared.loaded.checkpoint.train_batch_size
        if several and self.trained_with is None:
            file = (run.run_file or run.checkpoint.with_suffix(".toml")).name
            raise RequestError(
                f"{run.checkpoint.name}: with several networks, each is sampled at its training batch size, and "
                f"this network's is not known. Add to {file}:\n\n[model]\ntrain_batch_size = 128"
            )
        self._swept_sizes = sizes_of(settings.batch_sizes, () if several else default_sizes(len(self._train)))
        self._matched = several
        sizes = {*self._swept_sizes} | ({self.trained_with} if several and self.trained_with else set())
        self.sizes = tuple(sorted(sizes))
        for size in self.sizes:
            check_batch_size(size, len(self._train), least=2)
        self.todo = plan(
            replace(run, methods=("mcbn",), batch_size=self.sizes[0]),
            prepared.model,
            prepared.example,
            test=prepared.material.test,
            train=self._train,
            trained_with=prepared.loaded.checkpoint.train_batch_size,
            dropout_arguments=prepared.loaded.dropout_arguments,
        )
        if self.todo.task.is_dense:
            raise RequestError(
                f"{run.checkpoint.name} classifies pixels, and a sweep is for classification and regression of points. "
                "Instead, run `bnuq evaluate --batch-size B` at a few sizes B, each with another --out, and compare "
                "them with `bnuq report`."
            )
        self._without_slices()
        self.sets, scorer = scored_sets(run, self.todo, prepared.material)
        self.subject = Subject(run, self.todo, prepared.model, prepared.pipeline, self.sets, scorer, self._train)
        self._odd_outputs = findings_on_outputs(prepared, self.todo)
        check_precision(run, prepared.pipeline.device)
        self._draw_sets = DrawSets(samples_of(run), settings.draw_sets)
        check_resources_of_sweep(
            self.subject,
            sizes=len(self.sizes),
            samples=self._draw_sets.samples,
            draw_sets=self._draw_sets.sets,
        )
        self.train_size = run.train_size or len(self._train)
        self._training, self._tau, self._why_no_elbo = self._training_points()
        if settings.criterion == "pll" and (self._validation or prepared.material.test).targets is None:
            raise RequestError(
                f"--criterion pll: the test set {prepared.material.test.reference} has no labels; name "
                "--validation REF, or --criterion elbo or auroc."
            )
        if settings.criterion == "pll" and self.todo.task.is_regression and not (run.scoring.tau or self._validation):
            raise RequestError("--criterion pll: a regression has no PLL without τ; name --validation REF, or --tau.")

    def _without_slices(self) -> None:
        """Leave out default sizes above the slice of the batch that the network normalises at a time."""
        if self._settings.batch_sizes is not None or self._matched:
            return
        with undisturbed(self.ready.model):
            largest = largest_batch(self.ready.model, self.todo.layers, self.ready.example, self.sizes[-1])
        if largest < self.sizes[-1]:
            self.sizes = self._swept_sizes = tuple(size for size in self.sizes if size <= largest) or (largest,)

    def points_of(self, name: str) -> Points | None:
        """The points of a set, or of the reference ("train"); None if there is no such set."""
        return self._train if name == "train" else self.sets.get(name)

    def journal(self, work: WorkFolder) -> Journal:
        """The journal of this network's finished parts, keyed by all that determines them except the sizes."""
        run, pipeline = self.run, self.ready.pipeline
        fits = self._validation if self.todo.task.is_regression else None
        checkpoint_sha256 = self.ready.loaded.checkpoint.sha256
        network = behaviour(self.ready.model, self.ready.example)
        facts = {
            "precision": run.precision,
            "code": code_of(run.arch),
            "layers": [site.name for site in self.todo.layers],
            "pipeline": [
                msgspec.to_builtins(estimate) for estimate in (pipeline.normalize, run.normalize_targets, run.augment)
            ],
            "scoring": [msgspec.to_builtins(run.scoring), run.mutual_information, fits and fits.sha256],
            "draws": [run.seed, self._draw_sets.samples, self._draw_sets.sets],
        }
        return work.journal(
            facts
            | content(checkpoint_sha256=checkpoint_sha256, network=network, device=pipeline.device, train=self._train)
        )

    @property
    def _validation(self) -> Points | None:
        return self.sets.get(VALIDATION)

    def passed(self, executor: Executor, watch: Stopwatch, progress: Progress) -> AllPassed:
        """The passes at all sizes: those units of them that the executor computes."""
        banks = banks_of(self.sizes, self._draw_sets, self.subject, executor, progress)
        watch.lap("draw")
        passed = run_at_sizes(banks, self._draw_sets, self.subject, executor, progress, training=self._training)
        watch.lap("evaluate")
        subject, todo = self.subject, self.todo
        of_network = subject.model, subject.pipeline, self._train, todo.sites.live_batchnorms, progress
        check = check_reference(*of_network, trained_with=todo.trained_with, executor=executor)
        watch.lap("draw")
        comparisons = {} if check is None or check.passed else self._comparisons(passed.at, banks, executor, progress)
        watch.lap("evaluate")
        return AllPassed(check, banks, passed, comparisons)

    def checked(self) -> Checked:
        """SamplingError unless MCBN is exact at the smallest and the largest size."""
        return check_network(self.subject, batch_sizes=sorted({min(self.sizes), max(self.sizes)}))

    def swept(self, checked: Checked, executor: Executor, watch: Stopwatch, progress: Progress) -> Swept:
        """The network, which was checked, at all its sizes."""
        run, prepared, todo, train = self.run, self.ready, self.todo, self._train
        check, banks, passed, comparisons = self.passed(executor, watch, progress)
        check_network_unchanged(checked, self.subject)
        at_sizes = passed.at
        bound = None
        if self._training is not None:
            training_points = self._training.points
            bound = lower_bound(
                at_sizes,
                banks,
                self._draw_sets,
                self._settings,
                errors=TrainingErrors(self.train_size, len(training_points), training_points.group),
                reference_points=len(train),
                augmented=run.augment is not None,
                tau=self._tau,
            )
        points_of_sizes = {
            size: self._sweep_point(at_size, bound, comparisons.get(size, {})) for size, at_size in at_sizes.items()
        }
        points = tuple(self._points(points_of_sizes))
        return Swept(
            model=SweptModel(
                name=self.name,
                path=str(run.checkpoint),
                sha256=prepared.loaded.checkpoint.sha256,
                train_batch_size=self.trained_with,
                parameters=prepared.loaded.parameters,
                batchnorm_layers=len(todo.sites.batchnorms),
                layers=tuple(site.name for site in todo.layers),
                elbo=None if bound is None else bound.terms,
                decay=self._decay([at_sizes[point.batch_size] for point in points if point.protocol == "single"]),
                record=replace(run, batch_size=None, methods=("mcbn",)).record(),
            ),
            points=points,
            candidates=tuple(
                Candidate(self._number, at_sizes[size], bound)
                for size in ((self.trained_with,) if self._matched and self.trained_with else self._swept_sizes)
            ),
            findings=(
                *self._odd_outputs,
                *prepared.loaded.findings,
                *prepared.material.findings,
                *findings_on_labels(
                    [*self.sets.values(), *([self._training.points] if self._training else [])],
                    test=self.sets["test"],
                    outputs=todo.outputs,
                ),
                *todo.findings,
                *checked.findings,
                *reference_findings(check, run, self._train, todo.sites.live_batchnorms),
                *passed.findings,
                *self._findings_on_sizes(at_sizes, banks),
                *self._notes(executor.journal.reused),
            ),
        )

    def _comparisons(
        self,
        at_sizes: Mapping[int, AtSize],
        banks: Mapping[int, BatchStatistics],
        executor: Executor,
        progress: Progress,
    ) -> dict[int, dict[str, dict[str, Compared]]]:
        """MCBN compared with the network under its running statistics, and under population statistics, at each
        size."""
        pooled = {size: bank.pooled() for size, bank in banks.items()}
        running = {size: _running(bank, self.todo.layers) for size, bank in pooled.items()}
        labelled = replace(self.subject, run=replace(self.run, precision="float32"), sets=self.subject.labelled)
        result: dict[int, dict[str, dict[str, Compared]]] = {size: {} for size in banks}
        for name, omegas in ((DETERMINISTIC, running), (POPULATION, pooled)):
            passed = run_at_sizes(omegas, DrawSets(1, 1), labelled, executor, progress, training=None, method=name)
            for size, network in passed.at.items():
                result[size][name] = _compared(at_sizes[size], network, self.sets["test"], self.todo.task)
        return result

    def _training_points(self) -> tuple[Training | None, float | None, str]:
        """The training points of the ELBO's likelihood, τ of a regression, and why there is no ELBO."""
        train, run = self._train, self.run
        rows = np.arange(len(train))
        if len(train) > self._settings.train_points:
            size, purpose = self._settings.train_points, counter_rng.SUBSET
            rows = counter_rng.batch_indices(run.seed, 0, population=len(train), batch_size=size, purpose=purpose)
        points = labelled(train.subset(np.sort(rows)))
        if points.targets is None:
            return None, None, "the reference has no labels"
        if self.todo.task.classifies_points:
            return Training(check_labels(points, self.todo.outputs), classification_likelihood), None, ""
        scale = target_scale(run, train, self.todo.outputs)
        tau = run.scoring.tau or self._most_likely_tau(scale)
        if tau is None:
            return None, None, "a regression's likelihood needs τ: name validation points, or --tau"
        mean, std = (0.0, 1.0) if scale is None else (scale.mean, scale.std)
        likelihood = regression_likelihood(tau, mean=mean, std=std)
        return Training(check_targets(points, self.todo.outputs), likelihood), tau, ""

    def _most_likely_tau(self, scale: Scale | None) -> float | None:
        """The most likely precision of the deterministic network on the validation points: the same for all sizes,
        because ELBOs with different τ cannot be compared."""
        if (points := self._validation) is None:
            return None
        blocks = deterministic_outputs(self.ready.model, self.ready.pipeline, points)
        f = np.concatenate([block[0].cpu().double().numpy() for block in blocks])
        f = f if scale is None else f * scale.std + scale.mean
        error = float(metrics.constant_sigma(np.asarray(points.targets, dtype=np.float64) - f, metric="pll"))
        return 1 / error**2 if error > 0 else None

    def _sweep_point(
        self, at_size: AtSize, bound: LowerBound | None, comparisons: Mapping[str, Mapping[str, Compared]]
    ) -> SweepPoint:
        size = at_size.batch_size
        test, ood = self.sets["test"], self.subject.ood
        estimates: dict[str, dict[str, Repeated]] = {}
        for name, points in self.sets.items():
            for metric, estimate in _estimates_of(at_size, name, points, self.todo.task).items():
                estimates.setdefault(metric, {})[name] = estimate
        auroc = {
            score: {name: _separation(at_size, score, test, points, name) for name, points in ood.items()}
            for score in _SCORES[self.todo.task.name]
            if ood and score in at_size.points["test"]
        }
        return SweepPoint(
            model=self._number,
            protocol="single",
            batch_size=size,
            train_batch_size=self.trained_with,
            degenerate=at_size.degenerate,
            estimates=estimates,
            auroc=auroc,
            elbo=None if bound is None else bound.at.get(size),
            compared_with=comparisons,
        )

    def _points(self, points_of_sizes: Mapping[int, SweepPoint]) -> Iterator[SweepPoint]:
        yield from (points_of_sizes[size] for size in self._swept_sizes)
        if self._matched and self.trained_with is not None:
            yield replace(points_of_sizes[self.trained_with], protocol="matched")

    def _decay(self, line: Sequence[AtSize]) -> dict[str, Decay]:
        """The slopes of the spread over sizes, for each set, with errors over draw sets and, to first order, over
        points."""
        random = [at_size for at_size in line if not at_size.degenerate]
        if self.run.augment is not None:  # noise does not vanish at b = N, as the finite-population factor has it
            random = [at_size for at_size in random if 2 * at_size.batch_size <= len(self._train)]
        metric, decays = self.todo.task.spread, {}
        for name, points in self.sets.items():
            positive = [at_size for at_size in random if (at_size.points[name][metric].mean(1) > 0).all()]
            if len(positive) < 2:
                continue
            sizes = np.array([at_size.batch_size for at_size in positive])
            values = np.stack([at_size.points[name][metric].mean(1) for at_size in positive], axis=1)
            slope = metrics.log_log_slope(sizes, values, population=len(self._train))
            mc_se = metrics.standard_error(slope.of_sets)
            by_point = np.stack([at_size.points[name][metric].mean(0) for at_size in positive], axis=1) / values.mean(0)
            se = metrics.standard_error(by_point @ least_squares_coefficients(np.log(sizes)), group=points.group)
            half = math.hypot(slope.value - slope.low, NORMAL * se)
            estimate = Estimate(slope.value, se=se, mc_se=mc_se, low=slope.value - half, high=slope.value + half)
            residual = slope.residual if len(sizes) > 2 else math.nan
            decays[name] = Decay(estimate, residual, tuple(sizes.tolist()))
        return decays

    def _findings_on_sizes(
        self, at_sizes: Mapping[int, AtSize], banks: Mapping[int, BatchStatistics]
    ) -> Iterator[Finding]:
        for size, bank in banks.items():
            thinnest = min(bank.layers, key=lambda layer: int(layer.count.min()))
            if (values := int(thinnest.count.min())) <= _FEW_VALUES:
                yield warning("few-values", batch_size=size, layer=thinnest.name, values=values)
        same = [size for size, at_size in at_sizes.items() if at_size.degenerate]
        if same and len(same) == len(at_sizes):
            yield warning("nothing-random", batch_sizes=same)
        if self.todo.task.is_regression:
            for size, at_size in at_sizes.items():
                fitted = [fit for fit in at_size.fitted if fit is not None]
                at_range_end = [fit for fit in fitted if fit.at_end]
                where = f"b = {size}"
                if 0 < len(at_range_end) < len(fitted):
                    where += f", {len(at_range_end)} of {len(fitted)} draw sets"
                for fit in (at_range_end or fitted)[:1]:
                    yield from fit.findings(where, self.run.scoring)

    def _notes(self, reused: int) -> Iterator[Finding]:
        if reused:
            yield note("sweep-continued", network=self.name, parts=reused)
        if self._training is None:
            yield note("no-elbo", reason=self._why_no_elbo)
        elif self.run.train_size is None:
            yield note("elbo-of-reference-size", points=len(self._train))
        if self.run.bank is not None:
            yield note("bank-left-out", bank=self.run.bank)
        others = [name for name in self.run.methods or () if name != "mcbn"]
        if others:
            yield note("methods-left-out", methods=others)


def _running(pooled: BatchStatistics, layers: Sequence[BatchNormSite]) -> BatchStatistics:
    """`pooled` with the running statistics of these layers; layers without running statistics keep the pooled
    statistics."""
    running = []
    for layer, site in zip(pooled.layers, layers, strict=True):
        if site.running_mean is not None and site.running_var is not None:
            mean, var = (statistics.cpu().numpy()[None] for statistics in (site.running_mean, site.running_var))
            layer = replace(layer, mean=mean.astype(layer.mean.dtype), var=var.astype(layer.var.dtype))
        running.append(layer)
    return replace(pooled, layers=tuple(running))


# ── estimates of one size ────────────────────────────────────────────────────────────────────────────────────────────


def _estimates_of(at_size: AtSize, name: str, points: Points, task: Task) -> dict[str, Repeated]:
    """The estimates of one set: the means of its points' scores, and estimates derived from them."""
    values = at_size.points[name]
    result = {}
    for metric in estimates_of_task(task.name, shown="sweep"):
        if metric in values:
            result[metric] = _mean(metric, values[metric], points)
    if "squared_error" in values:
        result["rmse"] = _root(values["squared_error"], points)
        if at_size.fitted[0] is not None:
            result["tau"] = _repeated("tau", np.array([fit.tau[0] for fit in at_size.fitted]), None)
    if task.classifies_points and "accuracy" in values:
        result["ece"] = _calibration(values, points)
    return result


def _mean(metric: str, values: np.ndarray, points: Points) -> Repeated:
    se = metrics.standard_error(values.mean(0), group=points.group)
    return _repeated(metric, values.mean(1), se, points)


def _compared(at_size: AtSize, network: AtSize, test: Points, task: Task) -> dict[str, Compared]:
    """A deterministic network on the test points, and the difference of MCBN from it, for the metrics with a
    direction."""
    sampled, deterministic = at_size.points["test"], network.points["test"]
    result = {}
    for metric in estimates_of_task(task.name, shown="sweep"):
        if metrics.METRICS[metric].direction != "none" and metric in sampled and metric in deterministic:
            difference = _mean(_DIFFERENCE, sampled[metric] - deterministic[metric], test)
            result[metric] = Compared(_mean(metric, deterministic[metric], test).estimate, difference.estimate)
    return result


def _root(squares: np.ndarray, points: Points) -> Repeated:
    of_sets = np.sqrt(squares.mean(1))
    se = metrics.standard_error(squares.mean(0), group=points.group)
    return _repeated("rmse", of_sets, se / (2 * float(of_sets.mean())) if of_sets.all() else 0.0, points)


def _calibration(values: Mapping[str, np.ndarray], points: Points) -> Repeated:
    bins = metrics.calibration_bins(values["max_probability"], values["accuracy"])
    resampled = metrics.calibration_bootstrap(values["max_probability"][0], values["accuracy"][0], group=points.group)
    se = float(np.std(metrics.ece_of_bins(resampled), ddof=1))
    return _repeated("ece", np.asarray(metrics.ece_of_bins(bins)), se, points)


def _separation(at_size: AtSize, score: str, test: Points, ood: Points, name: str) -> Repeated:
    """The AUROC of the OOD set `name` by a score."""
    inside, outside = at_size.points["test"][score], at_size.points[name][score]
    of_sets = np.array([metrics.auroc(a, b) for a, b in zip(inside, outside, strict=True)])
    variance = metrics.delong_variance(inside.mean(0), outside.mean(0), test_group=test.group, ood_group=ood.group)
    return _repeated("auroc", of_sets, math.sqrt(variance), test, ood)


def _repeated(metric: str, of_sets: np.ndarray, se: float | None, *points: Points) -> Repeated:
    """The mean over draw sets, with both errors; a single draw set has no Monte Carlo error."""
    value, mc_se = float(of_sets.mean()), metrics.standard_error(of_sets)
    over_points = None
    if se is not None and all(
        len(set_points if set_points.group is None else np.unique(set_points.group)) > 1 for set_points in points
    ):
        over_points = se if math.isfinite(se) else None
    error = mc_se if math.isfinite(mc_se) else None
    # `interval` assumes normal errors; the Monte Carlo error is scaled to Student's t, because draw sets are few.
    errors = (over_points, None if error is None else error * float(stdtrit(len(of_sets) - 1, 0.975)) / NORMAL)
    low, high = interval(metric, value, *errors, limits=metric_of(metric).limits)
    return Repeated(Estimate(value, se=over_points, mc_se=error, low=low, high=high), of_sets)
