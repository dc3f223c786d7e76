"""Results side by side: settings that differ come first, then the estimates that do; nothing is judged."""

from __future__ import annotations

import io
import json
import math
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import small_run

from bnuq.findings import note, warning
from bnuq.gate import GateSettings, check
from bnuq.metrics import standard_error
from bnuq.metrics.registry import metric_of
from bnuq.records.addresses import address_of, estimates_of
from bnuq.records.evaluation import Result
from bnuq.report.comparison import compared, report, summary
from bnuq.report.comparison.comparison_report import EstimateAcross, pivot, table
from bnuq.report.render import markdown, page, print_record


@pytest.fixture(scope="module")
def another(folder: Path) -> Result:
    """As `four_methods`, but of other draws, and without dropout's methods."""
    return small_run.evaluated(folder, out=Path("another.h5"), seed=1, samples=8, methods=("mcbn",))


def by_address(results: dict[str, Result]) -> dict[str, EstimateAcross]:
    return {address_of(row.row.coordinates): row for row in pivot(results)}


def settings_of(results: dict[str, Result]) -> list[str]:
    """The sentences on settings."""
    [items] = report(results).sections[0].parts
    return list(items.texts)


def with_points(result: Result, metric: str, values: np.ndarray, *, method: str = "mcbn") -> Result:
    """The result, with other values of the points of its test set, and the estimate that is their mean."""
    held = result.methods[method]
    test = held.sets["test"]
    estimates = dict(test.estimates) | {metric: replace(test.estimates[metric], value=float(np.mean(values)))}
    test = replace(test, estimates=estimates, points=dict(test.points) | {metric: values})
    changed = replace(held, sets=dict(held.sets) | {"test": test})
    return replace(result, methods=dict(result.methods) | {method: changed})


def on_terminal(results: dict[str, Result], *, full: bool = False) -> str:
    stream = io.StringIO()
    print_record(report, results, stream, width=90, full=full)
    return stream.getvalue()


# ── settings ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_settings_that_differ_come_first_with_who_has_what(four_methods, another) -> None:
    results = {"a": four_methods, "b": another, "c": four_methods}
    *differing, shared = settings_of(results)
    assert differing == [
        "methods: deterministic mcbn mcdo mcbn+mcdo in a and c; deterministic mcbn in b.",
        "seed: 0 in a and c; 1 in b.",
    ]
    assert shared.startswith("The same in all: checkpoint model.pt; test ") and "; b 16;" in shared
    assert "seed" not in shared
    text = on_terminal(results)
    assert text.index("seed: 0 in a and c; 1 in b.") < text.index("estimates differ") < text.index("SE\n")
    assert "`bnuq check CURRENT BASELINE`" in text


def test_the_same_files_are_the_same_whatever_they_are_called_and_others_are_not(four_methods) -> None:
    test = four_methods.sets["test"]
    moved = replace(four_methods, sets={**four_methods.sets, "test": replace(test, reference="elsewhere/copy.npz")})
    assert not any(setting.differs for setting in compared({"a": four_methods, "b": moved}))
    changed = replace(four_methods, sets={**four_methods.sets, "test": replace(test, sha256="f" * 64)})
    [setting] = [each for each in compared({"a": four_methods, "b": changed}) if each.differs]
    assert setting.what == "test" and setting.other_points
    assert "ffffffff" in setting.values["b"] and test.sha256[:8] in setting.values["a"]


def test_another_pipeline_and_another_checkpoint_are_differences(four_methods) -> None:
    data, long = four_methods.run["data"], [*range(9)]
    model = {**four_methods.model, "sha256": "0" * 64, "path": "/there/other.pt"}
    changes = {"augment": {"pad": 4, "flip": True}, "newer": "none", "long": long}
    before = replace(four_methods, run={**four_methods.run, "data": {**data, "long": [0, *range(7, 0, -1), 8]}})
    changed = replace(four_methods, run={**four_methods.run, "data": {**data, **changes}}, model=model)
    differences = {each.what: each.values["b"] for each in compared({"a": before, "b": changed}) if each.differs}
    assert differences.pop("checkpoint") == "other.pt"
    assert differences == {"data.augment": "pad 4, flip yes", "data.newer": "'none'", "data.long": str(long)}
    [told] = [each.values["settings"] for each in check(changed, before).findings if each.code == "other-settings"]
    assert {text.partition(" now,")[0] for text in told} == {f"{what} {text}" for what, text in differences.items()}


