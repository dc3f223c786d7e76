"""Splits, folds and standardising are the published protocol's, and unusable data are refused by name."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from uci_tables import write_set

from bnuq.errors import DataError
from experiments.uci.sets import TEST_SHARE, cross_validation, final, folds, read_set, split

# Rows of the set, how many of them are for testing, and the first test rows at split seed 1.
PUBLISHED = {
    "boston": (506, 101, (307, 343, 47, 67, 362, 132)), "concrete": (1030, 206, (339, 244, 882, 567)),
    "energy": (768, 154, (285, 101, 581, 352)), "kin8nm": (8192, 1638, (3894, 4276, 3414)),
    "power": (9568, 1914, (5014, 6947, 9230)), "protein": (45730, 9146, (13171, 38548, 22657)),
    "wine": (1599, 320, (75, 1283, 408)), "yacht": (308, 62, (73, 304, 228, 238)),
}  # fmt: skip


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_first_split_begins_with_the_rows_that_the_authors_recipe_gives(name: str) -> None:
    rows, size, first = PUBLISHED[name]
    train, test = split(rows, 1)
    assert tuple(test[: len(first)]) == first
    assert len(test) == size == round(TEST_SHARE * rows)
    assert sorted([*train, *test]) == list(range(rows))


def test_splits_leave_numpys_global_generator_alone() -> None:
    before = np.random.get_state()[1].copy()
    split(506, 3)
    folds(405, 5)
    assert (np.random.get_state()[1] == before).all()


def test_folds_hold_out_every_row_once() -> None:
    parts = folds(405, 5)
    assert sorted(np.concatenate(parts)) == list(range(405))
    assert {len(part) for part in parts} == {81}
    assert [len(part) for part in folds(404, 5)] == [81, 81, 81, 81, 80]


def test_rows_are_standardised_by_their_training_rows_and_a_constant_input_stays(tmp_path: Path) -> None:
    table = np.random.default_rng(0).normal(5, 3, (83, 3))
    table[:, 1] = 7.0
    write_set(tmp_path, "boston", table)
    data = read_set("boston", tmp_path)
    material, of, fold = cross_validation(data, splits=[1, 2], number=5)
    assert list(of) == [0] * 5 + [1] * 5
    assert list(fold) == [0, 1, 2, 3, 4] * 2
    for place in range(10):
        x, y = material.x[place, : material.rows[place]], material.y[place, : material.rows[place]]
        np.testing.assert_allclose(x[:, 0].std(), 1, rtol=1e-5)  # ddof 0
        np.testing.assert_allclose(x.mean(0), 0, atol=1e-6)
        assert (x[:, 1] == 0).all()
        np.testing.assert_allclose([y.mean(), y.std()], [0, 1], atol=1e-5)
        held_out = split(83, 1 + of[place])[0][folds(66, 5)[fold[place]]]
        assert list(material.target[place, : material.points[place]]) == list(data.y[held_out])
        seen = data.x[_train(place, of, fold), 0]
        expected = (data.x[held_out, 0] - seen.mean()) / seen.std()
        np.testing.assert_allclose(material.x_point[place, : material.points[place], 0], expected, rtol=1e-4, atol=1e-6)
    whole = final(data, splits=[1, 2])
    assert list(whole.rows) == [66, 66]
    np.testing.assert_allclose(whole.shift[0] + whole.scale[0] * whole.y[0], data.y[split(83, 1)[0]], rtol=1e-5)


def _train(place: int, of: np.ndarray, fold: np.ndarray) -> np.ndarray:
    return np.delete(split(83, 1 + of[place])[0], folds(66, 5)[fold[place]])


def test_cross_validation_can_be_held_to_the_first_rows_of_a_split(made_up: Path) -> None:
    material, _, _ = cross_validation(read_set("boston", made_up), splits=[1], number=2, most_rows=40)
    assert list(material.rows + material.points) == [40, 40]


def test_a_set_that_is_nowhere_is_refused_with_the_places_looked_at(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="uci-wine: not found") as refusal:
        read_set("wine", tmp_path / "empty")
    assert str(tmp_path / "empty" / "uci" / "wine" / "data.csv") in str(refusal.value)
    assert "--data-root" in str(refusal.value)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda table: table[:20], "has 20 rows; expected at least"),
        (lambda table: np.where(np.arange(4) == 3, 2.5, table), "is 2.5 in every row"),
        (lambda table: np.where((np.arange(100) == 7)[:, None] & (np.arange(4) == 1), np.nan, table), "in line 9"),
        (lambda table: np.where((np.arange(100) == 7)[:, None] & (np.arange(4) == 3), np.inf, table), "inf in line 9"),
    ],
)
def test_data_that_cannot_be_learnt_from_are_refused(tmp_path: Path, change, said: str) -> None:
    table = np.random.default_rng(0).standard_normal((100, 4))
    path = write_set(tmp_path, "boston", change(table))
    with pytest.raises(DataError, match=said) as refusal:
        read_set("boston", tmp_path)
    assert str(path) in str(refusal.value)
