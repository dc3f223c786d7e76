"""A checkpoint with other statistics: the same file, byte by byte, but for them."""

from __future__ import annotations

import pickle
import zipfile
from argparse import Namespace
from pathlib import Path

import numpy as np
import pytest
import torch
from nets import trained_small
from safetensors import safe_open
from safetensors.torch import save_file
from torch import nn

from bnuq.errors import ModelError, ResultError
from bnuq.findings import note
from bnuq.models import saving
from bnuq.models.loading import load_model
from bnuq.models.saving import as_stored, is_checkpoint, write_statistics

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
    loaded = load_model(path, arch="nets.py:small", base=NETS, trust_pickle=True)
    return out, write_statistics(loaded.checkpoint, values, out)


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
    assert path.read_bytes() == before
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


def test_the_file_differs_in_the_bytes_of_the_statistics_and_their_checksums_alone(tmp_path):
    for legacy, more in ((True, 0), (False, 2 * 2 * 4)):
        path = write(tmp_path / f"m{legacy}.pt", STATE, legacy=legacy)
        out, _ = changed(path)
        old, new = (np.frombuffer(file.read_bytes(), dtype=np.uint8) for file in (path, out))
        assert len(old) == len(new)
        assert 0 < (old != new).sum() <= 2 * 4 * 4 + more


def test_the_index_of_the_file_with_its_devices_is_the_same_and_its_checksums_hold(tmp_path):
    path = write(tmp_path / "cpu.pt", STATE)
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(tmp_path / "m.pt", "w") as new:
        for member in old.namelist():  # without data descriptors, as other writers have it
            data = old.read(member)
            if member.endswith("data.pkl"):
                data = data.replace(b"X\x03\x00\x00\x00cpu", b"X\x06\x00\x00\x00cuda:0")
                assert b"cuda:0" in data
            new.writestr(member, data)
    out, _ = changed(tmp_path / "m.pt")
    with zipfile.ZipFile(out) as archive:
        assert archive.testzip() is None
        assert b"cuda:0" in archive.read("cpu/data.pkl")
    state = torch.load(out, map_location="cpu", weights_only=True)
    assert state["bn.running_mean"].tolist() == NEW["bn.running_mean"].tolist()


def test_safetensors_keep_their_header(tmp_path):
    save_file(STATE, tmp_path / "m.safetensors", metadata={"format": "pt", "who": "me"})
    out, _ = changed(tmp_path / "m.safetensors", out=tmp_path / "new.safetensors")
    with safe_open(out, framework="pt") as file:
        assert file.metadata() == {"format": "pt", "who": "me"}
        for name, value in STATE.items():
            expected = torch.from_numpy(NEW[name]).float() if name in NEW else value
            assert torch.equal(file.get_tensor(name), expected)


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


def test_an_entry_that_holds_the_same_tensors_changes_along_and_it_is_said(tmp_path):
    for name, other in (("a", STATE), ("b", dict(STATE))):
        _, notes = changed(write(tmp_path / f"{name}.pt", {"state_dict": STATE, "best": other}))
        assert notes == (note("entry-shared", shared="best", entry="state_dict"),)


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
    "one tensor for two statistics": (one_for_both, f"{MEAN} and {VAR}"),
    "one number for all channels": (lambda: STATE | {MEAN: torch.zeros(1).expand(4)}, f"the channels of {MEAN}"),
    "a bias that is a statistic": (lambda: STATE | {MEAN: STATE["bn.bias"]}, f"{MEAN} and bn.bias"),
    "a weight over a statistic": (
        lambda: (buffer := torch.arange(9.0)) is not None and STATE | {VAR: buffer[::2][:4], "bn.bias": buffer[5:9]},
        f"{VAR} and bn.bias",
    ),
    "statistics that overlap": (lambda: in_one_buffer(slice(0, 4), slice(3, 7)), f"{MEAN} and {VAR}"),
    "a pickled network": (aliased_network, f"{MEAN} and bn.bias"),
}


