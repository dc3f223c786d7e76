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

import os
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from bnuq.config.earlier_versions import RENAMED_FINDINGS, in_current_settings, removed_settings
from bnuq.files import noted
from bnuq.files.hdf5 import image_of
from bnuq.files.writing import replaced
from bnuq.methods import method_named
from bnuq.records import pixel_maps
from bnuq.records.evaluation import (
    OWN,
    MethodResult,
    Result,
    Samples,
    Scored,
    SetResult,
)
from bnuq.records.evaluation_checks import check_complete, check_texts
from bnuq.records.evaluation_parts import check_log_likelihoods
from bnuq.records.summary import summary
from bnuq.store import codec
from bnuq.store.codec import check_replaceable, with_unknown
from bnuq.store.datasets import PACKED, Writer

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
        noted.note(image)


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
    last, unit = ("output", "target unit") if result.task.is_regression else ("class", "1")
    last = "label" if result.model.get("labels") else last
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
