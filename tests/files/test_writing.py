"""A written file is the new one, whole, or the old one, untouched."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from bnuq.errors import ResultError
from bnuq.files.folders import expanded
from bnuq.files.writing import replaced, write_bytes


def test_a_file_is_written_and_replaced_without_leftovers(tmp_path):
    path = tmp_path / "a [1] b.h5"
    write_bytes(path, b"old")
    write_bytes(path, b"new")
    assert path.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [path]


def test_a_name_of_255_bytes_in_longer_letters_is_written(tmp_path):
    path = tmp_path / ("é" * 126 + ".h5")
    write_bytes(path, b"new")
    assert path.read_bytes() == b"new"


def test_an_exception_in_the_block_leaves_the_old_file_and_nothing_beside_it(tmp_path):
    path = tmp_path / "r.h5"
    path.write_bytes(b"old")
    with pytest.raises(KeyboardInterrupt), replaced(path) as file:
        file.write(b"half")
        raise KeyboardInterrupt
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_an_unrelated_error_of_the_block_passes_through(tmp_path):
    with pytest.raises(FileNotFoundError, match="elsewhere"), replaced(tmp_path / "r.h5"):
        (tmp_path / "elsewhere").read_bytes()


def test_a_new_file_has_the_permissions_of_any_other(tmp_path):
    write_bytes(tmp_path / "ours", b"")
    (tmp_path / "usual").touch()
    assert stat.S_IMODE((tmp_path / "ours").stat().st_mode) == stat.S_IMODE((tmp_path / "usual").stat().st_mode)


def test_a_symbolic_link_stays_one(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "folder" / "file")
    write_bytes(tmp_path / "link", b"data")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "folder" / "file").read_bytes() == b"data"


def test_a_full_disk_is_one_message_and_the_old_file_stays(tmp_path):
    """The size limit of a process stands in for the disk: the same write fails, by the system's own hand."""
    path = tmp_path / "r.h5"
    path.write_bytes(b"old")
    program = (
        "import resource, sys; from pathlib import Path; resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "from bnuq.files.writing import write_bytes\n"
        "from bnuq.errors import ResultError\n"
        "try: write_bytes(Path(sys.argv[1]), bytes(100_000))\n"
        "except ResultError as error: print(error)\n"
    )
    run = subprocess.run(
        [sys.executable, "-B", "-c", program, path], capture_output=True, text=True, cwd=_ROOT, check=True
    )
    assert f"{path}: could not be written: the file would be larger than this system allows" in run.stdout
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_no_space_left_is_told_in_words(tmp_path, monkeypatch):
    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ResultError, match=r"r\.h5: could not be written: the disk is full"):
        write_bytes(tmp_path / "r.h5", b"data")
    assert list(tmp_path.iterdir()) == []


def test_a_missing_folder_a_folder_and_a_device_are_refused(tmp_path):
    with pytest.raises(ResultError, match="its folder does not exist"):
        write_bytes(tmp_path / "no" / "r.h5", b"")
    with pytest.raises(ResultError, match="is not a file"):
        write_bytes(tmp_path, b"")
    with pytest.raises(ResultError, match="is not a file"):
        write_bytes(Path(os.devnull), b"")
    assert Path(os.devnull).is_char_device()


def test_a_read_only_folder_is_told_in_words(tmp_path, monkeypatch):
    def denied(path, *_):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(os, "open", denied)  # the superuser, who may run this, is denied nothing
    with pytest.raises(ResultError, match="permission denied"):
        write_bytes(tmp_path / "r.h5", b"")


_ROOT = Path(__file__).parents[2]


def test_an_unknown_home_is_a_path_that_is_not_there():
    assert expanded("~nobody-of-that-name/x") == Path("~nobody-of-that-name/x")
    assert expanded("~/x") == Path.home() / "x"
