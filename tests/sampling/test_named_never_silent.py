"""What cannot be made random, or cannot be drawn, is named."""

from __future__ import annotations

import pytest
import torch
import zoo
from torch import Tensor, nn
from torch.nn import functional as F
from zoo import Wrapped

import bnuq
from bnuq.errors import BnuqError, RequestError, SamplingError
from bnuq.sampling.site_search import find_sites
from bnuq.sampling.sites import Sites


def sites_of(net: nn.Module, *shape: int) -> Sites:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return find_sites(net.eval(), torch.randn(3, *shape))


def reasons(sites: Sites) -> dict[str, str]:
    return dict(sites.unreachable)


class FrozenBatchNorm2d(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        for name, value in (("weight", 1.0), ("bias", 0.0), ("running_mean", 0.0), ("running_var", 1.0)):
            self.register_buffer(name, torch.full((channels,), value))

    def forward(self, x: Tensor) -> Tensor:
        scale = self.weight * self.running_var.rsqrt()
        return x * scale[None, :, None, None] + (self.bias - self.running_mean * scale)[None, :, None, None]


def test_a_frozen_layer_of_constants_is_named():
    net = nn.Sequential(nn.Conv2d(1, 2, 3), FrozenBatchNorm2d(2), nn.Flatten(), nn.Linear(8, 2))
    sites = sites_of(net, 1, 4, 4)
    assert reasons(sites) == {"1": "FrozenBatchNorm2d: its statistics are constants and cannot be sampled"}
    assert sites.batchnorms == ()


def test_a_layer_kept_in_evaluation_mode_by_hand_is_not_sampled_and_is_named():
    class Half(nn.Sequential):
        def train(self, mode: bool = True) -> nn.Module:
            super().train(mode)
            self[1].eval()
            return self

    net = Half(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 5), nn.BatchNorm1d(5))
    frozen, live = sites_of(net, 4).batchnorms
    assert (frozen.name, frozen.stochastic) == ("1", False) and "frozen" in frozen.reason
    assert (live.name, live.stochastic) == ("3", True)
    assert [layer.name for layer in bnuq.statistics_of(net, [torch.randn(6, 4)]).layers] == ["3"]


def test_dropout_inside_an_lstm_is_named_as_training_only():
    net = Wrapped(lambda m, x: m.rnn(x)[0].mean(1), rnn=nn.LSTM(3, 4, num_layers=2, dropout=0.5, batch_first=True))
    sites = sites_of(net, 5, 3)
    assert reasons(sites) == {"rnn": "dropout inside lstm in training only"}
    assert sites.dropouts == ()


def test_dropout_inside_attention_is_named():
    net = Wrapped(
        lambda m, x: m.attention(x, x, x, need_weights=False)[0].mean(1),
        attention=nn.MultiheadAttention(4, 2, dropout=0.3, batch_first=True),
    )
    assert "dropout inside scaled_dot_product_attention in training only" in reasons(sites_of(net, 5, 4))["attention"]


def test_dropout_of_attention_weights_is_named():
    net = Wrapped(
        lambda m, x: m.attention(x, x, x)[0].mean(1),
        attention=nn.MultiheadAttention(4, 2, dropout=0.3, batch_first=True),
    )
    assert "training mode only" in reasons(sites_of(net, 5, 4))["attention"]


def test_a_dropout_behind_if_training_is_named():
    net = Wrapped(lambda m, x: F.dropout(m.fc(x), 0.5) if m.training else m.fc(x), fc=nn.Linear(4, 3))
    assert sites_of(net, 4).unreachable == (("forward", "a dropout that is called in training mode only"),) or reasons(
        sites_of(net, 4)
    ) == {"dropout": "a dropout that is called in training mode only"}


