"""Files that are damaged, forged or something else: each is one message, and none of them runs anything."""

import hashlib
import json
import os
import pickle
import shutil
import struct
import threading
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from hostile_pickles import HASHES, MAKES, NESTED, Evil, encoded_again_and_again, zip_of
from nets import trained_small
from safetensors.torch import save_file

from bnuq.errors import BnuqError, ModelError, UntrustedCodeError
from bnuq.files import limits
from bnuq.models import checkpoint as checkpoint_module
from bnuq.models import weight_checks
from bnuq.models.checkpoint import read_checkpoint
from bnuq.models.unpickling import survey_pickle

STATE = trained_small().state_dict()


def written(path: Path, form: str) -> Path:
    if form == "safetensors":
        save_file(STATE, path)
    else:
        torch.save(STATE, path, _use_new_zipfile_serialization=form == "zip")
    return path


def assert_one_message(path: Path, text: str = ".", error: type[BnuqError] = ModelError) -> None:
    with pytest.raises(error, match=text) as caught:
        read_checkpoint(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)
    assert "Traceback" not in str(caught.value)


@pytest.mark.parametrize("legacy", [False, True])
@pytest.mark.parametrize("inside", ["alone", "beside weights"])
def test_an_evil_checkpoint_does_not_run_and_is_named(tmp_path, legacy, inside):
    marker = tmp_path / "ran"
    holds = Evil(marker) if inside == "alone" else {"state_dict": dict(STATE), "extra": Evil(marker)}
    path = tmp_path / "evil.pt"
    torch.save(holds, path, _use_new_zipfile_serialization=not legacy)
    assert_one_message(path, r"(posix|nt)\.system would have to run. Nothing was run", UntrustedCodeError)
    assert not marker.exists()


@pytest.mark.parametrize("name", ["torch.hub load", "torch load", "torch._utils _import_dotted_name"])
def test_a_function_of_torch_that_no_tensor_is_made_of_does_not_run_and_is_named(tmp_path, name):
    module, function = name.split()
    path = zip_of(tmp_path / "m.pt", f"c{module}\n{function}\nX\x05\0\0\0tests\x85R.".encode("latin1"))
    assert_one_message(path, rf"{module}.{function} would have to run. Nothing was run", UntrustedCodeError)


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize("trust_pickle", [False, True])
def test_an_evil_bare_pickle_does_not_run_even_when_trusted_for_torch_did_not_write_it(
    tmp_path, protocol, trust_pickle
):
    marker = tmp_path / "ran"
    path = tmp_path / "bare.pt"
    path.write_bytes(pickle.dumps(Evil(marker), protocol=protocol))
    with pytest.raises(ModelError, match=r"bare\.pt: is "):
        read_checkpoint(path, trust_pickle=trust_pickle)
    assert not marker.exists()


@pytest.mark.parametrize("form", ["zip", "legacy", "safetensors"])
@pytest.mark.parametrize("keep", [0, 1, 10, 100, 0.5, -30, -1])
def test_a_truncated_file_is_one_message(tmp_path, form, keep):
    path = written(tmp_path / "m.pt", form)
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * keep) if isinstance(keep, float) else keep])
    assert_one_message(path)


def test_any_flipped_bit_of_a_zip_is_noticed_or_harmless(tmp_path):
    path = written(tmp_path / "m.pt", "zip")
    data = bytearray(path.read_bytes())
    with zipfile.ZipFile(path) as archive:
        weights = next(m for m in archive.infolist() if m.filename.endswith("data/0"))
    inside = data.find(STATE["first.weight"].numpy().tobytes())
    assert weights.header_offset < inside
    data[inside + 5] ^= 1
    path.write_bytes(data)
    assert_one_message(path, r"m/data/0 does not match its checksum|is damaged.*CRC")
    rng = np.random.default_rng(0)
    for at in rng.choice(len(data), 60, replace=False):
        flipped = bytearray(written(path, "zip").read_bytes())
        flipped[at] ^= 1 << int(rng.integers(8))
        path.write_bytes(flipped)
        try:
            state = read_checkpoint(path).state
        except BnuqError:
            continue
        assert all(torch.equal(state[name], value) for name, value in STATE.items())


