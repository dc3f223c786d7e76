"""Population statistics: three estimators held against plain sums over what the layers see in training mode."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bnuq.config import Augment, PointSettings
from bnuq.data import Points
from bnuq.errors import SamplingError
from bnuq.evaluation.pipeline import Pipeline
from bnuq.evaluation.population import population_statistics, reference_batches
from bnuq.sampling import counter_rng

ESTIMATORS = ("population", "mean_of_var", "full")


class Residual(nn.Module):
    """A block with a BatchNorm in its shortcut, called before those of the main branch."""

    def __init__(self) -> None:
        super().__init__()
        self.main = nn.Sequential(
            nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4)
        )
        self.shortcut = nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4))
        self.drop, self.last = nn.Dropout(0.5), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.drop(F.relu(self.shortcut(x) + self.main(x)).mean((2, 3))))


def dense() -> nn.Sequential:
    return nn.Sequential(
        nn.BatchNorm1d(3), nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 4), nn.BatchNorm1d(4)
    )


def made(kind: str, dtype: torch.dtype = torch.float64) -> tuple[nn.Module, list[Tensor]]:
    """A network in evaluation mode, and mini-batches of 5, 4 and 4 points."""
    with torch.random.fork_rng():
        torch.manual_seed(1)
        net = (Residual() if kind == "residual" else dense()).to(dtype).eval()
        points = torch.randn(13, *((2, 5, 6) if kind == "residual" else (3,)), dtype=dtype).exp()
    return net, list(points.split([5, 4, 4]))


def seen_in_training(net: nn.Module, batch: Tensor) -> dict[str, Tensor]:
    """What reaches each BatchNorm in training mode, (values, channels), in execution order."""
    twin, seen = copy.deepcopy(net), {}
    for name, layer in twin.named_modules():
        if isinstance(layer, nn.modules.batchnorm._BatchNorm):
            layer.train()
            layer.register_forward_pre_hook(
                lambda _, args, name=name: seen.update({name: args[0].movedim(1, -1).flatten(0, -2)})
            )
    with torch.no_grad():
        twin(batch)
    return seen


@pytest.mark.parametrize("kind", ["dense", "residual"])
def test_the_default_is_mean_and_variance_of_all_values_each_batch_normalised_by_itself(kind):
    net, batches = made(kind)
    seen = [seen_in_training(net, batch) for batch in batches]
    found = population_statistics(net, batches)
    assert [one.name for one in found] == list(seen[0])
    for one in found:
        values = torch.cat([batch[one.name] for batch in seen]).numpy()
        np.testing.assert_allclose(one.mean, values.mean(0), rtol=1e-10, atol=1e-12)
        np.testing.assert_allclose(one.var, values.var(0), rtol=1e-10)
        assert one.count == len(values)


def test_the_mean_of_variances_is_that_of_unbiased_ones_weighted_by_their_size():
    net, batches = made("dense")
    seen = [seen_in_training(net, batch) for batch in batches]
    plain = population_statistics(net, batches)
    for one, other in zip(population_statistics(net, batches, estimator="mean_of_var"), plain, strict=True):
        unbiased = [batch[one.name].numpy().var(0, ddof=1) for batch in seen]
        np.testing.assert_allclose(one.var, np.average(unbiased, axis=0, weights=[5, 4, 4]), rtol=1e-10)
        np.testing.assert_array_equal(one.mean, other.mean)


@pytest.mark.parametrize("kind", ["dense", "residual"])
def test_all_as_one_batch_is_the_same_as_layer_by_layer_with_the_layers_below_at_the_population(kind):
    net, batches = made(kind)
    whole = seen_in_training(net, torch.cat(batches))
    joint = population_statistics(net, batches, estimator="full")
    swept = population_statistics(net, batches, estimator="full", memory_limit=0)
    for one, other in zip(joint, swept, strict=True):
        assert (one.name, one.count) == (other.name, other.count)
        for found in (one, other):
            np.testing.assert_allclose(found.mean, whole[one.name].numpy().mean(0), rtol=1e-9, atol=1e-12)
            np.testing.assert_allclose(found.var, whole[one.name].numpy().var(0), rtol=1e-9)


def test_at_the_first_layer_population_and_full_are_the_same_and_deeper_they_differ():
    net, batches = made("dense")
    population, full = (population_statistics(net, batches, estimator=one) for one in ("population", "full"))
    np.testing.assert_allclose(population[0].mean, full[0].mean, rtol=1e-12)
    np.testing.assert_allclose(population[0].var, full[0].var, rtol=1e-12)
    assert np.abs(population[1].var / full[1].var - 1).max() > 0.01


@pytest.mark.parametrize("memory_limit", [None, 0])
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_a_mean_of_ten_thousand_in_float32_costs_no_precision(estimator, memory_limit):
    net, batches = made("dense", torch.float32)
    batches = [batch + 1e4 for batch in batches]
    exact = population_statistics(net.double(), [batch.double() for batch in batches], estimator=estimator)
    found = population_statistics(
        net.float(), batches, estimator=estimator, memory_limit=None if estimator != "full" else memory_limit
    )
    for one, other in zip(found, exact, strict=True):
        sigma = np.sqrt(other.var)
        np.testing.assert_allclose(one.mean / sigma, other.mean / sigma, rtol=0, atol=1e-3)
        np.testing.assert_allclose(one.var, other.var, rtol=1e-3)


@pytest.mark.parametrize("memory_limit", [None, 0])
@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_the_model_is_left_as_it_was(estimator, memory_limit):
    net, batches = made("residual")
    net.train()
    before, state = {k: v.clone() for k, v in net.state_dict().items()}, torch.get_rng_state()
    population_statistics(net, batches, estimator=estimator, memory_limit=memory_limit if estimator == "full" else None)
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert all(layer.training for layer in net.modules())
    assert torch.equal(torch.get_rng_state(), state)


def test_batches_may_be_a_tensor_or_come_once():
    net, batches = made("dense")
    whole = torch.stack(batches[1:])
    expected = population_statistics(net, whole)
    for given in (list(whole), (batch for batch in whole)):
        for one, other in zip(population_statistics(net, given), expected, strict=True):
            np.testing.assert_array_equal(one.var, other.var)


def test_what_has_no_population_is_refused():
    net, batches = made("dense")
    with pytest.raises(SamplingError, match="no mini-batches"):
        population_statistics(net, [])
    with pytest.raises(SamplingError, match="no BatchNorm layer"):
        population_statistics(nn.Linear(3, 2).double(), batches)
    with torch.no_grad():
        net[1].weight.fill_(1e308)
    for memory_limit in (None, 0):
        with pytest.raises(SamplingError, match=r"layer 2: the statistics of .* are not finite"):
            population_statistics(net, batches, estimator="full", memory_limit=memory_limit)


# ── which points ─────────────────────────────────────────────────────────────────────────────────────────────────────


def reference(n: int, *, seed: int = 0, augment: Augment | None = None) -> tuple[Pipeline, Points]:
    inputs = np.arange(n, dtype=np.float32).reshape(n, 1, 1, 1) * np.ones((1, 1, 4, 4), dtype=np.float32)
    return Pipeline(PointSettings(seed=seed, augment=augment), torch.device("cpu")), Points(
        "train", "train.npz", inputs
    )


@pytest.mark.parametrize(
    ("n", "points", "batch_size", "sizes"),
    [
        (100, 1000, 30, [25, 25, 25, 25]),
        (100, 50, 16, [13, 13, 12, 12]),
        (130, 130, 128, [65, 65]),
        (20, 20, 64, [20]),
        (3, 3, 2, [3]),
        (7, 7, 2, [3, 2, 2]),
    ],
)
def test_every_point_is_used_once_in_batches_as_equal_as_can_be(n, points, batch_size, sizes):
    batches = reference_batches(*reference(n), points=points, batch_size=batch_size)
    rows = np.concatenate(batches.rows)
    assert [len(one) for one in batches.rows] == sizes
    assert len(set(rows)) == len(rows) == batches.points == min(n, points)
    assert rows.min() >= 0 and rows.max() < n


def test_the_points_are_the_seeds_choice_and_come_mixed():
    one, same, other = (reference_batches(*reference(100, seed=s), points=40, batch_size=10).rows for s in (1, 1, 2))
    assert all(np.array_equal(a, b) for a, b in zip(one, same, strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))
    whole = np.concatenate(reference_batches(*reference(100), points=100, batch_size=10).rows)
    assert not np.array_equal(whole, np.arange(100))


def test_points_and_their_augmentation_share_no_random_numbers_with_those_of_mcbn():
    pipeline, points = reference(20, augment=Augment(pad=2, crop=4))
    batches = reference_batches(pipeline, points, points=10, batch_size=10)
    purposes = (counter_rng.POPULATION, counter_rng.SUBSET, counter_rng.BATCH)
    own, *others = (counter_rng.batch_indices(0, 0, population=20, batch_size=10, purpose=one) for one in purposes)
    (rows,), (batch,) = batches.rows, batches
    assert np.array_equal(rows, own) and not any(np.array_equal(rows, one) for one in others)
    seen, usual = (
        pipeline.trained(points, rows, draw=0, purpose=one)
        for one in (counter_rng.POPULATION_AUGMENT, counter_rng.AUGMENT)
    )
    assert torch.equal(batch, seen) and not torch.equal(batch, usual)


def test_batches_come_through_the_training_pipeline_and_are_the_same_every_time():
    pipeline, points = reference(20, augment=Augment(pad=2, crop=4))
    batches = reference_batches(pipeline, points, points=20, batch_size=10)
    first, again = list(batches), list(batches)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert any((image == 0).any() and (image != 0).any() for image in torch.cat(first))  # padded and cropped


def test_the_estimator_full_of_a_network_that_slices_its_batch_names_another():
    class Sliced(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bn = nn.BatchNorm1d(4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.cat([self.bn(part) for part in x.split(16)])

    batches = torch.randn(3, 16, 4, generator=torch.Generator().manual_seed(0))
    with pytest.raises(SamplingError, match="Use the estimator population"):
        population_statistics(Sliced().eval(), batches, estimator="full")
