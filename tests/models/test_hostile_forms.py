"""Hostile programs, archives and folders: each is one message, and nothing in them runs."""

from __future__ import annotations

import io
import json
import os
import pickle
import re
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from nets import Cnn, trained_cnn
from safetensors.torch import save_file
from torch import nn

from bnuq.errors import BnuqError, ModelError, UntrustedCodeError
from bnuq.models.checkpoint import read_checkpoint
from bnuq.models.loading import load_model

pytestmark = pytest.mark.filterwarnings("ignore:.*(torch.jit|LeafSpec|deprecated|Duplicate name)")
X = torch.rand(5, 3, 8, 8)


class Evil:
    """Writes a marker file while it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> Any:
        return os.system, (f"touch '{self.marker}'",)


def saved(holds: object) -> bytes:
    buffer = io.BytesIO()
    torch.save(holds, buffer)
    return buffer.getvalue()


def rewritten(data: bytes, path: Path, change: Callable[[dict[str, bytes]], Mapping[str, bytes]]) -> Path:
    """An archive like `data` with its members changed, by their names without the first folder."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        members = {name.partition("/")[2]: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in change(members).items():
            archive.writestr(f"m/{name}", content)
    return path


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


NET = "code/__torch__/nets.py"


def with_line(line: str) -> Callable[[dict[str, bytes]], Mapping[str, bytes]]:
    """The archive with a statement at the start of its forward."""

    def change(members: dict[str, bytes]) -> Mapping[str, bytes]:
        text = members[NET].decode()
        place = text.index(":\n", text.index("-> Tensor")) + 2
        return members | {NET: f"{text[:place]}    {line}\n{text[place:]}".encode()}

    return change


@pytest.mark.parametrize(
    "line",
    [
        'torch.save(x, "{marker}")',
        't = torch\n    t.save(x, "{marker}")',
        'getattr(torch, "sa\\x76e")(x, "{marker}")',
        """getattr(torch, "sa" "ve")(x, "{marker}")""",
        """getattr(torch, 'sa' 've')(x, "{marker}")""",
        """getattr(torch, "save")(x, "{marker}")""",
        'y = torch.from_file("{marker}", True, 8)',
        'print("\\033[31m", x)',
        "o = ops\n    y = o.c10d.barrier()",
        "ops.c10d.monitored(x)",
        "y = __torch__.torch.classes.dist_c10d.Store()",
    ],
)
def test_a_script_that_would_do_more_than_compute_does_not_run_and_is_named(tmp_path, script, line):
    marker = tmp_path / "ran"
    path = rewritten(script, tmp_path / "s.pt", with_line(line.format(marker=marker)))
    assert_one_message(path, "names more than computations: .* Nothing was run.*--trust-pickle", UntrustedCodeError)
    assert not marker.exists()


def test_a_script_that_the_user_trusts_is_loaded(tmp_path, script):
    path = rewritten(script, tmp_path / "s.pt", with_line(f'torch.save(x, "{tmp_path / "ran"}")'))
    assert load_model(path, trust_pickle=True).checkpoint.form == "TorchScript"


@pytest.mark.parametrize(
    "line",
    ["x = " + "(" * 20_000 + "x" + ")" * 20_000, "x = " + "-" * 20_000 + "x", "x = " + "+".join(["x"] * 20_000)],
    ids=["brackets", "signs", "terms"],
)
def test_a_script_that_would_crash_the_parser_is_refused(tmp_path, script, line):
    assert_one_message(rewritten(script, tmp_path / "s.pt", with_line(line)), "nests too deep")


def test_pickles_with_code_in_a_script_do_not_run(tmp_path, script):
    marker = tmp_path / "ran"
    for name in ("data.pkl", "constants.pkl"):
        evil = pickle.dumps((Evil(marker),), protocol=2)
        path = rewritten(script, tmp_path / "s.pt", lambda members, name=name, evil=evil: members | {name: evil})
        assert_one_message(path, r"names more than computations: (posix|nt)\.system", UntrustedCodeError)
        assert not marker.exists()


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda members: {k: v for k, v in members.items() if k != "data/0"}, "storage 0 needs"),
        (lambda members: {k: v for k, v in members.items() if not k.startswith("code")}, "damaged or incomplete"),
        (lambda members: members | {"code/../../../x.py": b""}, "lies outside of it"),
        (lambda members: members | {NET: b"\xff\xfe"}, "damaged or incomplete"),
    ],
    ids=["no storage", "no code", "outside", "no text"],
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