def test_estimates_on_other_points_are_said_to_be(four_methods) -> None:
    test = four_methods.sets["test"]
    changed = replace(four_methods, sets={**four_methods.sets, "test": replace(test, sha256="f" * 64)})
    [text] = [text for text in settings_of({"a": four_methods, "b": changed}) if text.startswith("test: ")]
    assert text.endswith("in b; estimates on it are from different examples.")


# ── estimates ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_every_estimate_of_any_result_has_one_row_with_its_value_in_each(four_methods, another) -> None:
    results = {"a": four_methods, "b": another}
    rows = by_address(results)
    assert len(rows) == len(pivot(results)) and rows.keys() == {
        address for result in results.values() for address in estimates_of(result)
    }
    for place, result in enumerate(results.values()):
        own = estimates_of(result)
        for address, row in rows.items():
            assert row.estimates[place] is (own[address].estimate if address in own else None), address


def test_the_largest_deviation_comes_first_and_unknown_ones_last(four_methods, another) -> None:
    deviations = [row.deviation for row in pivot({"a": four_methods, "b": another})]
    known = [value for value in deviations if not math.isnan(value)]
    assert known == sorted(known, reverse=True) and known[0] > 1
    assert all(map(math.isnan, deviations[len(known) :])) and len(known) < len(deviations)


def test_deviations_are_by_the_errors_of_the_check(four_methods, another) -> None:
    rows = by_address({"base": another, "other": four_methods})
    compared_ones = check(four_methods, another, GateSettings.of(allow=["samples"])).comparisons
    assert len(compared_ones) > 50
    for one in compared_ones:
        if one.change and one.se:
            assert rows[one.address].deviation == pytest.approx(abs(one.change) / one.se), one.address


def test_a_difference_on_the_same_points_is_paired(four_methods) -> None:
    pll = four_methods.methods["deterministic"].sets["test"].points["pll"]
    below = pll - 0.2 + np.resize([-0.1, 0.1], len(pll))
    first, *rest = pivot({"a": four_methods, "b": with_points(four_methods, "pll", below, method="deterministic")})
    assert address_of(first.row.coordinates) == "deterministic.sets.test.pll"
    assert first.deviation == pytest.approx(abs(np.mean(below - pll)) / standard_error(below - pll))
    assert not any(row.differs for row in rest)


def test_a_change_without_any_error_is_by_an_unknown_number_and_heads_nothing(four_methods) -> None:
    pll = four_methods.methods["deterministic"].sets["test"].points["pll"]
    results = {"a": four_methods, "b": with_points(four_methods, "pll", pll - 0.2, method="deterministic")}
    made = report(results)  # all points moved by the same, so that the change has the error 0
    [row] = [row for row in pivot(results) if row.differs]
    assert math.isnan(row.deviation)
    assert made.summary[0] == f"1 of {len(estimates_of(four_methods))} estimates differ."
    below = pll - 0.2 + np.resize([-0.1, 0.1], len(pll))
    told = report({"a": four_methods, "b": with_points(four_methods, "pll", below, method="deterministic")}).summary[0]
    assert re.search(
        r"Of those that `bnuq check` tests, .* is [\d.]+ standard errors: PLL, test, deterministic\.$", told
    )


def test_of_several_results_the_largest_deviation_from_the_first_counts(four_methods) -> None:
    pll = four_methods.methods["deterministic"].sets["test"].points["pll"]
    noise = np.random.default_rng(0).normal(size=len(pll))
    near, far = (
        with_points(four_methods, "pll", pll - shift + 0.1 * noise, method="deterministic") for shift in (0.1, 1.0)
    )
    address = "deterministic.sets.test.pll"
    alone = by_address({"a": four_methods, "far": far})[address].deviation
    assert by_address({"a": four_methods, "near": near, "far": far})[address].deviation == alone
    assert by_address({"a": four_methods, "near": near})[address].deviation < alone


def test_equal_results_differ_in_nothing_and_rounding_is_no_difference(four_methods) -> None:
    pll = four_methods.methods["mcbn"].sets["test"].points["pll"]
    results = {"a": four_methods, "b": with_points(four_methods, "pll", pll * (1 + 1e-15))}
    assert not any(row.differs for row in pivot(results))
    made = report(results)
    assert made.summary == (f"All {len(estimates_of(four_methods))} estimates are the same.",)
    assert [section.title for section in made.sections] == ["Settings", "Estimates that are the same"]


