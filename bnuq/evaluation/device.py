"""The device that a run computes on."""

from __future__ import annotations

import torch

from bnuq import devices
from bnuq.arithmetic import Arithmetic, arithmetic_named
from bnuq.config import Run
from bnuq.errors import RequestError, first_line
from bnuq.findings import Finding, note


def device_and_notes(name: str) -> tuple[torch.device, tuple[Finding, ...]]:
    """The device, with its index, that `name` (one of devices.NAMES) stands for here, and a note where "auto" does not
    use a GPU that is there; RequestError where it cannot be used."""
    if name == "auto":
        if (accelerator := devices.preferred()) is None:
            return torch.device("cpu"), ()
        try:
            return _probed(accelerator), ()
        except RuntimeError as error:
            return torch.device("cpu"), (note("gpu-unusable", reason=first_line(error)),)
    try:
        return _probed(name), ()
    except (RuntimeError, AssertionError) as error:
        raise RequestError(
            f"--device {name} cannot be used here ({first_line(error)}); expected {devices.NAMES}."
        ) from error


def _probed(name: str) -> torch.device:
    """The device with its index, because another thread may have another current device. It has run a kernel, which
    fails on a GPU that this build of torch has no kernels for."""
    probe = torch.ones(1, device=torch.device(name), dtype=torch.float64) + 1
    probe.item()
    return probe.device


def arithmetic_of(run: Run, device: torch.device) -> Arithmetic:
    """The arithmetic of a run's samples on this device, unless `check_arithmetic` refuses it."""
    return arithmetic_named(run.precision, devices.torch_uses_tf32(device))


def check_arithmetic(arithmetic: Arithmetic, device: torch.device) -> None:
    """Raise RequestError for an arithmetic that this device does not have."""
    if arithmetic.needs_tf32 and not devices.traits(device).tf32:
        raise RequestError(
            f"--precision {arithmetic} is an arithmetic of CUDA devices, and this is {device}; use float32 or bfloat16."
        )
    if arithmetic.is_of_accelerators and devices.is_host(device):
        raise RequestError(
            f"--precision {arithmetic} is an arithmetic of accelerators, and this is {device}, where float32 is "
            "faster; use float32 or bfloat16."
        )
