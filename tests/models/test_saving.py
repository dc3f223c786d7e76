"""A checkpoint with other statistics: it holds the same, but for them."""

from __future__ import annotations

import pickle
import zipfile
from argparse import Namespace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch
from nets import trained_small
from safetensors import safe_open
from safetensors.torch import save_file
from torch import nn

from bnuq.errors import ModelError
from bnuq.files.content import is_checkpoint
from bnuq.findings import note
from bnuq.models.loading import load_model
from bnuq.models.saving import with_statistics

NETS = Path(__file__).parent.parent / "builders"
STATE = trained_small().state_dict()
NEW = {"bn.running_mean": np.array([1.5, -2.5, 3.5, 1e4]), "bn.running_var": np.array([0.25, 4.0, 1e-7, 9.0])}


def prefixed(prefix: str, state: dict | None = None) -> dict:
    return {prefix + name: value for name, value in (state or STATE).items()}


def wrapped(module: nn.Module) -> nn.Module:
    return nn.DataParallel(module)


HOLDS = {
    "a bare state dict": lambda: STATE,
    "a state dict with a prefix": lambda: prefixed("module."),
    "of a compiled network": lambda: prefixed("_orig_mod.module."),
    "of averaged weights": lambda: {"n_averaged": torch.tensor(3)} | prefixed("module."),
    "nested beside others": lambda: {
        "epoch": 4,
        "best_prec1": torch.tensor(91.7),
        "state_dict": prefixed("module."),
        "optimizer": {"state": {0: {"momentum_buffer": torch.randn(4, 6)}}, "param_groups": [{"lr": 0.1}]},
    },
    "nested twice": lambda: {"net": {"state_dict": STATE}, "name": "x"},
    "with the weights of a loss": lambda: prefixed("model.") | {"loss.weight": torch.ones(3)},
    "transposed in a larger storage": lambda: STATE | {"bn.running_mean": torch.arange(12.0).reshape(4, 3)[:, 1]},
    "a network": trained_small,
    "a network inside its wrapper": lambda: {"model": wrapped(trained_small()), "epoch": 1},
}


def write(path: Path, holds: object, *, legacy: bool = False) -> Path:
    torch.save(holds, path, _use_new_zipfile_serialization=not legacy)
    return path


def changed(path: Path, values: dict[str, np.ndarray] = NEW, out: Path | None = None) -> tuple[Path, tuple[str, ...]]:
    """The new file, and what was noted."""
    out = out or path.with_name("new.pt")
    copy = with_statistics(load_model(path, arch="nets.py:small", base=NETS, trust_pickle=True).checkpoint, values)
    out.write_bytes(copy.data)
    return out, copy.findings


def flat(stored: object, path: str = "") -> dict[str, object]:
    """Every leaf of what a file holds, by its path."""
    if isinstance(stored, nn.Module):
        stored = dict(stored.state_dict())
    if isinstance(stored, dict):
        return {k: v for name, part in stored.items() for k, v in flat(part, f"{path}/{name}").items()}
    if isinstance(stored, list):
        return {k: v for i, part in enumerate(stored) for k, v in flat(part, f"{path}/{i}").items()}
    return {path: stored}


@pytest.mark.parametrize("legacy", [False, True], ids=["zip", "legacy"])
@pytest.mark.parametrize("kind", HOLDS)
def test_the_statistics_are_new_and_all_else_is_what_it_was(tmp_path, kind, legacy):
    path = write(tmp_path / "m.pt", HOLDS[kind](), legacy=legacy)
    before = path.read_bytes()
    out, notes = changed(path)
    assert notes == ()
    assert path.read_bytes() == before and zipfile.is_zipfile(out)
    old, new = (flat(torch.load(file, map_location="cpu", weights_only=False)) for file in (path, out))
    assert list(old) == list(new)
    for name, value in old.items():
        statistic = next((k for k in NEW if name.endswith(k)), None)
        if statistic is not None:
            torch.testing.assert_close(new[name], torch.from_numpy(NEW[statistic]).float(), rtol=0, atol=0)
        elif isinstance(value, torch.Tensor):
            assert torch.equal(value, new[name]) and value.dtype == new[name].dtype
        else:
            assert value == new[name]
    loaded = load_model(out, arch="nets.py:small", base=NETS, trust_pickle=True)
    np.testing.assert_allclose(loaded.module.state_dict()["bn.running_var"], NEW["bn.running_var"], rtol=1e-6)


