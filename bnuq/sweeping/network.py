"""One network at all its mini-batch sizes: what passes, what its figures are, and its ELBO."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch

import bnuq
from bnuq import metrics
from bnuq.config import DETERMINISTIC, POPULATION, Run, SweepSection
from bnuq.data import Points, check_labels, check_targets
from bnuq.errors import RequestError
from bnuq.evaluation.datasets import Scale, target_scale
from bnuq.evaluation.draws import check_reference
from bnuq.evaluation.duration import Subject, forecast_of_sweep
from bnuq.evaluation.exactness import check_network
from bnuq.evaluation.plan import plan
from bnuq.evaluation.provenance import Stopwatch, behaviour, code_of
from bnuq.evaluation.reference_check import cautions as reference_cautions
from bnuq.evaluation.resources import check_resources_of_sweep
from bnuq.evaluation.runner import VALIDATION, check_precision
from bnuq.evaluation.setup import Prepared, output_cautions, scored_sets
from bnuq.metrics.decay import least_squares_coefficients
from bnuq.progress import Forecast, Progress
from bnuq.records import Caution, Figure
from bnuq.results.sweep import Compared, Decay, Repeated, SweepPoint, SweptModel
from bnuq.sampling import counter_rng
from bnuq.sampling.batch_statistics import BatchStatistics
from bnuq.sampling.engine import chunks, default_chunk
from bnuq.sampling.interception import undisturbed
from bnuq.sampling.passes import Evaluation
from bnuq.sampling.sites import BatchNormSite, largest_batch
from bnuq.sampling.statistics import check_batch_size
from bnuq.sweeping.elbo import LowerBound, TrainingErrors, lower_bound
from bnuq.sweeping.estimates import compared, figures_of, separation
from bnuq.sweeping.journal import Parts
from bnuq.sweeping.passes import (
    SPREAD,
    AtSize,
    DrawSets,
    Training,
    at_sizes,
    banks_of,
    classification_likelihood,
    regression_likelihood,
)
from bnuq.sweeping.recommendation import Candidate

_SMALLEST, _LARGEST = 16, 2048  # of the sizes that are swept unless they are named
_SCORES = {
    "classification": ("mutual_information", "predictive_entropy", "expected_entropy", "least_confidence"),
    "regression": ("variance",),
}
_FEW_VALUES = 3  # a channel's, up to which 1/S has no finite variance


def default_sizes(reference_points: int) -> tuple[int, ...]:
    """Powers of two from 16 to 2048, and to half the reference at most; 2 alone where that is smaller."""
    largest = min(_LARGEST, reference_points // 2)
    return tuple(size for size in (_SMALLEST * 2**k for k in range(8)) if size <= largest) or (2,)


def samples_of(run: Run) -> int:
    """T of a draw set; RequestError for what is no number of samples that a sweep can take."""
    if run.samples == "auto":
        raise RequestError('samples is "auto", which a sweep does not support; give a number with --samples.')
    if run.samples < 2:
        raise RequestError(f"--samples is {run.samples}; expected at least 2, because one sample has no spread.")
    return run.samples


def sizes_of(asked: Sequence[int] | None, default: Sequence[int]) -> tuple[int, ...]:
    """The sizes that were asked for, in order and each once; the default where none were."""
    return tuple(sorted(set(asked if asked is not None else default)))


@dataclass(frozen=True)
class Swept:
    """A network after its sweep; `candidates` are those sizes that may be chosen."""

    model: SweptModel
    points: tuple[SweepPoint, ...]
    candidates: tuple[Candidate, ...]
    cautions: tuple[Caution, ...]
    notes: tuple[str, ...]


class Network:
    """One network's part of a sweep: at `sizes`, or at the one it was trained with, `trained_with`, or both."""

    def __init__(
        self, number: int, name: str, run: Run, ready: Prepared, settings: SweepSection, *, several: bool
    ) -> None:
        if ready.material.train is None:
            raise RequestError(
                'a sweep draws mini-batches from a reference, and there is none. Add --train REF, or train = "REF" '
                "under [data]."
            )
        self._number, self.name, self.run, self.ready, self._settings = number, name, run, ready, settings
        self._train: Points = ready.material.train
        self.trained_with = run.train_batch_size or ready.loaded.checkpoint.train_batch_size
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
            check_batch_size(size, len(self._train))
        self.todo = plan(
            replace(run, methods=("mcbn",), batch_size=self.sizes[0]),
            ready.model,
            ready.example,
            test=ready.material.test,
            train=self._train,
            trained_with=ready.loaded.checkpoint.train_batch_size,
        )
        self._without_slices()
        self.sets, self._scorer = scored_sets(run, self.todo, ready.material)
        self._odd_outputs = output_cautions(ready, self.todo)
        check_precision(run, ready.pipeline.device)
        self._draw_sets = DrawSets(samples_of(run), settings.draw_sets)
        check_resources_of_sweep(
            self.todo,
            self.sets,
            labelled=("test", VALIDATION),
            sizes=len(self.sizes),
            samples=self._draw_sets.samples,
            draw_sets=self._draw_sets.sets,
        )
        self.train_size = run.train_size or len(self._train)
        self._training, self._tau, self._why_no_elbo = self._training_points()
        if settings.criterion == "pll" and self.todo.task == "regression" and not (run.scoring.tau or self._validation):
            raise RequestError("--criterion pll: a regression has no PLL without τ; name --validation REF, or --tau.")

    def _without_slices(self) -> None:
        """Leave out default sizes beyond a slice of the batch that the network normalises by itself."""
        if self._settings.batch_sizes is not None or self._matched:
            return
        with undisturbed(self.ready.model):
            largest = largest_batch(self.ready.model, self.todo.layers, self.ready.example, self.sizes[-1])
        if largest < self.sizes[-1]:
            self.sizes = self._swept_sizes = tuple(size for size in self.sizes if size <= largest) or (largest,)

    def points_of(self, name: str) -> Points | None:
        """Those of a set, or of the reference, "train"; None where there is no such set."""
        return self._train if name == "train" else self.sets.get(name)

    def keeper(self, folder: Path) -> Parts:
        """What keeps this network's finished parts: by all that determines them, but for the sizes."""
        run, pipeline = self.run, self.ready.pipeline
        fits = self._validation if self.todo.task == "regression" else None
        facts = {
            "versions": [bnuq.__version__, torch.__version__, pipeline.device.type],
            "network": [self.ready.loaded.checkpoint.sha256, *self._behaviour(), run.precision],
            "code": code_of(run.arch),
            "layers": [site.name for site in self.todo.layers],
            "pipeline": [msgspec.to_builtins(one) for one in (pipeline.normalize, run.normalize_targets, run.augment)],
            "scoring": [msgspec.to_builtins(run.scoring), run.mutual_information, fits and fits.sha256],
            "reference": self._train.sha256,
            "draws": [run.seed, self._draw_sets.samples, self._draw_sets.sets],
        }
        return Parts(folder, hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest())

    def _behaviour(self) -> list[str]:
        """What the network is, and its outputs for a few points: whatever code makes it, they change when it does."""
        found = behaviour(self.ready.model, self.ready.example)
        outputs = np.array(found["outputs"].split(), dtype=np.float64)
        size = float(np.max(np.abs(outputs))) or 1.0
        return [found["network"], f"{size:.2e}", " ".join(f"{value:.3f}" for value in outputs / size)]

    def forecast(self, *, limit: float) -> Forecast | None:
        """How long the sweep of this network takes from scratch; None where that is less than `limit` seconds."""
        ready = self.ready
        return forecast_of_sweep(
            Subject(self.run, self.todo, ready.model, ready.pipeline, self.sets, self._scorer, self._train),
            sizes=self.sizes,
            samples=self._draw_sets.samples,
            draw_sets=self._draw_sets.sets,
            training_points=0 if self._training is None else len(self._training.points),
            limit=limit,
        )

    @property
    def _validation(self) -> Points | None:
        return self.sets.get(VALIDATION)

    def swept(self, parts: Parts, watch: Stopwatch, progress: Progress) -> Swept:
        """The network at all its sizes."""
        run, ready, todo, train = self.run, self.ready, self.todo, self._train
        shared = {"todo": todo, "model": ready.model, "pipeline": ready.pipeline, "parts": parts, "progress": progress}
        ends = sorted({min(self.sizes), max(self.sizes)})
        checked = check_network(run, todo, ready.model, ready.pipeline, self.sets, train, batch_sizes=ends)
        check = check_reference(run, todo, ready.model, ready.pipeline, train, progress)
        banks = banks_of(self.sizes, self._draw_sets, train=train, **shared)
        watch.lap("draw")
        passed = at_sizes(
            banks, self.sets, self._draw_sets, run=run, scorer=self._scorer, training=self._training, **shared
        )
        found = passed.at
        beside = {} if check is None or check.passed else self._beside(found, banks, **shared)
        watch.lap("evaluate")
        bound = None
        if self._training is not None:
            of_training = self._training.points
            bound = lower_bound(
                found,
                banks,
                self._draw_sets,
                self._settings,
                errors=TrainingErrors(self.train_size, len(of_training), of_training.group),
                reference_points=len(train),
                augmented=run.augment is not None,
                tau=self._tau,
            )
        told = {size: self._told(one, bound, beside.get(size, {})) for size, one in found.items()}
        points = tuple(self._points(told))
        return Swept(
            model=SweptModel(
                name=self.name,
                path=str(run.checkpoint),
                sha256=ready.loaded.checkpoint.sha256,
                train_batch_size=self.trained_with,
                parameters=ready.loaded.parameters,
                batchnorm_layers=len(todo.sites.batchnorms),
                layers=tuple(site.name for site in todo.layers),
                elbo=None if bound is None else bound.terms,
                decay=self._decay([found[point.batch_size] for point in points if point.protocol == "single"]),
                record=replace(run, batch_size=None, methods=("mcbn",)).record(),
            ),
            points=points,
            candidates=tuple(
                Candidate(self._number, found[size], bound)
                for size in ((self.trained_with,) if self._matched and self.trained_with else self._swept_sizes)
            ),
            cautions=(
                *self._odd_outputs,
                *ready.material.cautions,
                *todo.cautions,
                *checked.cautions,
                *reference_cautions(check, run, self._train),
                *self._cautions(found, banks),
            ),
            notes=(
                *ready.loaded.notes,
                *ready.material.notes,
                *todo.notes,
                *checked.notes,
                *passed.notes,
                *self._notes(parts.read),
            ),
        )

    def _beside(
        self, found: Mapping[int, AtSize], banks: Mapping[int, BatchStatistics], *, parts: Parts, **shared: Any
    ) -> dict[int, dict[str, dict[str, Compared]]]:
        """MCBN beside the network under its running statistics, and under the population's, at each size."""
        pooled = {size: bank.pooled() for size, bank in banks.items()}
        running = {size: _running(bank, self.todo.layers) for size, bank in pooled.items()}
        sets = {name: points for name, points in self.sets.items() if name in ("test", VALIDATION)}
        exact, test, told = replace(self.run, precision="float32"), self.sets["test"], {size: {} for size in banks}
        for name, omegas in ((DETERMINISTIC, running), (POPULATION, pooled)):
            passed = at_sizes(
                omegas,
                sets,
                DrawSets(1, 1),
                run=exact,
                scorer=self._scorer,
                training=None,
                parts=parts.under(name),
                **shared,
            )
            for size, network in passed.at.items():
                told[size][name] = compared(found[size], network, test, self.todo.task)
        return told

    def _training_points(self) -> tuple[Training | None, float | None, str]:
        """The training points of the ELBO's likelihood, τ of a regression, and why there are none."""
        train, run = self._train, self.run
        if train.targets is None:
            return None, None, "the reference has no labels"
        rows = np.arange(len(train))
        if len(train) > self._settings.train_points:
            rows = counter_rng.batch_indices(
                run.seed,
                0,
                population=len(train),
                batch_size=self._settings.train_points,
                purpose=counter_rng.SUBSET,
            )
        points = train.subset(np.sort(rows))
        if self.todo.task == "classification":
            return Training(check_labels(points, self.todo.outputs), classification_likelihood), None, ""
        scale = target_scale(run, train, self.todo.outputs)
        tau = run.scoring.tau or self._most_likely_tau(scale)
        if tau is None:
            return None, None, "a regression's likelihood needs τ: name validation points, or --tau"
        mean, std = (0.0, 1.0) if scale is None else (scale.mean, scale.std)
        return (
            Training(check_targets(points, self.todo.outputs), regression_likelihood(tau, mean=mean, std=std)),
            tau,
            "",
        )

    def _most_likely_tau(self, scale: Scale | None) -> float | None:
        """The most likely precision on the validation points, of the network as it is: one for all sizes, because a
        parameter that moved with b would be no part of the same ELBO."""
        if (points := self._validation) is None:
            return None
        pipeline, engine = self.ready.pipeline, Evaluation(self.ready.model)
        blocks = chunks(
            engine,
            len(points),
            lambda rows: pipeline.evaluated(points, rows),
            size=self.run.chunk_size or default_chunk(points.point_shape),
        )
        f = np.concatenate([block[0].cpu().double().numpy() for block in blocks])
        f = f if scale is None else f * scale.std + scale.mean
        error = float(metrics.constant_sigma(np.asarray(points.targets, dtype=np.float64) - f, metric="pll"))
        return 1 / error**2 if error > 0 else None

    def _told(
        self, found: AtSize, bound: LowerBound | None, beside: Mapping[str, Mapping[str, Compared]]
    ) -> SweepPoint:
        size = found.batch_size
        test, of_ood = self.sets["test"], [name for name in self.sets if name not in (VALIDATION, "test")]
        figures: dict[str, dict[str, Repeated]] = {}
        for name, points in self.sets.items():
            for metric, one in figures_of(found, name, points, self.todo.task).items():
                figures.setdefault(metric, {})[name] = one
        auroc = {
            score: {name: separation(found, score, test, self.sets[name], name) for name in of_ood}
            for score in _SCORES[self.todo.task]
            if of_ood and score in found.points["test"]
        }
        return SweepPoint(
            model=self._number,
            protocol="single",
            batch_size=size,
            train_batch_size=self.trained_with,
            degenerate=found.degenerate,
            figures=figures,
            auroc=auroc,
            elbo=None if bound is None else bound.at.get(size),
            compared_with=beside,
        )

    def _points(self, told: Mapping[int, SweepPoint]) -> Iterator[SweepPoint]:
        yield from (told[size] for size in self._swept_sizes)
        if self._matched and self.trained_with is not None:
            yield replace(told[self.trained_with], protocol="matched")

    def _decay(self, line: Sequence[AtSize]) -> dict[str, Decay]:
        """The slopes of the spread over sizes, set by set, with errors over draw sets and, to first order, points."""
        random = [one for one in line if not one.degenerate]
        if self.run.augment is not None:  # noise does not vanish at b = N, as the finite-population factor has it
            random = [one for one in random if 2 * one.batch_size <= len(self._train)]
        metric, found = SPREAD[self.todo.task], {}
        for name, points in self.sets.items():
            positive = [one for one in random if (one.points[name][metric].mean(1) > 0).all()]
            if len(positive) < 2:
                continue
            sizes = np.array([one.batch_size for one in positive])
            values = np.stack([one.points[name][metric].mean(1) for one in positive], axis=1)
            slope = metrics.log_log_slope(sizes, values, population=len(self._train))
            mc_se = metrics.standard_error(slope.of_sets)
            by_point = np.stack([one.points[name][metric].mean(0) for one in positive], axis=1) / values.mean(0)
            se = metrics.standard_error(by_point @ least_squares_coefficients(np.log(sizes)), group=points.group)
            half = math.hypot(slope.value - slope.low, 1.959964 * se)
            figure = Figure(slope.value, se=se, mc_se=mc_se, low=slope.value - half, high=slope.value + half)
            residual = slope.residual if len(sizes) > 2 else math.nan
            found[name] = Decay(figure, residual, tuple(sizes.tolist()))
        return found

    def _cautions(self, found: Mapping[int, AtSize], banks: Mapping[int, BatchStatistics]) -> Iterator[Caution]:
        for size, bank in banks.items():
            thinnest = min(bank.layers, key=lambda layer: int(layer.count.min()))
            if (values := int(thinnest.count.min())) <= _FEW_VALUES:
                yield Caution(
                    "few-values",
                    f"b = {size}: layer {thinnest.name} takes its statistics from {values} values per channel; "
                    "with so few, the variance is sometimes so small that outputs explode. Use a larger size.",
                )
        same = [size for size, one in found.items() if one.degenerate]
        if same and len(same) == len(found):
            yield Caution(
                "nothing-random",
                f"At {', '.join(f'b = {size}' for size in same)} nothing is random: the spread of the draws is 0 "
                "and carries no information.",
            )
        if self.todo.task == "regression":
            for size, one in found.items():
                fitted = [fit for fit in one.fitted if fit is not None]
                odd = [fit for fit in fitted if fit.at_end] or fitted[:1]
                where = f"b = {size}" + (
                    f", {len(odd)} of {len(fitted)} draw sets" if 0 < len(odd) < len(fitted) else ""
                )
                yield from odd[0].cautions(where if odd[0].at_end else f"b = {size}", self.run.scoring) if odd else ()

    def _notes(self, kept: int) -> Iterator[str]:
        if kept:
            yield f"{self.name}: {kept} finished parts of an interrupted sweep were reused"
        if self._training is None:
            yield f"there is no ELBO: {self._why_no_elbo}"
        elif self.run.train_size is None:
            yield (
                f"N of the ELBO is the size of the reference, {len(self._train)}; if the network was trained on more, "
                "set train_size under [data]: the size that the ELBO selects grows with it"
            )
        if self.run.bank is not None:
            yield f"all points of a sweep share their draws: the bank of {self.run.bank} was left out"
        others = [name for name in self.run.methods or () if name != "mcbn"]
        if others:
            yield f"a sweep samples mcbn only; {', '.join(others)} of the run file was left out"


def _running(pooled: BatchStatistics, layers: Sequence[BatchNormSite]) -> BatchStatistics:
    """The running statistics of these layers in the place of those; layers that keep none stay as they are."""
    running = []
    for layer, site in zip(pooled.layers, layers, strict=True):
        if site.running_mean is not None and site.running_var is not None:
            mean, var = (one.cpu().numpy()[None] for one in (site.running_mean, site.running_var))
            layer = replace(layer, mean=mean.astype(layer.mean.dtype), var=var.astype(layer.var.dtype))
        running.append(layer)
    return replace(pooled, layers=tuple(running))
