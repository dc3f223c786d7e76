"""The parts of `benchmarks/gpu.py`. Times are medians of repeats between synchronisations, after a warm-up."""

from __future__ import annotations

import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import numpy as np
import torch
from contestants import Job, SwapLoop, TorchUncertaintyMCBN
from networks import AbsentError
from torch import Tensor, nn
from torch.nn import functional as F

import bnuq
from bnuq import devices
from bnuq.arithmetic import Precision, arithmetic_named
from bnuq.sampling import engine as engine_module
from bnuq.sampling.dropout import dropped
from bnuq.sampling.engine import Stochastic, default_chunk
from bnuq.sampling.interception import DropoutCall, float32_as
from bnuq.sampling.measure import moments
from bnuq.sampling.plain_loop import Evaluation
from bnuq.sampling.site_search import find_sites
from bnuq.sampling.sites import DropoutSite

if TYPE_CHECKING:
    from gpu import Part

NHWC = torch.channels_last
PRECISIONS = ("float32", "tf32", "float16", "bfloat16")
ON_GPU_ALONE = ("tf32", "float16")


@dataclass(frozen=True)
class Bench:
    """The device, and the sizes of the networks: those of ImageNet, or `tiny` ones."""

    device: torch.device
    tiny: bool = False

    @property
    def on_gpu(self) -> bool:
        return not devices.is_host(self.device)

    @property
    def side(self) -> int:
        return 32 if self.tiny else 224

    @property
    def precisions(self) -> list[Precision]:
        return [name for name in PRECISIONS if name not in ON_GPU_ALONE or self.on_gpu]

    def pictures(self, count: int) -> Tensor:
        return torch.randn(count, 3, self.side, self.side)

    def seconds(self, action: Callable[[], object], repeats: int = 5) -> float:
        """The median of repeats after a first call; the first call, where it takes long."""
        times = []
        for turn in range(repeats + 1):
            devices.synchronize(self.device)
            begun = time.perf_counter()
            action()
            devices.synchronize(self.device)
            times.append(time.perf_counter() - begun)
            if turn == 0 and times[0] > 10:
                return times[0]
        return statistics.median(times[1:])


class Block(nn.Module):
    """A bottleneck of ResNet-50 (v1.5)."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.c1, self.b1 = nn.Conv2d(inputs, width, 1, bias=False), nn.BatchNorm2d(width)
        self.c2, self.b2 = nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width)
        self.c3, self.b3 = nn.Conv2d(width, 4 * width, 1, bias=False), nn.BatchNorm2d(4 * width)
        conv = nn.Conv2d(inputs, 4 * width, 1, stride, bias=False)
        is_same = stride == 1 and inputs == 4 * width
        self.short = nn.Identity() if is_same else nn.Sequential(conv, nn.BatchNorm2d(4 * width))

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.b2(self.c2(F.relu(self.b1(self.c1(x))))))
        return F.relu(self.b3(self.c3(y)) + self.short(x))


def resnet50(*, tiny: bool = False) -> nn.Module:
    """He et al. 2016, with random weights and the running statistics of random images; `tiny`: a block per stage."""
    torch.manual_seed(0)
    layers: list[nn.Module] = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU()]
    layers.append(nn.MaxPool2d(3, 2, 1))
    inputs = 64
    for blocks, width, stride in ((3, 64, 1), (4, 128, 2), (6, 256, 2), (3, 512, 2)):
        narrow = width // 4 if tiny else width
        for k in range(1 if tiny else blocks):
            layers.append(Block(inputs, narrow, stride if k == 0 else 1))
            inputs = 4 * narrow
    net = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, 1000))
    with torch.no_grad():
        for _ in range(2):
            net.train()(torch.randn(4, 3, 32 if tiny else 224, 32 if tiny else 224))
    return net.eval()


def engine_of(bench: Bench, net: nn.Module, samples: int, precision: Precision = "float32") -> Stochastic:
    """bnuq's engine for MCBN with mini-batches of 16 pictures, planned."""
    omega = bnuq.draw(net, bench.pictures(32), samples=samples, batch_size=16)
    sites = find_sites(net, bench.pictures(3).to(bench.device), compare_with_training=False)
    engine = Stochastic(net, sites, omega=omega, arithmetic=arithmetic_named(precision))
    engine.prepare(bench.pictures(16).to(bench.device))
    return engine


