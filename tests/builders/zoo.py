"""Small networks with every kind of BatchNorm, and BatchNorm written out by hand to hold bnuq's against."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.nn import functional as F

SEED = 3


def bn_act(channels: int) -> nn.Module:
    return BatchNormAct(channels)


class Wrapped(nn.Module):
    """A network whose forward is a function of its parts."""

    def __init__(self, forward, **parts: nn.Module) -> None:
        super().__init__()
        for name, part in parts.items():
            self.add_module(name, part)
        self._forward = forward

    def forward(self, x: Tensor) -> Tensor:
        return self._forward(self, x)


class BatchNormAct(nn.BatchNorm2d):
    """BatchNorm fused with what follows it, as image model collections write it."""

    def forward(self, x: Tensor) -> Tensor:
        training = self.training or not self.track_running_stats
        x = F.batch_norm(
            x, self.running_mean, self.running_var, self.weight, self.bias, training, self.momentum or 0.0, self.eps
        )
        return F.leaky_relu(x, 0.1)


class Functional(nn.Module):
    """No BatchNorm module at all: buffers and F.batch_norm."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.last = nn.Linear(4, 5), nn.Linear(5, 3)
        self.register_buffer("m", torch.zeros(5))
        self.register_buffer("v", torch.ones(5))

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(F.batch_norm(self.fc(x), self.m, self.v, training=self.training)))


class Twice(nn.Module):
    """One BatchNorm called twice in a forward, on different activations."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.last = nn.Linear(4, 5), nn.Linear(5, 5), nn.Linear(5, 3)
        self.bn = nn.BatchNorm1d(5)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.bn(self.b(torch.tanh(self.bn(self.a(x)))))))


class Shared(nn.Module):
    """One BatchNorm under two names, in two submodules."""

    def __init__(self) -> None:
        super().__init__()
        bn = nn.BatchNorm1d(5)
        self.left = nn.Sequential(nn.Linear(4, 5), bn, nn.Tanh())
        self.right = nn.Sequential(nn.Linear(5, 5), nn.Sequential(bn, nn.Tanh()))
        self.last = nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.right(self.left(x)))


class Residual(nn.Module):
    """A block with a BatchNorm in its shortcut, called before those of the main branch."""

    def __init__(self) -> None:
        super().__init__()
        self.main = nn.Sequential(
            nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 3, padding=1),
            nn.BatchNorm2d(4),
        )  # fmt: skip
        self.shortcut = nn.Sequential(nn.Conv2d(2, 4, 1), nn.BatchNorm2d(4))
        self.last = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(F.relu(self.shortcut(x) + self.main(x)).mean((2, 3)))


def dense(**options: object) -> nn.Module:
    return nn.Sequential(
        nn.Linear(4, 5), nn.BatchNorm1d(5, **options), nn.Tanh(),
        nn.Linear(5, 6), nn.BatchNorm1d(6, **options), nn.Tanh(), nn.Linear(6, 3),
    )  # fmt: skip


def conv(dims: int, bn: Callable[[int], nn.Module]) -> nn.Module:
    layer = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}[dims]
    return nn.Sequential(
        layer(2, 4, 3, padding=1), bn(4), nn.ReLU(), layer(4, 5, 2), bn(5), nn.ReLU(), nn.Flatten(), nn.LazyLinear(3)
    )


def deep() -> nn.Module:
    """Four BatchNorms, named stem, body.0.bn, body.1.bn and head.bn."""

    class Part(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc, self.bn = nn.Linear(5, 5), nn.BatchNorm1d(5)

        def forward(self, x: Tensor) -> Tensor:
            return torch.tanh(self.bn(self.fc(x)))

    class Deep(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = Part()  # registered first, called last
            self.first, self.stem, self.last = nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 3)
            self.body = nn.Sequential(Part(), Part())

        def forward(self, x: Tensor) -> Tensor:
            return self.last(self.head(self.body(torch.tanh(self.stem(self.first(x))))))

    return Deep()


# name → (how to make it, shape of a point, BatchNorm calls in one forward)
KINDS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], int]] = {
    "1d on (N, C)": (dense, (4,), 2),
    "1d on (N, C, L)": (lambda: conv(1, nn.BatchNorm1d), (2, 6), 2),
    "2d": (lambda: conv(2, nn.BatchNorm2d), (2, 4, 5), 2),
    "3d": (lambda: conv(3, nn.BatchNorm3d), (2, 3, 4, 3), 2),
    "synchronised": (lambda: conv(2, nn.SyncBatchNorm), (2, 4, 5), 2),
    "lazy": (lambda: conv(2, lambda _: nn.LazyBatchNorm2d()), (2, 4, 5), 2),
    "fused with an activation": (lambda: conv(2, bn_act), (2, 4, 5), 2),
    "functional": (Functional, (4,), 1),
    "without scale and shift": (lambda: dense(affine=False), (4,), 2),
    "without running statistics": (lambda: dense(track_running_stats=False), (4,), 2),
    "with neither": (lambda: dense(affine=False, track_running_stats=False), (4,), 2),
    "momentum None": (lambda: dense(momentum=None), (4,), 2),
    "momentum 1": (lambda: dense(momentum=1.0), (4,), 2),
    "momentum 0": (lambda: dense(momentum=0.0), (4,), 2),
    "large eps": (lambda: dense(eps=0.3), (4,), 2),
    "called twice": (Twice, (4,), 2),
    "shared by submodules": (Shared, (4,), 2),
    "in a shortcut": (Residual, (2, 4, 4), 3),
    "nested": (deep, (4,), 4),
}


def made(kind: str, dtype: torch.dtype = torch.float64) -> nn.Module:
    """The network in evaluation mode, with weights and running statistics of its own."""
    make, shape, _ = KINDS[kind]
    return settled(make, shape, dtype)


def settled(make: Callable[[], nn.Module], shape: tuple[int, ...], dtype: torch.dtype = torch.float64) -> nn.Module:
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(SEED)
        net = make()
        net(torch.randn(3, *shape))  # for lazy layers
        net = net.to(dtype)
        for parameter in net.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
        for _ in range(3):
            net.train()(2 * torch.randn(16, *shape, dtype=dtype) + 1)
    return net.eval()


def points(
    kind_or_shape: str | tuple[int, ...], n: int, *, seed: int = 0, dtype: torch.dtype = torch.float64
) -> Tensor:
    shape = KINDS[kind_or_shape][1] if isinstance(kind_or_shape, str) else kind_or_shape
    return 1.5 * torch.randn(n, *shape, generator=torch.Generator().manual_seed(seed), dtype=dtype) + 0.5


@contextmanager
def batchnorm_by_hand(decide: Callable[[int, Tensor], tuple[Tensor, Tensor] | None]):
    """Every F.batch_norm, which all modules call, written out in plain arithmetic.

    `decide` gives the statistics of call number k on this input, or None for the layer's own running ones.
    """
    original, calls = F.batch_norm, [0]

    def plain(x, running_mean, running_var, weight=None, bias=None, training=False, momentum=0.1, eps=1e-5):  # noqa: ARG001
        chosen = decide(calls[0], x)
        calls[0] += 1
        mean, var = chosen if chosen is not None else (running_mean, running_var)
        shape = (1, -1, *[1] * (x.ndim - 2))
        out = (x - mean.view(shape)) / torch.sqrt(var.view(shape) + eps)
        if weight is not None:
            out = out * weight.view(shape)
        return out if bias is None else out + bias.view(shape)

    F.batch_norm = plain
    try:
        yield
    finally:
        F.batch_norm = original


def moments_by_hand(x: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and biased variance channel by channel, by plain sums."""
    means, variances = [], []
    for channel in range(x.shape[1]):
        values = x[:, channel].reshape(-1)
        mean = sum(values[i] for i in range(len(values))) / len(values)
        means.append(mean)
        variances.append(((values - mean) ** 2).sum() / len(values))
    return torch.stack(means), torch.stack(variances)


