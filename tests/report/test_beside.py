"""Results side by side: what was asked differently is told first, every figure has its row, and nothing is judged."""

from __future__ import annotations

import contextlib
import io
import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import small_run

from bnuq.report import beside, drawing, overlaid
from bnuq.report.beside import best_score, compared, ood_tables, report_parts, summary
from bnuq.report.html import page
from bnuq.report.markdown import markdown
from bnuq.report.page import beside_parts, shown_of
from bnuq.report.parts import Items, Table
from bnuq.results.result import Result


@pytest.fixture(scope="module")
def another(folder: Path) -> Result:
    """As `four_methods`, but of other draws, fewer of them, and without dropout's methods."""
    return small_run.evaluated(folder, out=Path("another.h5"), seed=1, samples=6, methods=("mcbn",))


def first_words(results: dict[str, Result]) -> tuple[str, ...]:
    return next(part for part in report_parts(results) if isinstance(part, Items)).texts


def test_what_was_asked_differently_is_told_first_by_who_asked_for_what(four_methods, another) -> None:
    words = first_words({"a": four_methods, "b": another, "c": four_methods})
    assert "T: 8 in a and c; 6 in b." in words
    assert "seed: 0 in a and c; 1 in b." in words
    assert "methods: deterministic mcbn mcdo mcbn+mcdo in a and c; deterministic mcbn in b." in words
    assert any(text.startswith("Draws differ (T, seed)") for text in words)
    same = next(text for text in words if text.startswith("The same in all: "))
    assert "checkpoint model.pt" in same and "b 16" in same and "T 8" not in same
    assert "`bnuq check CURRENT BASELINE`" in words[-1]


def test_the_same_files_are_the_same_whatever_they_are_called_and_others_are_told_apart(four_methods) -> None:
    test = four_methods.sets["test"]
    moved = replace(four_methods, sets={**four_methods.sets, "test": replace(test, reference="elsewhere/copy.npz")})
    assert not any(one.differs for one in compared({"a": four_methods, "b": moved}))
    changed = replace(four_methods, sets={**four_methods.sets, "test": replace(test, sha256="f" * 64)})
    [found] = [one for one in compared({"a": four_methods, "b": changed}) if one.differs]
    assert found.what == "test" and "ffffffff" in found.values["b"] and test.sha256[:8] in found.values["a"]
    assert "not of the same points" in first_words({"a": four_methods, "b": changed})[0]


def test_another_pipeline_and_another_checkpoint_are_told(four_methods) -> None:
    data = {**four_methods.run["data"], "augment": {"pad": 4, "flip": True}}
    model = {**four_methods.model, "sha256": "0" * 64, "path": "/there/other.pt"}
    changed = replace(four_methods, run={**four_methods.run, "data": data}, model=model)
    told = {one.what: one.values["b"] for one in compared({"a": four_methods, "b": changed}) if one.differs}
    assert told == {"checkpoint": "other.pt", "augment": "pad 4, flip yes"}


def test_every_figure_has_its_row_and_what_a_result_has_not_is_a_dash(four_methods, another) -> None:
    results = {"a": four_methods, "b": another}
    table = beside.test_table(results)
    assert table.header == ("a", "b")
    method = ""
    seen: dict[str, dict[str, tuple[str, ...]]] = {}
    for label, cells in table.rows:
        if not cells:
            method = label
        else:
            seen.setdefault(method, {})[label.strip(" ↑↓")] = tuple(cell.value for cell in cells)
    assert list(seen) == ["deterministic", "mcbn", "mcdo", "mcbn+mcdo"]
    for name, held in seen.items():
        assert set(held) >= {"accuracy", "PLL", "ECE", "Brier score"}
        for place, result in enumerate(results.values()):
            figures = result.methods[name].sets["test"].figures if name in result.methods else {}
            expected = f"{figures['pll'].value:.4f}".replace("-", "−") if figures else "–"
            assert held["PLL"][place] == expected


