"""Whether a request fits in memory and on the disk, added up from its sizes before anything is drawn."""

from __future__ import annotations

import shutil
from bisect import bisect_right
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import torch

from bnuq import metrics
from bnuq.config import DrawSettings
from bnuq.errors import RequestError, SamplingError
from bnuq.evaluation import memory
from bnuq.evaluation.estimates import RANKED, RESAMPLES
from bnuq.evaluation.subject import VALIDATION, Subject
from bnuq.evaluation.tasks.pixels import bytes_of_maps
from bnuq.sampling.sites import BatchNormSite

_COPIES = 4  # copies of a draw of ω in memory at once: as measured, stacked, in the engine, and in the file
_OBJECTS = 1000  # bytes of a layer's tensors in one draw, in addition to their values
_RANKED_BYTES = 4 * 4 + 1  # four scores in float32, and whether the prediction was wrong
_ALWAYS_ALLOWED_BYTES = 64 * 2**20  # bytes of memory that are never refused: everything else varies by as much
_ESTIMATES, _SEPARATIONS = 27, 7  # of a set, and by each score of it and of an OOD set, at most; with their replicates
_POINT_SCORES = 8  # per-point scores of a set, in float64

Need = Callable[[int], int]  # bytes as an increasing function of a number of draws


def check_resources(subject: Subject, folder: Path) -> None:
    """RequestError where draws and scores of a run do not fit, or what is kept of them in this folder, with the number
    of draws that would fit."""
    draws, bank, samples = subject.draws, subject.bank, subject.max_samples
    if subject.settings.save_maps:
        _check_maps(subject, folder)
    if not subject.methods or subject.image:  # of whose outputs a few are in memory at once
        return
    auto, purpose = draws.samples == "auto", "draws and scores"
    option = "--max-samples" if auto else "--samples"
    _check_memory(option, samples, lambda number: _memory(subject, samples=number, bank=number), purpose)
    if bank is not None:
        _check_memory(
            "--bank", bank, lambda number: _memory(subject, samples=min(samples, number), bank=number), purpose
        )
    saves = subject.settings.save_samples
    keeps = saves or subject.fitted_to is not None
    if draws.max_samples != DrawSettings.max_samples if auto else keeps:  # "auto" rarely reaches its default limit
        by_default = subject.settings.calibrate is None and subject.fitted_to is not None
        hint = " Or fit no temperature (--calibrate off)." if by_default else ""
        hint = " Run without --save-samples, or write elsewhere (--out)." if saves else hint
        free, disk = _free_on(folder), f"disk ({folder})"
        _check(option, samples, partial(_disk, subject), free, "the raw samples", disk, hint=hint)


def _check_maps(subject: Subject, folder: Path) -> None:
    """RequestError where the maps of all images do not fit on the disk, once in temporary files and once in the
    result."""
    images = sum(len(points) for name, points in subject.sets.items() if name != VALIDATION)
    methods = (len(subject.methods) + 1) * (1 + len(subject.recalibrations))
    need = 2 * images * methods * bytes_of_maps(subject.image)
    free = _free_on(folder)
    if free is not None and need > free:
        raise RequestError(
            f"--save-maps: the maps of {images:,} images by {methods} methods would take about {memory.in_words(need)} "
            f"of disk ({folder}), and {memory.in_words(free)} are free. Take fewer images (--limit) or methods, write "
            "elsewhere (--out), or leave --save-maps out."
        )


def check_resources_of_sweep(subject: Subject, *, sizes: int, samples: int, draw_sets: int) -> None:
    """RequestError where `draw_sets` sets of `samples` draws at each of `sizes` sizes do not fit, with the number that
    would fit."""
    labelled_points = sum(map(len, subject.labelled.values()))
    points = sum(map(len, subject.sets.values()))

    def need_of(samples: int, draw_sets: int) -> int:
        draws = samples * draw_sets
        of_draws = bytes_of_draws(draws, subject.layers, subject.batch_size or 0) + 2 * 8 * draws * labelled_points
        return sizes * (of_draws + 24 * draws * subject.outputs + 2 * 8 * _POINT_SCORES * draw_sets * points)

    purpose = f"draws and scores of {sizes} sizes"
    _check_memory("--samples", samples, lambda number: need_of(number, 2), purpose)
    _check_memory("--draw-sets", draw_sets, lambda number: need_of(samples, number), purpose)


def check_memory_of_draws(draws: int, layers: Sequence[BatchNormSite], batch_size: int, *, title: str) -> None:
    """SamplingError where the statistics of `draws` mini-batches do not fit in memory, with the number that would
    fit."""
    free = memory.available(torch.device("cpu"))
    need = bytes_of_draws(draws, layers, batch_size)
    if free is not None and need > max(free, _ALWAYS_ALLOWED_BYTES):
        raise SamplingError(
            f"{title}: that takes about {memory.in_words(need)} of memory, and {memory.in_words(free)} are free. At "
            f"most {_largest(draws, lambda count: bytes_of_draws(count, layers, batch_size), free):,} mini-batches fit."
        )


