"""One rule for what a compressed file may declare, whatever its format."""

import zlib

import h5py
import numpy as np
import pytest

from bnuq.data import load_points
from bnuq.errors import DataError
from bnuq.files import limits
from bnuq.files.limits import declares_too_much


def test_what_deflate_can_pack_is_believed_and_more_is_not():
    zeros = bytes(2**28)
    assert not declares_too_much(len(zeros), stored=len(zlib.compress(zeros, 9)))
    assert not declares_too_much(2**28, stored=0)
    assert declares_too_much(2**28 + 1, stored=1000)


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
    with pytest.raises(DataError, match=r"declares? 1\.05e\+06 bytes of data"):
        load_points(str(path))
