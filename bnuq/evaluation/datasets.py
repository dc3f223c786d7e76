"""The points of a run and their pipelines: the reference, and the evaluated sets, limited where the run says so."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from bnuq.catalogue import distinct
from bnuq.config import Named, Run, Split
from bnuq.data import (
    Fingerprints,
    Fit,
    MemoryBudget,
    Points,
    are_grey_files,
    fetch,
    fitted,
    in_colour,
    in_one_numbering,
    labelled,
    load_points,
    missing_set,
    parse_reference,
    points_in_memory,
    read_classes,
)
from bnuq.errors import DataError, RequestError, SamplingError
from bnuq.evaluation import memory
from bnuq.findings import Finding, about, note, warning
from bnuq.frozen import frozen
from bnuq.methods import method_named
from bnuq.metrics.replicates import independent_units
from bnuq.packing import difference
from bnuq.progress import Progress, silent
from bnuq.sampling import counter_rng
from bnuq.sampling.counter_rng import held_out_rows
from bnuq.sampling.plain_loop import Evaluation


@frozen
class RunData:
    """The sets of a run, with findings from reading them; `test_points` is the size of the test set before
    --limit.

    `validation` is None where there are no points held out of training; `why_no_validation` says why.
    """

    train: Points | None
    test: Points
    ood: dict[str, Points]
    validation: Points | None
    why_no_validation: str
    test_points: int
    findings: tuple[Finding, ...] = ()

    def changed(self, change: Callable[[Points], Points]) -> RunData:
        """All evaluated sets after this change."""
        ood = {name: change(points) for name, points in self.ood.items()}
        validation = None if self.validation is None else change(self.validation)
        return replace(self, test=change(self.test), ood=ood, validation=validation)


def load_data(run: Run, model: nn.Module | None = None, *, needs_reference: bool = True) -> RunData:
    """Read every set that `run` names; DataError or RequestError for sets that cannot be evaluated together. Grey
    pictures in files are repeated to three channels where the `model`, or the reference, has no other. A reference of
    another shape than the test set is left out with a note unless the run `needs_reference`.

    Pictures in files and items of large Datasets are decoded as they are needed, and kept up to `_BUDGETS`: each
    is decoded once within that limit, and once for each method and round of draws beyond it.
    """
    whole, limit = _read_sets(run), run.limit
    data = whole if limit is None else whole.changed(lambda points: limited(points, limit, run.seed))
    data = _in_one_shape(run, model, data)
    unused: tuple[Finding, ...] = ()
    if data.train is not None:
        try:
            cut = run.augment is not None and run.augment.resized_crop is not None
            check_same_shape("train", data.train, data.test, resized_crop=cut)
        except DataError:
            if needs_reference:
                raise
            reference, shape = data.train.reference, data.train.form
            unused = (note("reference-unused", reference=reference, shape=shape, test=data.test.form),)
            data, whole = replace(data, train=None), replace(whole, train=None)
    for label, points in {**data.ood, "validation": data.validation}.items():
        if points is not None:
            check_same_shape(label, points, data.test)
    shared = tuple(_shared_points(whole.train, whole.test, whole.validation, whole.ood))
    # each at most an eighth of the free memory
    free = memory.available(torch.device("cpu"))
    evaluated, reference_budget = (MemoryBudget(size if free is None else min(size, free // 8)) for size in _BUDGETS)
    data = data.changed(lambda points: points.keeping(evaluated))
    train = None if data.train is None else data.train.keeping(reference_budget)
    everything = [points for points in (train, data.test, *data.ood.values(), data.validation) if points is not None]
    check_grouped(run, everything)
    found = (finding for points in everything for finding in about(points.name, points.findings))
    findings = tuple(distinct(found).values())
    findings += (*_other_scales(train, {"test": data.test, "validation": data.validation, **data.ood}),)
    findings += (*unused, *shared) + (() if limit is None else (note("limited", limit=limit, seed=run.seed),))
    return replace(data, train=train, findings=findings)


def _read_sets(run: Run) -> RunData:
    """Every set that the run names, whole, their classes in one numbering."""
    assert run.test is not None
    test = labelled(_opened(run, run.test, "test"))
    train = _opened(run, run.train, "train", whole=False) if run.train else None
    if train is not None and run.sampler.batches == "stratified":
        train = labelled(train)  # once: each mini-batch is drawn by them
    ood: dict[str, Points] = {}
    for ref in run.ood:
        points = _opened(run, ref, "test", ood=True)
        if points.name in ood:
            text = parse_reference(ref.text, base=ref.base)[1]
            raise RequestError(
                f"two OOD sets are called {points.name}; give them different names: --ood {points.name}_2={text}."
            )
        ood[points.name] = points
    validation, why_none = None, "no examples held out of training were named"
    if isinstance(run.validation, Named):
        validation, why_none = labelled(_opened(run, run.validation, "validation")), ""
    train, test, validation = numbered(run, train=train, test=test, validation=validation).values()
    if isinstance(run.validation, Split):
        train, test, validation, why_none = _split(run.validation, train, test)
    if validation is not None and (validation := labelled(validation)).targets is None:
        raise DataError(f"validation set {validation.reference} has no targets; what is fitted to it needs them.")
    return RunData(train, test, ood, validation, why_none, len(test))


def _in_one_shape(run: Run, model: nn.Module | None, data: RunData) -> RunData:
    """The sets resized and cropped, and grey pictures repeated to three channels where the network needs these."""
    test = in_shape(run, data.test)
    train = None if data.train is None else in_shape(run, data.train, test, whole=False)
    if are_grey_files(test) and ((train is not None and train.point_shape[0] == 3) or takes_rgb_alone(model, test)):
        test, train = in_colour(test), None if train is None else in_colour(train)
    ood = {name: in_shape(run, points, test, adapt=True) for name, points in data.ood.items()}
    validation = None if data.validation is None else in_shape(run, data.validation, test)
    if validation is not None and are_grey_files(validation) and test.point_shape[0] == 3:
        validation = in_colour(validation)
    return replace(data, train=train, test=test, ood=ood, validation=validation)


def takes_rgb_alone(model: nn.Module | None, points: Points) -> bool:
    """Whether the network takes pictures of three channels of the size of these grey ones in files, and none of one."""
    if model is None or not are_grey_files(points):
        return False
    tensors = (tensor for tensor in chain(model.parameters(), model.buffers()) if tensor.is_floating_point())
    like = next(tensors, torch.zeros(()))
    for channels in (1, 3):
        with suppress(SamplingError):
            Evaluation(model).passes(like.new_zeros((2, channels, *points.point_shape[1:])))
            return channels == 3
    return False


def needs_reference(run: Run) -> bool:
    """Whether a method of the run, or its normalisation, needs points of the reference."""
    methods = map(method_named, run.methods or ())
    is_used = run.methods is None or any(m.is_sampled_batchnorm or "weights" in m.differs_by for m in methods)
    return is_used or "train" in (run.normalize, run.normalize_targets)


_BUDGETS = 2**30, 2**29  # bytes of decoded items that are kept: of all evaluated sets, and of the reference


def fetch_missing(run: Run, progress: Progress, domains: Sequence[Named] = ()) -> None:
    """With `--download`, fetch the known sets that `run` and the `domains` name and that are missing, and say so on
    standard error unless `progress` is silent; errors as for `fetch`."""
    if not run.download:
        return

    def announce(text: str) -> None:
        if progress is not silent:
            sys.stderr.write(f"bnuq: {text}\n")

    named = [(run.train, "train"), (run.test, "test"), (run.validation, "validation")]
    for ref, split in (*named, *((ref, "test") for ref in (*run.ood, *domains))):
        if isinstance(ref, Named) and ref.data is None:
            _, text = parse_reference(ref.text, base=ref.base)
            if (wanted := missing_set(text, split, base=ref.base, data_root=run.data_root)) is not None:
                fetch(wanted[0], (wanted[1],), data_root=run.data_root, announce=announce, progress=progress)


def read_named(run: Run, ref: Named, split: str, *, ood: bool = False, like: Points | None = None) -> Points:
    """The points of one evaluated set that `run` names, as `in_shape` makes them; an `ood` set is adapted to those that
    it is to be `like`. `split` is the default for a known data set named without a split. DataError, RequestError or
    UntrustedCodeError where they cannot be read."""
    return in_shape(run, _opened(run, ref, split, ood=ood), like, adapt=ood)


def numbered(run: Run, /, **sets: Points | None) -> dict[str, Any]:
    """These sets in one numbering of their classes: that of the run, or else of `train`; see `in_one_numbering`."""
    classes = read_classes(run.classes).names if isinstance(run.classes, Path) else run.classes
    return in_one_numbering(sets, classes, ignore=run.ignore)


def read_reference(run: Run) -> Points:
    """The reference that `run` names, of which nothing is read that is not needed; errors as for `read_named`."""
    assert run.train is not None
    return in_shape(run, _opened(run, run.train, "train", whole=False), whole=False)


def in_shape(
    run: Run, points: Points, like: Points | None = None, *, whole: bool = True, adapt: bool = False
) -> Points:
    """`points` resized and cropped as the run says, see `fitted`."""
    fit = Fit(run.resize, run.crop, run.interpolation)
    shape = None if like is None else like.point_shape
    return fitted(points, fit, whole=whole, like=shape, adapt=adapt, ignore=run.ignore)


def _opened(run: Run, ref: Named, split: str, *, ood: bool = False, whole: bool = True) -> Points:
    if ref.data is not None:
        free_bytes = memory.available(torch.device("cpu"))
        options = {"ood": ood, "palette": run.palette, "free_bytes": free_bytes, "whole": whole}
        return _as_it_is(run, points_in_memory(ref.data, name=ref.text, **options))
    name, text = parse_reference(ref.text, base=ref.base)
    points = load_points(
        text,
        name=name,
        split_default=split,
        ood=ood,
        data_root=run.data_root,
        base=ref.base,
        named_by=ref.named_by,
        trust_code=run.trust_code,
        group=run.group,
        target=run.target,
        palette=run.palette,
        beside=tuple(parse_reference(other.text, base=other.base)[1] for other in (run.train, run.test) if other),
        free_bytes=memory.available(torch.device("cpu")),
        whole=whole,
        look=False,
    )
    return _as_it_is(run, points)


def _as_it_is(run: Run, points: Points) -> Points:
    """`points`; RequestError where they have several inputs and the run would change them."""
    keys = [key for key in ("normalize", "augment", "resize", "crop") if getattr(run, key) is not None]
    keys += ["channel_order"] * (run.channel_order != "rgb")
    if points.layout is not None and keys:
        raise RequestError(
            f"data.{keys[0]} changes one input, and the examples of {points.reference} have several ({points.form}), "
            "which are passed as they are. Prepare them as in training, and leave it out."
        )
    return points


def check_same_inputs(label: str, points: Points, like: Points) -> None:
    """Raise DataError that names the first of several inputs in which the points are not `like` others."""
    if wrong := difference(points.layout, like.layout):
        raise DataError(
            f"{label} ({points.reference}) has {wrong} ({like.reference}); expected the same inputs, in one order, of "
            "the same shapes and types."
        )


def check_same_shape(label: str, points: Points, test: Points, *, resized_crop: bool = False) -> None:
    """Raise DataError where points differ in shape from those of the test set; parts of pictures, of a `resized_crop`,
    may have another size."""
    check_same_inputs(label, points, test)
    first, second = points.point_shape, test.point_shape
    if first != second and not (resized_crop and first[:1] == second[:1]):
        advice = "Give both sets the same inputs, as the network was trained on."
        if len(first) == len(second) == 1:
            advice = "Give both tables the same columns, in the order of the training."
        elif len(first) == len(second) == 3 and first[0] == second[0]:
            advice = "Make them one size: --resize 256 --crop 224, or resize and crop in [data]."
        elif len(first) == len(second) == 3 and {first[0], second[0]} == {1, 3}:
            advice = (
                'Save the images of both with the channels that the network takes, image.convert("RGB") or '
                'image.convert("L") in Pillow; of an array, np.repeat(x, 3, axis=1) makes RGB of grey.'
            )
        raise DataError(
            f"{label} ({points.reference}) has examples of shape {first}, the test set ({test.reference}) of {second}; "
            f"expected the same. {advice}"
        )


def _split(split: Split, train: Points | None, test: Points) -> tuple[Points | None, Points, Points | None, str]:
    """(train, test, validation, why there is no validation): the part that `split` takes, and the rest."""
    source = train if split.split_of == "train" else test
    if source is None:
        raise RequestError('data.validation is split_of = "train", and there is no training set; add train = "REF".')
    if split.split_of == "train" and not split.held_out:
        why_none = "the validation examples are a part of the training set, which the network was trained on (held_out "
        return train, test, None, why_none + "is not true): its estimates on them would be too optimistic"
    if independent_units(len(source), source.group) < 2:
        raise DataError(f"{source.reference}: a single example, or group of examples, cannot be split for validation.")
    rows = held_out_rows(len(source), fraction=split.fraction, seed=split.seed, group=source.group)
    validation = replace(source.subset(rows), name="validation", listed=False)
    remaining = source.subset(np.setdiff1d(np.arange(len(source)), rows))
    return (remaining, test, validation, "") if split.split_of == "train" else (train, remaining, validation, "")


def check_grouped(run: Run, sets: Sequence[Points], unread: Sequence[Named] = ()) -> None:
    """Raise RequestError where the run names an array of groups that none of the sets has, nor of those `unread`."""
    if run.group is not None and all(points.group is None for points in sets):
        sets = [*sets, *(read_named(run, named, "test") for named in unread)]
    if run.group is not None and sets and all(points.group is None for points in sets):
        raise RequestError(
            f'data.group is "{run.group}", and no set has an array or a column of that name '
            f"({', '.join(dict.fromkeys(points.reference for points in sets))})."
        )


def limited(points: Points, limit: int, seed: int) -> Points:
    """At most `limit` of the points, at random by `seed`, in their original order."""
    if len(points) <= limit:
        return points
    rows = counter_rng.batch_indices(seed, 0, population=len(points), batch_size=limit, purpose=counter_rng.SUBSET)
    return replace(points.subset(np.sort(rows)), all_targets=points.targets)


_LOOK = 256  # points whose inputs' scale is compared
_OTHER_SCALE = 20.0  # between standard deviations: pixels of 0 to 255 beside those of 0 to 1 differ 255-fold


def _other_scales(train: Points | None, evaluated: Mapping[str, Points | None]) -> Iterator[Finding]:
    """Warnings about sets whose inputs vary on another scale than the reference's; only sets in memory are compared.
    An OOD set may differ in any way, unless one of the two has pixels from 0 to 1 and the other from 0 to 255."""
    if train is None or not isinstance(train.inputs, np.ndarray) or train.layout is not None:
        return
    reference = _look(train)
    for name, points in evaluated.items():
        if points is not None and isinstance(points.inputs, np.ndarray) and min(len(points), len(train)) >= 8:
            seen = _look(points)
            apart = not 1 / _OTHER_SCALE <= seen.sd / max(reference.sd, sys.float_info.min) <= _OTHER_SCALE
            if apart and (points is evaluated["test"] or points is evaluated["validation"] or _pixels(seen, reference)):
                yield warning(
                    "inputs-of-another-scale",
                    set=name,
                    source=points.reference,
                    low=seen.low,
                    high=seen.high,
                    sd=seen.sd,
                    reference=train.reference,
                    reference_low=reference.low,
                    reference_high=reference.high,
                    reference_sd=reference.sd,
                )


class _Spread(NamedTuple):
    low: float
    high: float
    sd: float


def _look(points: Points) -> _Spread:
    """The range and the standard deviation of a set's inputs before normalisation, by its first points."""
    values = points.raw(slice(0, _LOOK))
    return _Spread(float(values.min()), float(values.max()), float(values.std(dtype=np.float64)))


