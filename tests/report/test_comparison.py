"""Results side by side: settings that differ come first, every estimate has its row, and nothing is judged."""

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

from bnuq.findings import Finding, note, sentence, warning
from bnuq.metrics import delong_difference_variance, standard_error
from bnuq.records.evaluation import Result
from bnuq.report import drawing
from bnuq.report.comparison import compared, plots, report, summary
from bnuq.report.comparison.findings import SENTENCES, Place, findings, setting_findings
from bnuq.report.comparison.lookup import best_score, ood_names
from bnuq.report.comparison.report import estimates_table, ood_tables
from bnuq.report.document import Report, Table
from bnuq.report.ood import best_score_of
from bnuq.report.render import markdown, page, print_record


@pytest.fixture(scope="module")
def another(folder: Path) -> Result:
    """As `four_methods`, but of other draws, fewer of them, and without dropout's methods."""
    return small_run.evaluated(folder, out=Path("another.h5"), seed=1, samples=6, methods=("mcbn",))


@pytest.fixture(scope="module")
def on_page(four_methods: Result, another: Result) -> str:
    two = replace(four_methods, methods={name: four_methods.methods[name] for name in ("deterministic", "mcbn")})
    return page(report({"a": two, "b": another}))


def settings_of(results: dict[str, Result]) -> list[Finding]:
    return list(setting_findings(results, compared(results)))


def with_points(result: Result, metric: str, values: np.ndarray, *, method: str = "mcbn") -> Result:
    """The result, with other values of the points of its test set, and the estimate that is their mean."""
    held = result.methods[method]
    test = held.sets["test"]
    estimates = dict(test.estimates) | {metric: replace(test.estimates[metric], value=float(np.mean(values)))}
    test = replace(test, estimates=estimates, points=dict(test.points) | {metric: values})
    changed = replace(held, sets=dict(held.sets) | {"test": test})
    return replace(result, methods=dict(result.methods) | {method: changed})


def ranking(results: dict[str, Result], name: str) -> dict[str, tuple[Place, ...]]:
    """The places of the results by each metric, of a method or of an OOD set."""
    [finding] = [each for each in findings(results) if name in (each.values.get("method"), each.values.get("name"))]
    return finding.values["rankings"]


def places_by_pll(results: dict[str, Result], method: str = "mcbn") -> tuple[Place, ...]:
    return ranking(results, method)["pll"]


def on_terminal(results: dict[str, Result]) -> str:
    stream = io.StringIO()
    print_record(report, results, stream, width=90)
    return stream.getvalue()


def test_settings_that_differ_come_with_who_has_what(four_methods, another) -> None:
    results = {"a": four_methods, "b": another, "c": four_methods}
    found = settings_of(results)
    groups = {each.values["what"]: each.values["groups"] for each in found if each.code == "setting-differs"}
    assert groups["T"] == {"8": ["a", "c"], "6": ["b"]} and groups["seed"] == {"0": ["a", "c"], "1": ["b"]}
    assert groups["methods"] == {"deterministic mcbn mcdo mcbn+mcdo": ["a", "c"], "deterministic mcbn": ["b"]}
    shared, samples, last = found[-3:]
    assert (
        shared.code == "settings-shared"
        and shared.values["settings"].items() >= {"checkpoint": "model.pt", "b": "16"}.items()
    )
    assert "T" not in shared.values["settings"]
    assert samples.code == "samples-differ" and samples.values["settings"] == ["T", "seed"]
    assert last.code == "not-judged"
    text = on_terminal(results)
    assert "T: 8 in a and c; 6 in b." in text and "`bnuq check CURRENT BASELINE`" in text


def test_the_same_files_are_the_same_whatever_they_are_called_and_others_are_not(four_methods) -> None:
    test = four_methods.sets["test"]
    moved = replace(four_methods, sets={**four_methods.sets, "test": replace(test, reference="elsewhere/copy.npz")})
    assert not any(setting.differs for setting in compared({"a": four_methods, "b": moved}))
    changed = replace(four_methods, sets={**four_methods.sets, "test": replace(test, sha256="f" * 64)})
    [setting] = [each for each in compared({"a": four_methods, "b": changed}) if each.differs]
    assert setting.what == "test" and setting.other_points
    assert "ffffffff" in setting.values["b"] and test.sha256[:8] in setting.values["a"]


