"""The networks that are timed, and their inputs."""

from __future__ import annotations

import gzip
import importlib
import importlib.util
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

ROOT = Path(__file__).resolve().parent.parent
ARCHITECTURES = ROOT / "sample_configs" / "architectures"
CIFAR = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))  # means and deviations, as in sample_configs/
MNIST = (0.1307, 0.3081)


class AbsentError(Exception):
    """Something to be measured is not available here; the message says why."""


@dataclass(frozen=True)
class Network:
    """A network to time: how it is built, the shape of a point, and files of real weights and points, if any.

    `checkpoint` and the two point files are relative to $BNUQ_TEST_DATA, empty where the weights are random.
    """

    title: str
    build: Callable[[], nn.Module]
    point_shape: tuple[int, ...]
    checkpoint: str = ""
    train: str = ""
    test: str = ""


@dataclass(frozen=True)
class Loaded:
    """A network in evaluation mode with points (n, *input) to evaluate and images (N, *input) to draw batches from."""

    model: nn.Module
    points: Tensor
    reference: Tensor
    weights: str  # "checkpoint" or "random"


def load(network: Network, *, points: int, reference: int) -> Loaded:
    """The network with `points` points and `reference` images (repeated where a file holds fewer).

    Real weights and data where $BNUQ_TEST_DATA has them; otherwise random ones, with running statistics of random
    images. Raises AbsentError where the package that builds the network is not installed.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = network.build()
        data_folder = os.environ.get("BNUQ_TEST_DATA")
        if data_folder and network.checkpoint:
            model.load_state_dict(_state(Path(data_folder) / network.checkpoint))
            test, train = (
                images(Path(data_folder) / name, count)
                for name, count in ((network.test, points), (network.train, reference))
            )
            return Loaded(model.eval(), test, train, "checkpoint")
        inputs = torch.randn(points + reference, *network.point_shape)
        _settle(model, network.point_shape)
        return Loaded(model.eval(), inputs[:points], inputs[points:], "random")


def _state(path: Path) -> dict[str, Tensor]:
    state = torch.load(path, map_location="cpu", weights_only=True)
    state = state.get("state_dict", state)
    return {name.removeprefix("module."): value for name, value in state.items()}


def images(path: Path, count: int) -> Tensor:
    """The first `count` images of a file, preprocessed as in training; repeated from the start if there are too few."""
    if path.suffix == ".npz":
        with np.load(path) as file:
            pixels = file["x"]
        means, deviations = (np.array(values, np.float32) for values in CIFAR)
        values = ((pixels[np.arange(count) % len(pixels)] / np.float32(255)) - means) / deviations
        return torch.from_numpy(values.transpose(0, 3, 1, 2).copy())
    data = gzip.decompress(path.read_bytes())
    pixels = np.frombuffer(data, np.uint8, offset=16).reshape(-1, 1, 28, 28)
    values = pixels[np.arange(count) % len(pixels)] / np.float32(255)
    return torch.from_numpy((values - np.float32(MNIST[0])) / np.float32(MNIST[1]))


def _settle(model: nn.Module, point_shape: tuple[int, ...]) -> None:
    """Set random scales and shifts, then running statistics as after training on random images."""
    layers = [module for module in model.modules() if isinstance(module, _BatchNorm)]
    if not layers:
        return
    for layer in layers:
        nn.init.uniform_(layer.weight, 0.6, 1.2)
        nn.init.normal_(layer.bias, std=0.2)
        layer.reset_running_stats()
    momenta = [layer.momentum for layer in layers]
    for layer in layers:
        layer.momentum = None  # a plain average
    model.train()
    count = 16 if point_shape[-1] < 100 else 4  # large images hold many positions
    with torch.no_grad():
        for _ in range(3):
            model(torch.randn(count, *point_shape))
    for layer, momentum in zip(layers, momenta, strict=True):
        layer.momentum = momentum


def _shipped(file: str, name: str) -> Callable[[], nn.Module]:
    """A network of sample_configs/architectures."""

    def build() -> nn.Module:
        spec = importlib.util.spec_from_file_location(Path(file).stem, ARCHITECTURES / file)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return getattr(module, name)()

    return build


def _timm(name: str) -> Callable[[], nn.Module]:
    """A network of timm, with random weights."""

    def build() -> nn.Module:
        if importlib.util.find_spec("timm") is None:
            raise AbsentError("timm is not installed here; `make bench` makes an environment that has it.")
        torchvision_operators = importlib.import_module("torchvision_operators")
        torchvision_operators.make_importable()
        return importlib.import_module("timm").create_model(name, pretrained=False)

    return build


def _resnet20_with_dropout() -> nn.Module:
    model: Any = _shipped("cifar_resnet.py", "resnet20")()
    model.linear = nn.Sequential(nn.Dropout(0.5), model.linear)
    return model


def _dense(*, batchnorm: bool) -> Callable[[], nn.Module]:
    """The dense networks of the regression benchmarks: 13 inputs, two hidden layers of 50."""

    def build() -> nn.Module:
        layers: list[nn.Module] = []
        for inputs in (13, 50):
            layers += [nn.Linear(inputs, 50), nn.BatchNorm1d(50)] if batchnorm else [nn.Linear(inputs, 50)]
            layers += [nn.ReLU()] if batchnorm else [nn.ReLU(), nn.Dropout(0.1)]
        return nn.Sequential(*layers, nn.Linear(50, 1))

    return build


def _cifar(name: str, checkpoint: str) -> Network:
    return Network(
        f"ResNet-{name[6:]}, 32×32",
        _shipped("cifar_resnet.py", name),
        (3, 32, 32),
        checkpoint=f"checkpoints/{checkpoint}",
        train="cifar10/lossless_train.npz",
        test="cifar10/lossless_test.npz",
    )


NETWORKS = {
    "resnet20": _cifar("resnet20", "resnet20-12fca82f.th"),
    "resnet32": _cifar("resnet32", "resnet32-d509ac18.th"),
    "resnet56": _cifar("resnet56", "resnet56-4bfd9763.th"),
    "resnet50": Network("ResNet-50, 224×224", _timm("resnet50"), (3, 224, 224)),
    "resnet18": Network("ResNet-18, 64×64", _timm("resnet18"), (3, 64, 64)),
    "mobilenetv2": Network("MobileNetV2, 128×128", _timm("mobilenetv2_100"), (3, 128, 128)),
    "densenet121": Network("DenseNet-121, 96×96", _timm("densenet121"), (3, 96, 96)),
    "mlp50": Network("Dense 13-50-50-1", _dense(batchnorm=True), (13,)),
    "fmnist_mlp": Network(
        "Dense 784-300-301-302-303-10",
        _shipped("mlp_bn.py", "mlp"),
        (1, 28, 28),
        checkpoint="checkpoints/fmnist_mlp_bn.pt",
        train="fashion-mnist/train-images-idx3-ubyte.gz",
        test="fashion-mnist/t10k-images-idx3-ubyte.gz",
    ),
    "resnet20_dropout": Network("ResNet-20, dropout before the last layer", _resnet20_with_dropout, (3, 32, 32)),
    "mlp50_dropout": Network("Dense 13-50-50-1, dropout in each layer", _dense(batchnorm=False), (13,)),
}
