"""A dense network for 28 x 28 grey images, with BatchNorm after each hidden layer and no dropout."""

from torch import Tensor, nn
from torch.nn import functional as F


class MLP(nn.Module):
    """Logits of shape (n, 10) for images of any shape with 784 values."""

    def __init__(self) -> None:
        super().__init__()
        self.L1 = nn.Linear(784, 300, bias=False)
        self.bn1 = nn.BatchNorm1d(300)
        self.L2 = nn.Linear(300, 301, bias=False)
        self.bn2 = nn.BatchNorm1d(301)
        self.L3 = nn.Linear(301, 302, bias=False)
        self.bn3 = nn.BatchNorm1d(302)
        self.L4 = nn.Linear(302, 303, bias=False)
        self.bn4 = nn.BatchNorm1d(303)
        self.L5 = nn.Linear(303, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = x.flatten(start_dim=1)
        x = F.relu(self.bn1(self.L1(x)))
        x = F.relu(self.bn2(self.L2(x)))
        x = F.relu(self.bn3(self.L3(x)))
        x = F.relu(self.bn4(self.L4(x)))
        return self.L5(x)


def mlp() -> MLP:
    return MLP()
