"""What `read_checkpoint` finds in the files that training scripts write."""

import datetime
import os
import pickle
import sys
from argparse import Namespace
from pathlib import Path, PureWindowsPath
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hostile_pickles import zip_of
from nets import Small, trained_small
from safetensors.torch import save_file
from torch import nn

from bnuq.errors import ModelError, UntrustedCodeError
from bnuq.findings import note
from bnuq.models.checkpoint import read_checkpoint
from bnuq.models.filling import fitted

STATE = trained_small().state_dict()


def saved(path: Path, what: object, *, legacy: bool = False) -> Path:
    torch.save(what, path, _use_new_zipfile_serialization=not legacy)
    return path


def assert_is_state(state, expected=STATE):
    assert state is not None
    assert list(state) == list(expected)
    for name, value in expected.items():
        assert torch.equal(state[name], value)


@pytest.mark.parametrize(("legacy", "form"), [(False, "state dict (zip)"), (True, "state dict (legacy pickle)")])
def test_a_state_dict_comes_back_as_it_was_saved_whatever_its_suffix(tmp_path, legacy, form):
    checkpoint = read_checkpoint(saved(tmp_path / "weights.jpg", STATE, legacy=legacy))
    assert_is_state(checkpoint.state)
    assert checkpoint.form == form
    assert (checkpoint.key, checkpoint.stripped, checkpoint.module) == (None, (), None)
    assert len(checkpoint.sha256) == 64


def test_safetensors_come_back_with_their_metadata(tmp_path):
    save_file(STATE, tmp_path / "m.pt", metadata={"format": "pt"})
    checkpoint = read_checkpoint(tmp_path / "m.pt")
    assert checkpoint.form == "safetensors"
    assert checkpoint.metadata == {"format": "pt"}
    assert {name: value.tolist() for name, value in checkpoint.state.items()} == {
        name: value.tolist() for name, value in STATE.items()
    }


@pytest.mark.parametrize("prefixes", [["module."], ["_orig_mod."], ["_orig_mod.", "module."], ["model.", "net."]])
def test_the_prefixes_of_wrappers_come_off_and_are_named(tmp_path, prefixes):
    prefixed = {"".join(prefixes) + name: value for name, value in STATE.items()}
    checkpoint = read_checkpoint(saved(tmp_path / "m.pt", prefixed))
    assert_is_state(checkpoint.state)
    assert list(checkpoint.stripped) == prefixes


def test_a_prefix_that_only_some_names_have_stays(tmp_path):
    mixed = {"model.a": torch.ones(1), "head.b": torch.ones(1)}
    assert list(read_checkpoint(saved(tmp_path / "m.pt", mixed)).state) == ["model.a", "head.b"]


def test_prefixes_that_the_network_has_itself_go_back_on(tmp_path):
    wrapped = {f"module.model.{name}": value for name, value in STATE.items()}
    checkpoint = read_checkpoint(saved(tmp_path / "m.pt", wrapped))
    assert checkpoint.stripped == ("module.", "model.")
    again = fitted(checkpoint, [f"model.{name}" for name in STATE])
    assert again.stripped == ("module.",)
    assert_is_state(again.state, {f"model.{name}": value for name, value in STATE.items()})


def test_weights_beside_the_network_are_left_out_with_a_note_when_the_rest_is_all_that_is_expected(tmp_path):
    lightning = {f"model.{name}": value for name, value in STATE.items()} | {"loss.weight": torch.ones(3)}
    checkpoint = fitted(read_checkpoint(saved(tmp_path / "m.ckpt", {"state_dict": lightning})), STATE)
    assert_is_state(checkpoint.state)
    assert checkpoint.findings == (note("tensors-left-out", count=1, prefix="model.", names="loss.weight"),)


def test_an_averaged_model_loses_its_counter_and_its_prefix(tmp_path):
    averaged = torch.optim.swa_utils.AveragedModel(trained_small())
    assert_is_state(read_checkpoint(saved(tmp_path / "m.pt", averaged.state_dict())).state)


