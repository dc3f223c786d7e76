"""ω and what it predicts, for every kind of BatchNorm, against BatchNorm written out by hand."""

from __future__ import annotations

import copy

import at_night
import numpy as np
import pytest
import torch
import zoo
from torch import Tensor, nn
from torch.testing import assert_close

import bnuq
from bnuq.errors import RequestError
from bnuq.sampling.site_search import find_sites

KINDS = pytest.mark.parametrize("kind", at_night.every_third(zoo.KINDS))
EXACT = {"rtol": 1e-9, "atol": 1e-10}


@KINDS
def test_f_of_omega_equals_the_training_forward_of_its_own_batch(kind):
    net, batch = zoo.made(kind), zoo.points(kind, 9)
    omega = bnuq.statistics_of(net, batch[None])
    assert_close(bnuq.predict(net, batch, omega)[0], zoo.trained_forward(net, batch), **EXACT)


@KINDS
def test_f_of_omega_equals_the_training_forward_in_float32(kind):
    net, batch = zoo.made(kind, torch.float32), zoo.points(kind, 9, dtype=torch.float32)
    expected = zoo.trained_forward(net, batch)
    found = bnuq.predict(net, batch, bnuq.statistics_of(net, batch[None]))[0]
    assert found.dtype == torch.float32
    assert_close(found, expected, rtol=1e-5, atol=1e-5 * float(expected.abs().max()))


@KINDS
def test_statistics_are_those_of_the_batch_normalised_by_itself_all_the_way_up(kind):
    net, batches = zoo.made(kind), zoo.points(kind, 14).reshape(2, 7, *zoo.KINDS[kind][1])
    omega = bnuq.statistics_of(net, batches)
    calls = zoo.KINDS[kind][2]
    assert len(omega.layers) == calls
    for t in range(2):
        expected = zoo.statistics_by_hand(net, batches[t], set(range(calls)))
        for call, layer in enumerate(omega.layers):
            mean, var = expected[call]
            np.testing.assert_allclose(layer.mean[t], mean.numpy(), rtol=1e-9, atol=1e-12)
            np.testing.assert_allclose(layer.var[t], var.numpy(), rtol=1e-9, atol=1e-12)


@KINDS
def test_predictions_are_those_of_a_loop_by_hand(kind):
    net, x = zoo.made(kind), zoo.points(kind, 5, seed=1)
    batches = zoo.points(kind, 24).reshape(3, 8, *zoo.KINDS[kind][1])
    by_hand = [zoo.statistics_by_hand(net, batch, set(range(zoo.KINDS[kind][2]))) for batch in batches]
    found = bnuq.predict(net, x, bnuq.statistics_of(net, batches))
    assert_close(found, zoo.predicted_by_hand(net, x, by_hand), **EXACT)


def test_predictions_are_those_of_a_copy_whose_buffers_were_set_to_the_draw():
    net, x = zoo.made("nested"), zoo.points("nested", 5)
    omega = bnuq.draw(net, zoo.points("nested", 40, seed=2), samples=3, batch_size=8)
    for t, found in enumerate(bnuq.predict(net, x, omega)):
        twin = copy.deepcopy(net)
        for layer in omega.layers:
            module = twin.get_submodule(layer.name)
            module.running_mean.copy_(torch.from_numpy(layer.mean[t]))
            module.running_var.copy_(torch.from_numpy(layer.var[t]))
        with torch.no_grad():
            assert_close(found, twin(x), **EXACT)


def test_the_variance_is_the_biased_one():
    net = nn.Sequential(nn.BatchNorm1d(1), nn.Linear(1, 2)).double().eval()
    layer = bnuq.statistics_of(net, torch.tensor([[[0.0], [2.0]]], dtype=torch.float64)).layers[0]
    assert layer.mean.item() == 1 and layer.var.item() == 1  # 2 without the bias


