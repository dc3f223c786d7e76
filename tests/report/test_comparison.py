"""Results side by side: what was asked differently is told first, every estimate has its row, and nothing is judged."""

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
from matplotlib.axes import Axes

from bnuq.findings import note, warning, warnings
from bnuq.metrics import delong_difference_variance, standard_error
from bnuq.records.evaluation import Result
from bnuq.report import comparison, comparison_plots, drawing
from bnuq.report.comparison import best_score, compared, in_short, ood_tables, report_parts, summary
from bnuq.report.html import page
from bnuq.report.markdown import markdown
from bnuq.report.page import beside_parts, shown_of
from bnuq.report.parts import Items, Table
from bnuq.report.plots import best_score_of


@pytest.fixture(scope="module")
def another(folder: Path) -> Result:
    """As `four_methods`, but of other draws, fewer of them, and without dropout's methods."""
    return small_run.evaluated(folder, out=Path("another.h5"), seed=1, samples=6, methods=("mcbn",))


def first_words(results: dict[str, Result]) -> tuple[str, ...]:
    """What was asked; before it stands what was found, in short."""
    return [part for part in report_parts(results) if isinstance(part, Items)][1].texts


def with_points(result: Result, metric: str, values: np.ndarray, *, method: str = "mcbn") -> Result:
    """The result, with other values of the points of its test set, and the estimate that is their mean."""
    held = result.methods[method]
    test = held.sets["test"]
    estimates = dict(test.estimates) | {metric: replace(test.estimates[metric], value=float(np.mean(values)))}
    test = replace(test, estimates=estimates, points=dict(test.points) | {metric: values})
    changed = replace(held, sets=dict(held.sets) | {"test": test})
    return replace(result, methods=dict(result.methods) | {method: changed})


def line_of(results: dict[str, Result], start: str) -> str:
    [found] = [text for text in in_short(results) if text.startswith(f"{start}:")]
    return found


def test_what_was_asked_differently_is_told_first_by_who_asked_for_what(four_methods, another) -> None:
    words = first_words({"a": four_methods, "b": another, "c": four_methods})
    assert "T: 8 in a and c; 6 in b." in words
    assert "seed: 0 in a and c; 1 in b." in words
    assert "methods: deterministic mcbn mcdo mcbn+mcdo in a and c; deterministic mcbn in b." in words
    assert any(text.startswith("Samples differ (T, seed)") for text in words)
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
    assert "from different points" in first_words({"a": four_methods, "b": changed})[0]


def test_another_pipeline_and_another_checkpoint_are_told(four_methods) -> None:
    data = {**four_methods.run["data"], "augment": {"pad": 4, "flip": True}}
    model = {**four_methods.model, "sha256": "0" * 64, "path": "/there/other.pt"}
    changed = replace(four_methods, run={**four_methods.run, "data": data}, model=model)
    told = {one.what: one.values["b"] for one in compared({"a": four_methods, "b": changed}) if one.differs}
    assert told == {"checkpoint": "other.pt", "augment": "pad 4, flip yes"}


def test_every_estimate_has_its_row_and_what_a_result_has_not_is_a_dash(four_methods, another) -> None:
    results = {"a": four_methods, "b": another}
    table = comparison.test_table(results)
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
            estimates = result.methods[name].sets["test"].estimates if name in result.methods else {}
            expected = f"{estimates['pll'].value:.4f}".replace("-", "−") if estimates else "–"
            assert held["PLL"][place] == expected


def test_sets_that_only_one_result_has_stand_there_too(four_methods, two_sets) -> None:
    results = {"a": four_methods, "b": two_sets}
    assert comparison.ood_names(results) == ["other", *(n for n in two_sets.sets if two_sets.sets[n].kind == "ood")]
    tables = list(ood_tables(results, "other"))
    estimates = ("auroc", "aupr_out", "aupr_in", "fpr95", "fpr95_id_positive")
    names = ("↑ AUROC", "↑ AUPR-out", "↑ AUPR-in", "↓ FPR95", "↓ FPR95*")
    for table, estimate, name in zip(tables, estimates, names, strict=True):
        assert isinstance(table, Table) and all(cells[1].value == "–" for _, cells in table.rows if cells)
        value = four_methods.methods["mcbn"].ood["other"]["mutual_information"][estimate].value
        assert f"{value:.4f}" in {cells[0].value for _, cells in table.rows if cells}
        assert next(label for label, cells in table.rows if not cells) == f"{name}, deterministic"


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
    comparison.print_beside(results, stream, width=90)
    assert "↓ RMSE" in stream.getvalue() and "normalised CRPS" in stream.getvalue()
    names = [path.stem for path in comparison_plots.draw_figures(results, tmp_path)]
    assert names == ["interval_calibration", "risk_coverage", "convergence", "ood_far", "roc_far"]


