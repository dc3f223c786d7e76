"""The experiments on learned noise: what is trained and measured, that it resumes, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from report_text import rendered
from torch import nn

from bnuq.errors import DataError, RequestError
from bnuq.estimates import Estimate
from experiments.layers import MeanFieldLinear, NormalizedConv2d, StochasticScale, kl
from experiments.learned import bn_in_vi, networks, normalization, running, training
from experiments.learned.running import Request

pytestmark = pytest.mark.nightly  # not installed; test_commands.py runs four whole experiments

SETTINGS = {"images": 32, "epochs": 1, "width": 4, "samples": 3, "limit": 20, "workers": 1}


def asked(folder: Path, root: Path, **values: object) -> Request:
    return Request(**{"out": folder / "out.h5", "sets": ("fashion-mnist",), "data_root": root, **SETTINGS, **values})  # type: ignore


def test_thirteen_networks_of_which_only_those_with_noise_draw_samples(tmp_path: Path, small_root: Path) -> None:
    jobs = list(normalization.jobs(asked(tmp_path, small_root), "fashion-mnist"))
    assert [job.name for job in jobs] == [
        *("none", "none, noise", "none, Bayesian", "BN", "BN, projected", "BN, Bayesian", "BN, projected, Bayesian"),
        *("WN", "WN, noise", "WN, Bayesian", "AN", "AN, noise", "AN, Bayesian"),
    ]
    assert [job.name for job in jobs if not (job.mcbn or job.learned)] == ["none", "WN", "AN"]
    assert [job.name for job in jobs if job.mcbn] == ["BN", "BN, projected"]


@pytest.mark.parametrize("kind", ["none", "weight", "analytic", "batch"])
@pytest.mark.parametrize("noise", ["none", "batch", "scale"])
def test_a_network_has_nine_convolutions_with_the_normalisation_and_noise_asked_for(kind: str, noise: str) -> None:
    if (kind, noise) == ("batch", "batch"):
        pytest.skip("its own noise is that of its mini-batches")
    images = torch.randn(20, 1, 10, 10)
    network = networks.all_cnn(images, normalization=kind, noise=noise, width=4)
    layers = [each for each in network.modules() if isinstance(each, NormalizedConv2d)]
    assert len(layers) == 9
    assert [each.out_channels for each in layers] == [4, 4, 4, 8, 8, 8, 8, 8, 10]
    assert network.eval()(images).shape == (20, 10)
    assert (float(kl(network).detach()) > 0) is (noise == "scale")
    assert len(training.ratios(network)) == (9 if noise == "scale" else 0)


def test_a_ratio_is_the_median_of_deviation_over_scale() -> None:
    layer = StochasticScale(3, noise="scale")
    assert layer.scale_u is not None
    with torch.no_grad():
        layer.scale.copy_(torch.tensor([1.0, -2.0, 4.0]))
        deviation = training.positive(layer.scale_u)
    np.testing.assert_allclose(training.ratios(nn.Sequential(layer)), float(deviation[0]) / 2, rtol=1e-6)


def test_a_dense_network_has_priors_of_the_scale_of_its_inputs() -> None:
    network = networks.dense(torch.zeros(2, 1, 4, 4), batch_norm=True, units=6)
    layers = [each for each in network if isinstance(each, MeanFieldLinear)]
    assert [float(each.prior_sd) for each in layers] == pytest.approx([1 / 4, 6**-0.5, 6**-0.5])
    assert sum(isinstance(each, nn.BatchNorm1d) for each in network) == 2


def test_what_is_measured_of_a_network_is_that_of_its_own_passes(tmp_path: Path, small_root: Path) -> None:
    request = asked(tmp_path, small_root)
    with running.trained(request, lambda of: list(bn_in_vi.jobs(request, of))) as found:
        (job, arrays), *_ = [(job, arrays) for job, arrays in found.items() if job.name == bn_in_vi.WITH]
        assert {name: arrays[name].shape for name in ("single", "samples", "samples_right", "train")} == {
            "single": (20,), "samples": (20,), "samples_right": (20,), "train": (3,),
        }  # fmt: skip
        assert arrays["train_population"].shape == (3,)
        assert float(arrays["kl"]) > 0
        estimates = bn_in_vi._measured(arrays)
        assert estimates["elbo"] == pytest.approx(arrays["train"].mean() - arrays["kl"])
        assert estimates["nll_samples"] == pytest.approx(-arrays["samples"].mean())
        assert job.finished() is not None
    assert not list(tmp_path.iterdir())  # what was kept is forgotten at the end


def test_differences_are_paired_and_say_whether_the_published_ones_are_found(tmp_path, small_root, monkeypatch):
    compared, jobs = {name for pair in normalization._COMPARED for name in pair}, normalization.jobs
    monkeypatch.setattr(normalization, "jobs", lambda *of: [job for job in jobs(*of) if job.name in compared])
    record = normalization.reproduce(asked(tmp_path, small_root))
    network = record.network("fashion-mnist", "AN, Bayesian")
    assert network is not None
    name = "fashion-mnist: AN, Bayesian, samples − AN, Bayesian"
    change = record.differences[name]["nll"]
    assert change.value == pytest.approx(network.estimates["nll_samples"].value - network.estimates["nll"].value)
    assert change.value == pytest.approx(network.estimates["nll_change"].value)
    assert normalization._published_difference(name) == pytest.approx(0.22 - 0.38)
    for value, error, verdict in (
        (-0.3, 0.1, "agrees"),
        (-1.0, 0.1, "only the sign agrees"),
        (0.0, 0.1, "inconclusive"),
        (0.0, 0.01, "no difference is shown, and the published one is excluded"),
        (1.0, 0.1, "the opposite of the published"),
    ):
        changed = replace(record, differences={name: {"nll": Estimate(value, se=error)}})
        assert next(normalization.sentences(changed)).endswith(f"published −0.16: {verdict}.")
    for z, raised in ((-4, 0), (2, 0), (4, 1)):
        estimates = {**network.estimates, "nll_change": Estimate(0.01 * z, se=0.01)}
        changed = replace(record, networks=(replace(network, estimates=estimates),))
        said = [text for text in normalization.sentences(changed) if "samples raise the NLL" in text]
        assert len(said) == raised
        assert all(text.endswith("(0.0400 ± 0.0100).") and "in AN, Bayesian: " in text for text in said)
    assert "learned σ/s, by layer" in rendered(normalization.report, record)


@pytest.mark.parametrize(
    ("change", "raised", "message"),
    [
        ({"sets": ("mnist",)}, RequestError, "--sets mnist: expected fashion-mnist or cifar10"),
        ({"sets": ("cifar10",), "data_root": None}, DataError, "cifar10/lossless_train.npz is in no folder of data"),
    ],
)
def test_what_is_refused(
    tmp_path: Path, small_root: Path, change: dict[str, object], raised: type[Exception], message: str,
    called: Callable[..., object],  # noqa: ARG001 - for a folder of its own
) -> None:  # fmt: skip
    request = asked(tmp_path, small_root, **change)
    with pytest.raises(raised, match=message):
        normalization.reproduce(request)
    assert not request.out.exists()