def test_another_pipeline_and_another_checkpoint_are_differences(four_methods) -> None:
    data = {**four_methods.run["data"], "augment": {"pad": 4, "flip": True}}
    model = {**four_methods.model, "sha256": "0" * 64, "path": "/there/other.pt"}
    changed = replace(four_methods, run={**four_methods.run, "data": data}, model=model)
    differences = {each.what: each.values["b"] for each in compared({"a": four_methods, "b": changed}) if each.differs}
    assert differences == {"checkpoint": "other.pt", "augment": "pad 4, flip yes"}


def test_every_estimate_has_its_row_and_what_a_result_has_not_is_a_dash(four_methods, another) -> None:
    results = {"a": four_methods, "b": another}
    table = estimates_table(results)
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
    assert ood_names(results) == ["other", *(n for n in two_sets.sets if two_sets.sets[n].kind == "ood")]
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
        name: np.mean([result.methods["mcbn"].ood["other"][name]["auroc"].value for result in (four_methods, another)])
        for name in four_methods.methods["mcbn"].ood["other"]
    }
    assert score == max(means, key=lambda name: means[name]) and set(aurocs) == {"a", "b"}


def test_the_summary_holds_every_result_and_what_differs(four_methods, another) -> None:
    told = json.loads(json.dumps(summary({"a": four_methods, "b": another}), allow_nan=False))
    assert list(told["results"]) == ["a", "b"] and told["command"] == "report"
    assert told["results"]["b"]["sampling"]["samples"] == 6
    assert {"what": "seed", "values": {"a": "0", "b": "1"}} in told["differences"]


def test_regressions_stand_side_by_side_too(regression, without_tau, tmp_path) -> None:
    results = {
        name: replace(result, methods={"mcdo": result.methods["mcdo"]})
        for name, result in {"fitted": regression, "bare": without_tau}.items()
    }
    text = on_terminal(results)
    assert "↓ RMSE" in text and "normalised CRPS" in text
    made = report(results)
    names = ["_".join(picture.kind) for picture in made.pictures]
    assert names == ["interval_calibration", "risk_coverage", "ood_far", "roc_far", "convergence"]
    made.pictures[-1].draw(tmp_path / "convergence.svg")  # the others are drawn by `bnuq report`


def test_hostile_names_do_nothing_anywhere(four_methods) -> None:
    evil = "<script>alert(1)</script>|`@x`\x1b[31m"
    one = replace(four_methods, methods={"mcbn": four_methods.methods["mcbn"]})
    results = {evil: one, f"{evil}2": replace(one, findings=(note(evil, text=evil),))}
    text = page(report(results))
    assert "<script" not in text and "\x1b" not in text
    document = markdown(report(results))
    assert "<script" not in document.replace("\\<script", "") and "\x1b" not in document
    assert "\x1b" not in on_terminal(results)


def test_the_page_has_a_panel_for_every_method(on_page) -> None:
    text = on_page
    assert re.findall(r"<h2[^>]*>([^<]+)</h2>", text) == [
        *("In short", "Settings that differ", "Test sets", "Calibration", "Error against coverage"),
        *("other against the test sets", "Over the number of samples", "Warnings", "Provenance"),
    ]
    # calibration, error against coverage, histograms and ROC of the OOD set, convergence
    assert [figure.count("<svg") for figure in text.split("<figure")[1:]] == [2, 2, 2, 2, 2]


def test_every_result_says_where_it_comes_from(four_methods, another, on_page) -> None:
    for result in (four_methods, another):
        assert str(result.path) in on_page and on_page.count(result.sets["test"].sha256) == 2


