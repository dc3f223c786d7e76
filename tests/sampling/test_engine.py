"""The planned engine: on every network it gives what the plain loop gives, or says why it leaves it to the loop."""

from __future__ import annotations

import weakref
from dataclasses import replace

import adversaries
import at_night
import numpy as np
import pytest
import torch
import zoo
from adversaries import ADVERSARIES, Net
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F
from torch.testing import assert_close

import bnuq
from bnuq import devices, metrics
from bnuq.arithmetic import Arithmetic, arithmetic_named
from bnuq.errors import ModelError, SamplingError
from bnuq.sampling import counter_rng, executor, measure, program, statistics
from bnuq.sampling.batch_statistics import BatchStatistics
from bnuq.sampling.engine import Stochastic, chunks
from bnuq.sampling.interception import undisturbed
from bnuq.sampling.measure import MeasurementProgram, merged, moments
from bnuq.sampling.plain_loop import PlainLoop
from bnuq.sampling.site_search import find_sites
from bnuq.sampling.sites import Sites
from bnuq.tasks import REGRESSION

EVERY = pytest.mark.parametrize("name", at_night.every_third(ADVERSARIES))
ROWS = 21
OTHERWISE = "its recorded operations give different outputs"


def close(found: Tensor, expected: Tensor, tolerance: float = 1e-9) -> None:
    assert_close(found, expected, rtol=0, atol=tolerance * float(expected.abs().max()))


def sites_of(net: nn.Module, x: Tensor) -> Sites:
    return find_sites(net, x[:3], compare_with_training=False)


def methods(net: nn.Module, x: Tensor, reference: Tensor) -> list[dict]:
    """ω, dropout, and both: what of it the network has."""
    omega, dropout = statistics_taken(net, reference), bnuq.Dropout(len(reference), seed=1)
    alive = sites_of(net, x).live_dropouts
    return [{"omega": omega}, *([{"dropout": dropout}, {"omega": omega, "dropout": dropout}] if alive else [])]


def compiled_and_plain(net: nn.Module, x: Tensor, **stochastic: object) -> tuple[Stochastic, PlainLoop]:
    sites = sites_of(net, x)
    return Stochastic(net, sites, **stochastic), PlainLoop(net, sites, **stochastic)


def stack(monkeypatch: pytest.MonkeyPatch, *, stacked: bool) -> None:
    monkeypatch.setitem(devices._TRAITS, "cpu", replace(devices.traits("cpu"), stacked_entries=2**30 if stacked else 0))


def small_tiles(monkeypatch: pytest.MonkeyPatch, rows: int) -> None:
    monkeypatch.setattr(program, "tile_rows", lambda *_: rows)


def statistics_taken(net: nn.Module, batches: Tensor) -> BatchStatistics:
    """ω of any network, also of those that a user would be refused or warned of."""
    return bnuq.statistics_of(net, batches, layers=sites_of(net, batches[0]).live_batchnorms)