def test_hostile_names_do_nothing_anywhere(four_methods, another, tmp_path) -> None:
    evil = "<script>alert(1)</script>|`@x`\x1b[31m"
    results = {evil: four_methods, f"{evil}2": replace(another, findings=(note(evil, text=evil),))}
    shown = shown_of(comparison_plots.pictures_of(results), tmp_path)
    text = page(beside_parts(results, shown))
    assert "<script" not in text and "\x1b" not in text
    document = markdown(report_parts(results))
    assert "<script" not in document.replace("\\<script", "") and "\x1b" not in document
    stream = io.StringIO()
    comparison.print_beside(results, stream)
    assert "\x1b" not in stream.getvalue()


def test_the_page_has_a_line_for_every_result_in_a_panel_for_every_method(four_methods, another, tmp_path) -> None:
    results = {"a": four_methods, "b": another}
    shown = shown_of(comparison_plots.pictures_of(results), tmp_path)
    assert {parts: len(picture.svgs) for parts, picture in shown.items()} == {
        ("calibration",): 4,
        ("risk_coverage",): 4,
        ("convergence",): 3,
        ("ood", "other"): 2,
        ("roc", "other"): 4,
    }
    text = page(beside_parts(results, shown))
    assert re.findall(r"<h2[^>]*>([^<]+)</h2>", text) == [
        *("In short", "Settings that differ", "Test sets", "Calibration", "Error against coverage"),
        *("other against the test sets", "Over the number of samples", "Warnings", "Provenance"),
    ]
    assert text.count("<svg") == 17


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[Axes]]:
    """The axes of every picture that is drawn, by its file's stem."""
    axes_of: dict[str, list[Axes]] = {}

    @contextlib.contextmanager
    def keeping(path, **asked):
        with drawing.picture(path, **asked) as axes:
            yield axes
        axes_of[path.stem] = axes

    monkeypatch.setattr(comparison_plots, "picture", keeping)
    return axes_of


def line(axes: Axes, label: str) -> tuple[np.ndarray, np.ndarray]:
    [found] = [one for one in axes.get_lines() if str(one.get_label()).startswith(label)]
    return np.asarray(found.get_xdata()), np.asarray(found.get_ydata())


def test_a_curve_is_that_of_its_result_and_no_curve_is_cut_off(four_methods, another, tmp_path, kept) -> None:
    comparison_plots.draw_figures({"a": four_methods, "b": another}, tmp_path)
    axes = kept["risk_coverage"][1]
    assert axes.get_title(loc="left") == "mcbn"
    for name, result in (("a", four_methods), ("b", another)):
        [line] = [one for one in axes.get_lines() if one.get_label() == name]
        np.testing.assert_allclose(line.get_ydata(), result.methods["mcbn"].risk["risk"])
        assert np.max(line.get_ydata()) < axes.get_ylim()[1]


def test_bins_of_few_points_are_hollow_by_themselves_and_it_is_said(four_methods, another, tmp_path, kept) -> None:
    count = np.zeros(15)
    count[[4, 7, 11]] = 1, 20, 39
    calibration = {"bin": np.arange(15), "count": count, "confidence": np.linspace(0.03, 0.97, 15)}
    calibration["accuracy"] = np.where(count > 0, 0.5, np.nan)
    held = replace(four_methods.methods["mcbn"], calibration=calibration)
    changed = replace(four_methods, methods=dict(four_methods.methods) | {"mcbn": held})
    comparison_plots.draw_figures({"a": changed, "b": another}, tmp_path)
    axes = kept["calibration"][1]
    np.testing.assert_allclose(line(axes, "a, ECE")[0], calibration["confidence"][[7, 11]])
    hollow = [one for one in axes.get_lines() if one.get_markerfacecolor() == "none"]
    assert any(list(one.get_xdata()) == [calibration["confidence"][4]] for one in hollow)
    assert all(one.get_linestyle() == "None" for one in hollow)
    assert axes.figure.texts[1].get_text() == "a, b; hollow: bins of fewer than 2 points"


