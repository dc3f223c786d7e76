"""A CNN for SVHN's 32 x 32 colour images, with BatchNorm after each convolution and dropout before each dense layer."""

from torch import Tensor, nn


class SvhnCNN(nn.Module):
    """Logits of shape (n, classes) for images of shape (n, 3, 32, 32)."""

    def __init__(self, classes: int, dropout: float) -> None:
        super().__init__()
        self.features = nn.Sequential(block(3, 32), block(32, 64), block(64, 128))
        self.classifier = nn.Sequential(
            nn.Dropout(dropout),
            nn.Linear(128 * 4 * 4, 256),
            nn.ReLU(),
            nn.Dropout(dropout),
            nn.Linear(256, classes),
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.features(x).flatten(start_dim=1))


def block(inputs: int, outputs: int) -> nn.Sequential:
    """Two normalised convolutions, then half the resolution."""
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1),
        nn.BatchNorm2d(outputs),
        nn.ReLU(),
        nn.Conv2d(outputs, outputs, 3, padding=1),
        nn.BatchNorm2d(outputs),
        nn.ReLU(),
        nn.MaxPool2d(2),
    )


def svhn_cnn(classes: int = 10, dropout: float = 0.3) -> SvhnCNN:
    return SvhnCNN(classes, dropout)
