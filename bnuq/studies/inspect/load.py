"""Loads a network for inspection, with its reference if there is one, otherwise with random points."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from bnuq.config import PointSettings, Run, Split
from bnuq.data import Points, in_colour
from bnuq.errors import BnuqError, DataError, RequestError, SamplingError, UntrustedCodeError
from bnuq.evaluation.datasets import (
    check_grouped,
    check_same_inputs,
    numbered,
    read_named,
    read_reference,
    takes_rgb_alone,
)
from bnuq.evaluation.pipeline import Pipeline, device_and_notes, input_normalize
from bnuq.evaluation.setup import as_taken, check_class_names, check_train_size, network_of
from bnuq.findings import Finding, about, note, warning
from bnuq.frozen import frozen
from bnuq.models.loading import LoadedModel
from bnuq.sampling.counter_rng import held_out_rows
from bnuq.sampling.interception import forward, undisturbed, with_autograd_if_needed
from bnuq.sampling.outputs import as_logits
from bnuq.user_code import is_failure

Shape = tuple[int, ...]

SIDES = (32, 28, 64, 224, 96, 128, 48, 256, 299)  # side lengths of images, in the order in which they are tried
LENGTHS = (128, 1024, 16_000)  # lengths of sequences
MADE_UP_POINTS = 3


@frozen
class LoadedNetwork:
    """The network on its device, the reference and the test set if they could be read, and a few points as network
    input."""

    loaded: LoadedModel
    model: nn.Module
    train: Points | None
    test: Points | None
    pipeline: Pipeline
    example: Tensor
    findings: tuple[Finding, ...]
    trained_with: int | None  # the training batch size, if it is known


def load_network(
    run: Run, *, input_shape: Shape | None = None, needs_reference: bool = False, needs_test: bool = False
) -> LoadedNetwork:
    """Read the network of `run` and its reference, and the test set if it is needed or there is no reference.
    Weights that are not finite are read as well.

    A reference that cannot be read is a warning, unless `needs_reference`. A test set that cannot be read is a note.
    Raises DataError for a test set of another shape than the reference. Without points the network is run on random
    points, of `input_shape` or of the first shape that it accepts. Raises RequestError, with the option to name a
    shape, where it accepts none.
    """
    loaded = network_of(run, only_finite=False)
    train, no_reference = _reference(run, needs_reference)
    test, no_test = _test(run, needs_test) if needs_test or train is None else (None, ())
    train, test = numbered(run, train=train, test=test).values()
    points = train if train is not None else test
    if points is not None and takes_rgb_alone(loaded.module, points):
        train, test = (None if points is None else in_colour(points) for points in (train, test))
        points = train if train is not None else test
    if train is not None and test is not None:
        check_same_inputs("the test set", test, train)
        if test.point_shape != train.point_shape:
            raise DataError(
                f"the test set ({test.reference}) has examples of shape {test.point_shape}, the training set "
                f"({train.reference}) of {train.point_shape}; expected the same."
            )
    device, passed_over = device_and_notes(run.device)
    loaded = replace(loaded, findings=(*loaded.findings, *passed_over))
    settings = PointSettings.of(run)
    if train is None and settings.normalize == "train":
        settings = replace(settings, normalize=None)  # there are no points to normalise
    pipeline = Pipeline(settings, device, input_normalize(settings, train, test))
    model = loaded.module.to(pipeline.device, pipeline.dtype)
    read = [points for points in (train, test) if points is not None]
    check_grouped(run, read, [named for named in (run.test if test is None else None, *run.ood) if named is not None])
    findings = [
        *no_reference,
        *(finding for points in read for finding in about(points.name, points.findings)),
        *no_test,
    ]
    if read:
        model, pipeline, taken = as_taken(model, pipeline, read)
        findings += taken
    if points is not None:
        example = _taken_points(model, pipeline, points, input_shape)
    else:
        example, finding = _random_points(model, input_shape, pipeline)
        pipeline.prepared(np.zeros((1, *example.shape[1:]), np.float32))  # refuses what cannot normalise them
        findings.append(finding)
    trained_with = run.train_batch_size or loaded.checkpoint.train_batch_size
    model = as_logits(model, run.outputs)
    _check_names(run, read, model, example)
    return LoadedNetwork(loaded, model, train, test, pipeline, example, tuple(findings), trained_with)


def _check_names(run: Run, read: Sequence[Points], model: nn.Module, example: Tensor) -> None:
    for points in read[:1] if run.classes is not None else ():
        check_class_names(run, points, _run(model, example).shape[1])


def _reference(run: Run, required: bool) -> tuple[Points | None, tuple[Finding, ...]]:
    if run.train is None:
        return None, ()
    try:
        train = read_reference(run)
    except UntrustedCodeError:
        raise
    except BnuqError as error:
        if required:
            raise
        return None, (warning("reference-unreadable", reason=" ".join(str(error).split())),)
    if isinstance(run.validation, Split) and run.validation.split_of == "train" and run.validation.held_out:
        held_out = held_out_rows(
            len(train), fraction=run.validation.fraction, seed=run.validation.seed, group=train.group
        )
        train = train.subset(np.setdiff1d(np.arange(len(train)), held_out))
    check_train_size(run.train_size, train)
    return train, ()


def _test(run: Run, required: bool) -> tuple[Points | None, tuple[Finding, ...]]:
    if run.test is None:
        return None, ()
    try:
        return read_named(run, run.test, "test"), ()
    except UntrustedCodeError:
        raise
    except BnuqError as error:
        return None, (note("test-unreadable", reason=" ".join(str(error).split())),) if required else ()


def _taken_points(model: nn.Module, pipeline: Pipeline, points: Points, input_shape: Shape | None) -> Tensor:
    """A few of these points as input that the network accepts."""
    if input_shape is not None and input_shape != points.point_shape:
        raise RequestError(
            f"--input-shape is {_text(input_shape)}, and the examples of {points.reference} have shape "
            f"{_text(points.point_shape)}; leave it out, as the shape of readable examples is known."
        )
    example = pipeline.evaluated(points, slice(0, MADE_UP_POINTS))
    try:
        _run(model, example)
    except SamplingError as error:
        if error.__cause__ is not None and not is_failure(error.__cause__):  # not caused by the points
            raise
        raise DataError(
            f"the network does not accept examples of shape {points.form} ({points.reference}): {error}"
        ) from error
    return example


# ── random points ────────────────────────────────────────────────────────────────────────────────────────────────────


def _random_points(model: nn.Module, input_shape: Shape | None, pipeline: Pipeline) -> tuple[Tensor, Finding]:
    """Random points of the given shape, or of the first shape that the network accepts; and a note about the shape."""
    if input_shape is not None:
        points = _random(input_shape, pipeline)
        try:
            _run(model, points)
        except SamplingError as error:
            raise RequestError(f"--input-shape is {_text(input_shape)}: {error}") from error
        return points, note("random-points", shape=list(input_shape), requested=True)
    shapes = tuple(dict.fromkeys(_likely_shapes(model)))
    for shape in shapes:
        points = _random(shape, pipeline)
        with suppress(SamplingError):
            _run(model, points)
            return points, note("random-points", shape=list(shape), requested=False)
    tried = f" It accepts none of {', '.join(map(_text, shapes))}." if shapes else ""
    raise RequestError(
        f"no examples could be read to run the network on, and the shape of its inputs is not known.{tried} Name it "
        "without the batch, as in --input-shape 3,32,32, or name the data with --train REF."
    )


def _random(shape: Shape, pipeline: Pipeline) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    points = torch.rand((MADE_UP_POINTS, *shape), generator=generator, dtype=torch.float32)
    return points.to(pipeline.device, pipeline.dtype)


def _run(model: nn.Module, points: Tensor) -> Any:
    with undisturbed(model):
        return with_autograd_if_needed(lambda: forward(model, points[:2].clone()))


def _likely_shapes(model: nn.Module) -> Iterator[Shape]:
    """Shapes that the network may accept, by its configuration (timm) and by its first layer with weights."""
    configured = getattr(model, "default_cfg", None)
    if isinstance(configured, dict) and isinstance(configured.get("input_size"), Sequence):
        yield tuple(configured["input_size"])
    for layer in model.modules():
        if isinstance(layer, nn.Conv2d):
            yield from ((layer.in_channels, side, side) for side in SIDES)
        elif isinstance(layer, nn.Conv1d):
            yield from ((layer.in_channels, length) for length in LENGTHS)
        elif isinstance(layer, nn.Conv3d):
            yield from ((layer.in_channels, *depth) for depth in ((16, 32, 32), (16, 112, 112), (64, 64, 64)))
        elif isinstance(layer, nn.Linear):
            yield (layer.in_features,)
            yield from _pictures_of(layer.in_features)
        elif isinstance(layer, nn.BatchNorm2d):
            yield from ((layer.num_features, side, side) for side in SIDES)
        elif isinstance(layer, _BatchNorm):
            yield (layer.num_features,)
            yield from ((layer.num_features, length) for length in LENGTHS)
        elif isinstance(layer, nn.RNNBase):
            yield (16, layer.input_size)
        else:
            continue
        return


def _pictures_of(values: int) -> Iterator[Shape]:
    """The shapes of square images with this many values."""
    for channels in (1, 3):
        side = math.isqrt(values // channels)
        if channels * side * side == values:
            yield (channels, side, side)


def _text(shape: Shape) -> str:
    return ",".join(map(str, shape))
