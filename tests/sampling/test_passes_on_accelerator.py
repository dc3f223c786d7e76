"""Passes on an accelerator: those of the CPU, with no host wait inside a group of stacked draws."""

from __future__ import annotations

import copy
from dataclasses import replace

import adversaries
import at_night
import fake_accelerator
import pytest
import torch
import zoo
from fake_accelerator import NAME, Log, memory
from findings_of import values_of
from torch import Tensor, nn
from torch.testing import assert_close

import bnuq
from bnuq import devices
from bnuq.errors import SamplingError
from bnuq.sampling.engine import Stochastic
from bnuq.sampling.plain_loop import Evaluation
from bnuq.sampling.site_search import find_sites
from experiments.layers import MeanFieldLinear

pytestmark = pytest.mark.usefixtures("accelerator")

MAKE_CPU_TENSORS = {  # in their own forward
    "slices_assigned", "points_repeated_before_the_first_draw", "points_that_know_their_place", "attention_over_tokens",
    "memory_of_numpy",
}  # fmt: skip


@pytest.fixture
def log(accelerator: Log) -> Log:
    accelerator.clear()
    return accelerator


def network(name: str) -> tuple[nn.Module, Tensor]:
    made = zoo if name in zoo.KINDS else adversaries
    return made.made(name), made.points(name, 21)


def passes(net: nn.Module, x: Tensor) -> tuple[Tensor, str]:
    """MCBN's outputs, and why there is no plan."""
    sites = find_sites(net, x[:3], compare_with_training=False)
    omega = bnuq.statistics_of(net, [x[:10], x[5:15], x[11:]], layers=sites.live_batchnorms)  # of odd networks, too
    engine = Stochastic(net, sites, omega=omega)
    return engine.passes(x).cpu(), engine.why_plain


@pytest.mark.parametrize("name", sorted(MAKE_CPU_TENSORS))
def test_a_network_that_makes_cpu_tensors_is_refused_with_the_line_that_does(name):
    net, x = network(name)
    with pytest.raises(SamplingError, match=r"(adversaries|fake_accelerator)\.py, line \d+: .*(same device|numpy)"):
        passes(net.to(NAME), x.to(NAME))


def small_cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4), nn.ReLU(),
        nn.Dropout(0.3), nn.Flatten(), nn.Linear(16, 3),
    )  # fmt: skip


@pytest.mark.parametrize("dropout", [None, bnuq.Dropout(8)])
def test_the_host_never_waits_inside_a_group_of_stacked_draws(log: Log, dropout):
    net = zoo.settled(small_cnn, (2, 6, 6)).to(NAME)
    x = zoo.points((2, 6, 6), 20).to(NAME)
    engine = Stochastic(net, find_sites(net, x), omega=bnuq.draw(net, x, samples=8, batch_size=10), dropout=dropout)
    engine.passes(x)
    work = engine.work(len(x))
    assert work is not None and work.stacked == 8
    log.clear()
    engine.passes(x)
    assert log.kernels["convolution"] == 2  # the first runs once, the second once for all draws
    assert not log.waits, log.report()


@pytest.mark.parametrize("stacked", [True, False])
def test_draws_of_a_bank_cost_one_wait_a_group_whatever_the_number_of_layers(log: Log, monkeypatch, stacked):
    monkeypatch.setitem(devices._TRAITS, NAME, replace(devices.traits(NAME), stacked_entries=2**28 if stacked else 0))
    net, x = zoo.settled(wide, (3, 32, 32), torch.float32).to(NAME), torch.randn(16, 3, 32, 32).to(NAME)
    engine = Stochastic(net, find_sites(net, x[:3]), omega=bnuq.draw(net, x, samples=8, batch_size=8))
    engine.passes(x, draws=[5, 2, 7])
    work = engine.work(len(x))
    assert work is not None and (work.stacked, work.folded) == (8 if stacked else 1, 1)
    log.clear()
    engine.passes(x, draws=[1, 0, 6])
    assert [kind for kind, *_ in log.waits] == ["to device"] and log.waits.total() == 1, log.report()
    log.clear()
    engine.passes(x)
    assert not log.waits, log.report()


@pytest.mark.parametrize("stacked", [True, False])
def test_a_stem_is_pooled_once_a_chunk_and_activated_after_it_for_each_draw(log: Log, monkeypatch, stacked):
    monkeypatch.setitem(devices._TRAITS, NAME, replace(devices.traits(NAME), stacked_entries=2**28 if stacked else 0))
    layers = nn.Conv2d(3, 8, 7, 2, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)
    net = nn.Sequential(*layers, nn.Flatten(), nn.Linear(512, 3)).eval().to(NAME)  # as that of a ResNet-50
    x = torch.randn(16, 3, 32, 32).to(NAME)
    engine = Stochastic(net, find_sites(net, x[:3]), omega=bnuq.draw(net, x, samples=8, batch_size=8))
    engine.passes(x)
    log.clear()
    engine.passes(x)
    draws = 1 if stacked else 8  # that are computed one by one
    assert not engine.why_plain
    assert (log.kernels["max_pool2d_with_indices"], log.kernels["relu_"]) == (1, draws)