def statistics_by_hand(net: nn.Module, batch: Tensor, chosen: set[int]) -> dict[int, tuple[Tensor, Tensor]]:
    """The statistics of one batch at each chosen call, each layer seeing what the chosen ones before it normalised."""
    found: dict[int, tuple[Tensor, Tensor]] = {}

    def decide(call: int, x: Tensor) -> tuple[Tensor, Tensor] | None:
        if call not in chosen:
            return None
        found[call] = moments_by_hand(x)
        return found[call]

    with torch.no_grad(), batchnorm_by_hand(decide):
        copy.deepcopy(net).eval()(batch.clone())
    return found


def predicted_by_hand(net: nn.Module, x: Tensor, statistics: list[dict[int, tuple[Tensor, Tensor]]]) -> Tensor:
    """The outputs (T, n, K) with these statistics, call by call."""
    outputs = []
    for one in statistics:
        with torch.no_grad(), batchnorm_by_hand(lambda call, _, one=one: one.get(call)):
            outputs.append(copy.deepcopy(net).eval()(x.clone()))
    return torch.stack(outputs)


def trained_forward(net: nn.Module, batch: Tensor) -> Tensor:
    """What torch itself gives in training mode, dropout aside."""
    twin = copy.deepcopy(net).train()
    for module in twin.modules():
        if "Dropout" in type(module).__name__:
            module.eval()
    with torch.no_grad():
        return twin(batch.clone())
