"""Which reference points form a mini-batch: random ones, every class in proportion, or points of a single group."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Protocol, runtime_checkable

import numpy as np

from bnuq.config import SamplerSettings
from bnuq.data import Points, labelled
from bnuq.errors import SamplingError
from bnuq.sampling import counter_rng
from bnuq.sampling.statistics import check_batch_size
from bnuq.shapes import Int64
from bnuq.tasks import Task


@runtime_checkable
class RowsOf(Protocol):
    """The reference rows of one mini-batch, by key: draw and purpose."""

    def __call__(self, draw: int, purpose: int) -> Int64[np.ndarray, " batch"]: ...


def mini_batches(sampler: SamplerSettings, train: Points, batch_size: int, *, seed: int) -> RowsOf:
    """The function that draws mini-batches of `batch_size` points, composed as `sampler` says.

    Raises SamplingError where the reference has no labels or groups to choose by, or too few points for a mini-batch.
    """
    if sampler.batches == "group":
        members = members_of(_groups(train))
        if not sampler.replacement:
            _check_groups(train, members, batch_size)
        rows = partial(counter_rng.indices_of_one_group, groups=members)
    elif sampler.batches == "stratified":
        rows = partial(counter_rng.stratified_indices, strata=members_of(_labels(train)))
    else:
        rows = partial(counter_rng.batch_indices, population=len(train))
    if not sampler.replacement:
        check_batch_size(batch_size, len(train), option="--batch-size")

    def rows_of(draw: int, purpose: int) -> Int64[np.ndarray, " batch"]:
        return rows(seed, draw, batch_size=batch_size, purpose=purpose, replacement=sampler.replacement)

    return rows_of


def check_mini_batches(sampler: SamplerSettings, train: Points, batch_size: int) -> None:
    """Raise SamplingError where mini-batches of this size cannot be drawn."""
    mini_batches(sampler, train, batch_size, seed=0)


def check_classes(sampler: SamplerSettings, task: Task, train: Points) -> None:
    """Raise SamplingError where mini-batches of a regression are to be stratified: whole-number targets are not
    classes."""
    if sampler.batches == "stratified" and task.is_regression:
        raise SamplingError(
            'batches is "stratified", which takes every class in proportion, and this is a regression: its targets '
            f'({train.reference}) are numbers, not classes, even if they are whole numbers. Use "random", or "group".'
        )


def members_of(codes: Int64[np.ndarray, " point"]) -> tuple[Int64[np.ndarray, " member"], ...]:
    """The rows of each code that occurs, in the order of the codes."""
    order = np.argsort(codes, kind="stable")
    starts = np.flatnonzero(np.diff(codes[order], prepend=codes[order[:1]] - 1))
    return tuple(np.split(order, starts[1:]))


def _labels(train: Points) -> Int64[np.ndarray, " point"]:
    y = labelled(train).targets
    if y is not None and y.ndim == 2 and y.shape[1] > 1 and np.all((y == 0) | (y == 1)) and np.all(y.sum(1) == 1):
        y = y.argmax(1)
    if y is not None and y.ndim == 2 and y.shape[1] == 1 and np.all(y == np.floor(y)):
        y = y[:, 0].astype(np.int64)
    if y is None or y.ndim != 1 or y.dtype.kind != "i":
        why = "has no labels" if y is None else "has targets that are not class labels"
        raise SamplingError(
            f'batches is "stratified", which takes every class in proportion, and the training set ({train.reference}) '
            f'{why}. Name a labelled one, or use "random".'
        )
    return y


def _groups(train: Points) -> Int64[np.ndarray, " point"]:
    if train.group is None:
        raise SamplingError(
            f'batches is "group", which takes every mini-batch from one group, and the training set '
            f"({train.reference}) names no groups: expected an array or a column called group, or the one that --group "
            "NAME (group under [data]) names."
        )
    return train.group


def _check_groups(train: Points, members: Sequence[np.ndarray], batch_size: int) -> None:
    smallest = min(members, key=len)
    if len(smallest) < batch_size:
        few = sum(len(rows) < batch_size for rows in members)
        name = train.group_of_point[smallest[0]]
        smaller = f"--batch-size {len(smallest)} or less, " if len(smallest) > 1 else ""
        raise SamplingError(
            f'batches is "group", and group {name} of the training set ({train.reference}) has '
            f"{len(smallest)} example{'s' * (len(smallest) > 1)}, fewer than the {batch_size} drawn for a mini-batch "
            f"({few} of {len(members)} groups are too small). Use {smaller}--replacement, or leave them out."
        )