def test_noise_that_points_share_is_copied_to_the_device_once(log: Log):
    net, x = MeanFieldLinear(3, 2).eval().to(NAME), torch.randn(16, 3).to(NAME)
    engine = Stochastic(net, find_sites(net, x[:3]), learned=bnuq.Learned(8))
    engine.passes(x)
    assert engine.work(len(x)) is not None, engine.why_plain
    log.clear()
    engine.passes(x)
    assert not log.waits, log.report()


def test_a_predictor_that_has_its_plan_waits_for_its_inputs_and_one_check_alone(log: Log):
    net, x = zoo.settled(small_cnn, (2, 6, 6)).to(NAME), zoo.points((2, 6, 6), 20)
    predictor = bnuq.Predictor(net, bnuq.draw(net, x, samples=8, batch_size=10), dropout=bnuq.Dropout(8))
    predictor(x)
    log.clear()
    predictor(x)
    assert log.waits.total() == 1, log.report()  # whether the weights are still the same
    assert log.copies == 3 - log.kernels["_mask"] and not log.races  # an example, the points, and a mask


def test_work_that_does_not_wait_for_its_copy_is_found_by_the_fake_device():
    module, values = torch.pretend, torch.ones(4)  # type: ignore
    with module.stream(module.Stream()):
        copied = values.pin_memory().to(NAME, non_blocking=True)
    with pytest.raises(RuntimeError, match="used before it was copied"):
        copied + 1
    assert (devices.upload(values, torch.device(NAME)) + 1).cpu().tolist() == [2.0] * 4


def test_pinned_memory_of_the_caller_may_be_written_to_before_its_copy_is_used():
    buffer = torch.ones(4).pin_memory()
    uploaded = [devices.upload(values, torch.device(NAME)) for values in (buffer, buffer[1:])]
    buffer.zero_()
    assert [values.cpu().tolist() for values in uploaded] == [[1.0] * 4, [1.0] * 3]


def test_memory_of_a_copy_that_is_not_recorded_where_it_is_used_counts_as_a_race(log: Log):
    module, stream = torch.pretend, torch.pretend.Stream()  # type: ignore
    for record in (True, False):
        with module.stream(stream):
            copied = torch.ones(4).pin_memory().to(NAME, non_blocking=True)
        module.current_stream().wait_stream(stream)
        if record:
            copied.record_stream(module.current_stream())
        copied + 1
        assert log.races == 0
        del copied
    assert log.races == 1


def test_what_an_accelerator_counts_and_hands_over_is_what_the_host_does(log: Log):
    numbers, weights = torch.tensor([2, 0, 2, 3]), torch.tensor([1.0, 2.0, 3.0, 4.0])
    on_device = numbers.to(NAME), weights.to(NAME)
    log.clear()
    counts, sums = devices.counted(on_device[0], 5), devices.counted(on_device[0], 5, on_device[1])
    assert not log.waits
    fetched = devices.fetch({"counts": counts, "sums": sums, "table": sums[:4].view(2, 2)})
    assert log.waits.total() == 1
    assert fetched["counts"].tolist() == [1, 0, 2, 1, 0]
    assert fetched["sums"].tolist() == [2.0, 0.0, 4.0, 4.0, 0.0] and fetched["table"].shape == (2, 2)


@pytest.mark.nightly
def test_a_plan_costs_as_many_waits_whatever_the_number_of_layers(log: Log):
    counts = []
    for blocks in (1, 4):
        net = zoo.settled(lambda blocks=blocks: deep(blocks), (2, 6, 6)).to(NAME)
        x = zoo.points((2, 6, 6), 20)
        omega, sites = bnuq.draw(net, x, samples=4, batch_size=10), find_sites(net, x.to(NAME))
        log.clear()
        Stochastic(net, sites, omega=omega).passes(x.to(NAME))
        counts.append(log.waits.total())
    assert counts[0] == counts[1] <= 40, log.report()


def deep(blocks: int) -> nn.Module:
    convolutions = [
        layer for _ in range(blocks) for layer in (nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU())
    ]
    return nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), *convolutions, nn.Flatten(), nn.Linear(64, 3))


class Writing(nn.BatchNorm2d):
    """Writes into its statistics in every mode; another buffer is a single number in memory, into which none can."""

    def __init__(self) -> None:
        super().__init__(2)
        self.register_buffer("same", torch.zeros(1).expand(5))

    def forward(self, x: Tensor) -> Tensor:
        self.running_mean.add_(1)
        self.num_batches_tracked.add_(1)
        return super().forward(x)


