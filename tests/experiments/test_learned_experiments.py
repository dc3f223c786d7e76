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
from experiments.layers import DropoutLinear, MeanFieldLinear, NormalizedConv2d, StochasticScale, kl
from experiments.learned import bn_in_vi, networks, normalization, running, training
from experiments.learned.running import Request

pytestmark = pytest.mark.nightly  # not installed; test_commands.py runs four whole experiments

SETTINGS = {"images": 32, "epochs": 1, "width": 4, "samples": 3, "limit": 20, "workers": 1}


def asked(folder: Path, root: Path, **values: object) -> Request:
    return Request(**{"out": folder / "out.h5", "sets": ("fashion-mnist",), "data_root": root, **SETTINGS, **values})  # type: ignore


def test_thirteen_networks_of_which_only_those_with_noise_draw_samples(tmp_path: Path, small_root: Path) -> None:
    jobs = list(normalization.jobs(asked(tmp_path, small_root), "fashion-mnist"))
    kinds = ("", ", projected", ", noise", ", Bayesian", ", projected, Bayesian")
    assert [job.name for job in jobs] == [
        *("none", "BN", "BN, projected", *(f"WN{kind}" for kind in kinds), *(f"AN{kind}" for kind in kinds))
    ]
    quiet = ["none", "WN", "WN, projected", "AN", "AN, projected"]
    assert [job.name for job in jobs if not (job.mcbn or job.learned)] == quiet
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


def test_a_ratio_is_the_average_of_deviation_over_scale() -> None:
    layer = StochasticScale(3, noise="scale")
    assert layer.scale_u is not None
    with torch.no_grad():
        layer.scale.copy_(torch.tensor([1.0, -2.0, 4.0]))
        deviation = training.positive(layer.scale_u)
    np.testing.assert_allclose(
        training.ratios(nn.Sequential(layer)), float(deviation[0]) * (1 + 1 / 2 + 1 / 4) / 3, rtol=1e-6
    )


@pytest.mark.parametrize("kind", ["none", "weight"])
@pytest.mark.parametrize("noise", ["none", "batch", "scale"])
def test_the_first_images_start_layers_without_moments_as_batchnorm_would(kind: str, noise: str) -> None:
    images = torch.randn(networks.START_POINTS, 1, 28, 28)
    network = networks.all_cnn(images, normalization=kind, noise=noise, width=4).eval()
    values, layers = images, [each for each in network if isinstance(each, NormalizedConv2d)]
    for layer in network[:17]:
        values = layer(values)
        if isinstance(layer, NormalizedConv2d):
            np.testing.assert_allclose(values.detach().mean((0, 2, 3)), 0, atol=1e-4)
            np.testing.assert_allclose(values.detach().std((0, 2, 3)), 1, rtol=5e-3)
    assert values.shape[2:] == (1, 1)  # without padding
    if noise == "scale":
        np.testing.assert_allclose(training.ratios(network), 0.1, rtol=1e-4)
    if noise == "batch":
        assert float(layers[0].stochastic.effective_size) == pytest.approx(1 / (2 * 0.05**2))


def test_a_dense_network_has_priors_of_the_scale_of_its_inputs() -> None:
    network = networks.dense(torch.zeros(2, 1, 4, 4), batch_norm=True, units=6)
    layers = [each for each in network if isinstance(each, MeanFieldLinear)]
    assert [float(each.prior_sd) for each in layers] == pytest.approx([1 / 4, 6**-0.5, 6**-0.5])
    assert sum(isinstance(each, nn.BatchNorm1d) for each in network) == 2


@pytest.mark.parametrize("per", ["point", "batch"])
def test_in_eq_3_one_draw_of_the_weights_serves_the_whole_mini_batch(per: str) -> None:
    layer = MeanFieldLinear(3, 2, per=per).train()
    first, second = layer(torch.ones(2, 3)).detach()
    assert torch.equal(first, second) is (per == "batch")
    assert not torch.equal(first, layer(torch.ones(2, 3))[0].detach())


