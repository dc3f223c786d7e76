"""Networks of odd forms are sampled as they compute, or refused with what is odd about them."""

from __future__ import annotations

import warnings
from functools import cache

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.testing import assert_close

import bnuq
from bnuq.errors import BnuqError, SamplingError
from bnuq.sampling.head import NoHeadError, head
from bnuq.sampling.noise import Learned
from bnuq.sampling.plain_loop import Evaluation, PlainLoop
from bnuq.sampling.site_search import find_sites

X = torch.randn(40, 4, generator=torch.Generator().manual_seed(1))
REFERENCE = torch.randn(64, 4, generator=torch.Generator().manual_seed(2))


class Net(nn.Module):
    """A dense network with a BatchNorm and a dropout, and a forward given as a function."""

    def __init__(self, forward, **buffers: torch.Tensor) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.norm, self.drop = nn.Linear(4, 16), nn.BatchNorm1d(16), nn.Dropout(0.3)
        self.last, self.function = nn.Linear(16, 3), forward
        for name, buffer in buffers.items():
            self.register_buffer(name, buffer)
        self.eval()

    def forward(self, x):
        return self.function(self, x)


def end(net: Net, hidden: torch.Tensor) -> torch.Tensor:
    return net.last(net.drop(torch.relu(hidden)))


def seeded(net: Net, x: torch.Tensor) -> torch.Tensor:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        projection = torch.randn(16, 16) / 4
    return end(net, net.norm(net.first(x)) @ projection)


def computed_scale(net: Net, x: torch.Tensor) -> torch.Tensor:
    norm, scale = net.norm, net.norm.weight * x.new_ones(len(x), 1).mean(0)
    hidden = F.batch_norm(net.first(x), norm.running_mean, norm.running_var, scale, norm.bias, net.training)
    return end(net, hidden)


def sparse(net: Net, x: torch.Tensor) -> torch.Tensor:
    return end(net, (net.graph @ net.norm(net.first(x)).T).T)


def branch(hidden):
    if bool(hidden.mean() > 1e9):
        hidden = hidden * 0.5
    return hidden


@cache
def scripted(function):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return torch.jit.script(function)


CYCLE = torch.eye(16).roll(1, 0)
SAMPLED = {
    "seeded in the forward": lambda: Net(seeded),
    "a computed scale": lambda: Net(computed_scale),
    "sparse": lambda: Net(sparse, graph=CYCLE.to_sparse()),
    "sparse rows": lambda: Net(sparse, graph=CYCLE.to_sparse_csr()),
    "a scripted branch": lambda: Net(lambda net, x: scripted(branch)(end(net, net.norm(net.first(x))))),
    "squeezed": lambda: Net(lambda net, x: end(net, net.norm(net.first(x)).unsqueeze(1).squeeze()).softmax(-1)),
    "complex noise": lambda: Net(
        lambda net, x: end(net, net.norm(net.first(x)) + torch.randn(16, dtype=torch.complex64).real)
    ),
}


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support")
@pytest.mark.parametrize("kind", SAMPLED)
def test_odd_networks_are_sampled_as_the_loop_samples_them_in_chunks_of_any_size(kind: str) -> None:
    net = SAMPLED[kind]()
    asked = {"omega": bnuq.draw(net, REFERENCE, samples=3, batch_size=16), "dropout": bnuq.Dropout(3)}
    expected = PlainLoop(net, find_sites(net, X[:3]), **asked).passes(X)
    for size in (None, 13, 1):
        assert_close(bnuq.predict(net, X, chunk_size=size, **asked), expected, rtol=1e-4, atol=1e-5)


def test_numbers_that_a_forward_seeds_are_what_the_network_computes() -> None:
    net = Net(seeded)
    torch.manual_seed(0)  # as in the forward
    before = torch.get_rng_state()
    with torch.no_grad():
        assert_close(Evaluation(net).passes(X)[0], net(X))
    assert torch.equal(torch.get_rng_state(), before)
    assert find_sites(net, X[:3]).noises == ()


@pytest.mark.parametrize("ask", ["like", "by shape"])
def test_noise_of_rows_that_are_interleaved_is_that_of_its_point(ask: str) -> None:
    def forward(net: Net, x: torch.Tensor) -> torch.Tensor:
        hidden = net.first(x).transpose(0, 1).reshape(-1, 16)
        noise = torch.randn_like(hidden) if ask == "like" else torch.randn(hidden.shape)
        hidden = torch.relu(hidden + 0.5 * noise).view(x.shape[1], len(x), 16).transpose(0, 1)
        return net.last(hidden).mean(1)

    net, x = Net(forward), torch.randn(23, 5, 4, generator=torch.Generator().manual_seed(3))
    (site,) = find_sites(net, x[:3]).noises
    assert site.interleaved and site.rows == 5
    outputs = bnuq.predict(net, x, learned=Learned(4))
    assert_close(bnuq.predict(net, x, learned=Learned(4), chunk_size=7), outputs)
    assert outputs.std(0).min() > 0


def test_complex_noise_has_its_moments() -> None:
    net = Net(lambda _, x: torch.view_as_real(torch.randn(2, dtype=torch.complex64)).view(1, 4) + 0 * x)
    outputs = bnuq.predict(net, X[:3], learned=Learned(4000))[:, 0]
    assert_close(outputs.mean(0), torch.zeros(4), rtol=0, atol=5 * (0.5 / 4000) ** 0.5)
    assert_close(outputs.var(0), torch.full((4,), 0.5), rtol=0, atol=5 * 0.5 * (2 / 4000) ** 0.5)


def test_whole_numbers_are_no_scores() -> None:
    with pytest.raises(BnuqError, match="output is int64; expected floating-point numbers"):
        bnuq.predict(Net(lambda net, x: end(net, net.first(x)).argmax(1)), X, dropout=bnuq.Dropout(2))


def test_dropout_of_a_packed_sequence_is_named_with_its_reason() -> None:
    def forward(net: Net, x: torch.Tensor) -> torch.Tensor:
        lengths = (x[:, :, 0] > 0).sum(1).clamp(min=1)
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        packed = packed._replace(data=net.drop(packed.data))
        return net.last(net.first(nn.utils.rnn.pad_packed_sequence(packed, batch_first=True)[0]).mean(1))

    x = torch.randn(3, 5, 4, generator=torch.Generator().manual_seed(0))
    with pytest.raises(SamplingError, match=r"no live dropout that can be sampled \(drop: its size does not grow"):
        bnuq.predict(Net(forward), x, dropout=bnuq.Dropout(2))


@pytest.mark.parametrize(
    "write", [lambda y: y[:, 1].mul_(5), lambda y: y[:, 1:].neg_(), lambda y: torch._foreach_neg_([y])]
)
def test_logits_of_which_a_part_is_written_are_not_those_of_the_layer(write) -> None:
    def forward(net: Net, x: torch.Tensor) -> torch.Tensor:
        logits = net.last(net.first(x))
        write(logits)
        return logits

    with pytest.raises(NoHeadError, match="not those of one linear layer"):
        head(Net(forward), X)