def test_counts_are_the_values_per_channel():
    layers = bnuq.statistics_of(zoo.made("2d"), zoo.points("2d", 18).reshape(2, 9, 2, 4, 5)).layers
    assert layers[0].count.tolist() == [9 * 4 * 5] * 2
    assert layers[1].count.tolist() == [9 * 3 * 4] * 2


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("shape", [(64, 3, 4, 4), (64, 3, 1, 1)])
def test_float32_statistics_are_sound_where_the_mean_dwarfs_the_spread(layout, shape):
    net = nn.Sequential(nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(3 * shape[2] * shape[3], 2)).eval()
    batch = (1e4 + torch.randn(shape, generator=torch.Generator().manual_seed(0))).contiguous(memory_format=layout)
    layer = bnuq.statistics_of(net, [batch]).layers[0]
    exact = batch.double().transpose(0, 1).reshape(3, -1)
    np.testing.assert_allclose(layer.mean[0], exact.mean(1).numpy(), rtol=2e-7)
    np.testing.assert_allclose(layer.var[0], exact.var(1, correction=0).numpy(), rtol=1e-3)


def test_layers_are_in_execution_order_not_in_order_of_registration():
    omega = bnuq.statistics_of(zoo.made("nested"), zoo.points("nested", 8)[None])
    assert [layer.name for layer in omega.layers] == ["stem", "body.0.bn", "body.1.bn", "head.bn"]


def test_a_shortcut_layer_is_found_where_it_is_called():
    sites = find_sites(zoo.made("in a shortcut"), zoo.points("in a shortcut", 3)).batchnorms
    assert [site.name for site in sites] == ["shortcut.1", "main.1", "main.4"]


def test_a_layer_called_twice_has_statistics_for_each_call():
    first, second = bnuq.statistics_of(zoo.made("called twice"), zoo.points("called twice", 8)[None]).layers
    assert (first.name, second.name) == ("bn", "bn#2")
    assert not np.allclose(first.mean, second.mean)


SELECTIONS = {
    "first:1": {0}, "first:3": {0, 1, 2}, "last:1": {3}, "last:2": {2, 3}, "body.*": {1, 2}, "*.bn": {1, 2, 3},
    ("stem", "head.*"): {0, 3}, ("head.bn", "stem"): {0, 3},
}  # fmt: skip


@pytest.mark.parametrize("layers", SELECTIONS)
def test_layers_that_are_not_selected_keep_their_running_statistics_in_both_phases(layers):
    net, x, batch = zoo.made("nested"), zoo.points("nested", 5, seed=1), zoo.points("nested", 8)
    omega = bnuq.statistics_of(net, batch[None], layers=layers if isinstance(layers, str) else list(layers))
    by_hand = zoo.statistics_by_hand(net, batch, SELECTIONS[layers])
    assert len(omega.layers) == len(by_hand)
    for layer, call in zip(omega.layers, sorted(by_hand), strict=True):
        np.testing.assert_allclose(layer.mean[0], by_hand[call][0].numpy(), rtol=1e-9, atol=1e-12)
    assert_close(bnuq.predict(net, x, omega), zoo.predicted_by_hand(net, x, [by_hand]), **EXACT)


@pytest.mark.parametrize("layers", ["first:0", "last:5", "first:", "first:x", "first:-1"])
def test_a_count_out_of_range_is_refused_with_the_range(layers):
    with pytest.raises(RequestError, match=r"expected (first|last):k with k from 1 to 4"):
        bnuq.statistics_of(zoo.made("nested"), zoo.points("nested", 8)[None], layers=layers)


def test_a_pattern_that_matches_nothing_is_refused_with_the_names():
    with pytest.raises(RequestError, match=r'"tail\*" matches no .*stem, body\.0\.bn, body\.1\.bn, head\.bn'):
        bnuq.statistics_of(zoo.made("nested"), zoo.points("nested", 8)[None], layers=["stem", "tail*"])


def test_a_bank_without_layers_of_the_query_network_is_evaluation_mode_for_every_draw():
    net, x = zoo.made("nested"), zoo.points("nested", 5)
    omega = bnuq.statistics_of(net, zoo.points("nested", 16).reshape(2, 8, 4), layers="last:1")
    running = net.head.bn
    frozen = copy.deepcopy(omega)
    for t in range(2):
        frozen.layers[0].mean[t] = running.running_mean.numpy()
        frozen.layers[0].var[t] = running.running_var.numpy()
    with torch.no_grad():
        expected = net(x)
    for found in bnuq.predict(net, x, frozen):
        assert_close(found, expected, **EXACT)


def double(kind: str) -> tuple[nn.Module, Tensor]:
    return zoo.made(kind), zoo.points(kind, 30)


