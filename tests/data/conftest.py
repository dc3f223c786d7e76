"""Small sets in every format."""

import gzip
import zipfile
from pathlib import Path

import h5py
import numpy as np
import pytest
from making_points import idx, png, save_mat, save_parquet


@pytest.fixture
def pictures() -> tuple[np.ndarray, np.ndarray]:
    """Twenty 8 × 8 colour pictures, channel-last, and their labels in order of class."""
    return np.random.default_rng(0).integers(0, 256, (20, 8, 8, 3), dtype=np.uint8), np.repeat([0, 1], 10)


@pytest.fixture
def every_format(tmp_path, pictures) -> dict[str, Path]:
    """The same pictures (or a table) in every format, in a folder with brackets and spaces in its name."""
    x, y = pictures
    folder = tmp_path / "data [v1] & co"
    folder.mkdir()
    paths = {name: folder / f"points.{name}" for name in ("npz", "npy", "h5", "mat", "csv", "parquet", "zip")}
    np.savez_compressed(paths["npz"], x=x, y=y)
    np.save(paths["npy"], x)
    with h5py.File(paths["h5"], "w") as file:
        file["x"], file["y"] = x, y
    save_mat(paths["mat"], X=x.transpose(1, 2, 3, 0), y=y[:, None].astype(np.uint8))
    paths["mat73"] = folder / "points73.mat"
    with h5py.File(paths["mat73"], "w", userblock_size=512) as file:
        file["X"], file["y"] = x.transpose(1, 2, 3, 0).T, y[None]
    paths["idx"] = folder / "t-images-idx3-ubyte"
    paths["idx.gz"] = folder / "g-images-idx3-ubyte.gz"
    paths["idx"].write_bytes(idx(x[..., 0]))
    (folder / "t-labels-idx1-ubyte").write_bytes(idx(y.astype(np.uint8)))
    paths["idx.gz"].write_bytes(gzip.compress(idx(x[..., 0])))
    (folder / "g-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx(y.astype(np.uint8))))
    table = np.random.default_rng(1).standard_normal((20, 4))
    np.savetxt(paths["csv"], table, delimiter=",", header="a,b,c,price", comments="")
    save_parquet(paths["parquet"], dict(zip("abc", table.T, strict=False)) | {"price": table[:, 3]})
    with zipfile.ZipFile(paths["zip"], "w") as archive:
        for row, (pixels, label) in enumerate(zip(x, y, strict=True)):
            archive.writestr(f"top/{['cat', 'dog'][label]}/{row:02d}.png", png(pixels))
    paths["folder"] = folder / "pictures"
    with zipfile.ZipFile(paths["zip"]) as archive:
        archive.extractall(paths["folder"])
    return paths