def dtype_of(precision: Precision) -> torch.dtype:
    arithmetic = arithmetic_named(precision)
    return getattr(torch, arithmetic.half or arithmetic.network)


# ── is the machine what it should be, and is bnuq right on it ─────────────────────────────────────────────────────────


def about(bench: Bench, part: Part) -> None:
    device = bench.device
    if bench.on_gpu:
        part.say(devices.name_of(device), free_GB=(devices.free_bytes(device) or 0) / 1e9)
    n, side = (2**20, 256) if bench.tiny else (2**30, 8192)
    x = torch.randn(n, device=device)
    y = torch.empty_like(x)
    part.say("copy on the device", TB_per_s=8 * n / bench.seconds(lambda: y.copy_(x)) / 1e12)
    a, b = (torch.randn(side, side, device=device) for _ in range(2))
    for name in bench.precisions:
        kind = dtype_of(name)
        left, right = a.to(kind), b.to(kind)
        with float32_as(arithmetic_named(name).products):
            taken = bench.seconds(lambda left=left, right=right: left @ right)
        part.say(f"matrix product, {name}", TFLOP_per_s=2 * side**3 / taken / 1e12)
    chunk = bench.pictures(8 if bench.tiny else default_chunk((3, 224, 224), device))
    for name, copy in {
        "as torch does by default": lambda: chunk.to(device),
        "pinned, in a stream of its own": lambda: devices.upload(chunk, device),
    }.items():
        part.say(f"a chunk to the device, {name}", GB_per_s=chunk.nbytes / bench.seconds(copy) / 1e9)

        def behind_work(copy: Callable[[], object] = copy) -> float:
            for _ in range(8):
                a @ b
            begun = time.perf_counter()
            copy()
            return 1e3 * (time.perf_counter() - begun)

        part.say(f"the host's time for it behind queued work, {name}", ms=behind_work())


def right(bench: Bench, part: Part) -> None:
    import adversaries
    import zoo

    kinds = dict.fromkeys(zoo.KINDS, zoo) | dict.fromkeys(adversaries.ADVERSARIES, adversaries)
    largest, refused, compared = 0.0, [], 0
    for name, of in part.each(dict([*kinds.items()][: 4 if bench.tiny else None])):
        net, x = of.made(name), of.points(name, 24)
        found = []
        try:
            for device in (torch.device("cpu"), bench.device):
                here = net.to(device)
                omega = bnuq.draw(here, x, samples=4, batch_size=8)
                engine = Stochastic(here, find_sites(here, x[:3].to(device)), omega=omega)
                found.append((engine.passes(x[:20].to(device)).cpu(), engine.why_plain))
        except Exception as error:
            refused.append(f"{name}: {str(error)[:90]}")
            continue
        (expected, why), (values, why_here) = found
        apart = float((values - expected).abs().max() / expected.abs().max())
        largest, compared = max(largest, apart), compared + 1
        if apart > 1e-9 or why != why_here:
            part.say(f"differs: {name}", relative=apart, plan_on_cpu=why or "yes", plan_here=why_here or "yes")
    part.say("networks in float64, against the CPU", compared=compared, largest_relative_difference=largest)
    part.say("not compared (those that make CPU tensors are expected)", networks=refused)
    for mean in (0.0, 1e2, 1e4):
        x = (torch.randn(64, 32, 28, 28, dtype=torch.float64) + mean).float()
        exact = x.double().mean((0, 2, 3)), x.double().var((0, 2, 3), correction=0)
        for layout, memory_format in (("NCHW", torch.contiguous_format), ("NHWC", NHWC)):
            measured = moments(x.to(bench.device).contiguous(memory_format=memory_format))
            off = [float((m.double().cpu() - e).abs().max()) for m, e in zip(measured, exact, strict=True)]
            part.say(f"moments at mean {mean:g}, deviation 1, {layout}", mean_off=off[0], variance_off=off[1])
    shares: list[float] = []
    close = engine_module.close

    def noted(values: Tensor, expected: Tensor, tolerance: float) -> bool:
        shares.append(float((values - expected).abs().max() / expected.abs().max()) / tolerance)
        return close(values, expected, tolerance)

    with patch.object(engine_module, "close", noted):
        engine = engine_of(bench, resnet50(tiny=bench.tiny).to(bench.device), 8)
        engine.passes(bench.pictures(8 if bench.tiny else 64).to(bench.device))
    part.say(
        "ResNet-50, plan against plain loop: shares of the tolerance", shares=[round(share, 3) for share in shares]
    )
    part.say("ResNet-50, plan", made=engine.why_plain or "yes")


