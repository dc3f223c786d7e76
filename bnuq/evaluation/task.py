"""The task of a network, and the check of what a classifier's outputs are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bnuq.arithmetic import PROBABILITY_TOLERANCE
from bnuq.config import ScoreSettings
from bnuq.data import MULTILABEL_KEY, Points
from bnuq.errors import DataError, ModelError, RequestError, SamplingError
from bnuq.findings import Finding, warning
from bnuq.sampling.engine import chunks, default_chunk
from bnuq.sampling.interception import Mode, aten
from bnuq.sampling.outputs import outputs_of, unconverted
from bnuq.sampling.plain_loop import Evaluation
from bnuq.tasks import CLASSIFICATION, REGRESSION, SEGMENTATION, Outputs, Task, task_named
from bnuq.user_code import is_failure

TASK_KEY = 'task = "regression" under [model] of the run file'
PROBABILITIES_KEY = 'outputs = "probabilities" under [model] of the run file'
BINARY_KEY = 'outputs = "binary" under [model] of the run file'
_CHECKED_POINTS = 64  # points whose outputs are checked
_SIGMOIDS = (aten.sigmoid, aten.sigmoid_, aten.hardsigmoid, aten.hardsigmoid_)


def task_of(settings: ScoreSettings, outputs: int, points: Points | None, *, dense: bool = False) -> Task:
    """The task as the run file gives it, otherwise by the number of outputs and the targets of `points`; segmentation
    where outputs are `dense`, (n, K, H, W).

    Raises DataError for ambiguous targets, and for several labels per point; RequestError for a regression with
    `outputs` of a classifier.
    """
    if dense:
        if settings.task not in (None, "segmentation"):
            raise RequestError(
                f'the network classifies each pixel, and task is "{settings.task}"; expected "segmentation", or a '
                "network that gives one row of outputs for an example."
            )
        if settings.outputs == "multilabel":
            raise RequestError('outputs is "multilabel", and the network classifies each pixel, as one of its classes.')
        return SEGMENTATION
    if settings.task == "segmentation":
        raise RequestError(
            'task is "segmentation", and the network gives one row of outputs for an example, not for each pixel.'
        )
    if settings.task == "regression" and settings.outputs != "logits":
        raise RequestError(
            f'outputs is "{settings.outputs}", which only outputs of a classifier can be, and task is "regression". '
            "Leave one of them out."
        )
    if settings.task is not None or settings.outputs != "logits":
        return task_named(settings.task or "classification", several_labels=settings.outputs == "multilabel")
    if points is None or points.targets is None:
        return CLASSIFICATION if outputs > 1 else REGRESSION
    targets = points.targets if points.all_targets is None else points.all_targets
    zero_or_one = bool(np.all((targets == 0) | (targets == 1)))
    if outputs == 1:
        if zero_or_one:
            raise DataError(
                f"the network has one output and the targets of {points.reference} are all 0 or 1: that may be a "
                "classifier of two classes, or a regression. Say which: --outputs binary for the logit of class 1 "
                f"({BINARY_KEY}); --outputs probabilities for its probability, where the network ends in a sigmoid; "
                f"--task regression for a regression ({TASK_KEY})."
            )
        return REGRESSION
    columns = targets.shape[1] if targets.ndim == 2 else 1
    if targets.dtype.kind in "iu" or columns != outputs:
        return CLASSIFICATION
    sums = targets.sum(axis=1)
    if zero_or_one and bool(np.all(sums == 1)):  # one-hot
        return CLASSIFICATION
    if zero_or_one or (bool(np.all(targets >= 0)) and np.allclose(sums, 1, atol=1e-4)):
        values = "probabilities, each row summing to 1: soft labels"
        say = "Provide one class per example, or one-hot rows."
        if zero_or_one:
            values = "0 or 1, with several or no 1 in a row: several labels per example"
            say = f"If each output is the logit of one of these labels: --outputs multilabel, or {MULTILABEL_KEY}."
        raise DataError(
            f"the targets of {points.reference} have {columns} columns, as many as the network has outputs, and all "
            f"are {values}. {say} If you mean a regression onto these numbers: --task regression, or {TASK_KEY}."
        )
    return REGRESSION


def are_several_labels(targets: Any, outputs: int) -> bool:
    """Whether targets are a matrix of 0 and 1 with a column for each of several outputs, and not one-hot."""
    is_matrix = targets.ndim == 2 and targets.shape[1] == outputs > 1 and bool(np.all((targets == 0) | (targets == 1)))
    return is_matrix and not bool(np.all(targets.sum(axis=1) == 1))


def check_outputs(
    model: nn.Module, feed: Callable[[slice], Tensor], points: Points, task: Task = CLASSIFICATION
) -> tuple[Finding, ...]:
    """Raise ModelError where the outputs of a classifier of points are not what they are said to be; a warning where
    logits only look like the outputs of a sigmoid. `feed` gives rows of `points` as network input."""
    outputs, network = outputs_of(model), Evaluation(unconverted(model))
    if task.is_dense or task.is_regression:
        return ()
    if outputs in ("logits", "binary", "multilabel") and not _within_0_and_1(network.passes(feed(slice(0, 3)))):
        return ()
    count, size = min(_CHECKED_POINTS, len(points)), default_chunk(points.point_shape)
    with _LatestSigmoid() as recorder:
        blocks = [(block[0], recorder.made_by_sigmoid(block)) for block in chunks(network, count, feed, size=size)]
    values, made_by_sigmoid = torch.cat([block for block, _ in blocks]), all(by_sigmoid for _, by_sigmoid in blocks)
    where = f"{count} examples of {points.reference}"
    if outputs in ("probabilities", "log_probabilities"):
        _check_probabilities(values, outputs, where)
        return ()
    if not _within_0_and_1(values):
        return ()
    where = f"on {where} all lie between 0 and 1"
    if values.shape[1] > 1 and torch.allclose(values.sum(-1), torch.ones_like(values[:, 0]), atol=1e-3):
        raise ModelError(
            f"the network's outputs look like the probabilities of a softmax: {where}, and each row sums to 1. "
            "Taken for logits, a softmax of a softmax would be scored. Say what they are: --outputs probabilities, or "
            f"{PROBABILITIES_KEY}."
        )
    if made_by_sigmoid and outputs == "binary":
        raise ModelError(
            f'outputs is "binary", which is one logit per example, and the network ends in a sigmoid: its outputs '
            f"{where}. Say that these are probabilities of class 1: --outputs probabilities, or {PROBABILITIES_KEY}."
        )
    if made_by_sigmoid and outputs == "multilabel":
        raise ModelError(
            f'outputs is "multilabel", which is one logit per label, and the network ends in a sigmoid: its outputs '
            f"{where}. Remove the last sigmoid from the architecture; it has no weights, so the checkpoint still fits."
        )
    if made_by_sigmoid:
        raise ModelError(
            f"the network ends in a sigmoid: its outputs {where}, and rows do not sum to 1. Taken for logits, they "
            "would be flattened by a softmax. Remove the last sigmoid from the architecture. If each output is a label "
            f"of its own, several per example, also say --outputs multilabel, or {MULTILABEL_KEY}."
        )
    return (warning("probability-outputs", range=where),) if outputs == "logits" else ()


def _check_probabilities(values: Tensor, outputs: Outputs, where: str) -> None:
    """Raise ModelError where these outputs (n, K) are not probabilities, or their logarithms."""
    wide = values.double()
    p = wide if outputs == "probabilities" else wide.exp()
    low, high = float(values.min()), float(values.max())
    if not bool(((p >= 0) & (p <= 1 + PROBABILITY_TOLERANCE)).all()):
        expected = "numbers from 0 to 1" if outputs == "probabilities" else "numbers of at most 0"
        instead = "binary, if they are logits of class 1" if values.shape[1] == 1 else "logits"
        raise ModelError(
            f'outputs is "{outputs}", and on {where} the network gives values from {low:.3g} to {high:.3g}; expected '
            f"{expected}. Name what they are, such as --outputs {instead}."
        )
    sums = p.sum(-1)
    if values.shape[1] > 1 and bool(((sums - 1).abs() > PROBABILITY_TOLERANCE).any()):
        raise ModelError(
            f'outputs is "{outputs}", and on {where} the probabilities of an example sum to values from '
            f"{float(sums.min()):.4g} to {float(sums.max()):.4g}; expected 1. If a sigmoid made them, remove it "
            "from the architecture: for one class per example leave --outputs out; for several labels per example, say "
            f"--outputs multilabel, or {MULTILABEL_KEY}."
        )


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


def first_output(model: nn.Module, example: Tensor, test: Points) -> Tensor:
    try:
        output = Evaluation(model).passes(example)[0]
    except SamplingError as error:
        if error.__cause__ is not None and not is_failure(error.__cause__):  # not caused by the points
            raise
        raise DataError(
            f"the network does not accept examples of shape {test.form} ({test.reference}): {error}"
        ) from error
    if output.ndim not in (2, 4) or len(output) != len(example):
        raise DataError(
            f"the network gives {tuple(output.shape)} for {len(example)} examples; expected (examples, classes), "
            "(examples, outputs) for regression, or (examples, classes, height, width) for segmentation. Reshape its "
            "output in the architecture's function."
        )
    if output.ndim == 4 and output.shape[2:] != example.shape[2:]:
        sizes = [" × ".join(map(str, tensor.shape[:1:-1])) for tensor in (output, example)]
        raise DataError(
            f"the network gives {sizes[0]} pixels for images of {sizes[1]}; expected a class for each pixel. Resize "
            "its output in the architecture's function (torch.nn.functional.interpolate), or the images (--resize) "
            "to a size that its layers divide."
        )
    return output


def task_and_outputs(settings: ScoreSettings, output: Tensor, test: Points, train: Points | None) -> tuple[Task, int]:
    """The task of the network, and its number of outputs."""
    outputs, targets = output.shape[1], test.targets
    dense = output.ndim == 4
    task = task_of(settings, outputs, test if targets is not None or train is None else train, dense=dense)
    if not task.is_regression and outputs < 2:
        raise DataError(
            f"the network has {outputs} output; expected one per class, at least 2. For two classes say what the "
            "output is: --outputs binary for the logit of class 1, --outputs probabilities for its probability. For a "
            f"regression: --task regression, or {TASK_KEY}."
        )
    if task.is_dense:
        return task, outputs
    if targets is None:
        if task.is_regression:
            raise DataError(
                f"test set {test.reference} has no targets, and a regression is not evaluated without them. Add them; "
                "for a classifier of two classes with one output, say what the output is: --outputs binary or "
                "--outputs probabilities."
            )
        return task, outputs
    columns = targets.shape[1] if targets.ndim == 2 else 1
    if task.is_regression and (targets.ndim > 2 or columns != outputs):
        raise DataError(
            f"the network has {outputs} outputs and the targets of {test.reference} have shape {targets.shape}; "
            f"expected ({len(test)}, {outputs})."
        )
    return task, outputs
