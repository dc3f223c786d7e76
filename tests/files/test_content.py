"""The kind of a file is told from what it holds."""

import gzip
import hashlib
import io
import os
import zipfile

import h5py
import numpy as np
import pytest

from bnuq.files.content import kind_of, kind_of_bytes, sha256_of_file, what_is_wrong_with
from bnuq.files.folders import cache_folder, config_folder


def test_the_kind_is_told_from_the_content_whatever_the_suffix(tmp_path):
    with h5py.File(tmp_path / "h.txt", "w"):
        pass
    with h5py.File(tmp_path / "block.mat", "w", userblock_size=512):
        pass
    with zipfile.ZipFile(tmp_path / "z.h5", "w"):
        pass
    np.save(tmp_path / "n.npy", np.zeros(3))
    (tmp_path / "g.bin").write_bytes(gzip.compress(b"x"))
    (tmp_path / "t.npz").write_text("α,β\n" * 3000)
    (tmp_path / "i").write_bytes(bytes([0, 0, 8, 1, 0, 0, 0, 1, 7]))
    assert {path.name: kind_of(path) for path in tmp_path.iterdir()} == {
        "h.txt": "hdf5", "block.mat": "hdf5", "z.h5": "zip", "n.npy": "npy", "g.bin": "gzip", "t.npz": "text",
        "i": "idx",
    }  # fmt: skip


def test_what_is_no_file_is_told_too(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    assert kind_of(tmp_path) == "folder"
    assert kind_of(tmp_path / "pipe") == "special"
    assert kind_of(tmp_path / "none") == "missing"
    assert what_is_wrong_with("missing")
    assert what_is_wrong_with("zip") is None


@pytest.mark.parametrize("head", [b"", b"\x80", b"\0", b"\0\0\x08", b"PK", b"\x93NUM", b"\xff" * 20, bytes(4096)])
def test_no_beginning_is_too_short_or_too_odd(head):
    assert isinstance(kind_of_bytes(head), str)


def test_the_hash_is_that_of_the_bytes(tmp_path):
    (tmp_path / "f").write_bytes(b"abc")
    assert sha256_of_file(tmp_path / "f") == hashlib.sha256(io.BytesIO(b"abc").getvalue()).hexdigest()


def test_the_users_folders_follow_the_xdg_variables(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "c"))
    monkeypatch.setenv("XDG_CACHE_HOME", "relative/is/ignored")
    assert config_folder() == tmp_path / "c" / "bnuq"
    assert cache_folder().is_absolute()
