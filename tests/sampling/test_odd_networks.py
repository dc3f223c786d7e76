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
    return end(net, F.batch_norm(net.first(x), norm.running_mean, norm.running_var, scale, norm.bias, net.training))


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


@pytest.mark.nightly
def test_complex_noise_has_its_moments() -> None:
    net = Net(lambda _, x: torch.view_as_real(torch.randn(2, dtype=torch.complex64)).view(1, 4) + 0 * x)
    outputs = bnuq.predict(net, X[:3], learned=Learned(4000))[:, 0]
    assert_close(outputs.mean(0), torch.zeros(4), rtol=0, atol=5 * (0.5 / 4000) ** 0.5)
    assert_close(outputs.var(0), torch.full((4,), 0.5), rtol=0, atol=5 * 0.5 * (2 / 4000) ** 0.5)


NO_SCORES = {
    "is int64; expected floating-point numbers": lambda y: y.argmax(1),
    r"is shape \(2, 0\); expected one tensor": lambda y: y[:, :0],
    "has 4 rows for 2 examples; expected one for each": lambda y: torch.cat([y, y]),
    "has 1 rows for 2 examples": lambda y: y[:1],
    "is a nested, sparse or meta tensor": lambda y: y.to_sparse(),
    "is a nested, sparse or meta": lambda y: y.to("meta"),
    "is a nested, sparse": lambda y: torch.nested.as_nested_tensor([*y]),
}


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("said", NO_SCORES)
def test_what_is_no_score_of_each_point_is_refused(said: str) -> None:
    with pytest.raises(BnuqError, match=f"network's output {said}"):
        bnuq.predict(Net(lambda net, x: NO_SCORES[said](end(net, net.first(x)))), X[:2], dropout=bnuq.Dropout(2))


def test_sparse_inputs_are_refused() -> None:
    with pytest.raises(BnuqError, match="inputs are a sparse or nested tensor"):
        bnuq.predict(Net(lambda net, x: end(net, net.first(x))), X.to_sparse(), dropout=bnuq.Dropout(2))


def test_statistics_that_a_forward_computes_are_named() -> None:
    def forward(net: Net, x: torch.Tensor) -> torch.Tensor:
        mean, var = net.norm.running_mean * 1.0, net.norm.running_var * 1.0
        return end(net, F.batch_norm(net.first(x), mean, var, net.norm.weight, net.norm.bias, net.training))

    with pytest.raises(SamplingError, match="running statistics of BatchNorm batch_norm are computed in the forward"):
        bnuq.draw(Net(forward), REFERENCE, samples=2, batch_size=16)


def packed(net: Net, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    sequence = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
    sequence = sequence._replace(data=net.drop(sequence.data))
    return net.last(net.first(nn.utils.rnn.pad_packed_sequence(sequence, batch_first=True)[0]).mean(1))


def test_dropout_of_a_packed_sequence_is_named_with_its_reason() -> None:
    x = torch.randn(3, 5, 4, generator=torch.Generator().manual_seed(0))
    net = Net(lambda net, x: packed(net, x, (x[:, :, 0] > 0).sum(1).clamp(min=1)))
    with pytest.raises(SamplingError, match=r"no live dropout that can be sampled \(drop: its size does not grow"):
        bnuq.predict(net, x, dropout=bnuq.Dropout(2))


def test_masks_of_points_that_are_brought_into_another_order_are_refused_with_the_cause() -> None:
    x = torch.randn(40, 5, 4, generator=torch.Generator().manual_seed(0))
    net = Net(
        lambda net, x: packed(net, x, torch.full((len(x),), 5))
    )  # beyond 16 points torch's sort leaves their order
    few = bnuq.predict(net, x, dropout=bnuq.Dropout(2), chunk_size=13)
    assert_close(bnuq.predict(net, x, dropout=bnuq.Dropout(2), chunk_size=1), few)
    said = r"dropout or noise for an example depends on .* has sorted its examples"
    with pytest.raises(SamplingError, match=said):
        bnuq.predict(net, x, dropout=bnuq.Dropout(2))
    net = Net(lambda net, x: net.last(net.drop(net.first(x[order := x[:, 0].argsort()])))[order.argsort()])
    with pytest.raises(SamplingError, match=said):
        bnuq.predict(net, X, dropout=bnuq.Dropout(2), chunk_size=1)


def branch_on_data(hidden, x):
    if bool(x.mean() > 0):
        hidden = hidden * 3.0
    return hidden


COMPANY = {  # a part of the hidden values, which the points of a reference below 1 leave as they are
    "a flag of all examples": lambda h, x: torch.where((x > 1.2).any(), h - h.mean(0), h),
    "the largest value": lambda h, x: h / x.abs().amax().clamp(min=1.2),
    "a branch on data": lambda h, x: scripted(branch_on_data)(h, x),
    "the first ones": lambda h, x: torch.cat([2 * h[:2], h[2:]]) if len(x) > 2 else h,
}


@pytest.mark.parametrize("size", [None, 13, 1])
@pytest.mark.parametrize("kind", COMPANY)
def test_points_that_depend_on_their_company_are_refused_in_chunks_of_any_size(kind: str, size: int | None) -> None:
    net, reference = Net(lambda net, x: net.last(torch.relu(net.norm(net.first(x))))), REFERENCE.clamp(-1, 1).abs()
    omega = bnuq.draw(net, reference, samples=3, batch_size=16)
    net.function = lambda net, x: net.last(COMPANY[kind](torch.relu(net.norm(net.first(x))), x))
    with pytest.raises(SamplingError, match="the output for an example depends on which examples pass with it"):
        bnuq.predict(net, X, omega, chunk_size=size)


def test_nested_tensors_inside_a_network_are_no_obstacle() -> None:
    def forward(net: Net, x: torch.Tensor) -> torch.Tensor:
        rows = torch.nested.nested_tensor([*torch.relu(net.norm(net.first(x)))])
        return net.last(torch.nested.to_padded_tensor(net.drop(rows), 0.0))

    net = Net(forward)
    omega = bnuq.draw(net, REFERENCE, samples=3, batch_size=16)
    assert_close(bnuq.predict(net, X, omega)[:, :7], bnuq.predict(net, X[:7], omega))
    with pytest.raises(SamplingError, match="drop: it is given a nested tensor"):
        bnuq.predict(net, X, dropout=bnuq.Dropout(3))


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
