"""bnuq from Python: the commands on a network and data in memory, and the forms of their results."""

from __future__ import annotations

import gc
import json
import re
from pathlib import Path
from typing import Any

import at_night
import numpy as np
import pytest
import small_run
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset
from written import folder_of

import bnuq
from bnuq.errors import BnuqError, DataError, ModelError, RequestError, ResultError
from bnuq.metrics import FEATURE_SCORES
from bnuq.store.table import rows_of

Arrays = tuple[np.ndarray, np.ndarray]
SETTINGS = {"samples": small_run.SAMPLES, "train_batch_size": 16, "methods": ("mcbn",)}
FEW = SETTINGS | {"limit": 8, "post_hoc": False}


folder = folder_of(small_run)


@pytest.fixture
def model(folder: Path) -> nn.Module:
    return bnuq.load(folder / "model.pt", arch=f"{folder}/net.py:net")


@pytest.fixture(scope="module")
def sets(folder: Path) -> dict[str, Any]:
    arrays = {}
    for name in ("train", "test", "other"):
        with np.load(folder / f"{name}.npz") as file:
            arrays[name] = dict(file)
    labelled = {name: (arrays[name]["x"], arrays[name]["y"]) for name in ("train", "test")}
    return labelled | {"ood": {"other": arrays["other"]["x"]}}


@pytest.fixture(scope="module")
def result(folder: Path, sets: dict[str, Any]) -> bnuq.Result:
    return bnuq.evaluate(bnuq.load(folder / "model.pt", arch=f"{folder}/net.py:net"), **sets, **SETTINGS)


def values(result: Any) -> dict[str, float]:
    return {row.path: row.estimate.value for row in rows_of(getattr(result, "record", result))}


def tensors(arrays: Arrays) -> tuple[Tensor, Tensor]:
    return torch.from_numpy(arrays[0]), torch.from_numpy(arrays[1])


FORMS = {
    "tensors": tensors,
    "dictionary": lambda arrays: {"x": arrays[0], "y": arrays[1]},
    "Dataset": lambda arrays: TensorDataset(*tensors(arrays)),
    "DataLoader": lambda arrays: DataLoader(TensorDataset(*tensors(arrays)), batch_size=7),
    "list of batches": lambda arrays: [(arrays[0][:50], arrays[1][:50]), (arrays[0][50:], arrays[1][50:])],
}


def test_a_network_in_memory_scores_as_its_checkpoint_does(folder: Path, result: bnuq.Result) -> None:
    assert values(result) == values(small_run.evaluated(folder, out=str(folder / "command.h5"), methods=("mcbn",)))


@pytest.mark.parametrize("form", at_night.but({"dictionary", "Dataset"}, FORMS))
def test_every_form_of_the_same_data_gives_the_same_estimates(form, model, sets, result):
    in_form = {name: FORMS[form](sets[name]) for name in ("train", "test")}
    other = bnuq.evaluate(model, **in_form, ood={"other": torch.from_numpy(sets["ood"]["other"])}, **SETTINGS)
    fitted = [path for path in values(result) if form == "Dataset" and set(path.split("/")) & {*FEATURE_SCORES}]
    assert values(other) | dict.fromkeys(fitted) == values(result) | dict.fromkeys(fitted), (
        "but for what is fitted to a part"
    )


def test_references_and_data_in_memory_go_together(folder, sets, result, monkeypatch):
    monkeypatch.chdir(folder)
    for given in ({"test": sets["test"]}, {"ood": ["other=other.npz"]}):
        assert values(bnuq.evaluate("run.toml", **given, methods=("mcbn",))) == values(result)


def test_the_network_is_left_as_it_was(model: nn.Module, sets: dict[str, Any]) -> None:
    model.train()
    model[1].eval()  # type: ignore
    modes = [module.training for module in model.modules()]
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    generator = torch.get_rng_state()
    bnuq.evaluate(model, **sets, **FEW)
    with pytest.raises(DataError):
        bnuq.evaluate(model, train=sets["train"], test=(sets["test"][0], sets["test"][1] + 7))
    assert [module.training for module in model.modules()] == modes
    assert all(torch.equal(tensor, state[name]) for name, tensor in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), generator)


