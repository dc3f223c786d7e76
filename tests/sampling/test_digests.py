"""Whatever entry of a network's weights changes is noticed: by a predictor, and by the fingerprint of the network."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import bnuq
from bnuq.sampling.digests import Weights, bit_sums, fingerprint, is_of
from bnuq.sampling.plain_loop import PlainLoop
from bnuq.sampling.site_search import find_sites


class Masked(nn.Module):
    """A small network whose output depends on a parameter of very different entries, a mask and an order."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.drop, self.last = nn.Linear(4, 16), nn.Dropout(0.3), nn.Linear(16, 3)
        self.shift = nn.Parameter(torch.tensor([100.0] + [0.0] * 15))
        self.register_buffer("mask", torch.ones(16, dtype=torch.bool))
        self.register_buffer("order", torch.arange(16))

    def forward(self, x):
        return self.last(self.drop((torch.relu(self.first(x) + torch.tanh(self.shift)) * self.mask)[:, self.order]))


def negated(net: Masked) -> None:
    net.last.weight.neg_()


def permuted(net: Masked) -> None:
    net.first.bias.copy_(net.first.bias.flip(0))


def one_entry(net: Masked) -> None:
    net.shift[1] = 0.02


def masked(net: Masked) -> None:
    net.mask[:12] = False


def reordered(net: Masked) -> None:
    net.order.copy_(torch.arange(16).flip(0))


@pytest.mark.parametrize("change", [negated, permuted, one_entry, masked, reordered])
@torch.no_grad()
def test_a_change_is_noticed_by_the_predictor_and_by_the_fingerprint(change) -> None:
    torch.manual_seed(0)
    net, x, dropout = Masked().eval(), torch.randn(20, 4), bnuq.Dropout(4)
    predictor, before, stored = bnuq.Predictor(net, dropout=dropout), Weights(net), fingerprint(net)
    predictor(x)
    assert before == Weights(net) and is_of(stored, net)
    change(net)
    assert before != Weights(net) and not is_of(stored, net)
    assert_close(predictor(x), PlainLoop(net, find_sites(net, x[:3]), dropout=dropout).passes(x))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.int64, torch.int8, torch.bool])
def test_any_single_entry_and_any_swap_changes_the_sums(dtype: torch.dtype) -> None:
    values = torch.randint(0, 2, (2**16 + 300,), generator=torch.Generator().manual_seed(1)).to(dtype)
    sums = bit_sums([values])
    for place in (0, 1, 2**16 - 1, 2**16, 2**16 + 299):
        other = values.clone()
        other[place] = not other[place]
        assert not torch.equal(bit_sums([other])[0], sums[0]), place
    assert not torch.equal(bit_sums([values.flip(0)])[0], sums[0])
    if dtype.is_signed:  # signs are the highest bits, which sums modulo a power of 2 might lose in pairs
        other = values.clone()
        other[:2] = -1 - other[:2]
        assert not torch.equal(bit_sums([other])[0], sums[0])


@torch.no_grad()
def test_the_fingerprint_is_of_values_whatever_their_dtype_down_to_the_last_bit() -> None:
    net = nn.Linear(300, 300)
    wide = copy.deepcopy(net).double()
    assert fingerprint(wide) == fingerprint(net)
    wide.weight[0, 0] += 1e-13
    assert fingerprint(wide) != fingerprint(net)


def test_a_fingerprint_of_an_earlier_version_is_compared_as_far_as_it_goes() -> None:
    net = nn.Linear(3, 2)
    assert is_of(fingerprint(net)[:64], net)
    assert not is_of("0" * 64, net) and not is_of("", net)