# ── how fast ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def fast(bench: Bench, part: Part) -> None:
    """Rates are samples × points a second; `of_plain` is relative to the faster layout of the same arithmetic."""
    net = resnet50(tiny=bench.tiny).to(bench.device)
    batch, samples = (8, 4) if bench.tiny else (256, 16)
    x = bench.pictures(batch).to(bench.device)
    chunk = min(batch, default_chunk((3, bench.side, bench.side), bench.device))
    for name, rounding in part.each({name: arithmetic_named(name).products for name in bench.precisions}):
        plain = {}
        for layout, memory_format in (("NCHW", torch.contiguous_format), ("NHWC", NHWC)):
            rounded = float32_as(rounding)
            with part.attempt(f"{name}: plain forwards, {layout}"), torch.inference_mode(), rounded:
                kind = dtype_of(name)
                model = resnet50(tiny=bench.tiny).to(bench.device, kind, memory_format=memory_format)
                some = x.to(kind).contiguous(memory_format=memory_format)
                plain[layout] = batch / bench.seconds(lambda model=model, some=some: model(some))
                part.say(f"{name}: plain forwards, {layout}", per_second=plain[layout])
        best = max(plain.values(), default=math.nan)
        with part.attempt(f"{name}: bnuq"):
            engine = engine_of(bench, net, samples, name)
            rate = samples * chunk / bench.seconds(lambda engine=engine: engine.passes(x[:chunk]), 3)
            title = f"{name}: bnuq, {chunk} points"
            part.say(title, per_second=rate, of_plain=rate / best, work=str(engine.work(chunk)))
        _peers(bench, part, net, x[:chunk], samples, name, best)
    candidates = {
        "affine": lambda: _affine(bench, part),
        "graph": lambda: _graph(bench, part, engine_of(bench, net, samples, "float32"), x[:chunk]),
        "compiled": lambda: _compiled_forward(bench, part, x),
    }
    for name, candidate in part.each(candidates):
        with part.attempt(name):
            candidate()


def _peers(
    bench: Bench, part: Part, net: nn.Module, x: Tensor, samples: int, precision: Precision, best: float
) -> None:
    """Peers with the same mini-batches, points and arithmetic; in half precision under autocast, as their users run
    them."""
    batches = bench.pictures(samples * 16).to(bench.device).unflatten(0, (samples, 16))
    job = Job(net, x, samples=samples, batch=len(x), chunk=len(x), batches=batches)
    for title, make in {"loop that swaps statistics": SwapLoop, "TorchUncertainty": TorchUncertaintyMCBN}.items():
        with part.attempt(f"{precision}: {title}"):
            try:
                peer = make(job)
            except AbsentError as error:
                part.say(f"{precision}: {title}: skipped", why=str(error))
                continue
            peer.draw()
            arithmetic = arithmetic_named(precision)
            lowered = torch.autocast(bench.device.type, dtype_of(precision)) if arithmetic.half else nullcontext()
            with lowered, float32_as(arithmetic.products):
                rate = samples * len(x) / bench.seconds(peer.passes, 2)
            part.say(f"{precision}: {title}", per_second=rate, of_plain=rate / best)