def test_stochastic_depth_is_named():
    class DropPath(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            if not self.training:
                return x
            return x * torch.empty(len(x), *[1] * (x.ndim - 1)).bernoulli_(0.8) / 0.8

    assert reasons(sites_of(nn.Sequential(nn.Linear(4, 3), DropPath()), 4)) == {
        "1": "random numbers (bernoulli_) in training only"
    }


def test_random_numbers_in_evaluation_mode_are_named_as_not_reproducible():
    net = Wrapped(lambda m, x: m.fc(x) + torch.poisson(torch.ones(3)), fc=nn.Linear(4, 3))
    (text,) = {reason for reason in reasons(sites_of(net, 4)).values() if "evaluation" in reason}
    assert "random numbers (poisson) in evaluation mode too" in text


def test_weights_standardised_by_batch_norm_are_no_site():
    class StandardisedConv(nn.Conv2d):
        def forward(self, x: Tensor) -> Tensor:
            weight = F.batch_norm(self.weight.reshape(1, self.out_channels, -1), None, None, training=True)
            return F.conv2d(x, weight.reshape_as(self.weight), self.bias)

    net = nn.Sequential(StandardisedConv(2, 3, 2), nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(27, 2)).eval()
    weights, live = sites_of(net, 2, 4, 4).batchnorms
    assert not weights.stochastic and weights.reason == "it normalises weights, not data"
    assert live.stochastic and live.name == "1"
    x = torch.randn(6, 2, 4, 4)
    omega = bnuq.draw(net, x, samples=3, batch_size=4)
    assert [layer.name for layer in omega.layers] == ["1"]
    one = bnuq.predict(net, x, omega)
    assert torch.allclose(one, torch.cat([bnuq.predict(net, x, omega[t : t + 1]) for t in range(3)]), atol=1e-6)


def test_weights_standardised_with_a_computed_scale_are_no_site_in_any_forward():
    class ScaledConv(nn.Conv2d):
        def forward(self, x: Tensor) -> Tensor:
            rows, memory = self.weight.reshape(1, self.out_channels, -1), torch.ones(len(kept) + 1)
            kept.append((scale := 0.3 * rows.new_ones(self.out_channels), memory))  # each lies elsewhere
            return F.conv2d(x, F.batch_norm(rows, None, None, scale, training=True).reshape_as(self.weight), self.bias)

    kept: list = []
    net = nn.Sequential(ScaledConv(2, 3, 2), nn.BatchNorm2d(3), nn.Dropout(0.3), ScaledConv(3, 3, 3), nn.Flatten())
    x = torch.randn(6, 2, 4, 4)
    omega = bnuq.draw(net.eval(), x, samples=2, batch_size=4)
    assert [layer.name for layer in omega.layers] == ["1"]
    assert bnuq.predict(net, x, omega, dropout=bnuq.Dropout(2)).shape == (2, 6, 3)


def test_a_layer_that_normalises_each_point_by_itself_is_not_stochastic():
    class Instance(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return F.batch_norm(x.reshape(1, -1, *x.shape[2:]), None, None, training=True).reshape(x.shape)

    net = nn.Sequential(nn.Conv2d(2, 3, 2), Instance(), nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(27, 2)).eval()
    own, _ = sites_of(net, 2, 4, 4).batchnorms
    assert not own.stochastic and "each example separately" in own.reason
    x = torch.randn(6, 2, 4, 4)
    omega = bnuq.draw(net, x, samples=3, batch_size=4)
    assert [layer.name for layer in omega.layers] == ["2"]
    assert torch.allclose(bnuq.predict(net, x, omega), bnuq.predict(net, x, omega, chunk_size=1), atol=1e-5)


@pytest.mark.parametrize(
    "norm", [nn.InstanceNorm2d(3), nn.GroupNorm(1, 3), nn.InstanceNorm2d(3, track_running_stats=True)]
)
def test_other_normalisations_are_no_sites(norm):
    assert sites_of(nn.Sequential(nn.Conv2d(1, 3, 2), norm), 1, 4, 4).batchnorms == ()


def test_an_instance_norm_with_running_statistics_is_named_as_one():
    net = nn.Sequential(nn.Conv2d(1, 3, 2), nn.InstanceNorm2d(3, track_running_stats=True))
    told = "InstanceNorm2d with running statistics: training normalises each example separately"
    assert reasons(sites_of(net, 1, 4, 4)) == {"1": told}


def test_batch_normalization_written_by_hand_alone_is_named_in_the_refusal():
    class ByHand(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x - x.mean(0) if self.training else x

    with pytest.raises(SamplingError, match=r"no BatchNorm layer .* \(1: ByHand computes something else in training"):
        bnuq.draw(nn.Sequential(nn.Linear(4, 3), ByHand()), torch.randn(9, 4), samples=2, batch_size=4)


def test_a_layer_that_is_never_called_is_named():
    net = Wrapped(lambda m, x: m.fc(x), fc=nn.Linear(4, 3), spare=nn.BatchNorm1d(3))
    assert reasons(sites_of(net, 4)) == {"spare": "a BatchNorm that the evaluation-mode forward never calls"}


def test_the_dropouts_of_a_transformer_are_seen_although_its_fast_path_would_hide_them():
    layer = nn.TransformerEncoderLayer(4, 2, dim_feedforward=8, dropout=0.25, batch_first=True)
    net = Wrapped(lambda m, x: m.layer(x).mean(1), layer=layer)
    sites = sites_of(net, 5, 4)
    assert {site.name for site in sites.live_dropouts} >= {"layer.dropout", "layer.dropout1", "layer.dropout2"}
    assert all(site.p == 0.25 for site in sites.live_dropouts)
    x = torch.randn(6, 5, 4)
    with pytest.warns(UserWarning, match="layer.self_attn is not sampled: dropout inside scaled_dot_product_attention"):
        samples = bnuq.predict(net, x, dropout=bnuq.Dropout(3))
    assert not torch.equal(samples[0], samples[1])


def test_predict_with_dropout_warns_of_dropout_that_it_does_not_sample_alone():
    net = Wrapped(
        lambda m, x: m.drop(m.rnn(x)[0].mean(1)), spare=nn.BatchNorm1d(3),
        rnn=nn.GRU(3, 4, num_layers=2, dropout=0.5, batch_first=True), drop=nn.Dropout(0.2),
    )  # fmt: skip
    x = torch.randn(6, 5, 3)
    with pytest.warns(UserWarning) as issued:
        for _ in "12":  # once per network
            bnuq.predict(net, x, dropout=bnuq.Dropout(2))
    assert [str(each.message) for each in issued] == ["rnn is not sampled: dropout inside gru in training only."]


def test_the_refusal_to_predict_with_dropout_names_what_is_random_in_training():
    net = Wrapped(lambda m, x: m.rnn(x)[0].mean(1), rnn=nn.LSTM(3, 4, num_layers=2, dropout=0.5, batch_first=True))
    with pytest.raises(
        SamplingError, match=r"no live dropout that can be sampled \(rnn: dropout inside lstm in training"
    ):
        bnuq.predict(net, torch.randn(6, 5, 3), dropout=bnuq.Dropout(2))


def test_a_refusal_counts_the_layers_that_it_does_not_name():
    layers = {f"rnn{i}": nn.GRU(3, 3, num_layers=2, dropout=0.5, batch_first=True) for i in range(5)}
    net = Wrapped(lambda m, x: sum(getattr(m, name)(x)[0] for name in layers).mean(1), **layers)
    with pytest.raises(SamplingError, match=r"rnn2: dropout inside gru in training only; 2 more\): all T passes"):
        bnuq.predict(net, torch.randn(6, 5, 3), dropout=bnuq.Dropout(2))


def noise_beside_noise(m: Wrapped, x: Tensor) -> Tensor:
    x = m.fc(x) * torch.rand_like(x[:, :1])
    return x * torch.rand_like(x) if m.training else x


@pytest.mark.parametrize(
    ("forward", "drawn"),
    [
        (lambda m, x: torch.native_dropout(m.fc(x), 0.5, m.training)[0], "native_dropout"),
        (noise_beside_noise, "rand_like"),
    ],
)
def test_random_numbers_of_training_alone_are_named_in_every_form(forward, drawn):
    sites = sites_of(Wrapped(forward, fc=nn.Linear(4, 3)), 4)
    assert [text for _, text in sites.hidden] == [f"random numbers ({drawn}) in training only"]


def test_a_network_without_batchnorm_cannot_be_drawn():
    with pytest.raises(SamplingError, match="has no BatchNorm layer that could be sampled"):
        bnuq.draw(nn.Linear(4, 3), torch.randn(9, 4), samples=2, batch_size=4)


@pytest.mark.parametrize("net", [nn.Linear(4, 3), nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.0))])
def test_a_network_without_live_dropout_cannot_be_predicted_with_dropout(net):
    with pytest.raises(SamplingError, match="no live dropout: all T passes would be the same"):
        bnuq.predict(net, torch.randn(5, 4), dropout=bnuq.Dropout(2))


def test_a_dropout_of_rate_zero_is_named_as_not_stochastic():
    (site,) = sites_of(nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.0)), 4).dropouts
    assert (site.stochastic, site.reason) == (False, "its rate is 0")


