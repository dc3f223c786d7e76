"""Small networks that say dropout in every way that torch has, and in those of common libraries."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Net(nn.Module):
    """A convolution, BatchNorm, one operation on (points, 8, 6, 6), and a linear layer.

    The operation is a function of the network, whose parts have names, and of the values.
    """

    def __init__(self, operation: Callable[[Any, Tensor], Tensor], **parts: nn.Module) -> None:
        super().__init__()
        self.conv, self.bn, self.last = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Linear(8, 5)
        for name, part in parts.items():
            self.add_module(name, part)
        self._operation = operation

    def forward(self, x: Tensor) -> Tensor:
        values = self._operation(self, F.relu(self.bn(self.conv(x))))
        return self.last(values.flatten(2).mean(2) if values.ndim > 2 else values)


SHAPE = (3, 8, 8)  # of a point
SPELLINGS: dict[str, Callable[[], nn.Module]] = {}


def spelling(name: str, **parts: Callable[[], nn.Module]):
    """Register a network with this operation; `parts` make its modules."""

    def registered(operation: Callable[[Any, Tensor], Tensor]) -> Callable[[Any, Tensor], Tensor]:
        SPELLINGS[name] = lambda: Net(operation, **{part: make() for part, make in parts.items()})
        return operation

    return registered


def tokens(values: Tensor) -> Tensor:
    return values.flatten(2).transpose(1, 2)


# Modules of torch

for kind in (nn.Dropout, nn.Dropout2d, nn.AlphaDropout, nn.FeatureAlphaDropout):
    spelling(f"nn.{kind.__name__}", drop=lambda kind=kind: kind(0.3))(lambda m, x: m.drop(x))
    spelling(f"nn.{kind.__name__}, in place", drop=lambda kind=kind: kind(0.3, inplace=True))(lambda m, x: m.drop(x))


@spelling("nn.Dropout1d on (points, channels, positions)", drop=lambda: nn.Dropout1d(0.3))
def dropout1d(m: Any, x: Tensor) -> Tensor:
    return m.drop(x.flatten(2))


@spelling("nn.Dropout3d", drop=lambda: nn.Dropout3d(0.3))
def dropout3d(m: Any, x: Tensor) -> Tensor:
    return m.drop(x.unflatten(3, (3, 2))).flatten(3)


@spelling("nn.Dropout called twice", drop=lambda: nn.Dropout(0.3))
def dropout_twice(m: Any, x: Tensor) -> Tensor:
    return m.drop(F.relu(m.drop(x)))


@spelling("nn.Dropout, p = 1", drop=lambda: nn.Dropout(1.0))
def dropout_of_all(m: Any, x: Tensor) -> Tensor:
    return x + m.drop(x)


@spelling("nn.LSTM", rnn=lambda: nn.LSTM(8, 8, num_layers=2, dropout=0.3, batch_first=True))
def lstm(m: Any, x: Tensor) -> Tensor:
    return m.rnn(tokens(x))[0][:, -1]


@spelling("nn.GRU", rnn=lambda: nn.GRU(8, 8, num_layers=3, dropout=0.3))
def gru(m: Any, x: Tensor) -> Tensor:
    return m.rnn(tokens(x).transpose(0, 1))[0][-1]


@spelling(
    "nn.RNN beside nn.Dropout", rnn=lambda: nn.RNN(8, 8, 2, dropout=0.3, batch_first=True), drop=lambda: nn.Dropout(0.2)
)
def rnn(m: Any, x: Tensor) -> Tensor:
    return m.drop(m.rnn(tokens(x))[0])[:, -1]


@spelling("nn.MultiheadAttention", attention=lambda: nn.MultiheadAttention(8, 2, dropout=0.3, batch_first=True))
def attention(m: Any, x: Tensor) -> Tensor:
    return m.attention(tokens(x), tokens(x), tokens(x))[0].mean(1)


@spelling(
    "nn.MultiheadAttention without its weights",
    attention=lambda: nn.MultiheadAttention(8, 2, dropout=0.3, batch_first=True),
)
def attention_without_weights(m: Any, x: Tensor) -> Tensor:
    return m.attention(tokens(x), tokens(x), tokens(x), need_weights=False)[0].mean(1)


@spelling(
    "nn.TransformerEncoderLayer", layer=lambda: nn.TransformerEncoderLayer(8, 2, 16, dropout=0.2, batch_first=True)
)
def transformer_layer(m: Any, x: Tensor) -> Tensor:
    return m.layer(tokens(x)).mean(1)


@spelling(
    "nn.TransformerEncoder, nested tensors allowed",
    layers=lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, dropout=0.2, batch_first=True), 2),
)
def transformer(m: Any, x: Tensor) -> Tensor:
    return m.layers(tokens(x)).mean(1)


@spelling(
    "nn.TransformerDecoderLayer", layer=lambda: nn.TransformerDecoderLayer(8, 2, 16, dropout=0.2, batch_first=True)
)
def decoder(m: Any, x: Tensor) -> Tensor:
    return m.layer(tokens(x), tokens(x)).mean(1)


@spelling("nn.BatchNorm2d, two of them", bn2=lambda: nn.BatchNorm2d(8), drop=lambda: nn.Dropout(0.2))
def two_batchnorms(m: Any, x: Tensor) -> Tensor:
    return m.drop(torch.tanh(m.bn2(x)))


# Functions

for name in ("dropout", "dropout2d", "alpha_dropout", "feature_alpha_dropout"):
    function = getattr(F, name)
    spelling(f"F.{name}(…, training=self.training)")(lambda m, x, f=function: f(x, 0.3, training=m.training))


@spelling("F.dropout(…), always active")
def always_active(m: Any, x: Tensor) -> Tensor:  # noqa: ARG001
    return F.dropout(x, 0.3)


@spelling("torch.dropout(…, self.training)")
def of_torch(m: Any, x: Tensor) -> Tensor:
    return torch.dropout(x, 0.3, m.training)


@spelling("if self.training: F.dropout(…)")
def behind_if(m: Any, x: Tensor) -> Tensor:
    return F.dropout(x, 0.3) if m.training else x


@spelling("torch.native_dropout(…, self.training)")
def native(m: Any, x: Tensor) -> Tensor:
    return torch.native_dropout(x, 0.3, m.training)[0]


@spelling("F.scaled_dot_product_attention(…, dropout_p if self.training else 0)")
def sdpa(m: Any, x: Tensor) -> Tensor:
    q = tokens(x)
    return F.scaled_dot_product_attention(q, q, q, dropout_p=0.3 if m.training else 0.0).mean(1)


@spelling("F.scaled_dot_product_attention(…, dropout_p), always active")
def sdpa_always(m: Any, x: Tensor) -> Tensor:  # noqa: ARG001
    q = tokens(x)
    return F.scaled_dot_product_attention(q, q, q, dropout_p=0.3).mean(1)


@spelling("F.gumbel_softmax in training")
def gumbel(m: Any, x: Tensor) -> Tensor:
    return x * (F.gumbel_softmax(x, dim=1) if m.training else x.softmax(1))


@spelling("F.rrelu(…, training=self.training)")
def rrelu(m: Any, x: Tensor) -> Tensor:
    return F.rrelu(x - 0.5, training=m.training)


# Masks by hand


@spelling("torch.bernoulli in training")
def bernoulli(m: Any, x: Tensor) -> Tensor:
    return x * torch.bernoulli(torch.full_like(x, 0.7)) / 0.7 if m.training else x


@spelling("torch.bernoulli, always active")
def bernoulli_always(m: Any, x: Tensor) -> Tensor:  # noqa: ARG001
    return x * torch.bernoulli(torch.full_like(x, 0.7)) / 0.7


@spelling("torch.rand(…) < 0.7 in training")
def uniform(m: Any, x: Tensor) -> Tensor:
    return x * (torch.rand(x.shape, dtype=x.dtype) < 0.7) / 0.7 if m.training else x


@spelling("torch.rand_like(…) < 0.7, always active")
def uniform_always(m: Any, x: Tensor) -> Tensor:  # noqa: ARG001
    return x * (torch.rand_like(x) < 0.7) / 0.7


@spelling("torch.randperm of the points in training")
def shuffled(m: Any, x: Tensor) -> Tensor:
    return 0.8 * x + 0.2 * x[torch.randperm(len(x))] if m.training else x


@spelling("torch.multinomial of positions in training")
def positions(m: Any, x: Tensor) -> Tensor:
    return x.flatten(2)[..., torch.multinomial(torch.ones(36), 20)] if m.training else x


@spelling("numpy.random in training")
def of_numpy(m: Any, x: Tensor) -> Tensor:
    return x * torch.from_numpy(np.random.rand(*x.shape) < 0.7) / 0.7 if m.training else x


@spelling("random.random in training")
def of_python(m: Any, x: Tensor) -> Tensor:
    return x * (random.random() < 0.7) / 0.7 if m.training else x


@spelling("a torch.Generator of its own in training")
def own_generator(m: Any, x: Tensor) -> Tensor:
    generator = torch.Generator().manual_seed(torch.initial_seed() % 2**31)
    return x * torch.empty_like(x).bernoulli_(0.7, generator=generator) / 0.7 if m.training else x


@spelling("Gaussian noise in training")
def gaussian(m: Any, x: Tensor) -> Tensor:
    return x * (1 + 0.3 * torch.randn_like(x)) if m.training else x


# Of libraries


class DropPath(nn.Module):
    """Stochastic depth as timm writes it: whole points are dropped from a branch."""

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return x
        return x * x.new_empty(len(x), *[1] * (x.ndim - 1)).bernoulli_(0.7).div_(0.7)


class DropBlock(nn.Module):
    """Squares of positions are dropped (Ghiasi, Lin & Le 2018)."""

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return x
        mask = 1 - F.max_pool2d((torch.rand_like(x[:, :1]) < 0.05).to(x), 3, stride=1, padding=1)
        return x * mask * mask.numel() / mask.sum()


class DropConnect(nn.Linear):
    """Weights are dropped (Wan et al. 2013)."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - as nn.Linear calls it
        return F.linear(input, F.dropout(self.weight, 0.3, self.training), self.bias)


