"""The published JSON schemas hold what is printed and what is stored, and nothing of it is left undescribed.

tests/golden/ holds what every command prints against them.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import made_up_inspection
import made_up_monitor
import numpy as np
import pytest
import small_sweep
import small_verdicts
import summary_schemas

import bnuq
from bnuq.files.hdf5 import open_hdf5
from bnuq.gate.records import summary as of_check
from bnuq.records import multirun
from bnuq.records.as_json import json_of
from bnuq.records.evaluation import Result
from bnuq.records.summary import summary
from bnuq.report.json_schema import names, schema
from bnuq.store import codec

SCHEMAS = Path(__file__).resolve().parents[2] / "docs" / "schema"


def test_the_published_schemas_are_those_of_this_version() -> None:
    published = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in SCHEMAS.glob("*.json")}
    assert published == {name: schema(name) for name in names()}  # else `make schema`, and read the diff
    assert all(each["$id"].endswith(f"/schema/{name}.json") for name, each in published.items())


@pytest.mark.parametrize("name", ["four_methods", "deterministic", "validated", "regression", "without_tau"])
def test_an_evaluation_is_described_as_it_is_printed_and_as_it_is_stored(request, name: str) -> None:
    result = request.getfixturevalue(name)
    assert summary_schemas.errors(json.loads(json.dumps(summary(result))), "evaluate-v2") == []
    assert summary_schemas.errors(stored(result.path), "evaluate-record-v1") == []


def scored(ood: bool) -> Any:
    """The record of a `bnuq score` on six points."""
    rng = np.random.default_rng(0)
    others = {"others": rng.normal(size=(6, 3))} if ood else None
    return bnuq.score(rng.normal(size=(6, 3)), np.array([0, 1, 2, 0, 1, 2]), ood=others).record


def stored(path: Path) -> Any:
    with open_hdf5(path) as file:
        return json.loads(file["record"].asstr()[()])


@pytest.mark.parametrize(
    ("made", "name", "of"),
    [
        *((make, "sweep-batch-size", json_of) for make in (small_sweep.single, small_sweep.both)),
        *((make, "sweep-batch-size", json_of) for make in (small_sweep.matched, small_sweep.regression)),
        *((make, "inspect", json_of) for make in (made_up_inspection.bare, made_up_inspection.whole)),
        *((make, "inspect", json_of) for make in (made_up_inspection.ill, made_up_inspection.unfinite)),
        *((make, "monitor", json_of) for make in (made_up_monitor.quiet, made_up_monitor.many_layers)),
        *((partial(scored, ood), "score", summary) for ood in (False, True)),
    ],
)
def test_other_records_are_described_as_printed_and_as_stored(made, name, of, tmp_path):
    record = made()
    assert summary_schemas.errors(json.loads(json.dumps(of(record))), f"{name}-v2") == []
    codec.write(record, tmp_path / "record.h5")
    assert summary_schemas.errors(stored(tmp_path / "record.h5"), f"{name}-record-v1") == []


@pytest.mark.parametrize(
    "made", [small_verdicts.everything, small_verdicts.unchanged, small_verdicts.accepted, small_verdicts.crowded]
)
def test_a_verdict_is_described_as_it_is_printed(made: Callable[[], Any]) -> None:
    assert summary_schemas.errors(json.loads(json.dumps(of_check(made()))), "check-v2") == []


def test_several_runs_are_described_as_printed_and_as_stored(tmp_path: Path) -> None:
    asked = {"model": {"checkpoint": "model.pt"}}
    runs = tuple(multirun.OneRun(tmp_path / f"{split}.h5", "0" * 64, asked, split, test_share=0.1) for split in (0, 1))
    values = np.array([[-0.2, -0.3], [0.9, np.nan]])
    record = multirun.Several(
        runs, ("mcbn.sets.test.pll", "mcbn.sets.test.accuracy"), values, "classification", (), 2.0, {"bnuq": "0.1.0"}
    )
    assert summary_schemas.errors(json.loads(json.dumps(multirun.summary(record))), "several-v2") == []
    codec.write(record, tmp_path / "several.h5")
    assert summary_schemas.errors(stored(tmp_path / "several.h5"), "several-record-v1") == []


def test_what_is_wrong_is_refused(four_methods: Result) -> None:
    right = json.loads(json.dumps(summary(four_methods)))
    for broken in (
        {**right, "schema": 1},
        {**right, "verdict": {**right["verdict"], "worth": "yes"}},
        {key: value for key, value in right.items() if key != "methods"},
        {**right, "methods": {"mcbn": {"sets": {"test": {"pll": {"se": 0.1}}}, "ood": {}}}},
    ):
        with pytest.raises(AssertionError):
            summary_schemas.errors(broken, "evaluate-v2")
    assert summary_schemas.errors({**right, "unheard": 1}, "evaluate-v2") != []  # though it may come
