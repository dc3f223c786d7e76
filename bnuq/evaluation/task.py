"""The task of a network, classification or regression, and the check that a classifier's outputs are logits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from bnuq.config import Run
from bnuq.data import Points
from bnuq.errors import DataError, ModelError
from bnuq.findings import Finding, warning
from bnuq.sampling.engine import chunks, default_chunk
from bnuq.sampling.interception import Mode, aten
from bnuq.sampling.plain_loop import Evaluation

TASK_KEY = 'task = "regression" under [model] of the run file'
_CHECKED_POINTS = 64  # points whose outputs are checked
_SIGMOIDS = (aten.sigmoid, aten.sigmoid_, aten.hardsigmoid, aten.hardsigmoid_)


def task_of(run: Run, outputs: int, points: Points | None) -> Literal["classification", "regression"]:
    """The task as the run file gives it, otherwise by the number of outputs and the targets of `points`.

    Raises DataError for ambiguous targets, and for several labels per point.
    """
    if run.task is not None:
        return "regression" if run.task == "regression" else "classification"
    if points is None or points.targets is None:
        return "classification" if outputs > 1 else "regression"
    targets = points.targets
    zero_or_one = bool(np.all((targets == 0) | (targets == 1)))
    if outputs == 1:
        if zero_or_one:
            raise DataError(
                f"the network has one output and the targets of {points.reference} are all 0 or 1: that may be a "
                "classifier of two classes, which bnuq takes with an output for each, or a regression. For the latter "
                f"write {TASK_KEY}."
            )
        return "regression"
    columns = targets.shape[1] if targets.ndim == 2 else 1
    if targets.dtype.kind in "iu" or columns != outputs:
        return "classification"
    sums = targets.sum(axis=1)
    if zero_or_one and bool(np.all(sums == 1)):  # one-hot
        return "classification"
    if zero_or_one or (bool(np.all(targets >= 0)) and np.allclose(sums, 1, atol=1e-4)):
        values = "0 or 1, with several or no 1 in a row: several labels per point"
        values = values if zero_or_one else "probabilities, each row summing to 1: soft labels"
        raise DataError(
            f"the targets of {points.reference} have {columns} columns, as many as the network has outputs, and all "
            f"are {values}. bnuq scores classifiers with one label per point: provide one class per point, or one-hot "
            f"rows. If you mean a regression onto these numbers, write {TASK_KEY}."
        )
    return "regression"


def check_outputs(model: nn.Module, feed: Callable[[slice], Tensor], points: Points) -> tuple[Finding, ...]:
    """Raise ModelError where a classifier's outputs come from a softmax or a sigmoid and are not logits; a warning
    where they only look like those of a sigmoid. `feed` gives rows of `points` as network input."""
    if not _within_0_and_1(Evaluation(model).passes(feed(slice(0, 3)))):
        return ()
    count, size = min(_CHECKED_POINTS, len(points)), default_chunk(points.point_shape)
    with _LatestSigmoid() as recorder:
        blocks = [
            (block[0], recorder.made_by_sigmoid(block)) for block in chunks(Evaluation(model), count, feed, size=size)
        ]
    outputs, made_by_sigmoid = torch.cat([block for block, _ in blocks]), all(by_sigmoid for _, by_sigmoid in blocks)
    if not _within_0_and_1(outputs):
        return ()
    where = f"on {count} points of {points.reference} all lie between 0 and 1"
    if torch.allclose(outputs.sum(-1), torch.ones_like(outputs[:, 0]), atol=1e-3):
        raise ModelError(
            f"the network's outputs look like the probabilities of a softmax: {where}, and each row sums to 1. bnuq "
            "treats outputs as logits and applies the softmax itself; this would score a softmax of a softmax. "
            "Remove the last softmax from the architecture, or return the logarithm of these outputs from the --arch "
            "factory."
        )
    if made_by_sigmoid:
        raise ModelError(
            f"the network ends in a sigmoid: its outputs {where}. bnuq treats outputs as logits and applies a softmax "
            "over the classes, which this sigmoid flattens. Remove the last sigmoid from the architecture. "
            "Multi-label networks are not supported by this version."
        )
    return (warning("probability-outputs", range=where),)


def _within_0_and_1(outputs: Tensor) -> bool:
    return bool(((outputs >= 0) & (outputs <= 1)).all())


class _LatestSigmoid(Mode):
    """Remembers the output of the latest sigmoid, to recognise it or a view of it."""

    _latest: Tensor | None = None  # referenced, so that no other tensor reuses its memory

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func.overloadpacket in _SIGMOIDS:
            self._latest = result
        return result

    def made_by_sigmoid(self, output: Tensor) -> bool:
        latest = self._latest
        return latest is not None and latest.untyped_storage().data_ptr() == output.untyped_storage().data_ptr()
