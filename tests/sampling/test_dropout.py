"""Dropout masks: by key, never by the order of calls or the chunks; and dropping what they should."""

from __future__ import annotations

import pytest
import torch
import zoo
from torch import Tensor, nn
from torch.nn import functional as F

import bnuq
from bnuq.sampling import keyed
from bnuq.sampling.sites import find_sites


class Then(nn.Module):
    """The input through something, flattened."""

    def __init__(self, forward, **parts: nn.Module) -> None:
        super().__init__()
        for name, part in parts.items():
            self.add_module(name, part)
        self._forward = forward

    def forward(self, x: Tensor) -> Tensor:
        return self._forward(self, x).flatten(1)


def layer(make, *shape: int):
    return make, shape


# name → (network, shape of a point)
NETS = {
    "Dropout": layer(lambda: Then(lambda m, x: m.d(x), d=nn.Dropout(0.4)), 6),
    "Dropout in place": layer(lambda: Then(lambda m, x: m.d(x), d=nn.Dropout(0.4, inplace=True)), 6),
    "Dropout1d": layer(lambda: Then(lambda m, x: m.d(x), d=nn.Dropout1d(0.4)), 3, 5),
    "Dropout2d": layer(lambda: Then(lambda m, x: m.d(x), d=nn.Dropout2d(0.4)), 3, 2, 2),
    "Dropout2d in place": layer(lambda: Then(lambda m, x: m.d(x), d=nn.Dropout2d(0.4, inplace=True)), 3, 2, 2),
    "Dropout3d": layer(lambda: Then(lambda m, x: m.d(x), d=nn.Dropout3d(0.4)), 3, 2, 2, 2),
    "AlphaDropout": layer(lambda: Then(lambda m, x: m.d(x), d=nn.AlphaDropout(0.4)), 6),
    "AlphaDropout in place": layer(lambda: Then(lambda m, x: m.d(x), d=nn.AlphaDropout(0.4, inplace=True)), 6),
    "FeatureAlphaDropout": layer(lambda: Then(lambda m, x: m.d(x), d=nn.FeatureAlphaDropout(0.4)), 3, 2, 2),
    "F.dropout": layer(lambda: Then(lambda m, x: F.dropout(x, 0.4, m.training)), 6),
    "F.dropout in place": layer(lambda: Then(lambda m, x: F.dropout(x, 0.4, m.training, inplace=True)), 6),
    "F.dropout2d": layer(lambda: Then(lambda m, x: F.dropout2d(x, 0.4, m.training)), 3, 2, 2),
    "torch.dropout": layer(lambda: Then(lambda m, x: torch.dropout(x, 0.4, m.training)), 6),
    "sequence first": layer(lambda: Then(lambda m, x: m.d(x.transpose(0, 1)).transpose(0, 1), d=nn.Dropout(0.4)), 5, 4),
    "rows of a point together": layer(
        lambda: Then(lambda m, x: m.d(x.reshape(-1, 4)).reshape(x.shape), d=nn.Dropout(0.4)), 5, 4
    ),
    "rows of a point apart": layer(
        lambda: Then(
            lambda m, x: m.d(x.transpose(0, 1).reshape(-1, 4)).reshape(5, -1, 4).transpose(0, 1), d=nn.Dropout(0.4)
        ),
        5,
        4,
    ),
    "without an axis of points": layer(lambda: Then(lambda m, x: x * m.d(torch.ones_like(x[0])), d=nn.Dropout(0.4)), 6),
    "two in a row": layer(lambda: Then(lambda m, x: m.b(m.a(x)), a=nn.Dropout(0.4), b=nn.Dropout(0.3)), 6),
    "one called twice": layer(lambda: Then(lambda m, x: m.d(m.d(x)), d=nn.Dropout(0.4)), 6),
}


def build(name: str) -> tuple[nn.Module, Tensor]:
    make, shape = NETS[name]
    return make().double().eval(), zoo.points(shape, 150) + 10


@pytest.mark.parametrize("name", NETS)
def test_masks_are_bitwise_the_same_whatever_the_chunks(name):
    net, x = build(name)
    whole = bnuq.predict(net, x, dropout=bnuq.Dropout(3, seed=2), chunk_size=150)
    for size in (1, 7, 64, 100):
        assert torch.equal(bnuq.predict(net, x, dropout=bnuq.Dropout(3, seed=2), chunk_size=size), whole)


@pytest.mark.parametrize("name", NETS)
def test_passes_and_points_are_dropped_independently(name):
    net, x = build(name)
    dropped = bnuq.predict(net, torch.ones_like(x), dropout=bnuq.Dropout(3))
    assert not any(torch.equal(dropped[s], dropped[t]) for s in range(3) for t in range(s))
    same_for_all_points = torch.equal(dropped, dropped[:, :1].expand_as(dropped))
    assert same_for_all_points == (name == "without an axis of points")


@pytest.mark.parametrize("name", NETS)
def test_more_passes_and_more_points_change_none_of_the_first(name):
    net, x = build(name)
    long = bnuq.predict(net, x, dropout=bnuq.Dropout(5))
    assert torch.equal(bnuq.predict(net, x[:70], dropout=bnuq.Dropout(2)), long[:2, :70])


