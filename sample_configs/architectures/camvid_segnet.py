"""The network of camvid_seg_bn_dropout.pt, as its README describes it."""

from torch import nn


def segnet() -> nn.Sequential:
    """Bayesian segmentation of CamVid: 11 classes for each pixel of pictures whose sides are multiples of 8."""

    def conv(inputs: int, outputs: int, *, stride: int = 1, dilation: int = 1) -> list[nn.Module]:
        layer = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=dilation, dilation=dilation, bias=False)
        return [layer, nn.BatchNorm2d(outputs), nn.ReLU()]

    def up() -> nn.Module:
        return nn.Upsample(scale_factor=2, mode="bilinear", align_corners=False)

    return nn.Sequential(
        *conv(3, 24, stride=2),
        *conv(24, 32, stride=2),
        *conv(32, 48),
        nn.Dropout2d(0.1),
        *conv(48, 64, stride=2),
        *conv(64, 64, dilation=2),
        *conv(64, 64, dilation=4),
        *conv(64, 64, dilation=8),
        nn.Dropout2d(0.2),
        up(),
        *conv(64, 48),
        up(),
        *conv(48, 32),
        nn.Dropout2d(0.1),
        nn.Conv2d(32, 11, 1),
        up(),
    )
