"""Provenance of a result: versions, machine, time, revision; and how long each stage took."""

from __future__ import annotations

import hashlib
import json
import platform
import re
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from modulefinder import ModuleFinder
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import bnuq
from bnuq import devices
from bnuq.arithmetic import FLOAT32, Arithmetic
from bnuq.config import Named, Run
from bnuq.data import Points
from bnuq.files.content import is_file, sha256_of_file
from bnuq.files.folders import expanded
from bnuq.metrics.arrays import as_float64
from bnuq.records.evaluation import MASKS
from bnuq.sampling.interception import float32_as
from bnuq.sampling.plain_loop import Evaluation
from bnuq.shapes import Int64
from bnuq.trust import names_a_file


def provenance(
    *,
    checkpoint: Path,
    device: torch.device,
    train: Points | None,
    by_group: bool = False,
    arithmetic: Arithmetic = FLOAT32,
) -> dict[str, str]:
    """Versions, machine, command and time of this process, and the checkpoint folder's revision if it has one.

    On CUDA also whether float32 products were rounded to TF32 in the samples, which have this `arithmetic`. Where
    mini-batches are drawn `by_group`, also a digest of the groups of the reference `train`. The digest of a reference
    that is not read whole is that of its listing, which "reference_digest" says.
    """
    import h5py  # late: an error in the request needs none

    codes = train.group if by_group and train is not None else None
    values = {
        "bnuq": bnuq.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "h5py": h5py.__version__,
        "platform": platform.platform(),
        "device": devices.name_of(device),
        **(devices.versions(device) | _float32_settings(arithmetic) if devices.traits(device).tf32 else {}),
        "threads": str(torch.get_num_threads()),
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": " ".join(sys.argv),
        "reference_sha256": None if train is None else train.sha256,
        "reference_digest": "listing" if train is not None and train.listed else None,
        "reference_groups_sha256": None if codes is None else _digest_of(codes),
        "git": _git_revision(checkpoint.parent),
    }
    return {name: value for name, value in values.items() if value is not None}


def _float32_settings(arithmetic: Arithmetic) -> dict[str, str]:
    """torch's precision switches while samples are computed, whatever they are outside; without those that this torch
    cannot read beside its newer ones."""
    backends = torch.backends
    readers: dict[str, Callable[[], object]] = {
        "float32_matmul_precision": torch.get_float32_matmul_precision,
        "cuda_matmul_allow_tf32": lambda: backends.cuda.matmul.allow_tf32,
        "cudnn_allow_tf32": lambda: backends.cudnn.allow_tf32,
    }
    settings = {}
    with float32_as(arithmetic.convolutions, arithmetic.products), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the older interface
        for name, read in readers.items():
            with suppress(RuntimeError):
                settings[name] = str(read()).lower()
    return settings


def _digest_of(codes: Int64[np.ndarray, " point"]) -> str:
    return hashlib.sha256(np.ascontiguousarray(codes, dtype="<i8").data).hexdigest()


def request_digest(run: Run, *, checkpoint_sha256: str) -> str:
    """SHA-256 of the request before it is resolved for the network: the request, the checkpoint's bytes, and the
    code of the architecture. The output path and the permission to run code are not part of it."""
    request: dict[str, Any] = {"request": run.record(), "checkpoint": checkpoint_sha256, "code": code_of(run.arch)}
    if run.members:
        files = [sha256_of_file(member.checkpoint) for member in run.members if member.network is None]
        request["members"] = [files, [code_of(member.arch) for member in run.members]]
    return hashlib.sha256(json.dumps(request, sort_keys=True).encode()).hexdigest()


def code_of(arch: Named | None) -> list[str]:
    """SHA-256 of each file of code that makes the architecture: the named file, and those that it imports from its
    folder (for a module, from the folder of its top-level package). Installed packages are left out."""
    location = "" if arch is None else arch.text.rpartition(":")[0]
    if arch is None or not location:
        return []
    named_file = names_a_file(arch.text)
    path = (arch.base / expanded(location)).resolve()
    finder = ModuleFinder([str(path.parent if named_file else arch.base)])
    with suppress(ImportError, OSError, SyntaxError, ValueError, RecursionError):  # the modules found so far remain
        if named_file:
            finder.run_script(str(path))
        else:
            finder.import_hook(location)
    imported = (getattr(module, "__file__", None) for module in finder.modules.values())
    files = {Path(file) for file in imported if file} | ({path} if named_file else set())
    return sorted(sha256_of_file(file) for file in files if is_file(file))