WEIGHTS = "data/weights/model_weights_config.json"


def edited(member: str, edit: Callable[[Any], None]) -> Callable[[dict[str, bytes]], Mapping[str, bytes]]:
    def change(members: dict[str, bytes]) -> Mapping[str, bytes]:
        document = json.loads(members[member])
        edit(document)
        return members | {member: json.dumps(document).encode()}

    return change


def node(document: Any, name: str) -> Any:
    return next(n for n in document["graph_module"]["graph"]["nodes"] if name in n["target"])


def retargeted(target: str) -> Callable[[Any], None]:
    return lambda document: node(document, "relu").update(target=target)


@pytest.mark.parametrize(
    "target",
    [
        "os.system",
        "builtins.eval",
        "torch.ops.aten.from_file.default",
        "torch.ops.aten.save.default",
        "torch.ops.aten.__class__.default",
        "torch.ops.aten.relu.__call__",
        "torch.ops.c10d.barrier.default",
        "torch.ops.higher_order.cond",
        "torch.load",
    ],
)
def test_a_program_that_calls_other_things_than_operations_is_refused(tmp_path, program, target):
    path = rewritten(program, tmp_path / "p.pt2", edited("models/model.json", retargeted(target)))
    assert_one_message(path, "is an exported program that calls ")


def test_pickles_and_expressions_in_a_program_do_not_run(tmp_path, program):
    marker = tmp_path / "ran"
    evil = f"__import__('os').system('touch {marker}')"

    def expressions(document: Any) -> None:
        for values in document["graph_module"]["graph"]["sym_int_values"].values():
            values["as_expr"]["expr_str"] = evil
        document["guards_code"] = [evil]
        node(document, "conv2d")["metadata"]["nn_module_stack"] = f"a,{evil},b"

    def both(members: dict[str, bytes]) -> Mapping[str, bytes]:
        members = {**edited("models/model.json", expressions)(members)}
        return members | {"data/sample_inputs/model.pt": saved(Evil(marker))}

    path = rewritten(program, tmp_path / "p.pt2", both)
    assert torch.equal(load_model(path).module(X), trained_cnn()(X))  # they are not looked at
    assert not marker.exists()

    def pickled(members: dict[str, bytes]) -> Mapping[str, bytes]:
        def edit(document: Any) -> None:
            document["config"]["conv.weight"]["use_pickle"] = True

        place = json.loads(members[WEIGHTS])["config"]["conv.weight"]["path_name"]
        return {**edited(WEIGHTS, edit)(members)} | {f"data/weights/{place}": saved(Evil(marker))}

    path = rewritten(program, tmp_path / "p.pt2", pickled)
    assert_one_message(path, r"(posix|nt)\.system would have to run", UntrustedCodeError)
    assert not marker.exists()


def test_a_pickle_with_code_runs_in_no_member_of_a_program(tmp_path, program):
    marker = tmp_path / "ran"
    with zipfile.ZipFile(io.BytesIO(program)) as archive:
        names = [name.partition("/")[2] for name in archive.namelist()]
    assert len(names) > 10
    for name in names:
        for evil in (
            saved(Evil(marker)),
            pickle.dumps(Evil(marker), protocol=2),
            pickle.dumps(Evil(marker), protocol=0),
        ):
            path = rewritten(program, tmp_path / "p.pt2", lambda members, name=name, evil=evil: members | {name: evil})
            try:
                load_model(path)
            except BnuqError as error:
                assert str(error).startswith(f"{path}") and "\n" not in str(error)
            assert not marker.exists()


@pytest.mark.parametrize("name", ["../../x.json", "/etc/x", "models/../../../x.json", "..\\x"])
def test_a_member_of_a_program_may_not_lie_outside_of_it(tmp_path, program, name):
    path = tmp_path / "p.pt2"
    path.write_bytes(program)
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr(name, b"{}")
    assert_one_message(path, "lies outside of it")


