"""Each evaluated point: its number and name in the data, and the tables of points that a result gives."""

from __future__ import annotations

import csv
import io
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest
import uci_tables
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from records_at_rest import without_digest

from bnuq.config import Options, resolve
from bnuq.data import load_points
from bnuq.errors import RequestError, ResultError
from bnuq.records import evaluation_file
from bnuq.records.evaluation import Result
from bnuq.records.points import (
    chosen_method,
    chosen_score,
    largest_first,
    methods_with,
    points_csv,
    points_table,
    scores_of,
    worst_first,
)
from bnuq.workflows.evaluate import evaluate


@pytest.fixture(scope="module")
def limited(folder: Path) -> Result:
    """A result of some of the points, read from its file: a part of the test set is for validation, then --limit."""
    request = folder / "split.toml"
    lines = (folder / "run.toml").read_text().replace("[sampling]", 'validation = { split_of = "test" }\n[sampling]')
    request.write_text(lines)
    run = resolve("split.toml", Options(out=Path("split.h5"), limit=30, methods=("mcdo",)), folder=folder)
    path = evaluate(run).path
    assert path is not None
    return evaluation_file.read(path)


# ── where points come from ───────────────────────────────────────────────────────────────────────────────────────────


def test_a_point_is_found_in_its_file_by_its_index_after_a_split_and_a_limit(folder, limited):
    labels = np.load(folder / "test.npz")["y"]
    test, validation, other = (limited.sets[name] for name in ("test", "validation", "other"))
    np.testing.assert_array_equal(labels[test.index], test.labels)
    assert len(test.index) == 30 and set(test.index).isdisjoint(validation.index)
    assert len(np.unique(other.index)) == 30 and other.index.max() > 30 and other.names is None


def test_the_points_of_a_split_of_a_table_have_their_rows_in_it(tmp_path):
    uci_tables.write_set(tmp_path, "boston", np.arange(40.0).reshape(10, 4))
    splits = tmp_path / "uci" / "boston" / "splits"
    splits.mkdir()
    (splits / "test_00.txt").write_text("7\n2\n")
    test, train = (load_points(f"uci-boston:{split}", data_root=tmp_path) for split in ("test", "train"))
    assert test.index.tolist() == [7, 2] and train.subset([0, 2]).index.tolist() == [0, 3]
    np.testing.assert_array_equal(test.targets[:, 0], [31, 11])