def test_likelihood_and_mutual_information_are_drawn_over_the_passes_of_each(
    four_methods, another, tmp_path, kept
) -> None:
    results = {"a": four_methods, "b": another}
    comparison_plots.draw_figures(results, tmp_path)
    panels = kept["convergence"]  # row by row: the estimates of mcbn, mcdo and both
    assert [axes.get_ylabel() for axes in panels] == [*["PLL (nats)"] * 3, *["mutual information (nats)"] * 3]
    for place, metric in ((0, "pll"), (3, "mutual_information")):
        for name, result in results.items():
            found = result.methods["mcbn"].convergence
            np.testing.assert_allclose(line(panels[place], name), (found["samples"], found[metric]))
    comparison_plots.draw_figures({"b": another, "c": another}, tmp_path)
    alone = kept["convergence"]  # of one method: beside each other
    assert [axes.get_subplotspec().colspan.start for axes in alone] == [0, 1]


def test_each_result_has_the_histograms_of_its_best_score_with_every_point_in_them(
    four_methods, another, tmp_path, kept
) -> None:
    results = {"a": four_methods, "b": another}
    comparison_plots.draw_figures(results, tmp_path)
    panels = kept["ood_other"]
    for axes, (name, result) in zip(panels, results.items(), strict=True):
        method, _, auroc = best_score_of(result, "other")
        assert axes.get_title(loc="left") == f"{name}: {method}, AUROC {auroc:.3f}"
        shares = [patch.get_data().values.sum() for patch in axes.patches if patch.get_label() in ("test set", "other")]
        assert shares == pytest.approx([100, 100])


# ── in short ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("spread", "far"), [(0.1, "beyond"), (2.0, "within")])
def test_results_are_told_from_best_to_worst_with_the_paired_error_of_the_difference(four_methods, spread, far) -> None:
    pll = four_methods.methods["mcbn"].sets["test"].points["pll"]
    below = pll - 0.2 + np.resize([-spread, spread], len(pll))
    worse = with_points(four_methods, "pll", below)
    change, error = float(np.mean(below - pll)), standard_error(below - pll)
    told = f"{np.mean(below):.4f} nats in low ({change:.4f} ± {error:.4f}, {far} twice its error)".replace("-", "−")
    words = line_of({"low": worse, "high": four_methods}, "mcbn")
    assert f"PLL {np.mean(pll):.4f} nats in high, ".replace("-", "−") + told in words
    assert "accuracy" in words and "% in all;" in words
    legend = list(in_short({"low": worse, "high": four_methods}))[-1]
    assert "error over points" in legend and "Monte Carlo error is not included" in legend


def test_the_error_of_a_difference_goes_by_group(four_methods) -> None:
    test = four_methods.sets["test"]
    group = np.arange(test.n) // 10
    grouped = replace(four_methods, sets={**four_methods.sets, "test": replace(test, group=group)})
    pll = four_methods.methods["mcbn"].sets["test"].points["pll"]
    below = pll - 0.1 + np.resize(np.repeat([-0.5, 0.5], 10), len(pll))
    words = line_of({"a": with_points(grouped, "pll", below), "b": grouped}, "mcbn")
    assert f"± {standard_error(below - pll, group=group):.4f}, " in words
    other = replace(grouped, sets={**grouped.sets, "test": replace(test, group=group[::-1].copy() % 2)})
    assert "on different points" in line_of({"a": with_points(other, "pll", below), "b": grouped}, "mcbn")


def test_no_error_is_told_of_a_difference_between_other_points(four_methods) -> None:
    pll = four_methods.methods["mcbn"].sets["test"].points["pll"]
    worse = with_points(four_methods, "pll", pll - 0.2)
    other = replace(four_methods.sets["test"], sha256="f" * 64)
    words = list(in_short({"a": replace(worse, sets={**worse.sets, "test": other}), "b": four_methods}))
    told = next(text for text in words if text.startswith("mcbn:"))
    assert "in a (on different points)" in told and not any("±" in text for text in words)


