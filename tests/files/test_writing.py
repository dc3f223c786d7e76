"""A written file is the new one, whole, or the old one, untouched."""

import contextlib
import os
import re
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from bnuq import stopping
from bnuq.errors import RequestError, ResultError
from bnuq.files.folders import expanded
from bnuq.files.writing import alone, append_text, check_writable, replaced, sole_request, write_bytes


@pytest.mark.parametrize("name", ["a [1] b.h5", "é" * 126 + ".h5"])  # the latter of 255 bytes
def test_a_file_is_written_and_replaced_without_leftovers(tmp_path, name):
    path = tmp_path / name
    write_bytes(path, b"old")
    write_bytes(path, b"new")
    assert path.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [path]


def test_an_exception_in_the_block_leaves_the_old_file_and_nothing_beside_it(tmp_path):
    path = tmp_path / "r.h5"
    path.write_bytes(b"old")
    with pytest.raises(KeyboardInterrupt), replaced(path) as file:
        file.write(b"half")
        raise KeyboardInterrupt
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_signal_whose_exception_was_swallowed_leaves_the_old_file(tmp_path):
    path = tmp_path / "a.h5"
    path.write_bytes(b"old")
    with pytest.raises(KeyboardInterrupt), stopping.on_signals(), replaced(path) as file:
        file.write(b"new")
        with contextlib.suppress(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
            stopping.check()
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_an_unrelated_error_of_the_block_passes_through(tmp_path):
    with pytest.raises(FileNotFoundError, match="elsewhere"), replaced(tmp_path / "r.h5"):
        (tmp_path / "elsewhere").read_bytes()


def test_a_new_file_has_the_permissions_of_any_other_and_a_replaced_one_keeps_its_own(tmp_path):
    def mode_of(name):
        return stat.S_IMODE((tmp_path / name).stat().st_mode)

    write_bytes(tmp_path / "ours", b"")
    (tmp_path / "usual").touch()
    assert mode_of("ours") == mode_of("usual")
    for mode in (0o600, 0o640, 0o444, 0o664):
        (tmp_path / "ours").chmod(mode)
        with replaced(tmp_path / "ours", like=tmp_path / "usual") as beside:
            assert os.fstat(beside.fileno()).st_mode & 0o077 == mode & 0o077  # from the beginning
        assert mode_of("ours") == mode
    with replaced(tmp_path / "copy", like=tmp_path / "ours"):
        pass
    assert mode_of("copy") == 0o664


def test_a_symbolic_link_stays_one_but_under_a_name_that_nobody_gave(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "folder" / "file")
    write_bytes(tmp_path / "link", b"data")
    assert (tmp_path / "link").is_symlink()
    write_bytes(tmp_path / "link", b"other", named=False)
    assert (tmp_path / "folder" / "file").read_bytes() == b"data"
    assert (tmp_path / "link").read_bytes() == b"other" and not (tmp_path / "link").is_symlink()


@pytest.mark.parametrize("kind", ["symbolic link", "dangling link", "hard link", "pipe", "folder"])
def test_a_lock_is_no_way_into_another_file(tmp_path, kind):
    victim, lock = tmp_path / "victim", tmp_path / ".r.h5.lock"
    if kind != "dangling link":
        victim.write_bytes(b"mine")
    make = {"hard link": lambda: os.link(victim, lock), "pipe": lambda: os.mkfifo(lock), "folder": lock.mkdir}
    make.get(kind, lambda: lock.symlink_to(victim))()
    for block in (sole_request(tmp_path / "r.h5", 1), alone(tmp_path / "r.h5")):
        with pytest.raises(RequestError, match=r"r\.h5\.lock: .* is not a regular file"), block:
            raise AssertionError
    assert not victim.exists() if kind == "dangling link" else victim.read_bytes() == b"mine"


def test_a_full_disk_is_one_message_and_the_old_file_stays(tmp_path):
    """The size limit of a process stands in for the disk: the same write fails, by the system's own hand."""
    path = tmp_path / "r.h5"
    path.write_bytes(b"old")
    program = (
        "import resource, sys; from pathlib import Path; resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "from bnuq.files.writing import write_bytes\n"
        "from bnuq.errors import RequestError, ResultError\n"
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


def test_what_a_killed_process_left_is_removed_and_what_a_living_one_writes_is_not(tmp_path):
    path = tmp_path / "r.h5"
    program = (
        "import os, sys; from pathlib import Path; from bnuq.files.writing import replaced\n"
        "with replaced(Path(sys.argv[1])) as file:\n    file.write(bytes(1000)); os.kill(os.getpid(), 9)\n"
    )
    subprocess.run([sys.executable, "-B", "-c", program, path], cwd=_ROOT, check=False)
    (left,) = tmp_path.iterdir()
    others = [tmp_path / f".{name}" for name in ("r.h5.x.tmp", "q.h5.00000000-1-00000000.tmp")]
    others.append(left.with_name(re.sub("h5[.]........-", "h5.00000000-", left.name)))  # of another machine
    for other in others:
        other.touch()
    with replaced(path):
        alive = set(tmp_path.iterdir()) - {left, *others}
        check_writable(path)
        assert set(tmp_path.iterdir()) == alive | set(others)
    assert set(tmp_path.iterdir()) == {path, *others}


def test_whether_a_file_can_be_written_is_known_before_and_leaves_nothing(tmp_path, monkeypatch):
    check_writable(tmp_path / "r.h5")
    assert list(tmp_path.iterdir()) == []
    os.mkfifo(tmp_path / "pipe")
    for bad in (
        tmp_path,
        tmp_path / "pipe",
        Path("/dev/null"),
        Path("/dev/stdout"),
        Path("/dev/fd/1"),
        tmp_path / "no/r",
    ):
        with pytest.raises(ResultError, match=r"is not a file|its folder does not exist"):
            check_writable(bad)

    for own in ("/proc/x.h5", "/dev/fd/999.h5"):
        with pytest.raises(ResultError, match="the system keeps its own things there"):
            check_writable(Path(own))

    def denied(path, *_):
        raise OSError(30, "Read-only file system", str(path))

    monkeypatch.setattr(os, "open", denied)
    with pytest.raises(ResultError, match="the file system is read-only"):
        check_writable(tmp_path / "r.h5")


def test_only_a_regular_file_is_appended_to(tmp_path):
    append_text(tmp_path / "log", "a\n")
    append_text(tmp_path / "log", "b\n")
    assert (tmp_path / "log").read_text() == "a\nb\n"
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    for path in (tmp_path / "pipe", Path("/dev/null")):
        with pytest.raises(OSError, match="expected a file"):
            append_text(path, "a")
    os.close(reader)
    with pytest.raises(OSError, match="No such device"):  # nobody reads it: the system says so, at once
        append_text(tmp_path / "pipe", "a")
