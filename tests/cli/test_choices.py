"""Options that choose among what a file holds (--entry, --target), and what the record keeps of all new ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bnuq.config import Options, resolve
from bnuq.data import load_points
from bnuq.errors import DataError, ModelError
from bnuq.evaluation.setup import threads
from bnuq.models.checkpoint import read_checkpoint

TINY = ("--limit", "20", "-T", "2", "--method", "mcbn", "-b", "8")
FIRST, SECOND = {"w": torch.ones(2, 2)}, {"w": torch.zeros(2, 2)}


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    holds = {"model": FIRST, "model_ema": SECOND, "teacher": {"state_dict": FIRST}, "a.b": SECOND, "epoch": 3}
    torch.save(holds, tmp_path / "m.pt")
    return tmp_path / "m.pt"


@pytest.mark.parametrize(
    ("entry", "key", "state"),
    [(None, "model_ema", SECOND), ("model", "model", FIRST), ("model_ema", "model_ema", SECOND),
     ("teacher", "teacher.state_dict", FIRST), ("teacher.state_dict", "teacher.state_dict", FIRST),
     ("a.b", "a.b", SECOND)],
)  # fmt: skip
def test_an_entry_is_the_one_that_is_named(checkpoint: Path, entry: str | None, key: str, state: Any) -> None:
    read = read_checkpoint(checkpoint, entry=entry)
    assert read.key == key and read.state is not None and torch.equal(read.state["w"], state["w"])


@pytest.mark.parametrize("entry", ["ema", "epoch", "model.w", "teacher.model", "", "x" * 5000])
def test_an_entry_without_weights_is_told_with_those_that_have_some(checkpoint: Path, entry: str) -> None:
    with pytest.raises(
        ModelError, match="holds no weights; the entries with weights are model, model_ema, teacher, a"
    ) as told:
        read_checkpoint(checkpoint, entry=entry)
    assert len(str(told.value)) < 600


def test_a_file_without_entries_says_so(tmp_path: Path) -> None:
    torch.save(FIRST, tmp_path / "flat.pt")
    with pytest.raises(ModelError, match=r"is 'ema', which holds no weights; the file is a single state dict.*leave"):
        read_checkpoint(tmp_path / "flat.pt", entry="ema")


def test_several_state_dicts_ask_for_the_entry(tmp_path: Path) -> None:
    torch.save({"student": FIRST, "teacher": SECOND}, tmp_path / "m.pt")
    with pytest.raises(ModelError, match=r"Name it with --entry student, or under .model.: entry = "):
        read_checkpoint(tmp_path / "m.pt")


def test_population_statistics_go_into_the_entry_that_is_named(cli: Any, small: Path) -> None:
    weights = torch.load(small / "model.pt", weights_only=True)
    averaged = {name: value.clone() for name, value in weights.items()}
    torch.save({"model": weights, "model_ema": averaged}, small / "model.pt")
    assert cli("precise-bn", "run.toml", "--entry", "model", "-o", "new.pt").code == 0
    before, after = (torch.load(small / name, weights_only=True) for name in ("model.pt", "new.pt"))
    mean = "1.running_mean"
    assert not torch.equal(after["model"][mean], before["model"][mean])
    assert torch.equal(after["model_ema"][mean], before["model_ema"][mean])


def table(folder: Path, name: str, header: str, rows: int = 4) -> Path:
    columns = header.count(",") + 1
    lines = [",".join(str(10 * row + column) for column in range(columns)) for row in range(rows)]
    (folder / name).write_text("\n".join([header, *lines]))
    return folder / name


@pytest.mark.parametrize(
    ("header", "target", "column"),
    [("a,label,b", None, 1), ("a,b,c", None, 2), ("a,b,c", "a", 0), ("a,label,b", "b", 2), ("label,y,a", "y", 1)],
)
def test_the_target_is_the_column_that_is_named(tmp_path: Path, header: str, target: str | None, column: int) -> None:
    points = load_points(str(table(tmp_path, "t.csv", header)), target=target)
    assert points.targets is not None
    assert points.targets.ravel().tolist() == [column, 10 + column, 20 + column, 30 + column]
    assert points.point_shape == (2,)


def test_columns_that_may_all_be_the_target_ask_for_its_name(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"'label', 'class' all have the name of a target.* --target COLUMN"):
        load_points(str(table(tmp_path, "t.csv", "label,class,a")))


def test_a_target_that_is_no_column_lists_the_columns(tmp_path: Path) -> None:
    path = table(tmp_path, "t.csv", "a,b,b")
    with pytest.raises(DataError, match="has 0 columns called 'c'; expected one of 'a', 'b', 'b'"):
        load_points(str(path), target="c")
    with pytest.raises(DataError, match="has 2 columns called 'b'"):
        load_points(str(path), target="b")
    assert load_points(str(path), target="c", ood=True).targets is None  # an OOD set needs none
    assert load_points(str(path), target="c", ood=True).point_shape == (3,)


def test_every_new_option_is_recorded_and_repeated(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text('[model]\ncheckpoint = "m.pt"\n')
    given = {"task": "regression", "train_batch_size": 32, "entry": "model", "train_size": 500, "target": "price",
             "channel_order": "bgr", "threads": 2}  # fmt: skip
    record = resolve("run.toml", Options(given), folder=tmp_path).record()
    assert given.items() <= {key: value for section in record.values() for key, value in section.items()}.items()


@pytest.mark.usefixtures("small")
@pytest.mark.nightly
def test_threads_are_those_of_the_option_inside_a_command_alone(cli: Any) -> None:
    before = torch.get_num_threads()
    with threads(before + 1):
        assert torch.get_num_threads() == before + 1
    with threads(None):
        assert torch.get_num_threads() == before
    done = cli("evaluate", "run.toml", *TINY, "--threads", "1", "-o", "a.h5", "--json")
    assert done.code == 0 and torch.get_num_threads() == before
    again = cli("evaluate", "run.toml", *TINY, "-o", "b.h5", "--json")
    values = [json.loads(out)["methods"]["mcbn"]["sets"]["test"]["pll"]["value"] for out in (done.out, again.out)]
    assert np.isclose(*values)
    assert cli("evaluate", "run.toml", "--threads", "0").message.startswith("--threads is 0; expected a whole number")
