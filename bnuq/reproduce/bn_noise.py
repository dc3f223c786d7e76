"""Figure 4 of Shekhovtsov & Flach 2018 on a network of the user's: the noise of BatchNorm's statistics and its law."""

from __future__ import annotations

from dataclasses import dataclass

from bnuq.errors import RequestError
from bnuq.inspect import Settings, inspect
from bnuq.progress import Progress, silent
from bnuq.results.inspection import Inspection
from bnuq.run import Run

BATCH_SIZE, DRAWS, SIZE_DRAWS = 32, 256, 64
BEYOND = 8  # times the batch size, up to which its variance is told


@dataclass(frozen=True)
class Published:
    """σ_U of the paper's network, layer by layer, in batches of `batch_size`; `positions` are not said there: those of
    its layers if none of them shrinks the picture but by its stride."""

    source: str
    batch_size: int
    sigma_u: tuple[float, ...]
    positions: tuple[int, ...]


PUBLISHED = Published(
    source="Shekhovtsov & Flach 2018, §3.1: nine convolutions on CIFAR-10, σ_U by layer",
    batch_size=32,
    sigma_u=(0.05, 0.03, 0.026, 0.023, 0.02, 0.026, 0.041, 0.045, 0.071),
    positions=(1024, 1024, 256, 256, 256, 64, 64, 64, 64),
)


def reproduce(
    run: Run, *, batch_size: int = BATCH_SIZE, draws: int = DRAWS, points: int = 10_000, progress: Progress = silent
) -> Inspection:
    """The noise of the network of `run` in mini-batches of its reference, written to `run.out` as an inspection.

    `draws` of `batch_size` tell the law, and 64 each of five sizes up to 8 times that how the noise falls. RequestError
    where there is no noise to measure, and what `inspect` raises.
    """
    size_draws = min(draws, SIZE_DRAWS)
    settings = Settings(points, draws, batch_size, BEYOND, size_draws, noise_only=True, needs_reference=True)
    found = inspect(run, settings, progress=progress)
    if found.noise is None:
        why = next((note for note in found.notes if "left out" in note or "no BatchNorm" in note), "see its notes")
        raise RequestError(f"{run.checkpoint}: there is no noise to measure: {why}.")
    return found