def test_sets_that_only_one_result_has_stand_there_too(four_methods, two_sets) -> None:
    results = {"a": four_methods, "b": two_sets}
    assert beside.ood_names(results) == ["other", *(n for n in two_sets.sets if two_sets.sets[n].kind == "ood")]
    auroc, fpr95 = ood_tables(results, "other")
    assert isinstance(auroc, Table) and all(cells[1].value == "–" for _, cells in auroc.rows if cells)
    value = four_methods.methods["mcbn"].ood["other"]["mutual_information"]["auroc"].value
    assert f"{value:.4f}" in {cells[0].value for _, cells in auroc.rows if cells}
    assert next(label for label, cells in fpr95.rows if not cells) == "↓ FPR95, deterministic"


def test_the_score_of_a_roc_panel_is_the_best_on_average_of_those_that_most_results_have(four_methods, another) -> None:
    found = best_score({"a": four_methods, "b": another}, "other", "mcbn")
    assert found is not None
    score, aurocs = found
    means = {
        one: np.mean([result.methods["mcbn"].ood["other"][one]["auroc"].value for result in (four_methods, another)])
        for one in four_methods.methods["mcbn"].ood["other"]
    }
    assert score == max(means, key=lambda one: means[one]) and set(aurocs) == {"a", "b"}


def test_the_summary_holds_every_result_and_what_differs(four_methods, another) -> None:
    told = json.loads(json.dumps(summary({"a": four_methods, "b": another}), allow_nan=False))
    assert list(told["results"]) == ["a", "b"] and told["command"] == "report"
    assert told["results"]["b"]["sampling"]["samples"] == 6
    assert {"what": "seed", "values": {"a": "0", "b": "1"}} in told["differences"]


def test_regressions_stand_side_by_side_too(regression, without_tau, tmp_path) -> None:
    results = {"fitted": regression, "bare": without_tau}
    stream = io.StringIO()
    beside.print_beside(results, stream, width=90)
    assert "↓ RMSE" in stream.getvalue() and "normalised CRPS" in stream.getvalue()
    names = [path.stem for path in overlaid.draw_figures(results, tmp_path)]
    assert names == ["interval_calibration", "risk_coverage", "convergence", "roc_far"]


def test_hostile_names_do_nothing_anywhere(four_methods, another, tmp_path) -> None:
    evil = "<script>alert(1)</script>|`@x`\x1b[31m"
    results = {evil: four_methods, f"{evil}2": replace(another, notes=(evil,))}
    shown = shown_of(overlaid.pictures_of(results), tmp_path)
    text = page(beside_parts(results, shown))
    assert "<script" not in text and "\x1b" not in text
    document = markdown(report_parts(results))
    assert "<script" not in document.replace("\\<script", "") and "\x1b" not in document
    stream = io.StringIO()
    beside.print_beside(results, stream)
    assert "\x1b" not in stream.getvalue()


def test_the_page_has_a_line_for_every_result_in_a_panel_for_every_method(four_methods, another, tmp_path) -> None:
    results = {"a": four_methods, "b": another}
    shown = shown_of(overlaid.pictures_of(results), tmp_path)
    assert {parts: len(picture.svgs) for parts, picture in shown.items()} == {
        ("calibration",): 4,
        ("risk_coverage",): 4,
        ("convergence",): 3,
        ("roc", "other"): 4,
    }
    text = page(beside_parts(results, shown))
    assert re.findall(r"<h2[^>]*>([^<]+)</h2>", text) == [
        *("What was asked differently", "Test sets", "Calibration", "Error against coverage"),
        *("other against the test sets", "Over the number of passes", "Warnings", "Provenance"),
    ]
    assert text.count("<svg") == 15


def test_a_curve_is_that_of_its_result_and_no_curve_is_cut_off(four_methods, another, tmp_path, monkeypatch) -> None:
    kept = {}

    @contextlib.contextmanager
    def keeping(path, **asked):
        with drawing.picture(path, **asked) as axes:
            yield axes
        kept[path.stem] = axes

    monkeypatch.setattr(overlaid, "picture", keeping)
    overlaid.draw_figures({"a": four_methods, "b": another}, tmp_path)
    axes = kept["risk_coverage"][1]
    assert axes.get_title(loc="left") == "mcbn"
    for name, result in (("a", four_methods), ("b", another)):
        [line] = [one for one in axes.get_lines() if one.get_label() == name]
        np.testing.assert_allclose(line.get_ydata(), result.methods["mcbn"].risk["risk"])
        assert np.max(line.get_ydata()) < axes.get_ylim()[1]
