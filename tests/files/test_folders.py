"""Where bnuq's own files lie, for users with and without a home."""

from pathlib import Path

import pytest

from bnuq.files.folders import cache_folder, config_folder


@pytest.mark.parametrize("folder", [cache_folder, config_folder])
def test_a_user_without_a_home_has_folders_that_nobody_else_can_write(monkeypatch, folder):
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    for variable in ("XDG_CACHE_HOME", "XDG_CONFIG_HOME", "LOCALAPPDATA", "APPDATA"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(Path, "home", no_home)
    found = folder()
    assert found.is_absolute() and found.name == "bnuq"
    assert not found.is_relative_to(Path.cwd())