@pytest.fixture
def axes_of(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[Axes]]:
    """The axes of every picture that is drawn, by its file's stem."""
    collected: dict[str, list[Axes]] = {}

    @contextlib.contextmanager
    def collecting(path, **settings):
        with drawing.picture(path, **settings) as axes:
            yield axes
        collected[path.stem] = axes

    monkeypatch.setattr(plots, "picture", collecting)
    return collected


def draw_one(results: dict[str, Result], folder: Path, stem: str) -> None:
    """As `draw_pictures`, of one of them."""
    files = {drawing.file_name(*picture.kind, kind="svg"): picture for picture in report(results).pictures}
    files[f"{stem}.svg"].draw(folder / f"{stem}.svg")


def line(axes: Axes, label: str) -> tuple[np.ndarray, np.ndarray]:
    [drawn] = [each for each in axes.get_lines() if str(each.get_label()).startswith(label)]
    return np.asarray(drawn.get_xdata()), np.asarray(drawn.get_ydata())


def test_a_curve_is_that_of_its_result_and_no_curve_is_cut_off(four_methods, another, tmp_path, axes_of) -> None:
    draw_one({"a": four_methods, "b": another}, tmp_path, "risk_coverage")
    axes = axes_of["risk_coverage"][1]
    assert axes.get_title(loc="left") == "mcbn"
    for name, result in (("a", four_methods), ("b", another)):
        [line] = [one for one in axes.get_lines() if one.get_label() == name]
        np.testing.assert_allclose(line.get_ydata(), result.methods["mcbn"].risk["risk"])
        assert np.max(line.get_ydata()) < axes.get_ylim()[1]


def test_bins_of_few_points_are_hollow_by_themselves_and_it_is_said(four_methods, another, tmp_path, axes_of) -> None:
    count = np.zeros(15)
    count[[4, 7, 11]] = 1, 20, 39
    calibration = {"bin": np.arange(15), "count": count, "confidence": np.linspace(0.03, 0.97, 15)}
    calibration["accuracy"] = np.where(count > 0, 0.5, np.nan)
    held = replace(four_methods.methods["mcbn"], calibration=calibration)
    changed = replace(four_methods, methods=dict(four_methods.methods) | {"mcbn": held})
    draw_one({"a": changed, "b": another}, tmp_path, "calibration")
    axes = axes_of["calibration"][1]
    np.testing.assert_allclose(line(axes, "a, ECE")[0], calibration["confidence"][[7, 11]])
    hollow = [one for one in axes.get_lines() if one.get_markerfacecolor() == "none"]
    assert any(list(one.get_xdata()) == [calibration["confidence"][4]] for one in hollow)
    assert all(one.get_linestyle() == "None" for one in hollow)
    assert axes.figure.texts[1].get_text() == "a, b; hollow: bins of fewer than 2 points"


def test_likelihood_and_mutual_information_are_drawn_over_the_passes_of_each(
    four_methods, another, tmp_path, axes_of
) -> None:
    results = {"a": four_methods, "b": another}
    draw_one(results, tmp_path, "convergence")
    panels = axes_of["convergence"]  # row by row: the estimates of mcbn, mcdo and both
    assert [axes.get_ylabel() for axes in panels] == [*["PLL (nats)"] * 3, *["mutual information (nats)"] * 3]
    for place, metric in ((0, "pll"), (3, "mutual_information")):
        for name, result in results.items():
            found = result.methods["mcbn"].convergence
            np.testing.assert_allclose(line(panels[place], name), (found["samples"], found[metric]))
    draw_one({"b": another, "c": another}, tmp_path, "convergence")
    alone = axes_of["convergence"]  # of one method: beside each other
    assert [axes.get_subplotspec().colspan.start for axes in alone] == [0, 1]


def test_each_result_has_the_histograms_of_its_best_score_with_every_point_in_them(
    four_methods, another, tmp_path, axes_of
) -> None:
    results = {"a": four_methods, "b": another}
    draw_one(results, tmp_path, "ood_other")
    panels = axes_of["ood_other"]
    for axes, (name, result) in zip(panels, results.items(), strict=True):
        method, _, auroc = best_score_of(result, "other")
        assert axes.get_title(loc="left") == f"{name}: {method}, AUROC {auroc:.3f}"
        shares = [patch.get_data().values.sum() for patch in axes.patches if patch.get_label() in ("test set", "other")]
        assert shares == pytest.approx([100, 100])


