"""Whether a request fits in memory and on the disk, added up from its sizes before anything is drawn."""

from __future__ import annotations

import shutil
from bisect import bisect_right
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import torch

from bnuq import metrics
from bnuq.config import Run
from bnuq.errors import RequestError, SamplingError
from bnuq.evaluation import memory
from bnuq.evaluation.estimates import RANKED, RESAMPLES
from bnuq.evaluation.subject import VALIDATION, Subject
from bnuq.evaluation.tasks.class_probabilities import bytes_of
from bnuq.evaluation.tasks.pixels import bytes_of_maps
from bnuq.sampling.sites import BatchNormSite

_COPIES = 4  # copies of a draw of ω in memory at once: as measured, stacked, in the engine, and in the file
_OBJECTS = 1000  # bytes of a layer's tensors in one draw, in addition to their values
_RANKED_BYTES = 4 * 4 + 1  # four scores in float32, and whether the prediction was wrong
_ALWAYS_ALLOWED_BYTES = 64 * 2**20  # bytes of memory that are never refused: everything else varies by as much
_ESTIMATES, _SEPARATIONS = 27, 7  # of a set, and by each score of it and of an OOD set, at most; with their replicates
_POINT_SCORES = 8  # per-point scores of a set, in float64

Need = Callable[[int], int]  # bytes as an increasing function of a number of draws


def check_resources(subject: Subject) -> None:
    """RequestError where draws and scores of a run do not fit, with the number of draws that would fit."""
    run, bank, samples = subject.run, subject.bank, subject.max_samples
    if run.save_maps:
        _check_maps(subject)
    if not subject.plan.methods or subject.plan.task.is_dense:  # of whose outputs a few are in memory at once
        return
    auto, purpose = run.samples == "auto", "draws and scores"
    option = "--max-samples" if auto else "--samples"
    _check_memory(option, samples, lambda number: _memory(subject, samples=number, bank=number), purpose)
    if bank is not None:
        _check_memory(
            "--bank", bank, lambda number: _memory(subject, samples=min(samples, number), bank=number), purpose
        )
    keeps = run.save_samples or subject.fitted_to is not None
    if run.max_samples != Run.max_samples if auto else keeps:  # "auto" rarely reaches its default limit
        folder = run.out.parent
        hint = " Run without --save-samples, or write elsewhere (--out)." if run.save_samples else _by_default(subject)
        free, disk = _free_on(folder), f"disk ({folder})"
        _check(option, samples, partial(_disk, subject), free, "the raw samples", disk, hint=hint)


def _by_default(subject: Subject) -> str:
    """What to leave out, if raw samples are kept only for what is fitted to them by default."""
    fits_by_default = subject.run.calibrate is None and subject.fitted_to is not None
    return " Or fit no temperature (--calibrate off)." if fits_by_default else ""


def _check_maps(subject: Subject) -> None:
    """RequestError where the maps of all images do not fit on the disk, once in temporary files and once in the
    result."""
    images = sum(len(points) for name, points in subject.sets.items() if name != VALIDATION)
    methods = (len(subject.plan.methods) + 1) * (1 + len(subject.recalibrations))
    need, folder = 2 * images * methods * bytes_of_maps(subject.plan), subject.run.out.parent
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
    plan = subject.plan
    labelled_points = sum(map(len, subject.labelled.values()))
    points = sum(map(len, subject.sets.values()))

    def need_of(samples: int, draw_sets: int) -> int:
        draws = samples * draw_sets
        of_draws = bytes_of_draws(draws, plan.layers, plan.batch_size or 0) + 2 * 8 * draws * labelled_points
        if plan.task.is_dense and subject.ood:  # whose pixels are counted by the bins of each score, on up to two sides
            of_draws += 2 * 8 * metrics.SCORE_BINS * len(metrics.CLASSIFICATION_SCORES) * draw_sets * len(subject.sets)
        return sizes * (of_draws + 24 * draws * plan.outputs + 2 * 8 * _POINT_SCORES * draw_sets * points)

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
    run, free = subject.run, memory.available(torch.device("cpu"))
    need = 8 * _COPIES * (features + 1) ** 2
    if run.sampler.laplace == "kron" and free is not None and need > max(free, _ALWAYS_ALLOWED_BYTES):
        raise RequestError(
            f"laplace: the Kronecker factors of a last layer of {features:,} features take about "
            f"{memory.in_words(need)} of memory, and {memory.in_words(free)} are free. Use --laplace diag."
        )
    if run.samples != "auto":
        of_draw = 2 * 4 * outputs * (features + 1)
        _check_memory("--samples", run.samples, lambda number: of_draw * number, "draws of the last layer's weights")


