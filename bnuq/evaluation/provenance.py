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
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import bnuq
from bnuq import devices
from bnuq.arithmetic import FLOAT32, Arithmetic
from bnuq.config import Run, SweepSection
from bnuq.data import Points
from bnuq.evaluation.pipeline import Pipeline
from bnuq.files.content import is_file, sha256_of_file
from bnuq.metrics.arrays import as_float64
from bnuq.models.loading import LoadedModel
from bnuq.records.evaluation import MASKS
from bnuq.records.identity import code_of_request, of_request
from bnuq.sampling.interception import float32_as
from bnuq.sampling.plain_loop import Evaluation


def provenance(
    run: Run, *, device: torch.device, train: Points | None, arithmetic: Arithmetic = FLOAT32
) -> dict[str, str]:
    """Versions, machine, command and time of this process, the code that the run names, and the checkpoint folder's
    revision if it has one.

    On CUDA also whether float32 products were rounded to TF32 in the samples, which have this `arithmetic`. Where
    mini-batches are drawn by group, also a digest of the groups of the reference `train`. The digest of a reference
    that is not read whole is that of its listing, which "reference_digest" says.
    """
    import h5py  # late: an error in the request needs none

    groups = None
    if run.sampler.batches == "group" and train is not None and train.group is not None:
        groups = hashlib.sha256(np.ascontiguousarray(train.group, dtype="<i8").data).hexdigest()
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
        "reference_groups_sha256": groups,
        "code": digest_of(code_of_request(run)),
        "git": _git_revision(run.checkpoint.parent),
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


def identity(
    run: Run,
    loaded: Sequence[LoadedModel],
    network: Mapping[str, str],
    sets: Mapping[str, Points | None],
    device: torch.device,
    *,
    sweep: SweepSection | None = None,
) -> dict[str, Any]:
    """All that the estimates of a run, or of its `sweep`, depend on: what it asks for, the networks by their files and
    the first by its `behaviour` to within the rounding of another machine, every point, and the versions."""
    outputs = np.array(network["outputs"].split(), dtype=np.float64)
    size = float(np.max(np.abs(outputs))) or 1.0
    return {
        "request": of_request(run, sweep),
        "networks": [each.checkpoint.sha256 for each in loaded],
        "network": [network["network"], f"{size:.2e}", *(f"{x:.3f}" for x in outputs / size)],
        "data": {name: None if points is None else points.identity for name, points in sets.items()},
        "versions": [bnuq.__version__, torch.__version__, device.type, None if devices.is_host(device) else MASKS],
    }


def digest_of(identity: Any) -> str:
    """SHA-256 of what `identity` says, or of a part of it."""
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()


def surrounding(pipeline: Pipeline) -> dict[str, Any]:
    """What else determines the last bits of a unit: the arithmetic, and on a CPU the number of threads."""
    threads = torch.get_num_threads() if devices.is_host(pipeline.device) else None
    return {"arithmetic": pipeline.arithmetic.name, "threads": threads}


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
