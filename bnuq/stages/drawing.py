"""What is drawn: ω for the run, and the batches that the reference check looks at."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from torch import nn

from bnuq.data import Points
from bnuq.progress import Progress
from bnuq.results.result import ReferenceCheck
from bnuq.run import Run
from bnuq.sampling import keyed
from bnuq.sampling.bank import BatchStatistics
from bnuq.sampling.sites import BatchNormSite
from bnuq.sampling.statistics import statistics_of
from bnuq.stages import memory
from bnuq.stages.material import Pipeline
from bnuq.stages.plan import Plan
from bnuq.stages.reference_check import BATCH_SIZE, BATCHES, reference_check


def draw_bank(
    draws: range, plan: Plan, model: nn.Module, pipeline: Pipeline, train: Points, progress: Progress
) -> BatchStatistics | None:
    """ω of the run's mini-batches of these numbers, None where no method samples BatchNorm."""
    if plan.batch_size is None:
        return None
    title = f"Drawing {len(draws)} mini-batches of {plan.batch_size}"
    purposes = keyed.BATCH, keyed.AUGMENT
    return _drawn(model, pipeline, train, draws, plan.batch_size, plan.layers, purposes, progress, title)


def check_reference(
    run: Run, plan: Plan, model: nn.Module, pipeline: Pipeline, train: Points, progress: Progress
) -> ReferenceCheck | None:
    """The reference against the checkpoint's running statistics; None where that cannot be checked."""
    batch_size = min(BATCH_SIZE, len(train) // 2)
    layers = plan.sites.live_batchnorms
    if batch_size < 2 or not layers:
        return None
    purposes = keyed.CHECK, keyed.CHECK_AUGMENT
    title = "Checking the reference"
    bank = _drawn(model, pipeline, train, range(BATCHES), batch_size, layers, purposes, progress, title)
    return reference_check(
        bank,
        layers,
        population=len(train),
        train_size=run.train_size,
        train_batch_size=plan.trained_with,
    )


def _drawn(
    model: nn.Module,
    pipeline: Pipeline,
    train: Points,
    draws: range,
    batch_size: int,
    layers: Sequence[BatchNormSite],
    purposes: tuple[int, int],
    progress: Progress,
    title: str,
) -> BatchStatistics:
    seed, (batch, augment) = pipeline.run.seed, purposes
    size = {"population": len(train), "batch_size": batch_size, "purpose": batch}
    indices = np.stack([keyed.batch_indices(seed, t, **size) for t in draws])
    batches = (pipeline.trained(train, rows, draw=t, purpose=augment) for t, rows in zip(draws, indices, strict=True))
    with progress(title, len(draws)) as advance:
        free = memory.available(pipeline.device)
        omega = statistics_of(model, batches, layers=layers, on_draw=lambda: advance(1), room=free)
    return replace(omega, seed=seed, indices=indices)
