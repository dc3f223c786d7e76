"""The file of an evaluation: the part of a Result that `store.codec` writes, and the groups that ArviZ reads.

    /sets/SET                        labels(point), or targets(point, output); group(point); index(point) in the source,
                                     and names(point) of files or ids
    /methods/METHOD/sets/SET         predicted, and of a regression sigma; points/SCORE(point); ranked/SCORE(point)
                                     of the test set, where a recalibration is cross-fitted
    /methods/METHOD/CURVE            convergence(samples), calibration(bin), risk(coverage), uncertainty_error(rank),
                                     class_calibration(class, bin)
    /reference_check                 mean, log_variance, expected (layer)
    /statistics/layerNNN             the bank ω: mean(draw, channel), var(draw, channel), count(draw)
    /log_likelihood                  METHOD_SET (chain, draw, SET_point)
    /observed_data                   SET (SET_point)
    /posterior_predictive            METHOD_SET (chain, draw, SET_point, class), raw outputs, only where kept; of a
                                     regression (…, output), in target units
    /maps/METHOD/SET                 of a segmentation, only where kept: see `pixel_maps`

With several labels per point, labels, predicted and log-likelihoods have a last axis `label`, and so have the values in
/methods/METHOD/sets/test/label_points.

In /log_likelihood and /posterior_predictive `draw` is the position among a point's own draws. With a bank of which
points use their own draws, the `draw` of replicates is one of the bank in the rows of MCBN.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from bnuq.config import ScoringSection
from bnuq.config.earlier_versions import RENAMED_FINDINGS, in_current_settings, removed_settings
from bnuq.estimates import Estimator, require
from bnuq.files import apart
from bnuq.files.hdf5 import image_of
from bnuq.files.writing import replaced
from bnuq.methods import DETERMINISTIC, method_named
from bnuq.metrics import METRICS, SEPARATIONS
from bnuq.metrics.estimands import Estimand
from bnuq.metrics.registry import metric_of, scores_among
from bnuq.perturbations import change_in
from bnuq.records import pixel_maps
from bnuq.records.addresses import estimates_of
from bnuq.records.evaluation import (
    LARGEST,
    LARGEST_MAP,
    NOT_SCORED,
    OF_POINTS,
    OWN,
    PARTS,
    PIXEL_MEANS,
    WITH_ERRORS,
    ImageMaps,
    MethodResult,
    Result,
    Samples,
    Scored,
    SetResult,
)
from bnuq.records.summary import summary
from bnuq.store import codec
from bnuq.store.codec import check_replaceable, with_unknown
from bnuq.store.datasets import PACKED, Writer
from bnuq.tasks import Task, TaskName

__all__ = ["check_replaceable", "read", "write"]


def write(result: Result, path: Path) -> None:
    """Write `result` to `path`, completely or not at all; ResultError if that cannot be done.

    A small one is built in memory and written as bytes, so that a full disk never reaches the HDF5 library. What may
    not fit in memory, and values of so many points that they take more than _IN_MEMORY, are written on disk, after the
    disk space for them was reserved.
    """
    check_replaceable(path)
    large, small = list(_large_bytes(result)), codec.bytes_of(result)
    on_disk = small > _IN_MEMORY
    image = image_of(lambda file: None if on_disk else _lay_out(file, result))
    with replaced(path) as beside:
        beside.write(image)
        if large or on_disk:
            beside.flush()
            _reserve(beside, len(image) + sum(large) + (2 * small + 2**26) * on_disk)  # what packs badly grows
            import h5py  # late: only writing needs it

            with h5py.File(beside.name, "r+", locking=False) as file:
                if on_disk:
                    _lay_out(file, result)
                _add_samples(file, result)
                pixel_maps.add(file, result)
    if not (large or on_disk):
        apart.note(image)


_IN_MEMORY = 2**26


def _large_bytes(result: Result) -> Iterator[int]:
    """What each set's raw samples and maps take at most."""
    for _, _, set_result in _set_results(result):
        if set_result.samples:
            yield _most_bytes(set_result.samples)
        if set_result.maps:
            yield pixel_maps.most_bytes(set_result.maps)


