"""Addresses: one for each estimate of an evaluation, computed from its coordinates and back; the path in the JSON."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import h5py
import pytest
import small_run

from bnuq.records import addresses, evaluation_file
from bnuq.records.addresses import address_of, coordinates_of, estimates_of
from bnuq.records.evaluation import Result
from bnuq.records.summary import json_number, summary


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> Result:
    folder = tmp_path_factory.mktemp("addresses")
    small_run.write(folder)
    shutil.copy(folder / "test.npz", folder / "held_out.npz")
    return small_run.evaluated(folder, out=folder / "r.h5", methods=("mcbn",), validation="held_out.npz", limit=12)


def test_an_address_tells_the_coordinates_it_was_computed_from(result: Result) -> None:
    found = estimates_of(result)
    assert {address.split(".")[1] for address in found} == {"sets", "ood", "bounds", "normalized"}
    for address, row in found.items():
        assert coordinates_of(address) == row.coordinates and address_of(row.coordinates) == address


def test_an_address_is_the_path_below_methods_in_the_json(result: Result) -> None:
    methods = json.loads(json.dumps(summary(result)))["methods"]
    for address, row in estimates_of(result).items():
        place = methods
        for key in address.split("."):
            place = place[key]
        assert place["value"] == json_number(row.estimate.value), address


def test_the_table_in_the_file_has_the_rows_of_the_record(result: Result) -> None:
    rows = list(estimates_of(result).values())
    assert len({row.path for row in rows}) == len(rows)
    with h5py.File(result.path) as file:
        table = file["estimates"]
        assert table["path"].asstr()[()].tolist() == [row.path for row in rows]
        for name in ("method", "set", "score", "metric", "bound"):
            assert table[name].asstr()[()].tolist() == [row[name] for row in rows]
        assert table["value"][()].tolist() == [row.estimate.value for row in rows]
        assert {row.unit for row in rows if row["metric"] == "normalized_pll"} == {"percent"}
    assert estimates_of(evaluation_file.read(Path(str(result.path)))).keys() == estimates_of(result).keys()


def test_a_set_may_be_called_like_a_group_of_estimates() -> None:
    for name in ("normalized", "normalized_pll", "bounds", "ood"):
        at = {"method": "mcbn", "set": name, "metric": "pll"}
        assert coordinates_of(address_of(at)) == at
        assert coordinates_of(address_of(at | {"score": "variance", "metric": "auroc"}))["set"] == name


@pytest.mark.parametrize("text", ["", "mcbn", "mcbn.sets.pll", "mcbn.normalized.a.b", "mcbn.set.test.pll"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not the address of an estimate"):
        coordinates_of(text)


def test_groups_without_estimates_are_there() -> None:
    nested = addresses.nested([("m", "sets", "a"), ("m", "ood")], {("m", "sets", "b", "pll"): 1})
    assert nested == {"m": {"sets": {"a": {}, "b": {"pll": 1}}, "ood": {}}}