def _affine(bench: Bench, part: Part) -> None:
    """The largest BatchNorm with an addition and its ReLU, several draws stacked: as now, and in one kernel."""
    draws, points, side = (2, 8, 16) if bench.tiny else (6, 55, 112)

    def fused(x: Tensor, scale: Tensor, shift: Tensor, other: Tensor) -> Tensor:
        y = x.unflatten(0, (draws, -1)).float() * scale + shift
        return (y.flatten(0, 1) + other).relu().to(x.dtype)

    for kind in (torch.float32, torch.bfloat16):
        x, other = (
            torch.randn(draws * points, 64, side, side, device=bench.device, dtype=kind).contiguous(memory_format=NHWC)
            for _ in range(2)
        )
        scale, shift = (torch.randn(draws, 1, 64, 1, 1, device=bench.device) for _ in range(2))
        moved = 3 * x.nbytes / 1e12

        def now(x: Tensor, scale: Tensor, shift: Tensor, other: Tensor) -> Tensor:
            return torch.addcmul(shift, x.unflatten(0, (draws, -1)), scale).flatten(0, 1).add_(other).relu_()

        taken = bench.seconds(partial(now, x, scale.to(kind), shift.to(kind), other), 9)
        name = str(kind).removeprefix("torch.")
        part.say(f"BatchNorm + addition + ReLU, three kernels, {name}", TB_per_s=moved / taken)
        if not bench.on_gpu:
            part.say(f"one compiled kernel, {name}: skipped, it is for GPUs")
            continue
        compiled = torch.compile(fused, dynamic=True)
        begun = time.perf_counter()
        compiled(x, scale, shift, other)
        first = time.perf_counter() - begun
        taken = bench.seconds(partial(compiled, x, scale, shift, other), 9)
        part.say(f"one compiled kernel, {name}", TB_per_s=moved / taken, compiled_in_s=first)


def _graph(bench: Bench, part: Part, engine: Stochastic, x: Tensor) -> None:
    """A chunk's passes as a CUDA graph: what launches cost."""
    if not bench.on_gpu or engine.executor is None:
        part.say("a chunk as a CUDA graph: skipped, it needs CUDA and a plan")
        return
    engine.passes(x)
    plain = bench.seconds(lambda: engine.passes(x), 3)
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.inference_mode(), float32_as("ieee"), torch.cuda.graph(graph):
            engine.executor.passes(x)
    except RuntimeError as error:
        part.say("a chunk as a CUDA graph: cannot be captured", why=str(error).splitlines()[0][:120])
        return
    part.say("a chunk as a CUDA graph", of_without=bench.seconds(graph.replay, 3) / plain)


def _compiled_forward(bench: Bench, part: Part, x: Tensor) -> None:
    """What torch.compile makes of a plain forward: a bound for fusing everything."""
    if not bench.on_gpu:
        part.say("plain forward by torch.compile: skipped, it is for GPUs")
        return
    with torch.inference_mode(), float32_as("tf32"):
        some = x.contiguous(memory_format=NHWC)
        model: Any = resnet50(tiny=bench.tiny).to(bench.device, memory_format=NHWC)
        compiled: Any = torch.compile(model)
        begun = time.perf_counter()
        compiled(some)
        first = time.perf_counter() - begun
        rates = [len(x) / bench.seconds(lambda f=f: f(some)) for f in (model, compiled)]
    part.say(
        "tf32: plain forward by torch.compile, NHWC",
        per_second=rates[1],
        of_eager=rates[1] / rates[0],
        compiled_in_s=first,
    )


def profile(bench: Bench, part: Part) -> None:
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as profiled

    net, samples = resnet50(tiny=bench.tiny).to(bench.device), 2 if bench.tiny else 12
    x = bench.pictures(4 if bench.tiny else 55).to(bench.device)
    kinds = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if bench.on_gpu else [])]
    key = "self_device_time_total" if bench.on_gpu else "self_cpu_time_total"
    for name, _ in part.each(dict.fromkeys(bench.precisions)):
        with part.attempt(name):
            engine = engine_of(bench, net, samples, name)
            engine.passes(x)
            with profiled(activities=kinds) as found:
                engine.passes(x)
                devices.synchronize(bench.device)
            rows = sorted(found.key_averages(), key=lambda row: -getattr(row, key))
            total = sum(getattr(row, key) for row in rows)
            part.say(f"{name}: {samples * len(x)} passes", ms=total / 1e3)
            for row in rows[:8]:
                part.say(f"{name}: {row.key[:80]}", share=getattr(row, key) / total, calls=row.count)