_MOST_OUTPUTS = 2**16  # that a fingerprint is made of


def behaviour(model: nn.Module, example: Tensor) -> dict[str, str]:
    """A fingerprint of the network, whichever files its code comes from: "network", a digest of its structure and of
    the code of its layers, and "outputs", its outputs for a few points in 16 random directions.

    It detects changes in imported code, which leave the checkpoint and the architecture file unchanged.
    """
    structure = re.sub(r"0x[0-9a-f]+", "", repr(model))  # a function's address differs from process to process
    forwards = (getattr(getattr(type(layer), "forward", None), "__code__", None) for layer in model.modules())
    files = {Path(code.co_filename) for code in forwards if code is not None}
    paths = (path for path in files if Path(torch.__file__).parent not in path.parents and is_file(path))
    code = sorted(map(sha256_of_file, paths))
    outputs = as_float64(Evaluation(model).passes(example)[0]).ravel()
    outputs = np.where(np.isfinite(outputs), outputs, 0)[:: 1 + outputs.size // _MOST_OUTPUTS]  # -inf masks a class
    directions = np.random.default_rng(0).standard_normal((16, outputs.size)) / np.sqrt(outputs.size)
    return {
        "network": hashlib.sha256(json.dumps([structure, code]).encode()).hexdigest(),
        "outputs": " ".join(f"{value:.6e}" for value in directions @ outputs),
    }


def content(
    *,
    checkpoint_sha256: str,
    network: Mapping[str, str],
    device: torch.device,
    train: Points | None,
    by_group: bool = False,
) -> dict[str, Any]:
    """What determines an outcome beside the request: versions, threads of the CPU, whose number changes the rounding,
    the network by its file and its `behaviour` to within the rounding of another machine, and the reference, whose
    groups count where mini-batches are drawn by them. On a GPU also the generator of masks, which was another one."""
    outputs = np.array(network["outputs"].split(), dtype=np.float64)
    size = float(np.max(np.abs(outputs))) or 1.0
    codes = train.group if by_group and train is not None else None
    return {
        "versions": [bnuq.__version__, torch.__version__, device.type],
        "threads": torch.get_num_threads() if devices.is_host(device) else None,
        **({} if devices.is_host(device) else {"masks": MASKS}),
        "network": [checkpoint_sha256, network["network"], f"{size:.2e}", *(f"{x:.3f}" for x in outputs / size)],
        "reference": [None if train is None else train.sha256, None if codes is None else _digest_of(codes)],
    }


def same_behaviour(first: Mapping[str, str], second: Mapping[str, str]) -> bool:
    """Whether two networks are the same by `behaviour`; outputs may differ by the rounding of another machine."""
    if "network" not in first or first["network"] != second.get("network"):
        return False
    try:
        a, b = (np.array(network["outputs"].split(), dtype=np.float64) for network in (first, second))
    except (KeyError, ValueError):
        return False
    return a.shape == b.shape and bool(np.all(np.abs(a - b) <= 1e-4 * np.max(np.abs(b), initial=0.0)))


def _git_revision(folder: Path) -> str | None:
    command = ["git", "-C", str(folder), "rev-parse", "HEAD"]
    try:
        completed = subprocess.run(command, capture_output=True, text=True, timeout=5, check=False)
    except (OSError, subprocess.SubprocessError):
        return None
    return completed.stdout.strip() if completed.returncode == 0 else None


class Stopwatch:
    """Measures the seconds of each stage."""

    def __init__(self) -> None:
        self._start = self._last = time.perf_counter()
        self._laps: dict[str, float] = {}

    def lap(self, stage: str) -> None:
        """Add the time since the last lap to this stage."""
        now = time.perf_counter()
        self._laps[stage], self._last = self._laps.get(stage, 0.0) + now - self._last, now

    def seconds(self) -> dict[str, float]:
        """Seconds of each stage so far, and "total"."""
        return self._laps | {"total": time.perf_counter() - self._start}
