"""The kernels of Triton, run by its interpreter on the CPU, against plain operations: make test-kernels."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
from importlib.util import find_spec

import pytest
import torch
from fake_accelerator import NAME
from torch import Tensor, nn
from torch.testing import assert_close

import bnuq
from bnuq.sampling import counter_rng, kernels
from bnuq.sampling.counter_rng import MaskKey
from bnuq.sampling.engine import Stochastic
from bnuq.sampling.site_search import find_sites

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.skipif(
        find_spec("triton") is None or os.environ.get("TRITON_INTERPRET") != "1",
        reason="needs Triton, which comes with torch for GPUs, and TRITON_INTERPRET=1: make test-kernels",
    ),
]
DTYPES = [torch.float32, torch.float16, torch.bfloat16]
SHAPES = [(6, 5, 7, 11), (4, 1, 1, 1), (2, 64, 1, 1), (8, 1031), (10, 3, 33), (2, 3, 40, 41), (4, 3, 2, 3, 5)]
LAST = {4: torch.channels_last, 5: torch.channels_last_3d}


def layouts(x: Tensor) -> list[Tensor]:
    """These values in both dense layouts, and strided."""
    strided = torch.stack([x, x], -1)[..., 0]
    return [x, strided, *([x.contiguous(memory_format=LAST[x.ndim])] if x.ndim in LAST else [])]


@pytest.fixture
def everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use the kernels on a CPU too."""
    monkeypatch.setattr(kernels, "_is_right", lambda *_: True)


