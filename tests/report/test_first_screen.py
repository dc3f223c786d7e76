"""What a terminal shows first: decisions, then statistics, on 45 lines whatever ran."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import at_night
import numpy as np
import pytest
import small_multilabel
import small_regression
import small_run
import small_segmentation
from cut_sets import write_samples
from report_text import rendered

from bnuq.methods import method_named
from bnuq.records.decisions import decided
from bnuq.records.evaluation import Result
from bnuq.records.summary import summary
from bnuq.report.evaluation import report

LINES = 45
OF_MASKS, OF_MODELS = ("mcbn", "mcdo", "mcbn+mcdo"), ("mcbn-chi2", "mcbn-gaussian", "mcbn-empirical")
EVERY = (*OF_MASKS, *OF_MODELS, "tta", "mcbn+tta", "laplace", "deterministic+own")


def quickstart(folder: Path) -> Result:
    place = write_samples(folder / "sample_configs", points=60)
    return small_run.evaluated(place, run_file="quickstart.toml", samples=8, out=folder / "out.h5")


def regression(folder: Path) -> Result:
    small_regression.write(folder)
    return small_regression.evaluated(folder)


def multilabel(folder: Path) -> Result:
    small_multilabel.write(folder)
    return small_run.evaluated(folder, out=folder / "out.h5")


def segmentation(folder: Path) -> Result:
    small_segmentation.write(folder)
    return small_segmentation.evaluated(folder, calibrate="cross")


def everything(folder: Path) -> Result:
    """Every method of one network, temperatures, five OOD sets."""
    small_run.write(folder)
    random = np.random.default_rng(5)
    for number in range(5):
        np.savez(folder / f"ood{number}.npz", x=random.normal(number, 1, (30, 1, 6, 6)).astype(np.float32))
    test = np.load(folder / "test.npz")
    np.savez(folder / "held_out.npz", x=test["x"] + 0.1, y=test["y"])
    sets = tuple(f"ood{number}.npz" for number in range(5))
    settings = {"methods": EVERY, "ood": sets, "validation": "held_out.npz", "augment": {"flip": True}}
    return small_run.evaluated(folder, out=folder / "out.h5", **settings)


@pytest.mark.parametrize(
    "make", at_night.but({quickstart}, (quickstart, regression, multilabel, segmentation, everything))
)
def test_the_first_screen_has_45_lines_and_begins_with_decisions(make, tmp_path):
    result = replace(make(tmp_path), path=Path("out.h5"))
    lines = rendered(report, result, width=100).splitlines()
    assert len(lines) <= LINES, "\n".join(lines)
    assert all(len(line) <= 80 for line in rendered(report, result, width=80).splitlines())
    decisions = summary(result)["decisions"]
    assert 0 < len(decisions) <= 3
    assert [each["text"] for each in decisions] == [*report(result).summary[: len(decisions)]]
    shown = " ".join(" ".join(lines).split())
    assert all(each["text"] in shown for each in decisions)
    for name in {method_named(name).plain.name for name in result.methods}:
        assert any(line.startswith((f" {name} ", f" ≈ {name} ")) for line in lines)
    assert [each.code for each in decided(result)] == [each["code"] for each in decisions]
