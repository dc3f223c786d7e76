"""A made-up set in the place of a UCI set, and a protocol small enough for it."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from uci_tables import write_set

from experiments.uci.protocol import SMOKE, Protocol


@pytest.fixture(autouse=True)
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing of the user's own, and the signal handlers put back."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for variable in ("BNUQ_DATA", "COLUMNS"):
        monkeypatch.delenv(variable, raising=False)
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.fixture
def made_up(tmp_path: Path) -> Path:
    """A data root whose boston and yacht are noisy smooth functions of three inputs."""
    root = tmp_path / "data"
    for seed, name in enumerate(("boston", "yacht")):
        random = np.random.default_rng(seed)
        x = random.standard_normal((100, 3))
        y = 20 + 3 * np.sin(x[:, 0]) + x[:, 1] + 0.5 * random.standard_normal(100)
        write_set(root, name, np.column_stack((x, y)))
    return root


@pytest.fixture
def tiny() -> Protocol:
    """Seconds of work: two splits, two seeds."""
    return replace(
        SMOKE, weight_decays=(1e-3, 1e-5), batch_sizes=(8, 16), dropouts=(0.05,), splits=2, folds=2, samples=20,
        selection_samples=5, interval=5, patience=2, max_epochs=20, race_from=5, race_from_step=0,
    )  # fmt: skip