# ── in short ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("spread", "far"), [(0.1, "beyond"), (2.0, "within")])
def test_results_come_from_best_to_worst_with_the_paired_error_of_the_difference(four_methods, spread, far) -> None:
    pll = four_methods.methods["mcbn"].sets["test"].points["pll"]
    below = pll - 0.2 + np.resize([-spread, spread], len(pll))
    results = {"low": with_points(four_methods, "pll", below), "high": four_methods}
    first, last = places_by_pll(results)
    assert (first.names, last.names, first.distance, last.distance) == (("high",), ("low",), "none", far)
    assert first.value == pytest.approx(np.mean(pll)) and last.difference == pytest.approx(np.mean(below - pll))
    assert last.error == pytest.approx(standard_error(below - pll))
    [same] = ranking(results, "mcbn")["accuracy"]
    assert same.names == ("low", "high")
    assert [finding.code for finding in findings(results)][-1] == "ranking-errors"
    numbers = f"({last.difference:.4f} ± {last.error:.4f}, {far} twice its error)".replace("-", "−")
    assert numbers in " ".join(report(results).summary)


def test_the_error_of_a_difference_goes_by_group(four_methods) -> None:
    test = four_methods.sets["test"]
    group = np.arange(test.n) // 10
    grouped = replace(four_methods, sets={**four_methods.sets, "test": replace(test, group=group)})
    pll = four_methods.methods["mcbn"].sets["test"].points["pll"]
    below = pll - 0.1 + np.resize(np.repeat([-0.5, 0.5], 10), len(pll))
    _, last = places_by_pll({"a": with_points(grouped, "pll", below), "b": grouped})
    assert last.error == pytest.approx(standard_error(below - pll, group=group))
    other = replace(grouped, sets={**grouped.sets, "test": replace(test, group=group[::-1].copy() % 2)})
    _, last = places_by_pll({"a": with_points(other, "pll", below), "b": grouped})
    assert last.distance == "other-points"


def test_a_difference_between_other_points_has_no_error(four_methods) -> None:
    pll = four_methods.methods["mcbn"].sets["test"].points["pll"]
    worse = with_points(four_methods, "pll", pll - 0.2)
    other = replace(four_methods.sets["test"], sha256="f" * 64)
    results = {"a": replace(worse, sets={**worse.sets, "test": other}), "b": four_methods}
    assert places_by_pll(results)[1].distance == "other-points"
    assert "ranking-errors" not in [finding.code for finding in findings(results)]


def test_what_is_the_same_in_every_point_except_for_rounding_has_one_place(four_methods) -> None:
    pll = four_methods.methods["mcbn"].sets["test"].points["pll"]
    results = {"a": four_methods, "b": with_points(four_methods, "pll", pll * (1 + 1e-15))}
    rankings = [finding.values["rankings"] for finding in findings(results) if finding.code.endswith("ranking")]
    assert len(rankings) == len(four_methods.methods) + 1
    assert all(len(places) == 1 for ranking in rankings for places in ranking.values())
    shuffled = with_points(four_methods, "pll", pll[::-1].copy())  # the same mean, of other points' values
    assert len(places_by_pll({"a": four_methods, "b": shuffled})) == 2


def test_an_infinite_likelihood_is_last_and_its_error_unknown(four_methods) -> None:
    pll = four_methods.methods["mcbn"].sets["test"].points["pll"].copy()
    pll[0] = -np.inf
    _, last = places_by_pll({"a": with_points(four_methods, "pll", pll), "b": four_methods})
    assert (last.names, last.value, last.distance) == (("a",), -np.inf, "error-unknown")


