"""A predictor that is called many times: what `predict` gives, planned once, and never of weights that are gone."""

from __future__ import annotations

import pytest
import torch
import zoo
from torch import nn
from torch.testing import assert_close

import bnuq
from bnuq.errors import SamplingError
from bnuq.sampling import engine, executor


@pytest.fixture
def plans(monkeypatch) -> list[int]:
    """The number of points that each plan was made from."""
    made: list[int] = []
    original = engine.record
    monkeypatch.setattr(engine, "record", lambda model, sites, x: made.append(len(x)) or original(model, sites, x))
    return made


def network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.3), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(4, 3),
    )  # fmt: skip


@pytest.fixture
def net() -> nn.Module:
    return zoo.settled(network, (2, 6, 6))


def test_many_calls_plan_once_and_give_what_predict_gives(net, plans):
    x = zoo.points((2, 6, 6), 40)
    asked = {"omega": bnuq.draw(net, x, samples=4, batch_size=8), "dropout": bnuq.Dropout(4, seed=1)}
    predictor = bnuq.Predictor(net, **asked)
    found = [predictor(x[rows]) for rows in (slice(0, 7), slice(7, 8), slice(0, 40))]
    assert len(plans) == 1
    for outputs, rows in zip(found, (slice(0, 7), slice(7, 8), slice(0, 40)), strict=True):
        assert_close(outputs, bnuq.predict(net, x[rows], **asked), rtol=0, atol=1e-12)
    assert predictor(x.numpy()).shape == (4, 40, 3) and len(plans) == 4


def test_points_of_another_shape_have_a_plan_of_their_own(net, plans):
    predictor = bnuq.Predictor(net, dropout=bnuq.Dropout(3))
    for shape in ((2, 6, 6), (2, 9, 7), (2, 6, 6)):
        x = zoo.points(shape, 11)
        assert_close(predictor(x), bnuq.predict(net, x, dropout=bnuq.Dropout(3)), rtol=0, atol=1e-12)
    assert len(plans) == 2 + 3


def written(net: nn.Module) -> None:
    with torch.no_grad():
        net[0].weight.mul_(1.5)


def written_behind(net: nn.Module) -> None:
    net[1].running_var.data.mul_(3)


def replaced(net: nn.Module) -> None:
    net[6] = nn.Linear(4, 3).double()


def loaded(net: nn.Module) -> None:
    net.load_state_dict({name: 0.5 * tensor for name, tensor in net.state_dict().items()})


def moved(net: nn.Module) -> None:
    net.float()


def trained(net: nn.Module) -> None:
    net.train()(zoo.points((2, 6, 6), 9, seed=3))
    net.eval()


@pytest.mark.parametrize("change", [written, written_behind, replaced, loaded, moved, trained])
def test_a_network_that_has_changed_is_planned_anew(net, change):
    x, dropout = zoo.points((2, 6, 6), 9), bnuq.Dropout(3)
    predictor = bnuq.Predictor(net, dropout=dropout)
    before = predictor(x)
    change(net)
    found = predictor(x)
    assert_close(found, bnuq.predict(net, x, dropout=dropout))
    assert not torch.equal(found, before)


def test_weights_that_have_changed_are_no_longer_those_that_omega_was_drawn_from(net):
    x = zoo.points((2, 6, 6), 9)
    predictor = bnuq.Predictor(net, bnuq.draw(net, x, samples=3, batch_size=4))
    predictor(x)
    written(net)
    with pytest.raises(SamplingError, match="the weights differ"):
        predictor(x)


def test_the_chunk_that_memory_allows_is_kept(net, monkeypatch):
    x, tiles, original = zoo.points((2, 6, 6), 32), [], executor.PlanExecutor.passes

    def scarce(self, inputs, *rest):
        tiles.append(self.tile)
        if len(inputs) > 10:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return original(self, inputs, *rest)

    monkeypatch.setattr(executor.PlanExecutor, "passes", scarce)
    predictor = bnuq.Predictor(net, dropout=bnuq.Dropout(3))
    first = predictor(x)
    smallest = tiles[-1]
    assert torch.equal(predictor(x), first) and tiles[-1] == smallest


