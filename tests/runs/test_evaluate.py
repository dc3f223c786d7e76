"""Whole runs of the run files that ship, on real networks and data, against values from outside bnuq."""

from __future__ import annotations

import functools
import shutil
from collections.abc import Callable
from pathlib import Path

import less_work
import numpy as np
import pytest
import torch
from findings_of import warned
from torch import nn

import bnuq
from bnuq.config import Options, resolve
from bnuq.files.content import sha256_of_file
from bnuq.records.evaluation import Result
from bnuq.sampling import counter_rng
from bnuq.workflows.evaluate import evaluate


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory, data_pack: Path, sample_configs: Path) -> Path:
    """The run files and architectures that ship, beside the data that they name."""
    folder = tmp_path_factory.mktemp("project")
    for path in sample_configs.glob("*.toml"):
        shutil.copy(path, folder)
    shutil.copytree(sample_configs / "architectures", folder / "architectures")
    (folder / "data").symlink_to(data_pack)
    with np.load(data_pack / "cifar10" / "lossless_train.npz") as arrays:
        np.savez(folder / "few.npz", x=arrays["x"][:32], y=arrays["y"][:32])
    return folder


# What a run is asked for, beside the network as it is, where it serves other tests too.
SAMPLED = {
    "cifar_resnet20": {"samples": 3, "batch_size": 16, "methods": ("mcbn",)},
    "svhn_cnn": {"samples": 2, "batch_size": 16, "methods": ("mcdo", "mcbn+mcdo")},
}


@pytest.fixture(scope="module")
def finished(project: Path) -> Callable[[str], Result]:
    """The result of a run file, on few points: made once."""

    @functools.cache
    def once(name: str) -> Result:
        # A small reference keeps the check of its statistics short.
        few = "data/mnist/t10k-images-idx3-ubyte.gz" if name.endswith("mlp") else "few.npz"
        with pytest.MonkeyPatch.context() as patch:
            less_work.at_the_reference(patch, batches=2)
            return evaluated(
                project, name, train=few, limit=POINTS, **SAMPLED.get(name, {"methods": ("deterministic",)})
            )

    return once


def evaluated(project: Path, name: str, **options) -> Result:
    if name == "svhn_cnn":  # its own data sets are not among those at hand: any digits and photographs of its size do
        options = {
            "train": "data/cifar10/lossless_train.npz",
            "test": "data/ood/pcbdigits32.npz",
            "ood": ("cifar10=data/cifar10/lossless_test.npz",),
        } | options
    return evaluate(resolve(f"{name}.toml", Options(**options), folder=project))


# ── the network as it is ─────────────────────────────────────────────────────────────────────────────────────────────

# By plain torch and scikit-learn in float64, on the points of each set that seed 0 picks.
POINTS = 40
EXPECTED = {
    "cifar_resnet20": {
        "accuracy": 0.875, "pll": -0.438144656470, "brier": 0.199283113095, "ece": 0.101769013956,
        "predictive_entropy": 0.080131029509, "auroc": 0.85875,
    },
    "cifar_resnet32": {
        "accuracy": 0.825, "pll": -0.425525455610, "brier": 0.231602641379, "ece": 0.131545300293,
        "predictive_entropy": 0.106570087384, "auroc": 0.808125,
    },
    "cifar_resnet56": {
        "accuracy": 0.875, "pll": -0.366197040090, "brier": 0.178894719164, "ece": 0.097064002879,
        "predictive_entropy": 0.088095406682, "auroc": 0.843125,
    },
    "fmnist_mlp": {
        "accuracy": 0.825, "pll": -0.837440905126, "brier": 0.312988701122, "ece": 0.139115198853,
        "predictive_entropy": 0.160108346067, "auroc": 0.86,
    },
    "mnist_mlp": {
        "accuracy": 1.0, "pll": -0.013468650588, "brier": 0.004308953443, "ece": 0.011835731063,
        "predictive_entropy": 0.051580507386, "auroc": 0.961875,
    },
    "svhn_cnn": {
        "accuracy": 0.35, "pll": -4.508163926255, "brier": 1.062961761547, "ece": 0.493902399561,
        "predictive_entropy": 0.417147006363, "auroc": 0.665625,
    },
}  # fmt: skip


