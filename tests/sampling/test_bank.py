"""The bank: written and read back without loss, and nothing read that is no bank."""

from __future__ import annotations

from dataclasses import replace

import h5py
import numpy as np
import pytest
import torch
import zoo
from torch import nn

import bnuq
from bnuq import BatchStatistics
from bnuq.errors import ResultError
from bnuq.sampling import recording, statistics
from bnuq.sampling.batch_statistics import LayerStatistics


def drawn(dtype: torch.dtype = torch.float64) -> tuple[nn.Module, BatchStatistics]:
    net = zoo.made("2d", dtype)
    return net, bnuq.draw(net, zoo.points("2d", 30, dtype=dtype), samples=4, batch_size=8, seed=3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_saved_bank_comes_back_as_it_was(tmp_path, dtype):
    _, omega = drawn(dtype)
    omega.save(tmp_path / "bank.h5")
    again = BatchStatistics.load(tmp_path / "bank.h5")
    assert (again.fingerprint, again.batch_size, again.seed) == (omega.fingerprint, omega.batch_size, omega.seed)
    assert np.array_equal(again.indices, omega.indices)
    for one, two in zip(again.layers, omega.layers, strict=True):
        assert (one.name, one.eps) == (two.name, two.eps)
        for name in ("mean", "var", "count"):
            assert getattr(one, name).dtype == getattr(two, name).dtype
            assert np.array_equal(getattr(one, name), getattr(two, name))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_predictions_from_a_loaded_bank_are_bitwise_those_of_the_live_one(tmp_path, dtype):
    net, omega = drawn(dtype)
    x = zoo.points("2d", 5, seed=1, dtype=dtype)
    omega.save(str(tmp_path / "bank.h5"))
    assert torch.equal(
        bnuq.predict(net, x, BatchStatistics.load(str(tmp_path / "bank.h5"))), bnuq.predict(net, x, omega)
    )


def test_a_bank_of_chosen_batches_has_neither_seed_nor_rows(tmp_path):
    bnuq.statistics_of(zoo.made("2d"), [zoo.points("2d", 8)]).save(tmp_path / "bank.h5")
    again = BatchStatistics.load(tmp_path / "bank.h5")
    assert again.seed is None and again.indices is None and again.samples == 1


def test_h5py_alone_reads_a_bank(tmp_path):
    _, omega = drawn()
    omega.save(tmp_path / "bank.h5")
    with h5py.File(tmp_path / "bank.h5") as file:
        assert file.attrs["batch_size"] == 8 and file["indices"].shape == (4, 8)
        layer = file["layer000"]
        assert layer.attrs["name"] == "1" and layer.attrs["eps"] == 1e-5
        assert np.array_equal(layer["mean"][()], omega.layers[0].mean)
        assert [dim[0].name.rsplit("/")[-1] for dim in layer["var"].dims] == ["draw", "channel"]


def test_layers_keep_their_order_whatever_they_are_called(tmp_path):
    layers = tuple(
        LayerStatistics(name, 1e-5, np.zeros((2, 1)), np.ones((2, 1)), np.full(2, 4))
        for name in ("z", "a", "m#2", "m/é")
    )
    BatchStatistics(layers, "f", 4).save(tmp_path / "bank.h5")
    assert [m.name for m in BatchStatistics.load(tmp_path / "bank.h5").layers] == ["z", "a", "m#2", "m/é"]


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.99])
def test_a_bank_cut_short_is_refused(tmp_path, share):
    _, omega = drawn()
    omega.save(tmp_path / "bank.h5")
    data = (tmp_path / "bank.h5").read_bytes()
    (tmp_path / "cut.h5").write_bytes(data[: int(share * len(data))])
    with pytest.raises(ResultError, match=r"cut\.h5"):
        BatchStatistics.load(tmp_path / "cut.h5")


