"""A class has one number in all sets of a run, by its name."""

import io
import tarfile
import zipfile
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from findings_of import noted, values_of
from hypothesis import given
from hypothesis import strategies as st
from making_points import png

from bnuq.data import in_one_numbering, load_points, natural_order, points_in_memory, points_of
from bnuq.data.points import Contents
from bnuq.errors import DataError

TRAIN = ("blue", "green", "red", "white")


def named(labels, classes, *, name="test", is_sorted=True):
    labels = np.asarray(labels)
    contents = Contents(np.zeros((len(labels), 2)), labels, classes=tuple(classes), classes_sorted=is_sorted)
    return points_of(contents, name=name, reference=f"{name}.npz")


def refusal(classes=None, **sets) -> str:
    with pytest.raises(DataError) as error:
        in_one_numbering(sets, classes)
    return str(error.value)


@given(st.data())
@pytest.mark.nightly
def test_a_class_keeps_the_number_it_has_in_train(data):
    names = data.draw(st.lists(st.text(min_size=1), min_size=1, max_size=6, unique=True))
    part = sorted(data.draw(st.lists(st.sampled_from(names), min_size=1, unique=True)))
    words = data.draw(st.lists(st.sampled_from(part), min_size=1))
    train = named(range(len(names)), names, name="train", is_sorted=False)
    test = named([part.index(word) for word in words], part)
    sets = in_one_numbering({"train": train, "test": test, "validation": None})
    assert [names[label] for label in sets["test"].targets] == words
    assert sets["test"].classes == tuple(names)
    assert sets["train"].sha256 == train.sha256
    assert sets["validation"] is None


def test_a_set_with_the_numbers_of_train_is_as_it_was():
    train, test = named([0, 1, 2, 3], TRAIN, name="train"), named([0, 1, 1], TRAIN[:2])
    sets = in_one_numbering({"train": train, "test": test})
    assert sets["test"].targets is test.targets
    assert sets["test"].sha256 == test.sha256
    assert sets["test"].classes == TRAIN  # as the network's outputs
    assert noted(sets["test"]) == noted(sets["train"]) == noted(train)


def test_a_set_in_which_a_class_is_missing_says_the_numbers_of_its_classes():
    test = named([0, 1, 2, 2], ("green", "red", "white"))
    renumbered = in_one_numbering({"train": named([0, 1, 2, 3], TRAIN, name="train"), "test": test})["test"]
    assert renumbered.targets.tolist() == [1, 2, 3, 3]
    values = values_of(renumbered, "classes-by-name")
    assert values == {"numbers": {"green": 1, "red": 2, "white": 3}, "source": "train (train.npz)"}


def test_a_class_that_train_lacks_is_refused_with_the_names_of_both():
    message = refusal(train=named([0, 1, 2, 3], TRAIN, name="train"), test=named([0, 1], ("red", "zebra")))
    assert message.startswith("test.npz: test has the class 'zebra', which train (train.npz) lacks.")
    assert "the names of test are red, zebra; those of train (train.npz) are blue, green, red, white." in message
    assert "classes = [...]" in message
    many = [f"{number:04}" for number in range(1000)]
    message = refusal(train=named(range(1000), many, name="train"), test=named([0, 1], ("0001", "1000")))
    assert "0000, 0001" in message
    assert "0019 and 980 more" in message
    assert len(message) < 1000
    unused = named([0, 0], ("red", "zebra"), is_sorted=False)  # no point is a zebra
    sets = in_one_numbering({"train": named([0, 1, 2, 3], TRAIN, name="train"), "test": unused})
    assert sets["test"].targets.tolist() == [2, 2]


