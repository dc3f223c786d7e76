"""The points of a run and their pipelines: the whole reference, and the evaluated sets, limited where the run says
so."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from bnuq.catalogue import distinct
from bnuq.config import Augment, Named, Normalize, Run, Split
from bnuq.data import Points, augmented, load_points, normalized, parse_reference, points_in_memory
from bnuq.errors import DataError, RequestError
from bnuq.evaluation import memory
from bnuq.findings import Finding, about, note, warning
from bnuq.sampling import counter_rng


@dataclass(frozen=True)
class Material:
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
    findings: tuple[Finding, ...]


def load_material(run: Run) -> Material:
    """Read every set that `run` names; DataError or RequestError for sets that cannot be evaluated together."""

    assert run.test is not None
    test = read_named(run, run.test, "test")
    train = read_named(run, run.train, "train") if run.train else None
    ood: dict[str, Points] = {}
    for ref in run.ood:
        points = read_named(run, ref, "test", ood=True)
        if points.name in ood:
            raise RequestError(
                f"two OOD sets are called {points.name}; give them different names: --ood NAME={ref.text}."
            )
        ood[points.name] = points
    for label, points in {"train": train, **ood}.items():
        if points is not None:
            _check_same_shape(label, points, test)
    validation, why = None, "no points held out of training were named"
    if isinstance(run.validation, Split):
        train, test, validation, why = _split(run.validation, train, test)
    elif run.validation is not None:
        validation, why = read_named(run, run.validation, "validation"), ""
    if validation is not None:
        if validation.targets is None:
            raise DataError(f"validation set {validation.reference} has no targets; what is fitted to it needs them.")
        _check_same_shape("validation", validation, test)
    everything = [points for points in (train, test, *ood.values(), validation) if points is not None]
    check_grouped(run, everything)
    findings = tuple(
        distinct(finding for points in everything for finding in about(points.name, points.findings)).values()
    )
    findings += tuple(_shared_points(train, test, validation))
    test_points = len(test)
    if run.limit is not None:
        findings += (note("limited", limit=run.limit, seed=run.seed),)
        test = limited(test, run.limit, run.seed)
        ood = {name: limited(points, run.limit, run.seed) for name, points in ood.items()}
        validation = None if validation is None else limited(validation, run.limit, run.seed)
    return Material(train, test, ood, validation, why, test_points, findings)


def read_named(run: Run, ref: Named, split: str, *, ood: bool = False) -> Points:
    """The points of one set that `run` names; `split` is the default for a known data set named without a split.
    DataError, RequestError or UntrustedCodeError where they cannot be read."""
    if ref.data is not None:
        return points_in_memory(ref.data, name=ref.text, ood=ood, room=memory.available(torch.device("cpu")))
    name, text = parse_reference(ref.text, base=ref.base)
    return load_points(
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
        beside=tuple(parse_reference(other.text, base=other.base)[1] for other in (run.train, run.test) if other),
        room=memory.available(torch.device("cpu")),
    )


def _check_same_shape(label: str, points: Points, test: Points) -> None:
    if points.point_shape != test.point_shape:
        raise DataError(
            f"{label} ({points.reference}) has points of shape {points.point_shape}, the test set of "
            f"{test.point_shape}; expected the same."
        )


def _split(split: Split, train: Points | None, test: Points) -> tuple[Points | None, Points, Points | None, str]:
    """(train, test, validation, why there is no validation): the part that `split` takes, and the rest."""
    source = train if split.split_of == "train" else test
    if source is None:
        raise RequestError('data.validation is split_of = "train", and there is no reference; add train = "REF".')
    if split.split_of == "train" and not split.held_out:
        return (
            train,
            test,
            None,
            (
                "the validation points are a part of the reference, which the network was trained on (held_out is "
                "not true): its estimates on them would be too optimistic"
            ),
        )
    if len(source if source.group is None else np.unique(source.group)) < 2:
        raise DataError(f"{source.reference}: a single point, or group of points, cannot be split for validation.")
    rows = held_out_rows(len(source), fraction=split.fraction, seed=split.seed, group=source.group)
    validation = replace(source.subset(rows), name="validation")
    rest = source.subset(np.setdiff1d(np.arange(len(source)), rows))
    return (rest, test, validation, "") if split.split_of == "train" else (train, rest, validation, "")


def held_out_rows(
    points: int, *, fraction: float = 0.1, seed: int = 0, group: Int64[np.ndarray, " point"] | None = None
) -> Int64[np.ndarray, " row"]:
    """The rows, ascending, that `validation = { split_of = …, fraction, seed }` takes of a set of `points` points.

    A network trained without them has them held out. With `group`, whole groups are taken.
    """
    names = np.arange(points) if group is None else np.unique(group, return_inverse=True)[1]
    count = int(names.max()) + 1
    group_count = min(max(1, round(fraction * count)), count - 1)
    chosen = counter_rng.batch_indices(seed, 0, population=count, batch_size=group_count, purpose=counter_rng.SUBSET)
    return np.flatnonzero(np.isin(names, chosen))


def check_grouped(run: Run, sets: Sequence[Points]) -> None:
    """Raise RequestError where the run names an array of groups that none of the sets has."""
    if run.group is not None and all(points.group is None for points in sets):
        raise RequestError(
            f'data.group is "{run.group}", and no set has an array or a column of that name '
            f"({', '.join(dict.fromkeys(points.reference for points in sets))})."
        )


def limited(points: Points, limit: int, seed: int) -> Points:
    """At most `limit` of the points, at random by `seed`, in their original order."""
    if len(points) <= limit:
        return points
    rows = counter_rng.batch_indices(seed, 0, population=len(points), batch_size=limit, purpose=counter_rng.SUBSET)
    return points.subset(np.sort(rows))


def _shared_points(train: Points | None, test: Points, validation: Points | None) -> Iterator[Finding]:
    """Warnings about points that two sets share and should not; only sets in memory are compared."""
    if validation is not None:
        test_hashes = set(_hashes(test))
        if (count := sum(row_hash in test_hashes for row_hash in _hashes(validation))) > 0:
            yield warning("validation-in-test", shared=count, points=len(validation), test=test.reference)
    if train is None or not isinstance(train.inputs, np.ndarray):
        return
    train_hashes = set(_hashes(train))
    if (count := sum(row_hash in train_hashes for row_hash in _hashes(test))) > 0:
        yield warning("test-in-reference", shared=count, points=len(test), reference=train.reference)
    if validation is not None and (count := sum(row_hash in train_hashes for row_hash in _hashes(validation))) > 0:
        yield warning("validation-in-reference", shared=count, points=len(validation), reference=train.reference)


def _hashes(points: Points) -> Iterator[int]:
    if isinstance(points.inputs, np.ndarray):
        yield from (hash(row.tobytes()) for row in points.inputs)


@dataclass(frozen=True)
class Scale:
    """The standardisation of the network's targets: target = output · std + mean, per output."""

    mean: Float[np.ndarray, " output"]
    std: Float[np.ndarray, " output"]


