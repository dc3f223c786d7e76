"""The capabilities of each kind of device, and torch's interface to it: the only place that distinguishes them."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

NAMES = "auto, cpu, cuda, cuda:N, xpu, xpu:N or mps"  # of --device; ROCm's is cuda


@dataclass(frozen=True)
class Traits:
    """A kind of device: the entries of the largest value in a tile, and over stacked draws; how many times more points
    pass together than on a CPU; whether it `draws` masks of dropout by itself, in another stream than a CPU; whether
    it has `float64`, `tf32`, and a kernel for a convolution with its ReLU (`fused`); whether exact products are faster
    in images' `plain_layout` than channels last."""

    tile_entries: int
    stacked_entries: int
    points: int = 1
    draws: bool = False
    float64: bool = True
    tf32: bool = False
    fused: bool = False
    plain_layout: bool = False


_TRAITS = {
    "cpu": Traits(2**19, 2**16),
    "cuda": Traits(2**28, 2**28, points=4, draws=True, tf32=True, fused=True, plain_layout=True),
    "xpu": Traits(2**28, 2**28, points=4, draws=True, plain_layout=True),
    "mps": Traits(2**24, 2**24, float64=False),
}


def traits(device: torch.device | str) -> Traits:
    """The traits of a device; of a kind that is not known, those of a CPU."""
    return _TRAITS.get(torch.device(device).type, _TRAITS["cpu"])


def is_host(device: torch.device) -> bool:
    """Whether the device is the CPU, whose memory is that of the process."""
    return device.type == "cpu"


def fuses_activations(device: torch.device) -> bool:
    """Whether cuDNN computes a convolution, an addition and a ReLU in one kernel."""
    return traits(device).fused and torch.backends.cudnn.enabled and torch.version.hip is None


def with_float64(values: Tensor) -> Tensor:
    """The values on their device, or on the CPU if that has no float64."""
    return values if traits(values.device).float64 else values.cpu()


def synchronize(device: torch.device) -> None:
    """Wait for all work of an accelerator."""
    if is_host(device):
        return
    module = _module(device.type)
    module.synchronize() if device.type == "mps" else module.synchronize(device)


def free_bytes(device: torch.device) -> int | None:
    """Free bytes of an accelerator's own memory; None if it has none, or torch does not tell."""
    module = _module(device.type)
    if is_host(device) or not hasattr(module, "mem_get_info"):
        return None
    unused_reserve = module.memory_reserved(device) - module.memory_allocated(device)
    return module.mem_get_info(device)[0] + unused_reserve


def reset_peak(device: torch.device) -> None:
    """Reset `peak_bytes`."""
    if not is_host(device) and hasattr(module := _module(device.type), "reset_peak_memory_stats"):
        module.reset_peak_memory_stats(device)


def peak_bytes(device: torch.device) -> int | None:
    """The most bytes of an accelerator's own memory in use since `reset_peak`; None if torch does not tell."""
    if is_host(device) or not hasattr(module := _module(device.type), "max_memory_allocated"):
        return None
    return module.max_memory_allocated(device)


def name_of(device: torch.device) -> str:
    """The name of an accelerator, or the machine's architecture."""
    if is_host(device) or not hasattr(module := _module(device.type), "get_device_name"):
        return platform.machine()
    return module.get_device_name(device)


def preferred() -> str | None:
    """The kind of accelerator that "auto" stands for here, if any. mps, which has no float64, is used on request."""
    return next((name for name in ("cuda", "xpu") if count(name)), None)


def count(kind: str) -> int:
    """How many accelerators of this kind there are."""
    module = getattr(torch, kind, None)
    return module.device_count() if module is not None and module.is_available() else 0


def generator_states() -> Iterator[tuple[Callable[[Any], object], Any]]:
    """How the state of each accelerator's random generator is restored, and that state, if one is in use."""
    for kind in ("cuda", "xpu"):
        module = getattr(torch, kind, None)
        if module is not None and module.is_available() and module.is_initialized():
            for device in range(module.device_count()):
                yield partial(module.set_rng_state, device=device), module.get_rng_state(device)
    if torch.backends.mps.is_available():
        yield torch.mps.set_rng_state, torch.mps.get_rng_state()


def versions(device: torch.device) -> dict[str, str | None]:
    """The versions of the libraries of CUDA or ROCm; of other devices none."""
    if not traits(device).tf32:
        return {}
    driver = getattr(torch._C, "_cuda_getDriverVersion", None)
    values = {
        "cuda": torch.version.cuda or torch.version.hip,
        "cuda_driver": None if driver is None else driver(),
        "cudnn": torch.backends.cudnn.version(),
    }
    return {name: None if version is None else str(version) for name, version in values.items()}


def _module(kind: str) -> ModuleType:
    return getattr(torch, kind)