def test_the_averaged_weights_are_preferred_and_named(tmp_path):
    other = {name: torch.zeros_like(value) for name, value in STATE.items()}
    holds = {"model": other, "state_dict": other, "state_dict_ema": STATE, "optimizer": {"state": {}}, "epoch": 3}
    checkpoint = read_checkpoint(saved(tmp_path / "m.pt", holds))
    assert_is_state(checkpoint.state)
    assert checkpoint.key == "state_dict_ema"
    assert checkpoint.metadata == {"epoch": 3}


EMA = {name: value + 1 for name, value in STATE.items()}
OF_PARAMETERS = [value for name, value in EMA.items() if "running" not in name and "batches" not in name]


@pytest.mark.parametrize(
    ("holds", "takes"),
    [
        ({"model": dict(STATE), "ema_state_dict": dict(EMA)}, EMA),
        ({"netG": dict(STATE), "netG_ema": dict(EMA)}, EMA),
        ({**{f"online_model.{k}": v for k, v in STATE.items()}, **{f"ema_model.{k}": v for k, v in EMA.items()}}, EMA),
        ({**{f"model.{k}": v for k, v in STATE.items()}, **{f"ema.module.{k}": v for k, v in EMA.items()}}, EMA),
        ({**STATE, **{f"ema_{name.replace('.', '_')}": value for name, value in EMA.items()}}, STATE),
        ({"model": dict(STATE), "ema": {"decay": 0.9, "shadow_params": OF_PARAMETERS}}, STATE),
        ({"model": dict(STATE), "ema_params": dict(list(EMA.items())[:1])}, STATE),
        ({"model": dict(STATE), "shadow": dict(list(EMA.items())[:1])}, STATE),
        ({"model": dict(STATE), "ema_loss": 0.3}, STATE),
    ],
    ids=["entry", "one of two", "ema-pytorch", "Lightning", "mmcv", "list", "parameters", "shadow", "number"],
)
def test_averaged_weights_are_taken_or_named_in_every_common_form(tmp_path, holds, takes):
    checkpoint = fitted(read_checkpoint(saved(tmp_path / "m.pt", holds)), STATE)
    assert {name: value.tolist() for name, value in checkpoint.state.items()} == {
        name: value.tolist() for name, value in takes.items()
    }
    notes = {finding.code for finding in checkpoint.findings}
    assert takes is EMA or notes & {"averages-unused", "averages-beside"} or "ema_loss" in holds
    assert "averages-unused" not in notes or takes is STATE


def test_two_averaged_networks_are_not_chosen_between(tmp_path):
    holds = {"netG_ema": dict(EMA), "netD_ema": dict(STATE)}
    with pytest.raises(ModelError, match="holds several state dicts, netD_ema, netG_ema, and nothing says which"):
        read_checkpoint(saved(tmp_path / "m.pt", holds))


@pytest.mark.parametrize("key", ["model_ema", "ema", "state_dict", "model", "net", "weights", "anything"])
def test_weights_are_found_below_the_usual_keys_or_the_only_one(tmp_path, key):
    checkpoint = read_checkpoint(
        saved(tmp_path / "m.pt", {key: STATE, "best": torch.tensor(0.9)} if key != "anything" else {key: STATE})
    )
    assert_is_state(checkpoint.state)
    assert checkpoint.key == key


def test_weights_are_found_two_keys_down(tmp_path):
    checkpoint = read_checkpoint(saved(tmp_path / "m.pt", {"model": {"state_dict": STATE}}))
    assert_is_state(checkpoint.state)
    assert checkpoint.key == "model.state_dict"


def test_two_state_dicts_that_nothing_tells_apart_are_an_error_that_names_them(tmp_path):
    path = saved(tmp_path / "m.pt", {"generator": STATE, "critic": STATE})
    with pytest.raises(ModelError, match=r"m\.pt: holds several state dicts, critic, generator"):
        read_checkpoint(path)


def test_entries_that_are_no_tensors_are_left_out(tmp_path):
    checkpoint = read_checkpoint(saved(tmp_path / "m.pt", dict(STATE) | {"epoch": 3, "name": "x"}))
    assert_is_state(checkpoint.state)