def test_pictures_are_called_by_their_files_also_in_a_subset_of_resized_ones(tmp_path):
    for name in ("cat/b.png", "cat/a.png", "dog/ü.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        Image.new("L", (4, 4)).save(tmp_path / name)
    points = load_points(str(tmp_path))
    assert points.names.tolist() == ["cat/a.png", "cat/b.png", "dog/ü.png"] and points.index.tolist() == [0, 1, 2]
    some = points.subset([2, 0]).subset([0])
    assert (some.names.tolist(), some.index.tolist()) == (["dog/ü.png"], [2])


def test_names_are_in_the_file_and_are_checked_when_it_is_read(limited, tmp_path):
    names = np.array([f"set/ü {i}\udcff.png" for i in range(30)], dtype=object)
    named = replace(limited, sets={**limited.sets, "test": replace(limited.sets["test"], names=names)})
    evaluation_file.write(named, path := tmp_path / "named.h5")
    assert evaluation_file.read(path).sets["test"].names[3] == "set/ü 3\\udcff.png"
    with h5py.File(without_digest(path), "r+") as file:
        del file["sets/test/names"]
        file["sets/test/names"] = np.arange(30)
    with pytest.raises(ResultError, match="the names of the examples of test are not strings"):
        evaluation_file.read(path)


# ── tables ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@given(st.lists(st.floats()))
def test_points_are_ordered_by_descending_score_with_missing_scores_last(values):
    scores = np.array(values, dtype=float)
    rows = largest_first(scores)
    known = scores[rows][: np.isfinite(scores).sum() + np.isinf(scores).sum()]
    assert sorted(rows) == list(range(len(scores))) and not np.isnan(known).any()
    assert all(a > b or (a == b and i < j) for a, b, i, j in zip(known, known[1:], rows, rows[1:], strict=False))


def test_the_worst_points_come_first_where_one_direction_is_better():
    scores = np.array([-0.1, -3.0, np.nan, -np.inf, -0.5])
    assert worst_first("pll", scores).tolist() == [3, 1, 4, 0, 2]  # higher is better
    assert worst_first("brier", np.array([0.1, 0.9, 0.4])).tolist() == [1, 2, 0]  # lower is better
    assert worst_first("max_probability", np.array([0.5, 0.9, 0.7])).tolist() == [0, 2, 1]  # the least confident
    assert worst_first("mutual_information", np.array([0.1, 0.9, 0.4])).tolist() == [1, 2, 0]  # neither is


def test_every_stored_score_is_a_column(limited):
    table = points_table(limited)
    stored = limited.methods["mcdo"].sets["test"].points
    assert list(table) == ["index", "label", "prediction", *stored] and chosen_method(limited, None) == "mcdo"
    assert all(np.array_equal(table[name], values) for name, values in stored.items())
    assert "label" not in points_table(limited, set="other") and chosen_score(stored, None) == "mutual_information"


def test_labels_and_predictions_are_called_as_the_data_call_the_classes(limited):
    test = replace(limited.sets["test"], classes=("cat", "dog"))
    table = points_table(replace(limited, sets={**limited.sets, "test": test}))
    names = {0: "cat", 1: "dog", 2: "2"}  # the data name two classes of three
    assert table["label"].tolist() == [names[label] for label in test.labels.tolist()]


def test_the_csv_file_has_every_point_of_every_set_and_method_to_the_last_digit(limited, monkeypatch):
    monkeypatch.setattr("bnuq.records.points._ROWS", 7)
    names = np.array([f'a,"b"\n{i}\udcff' for i in range(30)], dtype=object)
    named = replace(limited, sets={**limited.sets, "other": replace(limited.sets["other"], names=names)})
    rows = list(csv.DictReader(io.StringIO(b"".join(points_csv(named)).decode())))
    assert len(rows) == 2 * len(limited.methods) * 30
    for method, method_result in limited.methods.items():
        for name, set_result in method_result.sets.items():
            chosen = [row for row in rows if (row["method"], row["set"]) == (method, name)]
            assert [int(row["index"]) for row in chosen] == limited.sets[name].index.tolist()
            for score, values in set_result.points.items():
                assert [float(row[score]) for row in chosen] == values.tolist()
    other = next(row for row in rows if row["set"] == "other")
    assert (other["name"], other["label"], rows[0]["name"]) == ('a,"b"\n0\\udcff', "", "")


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        ({"set": "svhn"}, "the examples of 'svhn' are not in the result; expected one of test, other."),
        ({"set": "validation"}, "the examples of 'validation' are not in the result"),
        ({"method": "mcbn"}, "the method 'mcbn' is not in the result; expected one of deterministic, "),
    ],
)
def test_what_the_result_lacks_is_refused_with_what_it_has(limited, chosen, message):
    with pytest.raises(RequestError) as refusal:
        points_table(limited, **chosen)
    assert message in str(refusal.value)


def test_an_unknown_score_is_refused_with_those_there_are(limited):
    known = scores_of(limited)
    with pytest.raises(RequestError, match=f"'entropy' is not known of these examples; expected one of {known[0]}, "):
        chosen_score(known, "entropy")


def test_a_score_that_another_method_has_is_refused_with_that_method(limited):
    assert methods_with(limited, "mutual_information") == ["mcdo", "mcdo+temperature"]
    assert not methods_with(limited, "entropy")
    with pytest.raises(RequestError, match=r"It is a score of deterministic: --method deterministic\.$"):
        chosen_score(scores_of(limited), "knn", methods=["deterministic"])
