"""Small networks that a plan of their operations could get wrong, and how each of them is to be run.

`ADVERSARIES` holds by name how to make the network, the shape of a point, and why it has no plan ("" where it has one).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Forward = Callable[["Net", Tensor], Tensor]


@dataclass(frozen=True)
class Adversary:
    make: Callable[[], nn.Module]
    shape: tuple[int, ...]
    why_plain: str
    tokens: int  # inputs are whole numbers below this; 0 where they are not


ADVERSARIES: dict[str, Adversary] = {}


class Net(nn.Module):
    """Parts under their names, a `last` layer of as many inputs, and a forward as a function of them and the input."""

    def __init__(self, forward: Forward, *, last: int = 4, **parts: nn.Module | Tensor) -> None:
        super().__init__()
        for name, part in parts.items():
            setattr(self, name, nn.Parameter(part) if isinstance(part, Tensor) else part)
        self.last = nn.Linear(last, 3)
        self._forward = forward

    def forward(self, x: Tensor) -> Tensor:
        return self._forward(self, x)


def adversary(*shape: int, why_plain: str = "", tokens: int = 0):
    def registered(make: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
        ADVERSARIES[make.__name__] = Adversary(make, shape, why_plain, tokens)
        return make

    return registered


def points(name: str, n: int, *, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    one, generator = ADVERSARIES[name], torch.Generator().manual_seed(seed)
    if one.tokens:
        return torch.randint(one.tokens, (n, *one.shape), generator=generator)
    return 1.5 * torch.randn(n, *one.shape, generator=generator, dtype=dtype) + 0.5


def made(name: str, dtype: torch.dtype = torch.float64) -> nn.Module:
    """The network in evaluation mode; no layer has the statistics, scale or shift that it began with."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(3)
        net = ADVERSARIES[name].make().to(dtype)
        for parameter in net.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
        for seed in range(3):
            net.train()(points(name, 16, seed=seed, dtype=dtype))
    return net.eval()


def pooled(x: Tensor) -> Tensor:
    return x.flatten(2).mean(2)


# Layers before a BatchNorm


@adversary(4, 5, 5)
def transposed_convolution():
    return Net(
        lambda m, x: m.last(pooled(F.relu(m.bn(m.up(F.relu(m.bn0(m.conv(x)))))))), conv=nn.Conv2d(4, 6, 3),
        bn0=nn.BatchNorm2d(6), up=nn.ConvTranspose2d(6, 6, 3, stride=2, bias=True), bn=nn.BatchNorm2d(6), last=6,
    )  # fmt: skip


@adversary(4, 5, 5)
def transposed_convolution_with_groups():
    return Net(
        lambda m, x: m.last(pooled(F.relu(m.bn(m.up(F.relu(m.bn0(m.conv(x)))))))), conv=nn.Conv2d(4, 4, 3),
        bn0=nn.BatchNorm2d(4), bn=nn.BatchNorm2d(4),
        up=nn.ConvTranspose2d(4, 4, 3, stride=2, padding=1, output_padding=1, groups=2, dilation=1),
    )  # fmt: skip


@adversary(4, 7, 7)
def grouped_and_dilated_convolutions():
    return Net(
        lambda m, x: m.last(pooled(m.bn2(m.depthwise(F.silu(m.bn1(m.dilated(m.bn0(x)))))))),
        bn0=nn.BatchNorm2d(4), dilated=nn.Conv2d(4, 6, 3, dilation=2, groups=2, bias=False), bn1=nn.BatchNorm2d(6),
        depthwise=nn.Conv2d(6, 6, 3, padding="same", groups=6), bn2=nn.BatchNorm2d(6), last=6,
    )  # fmt: skip


@adversary(2, 9)
def convolutions_of_sequences():
    return nn.Sequential(
        nn.Conv1d(2, 4, 3, padding=1, padding_mode="reflect"), nn.BatchNorm1d(4), nn.ELU(),
        nn.ConvTranspose1d(4, 4, 2, stride=2), nn.BatchNorm1d(4), nn.LeakyReLU(0.1), nn.Flatten(), nn.Linear(72, 3),
    )  # fmt: skip


