"""The networks of the batch-size experiment, for small images: BatchNorm after every convolution, nothing pretrained.

A run file names one of them as `arch = "networks.py:small_resnet"`; this file is copied to where the run files lie.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn
from torch.nn import functional as F

from bnuq.shapes import Float

_VGG_16 = ((64, 64), (128, 128), (256, 256, 256), (512, 512, 512), (512, 512, 512))


def small_resnet(classes: int = 10, channels: int = 1) -> nn.Module:
    """A ResNet of 7 3 × 3 convolutions: a stem of stride 2, then a basic block each of 16, 32 and 64 channels.

    Takes images (n, channels, height, width), gives logits (n, classes). Without a bias before any BatchNorm.
    """
    return _ResNet(_Basic, stem=16, stride=2, widths=(16, 32, 64), blocks=(1, 1, 1), classes=classes, channels=channels)


def resnet50(classes: int = 10, channels: int = 1) -> nn.Module:
    """ResNet-50 (He et al. 2016) with the stem that small images get: one 3 × 3 convolution and no pooling.

    Takes images (n, channels, height, width), gives logits (n, classes).
    """
    return _ResNet(
        _Bottleneck,
        stem=64,
        stride=1,
        widths=(64, 128, 256, 512),
        blocks=(3, 4, 6, 3),
        classes=classes,
        channels=channels,
    )


def vgg16(classes: int = 10, channels: int = 1) -> nn.Module:
    """The 13 convolutions of VGG-16 (Simonyan & Zisserman 2015) with BatchNorm, and one linear layer on their mean.

    Takes images (n, channels, height, width), gives logits (n, classes). A pooling rounds an odd side up, so that
    28 × 28 images reach the end.
    """
    layers: list[nn.Module] = []
    for widths in _VGG_16:
        for width in widths:
            layers += [_convolution(channels, width, 3), nn.BatchNorm2d(width), nn.ReLU()]
            channels = width
        layers.append(nn.MaxPool2d(2, ceil_mode=True))
    return _initialised(nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes)))


def small_vgg(classes: int = 10, channels: int = 1) -> nn.Module:
    """The first blocks of a VGG, narrowed: two 3 × 3 convolutions each of 8, 16 and 32 channels, halved after each."""
    layers: list[nn.Module] = []
    for width in (8, 16, 32):
        for _ in range(2):
            layers += [_convolution(channels, width, 3), nn.BatchNorm2d(width), nn.ReLU()]
            channels = width
        layers.append(nn.MaxPool2d(2, ceil_mode=True))
    return _initialised(nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes)))


class _Basic(nn.Module):
    """Two 3 × 3 convolutions beside a shortcut, which is a 1 × 1 convolution where the shape changes."""

    expansion = 1

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = _convolution(inputs, width, 3, stride), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = _convolution(width, width, 3), nn.BatchNorm2d(width)
        self.shortcut = _shortcut(inputs, width, stride)

    def forward(self, x: Float[Tensor, "n c h w"]) -> Float[Tensor, "n d i j"]:
        y = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(y)) + self.shortcut(x))


class _Bottleneck(nn.Module):
    """A 3 × 3 convolution between two of 1 × 1, of which the last widens fourfold, beside a shortcut."""

    expansion = 4

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = self.expansion * width
        self.conv1, self.bn1 = _convolution(inputs, width, 1), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = _convolution(width, width, 3, stride), nn.BatchNorm2d(width)
        self.conv3, self.bn3 = _convolution(width, outputs, 1), nn.BatchNorm2d(outputs)
        self.shortcut = _shortcut(inputs, outputs, stride)

    def forward(self, x: Float[Tensor, "n c h w"]) -> Float[Tensor, "n d i j"]:
        y = F.relu(self.bn1(self.conv1(x)))
        y = F.relu(self.bn2(self.conv2(y)))
        return F.relu(self.bn3(self.conv3(y)) + self.shortcut(x))


class _ResNet(nn.Module):
    def __init__(
        self,
        block: type[_Basic] | type[_Bottleneck],
        *,
        stem: int,
        stride: int,
        widths: Sequence[int],
        blocks: Sequence[int],
        classes: int,
        channels: int,
    ) -> None:
        super().__init__()
        self.conv1, self.bn1 = _convolution(channels, stem, 3, stride), nn.BatchNorm2d(stem)
        layers: list[nn.Module] = []
        inputs = stem
        for stage, (width, count) in enumerate(zip(widths, blocks, strict=True)):
            for number in range(count):
                layers.append(block(inputs, width, 2 if stage and not number else 1))
                inputs = block.expansion * width
        self.blocks = nn.Sequential(*layers)
        self.linear = nn.Linear(inputs, classes)
        _initialised(self)

    def forward(self, x: Float[Tensor, "n c h w"]) -> Float[Tensor, "n class"]:
        x = F.relu(self.bn1(self.conv1(x)))
        return self.linear(self.blocks(x).mean(dim=(2, 3)))


def _convolution(inputs: int, outputs: int, size: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, size, stride=stride, padding=size // 2, bias=False)


def _shortcut(inputs: int, outputs: int, stride: int) -> nn.Module:
    if inputs == outputs and stride == 1:
        return nn.Identity()
    return nn.Sequential(_convolution(inputs, outputs, 1, stride), nn.BatchNorm2d(outputs))


def _initialised(network: nn.Module) -> nn.Module:
    """The network, its convolutions drawn anew by the rule of He et al. 2015 (normal, fan out)."""
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    return network