def drawn(net: nn.Module, x: Tensor, samples: int = 3) -> BatchStatistics:
    size = max(4, len(x) // 2)
    rows = [counter_rng.batch_indices(0, t, population=len(x), batch_size=size) for t in range(samples)]
    return statistics_taken(net, x[torch.from_numpy(np.stack(rows))])


# The same as the plain loop


@EVERY
def test_passes_are_those_of_the_plain_loop(name, monkeypatch):
    small_tiles(monkeypatch, 5)
    net, x = adversaries.made(name), adversaries.points(name, ROWS)
    given, reference = x.clone(), torch.stack([adversaries.points(name, 9, seed=seed) for seed in (5, 6, 7)])
    for stochastic in methods(net, x, reference):
        sites = sites_of(net, x)
        plain = PlainLoop(net, sites, **stochastic)
        of_rows = (ROWS, 2) if ADVERSARIES[name].why_plain else (ROWS, 8, 2, 3)
        expected = {rows: plain.passes(x[:rows], 4) for rows in of_rows}
        for stacked in (False, True):
            stack(monkeypatch, stacked=stacked)
            engine = Stochastic(net, sites, **stochastic)
            for rows, values in expected.items():
                close(engine.passes(x[:rows], 4), values)
            assert engine.why_plain == ADVERSARIES[name].why_plain
    assert torch.equal(x, given)


@pytest.mark.parametrize("name", at_night.but([*ADVERSARIES][::4], ADVERSARIES))  # in float64 all are
def test_passes_in_float32_are_those_of_the_plain_loop_up_to_rounding(name, monkeypatch):
    small_tiles(monkeypatch, 8)
    net, x = (
        make(*a, dtype=torch.float32) for make, a in ((adversaries.made, [name]), (adversaries.points, [name, ROWS]))
    )
    engine, plain = compiled_and_plain(net, x, omega=drawn(net, x))
    found = engine.passes(x)
    assert found.dtype == torch.float32
    close(found, plain.passes(x), 1e-4)
    assert engine.why_plain == ADVERSARIES[name].why_plain


@EVERY
def test_statistics_taken_in_tiles_are_those_of_the_plain_way(name, monkeypatch):
    small_tiles(monkeypatch, 4)
    net = adversaries.made(name)
    batches = [adversaries.points(name, rows, seed=rows) for rows in (9, 9)]
    given = [batch.clone() for batch in batches]
    found = statistics_taken(net, batches)
    monkeypatch.setattr(statistics, "record", refuse)
    for a, b in zip(found.layers, statistics_taken(net, batches).layers, strict=True):
        np.testing.assert_allclose(a.mean, b.mean, rtol=1e-9, atol=1e-9 * np.abs(b.mean).max())
        np.testing.assert_allclose(a.var, b.var, rtol=1e-9, atol=1e-9 * b.var.max())
        assert np.array_equal(a.count, b.count)
    assert all(torch.equal(a, b) for a, b in zip(batches, given, strict=True))


def refuse(*_: object) -> None:
    raise statistics.NotTraceableError("a test wants it so")


@pytest.mark.parametrize("kind", at_night.every_third(zoo.KINDS))
def test_every_kind_of_batchnorm_is_planned(kind, monkeypatch):
    small_tiles(monkeypatch, 5)
    net, x = zoo.made(kind), zoo.points(kind, ROWS)
    engine, plain = compiled_and_plain(net, x, omega=drawn(net, x))
    close(engine.passes(x), plain.passes(x))
    assert engine.why_plain == "" and engine.work(ROWS) is not None
    with undisturbed(net):
        assert isinstance(statistics._compiled(net, sites_of(net, x).live_batchnorms, x, "biased"), MeasurementProgram)


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
@pytest.mark.parametrize("form", ["scripted", "traced"])
@pytest.mark.parametrize("kind", ["2d", "in a shortcut", "transposed"])
def test_every_form_of_a_network_is_planned(kind, form):
    if kind == "transposed":
        net, x = zoo.settled(transposed, (4, 5, 5)), zoo.points((4, 5, 5), ROWS)
    else:
        net, x = zoo.made(kind), zoo.points(kind, ROWS)
    other = torch.jit.script(net) if form == "scripted" else torch.jit.trace(net, x)
    engine, _ = compiled_and_plain(other, x, omega=drawn(other, x))
    _, plain = compiled_and_plain(net, x, omega=drawn(net, x))
    close(engine.passes(x), plain.passes(x))
    assert engine.why_plain == ""


def transposed() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4), nn.ReLU(inplace=True),
        nn.ConvTranspose2d(4, 4, 2, stride=2), nn.BatchNorm2d(4), nn.ReLU(inplace=True),
        nn.ConvTranspose2d(4, 4, 3, groups=2), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(256, 3),
    )  # fmt: skip


def test_a_transposed_convolution_with_groups_is_not_folded():
    net, x = zoo.settled(transposed, (4, 5, 5)), zoo.points((4, 5, 5), ROWS)
    engine, plain = compiled_and_plain(net, x, omega=drawn(net, x))
    close(engine.passes(x), plain.passes(x))
    assert (
        engine.work(ROWS) is not None and engine.work(ROWS).folded == 1
    )  # the second BatchNorm; the first is drawn from the data


@pytest.mark.parametrize("layout", ["channels last", "every second row", "transposed images"])
def test_inputs_may_lie_in_memory_as_they_like(layout):
    net, x = zoo.made("in a shortcut"), zoo.points("in a shortcut", 2 * ROWS)
    engine, plain = compiled_and_plain(net, x, omega=drawn(net, x))
    other = {
        "channels last": lambda: x.contiguous(memory_format=torch.channels_last),
        "every second row": lambda: x[::2],
        "transposed images": lambda: x.transpose(2, 3),
    }[layout]()
    close(engine.passes(other), plain.passes(other.contiguous()))


def test_a_channel_without_variance_and_weights_of_nan_are_no_obstacle():
    net, x = zoo.made("2d"), zoo.points("2d", ROWS)
    with torch.no_grad():
        net[3].weight[1], net[3].bias[1] = 0.0, 0.7
    omega = drawn(net, x)
    assert np.abs(omega.layers[1].var[:, 1]).max() < 1e-20
    engine, plain = compiled_and_plain(net, x, omega=omega)
    close(engine.passes(x), plain.passes(x))
    with torch.no_grad():
        net[7].weight[0, 0] = float("nan")
    engine, plain = compiled_and_plain(net, x, dropout=None)
    assert_close(engine.passes(x), plain.passes(x), equal_nan=True)
    assert engine.why_plain == ""


def test_unselected_layers_that_normalise_by_their_batch_see_the_whole_of_it(monkeypatch):
    small_tiles(monkeypatch, 4)
    net, batch = zoo.made("without running statistics"), zoo.points("1d on (N, C)", 11)
    found = bnuq.statistics_of(net, batch[None], layers="last:1")
    monkeypatch.setattr(statistics, "record", refuse)
    expected = bnuq.statistics_of(net, batch[None], layers="last:1")
    np.testing.assert_allclose(found.layers[0].mean, expected.layers[0].mean, rtol=1e-10)
    np.testing.assert_allclose(found.layers[0].var, expected.layers[0].var, rtol=1e-10)