@pytest.mark.parametrize("name", [n for n in NETS if "lpha" not in n and n not in ("two in a row", "one called twice")])
def test_entries_are_dropped_at_the_rate_and_the_others_scaled(name):
    net, x = build(name)
    ratio = bnuq.predict(net, x, dropout=bnuq.Dropout(40)) / x.flatten(1)
    kept = ratio != 0
    assert torch.allclose(ratio[kept], torch.tensor(1 / 0.6, dtype=torch.float64))
    independent = 40 * 6 if name == "without an axis of points" else kept.numel() / (8 if "3d" in name else 5)
    assert float(kept.double().mean()) == pytest.approx(0.6, abs=5 * (0.24 / independent) ** 0.5)


@pytest.mark.parametrize("name", [n for n in NETS if "1d" in n or "2d" in n or "3d" in n or "Feature" in n])
def test_feature_dropout_drops_whole_channels_and_not_all_alike(name):
    net, x = build(name)
    given = torch.ones_like(x)
    found = bnuq.predict(net, given, dropout=bnuq.Dropout(4)).reshape(4, 150, 3, -1)
    assert torch.equal(found, found[..., :1].expand_as(found))
    assert all(not torch.equal(found[:, :, 0, 0], found[:, :, k, 0]) for k in (1, 2))


@pytest.mark.parametrize("name", ["AlphaDropout", "AlphaDropout in place", "FeatureAlphaDropout"])
def test_alpha_dropout_keeps_mean_and_variance(name):
    net, x = build(name)
    standard = torch.randn(x.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = bnuq.predict(net, standard, dropout=bnuq.Dropout(200))
    assert float(found.mean()) == pytest.approx(float(standard.mean()), abs=0.03)
    assert float(found.var()) == pytest.approx(float(standard.var()), abs=0.06)


@pytest.mark.parametrize("name", ["AlphaDropout", "FeatureAlphaDropout"])
def test_alpha_dropout_takes_the_two_values_that_torch_gives(name):
    net, x = build(name)
    given = torch.full_like(x, 0.7)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        expected = sorted(set(net.train()(given).unique().tolist()))
    net.eval()
    found = sorted(set(bnuq.predict(net, given, dropout=bnuq.Dropout(3)).unique().tolist()))
    assert found == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("kind", [nn.Dropout, nn.Dropout1d, nn.AlphaDropout, nn.FeatureAlphaDropout])
def test_a_rate_of_one_gives_zeros(kind, in_place):
    found = bnuq.predict(
        nn.Sequential(kind(1.0, inplace=in_place), nn.Flatten()), torch.ones(4, 2, 3), dropout=bnuq.Dropout(2)
    )
    assert torch.equal(found, torch.zeros(2, 4, 6))


def test_masks_are_drawn_from_seed_draw_site_and_tile_of_64_points():
    net, x = build("two in a row")
    found = bnuq.predict(net, x, dropout=bnuq.Dropout(3, seed=7), chunk_size=40)
    for t in range(3):
        expected = x.clone()
        for site, p in enumerate((0.4, 0.3)):
            tiles = []
            for tile in range(3):
                generator = torch.Generator().manual_seed(keyed.mask_seed(7, t, site=site, tile=tile))
                tiles.append(torch.empty(64, 6).bernoulli_(1 - p, generator=generator))
            expected = expected * torch.cat(tiles)[:150].double() / (1 - p)
        assert torch.allclose(found[t], expected, rtol=1e-14)


def test_dropout_does_not_touch_batchnorm_nor_batchnorm_dropout():
    net = zoo.settled(lambda: nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Dropout(0.5), nn.Linear(5, 3)), (4,))
    x = zoo.points((4,), 8)
    with torch.no_grad():
        h = net[1](net[0](x))
        mean = bnuq.predict(nn.Sequential(net[2]).eval(), h, dropout=bnuq.Dropout(1))
        expected = net[3](mean[0])
    assert torch.allclose(bnuq.predict(net, x, dropout=bnuq.Dropout(1))[0], expected, rtol=1e-12)
    omega = bnuq.draw(net, x, samples=2, batch_size=4)
    by_hand = [zoo.statistics_by_hand(net, x[torch.from_numpy(rows)], {0}) for rows in omega.indices]
    torch.testing.assert_close(bnuq.predict(net, x, omega), zoo.predicted_by_hand(net, x, by_hand))


def test_where_the_points_lie_is_found_out():
    axes = {name: find_sites(*build(name)).dropouts[0] for name in NETS}
    assert (axes["sequence first"].batch_axis, axes["sequence first"].rows) == (1, 1)
    assert (axes["rows of a point together"].batch_axis, axes["rows of a point together"].rows) == (0, 5)
    assert (axes["rows of a point apart"].rows, axes["rows of a point apart"].interleaved) == (5, True)
    assert not any(site.interleaved for name, site in axes.items() if name != "rows of a point apart")
    assert axes["without an axis of points"].batch_axis is None
    assert (axes["Dropout3d"].batch_axis, axes["Dropout3d"].rows) == (0, 1)


def test_a_dropout_whose_size_does_not_follow_the_points_is_named():
    net = Then(lambda m, x: x + m.d(x @ x.T).sum(1, keepdim=True), d=nn.Dropout(0.5)).eval()
    (site,) = find_sites(net, torch.randn(3, 4)).dropouts
    assert not site.stochastic and "does not grow in proportion" in site.reason
    net = Then(lambda m, x: x + m.d(torch.cat([x[:1], x]))[1:], d=nn.Dropout(0.5)).eval()
    (site,) = find_sites(net, torch.randn(3, 4)).dropouts
    assert not site.stochastic and "does not grow in proportion" in site.reason
