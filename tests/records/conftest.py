"""One small evaluation, made once, with its raw samples kept."""

from __future__ import annotations

from pathlib import Path

import pytest
import small_run

from bnuq.records.evaluation import Result


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the tiny network."""
    place = tmp_path_factory.mktemp("small")
    small_run.write(place)
    return place


@pytest.fixture(scope="session")
def written(folder: Path) -> Result:
    """A result as evaluate gave it; its file lies at `written.path`."""
    return small_run.evaluated(
        folder, out=Path("kept.h5"), save_samples=True, ood=("other.npz", "again=other.npz"), post_hoc=False
    )