def test_without_names_in_train_the_set_with_most_names_numbers_the_others():
    train = points_of(Contents(np.zeros((2, 2)), np.array([0, 1])), name="train", reference="train.npz")
    test, validation = named([0, 1, 2], ("green", "red", "white")), named([0, 3], TRAIN, name="validation")
    sets = in_one_numbering({"train": train, "test": test, "validation": validation})
    assert sets["test"].targets.tolist() == [1, 2, 3]
    assert values_of(sets["validation"], "class-numbers") == {"names": list(TRAIN)}
    assert values_of(sets["test"], "classes-by-name")["source"] == "validation (validation.npz)"
    assert sets["train"] is train
    assert values_of(in_one_numbering({"test": test})["test"], "class-numbers") == {"names": ["green", "red", "white"]}
    given_numbers = named([0, 1], ("white", "red"), is_sorted=False)
    assert noted(in_one_numbering({"test": given_numbers})["test"]) == noted(given_numbers)


def test_fewer_names_than_numbers_in_train_are_refused_with_both_unless_they_are_listed():
    train = points_of(Contents(np.zeros((5, 2)), np.array([0, 1, 2, 3, 1])), name="train", reference="train.npz")
    test = named([0, 1, 2], ("green", "red", "white"))
    message = refusal(train=train, test=test)
    assert message.startswith("train.npz: train numbers 4 classes, 0, 1, 2, 3, and test (test.npz) names only 3,")
    assert "green, red, white: which number each name has is not known." in message and "classes = [...]" in message
    assert in_one_numbering({"train": train, "test": test}, TRAIN)["test"].targets.tolist() == [1, 2, 3]
    assert in_one_numbering({"train": train, "test": named([0, 3], TRAIN)})["test"].targets.tolist() == [0, 3]
    fractions = replace(train, targets=np.array([0.5, 1.5, 2.5, 3.5, 4.5]))
    assert in_one_numbering({"train": fractions, "test": test})["train"] is fractions


def test_listed_classes_number_every_set_and_name_those_without_names():
    train, test = named([0, 1, 2], ("1", "10", "2"), name="train"), named([0, 1], ("10", "2"))
    bare = points_of(Contents(np.zeros((2, 2)), np.array([0, 2])), name="validation", reference="v.npz")
    sets = in_one_numbering({"train": train, "test": test, "validation": bare}, ("1", "2", "10"))
    assert [points.targets.tolist() for points in sets.values()] == [[0, 2, 1], [2, 1], [0, 2]]
    assert [points.classes for points in sets.values()] == [("1", "2", "10")] * 3
    assert "class-order" not in noted(sets["train"])
    message = refusal(("1", "2"), train=train)
    assert "train has the class '10', which data.classes lacks" in message
    assert "names of train are 1, 10, 2; those of data.classes are 1, 2." in message
    assert refusal(("1", "2", "1"), train=train).startswith("data.classes names '1' twice")
    assert refusal((), train=train).startswith("data.classes names no class")


def test_numbers_sorted_as_texts_and_by_value_are_both_shown():
    train = in_one_numbering({"train": named([0, 1, 2, 3], ("1", "10", "2", "9"), name="train")})["train"]
    assert values_of(train, "class-order") == {"names": ["1", "10", "2", "9"], "natural": ["1", "2", "9", "10"]}
    assert train.targets.tolist() == [0, 1, 2, 3]
    assert natural_order(["Zebra", "ape", "n10", "n9", "n09"]) == ["ape", "n9", "n09", "n10", "Zebra"]
    assert natural_order(["9" * 9999, "8" * 9999]) == ["8" * 9999, "9" * 9999]
    assert "class-order" not in noted(in_one_numbering({"train": named([0], ("10", "9"), is_sorted=False)})["train"])


def test_masks_one_hot_rows_and_columns_of_labels_are_renumbered_too():
    sky = named(np.array([[[0, 1], [1, 255]]] * 2), ("sky", "road"), is_sorted=False)
    train = named([0, 1], ("road", "sky"), name="train")
    masks = in_one_numbering({"train": train, "test": sky})["test"]
    assert masks.masks[:].tolist() == [[[1, 0], [0, 255]]] * 2
    assert masks.subset([1]).masks[:].tolist() == [[[1, 0], [0, 255]]]
    assert masks.sha256 == named(np.array([[[1, 0], [0, 255]]] * 2), ("road", "sky")).sha256 != sky.sha256
    void = named(np.array([[[0, 1], [1, 2]]] * 2), ("sky", "road", "void"), is_sorted=False)
    ignored = in_one_numbering({"train": train, "test": void}, ignore=2)["test"]
    assert ignored.masks[:].tolist() == [[[1, 0], [0, 2]]] * 2
    rows = named(np.array([[1.0, 0], [1, 1]]), ("sky", "road"), is_sorted=False)
    assert in_one_numbering({"train": train, "test": rows})["test"].targets.tolist() == [[0, 1], [1, 1]]
    column = named(np.array([[0.0], [1.0]]), ("sky", "road"), is_sorted=False)
    assert in_one_numbering({"train": train, "test": column})["test"].targets.tolist() == [[1], [0]]
    assert "has the label 2, which is none of its 2 classes" in refusal(
        train=train, test=named([0, 2], ("sky", "road"))
    )


