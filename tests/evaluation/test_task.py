"""What a network does is found out from outputs and targets, and asked for where these may mean two things."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from bnuq.config import Run
from bnuq.data import Points, check_labels, points_of
from bnuq.data.points import Contents
from bnuq.errors import DataError, ModelError
from bnuq.evaluation.task import check_outputs, task_of
from bnuq.tasks import REGRESSION

POINTS, INPUTS, OUTPUTS = 80, 4, 3
RANDOM = np.random.default_rng(0)
ONE_HOT = np.eye(OUTPUTS)[RANDOM.integers(0, OUTPUTS, POINTS)]
SEVERAL = (RANDOM.random((POINTS, OUTPUTS)) < 0.5).astype(np.float64)
SOFT = RANDOM.dirichlet(np.ones(OUTPUTS), POINTS)


def points(y: np.ndarray) -> Points:
    x = np.random.default_rng(1).normal(size=(len(y), INPUTS)).astype(np.float32)
    return points_of(Contents(x, y), name="test", reference="test.npz")


def run(**said) -> Run:
    return Run(checkpoint=Path("m.pt"), out=Path("m.h5"), **said)


@pytest.mark.parametrize(
    ("y", "expected"),
    [
        (np.arange(POINTS) % OUTPUTS, "classification"),
        (ONE_HOT, "classification"),
        (RANDOM.normal(size=(POINTS, OUTPUTS)), "regression"),
        (RANDOM.normal(size=(POINTS, 1)), "classification"),  # refused as labels
    ],
)
def test_the_task_is_that_of_the_targets(y, expected):
    assert task_of(run(), OUTPUTS, points(y)).name == expected


@pytest.mark.parametrize(("y", "cause"), [(SEVERAL, "several labels per example"), (SOFT, "soft labels")])
def test_targets_of_several_labels_are_not_regressed_onto_unless_that_is_said(y, cause):
    with pytest.raises(DataError, match=rf"{cause}\. .*: --task regression"):
        task_of(run(), OUTPUTS, points(y))
    assert task_of(run(task="regression"), OUTPUTS, points(y)) == REGRESSION


@pytest.mark.parametrize("y", [SEVERAL, SOFT, ONE_HOT[:, :2]])
def test_targets_of_several_columns_are_no_labels(y):
    with pytest.raises(DataError, match=r"have \d columns of values from .*; expected .* one-hot rows of 3\."):
        check_labels(points(y), OUTPUTS)


class Scaled(nn.Module):
    """A cosine similarity of positive features lies between 0 and 1 as well, and is a logit."""

    def forward(self, x: Tensor) -> Tensor:
        x = nn.functional.normalize(x.exp(), dim=1)
        return x[:, :OUTPUTS]


def ending_in(*layers: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(INPUTS, OUTPUTS), *layers).eval()


def checked(model: nn.Module, n: int = POINTS) -> list[str]:
    some = points(np.arange(n) % OUTPUTS)
    return [finding.code for finding in check_outputs(model, lambda rows: torch.from_numpy(some.raw(rows)), some)]


@pytest.mark.parametrize("last", [nn.Softmax(1), nn.Softmin(1)])
def test_probabilities_of_a_softmax_are_refused(last):
    with pytest.raises(ModelError, match=r"probabilities of a softmax: on 64 examples .*: --outputs probabilities"):
        checked(ending_in(last))


@pytest.mark.parametrize("last", [nn.Sigmoid(), nn.Hardsigmoid(), nn.Sequential(nn.Sigmoid(), nn.Flatten())])
def test_outputs_of_a_sigmoid_are_refused(last):
    with pytest.raises(ModelError, match=r"ends in a sigmoid: .* Remove the last sigmoid .* --outputs multilabel"):
        checked(ending_in(last))


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")
def test_a_scripted_sigmoid_is_seen():
    with pytest.raises(ModelError, match="ends in a sigmoid"):
        checked(torch.jit.script(ending_in(nn.Sigmoid())))


def test_outputs_that_may_be_logits_between_0_and_1_are_a_warning():
    assert checked(Scaled()) == ["probability-outputs"]


def test_logits_are_not_suspected():
    assert checked(ending_in()) == []
    assert checked(ending_in(nn.LogSoftmax(1))) == []


def test_a_few_logits_between_0_and_1_are_no_cause_for_a_warning():
    linear = nn.Linear(INPUTS, OUTPUTS)
    nn.init.constant_(linear.bias, 0.5)
    some = points(np.arange(POINTS) % OUTPUTS)
    first = torch.from_numpy(some.raw(slice(None)))
    first[:3] = 0  # outputs .5
    assert not check_outputs(linear, lambda rows: first[rows], some)


def test_a_sigmoid_inside_the_network_is_none_at_its_end():
    assert checked(ending_in(nn.Sigmoid(), nn.Linear(OUTPUTS, OUTPUTS))) == []