def test_a_lightning_checkpoint_of_plain_values_is_read_as_a_dict(tmp_path):
    holds = {
        "pytorch-lightning_version": "2.4.0",
        "epoch": 9,
        "state_dict": {f"model.{name}": value for name, value in STATE.items()},
        "hyper_parameters": {"batch_size": 64, "lr": 0.1},
        "callbacks": {},
    }
    checkpoint = read_checkpoint(saved(tmp_path / "last.ckpt", holds))
    assert_is_state(checkpoint.state)
    assert checkpoint.train_batch_size == 64
    assert checkpoint.metadata["epoch"] == 9


class Settings:
    """An object of code that is not the standard library's."""

    def __init__(self, batch_size: int) -> None:
        self.batch_size = batch_size


@pytest.mark.parametrize("legacy", [False, True])
def test_plain_objects_of_the_standard_library_beside_the_weights_need_no_trust(tmp_path, legacy):
    now = datetime.datetime.now(datetime.UTC)
    args = Namespace(batch_size=32, out=tmp_path / "out", data=PureWindowsPath("c:/data"), since=now)
    holds = {"model": dict(STATE), "args": args, "when": [now, now.date(), now - now], "more": SimpleNamespace(a=1)}
    checkpoint = read_checkpoint(saved(tmp_path / "m.pt", holds, legacy=legacy))
    assert_is_state(checkpoint.state)
    assert checkpoint.train_batch_size == 32 and checkpoint.metadata == {"args.batch_size": 32}


@pytest.mark.parametrize("legacy", [False, True])
def test_scalars_of_numpy_beside_the_weights_need_no_trust_and_are_plain_values(tmp_path, legacy):
    scalars = {
        "best_acc": np.float64(91.2), "epoch": np.int64(7), "batch_size": np.array([32], ">i2")[0],
        "loss": np.float32(0.5), "half": np.float16(-2), "finished": np.bool_(True), "name": np.str_("rün"),
    }  # fmt: skip
    others = {"when": np.datetime64("2026-01-01"), "wave": np.complex64(1j), "raw": np.bytes_(b"x")}
    checkpoint = read_checkpoint(saved(tmp_path / "m.pt", {"model": dict(STATE)} | scalars | others, legacy=legacy))
    assert_is_state(checkpoint.state)
    assert checkpoint.metadata == scalars and checkpoint.train_batch_size == 32
    assert {type(value) for value in checkpoint.metadata.values()} == {float, int, bool, str}


@pytest.mark.parametrize("legacy", [False, True])
def test_arrays_of_numpy_beside_the_weights_need_no_trust(tmp_path, legacy):
    names = np.array(["a", "b"], dtype=object)
    others = {"rng": np.random.RandomState(0).get_state(), "mean": np.ones((2, 3), np.float32), "names": names}
    checkpoint = read_checkpoint(saved(tmp_path / "m.pt", {"model": dict(STATE)} | others, legacy=legacy))
    assert_is_state(checkpoint.state)
    assert checkpoint.metadata == {}


def test_a_forged_array_of_numpy_takes_no_memory_and_runs_nothing(tmp_path):
    shape = b"(\x8a\x06" + (10**12).to_bytes(6, "little") + b"t"
    for made in (
        b"cnumpy\nndarray\n(%btR" % shape,
        b"cnumpy._core.multiarray\n_reconstruct\n(cnumpy\nndarray\n%bX\x01\x00\x00\x00btR" % shape,
    ):
        with pytest.raises(ModelError, match="holds no state dict"):
            read_checkpoint(zip_of(tmp_path / "m.pt", b"\x80\x02" + made + b"."))
    with pytest.raises(UntrustedCodeError, match=r"numpy\.core\.multiarray\.fromfile"):
        fromfile = b"cnumpy.core.multiarray\nfromfile\n(X\x01\x00\x00\x00atR."
        read_checkpoint(zip_of(tmp_path / "m.pt", b"\x80\x02" + fromfile))