def write_pictures(path, names):
    """A picture in each class folder, as a folder, a zip or a tar."""
    members = {f"{name}/0.png": png(np.full((2, 2), 9, np.uint8)) for name in names}
    if path.suffix == ".zip":
        with zipfile.ZipFile(path, "w") as archive:
            for name, data in members.items():
                archive.writestr(name, data)
    elif path.suffix == ".tar":
        with tarfile.open(path, "w") as archive:
            for name, data in members.items():
                info = tarfile.TarInfo(name)
                info.size = len(data)
                archive.addfile(info, io.BytesIO(data))
    else:
        for name, data in members.items():
            (path / name).parent.mkdir(parents=True)
            (path / name).write_bytes(data)


def write_table(path, names):
    columns = {"a": [0.5] * len(names), "label": list(names)}
    if path.suffix == ".csv":
        path.write_text("a,label\n" + "".join(f"0.5,{name}\n" for name in names))
    elif path.suffix == ".parquet":
        pq.write_table(pa.table({"a": columns["a"], "label": pa.array(names).dictionary_encode()}), path)
    elif path.suffix == ".txt":
        write_pictures(path.with_suffix(""), names)
        path.write_text("".join(f"{path.stem}/{name}/0.png {name}\n" for name in names))
    else:
        np.savez(path, x=np.zeros((len(names), 2)), y=np.arange(len(names)), classes=np.array(names))


@pytest.mark.parametrize("form", ["", ".zip", ".tar", ".csv", ".parquet", ".txt", ".npz"])
def test_a_test_set_without_a_class_has_the_labels_of_train_in_every_form(tmp_path, form):
    write = write_pictures if form in ("", ".zip", ".tar") else write_table
    sets = {}
    for name, classes in (("train", TRAIN), ("test", TRAIN[1:])):
        write(tmp_path / f"{name}{form}", classes)
        sets[name] = load_points(f"{name}{form}", base=tmp_path, name=name)
    assert [points.targets.tolist() for points in in_one_numbering(sets).values()] == [[0, 1, 2, 3], [1, 2, 3]]


@pytest.mark.parametrize("wrapped", [lambda data: data, lambda data: torch.utils.data.DataLoader(data, batch_size=2)])
def test_a_dataset_of_class_folders_names_its_classes(wrapped):
    class Folders(torch.utils.data.Dataset):
        classes, class_to_idx = ["green", "red", "white"], {"green": 0, "red": 1, "white": 2}
        samples = ("green/0.png", 0), ("red/0.png", 1), ("white/0.png", 2)

        def __len__(self):
            return 3

        def __getitem__(self, index):
            return np.zeros((1, 4, 4), np.float32), index

    train = named([0, 1, 2, 3], TRAIN, name="train")
    points = points_in_memory(wrapped(Folders()), name="test")
    assert in_one_numbering({"train": train, "test": points})["test"].targets.tolist() == [1, 2, 3]
    part = points_in_memory(torch.utils.data.Subset(Folders(), [2, 0]), name="test")
    assert in_one_numbering({"train": train, "test": part})["test"].targets.tolist() == [3, 1]
    changed = Folders()
    changed.target_transform = lambda label: 2 - label
    assert points_in_memory(changed, name="test").classes is None
    assert points_in_memory((np.zeros((3, 2)), np.arange(3)), name="test").classes is None