@adversary(2, 4, 4, 3)
def convolutions_of_volumes():
    return nn.Sequential(
        nn.Conv3d(2, 4, 2), nn.BatchNorm3d(4), nn.ReLU(), nn.ConvTranspose3d(4, 4, 2, groups=4), nn.BatchNorm3d(4),
        nn.Hardswish(), nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(4, 3),
    )  # fmt: skip


@adversary(2, 6, 6)
def convolution_padded_by_copies():
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding="same", padding_mode="circular"), nn.BatchNorm2d(4), nn.ReLU(),
        nn.Conv2d(4, 4, (3, 1), padding="same", dilation=(2, 1)), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(144, 3),
    )  # fmt: skip


@adversary(2, 6, 6)
def convolution_read_twice():
    def forward(m: Net, x: Tensor) -> Tensor:
        y = m.conv2(F.relu(m.bn1(m.conv1(x))))
        return m.last(pooled(F.relu(m.bn2(y)) + y))

    return Net(
        forward, conv1=nn.Conv2d(2, 4, 3), bn1=nn.BatchNorm2d(4), conv2=nn.Conv2d(4, 4, 3), bn2=nn.BatchNorm2d(4),
    )  # fmt: skip


@adversary(2, 6, 6)
def batchnorm_called_twice_on_one_convolution():
    def forward(m: Net, x: Tensor) -> Tensor:
        y = m.conv2(F.relu(m.bn1(m.conv1(x))))
        return m.last(pooled(torch.tanh(m.bn2(y)) * m.bn2(y)))

    return Net(
        forward, conv1=nn.Conv2d(2, 4, 3), bn1=nn.BatchNorm2d(4), conv2=nn.Conv2d(4, 4, 3), bn2=nn.BatchNorm2d(4),
    )  # fmt: skip


@adversary(4, 6, 6)
def convolution_shared_by_two_batchnorms():
    def forward(m: Net, x: Tensor) -> Tensor:
        for bn in (m.bn1, m.bn2, m.bn1):
            x = F.relu(bn(m.conv(x)))
        return m.last(pooled(x))

    return Net(forward, conv=nn.Conv2d(4, 4, 3, padding=1), bn1=nn.BatchNorm2d(4), bn2=nn.BatchNorm2d(4))


@adversary(2, 6, 6)
def standardised_weights():
    def forward(m: Net, x: Tensor) -> Tensor:
        def standard(w: Tensor) -> Tensor:
            return F.batch_norm(w.reshape(1, len(w), -1), None, None, training=True, momentum=0.0).reshape_as(w)

        y = F.relu(m.bn1(F.conv2d(x, standard(m.w1))))
        return m.last(pooled(F.relu(m.bn2(F.conv2d(y, standard(m.w2), groups=2)))))

    return Net(
        forward, w1=torch.randn(4, 2, 3, 3), bn1=nn.BatchNorm2d(4), w2=torch.randn(4, 2, 3, 3), bn2=nn.BatchNorm2d(4),
    )  # fmt: skip


@adversary(4)
def weights_made_in_the_forward():
    def forward(m: Net, x: Tensor) -> Tensor:
        w = m.w * m.w.norm()
        y = F.linear(torch.tanh(m.bn1(F.linear(x, w))), w)
        w.mul_(0.5).add_(0.1)  # after its first use, before the BatchNorm that follows it
        return m.last(F.linear(F.relu(m.bn2(y)), w))

    return Net(forward, w=torch.randn(4, 4), bn1=nn.BatchNorm1d(4), bn2=nn.BatchNorm1d(4))


@adversary(4)
def weights_made_of_the_input():
    def forward(m: Net, x: Tensor) -> Tensor:
        y = F.relu(m.bn1(m.fc(x)))
        return m.last(m.bn2(torch.bmm(m.w * (1 + torch.sigmoid(y[:, :1, None])), y[:, :, None]).squeeze(2)))

    return Net(forward, fc=nn.Linear(4, 4), bn1=nn.BatchNorm1d(4), w=torch.randn(4, 4), bn2=nn.BatchNorm1d(4))