def test_safetensors_keep_their_header(tmp_path):
    save_file(STATE, tmp_path / "m.safetensors", metadata={"format": "pt", "who": "me"})
    out, _ = changed(tmp_path / "m.safetensors", out=tmp_path / "new.safetensors")
    with safe_open(out, framework="pt") as file:
        assert file.metadata() == {"format": "pt", "who": "me"}
        for name, value in STATE.items():
            assert torch.equal(file.get_tensor(name), torch.from_numpy(NEW[name]).float() if name in NEW else value)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("form", ["zip", "legacy", "safetensors"])
def test_the_type_of_the_file_stays(tmp_path, dtype, form):
    state = {k: v.to(dtype) if v.is_floating_point() else v for k, v in STATE.items()}
    path = tmp_path / "m.pt"
    if form == "safetensors":
        save_file(state, path)
    else:
        write(path, state, legacy=form == "legacy")
    out, _ = changed(path)
    if form == "safetensors":
        with safe_open(out, framework="pt") as file:
            mean = file.get_tensor("bn.running_mean")
    else:
        mean = torch.load(out, weights_only=True)["bn.running_mean"]
    assert torch.equal(mean, torch.from_numpy(NEW["bn.running_mean"]).to(dtype))


def test_numbers_that_the_type_cannot_hold_are_refused_and_nothing_is_written(tmp_path):
    path = write(tmp_path / "m.pt", {k: v.half() if v.is_floating_point() else v for k, v in STATE.items()})
    with pytest.raises(ModelError, match=r"bn.running_mean is stored as float16, .* \(up to 1e\+06\)"):
        changed(path, NEW | {"bn.running_mean": np.full(4, 1e6)})
    assert [file.name for file in tmp_path.iterdir()] == ["m.pt"]


def test_of_averaged_and_plain_weights_those_that_were_read_change_and_it_is_said(tmp_path):
    ema = {name: value.clone() for name, value in STATE.items()}
    plain = {name: value.clone() for name, value in STATE.items()}
    out, notes = changed(write(tmp_path / "m.pt", {"state_dict": plain, "state_dict_ema": ema}))
    stored = torch.load(out, weights_only=True)
    assert stored["state_dict_ema"]["bn.running_mean"].tolist() == NEW["bn.running_mean"].tolist()
    assert torch.equal(stored["state_dict"]["bn.running_mean"], STATE["bn.running_mean"])
    assert notes == (note("entries-unchanged", entry="state_dict_ema", others=["state_dict"]),)


def test_an_entry_that_holds_the_same_tensors_stays_as_it_was(tmp_path):
    for name, other in (("a", STATE), ("b", dict(STATE))):
        out, notes = changed(write(tmp_path / f"{name}.pt", {"state_dict": STATE, "best": other}))
        stored = torch.load(out, weights_only=True)
        assert torch.equal(stored["best"]["bn.running_mean"], STATE["bn.running_mean"])
        weights = (stored[entry]["last.weight"].untyped_storage().data_ptr() for entry in ("state_dict", "best"))
        assert next(weights) == next(weights)  # still stored once
        assert notes == (note("entries-unchanged", entry="state_dict", others=["best"]),)


# ── tensors that share memory ────────────────────────────────────────────────────────────────────────────────────────

MEAN, VAR = "bn.running_mean", "bn.running_var"


def one_for_both() -> dict:
    zeros = torch.zeros(4)
    return STATE | {MEAN: zeros, VAR: zeros}


def aliased_network() -> nn.Module:
    net = trained_small()
    net.bn.running_mean = net.bn.bias.data
    return net


def in_one_buffer(first: slice, second: slice) -> dict:
    buffer = torch.arange(12.0)
    return STATE | {MEAN: buffer[first], VAR: buffer[second]}


SHARING = {
    "one tensor for two statistics": one_for_both,
    "one number for all channels": lambda: STATE | {MEAN: torch.zeros(1).expand(4)},
    "a bias that is a statistic": lambda: STATE | {MEAN: STATE["bn.bias"]},
    "a weight over a statistic": lambda: STATE | {VAR: (buffer := torch.arange(9.0))[::2][:4], "bn.bias": buffer[5:9]},
    "statistics that overlap": lambda: in_one_buffer(slice(0, 4), slice(3, 7)),
    "statistics side by side": lambda: in_one_buffer(slice(4, 8), slice(0, 4)),
    "a pickled network": aliased_network,
}


