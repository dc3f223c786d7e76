"""The network of `bnuq demo` with Bayesian scales: each channel times S ~ N(s, σ²), where s and σ are learned."""

import numpy as np
import torch
from net import small_cnn
from torch import nn

from bnuq.nn import standard_normal


class Scale(nn.Module):
    """Multiplies channel c by S ~ N(s, σ²); its prior is N(1, 10²)."""

    def __init__(self, channels):
        super().__init__()
        self.mean = nn.Parameter(torch.ones(channels))
        self.log_sd = nn.Parameter(torch.full((channels,), -3.0))

    def forward(self, x):
        rows = len(x) if self.training else 1  # in training a draw for each point, later one for all
        mean, sd = (values[:, None, None].expand(rows, -1, 1, 1) for values in (self.mean, self.log_sd.exp()))
        return x * (mean + sd * standard_normal(mean, training=self.training))

    def kl(self):
        return (((self.log_sd.exp() / 10) ** 2 + ((self.mean - 1) / 10) ** 2 - 1) / 2 - self.log_sd + 2.303).sum()


def network():
    net = small_cnn()
    for block in net[:3]:
        block.append(Scale(block[0].out_channels))
    return net


if __name__ == "__main__":
    net = network().train()
    net.load_state_dict(torch.load("model.pt", weights_only=True), strict=False)
    with np.load("train.npz") as file:
        images = (torch.from_numpy(file["x"]).reshape(-1, 1, 28, 28) / 255 - 0.286) / 0.353
        labels = torch.from_numpy(file["y"]).long()
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
    for _ in range(50):
        rows = torch.randint(len(images), (64,))
        kl = sum(layer.kl() for layer in net.modules() if isinstance(layer, Scale))
        loss = torch.nn.functional.cross_entropy(net(images[rows]), labels[rows]) + kl / len(images)
        optimizer.zero_grad(), loss.backward(), optimizer.step()
    torch.save(net.state_dict(), "scales.pt")
