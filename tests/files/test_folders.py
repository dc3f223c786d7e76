"""Where bnuq's own files lie, for users with and without a home, and when the state folder is believed."""

import os
from pathlib import Path

import pytest

from bnuq.files import folders
from bnuq.files.folders import cache_folder, config_folder, state_folder, strictly, user_secret


@pytest.mark.parametrize("folder", [cache_folder, config_folder, state_folder])
def test_a_user_without_a_home_has_folders_that_nobody_else_can_write(monkeypatch, folder):
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    for variable in ("XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_STATE_HOME", "LOCALAPPDATA", "APPDATA"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(Path, "home", no_home)
    monkeypatch.setattr(Path, "mkdir", lambda *_, **__: None)
    monkeypatch.setattr(Path, "lstat", lambda _: os.stat_result((0o40700, 0, 0, 0, os.geteuid(), *[0] * 5)))
    found = folder()
    assert found.is_absolute() and found.name == "bnuq"
    assert not found.is_relative_to(Path.cwd())


@pytest.mark.skipif(os.name != "posix", reason="a folder has an owner and a mode on POSIX alone")
def test_the_state_folder_is_believed_outside_the_working_tree_alone_and_neither_in_ci_nor_under_strict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def doubt(state: Path, *trees: Path, **environment: str) -> str:
        with monkeypatch.context() as patch:
            for name, value in ({"XDG_STATE_HOME": str(state)} | environment).items():
                patch.setenv(name, value)
            folders._secret_in.cache_clear()  # as another process
            secret, why = user_secret(*trees)
            assert (secret == kept) == (why == "")
        return why

    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    kept, state = user_secret()[0], tmp_path / "state"
    assert (state / "bnuq" / "units.key").read_bytes() == kept
    for value in ("", "0", "False"):
        assert doubt(state, tmp_path / "elsewhere", CI=value) == ""
    assert doubt(state, CI="true") == doubt(state, CI="1") == "CI is set"
    with strictly(strict=True), strictly(strict=False):
        assert doubt(state) == "--strict was given"
    assert "lies in" in doubt(state, tmp_path)
    monkeypatch.chdir(tmp_path)
    assert f"lies in {tmp_path}" in doubt(tmp_path / "elsewhere" / ".." / "state")
    monkeypatch.chdir(Path(__file__).parent)
    (tmp_path / "link").symlink_to(tmp_path)
    assert doubt(tmp_path / "link" / "state") == f"{tmp_path / 'link'} is a symbolic link"
    (state / "bnuq").chmod(0o770)
    assert "others can write to it" in doubt(state)
    (state / "bnuq").chmod(0o750)
    assert doubt(state) == ""
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    assert "is another user's" in doubt(state)
