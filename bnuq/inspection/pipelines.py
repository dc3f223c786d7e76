"""Ranks the common training pipelines by their agreement with a checkpoint's running statistics.

A downloaded checkpoint often does not say how its images were normalised and augmented. Its running averages are those
of the training batches, and so depend on the pipeline.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import msgspec
import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from bnuq.catalogue import text_of
from bnuq.config import Augment, ChannelOrder, Normalize, Run, as_toml
from bnuq.config.normalizations import PUBLISHED
from bnuq.data import Points
from bnuq.errors import SamplingError
from bnuq.evaluation import memory
from bnuq.evaluation.datasets import Pipeline, input_normalize
from bnuq.evaluation.reference_check import (
    BATCH_SIZE,
    BATCHES,
    can_be_checked,
    reference_check,
    why_uncheckable,
)
from bnuq.findings import Finding, all_of, warning
from bnuq.metrics.arrays import as_float64
from bnuq.progress import Progress, silent
from bnuq.records.evaluation import ReferenceCheck
from bnuq.records.inspection import SURE, PipelineFit, Pipelines
from bnuq.sampling import counter_rng
from bnuq.sampling.batch_statistics import BatchStatistics, LayerStatistics
from bnuq.sampling.sites import BatchNormSite, Sites
from bnuq.sampling.statistics import statistics_of

FIRST_SIZE, FIRST_LAYERS = 64, 4  # of the first round, with all candidates
DISTINGUISHABLE = 3.0  # standard deviations of the noise beyond which the statistics separate two pipelines
_OVERSHOOT = 1e-3  # share of pixels at either end that is ignored when their range is determined
_DATA_POINTS = 10_000  # for mean and standard deviation of the data


@dataclass(frozen=True)
class Effort:
    """The batches of the first round, with all candidates, and of the last one, with `finalists` of them; and the
    `pads` that the closest is also tried with in the last round."""

    first_batches: int
    finalists: int
    batches: int
    pads: tuple[int, ...] = ()


THOROUGH, QUICK = Effort(8, 12, BATCHES), Effort(4, 6, 16, pads=(2,))

DATA_OWN, MIN_MAX, RUN_FILE = "the data's own", "min-max", "the run file's"
_TRIED = {  # by the label in records
    "imagenet": "imagenet",
    "cifar10": "cifar10",
    "cifar10 (std 0.2023)": "cifar10-0.2023",
    "cifar100": "cifar100",
    "svhn": "svhn",
    "mnist": "mnist",
    "fashion-mnist": "fashion-mnist",
}
_IDENTITY = Normalize(mean=(0.0,), std=(1.0,))
_CAFFE = (123.68, 116.779, 103.939)  # red, green, blue of 0–255; the standard deviation is not changed


@dataclass(frozen=True)
class Suggestion:
    """The closest pipeline as settings of [data] (None: not set), the settings in which candidates about as close
    differ, and the ranking of all."""

    settings: Mapping[str, Any]
    undetermined: frozenset[str]
    pipelines: Pipelines


def suggest(
    run: Run,
    model: nn.Module,
    train: Points,
    sites: Sites,
    *,
    trained_with: int | None = None,
    effort: Effort | None = None,
    progress: Progress = silent,
) -> Suggestion:
    """The common training pipelines, ranked by the distance of the running statistics from those of batches of the
    reference `train` through each pipeline, in the worst layer of the reference check.

    Images are tried with the usual normalisations, channel orders and pixel scales, with and without padding, cropping
    and flipping; other points with the usual normalisations. In the first round every candidate is checked on the first
    layers, with 8 batches of 64. The 12 closest, and the pipeline that `run` sets (normalize, channel_order, augment),
    are then checked as in `reference_check`; another `effort` has other numbers. `trained_with` is the training batch
    size, if it is known.

    A candidate is tied where the running statistics are less than 3 standard deviations of noise from it in the
    direction of the best candidate (times the excess of the best's median layer over noise). The direction is the
    combination of channels that separates the two best, estimated on one half of the reference and measured on the
    other half. Where the best does not pass, none is tied with it and nothing is undetermined: the ranking of pipelines
    that do not fit means little.

    Raises SamplingError if no BatchNorm keeps an exponential running average that was ever trained, or the reference
    holds fewer than 8 points.
    """
    if train.layout is not None:
        raise SamplingError(f"the points have several inputs ({train.form}), and pipelines of one input are known")
    effort = effort or THOROUGH
    trials = _Trials(run, model, train, sites.live_batchnorms, trained_with, progress)
    run_setting, settings = _run_setting(run, train), list(_settings(run, train))
    if run_setting is not None:
        same_setting = next(
            (candidate for candidate in settings if _is_same_pipeline(candidate, run_setting, train)), None
        )
        run_setting, settings = same_setting or run_setting, settings if same_setting else [run_setting, *settings]
    left_over: list[_Checked] = []
    if len(settings) > effort.finalists:
        title = f"Trying {len(settings)} pipelines"
        first = trials.checked(
            settings, title, batches=effort.first_batches, max_batch_size=FIRST_SIZE, layers=FIRST_LAYERS
        )
        settings = [candidate.setting for candidate in first[: effort.finalists]]
        settings += [setting for setting in _padded(settings[0], effort.pads, train) if setting not in settings]
        if run_setting is not None and run_setting not in settings:
            settings.append(run_setting)
        left_over = [candidate for candidate in first if candidate.setting not in settings]
    title = f"Checking the closest {len(settings)} pipelines"
    final = trials.checked(
        settings, title, batches=effort.batches, max_batch_size=BATCH_SIZE, layers=len(sites.live_batchnorms)
    )
    best, *others = final
    tied = [
        best,
        *(
            candidate
            for candidate in others
            if best.check.is_within_limits and trials.is_indistinguishable(candidate, best)
        ),
    ]
    # Of tied candidates published numbers come first, then RGB, which libraries give unless they are told otherwise.
    tied.sort(key=lambda candidate: (candidate.setting.name == DATA_OWN, candidate.setting.channel_order != "rgb"))
    chosen, passed = tied[0], best.check.is_within_limits
    close = tied if passed else [candidate for candidate in final if candidate.worst < SURE * best.worst]
    differing = frozenset(
        key for key in _SETTINGS if len({_compared(candidate.setting, key) for candidate in close}) > 1
    )
    result = Pipelines(
        candidates=(
            *(candidate.record(train, tied=True) for candidate in tied),
            *(candidate.record(train, tied=False) for candidate in others if candidate not in tied),
        ),
        first_round=tuple(candidate.record(train, tied=False) for candidate in left_over),
        undetermined=tuple(_undetermined([candidate.setting for candidate in tied])),
        lines="",
    )
    remarks = [text_of(finding) for finding in findings(result)] + list(result.undetermined)
    lines = _lines(chosen.setting, remarks, unsure=frozenset() if passed else differing, fits=passed)
    return Suggestion(_values(chosen.setting), differing, replace(result, lines=lines))


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


# ── candidates ───────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class _Setting:
    """A pipeline to try, as in a run file; `name` is the origin of mean and std."""

    name: str | None
    normalize: Normalize | None
    channel_order: ChannelOrder = "rgb"
    scale: int = 1
    augment: Augment | None = None

    @property
    def flips(self) -> bool:
        return self.augment is not None and self.augment.flip

    @property
    def crops(self) -> bool:
        return self.augment is not None and self.augment.pad > 0

    def pipeline(self, run: Run) -> Pipeline:
        candidate_run = replace(run, normalize=self.normalize, channel_order=self.channel_order, augment=self.augment)
        return Pipeline(candidate_run, torch.device("cpu"), self.normalize)


def _settings(run: Run, train: Points) -> Iterator[_Setting]:
    if len(train.point_shape) != 3:
        yield from _feature_settings(run, train)
        return
    channels, height, width = train.point_shape
    pad = max(4, min(height, width) // 8)
    crop = Augment(pad=pad, crop=height if height == width else None)
    augments = [None, crop, Augment(flip=True), Augment(pad=pad, crop=crop.crop, flip=True)]
    if run.augment is not None:
        run_augments = [msgspec.structs.replace(run.augment, flip=flip) for flip in (False, True)]
        augments += [augment for augment in run_augments if augment not in augments and augment != Augment()]
    orders: tuple[ChannelOrder, ...] = ("rgb", "bgr") if channels == 3 else ("rgb",)
    for plain, order, augment in itertools.product(_image_settings(train), orders, augments):
        normalize = plain.normalize
        if order == "bgr" and normalize is not None:
            normalize = Normalize(mean=normalize.mean[::-1], std=normalize.std[::-1])
        yield replace(plain, normalize=normalize, channel_order=order, augment=augment)


def _padded(setting: _Setting, pads: Sequence[int], train: Points) -> list[_Setting]:
    """The setting with other paddings, with and without a flip."""
    if len(train.point_shape) != 3:
        return []
    _, height, width = train.point_shape
    augments = [Augment(pad=pad, crop=height if height == width else None) for pad in pads]
    augments += [msgspec.structs.replace(augment, flip=True) for augment in augments]
    return [replace(setting, augment=augment) for augment in augments]


def _run_setting(run: Run, train: Points) -> _Setting | None:
    """The pipeline that the run sets; None if it sets none."""
    if run.normalize is None and run.augment is None and run.channel_order == "rgb":
        return None
    return _Setting(RUN_FILE, input_normalize(run, train), run.channel_order, augment=run.augment)


def _is_same_pipeline(first: _Setting, second: _Setting, train: Points) -> bool:
    """Whether two settings are the same pipeline."""

    def statistics(normalize: Normalize | None) -> list[list[float]]:
        applied = normalize or _IDENTITY
        return [list(values) * (train.point_shape[0] // len(values)) for values in (applied.mean, applied.std)]

    same = (first.channel_order, first.augment) == (second.channel_order, second.augment)
    return same and statistics(first.normalize) == statistics(second.normalize)


def _feature_settings(run: Run, train: Points) -> Iterator[_Setting]:
    yield _Setting(None, None)
    yield _Setting(DATA_OWN, input_normalize(replace(run, normalize="train"), train))
    values = np.moveaxis(train.raw(slice(None)), 1, -1).reshape(-1, train.point_shape[0])
    low, high = values.min(0), values.max(0)
    if (low != 0).any() or (high != 1).any():
        span = np.where(high > low, high - low, 1.0)
        yield _Setting(MIN_MAX, Normalize(mean=tuple(low.tolist()), std=tuple(span.tolist())))


def _image_settings(train: Points) -> Iterator[_Setting]:
    """Normalisations, in the order red, green, blue; pixels are 0–1, as uint8 is read, or floats up to 255."""
    channels = train.point_shape[0]
    data_normalize, top = _data_statistics(train)
    if top is None:
        yield _Setting(DATA_OWN, data_normalize)
        yield _Setting(None, None)
        return
    for label, name in _TRIED.items():
        mean, std = PUBLISHED[name]
        if len(mean) in (1, channels):
            yield _named(label, mean, std, top=top)
        elif channels == 1:
            yield _named(label, (round(float(np.mean(mean)), 4),), (round(float(np.mean(std)), 4),), top=top)
    yield _named("0.5/0.5", (0.5,), (0.5,), top=top)
    yield _Setting(DATA_OWN, data_normalize)
    yield _named(None, (0.0,), (1.0,), top=top)
    yield _named(None, (0.0,), (1.0,), top=top, scale=255)
    if channels == 3:
        yield _named("caffe", _CAFFE, (1.0,), top=top, scale=255)


def _named(name: str | None, mean: Sequence[float], std: Sequence[float], *, top: int, scale: int = 1) -> _Setting:
    """Mean and std for pixels of 0–`scale`, converted to pixels read as 0–`top`."""
    unit = top / scale
    normalize = Normalize(mean=tuple(m * unit for m in mean), std=tuple(s * unit for s in std))
    return _Setting(name, None if normalize == _IDENTITY else normalize, scale=scale)


def _data_statistics(train: Points) -> tuple[Normalize, int | None]:
    """Mean and standard deviation of every channel, to 4 digits; and the maximum of the pixel range, 1 or 255: None
    where pixels are already normalised.

    Resized images overshoot a little, and a few of their pixels a lot: the range ignores a thousandth of the pixels
    at either end.
    """
    rows = np.arange(len(train))
    if len(rows) > _DATA_POINTS:
        chosen = counter_rng.batch_indices(
            0, 0, population=len(train), batch_size=_DATA_POINTS, purpose=counter_rng.SUBSET
        )
        rows = np.sort(chosen)
    total = squares = np.zeros(train.point_shape[0])
    lows, highs = [], []
    for part in np.array_split(rows, -(-len(rows) // 512)):
        values = train.raw(part).astype(np.float64)
        total, squares = total + values.mean((2, 3)).sum(0), squares + (values**2).mean((2, 3)).sum(0)
        lows.append(np.quantile(values, _OVERSHOOT))
        highs.append(np.quantile(values, 1 - _OVERSHOOT))
    mean = total / len(rows)
    std = np.sqrt(np.maximum(squares / len(rows) - mean**2, 0))
    std = np.where(std > 1e-6 * np.maximum(np.abs(mean), np.finfo(float).tiny), std, 1.0)  # 1 if constant
    return Normalize(mean=tuple(map(_rounded, mean)), std=tuple(map(_rounded, std))), _top(min(lows), max(highs))


def _top(low: float, high: float) -> int | None:
    """The maximum of the range of pixels from `low` to `high`; None for standardised pixels, which reach several units
    to both sides of 0."""
    if high <= 2:
        return 1 if low >= -0.5 else None
    return 255 if low >= -0.05 * high and high <= 2 * 255 else None


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")


# ── checks ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, eq=False)
class _Checked:
    """A pipeline with its reference check, and the batch statistics that the check used."""

    setting: _Setting
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
        normalize = setting.normalize or _IDENTITY
        mean, std = (values * (channels // len(values)) for values in (normalize.mean, normalize.std))
        return PipelineFit(
            normalize=setting.name,
            mean=mean,
            std=std,
            channel_order=setting.channel_order,
            scale=255 if setting.scale == 255 else 1,
            augment=_augment_words(setting.augment, train),
            median=self.median,
            worst=self.worst,
            worst_layer=self.worst_layer,
            passed=self.check.is_within_limits,
            tied=tied,
        )


@dataclass(frozen=True)
class _Trials:
    """Tries pipelines, with the same batches and the same random numbers of augmentation for all of them."""

    run: Run
    model: nn.Module
    train: Points
    sites: Sequence[BatchNormSite]
    trained_with: int | None
    progress: Progress

    def checked(
        self, settings: Sequence[_Setting], title: str, *, batches: int, max_batch_size: int, layers: int
    ) -> list[_Checked]:
        """The settings checked through the first `layers` layers that can be checked, the closest first."""
        batch_size = min(max_batch_size, len(self.train) // 4)
        if batch_size < 2:
            raise SamplingError(
                f"the reference ({self.train.reference}) holds {len(self.train)} points; expected at least 8 to "
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
        if not candidate.check.is_within_limits:
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
            train_size=self.run.train_size or len(self.train),
            train_batch_size=self.trained_with,
        )

    @cached_property
    def _halves(self) -> tuple[np.ndarray, np.ndarray]:
        """The rows of the reference in two halves, by the run's seed."""
        n = len(self.train)
        order = counter_rng.batch_indices(self.run.seed, 0, population=n, batch_size=n, purpose=counter_rng.SUBSET)
        return order[: n // 2], order[n // 2 :]

    def _first_sites(self, layers: int) -> Sequence[BatchNormSite]:
        """The sites up to number `layers` of those that can be checked."""
        checkable = [number for number, site in enumerate(self.sites) if can_be_checked(site, self.sites)]
        if not checkable:
            raise _uncheckable(self.sites)
        return self.sites if layers >= len(self.sites) else self.sites[: checkable[min(layers, len(checkable)) - 1] + 1]

    def _statistics(
        self, settings: Sequence[_Setting], *, sites: Sequence[BatchNormSite], batches: int, batch_size: int, advance
    ) -> list[BatchStatistics | None]:
        free = memory.available(_device(self.model))
        batches_of_draws = (self._batches(settings, draw, batch_size) for draw in range(batches))
        bank = statistics_of(
            self.model,
            itertools.chain.from_iterable(batches_of_draws),
            layers=sites,
            on_draw=advance,
            memory_limit=free,
        )
        return [bank[number :: len(settings)] for number in range(len(settings))]

    def _batches(self, settings: Sequence[_Setting], draw: int, batch_size: int) -> Iterator[Tensor]:
        """One batch of a half of the reference, alternating between the halves, read once, through every pipeline."""
        half = self._halves[draw % 2]
        rows = counter_rng.batch_indices(
            self.run.seed, draw, population=len(half), batch_size=batch_size, purpose=counter_rng.CHECK
        )
        rows = half[rows]
        drawn = replace(self.train, inputs=self.train.inputs[rows], targets=None, group=None)
        for setting in settings:
            parts = setting.augment is not None and setting.augment.resized_crop is not None
            points = self.train.subset(rows) if parts else drawn  # of the original images, or of those as resized
            pipeline = setting.pipeline(self.run)
            yield pipeline.trained(points, np.arange(batch_size), draw=draw, purpose=counter_rng.CHECK_AUGMENT)


def _device(model: nn.Module) -> torch.device:
    tensor = next(itertools.chain(model.parameters(), model.buffers()), None)
    return torch.device("cpu") if tensor is None else tensor.device


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


# ── wording ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _augment_words(augment: Augment | None, train: Points) -> str:
    if augment is None:
        return ""
    crop = str(augment.crop) if augment.crop is not None else "{}x{}".format(*train.point_shape[1:])
    parts = augment.resized_crop is not None
    words = [f"resized crop {augment.resized_crop}"] if parts else []
    words += [f"pad {augment.pad}, crop {crop}"] if augment.pad else []
    return ", ".join([*words, *(["flip"] * augment.flip), *(["jitter"] * (augment.jitter is not None))])


def _undetermined(tied: Sequence[_Setting]) -> Iterator[str]:
    """What differs among pipelines that the statistics cannot separate."""
    sentence = "with and without {} the statistics agree equally well"
    names = list(dict.fromkeys((setting.name, setting.scale) for setting in tied))
    if len(names) > 1:
        yield f"normalize: {all_of(_name_words(*name) for name in names)} agree equally well"
    if len({setting.channel_order for setting in tied}) > 1:
        yield "channel order: RGB and BGR agree equally well"
    if len({setting.crops for setting in tied}) > 1:
        yield f"pad and crop: {sentence.format('them')}"
    if len({setting.flips for setting in tied}) > 1:
        yield f"flip: {sentence.format('it')}"


def _name_words(name: str | None, scale: int) -> str:
    if name is None:
        return "pixels as they are (0 to 1)" if scale == 1 else "pixels from 0 to 255"
    return name


_SETTINGS = ("normalize", "channel_order", "augment")


def _values(setting: _Setting) -> dict[str, Any]:
    return {key: getattr(setting, key) for key in _SETTINGS}


def _compared(setting: _Setting, key: str) -> Any:
    """What two settings are compared by: normalisations by their origin, as numbers are in the order of channels."""
    return (setting.name, setting.scale) if key == "normalize" else getattr(setting, key)


def _lines(setting: _Setting, remarks: Sequence[str], *, unsure: Collection[str], fits: bool) -> str:
    """[data] of a run file. Settings that are `unsure` are comments; one that `fits` is also shown as options."""
    lines = {
        "normalize": _normalize_line(setting),
        "channel_order": 'channel_order = "bgr"' if setting.channel_order == "bgr" else "",
        "augment": _augment_line(setting.augment),
    }
    text = ["[data]", *(f"# {remark}" for remark in remarks)]
    for key, line in lines.items():
        if line:
            text.append(f"# not sure: {line}" if key in unsure else line)
        elif key != "channel_order":
            text.append(f"# no {key}")
    if fits and (options := _options(setting)):
        text.append(f"# or, as options: {options}")
    return "\n".join(text) + "\n"


def _options(setting: _Setting) -> str:
    """The same settings on the command line; empty if they need a table."""
    options = {}
    if (normalize := setting.normalize) is not None:
        name = _TRIED.get(setting.name or "", "")
        numbers = "/".join(",".join(map(repr, values)) for values in (normalize.mean, normalize.std))
        options["normalize"] = name if PUBLISHED.get(name) == (normalize.mean, normalize.std) else numbers
        if setting.name == DATA_OWN and len(normalize.mean) > 4:
            options["normalize"] = "train"
    if setting.channel_order == "bgr":
        options["channel-order"] = "bgr"
    if setting.augment is not None:
        keys = msgspec.to_builtins(setting.augment)
        if any(isinstance(value, dict | list | tuple) for value in keys.values()):
            return ""
        options["augment"] = ",".join(key if value is True else f"{key}={value}" for key, value in keys.items())
    return " ".join(f"--{name} {value}" for name, value in options.items())


def _normalize_line(setting: _Setting) -> str:
    if setting.normalize is None:
        return ""
    if setting.name == DATA_OWN and len(setting.normalize.mean) > 4:
        return 'normalize = "train"'
    mean, std = (f"[{', '.join(map(repr, values))}]" for values in (setting.normalize.mean, setting.normalize.std))
    comments = {1: f"  # {setting.name}", 255: f"  # {all_of([setting.name or 'pixels', 'scale 0 to 255'])}"}
    return f"normalize = {{ mean = {mean}, std = {std} }}{comments[setting.scale]}"


def _augment_line(augment: Augment | None) -> str:
    if augment is None:
        return ""
    keys = msgspec.to_builtins(augment)  # without defaults
    order = ("resized_crop", "pad", "crop", "flip", *keys)
    return f"augment = {_inline({key: keys[key] for key in order if key in keys})}"


def _inline(value: Any) -> str:
    """A value as in a run file, tables on one line."""
    if isinstance(value, dict):
        return f"{{ {', '.join(f'{key} = {_inline(part)}' for key, part in value.items())} }}"
    return f"[{', '.join(map(_inline, value))}]" if isinstance(value, list | tuple) else as_toml(value)
