"""Ranks the common training pipelines by their agreement with a checkpoint's running statistics.

A downloaded checkpoint often does not say how its images were normalised and augmented. Its running averages are those
of the training batches, and so depend on the pipeline.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bnuq import metrics
from bnuq.catalogue import text_of
from bnuq.config import PointSettings
from bnuq.data import Points, labelled, natural_order
from bnuq.errors import SamplingError
from bnuq.evaluation import memory
from bnuq.evaluation.datasets import limited
from bnuq.evaluation.passes import deterministic_outputs
from bnuq.evaluation.pipeline import Pipeline
from bnuq.evaluation.reference_check import BATCH_SIZE, BATCHES, can_be_checked, reference_check, why_uncheckable
from bnuq.findings import Finding, warning
from bnuq.frozen import frozen
from bnuq.metrics.arrays import as_float64
from bnuq.progress import Progress, silent
from bnuq.records.evaluation import ReferenceCheck
from bnuq.sampling import counter_rng
from bnuq.sampling.batch_statistics import BatchStatistics, LayerStatistics
from bnuq.sampling.sites import BatchNormSite, Sites
from bnuq.sampling.statistics import statistics_of
from bnuq.shapes import Float
from bnuq.studies.inspect.pipeline_settings import (
    DATA_OWN,
    IDENTITY,
    SETTING_KEYS,
    PipelineSetting,
    augment_words,
    comparison_key,
    given_setting,
    is_same_pipeline,
    padded,
    run_file_lines,
    setting_values,
    settings_to_try,
    undetermined_settings,
    why_untold,
)
from bnuq.studies.inspect.record import SURE, PipelineFit, Pipelines

FIRST_SIZE, FIRST_LAYERS = 64, 4  # of the first round, with all candidates
DISTINGUISHABLE = 3.0  # standard deviations of the noise beyond which the statistics separate two pipelines
_POINTS = 512  # that are evaluated
_CLEAR = 3.0  # standard errors between the mean log-likelihoods of the two orders


@frozen
class Effort:
    """The batches of the first round, with all candidates, and of the last one, with `finalists` of them; and the
    `pads` that the closest is also tried with in the last round."""

    first_batches: int
    finalists: int
    batches: int
    pads: tuple[int, ...] = ()


THOROUGH, QUICK = Effort(8, 12, BATCHES), Effort(4, 6, 16, pads=(2,))


@frozen
class Suggestion:
    """The closest pipeline as settings of [data] (None: not set), the settings in which candidates about as close
    differ, and the ranking of all."""

    settings: Mapping[str, Any]
    undetermined: frozenset[str]
    pipelines: Pipelines


def suggest(
    given: PointSettings,
    model: nn.Module,
    train: Points,
    sites: Sites,
    *,
    trained_with: int | None = None,
    train_size: int | None = None,
    effort: Effort | None = None,
    progress: Progress = silent,
) -> Suggestion:
    """The common training pipelines, ranked by the distance of the running statistics from those of batches of the
    reference `train` through each pipeline, in the worst layer of the reference check.

    Images are tried with the usual normalisations, channel orders and pixel scales, with and without padding, cropping
    and flipping; other points with the usual normalisations. In the first round every candidate is checked on the first
    layers, with 8 batches of 64. The 12 closest, and the `given` pipeline (normalize, channel_order, augment),
    are then checked as in `reference_check`; another `effort` has other numbers. `trained_with` is the training batch
    size, and `train_size` the size of the whole training set, if they are known.

    A candidate is tied where the running statistics are less than 3 standard deviations of noise from it in the
    direction of the best candidate (times the excess of the best's median layer over noise). The direction is the
    combination of channels that separates the two best, estimated on one half of the reference and measured on the
    other half. Where the best does not pass, none is tied with it and nothing is undetermined: the ranking of pipelines
    that do not fit means little.

    Raises SamplingError if no BatchNorm keeps an exponential running average that was ever trained, or the reference
    holds fewer than 8 points.
    """
    if train.layout is not None:
        raise SamplingError(f"the examples have several inputs ({train.form}), and pipelines of one input are known")
    effort = effort or THOROUGH
    trials = _Trials(given, model, train, sites.live_batchnorms, trained_with, train_size, progress)
    settings, first_round = _finalists(trials, effort)
    title = f"Checking the closest {len(settings)} pipelines"
    last_round = trials.checked(
        settings, title, batches=effort.batches, max_batch_size=BATCH_SIZE, layers=len(sites.live_batchnorms)
    )
    best, *others = last_round
    passed = best.check.fits
    tied = [best, *(other for other in others if passed and trials.is_indistinguishable(other, best))]
    # Of tied candidates published numbers come first, then RGB, which libraries give unless they are told otherwise.
    tied.sort(key=lambda candidate: (candidate.setting.name == DATA_OWN, candidate.setting.channel_order != "rgb"))
    close = tied if passed else [candidate for candidate in last_round if candidate.worst < SURE * best.worst]
    differing = frozenset(
        key for key in SETTING_KEYS if len({comparison_key(candidate.setting, key) for candidate in close}) > 1
    )
    untold = [f"pad and crop: {why}"] if passed and (why := why_untold(train)) else []
    differing |= {"augment"} if untold else set()
    pipelines = Pipelines(
        candidates=(
            *(candidate.record(train, tied=True) for candidate in tied),
            *(candidate.record(train, tied=False) for candidate in others if candidate not in tied),
        ),
        first_round=tuple(candidate.record(train, tied=False) for candidate in first_round),
        undetermined=(*undetermined_settings([candidate.setting for candidate in tied]), *untold),
        lines="",
    )
    remarks = [text_of(finding) for finding in findings(pipelines)] + list(pipelines.undetermined)
    setting = tied[0].setting
    lines = run_file_lines(setting, remarks, unsure=frozenset() if passed else differing, fits=passed)
    return Suggestion(setting_values(setting), differing, replace(pipelines, lines=lines))


def _finalists(trials: _Trials, effort: Effort) -> tuple[list[PipelineSetting], list[_Checked]]:
    """The settings of the last round, that of the run among them; and the candidates that end in the first round."""
    given, train = trials.given, trials.train
    own_setting, settings = given_setting(given, train), list(settings_to_try(given, train))
    if own_setting is not None:
        same_setting = next((setting for setting in settings if is_same_pipeline(setting, own_setting, train)), None)
        own_setting, settings = same_setting or own_setting, settings if same_setting else [own_setting, *settings]
    if len(settings) <= effort.finalists:
        return settings, []
    title = f"Trying {len(settings)} pipelines, before others like the closest"
    candidates = trials.checked(
        settings, title, batches=effort.first_batches, max_batch_size=FIRST_SIZE, layers=FIRST_LAYERS
    )
    finalists = [candidate.setting for candidate in candidates[: effort.finalists]]
    finalists += [setting for setting in padded(finalists[0], effort.pads, train) if setting not in finalists]
    if own_setting is not None and own_setting not in finalists:
        finalists.append(own_setting)
    return finalists, [candidate for candidate in candidates if candidate.setting not in finalists]


def findings(pipelines: Pipelines) -> Iterator[Finding]:
    """The warning that no pipeline fits."""
    best = pipelines.candidates[0]
    if not best.passed:
        yield warning(
            "no-pipeline-fits",
            tried=len(pipelines.candidates) + len(pipelines.first_round),
            worst=float(best.worst),
            worst_layer=best.worst_layer,
            median=float(best.median),
        )


# ── checks ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@frozen(eq=False)
class _Checked:
    """A pipeline with its reference check, and the batch statistics that the check used."""

    setting: PipelineSetting
    check: ReferenceCheck
    bank: BatchStatistics

    @property
    def ratios(self) -> Float[np.ndarray, "quantity layer"]:
        return np.stack([self.check.mean, self.check.log_variance]) / self.check.expected

    @property
    def worst(self) -> float:
        return float(self.ratios.max())

    @property
    def median(self) -> float:
        return float(np.median(self.ratios, axis=1).max())

    @property
    def worst_layer(self) -> str:
        return self.check.layers[int(self.ratios.max(axis=0).argmax())]

    def record(self, train: Points, *, tied: bool) -> PipelineFit:
        setting, channels = self.setting, train.point_shape[0]
        normalize = setting.normalize or IDENTITY
        mean, std = (values * (channels // len(values)) for values in (normalize.mean, normalize.std))
        return PipelineFit(
            normalize=setting.name,
            mean=mean,
            std=std,
            channel_order=setting.channel_order,
            scale=255 if setting.scale == 255 else 1,
            augment=augment_words(setting.augment, train),
            median=self.median,
            worst=self.worst,
            worst_layer=self.worst_layer,
            passed=self.check.fits,
            tied=tied,
        )


@frozen
class _Trials:
    """Tries pipelines, with the same batches and the same random numbers of augmentation for all of them."""

    given: PointSettings
    model: nn.Module
    train: Points
    sites: Sequence[BatchNormSite]
    trained_with: int | None
    train_size: int | None
    progress: Progress

    def checked(
        self, settings: Sequence[PipelineSetting], title: str, *, batches: int, max_batch_size: int, layers: int
    ) -> list[_Checked]:
        """The settings checked through the first `layers` layers that can be checked, the closest first."""
        batch_size = min(max_batch_size, len(self.train) // 4)
        if batch_size < 2:
            raise SamplingError(
                f"the training set ({self.train.reference}) holds {len(self.train)} examples; expected at least 8 to "
                "infer its training pipeline."
            )
        sites = self._first_sites(layers)
        result: list[_Checked] = []
        last: SamplingError | None = None
        with self.progress(title, batches * len(settings)) as advance:
            statistics = partial(self._statistics, sites=sites, batches=batches, batch_size=batch_size)
            try:
                banks = statistics(settings, advance=lambda: advance(1))
            except SamplingError as error:  # the network may overflow under one setting
                banks, last = [], error
                for setting in settings:
                    with suppress(SamplingError):
                        banks += statistics([setting], advance=lambda: None)
                        continue
                    banks.append(None)
        for setting, bank in zip(settings, banks, strict=True):
            check = None if bank is None else self._check(bank, sites)
            if bank is not None and check is not None:
                result.append(_Checked(setting, check, bank))
        if not result:
            raise last or _uncheckable(self.sites)
        return sorted(result, key=lambda checked: (checked.worst, checked.median))

    def is_indistinguishable(self, candidate: _Checked, best: _Checked) -> bool:
        """Whether the running statistics cannot separate `candidate` from the best."""
        if not candidate.check.fits:
            return False
        return self._distance_to_best(candidate, best) <= DISTINGUISHABLE * max(1.0, best.median)

    def _distance_to_best(self, candidate: _Checked, best: _Checked) -> float:
        """The distance of the running statistics from those of `candidate` in the direction of the best's, in standard
        deviations of noise.

        Over all channels together, weighted by the difference of the two pipelines. The noise is that of the same
        combination over the batches, so that correlated channels and layers are not counted twice. The weights are from
        one half of the reference and the distance from the other (otherwise chance would count as a difference). The
        result is the mean over both assignments of the halves.
        """
        return float(np.mean([self._distance_of_half(candidate, best, weights_half=half) for half in (0, 1)]))

    def _distance_of_half(self, candidate: _Checked, best: _Checked, *, weights_half: int) -> float:
        weights_rows, measured_rows = slice(weights_half, None, 2), slice(1 - weights_half, None, 2)
        check = self._check(candidate.bank[measured_rows], self.sites, population=len(self.train) // 2)
        if check is None:  # nothing varies in this half
            return 0.0
        gap, noise = 0.0, np.zeros(candidate.bank[measured_rows].samples)
        by_name = {site.name: site for site in self.sites}
        layers = {
            candidate_values.name: (candidate_values, best_values)
            for candidate_values, best_values in zip(candidate.bank.layers, best.bank.layers, strict=True)
        }
        for name, expected in zip(check.layers, check.expected, strict=True):
            for running, candidate_values, best_values in zip(
                *map(_quantities, (by_name[name], *layers[name])), strict=True
            ):
                spread = candidate_values.std(0, ddof=1)
                usable = np.isfinite(running) & np.isfinite(candidate_values).all(0) & np.isfinite(best_values).all(0)
                usable &= spread > 1e-6 * np.maximum(
                    np.abs(running), np.abs(candidate_values).max(0)
                )  # less is rounding error
                candidate_values, difference = (
                    candidate_values[:, usable],
                    (best_values[weights_rows].mean(0) - candidate_values[weights_rows].mean(0))[usable],
                )
                weight, middle = difference / spread[usable] ** 2, candidate_values[measured_rows].mean(0)
                gap += float(weight @ (running[usable] - middle))
                noise += expected * ((candidate_values[measured_rows] - middle) @ weight)
        error = float(noise.std(ddof=1))
        return gap / error if error > 0 else 0.0

    def _check(
        self, bank: BatchStatistics, sites: Sequence[BatchNormSite], *, population: int | None = None
    ) -> ReferenceCheck | None:
        return reference_check(
            bank,
            [site for site in sites if can_be_checked(site, self.sites)],  # a later call may be outside `sites`
            population=population or len(self.train),
            train_size=self.train_size,
            train_batch_size=self.trained_with,
        )

    @cached_property
    def _halves(self) -> tuple[np.ndarray, np.ndarray]:
        """The rows of the reference in two halves, by the run's seed."""
        n = len(self.train)
        order = counter_rng.batch_indices(self.given.seed, 0, population=n, batch_size=n, purpose=counter_rng.SUBSET)
        return order[: n // 2], order[n // 2 :]

    def _first_sites(self, layers: int) -> Sequence[BatchNormSite]:
        """The sites up to number `layers` of those that can be checked."""
        checkable = [number for number, site in enumerate(self.sites) if can_be_checked(site, self.sites)]
        if not checkable:
            raise _uncheckable(self.sites)
        return self.sites if layers >= len(self.sites) else self.sites[: checkable[min(layers, len(checkable)) - 1] + 1]

    def _statistics(
        self,
        settings: Sequence[PipelineSetting],
        *,
        sites: Sequence[BatchNormSite],
        batches: int,
        batch_size: int,
        advance,
    ) -> list[BatchStatistics | None]:
        tensors = itertools.chain(self.model.parameters(), self.model.buffers())
        free = memory.available(next((tensor.device for tensor in tensors), torch.device("cpu")))
        batches_of_draws = (self._batches(settings, draw, batch_size) for draw in range(batches))
        bank = statistics_of(
            self.model,
            itertools.chain.from_iterable(batches_of_draws),
            layers=sites,
            on_draw=advance,
            memory_limit=free,
        )
        return [bank[number :: len(settings)] for number in range(len(settings))]

    def _batches(self, settings: Sequence[PipelineSetting], draw: int, batch_size: int) -> Iterator[Tensor]:
        """One batch of a half of the reference, alternating between the halves, read once, through every pipeline."""
        half = self._halves[draw % 2]
        rows = counter_rng.batch_indices(
            self.given.seed, draw, population=len(half), batch_size=batch_size, purpose=counter_rng.CHECK
        )
        rows = half[rows]
        drawn = replace(self.train, inputs=self.train.inputs[rows], targets=None, group=None)
        for setting in settings:
            parts = setting.augment is not None and setting.augment.resized_crop is not None
            points = self.train.subset(rows) if parts else drawn  # of the original images, or of those as resized
            pipeline = setting.pipeline(self.given)
            yield pipeline.trained(points, np.arange(batch_size), draw=draw, purpose=counter_rng.CHECK_AUGMENT)


def _uncheckable(sites: Sequence[BatchNormSite]) -> SamplingError:
    return SamplingError(f"the training pipeline cannot be inferred from this checkpoint: {why_uncheckable(sites)}.")


def _quantities(source: BatchNormSite | LayerStatistics) -> tuple[np.ndarray, np.ndarray]:
    """Mean and log of the unbiased variance: (channel,) of running statistics, (batch, channel) of batches."""
    if isinstance(source, BatchNormSite):
        assert source.running_mean is not None and source.running_var is not None
        mean, var = as_float64(source.running_mean), as_float64(source.running_var)
    else:
        mean, var = source.mean.astype(np.float64), source.var * (source.count / (source.count - 1))[:, None]
    with np.errstate(divide="ignore"):
        return mean, np.log(var)


@frozen
class ClassOrder:
    """The names of the classes in timm's order, the accuracy on so many points with this order and with names sorted as
    texts, and by how many standard errors of the mean log-likelihood it fits better."""

    natural: tuple[str, ...]
    points: int
    accuracy: float
    accuracy_as_texts: float
    evidence: float

    @property
    def is_natural(self) -> bool:
        return self.evidence > _CLEAR and self.accuracy > self.accuracy_as_texts

    @property
    def is_sorted_as_texts(self) -> bool:
        return self.evidence < -_CLEAR


def class_order(model: nn.Module, pipeline: Pipeline, points: Points) -> ClassOrder | None:
    """How well both orders fit the labels of these points, whose classes are sorted as texts; None where there are no
    two orders, no labels, or another number of outputs."""
    names = points.classes or ()
    natural = natural_order(names)
    if not points.classes_sorted or natural == list(names):
        return None
    points = limited(labelled(points), _POINTS, pipeline.settings.seed)
    if points.targets is None or points.targets.ndim != 1:
        return None
    logits = torch.cat([block[0].cpu() for block in deterministic_outputs(model, pipeline, points)]).double()
    if logits.shape[1:] != (len(names),):
        return None
    as_texts = torch.from_numpy(points.targets)
    by_value = torch.tensor([natural.index(name) for name in names])[as_texts]
    gain = (metrics.log_likelihood(logits, by_value) - metrics.log_likelihood(logits, as_texts)).numpy()
    error = float(np.std(gain)) / math.sqrt(len(gain))
    mean = float(np.mean(gain))
    predicted = logits.argmax(1)
    return ClassOrder(
        tuple(natural),
        len(points),
        float((predicted == by_value).double().mean()),
        float((predicted == as_texts).double().mean()),
        mean / error if error > 0 else math.copysign(math.inf, mean) if mean else 0.0,
    )
