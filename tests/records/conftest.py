"""One small evaluation, made once, with its raw samples kept."""

from __future__ import annotations

from pathlib import Path

import pytest
import small_run
from written import folder_of

from bnuq.records.evaluation import Result

folder = folder_of(small_run, "session")


@pytest.fixture(scope="session")
def written(folder: Path) -> Result:
    """A result as evaluate gave it; its file lies at `written.path`."""
    return small_run.evaluated(
        folder, out=Path("kept.h5"), save_samples=True, ood=("other.npz", "again=other.npz"), post_hoc=False
    )
