"""The capabilities of each kind of device, and torch's interface to it: the only place that distinguishes them."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import cache, partial
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bnuq.frozen import frozen

NAMES = "auto, cpu, cuda or cuda:N"  # of --device; ROCm's is cuda


@frozen
class Traits:
    """A kind of device: the entries of the largest value in a tile, and over stacked draws; how many times more points
    pass together than on a CPU; whether it has `tf32`, and a kernel for a convolution with its ReLU (`fused`); whether
    exact products are faster in images' `plain_layout` than channels last; whether it takes `copies` from pinned memory
    while it computes."""

    tile_entries: int
    stacked_entries: int
    points: int = 1
    tf32: bool = False
    fused: bool = False
    plain_layout: bool = False
    copies: bool = False


_TRAITS = {
    "cpu": Traits(2**19, 2**16),
    "cuda": Traits(2**28, 2**28, points=4, tf32=True, fused=True, plain_layout=True, copies=True),
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


def torch_uses_tf32(device: torch.device) -> tuple[bool, bool]:
    """Whether torch rounds the factors of float32 to TF32 on this device, in convolutions and in products of matrices,
    as its switches are now. Those by operation, since 2.9, can be read whichever were set; reading the older ones
    would raise where both were."""
    if not traits(device).tf32 or torch.version.hip is not None:
        return False, False
    if _module(device.type).get_device_capability(device) < (8, 0):  # before Ampere
        return False, False
    backends: Any = torch.backends
    if hasattr(backends.cuda.matmul, "fp32_precision"):
        allowed = (backends.cudnn.conv.fp32_precision == "tf32", backends.cuda.matmul.fp32_precision == "tf32")
    else:
        allowed = backends.cudnn.allow_tf32, backends.cuda.matmul.allow_tf32
    convolutions, products = allowed
    return (convolutions if backends.cudnn.enabled else products), products  # without cuDNN, products of matrices


def synchronize(device: torch.device) -> None:
    """Wait for all work of an accelerator."""
    if not is_host(device):
        _module(device.type).synchronize(device)


def upload(values: Tensor, device: torch.device, dtype: torch.dtype | None = None) -> Tensor:
    """The values on the device and in the dtype. Where it takes copies while it computes, the host does not wait: what
    this thread asks of the device from now on comes after the copy."""
    if not traits(device).copies or not is_host(values.device):
        return values.to(device, dtype)
    module = _module(device.type)
    current, copying = module.current_stream(device), _copying_stream(device)
    with module.stream(copying):
        copied = _pinned(values.to(dtype or values.dtype)).to(device, non_blocking=True)
    current.wait_stream(copying)
    copied.record_stream(current)  # its memory is not used again before what is asked of it so far is done
    return copied


def _pinned(values: Tensor) -> Tensor:
    try:
        # memory that is pinned already is the caller's, who may write to it before it is copied
        return values.clone().pin_memory() if values.is_pinned() else values.pin_memory()
    except RuntimeError:  # some containers and virtual machines allow little; the copy is then waited for
        return values


@cache
def _copying_stream(device: torch.device) -> Any:
    return _module(device.type).Stream(device)


def queue_of_this_thread(device: torch.device) -> Callable[[], AbstractContextManager[object]]:
    """Makes contexts in which another thread gives its work to the device in the order of this thread's."""
    if not traits(device).copies:
        return nullcontext
    module = _module(device.type)
    return partial(module.stream, module.current_stream(device))


def as_current(device: torch.device) -> AbstractContextManager[object]:
    """Makes this device the one that kernels other than torch's are given to."""
    of_device = None if is_host(device) else getattr(_module(device.type), "device", None)
    return nullcontext() if of_device is None else of_device(device)


def fetch(values: Mapping[str, Tensor]) -> dict[str, np.ndarray]:
    """The values as arrays of the host, which waits for an accelerator once: they are copied as bytes, the longest
    numbers first, so that each begins where numbers of its type may."""
    arrays = {name: value.numpy() for name, value in values.items() if is_host(value.device)}
    of_device = sorted(values.keys() - arrays.keys(), key=lambda name: -values[name].itemsize)
    if of_device:
        joined = torch.cat([values[name].contiguous().flatten().view(torch.uint8) for name in of_device]).cpu()
        parts = joined.split([values[name].nbytes for name in of_device])
        arrays |= {  # copies, as one that is kept would keep them all
            name: part.view(values[name].dtype).view(values[name].shape).numpy().copy()
            for name, part in zip(of_device, parts, strict=True)
        }
    return {name: arrays[name] for name in values}


def counted(numbers: Tensor, bins: int, weights: Tensor | None = None) -> Tensor:
    """How often each of 0 … bins − 1 occurs, or the sum of the weights there; an accelerator is not waited for."""
    if is_host(numbers.device):
        return torch.bincount(numbers, weights, minlength=bins)
    weights = torch.ones_like(numbers) if weights is None else weights
    return torch.zeros(bins, dtype=weights.dtype, device=numbers.device).index_add_(0, numbers, weights)


def free_bytes(device: torch.device) -> int | None:
    """Free bytes of an accelerator's own memory; None if it has none, or torch does not tell."""
    module = _module(device.type)
    if is_host(device) or not hasattr(module, "mem_get_info"):
        return None
    unused_reserve = module.memory_reserved(device) - module.memory_allocated(device)
    return module.mem_get_info(device)[0] + unused_reserve


def little_memory_is_free() -> bool:
    """Whether a CUDA device on which this process has tensors has less than a tenth of its memory left."""
    module, every = _module("cuda"), (torch.device("cuda", number) for number in range(count("cuda")))
    used = [device for device in every if module.memory_allocated(device)]
    return any((free_bytes(device) or 0) < module.mem_get_info(device)[1] / 10 for device in used)


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
    """The kind of accelerator that "auto" stands for here, if any."""
    return "cuda" if count("cuda") else None


def count(kind: str) -> int:
    """How many accelerators of this kind there are."""
    module = getattr(torch, kind, None)
    return module.device_count() if module is not None and module.is_available() else 0


def shown_to_process(name: str, number: int) -> dict[str, str]:
    """The variables with which process number `number` sees its own of several accelerators, where `name`, that of
    --device, leaves open which."""
    if name not in ("auto", "cuda") or (several := count("cuda")) < 2:
        return {}
    shown = os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(several)))
    names = shown.split(",")
    return {"CUDA_VISIBLE_DEVICES": names[number % len(names)]}


def generator_states() -> Iterator[tuple[Callable[[Any], object], Any]]:
    """How the state of each accelerator's random generator is restored, and that state, if one is in use."""
    module = _module("cuda")
    if module.is_available() and module.is_initialized():
        for device in range(module.device_count()):
            yield partial(module.set_rng_state, device=device), module.get_rng_state(device)


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