def test_what_is_no_bank_is_refused(tmp_path):
    (tmp_path / "text.h5").write_text("not a bank")
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["x"] = [1.0]
    with pytest.raises(ResultError, match="is not an HDF5 file"):
        BatchStatistics.load(tmp_path / "text.h5")
    with pytest.raises(ResultError, match=r"is not a bank of batch statistics; expected a file written by omega\.save"):
        BatchStatistics.load(tmp_path / "other.h5")
    with pytest.raises(ResultError):
        BatchStatistics.load(tmp_path / "missing.h5")


def replaced(key: str, value: object):
    def change(file: h5py.File) -> None:
        del file[key]
        file[key] = value

    return change


def emptied(file: h5py.File) -> None:
    for layer in ("layer000", "layer001"):
        for name in ("mean", "var", "count"):
            replaced(
                f"{layer}/{name}", np.zeros((0, 4) if name != "count" else 0, dtype=float if name != "count" else int)
            )(file)


DAMAGE = {
    "a mean that is missing": lambda f: f["layer000"].__delitem__("mean"),
    "an attribute that is missing": lambda f: f.attrs.__delitem__("fingerprint"),
    "no layers": lambda f: (f.__delitem__("layer000"), f.__delitem__("layer001")),
    "NaN": lambda f: f["layer001/mean"].__setitem__((0, 0), np.nan),
    "an infinite variance": lambda f: f["layer001/var"].__setitem__((0, 0), np.inf),
    "a negative variance": lambda f: f["layer001/var"].__setitem__((0, 0), -1.0),
    "other numbers of draws": replaced("layer001/mean", np.zeros((3, 5))),
    "other numbers of channels": replaced("layer001/mean", np.zeros((4, 6))),
    "a scalar": replaced("layer000/mean", 1.0),
    "a scalar count": replaced("layer000/count", 1),
    "a table of counts": replaced("layer000/count", np.ones((4, 2), dtype=int)),
    "text": replaced("layer000/mean", [["a"] * 4] * 4),
    "text in both": lambda f: [replaced(f"layer000/{n}", [["a"] * 4] * 4)(f) for n in ("mean", "var")],
    "complex numbers": lambda f: [replaced(f"layer000/{n}", np.ones((4, 4), complex))(f) for n in ("mean", "var")],
    "a group for an array": lambda f: (f.__delitem__("layer000/mean"), f.create_group("layer000/mean")),
    "an array for a group": replaced("layer000", np.zeros(3)),
    "an eps that is no number": lambda f: f["layer000"].attrs.__setitem__("eps", "small"),
    "a batch size that is no number": lambda f: f.attrs.__setitem__("batch_size", "many"),
    "a mark that is an array": lambda f: f.attrs.__setitem__("bnuq_bank", [1, 1]),
    "a newer mark": lambda f: f.attrs.__setitem__("bnuq_bank", 2),
    "a soft link": lambda f: f.__setitem__("layer002", h5py.SoftLink("/layer000")),
    "a link to another file": lambda f: f.__setitem__("layer002", h5py.ExternalLink("/etc/hostname", "/")),
    "no draws": emptied,
}  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_or_hostile_bank_is_refused_with_one_message(tmp_path, damage):
    _, omega = drawn()
    path = tmp_path / "bank.h5"
    omega.save(path)
    with h5py.File(path, "r+") as file:
        DAMAGE[damage](file)
    with pytest.raises(ResultError, match=r"bank\.h5"):
        BatchStatistics.load(path)


def test_a_bank_that_declares_terabytes_is_refused_before_it_is_read(tmp_path):
    _, omega = drawn()
    path = tmp_path / "bank.h5"
    omega.save(path)
    with h5py.File(path, "r+") as file:
        del file["layer000/mean"]
        file["layer000"].create_dataset("mean", shape=(2**20, 2**20), dtype="f8", chunks=(1, 2**10))
    assert path.stat().st_size < 2**20
    with pytest.raises(ResultError, match="declare"):
        BatchStatistics.load(path)


