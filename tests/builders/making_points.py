"""Files of points in the published formats, made small."""

import io
import tarfile
from pathlib import Path

import numpy as np
from PIL import Image


def png(pixels: np.ndarray) -> bytes:
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "png")
    return out.getvalue()


def idx(values: np.ndarray) -> bytes:
    return bytes([0, 0, 8, values.ndim]) + np.array(values.shape, ">u4").tobytes() + values.tobytes()


def save_mat(path: Path, **arrays: np.ndarray) -> None:
    import scipy.io

    scipy.io.savemat(path, arrays, do_compression=True)


def save_parquet(path: Path, columns: dict[str, np.ndarray]) -> None:
    import pyarrow
    import pyarrow.parquet

    pyarrow.parquet.write_table(pyarrow.table(columns), path)


def tar_gz(path: Path, members: dict[str, bytes]) -> None:
    with tarfile.open(path, "w:gz") as archive:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
