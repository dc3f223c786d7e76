"""Benchmarks beside the rows: cost over each size, peak memory, and a command from start to finish."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from comparing import ROWS, Row, compare
from contestants import Bnuq, Job
from measuring import Spread, spread, timed
from networks import NETWORKS, ROOT, AbsentError, images, load

import bnuq.records.evaluation_file
from bnuq.sampling.engine import default_chunk
from bnuq.sampling.plain_loop import Evaluation

HERE = Path(__file__).resolve().parent
SAMPLES = 16  # T of the command that is run from start to finish
OOD = "ood/pcbdigits32.npz"
OOD_IMAGES = 2000


@dataclass(frozen=True)
class Scaled:
    """bnuq's cost at one size, relative to T plain forwards: passes per sample and point, draws per training image."""

    varied: str
    value: int
    network: str
    samples: int
    points: int
    batch_size: int
    chunk: int
    passes: Spread
    draws: Spread
    total: Spread  # at this n: passes, and the draws that belong to them


def scaling(*, seconds: float, device: str) -> list[Scaled]:
    """bnuq's cost over T, n, b, chunk size and depth; all other sizes are those of the first line."""
    base = replace(ROWS["resnet20"], points=256, samples=8, batch_size=32, exact=True, only=("bnuq",))
    varied: list[tuple[str, int, Row]] = [
        *(("T", value, replace(base, samples=value)) for value in (2, 8, 32)),
        *(("n", value, replace(base, points=value)) for value in (32, 128, 512, 1024)),
        *(("b", value, replace(base, batch_size=value)) for value in (8, 32, 128)),
        *(("chunk", value, replace(base, chunk=value)) for value in (16, 64, 256)),
        *(("depth", value, replace(base, network=f"resnet{value}")) for value in (20, 32, 56)),
    ]
    rows = []
    for name, value, row in varied:
        compared = compare(row, device=device, seconds=seconds / len(varied), min_rounds=3, max_rounds=9)
        entry = compared.entries["bnuq"]
        assert entry.draws is not None
        clock = "cpu" if device == "cpu" else "wall"
        rows.append(
            Scaled(
                name,
                value,
                row.network,
                compared.samples,
                compared.points,
                compared.batch_size,
                compared.chunk,
                passes=spread(entry.passes[clock]),
                draws=spread(entry.draws[clock]),
                total=spread(entry.total(clock, compared.batch_size, compared.points)),
            )
        )
    return rows


@dataclass(frozen=True)
class Peak:
    """Bytes above the network and its points: bnuq's (draws and passes) and a plain forward's of max(128, b) inputs."""

    contestant: str
    network: str
    samples: int
    points: int
    batch_size: int
    bytes: int
    plain: int

    @property
    def ratio(self) -> float:
        return self.bytes / self.plain


def peaks() -> list[Peak]:
    """Peak memory on the CPU, each in a process of its own: for two networks, larger n and T, a larger b, bfloat16."""
    sizes = [("bnuq", 256, 4, 32), ("bnuq", 512, 16, 32), ("bnuq", 256, 4, 256), ("bnuq_bfloat16", 256, 4, 32)]
    rows = []
    for network in ("resnet20", "resnet32"):
        plain = {batch: _plain_peak(network, batch) for batch in (128, 256)}
        for contestant, points, samples, batch_size in sizes:
            batch = max(128, batch_size)
            with contextlib.suppress(AbsentError):
                peak = _peak(network, contestant, points=points, samples=samples, batch_size=batch_size, batch=batch)
                rows.append(Peak(contestant, network, samples, points, batch_size, peak, plain[batch]))
    return rows


def _plain_peak(network: str, batch: int) -> int:
    """The median of three processes, the reference of the ratios."""
    return sorted(_peak(network, "plain", points=batch, samples=2, batch_size=2, batch=batch) for _ in range(3))[1]


def _peak(network: str, contestant: str, **sizes: int) -> int:
    """The peak in bytes, measured in a separate process."""
    sizes["chunk"] = default_chunk(NETWORKS[network].point_shape)
    command = [sys.executable, str(HERE / "memory.py"), network, contestant, json.dumps(sizes)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if "AbsentError" in done.stderr:
        raise AbsentError(done.stderr.strip().splitlines()[-1])
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr}")
    return json.loads(done.stdout)


@dataclass(frozen=True)
class EndToEnd:
    """`bnuq evaluate` from start to finish: seconds of CPU time, and the wall-clock stages recorded in the result.

    `passes` is the same work in this process: T passes over every image and the deterministic pass. `overhead` is the
    remainder of `total` after these and the import of torch, relative to `passes`.
    """

    images: int
    samples: int
    total: Spread
    passes: Spread
    torch_import: Spread
    overhead: list[float]
    stages: dict[str, float]


def end_to_end(*, rounds: int = 3) -> EndToEnd:
    """Time the command on CIFAR-10's test part and the circuit boards; AbsentError without $BNUQ_TEST_DATA."""
    named = os.environ.get("BNUQ_TEST_DATA")
    if not named:
        raise AbsentError("$BNUQ_TEST_DATA is not set: there are no checkpoint and no images to evaluate.")
    pack = Path(named).resolve()
    loaded = load(NETWORKS["resnet20"], points=846, reference=SAMPLES * 32)
    points = torch.cat([loaded.points, images(pack / OOD, OOD_IMAGES)])
    chunk = default_chunk(points.shape[1:])
    batches = loaded.reference.unflatten(0, (SAMPLES, 32))
    mcbn = Bnuq(Job(loaded.model, points, samples=SAMPLES, batch=32, chunk=chunk, batches=batches))
    mcbn.draw()
    mcbn.passes_over(points[:chunk])  # makes the plan
    deterministic = Evaluation(loaded.model)

    def passes() -> None:
        mcbn.passes()
        for block in points.split(chunk):
            deterministic.passes(block)

    totals, pass_seconds, imports, stages = [], [], [], {}
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "sample_configs"
        shutil.copytree(ROOT / "sample_configs", place, ignore=shutil.ignore_patterns("data"))
        (place / "data").symlink_to(pack)
        out = Path(folder) / "out.h5"
        command = ["-m", "bnuq", "evaluate", str(place / "cifar_resnet20.toml")]
        command += ["--samples", str(SAMPLES), "--out", str(out)]
        for _ in range(rounds):
            imports.append(_cpu_of(["-c", "import torch"]))
            totals.append(_cpu_of(command))
            pass_seconds.append(timed(passes, "cpu").cpu)
        stages = dict(bnuq.records.evaluation_file.read(out).seconds)
    overhead = [
        (total - computing - start) / computing
        for total, computing, start in zip(totals, pass_seconds, imports, strict=True)
    ]
    return EndToEnd(len(points), SAMPLES, spread(totals), spread(pass_seconds), spread(imports), overhead, stages)


def _cpu_of(arguments: list[str]) -> float:
    """CPU seconds of a python process with the same number of threads as this process."""
    environment = os.environ | {"OMP_NUM_THREADS": str(torch.get_num_threads())}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, check=False, env=environment, cwd=ROOT
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise RuntimeError(f"{' '.join(arguments)} failed:\n{done.stderr}")
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