# The ResNets take seconds each; test_your_network.py runs the smallest. The MLPs are alike.
DEEPER = {"cifar_resnet20", "cifar_resnet32", "cifar_resnet56", "fmnist_mlp"}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.nightly if name in DEEPER else ()) for name in EXPECTED]
)
def test_the_network_as_it_is_has_the_estimates_of_plain_torch(finished, name):
    plain = finished(name).methods["deterministic"]
    (scores,) = plain.ood.values()
    actual = {key: estimate.value for key, estimate in plain.sets["test"].estimates.items()}
    actual["auroc"] = scores["predictive_entropy"]["auroc"].value
    for metric, value in EXPECTED[name].items():
        assert actual[metric] == pytest.approx(value, abs=2e-5), metric


# ── MCBN by hand ─────────────────────────────────────────────────────────────────────────────────────────────────────

MEAN, STD = (np.array(values).reshape(1, 3, 1, 1) for values in ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]))


def normalized(images: np.ndarray) -> torch.Tensor:
    """Pictures as the run file says."""
    return torch.from_numpy((images.astype(np.float64) - MEAN) / STD)


def cropped_and_flipped(images: np.ndarray, words: np.ndarray, pad: int = 4) -> np.ndarray:
    """Each picture (3, 32, 32) shifted by up to `pad` pixels over black, and half of them mirrored."""
    actual = []
    for image, (down, right, flip) in zip(images, words.tolist(), strict=True):
        canvas = np.zeros((3, 32 + 2 * pad, 32 + 2 * pad), np.float32)
        canvas[:, pad : pad + 32, pad : pad + 32] = image
        top, left = down % (2 * pad + 1), right % (2 * pad + 1)
        window = canvas[:, top : top + 32, left : left + 32]
        actual.append(window[:, :, ::-1] if flip >= 2**63 else window)
    return np.stack(actual)