@pytest.mark.parametrize("legacy", [False, True], ids=["zip", "legacy"])
@pytest.mark.parametrize("kind", SHARING)
def test_a_statistic_that_shares_memory_with_what_is_to_be_something_else_is_refused(tmp_path, kind, legacy):
    holds, what = SHARING[kind]
    path = write(tmp_path / "m.pt", holds(), legacy=legacy)
    with pytest.raises(ModelError, match=rf"{what} share memory in the file, .* Save clones, \{{k: v.clone\(\) for"):
        changed(path)
    assert [file.name for file in tmp_path.iterdir()] == ["m.pt"]


@pytest.mark.parametrize("legacy", [False, True], ids=["zip", "legacy"])
def test_tensors_that_lie_side_by_side_or_between_each_other_are_no_matter(tmp_path, legacy):
    plain = {name: value.clone() for name, value in STATE.items()}
    for value in plain.values():
        value.zero_()
    buffer = torch.arange(12.0)
    between = STATE | {MEAN: buffer[0:8:2], VAR: buffer[1:8:2], "bn.bias": buffer[8:]}
    for number, holds in enumerate((plain, between, in_one_buffer(slice(4, 8), slice(0, 4)))):
        out, _ = changed(write(tmp_path / f"{number}.pt", holds, legacy=legacy))
        stored = torch.load(out, weights_only=True)
        for name, value in holds.items():
            expected = torch.from_numpy(NEW[name]).float() if name in NEW else value
            assert torch.equal(stored[name], expected)


def test_two_names_of_one_statistic_with_the_same_numbers_are_no_matter(tmp_path):
    path = write(tmp_path / "m.pt", STATE | {VAR: STATE[MEAN]})
    out, _ = changed(path, {MEAN: NEW[VAR], VAR: NEW[VAR]})
    assert torch.load(out, weights_only=True)[MEAN].tolist() == torch.from_numpy(NEW[VAR]).float().tolist()


@pytest.mark.parametrize("first", [False, True])
def test_a_tensor_without_the_prefix_is_not_taken_for_one_of_the_network(tmp_path, first):
    stray = {MEAN: torch.full((4,), 7.0)}
    holds = stray | prefixed("model.") if first else prefixed("model.") | stray
    out, _ = changed(write(tmp_path / "m.pt", holds))
    stored = torch.load(out, weights_only=True)
    assert stored[f"model.{MEAN}"].tolist() == NEW[MEAN].tolist()
    assert torch.equal(stored[MEAN], stray[MEAN])


def test_two_tensors_that_come_to_one_name_are_refused(tmp_path):
    path = write(tmp_path / "m.pt", prefixed("_orig_mod.") | {MEAN: torch.full((4,), 7.0)})
    with pytest.raises(ModelError, match=rf"_orig_mod.{MEAN} and {MEAN} are both {MEAN} of the network"):
        changed(path)


def beside_each_other(*, pickled: bool) -> object:
    """The mean, the bias and the variance of the BatchNorm in one storage, with a gap behind them."""
    buffer, net = torch.arange(16.0), trained_small()
    net.bn.running_mean, net.bn.running_var, net.bn.bias.data = buffer[:4], buffer[8:12], buffer[4:8]
    return net if pickled else net.state_dict()


@pytest.mark.parametrize("pickled", [False, True])
@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda at, data: (at + 32, data), "bn.running_mean"),
        (lambda at, data: (at, data + b"\1\1\1\1"), "bn.bias"),
    ],
    ids=["elsewhere", "too much"],
)
def test_a_copy_that_does_not_read_back_as_it_was_meant_is_removed(tmp_path, pickled, wrong, message, monkeypatch):
    right = saving._Target.pieces
    monkeypatch.setattr(saving, "_check_apart", lambda *_: None)
    monkeypatch.setattr(saving._Target, "pieces", lambda target: (wrong(*piece) for piece in right(target)))
    with pytest.raises(ModelError, match=rf"its copy does not read back as it was written \(.*{message}"):
        changed(write(tmp_path / "m.pt", beside_each_other(pickled=pickled)))
    assert [file.name for file in tmp_path.iterdir()] == ["m.pt"]


