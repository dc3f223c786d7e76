"""What a terminal shows first: decisions and one table, on 36 lines whatever ran."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import at_night
import pytest
from eight_results import EIGHT, broken, everything, gain, multilabel, quickstart, scored, unlabelled
from report_text import rendered

from bnuq.findings import warnings
from bnuq.methods import method_named
from bnuq.records.evaluation import Result
from bnuq.records.summary import summary
from bnuq.report.evaluation import report

LINES, FULL = 36, 400
ABBREVIATIONS = re.compile(r"\b(PLL|ECE|AUROC|MI|CRPS|RMSE|AURC|OOD|MCBN|ID)\b")


@pytest.mark.parametrize("make", at_night.but({quickstart, gain, broken, scored}, (*EIGHT, everything)))
def test_the_first_screen_has_36_lines_and_says_each_decision_once(
    make: Callable[[Path], Result], tmp_path: Path
) -> None:
    result = replace(make(tmp_path), path=Path("out.h5"))
    made, lines = report(result), rendered(report, result, width=80).splitlines()
    assert len(lines) <= LINES, "\n".join(lines)
    assert all(len(line) <= 80 for line in lines)
    assert lines[-1].startswith("  bnuq report out.h5 --full")
    decisions = summary(result)["decisions"]
    assert 0 < len(decisions) <= 3
    assert [each["text"] for each in decisions] == [*made.summary[: len(decisions)]]
    shown = " ".join(" ".join(lines).split())
    together = shown.replace(" ", "")  # a long path is broken at the end of a line
    assert all(together.count(text.replace(" ", "")) == 1 for text in made.summary)
    sentences = [part for text in made.summary for part in text.split(". ")]
    assert len(sentences) == len({*sentences})
    assert not any(ABBREVIATIONS.search(text) for text in made.summary)
    for name in {method_named(name).plain.name for name in result.methods}:
        assert any(line.startswith((f" {name} ", f" ≈ {name} ")) for line in lines)
    assert all(f"[{each.code}]" in shown for each in warnings(result.findings))
    assert make is not gain or "Use mcbn with 8 samples: its predictive log-likelihood is better by" in shown
    assert ("All numbers are" in shown) == (make in (broken, multilabel, unlabelled, scored))
    assert len(rendered(report, result, width=80, full=True).splitlines()) <= FULL or make is everything


@pytest.mark.nightly
def test_the_screens_in_docs_are_current(monkeypatch: pytest.MonkeyPatch) -> None:
    """Up to numbers, whose last digits depend on the processor."""
    docs = Path(__file__).parents[2] / "docs"
    monkeypatch.syspath_prepend(docs)
    made = importlib.import_module("make_screens")
    written = made.PAGE.read_text(encoding="utf-8")
    assert [re.sub(r"[\W\d]+", " ", text) for text in (made.page(), written)] == [re.sub(r"[\W\d]+", " ", written)] * 2