def take_statistics_of(model: nn.Module, batch: torch.Tensor) -> None:
    """Make each BatchNorm's running statistics the mean and biased variance of `batch`, as training would see it."""
    counts: dict[nn.Module, int] = {}
    layers = [layer for layer in model.modules() if isinstance(layer, nn.BatchNorm2d)]
    hooks = [
        layer.register_forward_hook(lambda layer, args, _: counts.update({layer: args[0].numel() // args[0].shape[1]}))
        for layer in layers
    ]
    for layer in layers:
        layer.momentum = 1.0
    model.train()(batch)
    model.eval()
    for layer, hook in zip(layers, hooks, strict=True):
        hook.remove()
        assert layer.running_var is not None
        layer.running_var.mul_((counts[layer] - 1) / counts[layer])


@pytest.mark.parametrize(
    ("precision", "tolerance"), [("float64", 1e-9), pytest.param("float32", 5e-4, marks=pytest.mark.nightly)]
)
@pytest.mark.nightly
def test_mcbn_is_what_a_plain_loop_over_mini_batches_gives(
    project, data_pack, finished, monkeypatch, precision, tolerance
):
    batch_size, samples, points, dtype = 16, 3, POINTS, getattr(torch, precision)
    if precision == "float32":
        result = finished("cifar_resnet20")
    else:
        less_work.at_the_reference(monkeypatch, batches=2)
        batch_size, samples, points = 8, 2, 10
        options = {"limit": points, "samples": samples, "batch_size": batch_size, "precision": precision}
        result = evaluated(project, "cifar_resnet20", train="few.npz", ood=(), **options)
    model = bnuq.load(
        data_pack / "checkpoints" / "resnet20-12fca82f.th", arch="cifar_resnet.py:resnet20",
        base=project / "architectures",
    ).to(dtype)  # fmt: skip
    with np.load(project / "few.npz") as arrays:
        train = arrays["x"].transpose(0, 3, 1, 2) / np.float32(255)
    with np.load(data_pack / "cifar10" / "lossless_test.npz") as arrays:
        picked = np.sort(
            counter_rng.batch_indices(0, 0, population=len(arrays["x"]), batch_size=points, purpose=counter_rng.SUBSET)
        )
        test, labels = (
            arrays["x"].transpose(0, 3, 1, 2)[picked] / np.float32(255),
            torch.from_numpy(arrays["y"][picked]),
        )
    log_p = []
    with torch.no_grad():
        for t in range(samples):
            rows = counter_rng.batch_indices(0, t, population=len(train), batch_size=batch_size)
            batch = cropped_and_flipped(train[rows], counter_rng.augmentation_words(0, t, batch_size))
            take_statistics_of(model, normalized(batch).to(dtype))
            log_p.append(model(normalized(test).to(dtype)).double().log_softmax(-1))
    stacked = torch.stack(log_p)
    likelihood = stacked.gather(-1, labels.expand(samples, -1)[..., None])[..., 0]
    mean = stacked.exp().mean(0)
    entropy = -(mean * mean.log()).sum(-1)
    expected = -(stacked.exp() * stacked).sum(-1).mean(0)

    actual = result.methods["mcbn"].sets["test"]
    np.testing.assert_allclose(actual.log_likelihood, likelihood, atol=tolerance)
    np.testing.assert_allclose(actual.points["mutual_information"], entropy - expected, atol=tolerance)
    pll = (likelihood.logsumexp(0) - np.log(samples)).mean().item()
    assert actual.estimates["pll"].value == pytest.approx(pll, abs=tolerance)
    assert actual.estimates["accuracy"].value == (mean.argmax(-1) == labels).double().mean().item()
    assert actual.estimates["predictive_entropy"].value == pytest.approx(entropy.mean().item(), abs=tolerance)
    assert result.sampling["batch_size"] == batch_size


@pytest.mark.nightly  # of a network made up: reference check
def test_a_reference_without_the_augmentation_of_the_training_is_warned_about(project, monkeypatch):
    less_work.at_the_reference(monkeypatch, batches=8)
    lines = (project / "cifar_resnet20.toml").read_text().splitlines()
    (project / "plain.toml").write_text("\n".join(line for line in lines if not line.startswith("augment")))
    result = evaluated(project, "plain", limit=4, samples=2, batch_size=8, ood=(), train="few.npz")
    assert result.reference_check is not None and not result.reference_check.passed
    assert [code for code in warned(result) if "reference" in code]


# ── BatchNorm and dropout together ───────────────────────────────────────────────────────────────────────────────────


def test_dropout_and_batchnorm_both_make_the_passes_differ_and_leave_the_checkpoint_alone(finished, data_pack):
    result = finished("svhn_cnn")
    assert sha256_of_file(data_pack / "checkpoints" / "svhn_cnn_bn_dropout.pth") == result.model["sha256"]
    assert (result.model["batchnorm_layers"], result.model["dropout_layers"]) == (6, 2)
    likelihoods = {name: result.methods[name].sets["test"].log_likelihood for name in ("mcdo", "mcbn+mcdo")}
    for likelihood in likelihoods.values():
        assert likelihood is not None
        assert np.ptp(likelihood, axis=0).max() > 0.1
        assert len({row.tobytes() for row in likelihood}) == 2
    assert not np.array_equal(likelihoods["mcdo"], likelihoods["mcbn+mcdo"])
    assert "mutual_information" not in result.methods["deterministic"].sets["test"].estimates
    assert min(result.methods[name].sets["test"].estimates["mutual_information"].value for name in likelihoods) > 0.05


def test_evaluating_leaves_the_network_as_it_was(project, data_pack):
    """The state dict, the modes and the hooks, by the library's own names."""
    model = bnuq.load(
        data_pack / "checkpoints" / "svhn_cnn_bn_dropout.pth", arch="svhn_cnn.py:svhn_cnn",
        base=project / "architectures",
    )  # fmt: skip
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with np.load(data_pack / "ood" / "pcbdigits32.npz") as arrays:
        images = torch.from_numpy(arrays["x"][:64].transpose(0, 3, 1, 2) / np.float32(255))
    omega = bnuq.draw(model, images, samples=3, batch_size=16)
    outputs = bnuq.predict(model, images[:8], omega, dropout=bnuq.Dropout(3))
    assert outputs.shape == (3, 8, 10)
    assert not torch.equal(outputs[0], outputs[1])
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not any(layer.training or layer._forward_hooks for layer in model.modules())


# ── the demo ─────────────────────────────────────────────────────────────────────────────────────────────────────────
