"""Dropout masks: by key, never by the order of calls or the chunks; and dropping what they should."""

from __future__ import annotations

from fractions import Fraction
from itertools import combinations

import at_night
import pytest
import torch
import zoo
from torch import Tensor, nn
from torch.nn import functional as F
from zoo import Wrapped

import bnuq
from bnuq.errors import SamplingError
from bnuq.sampling import counter_rng
from bnuq.sampling.counter_rng import MaskKey
from bnuq.sampling.dropout import dropped
from bnuq.sampling.interception import DropoutCall
from bnuq.sampling.site_search import find_sites
from bnuq.sampling.sites import DropoutSite


class Then(Wrapped):
    """The input through something, flattened."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).flatten(1)


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
    "channels that hold all points": layer(
        lambda: Then(lambda m, x: m.d(x.movedim(0, -1)).movedim(-1, 0), d=nn.Dropout2d(0.4)), 3, 2, 2
    ),
    "two in a row": layer(lambda: Then(lambda m, x: m.b(m.a(x)), a=nn.Dropout(0.4), b=nn.Dropout(0.3)), 6),
    "one called twice": layer(lambda: Then(lambda m, x: m.d(m.d(x)), d=nn.Dropout(0.4)), 6),
}
ONE_MASK_A_PASS = "without an axis of points", "channels that hold all points"


def build(name: str) -> tuple[nn.Module, Tensor]:
    make, shape = NETS[name]
    return make().double().eval(), zoo.points(shape, 70) + 10


@pytest.mark.parametrize("name", at_night.every_third(NETS))
def test_masks_are_bitwise_the_same_whatever_the_chunks(name):
    net, x = build(name)
    whole = bnuq.predict(net, x, dropout=bnuq.Dropout(3, seed=2), chunk_size=150)
    for size in (1, 7, 64):
        assert torch.equal(bnuq.predict(net, x, dropout=bnuq.Dropout(3, seed=2), chunk_size=size), whole)


@pytest.mark.parametrize("name", at_night.every_third(NETS))
def test_passes_and_points_are_dropped_independently(name):
    net, x = build(name)
    dropped = bnuq.predict(net, torch.ones_like(x), dropout=bnuq.Dropout(3))
    assert not any(torch.equal(dropped[s], dropped[t]) for s in range(3) for t in range(s))
    assert torch.equal(dropped, dropped[:, :1].expand_as(dropped)) == (name in ONE_MASK_A_PASS)


@pytest.mark.parametrize("name", at_night.but([*NETS][::3], NETS))
def test_the_chunk_size_changes_no_mask_of_constant_points(name):
    net, x = build(name)
    for points in (torch.ones_like(x), torch.zeros_like(x)):
        whole = bnuq.predict(net, points, dropout=bnuq.Dropout(2))
        assert torch.equal(bnuq.predict(net, points, dropout=bnuq.Dropout(2), chunk_size=50), whole)


@pytest.mark.parametrize("name", at_night.but([*NETS][::3], NETS))
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
    independent = 40 * 6 if name in ONE_MASK_A_PASS else kept.numel() / (8 if "3d" in name else 5)
    assert float(kept.double().mean()) == pytest.approx(0.6, abs=5 * (0.24 / independent) ** 0.5)


@pytest.mark.parametrize("name", [n for n in NETS if "1d" in n or "2d" in n or "3d" in n or "Feature" in n])
def test_feature_dropout_drops_whole_channels_and_not_all_alike(name):
    net, x = build(name)
    given = torch.ones_like(x)
    found = bnuq.predict(net, given, dropout=bnuq.Dropout(4)).reshape(4, len(given), 3, -1)
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


def test_masks_are_drawn_from_seed_draw_site_and_point():
    net = Then(lambda m, x: m.b(m.a(x)), a=nn.Dropout(0.5), b=nn.Dropout(0.25)).eval()
    x = zoo.points((6,), 150)
    found = bnuq.predict(net, x, dropout=bnuq.Dropout(3, seed=7), chunk_size=40)
    for t in range(3):
        expected = x
        for site, p in enumerate((0.5, 0.25)):
            bits = counter_rng.quarters(7, [t], counter_rng.MASK, 0, 150 * 6, site=site)
            expected = expected * torch.from_numpy(bits >= p * 2**16).view(150, 6) / (1 - p)
        assert torch.allclose(found[t], expected, rtol=1e-14)


@pytest.mark.parametrize("name", at_night.every_third(NETS))
def test_a_run_is_extended_by_its_next_passes(name):
    net, x = build(name)
    longer = bnuq.predict(net, x, dropout=bnuq.Dropout(5, seed=3))
    assert torch.equal(bnuq.predict(net, x, dropout=bnuq.Dropout(2, seed=3, first=3)), longer[3:])


def test_a_run_begins_with_no_draw_before_the_first():
    with pytest.raises(SamplingError, match="first is -1; expected a whole number of at least 0"):
        bnuq.Dropout(2, first=-1)


# shape of 70 points' input, and how they lie in it
LAYOUTS = {
    "first": ((70, 6), {"batch_axis": 0}),
    "second": ((5, 70, 3), {"batch_axis": 1}),
    "rows together": ((350, 3), {"batch_axis": 0, "rows": 5}),
    "rows apart": ((350, 3), {"batch_axis": 0, "rows": 5, "interleaved": True}),
    "rows apart in the second": ((2, 210, 4), {"batch_axis": 1, "rows": 3, "interleaved": True}),
    "maps": ((70, 3, 2, 2), {"batch_axis": 0}),
    "in a channel": ((2, 3, 70), {"batch_axis": 2}),
}
VARIETIES = "dropout", "feature_dropout", "alpha_dropout", "feature_alpha_dropout"


def blocks(inputs: list[Tensor], site: DropoutSite) -> Tensor:
    axis = site.batch_axis
    assert axis is not None
    if site.interleaved:
        return torch.cat([x.unflatten(axis, (site.rows, -1)) for x in inputs], dim=axis + 1).flatten(axis, axis + 1)
    return torch.cat(inputs, dim=axis)


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("variety", VARIETIES)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("p", [0.3, 1.0])
def test_draws_that_pass_together_are_dropped_as_one_by_one(layout, variety, in_place, p):
    shape, axes = LAYOUTS[layout]
    site = DropoutSite("d", order=2, p=p, variety=variety, **axes)
    dropout, draws = bnuq.Dropout(9, seed=1, first=4), [3, 4, 8]
    inputs = [torch.randn(shape, generator=torch.Generator().manual_seed(k)) for k in range(3)]
    alone = [
        dropped(DropoutCall(x, p, variety, False, False), site, dropout, [draw], 10)
        for x, draw in zip(inputs, draws, strict=True)
    ]
    together = blocks(inputs, site)
    found = dropped(DropoutCall(together, p, variety, in_place, False), site, dropout, draws, 10)
    assert torch.equal(found, blocks(alone, site))
    assert (found is together) == in_place
    assert (
        not any(torch.equal(one == 0, two == 0) for one, two in combinations(alone, 2)) or p == 1 or "alpha" in variety
    )


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_type_and_layout_of_the_input_are_kept(dtype):
    x = torch.ones(4, 3, 5, 5, dtype=dtype).to(memory_format=torch.channels_last)
    for variety in VARIETIES:
        site = DropoutSite("d", order=0, p=0.5, variety=variety, batch_axis=0)
        found = dropped(DropoutCall(x, 0.5, variety, False, False), site, bnuq.Dropout(1), [0], 0)
        assert found.dtype == dtype and found.is_contiguous(memory_format=torch.channels_last)


def masks(seed: int, draws: list[int], site: int, p: float, first: int, count: int) -> Tensor:
    return torch.from_numpy(counter_rng.kept(MaskKey(seed, tuple(draws), site, p), first, count))


@pytest.mark.parametrize("p", [2**-17, 0.001, 0.05, 0.3, 0.5, 0.9, 1 - 2**-17])
def test_the_rate_is_kept_to_more_than_16_bits(p):
    n = 2**22 if min(p, 1 - p) < 2**-16 else 2**20
    mask = masks(5, [0, 1], 0, p, 0, n // 2)
    assert mask.dtype == torch.uint8 and mask.shape == (2, n // 2) and int(mask.max()) == 1
    assert int(mask.sum()) == pytest.approx(n * (1 - p), abs=4 * (n * p * (1 - p)) ** 0.5)


def test_a_uniform_number_of_80_bits_is_compared_with_the_rate():
    high = counter_rng.quarters(1, [2], counter_rng.MASK, 7, 300, site=3)[0]
    low = [counter_rng.words(1, 2, counter_rng.MASK_TIE, 1, site=3, block=7 + i)[0] for i in range(300)]
    uniform = [Fraction((int(h) << 64) + int(w), 2**80) for h, w in zip(high, low, strict=True)]
    for middle in (0, 100, 299):  # rates next to a number, of which 16 bits cannot tell
        for p in (float(uniform[middle]) * (1 - 1e-15), float(uniform[middle]) * (1 + 1e-15), 0.1, 2**-60, 1 - 2**-53):
            assert masks(1, [2], 3, p, 7, 300)[0].tolist() == [u >= p for u in uniform]


def test_an_entry_does_not_depend_on_what_is_drawn_with_it():
    whole = masks(1, [0, 1, 2, 3], 2, 0.3, 0, 500)
    for first, count in ((0, 1), (3, 64), (63, 2), (16, 484), (499, 1)):
        assert torch.equal(masks(1, [3, 1], 2, 0.3, first, count), whole[[3, 1], first : first + count])


@pytest.mark.parametrize("p", [0.05, 0.5])
def test_seeds_draws_sites_and_entries_are_independent(p):
    n = 2**17
    given = [(0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1), (0, 2, 0), (0, 3, 1), (2**62, 0, 0), (0, 2**40, 0)]
    drawn = torch.cat([masks(seed, [draw], site, p, 0, 2 * n) for seed, draw, site in given]).double()
    drawn = (drawn - (1 - p)) / (p * (1 - p)) ** 0.5
    here, next_tile = drawn[:, :n], drawn[:, n:]
    correlations = [here @ here.T, here @ next_tile.T]
    correlations += [here @ drawn[:, lag : n + lag].T for lag in (1, 2, 4, 16, 64, 64 * 50)]
    found = torch.stack(correlations) / n
    found[0].fill_diagonal_(0)
    assert float(found.abs().max()) < 5 / n**0.5  # 512 of them: a normal one beyond 5 once in 1.7 million


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