def test_predict_needs_something_to_be_random():
    with pytest.raises(SamplingError, match="needs omega, dropout or learned"):
        bnuq.predict(nn.Linear(4, 3), torch.randn(5, 4))


def test_a_lazy_layer_without_data_is_named():
    net = nn.Sequential(nn.Linear(4, 3), nn.LazyBatchNorm1d())
    with pytest.raises(SamplingError, match="layer 1 is lazy and not initialised"):
        bnuq.draw(net, torch.randn(9, 4), samples=2, batch_size=4)


@pytest.mark.parametrize(("batch_size", "population"), [(0, 9), (10, 9), (128, 9)])
def test_a_batch_that_cannot_be_drawn_is_refused_with_the_range(batch_size, population):
    with pytest.raises(SamplingError, match=f"batch_size is {batch_size}; expected 1 to 9"):
        bnuq.draw(zoo.made("nested"), zoo.points("nested", population), samples=2, batch_size=batch_size)


def test_no_samples_are_refused():
    with pytest.raises(SamplingError, match="samples is 0"):
        bnuq.draw(zoo.made("nested"), zoo.points("nested", 9), samples=0, batch_size=4)
    with pytest.raises(SamplingError, match="samples is 0"):
        bnuq.Dropout(0)
    with pytest.raises(SamplingError, match="there are no mini-batches"):
        bnuq.statistics_of(zoo.made("nested"), [])


