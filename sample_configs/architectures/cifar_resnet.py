"""ResNets for CIFAR's 32 x 32 images (He et al. 2016, section 4.2), with parameter-free shortcuts."""

from torch import Tensor, nn
from torch.nn import functional as F


class Block(nn.Module):
    """Two 3 x 3 convolutions beside a shortcut that costs no parameters."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.stride = stride
        self.new_channels = outputs - inputs

    def forward(self, x: Tensor) -> Tensor:
        residual = F.relu(self.bn1(self.conv1(x)))
        residual = self.bn2(self.conv2(residual))
        return F.relu(residual + self.shortcut(x))

    def shortcut(self, x: Tensor) -> Tensor:
        """The input at every stride-th pixel, with the new channels as zeros, half of them on each side."""
        before = self.new_channels // 2
        after = self.new_channels - before
        return F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, before, after))


class CifarResNet(nn.Module):
    """Logits of shape (n, classes) for images of shape (n, 3, 32, 32); 6 × blocks + 2 weighted layers deep."""

    def __init__(self, blocks: int, classes: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        self.layer1 = stage(16, 16, blocks, stride=1)
        self.layer2 = stage(16, 32, blocks, stride=2)
        self.layer3 = stage(32, 64, blocks, stride=2)
        self.linear = nn.Linear(64, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.bn1(self.conv1(x)))
        x = self.layer3(self.layer2(self.layer1(x)))
        return self.linear(x.mean(dim=(2, 3)))


def stage(inputs: int, outputs: int, blocks: int, *, stride: int) -> nn.Sequential:
    """Blocks of one width; the first changes the shape."""
    first = Block(inputs, outputs, stride)
    return nn.Sequential(first, *(Block(outputs, outputs, 1) for _ in range(blocks - 1)))


def resnet20(classes: int = 10) -> CifarResNet:
    return CifarResNet(3, classes)


def resnet32(classes: int = 10) -> CifarResNet:
    return CifarResNet(5, classes)


def resnet56(classes: int = 10) -> CifarResNet:
    return CifarResNet(9, classes)
