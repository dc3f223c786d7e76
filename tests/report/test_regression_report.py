"""The report of a regression: every estimate shown, and words that hold for it."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_up import changed, with_test
from report_text import one_line, rendered

from bnuq.estimates import Estimate
from bnuq.records.evaluation import MethodResult, MethodWork, Result, Work
from bnuq.report.evaluation import report
from bnuq.report.numbers import and_error, decimals, number, total, with_error

drawn = partial(rendered, report, width=80, full=True)


def numbers_in(text: str) -> np.ndarray:
    found = re.findall(r"−?\d+\.?\d*(?:e[−+]\d+)?", text.replace(",", ""))
    return np.array([float(value.replace("−", "-")) for value in found])


# ── numbers ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_error_in_a_report_is_that_over_points_and_draws_together():
    assert total(Estimate(1.0, se=3.0, mc_se=4.0)) == 5.0
    assert total(Estimate(1.0, se=3.0)) == 3.0  # of a single sample
    assert total(Estimate(1.0, mc_se=4.0)) is None  # the other alone would mislead


@pytest.mark.parametrize("width", [40, 80, 100])
@pytest.mark.parametrize("name", ["regression", "given_tau", "without_tau", "two_outputs"])
def test_every_estimate_bound_and_normalised_score_is_shown(request, name, width):
    result: Result = request.getfixturevalue(name)
    shown = numbers_in(drawn(result, width=width))
    for metric in {m for method in result.methods.values() for m in method.sets["test"].estimates}:
        row = [m.sets["test"].estimates.get(metric) for m in result.methods.values()]
        finite = [estimate for estimate in row if estimate is not None and math.isfinite(estimate.value)]
        largest = max(abs(estimate.value) for estimate in finite)
        for estimate in finite:
            error = total(estimate) or 0.0  # whose first two digits say how many decimals are shown
            assert np.abs(shown - estimate.value).min() <= max(5e-5, 5e-5 * largest, 0.05 * error), metric
    for method in result.methods.values():
        for bound in method.bounds.values() if "constant" in method.bounds else ():
            for estimate in bound.values():
                assert np.abs(shown - estimate.value).min() <= 5e-4 * abs(estimate.value)
        for estimate in method.normalized.values():
            assert np.abs(shown - estimate.value).min() <= 0.051
        for scores in method.ood.values():
            for estimates in scores.values():
                assert all(f"{estimate.value:.4f}" in drawn(result, width=width) for estimate in estimates.values())


@pytest.mark.parametrize(
    ("value", "error", "digits", "shown"),
    [
        (378245.123, 7440.4, None, "378,245 ± 7,440"),
        (11.4339, 3.5755, None, "11.4 ± 3.6"),
        (0.0123456, 0.000456, None, "0.01235 ± 0.00046"),
        (-8.1178, 154.7563, 4, "−8 ± 155"),
        (-0.3755, 0.0543, 4, "−0.3755 ± 0.0543"),
        (5.0, 0.0, None, "5.0000"),
    ],
)
def test_an_estimate_of_any_unit_is_shown_to_two_digits_of_its_error(value, error, digits, shown):
    cell = with_error(Estimate(value, se=error), digits)
    assert f"{cell.value} {cell.error}".replace("±", "± ").strip() == shown
    if digits is None and error:
        assert and_error(Estimate(value, se=error)) == shown


@pytest.mark.parametrize(("seconds", "ratio", "shown"), [(1.0, 0.36, "0.36"), (1.0, 21.7, "22"), (0.004, 21.7, "")])
def test_a_cost_is_shown_where_it_could_be_timed(regression, seconds, ratio, shown):
    work = {"deterministic": MethodWork(seconds, 60, None), "mcbn": MethodWork(1.0, 60, ratio)}
    text = one_line(drawn(replace(regression, work=Work(work))))
    assert f"in deterministic passes: mcbn {shown} " in text if shown else "deterministic passes" not in text


@given(st.floats(min_value=1e-4, max_value=1e8))
def test_a_row_shows_five_digits_of_its_largest_whatever_the_unit(value):
    shown = float(number(value, decimals([value, value / 3, 0.0, None, math.inf])).replace("−", "-"))
    assert abs(shown - value) <= 5.001e-5 * value


def test_a_row_of_nothing_but_zeros_has_the_usual_decimals():
    assert decimals([0.0, math.nan]) == 4


def test_the_deterministic_network_has_no_row_where_it_has_no_score(regression):
    text = drawn(regression)
    of_ood = text[text.index("far, 40 examples, against") :]
    assert re.search(r"^ mcbn$\n^   var. of samples", of_ood, flags=re.MULTILINE)
    assert not re.search(r"^ deterministic$", of_ood, flags=re.MULTILINE)
    assert "far: AUROC, how often its examples rank above test ones" in one_line(drawn(regression, full=False))


def test_noise_is_told_beside_its_precision(regression):
    tau = regression.methods["mcdo"].sets["test"].estimates["tau"].value
    row = re.search(r"^ +noise sd, 1/√τ .*$", drawn(regression), flags=re.MULTILINE)
    assert row and np.abs(numbers_in(row[0]) - tau**-0.5).min() < 1e-3


# ── what there is no τ or no constant for ─────────────────────────────────────────────────────────────────────────────


def test_without_a_constant_baseline_no_bounds_are_shown(given_tau):
    text = one_line(drawn(given_tau))
    assert "τ: observation precision, as given." in text
    assert "Between constant uncertainty" not in text and "Normalised: 0 %" not in text


def test_without_tau_the_report_says_what_is_absent_and_why(without_tau):
    text = one_line(drawn(without_tau))
    assert "How far predictions are off is not known: no examples held out of training were named." in text
    assert "τ, PLL, CRPS and coverage, the constant baseline and the normalised scores are not available" in text
    assert not re.search(r"^ . (CRPS|PLL|coverage)", drawn(without_tau), flags=re.MULTILINE)


# ── what normalised scores cannot say ────────────────────────────────────────────────────────────────────────────────


def normalised(result: Result, exact: int, **values: float) -> Result:
    method = result.methods["mcdo"]
    optimum = np.array(method.sets["test"].points["pll_optimum"])
    optimum[:exact] = np.inf
    result = with_test(result, "mcdo", points=dict(method.sets["test"].points) | {"pll_optimum": optimum})
    return changed(result, "mcdo", normalized={name: Estimate(value) for name, value in values.items()})


def test_a_normalised_score_that_is_not_defined_is_a_dash_and_explained(regression):
    text = drawn(normalised(regression, 1, crps=5.0, pll=math.nan, pll_without_exact=-12.34), width=100)
    assert "nan" not in text
    of_one = (
        "the optimal PLL is infinite, as 1 example is predicted exactly; the normalised PLL of the others is −12.3 %."
    )
    assert of_one in one_line(text)
    coinciding = one_line(drawn(normalised(regression, 0, crps=math.nan, pll=100.4)))
    assert "mcdo: a normalised score is –, as no σ of each example is better than the constant one." in coinciding
    assert "mcdo: above 100 %, as a mixture of samples can exceed the bound" in coinciding
    assert re.search(r"^   mcdo .* –$", text[text.index("\n PLL\n") :], flags=re.MULTILINE)


# ── σ and errors ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_calibration_of_intervals_is_that_of_the_file(regression):
    text = drawn(regression)
    table = text[text.index("Share of targets inside the central intervals") :]
    curve = regression.methods["mcbn"].calibration
    row = re.search(r"^ mcbn .*$", table, flags=re.MULTILINE)
    levels = [int(np.flatnonzero(np.isclose(curve["level"], level))[0]) for level in (0.5, 0.8, 0.95)]
    assert row and numbers_in(row[0]) == pytest.approx(curve["coverage"][levels], abs=5e-5)


@pytest.mark.parametrize(
    ("scoring", "words"),
    [
        ({}, "CRPS is of the Gaussian with the mean and variance of the samples plus observation noise 1/τ, PLL of"),
        ({"crps": "fair"}, "CRPS is of the samples alone, without noise, corrected for their number"),
        ({"pll": "moment"}, "PLL of the Gaussian with the mean and variance"),
        ({"fit": "pll"}, "τ: observation precision, fitted by PLL to the validation examples."),
    ],
)
def test_the_legend_says_which_scores_these_are(regression, scoring, words):
    assert words in one_line(drawn(replace(regression, run=dict(regression.run) | {"scoring": scoring})))


def test_a_network_with_a_single_output_is_told_as_such(regression, two_outputs):
    assert "1 output" in one_line(drawn(regression)) and "2 outputs" in one_line(drawn(two_outputs))


def test_the_deterministic_network_can_stand_alone(regression):
    alone: dict[str, MethodResult] = {"deterministic": regression.methods["deterministic"]}
    text = one_line(drawn(replace(regression, methods=alone)))
    assert "noise sd, 1/√τ" in text and "AUROC" not in text and "ρ(σ, |e|)" not in text
