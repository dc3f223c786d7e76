"""Compiled, half-precision, exported, frozen networks: sampled as they were written, or refused with the cause."""

from __future__ import annotations

import random
import warnings

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import bnuq
from bnuq.errors import ModelError, SamplingError
from bnuq.sampling.site_search import find_sites

X = torch.randn(64, 6, generator=torch.Generator().manual_seed(0))


def plain() -> nn.Sequential:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 3))
        net(X)
    return net.eval()


def compiled(net: nn.Module) -> nn.Module:
    return torch.compile(net, backend="eager")  # type: ignore[return-value]


def compiled_in_place(net: nn.Module) -> nn.Module:
    net.compile(backend="eager")
    return net


class WithCompiledFunction(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = plain()
        self.function = torch.compile(lambda x: self.net(x), backend="eager")

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


@pytest.fixture
def fresh_compiler():
    import torch._dynamo

    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.parametrize(
    "make",
    [
        lambda: compiled(plain()),
        lambda: compiled_in_place(plain()),
        lambda: nn.Sequential(*plain()[:1], compiled(plain()[1]), *plain()[2:]),
        lambda: nn.Sequential(*plain()[:1], compiled_in_place(plain()[1]), *plain()[2:]),
        WithCompiledFunction,
    ],
    ids=["module", "in place", "layer", "layer in place", "function"],
)
@pytest.mark.usefixtures("fresh_compiler")
def test_a_compiled_network_gives_what_the_network_that_it_was_made_of_gives(make):
    expected = bnuq.predict(plain(), X[:9], bnuq.draw(plain(), X, samples=4, batch_size=16), dropout=bnuq.Dropout(4))
    net = make().eval()
    for _ in range(6):  # torch stops compiling anew after some, and would then run the network as it was written
        omega = bnuq.draw(net, X, samples=4, batch_size=16)
        assert [layer.name.rpartition(".")[2] for layer in omega.layers] == ["1"]
        found = bnuq.predict(net, X[:9], omega, dropout=bnuq.Dropout(4))
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)


@pytest.mark.usefixtures("fresh_compiler")
def test_a_bank_is_shared_by_a_network_and_its_compiled_form():
    omega = bnuq.draw(compiled(plain()), X, samples=4, batch_size=16)
    expected = bnuq.predict(plain(), X[:9], bnuq.draw(plain(), X, samples=4, batch_size=16))
    assert torch.equal(bnuq.predict(plain(), X[:9], omega), expected)


class InHalf(nn.Module):
    """Layers in half precision around a BatchNorm in float32, which is given float32 or what the layers give."""

    def __init__(self, dtype: torch.dtype, *, widened: bool) -> None:
        super().__init__()
        net = plain()
        self.first, self.norm, self.last = net[0].to(dtype), net[1], net[4].to(dtype)
        self.dtype, self.widened = dtype, widened

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x.to(self.dtype))
        x = self.norm(x.float() if self.widened else x)
        return self.last(x.to(self.dtype))


class Autocast(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = plain()

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return self.net(x).float()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_layers_around_a_batchnorm_in_float32_are_sampled_in_float32(dtype):
    net = InHalf(dtype, widened=True).eval()
    found = bnuq.predict(net, X[:9], bnuq.draw(net, X, samples=4, batch_size=16))
    exact = InHalf(torch.float32, widened=True).eval()
    expected = bnuq.predict(exact, X[:9], bnuq.draw(exact, X, samples=4, batch_size=16))
    torch.testing.assert_close(found.float(), expected, rtol=0, atol=0.05)


@pytest.mark.parametrize(
    ("net", "name", "kind"),
    [
        (InHalf(torch.bfloat16, widened=False), "norm", "bfloat16"),
        (InHalf(torch.float16, widened=False), "norm", "float16"),
        (Autocast(), "net.1", "bfloat16"),
    ],
    ids=["bfloat16", "float16", "autocast"],
)
def test_a_batchnorm_that_is_given_half_precision_is_not_sampled_and_the_reason_is_told(net, name, kind):
    reason = f"it is given {kind} and its statistics are float32: autocast, or layers in half precision"
    (site,) = find_sites(net.eval(), X).batchnorms
    assert (site.name, site.reason) == (name, reason)
    with pytest.raises(SamplingError, match=rf"{name}: {reason}"):
        bnuq.draw(net, X, samples=4, batch_size=16)


def test_autocast_leaves_dropout_to_be_sampled():
    assert float(bnuq.predict(Autocast().eval(), X[:9], dropout=bnuq.Dropout(4)).std(0).min()) > 0


def test_a_forward_that_casts_what_it_is_not_given_in_is_told_to_leave_that_to_bnuq():
    net = InHalf(torch.bfloat16, widened=True).float().eval()
    with pytest.raises(SamplingError, match=r"The forward mixes dtypes: .* Remove casts to half prec"):
        find_sites(net, X)


def exported() -> object:
    return torch.export.export(plain(), (X[:2],))


def frozen() -> nn.Module:
    return torch.jit.freeze(torch.jit.script(plain()))


def in_mkldnn() -> nn.Module:
    from torch.utils.mkldnn import to_mkldnn

    return to_mkldnn(plain())


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (exported, r"of type ExportedProgram; expected a torch\.nn\.Module"),
        (
            lambda: exported().module(),
            r"cannot be put into evaluation mode: .* Programs of torch\.export have no evaluation mode",
        ),
        (frozen, r"was frozen by torch\.jit\.freeze"),
        (lambda: nn.Sequential(frozen()), r"was frozen by torch\.jit\.freeze"),
        (in_mkldnn, r"was converted by torch\.utils\.mkldnn\.to_mkldnn"),
    ],
    ids=["exported", "exported module", "frozen", "part frozen", "mkldnn"],
)
def test_a_form_that_cannot_be_sampled_is_refused_with_the_cause(make, message):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own, of torch.jit
        net = make()
    for call in (
        lambda: bnuq.draw(net, X, samples=4, batch_size=16),
        lambda: bnuq.predict(net, X[:9], dropout=bnuq.Dropout(4)),
    ):
        with pytest.raises(ModelError, match=message):
            call()


class LayerDrop(nn.Module):
    """Skips its layer at random in training, by generators that are not torch's."""

    def __init__(self, draw) -> None:
        super().__init__()
        self.net, self.layer, self.draw = plain(), nn.Linear(3, 3), draw

    def forward(self, x: Tensor) -> Tensor:
        x = self.net(x)
        return x if self.training and self.draw() < 0.5 else self.layer(x)


@pytest.mark.parametrize(
    ("draw", "name"),
    [(lambda: random.random(), "Python's random"), (lambda: np.random.rand(), "numpy")],
    ids=["random", "numpy"],
)
def test_layer_drop_by_other_generators_than_torchs_is_named(draw, name):
    state = random.getstate(), np.random.get_state()[1].tolist()
    net = LayerDrop(draw).eval()
    assert find_sites(net, X).unreachable == (("", f"random numbers of {name} in training only"),)
    deeper = nn.Sequential(nn.Linear(X.shape[1], X.shape[1]), nn.Sequential(net)).eval()
    assert find_sites(deeper, X).unreachable == (("1.0", f"random numbers of {name} in training only"),)
    assert (random.getstate(), np.random.get_state()[1].tolist()) == state

    class Always(LayerDrop):
        def forward(self, x: Tensor) -> Tensor:
            self.draw()
            return self.net(x)

    told = f"random numbers of {name} in evaluation mode too: estimates are not reproducible"
    assert ("", told) in find_sites(Always(draw).eval(), X).unreachable
