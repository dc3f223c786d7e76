"""Measures time in rounds and memory, and describes the machine."""

from __future__ import annotations

import contextlib
import gc
import os
import platform
import re
import resource
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from bnuq import devices

MIN_SECONDS = 0.03  # seconds; a shorter action is repeated until it takes this long


@dataclass(frozen=True)
class Seconds:
    """CPU time of this process and wall-clock time. Ratios of CPU times are reliable on a shared machine, too."""

    cpu: float
    wall: float

    def over(self, count: float) -> Seconds:
        return Seconds(self.cpu / count, self.wall / count)


@dataclass(frozen=True)
class Spread:
    """The minimum, median and maximum of a measurement over the rounds."""

    min: float
    median: float
    max: float

    def __str__(self) -> str:
        return f"{self.median:.3g} ({self.min:.3g}–{self.max:.3g})"


def spread(values: Sequence[float]) -> Spread:
    return Spread(min(values), statistics.median(values), max(values))


def timed(action: Callable[[], object], device: str, repeats: int = 1) -> Seconds:
    """The seconds of one call of `action`, the mean over `repeats`."""
    _finish(device)
    wall, cpu = time.perf_counter(), time.process_time()
    for _ in range(repeats):
        action()
    _finish(device)
    return Seconds(time.process_time() - cpu, time.perf_counter() - wall).over(repeats)


def _finish(device: str) -> None:
    devices.synchronize(torch.device(device))


def rounds(
    actions: Mapping[str, Callable[[], object]],
    once: Mapping[str, Seconds],
    *,
    reference: str,
    seconds: float,
    min_rounds: int,
    max_rounds: int,
    device: str,
) -> list[dict[str, Seconds]]:
    """The seconds of every action in each of several rounds: as many rounds as fit into `seconds`, within the bounds.

    Every round times each action once, in an order that is reversed from round to round; `reference` is timed first and
    last, and its mean counts. A temporary slowdown of the machine therefore affects the whole round, and cancels in its
    ratios. `once` holds the approximate duration of each action; short actions are repeated.
    """
    repeats = {name: max(1, round(MIN_SECONDS / max(once[name].wall, 1e-6))) for name in actions}
    cost = sum(max(once[name].wall * repeats[name], MIN_SECONDS) * (1 + (name == reference)) for name in actions)
    others = [name for name in actions if name != reference]
    timings = []
    gc.collect()
    for turn in range(max(min_rounds, min(max_rounds, int(seconds / cost)))):
        before = timed(actions[reference], device, repeats[reference])
        order = others if turn % 2 == 0 else others[::-1]
        timing = {name: timed(actions[name], device, repeats[name]) for name in order}
        after = timed(actions[reference], device, repeats[reference])
        timing[reference] = Seconds((before.cpu + after.cpu) / 2, (before.wall + after.wall) / 2)
        timings.append(timing)
    return timings


class Peak:
    """The peak memory of this process above its memory at the start, in bytes.

    Linux resets the earlier peak on request. On other systems the peak is that of the whole process, and the result may
    be too small by the memory that was freed before.
    """

    def __init__(self) -> None:
        gc.collect()
        with contextlib.suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")
        self._before = _resident() or _highest()

    def bytes(self) -> int:
        return max(0, _highest() - self._before)


def _resident() -> int | None:
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return None
    return pages * os.sysconf("SC_PAGE_SIZE")


def _highest() -> int:
    try:
        status = Path("/proc/self/status").read_text()
        return int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) * 1024  # type: ignore[index]
    except OSError:
        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


@dataclass(frozen=True)
class Work:
    """The minimum work of one pass over one point: operations of the matrix unit, and bytes moved.

    The bytes assume fused layers: every convolution and dense layer reads its input and writes its output once, with
    the given number of bytes per entry; all other operations are fused into these.
    """

    flops: float
    bytes: float


def work(model: nn.Module, points: Tensor, entry_bytes: int) -> Work:
    """The work of one pass, per point. A multiply-add counts as two operations."""
    moved = 0

    def look(layer: nn.Module, args: tuple[Tensor], output: Tensor) -> None:  # noqa: ARG001 - torch calls it so
        nonlocal moved
        moved += (args[0].numel() + output.numel()) * entry_bytes

    layers = [m for m in model.modules() if isinstance(m, nn.Linear | nn.modules.conv._ConvNd)]
    hooks = [layer.register_forward_hook(look) for layer in layers]
    counter = FlopCounterMode(display=False)
    with torch.no_grad(), counter:
        model(points)
    for hook in hooks:
        hook.remove()
    return Work(counter.get_total_flops() / len(points), moved / len(points))


@dataclass(frozen=True)
class Accelerator:
    """Peaks of a GPU from its data sheet: dense operations per second by precision, memory bytes per second."""

    float32: float
    tf32: float
    bfloat16: float
    bandwidth: float


ACCELERATORS = {  # by a part of torch's device name; the first match counts
    "H200": Accelerator(67e12, 494.7e12, 989.4e12, 4.8e12),
    "GH200": Accelerator(67e12, 494.7e12, 989.4e12, 4.0e12),
    "H100 PCIe": Accelerator(51e12, 378e12, 756e12, 2.0e12),
    "H100": Accelerator(67e12, 494.7e12, 989.4e12, 3.35e12),
    "A100-SXM4-80GB": Accelerator(19.5e12, 156e12, 312e12, 2.039e12),
    "A100": Accelerator(19.5e12, 156e12, 312e12, 1.555e12),
    "L40S": Accelerator(91.6e12, 183e12, 362e12, 0.864e12),
    "L4": Accelerator(30.3e12, 60e12, 121e12, 0.3e12),
    "RTX 4090": Accelerator(82.6e12, 82.6e12, 165.2e12, 1.008e12),
}


def accelerator(device: str) -> Accelerator | None:
    """The peaks of this machine's GPU; None on a CPU, and where its name is not in the table."""
    name = devices.name_of(torch.device(device))
    return next((peaks for part, peaks in ACCELERATORS.items() if part in name), None)


def machine(device: str) -> dict[str, object]:
    """A description of the machine, for the file and for the figure's footer."""
    cpu = _cpu_information()
    facts: dict[str, object] = {
        "cpu": cpu.get("model name") or platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "caches": _caches(),
        "instructions": [
            f for f in ("avx2", "avx512f", "avx512_bf16", "amx_bf16") if f in cpu.get("flags", "").split()
        ],
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "date": datetime.now(UTC).date().isoformat(),
    }
    if not devices.is_host(torch.device(device)):
        facts |= {"gpu": devices.name_of(torch.device(device)), **devices.versions(torch.device(device))}
    return facts


def file_name(about: Mapping[str, object]) -> str:
    """How the files of a machine are named."""
    text = str(about.get("gpu") or f"{about['cpu']} {about['cores']} cores").lower()
    return "-".join("".join(c if c.isalnum() else " " for c in text).split())


def _cpu_information() -> dict[str, str]:
    try:
        lines = Path("/proc/cpuinfo").read_text().split("\n\n")[0].splitlines()
    except OSError:
        return {}
    return {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}


def _caches() -> dict[str, str]:
    """The caches of the first core."""
    caches = {}
    for index in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        try:
            level, kind, size = ((index / name).read_text().strip() for name in ("level", "type", "size"))
        except OSError:
            continue
        if kind != "Instruction":
            caches[f"L{level}"] = size
    return caches