def target_scale(run: Run, train: Points | None, outputs: int) -> Scale | None:
    """The statistics of `normalize_targets`, one number per output; None where targets were not standardised.

    "train" takes those of the reference (divisor n, and 1 for a constant target); RequestError or DataError where there
    are none.
    """
    statistics = run.normalize_targets
    if statistics is None:
        return None
    if statistics == "train":
        if train is None or train.targets is None or train.targets.ndim > 2:
            raise RequestError(
                'data.normalize_targets is "train", which takes mean and std of the reference\'s targets, and there is '
                "no reference with targets. Add one, or write normalize_targets = { mean = [...], std = [...] }."
            )
        statistics = _statistics(train.targets.reshape(len(train), -1).astype(np.float64))
    scale = {}
    for key, values in (("mean", statistics.mean), ("std", statistics.std)):
        if len(values) not in (1, outputs) or not np.all(np.isfinite(values)):
            raise RequestError(
                f"data.normalize_targets.{key} is {list(values)}; expected {outputs} finite numbers, one per output."
            )
        scale[key] = np.broadcast_to(np.asarray(values, dtype=np.float64), (outputs,))
    if not np.all(scale["std"] > 0):
        raise RequestError(f"data.normalize_targets.std is {list(statistics.std)}; expected positive numbers.")
    return Scale(**scale)