@pytest.mark.parametrize("form", ["legacy", "safetensors"])
def test_flipped_bits_elsewhere_give_weights_or_one_message(tmp_path, form):
    path = written(tmp_path / "m.pt", form)
    original = path.read_bytes()
    rng = np.random.default_rng(1)
    for at in rng.choice(min(len(original), 1500), 150, replace=False):
        flipped = bytearray(original)
        flipped[at] ^= 1 << int(rng.integers(8))
        path.write_bytes(flipped)
        try:
            read_checkpoint(path)
        except BnuqError as error:
            assert str(error).startswith(f"{path}: ")


def test_a_zip_that_unpacks_to_more_than_it_is_is_refused(tmp_path):
    path = tmp_path / "bomb.pt"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("m/data.pkl", pickle.dumps({}, protocol=2))
        archive.writestr("m/data/0", bytes(50_000_000))
    assert_one_message(path, r"unpack to 5\d+ bytes, the file has \d{5}\.")


def forged(source: Path, target: Path, *, data_pkl=lambda data: data) -> Path:
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w") as new:
        for member in old.infolist():
            data = old.read(member)
            new.writestr(member.filename, data_pkl(data) if member.filename.endswith("/data.pkl") else data)
    return target


def test_a_zip_whose_tensor_claims_more_than_its_storage_is_refused(tmp_path):
    torch.save({"w": torch.ones(200)}, tmp_path / "m.pt")
    path = forged(tmp_path / "m.pt", tmp_path / "f.pt", data_pkl=lambda d: d.replace(b"K\xc8", b"J\x00\x00\x00\x10", 1))
    assert_one_message(path, r"storage 0 needs 1073741824 bytes and has 800")


def test_a_tensor_spread_over_one_value_is_refused(tmp_path):
    torch.save({"w": torch.ones(1).expand(10**9)}, tmp_path / "m.pt")
    assert_one_message(tmp_path / "m.pt", r"w has shape \(1000000000,\), more than the file holds")


def test_overlapping_tensors_are_refused_before_all_of_them_are_looked_at(tmp_path):
    tensor = torch.zeros(10_000)
    torch.save({f"l{at}": tensor[at:] for at in range(100)}, tmp_path / "m.pt")
    with pytest.raises(ModelError, match="its tensors overlap"):
        read_checkpoint(tmp_path / "m.pt")


def test_a_tensor_of_a_thousand_names_is_looked_at_once(tmp_path, monkeypatch):
    looked_at = []
    monkeypatch.setattr(weight_checks, "_is_finite", lambda value: looked_at.append(value) or True)
    tensor = torch.zeros(10)
    torch.save({f"l{at}": tensor for at in range(1000)}, tmp_path / "m.pt")
    assert len(read_checkpoint(tmp_path / "m.pt").state or ()) == 1000
    assert len(looked_at) == 1


@pytest.mark.parametrize("nested", [False, True])
def test_a_name_without_end_is_refused_and_cut_in_the_message(tmp_path, nested):
    state = {"module." * 100_000 + "w": torch.ones(1)}
    torch.save({"x" * 10_000: {"w": torch.ones(1)}} if nested else state, tmp_path / "m.pt")
    with pytest.raises(ModelError, match=r"is a name of [0-9,]* letters; expected at most 1,000") as refusal:
        read_checkpoint(tmp_path / "m.pt")
    assert len(str(refusal.value)) < 1000


def test_no_more_prefixes_are_taken_off_than_wrappers_put_on(tmp_path):
    torch.save({"module." * 100 + "w": torch.ones(1)}, tmp_path / "m.pt")
    assert len(read_checkpoint(tmp_path / "m.pt").stripped) == 8


def test_two_tensors_that_come_to_one_name_are_refused(tmp_path):
    torch.save({"w": torch.ones(1), "_orig_mod.w": torch.zeros(1)}, tmp_path / "m.pt")
    with pytest.raises(ModelError, match=r"w and _orig_mod\.w are both w of the network"):
        read_checkpoint(tmp_path / "m.pt")


def test_a_safetensors_header_that_lists_a_name_twice_is_refused(tmp_path):
    entry = b'"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}'
    header = b"{" + entry + b"," + entry + b"}"
    (tmp_path / "m.pt").write_bytes(struct.pack("<Q", len(header)) + header + bytes(4))
    with pytest.raises(ModelError, match="lists a name twice"):
        read_checkpoint(tmp_path / "m.pt")


def test_a_legacy_file_whose_tensor_claims_more_than_follows_is_refused(tmp_path):
    path = tmp_path / "m.pt"
    torch.save({"w": torch.ones(200)}, path, _use_new_zipfile_serialization=False)
    path.write_bytes(path.read_bytes().replace(b"K\xc8", b"J\x00\x00\x00\x10", 1))
    assert_one_message(path, r"its tensors need 10737418\d\d bytes and \d+ follow")