@pytest.mark.parametrize(
    "name", ["rows_numbered", "one_point_squeezed", "points_that_know_their_place", "points_that_know_one_another"]
)
def test_a_plan_that_was_made_from_one_point_holds_for_many(name, monkeypatch):
    small_tiles(monkeypatch, 5)
    net, x = adversaries.made(name), adversaries.points(name, ROWS)
    engine, plain = compiled_and_plain(net, x, omega=drawn(net, x))
    engine.prepare(x[:1])
    close(engine.passes(x), plain.passes(x))
    assert engine.why_plain == ADVERSARIES[name].why_plain


def test_a_network_that_squeezes_takes_a_single_point_as_it_takes_it_among_others():
    net, x = adversaries.made("one_point_squeezed"), adversaries.points("one_point_squeezed", ROWS)
    engine, plain = compiled_and_plain(net, x, omega=drawn(net, x))
    close(engine.passes(x[7:8]), plain.passes(x)[:, 7:8])


@pytest.mark.parametrize("stacked", [False, True])
def test_the_chunk_size_changes_no_output_of_mixed_draws(stacked, monkeypatch):
    stack(monkeypatch, stacked=stacked)
    net, x = adversaries.made("points_repeated"), adversaries.points("points_repeated", 40)
    stochastic = {"omega": drawn(net, x), "dropout": bnuq.Dropout(3, seed=1)}
    whole = bnuq.predict(net, x, **stochastic, chunk_size=40)
    for size in (1, 3, 17):
        close(bnuq.predict(net, x, **stochastic, chunk_size=size), whole)


# Where there is no plan


def dense(forward) -> tuple[nn.Module, Tensor]:
    def make() -> nn.Module:
        net = Net(forward, fc=nn.Linear(4, 4), bn=nn.BatchNorm1d(4))
        net.register_buffer("seen", torch.zeros(4))
        return net

    return zoo.settled(make, (4,)), zoo.points((4,), ROWS)


def random_numbers(m, x):
    return m.last(m.bn(m.fc(x)) + 0 * torch.poisson(x.abs()))


def dropout_inside_attention(m, x):
    y = m.bn(m.fc(x)).view(-1, 1, 2, 2)
    return m.last(F.scaled_dot_product_attention(y, y, y, dropout_p=0.5).flatten(1))


def buffers_written(m, x):
    m.seen.add_(1)
    return m.last(m.bn(m.fc(x)))


def tensors_made_in_python(m, x):
    return m.last(m.bn(m.fc(x)) + 0 * torch.tensor([[float(i)] for i in range(len(x))], dtype=x.dtype))


def inputs_of_its_own_kind(m, x):
    if any(row[2] != 11 for row in x.tolist()):
        raise ValueError("no such inputs")
    return m.last(m.bn(m.fc(x)))


def truth_of_data(m, x):
    y = m.bn(m.fc(x))
    return m.last(-y if torch.equal(x, x + 1) else y)


def path_of_many_points(m, x):
    y = m.bn(m.fc(x))
    return m.last(torch.tanh(y) if len(x) > 4 else y)


def path_of_two_points(m, x):
    y = m.bn(m.fc(x))
    return m.last(torch.tanh(y) if len(x) == 2 else torch.sigmoid(y))