def test_an_infinite_likelihood_differs_by_an_unknown_number_of_errors(four_methods) -> None:
    pll = four_methods.methods["mcbn"].sets["test"].points["pll"].copy()
    pll[0] = -np.inf
    row = by_address({"a": with_points(four_methods, "pll", pll), "b": four_methods})["mcbn.sets.test.pll"]
    assert row.differs and math.isnan(row.deviation)


def test_what_a_result_has_not_is_a_dash(four_methods, another) -> None:
    results = {"a": four_methods, "b": another}
    shown = table(results, pivot(results))
    assert shown.header == ("a", "b", "SE")
    cells = dict(shown.rows)
    value = four_methods.methods["mcdo"].sets["test"].estimates["pll"].value
    assert [cell.value for cell in cells["↑ PLL, test, mcdo"]] == [f"{value:.4f}".replace("-", "−"), "–", "–"]
    assert "↑ AUROC, other by mutual info., mcbn" in cells and len(cells) == len(shown.rows)


def test_a_terminal_shows_the_largest_deviations_and_all_in_full(four_methods, another) -> None:
    results = {"a": four_methods, "b": another}
    brief, full = on_terminal(results), on_terminal(results, full=True)
    assert len(brief.splitlines()) <= 36 and f"bnuq report {four_methods.path} {another.path} --full" in brief
    assert "mutual info., test, mcdo" not in brief and "mutual info., test, mcdo" in full
    assert "Estimates that are the same" in full and "↑ PLL, test, deterministic " in full
    rows = pivot(results)
    differing = [row for row in rows if row.differs]
    told = report(results).summary[-2]
    assert told.startswith(f"{len(differing)} of {len(rows)} estimates differ. Of those that `bnuq check` tests, the")


def test_regressions_and_their_normalised_scores_stand_side_by_side_too(regression, without_tau) -> None:
    rows = by_address({"fitted": regression, "bare": without_tau})
    assert {"mcdo.sets.test.rmse", "mcdo.normalized.crps", "mcdo.bounds.constant.crps"} <= rows.keys()
    assert rows["mcdo.normalized.crps"].estimates[1] is None
    name = metric_of("normalized_crps").short
    assert f"{name}, test, mcdo" in on_terminal({"fitted": regression, "bare": without_tau}, full=True)


def test_warnings_come_with_the_name_of_their_result(four_methods) -> None:
    warned = replace(four_methods, findings=(warning("law-unchecked", methods=["mcbn-chi2"]),))
    made = report({"a": replace(four_methods, findings=()), "b": warned})
    assert [(text.partition(": ")[0], code) for text, code, _ in made.warnings] == [("b", "law-unchecked")]
    assert "1 warning" in dict(made.facts)["b"] and "warning" not in dict(made.facts)["a"]


# ── documents ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_summary_holds_every_result_and_what_differs(four_methods, another) -> None:
    told = json.loads(json.dumps(summary({"a": four_methods, "b": another}), allow_nan=False))
    assert list(told["results"]) == ["a", "b"] and told["command"] == "report"
    assert told["results"]["b"]["sampling"]["samples"] == 8
    assert {"what": "seed", "values": {"a": "0", "b": "1"}} in told["differences"]


def test_hostile_names_do_nothing_anywhere(four_methods) -> None:
    evil = "<script>alert(1)</script>|`@x`\x1b[31m"
    one = replace(four_methods, methods={"mcbn": four_methods.methods["mcbn"]})
    results = {evil: one, f"{evil}2": replace(one, findings=(note(evil, text=evil),))}
    text = page(report(results))
    assert "<script" not in text and "\x1b" not in text
    document = markdown(report(results))
    assert "<script" not in document.replace("\\<script", "") and "\x1b" not in document
    assert "\x1b" not in on_terminal(results)


def test_the_page_and_the_markdown_have_every_estimate(four_methods, another) -> None:
    results = {"a": four_methods, "b": another}
    made = report(results)
    assert re.findall(r"<h3>([^<]+)</h3>", page(made))[:2] == ["Settings", "Estimates that differ"]
    rows = [line for line in markdown(made).splitlines() if line.startswith("| ")]
    assert len(rows) == len(pivot(results)) + 2  # each table has a header