@pytest.mark.parametrize("per", ["point", "batch"])
def test_dropout_keeps_the_mean_and_shares_its_mask_as_asked(per: str) -> None:
    torch.manual_seed(0)
    layer = DropoutLinear(4000, 1, rate=0.2, prior_sd=0.5, per=per)
    assert layer.bias is not None
    with torch.no_grad():
        layer.weight.fill_(1.0)
        layer.bias.zero_()
    x = torch.ones(2, 4000)
    first, second = layer.train()(x).detach()[:, 0]
    assert bool(first == second) is (per == "batch")
    assert first * 0.8 == round(float(first) * 0.8)  # whole inputs are kept, each 1/(1 − rate) times as large
    assert float(first) == pytest.approx(4000, rel=0.05)
    np.testing.assert_allclose(layer.eval()(x).detach(), 4000)
    assert float(layer.kl().detach()) == pytest.approx(4000 / 0.8 / (2 * 0.5**2))


def test_the_noise_of_a_network_and_the_losses_of_its_training_are_those_of_mini_batches() -> None:
    torch.manual_seed(0)
    data = {"test_x": torch.randn(96, 1, 10, 10), "test_y": torch.arange(96) % 10}
    network = networks.all_cnn(data["test_x"], normalization="batch", noise="none", width=4)
    before = {name: value.clone() for name, value in network.state_dict().items()}
    stand = training._stand(network, data)
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())
    weight = before["0.weight"]
    h = torch.nn.functional.conv2d(data["test_x"], weight, padding=1).unflatten(0, (3, 32))
    means, variances = h.mean((1, 3, 4)), h.var((1, 3, 4), correction=0)
    total = h.transpose(0, 2).flatten(1).var(1, correction=0)
    np.testing.assert_allclose(stand["sigmas"][0, 0], (total / variances).sqrt().std(0).mean(), rtol=1e-4)
    np.testing.assert_allclose(stand["sigmas"][0, 1], (means / total.sqrt()).std(0).mean(), rtol=1e-3)
    noisy = torch.stack([network.train()(rows).log_softmax(1) for rows in data["test_x"].split(32)]).flatten(0, 1)
    loss = -noisy.gather(1, data["test_y"][:, None]).mean()
    np.testing.assert_allclose(stand["in_training"], loss.detach(), rtol=1e-5)


def test_deviations_move_alone_after_training_until_they_are_still(tmp_path: Path, small_root: Path) -> None:
    network = networks.all_cnn(torch.randn(9, 1, 10, 10), normalization="analytic", noise="scale", width=4)
    moved = [{"ratios": np.array(values)} for values in ([0.1, 0.2], [0.1, 0.21])]
    assert not training._settled(network, moved)
    assert training._settled(network, [moved[1], moved[1]])
    free = {name for name, parameter in network.named_parameters() if parameter.requires_grad}
    assert free == {name for name, _ in network.named_parameters() if name.endswith("scale_u")} != set()
    request = asked(tmp_path, small_root)
    wanted = ("BN", "AN, projected, Bayesian")
    jobs = [job for job in normalization.jobs(request, "fashion-mnist") if job.name in wanted]
    with running.trained(request, lambda _: jobs) as found:
        arrays = next(arrays for job, arrays in found.items() if job.name == "BN")
        arrays["epochs_sigmas"] = np.multiply.outer([1.0, 2.0, 3.0], np.ones((9, 2)))
        bn, scaled = (normalization._network("fashion-mnist", job.name, [found[job]]) for job in found)
        for job, arrays in found.items():
            assert len(arrays["epochs_training"]) == (1 if job.name == "BN" else 1 + training.LONGER)
            x, data = training.Data(job.data).arrays["test_x"], training.Data(job.data).arrays
            for _, images in training._disturbed(job, nn.Sequential(nn.Flatten(), nn.Linear(100, 10)), data):
                pixels = images * data["std"] + data["mean"]
                assert float(pixels.min()) > -1e-5 and float(pixels.max()) < 1 + 1e-5 and pixels.shape == x.shape
    assert bn.curves["growth of σ_U"] == (3.0,) * 9 and "growth of σ_U" not in scaled.curves
    assert bn.estimates["error at 100%"].value == pytest.approx(1 - bn.estimates["accuracy_samples"].value)