@adversary(5, 4)
def linear_layers_over_sequences():
    def forward(m: Net, x: Tensor) -> Tensor:
        y = F.gelu(m.bn1(m.fc1(x)))  # channels are places in the sequence
        y = torch.tanh(m.bn2(m.fc2(y).transpose(1, 2)))  # and here what a linear layer gave
        return m.last(y.mean(2))

    return Net(forward, fc1=nn.Linear(4, 5), bn1=nn.BatchNorm1d(5), fc2=nn.Linear(5, 6), bn2=nn.BatchNorm1d(6), last=6)


@adversary(2, 6, 6)
def weight_norm():
    return nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(),
        nn.utils.parametrizations.weight_norm(nn.Conv2d(4, 5, 3)), nn.BatchNorm2d(5), nn.Flatten(), nn.Linear(20, 3),
    )  # fmt: skip


@adversary(2, 6, 6)
def batchnorm_that_nobody_reads():
    def forward(m: Net, x: Tensor) -> Tensor:
        y = F.relu(m.bn1(m.conv1(x)))
        m.bn2(m.conv2(y))
        return m.last(pooled(y))

    return Net(
        forward, conv1=nn.Conv2d(2, 4, 3), bn1=nn.BatchNorm2d(4), conv2=nn.Conv2d(4, 4, 3), bn2=nn.BatchNorm2d(4),
    )  # fmt: skip


@adversary(4)
def weights_kept_from_the_first_call():
    class Keeps(Net):
        def train(self, mode: bool = True) -> nn.Module:
            self.kept = None
            return super().train(mode)

    def forward(m: Net, x: Tensor) -> Tensor:
        if m.kept is None:
            m.kept = m.w.detach() * 2
        return m.last(m.bn(m.fc(x)) @ m.kept)

    return Keeps(forward, fc=nn.Linear(4, 4), bn=nn.BatchNorm1d(4), w=torch.randn(4, 4))


# Memory that has several names


def dense(forward: Forward) -> Callable[[], nn.Module]:
    return lambda: Net(forward, fc=nn.Linear(4, 4), bn=nn.BatchNorm1d(4), bn2=nn.BatchNorm1d(4), drop=nn.Dropout(0.3))


def pictures(forward: Forward) -> Callable[[], nn.Module]:
    return lambda: Net(
        forward, conv=nn.Conv2d(2, 4, 3), bn=nn.BatchNorm2d(4), conv2=nn.Conv2d(4, 4, 3, padding=1),
        bn2=nn.BatchNorm2d(4), drop=nn.Dropout(0.3),
    )  # fmt: skip


def of(kind: Callable[[Forward], Callable[[], nn.Module]], *shape: int, why_plain: str = ""):
    """A network of this kind with the decorated function as its forward."""

    def registered(forward: Forward) -> Forward:
        ADVERSARIES[forward.__name__] = Adversary(kind(forward), shape, why_plain, 0)
        return forward

    return registered


@of(dense, 4)
def prefix_written_after_the_draw_has_read_it(m, x):
    y = m.fc(x)
    z = m.bn(y)
    y.relu_()
    return m.last(torch.tanh(z) + y)


@of(dense, 4)
def weight_written_after_the_draw_has_read_it(m, x):
    w = m.fc.weight * 2
    z = torch.tanh(m.bn(m.fc(x))) @ w
    w.zero_()
    return m.last(z + w.sum())


@of(dense, 4)
def input_written_after_the_draw_has_read_it(m, x):
    z = m.bn(x)
    x.mul_(2)
    return m.last(torch.tanh(z) + x)


@of(dense, 4)
def slices_assigned(m, x):
    y = torch.zeros(len(x), 6, dtype=x.dtype)
    y[:, :4] = m.fc(x)
    y[:, 2:] += torch.tanh(m.bn(y[:, :4]))
    y[::2, 0] = 1.0
    return m.last(y[:, 1:5])


@of(dense, 4)
def results_written_out(m, x):
    y = torch.empty_like(x)
    torch.add(m.fc(x), 1, out=y)
    z = m.bn(y)
    torch.mul(z, y, out=y)
    return m.last(y + z)


