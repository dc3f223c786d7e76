"""What all tests share: where the real data lie, and the small real networks."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")  # the tests run side by side, a process a core

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def data_pack() -> Path:
    """The folder of real checkpoints and data that $BNUQ_TEST_DATA names; a test that needs it skips without."""
    named = os.environ.get("BNUQ_TEST_DATA")
    if not named:
        pytest.skip("BNUQ_TEST_DATA is not set: no folder of real checkpoints and data")
    return Path(named)


@pytest.fixture(scope="session")
def sample_configs() -> Path:
    """The run files that ship."""
    return ROOT / "sample_configs"