def _most_bytes(raw: Samples) -> int:
    """What raw samples can take in the file, however badly they pack: chunks are whole, and each has its entry."""
    samples, points, classes = raw.shape
    chunk = _chunk_points(raw)
    return -(-points // chunk) * (raw.dtype.itemsize * samples * chunk * classes * 1001 // 1000 + 4096) + 2**16


def _chunk_points(raw: Samples) -> int:
    """Points in a chunk of the file: 64, or as few as keep it below 64 MiB."""
    samples, points, classes = raw.shape
    return max(1, min(points, 64, 2**26 // (raw.dtype.itemsize * samples * classes)))


def _reserve(file: BinaryIO, size: int) -> None:
    """Reserve the disk space now, or raise the system's error: the HDF5 library would not survive running out of it.

    The file is opened for modification, not created anew, so it keeps the space; HDF5 releases the rest on closing.
    """
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file.fileno(), 0, size)


def _lay_out(file: Any, result: Result) -> None:
    codec.lay_out(file, result)
    if result.bank is not None:
        bank = file.create_group("statistics")
        result.bank.write_to(bank)
        bank.visititems(_give_unit)
    _lay_out_for_arviz(Writer(file), result)


def _give_unit(name: str, item: Any) -> None:
    """Its unit to a data set of the bank."""
    units = {"mean": "activation units", "var": "activation units squared"}
    if hasattr(item, "shape"):  # no group
        item.attrs["units"] = units.get(name.rpartition("/")[2], "1")


def _lay_out_for_arviz(writer: Writer, result: Result) -> None:
    observed, likelihoods = dict[str, Any](), dict[str, Any]()  # the scales of each group
    for name, evaluated in result.sets.items():
        point = f"{name}_point"
        if evaluated.labels is not None and evaluated.kind in ("test", "perturbed"):
            writer.add("/observed_data", name, evaluated.labels, (point, "label")[: evaluated.labels.ndim], observed)
        if evaluated.targets is not None:
            writer.add("/observed_data", name, evaluated.targets, (point, "output"), observed, unit="target unit")
    for method, name, set_result in _set_results(result):
        if not result.is_single(method) and set_result.log_likelihood is not None:
            values, axes = set_result.log_likelihood[None], ("chain", _drawn(method), f"{name}_point", "label")
            writer.add("/log_likelihood", f"{method}_{name}", values, axes[: values.ndim], likelihoods, unit="nats")


def _drawn(method: str) -> str:
    """The axis of a method's samples: the networks of an ensemble are not draws."""
    return "network" if "networks" in method_named(method).differs_by else "draw"


def _set_results(result: Result) -> Iterator[tuple[str, str, SetResult]]:
    """Every method on every set, with their names."""
    for method, method_result in result.methods.items():
        for name, set_result in method_result.sets.items():
            yield method, name, set_result


def _add_samples(file: Any, result: Result) -> None:
    if not any(set_result.samples for _, _, set_result in _set_results(result)):
        return
    group, scales, writer = file.create_group("posterior_predictive"), dict[str, Any](), Writer(file)
    last, unit = result.task.axis, "target unit" if result.task.truth == "targets" else "1"
    for method, name, set_result in _set_results(result):
        if (raw := set_result.samples) is None:
            continue
        samples, points, classes = raw.shape
        axes = {"chain": 1, _drawn(method): samples, f"{name}_point": points, last: classes}
        for axis, length in axes.items():
            if axis not in scales:
                scales[axis] = writer.add_scale(group.name, axis, np.arange(length))
        chunk = _chunk_points(raw)
        chunks = 1, samples, chunk, classes
        shape = tuple(axes.values())
        dataset = group.create_dataset(f"{method}_{name}", shape=shape, dtype=raw.dtype, chunks=chunks, **PACKED)
        for start, block in _in_chunks(raw.blocks(), chunk):
            dataset[0, :, start : start + block.shape[1]] = block
        dataset.attrs["units"] = unit
        for number, axis in enumerate(axes):
            dataset.dims[number].attach_scale(scales[axis])


def _in_chunks(blocks: Iterable[tuple[int, np.ndarray]], size: int) -> Iterator[tuple[int, np.ndarray]]:
    """The blocks cut or joined to `size` points, so that no chunk of the file is packed twice."""
    start, waiting = 0, list[np.ndarray]()
    for _, block in blocks:
        waiting.append(block)
        while sum(array.shape[1] for array in waiting) >= size:
            joined = np.concatenate(waiting, axis=1)
            yield start, joined[:, :size]
            start, waiting = start + size, [joined[:, size:]]
    remainder = np.concatenate(waiting, axis=1)
    if remainder.shape[1]:
        yield start, remainder


def read(path: Path, *, log_likelihoods: bool = True) -> Result:
    """The result in the file at `path`, without its bank and raw samples; ResultError if that is not one.

    All fields that a report or a summary uses are validated, so their readers need no further checks. The
    log-likelihoods (T × n), most of a file, may be left out.
    """

    own = False

    def complete(file: Any, result: Result) -> Result:
        nonlocal own
        likelihoods = file.get("log_likelihood", {}) if log_likelihoods else {}
        if own := codec.is_own(file):  # complete, and in the words of this version
            return replace(result, methods=dict(_with_likelihoods(result, likelihoods)))
        check_texts(result)
        findings = tuple(replace(item, code=RENAMED_FINDINGS.get(item.code, item.code)) for item in result.findings)
        result = with_unknown(replace(result, findings=findings), removed_settings(result.run))
        result = replace(result, run=in_current_settings(result.run))
        result = replace(result, methods=dict(_with_likelihoods(result, likelihoods)))
        check_complete(result)
        if log_likelihoods:
            check_log_likelihoods(result)
        return result

    kind = Scored if codec.kind_of_result(path) == Scored.KIND else Result
    result = codec.read(kind, path, summary=summary, by_hand=complete, groups=_BY_HAND)
    result.computed[OWN] = own
    return result


_BY_HAND = ("statistics", "observed_data", "log_likelihood", "posterior_predictive", "maps")  # HDF5 groups


def _with_likelihoods(result: Result, likelihoods: Any) -> Iterator[tuple[str, MethodResult]]:
    for name, method in result.methods.items():
        sets = dict(method.sets)
        for set_name in sets:
            if (key := f"{name}_{set_name}") in likelihoods:
                values = likelihoods[key][()]
                if values.dtype.kind != "f" or values.ndim not in (3, 4) or len(values) != 1:
                    raise ValueError(f"{key} does not hold log-likelihoods")
                sets[set_name] = replace(sets[set_name], log_likelihood=values[0])
        yield name, replace(method, sets=sets)


def check_texts(result: Result) -> None:
    """Raise ValueError if something that a report shows is missing; the run is checked when it is run again."""
    counts = dict.fromkeys(("parameters", "batchnorm_layers", "dropout_layers", "learned_layers"), int)
    if isinstance(result, Scored):
        counts = {}
        for file in result.model["files"].values():
            require(file, path=str, sha256=str, samples=int, outputs=str)
    require(result.model, path=str, task=TaskName, **counts, labels=int | None)
    require(result.model, **dict.fromkeys(result.task.described(0), int))
    require(
        result.sampling, samples=int, batch_size=int | None, bank=int | None, seed=int, device=str, precision=str,
        mutual_information=Estimator | None,
    )  # fmt: skip
    require(result.seconds, total=float)
    members = result.model.get("members", [])
    if not isinstance(members, list) or not all(isinstance(member, Mapping) for member in members):
        raise ValueError("the networks of the ensemble are not a list")
    for member in members:
        require(member, path=str, sha256=str)
    if not members and any("networks" in method_named(method).differs_by for method in result.methods):
        raise ValueError("the networks of the ensemble are missing")
    require(result.provenance, bnuq=str)
    run = {"data": {}, **result.run}
    if isinstance(scoring := run.get("scoring"), dict):  # a newer version may have settings of its own
        run["scoring"] = {key: scoring[key] for key in scoring if key in ScoringSection.__struct_fields__}
    require(run, data=dict[str, Any], sampling=dict[str, Any] | None, scoring=ScoringSection | None)
    require(run["data"], train=str | None)


def check_complete(result: Result) -> None:
    """Raise ValueError if an estimate is missing that every result has, or is one that this version cannot know."""
    for address, row in estimates_of(result).items():
        if math.inf in (row.estimate.se, row.estimate.mc_se):
            raise ValueError(f"the error of {address} is infinite")
    expected = next(iter(result.model["files"])) if isinstance(result, Scored) else DETERMINISTIC
    if next(iter(result.methods), None) != expected or "test" not in result.sets:
        raise ValueError("the first method or the test set is missing")
    check_sets(result)
    task, test = result.task, result.sets["test"]
    required = {name: estimand for name, estimand in METRICS.items() if task.name in estimand.required}
    has_truth = getattr(test, task.truth) is not None or bool(result.methods[result.first].sets["test"].by_class)
    if task.is_regression:
        if not has_truth:
            raise ValueError("the truth about the test set is missing")
        for method, method_result in result.methods.items():
            check_regression(method, method_result)
    points = _required_points(required.values(), task) if has_truth else set()
    ood_sets = {name for name, evaluated in result.sets.items() if evaluated.kind in ("ood", "perturbed")}
    for method, method_result in result.methods.items():
        if set(method_result.sets) != ood_sets | {"test"} or set(method_result.ood) != ood_sets:
            raise ValueError(f"{method} was not evaluated on every set")
        for name in method_result.sets:
            _check_set(result, method, name, required, has_truth=has_truth)
        _check_separations(result, method)
        if missing := points - set(method_result.sets["test"].points):
            raise ValueError(f"the {min(missing)} of the examples of {method} are missing")
        _check_curves(method, method_result)
    check_gallery(result)
    if result.image_maps is not None:
        check_image_maps(result, result.image_maps)
    if result.reference_check and not result.reference_check.layers:
        raise ValueError("the reference check has no layers")


def _check_set(result: Result, method: str, name: str, required: Mapping[str, Estimand], *, has_truth: bool) -> None:
    """Raise ValueError if an estimate of a method on a set is missing, or is of a truth that is."""
    set_result, evaluated = result.methods[method].sets[name], result.sets[name]
    needing_truth = {key for key, estimand in required.items() if estimand.needs_truth}
    if not has_truth and (scored := needing_truth & {*set_result.estimates}):
        raise ValueError(f"estimate {min(scored)} of {method} on {name} is of labels that are missing")
    is_scored = has_truth and (name == "test" or evaluated.kind == "perturbed")
    needs_samples = {key for key, estimand in required.items() if estimand.needs_samples}
    needed = {*required} - (set() if is_scored else needing_truth)
    needed -= needs_samples if result.samples_of(method) == 1 else set()
    if missing := needed - set(set_result.estimates):
        raise ValueError(f"estimate {min(missing)} of {method} on {name} is missing")
    outputs = result.model.get(result.task.predicted_by)
    if set_result.predicted.shape != (evaluated.n, *(() if outputs is None else (int(outputs),))):
        raise ValueError(f"the predictions of {method} on {name} are of another shape")
    check_parts(result, method, name)
    if name == "test" or set_result.by_label:
        check_labels(result, method, name)


def _check_separations(result: Result, method: str) -> None:
    """Raise ValueError if a separation from the test set is missing, or the values of points that it is made of."""
    method_result = result.methods[method]
    known = [metric_of(name).score for name in scores_among(method_result.sets["test"].points)]
    may_be_empty = result.samples_of(method) == 1 and all(score.needs_samples for score in known if score)
    for name, scores in method_result.ood.items():
        for score in scores:
            has_values = all(score in method_result.sets[key].points for key in ("test", name))
            if not has_values or any(np.isnan(values).any() for values in method_result.ranked(score, name)):
                raise ValueError(f"the {score} of the examples of {method} is missing")
        incomplete = any(set(estimates) - {WITH_ERRORS} != {*SEPARATIONS} for estimates in scores.values())
        if incomplete or not (scores or may_be_empty):
            raise ValueError(f"estimates of {method} on {name} against the test set are missing")


def _check_curves(method: str, result: MethodResult) -> None:
    """Raise ValueError if a curve of a method lacks one of its axes."""
    if result.convergence and "samples" not in result.convergence:
        raise ValueError(f"the convergence of {method} is incomplete")
    if result.class_calibration and set(result.class_calibration) != _OF_CLASSES:
        raise ValueError(f"the reliability of the classes of {method} is incomplete")


def _required_points(estimands: Iterable[Estimand], task: Task) -> set[str]:
    """The values of points that every result of a task has where the truth is known: those that required estimates
    are computed from, of images the means over their pixels."""
    if task.is_dense:
        return {"pixels"} | {
            estimand.name for estimand in estimands if estimand.needs_truth and estimand.name in PIXEL_MEANS
        }
    return {name for estimand in estimands if estimand.needs_truth for name in estimand.computed.needs}


_OF_CLASSES = {"count", "confidence", "accuracy"}


def check_sets(result: Result) -> None:
    if any(evaluated.kind == "ood" and name == "validation" for name, evaluated in result.sets.items()):
        raise ValueError("a set out of distribution is called validation")
    perturbed = [name for name, evaluated in result.sets.items() if evaluated.kind == "perturbed"]
    if any(change_in(name) is None for name in perturbed):
        raise ValueError("a perturbed set has another name")
    for evaluated in result.sets.values():
        point_values = (getattr(evaluated, name) for name in ("labels", "targets", "group", "index", "names"))
        if any(len(values) != evaluated.n for values in point_values if values is not None):
            raise ValueError(f"{evaluated.name} has more or fewer labels, targets, groups or names than examples")
        numbers = np.arange(len(evaluated.group_names))
        if evaluated.group is not None and numbers.size and not np.isin(evaluated.group, numbers).all():
            raise ValueError(f"a group of {evaluated.name} has no name")
        if evaluated.names is not None and not all(isinstance(name, str) for name in evaluated.names):
            raise ValueError(f"the names of the examples of {evaluated.name} are not strings")


def check_gallery(result: Result) -> None:
    for shown in result.gallery:
        evaluated = result.sets.get(shown.set)
        if evaluated is None or shown.method not in result.methods or len(shown.points) != len(shown.pixels):
            raise ValueError(f"the images of {shown.set} are not those of a set and a method")
        if shown.points.size and not 0 <= shown.points.min() <= shown.points.max() < evaluated.n:
            raise ValueError(f"an image of {shown.set} belongs to no example")
        if shown.pixels.shape[3] not in (1, 3) or 0 in shown.pixels.shape or max(shown.pixels.shape) > LARGEST:
            raise ValueError(f"the images of {shown.set} are of another shape")


def check_image_maps(result: Result, shown: ImageMaps) -> None:
    """Raise ValueError if the maps of images are not those of the test set of a segmentation, or of their size."""
    shape, classes = shown.predicted.shape, result.model.get("classes", 0)
    points = {} if (method := result.methods.get(shown.method)) is None else method.sets["test"].points
    if not {"pixels"} <= points.keys() or "predictive_entropy" not in shown.scores:
        raise ValueError("the maps of images are not those of a method")
    if not shown.points.size or not 0 <= shown.points.min() <= shown.points.max() < result.sets["test"].n:
        raise ValueError("a map belongs to no image")
    maps = [shown.predicted, *shown.scores.values(), *(() if shown.truth is None else (shown.truth,))]
    if 0 in shape or max(shape[1:]) > LARGEST_MAP or any(values.shape != shape for values in maps):
        raise ValueError("the maps of images are of another shape")
    if shown.pixels is not None and (shown.pixels.shape[:3] != shape or shown.pixels.shape[3] not in (1, 3)):
        raise ValueError("the images with maps are of another shape")
    for classes_shown, lowest in ((shown.predicted, 0), (shown.truth, NOT_SCORED)):
        if classes_shown is not None and not lowest <= classes_shown.min() <= classes_shown.max() < classes:
            raise ValueError("a map has unknown classes")


def _labels(result: Result) -> tuple[int, ...]:
    """The length of the axis of labels, where points have several."""
    return (result.model["labels"],) if result.model.get("labels") else ()


def check_labels(result: Result, method: str, name: str) -> None:
    """Raise ValueError if the parts of a result with several labels per point do not fit together."""
    set_result, truth = result.methods[method].sets[name], result.sets[name].labels
    labels = _labels(result) if truth is not None else ()
    shape, names = (result.sets[name].n, *labels), tuple(set_result.by_label)
    if (len(names),) != (labels or (0,)) or names != tuple(result.methods[result.first].sets[name].by_label):
        raise ValueError(f"the labels of {method} on {name} are not those of the result")
    if truth is not None and truth.shape != shape:
        raise ValueError(f"the labels of {name} are of another shape")
    for label, estimates in set_result.by_label.items():
        if missing := {"pll", "accuracy", "ece"} - set(estimates):
            raise ValueError(f"estimate {min(missing)} of label {label} of {method} is missing")
    needed = {"pll", "accuracy", "max_probability", "least_confidence"} if labels else set()
    if missing := needed - set(set_result.label_points):
        raise ValueError(f"the {min(missing)} of the examples of {method} by label are missing")
    if any(values.shape != shape for values in set_result.label_points.values()):
        raise ValueError(f"the examples of {method} by label are of another shape")


def check_parts(result: Result, method: str, name: str) -> None:
    """Raise ValueError if the estimates by class or group are not those of the set's classes and groups."""
    evaluated, first = result.sets[name], result.methods[result.first].sets[name]
    parts = evaluated.parts
    for kind, field_name in PARTS.items():
        estimates = getattr(result.methods[method].sets[name], field_name)
        needed, dense = {*result.task.of_part}, result.task.is_dense
        is_of_points = not estimates or dense or tuple(estimates) == tuple(parts.get(kind, ()))
        if tuple(estimates) != tuple(getattr(first, field_name)) or not is_of_points:
            raise ValueError(f"the estimates by {kind} of {method} on {name} are not those of its examples")
        known = needed | (set() if dense else {*OF_POINTS})
        if any(not needed <= set(values) <= known for values in estimates.values()):
            raise ValueError(f"an estimate by {kind} of {method} on {name} is missing or unknown")


def check_log_likelihoods(result: Result) -> None:
    """Raise ValueError if a PLL over draws has not those that it is the mean of."""
    mixture = result.run.get("scoring", {}).get("pll", "mixture") == "mixture"
    for method, method_result in result.methods.items():
        test, shape = method_result.sets["test"], (result.samples_of(method), result.sets["test"].n, *_labels(result))
        sampled = not result.is_single(method) and "pll" in test.points and "pixels" not in test.points
        complete = test.log_likelihood is not None and test.log_likelihood.shape == shape
        if sampled and not complete and (mixture or result.task.truth == "labels"):
            raise ValueError(f"the log-likelihoods of {method} are missing, or of another shape")


def check_regression(method: str, result: MethodResult) -> None:
    """Raise ValueError if only some of the estimates that belong together are present."""
    estimates = result.sets["test"].estimates
    together = {"crps", *(("coverage50", "coverage95") if "tau" in estimates else ())}  # of quantiles some are unknown
    if {"tau", "coverage50", "coverage95"} & set(estimates) and not together <= set(estimates):
        raise ValueError(f"of tau, crps and coverage of {method} some are missing")
    if any("crps" not in bound for bound in result.bounds.values()):
        raise ValueError(f"a bound of {method} has no CRPS")
    if set(result.normalized) - {"pll_without_exact"} - set(result.bounds.get("constant", ())):
        raise ValueError(f"a normalised score of {method} has no bounds")
    if result.calibration and not {"level", "coverage"} <= set(result.calibration):
        raise ValueError(f"the calibration of {method} is incomplete")
    if set(result.uncertainty_error) != {"rank", "sigma", "error", "running_error"}:
        raise ValueError(f"the errors over uncertainty of {method} are incomplete")