@of(dense, 4)
def expanded_memory(m, x):
    y = m.bn(m.fc(x))[:, :1].expand(-1, 4)
    return m.last(torch.sigmoid(y) * torch.relu(y))


@of(dense, 4)
def sum_with_a_transposed_view_of_itself(m, x):
    y = m.bn(m.fc(x)).view(-1, 2, 2)
    y = y + y.transpose(1, 2)
    return m.last(m.bn2(y.flatten(1)))


@of(dense, 4)
def sum_with_itself(m, x):
    y = m.bn(m.fc(x))
    y = y + y
    return m.last(y * y[:, :])


@of(dense, 4)
def inactive_dropout_before_a_skip(m, x):
    y = m.bn(m.fc(x))
    return m.last(torch.relu(m.drop(y)) + y)


@of(dense, 4)
def inactive_dropout_in_place(m, x):
    y = m.fc(x)
    return m.last(F.dropout(torch.tanh(m.bn(y)), 0.2, m.training, inplace=True) + F.dropout(y, 0.4, m.training, True))


@of(dense, 4)
def activations_in_place_of_views(m, x):
    y = m.bn(m.fc(x))
    left, right = y.chunk(2, 1)
    left.relu_()
    right[:, 0].sigmoid_()
    return m.last(m.bn2(y).mul_(y))


@of(dense, 4)
def storage_strided_by_hand(m, x):
    y = m.bn(m.fc(x))
    return m.last(y + torch.as_strided(y, (len(x), 4), (4, 1)).flip(1))


@of(pictures, 2, 6, 6)
def contiguous_that_is_an_alias_in_one_layout_only(m, x):
    y = torch.tanh(m.bn(m.conv(x)))
    z = y.permute(0, 2, 3, 1).contiguous()
    z.mul_(2)
    return m.last((y + z.permute(0, 3, 1, 2)).mean((2, 3)))


@of(pictures, 2, 6, 6)
def reshape_that_is_an_alias_in_one_layout_only(m, x):
    y = m.bn(m.conv(x))
    z = y.reshape(len(x), -1)
    z.relu_()
    return m.last(pooled(m.bn2(m.conv2(y))) + z[:, :4])


@of(pictures, 2, 6, 6)
def view_that_is_written(m, x):
    y = m.conv2(F.relu(m.bn(m.conv(x)), inplace=True))
    y.view(len(x), -1)[:, 5:].add_(1.0)
    return m.last(pooled(m.bn2(y)))


@of(pictures, 2, 6, 6)
def permuted_and_flattened(m, x):
    y = F.relu(m.bn(m.conv(x)), inplace=True).permute(0, 2, 3, 1)
    y = m.last(y.contiguous().view(len(x), -1, 4))
    return y.flatten(1).view(-1, 3, 16).transpose(1, 2).reshape(len(x), -1)


@of(pictures, 2, 6, 6)
def skips_that_leave_out_the_first_draw(m, x):
    y = m.conv(x)
    z = F.relu(m.bn2(m.conv2(F.relu(m.bn(y), inplace=True))) + y, inplace=True)
    return m.last(pooled(z + x[:, :1, 1:-1, 1:-1]))


@of(pictures, 2, 6, 6)
def inputs_written_at_once(m, x):
    x.mul_(0.5).clamp_(min=-1)
    return m.last(pooled(F.relu(m.bn(m.conv(x)))) + x.sum((1, 2, 3))[:, None])


@of(pictures, 2, 6, 6)
def channels_shuffled_and_gated(m, x):
    a, b = m.bn(m.conv(x)).chunk(2, 1)
    y = torch.stack([a, b], 2).flatten(1, 2)
    y = F.pixel_shuffle(F.interpolate(y, scale_factor=2), 2)
    y = m.bn2(m.conv2(F.pixel_unshuffle(y, 2)))
    return m.last(pooled(y * torch.sigmoid(y.mean((2, 3), keepdim=True)).expand_as(y)))


# Points that do not simply lie along the first axis


