"""The networks of the batch-size experiment, and their training: it learns, and goes on after an interruption."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from experiments import work
from experiments.batch_size import networks, training
from experiments.batch_size.training import Job, Recipe, train

pytestmark = pytest.mark.nightly  # not installed; test_commands.py runs four whole experiments

SIDE, IMAGES = 8, 96


def nobody(_: int) -> None:
    """Progress that nobody sees."""


@pytest.fixture
def job(tmp_path: Path) -> Job:
    """Twelve mini-batches an epoch of images whose class shows in a bright row."""
    random = np.random.default_rng(0)
    y = np.arange(IMAGES, dtype=np.int64) % SIDE
    x = random.integers(0, 120, (IMAGES, 1, SIDE, SIDE))
    x[np.arange(IMAGES), 0, y] += 130
    np.savez(tmp_path / "train.npz", x=x.astype(np.uint8), y=y)
    return Job(
        architecture="small_resnet", batch_size=8, steps=24, images=IMAGES, recipe=Recipe(), seed=0, device="cpu",
        data=tmp_path / "train.npz", sha256="of the data", folder=tmp_path,
    )  # fmt: skip


def weights(job: Job) -> dict[str, torch.Tensor]:
    trained = job.finished()
    assert trained is not None
    return trained.state


@pytest.mark.parametrize(
    ("name", "parameters", "norms"),
    [("small_resnet", 77_754, 9), ("small_vgg", 18_482, 6), ("resnet50", 23_519_690, 53), ("vgg16", 14_722_890, 13)],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
def test_networks_are_as_large_as_published_and_normalise_after_every_convolution(name, parameters, norms):
    with torch.device("meta"):
        network = getattr(networks, name)()
        assert network(torch.empty(2, 1, 28, 28)).shape == (2, 10)
    assert sum(layer.numel() for layer in network.parameters()) == parameters
    convolutions = [layer for layer in network.modules() if isinstance(layer, nn.Conv2d)]
    assert len(convolutions) == norms == sum(isinstance(layer, nn.BatchNorm2d) for layer in network.modules())
    assert all(layer.bias is None for layer in convolutions)


def test_the_rate_rises_to_a_peak_by_the_root_of_the_size_and_falls_to_nothing():
    rates = [Recipe().rate_at(step, steps=100, batch_size=512) for step in range(100)]
    assert max(rates) == pytest.approx(0.2) and rates[5] == max(rates)
    assert rates[0] == pytest.approx(0.04) and rates[-1] < 1e-3
    assert rates[5:] == sorted(rates[5:], reverse=True)


def test_a_stepped_rate_drops_twice_and_knows_no_size():
    recipe = Recipe("steps")
    rates = [recipe.rate_at(step, steps=100, batch_size=2048) for step in (0, 39, 40, 59, 60, 99)]
    assert rates == pytest.approx([0.1, 0.1, 0.01, 0.01, 0.001, 0.001])


def test_training_learns_and_tells_what_it_reached(job):
    steps = []
    job = replace(job, steps=48, test=job.data)
    train(job, steps.append)
    trained = job.finished()
    assert trained is not None and trained.loss < 0.5, trained
    assert trained.accuracy > 0.9 and trained.seconds > 0 and trained.curves.shape == (4, 3)
    assert trained.curves[-1, 1:] == pytest.approx((trained.loss, trained.accuracy))  # the images that are watched
    assert sum(steps) == job.share
    network = networks.small_resnet().eval()
    network.load_state_dict(weights(job))
    with np.load(job.data) as held, torch.inference_mode():
        logits = network((torch.from_numpy(held["x"]) / 255 - 0.2860) / 0.3530)
        loss = nn.functional.cross_entropy(logits, torch.from_numpy(held["y"])).item()
    assert loss == pytest.approx(trained.loss, rel=1e-4)


def test_every_size_begins_with_the_same_weights_and_the_generators_are_left_alone(job):
    torch.manual_seed(3)
    before = torch.get_rng_state()
    trained = []
    for size in (8, 16):
        still = replace(job, batch_size=size, steps=2, recipe=Recipe(rate=0.0))
        train(still, nobody)
        trained.append(weights(still))
    assert torch.equal(torch.get_rng_state(), before)
    for name in ("conv1.weight", "blocks.2.conv2.weight", "linear.bias"):
        assert torch.equal(trained[0][name], trained[1][name])
    other = replace(job, steps=2, recipe=Recipe(rate=0.0), seed=1)
    train(other, nobody)
    assert not torch.equal(weights(other)["conv1.weight"], trained[0]["conv1.weight"])


@pytest.fixture
def stopped_after(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Lets so many epochs be kept, and then interrupts."""
    keep = training._keep

    def after(epochs: int) -> None:
        left = iter(range(epochs - 1, -1, -1))

        def keep_and_stop(*args: Any) -> None:
            keep(*args)
            if not next(left):
                monkeypatch.setattr(training, "_keep", keep)
                raise KeyboardInterrupt

        monkeypatch.setattr(training, "_keep", keep_and_stop)

    return after


def test_an_interrupted_training_goes_on_to_the_very_same_weights(job, tmp_path, stopped_after):
    (tmp_path / "whole").mkdir()
    job, whole = (replace(job, test=job.data, folder=place) for place in (tmp_path, tmp_path / "whole"))
    train(whole, nobody)
    stopped_after(1)
    with pytest.raises(KeyboardInterrupt):
        train(job, nobody)
    state = job.journal.load("state")
    assert state is not None and int(state["step"]) == job.per_epoch and job.finished() is None
    train(job, nobody)
    assert [*tmp_path.glob("*.part")] == [job.journal.path("network")]
    one, other = job.finished(), whole.finished()
    assert one is not None and other is not None and (one.curves == other.curves).all()
    torch.testing.assert_close(one.state, other.state, rtol=0, atol=0)


@pytest.mark.parametrize("damage", [b"", b"PK\x03\x04 half a file", bytes(100)])
def test_what_an_interruption_left_in_half_is_done_again(job, tmp_path, stopped_after, damage):
    stopped_after(1)
    with pytest.raises(KeyboardInterrupt):
        train(job, nobody)
    (part,) = tmp_path.glob("*.part")
    part.write_bytes(damage)
    train(job, nobody)
    assert job.finished() is not None


def test_a_finished_network_is_not_trained_again_and_a_damaged_one_is(job):
    train(job, nobody)
    file = job.journal.path("network")
    before = file.stat().st_mtime_ns
    train(job, nobody)
    assert file.stat().st_mtime_ns == before
    file.write_bytes(file.read_bytes()[:-1])
    assert job.finished() is None
    train(job, nobody)
    assert job.finished() is not None


@pytest.mark.parametrize(
    "change", [{"seed": 1}, {"steps": 36}, {"batch_size": 16}, {"sha256": "of others"}, {"recipe": Recipe(rate=0.2)}]
)
def test_a_network_is_known_by_what_determines_it(job, change):
    assert replace(job, **change).journal.path("network") != job.journal.path("network")
    assert replace(job, data=Path("elsewhere")).journal.path("network") == job.journal.path("network")


def test_a_network_of_other_code_is_another(job, tmp_path, monkeypatch):
    before = job.journal.path("network")
    (tmp_path / "work.py").write_text("# other code")
    monkeypatch.setattr(work, "__file__", str(tmp_path / "work.py"))
    work.code_of.cache_clear()
    assert job.journal.path("network") != before
    work.code_of.cache_clear()