def test_the_copy_of_safetensors_is_held_against_what_was_there_before_it_was_written_to(tmp_path, monkeypatch):
    save_file(STATE, tmp_path / "m.safetensors")
    right = saving._Target.pieces
    monkeypatch.setattr(saving, "_check_apart", lambda *_: None)
    monkeypatch.setattr(saving._Target, "pieces", lambda target: ((at, data + b"\1") for at, data in right(target)))
    with pytest.raises(ModelError, match=r"its copy does not read back as it was written \(bn.weight\)"):
        changed(tmp_path / "m.safetensors", out=tmp_path / "new.safetensors")


def test_a_copy_whose_checksums_do_not_hold_is_removed(tmp_path, monkeypatch):
    monkeypatch.setattr(saving, "_write_checksum", lambda *_: None)
    with pytest.raises(ModelError, match=r"m.pt: its copy does not read back as it was written \(it seems damaged\)"):
        changed(write(tmp_path / "m.pt", STATE))
    assert [file.name for file in tmp_path.iterdir()] == ["m.pt"]


def test_what_will_be_written_is_told_in_the_digits_of_the_file(tmp_path):
    path = write(tmp_path / "m.pt", {k: v.half() if v.is_floating_point() else v for k, v in STATE.items()})
    values = {MEAN: np.array([0.1, 1 / 3, 1e-9, -5.0])}
    stored = as_stored(load_model(path, arch="nets.py:small", base=NETS).checkpoint, values)
    assert stored[MEAN].tolist() == values[MEAN].astype(np.float16).astype(np.float64).tolist()


class Loud:
    """Leaves a mark when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self):
        return Path.touch, (self.mark,)


def test_nothing_in_the_file_runs_once_more_and_what_needs_code_stays(tmp_path):
    holds = {"state_dict": STATE, "hyper_parameters": Namespace(lr=0.1), "loud": Loud(tmp_path / "mark")}
    path = write(tmp_path / "m.pt", holds)
    loaded = load_model(path, arch="nets.py:small", base=NETS, trust_pickle=True)
    (tmp_path / "mark").unlink()
    write_statistics(loaded.checkpoint, NEW, tmp_path / "new.pt")
    assert not (tmp_path / "mark").exists()
    assert torch.load(tmp_path / "new.pt", weights_only=False)["hyper_parameters"] == Namespace(lr=0.1)


def test_a_file_that_changed_meanwhile_is_refused(tmp_path):
    path = write(tmp_path / "m.pt", STATE)
    loaded = load_model(path, arch="nets.py:small", base=NETS)
    write(path, trained_small(3).state_dict() | {"last.bias": torch.ones(3)})
    with pytest.raises(ModelError, match="has changed since it was read"):
        write_statistics(loaded.checkpoint, NEW, tmp_path / "new.pt")


def test_a_file_that_changes_while_it_is_copied_is_refused(tmp_path, monkeypatch):
    path = write(tmp_path / "m.pt", STATE)
    loaded, new = load_model(path, arch="nets.py:small", base=NETS), saving.replaced

    def changing(out):
        write(path, STATE | {"last.bias": torch.ones(3)})  # into the very file, when it is open already
        return new(out)

    monkeypatch.setattr(saving, "replaced", changing)
    with pytest.raises(ModelError, match="has changed since it was read"):
        write_statistics(loaded.checkpoint, NEW, tmp_path / "new.pt")
    assert [file.name for file in tmp_path.iterdir()] == ["m.pt"]


def test_a_tensor_that_is_not_there_or_of_another_shape_is_one_message(tmp_path):
    path = write(tmp_path / "m.pt", STATE)
    with pytest.raises(ModelError, match=r"bn2.running_mean of the network is not a tensor of this file"):
        changed(path, {"bn2.running_mean": np.zeros(4)})
    with pytest.raises(ModelError, match=r"bn.running_mean is of shape \(4,\); expected .* shape \(5,\)"):
        changed(path, {"bn.running_mean": np.zeros(5)})
    with pytest.raises(ModelError, match="is of another type"):
        changed(path, {"bn.num_batches_tracked": np.zeros(())})


def test_where_nothing_can_be_written_nothing_is(tmp_path):
    path = write(tmp_path / "m.pt", STATE)
    with pytest.raises(ResultError, match="its folder does not exist"):
        changed(path, out=tmp_path / "absent" / "new.pt")
    assert [file.name for file in tmp_path.iterdir()] == ["m.pt"]


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