# ── masks, waits, memory ──────────────────────────────────────────────────────────────────────────────────────────────


def masks(bench: Bench, part: Part) -> None:
    count = 2**16 if bench.tiny else 2**24
    x = torch.ones(count // 2**14, 64, 16, 16)
    ways = {"in rows": ("dropout", x), "channels last": ("dropout", x.to(memory_format=NHWC)),
            "of channels": ("feature_dropout", x), "with operations of torch": ("alpha_dropout", x)}  # fmt: skip
    for name, (variety, pictures) in part.each(ways):
        site = DropoutSite("dropout", order=0, p=0.3, variety=variety, batch_axis=0)

        def drop(x: Tensor, site: DropoutSite = site) -> Tensor:
            return dropped(DropoutCall(x, site.p, site.variety, False, False), site, bnuq.Dropout(1), [0], 5)

        with part.attempt(f"masks, {name}"):
            here = pictures.to(bench.device)
            same = torch.equal(drop(here).cpu(), drop(pictures))
            taken = bench.seconds(partial(drop, here))
            part.say(f"masks, {name}", as_on_the_cpu=same, ps_per_entry=1e12 * taken / count)
    rows, bins = 64, 15  # replicates, and bins of confidence, into most of which few pixels fall
    numbers = (torch.rand(rows, count // rows, device=bench.device) ** 0.1 * bins).long()
    numbers = (numbers + bins * torch.arange(rows, device=bench.device)[:, None]).flatten()
    values = torch.rand(len(numbers), dtype=torch.float64, device=bench.device)
    for name, count_pixels in {"as they are": devices.counted, "bincount, which waits": _bincount}.items():
        taken = bench.seconds(partial(count_pixels, numbers, rows * bins, values))
        part.say(f"sums over pixels, {name}", ps_per_entry=1e12 * taken / len(numbers))


def _bincount(numbers: Tensor, bins: int, values: Tensor) -> Tensor:
    return torch.bincount(numbers, values, minlength=bins)


def waits(bench: Bench, part: Part) -> None:
    net, samples = resnet50(tiny=True).to(bench.device), 16
    x = torch.randn(40, 3, 32, 32, device=bench.device)
    small = Bench(bench.device, tiny=True)
    engine = engine_of(small, net, samples)
    predictor = bnuq.Predictor(net, bnuq.draw(net, small.pictures(32), samples=samples, batch_size=16))
    images = small.pictures(40)
    actions = {
        "a chunk of 16 draws": lambda: engine.passes(x),
        "the same with draws of a bank": lambda: engine.passes(x, draws=[*range(0, samples, 2)]),
        "a deterministic chunk": lambda: Evaluation(net).passes(x),
        "a call of Predictor": lambda: predictor(images),
        "drawing 8 mini-batches": lambda: bnuq.draw(net, images, samples=8, batch_size=16),
        "planning": lambda: engine_of(small, net, samples),
    }
    for name, action in part.each(actions):
        with part.attempt(name):
            taken = bench.seconds(action, 3)
            with _counting_waits(bench) as places:
                action()
            part.say(
                name,
                waits=places.total() if bench.on_gpu else "not counted",
                ms=1e3 * taken,
                places=places.most_common(4),
            )


@contextmanager
def _counting_waits(bench: Bench) -> Iterator[Counter[str]]:
    """The places where the host waits, by torch's own count; empty on a CPU."""
    places: Counter[str] = Counter()
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        if bench.on_gpu:
            torch.cuda.set_sync_debug_mode("warn")
        try:
            yield places
        finally:
            if bench.on_gpu:
                torch.cuda.set_sync_debug_mode("default")
    if bench.on_gpu:
        places.update(f"{Path(each.filename).name}:{each.lineno}" for each in seen if "synchron" in str(each.message))


def memory(bench: Bench, part: Part) -> None:
    net, points = resnet50(tiny=bench.tiny).to(bench.device), 4 if bench.tiny else 55
    x = bench.pictures(points).to(bench.device)
    for name in ("float32", "bfloat16"):
        with part.attempt(name):
            engine = engine_of(bench, net, 4 if bench.tiny else 32, name)
            work = engine.work(points)
            if not bench.on_gpu or work is None:
                part.say(f"{name}: skipped, memory of passes is measured on a GPU, with a plan")
                continue
            engine.passes(x)
            torch.cuda.empty_cache()
            devices.reset_peak(bench.device)
            before = torch.cuda.memory_allocated()
            engine.passes(x)
            taken = (devices.peak_bytes(bench.device) or 0) - before
            part.say(f"{name}, {points} points", estimated_GB=work.bytes / 1e9, taken_GB=taken / 1e9)


# ── a whole evaluation ────────────────────────────────────────────────────────────────────────────────────────────────

_NET = """import sys
sys.path[:0] = {paths!r}
from gpu_parts import resnet50


def net():
    return resnet50(tiny={tiny})
"""


def whole(bench: Bench, part: Part) -> None:
    """`bnuq evaluate` of ResNet-50 with T = 32, also with as little memory as a small card has."""
    count, samples, size = (24, 2, 8) if bench.tiny else (2000, 32, 64)
    with tempfile.TemporaryDirectory() as name:
        folder, random = Path(name), np.random.default_rng(0)
        for of_set in ("train", "test"):
            pixels = random.integers(0, 255, (count, bench.side, bench.side, 3), dtype=np.uint8)
            np.savez(folder / f"{of_set}.npz", x=pixels, y=random.integers(0, 1000, count))
        torch.save(resnet50(tiny=bench.tiny).state_dict(), folder / "net.pt")
        here = Path(__file__).resolve().parent
        (folder / "net.py").write_text(_NET.format(paths=[str(here), str(here.parent)], tiny=bench.tiny))
        settings = ["--samples", str(samples), "--batch-size", str(size), "--device", bench.device.type, "--json"]
        settings += ["--arch", "net.py:net", "--train", "train.npz", "--test", "test.npz"]
        runs: dict[str, tuple[str, float | None]] = {precision: (precision, None) for precision in bench.precisions}
        runs = {"float32": runs["float32"]} if bench.tiny else {**runs, "bfloat16, 8 GB": ("bfloat16", 8e9)}
        for title, (precision, limit) in part.each(runs):
            with part.attempt(f"evaluate, {title}"):
                _evaluation(part, title, folder, [*settings, "--precision", precision], limit)


def _evaluation(part: Part, title: str, folder: Path, settings: list[str], limit: float | None) -> None:
    share = f"{limit} / torch.cuda.get_device_properties(0).total_memory"
    start = "" if limit is None else f"import torch; torch.cuda.set_per_process_memory_fraction({share}); "
    line = f"{start}from bnuq.cli.main import main; main()"
    command = [sys.executable, "-c", line, "evaluate", "net.pt", *settings, "--out", "r.h5"]
    root = str(Path(__file__).resolve().parent.parent)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join((root, os.environ.get("PYTHONPATH", "")))}
    begun = time.perf_counter()
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=300, check=False, env=environment
    )
    taken = time.perf_counter() - begun
    if done.returncode:
        part.say(f"evaluate, {title}: failed", code=done.returncode, message=done.stderr[-300:])
        return
    record = json.loads(done.stdout)
    seconds = {name: round(value, 1) for name, value in record["seconds"].items()}
    passes = {name: round(work["seconds"], 1) for name, work in record["work"]["methods"].items()}
    peak = record["work"].get("peak_bytes")
    part.say(
        f"evaluate, {title}", seconds=taken, stages=seconds, passes=passes, peak_GB=None if peak is None else peak / 1e9
    )


PARTS = {
    "about": about, "right": right, "fast": fast, "profile": profile, "masks": masks, "waits": waits, "memory": memory,
    "whole": whole,
}  # fmt: skip
