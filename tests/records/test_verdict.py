"""The verdict: methods of several passes against the best of a single one, with paired errors."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import made_up
import numpy as np
import pytest
import small_run
from hypothesis import given
from hypothesis import strategies as st
from report_text import rendered

from bnuq.metrics import student_cdf
from bnuq.records.evaluation import ReferenceCheck, Result
from bnuq.records.summary import summary
from bnuq.records.verdict import MethodComparison, concluded, judged, passes_of
from bnuq.report.evaluation import report

POINTS, SAMPLES = 400, 32
RNG = np.random.default_rng(3)
PLAIN = RNG.normal(-0.5, 0.4, POINTS)
NOISE = RNG.normal(0, 0.3, (SAMPLES, POINTS)) + RNG.normal(0, 0.02, (SAMPLES, 1))


def made(gain: float, **more: object) -> Result:
    """A result whose mcbn has a PLL that is better than the deterministic network's by `gain` on average."""
    return made_up.result(plain={"pll": PLAIN}, mcbn={"pll": PLAIN + gain + NOISE}, **more)


def only(result: Result) -> MethodComparison:
    [comparison] = judged(result).comparisons
    return comparison


def test_the_error_is_paired_over_points_and_draws():
    comparison = only(made(0.1))
    difference = (0.1 + NOISE).mean(0)
    left_out = [np.delete(0.1 + NOISE, t, 0).mean() for t in range(SAMPLES)]
    over_draws = math.sqrt((SAMPLES - 1) / SAMPLES * np.sum((np.array(left_out) - np.mean(left_out)) ** 2))
    over_points = np.std(difference, ddof=1) / math.sqrt(POINTS)
    assert comparison.difference == pytest.approx(difference.mean(), abs=1e-12)
    assert comparison.se == pytest.approx(math.hypot(over_points, over_draws), rel=1e-9)
    z = difference.mean() / comparison.se
    assert comparison.p == pytest.approx(2 * (1 - 0.5 * (1 + math.erf(z / math.sqrt(2)))), abs=1e-12)
    assert (comparison.method, comparison.against, comparison.passes) == ("mcbn", "deterministic", SAMPLES)


@pytest.mark.parametrize(("gain", "worth"), [(0.1, True), (0.0, False), (-0.1, False)])
def test_samples_are_worth_their_passes_only_where_they_are_better_beyond_chance(gain, worth):
    result = recalibrated(made(gain))
    verdict = judged(result)
    assert verdict.worth is worth
    assert [each.method for each in verdict.gains] == ["mcbn"] * worth
    assert verdict.best == {"pll": "mcbn" if result.methods["mcbn"].sets["test"].estimates["pll"].value
                            > PLAIN.mean() else "deterministic"}  # fmt: skip


def test_without_a_fitted_temperature_a_gain_by_pll_is_undecided():
    verdict = judged(made(0.1))
    assert verdict.worth is None
    assert verdict.undecided == {"temperature": [("pll", "test")]}
    for worse in (0.0, -0.1):
        assert judged(made(worse)).worth is False, "no temperature makes the single pass worse"
    model = {"task": "regression"}
    assert judged(replace(made(0.1), model=made(0.1).model | model)).worth is True, "which has none"


def test_a_gain_from_a_reference_that_does_not_match_is_none():
    failed = ReferenceCheck(("bn",), np.array([9.0]), np.array([9.0]), np.array([1.0]), passed=False)
    result = replace(made(0.1), reference_check=failed)
    assert judged(result).worth is None
    assert judged(result).undecided == {"reference": [("pll", "test")]}
    dropout = replace(result, methods=result.methods | {"mcdo": result.methods["mcbn"]})
    assert judged(dropout).worth is None, "the evaluated examples may have the wrong pipeline, too"
    alone = {name: method for name, method in recalibrated(dropout).methods.items() if name != "mcbn"}
    assert judged(replace(dropout, methods=alone)).worth is True, "nothing is drawn from the training set"


def test_too_few_samples_leave_it_open():
    result = made_up.result(plain={"pll": PLAIN}, mcbn={"pll": PLAIN + 0.1 + NOISE[:4]})
    assert only(result).se is None
    assert only(result).p is None
    assert judged(result).worth is None
    assert judged(result).undecided == {"errors": [("pll", "test")]}


def with_temperature(result: Result, gain: float | np.ndarray) -> Result:
    """The same beside a deterministic network with a temperature that is better by `gain` at every point."""
    plain = result.methods["deterministic"]
    of_test = plain.sets["test"]
    points = {"pll": PLAIN + gain}
    fitted = replace(of_test, points=points, estimates={"pll": made_up.plain_estimate(points["pll"])})
    methods = {**result.methods, "deterministic+temperature": replace(plain, sets={"test": fitted})}
    return replace(result, methods=methods)


def recalibrated(result: Result) -> Result:
    """The same beside a temperature of 1, which changes nothing."""
    return with_temperature(result, 0.0)


def test_the_best_of_a_single_pass_is_what_others_are_compared_with():
    verdict = judged(with_temperature(made(0.1), 0.3))
    assert verdict.worth is False
    assert {each.against for each in verdict.comparisons} == {"deterministic+temperature"}
    assert [each.method for each in verdict.comparisons] == ["mcbn", "deterministic"], "the better one first"
    assert judged(with_temperature(made(0.5), 0.3)).worth is True
    assert [each.p for each in verdict.comparisons] == pytest.approx([0.0, 0.0], abs=1e-6)


