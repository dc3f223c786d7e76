"""Predictions from other software: samples of every evaluated set from a file, scored like those of the network."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bnuq import devices
from bnuq.config import Run, Split
from bnuq.data import Points
from bnuq.data.readers.columns import read_columns
from bnuq.errors import DataError, RequestError
from bnuq.evaluation.datasets import RunData
from bnuq.evaluation.given import as_logits, wrong_values
from bnuq.evaluation.subject import VALIDATION, Subject
from bnuq.evaluation.target_scale import target_scale
from bnuq.evaluation.tasks import classification
from bnuq.files.content import sha256_of_file
from bnuq.findings import Finding, note
from bnuq.frozen import frozen
from bnuq.sampling.plain_loop import Engine
from bnuq.shapes import Float

_BLOCK = 2**24  # numbers that are looked at in one go


@frozen
class Predictions:
    """The samples (T, n, K) in a file by the name of the set, which may lack the validation points: probabilities of a
    classification, means of a regression in the unit of its targets. `rows` are those of the evaluated points."""

    path: Path
    sha256: str
    arrays: Mapping[str, Float[np.ndarray, "sample row output"]]
    rows: Mapping[str, np.ndarray]

    @property
    def samples(self) -> int:
        """T."""
        return next(iter(self.arrays.values())).shape[0]


def read_predictions(path: Path, run: Run, data: RunData) -> Predictions:
    """The predictions of the sets of `run`; DataError where the file cannot be read, lacks a set, or holds arrays that
    are not (T, n, K) numbers of the points of their set, with one T. Nothing is unpickled."""
    sets = {VALIDATION: data.validation, "test": data.test} | data.ood
    evaluated = {name: points for name, points in sets.items() if points is not None}
    of_test = isinstance(run.validation, Split) and run.validation.split_of == "test"
    array_of = {name: "test" if name == VALIDATION and of_test else name for name in evaluated}
    columns = read_columns(path).values
    if array_of.get(VALIDATION) == VALIDATION and VALIDATION not in columns:
        del evaluated[VALIDATION], array_of[VALIDATION]
    if missing := [name for name in dict.fromkeys(array_of.values()) if name not in columns]:
        raise DataError(
            f"{path}: holds no array {' and no array '.join(missing)}; it has {', '.join(columns) or 'none'}. "
            "Expected an array (T, n, K) for the test set and every OOD set, by its name. Add it, or leave the set out."
        )
    arrays = {name: columns[name] for name in array_of.values()}
    for name, points in evaluated.items():
        _check_shape(path, array_of[name], arrays[array_of[name]], points)
    lengths = {name: len(array) for name, array in arrays.items()}
    if len({*lengths.values()}) > 1:
        listed = ", ".join(f"{name} {samples}" for name, samples in lengths.items())
        raise DataError(f"{path}: its arrays have different numbers of samples ({listed}); expected the same.")
    return Predictions(
        path,
        sha256_of_file(path),
        {name: arrays[array] for name, array in array_of.items()},
        {name: points.places for name, points in evaluated.items()},
    )


def with_samples(run: Run, predictions: Predictions) -> Run:
    """`run` with the T of its predictions, where it names no number; RequestError for one that they do not have."""
    if run.samples_by_default:
        return replace(run, samples=predictions.samples)
    if run.samples == "auto" or run.samples > predictions.samples:
        raise RequestError(
            f"samples is {run.samples}, and {predictions.path} holds {predictions.samples} of each point; expected at "
            f"most as many, of which the first are used: --samples {predictions.samples}."
        )
    return run


def _check_shape(path: Path, name: str, array: np.ndarray, points: Points) -> None:
    if array.ndim != 3 or array.dtype.kind != "f" or 0 in array.shape:
        raise DataError(
            f"{path}: {name} has shape {array.shape} of {array.dtype}; expected (T, n, K), floating-point numbers: T "
            "samples of each of n points."
        )
    if array.shape[1] != points.total:
        whole = "" if points.total == len(points) else ", all of them: --limit and validation splits take their rows"
        raise DataError(
            f"{path}: {name} holds {array.shape[1]} points; expected the {points.total} points of {points.reference}, "
            f"in its order{whole}."
        )


def check_predictions(subject: Subject) -> None:
    """Raise DataError, with the first row that is wrong, for predictions of another number of classes or outputs than
    the network has, non-finite numbers, and probabilities outside [0, 1] or not summing to 1."""
    if (predictions := subject.predictions) is None:
        return
    task, outputs = subject.plan.task, subject.plan.outputs
    for name, array in predictions.arrays.items():
        where, rows = f"{predictions.path}: {name}", predictions.rows[name]
        if array.shape[2] != outputs:
            what = "outputs" if task.is_regression else "classes"
            raise DataError(f"{where} has {array.shape[2]} {what} (shape {array.shape}); the network has {outputs}.")
        step = max(1, _BLOCK // (array.shape[0] * outputs))
        for first in range(0, len(rows), step):
            block = array[:, rows[first : first + step]].astype(np.float64)
            if (wrong := wrong_values(block, "means" if task.is_regression else "probabilities", task)) is not None:
                sample, row, what, expected = wrong
                at = f"row {rows[first + row]} of sample {sample} (both counted from 0)"
                raise DataError(f"{where}: {at} {what}; expected {expected}.")


def findings_on_predictions(subject: Subject) -> Iterator[Finding]:
    """A note where there are validation points, and no predictions of them."""
    predictions = subject.predictions
    if predictions is not None and VALIDATION in subject.sets and VALIDATION not in predictions.rows:
        yield note("predictions-without-validation", file=predictions.path.name)


def subject_of_predictions(subject: Subject) -> Subject:
    """`subject` with the sets that have predictions and the scorer of these: those of a classification are logarithms
    of probabilities, which have no energy."""
    assert subject.predictions is not None
    predicted = {name: points for name, points in subject.sets.items() if name in subject.predictions.rows}
    subject = replace(subject, sets=predicted)
    if not subject.plan.task.classifies_points:
        return subject
    run = replace(subject.run, outputs="log_probabilities")
    return replace(subject, scorer=classification.ClassificationScorer(run, subject.plan.outputs))


@dataclass
class Predicted:
    """T samples of a set from other software, in the form of network outputs: log-probabilities, normalised,
    of a classification, logits of several labels, standardised means of a regression. `of` gives the engine of one set,
    whose inputs are the numbers of its points."""

    subject: Subject
    samples: int
    draws: range
    name: str = "test"

    def of(self, name: str, points: Points) -> Engine:  # noqa: ARG002 - a set's predictions go by its name
        """The engine for the points of this set."""
        return replace(self, name=name)

    def passes(self, inputs: Tensor, start: int = 0) -> Tensor:
        """Outputs (T, n, K) for points number `start`, `start` + 1, … of the set; `inputs` says how many."""
        predictions, subject = self.subject.predictions, self.subject
        assert predictions is not None
        rows = predictions.rows[self.name][start : start + len(inputs)]
        values = predictions.arrays[self.name][self.draws.start : self.draws.stop, rows].astype(np.float64)
        outputs, device = torch.from_numpy(_as_outputs(values, subject)), subject.pipeline.device
        return outputs.to(device, None if devices.traits(device).float64 else subject.pipeline.dtype)


def _as_outputs(values: Float[np.ndarray, "sample point output"], subject: Subject) -> Any:
    if subject.plan.task.is_regression:
        scale = target_scale(subject.run, subject.train, subject.plan.outputs)
        return values if scale is None else (values - scale.mean) / scale.std
    return as_logits(values, several_labels=not subject.plan.task.classifies_points)
