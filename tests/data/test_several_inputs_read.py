"""Several inputs, in the forms that data in memory, factories and files have."""

from __future__ import annotations

from collections import UserDict
from pathlib import Path

import h5py
import numpy as np
import pytest
import scipy.io
import torch
from several_inputs import sentences
from torch.utils.data import DataLoader, TensorDataset

from bnuq.data import Decoded, labelled, load_points, points_in_memory
from bnuq.errors import DataError
from bnuq.packing import pack

INPUTS, LABELS = sentences(10)
IDS, MASK = INPUTS.values()
BY_NAME, BY_PLACE = "input_ids (6,) int64, attention_mask (6,) int64", "(6,) int64, (6,) int64"


class Items:
    """A Dataset of items that are made one by one."""

    def __init__(self, make) -> None:
        self.make = make

    def __len__(self) -> int:
        return len(LABELS)

    def __getitem__(self, index: int):
        return self.make(index)


def named(index: int) -> dict:
    return {name: torch.from_numpy(values[index]) for name, values in INPUTS.items()}


FORMS = {
    "whole arrays by name": lambda: (INPUTS, LABELS),
    "one dictionary of arrays": lambda: {**INPUTS, "labels": LABELS},
    "a dictionary as x": lambda: {"x": INPUTS, "y": LABELS},
    "items": lambda: Items(lambda i: (named(i), LABELS[i])),
    "items as Hugging Face has them": lambda: Items(lambda i: UserDict({**named(i), "labels": int(LABELS[i])})),
    "a list of items": lambda: [(named(i), int(LABELS[i])) for i in range(10)],
    "a list of dictionaries": lambda: [{**named(i), "label": int(LABELS[i])} for i in range(10)],
    "lists of numbers": lambda: Items(lambda i: ({"input_ids": IDS[i].tolist(), "attention_mask": MASK[i]}, LABELS[i])),
    "a loader": lambda: DataLoader([(named(i), int(LABELS[i])) for i in range(10)], batch_size=4),
    "a loader of dictionaries": lambda: DataLoader([{**named(i), "label": LABELS[i]} for i in range(10)], batch_size=4),
    "whole arrays": lambda: ((IDS, MASK), LABELS),
    "three arrays": lambda: (IDS, MASK, LABELS),
    "three tensors": lambda: TensorDataset(*map(torch.from_numpy, (IDS, MASK, LABELS))),
    "pairs": lambda: Items(lambda i: ((IDS[i], MASK[i]), LABELS[i])),
    "a loader of pairs": lambda: DataLoader([((IDS[i], MASK[i]), LABELS[i]) for i in range(10)], batch_size=4),
    "a loader of three": lambda: DataLoader([(IDS[i], MASK[i], LABELS[i]) for i in range(10)], batch_size=4),
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("whole", [True, False])
def test_every_form_gives_the_same_points(form, whole):
    points = labelled(points_in_memory(FORMS[form](), name="test", whole=whole))
    assert points.form in (BY_NAME, BY_PLACE)
    np.testing.assert_array_equal(points.inputs[:], pack(INPUTS, "")[0])
    assert points.targets is not None and points.targets.tolist() == LABELS.tolist()


def test_a_dataset_that_is_not_read_whole_stays_unread():
    data = Items(lambda i: (named(i), LABELS[i]))
    assert isinstance(points_in_memory(data, name="train", whole=False).inputs, Decoded)


def test_labels_may_be_missing_and_one_entry_of_a_dictionary_is_the_input_itself():
    assert points_in_memory(dict(INPUTS), name="test").targets is None
    assert points_in_memory(Items(named), name="test").targets is None
    points = points_in_memory(Items(lambda _: {"image": np.ones((3, 4, 4), np.uint8), "label": 1}), name="test")
    assert (points.layout, points.point_shape) == (None, (3, 4, 4))


def test_a_number_behind_the_label_is_no_input_and_a_note_says_so():
    for data in (
        TensorDataset(torch.ones(4, 2), torch.ones(4), torch.arange(4)),
        [(np.ones((4, 2)), LABELS[:4], [5] * 4)],
    ):
        points = points_in_memory(data, name="test")
        assert points.layout is None and [f.values for f in points.findings if f.code == "parts-unused"] == [
            {"parts": 1}
        ]


@pytest.mark.parametrize("form", ["items", "loader", "arrays"])
def test_texts_and_numbers_of_points_in_a_dictionary_are_no_inputs_and_a_note_names_them(form):
    def item(index: int) -> dict:
        return {"image": IDS[index], "label": LABELS[index], "path": f"{index}.png", "sample_id": index}

    paths = [f"{index}.png" for index in range(10)]
    data = {
        "items": Items(item),
        "loader": DataLoader([item(index) for index in range(10)], batch_size=4),
        "arrays": {"image": IDS, "label": LABELS, "path": paths, "sample_id": np.arange(10)},
    }[form]
    for whole in (True, False):
        points = labelled(points_in_memory(data, name="test", whole=whole))
        assert points.layout is None and np.array_equal(points.inputs[:], IDS)
        assert points.targets is not None and points.targets.tolist() == LABELS.tolist()
        unused = [finding.values for finding in points.findings if finding.code == "entries-unused"]
        assert unused == [{"names": ["path", "sample_id"]}]
    pairs = [({"a": IDS[index], "b": MASK[index], "path": "p"}, LABELS[index]) for index in range(10)]
    assert points_in_memory(pairs, name="test").form == "a (6,) int64, b (6,) int64"


def test_a_batch_that_is_a_list_of_pictures_is_one_input():
    pictures = np.ones((5, 3, 4, 4), np.float32)
    batches = [([*pictures[:2]], LABELS[:2]), ([*pictures[2:]], LABELS[2:5])]
    assert points_in_memory(batches, name="test").point_shape == (3, 4, 4)


@pytest.mark.parametrize("kind", ["npz", "h5", "mat"])
def test_files_name_their_inputs_with_a_plus(kind, tmp_path: Path):
    path, arrays = tmp_path / f"file.{kind}", {**INPUTS, "labels": LABELS}
    if kind == "npz":
        np.savez(path, **arrays)
    elif kind == "mat":
        scipy.io.savemat(path, arrays)
    else:
        with h5py.File(path, "w") as file:
            for name, values in arrays.items():
                file[f"test/{name}"] = values
    group = "/test/" if kind == "h5" else ""
    points = load_points(f"{path}:{group}input_ids+{group}attention_mask,{group}labels")
    assert points.form == BY_NAME
    np.testing.assert_array_equal(points.inputs[:], pack(INPUTS, "")[0])
    assert points.targets is not None and points.targets.tolist() == LABELS.tolist()
    with pytest.raises(DataError, match=r"holds nothing called 'mask'.*several inputs are A\+B"):
        load_points(f"{path}:{group}input_ids+mask,{group}labels")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (({"a": IDS, "b": MASK[:7]}, LABELS), "different numbers of examples .*a 10, b 7"),
        ({"a": IDS, "b": np.full((10, 2), np.nan), "y": LABELS}, "input b holds NaN or infinity, first in row 0"),
        (
            {"a": IDS, "when": np.zeros(10, "datetime64[D]"), "y": LABELS},
            r"input when holds datetime64\[D\] values; exp",
        ),
        (
            Items(lambda i: ({"a": IDS[i], "b": IDS[i][: 1 + i % 5]}, 0)),
            r"gives b \(2,\) int64, where the others have b",
        ),
        (Items(lambda _: {"a": [[1], [1, 2]], "b": 1, "y": 0}), "input a is not an array of numbers of one shape; pad"),
        (Items(lambda i: {"a": IDS[i], "b": MASK[i], **({"c": 1} if i else {}), "y": 0}), "no further input|c \\(\\)"),
        ({"a": IDS, "b": np.zeros((10, 0)), "y": LABELS}, r"input b has shape \(10, 0\)"),
    ],
)
def test_what_cannot_be_packed_is_one_error_that_names_the_input(data, message):
    for whole in (True, False):
        with pytest.raises(DataError, match=message):
            labelled(points_in_memory(data, name="test", whole=whole))
