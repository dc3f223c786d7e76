"""Hostile programs, archives and folders: each is one message, and nothing in them runs."""

from __future__ import annotations

import io
import json
import pickle
import re
import struct
import zipfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from hostile_pickles import Evil
from nets import Cnn, trained_cnn
from safetensors.torch import save_file
from torch import nn

from bnuq.errors import BnuqError, ModelError, UntrustedCodeError
from bnuq.models.checkpoint import read_checkpoint
from bnuq.models.loading import load_model

pytestmark = pytest.mark.filterwarnings("ignore:.*(torch.jit|LeafSpec|deprecated|Duplicate name)")
X = torch.rand(5, 3, 8, 8)


def saved(holds: object) -> bytes:
    buffer = io.BytesIO()
    torch.save(holds, buffer)
    return buffer.getvalue()


def rewritten(data: bytes, path: Path, change: Callable[[dict[str, bytes]], Mapping[str, bytes]]) -> Path:
    """An archive like `data` with its members changed, by their names without the first folder."""
    folder = folder_of(data)
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        members = {name.removeprefix(folder): archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in change(members).items():
            archive.writestr(f"{'m/' * bool(folder)}{name}", content)
    return path


def folder_of(data: bytes) -> str:
    """The folder of all members of an archive, such as "archive/"; programs of torch 2.6 have none."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        folders = {name.partition("/")[0] for name in archive.namelist()}
    return f"{folders.pop()}/" if len(folders) == 1 else ""


def assert_one_message(path: Path, text: str, error: type[BnuqError] = ModelError) -> None:
    with pytest.raises(error, match=text) as caught:
        read_checkpoint(path)
    assert str(caught.value).startswith(f"{path}")
    assert "\n" not in str(caught.value)
    assert not re.search(r"(Attribute|Type|Index|Key)Error|argument", str(caught.value))


# ---- TorchScript


@pytest.fixture(scope="module")
def script() -> bytes:
    buffer = io.BytesIO()
    torch.jit.save(torch.jit.script(trained_cnn()), buffer)
    return buffer.getvalue()


SCRIPT = [f"data/{number}" for number in range(8)] + ["data.pkl", "constants.pkl"]


def replaced(name: str, data: bytes) -> Callable[[dict[str, bytes]], Mapping[str, bytes]]:
    return lambda members: members | {name: data}


@pytest.mark.parametrize(
    "code", [b"\xff\xfe", b"x = " + b"(" * 20_000, b'def forward(self, x):\n  torch.save(x, "ran")\n']
)
def test_the_code_of_a_script_is_not_read(tmp_path, script, code):
    path = rewritten(script, tmp_path / "s.pt", replaced("code/__torch__/nets.py", code))
    assert torch.equal(load_model(path, arch="nets:Cnn").module(X), trained_cnn()(X))


def test_pickles_with_code_in_a_script_do_not_run(tmp_path, script):
    marker = tmp_path / "ran"
    for protocol in (0, 2):
        evil = pickle.dumps((Evil(marker),), protocol=protocol)
        for name in (*SCRIPT, "traced_inputs.pkl"):
            path = rewritten(script, tmp_path / "s.pt", replaced(name, evil))
            with suppress(BnuqError):
                load_model(path, arch="nets:Cnn", trust_pickle=True)
            assert not marker.exists()
        path = rewritten(script, tmp_path / "s.pt", replaced("data.pkl", evil))
        assert_one_message(
            path, r"TorchScript whose weights name (posix|nt)\.system.*Nothing was run", UntrustedCodeError
        )


def layers(count: int, *, endless: bool = False) -> bytes:
    """A pickle of modules, each of which holds the next one twice, and the last the first, if they are `endless`."""
    place = [struct.pack("<I", number) for number in range(count + 1)]
    key = b"X\x01\0\0\0"
    pickled = b"c__torch__\nM\n)\x81r" + place[count] + b"}(" + (key + b"aj" + place[0]) * endless + b"ub"
    for number in reversed(range(count)):
        again = key + b"bj" + place[number + 1]
        pickled = b"c__torch__\nM\n)\x81r" + place[number] + b"}(" + key + b"a" + pickled + again + b"ub"
    return b"\x80\x02" + pickled + b"."


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda members: {k: v for k, v in members.items() if k != "data/0"}, "storage 0 needs"),
        (lambda members: {k: v for k, v in members.items() if k != "data.pkl"}, "damaged or incomplete"),
        (replaced("code/../../../x.py", b""), "lies outside of it"),
        (replaced("..\\x", b""), "lies outside of it"),
        (replaced("data.pkl", pickle.dumps({"a": 1}, protocol=2)), "damaged or incomplete"),
        (replaced("data.pkl", layers(0)), "TorchScript without weights"),
        (replaced("data.pkl", layers(200)), "layers in each other without end"),
        (replaced("data.pkl", layers(2, endless=True)), "layers in each other without end"),
    ],
    ids=["no storage", "no weights", "outside", "outside on Windows", "no module", "empty", "doubled", "endless"],
)
def test_a_damaged_script_is_one_message(tmp_path, script, change, text):
    assert_one_message(rewritten(script, tmp_path / "s.pt", change), text)


def test_compressed_code_may_not_exhaust_memory(tmp_path, script):
    path = rewritten(script, tmp_path / "s.pt", dict)
    with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("m/code/more.py", b" " * (2**26 + 1))
    assert_one_message(path, "unpack to .* exhaust memory")


# ---- exported programs


@pytest.fixture(scope="module")
def program() -> bytes:
    buffer = io.BytesIO()
    shapes = ({0: torch.export.Dim("points", min=1)},)
    torch.export.save(torch.export.export(trained_cnn(), (X,), dynamic_shapes=shapes), buffer)
    return buffer.getvalue()


def test_nothing_in_a_program_runs_untrusted(tmp_path, program):
    marker = tmp_path / "ran"
    with zipfile.ZipFile(io.BytesIO(program)) as archive:
        names = [name.removeprefix(folder_of(program)) for name in archive.namelist()]
    assert len(names) >= 5
    for name in names:
        path = rewritten(program, tmp_path / "p.pt2", replaced(name, saved(Evil(marker))))
        assert_one_message(
            path, "is an exported program .* Nothing was run.*--arch.*--trust-pickle", UntrustedCodeError
        )
        assert not marker.exists()


def test_other_archives_of_programs_are_not_loaded(tmp_path):
    marker = tmp_path / "ran"
    evil = saved(Evil(marker))
    for members, told in (
        ({"archive_format": b"pt2", "data/aotinductor/model/x.so": b"\x7fELF"}, "is compiled by AOTInductor"),
        ({"archive_format": b"pt2", "data/sample_inputs/model.pt": evil, "models/model.json": b"{}"}, "is an exported"),
        ({"archive_format": b"pt2", "data.pkl": pickle.dumps(Evil(marker), protocol=2)}, "is an exported"),
        ({"archive_format": b"pt2", "models/model.json": b"[]"}, "is damaged or incomplete.*; expected weights or a"),
    ):
        with zipfile.ZipFile(tmp_path / "p.pt2", "w") as archive:
            for name, data in members.items():
                archive.writestr(f"m/{name}", data)
        with pytest.raises(BnuqError, match=rf"p\.pt2: {told}"):
            read_checkpoint(tmp_path / "p.pt2", trust_pickle="damaged" in told)
    assert not marker.exists()


# ---- folders


def write_folder(folder: Path, config: object) -> Path:
    folder.mkdir()
    save_file(trained_cnn().state_dict(), folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize(
    ("config", "text"),
    [
        ([], "is not a JSON file of a network"),
        ({}, "names neither an architecture"),
        ({"architecture": "hf-hub:somebody/net"}, "expected the plain name"),
        ({"architecture": "../net"}, "expected the plain name"),
        ({"architecture": "/etc/passwd"}, "expected the plain name"),
        ({"architecture": "os.system"}, "has no model 'os.system'"),
        ({"architecture": "cnn; import os"}, "expected the plain name"),
        ({"architecture": "cnn\0"}, "expected the plain name"),
        ({"architecture": "c" * 10**6}, "architecture is c{80}, which"),
        ({"architecture": "resnet"}, "resnet"),
        ({"architecture": "cnn", "num_classes": 10**12}, "of one network"),
        ({"architecture": "cnn", "num_classes": -1}, "num_classes is -1"),
        ({"architecture": "cnn", "num_classes": 1e300}, "num_classes is 1e"),
        ({"architecture": "cnn", "model_args": {"in_chans": 10**12}}, "of one network"),
        ({"architecture": "cnn", "model_args": {"in_chans": -3}}, "could not build it"),
        ({"architecture": "cnn", "model_args": {"no_such": "x" * 10**6}}, "no_such"),
        ({"architecture": "cnn", "pretrained_cfg": {"input_size": [10**12, 8, 8]}}, "input_size is"),
        ({"architecture": "cnn", "model_args": {"checkpoint_path": "/etc/passwd"}}, "about weights to fetch"),
        ({"architecture": "cnn", "model_args": {"pretrained": True}}, "about weights to fetch"),
        ({"architecture": "cnn", "model_args": [1]}, "model_args is"),
        ({"architecture": "cnn", "num_classes": 10**9}, "of one network"),
        ({"architecture": "cnn", "num_classes": 7}, "another shape"),
        ({"architecture": "cnn", "pretrained_cfg": {"input_size": [3, 10**9, 8]}}, "input_size is"),
        ({"architecture": "cnn", "pretrained_cfg": {"input_size": [3, 8, 8], "crop_pct": 1e-9}}, "crop_pct is"),
        ({"architecture": "cnn", "pretrained_cfg": {"mean": "x", "std": [1]}}, "mean is"),
        ({"architecture": "cnn", "pretrained_cfg": {"mean": [0.5] * 3, "std": [0, 1, 1]}}, "std is"),
        ({"architecture": "cnn", "pretrained_cfg": {"mean": [0.5] * 2, "std": [1] * 3}}, "mean is"),
        ({"model_type": "resnet"}, "expected an image classifier"),
        ({"architecture": "cnn", "auto_map": {"AutoModel": "x.X"}}, "has 'auto_map', for which code or weights"),
        (
            {"model_type": "x", "architectures": ["XForImageClassification"], "auto_map": {"AutoModel": "x.X"}},
            "has 'auto_map', for which code or weights from elsewhere",
        ),
    ],
)
def test_a_config_that_lies_is_one_message(tmp_path, monkeypatch, config, text):
    import sys
    import types

    def create(_name: str, pretrained: bool, **rest: Any) -> nn.Module:  # noqa: ARG001
        return Cnn(**rest)

    monkeypatch.setitem(sys.modules, "timm", types.SimpleNamespace(list_models=lambda: ["cnn"], create_model=create))
    folder = write_folder(tmp_path / "net", config)
    with pytest.raises(BnuqError, match=text) as caught:
        load_model(folder)
    assert len(str(caught.value)) < 3000
    if "of one network" not in text and "another shape" not in text:
        assert str(caught.value).startswith(f"{folder / 'config.json'}: ")
        assert "model.arch" not in str(caught.value)


def test_a_folder_of_pickled_weights_is_refused(tmp_path):
    folder = write_folder(tmp_path / "net", {"architecture": "cnn"})
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    assert_one_message(folder, "has a config.json and no model.safetensors")


@pytest.mark.parametrize("content", [[], {"weight_map": "x"}, {"weight_map": {"conv.weight": 3}}])
def test_an_index_of_other_content_is_one_message(tmp_path, content):
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(content))
    assert_one_message(tmp_path, r"the weight_map of model\.safetensors\.index\.json does not name a file for each")


@pytest.mark.parametrize("file", ["../a.safetensors", "/etc/passwd", "..", "a\0b"])
def test_an_index_may_not_lead_out_of_its_folder(tmp_path, file):
    save_file(trained_cnn().state_dict(), tmp_path / "a.safetensors")
    (tmp_path / "net").mkdir()
    index = tmp_path / "net" / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"conv.weight": file}}))
    assert_one_message(tmp_path / "net", "expected one in its folder|is missing")
    assert_one_message(index, "expected one in its folder|is missing")
