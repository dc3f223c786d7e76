"""The ResNet-32 of Teye, Azizpour & Smith 2018, trained as published on the CIFAR-10 images at hand, and its PLL(T)."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bnuq.config import Options, resolve
from bnuq.store import codec
from experiments import pll_over_samples
from experiments.descent import networks
from experiments.descent.training import train
from experiments.learned.running import Request, job, trained
from experiments.learned.training import Job
from experiments.pll_over_samples import PllOverSamples
from experiments.work import SETS, pictures_of

BATCH_SIZE = 32
_RUN_FILE = """
[model]
checkpoint = "resnet32.pt"
arch = "networks.py:resnet32"
arch_args = {{ width = {width} }}
train_batch_size = {size}

[data]
train = "train.npz"
test = "test.npz"
augment = {{ pad = 2, crop = {side}, flip = true }}
"""


def jobs(request: Request, of: str) -> Iterator[Job]:
    """The one network: SGD of weight decay 2e-4, the rate 0.1 falling as in the released code."""
    options = {"width": request.width, "batch_size": BATCH_SIZE, "rate": 0.1, "drops": (0.4, 0.6, 0.8), "warm_up": 0.0}
    options |= {"weight_decay": 2e-4, "decays": (0.9,), "augment": True, "points": 0}
    yield job(request, of, "ResNet-32", function="resnet32", options=tuple(options.items()))


def reproduce(request: Request) -> PllOverSamples:
    """Train the network, evaluate MCBN with it, write the record to `request.out`, and give it."""
    with trained(request, lambda of: list(jobs(request, of)), train) as found:
        ((of, arrays),) = found.items()
        with tempfile.TemporaryDirectory() as place:
            run_file = _written(Path(place), request, of, arrays)
            options = Options({"samples": request.samples, "seed": request.seed, "limit": request.limit})
            run = replace(resolve(str(run_file), options, folder=Path(place)), out=request.out, batch_size=BATCH_SIZE)
            record = pll_over_samples.reproduce(run, progress=request.progress)
        model = f"ResNet-32 trained as published, but on {request.images:,} images for {request.epochs} epochs"
        seconds = {"total": record.seconds["total"] + float(arrays["seconds"])}
        facts = {**record.experiment, "model": model, **dict(zip(("train", "test"), SETS[of.of], strict=False))}
        record = replace(record, experiment=facts, seconds=seconds, path=request.out.absolute())
        codec.write(record, request.out)
    return record


def _written(place: Path, request: Request, of: Job, arrays: dict[str, Any]) -> Path:
    """The network with a run file, in `place`."""
    shutil.copy(str(networks.__file__), place / "networks.py")
    state = {name[2:]: torch.from_numpy(values) for name, values in arrays.items() if name.startswith("n.")}
    torch.save(state, place / "resnet32.pt")
    for name, reference, most in zip(("train", "test"), SETS[of.of], (request.images, None), strict=False):
        x, y = pictures_of(reference, request.data_root)
        np.savez(place / f"{name}.npz", x=x[:most], y=y[:most])
    sizes = {"size": BATCH_SIZE, "width": request.width, "side": x.shape[2]}
    text = _RUN_FILE.format(**sizes)
    run_file = place / "resnet32.toml"
    run_file.write_text(text, encoding="utf-8")
    return run_file