class LockedDropout(nn.Module):
    """One mask for all positions of a sequence (Gal & Ghahramani 2016)."""

    def forward(self, x: Tensor) -> Tensor:
        return x * F.dropout(torch.ones_like(x[:, :, :1]), 0.3, self.training)


class ConcreteDropout(nn.Module):
    """A relaxed mask with a learned rate (Gal, Hron & Kendall 2017), active in training."""

    def __init__(self) -> None:
        super().__init__()
        self.logit = nn.Parameter(torch.tensor(-1.0))

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return x
        u = torch.rand_like(x).clamp(1e-7, 1 - 1e-7)
        p = self.logit.sigmoid()
        return x * (1 - torch.sigmoid((self.logit + u.log() - (1 - u).log()) / 0.1)) / (1 - p)


@spelling("DropPath", drop=DropPath)
def drop_path(m: Any, x: Tensor) -> Tensor:
    return x + m.drop(torch.tanh(x))


@spelling("DropBlock", drop=DropBlock)
def drop_block(m: Any, x: Tensor) -> Tensor:
    return m.drop(x)


@spelling("DropConnect", fc=lambda: DropConnect(8, 8))
def drop_connect(m: Any, x: Tensor) -> Tensor:
    return m.fc(tokens(x)).mean(1)


@spelling("locked dropout of a sequence", drop=LockedDropout)
def locked(m: Any, x: Tensor) -> Tensor:
    return m.drop(x.flatten(2))


@spelling("concrete dropout", drop=ConcreteDropout)
def concrete(m: Any, x: Tensor) -> Tensor:
    return m.drop(x)


@spelling("layers left out at random in training", layers=lambda: nn.ModuleList(nn.Conv2d(8, 8, 1) for _ in range(3)))
def layer_drop(m: Any, x: Tensor) -> Tensor:
    for layer in m.layers:
        if not m.training or float(torch.rand(())) > 0.3:
            x = x + torch.tanh(layer(x))
    return x


@spelling("shake-shake", a=lambda: nn.Conv2d(8, 8, 1), b=lambda: nn.Conv2d(8, 8, 1))
def shake(m: Any, x: Tensor) -> Tensor:
    weight = torch.rand(len(x), 1, 1, 1).to(x) if m.training else 0.5
    return weight * m.a(x) + (1 - weight) * m.b(x)