def check_memory_of_last_layer(subject: Subject, *, features: int, outputs: int) -> None:
    """RequestError where the curvature of a last layer or T draws of its weights do not fit in memory."""
    draws, free = subject.draws, memory.available(torch.device("cpu"))
    need = 8 * _COPIES * (features + 1) ** 2
    if draws.sampler.laplace == "kron" and free is not None and need > max(free, _ALWAYS_ALLOWED_BYTES):
        raise RequestError(
            f"laplace: the Kronecker factors of a last layer of {features:,} features take about "
            f"{memory.in_words(need)} of memory, and {memory.in_words(free)} are free. Use --laplace diag."
        )
    if draws.samples != "auto":
        of_draw = 2 * 4 * outputs * (features + 1)
        _check_memory("--samples", draws.samples, lambda number: of_draw * number, "draws of the last layer's weights")


def bytes_of_draws(draws: int, layers: Sequence[BatchNormSite], batch_size: int) -> int:
    """The approximate bytes of the statistics of `draws` mini-batches, and of the row numbers of their points."""
    channels = sum(site.channels for site in layers)
    return draws * (2 * 4 * _COPIES * channels + _OBJECTS * len(layers) + 2 * 8 * batch_size)


def _memory(subject: Subject, *, samples: int, bank: int) -> int:
    """The approximate bytes of draws, replicates and scores together, with chunks of a single point."""
    layers, outputs = subject.layers, subject.outputs
    methods = len(subject.methods) * (1 + len(subject.recalibrations))
    replicates = bank + RESAMPLES + bank.bit_length() + 2
    weights = 8 * replicates * bank * (methods + 3)  # one per method, and the intermediate arrays
    noise_models = sum(bool(method.approximates) for method in subject.methods)
    omega = (1 + noise_models) * bytes_of_draws(bank, layers, subject.batch_size or 0)
    normal = noise_models and 8 * _COPIES * bank * max(
        subject.draws.sampler.noise_model_draws, *(2 * site.channels for site in layers)
    )
    scores = 0
    if subject.by_severity:  # of which the values of points are kept, beside all of one at a time, as of the test set
        scores += len(subject.by_severity) * 8 * len(metrics.SCORES) * len(subject.sets["test"])
    for name, points in subject.sets.items():
        if name in subject.by_severity:
            continue
        labelled = name in subject.labelled
        labels = subject.task.labels_of(outputs) if labelled else 1
        scores += (bank + RESAMPLES) * min(len(points), RANKED) * (_RANKED_BYTES + 4 * (labels - 1))
        scores += 8 * (samples * labelled + _POINT_SCORES * (labels - 1)) * len(points) * labels
        scores += 8 * replicates * (_ESTIMATES + _SEPARATIONS * len(metrics.SCORES) * (name in subject.compared))
    probability_bytes = subject.scorer.bytes_of_probabilities(samples, len(subject.sets["test"]), outputs) or 0
    of_one_point = 8 * outputs * (5 * samples + 2 * replicates)
    fitted_to = 0
    if "vector" in subject.recalibrations and subject.fitted_to is not None:  # samples, and those of a half
        fitted_to = 2 * subject.pipeline.dtype.itemsize * samples * outputs * len(subject.sets[subject.fitted_to])
    return weights + omega + normal + 2 * methods * scores + probability_bytes + of_one_point + fitted_to


def _disk(subject: Subject, samples: int) -> int:
    """The bytes of the raw samples in temporary files, and in the result where they are saved."""
    saves, sets = subject.settings.save_samples, subject.sets
    if not saves and subject.draws.samples != "auto":  # those that recalibrations are fitted to
        sets = {name: points for name, points in sets.items() if name == subject.fitted_to}
    bytes_per_sample = subject.pipeline.dtype.itemsize * subject.outputs * sum(map(len, sets.values()))
    return len(subject.methods) * samples * bytes_per_sample * (2 if saves else 1)


def _free_on(folder: Path) -> int | None:
    try:
        return shutil.disk_usage(folder).free
    except OSError:
        return None


def _check_memory(option: str, requested: int, need: Need, purpose: str) -> None:
    free = memory.available(torch.device("cpu"))
    if free is not None and need(requested) > _ALWAYS_ALLOWED_BYTES:
        _check(option, requested, need, free, purpose, "memory")


def _check(
    option: str, requested: int, need: Need, free: int | None, purpose: str, place: str, *, hint: str = ""
) -> None:
    if free is None or need(requested) <= free:
        return
    fits = _largest(requested, need, free)
    advice = f"At most {fits:,} fit." if fits >= 2 else "Not even 2 fit: take fewer sets, or fewer examples (--limit)."
    raise RequestError(
        f"{option} is {requested}: {purpose} would take about {memory.in_words(need(requested))} of {place}, and "
        f"{memory.in_words(free)} are free. {advice}{hint}"
    )


def _largest(requested: int, need: Need, free: int) -> int:
    """The largest number below `requested` that fits."""
    return bisect_right(range(requested), free, key=need) - 1
