"""Two segmentations: which pixels are scored, and what their classes are called, keeps results apart."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import made_up
import numpy as np
import pytest

from bnuq.errors import ResultError
from bnuq.gate import GateSettings
from bnuq.gate.compatibility import check_comparable
from bnuq.gate.pairing import pairing
from bnuq.records.evaluation import Result
from bnuq.report.comparison import compared

STREET = ("road", "car")


def of_pixels(classes: tuple[str, ...] = STREET, **data: Any) -> Result:
    """A segmentation with these keys of [data]."""
    one = made_up.result(mcbn={"pll": np.random.default_rng(0).normal(0, 1, (16, 20))})
    test = replace(one.sets["test"], classes=classes)
    return replace(one, model={**one.model, "task": "segmentation"}, sets={"test": test}, run={**one.run, "data": data})


def test_pixels_that_are_ignored_by_another_value_are_not_compared() -> None:
    unset, said, void = of_pixels(), of_pixels(ignore=255), of_pixels(ignore=11)
    check_comparable(said, unset, GateSettings())
    with pytest.raises(ResultError, match="scoring: ignore is 11 now, 255 in the baseline") as refused:
        check_comparable(void, unset, GateSettings())
    assert str(refused.value).count("  - ") == 1
    check_comparable(void, unset, GateSettings.of(allow=["scoring"]))
    of_points = [replace(one, model={**one.model, "task": "classification"}) for one in (void, unset)]
    check_comparable(*of_points, GateSettings())  # there are no pixels


def test_classes_of_other_names_are_not_compared() -> None:
    baseline, other, unnamed = of_pixels(), of_pixels(("road", "tree")), of_pixels(())
    for current, now in ((other, "road, tree"), (unnamed, "no names")):
        told = f"data: the classes of the pixels of test are {now} now, road, car in the baseline"
        with pytest.raises(ResultError, match=told):
            check_comparable(current, baseline, GateSettings())
        check_comparable(current, baseline, GateSettings.of(allow=["data:test"]))
        assert pairing(current, baseline).points == ("test",)  # the same images all the same


def test_a_comparison_names_what_is_ignored_and_the_classes() -> None:
    results = {"a": of_pixels(), "b": of_pixels(("road", "tree"), ignore=11)}
    assert {each.what: dict(each.values) for each in compared(results) if each.differs} == {
        "data.ignore": {"a": "255", "b": "11"},
        "classes of pixels": {"a": "road, car", "b": "road, tree"},
    }
    of_points = replace(results["b"], model={**results["b"].model, "task": "classification"})
    assert not {"ignore", "classes of pixels"} & {each.what for each in compared({"a": of_points, "b": of_points})}