def test_p_values_are_adjusted_for_all_comparisons():
    comparisons = judged(with_temperature(made(0.005), 0.001 + 0.05 * np.cos(np.arange(POINTS)))).comparisons
    alone = {
        comparison.method: 2 * student_cdf(-abs(comparison.difference) / comparison.se, POINTS - 1)
        for comparison in comparisons
    }
    smallest, largest = sorted(alone.values())
    assert 0.001 < smallest < 0.1 < largest
    adjusted = {comparison.method: comparison.p for comparison in comparisons}
    assert adjusted == pytest.approx({name: 2 * p if p == smallest else p for name, p in alone.items()})


def test_nothing_is_said_of_one_method():
    result = made(0.1)
    alone = replace(result, methods={"deterministic": result.methods["deterministic"]})
    assert judged(alone) == replace(judged(alone), worth=None, comparisons=(), gains=(), undecided={})
    assert passes_of("deterministic", alone) == 1


def test_a_run_is_compared_by_every_metric_and_score(tmp_path):
    small_run.write(tmp_path)
    result = small_run.evaluated(tmp_path, samples=8, calibrate="cross")
    content = json.loads(json.dumps(summary(result)["verdict"]))
    assert set(content["best"]) == {"pll", "ece", "aurc", "accuracy", "auroc.other"}
    of_ood = [each for each in content["comparisons"] if each["set"] == "other"]
    sampled = {(each["method"], each["score"]) for each in of_ood if each["passes"] == 8}
    assert sampled == {(m, score) for m in result.sampled for score in result.methods[m].ood["other"]}
    against = {(each["against"], each["score_of_against"]) for each in of_ood}
    assert len(against) == 1
    method, score = against.pop()
    singles = {
        (name, s): float(e["auroc"].value)
        for name, each in result.methods.items()
        if name not in result.sampled
        for s, e in each.ood["other"].items()
    }
    assert singles[method, score] == max(singles.values())
    for each in content["comparisons"]:
        estimates = result.methods[each["method"]]
        found = (
            estimates.ood["other"][each["score"]]["auroc"]
            if each["score"]
            else estimates.sets["test"].estimates[each["metric"]]
        )
        assert each["value"] == found.value
    assert content["text"] == [summary(result)["decisions"][0]["text"]], "what is said of it is the decision"
    assert "Compared with the best single pass" in rendered(report, result, full=True)


# ── what is said of any table ────────────────────────────────────────────────────────────────────────────────────────

KEYS = ("pll", "test"), ("ece", "test"), ("aurc", "test"), ("auroc", "svhn"), ("auroc", "mnist")
PASSES = {"deterministic": 1, "laplace": 1, "ensemble": 5, "mcdo": 32, "mcbn": 64, "mcbn+mcdo": 64}
SIGN = {"pll": 1, "ece": -1, "aurc": -1, "auroc": 1}


@st.composite
def tables(draw: st.DrawFn) -> list[MethodComparison]:
    """Comparisons with the best single pass by some metrics; what they say of a method need not make sense."""
    rows: list[MethodComparison] = []
    methods = draw(st.lists(st.sampled_from([*PASSES]), unique=True, max_size=5))
    for metric, name in draw(st.lists(st.sampled_from(KEYS), unique=True, max_size=5)):
        of_metric = []
        for method in methods:
            gain = draw(st.floats(-1, 0 if PASSES[method] == 1 else 1).map(lambda value: round(value, 3)))
            p = draw(st.sampled_from([None, 0.0, 0.049, 0.05, 1.0]))
            difference = SIGN[metric] * gain
            se = None if p is None else 0.01
            named = {"method": method, "against": "tta", "set": name, "score": "", "score_of_against": ""}
            numbers = {"difference": difference, "se": se, "p": p, "value": 0.5 + difference, "value_of_against": 0.5}
            of_metric.append(MethodComparison(metric=metric, passes=PASSES[method], **named, **numbers))
        rows += sorted(of_metric, key=lambda each: -each.gain)
    return rows


@given(table=tables(), mismatched=st.booleans(), lacks_temperature=st.booleans())
def test_the_verdict_follows_from_the_table(table, mismatched, lacks_temperature):
    result = concluded(table, mismatched=mismatched, lacks_temperature=lacks_temperature)
    sampled = [each for each in table if each.passes > 1]
    stated = dict.fromkeys(((each.metric, each.set) for each in result.gains), "gain")
    undecided = [(key, reason) for reason, keys in result.undecided.items() for key in keys]
    assert not stated.keys() & dict(undecided).keys() and len(dict(undecided)) == len(undecided), "each metric once"
    stated |= dict(undecided)
    for key in {(each.metric, each.set) for each in sampled}:
        rows = [each for each in sampled if (each.metric, each.set) == key]
        expected = "errors" if any(each.p is None for each in rows) else "none"
        if better := [each for each in rows if each.gain > 0 and each.p is not None and each.p < 0.05]:
            by_temperature = lacks_temperature and key[0] in ("pll", "ece")
            expected = "reference" if mismatched else "temperature" if by_temperature else "gain"
        assert stated.get(key, "none") == expected, key
        if expected == "gain":
            assert [each for each in result.gains if (each.metric, each.set) == key] == better
    assert result.worth is (True if result.gains else None if undecided or not sampled else False)