@pytest.mark.parametrize("legacy", [False, True], ids=["zip", "legacy"])
@pytest.mark.parametrize("kind", SHARING)
def test_a_tensor_that_shares_memory_with_a_statistic_stays_as_it_was(tmp_path, kind, legacy):
    holds = SHARING[kind]()
    out, _ = changed(write(tmp_path / "m.pt", holds, legacy=legacy))
    stored = flat(torch.load(out, weights_only=False))
    for path, value in flat(holds).items():
        name = path.removeprefix("/")
        assert torch.equal(stored[path], torch.from_numpy(NEW[name]).float() if name in NEW else value)


@pytest.mark.parametrize("first", [False, True])
def test_a_tensor_without_the_prefix_is_not_taken_for_one_of_the_network(tmp_path, first):
    stray = {MEAN: torch.full((4,), 7.0)}
    out, _ = changed(write(tmp_path / "m.pt", stray | prefixed("model.") if first else prefixed("model.") | stray))
    stored = torch.load(out, weights_only=True)
    assert stored[f"model.{MEAN}"].tolist() == NEW[MEAN].tolist()
    assert torch.equal(stored[MEAN], stray[MEAN])


def test_what_will_be_written_is_told_in_the_digits_of_the_file(tmp_path):
    path = write(tmp_path / "m.pt", {k: v.half() if v.is_floating_point() else v for k, v in STATE.items()})
    values = {MEAN: np.array([0.1, 1 / 3, 1e-9, -5.0])}
    stored = with_statistics(load_model(path, arch="nets.py:small", base=NETS).checkpoint, values).statistics
    assert stored[MEAN].tolist() == values[MEAN].astype(np.float16).astype(np.float64).tolist()


def test_what_stands_beside_the_weights_and_needs_trust_stays(tmp_path):
    path = write(tmp_path / "m.pt", {"state_dict": STATE, "hyper_parameters": Namespace(lr=Fraction(1, 3))})
    out, _ = changed(path)
    assert torch.load(out, weights_only=False)["hyper_parameters"] == Namespace(lr=Fraction(1, 3))


@pytest.mark.parametrize("legacy", [False, True], ids=["zip", "legacy"])
def test_arrays_of_numpy_beside_the_weights_stay_arrays(tmp_path, legacy):
    arrays = {
        "rng": np.arange(5, dtype=np.uint32),
        "names": np.array(["a", "b"], object),
        "big": np.eye(2, dtype=">f8"),
    }
    out, _ = changed(write(tmp_path / "m.pt", {"state_dict": STATE} | arrays, legacy=legacy))
    stored = torch.load(out, weights_only=False)
    for name, array in arrays.items():
        assert stored[name].dtype.newbyteorder("=") == array.dtype.newbyteorder("=")  # as numpy itself reads it
        np.testing.assert_array_equal(stored[name], array)


def test_a_file_that_changed_meanwhile_is_refused(tmp_path):
    path = write(tmp_path / "m.pt", STATE)
    loaded = load_model(path, arch="nets.py:small", base=NETS)
    write(path, trained_small(3).state_dict() | {"last.bias": torch.ones(3)})
    with pytest.raises(ModelError, match="has changed since it was read"):
        with_statistics(loaded.checkpoint, NEW)


def test_a_tensor_that_is_not_there_or_of_another_shape_is_one_message(tmp_path):
    path = write(tmp_path / "m.pt", STATE)
    with pytest.raises(ModelError, match=r"bn2.running_mean of the network is not a tensor of this file"):
        changed(path, {"bn2.running_mean": np.zeros(4)})
    with pytest.raises(ModelError, match=r"bn.running_mean is torch.float32 of shape \(4,\); expected .* shape \(5,\)"):
        changed(path, {"bn.running_mean": np.zeros(5)})
    with pytest.raises(ModelError, match=r"is torch\.int64 of shape"):
        changed(path, {"bn.num_batches_tracked": np.zeros(())})


def test_checkpoints_are_told_from_other_files_by_their_content(tmp_path):
    for legacy in (False, True):
        assert is_checkpoint(write(tmp_path / f"{legacy}.npz", STATE, legacy=legacy))
    save_file(STATE, tmp_path / "s")
    assert is_checkpoint(tmp_path / "s")
    np.savez(tmp_path / "data.pt", x=np.zeros(3))
    (tmp_path / "batch.pt").write_bytes(pickle.dumps({"data": b"x"}, protocol=2))
    (tmp_path / "run.pt").write_text("[model]\n")
    (tmp_path / "broken.pt").write_bytes(b"PK\x03\x04" + bytes(20))
    for name in ("data.pt", "batch.pt", "run.pt", "broken.pt", "absent.pt"):
        assert not is_checkpoint(tmp_path / name)
