"""docs/make_worth.py: the decisions on a network, and its table."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest
import small_run

from bnuq.records.decisions import judged
from bnuq.records.summary import summary

DOCS = Path(__file__).resolve().parents[2] / "docs"


@pytest.mark.nightly
def test_a_section_has_the_decisions_and_every_method_with_its_difference(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [str(DOCS), *sys.path])
    spec = importlib.util.spec_from_file_location("make_worth", DOCS / "make_worth.py")
    make_worth = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(make_worth)
    small_run.write(tmp_path)
    result = small_run.evaluated(tmp_path, calibrate="cross")
    text = make_worth.section("A network", result)
    title, decisions, _table = text.split("\n\n")
    assert title == "## A network"
    assert [line.removeprefix("- ") for line in decisions.splitlines()] == [
        decision["text"] for decision in summary(result)["decisions"]
    ]
    rows = {row.split(" | ")[0].removeprefix("| "): row for row in text.splitlines() if row.startswith("| ")}
    assert [*rows][2:] == [*result.methods]
    best = next(each for each in judged(result).comparisons if each.metric == "pll")
    assert f"**{best.value_of_against:.4f}**".replace("-", "−") in rows[best.against]
    for method in result.sampled:
        assert rows[method].split(" | ")[1] == "8"
        assert rows[method].count("<br>") == 5, "a difference of PLL, ECE, AURC, accuracy and AUROC"
