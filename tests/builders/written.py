"""Fixtures that several test modules have: folders in which a builder has written all that a run needs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest


def folder_of(builder: Any, scope: Any = "module") -> Any:
    """A fixture: a folder of its own, with what `builder.write` writes."""

    @pytest.fixture(scope=scope)
    def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
        folder = tmp_path_factory.mktemp("written") / "run"
        builder.write(folder)
        return folder

    return folder
