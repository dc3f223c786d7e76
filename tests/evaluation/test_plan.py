"""What a network allows is said before anything is drawn."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from findings_of import values_of
from torch import Tensor, nn

from bnuq.catalogue import text_of
from bnuq.config import Run
from bnuq.data import Points
from bnuq.errors import DataError, SamplingError
from bnuq.evaluation.plan import RunPlan, plan_of


def network(**options: bool) -> nn.Module:
    return nn.Sequential(
        nn.Linear(4, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.BatchNorm1d(5, **options), nn.Dropout(0.5), nn.Linear(5, 3)
    ).eval()  # fmt: skip


def points(n: int) -> Points:
    values = np.random.default_rng(0).normal(size=(n, 4)).astype(np.float32)
    return Points("test", "test.npz", values, np.zeros(n, dtype=np.int64))


def planned(model: nn.Module, *, train: Points | None = None, **said) -> RunPlan:
    run = Run(checkpoint=Path("m.pt"), out=Path("m.h5"), **said)
    test = points(6)
    return plan_of(run, model, torch.from_numpy(test.raw(slice(0, 3))), test=test, train=train, trained_with=None)


def test_all_that_a_network_allows_is_drawn():
    assert tuple(map(str, planned(network(), train=points(40)).methods)) == ("mcbn", "mcdo", "mcbn+mcdo")


def test_without_running_statistics_dropout_alone_is_left_out_with_a_note():
    plan = planned(network(track_running_stats=False), train=points(40))
    assert tuple(map(str, plan.methods)) == ("mcbn", "mcbn+mcdo")
    left_out = values_of(plan, "method-left-out")
    assert left_out["method"] == ["mcdo"] and left_out["reason"].startswith("BatchNorm 3 keeps no running statistics")


def test_without_running_statistics_dropout_alone_is_refused_where_it_is_asked_for():
    with pytest.raises(SamplingError, match="method mcdo cannot be drawn: BatchNorm 3 keeps no running statistics"):
        planned(network(track_running_stats=False), train=points(40), methods=("mcbn", "mcdo"))


@pytest.mark.parametrize("said", [{}, {"methods": ()}])
def test_without_running_statistics_and_a_reference_nothing_can_be_evaluated(said):
    with pytest.raises(
        SamplingError,
        match=r"BatchNorm 3 keeps no running statistics, .* deterministic\+own\), or of the training set \(--train",
    ):
        planned(network(track_running_stats=False), **said)


def test_layers_must_hold_those_without_running_statistics():
    model = network(track_running_stats=False)
    with pytest.raises(SamplingError, match="BatchNorm 3 keeps no running statistics and layers leaves it out"):
        planned(model, train=points(40), layers="first:1")
    assert len(planned(model, train=points(40), layers="last:1").layers) == 1


@pytest.mark.parametrize("error", [AttributeError("no such layer"), KeyError("k"), RuntimeError("shapes"), OSError()])
def test_a_forward_that_fails_is_one_message(error):
    class Fails(nn.Module):
        def forward(self, _: Tensor) -> Tensor:
            raise error

    with pytest.raises(
        DataError, match=rf"does not accept examples of shape \(4,\) .*{type(error).__name__} at .*test_plan"
    ):
        planned(Fails())


class Attending(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.1, batch_first=True)
        self.encoder, self.head = nn.TransformerEncoder(layer, 2), nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.encoder(x[:, None]).mean(1))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(4, 4, 2, dropout=0.3, batch_first=True), nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.lstm(x[:, None])[0][:, -1])


@pytest.mark.parametrize(
    ("made", "layers", "where", "left_out"),
    [
        (Attending, ["encoder.layers.0.self_attn", "encoder.layers.1.self_attn"], "attention", {"mcbn mcbn+mcdo"}),
        (Recurrent, ["lstm"], "lstm", {"mcbn mcbn+mcdo", "mcdo"}),
    ],
)
def test_dropout_out_of_reach_is_named_once_and_not_taken_for_batch_normalization(made, layers, where, left_out):
    plan = planned(made().eval(), train=points(40))
    [unreachable] = [finding for finding in plan.findings if finding.code == "unreachable"]
    assert unreachable.values["layer"] == layers and text_of(unreachable).count("dropout inside") == 1
    assert where in unreachable.values["reason"]
    notes = {" ".join(f.values["method"]): f.values["reason"] for f in plan.findings if f.code == "method-left-out"}
    assert set(notes) == left_out and notes["mcbn mcbn+mcdo"] == "the network has no BatchNorm layer"


def test_layers_that_cannot_be_sampled_for_one_reason_are_one_note():
    net = nn.Sequential(nn.Identity(), *(nn.Dropout(0.0) for _ in range(3)), nn.Dropout(0.5), nn.Linear(4, 3)).eval()
    note = values_of(planned(net), "not-stochastic")
    assert note["layer"] == ["1", "2", "3"] and note["reason"] == "its rate is 0"


class FrozenTrunk(nn.Sequential):
    """Keeps its BatchNorms in evaluation mode, as they were initialised."""

    def train(self, mode: bool = True) -> FrozenTrunk:
        super().train(mode)
        for layer in self:
            layer.train(mode and not isinstance(layer, nn.BatchNorm1d))
        return self


def test_statistics_that_training_never_updates_are_not_taken_for_lost_ones():
    layers = nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 3)
    assert [f.code for f in planned(FrozenTrunk(*layers).eval()).findings if f.severity == "warning"] == []
    assert values_of(planned(nn.Sequential(*layers).eval()), "never-trained")["layers"] == ["1"]


def test_variances_of_zero_are_named_where_their_channels_vary_whatever_the_method():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Dropout(0.5), nn.Linear(5, 3)).eval()
    linear, batchnorm = net[0], net[1]
    with torch.no_grad():
        batchnorm.running_mean.copy_(linear.bias)
        batchnorm.running_var.copy_(torch.tensor([0.0, 1.0, 0.0, 1.0, 0.0]))
        linear.weight[0] = 0  # constant in training too, as behind a dead ReLU
    assert values_of(planned(net, methods=("mcdo",)), "variance-zero") == {"layers": ["1"], "channels": 2}
    batchnorm.running_var.fill_(1.0)
    assert not [f for f in planned(net, methods=("mcdo",)).findings if f.code == "variance-zero"]