def test_a_legacy_file_whose_storages_are_not_listed_is_refused(tmp_path):
    path = tmp_path / "m.pt"
    torch.save({"w": torch.ones(200)}, path, _use_new_zipfile_serialization=False)
    data = path.read_bytes()
    path.write_bytes(data[: data.rindex(b"\x80\x02]q")] + pickle.dumps([], protocol=2))
    assert_one_message(path, "its list of storages is not the one that its tensors use")


@pytest.mark.parametrize("operation", [b"r\xff\xff\xff\xff", b"p4294967295\n"])
def test_a_pickle_with_an_enormous_memo_index_is_refused(tmp_path, operation):
    path = zip_of(tmp_path / "m.pt", b"\x80\x02}" + operation + b".")
    assert_one_message(path, "it numbers its objects up to 4294967295")


def test_a_zip_that_lists_a_member_twice_is_refused(tmp_path):
    path = written(tmp_path / "m.pt", "zip")
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("M/data.pkl", b"")
    assert_one_message(path, "lists a member twice")


@pytest.mark.parametrize("start", ["zip", "legacy", "safetensors"])
def test_a_file_larger_than_the_memory_is_refused_before_it_is_read(tmp_path, start):
    path = written(tmp_path / "m.pt", start)
    os.truncate(path, 2**43)  # sparse
    assert_one_message(path, r"takes 18000 GB of memory to read and .* are available")


@pytest.mark.parametrize("form", ["zip", "legacy", "safetensors"])
def test_the_digest_is_of_the_very_bytes_that_the_weights_were_read_from(tmp_path, monkeypatch, form):
    """The file is replaced as soon as it was opened once, and by one cut short, which a mapping would not survive."""
    path, other = written(tmp_path / "m.pt", form), tmp_path / "other.pt"
    expected = hashlib.sha256(path.read_bytes()).hexdigest()
    original = limits.read_whole

    def replaced_after(where: Path, **options):
        data = original(where, **options)
        torch.save({"w": torch.zeros(3)}, other)
        os.truncate(path, 10)
        other.replace(path)
        return data

    monkeypatch.setattr(checkpoint_module, "read_whole", replaced_after)
    read = read_checkpoint(path)
    assert read.sha256 == expected and read.state is not None
    assert all(torch.equal(read.state[name], value) for name, value in STATE.items())


def test_a_checkpoint_replaced_again_and_again_always_has_the_digest_of_its_weights(tmp_path):
    states = [{"w": torch.full((1000,), float(value))} for value in range(2)]
    digests = {}
    for value, state in enumerate(states):
        torch.save(state, tmp_path / f"{value}.pt")
        digests[hashlib.sha256((tmp_path / f"{value}.pt").read_bytes()).hexdigest()] = state
    path, stop = tmp_path / "m.pt", threading.Event()
    shutil.copy(tmp_path / "0.pt", path)

    def replace() -> None:
        while not stop.is_set():
            for value in (1, 0):
                shutil.copy(tmp_path / f"{value}.pt", tmp_path / "next.pt")
                (tmp_path / "next.pt").replace(path)

    thread = threading.Thread(target=replace)
    thread.start()
    try:
        for _ in range(30):
            read = read_checkpoint(path)
            assert read.state is not None and torch.equal(read.state["w"], digests[read.sha256]["w"])
    finally:
        stop.set()
        thread.join()