def input_normalize(run: Run, train: Points | None, evaluated: Points | None = None) -> Normalize | None:
    """The statistics that inputs are normalised with; "train" computes them from the reference, feature by feature.
    RequestError for published ones of another number of channels than the `evaluated` points have (the reference, where
    None): one number of MEAN/STD serves all channels, those of grey images do not."""
    if run.normalize != "train":
        points = train if evaluated is None else evaluated
        if run.normalize_name is not None and run.normalize is not None and points is not None:
            _check_published(run.normalize_name, run.normalize, points)
        return run.normalize
    if train is None:
        raise RequestError(
            'data.normalize is "train", which takes mean and std of the reference, and there is none. Add --train REF, '
            "or write normalize = { mean = [...], std = [...] }."
        )
    values = train.raw(slice(None))
    return _statistics(np.moveaxis(values, 1, -1).reshape(-1, values.shape[1]))


def _check_published(name: str, normalize: Normalize, points: Points) -> None:
    numbers, channels = len(normalize.mean), points.point_shape[0]
    if numbers != channels:
        written = ",".join(["MEAN"] * channels) + "/" + ",".join(["STD"] * channels)
        raise RequestError(
            f"--normalize {name} is of images with {numbers} channel{'s' * (numbers > 1)}, and the points of "
            f"{points.reference} have shape {points.point_shape}, with {channels} first; expected the normalisation of "
            f"the training: another name, or numbers (--normalize {written}; one number serves all channels)."
        )


def _statistics(values: Float[np.ndarray, "row column"]) -> Normalize:
    """Mean and standard deviation (divisor n) of every column; 1 for the deviation of a constant column."""
    mean, std = values.mean(0, dtype=np.float64), values.std(0, dtype=np.float64)
    constant = std <= 1e-12 * np.maximum(np.abs(mean), np.finfo(np.float64).tiny)
    return Normalize(mean=tuple(mean.tolist()), std=tuple(np.where(constant, 1.0, std).tolist()))


@dataclass(frozen=True)
class Pipeline:
    """Turns points into the network's input on its device: as in evaluation, or as in training. Points that are
    `integers`, such as token numbers, are passed as int64, as they are."""

    run: Run
    device: torch.device
    normalize: Normalize | None = None
    integers: bool = False

    @property
    def dtype(self) -> torch.dtype:
        return torch.float64 if self.run.precision == "float64" else torch.float32

    def evaluated(self, points: Points, indices: Any) -> Tensor:
        """Evaluated points: normalisation only."""
        if self.integers:
            return torch.from_numpy(points.inputs[indices].astype(np.int64)).to(self.device)
        return self._tensor(points.raw(indices))

    def trained(
        self, points: Points, indices: Int64[np.ndarray, " batch"], *, draw: int, purpose: int, point: int = 0
    ) -> Tensor:
        """A reference batch through the training pipeline: augmentation of raw pixels, then normalisation.

        `point` is the number of the evaluated point that the batch belongs to, where every point has batches of its
        own.
        """
        if self.integers:
            return self.evaluated(points, indices)
        raw = points.raw(indices)
        if self.run.augment is not None:
            _check_padding_fits(raw, self.run.augment)
            words = counter_rng.augmentation_words(self.run.seed, draw, len(indices), purpose=purpose, point=point)
            raw = augmented(raw, self.run.augment, words)
        return self._tensor(raw)

    def _tensor(self, raw: np.ndarray) -> Tensor:
        if self.run.channel_order == "bgr":
            raw = _reversed_channels(raw)
        wide = raw.astype(np.float64) if self.run.precision == "float64" else raw
        inputs = np.require(normalized(wide, self.normalize), requirements="W")  # the array may be read-only
        return torch.from_numpy(inputs).to(self.device, self.dtype)


def _check_padding_fits(raw: np.ndarray, augment: Augment) -> None:
    """RequestError where a mini-batch with its padding would not fit in memory."""
    if raw.ndim != 4 or augment.pad <= max(raw.shape[2:]):
        return
    padded = raw.nbytes * math.prod(side + 2 * augment.pad for side in raw.shape[2:]) // math.prod(raw.shape[2:])
    free = memory.available(torch.device("cpu"))
    if free is not None and 2 * padded > free:
        raise RequestError(
            f"data.augment.pad is {augment.pad}: a mini-batch of {len(raw)} images would take "
            f"{memory.in_words(2 * padded)} with its padding, and {memory.in_words(free)} are free. Expected less."
        )


def _reversed_channels(raw: np.ndarray) -> np.ndarray:
    if raw.ndim != 4 or raw.shape[1] != 3:
        raise RequestError(
            f'data.channel_order is "bgr", and the points have shape {raw.shape[1:]}; expected images with 3 channels.'
        )
    return np.ascontiguousarray(raw[:, ::-1])
