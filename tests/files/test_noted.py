"""A file that was written here is read in this process; one that differs in a byte, by another, as everyone's."""

from __future__ import annotations

import hashlib
import os
import stat
from dataclasses import replace
from pathlib import Path
from typing import Any

import made_up_inspection
import numpy as np
import pytest
from disturbed import assert_same

from bnuq.files import apart
from bnuq.store.codec import write
from bnuq.studies.inspect.record import Inspection, read

pytestmark = pytest.mark.skipif(os.name != "posix", reason="a folder has an owner and a mode on POSIX alone")


@pytest.fixture(autouse=True)
def notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of notes, which is not there yet."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state" / "bnuq" / "written"


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the other process is asked for."""
    operations: list[str] = []
    ask = apart.ask
    monkeypatch.setattr(apart, "ask", lambda name, *rest, **more: operations.append(name) or ask(name, *rest, **more))
    return operations


def written(folder: Path) -> Path:
    write(made_up_inspection.whole(), folder / "result.h5")
    return folder / "result.h5"


def as_read(path: Path) -> Inspection:
    return replace(read(path), path=None)


def test_a_result_that_was_written_here_is_read_without_another_process(tmp_path, notes, asked):
    path = written(tmp_path)
    here = as_read(path)
    assert asked == []
    for note in notes.iterdir():
        note.unlink()
    elsewhere = as_read(path)
    assert asked[0] == "open"
    assert_same(here, elsewhere)


def test_one_byte_that_differs_sends_it_to_the_other_process(tmp_path: Path, asked: list[str]) -> None:
    path = written(tmp_path)
    path.write_bytes(path.read_bytes() + b"\0")
    read(path)
    assert asked[0] == "open"


def test_large_arrays_are_read_as_by_the_other_process(tmp_path: Path, asked: list[str]) -> None:
    import h5py

    from bnuq.files.hdf5 import image_of, open_hdf5

    random, texts = np.random.default_rng(0), np.array([f"text {number} é" for number in range(40_000)], object)
    values = {"packed": random.normal(size=(3000, 60)), "plain": np.arange(300_000), "none": np.empty((0, 3))}

    def lay_out(file: h5py.File) -> None:
        file.create_dataset("packed", data=values["packed"], compression="gzip", chunks=(700, 30))
        file["plain"], file["none"], file["texts"] = values["plain"], values["none"], texts

    path = tmp_path / "large.h5"
    path.write_bytes(image_of(lay_out))
    found: list[dict[str, Any]] = []
    for _ in range(2):
        with open_hdf5(path) as file:
            read_now = {name: file[name][()] for name in values} | {"rows": file["packed"].rows(5, 2000)}
            found.append(read_now | {"texts": file["texts"].asstr()})
        apart.note(path.read_bytes())
    assert asked.count("open") == 1
    for name, value in (values | {"rows": values["packed"][5:2000], "texts": texts}).items():
        assert all(np.array_equal(each[name], value) for each in found)


def test_a_folder_that_others_can_write_to_is_not_relied_on(tmp_path: Path, notes: Path, asked: list[str]) -> None:
    path = written(tmp_path)
    assert stat.S_IMODE(notes.parent.stat().st_mode) == 0o700
    notes.parent.chmod(0o770)
    read(path)
    assert asked[0] == "open"


def test_a_note_that_came_with_an_archive_is_none(tmp_path: Path, notes: Path) -> None:
    """It is named by the digest, which everyone can compute; one of this user is named with a secret."""
    path = written(tmp_path)
    for note in notes.iterdir():
        note.unlink()
    (notes / hashlib.sha256(path.read_bytes()).hexdigest()).touch(mode=0o600)
    assert apart.noted_bytes(path) is None
    apart.note(path.read_bytes())
    assert apart.noted_bytes(path) == path.read_bytes()


def test_neither_a_link_nor_a_file_with_contents_is_a_note(tmp_path: Path, notes: Path) -> None:
    path = written(tmp_path)
    [note] = notes.iterdir()
    note.write_bytes(b"of another program")
    assert apart.noted_bytes(path) is None
    note.write_bytes(b"")
    note.rename(tmp_path / "elsewhere")
    note.symlink_to(tmp_path / "elsewhere")
    assert apart.noted_bytes(path) is None


def test_a_folder_that_cannot_be_made_is_no_error(tmp_path: Path, notes: Path, asked: list[str]) -> None:
    notes.parent.parent.mkdir()
    notes.parent.write_text("a file in its place")
    read(written(tmp_path))
    assert asked[0] == "open"


def test_notes_are_few_and_of_files_that_are_not_large(tmp_path, notes, monkeypatch):
    monkeypatch.setattr(apart, "_MOST", 4)
    for number in range(9):
        apart.note(bytes([number]))
        os.utime(next(iter(sorted(notes.iterdir(), key=lambda each: -each.stat().st_mtime_ns))), ns=(number, number))
    (tmp_path / "last").write_bytes(bytes([8]))
    assert 1 <= len(list(notes.iterdir())) <= 4 and apart.noted_bytes(tmp_path / "last") == bytes([8])
    monkeypatch.setattr(apart, "_LARGEST", 3)
    before = set(notes.iterdir())
    apart.note(b"four")
    assert set(notes.iterdir()) == before
