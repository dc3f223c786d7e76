"""The model that went in is the model that is left, also after an exception."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial

import at_night
import numpy as np
import pytest
import torch
import zoo
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules import module as module_hooks

import bnuq
from bnuq.errors import SamplingError
from bnuq.sampling.interception import _precision_settings, undisturbed
from bnuq.sampling.plain_loop import Evaluation
from bnuq.sampling.recorded_calls import hooked
from bnuq.sampling.site_search import find_sites

pytestmark = pytest.mark.filterwarnings("ignore:.* is not sampled")


class Fragile(nn.Module):
    """Fails on its `fail_at`-th forward, having changed what it could on the way."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.bn, self.drop, self.last = nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Dropout(0.5), nn.Linear(5, 3)
        self.register_buffer("forwards", torch.zeros(()))
        self.merged = nn.Parameter(torch.full((3,), 0.1))
        self.fail_at = 0
        self.calls = 0

    def train(self, mode: bool = True) -> Fragile:
        """As layers do that merge two weights for evaluation."""
        if mode != self.training:
            self.last.bias.data.add_(self.merged if self.training else -self.merged)
        return super().train(mode)

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.forwards += 1
        x.mul_(1.0)
        h = self.drop(F.relu(self.bn(self.fc(x))))
        torch.rand(3)
        random.random()
        np.random.rand()
        if 0 < self.fail_at <= self.calls:
            raise ZeroDivisionError("inside the network")
        return self.last(h) + (self.merged if self.training else 0.0)


def snapshot(net: nn.Module) -> tuple:
    return (
        {name: tensor.clone() for name, tensor in net.state_dict().items()},
        [module.training for module in net.modules()],
        [(len(m._forward_hooks), len(m._forward_pre_hooks)) for m in net.modules()],
        [len(hooks) for hooks in (module_hooks._global_forward_hooks, module_hooks._global_forward_pre_hooks)],
        [p.requires_grad for p in net.parameters()],
        torch.get_rng_state(),
        random.getstate(),
        np.random.get_state()[1:3],
        torch.backends.mha.get_fastpath_enabled(),
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
    )


def assert_same(one: tuple, two: tuple) -> None:
    assert one[0].keys() == two[0].keys()
    for name, tensor in one[0].items():
        assert torch.equal(tensor, two[0][name]), name
    assert one[1:5] == two[1:5]
    assert torch.equal(one[5], two[5])
    assert one[6] == two[6]
    assert np.array_equal(one[7][0], two[7][0]) and one[7][1] == two[7][1]
    assert one[8:] == two[8:]


def mixed(net: nn.Module) -> None:
    net.train()
    net.bn.eval()


MODES = {"train": nn.Module.train, "eval": nn.Module.eval, "mixed": mixed}