def test_where_a_file_does_not_hold_the_points_the_error_is_unknown(four_methods) -> None:
    pll = four_methods.methods["mcbn"].sets["test"].points["pll"]
    bare = with_points(four_methods, "pll", pll - 0.2)
    method = bare.methods["mcbn"]
    test = replace(method.sets["test"], points={k: v for k, v in method.sets["test"].points.items() if k != "pll"})
    method = replace(method, sets=dict(method.sets) | {"test": test})
    _, last = places_by_pll({"a": replace(bare, methods=dict(bare.methods) | {"mcbn": method}), "b": four_methods})
    assert (last.names, last.distance) == (("a",), "error-unknown")


def test_of_an_ood_set_each_results_best_score_has_delongs_error(four_methods, another) -> None:
    results = {
        name: replace(result, methods={"mcbn": result.methods["mcbn"]})  # other methods' best scores are the same
        for name, result in {"a": four_methods, "b": another}.items()
    }
    best = {name: best_score_of(result, "other") for name, result in results.items()}
    first, last = ranking(results, "other")["auroc"]
    assert (first.names, last.names) == tuple((name,) for name in sorted(best, key=lambda name: -best[name][2]))
    pairs = [
        tuple(results[name].methods[best[name][0]].sets[of].points[best[name][1]] for of in ("test", "other"))
        for name in (*first.names, *last.names)
    ]
    assert last.error == pytest.approx(delong_difference_variance(*pairs) ** 0.5)
    assert last.difference == pytest.approx(best[last.names[0]][2] - best[first.names[0]][2])
    assert last.distance == ("beyond" if abs(last.difference) > 2 * last.error else "within")
    assert all(best[place.names[0]][0] in place.score for place in (first, last))


def test_the_best_score_of_an_ood_set_is_said_to_be_the_best_of_how_many(four_methods) -> None:
    def separation(results: dict[str, Result]) -> str:
        return next(sentence(each, SENTENCES) for each in findings(results) if each.code == "separation-ranking")

    every = sum(len(method.ood["other"]) for method in four_methods.methods.values())
    one = replace(four_methods, methods={"mcbn": four_methods.methods["mcbn"]})
    fewer = len(one.methods["mcbn"].ood["other"])
    assert f"other: AUROC of the best of {every} scores " in separation({"a": four_methods, "b": four_methods})
    assert f"other: AUROC of the best of {fewer} to {every} scores " in separation({"a": four_methods, "b": one})


def test_of_regressions_the_smallest_error_is_the_best(regression) -> None:
    test = regression.methods["mcdo"].sets["test"]
    larger = with_points(regression, "crps", test.points["crps"] * 2, method="mcdo")
    rankings = ranking({"a": larger, "b": regression}, "mcdo")
    assert list(rankings) == ["rmse", "crps", "pll"]
    assert [place.names for place in rankings["crps"]] == [("b",), ("a",)]
    assert rankings["crps"][1].distance in ("within", "beyond")


def test_a_result_with_warnings_is_named_with_its_first_and_a_wrong_reference_before_all(four_methods) -> None:
    few = warning("law-unchecked", methods=["mcbn-chi2"])
    wrong = warning("reference-mismatch", text="The reference, or `train`, is not it. Check 1.5 times.")
    results = {
        "a": replace(four_methods, findings=()),
        "b": replace(four_methods, findings=(few, wrong)),
        "c": replace(four_methods, findings=(few,)),
        "d": replace(four_methods, findings=(few,)),
    }
    warnings = [finding.values for finding in findings(results) if finding.code == "result-warning"]
    assert warnings == [
        {"names": ["b"], "text": "text: The reference, or `train`, is not it", "others": 1},
        {
            "names": ["c", "d"],
            "text": "mcbn-chi2: without a reference, the noise model cannot be compared with MCBN",
            "others": 0,
        },
    ]
    text = on_terminal(results)
    assert text.index("Warning for b") < text.index("Settings") < text.index("bnuq check")


def test_every_finding_has_its_sentence(four_methods, another) -> None:
    results = {"a": four_methods, "b": another}
    codes = {finding.code for finding in (*findings(results), *settings_of(results))}
    assert codes <= SENTENCES.keys() and isinstance(report(results), Report)
    assert all(text.endswith(".") for text in report(results).summary)
