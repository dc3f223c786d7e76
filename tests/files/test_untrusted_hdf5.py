"""HDF5 that nobody vouched for: what would read other files, or more than there is, is refused before it is read."""

import os
import signal

import h5py
import numpy as np
import pytest

from bnuq.errors import DataError, ResultError
from bnuq.files import apart, limits, parsing
from bnuq.files.hdf5 import open_hdf5

pytestmark = pytest.mark.run  # a process reads these files


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
    assert "/x: declares 8e+12 bytes of data in" in refusal(path)


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


def test_what_is_read_is_what_h5py_reads(tmp_path):
    """Of every kind that results and data have, whether it is sent at once or asked for."""
    random = np.random.default_rng(0)
    arrays = {
        "little": random.normal(size=(7, 3)),
        "large": random.normal(size=(300_000, 2)),
        "large and packed": random.integers(0, 9, (5000, 300)),
        "one": np.float32(3.5),
        "none": np.zeros((0, 4)),
        "yes": np.array([True, False]),
        "half": np.arange(3, dtype=np.float16),
    }
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for name, values in arrays.items():
            file.create_dataset(f"in/{name}", data=values, compression="gzip" if "packed" in name else None)
        file["texts"] = ["", "é", "b" * 3000]
        file["word"] = "alone"
        file["bytes"] = np.array([b"ab", b"c"])
        file["records"] = np.zeros(2, [("a", "i4")])
        file.attrs.update({"text": "ü", "number": 3, "several": [1.5, np.nan], "one": np.float64(2)})
    with h5py.File(tmp_path / "a.h5") as expected, open_hdf5(tmp_path / "a.h5") as found:
        assert list(found) == list(expected) and list(found["in"]) == list(expected["in"])
        for name, values in arrays.items():
            read = found[f"in/{name}"][()]
            assert type(read) is type(expected[f"in/{name}"][()])
            assert (read.dtype, read.shape) == (np.asarray(values).dtype, np.shape(values))
            np.testing.assert_array_equal(read, values)
        for name in ("texts", "word"):
            assert np.array_equal(found[name].asstr()[()], expected[name].asstr()[()])
        assert found["bytes"][()].tolist() == [b"ab", b"c"] and found["bytes"].asstr().tolist() == ["ab", "c"]
        assert {"text", "number", "several", "one"} == set(found.attrs)
        assert found.attrs["text"] == "ü" and found.attrs["number"] == 3 and type(found.attrs["one"]) is np.float64
        np.testing.assert_array_equal(found.attrs["several"], [1.5, np.nan])
        for name in ("texts", "records"):
            with pytest.raises(ValueError, match="does not hold numbers"):
                found[name][()]
        with pytest.raises(KeyError):
            found["in/nothing"]


def test_texts_that_share_one_place_in_the_file_are_refused(tmp_path):
    """20,000 of a megabyte in a file of one: HDF5 would make 20 GB of them."""
    with h5py.File(tmp_path / "a.h5", "w") as file:
        data = file.create_dataset("x", (20_000,), h5py.string_dtype())
        data[0] = "a" * 2**20
    content = bytearray((tmp_path / "a.h5").read_bytes())
    with h5py.File(tmp_path / "a.h5") as file:
        at = file["x"].id.get_offset()
    content[at : at + 16 * 20_000] = bytes(content[at : at + 16]) * 20_000
    (tmp_path / "a.h5").write_bytes(content)
    with open_hdf5(tmp_path / "a.h5") as file, pytest.raises(ValueError, match="longer than the file"):
        file["x"].asstr()


def test_numbers_that_are_not_in_the_file_are_refused_beyond_what_does_no_harm(tmp_path, monkeypatch):
    """One byte of a shape changed asks for more than the file ever held, and HDF5 would fill it in."""
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=np.ones((1000, 100)), chunks=(10, 100), maxshape=(None, 100), compression="gzip")
        file["x"].resize((30_000, 100))
    with open_hdf5(path) as file:
        assert file["x"].shape == (30_000, 100)
    monkeypatch.setattr(limits, "_ALWAYS_ALLOWED", 20 * 10**6)
    monkeypatch.setattr(limits, "_MOST_EXPANSION", 10**9)
    assert "/x: declares 2.32e+07 bytes of data in 0 bytes" in refusal(path)


# The parser may be dead before the next request is written, or die while it is.
@pytest.mark.parametrize("dead_already", [True, False])
@pytest.mark.parametrize(
    ("signal_", "reason"),
    [
        (signal.SIGSEGV, r"its parser crashed \(SIGSEGV\)"),
        (signal.SIGXCPU, "longer than its size can explain"),  # what the system sends once its time is up
    ],
)
def test_the_end_of_the_parser_is_one_message_and_the_next_file_is_read(plain, dead_already, signal_, reason):
    with open_hdf5(plain) as file:
        assert apart._child is not None
        process = apart._child.process
        process.send_signal(signal_)
        if dead_already:
            process.wait()
        with pytest.raises(OSError, match=reason):
            file["packed"][()]
    with open_hdf5(plain) as file:
        assert file["packed"][()].shape == (1000, 1000)