def test_buffers_are_restored_without_a_wait(log: Log):
    net, x = zoo.settled(small_cnn, (2, 6, 6)).to(NAME), zoo.points((2, 6, 6), 20).to(NAME)
    loss = net(x.requires_grad_()).sum()
    log.clear()
    Evaluation(net).passes(x.detach())
    assert not log.waits, log.report()
    loss.backward()  # what it needs was not written, as far as autograd knows
    assert x.grad is not None
    writing = nn.Sequential(Writing(), nn.Flatten()).eval().to(NAME)
    writing[0].same = torch.zeros(1).to(NAME).expand(5)  # `to` made it whole
    before = {name: value.cpu() for name, value in writing.named_buffers()}
    Evaluation(writing).passes(x.detach().float())
    assert {name: value.cpu().tolist() for name, value in writing.named_buffers()} == {
        name: value.tolist() for name, value in before.items()
    }


def test_memory_that_runs_out_halves_the_chunk(monkeypatch):
    net, x = zoo.settled(small_cnn, (2, 6, 6)).to(NAME), zoo.points((2, 6, 6), 64)
    dropout = bnuq.Dropout(8, seed=1)
    expected = bnuq.predict(net, x, dropout=dropout).cpu()
    monkeypatch.setattr(memory, "capacity", memory.held + (memory.peak - memory.held) // 4)
    assert_close(bnuq.predict(net, x, dropout=dropout).cpu(), expected)


@pytest.mark.parametrize(
    ("method", "free"),
    [
        ("mcbn", 2**21),
        ("mcdo", 2**25),
        pytest.param("mcbn", 2**23, marks=pytest.mark.nightly),
        pytest.param("mcdo", 2**21, marks=pytest.mark.nightly),
    ],
)
@pytest.mark.nightly
def test_passes_take_about_what_they_are_estimated_to_and_stacks_fit_into_what_is_free(method, free):
    net, x = zoo.settled(wide, (3, 32, 32), torch.float32).to(NAME), torch.randn(16, 3, 32, 32).to(NAME)
    stochastic = {
        "mcbn": lambda: {"omega": bnuq.draw(net, x, samples=16, batch_size=8)},
        "mcdo": lambda: {"dropout": bnuq.Dropout(16)},
    }[method]()
    engine = Stochastic(net, find_sites(net, x[:3]), **stochastic)
    engine.prepare(x)
    engine.fit(free)
    work = engine.work(len(x))
    assert work is not None and work.stacked < 16
    engine.passes(x)
    memory.reset_peak()
    before = memory.held
    outputs = engine.passes(x)
    taken = memory.peak - before - outputs.nbytes
    assert 0.7 * work.bytes < taken < 1.2 * work.bytes
    assert taken < free


def wide() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Dropout(0.3), nn.Conv2d(8, 8, 3, padding=1),
        nn.BatchNorm2d(8), nn.ReLU(), nn.Dropout(0.3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 3),
    )  # fmt: skip


# A convolution, the addition after it, and its ReLU


class Block(nn.Module):
    """Two convolutions with BatchNorms, put together as `join` says."""

    def __init__(self, join, *, groups: int = 1) -> None:
        super().__init__()
        self.stem, self.bn_stem = nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.one, self.bn_one = nn.Conv2d(4, 4, 3, padding=1, bias=False, groups=groups), nn.BatchNorm2d(4)
        self.two, self.bn_two = nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4)
        self.last, self.join = nn.Linear(4, 3), join

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.join(self, self.bn_one(self.one(self.bn_stem(self.stem(x))))).mean((2, 3)))


def second(block: Block, h: Tensor) -> Tensor:
    return block.bn_two(block.two(h))


def the_shortcut_is_read_again(block: Block, h: Tensor) -> Tensor:
    h = h.relu()
    return second(block, h).add(h).relu() + h


def the_sum_overwrites_a_shortcut_that_is_read_again(block: Block, h: Tensor) -> Tensor:
    h = h.relu()
    return h.add_(second(block, h)).relu() + h


def the_relu_overwrites_the_sum_and_is_read_twice(block: Block, h: Tensor) -> Tensor:
    h = h.relu()
    total = second(block, h).add_(h)
    return total.relu_() + total


def the_shortcut_is_overwritten_in_between(block: Block, h: Tensor) -> Tensor:
    h = h.relu()
    other = second(block, h)
    h.view_as(h).mul_(2)
    return other.add(h).relu()


def a_view_of_the_shortcut_is_read_later(block: Block, h: Tensor) -> Tensor:
    h = h.relu()
    alias = h.view_as(h)
    return h.add_(second(block, h)).relu_() + alias