@pytest.mark.parametrize("dtype", at_night.but({torch.float64}, [torch.float64, torch.bfloat16]))
def test_a_network_keeps_its_precision(dtype: torch.dtype, model: nn.Module, sets: dict[str, Any]) -> None:
    wide = bnuq.evaluate(model.to(dtype), **sets, **FEW)
    assert wide.sampling["precision"] == ("float64" if dtype == torch.float64 else "float32")
    assert {tensor.dtype for tensor in model.parameters()} == {dtype}
    assert bnuq.evaluate(model, **sets, **FEW, precision="float64").sampling["precision"] == "float64"
    assert {tensor.dtype for tensor in model.parameters()} == {dtype}


def test_a_network_of_two_precisions_keeps_both(model: nn.Module, sets: dict[str, Any]) -> None:
    model[1].double()  # type: ignore
    bnuq.evaluate(model, **sets, **FEW)
    assert {tensor.dtype for tensor in model.parameters()} == {torch.float32, torch.float64}


def test_a_wrapped_network_is_the_network_inside(model: nn.Module, sets: dict[str, Any], result: bnuq.Result) -> None:
    assert values(bnuq.evaluate(nn.DataParallel(model), **sets, **SETTINGS)) == values(result)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"sampels": 3}, RequestError, "sampels is not a setting. Did you mean samples?"),
        ({"test": None}, RequestError, r"missing: test=…"),
        ({"test": None, "train": None}, RequestError, r"missing: train=…, test=…"),
        ({"test": []}, DataError, "test: gave no examples"),
        ({"test": 3}, DataError, "test: gave a int; expected a torch Dataset or an iterable of batches"),
        ({"ood": {"test": np.zeros((3, 1, 6, 6), np.float32)}}, RequestError, "would be called 'test'"),
        ({"ood": {"other": np.zeros((3, 5), np.float32)}}, DataError, "examples of shape"),
        ({"train": (np.full((40, 1, 6, 6), np.nan, np.float32),)}, DataError, "holds NaN or infinity"),
    ],
    ids=["setting", "no test", "no sets", "empty", "number", "name", "shape", "NaN"],
)
def test_a_bad_request_is_one_message(changes, error, message, model, sets):
    with pytest.raises(error, match=message):
        bnuq.evaluate(model, **(sets | SETTINGS | changes))


def test_weights_that_diverged_are_named(model: nn.Module, sets: dict[str, Any]) -> None:
    with torch.no_grad():
        model[0].weight[0] = torch.nan  # type: ignore
    with pytest.raises(ModelError, match=r"Sequential: 0\.weight holds NaN or infinity; did the training diverge\?"):
        bnuq.evaluate(model, **sets)


def test_a_result_has_every_form(result: bnuq.Result, tmp_path: Path) -> None:
    path = result.path
    assert result.summary()["methods"]["mcbn"]["sets"]["test"].keys() >= {"accuracy", "pll", "mutual_information"}
    assert json.dumps(result.summary(), allow_nan=False)
    frame = result.to_pandas()
    assert len(frame) == len(values(result)) and {"method", "set", "metric", "value", "mc_se"} <= set(frame.columns)
    assert "methods" in result.to_xarray().children
    assert str(path) not in str(result) and "--full" in str(result)
    shown = result._repr_html_()
    assert "bnuq evaluate" in shown and "<table>" in shown and result.decisions[0]["text"].split("`")[0] in shown
    assert not re.search("<script|<iframe|<style|src=|href=", shown)
    parts = (result, result.record, result.methods, result.sets, result.findings, result.decisions[0]["values"])
    assert all(len(repr(part)) < 800 and "\n" not in repr(part) for part in parts)  # ten lines of a terminal
    assert result.figure(result.figures[0])._repr_svg_().endswith("</svg>\n")
    assert result.figure("reliability").save(tmp_path / "r.png").read_bytes()[:4] == b"\x89PNG"
    with pytest.raises(RequestError, match="there is no figure 'x'; this result has reliability"):
        result.figure("x")
    saved = bnuq.open(result.save(tmp_path / "kept.h5"))
    assert values(saved) == values(result) and saved.path == tmp_path / "kept.h5"
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(BnuqError, match=r"notes\.txt"):
        result.save(tmp_path / "notes.txt")
    with pytest.raises(ResultError):
        bnuq.open(tmp_path / "notes.txt")
    assert path.exists()


