"""Networks trained by SGD: what is watched in training, that it resumes, and what is said; and the UCI sets by size."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from bnuq.estimates import Estimate
from experiments.descent import networks, precise, resnet32, training
from experiments.learned.running import Request
from experiments.learned.training import Job, write_data
from experiments.uci import sizes
from experiments.uci.selection import Choice


@pytest.mark.parametrize(("name", "layers", "shape"), [("small", 8, (1, 28, 28)), ("resnet32", 32, (3, 10, 10))])
def test_a_residual_network_has_the_layers_of_its_name(name: str, layers: int, shape: tuple[int, ...]) -> None:
    network = getattr(networks, name)(4).eval()
    weighted = [each for each in network.modules() if isinstance(each, nn.Conv2d | nn.Linear)]
    assert len(weighted) == layers
    x = torch.rand(3, *shape)
    outputs = network(x).detach()
    assert outputs.shape == (3, 10)
    torch.testing.assert_close(network(0.5 * x + 0.25).detach(), outputs, rtol=1e-3, atol=1e-3)  # standardised


def test_averages_are_those_that_batchnorm_itself_would_have() -> None:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2))
    others = [nn.BatchNorm2d(2, momentum=1 - decay) for decay in (0.9, 0.5)]
    averages = training.Averages(network, (0.9, 0.5))
    for _ in range(5):
        x = torch.rand(4, 1, 6, 6)
        inputs = network[0](x).detach()
        network(x)
        averages.step()
        for other in others:
            other(inputs)
    for row, other in zip(averages.values, others, strict=True):
        assert other.running_mean is not None and other.running_var is not None
        torch.testing.assert_close(row, torch.cat([other.running_mean, other.running_var]), rtol=1e-4, atol=1e-5)
    averages.put(averages.values[1])
    torch.testing.assert_close(averages.running(), averages.values[1])


def job_in(folder: Path, root: Path) -> Job:
    folder.mkdir()
    sha256 = write_data("fashion-mnist", folder / "data.npz", images=64, limit=20, data_root=root)
    request = Request(out=folder / "out.h5", sets=("fashion-mnist",), images=64, epochs=2, width=4, samples=2)
    job = next(precise.jobs(request, "fashion-mnist"))
    return replace(job, data=folder / "data.npz", sha256=sha256, folder=folder)


def test_an_interrupted_training_goes_on_after_its_last_epoch_with_the_same_result(tmp_path, small_root) -> None:
    def stop(epochs: int) -> None:
        if epochs:
            raise KeyboardInterrupt

    interrupted, whole = (job_in(tmp_path / name, small_root) for name in ("interrupted", "whole"))
    with pytest.raises(KeyboardInterrupt):
        training.train(interrupted, stop)
    assert interrupted.finished() is None and interrupted.journal.has("state")
    for job in (interrupted, whole):
        training.train(job, lambda _: None)
        assert not job.journal.has("state")
    one, other = interrupted.finished(), whole.finished()
    assert one is not None and other is not None and one.keys() == other.keys()
    assert {"1.precise.wrong", "2.EMA, λ = 0.9.wrong", "2.b = 2.spread"} < one.keys()
    for name in one.keys() - {"seconds"}:
        np.testing.assert_array_equal(one[name], other[name])
    np.testing.assert_allclose(one["2.b = 32.spread"], 0, atol=1e-5)  # all 32 points at once


def test_the_sentences_on_statistics_follow_from_the_differences(ran) -> None:
    record = precise.read(ran("precise-bn").path)
    name = f"b = 256: {precise.USUAL} − precise"
    for low, high, verdict in ((0.001, 0.003, "holds"), (-0.003, -0.001, "fails here"), (-0.01, 0.01, "stays open")):
        change = {**record.differences[name], "error": Estimate((low + high) / 2, se=0.001, low=low, high=high)}
        first = next(precise.sentences(replace(record, differences={**record.differences, name: change})))
        assert f"(24.00 − 23.73 %): {verdict}." in first
    network = record.network("b = 32", "statistics of b = 2")
    assert network is not None and len(network.estimates) == 7 + 2


@pytest.mark.nightly  # a whole evaluation of 32 layers
def test_the_resnet_is_trained_and_its_pll_over_samples_shown(called, small_root) -> None:
    arguments = ("--images", "40", "--epochs", "2", "--width", "4", "--limit", "10", "--samples", "4", "--workers", "1")
    code, printed, errors = called("resnet32", *arguments, "--data-root", small_root, "--figures", "pictures")
    assert code == 0 and errors.startswith("1 networks, each trained for 2 epochs on 40 images")
    assert "trained as published, but on 40 images for 2 epochs" in " ".join(printed.split())
    assert Path("pictures/pll-over-samples.svg").is_file()
    assert called("report", "reproduce-resnet32.h5") == (0, printed, "")
    assert str(small_root) not in called("report", "reproduce-resnet32.h5", "--json")[1]


def test_the_resnet_is_that_of_the_paper_and_is_evaluated_with_its_own_images(tmp_path, small_root) -> None:
    request = Request(out=tmp_path / "out.h5", sets=("cifar10",), images=40, epochs=1, width=4, samples=2,
                      data_root=small_root)  # fmt: skip
    (job,) = resnet32.jobs(request, "cifar10")
    options = dict(job.options)
    assert (options["batch_size"], options["weight_decay"], networks.SLOPE) == (32, 2e-4, 0.1)
    weights = {f"n.{name}": values.numpy() for name, values in networks.resnet32(4).state_dict().items()}
    text = resnet32._written(tmp_path, request, job, weights).read_text()
    assert "augment = { pad = 2, crop = 10, flip = true }" in text and "train_batch_size = 32" in text
    with np.load(tmp_path / "train.npz") as images:
        assert images["x"].shape == (40, 3, 10, 10)


def test_what_is_kept_of_a_run_is_by_samples_and_by_tenths_of_the_points() -> None:
    random = np.random.default_rng(0)
    spread = np.linspace(0.1, 2, 40)
    f = spread * random.standard_normal((60, 40))
    choice = Choice(1e-4, 32, 0.0, 1, rmse=1.0, mc_sd=1.0, sigma=1.0, tau=4.0, tau_at_end="", unfinished=False)
    found = sizes.scored(f, np.zeros(40), spread, choice)
    assert {key.partition("@")[2] for key in found if "@" in key} == {"10", "50"}
    assert found["rmse@50"] == pytest.approx(np.sqrt(np.mean((f[:50].mean(0) - spread) ** 2)))
    assert found["sd"] == sorted(found["sd"]) and len(found["error"]) == sizes.BINS
    assert found["sd"][0] > 0.5  # τ adds to it


def test_the_sets_are_scored_by_size_and_drawn(called, small_root, tiny, monkeypatch) -> None:
    monkeypatch.setattr(sizes, "QUICK", replace(tiny, name="quick", samples=500, dropouts=(0.05,), max_epochs=10))
    arguments = ("--by-size", "--sets", "boston,yacht", "--batch-sizes", "8,32", "--figures", "pictures")
    code, printed, errors = called("uci", *arguments, "--data-root", small_root, "--workers", "1", "--device", "cpu")
    assert code == 0 and errors.startswith("4 kinds of networks on 2 sets") and "same command resumes" in errors
    assert Path("pictures/uci-sizes.svg").is_file()
    assert "That MCBN deteriorates at b ≤ 16" in " ".join(printed.split())
    assert called("report", "reproduce-uci.h5") == (0, printed, "")
    summary = json.loads(called("report", "reproduce-uci.h5", "--json")[1])
    at = {each["name"]: each for each in summary["networks"] if each["set"] == "yacht"}
    change = summary["differences"]["yacht: b = 8 − 32"]["crps"]["value"]
    expected = at["MCBN, b = 8, T = 500"]["crps"]["value"] - at["MCBN, b = 32, T = 500"]["crps"]["value"]
    assert change == pytest.approx(expected)
    assert {"yacht: T = 50 − 500", "yacht: samples − deterministic"} < summary["differences"].keys()
    assert [sizes._verdict(*sides) for sides in (("a", ""), ("", "b"), ("a", "b"), ("", ""))] == [
        "holds", "fails here", "stays open", "stays open",
    ]  # fmt: skip