@adversary(5, 4)
def points_along_the_second_axis():
    def forward(m: Net, x: Tensor) -> Tensor:
        y = m.fc(m.bn(x).transpose(0, 1))  # (place, point, feature)
        y = m.drop(torch.tanh(y)).mean(0)
        return m.last(m.bn2(y))

    return Net(forward, bn=nn.BatchNorm1d(5), fc=nn.Linear(4, 4), drop=nn.Dropout(0.3), bn2=nn.BatchNorm1d(4))


@adversary(4)
def points_repeated():
    def forward(m: Net, x: Tensor) -> Tensor:
        y = torch.tanh(m.bn(m.fc(x))).repeat(3, 1)  # the first of every point, then the second …
        y = m.drop(torch.tanh(m.bn2(y)))
        return m.last(y.view(3, -1, 4).mean(0))

    return Net(forward, fc=nn.Linear(4, 4), bn=nn.BatchNorm1d(4), bn2=nn.BatchNorm1d(4), drop=nn.Dropout(0.3))


@adversary(4)
def points_repeated_before_the_first_draw():
    def forward(m: Net, x: Tensor) -> Tensor:
        y = m.bn(m.fc(x).repeat(3, 1) + torch.arange(3, dtype=x.dtype).repeat_interleave(len(x))[:, None])
        return m.last(y.view(3, -1, 4).tanh().mean(0))

    return Net(forward, fc=nn.Linear(4, 4), bn=nn.BatchNorm1d(4))


@adversary(5, 4)
def several_rows_of_every_point():
    def forward(m: Net, x: Tensor) -> Tensor:
        return m.last(m.bn2(m.drop(F.relu(m.bn(m.fc(x.reshape(-1, 4)))))).view(-1, 5, 4).mean(1))

    return Net(forward, fc=nn.Linear(4, 4), bn=nn.BatchNorm1d(4), drop=nn.Dropout(0.3), bn2=nn.BatchNorm1d(4))


@of(dense, 4)
def one_entry_a_row_by_its_number(m, x):
    best = m.fc(x).argmax(1)
    y = m.bn(m.fc(x))
    return m.last(y + y[torch.arange(len(x)), best][:, None])


@of(dense, 4, why_plain="its recorded operations give different outputs")
def points_that_know_one_another(m, x):
    y = m.bn(m.fc(x))
    return m.last(y - 0.1 * y.mean(0))


@of(dense, 4)
def first_points_treated_otherwise(m, x):
    y = m.fc(x)
    return m.last(torch.cat([m.bn(y)[:0], m.bn2(y)], 0))


# What mixes


@adversary(6, tokens=11)
def attention_over_tokens():
    def forward(m: Net, x: Tensor) -> Tensor:
        y = torch.cat([m.cls.expand(len(x), -1, -1), m.embed(x)], 1)
        y = y + m.place[: y.shape[1]] + m.position(torch.arange(7))
        q, k, v = m.qkv(y).view(len(x), 7, 3, 2, 4).permute(2, 0, 3, 1, 4).unbind(0)
        y = y + F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(len(x), 7, 8)
        y = m.bn(y.transpose(1, 2)).transpose(1, 2)
        y = m.drop(torch.bmm(torch.einsum("nqc,nkc->nqk", y, y).softmax(-1), y))
        return m.last(m.bn2(y[:, 0]))

    return Net(
        forward, embed=nn.Embedding(11, 8), position=nn.Embedding(7, 8), cls=torch.randn(1, 1, 8),
        place=torch.randn(9, 8), qkv=nn.Linear(8, 24), bn=nn.BatchNorm1d(8), drop=nn.Dropout(0.2), last=8,
        bn2=nn.BatchNorm1d(8),
    )  # fmt: skip


@adversary(5, 8)
def transformer_layer():
    return Net(
        lambda m, x: m.last(m.bn(m.layer(x).mean(1))), bn=nn.BatchNorm1d(8), last=8,
        layer=nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True),
    )  # fmt: skip


@adversary(5, 4)
def recurrent_before_the_draw():
    return Net(
        lambda m, x: m.last(m.bn(m.lstm(x)[0][:, -1])),
        lstm=nn.LSTM(4, 6, batch_first=True), bn=nn.BatchNorm1d(6), last=6,
    )  # fmt: skip