def test_a_program_that_unpacks_to_more_than_it_is_is_refused(tmp_path, program):
    path = tmp_path / "p.pt2"
    path.write_bytes(program)
    with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("m/data/weights/weight_99", bytes(2**26))
    assert_one_message(path, "unpack to .* exhaust memory")


def _config(path: str, **changed: Any) -> Callable[[Any], None]:
    return lambda document: document["config"][path].update(changed)


def _meta(path: str, **changed: Any) -> Callable[[Any], None]:
    return lambda document: document["config"][path]["tensor_meta"].update(changed)


@pytest.mark.parametrize(
    ("member", "edit", "text"),
    [
        (WEIGHTS, _config("conv.weight", path_name="../../../etc/passwd"), "an object that is not a tensor"),
        (WEIGHTS, _meta("conv.weight", sizes=[{"as_int": 10**6}] * 4), "needs more bytes"),
        (WEIGHTS, _meta("conv.weight", strides=[{"as_int": -1}] * 4), "needs more bytes"),
        (WEIGHTS, _meta("conv.weight", storage_offset={"as_int": -1}), "needs more bytes"),
        (WEIGHTS, _meta("last.bias", sizes=[{"as_int": 10**9}], strides=[{"as_int": 0}]), "it is forged"),
        (WEIGHTS, lambda d: d["config"].pop("conv.weight"), "damaged or incomplete"),
        ("models/model.json", lambda d: d.pop("graph_module"), r"damaged or incomplete; .*torch\.export\.save"),
        (WEIGHTS, _meta("conv.weight", sizes=[{"as_int": 1}]), "another number of sizes than of strides"),
    ],
)
def test_a_forged_program_is_one_message(tmp_path, program, member, edit, text):
    path = rewritten(program, tmp_path / "p.pt2", edited(member, edit))
    assert_one_message(path, text)


def test_a_tensor_may_not_replace_what_the_program_is_made_of(tmp_path, program):
    def rename(text: bytes) -> bytes:
        return text.replace(b'"conv.weight"', b'"forward"')

    both = lambda members: members | {name: rename(members[name]) for name in (WEIGHTS, "models/model.json")}  # noqa: E731
    assert_one_message(rewritten(program, tmp_path / "p.pt2", both), "damaged or incomplete")


def test_a_program_of_other_content_is_one_message(tmp_path, program):
    path = rewritten(program, tmp_path / "p.pt2", lambda members: members | {"models/model.json": b"[]"})
    assert_one_message(path, "damaged or incomplete; expected weights or a network")
    without = lambda members: {name: data for name, data in members.items() if name != "models/model.json"}  # noqa: E731
    assert_one_message(rewritten(program, path, without), r"p\.pt2: holds no program \(models/model\.json\)")
    path.write_bytes(program[: len(program) // 2])
    assert_one_message(path, r"damaged or incomplete .*torch\.export\.save.*Fetch or write it again")
    path.write_bytes(program)
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr(archive.namelist()[0], b"")
    assert_one_message(path, "lists a member twice.*Save it again with torch")


def test_compiled_and_empty_programs_are_refused_before_anything_is_loaded(tmp_path):
    marker = tmp_path / "ran"
    evil = saved(Evil(marker))
    for members, told in (
        ({"archive_format": b"pt2", "data/aotinductor/model/x.so": b"\x7fELF"}, "is compiled by AOTInductor"),
        ({"archive_format": b"pt2", "data/sample_inputs/model.pt": evil, "models/model.json": b"{}"}, "is damaged"),
        ({"archive_format": b"pt2", "data.pkl": pickle.dumps(Evil(marker), protocol=2)}, "holds no program"),
        ({"serialized_exported_program.json": b"{}", "serialized_state_dict.pt": evil}, "is damaged"),
    ):
        with zipfile.ZipFile(tmp_path / "p.pt2", "w") as archive:
            for name, data in members.items():
                archive.writestr(f"m/{name}", data)
        with pytest.raises(BnuqError, match=rf"p\.pt2: {told}"):
            read_checkpoint(tmp_path / "p.pt2")
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