@pytest.mark.parametrize(
    ("forward", "why"),
    [
        (random_numbers, "poisson draws random numbers"),
        (dropout_inside_attention, "scaled_dot_product_attention draws random numbers"),
        (buffers_written, "add_ writes into the network's own tensors"),
        (tensors_made_in_python, "it makes tensors in Python whose size depends on the number of examples"),
        (inputs_of_its_own_kind, "tolist hands its data to Python"),
        (truth_of_data, "equal lets its path or its sizes depend on the data"),
        (path_of_many_points, OTHERWISE),
        (path_of_two_points, "it takes another path when the number of examples changes"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_the_plain_loop_stands_in_and_says_why(forward, why):
    net, x = dense(forward) if forward is not inputs_of_its_own_kind else dense(lambda m, x: m.last(m.bn(m.fc(x))))
    if forward is inputs_of_its_own_kind:
        net._forward = forward
        x = x.clone().index_fill_(1, torch.tensor([2]), 11.0)
    engine, plain = compiled_and_plain(net, x, omega=drawn(net, x))
    found = engine.passes(x)
    assert engine.why_plain.startswith(why) and engine.work(ROWS) is None
    if forward is not dropout_inside_attention:
        close(found, plain.passes(x))


def test_whether_a_plan_is_used_does_not_depend_on_the_points_that_pass_first(monkeypatch):
    net, x = dense(lambda m, x: m.last(m.bn(m.fc(x))))
    tiles = []
    monkeypatch.setattr(Stochastic, "_prove", lambda *given: tiles.append(given[2]))
    for rows in (x[:5], x[9:14]):
        engine, _ = compiled_and_plain(net, x, omega=drawn(net, x))
        engine.prepare(x[:8])
        engine.passes(rows)
    made, of_rows = tiles[: len(tiles) // 2], tiles[len(tiles) // 2 :]
    assert len(made) > 1 and all(map(torch.equal, made, of_rows))


def test_a_number_of_points_that_has_no_plan_leaves_the_others_theirs():
    net, x = dense(lambda m, x: m.last(torch.tanh(m.bn(m.fc(x))) if len(x) > 12 else m.bn(m.fc(x))))
    engine, plain = compiled_and_plain(net, x, omega=drawn(net, x))
    first = engine.passes(x[:10])
    close(engine.passes(x), plain.passes(x))
    assert engine.why_plain == f"it treats {ROWS} examples unlike fewer"
    assert engine.work(ROWS) is None and engine.work(10) is not None
    assert torch.equal(engine.passes(x[:10]), first)


def test_a_number_of_points_that_has_no_plan_changes_no_arithmetic_and_is_refused_each_time_where_it_was_asked_for():
    net, x = dense(lambda m, x: m.last(torch.tanh(m.bn(m.fc(x))) if len(x) > 12 else m.bn(m.fc(x))))
    net, x = net.float(), x.float()
    sites, omega = sites_of(net, x), drawn(net, x)
    halves = Arithmetic("default", half="bfloat16", by_default=True)
    engine = Stochastic(net, sites, omega=omega, arithmetic=halves)
    first = engine.passes(x[:10])
    engine.passes(x)
    assert engine.arithmetic == halves and torch.equal(engine.passes(x[:10]), first)
    asked = Stochastic(net, sites, omega=omega, arithmetic=replace(halves, by_default=False))
    for _ in range(2):
        with pytest.raises(SamplingError, match="needs a plan of the network"):
            asked.passes(x)


def test_of_several_outputs_the_first_is_sampled_and_of_ambiguous_ones_none():
    net, x = dense(lambda m, x: m.last(m.bn(m.fc(x))))
    omega = drawn(net, x)
    expected = bnuq.predict(net, x, omega)
    net._forward = lambda m, x: (m.last(m.bn(m.fc(x))), x)
    close(bnuq.predict(net, x, omega), expected)
    net._forward = lambda m, x: {"a": m.last(m.bn(m.fc(x))), "b": x}
    with pytest.raises(ModelError, match="the network's output is a dict with the keys 'a', 'b'"):
        bnuq.predict(net, x, omega)


def test_a_network_that_counts_its_calls_in_its_outputs_is_refused():
    calls = []

    def counting(m, x):
        calls.append(1)
        return m.last(m.bn(m.fc(x))) * len(calls)

    net, x = dense(counting)
    with pytest.raises(SamplingError, match="gives other outputs when it is called again with the same inputs"):
        bnuq.predict(net, x, drawn(net, x))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_network_in_half_precision_is_left_to_the_plain_loop(dtype):
    net, x = zoo.made("2d").to(dtype), zoo.points("2d", ROWS).to(dtype)
    engine, plain = compiled_and_plain(net, x, omega=drawn(net, x))
    assert torch.equal(engine.passes(x), plain.passes(x))
    kind = str(dtype).removeprefix("torch.")
    assert engine.why_plain == f"it computes in {kind}, which is too coarse to verify a plan"


def test_a_network_that_widens_its_outputs_keeps_its_plan():
    net, x = zoo.made("2d", torch.float32), zoo.points("2d", ROWS, dtype=torch.float32)
    wide = nn.Sequential(net, Net(lambda _, x: x.double())).eval()
    engine, plain = compiled_and_plain(wide, x, omega=drawn(wide, x))
    found = engine.passes(x)
    assert found.dtype == torch.float64 and engine.why_plain == ""
    close(found, plain.passes(x), 1e-5)


# A wrong plan is caught


def folded_along_the_wrong_axis(monkeypatch):
    monkeypatch.setattr(executor, "output_channels", lambda _: 0)


def folded_with_the_next_draw(monkeypatch):
    original = executor.PlanExecutor._foldings
    monkeypatch.setattr(
        executor.PlanExecutor, "_foldings", lambda self, draws: original(self, [(t + 1) % self.samples for t in draws])
    )


def stacked_in_the_wrong_order(monkeypatch):
    stack(monkeypatch, stacked=True)
    original = executor.PlanExecutor._affine_step

    def step(self, position, operation, draws):
        compute = original(self, position, operation, draws)
        if draws == 1:
            return compute
        return lambda values, now: compute(values, replace(now, index=torch.tensor(now.draws[::-1])))

    monkeypatch.setattr(executor.PlanExecutor, "_affine_step", step)


def numbered_from_the_first_point_in_every_tile(monkeypatch):
    original = executor.PlanExecutor._chunk_level
    monkeypatch.setattr(executor.PlanExecutor, "_chunk_level", lambda self, x, start: original(self, x + start, start))


@pytest.mark.parametrize(
    "fault", [folded_along_the_wrong_axis, folded_with_the_next_draw, numbered_from_the_first_point_in_every_tile]
)
def test_a_wrong_plan_is_caught_and_the_plain_loop_stands_in(fault, monkeypatch):
    stack(monkeypatch, stacked=False)
    fault(monkeypatch)
    net, x = zoo.settled(transposed, (4, 5, 5)), zoo.points((4, 5, 5), ROWS)
    engine, plain = compiled_and_plain(net, x, omega=drawn(net, x))
    close(engine.passes(x), plain.passes(x))
    assert engine.why_plain == OTHERWISE


def test_a_wrong_order_of_stacked_draws_is_caught_and_one_passes_at_a_time(monkeypatch):
    stacked_in_the_wrong_order(monkeypatch)
    net, x = zoo.made("nested"), zoo.points("nested", ROWS)
    engine, plain = compiled_and_plain(net, x, omega=drawn(net, x))
    close(engine.passes(x), plain.passes(x))
    assert engine.work(ROWS) is not None and engine.work(ROWS).stacked == 1


def test_wrong_statistics_of_a_plan_are_caught(monkeypatch):
    net, batches = zoo.made("2d"), zoo.points("2d", 18).reshape(2, 9, 2, 4, 5)
    expected = statistics_taken(net, batches)
    monkeypatch.setattr(measure, "merged", lambda parts: (merged(parts)[0], merged(parts)[1] * 1.05))
    for a, b in zip(statistics_taken(net, batches).layers, expected.layers, strict=True):
        np.testing.assert_allclose(a.var, b.var, rtol=1e-9)


# Another arithmetic

BFLOAT16 = arithmetic_named("bfloat16")


@pytest.mark.parametrize("stacked", [False, True])
@pytest.mark.parametrize("kind", ["1d on (N, C)", "2d", "in a shortcut"])
def test_bfloat16_deviates_little_and_says_by_how_much(kind, stacked, monkeypatch):
    stack(monkeypatch, stacked=stacked)
    net, x = zoo.made(kind, torch.float32), zoo.points(kind, 80, dtype=torch.float32)
    omega, sites = drawn(net, x), sites_of(net, x)
    exact = Stochastic(net, sites, omega=omega).passes(x)
    engine = Stochastic(net, sites, omega=omega, arithmetic=BFLOAT16)
    found = engine.passes(x)
    assert found.dtype == torch.float32 and not torch.equal(found, exact)
    apart = (found.softmax(2) - exact.softmax(2))[:, :64].abs()
    assert engine.deviation is not None and (engine.deviation.points, engine.deviation.draws) == (64, 3)
    assert 0 < engine.deviation.mean < 0.02 and engine.deviation.mean < engine.deviation.largest < 0.3
    assert_close(engine.deviation.largest, float(apart.max()), rtol=1e-3, atol=1e-4)


def mean_information(outputs: Tensor) -> float:
    return float(metrics.mutual_information(outputs.double().softmax(2)).mean())


@pytest.mark.parametrize("stacked", [False, True])
def test_bfloat16_inflates_no_mutual_information_where_draws_differ_little(stacked, monkeypatch):
    stack(monkeypatch, stacked=stacked)
    net, x = zoo.settled(deep, (8,), torch.float32), zoo.points((8,), 256, dtype=torch.float32)
    omega = bnuq.statistics_of(net, [zoo.points((8,), 4096, seed=t, dtype=torch.float32) for t in range(16)])
    engine = Stochastic(net, sites_of(net, x), omega=omega, arithmetic=BFLOAT16)
    expected = mean_information(bnuq.predict(net, x, omega))
    assert expected < 5e-4
    assert mean_information(engine.passes(x)) == pytest.approx(expected, rel=0.03)  # folded weights: 5 %, scales: 8 %
    assert engine.work(256).folded == 0


def deep() -> nn.Module:
    hidden = [layer for _ in range(3) for layer in (nn.Linear(32, 32), nn.BatchNorm1d(32), nn.ReLU())]
    return nn.Sequential(nn.Linear(8, 32), *hidden[1:], nn.Linear(32, 5))


def test_the_deviation_of_the_mutual_information_is_measured_on_the_compared_points():
    net, x = zoo.settled(deep, (8,), torch.float32), zoo.points((8,), 200, dtype=torch.float32)
    omega = drawn(net, x, samples=40)
    engine = Stochastic(net, sites_of(net, x), omega=omega, arithmetic=BFLOAT16)
    found, exact = (mean_information(one[8:, :64]) for one in (engine.passes(x), bnuq.predict(net, x, omega)))
    assert engine.deviation is not None and engine.deviation.draws == 32
    assert engine.deviation.measure == "mutual information"
    assert_close(1 + engine.deviation.uncertainty, found / exact, rtol=1e-3, atol=0)
    assert 0 < engine.deviation.uncertainty_error < 0.05


def test_of_a_single_output_the_deviation_of_the_variance_is_measured():
    net, x = zoo.settled(lambda: nn.Sequential(deep(), nn.Linear(5, 1)), (8,), torch.float32), zoo.points((8,), 64)
    engine = Stochastic(
        net, sites_of(net, x.float()), omega=drawn(net, x.float(), samples=8), arithmetic=BFLOAT16, task=REGRESSION
    )
    engine.passes(x.float())
    assert engine.deviation is not None and engine.deviation.measure == "variance"
    assert 0 < abs(engine.deviation.uncertainty) < 0.05 and 0 < engine.deviation.uncertainty_error < 0.05


def test_bfloat16_needs_a_plan():
    net, x = dense(random_numbers)
    net, x = net.float(), x.float()
    engine = Stochastic(net, sites_of(net, x), omega=drawn(net, x), arithmetic=BFLOAT16)
    message = "precision bfloat16 needs a plan of the network, and there is none: poisson draws random numbers. Use f"
    with pytest.raises(SamplingError, match=message):
        engine.passes(x)


def test_float32_deviates_from_nothing():
    net, x = zoo.made("2d"), zoo.points("2d", 5)
    engine, _ = compiled_and_plain(net, x, omega=drawn(net, x))
    engine.passes(x)
    assert engine.deviation is None


# Memory and work


class Narrow:
    """An engine whose memory ends above a number of rows."""

    samples = 2

    def __init__(self, rows: int, error: type[Exception] | str = torch.OutOfMemoryError) -> None:
        self.rows, self.error, self.seen = rows, error, []

    def passes(self, inputs: Tensor, start: int = 0) -> Tensor:
        self.seen.append((start, len(inputs)))
        if len(inputs) > self.rows:
            raise RuntimeError(self.error) if isinstance(self.error, str) else self.error("memory")
        return torch.stack([inputs, -inputs])


@pytest.mark.parametrize("error", [torch.OutOfMemoryError, MemoryError, "[enforce fail] DefaultCPUAllocator: no"])
def test_where_memory_runs_out_the_chunk_is_halved_and_nothing_else_changes(error):
    x, told = zoo.points((4,), 23), []
    engine = Narrow(3, error)
    parts = list(chunks(engine, 23, lambda rows: x[rows], size=16, on_halved=lambda _, size: told.append(size)))
    assert told == [8, 4, 2]
    assert torch.equal(torch.cat(parts, 1), torch.stack([x, -x]))
    assert [start for start, rows in engine.seen if rows <= 2] == list(range(0, 23, 2))


def test_where_memory_does_not_hold_a_single_point_one_message_says_so():
    with pytest.raises(
        SamplingError, match=r"memory is exhausted with a single example passing \(memory\); use a larger machine"
    ):
        list(chunks(Narrow(0), 5, lambda rows: torch.ones(5, 4)[rows], size=4))


def test_an_error_that_is_not_of_memory_is_not_taken_for_one():
    with pytest.raises(RuntimeError, match="something else"):
        list(chunks(Narrow(1, "something else"), 5, lambda rows: torch.ones(5, 4)[rows], size=4))


def test_memory_that_ends_while_the_plan_is_made_is_no_reason_against_the_plan(monkeypatch):
    net, x = zoo.made("2d"), zoo.points("2d", ROWS)
    engine, plain = compiled_and_plain(net, x, omega=drawn(net, x))
    original, failures = executor.PlanExecutor.some_passes, [True]

    def once_too_much(self, *args, **options):
        if failures:
            raise torch.OutOfMemoryError(failures.pop())
        return original(self, *args, **options)

    monkeypatch.setattr(executor.PlanExecutor, "some_passes", once_too_much)
    told: list[int] = []
    found = torch.cat(
        list(chunks(engine, ROWS, lambda rows: x[rows], size=16, on_halved=lambda _, size: told.append(size))), dim=1
    )
    close(found, plain.passes(x))
    assert engine.why_plain == "" and told == [8]


def test_bfloat16_says_how_far_it_deviates_where_memory_ended_at_first(monkeypatch):
    net, x = zoo.made("2d", torch.float32), zoo.points("2d", ROWS, dtype=torch.float32)
    engine = Stochastic(net, sites_of(net, x), omega=drawn(net, x), arithmetic=BFLOAT16)
    original = executor.PlanExecutor.passes

    def too_much(self, inputs, *rest, **draws):
        if len(inputs) > 8 and self._dtype == torch.bfloat16:
            raise torch.OutOfMemoryError("memory")
        return original(self, inputs, *rest, **draws)

    monkeypatch.setattr(executor.PlanExecutor, "passes", too_much)
    assert torch.cat(list(chunks(engine, ROWS, lambda rows: x[rows], size=16)), dim=1).shape == (3, ROWS, 3)
    assert engine.deviation is not None and engine.deviation.points == 8


def test_work_is_counted_as_by_hand(monkeypatch):
    stack(monkeypatch, stacked=False)
    net, x = zoo.made("1d on (N, C)"), zoo.points("1d on (N, C)", ROWS)
    engine, _ = compiled_and_plain(net, x, omega=drawn(net, x))
    assert engine.work(ROWS) is None
    engine.passes(x)
    work = engine.work(ROWS)
    assert work is not None
    assert work.once == 4 + 4 * 5  # the inputs copied, the first layer
    assert work.per_draw == 5 + 5 + 5 * 6 + 6 + 6 * 3  # BatchNorm, tanh, the next two in one, tanh, the last layer
    assert (work.folded, work.stacked) == (1, 1)


def test_draws_of_small_work_are_stacked():
    net, x = zoo.made("1d on (N, C)"), zoo.points("1d on (N, C)", ROWS)
    engine, plain = compiled_and_plain(net, x, omega=drawn(net, x, samples=7))
    close(engine.passes(x), plain.passes(x))
    assert engine.work(ROWS) is not None and engine.work(ROWS).stacked == 7


class Pooled(nn.Module):
    """Pools what the first BatchNorm gives, and perhaps reads it a second time."""

    def __init__(self, between: nn.Module, pool: nn.Module, *, reads_twice: bool) -> None:
        super().__init__()
        self.convolution, self.norm = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4)
        self.between, self.pool, self.last = between, pool, nn.Linear(4, 3)
        self.reads_twice = reads_twice

    def forward(self, x: Tensor) -> Tensor:
        activated = self.between(self.norm(self.convolution(x)))
        pooled = self.pool(activated).mean((2, 3))
        return self.last(pooled + activated.mean((2, 3)) if self.reads_twice else pooled)


@pytest.mark.parametrize("stacked", [False, True])
@pytest.mark.parametrize("weight", ["positive", "of both signs", "absent"])
@pytest.mark.parametrize("between", at_night.but({"relu", "tanh"}, ["relu", "relu in place", "nothing", "tanh"]))
def test_a_pooling_after_the_first_batchnorm_is_computed_once(between, weight, stacked, monkeypatch):
    stack(monkeypatch, stacked=stacked)
    activations = {"relu": nn.ReLU(), "relu in place": nn.ReLU(inplace=True), "nothing": nn.Identity()}
    activation, x = activations.get(between, nn.Tanh()), zoo.points((1, 8, 8), ROWS)
    pool = nn.MaxPool2d(2) if stacked else nn.MaxPool2d(3, 2, padding=1)
    for reads_twice in (False, True):
        net = zoo.settled(lambda: Pooled(activation, pool, reads_twice=reads_twice), (1, 8, 8))  # noqa: B023 - at once
        if weight == "absent":
            net.norm.register_parameter("weight", None)
        else:
            signs = torch.tensor([1, -1, 1, -1] if weight == "of both signs" else [1, 1, 1, 1])
            net.norm.weight.data = net.norm.weight.data.abs() * signs
        engine, plain = compiled_and_plain(net, x, omega=drawn(net, x))
        close(engine.passes(x), plain.passes(x), 1e-13)
        assert not engine.why_plain
        work = engine.work(ROWS)
        assert work is not None
        first_norm = 4 * 36 if reads_twice or between == "tanh" else 4 * 9
        assert work.per_draw >= first_norm
        assert (work.per_draw < 4 * 36) == (first_norm == 4 * 9)


def test_pooling_of_pairs_after_a_convolution_of_one_channel_is_torch_s():
    found = F.conv2d(program.channels_last(torch.randn(3, 1, 7, 5)), torch.ones(4, 1, 1, 1))
    assert found.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(program.pooled(found, [2, 2], [2, 2], [0, 0], [1, 1], False), F.max_pool2d(found, 2))


# Moments


@given(
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=6),
    seed=st.integers(0, 2**31),
    mean=st.sampled_from([0.0, 1.0, 1e4, -1e6]),
)
def test_merged_moments_of_parts_are_those_of_the_whole(sizes, seed, mean):
    x = torch.randn(sum(sizes), 3, 2, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) + mean
    found = merged([(len(part) * 2, *moments(part)) for part in x.split(sizes)])
    expected = x.mean((0, 2)), x.var((0, 2), correction=0)
    assert_close(found[0], expected[0], rtol=1e-12, atol=1e-12)
    assert_close(found[1], expected[1], rtol=1e-9, atol=1e-13 + 1e-15 * abs(mean))


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_moments_are_sound_where_the_mean_dwarfs_the_spread(layout):
    x = torch.randn(37, 5, 8, 8, generator=torch.Generator().manual_seed(0)) + 1e4
    expected = x.double().mean((0, 2, 3)), x.double().var((0, 2, 3), correction=0)
    mean, var = merged([(len(t) * 64, *moments(t.contiguous(memory_format=layout))) for t in x.split([16, 16, 5])])
    assert_close(mean.double(), expected[0], rtol=0, atol=2e-3)  # one step of float32 at 10⁴ is 0.001
    assert_close(var.double(), expected[1], rtol=1e-4, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_large_products_are_those_of_the_plain_loop(dtype, monkeypatch):
    monkeypatch.setattr(program, "LARGE_PRODUCT_SIZE", 1)
    stack(monkeypatch, stacked=False)
    net, x = zoo.made("nested", dtype), zoo.points("nested", ROWS, dtype=dtype)
    engine, plain = compiled_and_plain(net, x, omega=drawn(net, x))
    found, expected = engine.passes(x), plain.passes(x)
    assert not engine.why_plain
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_a_pad_by_nothing_is_no_operation_unless_somebody_writes_into_the_copy():
    class Pads(nn.Module):
        def __init__(self, write: bool) -> None:
            super().__init__()
            self.fc, self.bn, self.last, self.write = nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 3), write

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.bn(self.fc(x))
            z = nn.functional.pad(y, (0, 0))
            return self.last(torch.tanh(z.mul_(2) if self.write else z * 2) + y)

    for write, pads in ((False, 0), (True, 1)):
        net, x = zoo.settled(lambda write=write: Pads(write), (4,)), zoo.points((4,), ROWS)
        engine, plain = compiled_and_plain(net, x, omega=drawn(net, x))
        close(engine.passes(x), plain.passes(x))
        assert engine._executor is not None
        names = [operation.function.overloadpacket.__name__ for operation in engine._executor.plan.operations]
        assert names.count("pad") + names.count("constant_pad_nd") == pads


class Rows:
    """Memory that is taken as long as somebody holds it."""

    def __init__(self, count: int) -> None:
        self.count = count


@pytest.mark.parametrize(("limit", "said"), [(13, "about 13 fit: use --batch-size 13"), (1, "nor do 2 examples")])
def test_a_mini_batch_that_does_not_fit_is_refused_with_the_size_that_does(limit, said, monkeypatch):
    original, live = statistics._measure, weakref.WeakSet()

    def scarce(*arguments):
        measure = original(*arguments)

        def limited(batch):
            taken = Rows(len(batch))
            live.add(taken)
            if sum(one.count for one in live) > limit:
                raise torch.OutOfMemoryError("out of memory")
            return measure(batch)

        return limited

    net, x = zoo.made("2d"), zoo.points("2d", 40)
    monkeypatch.setattr(statistics, "_measure", scarce)
    with pytest.raises(SamplingError, match=f"a mini-batch of 20 examples does not fit into memory, .*{said}"):
        bnuq.statistics_of(net, x.reshape(2, 20, 2, 4, 5), layers=sites_of(net, x).live_batchnorms)


def test_a_mini_batch_that_would_not_fit_is_refused_before_it_is_drawn():
    net, x = zoo.made("2d"), zoo.points("2d", 40).reshape(2, 20, 2, 4, 5)
    layers = sites_of(net, x[0]).live_batchnorms
    with undisturbed(net):
        each = statistics._compiled(net, layers, x[0], "biased").bytes_per_point
    assert each >= 4 * 4 * 5 * 8  # the first convolution's output alone, in float64
    with pytest.raises(SamplingError, match=r"of 20 examples does not fit .* about 7 fit: use --batch-size 7"):
        bnuq.statistics_of(net, x, layers=layers, memory_limit=7 * each + 1)
    assert bnuq.statistics_of(net, x, layers=layers, memory_limit=20 * each).samples == 2


def test_a_bfloat16_plan_of_a_network_with_tensors_of_its_own_making_runs_without_gradients():
    class Picks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.k, self.bn, self.last = nn.Parameter(torch.ones(3, 4)), nn.BatchNorm1d(4), nn.Linear(4, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.last(self.bn(x * self.k[torch.from_numpy(np.array([1]))]))

    net, x = zoo.settled(Picks, (4,), torch.float32), zoo.points((4,), ROWS, dtype=torch.float32)
    omega = bnuq.statistics_of(net, [x, 2 * x])
    engine = Stochastic(net, find_sites(net, x[:3]), omega=omega, arithmetic=BFLOAT16)
    torch.testing.assert_close(engine.passes(x), bnuq.predict(net, x, omega), rtol=0.1, atol=0.1)
    assert engine.deviation is not None and not engine.passes(x).requires_grad


def test_running_out_of_memory_makes_tiles_and_stacks_smaller_too():
    net, x = zoo.made("1d on (N, C)"), zoo.points("1d on (N, C)", 40)
    engine, plain = compiled_and_plain(net, x, omega=drawn(net, x, samples=6))
    engine.passes(x)
    before = engine._executor.tile
    engine.shrink()
    assert engine._executor.tile == before // 2
    for _ in range(30):
        engine.shrink()
    assert engine.work(40).stacked == 1 and engine.work(40).tile == 1
    close(engine.passes(x), plain.passes(x))


def test_relu_of_bfloat16_is_torchs():
    x = torch.tensor([-float("inf"), -3.0, -1e-30, -0.0, 0.0, 1e-30, 2.5, float("inf")])
    for dtype in (torch.bfloat16, torch.float32):
        assert_close(program._relu_of_bfloat16_(x.to(dtype, copy=True)), x.to(dtype).relu(), rtol=0, atol=0)