DOING = {
    "draw": lambda net, x, omega: bnuq.draw(net, x, samples=3, batch_size=4),  # noqa: ARG005
    "statistics_of": lambda net, x, omega: bnuq.statistics_of(net, [x, x]),  # noqa: ARG005
    "predict with omega": lambda net, x, omega: bnuq.predict(net, x, omega),
    "predict with dropout": lambda net, x, omega: bnuq.predict(net, x, dropout=bnuq.Dropout(3)),  # noqa: ARG005
    "predict with both": lambda net, x, omega: bnuq.predict(net, x, omega, dropout=bnuq.Dropout(3), chunk_size=4),
    "one plain pass": lambda net, x, omega: Evaluation(net).passes(x),  # noqa: ARG005
    "find_sites": lambda net, x, omega: find_sites(net, x),  # noqa: ARG005
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("doing", DOING)
def test_nothing_of_the_network_or_the_process_is_changed(doing, mode):
    net, x = zoo.settled(Fragile, (4,)), zoo.points((4,), 9)
    MODES[mode](net)
    omega = bnuq.draw(net, x, samples=3, batch_size=4)
    given, before = x.clone(), snapshot(net)
    DOING[doing](net, x, omega)
    assert_same(snapshot(net), before)
    assert torch.equal(x, given)


@pytest.mark.parametrize("fail_at", at_night.but({1, 3}, [1, 2, 3, 4]))
@pytest.mark.parametrize("doing", DOING)
def test_nothing_is_changed_where_the_network_fails(doing, fail_at):
    net, x = zoo.settled(Fragile, (4,)), zoo.points((4,), 9)
    mixed(net)
    omega = bnuq.draw(net, x, samples=3, batch_size=4)
    net.calls, net.fail_at = 0, fail_at
    given, before = x.clone(), snapshot(net)
    torch.backends.mha.set_fastpath_enabled(before[8])
    try:
        DOING[doing](net, x, omega)
    except SamplingError as error:
        assert "ZeroDivisionError" in str(error)
    else:
        assert net.calls < fail_at or doing == "find_sites"  # its training run may fail and tell nothing
    assert_same(snapshot(net), before)
    assert torch.equal(x, given)


@pytest.mark.parametrize("enabled", [True, False])
def test_the_fast_path_of_transformers_is_left_as_it_was(enabled):
    before = torch.backends.mha.get_fastpath_enabled()
    try:
        torch.backends.mha.set_fastpath_enabled(enabled)
        bnuq.predict(zoo.settled(Fragile, (4,)), zoo.points((4,), 3), dropout=bnuq.Dropout(2))
        assert torch.backends.mha.get_fastpath_enabled() is enabled
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


def test_running_statistics_do_not_move_even_where_momentum_would_move_them_whole():
    net, x = zoo.made("momentum 1"), zoo.points("momentum 1", 20)
    before = snapshot(net.train())
    bnuq.predict(net, x, bnuq.draw(net, x, samples=2, batch_size=8))
    assert_same(snapshot(net), before)
    assert net[1].momentum == 1


def test_a_layer_that_updates_itself_in_every_mode_keeps_its_buffers():
    class Restless(nn.BatchNorm1d):
        def forward(self, x: Tensor) -> Tensor:
            return F.batch_norm(x, self.running_mean, self.running_var, self.weight, self.bias, True, 0.5, self.eps)

    net = zoo.settled(lambda: nn.Sequential(nn.Linear(4, 5), Restless(5), nn.BatchNorm1d(5), nn.Linear(5, 3)), (4,))
    x, before = zoo.points((4,), 20), snapshot(net)
    bnuq.statistics_of(net, [x], layers="last:1")
    bnuq.predict(net, x, bnuq.draw(net, x, samples=2, batch_size=8))
    assert_same(snapshot(net), before)


def test_training_goes_on_after_a_draw_as_if_nothing_had_happened():
    losses = []
    for interrupted in (False, True):
        net, x = zoo.settled(Fragile, (4,), torch.float32), zoo.points((4,), 16, dtype=torch.float32)
        net.train()
        torch.manual_seed(0)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        for _ in range(3):
            if interrupted:
                bnuq.predict(net, x, bnuq.draw(net, x, samples=2, batch_size=8))
            loss = net(x.clone()).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    assert losses[:3] == losses[3:]


def test_outputs_can_be_used_outside_inference_mode():
    net, x = zoo.made("2d"), zoo.points("2d", 6)
    found = bnuq.predict(net, x, bnuq.draw(net, x, samples=2, batch_size=4))
    weight = torch.ones(3, dtype=torch.float64, requires_grad=True)
    (found @ weight).sum().backward()
    assert weight.grad is not None


class Counting(nn.Sequential):
    """Puts a new tensor into its buffer, as `self.n = self.n + 1` does."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Dropout(0.5), nn.Linear(5, 3))
        self.register_buffer("n", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.n = self.n + 1
        return super().forward(x)


@pytest.mark.parametrize("doing", DOING)
def test_a_buffer_that_is_replaced_comes_back_itself(doing):
    net, x = zoo.settled(Counting, (4,)), zoo.points((4,), 9)
    n, value = net.n, net.n.item()
    omega = bnuq.draw(net, x, samples=3, batch_size=4)
    assert net.n is n
    DOING[doing](net, x, omega)
    assert net.n is n and net.n.item() == value and not net.n.is_inference()


class Odd(nn.Sequential):
    """Writes into buffers of many kinds; two of them share memory."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Dropout(0.5), nn.Linear(5, 3))
        self.register_buffer("whole", torch.arange(6.0).view(2, 3))
        self.register_buffer("column", self.whole[:, 1])
        self.register_buffer("number", torch.tensor(3.5))
        self.register_buffer("truth", torch.tensor([True, False]))
        self.register_buffer("unknown", torch.tensor([float("nan"), 1.0]))
        self.register_buffer("absent", None)

    def forward(self, x: Tensor) -> Tensor:
        self.whole += 1
        self.number.data.mul_(2)
        self.truth.logical_not_()
        self.unknown[1] += 1
        return super().forward(x)


def test_buffers_of_every_kind_are_restored():
    net = zoo.settled(Odd, (4,))
    before = {name: buffer.clone() for name, buffer in net.named_buffers()}
    bnuq.predict(net, zoo.points((4,), 9), dropout=bnuq.Dropout(2))
    for name, buffer in net.named_buffers():
        assert torch.equal(buffer.nan_to_num(7), before[name].nan_to_num(7)), name


def precisions() -> tuple:
    new = [getattr(s, "fp32_precision", None) for s in _precision_settings()]
    return torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32, new


@pytest.fixture
def precision_left():
    before = precisions()
    yield
    torch.set_float32_matmul_precision(before[0])
    torch.backends.cudnn.allow_tf32 = before[1]
    for setting, value in zip(_precision_settings(), before[2], strict=True):
        setting.fp32_precision = value


@pytest.mark.usefixtures("precision_left")
@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("asked", ["highest", "high", "medium", None])
def test_float32_is_float32_inside_and_the_flags_are_left_as_they_were(asked, fails):
    if asked is not None:
        torch.set_float32_matmul_precision(asked)
    before, inside = precisions(), []
    assert torch.backends.cudnn.allow_tf32  # torch's default

    class Looks(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            inside.append((torch.backends.cuda.matmul.allow_tf32, *precisions()))
            if fails:
                raise KeyError("x")
            return super().forward(x)

    with suppress(SamplingError):
        Evaluation(Looks(4, 3)).passes(torch.zeros(2, 4))
    assert [one[:3] for one in inside] == [(False, "highest", False)]
    assert set(inside[0][3]) <= {"ieee"}
    assert precisions() == before


@pytest.mark.usefixtures("precision_left")
@pytest.mark.skipif(not _precision_settings(), reason="this torch has the old interface alone")
def test_precisions_set_by_the_new_interface_alone_are_left_as_they_were():
    torch.backends.cudnn.conv.fp32_precision = "ieee"  # the old interface cannot be read any more
    Evaluation(nn.Linear(4, 3)).passes(torch.zeros(2, 4))
    assert [torch.backends.cudnn.conv.fp32_precision, torch.backends.cudnn.rnn.fp32_precision] == ["ieee", "tf32"]


ERRORS = [AttributeError("no layer"), KeyError("k"), OSError(5, "gone"), ValueError()]


@pytest.mark.parametrize("error", at_night.but(ERRORS[:1], ERRORS))
@pytest.mark.parametrize("fail_at", [1, 3])
@pytest.mark.parametrize("doing", DOING)
def test_what_a_forward_raises_is_one_message(doing, fail_at, error):
    net, x = zoo.settled(Fragile, (4,)), zoo.points((4,), 9)
    omega = bnuq.draw(net, x, samples=3, batch_size=4)
    net.calls, net.last.forward = 0, raising_at(net, fail_at, error)
    if (doing, fail_at) in {("one plain pass", 3), ("find_sites", 3)}:
        return  # one pass, or a third in training mode, which tells nothing where it fails
    with pytest.raises(SamplingError) as told:
        DOING[doing](net, x, omega)
    for word in ("the network's forward fails on inputs of shape (", type(error).__name__, "test_undisturbed.py, line"):
        assert word in str(told.value)


@pytest.mark.parametrize("error", [KeyboardInterrupt(), MemoryError(), torch.OutOfMemoryError("CUDA out of memory")])
def test_an_interruption_and_exhausted_memory_pass_through(error):
    net = zoo.settled(Fragile, (4,))
    net.calls, net.last.forward = 0, raising_at(net, 1, error)
    with pytest.raises(type(error)):
        find_sites(net, zoo.points((4,), 3))


def raising_at(net: Fragile, fail_at: int, error: BaseException):
    run = net.last.forward

    def forward(x: Tensor) -> Tensor:
        if net.calls >= fail_at:
            raise error
        return run(x)

    return forward


class Keeping(nn.Module):
    """Makes a table in its first forward and keeps it, in an attribute, in a list or in a buffer."""

    def __init__(self, where: str) -> None:
        super().__init__()
        self.fc, self.bn, self.drop, self.last = nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Dropout(0.5), nn.Linear(5, 3)
        self._where, self._kept = where, []

    def forward(self, x: Tensor) -> Tensor:
        if not self._kept:
            self._kept.append(torch.arange(5.0).cos())
            if self._where == "buffer":
                self.register_buffer("table", self._kept[0][:], persistent=False)
            elif self._where == "attribute":
                self.table = self._kept[0]
        return self.last(self.drop(F.relu(self.bn(self.fc(x)))) * getattr(self, "table", self._kept[0]))


@pytest.mark.parametrize("where", ["attribute", "list", "buffer"])
@pytest.mark.parametrize("doing", DOING)
def test_a_table_that_the_network_keeps_can_be_trained_with_afterwards(doing, where):
    net, x = zoo.settled(lambda: Keeping(where), (4,)), zoo.points((4,), 9)
    omega = bnuq.draw(net, x, samples=3, batch_size=4)
    net._kept.clear()
    DOING[doing](net, x, omega)
    assert not net._kept[0].is_inference()
    net._kept[0].mul_(1)
    net.train()(x).sum().backward()
    assert net.fc.weight.grad is not None


def test_lazy_layers_that_a_forward_of_bnuq_initialises_can_be_trained():
    net = nn.Sequential(nn.LazyLinear(5), nn.ReLU(), nn.Linear(5, 3)).eval()
    Evaluation(net).passes(torch.ones(2, 4))
    net(torch.ones(2, 4)).sum().backward()
    assert net[0].weight.grad is not None


def in_threads(*works: Callable[[], None]) -> list[BaseException]:
    """The errors of these, each in a thread of its own."""
    errors: list[BaseException] = []

    def guarded(work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return errors


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("mode", at_night.but({"mixed"}, MODES))
def test_several_threads_predict_as_one_does(mode, shared):
    nets, x = [zoo.settled(Fragile, (4,)) for _ in range(4)], zoo.points((4,), 9)
    if shared:
        nets = nets[:1] * 4
    for net in nets:
        MODES[mode](net)
    omega = bnuq.draw(nets[0], x, samples=2, batch_size=4)
    expected = bnuq.predict(nets[0], x, omega, dropout=bnuq.Dropout(2))
    before, found = [snapshot(net) for net in nets], []

    def predicts(net: nn.Module) -> None:
        for _ in range(3):
            found.append(bnuq.predict(net, x, omega, dropout=bnuq.Dropout(2)))

    assert in_threads(*(partial(predicts, net) for net in nets)) == []
    for outputs in found:
        torch.testing.assert_close(outputs, expected)
    for net, one in zip(nets, before, strict=True):
        assert_same(snapshot(net), one)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.nightly
def test_the_forward_of_another_thread_never_meets_what_bnuq_does():
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    own, z = nn.TransformerEncoder(layer, 1).eval(), torch.randn(3, 5, 8)
    padding = torch.tensor([False, False, False, True, True]).expand(3, 5)
    net, x = zoo.settled(Fragile, (4,)), zoo.points((4,), 9)
    with torch.no_grad():
        expected = own(z, src_key_padding_mask=padding)
    is_done, forwards = threading.Event(), []

    def works() -> None:
        while not is_done.is_set() or len(forwards) < 10:
            with torch.no_grad():
                assert torch.equal(own(z, src_key_padding_mask=padding), expected)
            assert torch.is_grad_enabled() and not torch.is_inference_mode_enabled()
            assert not module_hooks._global_forward_hooks and not module_hooks._global_forward_pre_hooks
            forwards.append(1)

    def predicts() -> None:
        try:
            for _ in range(4):
                bnuq.predict(net, x, bnuq.draw(net, x, samples=2, batch_size=4))
        finally:
            is_done.set()

    assert in_threads(works, predicts) == []


def test_hooks_see_the_thread_that_records_alone():
    net, seen = zoo.settled(Fragile, (4,)), []
    x = zoo.points((4,), 3)
    with hooked(net, lambda path, _: seen.append(path), lambda path, _: seen.append(path)):
        assert in_threads(lambda: net(x)) == []
        assert seen == []
        net(x)
    assert seen == ["", *(name for name in ("fc", "bn", "drop", "last") for _ in "io"), ""]
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in net.modules())


def test_numbers_that_another_thread_draws_meanwhile_do_not_come_again():
    net, drawn = zoo.made("2d"), []
    bnuq.predict(net, zoo.points("2d", 6), bnuq.draw(net, zoo.points("2d", 6), samples=2, batch_size=4))
    with undisturbed(net):
        assert in_threads(lambda: drawn.append((torch.rand(3), random.random(), np.random.rand()))) == []
    one, two, three = drawn[0]
    assert not torch.equal(torch.rand(3), one) and random.random() != two and np.random.rand() != three