def test_one_value_per_channel_is_refused_with_the_layer():
    with pytest.raises(SamplingError, match="layer stem sees 1 value per channel in a mini-batch of 1"):
        bnuq.statistics_of(zoo.made("nested"), [zoo.points("nested", 1)])


def test_one_picture_is_batch_enough_where_it_has_positions():
    assert bnuq.statistics_of(zoo.made("2d"), [zoo.points("2d", 1)]).layers[0].count.tolist() == [20]


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_reference_that_is_not_finite_is_named(bad):
    batch = zoo.points("nested", 8)
    batch[3, 1] = bad
    with pytest.raises(SamplingError, match="layer stem: the statistics of a mini-batch are not finite"):
        bnuq.statistics_of(zoo.made("nested"), [batch])


@pytest.mark.parametrize(
    ("forward", "shown"),
    [
        (lambda m, x: {"a": m.bn(x), "b": x}, "a dict with the keys 'a', 'b'"),
        (lambda m, x: m.bn(x).sum(), r"shape \(\)"),
        (lambda m, x: m.bn(x)[:2].sum(1), r"shape \(2,\)"),
    ],
)
def test_an_output_that_is_no_table_is_refused_with_what_it_is(forward, shown):
    net = Wrapped(forward, bn=nn.BatchNorm1d(4))
    x = torch.randn(5, 4)
    with pytest.raises(BnuqError, match=f"output is {shown}; expected one tensor"):
        bnuq.predict(net, x, bnuq.draw(net, x, samples=2, batch_size=4))


@pytest.mark.filterwarnings("ignore:b is not sampled")
def test_a_path_that_depends_on_the_data_is_refused_when_drawing():
    net = Wrapped(
        lambda m, x: m.a(x) if float(x.sum()) > 0 else m.b(x), a=nn.BatchNorm1d(4), b=nn.BatchNorm1d(4)
    ).eval()  # fmt: skip
    with pytest.raises(SamplingError, match="the number of BatchNorm calls depends on the network's input"):
        bnuq.statistics_of(net, [torch.ones(6, 4) + torch.rand(6, 4), -torch.ones(6, 4) - torch.rand(6, 4)])


def test_a_path_that_depends_on_the_number_of_points_is_refused():
    net = Wrapped(lambda m, x: m.bn(x) if len(x) > 2 else x, bn=nn.BatchNorm1d(4))
    with pytest.raises(SamplingError, match="when the number of examples changes"):
        bnuq.draw(net, torch.randn(9, 4), samples=2, batch_size=4)


def test_other_dropouts_than_at_first_sight_are_refused():
    net = Wrapped(
        lambda m, x: m.a(x) if float(x.sum()) > 0 else F.dropout(m.fc(m.b(x)), 0.5, m.training),
        a=nn.Dropout(0.5), b=nn.Dropout(0.2), fc=nn.Linear(4, 4),
    )  # fmt: skip
    with pytest.raises(SamplingError, match="other dropouts than it did on a first look"):
        bnuq.predict(net, torch.cat([torch.ones(3, 4), -torch.ones(3, 4)]), dropout=bnuq.Dropout(2), chunk_size=3)


def test_a_forward_that_remembers_is_refused():
    class Remembers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc, self.bn, self.calls = nn.Linear(4, 4), nn.BatchNorm1d(4), 0

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            x = self.fc(x) if self.calls % 2 else torch.tanh(self.fc(x))
            return self.bn(x)

    net = Remembers()
    with pytest.raises(SamplingError, match="it is called again with the same inputs: its forward keeps"):
        bnuq.predict(net, torch.randn(6, 4), bnuq.draw(net, torch.randn(9, 4), samples=4, batch_size=4))