def _pixels(first: _Spread, second: _Spread) -> bool:
    """Whether one set has values from 0 to 1 and the other from 0 to 255."""
    small, large = sorted((first, second), key=lambda spread: spread.high)
    return min(small.low, large.low) >= 0 and small.high <= 1 < 100 < large.high <= 255


def _shared_points(
    train: Points | None, test: Points, validation: Points | None, ood: Mapping[str, Points]
) -> Iterator[Finding]:
    """Warnings about points that two sets share and should not."""
    tested, reference = Fingerprints(test), None if train is None else Fingerprints(train)
    outside = {name: Fingerprints(points) for name, points in ood.items()}
    validated = None if validation is None else Fingerprints(validation)
    if validated is not None and (shared := validated.shared_with(tested))[0]:
        yield warning("validation-in-test", shared=shared[0], points=shared[1], test=test.reference)
    for name, points in outside.items():
        if (shared := points.shared_with(tested))[0]:
            yield warning("ood-in-test", set=name, shared=shared[0], points=shared[1], test=test.reference)
    if train is None or reference is None:
        return
    if (shared := tested.shared_with(reference))[0]:
        yield warning("test-in-reference", shared=shared[0], points=shared[1], reference=train.reference)
    if validated is not None and (shared := validated.shared_with(reference))[0]:
        yield warning("validation-in-reference", shared=shared[0], points=shared[1], reference=train.reference)
    for name, points in outside.items():
        if (shared := points.shared_with(reference))[0]:
            yield warning("ood-in-reference", set=name, shared=shared[0], points=shared[1], reference=train.reference)
