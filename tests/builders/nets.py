"""The two architectures that these tests load weights into, and a small one to save."""

import copy
from functools import cache

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Small(nn.Module):
    """Two dense layers with BatchNorm and dropout: logits of shape (n, classes) for (n, 6)."""

    def __init__(self, classes: int = 3, width: int = 4) -> None:
        super().__init__()
        self.first = nn.Linear(6, width)
        self.bn = nn.BatchNorm1d(width)
        self.drop = nn.Dropout(0.2)
        self.last = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.drop(F.relu(self.bn(self.first(x)))))


def small(classes: int = 3) -> Small:
    return Small(classes)


def trained_small(classes: int = 3) -> Small:
    """A `Small` whose weights and statistics are its own, and the same to the last bit in a process, whatever number of
    threads a test left."""
    return copy.deepcopy(_trained_small(classes))


@cache
def _trained_small(classes: int) -> Small:
    with torch.random.fork_rng():
        torch.manual_seed(7)
        network = Small(classes)
        with torch.no_grad():
            network(torch.randn(32, 6))
    return network.eval()


class Block(nn.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.stride, self.padding = (1, 0) if inputs == outputs else (2, (outputs - inputs) // 2)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride=self.stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)

    def forward(self, x: Tensor) -> Tensor:
        shortcut = F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, self.padding, self.padding))
        return F.relu(self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x))))) + shortcut)


class ResNet(nn.Module):
    """He et al. 2016, section 4.2: 6 × blocks + 2 weighted layers, for 32 x 32 images."""

    def __init__(self, blocks: int = 3, classes: int = 10) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        widths = [16, 16, 32, 64]
        for i in (1, 2, 3):
            stage = [Block(widths[i - 1] if j == 0 else widths[i], widths[i]) for j in range(blocks)]
            setattr(self, f"layer{i}", nn.Sequential(*stage))
        self.linear = nn.Linear(64, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.bn1(self.conv1(x)))
        for stage in (self.layer1, self.layer2, self.layer3):
            x = stage(x)
        return self.linear(x.mean((2, 3)))


def resnet20(classes: int = 10) -> ResNet:
    return ResNet(3, classes)


class MLP(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        widths = [784, 300, 301, 302, 303]
        for i in (1, 2, 3, 4):
            setattr(self, f"L{i}", nn.Linear(widths[i - 1], widths[i], bias=False))
            setattr(self, f"bn{i}", nn.BatchNorm1d(widths[i]))
        self.L5 = nn.Linear(303, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(1)
        for i in (1, 2, 3, 4):
            x = F.relu(getattr(self, f"bn{i}")(getattr(self, f"L{i}")(x)))
        return self.L5(x)


class Cnn(nn.Module):
    """A convolution with BatchNorm, and two dropouts: logits (n, 3) for pictures (n, 3, 8, 8)."""

    def __init__(self, num_classes: int = 3, in_chans: int = 3) -> None:
        super().__init__()
        self.conv = nn.Conv2d(in_chans, 4, 3, bias=False)
        self.bn = nn.BatchNorm2d(4)
        self.drop = nn.Dropout(0.3)
        self.last = nn.Linear(144, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        x = F.dropout2d(F.relu(self.bn(self.conv(x))), 0.2, self.training)
        return self.last(self.drop(x.view(x.shape[0], -1)))


def trained_cnn() -> Cnn:
    """A `Cnn` whose weights and statistics are its own."""
    with torch.random.fork_rng():
        torch.manual_seed(3)
        network = Cnn()
        with torch.no_grad():
            for _ in range(20):
                network(torch.rand(32, 3, 8, 8) * 3)
    return network.eval()