@pytest.mark.parametrize(
    "header",
    [
        {"w": {"dtype": "F32", "shape": [1_000_000_000], "data_offsets": [0, 4_000_000_000]}},
        {"w": {"dtype": "F32", "shape": [100], "data_offsets": [0, 8]}},
        {"w": {"dtype": "XX", "shape": [2], "data_offsets": [0, 8]}},
        {"w": {"dtype": "F32", "shape": [2], "data_offsets": [-8, 8]}},
        {},
    ],
)
def test_a_safetensors_header_that_lies_is_one_message(tmp_path, header):
    text = json.dumps(header).encode()
    (tmp_path / "m.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + bytes(8 if header else 0))
    assert_one_message(tmp_path / "m.safetensors")


def test_a_safetensors_header_longer_than_the_file_is_one_message(tmp_path):
    (tmp_path / "m.safetensors").write_bytes(struct.pack("<Q", 2**31) + b'{"w": 1}')
    assert_one_message(tmp_path / "m.safetensors", "is damaged or incomplete")


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n", "git-lfs pointer.*git lfs pull"),
        (b"<!DOCTYPE html><html></html>", "is a web page, so the download went wrong"),
        (b"hello [bold]world[/bold]\n", r"is a text file \(it begins 'hello \[bold\]world\[/bold\]'\)"),
        (b"", r"is empty \(0 bytes\)"),
        (b"\x08\x07\x12\x07pytorch\x1a\x052.1.0:\x80\x01", "is an ONNX graph.*nothing is left to sample"),
        (b"\x89HDF\r\n\x1a\n" + bytes(100), "is an HDF5 file"),
        (b"\x1f\x8b\x08\x00" + bytes(40), "is a gzip archive: unpack it first"),
        (b"PK\x05\x06" + bytes(18), "is a zip archive without a data.pkl; it holds nothing"),
        (bytes(range(200, 255)), "no kind of file that is known here"),
        (pickle.dumps({"a": 1}), "is a pickle, but not one that torch.save wrote"),
        (b"\x80\x02" + bytes(50), "is damaged or incomplete"),
    ],
)
def test_other_files_are_told_by_what_they_are(tmp_path, data, text):
    (tmp_path / "m.pt").write_bytes(data)
    assert_one_message(tmp_path / "m.pt", text)


def test_arrays_folders_and_missing_files_are_told_by_what_they_are(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.ones(3))
    assert_one_message(tmp_path / "a.npz", "it holds NumPy arrays")
    assert_one_message(tmp_path, "is a folder.*Name the file inside it")
    assert_one_message(tmp_path / "none.pt", "there is no such file")
    (tmp_path / ".metadata").write_bytes(b"\x80\x04")
    assert_one_message(tmp_path, "is a distributed checkpoint, which is not read")


@pytest.mark.parametrize("where", HASHES)
def test_shared_tuples_without_end_are_refused_before_they_are_hashed(tmp_path, where):
    assert_one_message(zip_of(tmp_path / "m.pt", b"\x80\x04" + HASHES[where]), "tuple")


def test_tuples_as_keys_and_long_flat_ones_are_read(tmp_path):
    numbers = tuple(range(100_000))
    torch.save({"w": torch.ones(2), ("a", ("b", 1)): 1, "numbers": numbers, "seen": {(1, 2)}}, tmp_path / "m.pt")
    state = read_checkpoint(tmp_path / "m.pt").state
    assert state is not None and list(state) == ["w"]


@pytest.mark.parametrize("what", MAKES)
def test_a_pickle_that_makes_memory_of_a_number_is_refused(tmp_path, what):
    assert_one_message(zip_of(tmp_path / "m.pt", b"\x80\x02" + MAKES[what]), "without data")


def test_a_pickle_that_copies_one_text_over_and_over_is_refused(tmp_path):
    path = zip_of(tmp_path / "m.pt", b"\x80\x02" + encoded_again_and_again(10_000))
    assert_one_message(path, "copies the same values over and over")


@pytest.mark.parametrize("protocol", [b"", b"\x80\x05"])
def test_a_length_beyond_what_is_left_is_refused_before_it_is_allocated(protocol):
    tracemalloc.start()
    try:
        for operation in (pickle.BYTEARRAY8, pickle.BINBYTES8, pickle.BINUNICODE8):
            with pytest.raises((ValueError, EOFError, OverflowError)):
                survey_pickle(protocol + operation + struct.pack("<Q", 2**30) + b"x.")
        with pytest.raises((ValueError, EOFError)):
            survey_pickle(protocol + pickle.LONG4 + struct.pack("<i", 2**30) + b"x.")
        assert tracemalloc.get_traced_memory()[1] < 2**24
    finally:
        tracemalloc.stop()
    assert survey_pickle(pickle.dumps(bytearray(b"whole"), protocol=5)).named == ()


@pytest.mark.parametrize("where", ["name", "count"])
def test_the_text_of_nested_tuples_is_never_made(where):
    storage = b"(X\x07\x00\x00\x00storagectorch\nFloatStorage\n"
    tensor = {"name": NESTED + b"X\x03\x00\x00\x00cpuK\x01", "count": b"K\x01X\x03\x00\x00\x00cpu" + NESTED}
    with pytest.raises(ValueError, match="tuple"):
        survey_pickle(b"\x80\x02" + storage + tensor[where] + b"tQ.")