@pytest.mark.parametrize("core", [b"numpy._core.multiarray", b"numpy.core.multiarray"])
@pytest.mark.parametrize(
    ("code", "state", "message"),
    [
        (b"X\x02\x00\x00\x00f8", b"(K\x03X\x01\x00\x00\x00<tb", "a NumPy scalar has 3 bytes; expected 8"),
        (b"X\x05\x00\x00\x00U9999", b"", "a NumPy scalar has 3 bytes; expected 39996"),
        (b"X\x02\x00\x00\x00f8", b"(K\x03X\x01\x00\x00\x00xtb", "a NumPy scalar without a byte order"),
        (b"K\x08", b"", "is damaged or incomplete;"),
    ],
    ids=["short", "longer than the file", "byte order", "code"],
)
def test_a_forged_scalar_of_numpy_is_refused(tmp_path, core, code, state, message):
    scalar = b"c%b\nscalar\n(cnumpy\ndtype\n(%btR%bc_codecs\nencode\n(X\x03\x00\x00\x00abcX\x06\x00\x00\x00latin1tRtR."
    with pytest.raises(ModelError, match=message):
        read_checkpoint(zip_of(tmp_path / "m.pt", b"\x80\x02" + scalar % (core, code, state)))


def test_a_pickle_inside_a_scalar_of_numpy_is_not_opened(tmp_path):
    class Loud:
        def __reduce__(self) -> tuple:
            return Path.touch, (tmp_path / "mark",)

    inside = np.array([Loud()], dtype=object)
    with pytest.raises(UntrustedCodeError):
        read_checkpoint(saved(tmp_path / "m.pt", {"model": dict(STATE), "more": inside}))
    data = pickle.dumps(Loud(), protocol=0).decode("latin1").encode()
    scalar = b"cnumpy._core.multiarray\nscalar\n(cnumpy\ndtype\n(X\x02\x00\x00\x00O8tRX%b%btR."
    with pytest.raises(ModelError, match=r"holds no state dict .*expected weights or a network"):
        read_checkpoint(zip_of(tmp_path / "n.pt", b"\x80\x02" + scalar % (len(data).to_bytes(4, "little"), data)))
    assert not (tmp_path / "mark").exists()


def test_paths_of_paths_are_refused_before_they_double_without_end(tmp_path):
    half = b"cpathlib\nPurePosixPath\n(X\x01\x00\x00\x00atR"
    data = half + b"".join(b"q%c0cpathlib\nPurePosixPath\n(h%ch%ctR" % (n, n, n) for n in range(11, 90))
    with pytest.raises(ModelError, match="it makes a path from non-text"):
        read_checkpoint(zip_of(tmp_path / "m.pt", data + b"."))


@pytest.mark.parametrize("legacy", [False, True])
def test_objects_beside_the_weights_need_trust_and_then_give_their_plain_values(tmp_path, legacy):
    holds = {
        "pytorch-lightning_version": "2.4.0",
        "state_dict": dict(STATE),
        "hyper_parameters": Settings(batch_size=32),
    }
    path = saved(tmp_path / "last.ckpt", holds, legacy=legacy)
    with pytest.raises(UntrustedCodeError, match=r"\.Settings would have to run.*Lightning.*--trust-pickle"):
        read_checkpoint(path)
    assert read_checkpoint(path, trust_pickle=True).train_batch_size == 32


@pytest.mark.parametrize("legacy", [False, True])
def test_a_pickled_network_needs_trust(tmp_path, legacy):
    path = saved(tmp_path / "whole.pt", trained_small(), legacy=legacy)
    with pytest.raises(UntrustedCodeError, match=r"nets\.Small, .*Nothing was run.*add --trust-pickle"):
        read_checkpoint(path)
    checkpoint = read_checkpoint(path, trust_pickle=True)
    assert isinstance(checkpoint.module, Small)
    assert (checkpoint.form, checkpoint.state) == ("pickled module", None)


def test_a_pickled_network_whose_class_is_gone_is_one_message(tmp_path, monkeypatch):
    path = saved(tmp_path / "whole.pt", trained_small())
    monkeypatch.delattr("nets.Small")
    with pytest.raises(ModelError, match=r"whole\.pt: needs code that is not here: .*Small"):
        read_checkpoint(path, trust_pickle=True)