def test_what_is_measured_of_a_network_is_that_of_its_own_passes(tmp_path: Path, small_root: Path) -> None:
    request = asked(tmp_path, small_root)
    with running.trained(request, lambda of: list(bn_in_vi.jobs(request, of))) as found:
        (job, arrays), *_ = [(job, arrays) for job, arrays in found.items() if job.mcbn]
        alone = next(arrays for job, arrays in found.items() if not job.mcbn)
        np.testing.assert_allclose(alone["training"], alone["use"])  # without BatchNorm there is one objective
        assert all(arrays[name].shape == (20,) for name in ("single", "samples", "samples_right"))
        assert all(arrays[name].shape == (3,) for name in ("training", "use", "one_draw"))
        assert float(arrays["kl"]) > 0
        estimates = bn_in_vi._measured(arrays)
        assert estimates["elbo"].value == pytest.approx(arrays["use"].mean() - arrays["kl"])
        assert estimates["elbo"].mc_se == pytest.approx(arrays["use"].std(ddof=1) / 3**0.5)
        assert estimates["nll_samples"].value == pytest.approx(-arrays["samples"].mean())
        assert job.finished() is not None
    assert not list(tmp_path.iterdir())  # what was kept is forgotten at the end


def test_differences_are_paired_and_say_whether_the_published_ones_are_found(tmp_path, small_root, monkeypatch):
    compared, jobs = {name for pair in normalization._COMPARED for name in pair}, normalization.jobs
    monkeypatch.setattr(normalization, "jobs", lambda *of: [job for job in jobs(*of) if job.name in compared])
    record = normalization.reproduce(asked(tmp_path, small_root))
    network, projected = (record.network("fashion-mnist", f"AN, projected{kind}") for kind in (", Bayesian", ""))
    assert network is not None and projected is not None
    name = "fashion-mnist: AN, projected, Bayesian, samples − AN, projected"
    change = record.differences[name]["nll"]
    assert change.value == pytest.approx(network.estimates["nll_samples"].value - projected.estimates["nll"].value)
    for value, half, verdict in (
        (-0.3, 0.2, "holds, agrees"),
        (-1.0, 0.2, "holds, the sign"),
        (0.0, 0.2, "open, no difference is shown"),
        (0.0, 0.01, "open, no difference is shown"),
        (1.0, 0.2, "fails here, the opposite sign"),
    ):
        changed = replace(record, differences={name: {"nll": Estimate(value, low=value - half, high=value + half)}})
        first, second, *_ = normalization.sentences(changed)
        assert first.endswith(f"published −0.160: {verdict}.")
        assert "no published value is excluded" in second
    for z, raised in ((-4, 0), (2, 0), (4, 1)):
        estimates = {**network.estimates, "nll_change": Estimate(0.01 * z, se=0.01)}
        changed = replace(record, networks=(replace(network, estimates=estimates),))
        said = [text for text in normalization.sentences(changed) if "samples raise the NLL" in text]
        assert len(said) == raised
        assert all(text.endswith("(0.0400 ± 0.0100).") and "in AN, projected, Bayesian: " in text for text in said)
    assert "learned σ/s, by layer" in rendered(normalization.report, record)


@pytest.mark.parametrize(
    ("change", "raised", "message"),
    [
        ({"sets": ("mnist",)}, RequestError, "--sets mnist: expected fashion-mnist or cifar10"),
        ({"images": 241}, DataError, "fashion-mnist:train has 240 images, fewer than --images 241"),
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
