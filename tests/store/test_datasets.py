"""Data sets as they are written: values of every kind, units, and the dimension scales of their axes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import h5py
import numpy as np
import pytest

from bnuq.store.datasets import Writer, name_of


@pytest.fixture
def file() -> Iterator[Any]:
    with h5py.File("image", "w", driver="core", backing_store=False) as opened:
        yield opened


@pytest.mark.parametrize(
    "values",
    [
        np.arange(6.0).reshape(2, 3).T, np.float32(0.5), np.array([True, False]), np.zeros((0, 4)),
        np.arange(3, dtype=">i4"), np.arange(6000, dtype=np.int16).reshape(2, 3000), np.array([1, np.nan], np.float16),
    ],
    ids=["transposed", "a number", "truths", "none", "big-endian", "packed", "half"],
)  # fmt: skip
def test_numbers_are_stored_as_they_are_with_their_unit_and_a_scale_for_each_axis(file: Any, values: Any) -> None:
    Writer(file).add("/a/b", "x", values, (), {}, unit="nats")
    stored = file["a/b/x"]
    assert (stored.dtype, stored.shape) == (np.asarray(values).dtype, np.shape(values))
    np.testing.assert_array_equal(stored[()], values)
    assert stored.attrs["units"] == "nats" and (stored.compression == "gzip") == (np.size(values) > 1024)
    assert [axis.keys() for axis in stored.dims] == [[f"x_axis{number}"] for number in range(np.ndim(values))]
    for axis, length in zip(stored.dims, np.shape(values), strict=True):
        assert axis[0][()].tolist() == list(range(length)) and axis[0].attrs["units"] == "1"


def test_texts_lose_what_hdf5_cannot_hold_and_have_no_unit(file: Any) -> None:
    Writer(file).add("", "texts", np.array(["a", "ü → ∞", "", "nul\0here", "half \udc80"], object), ("word",), {})
    assert file["texts"].asstr()[()].tolist() == ["a", "ü → ∞", "", "nul\\x00here", "half \\udc80"]
    assert file["texts"].dims[0].keys() == ["word"] and "units" not in file["texts"].attrs


def test_neighbours_share_a_scale_and_an_axis_of_another_length_has_its_own(file: Any) -> None:
    writer, scales = Writer(file), dict[str, Any]()
    writer.add("/a", "draw", np.array([4, 7]), ("draw",), scales)
    for name, length in (("x", 2), ("y", 2), ("z", 3)):
        writer.add("/a", name, np.zeros(length), ("draw",), scales)
    assert file["a/x"].dims[0][0] == file["a/y"].dims[0][0] == file["a/draw"]
    assert file["a/draw"][()].tolist() == [4, 7]
    assert file["a/z"].dims[0][0] == file["a/draw_1"] and file["a/draw_1"][()].tolist() == [0, 1, 2]
    assert set(file["a"]) == {"draw", "draw_1", "x", "y", "z"}


def test_names_may_be_anything_and_groups_may_be_there_already(file: Any) -> None:
    file.create_group("a")
    Writer(file).add(f"/a/{name_of('ü/ß')}", name_of(""), np.zeros(2), (), {})
    Writer(file).add("/a", "x", np.zeros(2), (), {})
    assert set(file["a"]) == {"ü∕ß", "x", "x_axis0"} and set(file["a/ü∕ß"]) == {"∅", "∅_axis0"}