def test_what_cannot_be_predicted_is_refused_as_predict_refuses_it(net):
    with pytest.raises(SamplingError, match="predict needs omega, dropout or learned"):
        bnuq.Predictor(net)
    with pytest.raises(SamplingError, match="chunk_size is 0"):
        bnuq.Predictor(net, dropout=bnuq.Dropout(2), chunk_size=0)
    predictor = bnuq.Predictor(net, dropout=bnuq.Dropout(2))
    predictor(zoo.points((2, 6, 6), 3))
    with pytest.raises(SamplingError):
        predictor(zoo.points((2, 6, 6), 0))
    with pytest.raises(SamplingError, match="no live dropout"):
        bnuq.Predictor(zoo.made("2d"), dropout=bnuq.Dropout(2))(zoo.points("2d", 3))


class Centred(nn.Module):
    """A dense network that subtracts the mean of its points where many pass together."""

    def __init__(self, *, beyond: int, below: int = 0, track: bool = True) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(4, 6), nn.BatchNorm1d(6, track_running_stats=track), nn.Dropout(0.4), nn.Linear(6, 3)
        )
        self.beyond, self.below = beyond, below

    def forward(self, x):
        outputs = self.net(x)
        return outputs - outputs.mean(0) if len(x) > self.beyond or 3 < len(x) < self.below else outputs


def settled(**settings) -> nn.Module:
    return zoo.settled(lambda: Centred(**settings), (4,))


@pytest.mark.parametrize("kind", ["omega", "dropout"])
@pytest.mark.parametrize(
    ("settings", "chunk_size"),
    [({"beyond": 100}, None), ({"beyond": 100}, 101), ({"beyond": 999, "below": 8}, 49), ({"beyond": 15}, 16)],
)
def test_points_that_depend_on_each_other_at_this_chunk_size_are_refused(settings, chunk_size, kind):
    net, x = settled(**settings), zoo.points((4,), 300)
    asked = {"omega": bnuq.draw(settled(beyond=999), x, samples=3, batch_size=8)}
    if kind == "dropout":
        asked = {"dropout": bnuq.Dropout(3)}
    with pytest.raises(SamplingError, match="for an example depends on which examples pass with it"):
        bnuq.predict(net, x, **asked, chunk_size=chunk_size)
    predictor = bnuq.Predictor(net, **asked, chunk_size=chunk_size)
    predictor(x[:15])  # so few are independent
    with pytest.raises(SamplingError, match="for an example depends on which examples pass with it"):
        predictor(x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("chunk_size", [None, 65])
def test_no_independent_network_without_a_plan_is_refused(dtype, chunk_size):
    class Plain(Centred):
        def forward(self, x):
            return self.net(x) + 0 * torch.tensor([[float(i)] for i in range(len(x))], dtype=x.dtype)

    net = zoo.settled(lambda: Plain(beyond=0, track=False), (4,)).to(dtype)
    x = zoo.points((4,), 200, dtype=dtype)
    asked = {"omega": bnuq.draw(net, x, samples=3, batch_size=8), "dropout": bnuq.Dropout(3)}
    assert_close(bnuq.predict(net, x, **asked, chunk_size=chunk_size), bnuq.predict(net, x, **asked, chunk_size=7))


def test_a_forward_that_changes_after_some_calls_is_not_said_to_mix_its_points():
    calls = []

    class Counting(Centred):
        def forward(self, x):
            calls.append(len(x))
            shift = torch.tensor([[float(len(calls) > 12)]] * len(x), dtype=x.dtype)  # which no plan can follow
            return self.net(x) + shift

    net, x, said = zoo.settled(lambda: Counting(beyond=999), (4,)), zoo.points((4,), 60), []
    for before in range(12):
        calls[:] = [0] * before
        try:
            bnuq.predict(net, x, dropout=bnuq.Dropout(1))
        except SamplingError as error:
            said.append(str(error))
    assert said
    assert all("gives other outputs when it is called again" in message for message in said)
