"""Arrays that are too large to be held: mapped, and read as they are needed, ahead of the network."""

import errno
import threading
import tracemalloc
from types import SimpleNamespace

import h5py
import numpy as np
import pytest
import torch

from bnuq.config import PointSettings
from bnuq.data import load_points
from bnuq.errors import DataError
from bnuq.evaluation.passes import ChunkedPasses
from bnuq.evaluation.pipeline import Pipeline
from bnuq.files import mapped
from bnuq.files.mapped import is_mapped

ROWS, COLUMNS = 8000, 40  # 1.3 MB in float32


@pytest.fixture
def small_is_large(monkeypatch):
    for limit in ("_LARGE", "_IN_MEMORY"):
        monkeypatch.setattr(mapped, limit, 100_000)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """The same points in each form."""
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    folder, rng = tmp_path_factory.mktemp("large"), np.random.default_rng(0)
    x, y = rng.normal(size=(ROWS, COLUMNS)).astype(np.float32), rng.integers(0, 5, ROWS)
    np.save(folder / "x.npy", x)
    np.save(folder / "fortran.npy", np.asfortranarray(x))
    np.save(folder / "y.npy", y)
    np.savez_compressed(folder / "xy.npz", x=x, y=y)
    with h5py.File(folder / "xy.h5", "w") as file:
        file.create_dataset("x", data=x, chunks=(100, COLUMNS), compression="gzip")
        file["y"] = y
    table = pyarrow.table({f"c{at}": x[:, at] for at in range(COLUMNS)} | {"label": y})
    parquet.write_table(table, folder / "xy.parquet", row_group_size=500)
    return folder


@pytest.mark.parametrize("reference", ["x.npy:y.npy", "fortran.npy:y.npy", "xy.npz", "xy.h5", "xy.parquet"])
def test_a_large_array_is_mapped_and_holds_the_same_points(files, reference, request):
    small = load_points(reference, base=files)
    request.getfixturevalue("small_is_large")
    large = load_points(reference, base=files)
    assert is_mapped(large.inputs) and not is_mapped(small.inputs)
    assert large.read_in_threads and not small.read_in_threads
    assert large.sha256 == small.sha256
    np.testing.assert_array_equal(large.raw(np.array([5, 7999, 7])), small.raw(np.array([5, 7999, 7])))
    np.testing.assert_array_equal(large.targets, small.targets)


@pytest.mark.usefixtures("small_is_large")
def test_a_mapped_array_takes_no_memory_until_it_is_read(files):
    tracemalloc.start()
    points = load_points("x.npy:y.npy", base=files)
    peak = tracemalloc.get_traced_memory()[1]
    points.raw(slice(0, 10))
    tracemalloc.stop()
    assert peak < ROWS * COLUMNS * 4 / 2


@pytest.mark.usefixtures("small_is_large")
def test_without_room_on_the_disk_an_array_stays_in_memory(files, monkeypatch):
    monkeypatch.setattr(mapped.shutil, "disk_usage", lambda _: SimpleNamespace(free=mapped._SPARE))
    assert not is_mapped(load_points("xy.h5", base=files).inputs)


@pytest.mark.usefixtures("small_is_large")
def test_a_large_file_that_is_cut_short_is_refused_before_it_is_mapped(files, tmp_path):
    (tmp_path / "x.npy").write_bytes((files / "x.npy").read_bytes()[:-8])
    with pytest.raises(DataError, match="1280000 bytes and 1279992 follow"):
        load_points("x.npy", base=tmp_path)


@pytest.mark.usefixtures("small_is_large")
def test_mapped_points_and_mini_batches_are_read_in_a_thread(files, monkeypatch):
    points, pipeline = load_points("xy.h5", base=files), Pipeline(PointSettings(), torch.device("cpu"))
    readers, raw = [], type(points).raw

    def noted(self, indices):
        readers.append(threading.current_thread())
        return raw(self, indices)

    monkeypatch.setattr(type(points), "raw", noted)
    with ChunkedPasses(pipeline, 5).feeding(points) as feed:
        chunks = [feed(slice(start, start + 4000)) for start in range(0, ROWS, 4000)]
    np.testing.assert_array_equal(torch.cat(chunks).numpy(), np.asarray(points.inputs))
    assert [reader is threading.main_thread() for reader in readers] == [True, False]  # the first is waited for
    readers.clear()
    assert len([*pipeline.batches(points, np.arange(40).reshape(4, 10), draws=range(4), purpose=0)]) == 4
    assert threading.main_thread() not in readers


# ── arrays that are made ─────────────────────────────────────────────────────────────────────────────────────────────


def test_arrays_of_a_pool_are_mapped_beyond_a_limit_and_overlap_no_other(monkeypatch):
    monkeypatch.setattr(mapped, "_IN_MEMORY", 1000)
    monkeypatch.setattr(mapped, "_POOLED", 4096)
    pool, arrays = mapped.Pool(), []
    for number, count in enumerate((100, 100, 3, 0, 1000, 7, 300, 1)):  # some larger than a file, some into its rest
        arrays.append(pool.empty((count,), np.dtype(np.float64)))
        arrays[-1][...] = number
    assert [is_mapped(array) for array in arrays] == [False, True, False, False, True, False, True, False]
    for number, array in enumerate(arrays):
        assert array.flags.writeable and np.all(array == number)


@pytest.mark.parametrize("axis", [0, 1])
def test_joined_parts_are_those_of_numpy_mapped_or_not(axis, monkeypatch):
    parts = [np.random.default_rng(at).normal(size=(4, 5, 3)) for at in range(3)]
    for limit in (2**20, 0):
        monkeypatch.setattr(mapped, "_IN_MEMORY", limit)
        found = mapped.Pool().joined(parts, axis)
        np.testing.assert_array_equal(found, np.concatenate(parts, axis))
        assert is_mapped(found) is (limit == 0) and found.dtype == np.float64


def test_without_room_on_the_disk_the_arrays_of_a_pool_stay_in_memory(monkeypatch):
    monkeypatch.setattr(mapped, "_IN_MEMORY", 0)
    monkeypatch.setattr(mapped.shutil, "disk_usage", lambda _: SimpleNamespace(free=mapped._SPARE))
    assert not is_mapped(mapped.Pool().empty((1000,), np.dtype(np.float64)))
    monkeypatch.undo()
    monkeypatch.setattr(mapped, "_IN_MEMORY", 0)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(mapped.os, "posix_fallocate", full)
    assert not is_mapped(mapped.Pool().empty((1000,), np.dtype(np.float64)))