@pytest.mark.parametrize(
    ("join", "options", "with_relu", "with_sum"),
    at_night.every_third(
        [
            (lambda block, h: second(block, h.relu()).relu(), {}, 2, 0),
            (lambda block, h: second(block, h.relu_()).relu_(), {}, 2, 0),
            (lambda block, h: second(block, h.relu()).relu(), {"groups": 2}, 1, 0),
            (lambda block, h: second(block, h).add_(h).relu_(), {}, 0, 1),
            (lambda block, h: h.add_(second(block, h)).relu_(), {}, 0, 1),
            (lambda block, h: (second(block, h) + h).relu(), {}, 0, 1),
            (lambda block, h: torch.add(second(block, h), h, alpha=2).relu(), {}, 0, 0),
            (lambda block, h: (second(block, h) + h.mean((2, 3), keepdim=True)).relu(), {}, 0, 0),
            (lambda block, h: second(block, h.relu()).sigmoid(), {}, 1, 0),
            (lambda block, h: second(block, h).relu() + h, {}, 1, 0),
            (lambda block, h: (lambda out: out.relu() + out)(second(block, h)), {}, 0, 0),
            (the_shortcut_is_read_again, {}, 1, 1),
            (the_sum_overwrites_a_shortcut_that_is_read_again, {}, 1, 0),
            (the_relu_overwrites_the_sum_and_is_read_twice, {}, 1, 1),
            (the_shortcut_is_overwritten_in_between, {}, 1, 0),
            (a_view_of_the_shortcut_is_read_later, {}, 1, 0),
        ]
    ),
)
def test_a_relu_is_computed_with_its_convolution_where_nothing_else_sees_what_lies_between(
    log, join, options, with_relu, with_sum, monkeypatch
):
    monkeypatch.setitem(devices._TRAITS, NAME, replace(devices.traits(NAME), stacked_entries=0))
    net = zoo.settled(lambda: Block(join, **options), (2, 6, 6), torch.float32)
    x = zoo.points((2, 6, 6), 21, dtype=torch.float32)
    expected, why_plain = passes(net, x)
    on_device = copy.deepcopy(net).to(NAME)
    sites, moved = find_sites(on_device, x[:3].to(NAME), compare_with_training=False), x.to(NAME)
    omega = bnuq.statistics_of(on_device, [moved[:10], moved[5:15], moved[11:]], layers=sites.live_batchnorms)
    engine = Stochastic(on_device, sites, omega=omega)
    engine.prepare(moved)
    assert engine.why_plain == why_plain == ""
    engine.passes(moved)
    log.clear()
    assert_close(engine.passes(moved).cpu(), expected, rtol=0, atol=1e-5 * float(expected.abs().max()))
    assert log.kernels["cudnn_convolution_relu"] == 3 * with_relu
    assert log.kernels["cudnn_convolution_add_relu"] == 3 * with_sum


@pytest.mark.less
@pytest.mark.parametrize(
    "kernel", at_night.but({"cudnn_convolution_relu"}, ["cudnn_convolution_relu", "cudnn_convolution_add_relu"])
)
@pytest.mark.nightly
def test_where_cudnn_lacks_a_kernel_for_both_convolution_and_relu_are_computed_one_after_the_other(kernel, monkeypatch):
    monkeypatch.setitem(devices._TRAITS, NAME, replace(devices.traits(NAME), stacked_entries=0))
    net = zoo.settled(lambda: Block(the_shortcut_is_read_again), (2, 6, 6), torch.float32)
    x = zoo.points((2, 6, 6), 21, dtype=torch.float32)
    expected = bnuq.predict(net, x, bnuq.draw(net, x, samples=3, batch_size=8))
    on_device = copy.deepcopy(net).to(NAME)
    omega = bnuq.draw(on_device, x, samples=3, batch_size=8)
    monkeypatch.setattr(fake_accelerator, "lacking", {kernel})
    assert_close(bnuq.predict(on_device, x, omega).cpu(), expected, rtol=0, atol=1e-5 * float(expected.abs().max()))
    result = bnuq.evaluate(
        net, train=x, test=(x, torch.arange(21) % 3), device="auto", methods=["mcbn"], samples=3, batch_size=8,
        post_hoc=False,
    )  # fmt: skip
    assert result.sampling["device"] == f"{NAME}:0"
    assert values_of(result, "unfused")["reason"].startswith("GET was unable to find an engine")


def test_little_memory_is_free_where_tensors_fill_the_device(monkeypatch):
    held = torch.zeros(1000, device=NAME)
    assert not devices.little_memory_is_free()
    monkeypatch.setattr(memory, "capacity", memory.held + held.nbytes // 10)
    assert devices.little_memory_is_free()