@adversary(5, 4)
def recurrent_after_the_draw():
    return Net(
        lambda m, x: m.last(m.bn2(m.gru(m.bn(x))[1][0])),
        bn=nn.BatchNorm1d(5), gru=nn.GRU(4, 6, batch_first=True), bn2=nn.BatchNorm1d(6), last=6,
    )  # fmt: skip


@adversary(2, 6, 6)
def many_branches():
    def forward(m: Net, x: Tensor) -> Tensor:
        y = F.relu6(m.bn(m.conv(x)))
        y = torch.cat([m.bn1(m.b1(y)), F.max_pool2d(y, 3, 1, 1), F.hardsigmoid(m.bn2(m.b2(y))), y], 1)
        return m.last(F.hardtanh(F.layer_norm(pooled(F.group_norm(y, 4)), (16,))))

    return Net(
        forward, conv=nn.Conv2d(2, 4, 3), bn=nn.BatchNorm2d(4), b1=nn.Conv2d(4, 4, 1), bn1=nn.BatchNorm2d(4),
        b2=nn.Conv2d(4, 4, 1), bn2=nn.BatchNorm2d(4), last=16,
    )  # fmt: skip


# What cannot be written down


@of(dense, 4, why_plain="is_nonzero lets its path or its sizes depend on the data")
def truth_asked(m, x):
    y = m.bn(m.fc(x))
    return m.last(y if bool((x == x).all()) else -y)


@of(dense, 4, why_plain="index lets its path or its sizes depend on the data")
def entries_chosen(m, x):
    y = m.bn(m.fc(x))
    y[y > 0] *= 0.5
    return m.last(y[(x[:, 0] > -100).nonzero()[:, 0]])


# In one line

_FORWARDS: dict[str, Forward] = {
    "expanded_memory_that_is_dead": lambda m, x: m.last(torch.relu(m.bn(m.fc(x)).mean(1, keepdim=True).expand(-1, 4))),
    "windows_that_overlap": lambda m, x: m.last(m.bn(m.fc(x)).unfold(1, 2, 1).add(1.0).flatten(1)[:, 1:5]),
    "rows_numbered": lambda m, x: m.last(m.bn(m.fc(x))[torch.arange(len(x)), :].gather(1, x.argsort(1))),
    "numbers_written_in_the_forward": lambda m, x: m.last(
        m.bn(m.fc(x)) * torch.tensor([1.0, -2.0, 0.5, 3.0], dtype=x.dtype).to(x.device)
    ),
    "memory_of_numpy": lambda m, x: m.last(m.bn(m.fc(x)) * torch.from_numpy(m.fc.weight.detach().numpy().copy()).sum()),
    "storage_of_pictures_strided_by_hand": lambda m, x: m.last(torch.as_strided(m.bn(m.conv(x)), (len(x), 4), (64, 1))),
    "one_point_squeezed": lambda m, x: m.last(F.adaptive_avg_pool2d(torch.relu(m.bn(m.conv(x))), 1).squeeze()),
    "points_that_know_their_place": lambda m, x: m.last(m.bn(m.fc(x)) + torch.arange(len(x), dtype=x.dtype)[:, None]),
    "points_counted": lambda m, x: m.last(m.bn(m.fc(x)) / (1 + len(x) / 100)),
    "number_read": lambda m, x: m.last(m.bn(m.fc(x)) * (2 if (x[:, 0] ** 2).sum().item() >= 0 else 3)),
    "list_read": lambda m, x: m.last(m.bn(m.fc(x)) * abs(sum(m.fc(x)[0].tolist()))),
}
_WHY_PLAIN = {
    "points_that_know_their_place": "its recorded operations give different outputs",
    "points_counted": "an argument of div depends on the number of examples",
    "number_read": "item lets its path or its sizes depend on the data",
    "list_read": "tolist hands its data to Python",
}
for _name, _forward in _FORWARDS.items():
    _kind, _shape = (pictures, (2, 6, 6)) if "conv" in _forward.__code__.co_names else (dense, (4,))
    ADVERSARIES[_name] = Adversary(_kind(_forward), _shape, _WHY_PLAIN.get(_name, ""), 0)