def test_a_temporary_file_goes_with_its_result(model: nn.Module, sets: dict[str, Any]) -> None:
    result = bnuq.evaluate(model, **sets, **FEW)
    folder = result.path.parent
    assert folder.exists()
    del result
    gc.collect()
    assert not folder.exists()


def test_a_named_file_is_what_the_command_writes(model, sets, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = bnuq.evaluate(model, **sets, **FEW, out="live.h5")
    assert result.path == tmp_path / "live.h5" and "report live.h5 --full" in str(result)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["live.h5"]


def test_the_points_of_a_result_are_a_data_frame(result: bnuq.Result, sets: dict[str, Any], tmp_path: Path) -> None:
    points = result.points()
    assert points["label"].tolist() == sets["test"][1].tolist() and points["index"].tolist() == list(range(len(points)))
    stored = result.methods["mcbn"].sets["other"].points["mutual_information"]
    again = bnuq.open(result.save(tmp_path / "again.h5"))
    assert again.points("other", method="mcbn")["mutual_information"].tolist() == stored.tolist()
    with pytest.raises(RequestError, match="the examples of 'svhn' are not in the result; expected one of test, other"):
        result.points("svhn")


def test_a_sweep_and_an_inspection_of_a_network_in_memory(model: nn.Module, sets: dict[str, Any]) -> None:
    sweep = bnuq.sweep_batch_size(model, **sets, batch_sizes=[8, 32], draw_sets=2, samples=3, train_points=20)
    assert [point.batch_size for point in sweep.points] == [8, 32] and "Use mini-batches of" in str(sweep)
    assert {"batch_size"} <= set(sweep.to_pandas().columns)
    inspection = bnuq.inspect(model, train=sets["train"], draws=8, points=40)
    assert [site["kind"] for site in inspection.summary()["sites"]] == ["batchnorm", "dropout"]
    assert "reference  train (in memory" in inspection.text(full=True)
    assert bnuq.inspect(model, input_shape=[1, 6, 6]).summary()["sites"] == inspection.summary()["sites"]


def test_statistics_and_samples_take_loaders(model: nn.Module, sets: dict[str, Any]) -> None:
    (train, _), (test, labels) = tensors(sets["train"]), tensors(sets["test"])
    omega = bnuq.draw(model, DataLoader(TensorDataset(train), batch_size=10), samples=3, batch_size=16)
    assert all(map(np.array_equal, omega.indices, bnuq.draw(model, train, samples=3, batch_size=16).indices))
    expected = bnuq.predict(model, test, omega)
    for data in (DataLoader(TensorDataset(test, labels), batch_size=9), TensorDataset(test, labels), test.numpy()):
        assert torch.equal(bnuq.predict(model, data, omega), expected)
    with pytest.raises(DataError, match="no inputs"):
        bnuq.predict(model, [], omega)


def test_a_setting_of_a_list_takes_a_single_text(model: nn.Module, sets: dict[str, Any]) -> None:
    assert list(bnuq.evaluate(model, **sets, **FEW | {"methods": "mcdo"}).methods) == ["deterministic", "mcdo"]


def test_labels_in_words_are_numbered_by_the_classes_that_are_named(model, sets, tmp_path):
    x, y = sets["test"]
    names, settings = ("pear", "apple", "fig"), {"methods": ("deterministic",), "post_hoc": False}
    numbers = bnuq.evaluate(model, test=(x, y), **settings)
    (tmp_path / "names.txt").write_text("\n".join(names))
    for classes in (names, list(names), tmp_path / "names.txt", str(tmp_path / "names.txt")):
        words = bnuq.evaluate(model, test=(x, np.array(names)[y]), classes=classes, **settings)
        assert words.sets["test"].classes == names
        assert words.sets["test"].sha256 == numbers.sets["test"].sha256
    with pytest.raises(DataError, match=r"test has the class 'fig', which data\.classes lacks"):
        bnuq.evaluate(model, test=(x, np.array(names)[y]), classes=["pear", "apple"], **settings)


def test_a_result_is_not_saved_under_the_name_of_a_report(result: bnuq.Result, tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"page\.h5\. `bnuq report` makes reports from it"):
        result.save(tmp_path / "page.html")
    assert not list(tmp_path.iterdir())