def bytes_of_draws(draws: int, layers: Sequence[BatchNormSite], batch_size: int) -> int:
    """The approximate bytes of the statistics of `draws` mini-batches, and of the row numbers of their points."""
    channels = sum(site.channels for site in layers)
    return draws * (2 * 4 * _COPIES * channels + _OBJECTS * len(layers) + 2 * 8 * batch_size)


def _memory(subject: Subject, *, samples: int, bank: int) -> int:
    """The approximate bytes of draws, replicates and scores together, with chunks of a single point."""
    run, plan = subject.run, subject.plan
    methods = len(plan.methods) * (1 + len(subject.recalibrations))
    replicates = bank + RESAMPLES + bank.bit_length() + 2
    weights = 8 * replicates * bank * (methods + 3)  # one per method, and the intermediate arrays
    noise_models = sum(bool(method.approximates) for method in plan.methods)
    omega = (1 + noise_models) * bytes_of_draws(bank, plan.layers, plan.batch_size or 0)
    normal = noise_models and 8 * _COPIES * bank * max(
        run.sampler.noise_model_draws, *(2 * site.channels for site in plan.layers)
    )
    scores = 0
    if subject.by_severity:  # of which the values of points are kept, beside all of one at a time, as of the test set
        scores += len(subject.by_severity) * 8 * len(metrics.SCORES) * len(subject.sets["test"])
    for name, points in subject.sets.items():
        if name in subject.by_severity:
            continue
        labelled = name in subject.labelled
        labels = plan.outputs if plan.task.outputs == "labels" and labelled else 1
        scores += (bank + RESAMPLES) * min(len(points), RANKED) * (_RANKED_BYTES + 4 * (labels - 1))
        scores += 8 * (samples * labelled + _POINT_SCORES * (labels - 1)) * len(points) * labels
        scores += 8 * replicates * (_ESTIMATES + _SEPARATIONS * len(metrics.SCORES) * (name in subject.compared))
    probability_bytes = bytes_of(samples, len(subject.sets["test"]), plan.outputs) if plan.task.classifies_points else 0
    of_one_point = 8 * plan.outputs * (5 * samples + 2 * replicates)
    fitted_to = 0
    if "vector" in subject.recalibrations and subject.fitted_to is not None:  # samples, and those of a half
        fitted_to = 2 * subject.pipeline.dtype.itemsize * samples * plan.outputs * len(subject.sets[subject.fitted_to])
    return weights + omega + normal + 2 * methods * scores + probability_bytes + of_one_point + fitted_to


def _disk(subject: Subject, samples: int) -> int:
    """The bytes of the raw samples in temporary files, and in the result where they are saved."""
    run, plan, sets = subject.run, subject.plan, subject.sets
    if not run.save_samples and run.samples != "auto":  # those that recalibrations are fitted to
        sets = {name: points for name, points in sets.items() if name == subject.fitted_to}
    bytes_per_sample = subject.pipeline.dtype.itemsize * plan.outputs * sum(map(len, sets.values()))
    return len(plan.methods) * samples * bytes_per_sample * (2 if run.save_samples else 1)


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