def test_a_parser_that_died_between_two_files_is_replaced(plain):
    apart.start()
    assert apart._child is not None
    dead = apart._child
    dead.process.kill()
    dead.process.wait()
    with open_hdf5(plain) as file:
        assert file["packed"][()].shape == (1000, 1000)
    assert dead.requests.closed and dead.answers.closed


def test_the_parser_may_take_so_much_time_and_memory_and_no_more(plain):
    resource = pytest.importorskip("resource")
    with open_hdf5(plain):
        assert apart._child is not None
        pid = apart._child.process.pid
        assert resource.prlimit(pid, resource.RLIMIT_CPU)[0] < 60
        assert resource.prlimit(pid, resource.RLIMIT_AS)[0] < 4 * 2**30
        assert resource.prlimit(pid, resource.RLIMIT_CORE)[0] == 0


def test_an_interrupted_answer_is_not_taken_for_the_next(plain, monkeypatch):
    with open_hdf5(plain) as file:
        with monkeypatch.context() as patch:
            patch.setattr(apart, "_array", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
            with pytest.raises(KeyboardInterrupt):
                file["packed"][()]
        with pytest.raises(OSError, match="the process that had it open was stopped"):
            file["packed"][()]
    with open_hdf5(plain) as file:
        assert file["packed"][()].shape == (1000, 1000)


@pytest.mark.nightly
def test_the_time_for_attributes_grows_with_their_number_alone(tmp_path):
    with h5py.File(tmp_path / "r.h5", "w", libver="latest") as file:
        file["x"] = 1.0
        for number in range(6000):  # by their numbers they take longer than the parser may
            file["x"].attrs[f"a{number}"] = number
    with open_hdf5(tmp_path / "r.h5") as file:
        assert file["x"][()] == 1


def test_a_file_that_changes_is_looked_at_again_whatever_its_times_say(tmp_path, monkeypatch):
    monkeypatch.setattr(parsing, "_COARSEST", -1.0)
    path = tmp_path / "out.h5"

    def found():
        listing = parsing._open(None, 0, str(path))
        parsing._close(None, 0)
        return listing["objects"]["/x"]["value"]

    with h5py.File(path, "w") as file:
        file["x"] = np.arange(3)
    first, before = found(), path.stat()
    with h5py.File(path, "r+") as file:
        file["x"][0] = 7
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert path.stat().st_size == before.st_size and path.stat().st_mtime_ns == before.st_mtime_ns
    assert found() != first


def test_what_was_found_in_one_file_is_not_said_of_another_that_its_path_leads_to(tmp_path, monkeypatch):
    harmless, hostile, path = tmp_path / "harmless.h5", tmp_path / "hostile.h5", tmp_path / "out.h5"
    with h5py.File(harmless, "w") as file:
        file["x"] = np.arange(3)
    with h5py.File(hostile, "w") as file:
        file["x"] = h5py.ExternalLink("harmless.h5", "/x")
    monkeypatch.setattr(parsing, "_COARSEST", -1.0)
    path.symlink_to(harmless)
    assert parsing._open(None, 0, str(path))["complaint"] is None
    parsing._close(None, 0)
    opened = parsing._opened

    def then_moved(name):
        file = opened(name)
        path.unlink()
        path.symlink_to(harmless)
        return file

    path.unlink()
    path.symlink_to(hostile)
    monkeypatch.setattr(parsing, "_opened", then_moved)
    assert "a link to another file" in parsing._open(None, 0, str(path))["complaint"]


@pytest.mark.nightly
def test_many_chunked_data_sets_are_read(tmp_path):
    path = tmp_path / "out.h5"
    with h5py.File(path, "w") as file:
        for number in range(1000):
            file.create_dataset(f"x{number}", data=np.arange(3.0), maxshape=(None,), chunks=(100_000,), compression=1)
    with open_hdf5(path) as file:
        assert len(file) == 1000 and file["x999"][()].tolist() == [0, 1, 2]


def test_an_old_file_is_looked_at_once_as_long_as_it_is_unchanged(tmp_path, monkeypatch):
    path, looked = tmp_path / "out.h5", []

    class Noted(parsing._Survey):
        def __init__(self, file, **known):
            looked.append(file.filename)
            super().__init__(file, **known)

    monkeypatch.setattr(parsing, "_Survey", Noted)
    monkeypatch.setattr(parsing, "_surveys", {})
    with h5py.File(path, "w") as file:
        file["x"] = np.arange(3)

    def found():
        listing = parsing._open(None, 0, str(path))
        parsing._close(None, 0)
        return listing

    first = found()
    assert found() == first and len(looked) == 2  # written just now
    monkeypatch.setattr(parsing, "_COARSEST", -1.0)
    assert found() == first and found() == first and len(looked) == 3
    with h5py.File(path, "r+") as file:
        file["y"] = 1.0
    assert found()["objects"].keys() > first["objects"].keys() and len(looked) == 4


def test_texts_that_are_too_long_to_be_sent_with_others_are_read_when_they_are_asked_for(tmp_path):
    long = ["x" * 2**20, "y"]
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("x", data=long, dtype=h5py.string_dtype())
    with open_hdf5(tmp_path / "a.h5") as file:
        assert file["x"].asstr()[()].tolist() == long