def test_a_constant_added_ahead_of_a_stochastic_layer_changes_no_prediction():
    net, train = double("1d on (N, C)")
    moved = copy.deepcopy(net)
    with torch.no_grad():
        moved[0].bias.add_(3.0)
    x = zoo.points((4,), 5, seed=1)
    one, two = (bnuq.predict(n, x, bnuq.draw(n, train, samples=3, batch_size=8)) for n in (net, moved))
    assert_close(one, two, **EXACT)


def test_a_scale_ahead_of_a_stochastic_layer_without_eps_changes_no_prediction():
    net, train = double("1d on (N, C)")
    net[1].eps = 0.0
    scaled = copy.deepcopy(net)
    with torch.no_grad():
        scaled[0].weight.mul_(7.0)
        scaled[0].bias.mul_(7.0)
    x = zoo.points((4,), 5, seed=1)
    one, two = (bnuq.predict(n, x, bnuq.draw(n, train, samples=3, batch_size=8)) for n in (net, scaled))
    assert_close(one, two, **EXACT)


def test_the_order_within_a_batch_changes_nothing():
    net, batch = zoo.made("2d"), zoo.points("2d", 9)
    one, two = (bnuq.statistics_of(net, b[None]) for b in (batch, batch.flip(0)))
    for a, b in zip(one.layers, two.layers, strict=True):
        np.testing.assert_allclose(a.mean, b.mean, rtol=1e-12, atol=1e-13)
        np.testing.assert_allclose(a.var, b.var, rtol=1e-12, atol=1e-13)


def test_the_whole_reference_as_the_batch_gives_the_same_passes():
    net, train = double("2d")
    found = bnuq.predict(net, train[:4], bnuq.draw(net, train, samples=4, batch_size=30))
    assert_close(found, found[:1].expand_as(found), rtol=1e-12, atol=1e-12)


def test_smaller_batches_differ_and_so_do_the_passes():
    net, train = double("2d")
    found = bnuq.predict(net, train[:4], bnuq.draw(net, train, samples=4, batch_size=8))
    assert all(float((found[s] - found[t]).abs().max()) > 1e-3 for s in range(4) for t in range(s))


def test_the_first_draws_of_a_longer_run_are_those_of_a_shorter_one():
    net, train = double("2d")
    long, short = (bnuq.draw(net, train, samples=t, batch_size=8, seed=5) for t in (7, 3))
    assert np.array_equal(long.indices[:3], short.indices)
    for a, b in zip(long.layers, short.layers, strict=True):
        assert np.array_equal(a.mean[:3], b.mean) and np.array_equal(a.var[:3], b.var)


def test_a_smaller_batch_is_the_beginning_of_a_larger_one():
    net, train = double("2d")
    large, small = (bnuq.draw(net, train, samples=3, batch_size=b, seed=5) for b in (20, 6))
    assert np.array_equal(large.indices[:, :6], small.indices)


def test_draws_are_those_of_the_batches_whose_rows_they_record():
    net, train = double("2d")
    omega = bnuq.draw(net, train.numpy(), samples=3, batch_size=8, seed=1)
    again = bnuq.statistics_of(net, (train[torch.from_numpy(rows)] for rows in omega.indices))
    assert all(np.array_equal(a.mean, b.mean) for a, b in zip(omega.layers, again.layers, strict=True))
    assert (omega.seed, omega.batch_size, omega.samples) == (1, 8, 3)


def test_another_seed_gives_other_draws():
    net, train = double("2d")
    one, two = (bnuq.draw(net, train, samples=2, batch_size=8, seed=s) for s in (0, 1))
    assert not np.allclose(one.layers[0].mean, two.layers[0].mean)


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
@pytest.mark.parametrize("form", ["scripted", "traced"])
def test_a_compiled_form_of_the_network_gives_the_same(form):
    net, batch, x = zoo.made("2d"), zoo.points("2d", 9), zoo.points("2d", 5, seed=1)
    other = torch.jit.script(net) if form == "scripted" else torch.jit.trace(net, batch)
    expected = bnuq.predict(net, x, bnuq.statistics_of(net, batch[None]))
    assert_close(bnuq.predict(other, x, bnuq.statistics_of(other, batch[None])), expected, **EXACT)
    assert (
        len({float(v) for v in bnuq.predict(other, x, bnuq.draw(other, batch, samples=3, batch_size=4))[:, 0, 0]}) == 3
    )
