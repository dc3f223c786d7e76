"""One rule for what a compressed file may declare, whatever its format."""

import subprocess
import sys
import zlib

import h5py
import numpy as np
import pytest

from bnuq.data import load_points
from bnuq.errors import DataError
from bnuq.files import limits
from bnuq.files.limits import check_size, read_whole


def test_what_deflate_can_pack_is_believed_and_more_is_not():
    zeros = bytes(2**28)
    check_size("f", len(zeros), stored=len(zlib.compress(zeros, 9)), error=DataError)
    check_size("f", 2**28, stored=0, error=DataError)
    with pytest.raises(DataError, match=r"f: declares 2\.68e\+08 bytes of data in 1000 bytes"):
        check_size("f", 2**28 + 1, stored=1000, error=DataError)


def test_what_the_memory_cannot_hold_is_refused_with_both_estimates(monkeypatch):
    monkeypatch.setattr(limits, "available_memory", lambda: 3 * 10**6)
    check_size("f", 3 * 10**6, stored=10**7, error=DataError)
    with pytest.raises(DataError, match=r"f: takes 4 MB of memory to read and 3 MB are available"):
        check_size("f", 4 * 10**6, stored=10**7, error=DataError)


def test_a_file_that_takes_more_memory_than_its_size_is_told_by_both(tmp_path, monkeypatch):
    (tmp_path / "f").write_bytes(bytes(2 * 10**6))
    monkeypatch.setattr(limits, "available_memory", lambda: 3 * 10**6)
    assert len(read_whole(tmp_path / "f", error=DataError)) == 2 * 10**6
    with pytest.raises(DataError, match=r"f: has 2 MB, takes 4 MB of memory to read and 3 MB are available"):
        read_whole(tmp_path / "f", copies=2, error=DataError)


def test_a_limit_on_the_address_space_counts_as_memory():
    code = (
        "import resource; from bnuq.files.limits import available_memory as free; most = 2**31\n"
        "resource.setrlimit(resource.RLIMIT_AS, (most, most)); print(free())"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert 0 < int(said) < 2**31


@pytest.mark.parametrize("form", ["npz", "h5", "mat"])
def test_every_format_is_held_to_it_in_bytes(tmp_path, monkeypatch, form):
    """A megabyte of zeros, packed: refused where no more than it could be believed, whatever it is packed in."""
    path, x = tmp_path / f"p.{form}", np.zeros((2**10, 2**7))
    if form == "npz":
        np.savez_compressed(path, x=x)
    elif form == "h5":
        with h5py.File(path, "w") as file:
            file.create_dataset("x", data=x, compression="gzip")
    else:
        import scipy.io

        scipy.io.savemat(path, {"x": x}, do_compression=True)
    assert len(load_points(str(path))) == 2**10
    monkeypatch.setattr(limits, "_ALWAYS_ALLOWED", x.nbytes - 1)
    monkeypatch.setattr(limits, "_MOST_EXPANSION", 2)
    with pytest.raises(DataError, match=r"declares 1\.05e\+06 bytes of data"):
        load_points(str(path))