@pytest.mark.usefixtures("everywhere")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_scale_shift_addition_and_relu_are_those_of_their_formula(shape, dtype):
    scale, shift = torch.randn(2, 2, shape[1])
    of_rows = [values.double().repeat_interleave(shape[0] // 2, 0) for values in (scale, shift)]
    of_rows = [values.view(shape[0], shape[1], *[1] * (len(shape) - 2)) for values in of_rows]
    for x in layouts(torch.randn(shape).to(dtype)):
        for added in (None, torch.randn(shape).to(dtype), torch.randn_like(x)):
            exact = of_rows[0] * x.double() + of_rows[1] + (0 if added is None else added.double())
            found = kernels.activated(x, scale, shift, added)
            assert found.dtype == dtype and found.shape == x.shape
            assert x.stride() == found.stride() or not (x.is_contiguous() or kernels._is_channels_last(x))
            assert_close(found.double(), exact.relu(), rtol=0, atol=12 * torch.finfo(dtype).eps)


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # of numpy, in the interpreter
@pytest.mark.usefixtures("everywhere")
def test_what_is_not_finite_stays():
    x = torch.tensor([[float("nan"), float("inf"), -float("inf"), -0.0]])
    for scale in (torch.ones(1, 4), torch.zeros(1, 4)):
        found = kernels.activated(x, scale, torch.zeros(1, 4))
        assert_close(found, kernels.plainly_activated(x, scale, torch.zeros(1, 4)), equal_nan=True)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("p", [0.1, 0.5, 1 - 2**-12, "tied"])
@pytest.mark.parametrize("first", [0, 12345, 2**40 + 3])
@pytest.mark.parametrize("shape", SHAPES)
def test_masks_are_those_of_the_cpu_bit_by_bit(shape, first, p, dtype):
    seed, draws, count = 2**63 - 1, (3, 2**40), torch.Size(shape).numel() // 2
    if p == "tied":  # of the last entry, 16 bits do not tell whether it is kept
        p = (float(counter_rng.quarters(seed, draws, counter_rng.MASK, first, count, site=4)[1, -1]) + 0.5) / 2**16
    key = MaskKey(seed, draws, 4, p)
    kept = torch.from_numpy(counter_rng.kept(key, first, count))
    ones = torch.ones(2, count, dtype=torch.uint8)
    assert torch.equal(kernels._masked(ones, key, first, 1, ones), kept)
    for x in layouts(torch.randn(shape).to(dtype)):
        if not kernels._fits(x):
            continue
        expected = x * kept.view(shape).to(dtype).mul_(1 / (1 - p))
        found = kernels._masked(x, key, first, 1 / (1 - p), None)
        assert torch.equal(found == 0, expected == 0) and found.stride() == x.stride()
        # the interpreter cuts numbers to bfloat16, which devices round
        assert_close(found, expected, rtol=torch.finfo(dtype).eps if dtype is torch.bfloat16 else 0.0, atol=0)


def test_the_examples_have_entries_whose_first_bits_do_not_decide():
    (x, *_), outcomes = kernels.examples(torch.device("cpu"), torch.float32), set[int]()
    for p, first in kernels._TIED:
        key = MaskKey(1, (2, 7), 3, p)
        bits = counter_rng.quarters(1, key.draws, counter_rng.MASK, first, x.numel() // 2, site=3)
        outcomes |= set(counter_rng.kept(key, first, x.numel() // 2)[bits == int(p * 2**16)].tolist())
    assert outcomes == {0, 1}


def test_a_device_without_the_kernels_gives_the_same_samples(accelerator, monkeypatch):
    layers = nn.Conv2d(3, 8, 3), nn.Dropout2d(0.3), nn.ReLU(), nn.Dropout(0.2), nn.Flatten(), nn.Linear(8 * 36, 5)
    net, x = nn.Sequential(*layers).eval(), torch.randn(9, 3, 8, 8)
    expected = bnuq.predict(copy.deepcopy(net), x, dropout=bnuq.Dropout(4, seed=3))
    net, x, copies = net.to(NAME), x.to(NAME), []
    for allowed in (True, False):
        if not allowed:
            monkeypatch.setattr(kernels, "_is_right", lambda *_: False)
        bnuq.predict(net, x, dropout=bnuq.Dropout(4, seed=3))
        accelerator.clear()
        assert_close(bnuq.predict(net, x, dropout=bnuq.Dropout(4, seed=3)).cpu(), expected, rtol=1e-5, atol=1e-6)
        assert (accelerator.kernels["_mask"] > 0) == allowed
        copies.append(accelerator.copies)
    assert copies[0] == 0 < copies[1]  # keys were copied once, and masks each time


class Block(nn.Module):
    """Two convolutions with BatchNorms, and a shortcut."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 16, 3, padding=1, bias=False)
        self.bn_one, self.bn_two, self.last = nn.BatchNorm2d(16), nn.BatchNorm2d(16), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.bn_one(self.one(x)).relu()
        return self.last((self.bn_two(self.two(x)) + x).relu().mean((2, 3)))


def test_stacked_draws_are_activated_in_one_kernel(accelerator, monkeypatch):
    net, x = Block().eval().to(NAME), torch.randn(12, 3, 16, 16).to(NAME)
    omega = bnuq.draw(net, x, samples=4, batch_size=6)
    expected = bnuq.predict(copy.deepcopy(net).cpu(), x.cpu(), omega)
    launches = []
    for allowed in (True, False):
        if not allowed:
            monkeypatch.setattr(kernels, "_is_right", lambda *_: False)
        engine = Stochastic(net, find_sites(net, x, compare_with_training=False), omega=omega)
        engine.passes(x)
        accelerator.clear()
        assert_close(engine.passes(x).cpu(), expected, rtol=1e-4, atol=1e-5)
        launches.append(accelerator.kernels.copy())
    # The first convolution runs once for all draws, so its BatchNorm is no part of it.
    assert launches[0]["_activate"] == 1 and launches[1]["addcmul"] == 2
    assert launches[0].total() == launches[1].total() - 2  # the addition and the ReLU


@pytest.mark.usefixtures("accelerator")
@pytest.mark.parametrize("broken", ["_activated", "_masked"])
def test_a_kernel_that_is_wrong_is_not_used(broken, monkeypatch):
    right = getattr(kernels, broken)
    monkeypatch.setattr(kernels, broken, lambda x, *rest: right(x, *rest).mul_(1 + 2**-12))
    kernels._is_right.cache_clear()
    device = torch.device(NAME, 0)
    judged = {name: kernels._is_right(name, device, torch.float32) for name in kernels._CHECKS}
    kernels._is_right.cache_clear()
    assert judged == {"activated": broken != "_activated", "masked": broken != "_masked"}


COMPILED = """
import torch, triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from bnuq.sampling import kernels
from bnuq.sampling.engine import Stochastic
from bnuq.sampling.site_search import find_sites

integers = dict.fromkeys("rows channels area lines length tiles skipped site high".split(), "i32")
types = integers | {"first": "i64", "low": "u64", "scale": "fp32", "keys": "*i64", "scales": "*fp32", "shifts": "*fp32"}
ones = dict.fromkeys("lines channels tiles first skipped site high low".split(), 1)  # which Triton makes constants
constants = {
    kernels._mask: ({**ones, "LINES": 1, "BLOCKS": 128}, {"LINES": 32, "BLOCKS": 4}),
    kernels._activate: ({"ADDS": adds, "CHANNELS_LAST": adds, "BLOCK": 1024} for adds in (False, True)),
}
for kernel, ways in constants.items():
    function = kernels._compiled(kernel)
    for way in ways:
        for dtype in ("fp32", "fp16", "bf16", *(["u8"] if kernel is kernels._mask else [])):
            given = types | dict.fromkeys(("x", "out", "other"), f"*{dtype}") | dict.fromkeys(way, "constexpr")
            signature = {name: given[name] for name in function.arg_names}
            for capability in (80, 90):
                source = ASTSource(function, signature, constexprs=way)
                compiled = triton.compile(source, target=GPUTarget("cuda", capability, 32))
                print(kernel.__name__, len(compiled.asm["cubin"]) > 0)
"""


def test_they_compile_for_gpus_without_one(tmp_path):
    environment = {**os.environ, "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)}
    told = subprocess.run([sys.executable, "-c", COMPILED], env=environment, capture_output=True, text=True, check=True)
    assert told.stdout.split() == ["_mask", "True"] * 16 + ["_activate", "True"] * 12