def test_what_is_the_same_in_every_point_but_for_rounding_is_told_once(four_methods) -> None:
    pll = four_methods.methods["mcbn"].sets["test"].points["pll"]
    rounded = with_points(four_methods, "pll", pll * (1 + 1e-15))
    words = list(in_short({"a": four_methods, "b": rounded}))
    assert len(words) == len(four_methods.methods) + 1 + bool(warnings(four_methods.findings))
    assert all(text.count(" in all") >= 1 for text in words if not text.startswith("Warning"))
    shuffled = with_points(four_methods, "pll", pll[::-1].copy())  # the same mean, of other points' values
    assert "nats in all" not in line_of({"a": four_methods, "b": shuffled}, "mcbn")


def test_an_infinite_likelihood_is_last_and_nothing_tells_its_error(four_methods) -> None:
    pll = four_methods.methods["mcbn"].sets["test"].points["pll"].copy()
    pll[0] = -np.inf
    words = line_of({"a": with_points(four_methods, "pll", pll), "b": four_methods}, "mcbn")
    assert words.endswith("−inf nats in a (the error of the difference is unknown).")


def test_where_a_file_does_not_hold_the_points_no_error_is_told(four_methods) -> None:
    pll = four_methods.methods["mcbn"].sets["test"].points["pll"]
    bare = with_points(four_methods, "pll", pll - 0.2)
    held = bare.methods["mcbn"]
    test = replace(held.sets["test"], points={k: v for k, v in held.sets["test"].points.items() if k != "pll"})
    bare = replace(bare, methods=dict(bare.methods) | {"mcbn": replace(held, sets=dict(held.sets) | {"test": test})})
    words = line_of({"a": bare, "b": four_methods}, "mcbn")
    assert words.endswith("nats in a (the error of the difference is unknown).")


def test_of_an_ood_set_the_best_score_of_each_is_told_with_delongs_error(four_methods, another) -> None:
    results = {"a": four_methods, "b": another}
    best = {name: best_score_of(one, "other") for name, one in results.items()}
    first, last = sorted(best, key=lambda name: -best[name][2])
    pairs = [
        tuple(results[n].methods[best[n][0]].sets[s].points[best[n][1]] for s in ("test", "other"))
        for n in (first, last)
    ]
    error = delong_difference_variance(*pairs) ** 0.5
    change = best[last][2] - best[first][2]
    words = line_of(results, "other")
    assert words.startswith(f"other: AUROC of the best score {best[first][2]:.3f} in {first} (by the ")
    assert f"{best[last][2]:.3f} in {last} (by the " in words
    told = f"{change:.3f} ± {error:.3f}, {'beyond' if abs(change) > 2 * error else 'within'} twice its error)."
    assert words.endswith(told.replace("-", "−"))


def test_of_regressions_the_smallest_error_is_the_best(regression) -> None:
    test = regression.methods["mcdo"].sets["test"]
    larger = with_points(regression, "crps", test.points["crps"] * 2, method="mcdo")
    words = line_of({"a": larger, "b": regression}, "mcdo")
    order = words[words.index("CRPS") : words.index("PLL")]
    assert 0 < order.index(" in b") < order.index(" in a") and "RMSE" in words and "twice its error" in order


def test_a_result_with_warnings_is_named_with_its_first_and_a_wrong_reference_before_all(four_methods) -> None:
    few = warning("law-unchecked", methods=["mcbn-chi2"])
    wrong = warning("reference-mismatch", text="The reference, or `train`, is not it. Check 1.5 times.")
    results = {
        "a": replace(four_methods, findings=()),
        "b": replace(four_methods, findings=(few, wrong)),
        "c": replace(four_methods, findings=(few,)),
        "d": replace(four_methods, findings=(few,)),
    }
    told = [text for text in in_short(results) if text.startswith("Warning")]
    assert told == [
        "Warning for b: text: The reference, or `train`, is not it, and 1 other warning below.",
        "Warning for c and d: mcbn-chi2: without a reference, the noise model cannot be compared with MCBN.",
    ]
    stream = io.StringIO()
    comparison.print_beside(results, stream, width=90)
    report = stream.getvalue()
    assert report.index("Warning for b") < report.index("Settings") < report.index("bnuq check")
