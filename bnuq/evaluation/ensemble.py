"""The other networks of an ensemble: read from their checkpoints, and checked to do what the first one does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import nn

from bnuq.config import Run
from bnuq.errors import BnuqError, ModelError
from bnuq.evaluation.setup import Prepared, as_taken, findings_on_outputs, network_of
from bnuq.evaluation.subject import Plan, Subject
from bnuq.findings import Finding, about, warning
from bnuq.metrics.arrays import as_float64
from bnuq.models.loading import LoadedModel
from bnuq.records.evaluation import MethodResult
from bnuq.sampling.engine import chunks, default_chunk
from bnuq.sampling.outputs import as_logits
from bnuq.sampling.plain_loop import Evaluation

_FAR, _LOWEST = 0.1, -1e4  # nats that a network far below the others loses beside twice theirs; those of −∞
_POINTS, _OF_CLASS = 1000, 20  # that say whether classes have another order: half the errors would be right in it


def other_networks(run: Run, prepared: Prepared, plan: Plan) -> tuple[tuple[nn.Module, ...], tuple[LoadedModel, ...]]:
    """The networks of an ensemble after the first, ready for its inputs, and how they were loaded.

    Raises ModelError for one that cannot be read, has other outputs than the first network, or is there twice.
    """
    sets = (prepared.data.test, prepared.data.train, prepared.data.validation, *prepared.data.ood.values())
    read = [points for points in sets if points is not None]
    networks, loaded, checkpoints = list[nn.Module](), list[LoadedModel](), [single.checkpoint for single in run.single]
    for number, member in enumerate(run.single[1:], 1):
        member_model = _loaded(member, alone=len({single.arch for single in run.single}) == 1)
        module = member_model.module.to(prepared.pipeline.device, prepared.pipeline.dtype)
        network = as_logits(as_taken(module, prepared.pipeline, read)[0], run.outputs)
        with named(checkpoints, number):
            shapes = Evaluation(network).passes(prepared.example).shape[2:], (plan.outputs, *(plan.image or ()))
            if shapes[0] != shapes[1]:
                sizes = [" × ".join(map(str, shape)) for shape in shapes]
                raise ModelError(
                    f"the network gives {sizes[0]} outputs per example, and that of {run.checkpoint} gives {sizes[1]}; "
                    "expected networks of an ensemble to predict the same."
                )
            found = findings_on_outputs(replace(prepared, model=network), plan)
        networks.append(network)
        findings = (*member_model.findings, *about(_name(checkpoints, number), found))
        loaded.append(replace(member_model, findings=findings))
    every = [prepared.loaded, *loaded]
    sha256, times = Counter(model.checkpoint.sha256 for model in every).most_common(1)[0]
    if times > 1:
        same = " and ".join(str(model.checkpoint.path) for model in every if model.checkpoint.sha256 == sha256)
        raise ModelError(f"{same}: these are the same; expected each network of an ensemble once.")
    return tuple(networks), tuple(loaded)


@contextmanager
def named(checkpoints: Sequence[Path], number: int) -> Iterator[None]:
    """Say in an error of the block which network of an ensemble it is about."""
    try:
        yield
    except BnuqError as error:
        if len(checkpoints) < 2:
            raise
        raise type(error)(f"{_name(checkpoints, number)}: {error}") from error


def _name(checkpoints: Sequence[Path], number: int) -> str:
    return f"network {number + 1} of the ensemble ({checkpoints[number]})"


def findings_on_members(subject: Subject, methods: Mapping[str, MethodResult]) -> Iterator[Finding]:
    """A warning about each network under which the test points are far less likely than under the others, and about the
    last of all where they are less likely under the ensemble than under its first network."""
    likelihood = methods["ensemble"].sets["test"].log_likelihood if subject.members else None
    if likelihood is None:
        return
    values = as_float64(likelihood).reshape(len(likelihood), -1).clip(_LOWEST)
    pll, together = values.mean(1), np.logaddexp.reduce(values, 0) - np.log(len(values))
    order, middle = np.argsort(pll).tolist(), (len(pll) - 1) // 2
    for place, number in enumerate(order):
        usual = order[middle + (place <= middle)]  # the middle one of the others
        is_far = _is_above(values[usual], values[number], by=_FAR + abs(pll[usual]))
        if is_far or (place == 0 and _is_above(values[0], together)):
            name, looks = _name(subject.checkpoints, number), _looks(subject, number)
            yield warning("member-below", network=name, looks=looks, pll=float(pll[number]), others=float(pll[usual]))


def _is_above(values: np.ndarray, others: np.ndarray, by: float = 0.0) -> bool:
    gap = values - others
    return bool(gap.mean() > max(by, 3 * gap.std() / np.sqrt(len(gap))))


def _looks(subject: Subject, number: int) -> str:
    """What the outputs of a network look like that gives other predictions than it should."""
    points, classes = subject.sets["test"], subject.outputs
    if subject.task.outputs == "classes":
        from scipy.optimize import linear_sum_assignment  # late: for few requests

        network = Evaluation((subject.model, *subject.members)[number])
        rows = np.random.default_rng(0).permutation(len(points))[: max(_POINTS, _OF_CLASS * classes)]
        feed, size = lambda part: subject.pipeline.evaluated(points, rows[part]), default_chunk(points.point_shape)
        passes = [outputs[0].argmax(-1).cpu() for outputs in chunks(network, len(rows), feed, size=size)]
        shares = np.zeros((classes, classes))
        np.add.at(shares, (torch.cat(passes).numpy(), points.targets[rows]), 1 / len(rows))
        best = shares[linear_sum_assignment(shares, maximize=True)].sum()
        if best > (1 + shares.trace()) / 2:
            return f"like another order of classes, in which {best:.0%} of examples are right, not {shares.trace():.0%}"
    return "like other preprocessing, or other training"


def _loaded(member: Run, *, alone: bool) -> LoadedModel:
    """The network of a member; where `alone` one architecture was named for all, the error says so."""
    try:
        return network_of(member)
    except ModelError as error:
        if member.arch is None or not alone:
            raise
        raise ModelError(f"{error} Networks of other architectures need one --arch for each, in this order.") from error
