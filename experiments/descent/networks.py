"""Residual networks with BatchNorm before each convolution, for small images with values in 0–1.

A run file names one of them as `arch = "networks.py:resnet32"`; this file is copied to where the run file lies.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

EPS, SLOPE = 1e-3, 0.1  # of BatchNorm and of leaky ReLUs, as in the code of Teye et al. 2018


class Standardised(nn.Module):
    """Each image less its mean, by its standard deviation, which counts as 1/√values at least."""

    def forward(self, x: Tensor) -> Tensor:
        sd, mean = torch.std_mean(x, (1, 2, 3), correction=0, keepdim=True)
        return (x - mean) / sd.clamp_min(x[0].numel() ** -0.5)


class Block(nn.Module):
    """Two convolutions beside a shortcut, which pools and pads with zeros where the width doubles."""

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.wider = width - inputs
        parts = (*_active(inputs), _conv(inputs, width, 2 if self.wider else 1), *_active(width), _conv(width, width))
        self.body = nn.Sequential(*parts)

    def forward(self, x: Tensor) -> Tensor:
        shortcut = x if not self.wider else F.pad(F.avg_pool2d(x, 2, ceil_mode=True), (0, 0, 0, 0, 0, self.wider))
        return shortcut + self.body(x)


def resnet(width: int, blocks: int, *, channels: int, stride: int = 1) -> nn.Sequential:
    """6 × `blocks` + 2 layers in three stages, of `width` channels, twice and four times as many; 10 logits."""
    widths = [width * 2**stage for stage in range(3) for _ in range(blocks)]
    body = [Block(inputs, outputs) for inputs, outputs in zip([width, *widths], widths, strict=False)]
    ends = (*_active(4 * width), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4 * width, 10))
    network = nn.Sequential(Standardised(), _conv(channels, width, stride), *body, *ends)
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, a=SLOPE, mode="fan_out")
    return network


def resnet32(width: int = 16) -> nn.Sequential:
    """The depth, slope and ε of the network of Teye et al. 2018."""
    return resnet(width, 5, channels=3)


def small(width: int = 8) -> nn.Sequential:
    """Eight layers, for images of one channel."""
    return resnet(width, 1, channels=1, stride=2)


def _conv(inputs: int, outputs: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)


def _active(width: int) -> tuple[nn.Module, nn.Module]:
    return nn.BatchNorm2d(width, eps=EPS), nn.LeakyReLU(SLOPE)