def other(change) -> nn.Module:
    net = zoo.made("nested")
    with torch.no_grad():
        change(net)
    return net


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda n: setattr(n, "stem", nn.Identity()), r"its layer stem \(5 channels\) is not among this network's 3"),
        (lambda n: setattr(n.stem, "eps", 1e-3), r"layer stem has 5 channels and eps 0.001 here, 5 and 1e-05 in omega"),
        (lambda n: n.last.weight.mul_(2), "same names and sizes, but the weights differ"),
        (lambda n: n.stem.running_mean.add_(1), "same names and sizes, but the weights differ"),
    ],
)
def test_a_bank_of_another_network_is_refused_by_what_differs(change, said):
    omega = bnuq.draw(zoo.made("nested"), zoo.points("nested", 9), samples=2, batch_size=4)
    with pytest.raises(SamplingError, match=said):
        bnuq.predict(other(change), zoo.points("nested", 3), omega)


def test_attention_without_dropout_is_not_called_random():
    net = Wrapped(lambda n, x: F.scaled_dot_product_attention(n.norm(x), x, x).mean(1), norm=nn.BatchNorm1d(5))
    assert not sites_of(net, 5, 4).unreachable


def test_a_bank_of_another_width_is_refused_with_both():
    make = [lambda width=width: nn.Sequential(nn.Linear(4, width), nn.BatchNorm1d(width)) for width in (5, 6)]
    small, large = (zoo.settled(m, (4,)) for m in make)
    omega = bnuq.draw(small, zoo.points((4,), 9), samples=2, batch_size=4)
    with pytest.raises(SamplingError, match="layer 1 has 6 channels and eps 1e-05 here, 5 and 1e-05 in omega"):
        bnuq.predict(large, zoo.points((4,), 3), omega)


@pytest.mark.parametrize("how", ["a part of omega", "dropout alone"])
def test_a_layer_without_running_statistics_that_omega_does_not_hold_is_refused(how):
    # it would normalise the queries by each other: outputs would depend on the chunk
    net = zoo.settled(
        lambda: nn.Sequential(
            nn.Linear(4, 5), nn.BatchNorm1d(5), nn.BatchNorm1d(5, track_running_stats=False), nn.Dropout(0.5)
        ),
        (4,),
    )
    x = zoo.points((4,), 9)
    omega = bnuq.draw(net, x, samples=2, batch_size=4, layers="first:1") if how == "a part of omega" else None
    with pytest.raises(SamplingError, match="BatchNorm 2 keeps no running statistics"):
        bnuq.predict(net, x, omega, dropout=None if omega else bnuq.Dropout(2))


def test_no_layers_are_refused():
    with pytest.raises(RequestError, match="layers is empty"):
        bnuq.draw(zoo.made("nested"), zoo.points("nested", 9), samples=2, batch_size=4, layers=[])


@pytest.mark.parametrize("seed", [-1, 2**63, 2**64, 1.5])
def test_what_is_no_seed_is_refused(seed):
    with pytest.raises(SamplingError, match=f"seed is {seed}; expected a whole number from 0"):
        bnuq.draw(zoo.made("nested"), zoo.points("nested", 9), samples=2, batch_size=4, seed=seed)
    with pytest.raises(SamplingError, match=f"seed is {seed}; expected a whole number from 0"):
        bnuq.Dropout(2, seed=seed)


def test_no_points_and_no_chunk_are_refused():
    net, x = zoo.made("nested"), zoo.points("nested", 9)
    omega = bnuq.draw(net, x, samples=2, batch_size=4, seed=2**63 - 1)
    with pytest.raises(SamplingError, match="there are no examples to run the network on"):
        bnuq.predict(net, x[:0], omega)
    for size in (0, -3):
        with pytest.raises(SamplingError, match=f"chunk_size is {size}; expected a whole number of at least 1"):
            bnuq.predict(net, x, omega, chunk_size=size)


def test_inputs_come_in_the_networks_dtype_whatever_theirs_was():
    net, wide = zoo.made("nested", torch.float32), zoo.points("nested", 9)
    omega = bnuq.draw(net, wide.numpy(), samples=2, batch_size=4)
    assert omega.layers[0].mean.dtype == "float32"
    found = bnuq.predict(net, wide.numpy(), omega)
    assert found.dtype == torch.float32
    assert torch.equal(found, bnuq.predict(net, wide.float(), omega))


def test_mini_batches_may_be_arrays_and_nothing_else():
    net, x = zoo.made("nested"), zoo.points("nested", 8)
    one, two = (bnuq.statistics_of(net, batches) for batches in ([x, x], x.numpy()[None].repeat(2, 0)))
    assert (one.layers[2].mean == two.layers[2].mean).all()
    with pytest.raises(SamplingError, match="input is a list; expected a tensor or an array"):
        bnuq.statistics_of(net, [[x, torch.zeros(8)]])  # as a DataLoader with labels gives them
