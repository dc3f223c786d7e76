"""The device layer: what it says of each kind, and that no other file tells kinds apart."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from bnuq import devices

PACKAGE = Path(devices.__file__).parent
CPU = torch.device("cpu")


def test_no_other_file_tells_kinds_of_devices_apart() -> None:
    asks = re.compile(
        r"device\w*\.type (==|!=|in|not in) |(device|kind)\w* (==|!=|in|not in) \(?\"(cuda|xpu|mps)"
        r"|\btorch\.(cuda|xpu|mps)\.|\.is_(cuda|xpu|mps)\b"
    )
    root = PACKAGE.parent
    found = {
        str(path.relative_to(root))
        for path in (*PACKAGE.rglob("*.py"), *(root / "benchmarks").glob("*.py"))
        if asks.search(path.read_text(encoding="utf-8"))
    }
    of_package = {"bnuq/devices.py", "bnuq/models/weight_checks.py"}  # the latter: tensors of a file that are elsewhere
    of_cuda = {"comparing", "gpu", "gpu_parts"}  # sizes of jobs, and what CUDA alone has, such as graphs
    assert found == of_package | {f"benchmarks/{name}.py" for name in of_cuda}


def test_each_process_is_shown_its_own_of_several_accelerators(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "count", lambda _: 2)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert devices.shown_to_process("auto", 3) == {"CUDA_VISIBLE_DEVICES": "1"}
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,7")
    assert devices.shown_to_process("cuda", 1) == {"CUDA_VISIBLE_DEVICES": "7"}
    for name in ("cuda:0", "cpu"):
        assert devices.shown_to_process(name, 1) == {}


def test_what_an_accelerator_counts_and_hands_over_is_what_the_host_does() -> None:
    numbers, weights = torch.tensor([2, 0, 2, 3]), torch.tensor([1.0, 2.0, 3.0, 4.0])
    assert devices.counted(numbers, 5).tolist() == [1, 0, 2, 1, 0]
    assert devices.counted(numbers, 5, weights).tolist() == [2.0, 0.0, 4.0, 4.0, 0.0]
    values = {"a": torch.arange(6).view(2, 3), "b": weights, "c": numbers[:0]}
    assert {name: array.tolist() for name, array in devices.fetch(values).items()} == {
        name: value.tolist() for name, value in values.items()
    }
    assert devices.upload(weights, CPU) is weights


def test_auto_uses_a_gpu_and_asks_torch_about_it(monkeypatch: pytest.MonkeyPatch) -> None:
    log: list[str] = []
    module = SimpleNamespace(
        is_available=lambda: True,
        is_initialized=lambda: True,
        device_count=lambda: 2,
        synchronize=lambda device: log.append(f"wait for {device}"),
        memory_reserved=lambda _: 50,
        memory_allocated=lambda _: 20,
        mem_get_info=lambda _: (100, 1000),
        max_memory_allocated=lambda _: 70,
        reset_peak_memory_stats=lambda device: log.append(f"reset {device}"),
        get_device_name=lambda _: "A fast one",
        get_rng_state=lambda device: f"state {device}",
        set_rng_state=lambda state, device: log.append(f"{device} has {state}"),
    )
    monkeypatch.setattr(torch, "cuda", module)
    device = torch.device("cuda", 1)
    assert (devices.preferred(), devices.count("cuda")) == ("cuda", 2)
    assert (devices.free_bytes(device), devices.peak_bytes(device)) == (100 + 50 - 20, 70)
    assert devices.name_of(device) == "A fast one"
    devices.synchronize(device)
    devices.reset_peak(device)
    for restore, state in devices.generator_states():
        restore(state)
    assert log == ["wait for cuda:1", "reset cuda:1", "0 has state 0", "1 has state 1"]


def test_no_tensor_of_a_device_is_widened_before_it_is_fetched() -> None:
    wide_first = re.compile(r"\.double\(\)\s*\.cpu\(\)")
    assert not [path.name for path in PACKAGE.rglob("*.py") if wide_first.search(path.read_text(encoding="utf-8"))]


def test_of_a_cpu_there_is_nothing_to_wait_for_and_no_memory_of_its_own() -> None:
    devices.synchronize(CPU)
    devices.reset_peak(CPU)
    assert devices.free_bytes(CPU) is None and devices.peak_bytes(CPU) is None
    assert devices.is_host(CPU) and not devices.is_host(torch.device("cuda"))
    assert devices.traits("hpu") == devices.traits("cpu")  # a kind that is not known


def test_versions_of_cuda_that_are_known_are_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", "12.8")
    monkeypatch.setattr(torch._C, "_cuda_getDriverVersion", lambda: 13000, raising=False)
    monkeypatch.setattr(torch.backends.cudnn, "version", lambda: 91002)
    assert devices.versions(torch.device("cuda", 0)) == {"cuda": "12.8", "cuda_driver": "13000", "cudnn": "91002"}