@pytest.mark.parametrize(
    ("library", "cure"),
    [("torchvision", "pip install --force-reinstall --no-deps 'torchvision=="), ("mmcv", "Install that library, of a")],
)
def test_a_pickled_network_whose_library_lacks_its_operators_is_not_damaged(tmp_path, monkeypatch, library, cure):
    (tmp_path / "of_library.py").write_text("class Net: ...")
    monkeypatch.syspath_prepend(tmp_path)
    path = saved(tmp_path / "whole.pt", __import__("of_library").Net())
    monkeypatch.delitem(sys.modules, "of_library")
    (tmp_path / "of_library.py").write_text(f"raise RuntimeError('operator {library}::nms does not exist')")
    with pytest.raises(ModelError) as refusal:
        read_checkpoint(path, trust_pickle=True)
    assert f"needs operators of {library} that torch" in str(refusal.value) and cure in str(refusal.value)
    assert "damaged" not in str(refusal.value)


def test_a_mask_of_zeros_and_minus_infinity_is_no_damage(tmp_path):
    mask = torch.full((3, 3), float("-inf")).triu(1)
    state = read_checkpoint(saved(tmp_path / "m.pt", {"weight": torch.ones(2), "mask": mask})).state
    assert state is not None and torch.equal(state["mask"], mask)
    with pytest.raises(ModelError, match="b holds NaN or infinite values"):
        read_checkpoint(saved(tmp_path / "n.pt", {"b": torch.tensor([1, -float("inf")])}))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_weights_that_are_not_finite_are_an_error_that_names_the_first(tmp_path, value, dtype):
    path = saved(tmp_path / "m.pt", {"a": torch.ones(2, dtype=dtype), "b": torch.tensor([1, value], dtype=dtype)})
    with pytest.raises(ModelError, match=r"m\.pt: b holds NaN or infinite values \(1 of 2 tensors do\)"):
        read_checkpoint(path)


@pytest.mark.parametrize(
    ("what", "text"),
    [
        ({"epoch": 3}, r"holds no state dict but a dict of epoch"),
        ([1, 2], r"holds no state dict but a list"),
        (torch.ones(3), r"holds no state dict but a Tensor"),
        ({}, r"holds no state dict but a dict of nothing"),
    ],
)
def test_a_file_without_weights_says_what_it_holds(tmp_path, what, text):
    path = saved(tmp_path / "m.pt", what)
    with pytest.raises(ModelError, match=text):
        read_checkpoint(path)


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
def test_quantized_and_sparse_and_meta_tensors_are_refused_by_name(tmp_path):
    for odd, kind in (
        (torch.eye(3).to_sparse(), "a sparse"),
        (torch.ones(3, device="meta"), r"an empty \(meta\)"),
        (torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8), "a quantized"),
    ):
        path = saved(tmp_path / "m.pt", {"odd": odd})
        with pytest.raises(ModelError, match=f"odd is {kind} tensor"):
            read_checkpoint(path)


def test_loading_leaves_the_search_path_alone(tmp_path):
    import sys

    before = list(sys.path)
    read_checkpoint(saved(tmp_path / "whole.pt", nn.Linear(1, 1)), trust_pickle=True)
    assert sys.path == before


PUBLISHED = {
    "camvid_seg_bn_dropout.pt": ("state dict (zip)", None, ()),
    "fmnist_mlp_bn.pt": ("state dict (legacy pickle)", None, ()),
    "mnist_mlp_bn.pt": ("state dict (legacy pickle)", None, ()),
    "resnet20-12fca82f.th": ("state dict (legacy pickle)", "state_dict", ("module.",)),
    "resnet32-d509ac18.th": ("state dict (legacy pickle)", "state_dict", ("module.",)),
    "resnet56-4bfd9763.th": ("state dict (legacy pickle)", "state_dict", ("module.",)),
    "svhn_cnn_bn_dropout.pth": ("state dict (zip)", None, ()),
}


@pytest.mark.skipif("BNUQ_TEST_DATA" not in os.environ, reason="BNUQ_TEST_DATA does not name the published checkpoints")
@pytest.mark.parametrize("name", PUBLISHED)
def test_published_checkpoints_saved_on_a_gpu_are_read_on_a_cpu(name):
    checkpoint = read_checkpoint(Path(os.environ["BNUQ_TEST_DATA"]) / "checkpoints" / name)
    assert (checkpoint.form, checkpoint.key, checkpoint.stripped) == PUBLISHED[name]
    assert {value.device.type for value in checkpoint.state.values()} == {"cpu"}
    assert any(key.endswith("running_var") for key in checkpoint.state)
