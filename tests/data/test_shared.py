"""Points that two sets share are counted, in arrays and in files."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
from making_points import png

from bnuq.data import Fingerprints, load_points, numbering, points_in_memory

RNG = np.random.default_rng(0)
PICTURES = RNG.integers(0, 256, (12, 4, 4), dtype=np.uint8)


def folder(path: Path, rows: Iterable[int]) -> Fingerprints:
    for row in rows:
        (path / f"class{row % 2}").mkdir(parents=True, exist_ok=True)
        (path / f"class{row % 2}" / f"{path.name}{row}.png").write_bytes(png(PICTURES[row]))
    return Fingerprints(load_points(str(path)))


def array(rows: slice) -> Fingerprints:
    return Fingerprints(points_in_memory(PICTURES[rows, None], name="test"))


def test_rows_of_arrays_are_compared_whatever_the_labels():
    with_labels = Fingerprints(points_in_memory((PICTURES[4:9, None], np.arange(5)), name="test"))
    assert with_labels.shared_with(array(slice(0, 6))) == (2, 5)
    assert array(slice(0, 4)).shared_with(array(slice(4, 12))) == (0, 4)


def test_rows_are_compared_in_float32_whatever_the_dtypes(tmp_path):
    exact = RNG.normal(size=(6, 3))
    exact[0] = (0.0, 1.0, 2.0)
    np.savetxt(tmp_path / "rows.csv", np.c_[exact, range(6)], delimiter=",", header="a,b,c,label", comments="")
    minus = np.where(exact == 0, -0.0, exact).astype(np.float32)
    sets = [points_in_memory(x, name="test") for x in (exact, minus, minus.astype(np.float64))]
    sets.append(load_points(str(tmp_path / "rows.csv")))
    of_sets = [Fingerprints(points) for points in sets]
    assert {one.shared_with(other) for one in of_sets for other in of_sets} == {(6, 6)}
    times = [points_in_memory(1.7e9 + np.arange(first, first + 6.0)[:, None], name="test") for first in (0, 3)]
    assert Fingerprints(times[0]).shared_with(Fingerprints(times[1])) == (3, 6)  # all are one number in float32
    several = [
        {"a": np.full((1, 1), value, np.float32), "b": np.ones((1, 2), np.float32) * value} for value in (1, 1.5)
    ]
    several.append({"a": several[0]["a"], "b": np.array([[2, 1]], np.float32)})
    packed = [Fingerprints(points_in_memory(each, name="test")) for each in several]
    assert [packed[0].shared_with(other)[0] for other in packed] == [1, 0, 0]


def test_files_are_compared_by_their_bytes_whatever_their_names(tmp_path):
    some, others, rest = folder(tmp_path / "a", range(6)), folder(tmp_path / "b", range(4, 12)), range(6, 12)
    assert some.shared_with(others) == (2, 6) and others.shared_with(some) == (2, 8)
    assert some.shared_with(folder(tmp_path / "c", rest)) == (0, 6)
    assert some.shared_with(array(slice(0, 6))) == (0, 0)


def test_of_many_files_a_part_is_compared(tmp_path, monkeypatch: pytest.MonkeyPatch):
    some, others = folder(tmp_path / "a", range(12)), folder(tmp_path / "b", range(12))
    monkeypatch.setattr(numbering, "_READ", 5 * numbering._OPENED)
    same, compared = some.shared_with(others)
    assert 0 < same == compared < 12
