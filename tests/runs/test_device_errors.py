"""What torch raises where memory runs out or a device fails, told apart from what a network raises."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from bnuq import devices
from bnuq.errors import SamplingError, has_no_kernel, is_device_failure, is_out_of_memory
from bnuq.sampling.interception import forward

AcceleratorError = getattr(torch, "AcceleratorError", RuntimeError)  # since torch 2.8

EXHAUSTED = [
    MemoryError(),
    torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
    AcceleratorError("CUDA error: out of memory"),
    RuntimeError("CUDA driver error: out of memory"),
    RuntimeError("[enforce fail at alloc_cpu.cpp:124] DefaultCPUAllocator: can't allocate memory"),
    RuntimeError("MPS backend out of memory (MPS allocated: 8.00 GB)"),
    RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    RuntimeError("cuDNN error: CUDNN_STATUS_ALLOC_FAILED"),
    RuntimeError("cuDNN error: CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED"),
]
WITHOUT_ENGINE = [
    RuntimeError("GET was unable to find an engine to execute this computation"),
    RuntimeError("FIND was unable to find an engine to execute this computation after trying 12 plans."),
]
FAILED = [
    AcceleratorError("CUDA error: no kernel image is available for execution on the device"),
    RuntimeError("CUDA error: device-side assert triggered\nCompile with `TORCH_USE_CUDA_DSA`"),
    RuntimeError("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED"),
]
OF_THE_NETWORK = [
    RuntimeError("mat1 and mat2 shapes cannot be multiplied (2x3 and 4x5)"),
    ValueError("out of memory"),
    KeyError("CUDA error"),
]


class Raises(nn.Module):
    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # noqa: ARG002
        raise self.error


@pytest.mark.parametrize("error", EXHAUSTED, ids=str)
def test_exhausted_memory_is_recognised_and_leaves_the_forward_as_it_is(error):
    assert is_out_of_memory(error) and not is_device_failure(error)
    with pytest.raises(type(error)):
        forward(Raises(error), torch.ones(2, 3))


@pytest.mark.parametrize("error", WITHOUT_ENGINE, ids=str)
def test_a_missing_engine_of_cudnn_means_exhausted_memory_only_where_little_is_free(error, monkeypatch):
    monkeypatch.setattr(devices, "little_memory_is_free", lambda: True)
    assert is_out_of_memory(error) and not is_device_failure(error) and not has_no_kernel(error)
    monkeypatch.setattr(devices, "little_memory_is_free", lambda: False)
    assert not is_out_of_memory(error) and is_device_failure(error) and has_no_kernel(error)


@pytest.mark.parametrize("error", FAILED, ids=str)
def test_a_failure_of_the_device_is_not_blamed_on_the_network(error):
    assert is_device_failure(error) and not is_out_of_memory(error)
    with pytest.raises(SamplingError, match=r"the accelerator failed \(.*\)\. .*with --device cpu") as caught:
        forward(Raises(error), torch.ones(2, 3))
    assert "architecture" not in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("error", OF_THE_NETWORK, ids=str)
def test_what_a_network_raises_is_neither(error):
    assert not is_device_failure(error) and not is_out_of_memory(error)
    with pytest.raises(SamplingError, match=r"the network's forward fails on inputs of shape \(2, 3\) with "):
        forward(Raises(error), torch.ones(2, 3))
