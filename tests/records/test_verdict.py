"""The verdict: methods of several passes against the best of a single one, with paired errors."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, replace

import made_up
import numpy as np
import pytest
import small_run
from hypothesis import given, settings
from hypothesis import strategies as st
from report_text import rendered

from bnuq.estimates import Estimate
from bnuq.findings import sentence
from bnuq.records.evaluation import ReferenceCheck, Result
from bnuq.records.summary import summary
from bnuq.records.verdict import MethodComparison, concluded, judged, passes_of
from bnuq.records.verdict_sentences import VERDICT
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


def codes(result: Result) -> list[str]:
    return [finding.code for finding in judged(result).findings]


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


@pytest.mark.parametrize(
    ("gain", "worth", "code"),
    [
        (0.1, True, "samples-worth-their-passes"),
        (0.0, False, "one-pass-is-enough"),
        (-0.1, False, "one-pass-is-enough"),
    ],
)
def test_samples_are_worth_their_passes_only_where_they_are_better_beyond_chance(gain, worth, code):
    result = recalibrated(made(gain))
    verdict = judged(result)
    assert verdict.worth is worth
    assert codes(result)[0] == code
    assert verdict.best == {"pll": "mcbn" if result.methods["mcbn"].sets["test"].estimates["pll"].value
                            > PLAIN.mean() else "deterministic"}  # fmt: skip


def test_without_a_fitted_temperature_a_gain_by_pll_is_undecided():
    verdict = judged(made(0.1))
    assert verdict.worth is None
    [undecided] = verdict.findings
    assert undecided.values["undecided"] == [("temperature", [("pll", "test")])]
    text = sentence(undecided, VERDICT)
    assert text.startswith(f"Whether samples are worth their {SAMPLES} passes is undecided by PLL: no temperature was ")
    assert "`--calibrate cross`" in text
    for worse in (0.0, -0.1):
        assert judged(made(worse)).worth is False, "no temperature makes the single pass worse"
    model = {"task": "regression"}
    assert judged(replace(made(0.1), model=made(0.1).model | model)).worth is True, "which has none"


@pytest.mark.parametrize(("gain", "others", "worse"), [(0.0, [("pll", "test")], []), (-0.1, [], [("pll", "test")])])
def test_a_metric_is_named_once(gain, others, worse):
    [finding] = judged(recalibrated(made(gain))).findings
    assert (finding.values["others"], finding.values["worse"]) == (others, worse)
    text = sentence(finding, VERDICT)
    assert ("all methods are worse than the best single pass" in text) is bool(worse)
    assert ("no method beats the best single pass" in text) is bool(others)
    assert "Recommended by PLL: deterministic" in text


def test_a_network_with_population_statistics_is_recommended_with_what_makes_it():
    result = with_temperature(made(0.0), 0.3)
    methods = {name.replace("temperature", "population"): method for name, method in result.methods.items()}
    [finding] = judged(replace(result, methods=methods)).findings
    assert "precise-bn" not in sentence(finding, VERDICT), "the pipeline is checked first"
    passed = ReferenceCheck(("bn",), np.array([1.0]), np.array([1.0]), np.array([1.0]), passed=True)
    [finding] = judged(replace(result, methods=methods, reference_check=passed)).findings
    text = sentence(finding, VERDICT)
    assert "Recommended by PLL: deterministic+population" in text
    assert "run `bnuq precise-bn` first" in text
    assert "precise-bn" not in sentence(judged(result).findings[0], VERDICT)


def test_a_gain_from_a_reference_that_does_not_match_is_none():
    failed = ReferenceCheck(("bn",), np.array([9.0]), np.array([9.0]), np.array([1.0]), passed=False)
    result = replace(made(0.1), reference_check=failed)
    assert judged(result).worth is None
    [undecided] = judged(result).findings
    assert (undecided.code, undecided.values["undecided"]) == ("worth-undecided", [("reference", [("pll", "test")])])
    assert "statistics may not be those of its data" in sentence(undecided, VERDICT), "of which a check may say nothing"
    dropout = replace(result, methods=result.methods | {"mcdo": result.methods["mcbn"]})
    assert judged(dropout).worth is None, "the evaluated points may have the wrong pipeline, too"
    alone = {name: method for name, method in recalibrated(dropout).methods.items() if name != "mcbn"}
    assert judged(replace(dropout, methods=alone)).worth is True, "nothing is drawn from the reference"


def test_too_few_samples_leave_it_open():
    result = made_up.result(plain={"pll": PLAIN}, mcbn={"pll": PLAIN + 0.1 + NOISE[:4]})
    assert only(result).se is None
    assert only(result).p is None
    assert judged(result).worth is None
    [undecided] = judged(result).findings
    assert (undecided.code, undecided.values["undecided"]) == ("worth-undecided", [("errors", [("pll", "test")])])


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
        comparison.method: math.erfc(abs(comparison.difference) / comparison.se / math.sqrt(2))
        for comparison in comparisons
    }
    smallest, largest = sorted(alone.values())
    assert 0.001 < smallest < 0.1 < largest
    adjusted = {comparison.method: comparison.p for comparison in comparisons}
    assert adjusted == pytest.approx({name: 2 * p if p == smallest else p for name, p in alone.items()})


def with_draws(result: Result) -> Result:
    of_test = result.methods["mcbn"].sets["test"]
    gains = np.linspace(-3, 3, SAMPLES)[:, None]  # the first draws are bad, the last ones good
    draws = PLAIN + gains + 0.001 * NOISE
    points = {"pll": np.log(np.exp(draws).mean(0))}
    estimate = Estimate(points["pll"].mean(), se=0.01, mc_se=0.001)
    of_test = replace(of_test, log_likelihood=draws, points=points, estimates={"pll": estimate})
    return replace(result, methods={**result.methods, "mcbn": replace(result.methods["mcbn"], sets={"test": of_test})})


def test_the_best_choice_at_fewer_passes_is_of_the_first_draws():
    result = with_draws(recalibrated(made(0.0)))
    [choice] = [finding for finding in judged(result).findings if finding.code == "best-choice"]
    assert [(passes, method) for passes, method, _ in choice.values["choices"]] == [
        (1, "deterministic"),
        (8, "deterministic"),
        (32, "mcbn"),
    ]
    last = choice.values["choices"][-1][2]
    assert last == pytest.approx(np.log(np.exp(PLAIN + np.linspace(-3, 3, SAMPLES)[:, None]).mean(0)).mean(), abs=1e-3)


def test_of_single_passes_alone_the_best_is_named():
    result = with_temperature(made(0.1), 0.3)
    singles = {name: method for name, method in result.methods.items() if name != "mcbn"}
    verdict = judged(replace(result, methods=singles))
    assert verdict.worth is None
    [finding] = verdict.findings
    assert (finding.code, finding.values["method"]) == ("only-single-passes", "deterministic+temperature")
    assert f"{PLAIN.mean() + 0.3:.4f}".replace("-", "−") in sentence(finding, VERDICT)


def test_nothing_is_said_of_one_method():
    result = made(0.1)
    alone = replace(result, methods={"deterministic": result.methods["deterministic"]})
    assert judged(alone) == replace(judged(alone), worth=None, comparisons=(), findings=())
    assert passes_of("deterministic", alone) == 1


def test_a_run_is_compared_by_every_metric_and_score(tmp_path):
    small_run.write(tmp_path)
    result = small_run.evaluated(tmp_path, samples=8, calibrate="cross")
    content = json.loads(json.dumps(summary(result)["verdict"]))
    assert set(content["best"]) == {"pll", "ece", "aurc", "auroc.other"}
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
    assert content["text"][0] in " ".join(rendered(report, result).split())
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
def test_the_first_sentence_follows_from_the_table(table, mismatched, lacks_temperature):
    result = concluded(table, mismatched=mismatched, lacks_temperature=lacks_temperature)
    sampled = [each for each in table if each.passes > 1]
    if not sampled:
        assert result.worth is None
        assert [finding.code for finding in result.findings] == ["only-single-passes"] * bool(table)
        return
    [finding] = result.findings
    values, text = finding.values, sentence(finding, VERDICT)
    stated = dict.fromkeys(values.get("by", ()), "gain") | dict.fromkeys(values["others"], "none")
    stated |= dict.fromkeys(values["worse"], "worse")
    stated |= {key: reason for reason, keys in values.get("undecided", ()) for key in keys}
    counted = [*values.get("by", ()), *values["others"], *values["worse"]]
    counted += [key for _, keys in values.get("undecided", ()) for key in keys]
    assert sorted(counted) == sorted({(each.metric, each.set) for each in sampled}), "each metric once"
    for key, outcome in stated.items():
        rows = [each for each in sampled if (each.metric, each.set) == key]
        better = [each for each in rows if each.gain > 0 and each.p is not None and each.p < 0.05]
        unknown = any(each.p is None for each in rows)
        worse = all(each.gain < 0 and each.p is not None and each.p < 0.05 for each in rows)
        expected = "errors" if unknown else "worse" if worse else "none"
        if better:
            by_temperature = lacks_temperature and key[0] in ("pll", "ece")
            expected = "reference" if mismatched else "temperature" if by_temperature else "gain"
        assert outcome == expected, key
    gained = "gain" in stated.values()
    assert result.worth is (True if gained else None if values.get("undecided") else False)
    assert finding.code == {True: "samples-worth-their-passes", None: "worth-undecided"}.get(
        result.worth, "one-pass-is-enough"
    )
    assert ("undecided" in text) is bool(values.get("undecided"))
    assert ("no gain" in text or "may be chance" in text) is (result.worth is False)
    assert ("may be chance" in text) is bool(values.get("is_likely"))
    if result.worth is not None:
        example = values["example"]
        rows = [each for each in sampled if (each.metric, each.set) == (example["metric"], example["set"])]
        assert stated[example["metric"], example["set"]] == "gain" or not gained
        best = max((each for each in rows if each.is_better or not gained), key=lambda each: each.gain)
        assert example == asdict(best), "the best method by that metric"
        quoted = rows[[each.method for each in rows].index(example["method"])]
        assert f"{quoted.value:.4f}".replace("-", "−") in text
        assert f"{quoted.method} " in text
        assert {each.method for each in result.gains} <= {each.method for each in sampled}


@settings(max_examples=25)
@given(gains=st.lists(st.sampled_from([-0.2, 0.0, 0.005, 0.008, 0.01, 0.012, 0.015, 0.1]), min_size=2, max_size=2))
def test_the_choice_at_all_passes_is_the_best_gain_of_the_table(gains):
    first, second = (made(gain) for gain in gains)
    verdict = judged(recalibrated(replace(first, methods=first.methods | {"mcdo": second.methods["mcbn"]})))
    better = [each for each in verdict.comparisons if each.metric == "pll" and each.passes > 1 and each.is_better]
    choices = [finding.values["choices"] for finding in verdict.findings if finding.code == "best-choice"]
    assert bool(choices) is bool(better)
    for [(passes, single, pll), *_, (most, method, value)] in choices:
        best = max(better, key=lambda each: each.gain)
        assert (passes, single, pll) == (1, best.against, best.value_of_against)
        assert (most, method, value) == (SAMPLES, best.method, best.value)
