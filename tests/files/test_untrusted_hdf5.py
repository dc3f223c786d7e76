"""HDF5 that nobody vouched for: what would read other files, or more than there is, is refused before it is read."""

import h5py
import numpy as np
import pytest

from bnuq.errors import DataError, ResultError
from bnuq.files.hdf5 import open_hdf5


def refusal(path, **options) -> str:
    with pytest.raises(ResultError) as error, open_hdf5(path, **options):
        pass
    return str(error.value)


@pytest.fixture
def plain(tmp_path):
    path = tmp_path / "plain [1] file.h5"
    with h5py.File(path, "w") as file:
        file["group/values"] = np.arange(100_000.0)
        file.create_dataset("packed", data=np.zeros((1000, 1000)), compression="gzip", shuffle=True)
        file["same"] = file["group"]  # a hard link, and a cycle below
        file["group/up"] = file["group"]
        file.attrs["format"] = 1
        file["packed"].attrs["unit"] = "nats"
    return path


def test_a_plain_file_opens(plain):
    with open_hdf5(plain) as file:
        assert file["group/values"][5] == 5
        assert file["packed"].shape == (1000, 1000)


def test_a_file_opens_in_a_read_only_folder(plain):
    plain.chmod(0o444)
    plain.parent.chmod(0o555)
    try:
        with open_hdf5(plain) as file:
            assert "packed" in file
    finally:
        plain.parent.chmod(0o755)


@pytest.mark.parametrize("kept", [10, 100, 0.5, -30])
def test_a_file_that_was_cut_short_is_refused(plain, kept):
    data = plain.read_bytes()
    plain.write_bytes(data[: int(len(data) * kept) if isinstance(kept, float) else kept])
    assert "plain [1] file.h5: cannot be read as HDF5" in refusal(plain)


def test_what_is_no_hdf5_is_named(tmp_path):
    path = tmp_path / "r.h5"
    assert "there is no such file" in refusal(path)
    path.write_bytes(b"")
    assert "is empty" in refusal(path)
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n")
    assert "git lfs pull" in refusal(path)
    path.write_text("hello")
    assert "is not an HDF5 file (it looks like text); expected a result file." in refusal(path)


def test_links_to_other_files_are_refused_and_not_followed(tmp_path):
    with h5py.File(tmp_path / "secret.h5", "w") as file:
        file["key"] = 1
    for link, word in [
        (h5py.ExternalLink(str(tmp_path / "secret.h5"), "/key"), "a link to another file"),
        (h5py.ExternalLink("/nowhere", "/key"), "a link to another file"),
        (h5py.SoftLink("/elsewhere"), "a soft link"),
    ]:
        with h5py.File(tmp_path / "evil.h5", "w") as file:
            file.create_group("deep")["stolen"] = link
        assert f"/deep/stolen is {word}" in refusal(tmp_path / "evil.h5")


def test_external_storage_is_refused(tmp_path):
    (tmp_path / "secret").write_bytes(bytes(80))
    with h5py.File(tmp_path / "evil.h5", "w") as file:
        file.create_dataset("stolen", (10,), "f8", external=[(str(tmp_path / "secret"), 0, 80)])
    assert "/stolen keeps its data in an external file" in refusal(tmp_path / "evil.h5")


def test_virtual_data_sets_are_refused(tmp_path):
    with h5py.File(tmp_path / "secret.h5", "w") as file:
        file["key"] = np.arange(10)
    layout = h5py.VirtualLayout((10,), "i8")
    layout[:] = h5py.VirtualSource(tmp_path / "secret.h5", "key", (10,))
    with h5py.File(tmp_path / "evil.h5", "w", libver="latest") as file:
        file.create_virtual_dataset("stolen", layout)
    assert "/stolen is a virtual data set" in refusal(tmp_path / "evil.h5")


def test_a_small_file_that_declares_terabytes_is_refused(tmp_path):
    path = tmp_path / "bomb.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("x", (10**6, 10**6), "f8", chunks=(100, 100), compression="gzip")
    assert path.stat().st_size < 8000
    assert "declare 8e+12 bytes of data in a file of" in refusal(path)


def test_many_data_sets_are_counted_together_and_sizes_do_not_wrap_around(tmp_path):
    with h5py.File(tmp_path / "many.h5", "w") as file:
        for index in range(10):
            file.create_dataset(f"d{index}", (5 * 2**20,), "f8", chunks=(1000,))
    assert "bytes of data" in refusal(tmp_path / "many.h5")
    with h5py.File(tmp_path / "wide.h5", "w") as file:
        file.create_dataset("x", (2**32, 2**29), "f8", chunks=(10, 10))
    assert "bytes of data" in refusal(tmp_path / "wide.h5")


def test_a_filter_that_loads_a_library_is_refused(tmp_path):
    creation = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    creation.set_chunk((10,))
    creation.set_filter(32015, h5py.h5z.FLAG_OPTIONAL, (3,))  # Zstandard's number, by a plugin
    with h5py.File(tmp_path / "evil.h5", "w") as file:
        h5py.h5d.create(file.id, b"x", h5py.h5t.NATIVE_DOUBLE, h5py.h5s.create_simple((10,)), creation)
    assert "/x needs the HDF5 filter 32015" in refusal(tmp_path / "evil.h5")


def test_the_error_is_of_the_kind_that_the_caller_asks_for(tmp_path):
    with pytest.raises(DataError), open_hdf5(tmp_path / "no.h5", error=DataError):
        pass


def test_a_file_that_the_process_has_open_already_can_be_read(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"] = [1, 2]
    with h5py.File(tmp_path / "a.h5", "r"), open_hdf5(tmp_path / "a.h5") as again:
        assert list(again["x"]) == [1, 2]