def test_an_existing_file_stays_where_saving_fails(tmp_path):
    _, omega = drawn()
    omega.save(tmp_path / "bank.h5")
    before = (tmp_path / "bank.h5").read_bytes()
    with pytest.raises(AttributeError):
        BatchStatistics((None,), "f", 4).save(tmp_path / "bank.h5")
    assert (tmp_path / "bank.h5").read_bytes() == before


def test_a_plan_that_is_kept_is_compiled_once_and_changes_no_bit(monkeypatch):
    net, batches = zoo.made("2d"), [zoo.points("2d", 8, seed=n) for n in range(3)]
    compiled = []
    monkeypatch.setattr(statistics, "record", lambda *given: compiled.append(1) or recording.record(*given))
    plans: statistics.Plans = {}
    for batch in batches:
        kept, alone = (bnuq.statistics_of(net, [batch], plans=given) for given in (plans, None))
        assert all(np.array_equal(a.var, b.var) for a, b in zip(kept.layers, alone.layers, strict=True))
    assert len(compiled) == 1 + len(batches) and all(program for program, _ in plans.values())


def test_pooled_statistics_are_those_of_all_batches_together():
    net = zoo.made("2d")
    batches = [zoo.points("2d", n, seed=n) for n in (5, 8, 3)]  # of different sizes
    pooled = bnuq.statistics_of(net, batches, layers="first:1").pooled().layers[0]
    whole = bnuq.statistics_of(net, [torch.cat(batches)], layers="first:1").layers[0]
    np.testing.assert_allclose(pooled.mean, whole.mean, rtol=1e-12)
    np.testing.assert_allclose(pooled.var, whole.var, rtol=1e-12)
    assert pooled.count.tolist() == whole.count.tolist() == [16 * 20]


def test_pooling_is_sound_in_float32_far_from_zero():
    mean = np.array([[1e4], [1e4 + 0.5]], dtype=np.float32)
    layer = LayerStatistics("bn", 1e-5, mean, np.full((2, 1), 1e-2, np.float32), np.array([4, 4]))
    assert BatchStatistics((layer,), "f", 4).pooled().layers[0].var[0, 0] == pytest.approx(1e-2 + 0.0625, rel=1e-3)


def test_a_pooled_bank_predicts_in_one_pass():
    net, omega = drawn()
    assert bnuq.predict(net, zoo.points("2d", 3), omega.pooled()).shape == (1, 3, 3)


def test_dead_channels_are_those_below_ten_eps_in_some_draw():
    var = np.array([[1.0, 9e-5, 2e-4, 0.0], [1.0, 1.0, 2e-4, 0.0]])
    assert LayerStatistics("bn", 1e-5, np.zeros((2, 4)), var, np.array([4, 4])).dead_channels == 2


def test_a_part_of_a_bank_keeps_its_rows():
    _, omega = drawn()
    part = omega[1:3]
    assert part.samples == 2 and np.array_equal(part.indices, omega.indices[1:3])
    assert np.array_equal(part.layers[1].var, omega.layers[1].var[1:3])


def test_one_draw_of_a_bank_is_a_bank():
    net, omega = drawn()
    assert [one.samples for one in omega] == [1] * 4
    assert np.array_equal(omega[-1].layers[1].var, omega.layers[1].var[3:])
    assert bnuq.predict(net, zoo.points("2d", 3), omega[0]).shape == (1, 3, 3)
    with pytest.raises(IndexError):
        omega[4]
    with pytest.raises(TypeError):
        omega["first"]


@pytest.mark.nightly  # a thousand layers
def test_more_than_a_thousand_layers_keep_their_order(tmp_path):
    names = [f"bn{number}" for number in range(1002)]
    one = LayerStatistics("", 1e-5, np.zeros((1, 1)), np.ones((1, 1)), np.full(1, 4))
    BatchStatistics(tuple(replace(one, name=name) for name in names), "f", 4).save(tmp_path / "bank.h5")
    assert [m.name for m in BatchStatistics.load(tmp_path / "bank.h5").layers] == names
