"""Samples in another arithmetic than the exact one, on the fake accelerator, which rounds as CUDA does on request."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator
from dataclasses import replace

import at_night
import fake_accelerator
import pytest
import torch
import zoo
from fake_accelerator import NAME, Log
from torch import Tensor, nn

import bnuq
from bnuq import devices
from bnuq.arithmetic import FLOAT32, FLOAT64, Arithmetic, arithmetic_named, in_words
from bnuq.errors import SamplingError
from bnuq.metrics import mutual_information
from bnuq.sampling import deviation
from bnuq.sampling.deviation import Deviation, deviation_of_samples
from bnuq.sampling.engine import Stochastic
from bnuq.sampling.interception import _precision_settings
from bnuq.sampling.site_search import find_sites
from bnuq.tasks import CLASSIFICATION, MULTILABEL, REGRESSION

TF32, OF_TORCH = arithmetic_named("tf32"), arithmetic_named("auto", (True, False))
FLOAT16, BFLOAT16 = arithmetic_named("float16"), arithmetic_named("bfloat16")


@pytest.fixture
def rounding(accelerator: Log) -> Iterator[Log]:
    with fake_accelerator.rounding_to_tf32():
        accelerator.clear()
        yield accelerator


class Residual(nn.Module):
    """Convolutions with BatchNorms and a shortcut; the outputs of `two` are scaled by `size`, and `squash` follows."""

    def __init__(self, size: float = 1, squash: type[nn.Module] = nn.Identity) -> None:
        super().__init__()
        self.one, self.bn_one = nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16)
        self.two, self.squash = nn.Conv2d(16, 16, 3, padding=1), squash()
        self.three, self.bn_three = nn.Conv2d(16, 16, 3, padding=1), nn.BatchNorm2d(16)
        self.last, self.size = nn.Linear(16, 5), size

    def scale(self) -> None:
        with torch.no_grad():
            self.two.weight.mul_(self.size)
            self.three.weight.div_(self.size)

    def forward(self, x: Tensor) -> Tensor:
        h = self.bn_one(self.one(x)).relu()
        return self.last((self.bn_three(self.three(self.squash(self.two(h)))) + h).relu().mean((2, 3)))


def sampled(
    arithmetic: Arithmetic, net: nn.Module | None = None, *, samples: int = 16, points: int = 64, on: str = NAME
) -> tuple[Stochastic, Tensor]:
    """The engine of MCBN, and its outputs."""
    net = zoo.settled(Residual, (3, 8, 8), torch.float32) if net is None else net
    x = zoo.points((3, 8, 8), points, dtype=torch.float32).to(on)
    moved = copy.deepcopy(net).to(on)
    engine = Stochastic(
        moved,
        find_sites(moved, x[:3]),
        omega=bnuq.draw(moved, x, samples=samples, batch_size=16),
        arithmetic=arithmetic,
    )
    return engine, engine.passes(x).cpu()


def scaled(size: float, squash: type[nn.Module] = nn.Identity) -> Residual:
    net = zoo.settled(lambda: Residual(size, squash), (3, 8, 8), torch.float32)
    net.scale()
    return net


def relative(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).abs().max() / expected.abs().max())


# ── the values ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_an_arithmetic_has_one_name_and_says_what_follows_from_it():
    assert [str(arithmetic_named("auto", of)) for of in ((True, False), (False, True), (True, True))] == [
        "tf32-convolutions", "tf32-products", "tf32",
    ]  # fmt: skip
    assert arithmetic_named("auto") is FLOAT32 and arithmetic_named("float64", (True, True)) is FLOAT64
    assert FLOAT32.is_exact and FLOAT64.is_exact and not OF_TORCH.is_exact and OF_TORCH.exact is FLOAT32
    assert OF_TORCH.by_default and not TF32.by_default
    assert FLOAT16.folds and not BFLOAT16.folds
    assert in_words("tf32-convolutions") == "TF32 convolutions" and in_words("float16") == "float16"


@pytest.fixture
def switches() -> Iterator[None]:
    settings = [*_precision_settings(), torch.backends]
    before = [setting.fp32_precision for setting in settings]
    yield
    for setting, value in zip(settings, before, strict=True):
        setting.fp32_precision = value


@pytest.mark.usefixtures("accelerator", "switches")
@pytest.mark.skipif(not _precision_settings(), reason="this torch has the old interface alone")
def test_what_torch_rounds_is_read_whichever_of_its_switches_were_set(monkeypatch):
    device = torch.device(NAME)
    assert devices.torch_uses_tf32(device) == (True, False)  # torch's default
    torch.backends.cudnn.conv.fp32_precision = "ieee"
    assert devices.torch_uses_tf32(device) == (False, False)
    torch.backends.cuda.matmul.fp32_precision = "tf32"  # from now on the older switches cannot be read
    with pytest.raises(RuntimeError):
        torch.get_float32_matmul_precision()
    assert devices.torch_uses_tf32(device) == (False, True)
    torch.backends.cudnn.conv.fp32_precision = "tf32"
    assert devices.torch_uses_tf32(device) == (True, True)
    monkeypatch.setattr(fake_accelerator._Module, "capability", (7, 5))  # before Ampere
    assert devices.torch_uses_tf32(device) == (False, False)
    assert devices.torch_uses_tf32(torch.device("cpu")) == (False, False)


@pytest.mark.usefixtures("accelerator")
def test_the_older_switches_are_read_where_there_are_no_others(monkeypatch):
    class Old:
        allow_tf32, enabled = True, True

    class Backends:
        cudnn = Old

        class cuda:  # noqa: N801
            matmul = type("Matmul", (), {"allow_tf32": False})

    monkeypatch.setattr(torch, "backends", Backends)
    assert devices.torch_uses_tf32(torch.device(NAME)) == (True, False)
    monkeypatch.setattr(Old, "enabled", False)  # convolutions are then products of matrices
    assert devices.torch_uses_tf32(torch.device(NAME)) == (False, False)


# ── TF32 ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.usefixtures("rounding")
@pytest.mark.nightly
def test_only_what_an_arithmetic_names_is_rounded():
    exact, on_cpu = sampled(FLOAT32)[1], sampled(FLOAT32, on="cpu")[1]
    assert relative(exact, on_cpu) < 1e-5
    rounded = {of: sampled(arithmetic_named("auto", of))[1] for of in ((True, False), (False, True), (True, True))}
    for outputs in rounded.values():
        assert 1e-5 < relative(outputs, exact) < 5e-3
    assert torch.equal(sampled(TF32)[1], rounded[True, True])
    assert not torch.equal(rounded[True, False], rounded[True, True])


@pytest.mark.usefixtures("rounding")
@pytest.mark.nightly
def test_the_deviation_of_tf32_is_measured_and_far_below_the_monte_carlo_error():
    engine, outputs = sampled(OF_TORCH, samples=32)
    measured, exact = engine.deviation, sampled(FLOAT32, samples=32)[1]
    assert measured is not None
    ratio = float(
        mutual_information(outputs.double().softmax(2)).mean() / mutual_information(exact.double().softmax(2)).mean()
    )
    assert measured.uncertainty == pytest.approx(ratio - 1, abs=1e-6)
    assert 0 < abs(measured.uncertainty) < 0.01 < measured.monte_carlo_error < 0.5
    assert measured.is_below_monte_carlo_error(32) and measured.is_below_monte_carlo_error(1024)
    assert not measured.is_below_monte_carlo_error(10**9)


@pytest.mark.parametrize(("task", "outputs"), [(REGRESSION, 1), (REGRESSION, 4), (CLASSIFICATION, 4), (MULTILABEL, 3)])
def test_the_monte_carlo_error_is_that_of_leaving_out_each_draw(task, outputs):
    exact = torch.randn(7, 11, outputs, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = deviation_of_samples(exact + 1e-3, exact, task)
    without = torch.stack([torch.cat([exact[:t], exact[t + 1 :]]) for t in range(7)])
    if task is REGRESSION:
        unit = exact.var(0, correction=0).mean(0)
        means, whole = (without.var(1, correction=0) / unit).mean((1, 2)), 1.0
        assert found.measure == "variance" and found.uncertainty == pytest.approx(0, abs=1e-9)
        moved = (1e-6 / unit).mean() / (exact.var(0) / 7 / unit).mean()
        assert found.of_mean_prediction == pytest.approx(float(moved.sqrt()))
    else:
        p = exact.softmax(2) if task is CLASSIFICATION else exact.sigmoid()[..., None] * torch.tensor([1, -1])
        p = p if task is CLASSIFICATION else p + torch.tensor([0, 1])
        others = [torch.cat([p[:t], p[t + 1 :]]).flatten(1, -2) for t in range(7)]
        means = torch.stack([mutual_information(part).mean() for part in others])
        whole = mutual_information(p.flatten(1, -2)).mean()
        assert found.measure == "mutual information"
    error = ((means - means.mean()).square().sum() * 6 / 7).sqrt()
    assert found.monte_carlo_error == pytest.approx(float(error / whole), rel=1e-9)


def test_the_deviation_of_a_regression_is_that_of_each_output_in_its_own_unit():
    exact = torch.randn(16, 9, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    exact = exact * torch.tensor([1e3, 1e-3]) + 1013
    found = deviation_of_samples(exact + torch.tensor([0.0, 0.1]) * (exact - 1013), exact, REGRESSION)
    assert found.uncertainty == pytest.approx((1.1**2 - 1) / 2, rel=1e-6)


def test_of_many_positions_some_are_compared(monkeypatch):
    exact = torch.randn(8, 2, 3, 20, 30, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = deviation_of_samples(1.01 * exact, exact)
    monkeypatch.setattr(deviation, "_MOST_ENTRIES", exact.numel() // 4)
    of_some = deviation_of_samples(1.01 * exact, exact)
    rows = exact.flatten(3)[..., ::4].movedim(2, -1).flatten(1, 2).softmax(2)
    assert of_some.mean == pytest.approx(float(((1.01 * rows.log()).softmax(2) - rows).abs().mean()))
    assert of_some != found and of_some.points == found.points == 2
    assert of_some.uncertainty == pytest.approx(found.uncertainty, rel=0.1)


def test_a_single_draw_has_no_monte_carlo_error():
    exact = torch.randn(1, 5, 3, dtype=torch.float64)
    assert not deviation_of_samples(exact, exact).is_below_monte_carlo_error(1)


@pytest.mark.parametrize(
    ("values", "below"),
    [
        ((0.01, 0.02, 0.5), True),
        ((-0.03, 0.02, 0.5), False),
        ((0.01, 0.02, 1.5), False),
        ((float("nan"), 0.02, 0.5), False),
    ],
)
def test_an_arithmetic_is_kept_only_where_uncertainty_and_predictions_are_known_to_deviate_less(values, below):
    shift, error, of_means = values
    one = Deviation("mutual information", 0.0, 0.0, 64, 32, shift, 0.0, error, of_means)
    assert one.is_below_monte_carlo_error(32) is below
    assert not one.is_below_monte_carlo_error(32 * 100)  # whose error is a tenth


@pytest.mark.usefixtures("rounding")
def test_an_engine_computes_exactly_from_when_it_is_told():
    engine, rounded = sampled(OF_TORCH)
    exact = sampled(FLOAT32)[1]
    engine.compute_exactly()
    x = zoo.points((3, 8, 8), 64, dtype=torch.float32).to(NAME)
    assert torch.equal(engine.passes(x).cpu(), exact) and not torch.equal(rounded, exact)
    assert engine.arithmetic is FLOAT32


class Branching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.bn, self.last = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.bn(self.conv(x)).mean((2, 3))
        return self.last(x if float(x.mean()) < 1e9 else -x)


@pytest.mark.usefixtures("rounding")
def test_without_a_plan_the_default_arithmetic_is_given_up_and_a_requested_one_refused():
    net = zoo.settled(Branching, (3, 8, 8), torch.float32)
    engine, outputs = sampled(OF_TORCH, net, samples=3)
    assert engine.why_plain and engine.arithmetic is FLOAT32
    assert torch.equal(outputs, sampled(FLOAT32, net, samples=3)[1])
    with pytest.raises(SamplingError, match="precision tf32 needs a plan of the network"):
        sampled(TF32, net, samples=3)


# ── float16 ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.nightly
@pytest.mark.parametrize("stacked", (True, False))
def test_float16_is_folded_and_fused_and_eight_times_closer_than_bfloat16(stacked, accelerator, monkeypatch):
    monkeypatch.setitem(devices._TRAITS, NAME, replace(devices.traits(NAME), stacked_entries=2**28 if stacked else 0))
    exact = sampled(FLOAT32, points=70)[1]
    engine, outputs = sampled(FLOAT16, points=70)
    accelerator.clear()
    engine.passes(zoo.points((3, 8, 8), 70, dtype=torch.float32).to(NAME))
    work = engine.work(70)
    assert work is not None and work.folded > 0 and work.stacked == (16 if stacked else 1)
    assert outputs.dtype == torch.float32
    assert (accelerator.kernels["cudnn_convolution_add_relu"] > 0) is not stacked
    assert 1e-5 < relative(outputs, exact) < 2e-3 < relative(sampled(BFLOAT16, points=70)[1], exact)
    assert engine.deviation is not None and abs(engine.deviation.uncertainty) < 0.01


@pytest.mark.usefixtures("accelerator")
@pytest.mark.nightly
def test_folded_weights_are_rounded_once(monkeypatch):
    monkeypatch.setitem(devices._TRAITS, NAME, replace(devices.traits(NAME), stacked_entries=0))
    engine, _ = sampled(FLOAT16)
    exact, other = engine.executor, engine._executor
    assert exact is not None and other is not None
    for (weights, biases), (rounded, rounded_biases) in zip(
        next(exact._foldings(range(1))).values(), next(other._foldings(range(1))).values(), strict=True
    ):
        assert rounded.dtype == rounded_biases.dtype == torch.float16
        assert torch.equal(rounded.cpu(), weights.cpu().half()) and torch.equal(
            rounded_biases.cpu(), biases.cpu().half()
        )


@pytest.mark.usefixtures("accelerator")
@pytest.mark.parametrize(
    ("stacked", "squash"),
    at_night.but({(True, nn.Hardtanh)}, itertools.product((True, False), (nn.Identity, nn.Hardtanh, nn.Sigmoid))),
)
def test_what_overflows_is_refused_by_layer_also_where_it_is_squashed_later(stacked, squash, monkeypatch):
    monkeypatch.setitem(devices._TRAITS, NAME, replace(devices.traits(NAME), stacked_entries=2**28 if stacked else 0))
    engine, _ = sampled(FLOAT32, scaled(1e6, squash))
    assert engine.deviation is None
    said = "--precision float16: two overflows in the first examples, where 65,504 is the largest number; use bfloat16 "
    with pytest.raises(SamplingError, match=said):
        sampled(FLOAT16, scaled(1e6, squash))
    assert sampled(FLOAT16, scaled(100, squash))[0].deviation is not None


class Masked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.bn, self.last = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        weights = self.bn(self.conv(x)).flatten(2)
        weights = weights.masked_fill(weights < 0, float("-inf")).softmax(2)
        return self.last(weights.nan_to_num().square().sum(2))


@pytest.mark.usefixtures("accelerator")
def test_infinities_of_the_network_itself_are_no_overflow():
    engine, outputs = sampled(FLOAT16, zoo.settled(Masked, (3, 8, 8), torch.float32))
    assert not engine.why_plain and outputs.isfinite().all()


# ── how many draws are stacked ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("points", "stacked"), [(16, 8), (1024, 1)])
def test_draws_are_stacked_only_while_one_leaves_the_device_idle(points, stacked, accelerator):
    engine, _ = sampled(TF32, samples=8, points=points)
    work = engine.work(points)
    assert work is not None and work.stacked == stacked  # of 64 positions each
    x = zoo.points((3, 8, 8), points, dtype=torch.float32).to(NAME)
    accelerator.clear()
    engine.passes(x)
    assert accelerator.kernels["cudnn_convolution_add_relu"] == (0 if stacked > 1 else 8)


@pytest.mark.usefixtures("accelerator")
@pytest.mark.nightly
def test_without_a_fused_kernel_draws_are_stacked_as_memory_allows(monkeypatch):
    monkeypatch.setattr(devices, "fuses_activations", lambda _: False)
    work = sampled(TF32, samples=8, points=1024)[0].work(1024)
    assert work is not None and work.stacked == 8
