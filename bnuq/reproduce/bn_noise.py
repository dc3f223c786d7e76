"""Figure 4 of Shekhovtsov & Flach 2018 on a network of the user's: the noise of BatchNorm's statistics and its law."""

from __future__ import annotations

from bnuq.config import Run
from bnuq.progress import Progress, silent
from bnuq.results.inspection import Inspection
from bnuq.workflows.inspect import Settings, inspect

BATCH_SIZE, DRAWS, SIZE_DRAWS = 32, 256, 64
BEYOND = 8  # times the batch size, up to which its variance is told


def reproduce(
    run: Run, *, batch_size: int = BATCH_SIZE, draws: int = DRAWS, points: int = 10_000, progress: Progress = silent
) -> Inspection:
    """The noise of the network of `run` in mini-batches of its reference, written to `run.out` as an inspection.

    `draws` of `batch_size` tell the law, and 64 each of five sizes up to 8 times that how the noise falls. RequestError
    where there is no noise to measure, and what `inspect` raises.
    """
    size_draws = min(draws, SIZE_DRAWS)
    settings = Settings(points, draws, batch_size, BEYOND, size_draws, noise_only=True, needs_reference=True)
    return inspect(run, settings, progress=progress)
